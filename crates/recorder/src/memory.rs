//! The recorder's own memory: Doug Lea's malloc over a mapping made by a system call. So neither
//! the program's allocator nor a preloaded library that interposes `mmap` has to do with it. What C
//! code allocates for us (zstd, the C library) comes from here too: `shim/malloc.c`.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use syscalls::{Sysno, syscall};

/// Address space for the recorder's memory, tried in this order: small limits leave less.
const RESERVES: [usize; 3] = [1 << 40, 32 << 30, 2 << 30];
/// Address space that dlmalloc gets at a time.
const STEP: usize = 16 << 20;
/// Bytes before each block of C's: its size and its distance from the start of what dlmalloc gave.
const HEADER: usize = 16;

/// Maps `bytes`, zeroed and touched when used; `None` where there is no room.
pub fn map(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    unsafe {
        syscall!(Sysno::mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, usize::MAX, 0)
    }
    .ok()
    .map(|at| at as *mut u8)
}

/// Hands address space to dlmalloc, front to back. Nothing is given back: dlmalloc uses it again.
struct Space;

static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: `alloc` returns fresh, zeroed, exclusively owned memory; everything else is refused.
unsafe impl dlmalloc::Allocator for Space {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (std::ptr::null_mut(), 0, 0);
        if START.load(Relaxed) == 0 {
            let Some((start, len)) = RESERVES.iter().find_map(|len| Some((map(*len)?, *len)))
            else {
                return none;
            };
            // In this order: until both are there, nothing is ours.
            START.store(start as usize, Relaxed);
            LEN.store(len, Release);
        }
        let (size, used) = (size.next_multiple_of(STEP), USED.load(Relaxed));
        if size > LEN.load(Relaxed) - used {
            return none;
        }
        USED.store(used + size, Relaxed);
        ((START.load(Relaxed) + used) as *mut u8, size, 0)
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        4096
    }
}

struct Heap(dlmalloc::Dlmalloc<Space>);

// SAFETY: dlmalloc's raw pointers point into the heap that it owns.
unsafe impl Send for Heap {}

static HEAP: Mutex<Heap> = Mutex::new(Heap(dlmalloc::Dlmalloc::new_with_allocator(Space)));

fn heap() -> MutexGuard<'static, Heap> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a block is of the recorder's own memory.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_owns(block: usize) -> bool {
    block.wrapping_sub(START.load(Relaxed)) < LEN.load(Relaxed)
}

/// Zeroed memory for C code that works for us; null where there is none.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_allocate(size: usize, align: usize) -> *mut u8 {
    let gap = align.max(HEADER);
    let Some(total) = size.checked_add(gap) else { return std::ptr::null_mut() };
    // SAFETY: the size is not zero, and `gap` is a power of two as `align` is.
    let block = unsafe { heap().0.calloc(total, gap) };
    if block.is_null() {
        return block;
    }
    // SAFETY: the block has `gap` bytes before the payload, at least HEADER, and the payload is
    // aligned to `gap`.
    unsafe {
        let payload = block.add(gap);
        payload.cast::<[usize; 2]>().sub(1).write([size, gap]);
        payload
    }
}

/// Size of a block of ours, bytes.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_size(payload: *const u8) -> usize {
    // SAFETY: it came from `terrace_recorder_allocate` (its address says so), which wrote the
    // header.
    unsafe { payload.cast::<[usize; 2]>().sub(1).read()[0] }
}

/// Gives a block of ours back.
#[unsafe(no_mangle)]
extern "C" fn terrace_recorder_release(payload: *mut u8) {
    // SAFETY: as above.
    unsafe {
        let [size, gap] = payload.cast::<[usize; 2]>().sub(1).read();
        heap().0.free(payload.sub(gap), size + gap, gap);
    }
}

struct Own;

// SAFETY: dlmalloc honours size and alignment, and is told both when a block comes back.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { heap().0.malloc(layout.size(), layout.align()) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { heap().0.calloc(layout.size(), layout.align()) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { heap().0.free(block, layout.size(), layout.align()) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { heap().0.realloc(block, layout.size(), layout.align(), size) }
    }
}

#[global_allocator]
static OWN: Own = Own;
