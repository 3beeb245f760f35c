//! Memory of this process, read and written through the kernel.

use crate::ids::{process_id, program_id, thread_id};
use crate::injection;
use crate::injection::Call;
use crate::simulated::simulated;
use crate::types::{Errno, PAGE, Result};
use syscalls::{Sysno, syscall};

/// Writes into this process's own memory through the kernel; false where nothing is mapped, or
/// nothing may be written.
///
/// # Safety
/// The memory must be the caller's to change.
pub unsafe fn poke(address: usize, bytes: &[u8]) -> bool {
    simulated!(_kernel => true);
    // SAFETY: the caller's promise; the bytes outlive the call.
    unsafe { copy_to(bytes.as_ptr() as usize, address, bytes.len()) }
}

/// Copies memory of this process through the kernel, which answers with an error (false) where a
/// store would end in a signal.
///
/// # Safety
/// `from` is readable, and `to` may be overwritten.
pub unsafe fn copy_to(from: usize, to: usize, len: usize) -> bool {
    let local = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    // SAFETY: the caller's promise.
    let copied = unsafe {
        syscall!(Sysno::process_vm_writev, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied == Ok(len)
}

/// Copies `len` bytes through the kernel; false where not all were copied. It is for places where a
/// load at `from` would end in a signal.
///
/// # Safety
/// `to` is writable, and may be overwritten.
pub unsafe fn copy_from(from: usize, to: usize, len: usize) -> bool {
    let local = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    // SAFETY: the caller's promise.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied == Ok(len)
}

/// Reads this process's own memory through the kernel; false where nothing is mapped. It names the
/// memory by this thread's id, since the main thread may have left. Faults are taken as by any
/// system call.
pub fn peek(address: usize, buffer: &mut [u8]) -> bool {
    try_peek(address, buffer).is_ok()
}

/// Reads this process's own memory through the kernel. The error says why that failed: EFAULT where
/// not all of it is mapped.
pub fn try_peek(address: usize, buffer: &mut [u8]) -> Result<()> {
    simulated!(_kernel => Ok(()));
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the kernel checks `remote`; `local` is ours for the call.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    }?;
    if copied == buffer.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// The number by which the kernel finds the calling process's memory. In the program it is the
/// calling thread's, since the main thread may have left. In the companion it is the process's,
/// which is all that its filter allows.
fn own_task() -> i32 {
    let process = process_id();
    if process == program_id() { thread_id() } else { process }
}

/// Copies claimed pages of the program into staging slots; returns how many. Through the kernel,
/// which answers with an error where the program has meanwhile forbidden to read.
pub fn copy_pages(from: usize, to: usize, pages: usize) -> usize {
    if injection::strike(Call::Read).is_some() {
        return 0;
    }
    let len = injection::shorten(pages * PAGE);
    simulated!(kernel => kernel.copy_pages(from, to, len / PAGE));
    let local = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
    // SAFETY: the kernel checks `remote`; `local` is free slots of staging.
    let copied = unsafe {
        syscall!(Sysno::process_vm_readv, own_task(), &raw const local, 1, &raw const remote, 1, 0)
    };
    copied.unwrap_or(0) / PAGE
}
