//! Nothing of Terrace's is in the program's process, and what the process beside it does or suffers
//! makes no byte wrong.

use std::sync::LazyLock;
use terrace_tests::{Cases, Terrace, cases, compiled};

static PROGRAM: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("the_program_is_alone.c", &[]),
    arguments: vec![],
    ways: vec![Terrace::within("4G"), Terrace::stressed()],
});

cases! { PROGRAM.hold:
    one_thread_and_no_child
    namespaces_are_open
    privileges_are_given_up
    descriptors_are_out_of_reach
    children_where_nothing_more_can_be_made
    the_companion_is_confined
    a_companion_that_was_taken_over_reaches_nothing
    nothing_is_wrong_when_the_companion_is_killed
    a_sharer_outlives_the_program
    a_child_of_vfork_outlives_the_program
    sharers_may_be_killed
    who_traces_reads_evicted_memory
    who_is_traced_from_the_start_goes_on
    discarded_by_instruction
    forked_by_instruction
    moved_by_instruction
    moved_over_evicted_memory
    protected_while_staged
    unmapped_by_instruction
    threads_discard_by_instruction
}
