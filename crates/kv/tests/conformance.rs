//! memcached's own protocol tests, from the source package of the system's distribution.
//!
//! `MEMCACHED_SOURCE` names an unpacked source tree to use instead.

mod common;

use common::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance.sh");

fn works(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Finds memcached's source, or says why there is none.
fn source(directory: &Path) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("MEMCACHED_SOURCE") {
        return Ok(path.into());
    }
    let output = Command::new("sh")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/source.sh"))
        .arg(directory)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let [said, errors] = [&output.stdout, &output.stderr].map(|s| String::from_utf8_lossy(s));
        return Err(format!("{} {}", said.trim(), errors.trim()));
    }
    let entries = directory.read_dir().map_err(|error| error.to_string())?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("t").is_dir())
        .ok_or_else(|| "the source package has no directory of tests".to_owned())
}

/// Runs them with more flags of the server's.
fn run(flags: &str) {
    for (program, argument) in [("perl", "-v"), ("cc", "--version"), ("bash", "--version")] {
        if !works(program, argument) {
            return skip(&format!("{program} is missing"));
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let source = match source(directory.path()) {
        Ok(source) => source,
        Err(reason) => return skip(&reason),
    };
    let output = Command::new("bash")
        .args([SCRIPT, env!("CARGO_BIN_EXE_terrace-kv")])
        .arg(&source)
        .env("TERRACE_KV_FLAGS", flags)
        .output()
        .expect("bash starts");
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}\n{errors}");
}

#[test]
fn memcacheds_own_tests_pass() {
    run("");
}

#[test]
fn memcacheds_own_tests_pass_while_items_move() {
    run("-o consolidate");
}
