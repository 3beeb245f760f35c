//! Memory calls of all kinds, in random order and beside each other, mean what they mean without
//! Terrace.

use std::time::Duration;
use terrace_tests::{Program, Terrace, compiled, machine, number_from_environment};

/// Runs the program for two seconds, or as long as `make soak` says. Without Terrace too, which
/// proves that the program itself is right.
fn all_pages_hold_what_they_should(terrace: impl Into<Option<Terrace>>) {
    let terrace = terrace.into();
    let _machine = machine();
    let seconds = number_from_environment("TERRACE_SOAK_SECONDS", 2);
    let seed = number_from_environment("TERRACE_SOAK_SEED", 1);
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
    let managed = terrace.is_some();
    let finished = Program::new(compiled("calls_in_any_order.c", &[include]))
        .arg(seconds.to_string())
        .arg(seed.to_string())
        .under(terrace)
        .time_limit(Duration::from_secs(seconds * 2 + 120))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    println!("{stdout}");
    assert!(stdout.contains("nothing lost"), "{}", finished.account("lost something"));
    if managed {
        finished.report().expect_moves(1000, 1000);
    }
}

#[test]
fn alone() {
    all_pages_hold_what_they_should(None);
}

#[test]
fn against_random_evictions() {
    all_pages_hold_what_they_should(Terrace::stressed());
}

#[test]
fn while_kernel_calls_fail() {
    all_pages_hold_what_they_should(Terrace::failing().and("--tiers=dram,zstd:1"));
}

#[test]
fn with_huge_pages_that_come_and_go() {
    all_pages_hold_what_they_should(Terrace::stressed_with_huge_pages());
}
