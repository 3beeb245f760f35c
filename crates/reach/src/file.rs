//! A file to look at, by system calls alone.

use crate::cause::{Cause, Name};
use core::ffi::CStr;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use syscalls::{Sysno, syscall};

/// Bytes of a file that are read at once.
const WINDOW_BYTES: usize = 1024;
/// Bytes of a `#!` line that the kernel reads (BINPRM_BUF_SIZE).
const SCRIPT_LINE_BYTES: usize = 256;

/// Where a file is, as the kernel is told for `execveat`.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    directory: i32,
    path: *const libc::c_char,
    flags: i32,
    lives: PhantomData<&'a CStr>,
}

impl<'a> Place<'a> {
    /// The file at a path.
    pub fn at(path: &'a CStr) -> Place<'a> {
        Place { directory: libc::AT_FDCWD, path: path.as_ptr(), flags: 0, lives: PhantomData }
    }

    /// The file that the arguments of `execveat` name. The path is read by the kernel only, which
    /// refuses what cannot be read.
    pub fn of_call(directory: i32, path: *const libc::c_char, flags: i32) -> Place<'a> {
        Place { directory, path, flags, lives: PhantomData }
    }
}

/// An open file, and a window into it.
pub(crate) struct File {
    fd: i32,
    window: [u8; WINDOW_BYTES],
    at: u64,
    len: usize,
}

impl File {
    /// Opens a regular file for reading.
    pub fn open(place: Place<'_>) -> Option<File> {
        let mut about = MaybeUninit::<libc::stat>::uninit();
        let flags = place.flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
        // SAFETY: the kernel checks the path's address; the buffer is ours to write.
        unsafe {
            syscall!(Sysno::newfstatat, place.directory, place.path, about.as_mut_ptr(), flags)
        }
        .ok()?;
        // SAFETY: the call succeeded and so filled it.
        let about = unsafe { about.assume_init() };
        // What is opened otherwise may wait, or do something.
        if about.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        const HOW: i32 = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        // SAFETY: as above.
        let opened = unsafe { syscall!(Sysno::openat, place.directory, place.path, HOW, 0) };
        let fd = match opened {
            Ok(fd) => fd as i32,
            // The descriptor itself is meant. It may be one that cannot be read, or have been read.
            Err(_) if flags & libc::AT_EMPTY_PATH != 0 => {
                let link = Link::of(place.directory);
                // SAFETY: the path is NUL-terminated and lives.
                unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, link.path.as_ptr(), HOW, 0) }
                    .ok()? as i32
            }
            Err(_) => return None,
        };
        Some(File { fd, window: [0; WINDOW_BYTES], at: 0, len: 0 })
    }

    /// Reads at an offset, as much as there is. `None` for an error.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        read(self.fd, buffer, offset)
    }

    fn look(&mut self, offset: u64) -> Option<()> {
        self.len = 0;
        self.len = read(self.fd, &mut self.window, offset)?;
        self.at = offset;
        Some(())
    }

    /// The file's first bytes.
    pub fn start(&mut self) -> Option<&[u8]> {
        self.look(0)?;
        Some(&self.window[..self.len.min(SCRIPT_LINE_BYTES)])
    }

    /// Reads `N` bytes at an offset. `None` if they are not there.
    pub fn bytes<const N: usize>(&mut self, offset: u64) -> Option<[u8; N]> {
        let within = |file: &File| {
            let from = usize::try_from(offset.checked_sub(file.at)?).ok()?;
            file.window[..file.len].get(from..from.checked_add(N)?)?.try_into().ok()
        };
        if let Some(bytes) = within(self) {
            return Some(bytes);
        }
        self.look(offset)?;
        within(self)
    }

    pub fn u16(&mut self, offset: u64) -> Option<u16> {
        self.bytes(offset).map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self, offset: u64) -> Option<u32> {
        self.bytes(offset).map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self, offset: u64) -> Option<u64> {
        self.bytes(offset).map(u64::from_ne_bytes)
    }

    /// An offset or a length. No file is as long as those that are left out, and sums of such
    /// numbers do not overflow.
    pub fn offset(&mut self, offset: u64) -> Option<u64> {
        self.u64(offset).filter(|offset| *offset < 1 << 48)
    }

    /// The last part of the file's path, links resolved.
    pub fn real_name(&self) -> Option<Name> {
        let link = Link::of(self.fd);
        let mut path = [0u8; WINDOW_BYTES];
        // SAFETY: the link's path is NUL-terminated; the buffer is ours to write.
        let len = unsafe {
            syscall!(
                Sysno::readlinkat,
                libc::AT_FDCWD,
                link.path.as_ptr(),
                path.as_mut_ptr(),
                path.len()
            )
        }
        .ok()?;
        path[..len].rsplit(|byte| *byte == b'/').next().map(Name::new)
    }

    /// Programs that the kernel starts with AT_SECURE: the loader then ignores a preload from the
    /// environment.
    pub fn privileged(&self) -> Option<Cause> {
        let mut about = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the buffer is ours to write.
        unsafe { syscall!(Sysno::fstat, self.fd, about.as_mut_ptr()) }.ok()?;
        // SAFETY: the call succeeded and so filled it.
        let about = unsafe { about.assume_init() };
        let (user, group) = (terrace_os::user_id(), terrace_os::group_id());
        let setuid = about.st_mode & libc::S_ISUID != 0 && about.st_uid != user;
        // Without group execution the bit means mandatory locking, not setgid.
        let setgid = about.st_mode & libc::S_ISGID != 0
            && about.st_mode & libc::S_IXGRP != 0
            && about.st_gid != group;
        let capabilities = user != 0 && self.has_capabilities();
        if !(setuid || setgid || capabilities)
            || self.is_mounted_nosuid()
            || ((setuid || setgid) && !capabilities && no_new_privileges())
        {
            return None;
        }
        Some(match (setuid, setgid) {
            (true, _) => Cause::Setuid,
            (_, true) => Cause::Setgid,
            _ => Cause::Capabilities,
        })
    }

    fn has_capabilities(&self) -> bool {
        // SAFETY: the name is NUL-terminated; a null buffer of length 0 asks for the attribute's
        // size only.
        let size =
            unsafe { syscall!(Sysno::fgetxattr, self.fd, c"security.capability".as_ptr(), 0, 0) };
        size.is_ok_and(|size| size > 0)
    }

    fn is_mounted_nosuid(&self) -> bool {
        let mut about = MaybeUninit::<libc::statfs64>::uninit();
        // SAFETY: the buffer is ours to write, and read only if the call succeeded and so filled
        // it.
        unsafe {
            syscall!(Sysno::fstatfs, self.fd, about.as_mut_ptr()).is_ok()
                && about.assume_init().f_flags as u64 & libc::ST_NOSUID != 0
        }
    }
}

fn read(fd: i32, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let mut len = 0;
    while len < buffer.len() {
        let rest = &mut buffer[len..];
        // SAFETY: the buffer is exclusively ours for the call.
        match unsafe {
            syscall!(Sysno::pread64, fd, rest.as_mut_ptr(), rest.len(), offset + len as u64)
        } {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(syscalls::Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
    Some(len)
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened here and is used nowhere else.
        let _ = unsafe { syscall!(Sysno::close, self.fd) };
    }
}

fn no_new_privileges() -> bool {
    // SAFETY: this call takes no pointers; the unused arguments must be zero, and are.
    unsafe { syscall!(Sysno::prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == Ok(1) }
}

/// The link in /proc to what a descriptor means.
struct Link {
    path: [u8; 32],
}

impl Link {
    fn of(fd: i32) -> Link {
        const DIRECTORY: &[u8] = b"/proc/self/fd/";
        let mut path = [0; 32];
        path[..DIRECTORY.len()].copy_from_slice(DIRECTORY);
        let mut rest = fd.unsigned_abs();
        let mut digits = 1;
        while rest >= 10 {
            rest /= 10;
            digits += 1;
        }
        rest = fd.unsigned_abs();
        for place in (0..digits).rev() {
            path[DIRECTORY.len() + place] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Link { path }
    }
}

/// Whether a path is a regular file that may be executed.
pub(crate) fn is_executable(path: &CStr) -> bool {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is NUL-terminated; the buffer is ours to write, and read only if the call
    // succeeded and so filled it.
    unsafe {
        syscall!(Sysno::newfstatat, libc::AT_FDCWD, path.as_ptr(), about.as_mut_ptr(), 0).is_ok()
            && about.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG
            && syscall!(Sysno::faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK).is_ok()
    }
}
