//! Packages of the build under test, as `make` makes them.

use crate::built::terrace_command;
use crate::program::Program;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Makes the package of this kind (`deb`, `rpm`, `tarball`, or `oci`, which is made of a `deb`),
/// kept in the directory. `make` is told that the portable build is done, and where.
pub fn package(kind: &str, directory: &Path) -> PathBuf {
    // Packages are made one at a time: each starts `make` and cargo.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let built = terrace_command();
    let portable = directory.join("release");
    match symlink(built.parent().expect("it has a directory"), portable) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("a link: {error}"),
        _ => {}
    }
    let finished = Program::new("make")
        .args(["--silent", "--no-print-directory", "-C", REPOSITORY, "-o", "portable", kind])
        .arg(format!("PORTABLE={}", directory.display()))
        .arg(format!("PACKAGES={}", directory.display()))
        .env("TERRACE_PACKAGE_PATHS", "any")
        .time_limit(Duration::from_secs(300))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout);
    PathBuf::from(stdout.lines().last().expect("the package's path"))
}
