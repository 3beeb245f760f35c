//! Where `cargo build --release --workspace` left the command and the library.

use std::path::{Path, PathBuf};

/// The `terrace` command.
pub fn terrace_command() -> PathBuf {
    built("terrace")
}

/// The library that the command preloads.
pub fn terrace_library() -> PathBuf {
    built("libterrace.so")
}

/// What recorded programs are linked with.
pub fn recorder_library() -> PathBuf {
    built("libterrace_recorder.a")
}

/// What C programs whose objects move are linked with.
pub fn objects_library() -> PathBuf {
    built("libterrace_objects.a")
}

/// The target directory that this test was built in.
pub fn target_directory() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    // <target>/<profile>/deps/<test>
    test.ancestors()
        .nth(3)
        .expect("cargo puts tests three levels below its target directory")
        .to_owned()
}

/// A file of the release build: in `TERRACE_BIN_DIR` if that is set, else in the target directory's
/// `release`.
fn built(name: &str) -> PathBuf {
    let directory = std::env::var_os("TERRACE_BIN_DIR")
        .map_or_else(|| target_directory().join("release"), PathBuf::from);
    let path = Path::new(&directory).join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --release --workspace` first, or set TERRACE_BIN_DIR",
        path.display()
    );
    path
}
