//! Memory for the codecs, which are C and call `malloc` by name. That name may be the program's own
//! allocator. Its memory is managed, and after a fork its locks are held until its own handlers
//! have run. So the codecs' calls come here (`--wrap`, see build.rs), and get memory of the
//! library's own.

use std::ffi::c_void;

/// What the C library's `malloc` aligns to.
const ALIGN: usize = 16;

unsafe extern "C" {
    safe fn terrace_unmanaged_malloc(size: usize, align: usize, zero: i32) -> *mut c_void;
    fn terrace_unmanaged_free(payload: *mut c_void);
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_malloc(size: usize) -> *mut c_void {
    terrace_unmanaged_malloc(size, ALIGN, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_calloc(count: usize, size: usize) -> *mut c_void {
    count
        .checked_mul(size)
        .map_or(std::ptr::null_mut(), |bytes| terrace_unmanaged_malloc(bytes, ALIGN, 1))
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_free(payload: *mut c_void) {
    if !payload.is_null() {
        // SAFETY: a caller has it from one of the two above.
        unsafe { terrace_unmanaged_free(payload) };
    }
}
