//! However a process is forked, and whatever it did before, its child sees exactly its data,
//! evicted or not.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;
use terrace_testkit::process;
use terrace_tests::{
    Cases, Program, Terrace, cases, compiled, has_swap, skip, terrace_command, terrace_library,
};

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions besides.
static FORKS: LazyLock<Cases> = LazyLock::new(|| {
    let library = compiled("atfork_library.c", &["-shared", "-fPIC"]);
    let library = library.to_str().expect("the target directory's name is text");
    Cases {
        program: compiled("forked_children_see_their_parents_data.c", &[library]),
        arguments: vec![compiled("forking_library.c", &["-shared", "-fPIC"])],
        ways: vec![Terrace::within("4G"), Terrace::stressed()],
    }
});

cases! { FORKS.hold:
    children_and_grandchildren
    several_children_at_a_time
    threads_fault_while_one_forks
    threads_fork_at_the_same_time
    daemons
    everything_closed
    descriptor_numbers_are_the_programs
    fork_without_handlers
    fork_by_number
    clone_by_number
    clone3_by_number
    clones_write_into_evicted_memory
    clone_on_another_stack
    clone_that_shares_memory
    the_last_thread_exits_alone
    spawned_with_evicted_arguments
    vforked_with_evicted_arguments
    commands_through_system_and_popen
    open_streams_with_buffered_data
    parent_writes_while_child_reads
    a_thread_forks_whose_stack_was_evicted
    a_thread_forks_at_every_place_of_its_stack
    a_thread_forks_whose_variables_are_in_managed_memory
    fork_handlers_of_a_library_touch_evicted_memory
    a_closed_pipe_ends
    signals_while_forking
    signal_handlers_fork
}

// Terrace retires where a child could not have what it needs.
cases! { FORKS.hold_managed_or_not:
    clones_by_number_on_another_stack
    forks_of_another_c_library
}

/// LD_AUDIT's libraries have a C library of their own from the start: nothing is evicted, and a
/// line says so. The same holds where the user preloads the library by hand, and the loader has
/// room for it.
#[test]
fn nothing_leaves_under_an_audit_library() {
    if has_swap() {
        return skip(
            "nothing_leaves_under_an_audit_library",
            "this machine has swap, and the kernel itself carries MADV_PAGEOUT out",
        );
    }
    let plain = || {
        Program::new(&FORKS.program)
            .arg("memory_stays_in_place")
            .env("LD_AUDIT", &FORKS.arguments[0])
    };
    plain().succeed();
    let ran = plain().under(Terrace::stressed()).succeed();
    assert_eq!(ran.report().at("/managed"), false);
    let preloaded = plain()
        .env("LD_PRELOAD", terrace_library())
        .env("TERRACE_STRESS", "full")
        .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384")
        .succeed();
    for finished in [ran, preloaded] {
        let lines = finished
            .stderr
            .lines()
            .filter(|line| line.starts_with("terrace: ") && line.contains("LD_AUDIT"));
        assert!(lines.count() >= 1, "{}", finished.account("did not say so"));
    }
}

/// A setuid to another user while pages are out: a child can still bring them back.
#[test]
fn privileges_dropped_between() {
    FORKS.hold_managed_or_not("privileges_dropped_between");
}

/// A chroot to where there is no /proc and no /dev, while pages are out.
#[test]
fn jailed_between() {
    FORKS.hold_managed_or_not("jailed_between");
}

/// Terrace's threads do not keep a pipe open that the program has closed.
#[test]
fn who_reads_a_preloaded_programs_output_sees_its_end_when_the_program_closes_it() {
    let mut command = Command::new(&FORKS.program);
    command
        .env("LD_PRELOAD", terrace_library())
        .env("TERRACE_STRESS", "1")
        .arg("closes_its_output");
    expect_end_of_output(command);
}

/// `terrace run`, which waits for the program, does not keep a pipe open that the program has
/// closed.
#[test]
fn who_reads_a_programs_output_sees_its_end_when_the_program_closes_it() {
    let mut command = Command::new(terrace_command());
    command.args(["run", "--dram", "4G", "--"]).arg(&FORKS.program).arg("closes_its_output");
    expect_end_of_output(command);
}

fn expect_end_of_output(mut command: Command) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().expect("the command can be started");
    let mut output = child.stdout.take().expect("the output is piped");
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let result = output.read_to_string(&mut text).map(|_| text);
        let _ = sender.send(result);
    });
    let seen = receiver.recv_timeout(Duration::from_secs(30));
    process::signal(-(child.id() as i32), libc::SIGKILL);
    let _ = child.wait();
    let _ = reader.join();
    let text = seen
        .expect("the end of the output was not seen while the program lived on")
        .expect("a pipe can be read");
    assert_eq!(text, "said\n");
}
