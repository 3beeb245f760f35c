//! The file of `--report`: proved writable before the program starts, written whole at its end.
//!
//! A regular file is written beside itself and renamed into place, so that a reader never sees half
//! a report; a device or a pipe is opened and written as it is, and `-` is standard output.

use crate::run_report::outlet::write_all;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// An open place for the report. Dropped unwritten, it leaves nothing behind.
#[derive(Debug)]
pub struct ReportFile {
    file: File,
    /// The file beside, until it has been renamed; none for a device.
    beside: Option<PathBuf>,
    target: PathBuf,
}

impl ReportFile {
    /// Opens the place, or says why no report could be written there.
    pub fn open(target: &Path) -> Result<Self> {
        ReportFile::beside(target, "tmp")
    }

    fn beside(target: &Path, suffix: &str) -> Result<Self> {
        if target == Path::new("-") {
            let file = File::from(
                io::stdout()
                    .as_fd()
                    .try_clone_to_owned()
                    .context("the report cannot be written to standard output")?,
            );
            return Ok(ReportFile { file, beside: None, target: target.to_owned() });
        }
        let refused = || {
            format!(
                "the report cannot be written to {}; name a file in a directory that you can write to",
                target.display()
            )
        };
        let existing = fs::metadata(target).ok();
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            bail!("--report {}: that is a directory; name a file in it", target.display());
        }
        if existing.as_ref().is_some_and(|about| !about.is_file()) {
            let file = OpenOptions::new().write(true).open(target).with_context(refused)?;
            return Ok(ReportFile { file, beside: None, target: target.to_owned() });
        }
        // Through a symbolic link, so that the link stays; absolute, so that the place is fixed
        // now.
        let target = match existing {
            Some(_) => target.canonicalize(),
            None => std::path::absolute(target),
        }
        .with_context(refused)?;
        let Some(name) = target.file_name() else {
            bail!("--report {}: that is not the name of a file", target.display())
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{suffix}", std::process::id()));
        let beside = target.with_file_name(hidden);
        let file =
            OpenOptions::new().write(true).create_new(true).open(&beside).with_context(refused)?;
        Ok(ReportFile { file, beside: Some(beside), target })
    }

    /// Opens a place that [`ReportFile::again`] named, unless something else than a regular file is
    /// there now.
    pub fn open_again(target: &Path) -> Result<Self> {
        if fs::metadata(target).is_ok_and(|about| !about.is_file()) {
            bail!("{} is not a regular file any more", target.display());
        }
        ReportFile::open(target)
    }

    /// Where a report can be written again later, if that is a regular file.
    pub fn again(&self) -> Option<PathBuf> {
        self.beside.is_some().then(|| self.target.clone())
    }

    /// Replaces the report in a regular file while the program runs.
    pub fn write_now(&self, text: &str) -> Result<()> {
        ReportFile::beside(&self.target, "now")?.write(text)
    }

    /// Where reports follow each other, as this is no regular file.
    pub fn stream(&self) -> Option<File> {
        self.beside.is_none().then(|| self.file.try_clone().ok())?
    }

    /// What is said where a report could not be written.
    pub fn unwritten(&self) -> String {
        format!("the report could not be written to {}", self.target.display())
    }

    /// Lets go of it in a forked process: the file beside is its parent's.
    pub fn forget(mut self) {
        self.beside = None;
    }

    /// Writes the report and puts it in its place.
    pub fn write(mut self, text: &str) -> Result<()> {
        write_all(&self.file, text.as_bytes()).with_context(|| self.unwritten())?;
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.target).with_context(|| {
                format!("the report could not be put at {}", self.target.display())
            })?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn it_appears_whole_or_not_at_all() {
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("r.json");
        fs::write(&target, "old").unwrap();
        drop(ReportFile::open(&target).unwrap());
        assert_eq!(names(scratch.path()), ["r.json"]);
        let open = ReportFile::open(&target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        open.write_now("so far").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "so far");
        open.write("new").unwrap();
        assert_eq!(
            (fs::read_to_string(&target).unwrap().as_str(), names(scratch.path()).len()),
            ("new", 1)
        );
        assert!(ReportFile::open(scratch.path()).is_err());
        assert!(ReportFile::open(&scratch.path().join("no/such/dir.json")).is_err());
        let open = ReportFile::open(&target).unwrap();
        assert_eq!(open.again().as_deref(), Some(target.as_path()));
        open.forget();
        assert_eq!(names(scratch.path()).len(), 2);
        let null = ReportFile::open(Path::new("/dev/null")).unwrap();
        assert_eq!(null.again(), None);
        null.write("x").unwrap();
        assert!(fs::metadata("/dev/null").is_ok_and(|about| !about.is_file()));
    }
}
