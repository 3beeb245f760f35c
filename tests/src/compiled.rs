//! The C and C++ programs of `programs/`, compiled when a test asks for them.

use crate::built::target_directory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a source file (a name in `programs/`, or a path) with `cc`, or `g++` for `.cpp`, and
/// returns the executable. `options` come after the usual ones, libraries included.
pub fn compiled(source: impl AsRef<Path>, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let name = source.file_stem().expect("a source file has a name").to_string_lossy().into_owned();
    let directory = target_directory().join("terrace-programs");
    std::fs::create_dir_all(&directory).expect("the target directory can be written");
    // Made beside and renamed: another test may be running the previous one.
    let beside =
        directory.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let compiler =
        if source.extension().is_some_and(|extension| extension == "cpp") { "g++" } else { "cc" };
    let output = Command::new(compiler)
        .args([
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-pthread",
            "-fno-builtin-malloc",
            "-o",
        ])
        .args([&beside, &source])
        .args(options)
        .output()
        .unwrap_or_else(|e| {
            panic!("{compiler} cannot be run ({e}); on Debian: apt-get install gcc g++")
        });
    assert!(
        output.status.success(),
        "{} does not compile:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let executable = directory.join(name);
    std::fs::rename(&beside, &executable).expect("a rename within a directory works");
    executable
}
