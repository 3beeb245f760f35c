//! Files for programs of other users: the tree that was built in may be root's alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A temporary directory that every user can look into.
#[derive(Debug)]
pub struct Public(TempDir);

impl Public {
    /// Makes a directory, with copies of these files in it.
    ///
    /// # Panics
    /// If a file cannot be copied, or the directory cannot be made.
    pub fn with(files: &[&Path]) -> Public {
        let directory = tempfile::Builder::new()
            .prefix("terrace-public-")
            .tempdir()
            .expect("a temporary directory can be made");
        open(directory.path());
        let public = Public(directory);
        for file in files {
            public.publish(file);
        }
        public
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Copies a file into the directory, unless it is there. Every user can read and execute the
    /// copy, whose path is returned.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn publish(&self, file: &Path) -> PathBuf {
        let copy = self.path().join(file.file_name().expect("a file has a name"));
        if !copy.exists() {
            fs::copy(file, &copy)
                .unwrap_or_else(|e| panic!("{} cannot be copied: {e}", file.display()));
            open(&copy);
        }
        copy
    }
}

/// Lets every user read and execute a file, or look into a directory.
fn open(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("its mode can be set");
}
