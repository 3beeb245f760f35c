//! Files and descriptors.

use crate::simulated::simulated;
use crate::types::{Errno, Fd, Result};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use syscalls::{Sysno, syscall};

/// Owns the descriptor that a call has made.
///
/// # Safety
/// The call answers with a new descriptor, which has no other owner.
pub(crate) unsafe fn own(made: Result<usize>) -> Result<OwnedFd> {
    // SAFETY: the caller's promise.
    made.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as Fd) })
}

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

/// Closes all descriptors of this process from `first` on, but for those in `keep`, from Linux 5.9
/// on. Before, all stay open.
///
/// # Safety
/// Nothing uses the others any more.
pub unsafe fn close_from(first: Fd, mut keep: Vec<Fd>) {
    keep.sort_unstable();
    let mut first = first as u32;
    for end in keep.into_iter().map(|fd| fd as u32).chain([u32::MAX]) {
        if first < end {
            let last = if end == u32::MAX { end } else { end - 1 };
            // SAFETY: the caller's promise.
            let _ = unsafe { syscall!(Sysno::close_range, first, last, 0) };
        }
        first = first.max(end.saturating_add(1));
    }
}

/// Opens a file; `path` ends with a NUL.
pub fn open(path: &str, flags: i32, mode: u32) -> Result<Fd> {
    debug_assert!(path.ends_with('\0'));
    simulated!(_kernel => Err(Errno::ENOENT));
    // SAFETY: the path is NUL-terminated and outlives the call.
    unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }
        .map(|fd| fd as Fd)
}

/// A new file in memory (memfd_create(2), close-on-exec) of `len` zero bytes, which take memory
/// once they are written. The name is for /proc only.
pub fn memory_file(name: &CStr, len: usize) -> Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated and outlives the call; the descriptor is new.
    let file = unsafe { own(syscall!(Sysno::memfd_create, name.as_ptr(), libc::MFD_CLOEXEC)) }?;
    truncate(file.as_raw_fd(), len)?;
    Ok(file)
}

/// Gives the memory or disk space of a part of a file back; it reads as zeros then. The file keeps
/// its length. EOPNOTSUPP: the file system cannot do that.
///
/// # Safety
/// Nothing needs the contents any more, also where the file is mapped.
pub unsafe fn punch_hole(fd: Fd, offset: u64, len: u64) -> Result<()> {
    const HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::fallocate, fd, HOLE, offset, len) }.map(drop)
}

/// Moves a file's offset (lseek(2)), as SEEK_DATA, SEEK_HOLE or another says. Returns where it is
/// then, in bytes. ENXIO: there are no data from there on, or the file ends before.
pub fn seek(fd: Fd, offset: u64, whence: i32) -> Result<u64> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::lseek, fd, offset, whence) }.map(|at| at as u64)
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

/// Reads a message, or bytes at a file's position, into memory. Returns how many bytes came.
///
/// # Safety
/// `len` bytes at `to` are writable, and may be overwritten by any bytes.
pub unsafe fn read_to(fd: Fd, to: usize, len: usize) -> Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::read, fd, to, len) }
}

/// Another descriptor, from 3 on, of an open file. Programs that this process executes inherit it.
pub fn duplicate_to_inherit(fd: Fd) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor is new.
    unsafe { own(syscall!(Sysno::fcntl, fd, libc::F_DUPFD, 3)) }
}

/// Programs that this process executes do not inherit the descriptor (FD_CLOEXEC). EBADF: it is not
/// open.
pub fn set_close_on_exec(fd: Fd) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC) }.map(drop)
}

/// Reads and writes of the open file do not wait (O_NONBLOCK). It has no other status flag then.
pub fn set_nonblocking(fd: Fd) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK) }.map(drop)
}

/// A copy of a descriptor with the first free number from `first` on.
pub fn duplicate_from(fd: Fd, first: Fd) -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, first) }.map(|fd| fd as Fd)
}

/// Makes a copy of a descriptor at a given number, dup2(2). What was open there is closed first;
/// exec does not close the copy. With the same number twice nothing is done. EBADF: `fd` is not
/// open.
pub fn duplicate_onto(fd: Fd, onto: Fd) -> Result<()> {
    // The kernel refuses that with dup3.
    if fd == onto {
        return Ok(());
    }
    // SAFETY: no memory is involved; callers let nothing else use what is replaced.
    unsafe { syscall!(Sysno::dup3, fd, onto, 0) }.map(drop)
}

/// Whether exec closes a descriptor (FD_CLOEXEC). EBADF: it is not open.
pub fn is_closed_by_exec(fd: Fd) -> Result<bool> {
    // SAFETY: no memory is involved.
    let flags = unsafe { syscall!(Sysno::fcntl, fd, libc::F_GETFD) }?;
    Ok(flags as i32 & libc::FD_CLOEXEC != 0)
}

/// What fstat(2) tells of an open file. EBADF: it is not open.
pub fn file_status(fd: Fd) -> Result<libc::stat64> {
    let mut told = MaybeUninit::<libc::stat64>::zeroed();
    // SAFETY: the kernel fills in the structure, which is as large as it expects.
    unsafe { syscall!(Sysno::fstat, fd, told.as_mut_ptr()) }?;
    // SAFETY: all zeros are valid too.
    Ok(unsafe { told.assume_init() })
}

/// What fstatfs(2) tells of the file system that an open file is on. EBADF: it is not open.
pub fn file_system_of(fd: Fd) -> Result<libc::statfs64> {
    let mut told = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the kernel fills in the structure, which is as large as it expects.
    unsafe { syscall!(Sysno::fstatfs, fd, told.as_mut_ptr()) }?;
    // SAFETY: all zeros are valid too.
    Ok(unsafe { told.assume_init() })
}

/// What statfs(2) tells of the file system that a path leads to. The errors are those of a lookup.
pub fn file_system_at(path: &CStr) -> Result<libc::statfs64> {
    let mut told = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the path is NUL-terminated and lives; the kernel fills in the structure, which is as
    // large as it expects.
    unsafe { syscall!(Sysno::statfs, path.as_ptr(), told.as_mut_ptr()) }?;
    // SAFETY: all zeros are valid too.
    Ok(unsafe { told.assume_init() })
}

/// Whether the real user of this process may execute the file at a path, access(2).
pub fn may_execute(path: &CStr) -> bool {
    // SAFETY: the path is NUL-terminated and outlives the call, which writes nothing.
    unsafe { syscall!(Sysno::faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) }.is_ok()
}

/// Writes what an open file takes without waiting, at its position (RWF_NOWAIT); returns how many
/// bytes. EAGAIN: none. EOPNOTSUPP, ENOSYS: it cannot be told not to wait.
pub fn write_without_waiting(fd: Fd, bytes: &[u8]) -> Result<usize> {
    /// An offset that stands for the file's own position.
    const OWN_POSITION: isize = -1;
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel reads the vector and its one part, which both outlive the call. On 64 bits
    // the offset is in the first of its two words.
    unsafe { syscall!(Sysno::pwritev2, fd, &raw const part, 1, OWN_POSITION, 0, libc::RWF_NOWAIT) }
}

/// Makes a request with an argument in memory of a special file, ioctl(2), and returns the answer.
/// The errors are the request's own.
///
/// # Safety
/// The kernel reads and writes no more than a `T` for this request, and what it writes is a valid
/// `T`. It may read and write for it
/// what the addresses in `argument` lead to.
pub unsafe fn ioctl<T>(fd: Fd, request: u64, argument: &mut T) -> Result<usize> {
    // SAFETY: the caller's promise; the argument is exclusively ours for the call.
    unsafe { syscall!(Sysno::ioctl, fd, request, std::ptr::from_mut(argument)) }
}
