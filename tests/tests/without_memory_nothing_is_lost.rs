//! Where there is no more memory, for the program or for Terrace, nothing is lost and no process is
//! ended.

use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, compiled};

static LIMITS: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("without_memory.c", &[]),
    arguments: Vec::new(),
    ways: vec![Terrace::within("4G"), Terrace::stressed()],
});

#[test]
fn no_more_data() {
    LIMITS.hold("no_more_data");
}

#[test]
fn no_more_addresses() {
    LIMITS.hold("no_more_addresses");
}

/// The medium of the pools is full: pages stay in DRAM, and that is said once.
#[test]
fn a_full_medium_is_said_once() {
    let program =
        Program::new(&LIMITS.program).arg("no_data_for_more_extents").under(Terrace::within("4G"));
    let finished = program.succeed();
    let said = finished
        .stderr
        .matches("terrace: pages stay in DRAM: the medium under tier `lz4` gives no extent: ")
        .count();
    assert_eq!(said, 1, "{}", finished.account("said it otherwise"));
    let report = finished.report();
    report.expect_managed();
    assert!(
        report.at("/note").as_str().is_some_and(|note| note.starts_with("pages stay in DRAM: ")),
        "{report}"
    );
}

/// There is no memory for the table of pages. Pages beyond it stay in DRAM until there is, and that
/// is said once.
#[test]
fn a_full_table_is_said_once() {
    let finished = Program::new(&LIMITS.program)
        .arg("no_data_for_the_table")
        .under(Terrace::within("4G"))
        .succeed();
    let said = finished
        .stderr
        .matches("terrace: pages stay in DRAM: there is no memory for their table")
        .count();
    assert_eq!(said, 1, "{}", finished.account("said it otherwise"));
    finished.report().expect_managed();
}
