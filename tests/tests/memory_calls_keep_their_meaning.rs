//! What a program tells the kernel about its memory means the same for pages that are evicted.

use std::sync::LazyLock;
use terrace_tests::{Cases, Terrace, cases, compiled};

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions besides;
/// - random evictions where regions become huge pages at any time.
static CALLS: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("memory_calls_keep_their_meaning.c", &[]),
    arguments: Vec::new(),
    ways: vec![Terrace::within("4G"), Terrace::stressed(), Terrace::stressed_with_huge_pages()],
});

cases! { CALLS.hold:
    discarded_pages_are_zeros
    discarded_pages_that_are_written_at_once
    unmapped_addresses_are_zeros_when_mapped_again
    mapped_over_evicted_memory
    remapped_memory_keeps_its_contents
    partly_evicted_memory_is_remapped
    remapped_memory_can_stay_mapped
    protection_comes_and_goes
    lazily_freed_pages_are_old_or_zero
    children_get_what_they_may
    memory_kept_from_children_leaves_too
    small_chunks_kept_from_children
    locked_pages_are_resident
    everything_locked
    mincore_works
    system_calls_take_evicted_buffers
    spliced_pages_keep_their_contents
    other_processes_read_and_write
    direct_io_uses_evicted_pages
    reallocated_memory_keeps_its_contents
    signal_handlers_run_on_evicted_stacks
    reservations_are_opened_in_parts
    populated_pages_keep_their_contents
    other_advice_changes_nothing
    calls_by_number
    sparse_reservations_cost_little
    large_reservations_are_given_up
    mappings_come_and_go_in_threads
    signals_arrive_during_memory_calls
    signal_handlers_touch_neighbours_of_discarded_pages
    refused_discards_keep_contents
    remapped_memory_keeps_its_kind
    failed_mappings_leave_no_old_contents
    static_data_leaves_too
    the_break_moves
    memory_removed_behind_the_c_library
    advice_on_children_behind_the_c_library
    small_mappings_where_memory_was_removed
    shared_segments_replace_memory
    advice_through_a_process_descriptor
    memory_is_replaced_while_it_is_read
    memory_goes_while_it_is_read
    a_userfaultfd_of_the_programs_own
    pages_the_program_moves_itself
    mappings_near_the_limit
    untouched_pages_among_many_mappings
    few_mappings_are_left
}
