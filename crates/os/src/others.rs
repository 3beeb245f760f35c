//! Other processes: their memory, their descriptors, and signals to them. All of it needs the right
//! to trace the process (EPERM), but for a signal; ESRCH says that there is no such process.

use crate::files::own;
use crate::types::{Errno, Fd, Result};
use std::os::fd::OwnedFd;
use syscalls::{Sysno, syscall};

/// A descriptor of a process (pidfd_open(2), close-on-exec). Every process may have one.
pub fn open_process(process: i32) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor is new.
    unsafe { own(syscall!(Sysno::pidfd_open, process, 0)) }
}

/// A copy, close-on-exec, of the descriptor `fd` of the process behind `pidfd` (pidfd_getfd(2)).
/// EBADF: it has no such descriptor.
pub fn copy_of_descriptor(pidfd: Fd, fd: Fd) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor is new.
    unsafe { own(syscall!(Sysno::pidfd_getfd, pidfd, fd, 0)) }
}

/// Sends a signal to the process that has this id now (kill(2)). Signal 0 only asks whether it may.
pub fn signal_by_id(process: i32, signal: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::kill, process, signal) }.map(drop)
}

/// Reads memory of another process from `at` on. Returns how many bytes were read, which are fewer
/// where the rest is not mapped. EFAULT: none could be read.
pub fn read_memory_of(process: i32, at: u64, buffer: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the buffer is exclusively ours for the call; the kernel checks the other side.
    unsafe {
        syscall!(Sysno::process_vm_readv, process, &raw const local, 1, &raw const remote, 1, 0)
    }
}

/// Writes all of `bytes` into memory of another process, at `at`. EFAULT: not all could be written;
/// a part may have been.
///
/// # Safety
/// The memory is no memory of this process, or may be overwritten.
pub unsafe fn write_memory_of(process: i32, at: u64, bytes: &[u8]) -> Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel reads the bytes; the rest is the caller's promise.
    let written = unsafe {
        syscall!(Sysno::process_vm_writev, process, &raw const local, 1, &raw const remote, 1, 0)
    }?;
    if written == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Whether two processes have one memory (kcmp(2)); `None` where that cannot be known.
pub fn have_one_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: usize = 1;
    // SAFETY: no memory is involved.
    let order = unsafe { syscall!(Sysno::kcmp, a, b, KCMP_VM, 0, 0) };
    order.ok().map(|order| order == 0)
}

/// Advises the kernel of ranges (start and bytes) of the memory of the process behind `pidfd`. The
/// advice is MADV_COLD or MADV_PAGEOUT, which keep contents; EINVAL for any other. Returns on how
/// many bytes the kernel took it. EPERM: that takes CAP_SYS_NICE, too.
pub fn advise_process(pidfd: Fd, ranges: &[(u64, u64)], advice: i32) -> Result<usize> {
    if ![libc::MADV_COLD, libc::MADV_PAGEOUT].contains(&advice) {
        return Err(Errno::EINVAL);
    }
    let parts: Vec<libc::iovec> = ranges
        .iter()
        .map(|(start, bytes)| libc::iovec { iov_base: *start as *mut _, iov_len: *bytes as usize })
        .collect();
    // SAFETY: contents stay, and the kernel reads the parts.
    unsafe { syscall!(Sysno::process_madvise, pidfd, parts.as_ptr(), parts.len(), advice, 0) }
}
