//! jemalloc arenas whose extents come from a zone.
//!
//! The metadata of these arenas comes from elsewhere (`metadata_use_hooks` off). So freeing an
//! object never touches its page, and never restores an evicted one. Each thread is bound to one
//! arena. The automatic thread cache then holds that zone's objects only.

use crate::grouped::slabs;
use crate::{placement, zone};
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use terrace_os as sys;
use tikv_jemalloc_sys as je;

/// `arena_config_t` of jemalloc 5.3.
#[repr(C)]
struct ArenaConfig {
    hooks: *const Hooks,
    metadata_use_hooks: bool,
}

type AllocHook =
    extern "C" fn(*mut c_void, *mut c_void, usize, usize, *mut bool, *mut bool, u32) -> *mut c_void;
type DallocHook = extern "C" fn(*mut c_void, *mut c_void, usize, bool, u32) -> bool;
type PartHook = extern "C" fn(*mut c_void, *mut c_void, usize, usize, usize, u32) -> bool;
type SplitHook = extern "C" fn(*mut c_void, *mut c_void, usize, usize, usize, bool, u32) -> bool;
type MergeHook =
    extern "C" fn(*mut c_void, *mut c_void, usize, *mut c_void, usize, bool, u32) -> bool;

/// `extent_hooks_t`.
#[repr(C)]
struct Hooks {
    alloc: AllocHook,
    dalloc: Option<DallocHook>,
    destroy: Option<DallocHook>,
    commit: Option<PartHook>,
    decommit: Option<PartHook>,
    purge_lazy: Option<PartHook>,
    purge_forced: Option<PartHook>,
    split: SplitHook,
    merge: MergeHook,
}

/// No dalloc and no destroy: what an arena frees it keeps (retained) and reuses, after purging it.
static HOOKS: Hooks = Hooks {
    alloc: hook_alloc,
    dalloc: None,
    destroy: None,
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: Some(hook_purge),
    split: hook_split,
    merge: hook_merge,
};

extern "C" fn hook_alloc(
    _: *mut c_void,
    address: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: u32,
) -> *mut c_void {
    if !address.is_null() {
        // Extending in place is never promised.
        return std::ptr::null_mut();
    }
    let extent = zone::extend(0, size, align);
    if !extent.is_null() {
        // SAFETY: jemalloc passes valid pointers; a zone's memory is fresh, zeroed and accessible.
        unsafe {
            *zero = true;
            *commit = true;
        }
    }
    extent.cast()
}

extern "C" fn hook_purge(
    _: *mut c_void,
    extent: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: u32,
) -> bool {
    zone::discard(extent as usize + offset, len).is_err()
}

extern "C" fn hook_split(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: u32,
) -> bool {
    false
}

extern "C" fn hook_merge(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: u32,
) -> bool {
    false
}

/// Arenas a CPU: jemalloc's own default.
const ARENAS_PER_CPU: usize = 4;
const ARENAS_MAX: usize = 64;
/// Extents that grow beyond this size, in bytes, make room in too large steps.
const GROW_LIMIT: usize = 8 << 20;

/// Arena numbers by slot. Changed without a lock: a lock held here while jemalloc takes its own
/// would deadlock with a fork, which takes jemalloc's first.
static NUMBERS: [AtomicU32; ARENAS_MAX] = [const { AtomicU32::new(NONE) }; ARENAS_MAX];
/// Arena 0 is jemalloc's own, never ours.
const NONE: u32 = 0;
const BEING_MADE: u32 = u32::MAX;
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Binds a thread to an arena of zone 0 at its first allocation, and makes the arena if need be.
/// Registers an rseq area where the C library does not, so that the kernel tells the thread's CPU.
/// Always succeeds: without address space for a zone the thread uses jemalloc's own arenas, which
/// are not managed.
#[unsafe(no_mangle)]
extern "C" fn terrace_bind_thread() -> i32 {
    sys::register_rseq();
    if let Some(arena) = arena_for_thread() {
        let set = write_control(c"thread.arena", arena);
        debug_assert!(set, "an arena of ours can be bound");
    }
    1
}

fn arena_for_thread() -> Option<u32> {
    if !zone::open() {
        return None;
    }
    let wanted = (sys::cpu_count() * ARENAS_PER_CPU).min(ARENAS_MAX);
    let slot = &NUMBERS[NEXT.fetch_add(1, Relaxed) % wanted];
    match slot.compare_exchange(NONE, BEING_MADE, AcqRel, Acquire) {
        Ok(_) => {
            let number = create_arena();
            slot.store(number.unwrap_or(NONE), Release);
            number
        }
        // Another thread is making it, perhaps one that a fork left behind. Share the first arena,
        // or make one that no other thread will use.
        Err(BEING_MADE) => match NUMBERS[0].load(Acquire) {
            NONE | BEING_MADE => create_arena(),
            number => Some(number),
        },
        Err(number) => Some(number),
    }
}

/// The arena for allocations of LARGE and more (see `shim/malloc.c`).
static LARGE: AtomicU32 = AtomicU32::new(NONE);

/// `MALLOCX_ARENA` of the arena in `LARGE`, and `MALLOCX_TCACHE_NONE`. 0 if there is none, or
/// another thread is making it.
#[unsafe(no_mangle)]
extern "C" fn terrace_large_flags() -> i32 {
    let number = match LARGE.load(Acquire) {
        NONE if zone::open()
            && LARGE.compare_exchange(NONE, BEING_MADE, AcqRel, Acquire).is_ok() =>
        {
            let number = create_arena().filter(|number| keeps_nothing(*number)).unwrap_or(NONE);
            LARGE.store(number, Release);
            number
        }
        number => number,
    };
    if number == NONE || number == BEING_MADE { 0 } else { ((number + 1) << 20 | 1 << 8) as i32 }
}

/// Has an arena give back at once what is freed.
fn keeps_nothing(arena: u32) -> bool {
    CString::new(format!("arena.{arena}.dirty_decay_ms"))
        .is_ok_and(|name| write_control(&name, 0isize))
}

fn create_arena() -> Option<u32> {
    let mut config = ArenaConfig { hooks: &HOOKS, metadata_use_hooks: false };
    let mut number: u32 = 0;
    let mut len = size_of::<u32>();
    // SAFETY: the control reads one arena_config_t and writes one unsigned.
    let error = unsafe {
        je::mallctl(
            c"experimental.arenas_create_ext".as_ptr(),
            (&raw mut number).cast(),
            &mut len,
            (&raw mut config).cast(),
            size_of::<ArenaConfig>(),
        )
    };
    if error != 0 {
        return None;
    }
    if let Ok(name) = CString::new(format!("arena.{number}.retain_grow_limit")) {
        write_control(&name, GROW_LIMIT);
    }
    Some(number)
}

fn write_control<T>(name: &CStr, mut value: T) -> bool {
    // SAFETY: callers pass values of the control's type.
    unsafe {
        je::mallctl(
            name.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            (&raw mut value).cast(),
            size_of::<T>(),
        ) == 0
    }
}

fn read_control<T: Default>(name: &CStr) -> T {
    let mut value = T::default();
    let mut len = size_of::<T>();
    // SAFETY: callers ask for values of the control's type.
    unsafe {
        je::mallctl(name.as_ptr(), (&raw mut value).cast(), &mut len, std::ptr::null_mut(), 0)
    };
    value
}

/// Gives free pages of all arenas back to the system, as `malloc_trim` does. Returns whether at
/// least one arena was asked to.
pub fn purge() -> bool {
    // Also what the first pass leaves empty.
    for _ in 0..2 {
        slabs::tidy();
        placement::tidy();
    }
    // MALLCTL_ARENAS_ALL.
    do_control(c"arena.4096.purge")
}

/// Gives memory that has been free for long enough back to the system, in all arenas.
pub(crate) fn decay() {
    slabs::tidy();
    placement::tidy();
    do_control(c"arena.4096.decay");
}

fn do_control(name: &CStr) -> bool {
    // SAFETY: callers name controls that take and give nothing.
    unsafe {
        je::mallctl(
            name.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        ) == 0
    }
}

/// What `mallinfo2` can tell, in bytes.
#[derive(Default, Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes mapped from the system and not returned.
    pub mapped: usize,
    /// Bytes of pages that hold live objects.
    pub active: usize,
    /// Bytes of live objects.
    pub allocated: usize,
}

/// Current usage of the whole allocator.
pub fn usage() -> Usage {
    write_control(c"epoch", 1u64);
    let jemalloc =
        [c"stats.mapped", c"stats.active", c"stats.allocated"].map(read_control::<usize>);
    let (grouped, placed) = (slabs::usage(), placement::usage());
    let [mapped, active, allocated] = std::array::from_fn(|n| jemalloc[n] + grouped[n] + placed[n]);
    Usage { mapped, active, allocated }
}
