//! The private directory of one run, in which each process puts its statistics page. Mode 0700, unpredictable name,
//! removed when dropped, whatever happened in between.

use anyhow::{Result, anyhow};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory that goes with this value.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes one in the first place that takes it: `$XDG_RUNTIME_DIR` (if it is the user's own), `/dev/shm`, the
    /// system's temporary directory. The first two are memory, which is what a shared page should be on.
    pub fn create() -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| usable(dir));
        let mut problem = None;
        for place in runtime.into_iter().chain([PathBuf::from("/dev/shm"), std::env::temp_dir()]) {
            match Self::create_in(&place) {
                Ok(made) => return Ok(made),
                Err(error) => problem = Some((place, error)),
            }
        }
        let (place, error) = problem.expect("at least two places are tried");
        Err(anyhow!("cannot make a private directory in {}: {error}; set XDG_RUNTIME_DIR or TMPDIR to a writable one", place.display()))
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        let path = place.join(format!("terrace-{:032x}", random()?));
        // The path travels in an environment variable that is read as UTF-8.
        if path.to_str().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its name is not UTF-8"));
        }
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(RunDir { path })
    }

    /// Where it is: absolute if the place was.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // A process that outlives the run may be writing a page at this moment: try again, and leave it to the system
        // (both usual places are emptied at the latest on reboot) rather than wait for it.
        for _ in 0..3 {
            match std::fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    }
}

fn usable(directory: &Path) -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    directory.is_absolute() && directory.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user)
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
}
