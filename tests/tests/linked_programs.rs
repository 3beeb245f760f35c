//! `include/terrace.h`: programs that say what they are about to touch get it back without faults.
//! Nothing else changes for them.

use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, cases, compiled};

/// Ways to run these cases:
/// - nothing else is evicted, so that a case can tell how its pages came back;
/// - random evictions, also while kernel calls fail, and in the manner of old kernels;
/// - random evictions beside a budget below what a case uses.
static LINKED: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled(
        "linked_programs.c",
        &["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../include")],
    ),
    arguments: Vec::new(),
    ways: vec![
        Terrace::within("4G"),
        Terrace::within("4G").and("--evict=wp"),
        Terrace::stressed(),
        Terrace::failing(),
        Terrace::write_protecting(),
        Terrace::stressed().and("--dram=6M"),
    ],
});

cases! { LINKED.hold:
    without_faults
    parts_of_pages
    any_pointer
    prefetched
    closed_descriptors
    no_descriptor_is_free
    forked_children
    forks_while_a_thread_touches
    in_signal_handlers
    on_managed_stacks
    descriptors_of_another_process
    everything_at_once
}

#[cfg(target_arch = "x86_64")]
cases! { LINKED.hold: a_child_made_without_the_c_library }

/// A program that has no rights any more: what it was given before is enough.
#[test]
fn after_a_privilege_drop() {
    LINKED.hold_managed_or_not("after_a_privilege_drop");
}

/// The report tells pages that the program asked for from those that faulted.
#[test]
fn the_report_tells_what_was_asked_for() {
    let finished =
        Program::new(&LINKED.program).arg("without_faults").under(Terrace::within("4G")).run();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let report = finished.report();
    let pages = |name: &str| report.at(&format!("/moves/{name}")).as_u64().unwrap_or(0);
    assert!(
        pages("ahead_pages") > 2000 && pages("ahead_pages") <= pages("promoted_pages"),
        "{report}"
    );
}
