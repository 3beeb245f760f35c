//! The structures and the row store of `terrace-objects` under Terrace. Readers, writers, deleters
//! and the relocator run at once, while pages are evicted within a budget and at random. Kernel
//! calls of Terrace fail meanwhile. Every value is checked.
//!
//! A minute in all; `TERRACE_SOAK_SECONDS` has it last longer.

#[path = "../../crates/objects/tests/torture/rows.rs"]
#[allow(dead_code)]
mod rows;
#[path = "../../crates/objects/tests/torture/structures.rs"]
mod structures;

use std::time::Duration;
use structures::{KEYS, all_at_once};
use terrace_objects::structures::{Chained, Open, Radix, SkipList, Tree};
use terrace_tests::{Program, Terrace, machine, number_from_environment};

const SECONDS: u64 = 60;

/// This program again, under Terrace, with the tests below: two at a time, each for a sixth.
#[test]
fn no_value_is_wrong_where_objects_and_pages_move() {
    let _machine = machine();
    let seconds = number_from_environment("TERRACE_SOAK_SECONDS", SECONDS);
    let finished = Program::new(std::env::current_exe().expect("this test has a path"))
        .args(["--ignored", "--nocapture", "--test-threads", "2"])
        .env("TERRACE_SOAK_SECONDS", seconds.to_string())
        .under(Terrace::failing().and("--dram").and("16M"))
        .time_limit(Duration::from_secs(seconds * 2 + 240))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    println!("{stdout}");
    assert!(stdout.contains("6 passed; 0 failed"), "{}", finished.account("did not run all"));
    let report = finished.report();
    println!("{} pages evicted, {} restored", report.demoted_pages(), report.promoted_pages());
    report.expect_moves(10_000, 10_000);
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn chained_hash() {
    all_at_once(Chained::for_keys(KEYS as usize / 4));
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn open_hash() {
    all_at_once(Open::for_keys(KEYS as usize));
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn b_plus_tree() {
    all_at_once(Tree::default());
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn skip_list() {
    all_at_once(SkipList::default());
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn radix_tree() {
    all_at_once(Radix::default());
}

#[test]
#[ignore = "run under Terrace by the test above"]
fn transactions_on_rows() {
    rows::transfers_and_audits();
}
