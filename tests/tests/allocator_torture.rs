//! The malloc family and C++'s operators do what programs rely on: alone, observed, and with random
//! pages evicted all the time.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, cases, compiled, machine};

fn ways() -> Vec<Terrace> {
    // Sampled: so objects are watched, small and large.
    vec![
        Terrace::observing(),
        Terrace::stressed(),
        Terrace::stressed().and("--allocator=context").and("--sampler=clock"),
    ]
}

fn from_c(ways: Vec<Terrace>) -> Cases {
    let library = compiled("allocating_library.c", &["-shared", "-fPIC"]);
    Cases { program: compiled("allocator_torture.c", &[]), arguments: vec![library], ways }
}

static FROM_C: LazyLock<Cases> = LazyLock::new(|| from_c(ways()));

fn passed_on_ways() -> Vec<Terrace> {
    vec![Terrace::stressed().and("--allocator=system")]
}

static PASSED_ON: LazyLock<Cases> = LazyLock::new(|| from_c(passed_on_ways()));

fn from_cxx(ways: Vec<Terrace>) -> Cases {
    Cases {
        program: compiled("operators_new_and_delete.cpp", &["-std=c++17"]),
        arguments: Vec::new(),
        ways,
    }
}

static FROM_CXX: LazyLock<Cases> = LazyLock::new(|| from_cxx(ways()));

static PASSED_ON_FROM_CXX: LazyLock<Cases> = LazyLock::new(|| from_cxx(passed_on_ways()));

fn wrapped(ways: Vec<Terrace>) -> Cases {
    Cases { program: compiled("wraps_malloc.c", &[]), arguments: Vec::new(), ways }
}

static WRAPPED: LazyLock<Cases> = LazyLock::new(|| wrapped(ways()));

static PASSED_ON_FROM_WRAPPED: LazyLock<Cases> = LazyLock::new(|| wrapped(passed_on_ways()));

cases! { FROM_C.hold:
    threads_share_blocks
    destructors_of_thread_values_allocate
    children_allocate_whatever_threads_held
    edges_of_sizes
    errno_is_kept
    alignments
    usable_size_is_usable
    realloc_keeps_all_that_is_usable
    lookups_allocate
    children_come_while_threads_die
    calloc_gives_zeros_and_realloc_keeps
    large_blocks_are_given_back
    statistics_and_trimming
    jemallocs_own_interface
    libraries_come_and_go
    the_first_allocation_is_the_c_librarys
    a_thousand_threads_come_and_go
    signals_arrive_during_malloc
}

cases! { FROM_CXX.hold:
    every_operator
    memory_runs_out
    in_one_thread
    in_many_threads
    evicted_containers_grow
}

/// Cases with `--allocator=system`: glibc's own allocator is used, and hardly anything is managed.
mod passed_on {
    use super::*;

    cases! { PASSED_ON.hold_managed_or_not:
        threads_share_blocks
        destructors_of_thread_values_allocate
        children_allocate_whatever_threads_held
        edges_of_sizes
        errno_is_kept
        alignments
        usable_size_is_usable
        realloc_keeps_all_that_is_usable
        lookups_allocate
        children_come_while_threads_die
        calloc_gives_zeros_and_realloc_keeps
        statistics_and_trimming
        libraries_come_and_go
        a_thousand_threads_come_and_go
        signals_arrive_during_malloc
    }
}

/// Cases with `--allocator=system`: glibc serves C++'s operators, and a program that wraps its
/// malloc family.
mod passed_on_to_others {
    use super::*;

    cases! { PASSED_ON_FROM_CXX.hold_managed_or_not:
        every_operator
        memory_runs_out
        in_one_thread
        in_many_threads
    }

    #[test]
    fn a_program_with_a_malloc_of_its_own() {
        PASSED_ON_FROM_WRAPPED.hold_managed_or_not("works");
    }
}

/// An allocator whose malloc family wraps the one behind it, found by dlsym in the first call.
#[test]
fn a_program_with_a_malloc_of_its_own() {
    WRAPPED.hold("works");
}

#[test]
fn a_process_lives_on_after_its_main_thread_and_ends_with_the_last() {
    FROM_C.end_with(
        "main_leaves_before_another_thread",
        0,
        "main leaves, finished later, at exit, ",
    );
}

#[test]
fn a_process_ends_when_its_only_thread_leaves() {
    FROM_C.end_with("main_leaves_as_the_last", 0, "main leaves, at exit, ");
}

#[test]
fn any_thread_can_exit_with_a_status() {
    FROM_C.end_with("a_thread_calls_exit", 3, "a thread exits, at exit, ");
}

/// The compatibility torture of the research behind Terrace, where it is at hand.
#[test]
fn the_compatibility_torture() {
    let _machine = machine();
    let shared = std::env::var_os("TERRACE_SHARED").map_or_else(
        || {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .ancestors()
                .nth(2)
                .unwrap_or(Path::new("/"))
                .join("shared")
        },
        PathBuf::from,
    );
    let source = shared.join("tools/malloc-compat.c");
    if !source.is_file() {
        println!("not run: {} is not there (TERRACE_SHARED names its directory)", source.display());
        return;
    }
    let program = compiled(&source, &["-w"]);
    for terrace in [
        None,
        Some(Terrace::observing()),
        Some(Terrace::within("1M")),
        Some(Terrace::stressed()),
        Some(Terrace::stressed().and("--allocator=context")),
    ] {
        let managed = terrace.is_some();
        let finished = Program::new(&program).under(terrace).succeed();
        assert_eq!(
            String::from_utf8_lossy(&finished.stdout),
            "compat: ok\n",
            "{}",
            finished.account("found something")
        );
        if managed {
            finished.report().expect_managed();
        }
    }
}
