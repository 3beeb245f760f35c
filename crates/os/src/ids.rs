//! Numbers of the calling process and thread, and of the program.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use syscalls::{Sysno, syscall};

/// The program's process id: see [`program_id`].
pub(crate) static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// The id of the process whose pages are moved, from whichever process that shares its memory.
pub fn program_id() -> i32 {
    match PROGRAM.load(Relaxed) {
        0 => process_id(),
        program => program,
    }
}

/// The process's id.
pub fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as i32
}

/// The calling thread's id.
pub fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as i32
}

/// The calling thread's effective group id.
pub fn effective_group_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getegid) }.map_or(u32::MAX, |id| id as u32)
}

/// The real user id of the calling thread, getuid(2).
pub fn user_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getuid) }.map_or(u32::MAX, |id| id as u32)
}

/// The effective user id of the calling thread, geteuid(2).
pub fn effective_user_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::geteuid) }.map_or(u32::MAX, |id| id as u32)
}

/// The real group id of the calling thread, getgid(2).
pub fn group_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getgid) }.map_or(u32::MAX, |id| id as u32)
}
