//! The calling thread's `errno`, which belongs to the program.

use crate::types::Errno;

/// While it lives, whatever becomes of this thread's `errno` is undone at its end. It is for code
/// of ours that the program did not call for an answer.
pub struct ErrnoKept {
    before: i32,
}

impl ErrnoKept {
    /// Remembers `errno`.
    // Reason: a default that reads the thread's state would surprise.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        // SAFETY: the C library's thread-local errno.
        ErrnoKept { before: unsafe { *libc::__errno_location() } }
    }
}

impl Drop for ErrnoKept {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.before };
    }
}

/// The calling thread's `errno`: the error of its last call of the C library that failed.
pub fn thread_errno() -> Errno {
    // SAFETY: the C library's thread-local errno.
    Errno::new(unsafe { *libc::__errno_location() })
}

/// Sets the calling thread's `errno`, for a function that answers as the C library's do.
pub fn set_thread_errno(errno: Errno) {
    // SAFETY: the C library's thread-local errno.
    unsafe { *libc::__errno_location() = errno.into_raw() };
}
