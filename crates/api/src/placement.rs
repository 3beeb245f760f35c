//! Objects where the program wants them (`mnalloc` of `terrace.h`; M2T §III-A).

use crate::Function;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_void;

static MNALLOC: Function = Function::new(c"mnalloc");
static MNALLOC_ALIGNED: Function = Function::new(c"mnalloc_aligned");
static CREATE: Function = Function::new(c"terrace_arena_create");
static DESTROY: Function = Function::new(c"terrace_arena_destroy");
static QUERY: Function = Function::new(c"terrace_arena_query");

/// Whether whatever `malloc` gives is aligned so far: small objects of jemalloc's are at multiples
/// of 8.
fn is_aligned(align: usize, size: usize) -> bool {
    align <= 16 && align <= size
}

/// Where an object is to lie. A hint: it never makes an allocation fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The object lies where `malloc` puts it.
    #[default]
    Default,
    /// The new object lies on the page of the object at this address, if that was placed and there
    /// is room. Else it lies on another page of the same arena, if the object is in one. Beside
    /// null it lies where something new begins, with room for more.
    NextTo(*const u8),
    /// The object lies with what is often used.
    Hot,
    /// The object lies with what is seldom used.
    Cold,
    /// The object lies in the arena of this number.
    Arena(ArenaId),
}

/// An arena's number; 0 is none.
pub type ArenaId = u64;

impl Placement {
    /// The two words that stand for it in `terrace.h`.
    fn words(self) -> (usize, usize) {
        match self {
            Placement::Default => (0, 0),
            Placement::NextTo(object) => (1, object as usize),
            Placement::Hot => (2, 0),
            Placement::Cold => (3, 0),
            Placement::Arena(arena) => (4, arena as usize),
        }
    }
}

/// Memory for a layout, which [`free`] gives back; null if there is none. Without Terrace it is the
/// C library's.
pub fn mnalloc(layout: Layout, placement: Placement) -> *mut u8 {
    let (kind, what) = placement.words();
    let aligned = !is_aligned(layout.align(), layout.size());
    let function = if aligned { &MNALLOC_ALIGNED } else { &MNALLOC };
    let memory: *mut c_void = match function.address().filter(|_| kind > 0) {
        Some(address) if aligned => {
            // SAFETY: the library's function of this name has this signature, and takes any
            // numbers.
            let mnalloc: extern "C" fn(usize, usize, usize, usize) -> *mut c_void =
                unsafe { std::mem::transmute(address) };
            mnalloc(layout.align(), layout.size(), kind, what)
        }
        Some(address) => {
            // SAFETY: as above.
            let mnalloc: extern "C" fn(usize, usize, usize) -> *mut c_void =
                unsafe { std::mem::transmute(address) };
            mnalloc(layout.size(), kind, what)
        }
        None if aligned => {
            let mut memory = std::ptr::null_mut();
            // SAFETY: a layout's alignment is a power of two; where it fails nothing is stored.
            unsafe {
                libc::posix_memalign(
                    &mut memory,
                    layout.align().max(size_of::<usize>()),
                    layout.size(),
                )
            };
            memory
        }
        // SAFETY: takes any size.
        None => unsafe { libc::malloc(layout.size().max(1)) },
    };
    memory.cast()
}

/// Gives memory back.
///
/// # Safety
/// It came from [`mnalloc`] (or is null), and is not used any more.
pub unsafe fn free(memory: *mut u8) {
    // SAFETY: the caller's promise; the C library's free, or Terrace's in its place, takes it.
    unsafe { libc::free(memory.cast()) }
}

/// How much an arena holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Number of objects.
    pub objects: usize,
    /// Bytes of the objects, as rounded up.
    pub bytes: usize,
    /// Pages that the objects lie on, perhaps with others.
    pub pages: usize,
}

/// An arena: memory for objects that are to lie together, freed as a whole when it is dropped. It
/// takes 48 bytes in Terrace, and no page of its own.
///
/// `&Arena` is an allocator for collections (feature `allocator-api2`). Without Terrace it
/// allocates as `malloc` does, and what was not freed when it is dropped is leaked.
#[derive(Debug)]
pub struct Arena {
    id: ArenaId,
}

impl Arena {
    /// A new arena, with what is [hot](Placement::Hot), [cold](Placement::Cold), as some object is,
    /// or neither.
    pub fn new(placement: Placement) -> Arena {
        let (kind, what) = placement.words();
        let id = CREATE.address().map_or(0, |address| {
            // SAFETY: the library's function of this name has this signature, and takes any
            // numbers.
            let create: extern "C" fn(usize, usize) -> ArenaId =
                unsafe { std::mem::transmute(address) };
            create(kind, what)
        });
        Arena { id }
    }

    /// Number of the arena; 0 without Terrace.
    pub fn id(&self) -> ArenaId {
        self.id
    }

    /// Memory in the arena: until the arena is dropped, or until [`free`].
    pub fn alloc(&self, layout: Layout) -> *mut u8 {
        mnalloc(layout, self.placement())
    }

    fn placement(&self) -> Placement {
        if self.id == 0 { Placement::Default } else { Placement::Arena(self.id) }
    }

    /// How much the arena holds; `None` without Terrace.
    pub fn figures(&self) -> Option<ArenaFigures> {
        let address = QUERY.address().filter(|_| self.id != 0)?;
        // SAFETY: the library's function of this name has this signature.
        let query: extern "C" fn(ArenaId, *mut ArenaFigures) -> i32 =
            unsafe { std::mem::transmute(address) };
        let mut figures = ArenaFigures::default();
        (query(self.id, &mut figures) == 0).then_some(figures)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(address) = DESTROY.address().filter(|_| self.id != 0) {
            // SAFETY: as above. Allocations borrowed this, and no borrow is left.
            let destroy: extern "C" fn(ArenaId) -> i32 = unsafe { std::mem::transmute(address) };
            destroy(self.id);
        }
    }
}

/// An allocator for collections (feature `allocator-api2`) that places what it allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(Placement);

impl At {
    /// Places what it allocates with what is often used.
    pub const HOT: At = At(Placement::Hot);
    /// Places what it allocates with what is seldom used.
    pub const COLD: At = At(Placement::Cold);

    /// Places what it allocates anywhere.
    ///
    /// # Safety
    /// An arena takes what is in it along when it ends, also what was placed next to something in
    /// it. That must not be used then.
    pub const unsafe fn new(placement: Placement) -> At {
        At(placement)
    }
}

#[cfg(feature = "allocator-api2")]
mod collections {
    use super::{Arena, At, Placement, free, mnalloc};
    use allocator_api2::alloc::{AllocError, Allocator};
    use std::alloc::Layout;
    use std::ptr::NonNull;

    fn allocate(layout: Layout, placement: Placement) -> Result<NonNull<[u8]>, AllocError> {
        let memory = match layout.size() {
            0 => NonNull::new(std::ptr::without_provenance_mut(layout.align())),
            _ => NonNull::new(mnalloc(layout, placement)),
        };
        memory.map(|memory| NonNull::slice_from_raw_parts(memory, layout.size())).ok_or(AllocError)
    }

    /// # Safety
    /// As for [`Allocator::deallocate`].
    unsafe fn deallocate(memory: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's promise.
            unsafe { free(memory.as_ptr()) }
        }
    }

    // SAFETY: memory stays until it is freed or the arena is dropped, which outlives the borrow;
    // any borrow can free what another allocated.
    unsafe impl Allocator for &Arena {
        fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
            allocate(layout, self.placement())
        }

        unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { deallocate(memory, layout) }
        }
    }

    // SAFETY: memory stays until it is freed, or `At::new`'s promise holds; any can free what
    // another allocated.
    unsafe impl Allocator for At {
        fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
            allocate(layout, self.0)
        }

        unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
            // SAFETY: the caller's promise.
            unsafe { deallocate(memory, layout) }
        }
    }
}

thread_local! {
    static WITHIN: Cell<Placement> = const { Cell::new(Placement::Default) };
}

/// A global allocator: the C library's (Terrace's under `terrace run`), which places what is
/// allocated [`within`] a function.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: terrace_api::Global = terrace_api::Global;
///
/// let log = terrace_api::cold(|| vec![0u8; 1 << 20]);
/// # assert_eq!(log.len(), 1 << 20);
/// ```
pub struct Global;

// SAFETY: memory is the C library's, at least as large and as aligned as asked for, and stays until
// it is freed.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        mnalloc(layout, WITHIN.try_with(Cell::get).unwrap_or_default())
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { free(memory) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if WITHIN.try_with(Cell::get).unwrap_or_default() == Placement::Default
            && is_aligned(layout.align(), layout.size())
        {
            // SAFETY: takes any size. Fresh memory is not written to.
            return unsafe { libc::calloc(1, layout.size()) }.cast();
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { self.alloc(layout) };
        if !memory.is_null() {
            // SAFETY: of that size.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_aligned(layout.align(), new_size) {
            // SAFETY: the caller's promise. It keeps its placement.
            return unsafe { libc::realloc(memory.cast(), new_size) }.cast();
        }
        // SAFETY: the caller's promise: the new size is one that its alignment allows.
        let new =
            unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are that large, and the old one is the caller's.
            unsafe {
                std::ptr::copy_nonoverlapping(memory, new, layout.size().min(new_size));
                free(memory);
            }
        }
        new
    }
}

/// What `f` allocates with [`Global`] in this thread is expected to be used often.
pub fn hot<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: in no arena.
    unsafe { within(Placement::Hot, f) }
}

/// What `f` allocates with [`Global`] in this thread is expected to be used seldom.
pub fn cold<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: in no arena.
    unsafe { within(Placement::Cold, f) }
}

/// What `f` allocates with [`Global`] in this thread is placed by `placement`.
///
/// # Safety
/// As for [`At::new`].
pub unsafe fn within<R>(placement: Placement, f: impl FnOnce() -> R) -> R {
    /// The placement before `f`, which is put back when this is dropped, also when `f` panics.
    struct Before(Placement);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHIN.set(self.0);
        }
    }
    let _before = Before(WITHIN.replace(placement));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With Terrace: see the examples, which end-to-end tests run.
    #[test]
    fn without_terrace_it_is_the_c_librarys_memory() {
        let arena = Arena::new(Placement::Hot);
        assert_eq!((arena.id(), arena.figures()), (0, None));
        for align in [1, 16, 64, 4096] {
            let layout = Layout::from_size_align(100, align).expect("a layout");
            for placement in
                [Placement::Cold, Placement::NextTo(std::ptr::null()), Placement::Arena(7)]
            {
                let memory = mnalloc(layout, placement);
                assert!(!memory.is_null() && (memory as usize).is_multiple_of(align));
                // SAFETY: just allocated.
                unsafe { free(memory) };
            }
        }
    }

    #[test]
    fn a_placement_is_of_its_function() {
        let seen = hot(|| (WITHIN.get(), cold(|| WITHIN.get()), WITHIN.get()));
        assert_eq!(seen, (Placement::Hot, Placement::Cold, Placement::Hot));
        assert!(std::panic::catch_unwind(|| hot(|| panic!("once"))).is_err());
        assert_eq!(WITHIN.get(), Placement::Default);
    }
}
