//! Processes begin, change and end in many ways. Whatever rights they give up, and whatever
//! threads, signals and libraries do in them, no byte is lost. That includes the C library's own.

use std::sync::LazyLock;
use terrace_testkit::process;
use terrace_tests::{Cases, Program, Running, Terrace, cases, compiled, terrace_library};

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions besides.
static PROCESSES: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("processes_live_and_die.c", &[]),
    arguments: vec![
        compiled("tls_library.cpp", &["-shared", "-fPIC"]),
        compiled("allocating_library.c", &["-shared", "-fPIC"]),
    ],
    ways: vec![Terrace::within("4G"), Terrace::stressed()],
});

cases! { PROCESSES.hold:
    libraries_with_thread_local_variables
    small_stacks_of_other_threads
    another_locale
    many_values_of_other_threads
    many_fork_handlers
    stacks_in_managed_memory
    forks_after_the_main_thread_left
    executions_that_fail_and_one_that_does_not
    ended_while_threads_fault
    stopped_and_continued
    core_files
    threads_are_cancelled
    threads_come_and_go_while_one_forks
    signals_and_evicted_memory
    signals_in_terraces_own_heap
    signals_to_terraces_threads
    libraries_come_and_go_with_their_memory_out
    asking_for_filters
}

// Terrace may retire where it can no longer do its work.
cases! { PROCESSES.hold_managed_or_not:
    user_ids_change
    user_ids_change_at_once
    not_dumpable
    sandboxed_by_prctl
    sandboxed_by_seccomp
    sandboxed_strictly
    sandboxed_and_left_by_the_main_thread
}

/// Another preloaded library, behind Terrace's as `terrace run` has it, and before it as a user may
/// have it.
#[test]
fn with_another_preloaded_library() {
    let another = compiled("another_preload.c", &["-shared", "-fPIC"]);
    for case in [
        "small_stacks_of_other_threads",
        "ended_while_threads_fault",
        "libraries_come_and_go_with_their_memory_out",
    ] {
        // Forks pass through it.
        let program = || {
            Program::new(&PROCESSES.program)
                .arg(case)
                .args(&PROCESSES.arguments)
                .env("EXPECT_ANOTHER_PRELOAD", "1")
        };
        for terrace in &PROCESSES.ways {
            program()
                .env("LD_PRELOAD", &another)
                .under(terrace.clone())
                .succeed()
                .report()
                .expect_managed();
        }
        let before = format!("{}:{}", another.display(), terrace_library().display());
        program().env("LD_PRELOAD", before).env("TERRACE_STRESS", "full").succeed();
    }
}

fn waiting(terrace: Terrace) -> Running {
    let running =
        Program::new(&PROCESSES.program).arg("waits_with_pages_out").under(terrace).start();
    running.wait_for_output("ready\n");
    running
}

/// SIGKILL from outside: the report is there, and says so.
#[test]
fn killed_from_outside() {
    for terrace in &PROCESSES.ways {
        let running = waiting(terrace.clone());
        process::signal(running.program_pid(), libc::SIGKILL);
        let finished = running.wait();
        assert_eq!(
            finished.report().number("/signal"),
            f64::from(libc::SIGKILL),
            "{}",
            finished.account("was not killed")
        );
        assert_eq!(finished.report().number("/exit_status"), 128.0 + f64::from(libc::SIGKILL));
        // Figures as of the last time that they were published, which may be a moment ago.
        finished.report().expect_managed();
    }
}

/// A sanitizer needs the first malloc: such programs run as they are, and one line says so.
#[test]
fn programs_with_a_sanitizer_are_left_alone() {
    for (option, name) in [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer")] {
        let program = compiled("sanitized.c", &[&format!("-fsanitize={option}")]);
        for terrace in [Terrace::within("4G"), Terrace::stressed()] {
            let finished = Program::new(&program).under(terrace).succeed();
            assert_eq!(
                finished.stdout,
                b"done\n",
                "{}",
                finished.account("printed something else")
            );
            assert_eq!(finished.report().at("/managed"), false);
            let said = finished.stderr.lines().filter(|line| line.contains(name)).count();
            assert!(
                finished.stderr.lines().next().is_some_and(|line| line.contains(name)),
                "{}",
                finished.account("did not say so")
            );
            assert!(said <= 2, "{}", finished.account("said it too often"));
        }
        let strict = Program::new(&program).under(Terrace::within("4G").and("--strict")).run();
        assert_eq!(strict.status.code(), Some(125), "{}", strict.account("was not refused"));
    }
}
