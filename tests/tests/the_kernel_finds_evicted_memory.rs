//! System calls transfer the right bytes to and from memory that is evicted, half evicted, or just
//! being moved.

use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, cases, compiled, skip};

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions;
/// - random evictions beside a budget below what a case uses, or where regions become huge pages at
///   any time.
static CALLS: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("the_kernel_finds_evicted_memory.c", &[]),
    arguments: Vec::new(),
    ways: vec![
        Terrace::within("4G"),
        Terrace::stressed(),
        Terrace::stressed().and("--dram=6M"),
        Terrace::stressed_with_huge_pages(),
    ],
});

cases! { CALLS.hold:
    vectors
    messages
    zero_copy_sends
    ring_buffers
    ring_buffers_polled_by_the_kernel
    ring_buffers_that_are_fixed
    ring_buffers_that_are_fixed_and_huge
    direct_io_in_the_background
    direct_io_while_pages_move
    structures
    buffers_that_run_off
    locks_in_evicted_memory
    mutexes_that_the_kernel_changes
    threads_end_on_stacks_of_the_programs_own
    futexes
    signals_arrive_while_the_kernel_waits
    memory_as_a_file
    traced
    other_processes_while_pages_move
}

/// Write protection, the one way of evicting that does not notice pinned pages, ends when there may
/// be some.
#[test]
fn a_direct_file_ends_write_protection() {
    ends_write_protection(
        "a_direct_file_is_opened",
        "the program uses O_DIRECT, which may pin pages",
    );
}

/// Write protection also ends when Terrace cannot see whether there are pinned pages.
#[test]
fn a_main_thread_that_leaves_ends_write_protection() {
    ends_write_protection(
        "the_main_thread_leaves",
        "the program uses descriptors that cannot be seen, which may pin pages",
    );
}

fn ends_write_protection(case: &str, why: &str) {
    let finished = Program::new(&CALLS.program)
        .arg(case)
        .under(Terrace::within("4G").and("--evict").and("wp"))
        .run();
    if finished.status.code() == Some(77) {
        return skip(case, "no O_DIRECT in the temporary directory");
    }
    assert!(finished.status.success(), "{}", finished.account("failed"));
    assert_eq!(finished.report().at("/processes/0/state"), "frozen", "{}", finished.report());
    let note = finished.report().at("/processes/0/note").to_string();
    assert!(note.contains(why), "{}", finished.report());
}
