//! The private directory of one run, in which each process puts its statistics page. Mode 0700, unpredictable name,
//! removed when dropped, whatever happened in between.
//!
//! A run that is ended by SIGKILL leaves its directory. A file in it is locked for as long as the run lives, so the next run of
//! the same user knows which directories nobody needs any more, and removes them.

use anyhow::{Result, anyhow};
use std::fs::{DirBuilder, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What directories' names begin with, before 32 hexadecimal digits.
const PREFIX: &str = "terrace-";
/// The file in each that is locked while the run lives.
const LOCK: &str = "run";
/// So much must be free where a directory is made, or else it is made elsewhere if it can be: pages of some processes.
const ROOM_BYTES: u64 = 256 << 10;
const ROOM_FILES: u64 = 64;

/// A directory that goes with this value.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Locked, and given up when this process ends in any way.
    _lock: File,
}

impl RunDir {
    /// Makes one in the first place that takes it: `$XDG_RUNTIME_DIR` (if it is the user's own), `/dev/shm`, the
    /// system's temporary directory. The first two are memory, which is what a page should be on. A place that is full is
    /// taken if all are.
    pub fn create() -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| usable(dir));
        let places: Vec<PathBuf> = runtime.into_iter().chain([PathBuf::from("/dev/shm"), std::env::temp_dir()]).collect();
        let mut problem = None;
        let (mut full, mut roomy) = (Vec::new(), Vec::new());
        for place in places {
            // Before it is asked what room there is.
            remove_abandoned(&place);
            if has_room(&place) { &mut roomy } else { &mut full }.push(place);
        }
        for place in roomy.into_iter().chain(full) {
            match Self::create_in(&place) {
                Ok(made) => return Ok(made),
                Err(error) => problem = Some((place, error)),
            }
        }
        let (place, error) = problem.expect("at least two places are tried");
        Err(anyhow!("cannot make a private directory in {}: {error}; set XDG_RUNTIME_DIR or TMPDIR to a writable one", place.display()))
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        loop {
            let path = place.join(format!("{PREFIX}{:032x}", random()?));
            // The path travels in an environment variable that is read as UTF-8.
            if path.to_str().is_none() {
                return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its name is not UTF-8"));
            }
            DirBuilder::new().mode(0o700).create(&path)?;
            let lock = File::options().write(true).create_new(true).mode(0o600).open(path.join(LOCK)).inspect_err(|_| {
                let _ = std::fs::remove_dir(&path);
            })?;
            // Whoever came before the lock took the directory for abandoned.
            if try_lock(&lock) && path.join(LOCK).symlink_metadata().is_ok_and(|there| is_same(&there, &lock)) {
                return Ok(RunDir { path, _lock: lock });
            }
        }
    }

    /// Where it is: absolute if the place was.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    // A process that outlives the run may be writing a page at this moment: try again, and leave it to the next run
    // rather than wait for it.
    for _ in 0..3 {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}

/// Removes the directories in `place` of runs of this user that live no more. Those without a file to lock are left alone: another
/// version's, or not finished yet.
fn remove_abandoned(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_name = |name: &str| {
            let digits = name.strip_prefix(PREFIX).unwrap_or_default();
            digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !name.to_str().is_some_and(is_name) {
            continue;
        }
        let path = entry.path();
        if !path.symlink_metadata().is_ok_and(|about| about.is_dir() && about.uid() == own_user()) {
            continue;
        }
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(lock) = File::options().write(true).custom_flags(options).open(path.join(LOCK)) else { continue };
        if try_lock(&lock) {
            remove(&path);
        }
    }
}

fn is_same(there: &std::fs::Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == (there.dev(), there.ino()))
}

/// Locks a file until it is closed, by the end of this process too; false if another has it.
fn try_lock(file: &File) -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Whether a place takes the pages of some processes, as far as can be known.
fn has_room(place: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(place.as_os_str().as_bytes()) else { return false };
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a NUL; the structure is read only if the call succeeded and so filled it.
    let about = unsafe {
        if libc::statvfs(path.as_ptr(), about.as_mut_ptr()) != 0 {
            return true;
        }
        about.assume_init()
    };
    // Without a limit there are none in all.
    let room = about.f_blocks == 0 || about.f_bavail.saturating_mul(about.f_frsize) >= ROOM_BYTES;
    room && (about.f_files == 0 || about.f_favail >= ROOM_FILES)
}

fn own_user() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

fn usable(directory: &Path) -> bool {
    directory.is_absolute() && directory.metadata().is_ok_and(|about| about.is_dir() && about.uid() == own_user())
}

fn random() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is writable for exactly the length given. Up to 256 bytes come whole or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(io::Error::last_os_error());
    }
    Ok(u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes_with_its_content() {
        let scratch = tempfile::tempdir().unwrap();
        let made = RunDir::create_in(scratch.path()).unwrap();
        let path = made.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        std::fs::write(path.join("1-2.stats"), "x").unwrap();
        drop(made);
        assert!(!path.exists());
    }

    #[test]
    fn what_nobody_lives_for_is_removed_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        let lives = RunDir::create_in(at).unwrap();
        let abandoned = {
            let made = std::mem::ManuallyDrop::new(RunDir::create_in(at).unwrap());
            std::fs::write(made.path().join("1-2.stats"), "x").unwrap();
            // As the kernel does at the end of a process.
            // SAFETY: a descriptor that nobody uses or closes any more.
            unsafe { libc::close(made._lock.as_raw_fd()) };
            made.path().to_owned()
        };
        let unfinished = at.join(format!("{PREFIX}{:032x}", 7));
        let other = at.join("terrace-test");
        let link = at.join(format!("{PREFIX}{:032x}", 8));
        for directory in [&unfinished, &other] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(other.join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        remove_abandoned(at);
        assert!(!abandoned.exists());
        assert!(lives.path().exists() && unfinished.exists() && other.join(LOCK).exists() && link.exists());
    }
}
