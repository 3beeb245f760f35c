//! The allocator for what must never be evicted: everything our own threads and code allocate.
//!
//! Doug Lea's malloc over one address range that is never managed. Pointers are recognised by
//! address, so `free` from anywhere finds its way. Every block carries its size, because C's `free`
//! does not say it.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use terrace_os as sys;
use terrace_os::space::Span;
use terrace_pager::lock::Lock;

unsafe extern "C" {
    static mut terrace_unmanaged_start: usize;
    static mut terrace_unmanaged_len: usize;
}

/// Sizes of the address range, bytes, tried in this order: not all address spaces have room for the
/// first.
const RANGES: [usize; 3] = [64 << 30, 4 << 30, 256 << 20];
/// Bytes of the range that are reserved from the start: see `terrace_os::space`.
const RESERVED: usize = 256 << 20;
/// The range becomes usable in steps of this size.
const STEP: usize = 1 << 20;
/// Bytes made usable ahead of need. Where the kernel gives no more (RLIMIT_DATA, overcommitment),
/// our threads go on with this. They cannot do without: memory that Rust does not get ends the
/// program. It is enough for the metadata of 5 GiB, which such a program will not touch.
const AHEAD: usize = 16 << 20;
/// Before each block: its size and its distance from the start of what dlmalloc gave.
const HEADER: usize = 16;

/// Hands address space to dlmalloc, front to back. Nothing is given back: dlmalloc reuses it.
struct Space;

static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static USABLE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: `alloc` returns fresh, zeroed, exclusively owned memory; everything else is refused.
unsafe impl dlmalloc::Allocator for Space {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (std::ptr::null_mut(), 0, 0);
        if START.load(Relaxed) == 0 && !reserve() {
            return none;
        }
        let size = size.next_multiple_of(STEP);
        let used = USED.load(Relaxed);
        if size > LEN.load(Relaxed) - used {
            return none;
        }
        let start = START.load(Relaxed);
        let (usable, wanted) = (USABLE.load(Relaxed), (used + size + AHEAD).min(LEN.load(Relaxed)));
        let span = Span { start, reserved: FIRST.load(Relaxed) };
        for wanted in [wanted, used + size] {
            // SAFETY: a part of our range that was not opened yet.
            if wanted > usable && unsafe { span.open(start + usable, wanted - usable) }.is_ok() {
                USABLE.store(wanted, Relaxed);
                break;
            }
        }
        if used + size > USABLE.load(Relaxed) {
            return none;
        }
        USED.store(used + size, Relaxed);
        ((start + used) as *mut u8, size, 0)
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

/// Reserves the range. Called under the allocator's lock.
fn reserve() -> bool {
    for len in RANGES {
        if let Ok(Span { start, reserved }) = Span::new(len, RESERVED) {
            FIRST.store(reserved, Relaxed);
            LEN.store(len, Relaxed);
            START.store(start, Relaxed);
            // SAFETY: written once, before any pointer into the range exists; readers compare
            // addresses only.
            unsafe {
                terrace_unmanaged_len = len;
                terrace_unmanaged_start = start;
            }
            return true;
        }
    }
    false
}

struct Heap(dlmalloc::Dlmalloc<Space>);

// SAFETY: dlmalloc's raw pointers point into the heap that it owns; the lock lets one thread in at
// a time.
unsafe impl Send for Heap {}

static HEAP: Lock<Heap> = Lock::new(Heap(dlmalloc::Dlmalloc::new_with_allocator(Space)));

/// The used part of the range, which counts as overhead.
pub fn range() -> (usize, usize) {
    let start = START.load(Relaxed);
    (start, start + USED.load(Relaxed))
}

/// Takes the allocator's lock for a fork, so that no other thread is inside when the child is made.
pub fn lock_for_fork() {
    std::mem::forget(HEAP.lock());
}

/// Opens the lock again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller holds the lock. In the parent a waiter may sleep on it: opened with a
    // wake-up.
    drop(unsafe { HEAP.held() });
}

/// Allocates; null where there is no room.
#[unsafe(no_mangle)]
extern "C" fn terrace_unmanaged_malloc(size: usize, align: usize, zero: i32) -> *mut u8 {
    let gap = align.max(HEADER);
    let Some(total) = size.checked_add(gap) else { return std::ptr::null_mut() };
    // A signal handler on this thread may need this very lock, or a thread of ours that waits for
    // it.
    let _signals = sys::SignalsBlocked::new();
    let mut heap = HEAP.lock();
    // SAFETY: total is not zero, and `gap` is a power of two as `align` is.
    let block =
        unsafe { if zero != 0 { heap.0.calloc(total, gap) } else { heap.0.malloc(total, gap) } };
    drop(heap);
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

#[unsafe(no_mangle)]
extern "C" fn terrace_unmanaged_free(payload: *mut u8) {
    let _signals = sys::SignalsBlocked::new();
    // SAFETY: the pointer came from `terrace_unmanaged_malloc` (its address says so), which wrote
    // the header.
    unsafe {
        let [size, gap] = payload.cast::<[usize; 2]>().sub(1).read();
        HEAP.lock().0.free(payload.sub(gap), size + gap, gap);
    }
}

#[unsafe(no_mangle)]
extern "C" fn terrace_unmanaged_size(payload: *const u8) -> usize {
    // SAFETY: as above.
    unsafe { payload.cast::<[usize; 2]>().sub(1).read()[0] }
}

/// The library's own `#[global_allocator]`, which serves Rust code from the unmanaged heap.
pub struct Unmanaged;

// SAFETY: forwards to the functions above, which honour size and alignment.
unsafe impl GlobalAlloc for Unmanaged {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        terrace_unmanaged_malloc(layout.size(), layout.align(), 0)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        terrace_unmanaged_malloc(layout.size(), layout.align(), 1)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        terrace_unmanaged_free(pointer);
    }
}
