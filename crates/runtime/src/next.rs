//! The C library's functions behind those that are interposed, and the form of their results.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};
use terrace_os as sys;

/// The next definition of a function behind ours: the C library's. It is looked up once, because
/// that may be impossible after a fork.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Address of the function; null if there is none.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Acquire);
        if !found.is_null() {
            return found;
        }
        let _unmanaged = Internal::enter();
        // SAFETY: a NUL-terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Release);
        found
    }
}

/// A guard: while it lives, this thread allocates unmanaged memory.
pub(crate) struct Internal;

impl Internal {
    pub fn enter() -> Self {
        terrace_alloc::enter_internal();
        Internal
    }
}

impl Drop for Internal {
    fn drop(&mut self) {
        terrace_alloc::leave_internal();
    }
}

/// Sets `errno` to ENOSYS, and returns `value`: for a call that the C library does not have.
pub(crate) fn no_such_call<T>(value: T) -> T {
    sys::set_thread_errno(sys::Errno::ENOSYS);
    value
}

/// A system call's result in the C library's form: −1, with `errno` set, for an error.
pub(crate) fn result(result: Result<usize, sys::Errno>) -> libc::c_long {
    match result {
        Ok(value) => value as libc::c_long,
        Err(errno) => {
            sys::set_thread_errno(errno);
            -1
        }
    }
}
