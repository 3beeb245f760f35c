//! memcached's own protocol tests, from the source package of the system's distribution.
//!
//! `MEMCACHED_SOURCE` names an unpacked source tree to use instead. conformance.table says which
//! files run, and why others do not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use terrace_testkit::skipping::skip;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance.sh");
const TABLE: &str = include_str!("conformance.table");

fn works(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Fetches memcached's source into a directory, or says why there is none.
fn fetched(directory: &Path) -> Result<PathBuf, String> {
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

/// The source, which is fetched once for all tests here, and kept beside what is built.
fn shared_source() -> Result<&'static Path, &'static str> {
    static SOURCE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = SOURCE.get_or_init(|| {
        if let Some(path) = std::env::var_os("MEMCACHED_SOURCE") {
            return Ok(path.into());
        }
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("memcached-source");
        if kept.join("t").is_dir() {
            return Ok(kept);
        }
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        std::fs::rename(fetched(scratch.path())?, &kept).map_err(|error| error.to_string())?;
        Ok(kept)
    });
    found.as_deref().map_err(String::as_str)
}

/// Runs files with more flags of the server's.
fn run(files: &str, flags: &str) {
    for (program, argument) in [("perl", "-v"), ("cc", "--version"), ("bash", "--version")] {
        if !works(program, argument) {
            return skip(&format!("{program} is missing"));
        }
    }
    let source = match shared_source() {
        Ok(source) => source,
        Err(reason) => return skip(reason),
    };
    let output = Command::new("bash")
        .args([SCRIPT, env!("CARGO_BIN_EXE_terrace-kv")])
        .arg(source)
        .arg(files)
        .env("TERRACE_KV_FLAGS", flags)
        .output()
        .expect("bash starts");
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{report}");
    assert!(output.status.success(), "{report}\n{errors}");
}

#[test]
fn memcacheds_own_tests_pass() {
    run("runs", "");
}

#[test]
fn memcacheds_own_tests_of_data_pass_while_items_move() {
    run("data", "-o consolidate");
}

/// For `make soak`. Tests that read nothing back are not about items that move.
#[test]
#[ignore = "the others are enough for every day"]
fn all_of_memcacheds_own_tests_pass_while_items_move() {
    run("runs", "-o consolidate");
}

#[test]
fn the_table_has_every_file_once_and_a_reason_for_those_that_do_not_run() {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut named = BTreeSet::new();
    for row in rows {
        let mut words = row.split_whitespace();
        let (file, what) = (words.next().expect("a file"), words.next());
        assert!(named.insert(file.to_owned()), "{file} stands there twice");
        match (what, words.next()) {
            (Some("runs" | "data"), None) | (Some("no"), Some(_)) => {}
            _ => panic!("the row says neither that it runs nor why not: {row}"),
        }
    }
    let source = match shared_source() {
        Ok(source) => source,
        Err(reason) => return skip(reason),
    };
    let entries = source.join("t").read_dir().expect("it has tests").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let there: BTreeSet<String> = names.filter(|name| name.ends_with(".t")).collect();
    // Another release may have other files, which must be looked at.
    assert_eq!(named, there);
}
