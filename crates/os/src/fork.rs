//! Processes that the calling process makes.

use crate::errno::thread_errno;
use crate::types::Result;
use syscalls::{Sysno, syscall};

/// Forks the calling process, by the C library, which keeps its own state in order. Returns 0 in
/// the child, and the child's id in the parent. EAGAIN or ENOMEM: there can be no process.
///
/// # Safety
/// If the process has other threads, the child does only what a signal handler may do, or what the
/// C library keeps usable, such as `malloc`. Locks that other threads hold stay held in the child.
pub unsafe fn fork() -> Result<i32> {
    // SAFETY: the caller's promise.
    match unsafe { libc::fork() } {
        -1 => Err(thread_errno()),
        child => Ok(child),
    }
}

/// Forks the calling process as [`fork`] does, but both processes have one table of descriptors.
/// The C library learns nothing of it: it runs no handlers of a fork. The child sends SIGCHLD at
/// its end.
///
/// # Safety
/// As for [`fork`]. What one process closes is closed for both.
pub unsafe fn fork_with_descriptors() -> Result<i32> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: the child has a copy of this stack; the rest is the caller's promise.
    unsafe { syscall!(Sysno::clone, flags, 0, 0, 0, 0) }.map(|child| child as i32)
}

/// Ends the calling process at once: no destructor and no handler of an exit runs.
pub fn exit_process(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall!(Sysno::exit_group, status) };
    }
}

/// Makes the calling process the first of a new session, which has no terminal. EPERM: it leads a
/// process group.
pub fn new_session() -> Result<()> {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::setsid) }.map(drop)
}
