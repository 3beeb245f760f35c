//! Files and descriptors.

use crate::simulated::simulated;
use crate::types::{Errno, Fd, Result};
use syscalls::{Sysno, syscall};

/// Closes a descriptor of the calling thread's table.
pub fn close(fd: Fd) {
    simulated!(kernel => kernel.close(fd));
    // SAFETY: callers pass descriptors that they opened.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

/// The flag of close_range (Linux 5.9) that unshares the descriptor table first. It stands in for
/// unshare(2), which containers forbid.
const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;

/// Gives the calling thread a descriptor table of its own and empties it, but for those in `keep`.
/// Then neither side's `close` reaches the other, and no pipe of the program is kept open by us.
pub fn leave_descriptor_table(mut keep: Vec<Fd>) -> Result<()> {
    keep.sort_unstable();
    let mut first = 0;
    for end in keep.into_iter().map(|fd| fd as u32).chain([u32::MAX]) {
        if first < end {
            // SAFETY: gets this thread a table of its own, if it has none yet, and closes what is
            // in that one.
            unsafe {
                syscall!(
                    Sysno::close_range,
                    first,
                    if end == u32::MAX { end } else { end - 1 },
                    CLOSE_RANGE_UNSHARE
                )
            }?;
        }
        first = end.saturating_add(1);
    }
    // 0, 1 and 2 lead nowhere: whatever the C library writes there from one of our threads must not
    // reach a descriptor of ours. In a chroot without /dev they stay closed, and nothing of
    // ours is opened there either.
    while open("/dev/null\0", libc::O_RDWR, 0).is_ok_and(|fd| fd < 2) {}
    Ok(())
}

/// Opens a file; `path` ends with a NUL.
pub fn open(path: &str, flags: i32, mode: u32) -> Result<Fd> {
    debug_assert!(path.ends_with('\0'));
    simulated!(_kernel => Err(Errno::ENOENT));
    // SAFETY: the path is NUL-terminated and outlives the call.
    unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }
        .map(|fd| fd as Fd)
}

/// Sets a file's length.
pub fn truncate(fd: Fd, len: usize) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::ftruncate, fd, len) }.map(drop)
}

/// Writes all of `bytes`.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer outlives the call.
        match unsafe { syscall!(Sysno::write, fd, bytes.as_ptr(), bytes.len()) } {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes `len` bytes at an offset; an error unless all were written.
///
/// # Safety
/// `len` bytes at `from` are readable.
pub unsafe fn write_at(fd: Fd, from: usize, len: usize, offset: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let written = unsafe { syscall!(Sysno::pwrite64, fd, from, len, offset) }?;
    if written == len { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// Reads `len` bytes at an offset into memory that other threads may read meanwhile; an error
/// unless all were read.
///
/// # Safety
/// `len` bytes at `to` are writable, and may be overwritten.
pub unsafe fn read_into(fd: Fd, to: usize, len: usize, offset: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let read = unsafe { syscall!(Sysno::pread64, fd, to, len, offset) }?;
    if read == len { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Renames a file. Both paths end in a NUL.
pub fn rename(from: &str, to: &str) -> Result<()> {
    debug_assert!(from.ends_with('\0') && to.ends_with('\0'));
    // SAFETY: the paths are NUL-terminated and outlive the call.
    unsafe {
        syscall!(Sysno::renameat2, libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), 0)
    }
    .map(drop)
}

/// Removes a file. The path ends in a NUL.
pub fn unlink(path: &str) {
    debug_assert!(path.ends_with('\0'));
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

/// Reads at an offset.
pub fn read_at(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the buffer is exclusively ours for the call.
    unsafe { syscall!(Sysno::pread64, fd, buffer.as_mut_ptr(), buffer.len(), offset) }
}

/// A copy of a descriptor with the first free number from `first` on.
pub fn duplicate_from(fd: Fd, first: Fd) -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, first) }.map(|fd| fd as Fd)
}
