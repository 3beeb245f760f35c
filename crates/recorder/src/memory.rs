//! The recorder's own memory: Doug Lea's malloc over mappings made by system calls, so that neither the program's allocator nor a preloaded library that
//! interposes `mmap` has to do with it.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Mutex;
use syscalls::{Sysno, syscall};

/// Maps so many bytes, zeroed and touched when used; `None` where there is no room.
pub fn map(bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    unsafe { syscall!(Sysno::mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, usize::MAX, 0) }.ok().map(|at| at as *mut u8)
}

struct Mappings;

// SAFETY: `alloc` returns fresh, zeroed memory; nothing is given back, which dlmalloc then uses again.
unsafe impl dlmalloc::Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        /// So that mappings are few.
        const STEP: usize = 16 << 20;
        let size = size.next_multiple_of(STEP);
        map(size).map_or((std::ptr::null_mut(), 0, 0), |at| (at, size, 0))
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

struct Heap(dlmalloc::Dlmalloc<Mappings>);

// SAFETY: dlmalloc's raw pointers point into the heap that it owns.
unsafe impl Send for Heap {}

static HEAP: Mutex<Heap> = Mutex::new(Heap(dlmalloc::Dlmalloc::new_with_allocator(Mappings)));

struct Own;

fn heap() -> std::sync::MutexGuard<'static, Heap> {
    HEAP.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

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
