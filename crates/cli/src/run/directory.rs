//! The private directory of one run, in which each process puts its statistics page. Mode 0700,
//! unpredictable name, removed when dropped, whatever happened in between.
//!
//! A run that is ended by SIGKILL leaves its directory. A file in it is locked for as long as the
//! run lives. So the next run of the same user knows which directories no process needs any more.
//! It removes them once no process of theirs lives.

use crate::processes::statistics;
use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use terrace_os::effective_user_id as own_user;

/// Set for every process of a run, and so the sign of being inside one.
pub const RUN_DIR_VARIABLE: &str = "TERRACE_RUN_DIR";
/// What directories' names begin with, before 32 hexadecimal digits.
const PREFIX: &str = "terrace-";
/// The file in each that is locked while the run lives.
const LOCK: &str = "run";
/// The file in each that says what runs there: [`About`].
const ABOUT: &str = "about.json";
/// Most bytes of that file: the longest command line of Linux, as JSON.
const ABOUT_BYTES: u64 = 16 << 20;
/// Bytes and files that must be free where a directory is made: pages of some processes. Else it is
/// made elsewhere if it can be.
const ROOM_BYTES: u64 = 256 << 10;
const ROOM_FILES: u64 = 64;

/// What is said of a run while it lives, for `terrace status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// `--dram`, as it would be written.
    pub dram: String,
    /// `--slowdown`, as it would be written; `null` without it.
    pub slowdown: Option<String>,
    /// `--tiers`.
    pub tiers: String,
    /// The tiers that take pages now, where `terrace set` changed that.
    #[serde(default)]
    pub tiers_now: Option<String>,
    /// `--observe`.
    pub observe: bool,
    /// Whether the run was started with a limit that holds: its processes move pages.
    #[serde(default)]
    pub limited: bool,
    /// `--knob` and `--window`, as they would be written, where a model places regions.
    #[serde(default)]
    pub model: Option<(String, String)>,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// The process that divides the budget: `terrace run`, or the keeper that it left; `null` in
    /// runs of versions that did not say so.
    pub supervisor: Option<u32>,
}

/// A run that lives.
pub struct LiveRun {
    /// The run's directory.
    pub path: PathBuf,
    /// What the run said of itself; `None` if nothing yet, or if another version's.
    pub about: Option<About>,
    /// Whether its `terrace run` or keeper lives. Without it processes keep the budget they had.
    pub supervised: bool,
}

/// The runs that live on this machine, as far as this user may look: all of them for root, the
/// user's own otherwise. And how many there are of other users.
pub fn live() -> (Vec<LiveRun>, usize) {
    let user = own_user();
    let mut places = vec![PathBuf::from("/dev/shm"), std::env::temp_dir()];
    places.extend(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    if user == 0 {
        places.extend(
            std::fs::read_dir("/run/user")
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
    }
    places.sort();
    places.dedup();
    let (mut runs, mut others) = (Vec::new(), 0);
    for path in places.iter().flat_map(|place| directories(place)) {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.uid() != user && user != 0 {
            others += 1;
            continue;
        }
        let supervised = is_live(&path);
        if supervised || has_processes(&path) {
            runs.push(LiveRun { about: self::about(&path), path, supervised });
        }
    }
    (runs, others)
}

/// What a run says of itself, by its directory.
pub fn about(path: &Path) -> Option<About> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path.join(ABOUT))
        .ok()?;
    let small = file.metadata().ok().filter(|about| about.is_file() && about.len() <= ABOUT_BYTES);
    small.and_then(|_| serde_json::from_reader(std::io::BufReader::new(file)).ok())
}

/// Says what runs, in a run's directory. That is for people, so what cannot be written is left out.
pub fn describe(directory: &Path, about: &About) {
    let text = serde_json::to_vec(about).unwrap_or_default();
    let (new, place) = (directory.join(format!("{ABOUT}.new")), directory.join(ABOUT));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let written = options.open(&new).and_then(|mut file| io::Write::write_all(&mut file, &text));
    let _ = written.and_then(|()| std::fs::rename(new, place));
}

/// Whether a process lives that has a statistics page there.
fn has_processes(path: &Path) -> bool {
    let pages = statistics::newest_pages(path);
    pages.values().any(|page| statistics::read_image(page).is_some_and(|image| image.lives()))
}

/// Whether a process has the lock of a run's directory.
fn is_live(path: &Path) -> bool {
    open_lock(path).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

/// A run's directory, which is removed when this value is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// The lock's file: locked, and given up when this process ends in any way.
    _lock: File,
}

impl RunDir {
    /// Makes a directory in the first place that takes it: `$XDG_RUNTIME_DIR` (if it is the user's
    /// own), `/dev/shm`, the system's temporary directory. The first two are memory, which is what
    /// a page should be on. A place that is full is taken if all are.
    pub fn create() -> Result<Self> {
        let runtime =
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| usable(dir));
        let places: Vec<PathBuf> =
            runtime.into_iter().chain([PathBuf::from("/dev/shm"), std::env::temp_dir()]).collect();
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
        Err(anyhow!(
            "cannot make a private directory in {}: {error}; set XDG_RUNTIME_DIR or TMPDIR to a writable one",
            place.display()
        ))
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        loop {
            let path = place.join(format!("{PREFIX}{:032x}", random()?));
            // The path travels in an environment variable that is read as UTF-8.
            if path.to_str().is_none() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidFilename,
                    "its name is not UTF-8",
                ));
            }
            DirBuilder::new().mode(0o700).create(&path)?;
            let lock = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path.join(LOCK))
                .inspect_err(|_| {
                    let _ = std::fs::remove_dir(&path);
                })?;
            // A run that came before the lock took the directory for abandoned.
            if lock.try_lock().is_ok()
                && path.join(LOCK).symlink_metadata().is_ok_and(|there| is_same(&there, &lock))
            {
                return Ok(RunDir { path, _lock: lock });
            }
        }
    }

    /// Path of the directory: absolute if the place was.
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
    // A process that outlives the run may be writing a page at this moment: try again, and leave it
    // to the next run rather than wait for it.
    for _ in 0..3 {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}

/// Removes the directories in `place` of runs of this user that live no more. Those without a file
/// to lock are left alone: another version's, or not finished yet.
fn remove_abandoned(place: &Path) {
    for path in directories(place) {
        if !path.symlink_metadata().is_ok_and(|about| about.uid() == own_user()) {
            continue;
        }
        let Ok(lock) = open_lock(&path) else { continue };
        if lock.try_lock().is_ok() && !has_processes(&path) {
            remove(&path);
        }
    }
}

/// What is called like a run's directory in a place, and is one.
fn directories(place: &Path) -> impl Iterator<Item = PathBuf> {
    let is_name = |name: &str| {
        let digits = name.strip_prefix(PREFIX).unwrap_or_default();
        digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let named = entries
        .filter(move |entry| entry.file_name().to_str().is_some_and(is_name))
        .map(|entry| entry.path());
    named.filter(|path| path.symlink_metadata().is_ok_and(|about| about.is_dir()))
}

/// The file that is locked until it is closed, by the end of a process too. A run locks it alone;
/// those that look whether it lives do so beside others.
fn open_lock(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path.join(LOCK))
}

fn is_same(there: &std::fs::Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == (there.dev(), there.ino()))
}

/// Whether a place takes the pages of some processes, as far as can be known.
fn has_room(place: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(place.as_os_str().as_bytes()) else { return false };
    let Ok(about) = terrace_os::file_system_at(&path) else { return true };
    // As statvfs(3) has it, where a file system tells no other unit.
    let unit = if about.f_frsize == 0 { about.f_bsize } else { about.f_frsize };
    // Without a limit there are none in all.
    let room = about.f_blocks == 0 || about.f_bavail.saturating_mul(unit as u64) >= ROOM_BYTES;
    room && (about.f_files == 0 || about.f_ffree >= ROOM_FILES)
}

fn usable(directory: &Path) -> bool {
    directory.is_absolute()
        && directory.metadata().is_ok_and(|about| about.is_dir() && about.uid() == own_user())
}

fn random() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    terrace_os::fill_randomly(&mut bytes).map_err(terrace_os::io_error)?;
    Ok(u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

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
            // As the kernel does at the end of a process. SAFETY: a descriptor that nothing uses or
            // closes any more.
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
        assert!(
            lives.path().exists()
                && unfinished.exists()
                && other.join(LOCK).exists()
                && link.exists()
        );
    }
}
