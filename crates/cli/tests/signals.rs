//! `terrace run` is as good as the program to a sender of signals.

mod support;

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::Duration;
use support::{Scratch, line, pseudo_terminal};
use terrace_testkit::process::{self, Stat};
use terrace_testkit::wait::Wait;

fn send(child: &Child, signal: i32) {
    assert!(process::signal(child.id() as i32, signal));
}

#[test]
fn a_sent_signal_is_passed_on_and_the_programs_answer_counts() {
    let Some(scratch) = Scratch::new() else { return };
    for (name, signal) in [
        ("TERM", libc::SIGTERM),
        ("INT", libc::SIGINT),
        ("HUP", libc::SIGHUP),
        ("USR1", libc::SIGUSR1),
        ("WINCH", libc::SIGWINCH),
    ] {
        let script =
            format!("trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.02; done");
        let mut child =
            scratch.shell(&script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(line(&mut child), "ready\n");
        send(&child, signal);
        assert_eq!(line(&mut child), "got\n", "{name}");
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }
}

#[test]
fn a_signal_that_kills_the_program_kills_us() {
    let Some(scratch) = Scratch::new() else { return };
    let mut child = scratch
        .shell("echo ready; exec sleep 60")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(line(&mut child), "ready\n");
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(scratch.run_directories(), [""; 0]);
}

#[test]
fn what_a_killed_run_leaves_is_removed_by_the_next() {
    let Some(scratch) = Scratch::new() else { return };
    let mut lives = scratch
        .shell("echo ready; exec sleep 60")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(line(&mut lives), "ready\n");
    let others = scratch.run_directories();
    let mut killed = scratch
        .shell("echo $$; exec sleep 60")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let program: i32 = line(&mut killed).trim().parse().unwrap();
    send(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    assert_eq!(scratch.run_directories().len(), 2);
    assert_eq!(scratch.shell("true").status().unwrap().code(), Some(0));
    assert_eq!(scratch.run_directories(), others, "of a run that lives, and no other");
    process::signal(program, libc::SIGKILL);
    send(&lives, libc::SIGTERM);
    lives.wait().unwrap();
    assert_eq!(scratch.run_directories(), [""; 0]);
}

#[test]
fn what_the_program_sends_to_its_own_group_comes_once() {
    let Some(scratch) = Scratch::new() else { return };
    // The group is the test's own child's, so that the test program is not in it.
    let script = "trap 'echo got' USR1; kill -USR1 0; sleep 0.3; echo end";
    let output = scratch.shell(script).process_group(0).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got\nend\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_terminals_interrupt_comes_once() {
    let Some(scratch) = Scratch::new() else { return };
    let (mut keyboard, terminal) = pseudo_terminal();
    let script =
        "trap 'echo got' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.1; done; echo end";
    let mut command = scratch.shell(script);
    command.stdin(terminal).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: two system calls between fork and exec, which make standard input the terminal of a
    // session of its own.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    assert_eq!(line(&mut child), "ready\n");
    keyboard.write_all(b"\x03").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(support::stdout(&output), "got\nend\n");
}

#[test]
fn the_program_has_our_callers_mask_and_dispositions() {
    let Some(scratch) = Scratch::new() else { return };
    let read = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let mut bare = std::process::Command::new("sh");
    bare.args(["-c", read]);
    let mut ours = scratch.shell(read);
    for command in [&mut bare, &mut ours] {
        // SAFETY: async-signal-safe calls between fork and exec; the set is initialised before it
        // is used.
        unsafe {
            command.pre_exec(|| {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGUSR2);
                libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
                for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGCHLD] {
                    libc::signal(signal, libc::SIG_IGN);
                }
                // As `Scratch::shell` has it.
                for signal in [libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
    }
    let [bare, ours] = [bare, ours].map(|mut command| support::stdout(&command.output().unwrap()));
    assert!(bare.contains("SigIgn"));
    assert_eq!(bare, ours);
}

#[test]
fn a_stopped_and_continued_run_goes_on() {
    let Some(scratch) = Scratch::new() else { return };
    let mut command = scratch.shell("echo ready; read word; echo $word");
    // The kernel stops no process of a group whose starters are all gone; this one's is here.
    command.process_group(0);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(line(&mut child), "ready\n");
    send(&child, libc::SIGTSTP);
    let is_stopped = || {
        let program = process::children(child.id())[0];
        Stat::of(program).unwrap().state == 'T'
    };
    Wait::within(Duration::from_secs(10)).until("the program is stopped", is_stopped);
    child.stdin.as_mut().unwrap().write_all(b"word\n").unwrap();
    send(&child, libc::SIGCONT);
    assert_eq!(line(&mut child), "word\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
