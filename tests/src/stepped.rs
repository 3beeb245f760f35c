//! A process that is stopped before one of its system calls.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

const GET_SYSCALL_INFO: u32 = 0x420e;
const SYSCALL_ENTRY: u8 = 1;
/// Calls before which nothing differs from what was before the previous call.
const WAITS: [i64; 5] = [
    libc::SYS_wait4,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
];

/// Starts a command that forks a process, the keeper, which forks two of its own. Does something
/// before a call of the keeper, by `act`, which gets the keeper's number. The calls between those
/// two forks are counted, from 1 on. Returns whether there were as many.
///
/// # Panics
/// If it cannot be traced, or ends before it forks.
pub fn before_call(command: &mut Command, number: u32, act: impl FnOnce(i32)) -> (Child, bool) {
    // SAFETY: between fork and exec, one system call without memory.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.spawn().expect("it starts");
    let pid = child.id() as i32;
    wait_for_stop(pid).expect("it stops when it is executed");
    let options =
        libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACECLONE;
    assert_eq!(ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize), 0);
    let keeper = loop {
        ptrace(libc::PTRACE_CONT, pid, 0, 0);
        match wait_for_stop(pid).expect("it forks before it ends") {
            Stop::Forked(keeper) => break keeper,
            Stop::Call | Stop::Signal(_) => {}
        }
    };
    ptrace(libc::PTRACE_DETACH, pid, 0, 0);
    wait_for_stop(keeper).expect("the keeper begins");
    let reached = step(keeper, 0, number, act);
    let_go(keeper);
    (child, reached)
}

/// Does something before a call of a process that runs. The calls after `begin` are counted, but
/// for those that only move pages (ioctl). Returns whether there were as many before it ended.
///
/// # Panics
/// If it cannot be traced.
pub fn before_call_of(pid: i32, number: u32, begin: impl FnOnce(), act: impl FnOnce(i32)) -> bool {
    let options = libc::PTRACE_O_TRACESYSGOOD as usize;
    assert_eq!(ptrace(libc::PTRACE_SEIZE, pid, 0, options), 0);
    ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0);
    wait_for_stop(pid).expect("it stops");
    begin();
    let reached = step(pid, 1, number, act);
    let_go(pid);
    reached
}

/// Lets a process go on, or sees that it has ended.
fn let_go(pid: i32) {
    if ptrace(libc::PTRACE_DETACH, pid, 0, 0) != 0 {
        while wait_for_stop(pid).is_some() {}
    }
}

fn step(keeper: i32, mut forks: u32, number: u32, act: impl FnOnce(i32)) -> bool {
    let is_seized = forks == 1;
    let counts = |call: i64| !(WAITS.contains(&call) || is_seized && call == libc::SYS_ioctl);
    let (mut count, mut signal) = (0, 0);
    loop {
        ptrace(libc::PTRACE_SYSCALL, keeper, 0, std::mem::take(&mut signal) as usize);
        match wait_for_stop(keeper) {
            None => return false,
            Some(Stop::Signal(other)) => signal = other,
            Some(Stop::Forked(child)) => {
                wait_for_stop(child);
                ptrace(libc::PTRACE_DETACH, child, 0, 0);
                forks += 1;
                if forks == 2 {
                    return false;
                }
            }
            Some(Stop::Call) if forks == 1 => {
                count += u32::from(begins(keeper).is_some_and(counts));
                if count == number {
                    act(keeper);
                    return true;
                }
            }
            Some(Stop::Call) => {}
        }
    }
}

enum Stop {
    Call,
    Forked(i32),
    Signal(i32),
}

/// Waits until a process stops; `None` if it has ended.
fn wait_for_stop(pid: i32) -> Option<Stop> {
    let mut status = 0;
    // SAFETY: the status is writable.
    let got = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
    if got != pid || !libc::WIFSTOPPED(status) {
        return None;
    }
    let is_fork = [libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_CLONE].contains(&(status >> 16));
    Some(match libc::WSTOPSIG(status) {
        _ if is_fork => {
            let mut made = 0usize;
            ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, &raw mut made as usize);
            Stop::Forked(made as i32)
        }
        signal if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        libc::SIGTRAP | libc::SIGSTOP => Stop::Signal(0),
        signal => Stop::Signal(signal),
    })
}

/// The number of the call that a stopped process is about to make; `None` if it has made one.
fn begins(pid: i32) -> Option<i64> {
    let mut info = [0u64; 11];
    ptrace(GET_SYSCALL_INFO, pid, size_of_val(&info), info.as_mut_ptr() as usize);
    (info[0].to_ne_bytes()[0] == SYSCALL_ENTRY).then_some(info[3] as i64)
}

fn ptrace(request: u32, pid: i32, address: usize, data: usize) -> i64 {
    // SAFETY: where the request writes to `data`, the caller gives it a place of that size.
    unsafe { libc::ptrace(request, pid, address, data) }
}
