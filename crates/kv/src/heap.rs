//! Memory that this program and the C in it allocate by `malloc`.
//!
//! With tiers, a second process moves this one's pages (the pager's companion). It shares the
//! memory but not the C library's threads, so neither may use that library's heap. All memory then
//! comes from the pager's own allocator. Without tiers everything is as in any program. The linker
//! redirects the calls to this module (build.rs).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terrace_alloc::unmanaged;

/// Alignment of the C library's `malloc`, bytes.
const ALIGN: usize = 16;

static OWN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn __real_malloc(size: usize) -> *mut c_void;
    fn __real_calloc(count: usize, size: usize) -> *mut c_void;
    fn __real_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    fn __real_posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> i32;
    fn __real_free(pointer: *mut c_void);
    safe fn terrace_unmanaged_malloc(size: usize, align: usize, zero: i32) -> *mut c_void;
    fn terrace_unmanaged_free(pointer: *mut c_void);
    fn terrace_unmanaged_size(pointer: *const c_void) -> usize;
}

/// Makes memory come from the pager's own allocator from now on. Existing blocks stay where they
/// are until they are freed.
pub fn leave_the_c_librarys() {
    OWN.store(true, Relaxed);
}

fn is_own(pointer: *mut c_void) -> bool {
    let (start, end) = unmanaged::range();
    (start..end).contains(&(pointer as usize))
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_malloc(size: usize) -> *mut c_void {
    match OWN.load(Relaxed) {
        true => terrace_unmanaged_malloc(size, ALIGN, 0),
        // SAFETY: the C library's function, with the caller's argument.
        false => unsafe { __real_malloc(size) },
    }
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_calloc(count: usize, size: usize) -> *mut c_void {
    match OWN.load(Relaxed) {
        true => count
            .checked_mul(size)
            .map_or(ptr::null_mut(), |bytes| terrace_unmanaged_malloc(bytes, ALIGN, 1)),
        // SAFETY: the C library's function, with the caller's arguments.
        false => unsafe { __real_calloc(count, size) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    if !is_own(pointer) {
        // SAFETY: null or the C library's, as it is not ours; with the caller's arguments. It
        // serves what this thread has from it already; a companion's threads have nothing.
        return unsafe { __real_realloc(pointer, size) };
    }
    let new = terrace_unmanaged_malloc(size, ALIGN, 0);
    if !new.is_null() {
        // SAFETY: both are as long, and the old one is the caller's to give up.
        unsafe {
            let bytes = terrace_unmanaged_size(pointer).min(size);
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast::<u8>(), bytes);
            terrace_unmanaged_free(pointer);
        }
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_posix_memalign(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
) -> i32 {
    if !OWN.load(Relaxed) {
        // SAFETY: the C library's function, with the caller's arguments.
        return unsafe { __real_posix_memalign(out, align, size) };
    }
    let pointer = terrace_unmanaged_malloc(size, align, 0);
    if pointer.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller passes a place for a pointer.
    unsafe { out.write(pointer) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_free(pointer: *mut c_void) {
    // SAFETY: the caller gives up what it has from one of the functions above, and its address says
    // from which heap that is.
    unsafe { if is_own(pointer) { terrace_unmanaged_free(pointer) } else { __real_free(pointer) } }
}
