//! Objects keep what is written to them, and none overlaps another, however they are made and
//! whichever thread frees them. This holds in each order of `--allocator`, while pages leave and
//! come back.

use std::time::Duration;
use terrace_tests::{Program, Terrace, compiled, machine, number_from_environment};

/// Runs the program for three seconds, or as long as `make soak` says; at least `pages` pages
/// leave.
fn objects_keep_their_bytes(allocator: &str, pages: u64) {
    let _machine = machine();
    let seconds = number_from_environment("TERRACE_SOAK_SECONDS", 3);
    let seed = number_from_environment("TERRACE_SOAK_SEED", 1);
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
    // Neighbours that were never placed are no mistake here.
    let finished = Program::new(compiled("objects_keep_what_is_written.c", &[include, "-DNDEBUG"]))
        .arg(seconds.to_string())
        .arg(seed.to_string())
        .under(Terrace::within("24M").and("--allocator").and(allocator))
        .time_limit(Duration::from_secs(seconds * 2 + 120))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    println!("{allocator}: {stdout}");
    assert!(stdout.contains("nothing lost"), "{}", finished.account("lost something"));
    let report = finished.report();
    println!("{} pages evicted, {} restored", report.demoted_pages(), report.promoted_pages());
    report.expect_moves(pages, pages / 2);
}

#[test]
fn by_size() {
    objects_keep_their_bytes("size", 1000);
}

#[test]
fn by_context() {
    objects_keep_their_bytes("context", 1000);
}

/// Only what is placed, and blocks of a MiB and more, are managed. The C library unmaps blocks past
/// the library, and what it maps in their place is known not to be managed. So fewer pages can
/// leave than where all mappings are followed.
#[test]
fn by_the_programs_own_allocator() {
    objects_keep_their_bytes("system", 200);
}
