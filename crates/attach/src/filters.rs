//! The seccomp filters of a thread that is to make calls for us, and that the stub inherits. They
//! are read from the stopped thread (PTRACE_SECCOMP_GET_FILTER). They are tried on every call
//! before one is made, as a filter may end the program that makes a call.
//!
//! A filter is a program of classic BPF without loops over `struct seccomp_data` (seccomp(2)). What
//! is not known of a call, its pointers, may have any value: then both ways of a jump are followed.

use crate::sys;
use anyhow::{Context, Result, bail};
use terrace_os::{Errno, ptrace};

/// AUDIT_ARCH_X86_64.
const ARCHITECTURE: u32 = 0xc000_003e;
/// `sizeof(struct seccomp_data)`.
const DATA_BYTES: u32 = 64;
/// Most steps on all ways of a filter. A filter that takes more is taken as one that forbids.
const MOST_STEPS: usize = 1 << 18;

/// An instruction of a filter: `struct sock_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

impl From<libc::sock_filter> for Instruction {
    fn from(of: libc::sock_filter) -> Self {
        Instruction { code: of.code, if_true: of.jt, if_false: of.jf, operand: of.k }
    }
}

/// What a filter says of a call, from the mildest to the hardest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Allowed,
    /// The call fails, and nothing else happens.
    Fails,
    /// Anything else: the process is ended, a tracer or a supervisor is asked.
    Forbidden,
}

/// A call that is made in a process that is attached to: name, number, and what is known of its
/// arguments.
struct Call {
    name: &'static str,
    number: i64,
    arguments: [Option<u64>; 6],
    needs: Need,
}

/// When a call must succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Always,
    /// The call must succeed if there is a context of asynchronous I/O.
    WithContext,
    Never,
}

/// What a thread is stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The thread is stopped to attach, which makes all of the calls.
    Attach,
    /// The thread is stopped to take the stub's memory away.
    Leave,
}

/// All calls that are made: in the stopped thread, in the process between, and in the stub.
fn calls() -> Vec<Call> {
    let call = |name, number, known: &[(usize, u64)]| {
        let mut arguments = [None; 6];
        known.iter().for_each(|(place, value)| arguments[*place] = Some(*value));
        Call { name, number, arguments, needs: Need::Always }
    };
    let optional = |call: Call| Call { needs: Need::Never, ..call };
    let with_context = |name, number| Call { needs: Need::WithContext, ..call(name, number, &[]) };
    let advice = |advice: i32| call("madvise", libc::SYS_madvise, &[(2, advice as u64)]);
    let ioctl = |request: u64| call("ioctl", libc::SYS_ioctl, &[(1, request)]);
    let clone = |flags: i32| call("clone", libc::SYS_clone, &[(0, flags as u64)]);
    vec![
        call("mmap", libc::SYS_mmap, &[(0, 0), (2, 3), (3, 0x22), (4, u64::MAX), (5, 0)]),
        call("mprotect", libc::SYS_mprotect, &[(2, 5)]),
        call("munmap", libc::SYS_munmap, &[]),
        // The kernel itself restarts a sleep that was interrupted by it.
        call(RESTART, libc::SYS_restart_syscall, &[]),
        call("wait4", libc::SYS_wait4, &[(1, 0), (2, libc::__WALL as u64), (3, 0)]),
        clone(libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED),
        clone(libc::CLONE_VM | libc::CLONE_UNTRACED),
        call("close_range", libc::SYS_close_range, &[(0, 0), (1, u64::from(u32::MAX)), (2, 0)]),
        call("socketpair", libc::SYS_socketpair, &[(0, 1), (1, 0x80005), (2, 0)]),
        call("read", libc::SYS_read, &[]),
        call("write", libc::SYS_write, &[]),
        call("poll", libc::SYS_poll, &[]),
        call("recvmsg", libc::SYS_recvmsg, &[]),
        call("close", libc::SYS_close, &[]),
        call("exit_group", libc::SYS_exit_group, &[(0, 0)]),
        call("pidfd_open", libc::SYS_pidfd_open, &[(1, 0)]),
        call("setsid", libc::SYS_setsid, &[]),
        call("capset", libc::SYS_capset, &[]),
        call("prctl", libc::SYS_prctl, &[(0, libc::PR_SET_NO_NEW_PRIVS as u64), (1, 1)]),
        call("seccomp", libc::SYS_seccomp, &[(0, 1), (1, 0)]),
        advice(libc::MADV_DONTFORK),
        optional(advice(libc::MADV_NOHUGEPAGE)),
        advice(libc::MADV_DONTDUMP),
        advice(libc::MADV_DONTNEED),
        ioctl(sys::USERFAULTFD_IOC_NEW),
        ioctl(sys::UFFDIO_REGISTER),
        ioctl(sys::UFFDIO_UNREGISTER),
        ioctl(sys::UFFDIO_MOVE),
        optional(call("io_setup", libc::SYS_io_setup, &[])),
        with_context("io_submit", libc::SYS_io_submit),
        with_context("io_cancel", libc::SYS_io_cancel),
        with_context("io_getevents", libc::SYS_io_getevents),
        with_context("io_destroy", libc::SYS_io_destroy),
    ]
}

const RESTART: &str = "restart_syscall";
/// Names of the calls that are made to leave.
const TO_LEAVE: [&str; 2] = ["munmap", "io_destroy"];

/// Whether a stopped thread may make all calls that are made in it, and the stub those of its own.
///
/// # Errors
/// If its filters cannot be read, or one of them forbids a call.
pub fn check(tid: i32, purpose: Purpose) -> Result<()> {
    if !has_filters(tid) {
        return Ok(());
    }
    let filters = read_all(tid)?;
    let verdict = |call: &Call| {
        let verdicts = filters.iter().map(|filter| judge(filter, call));
        verdicts.max().unwrap_or(Verdict::Forbidden)
    };
    // Without a context of asynchronous I/O none of its calls is made.
    let calls = calls();
    let has_context = calls
        .iter()
        .any(|call| call.number == libc::SYS_io_setup && verdict(call) == Verdict::Allowed);
    let leaves = purpose == Purpose::Leave;
    for call in calls.iter().filter(|call| !leaves || TO_LEAVE.contains(&call.name)) {
        let may_fail = match call.needs {
            Need::Always => leaves,
            Need::WithContext => leaves || !has_context,
            Need::Never => true,
        };
        let most = if may_fail { Verdict::Fails } else { Verdict::Allowed };
        if verdict(call) > most {
            bail!(
                "thread {tid} has a seccomp filter that forbids {}, which is needed in it: allow \
                 it in the container's profile, or by SystemCallFilter= of the unit",
                call.name
            );
        }
    }
    Ok(())
}

fn has_filters(tid: i32) -> bool {
    crate::process::status_line(tid, "Seccomp").is_some_and(|mode| mode != "0")
}

/// Whether a stopped thread's filters allow that the kernel restarts an interrupted sleep.
pub fn allow_restart(tid: i32) -> bool {
    let calls = calls();
    let Some(restart) = calls.iter().find(|call| call.name == RESTART) else { return false };
    let allows = |filter: &Vec<Instruction>| judge(filter, restart) == Verdict::Allowed;
    !has_filters(tid) || read_all(tid).is_ok_and(|filters| filters.iter().all(allows))
}

/// All filters of a stopped thread.
fn read_all(tid: i32) -> Result<Vec<Vec<Instruction>>> {
    let mut filters: Vec<Vec<Instruction>> = Vec::new();
    loop {
        match ptrace::seccomp_filter(tid, filters.len()) {
            Ok(filter) => filters.push(filter.into_iter().map(Instruction::from).collect()),
            Err(Errno::ENOENT) if !filters.is_empty() => return Ok(filters),
            Err(errno) => {
                return Err(sys::io_error(errno)).with_context(|| {
                    format!(
                        "thread {tid} has a seccomp filter that cannot be read, which takes \
                         CAP_SYS_ADMIN, no filter of our own, and a kernel with \
                         CONFIG_CHECKPOINT_RESTORE"
                    )
                });
            }
        }
    }
}

/// The state of a filter while it is run. A value is `None` where it may be any.
#[derive(Clone)]
struct State {
    at: usize,
    accumulator: Option<u32>,
    index: Option<u32>,
    memory: [Option<u32>; 16],
}

/// The hardest of all verdicts that a filter may come to.
fn judge(filter: &[Instruction], call: &Call) -> Verdict {
    let mut waiting =
        vec![State { at: 0, accumulator: Some(0), index: Some(0), memory: [Some(0); 16] }];
    let (mut verdict, mut steps) = (Verdict::Allowed, 0);
    while let Some(state) = waiting.pop() {
        steps += 1;
        let instruction = filter.get(state.at).filter(|_| steps < MOST_STEPS);
        let Some(outcome) = instruction.and_then(|instruction| step(state, *instruction, call))
        else {
            return Verdict::Forbidden;
        };
        match outcome {
            Step::On(next) => waiting.extend(next),
            Step::Over(Verdict::Forbidden) => return Verdict::Forbidden,
            Step::Over(found) => verdict = verdict.max(found),
        }
    }
    verdict
}

/// What an instruction leads to.
enum Step {
    On(Vec<State>),
    Over(Verdict),
}

/// Classes of instructions.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;

/// Executes an instruction; `None` where it is none that the kernel takes in a filter.
fn step(mut state: State, instruction: Instruction, call: &Call) -> Option<Step> {
    let Instruction { code, if_true, if_false, operand } = instruction;
    let source = if code & 8 != 0 { state.index } else { Some(operand) };
    state.at += 1;
    match (code & 7, code & 0xf8) {
        (LD, 0x20) => state.accumulator = load(operand, call)?,
        (LD, 0x80) => state.accumulator = Some(DATA_BYTES),
        (LD, 0) => state.accumulator = Some(operand),
        (LD, 0x60) => state.accumulator = *state.memory.get(operand as usize)?,
        (LDX, 0x80) => state.index = Some(DATA_BYTES),
        (LDX, 0) => state.index = Some(operand),
        (LDX, 0x60) => state.index = *state.memory.get(operand as usize)?,
        (ST, 0) => *state.memory.get_mut(operand as usize)? = state.accumulator,
        (STX, 0) => *state.memory.get_mut(operand as usize)? = state.index,
        (MISC, 0) => state.index = state.accumulator,
        (MISC, 0x80) => state.accumulator = state.index,
        (ALU, operation) => {
            state.accumulator = match (state.accumulator, source) {
                (Some(a), Some(b)) => compute(operation & 0xf0, a, b)?,
                _ => None,
            };
        }
        (JMP, 0) => state.at = state.at.checked_add(operand as usize)?,
        (JMP, comparison) => {
            let holds = match (state.accumulator, source) {
                (Some(a), Some(b)) => Some(compare(comparison & 0xf0, a, b)?),
                _ => None,
            };
            let ways = [(true, if_true), (false, if_false)].into_iter();
            let ways = ways.filter(|(way, _)| holds.is_none_or(|holds| holds == *way));
            let next =
                ways.map(|(_, by)| State { at: state.at + usize::from(by), ..state.clone() });
            return Some(Step::On(next.collect()));
        }
        (RET, 0) => return Some(Step::Over(verdict(Some(operand)))),
        (RET, 0x10) => return Some(Step::Over(verdict(state.accumulator))),
        _ => return None,
    }
    Some(Step::On(vec![state]))
}

/// A word of `struct seccomp_data`.
fn load(offset: u32, call: &Call) -> Option<Option<u32>> {
    Some(match offset {
        0 => Some(call.number as u32),
        4 => Some(ARCHITECTURE),
        // The instruction's address.
        8 | 12 => None,
        16..64 if offset.is_multiple_of(4) => {
            let value = call.arguments[(offset as usize - 16) / 8];
            value.map(|value| (value >> (offset % 8 * 8)) as u32)
        }
        _ => return None,
    })
}

/// The result of an operation on two words; inner `None` where it has none.
fn compute(operation: u16, a: u32, b: u32) -> Option<Option<u32>> {
    Some(match operation {
        0x00 => Some(a.wrapping_add(b)),
        0x10 => Some(a.wrapping_sub(b)),
        0x20 => Some(a.wrapping_mul(b)),
        // A filter that divides by zero ends with 0: the process is ended.
        0x30 => Some(a.checked_div(b)?),
        0x40 => Some(a | b),
        0x50 => Some(a & b),
        0x60 => Some(a.wrapping_shl(b)),
        0x70 => Some(a.wrapping_shr(b)),
        0x80 => Some(a.wrapping_neg()),
        0xa0 => Some(a ^ b),
        _ => return None,
    })
}

fn compare(comparison: u16, a: u32, b: u32) -> Option<bool> {
    Some(match comparison {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        _ => return None,
    })
}

/// What a returned value means.
fn verdict(action: Option<u32>) -> Verdict {
    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ERRNO: u32 = 0x0005_0000;
    match action.map(|action| action & 0xffff_0000) {
        Some(ALLOW | LOG) => Verdict::Allowed,
        Some(ERRNO) => Verdict::Fails,
        _ => Verdict::Forbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(instructions: &[(u16, u8, u8, u32)]) -> Vec<Instruction> {
        let instruction =
            |&(code, if_true, if_false, operand)| Instruction { code, if_true, if_false, operand };
        instructions.iter().map(instruction).collect()
    }

    fn found(instructions: &[(u16, u8, u8, u32)], name: &str) -> Verdict {
        let filter = filter(instructions);
        let calls = calls();
        let of_name = calls.iter().filter(|call| call.name == name);
        of_name.map(|call| judge(&filter, call)).max().unwrap()
    }

    const ALLOW: (u16, u8, u8, u32) = (6, 0, 0, 0x7fff_0000);
    const KILL: (u16, u8, u8, u32) = (6, 0, 0, 0);
    const FAIL: (u16, u8, u8, u32) = (6, 0, 0, 0x0005_0001);

    #[test]
    fn a_list_of_calls_is_followed() {
        let munmap = libc::SYS_munmap as u32;
        let list = [(0x20, 0, 0, 0), (0x15, 0, 1, munmap), KILL, ALLOW];
        assert_eq!(found(&list, "munmap"), Verdict::Forbidden);
        assert_eq!(found(&list, "mmap"), Verdict::Allowed);
        let fails = [(0x20, 0, 0, 0), (0x35, 0, 1, munmap), FAIL, ALLOW];
        assert_eq!(found(&fails, "munmap"), Verdict::Fails);
        assert_eq!(found(&fails, "mmap"), Verdict::Allowed);
    }

    #[test]
    fn arguments_that_are_known_decide_and_others_may_be_any() {
        // Executable memory, as systemd's MemoryDenyWriteExecute= forbids it: `mprotect` is asked
        // for that.
        let execute = [(0x20, 0, 0, 32), (0x45, 0, 1, 4), KILL, ALLOW];
        assert_eq!(found(&execute, "mprotect"), Verdict::Forbidden);
        assert_eq!(found(&execute, "mmap"), Verdict::Allowed);
        // The address.
        let address = [(0x20, 0, 0, 16), (0x15, 0, 1, 77), KILL, ALLOW];
        assert_eq!(found(&address, "munmap"), Verdict::Forbidden);
        assert_eq!(found(&address, "mmap"), Verdict::Allowed, "it is 0");
        // Flags of clone behind a mask, by way of memory and the index.
        let masked = [
            (0x20, 0, 0, 16),
            (0x54, 0, 0, 0x7e02_0000),
            (2, 0, 0, 3),
            (0x61, 0, 0, 3),
            (0x87, 0, 0, 0),
            (0x15, 1, 0, 0),
            FAIL,
            ALLOW,
        ];
        assert_eq!(found(&masked, "clone"), Verdict::Allowed);
    }

    #[test]
    fn what_is_no_filter_forbids() {
        for wrong in [
            &[][..],
            &[(0x20, 0, 0, 0)],
            &[(0x20, 0, 0, 2), ALLOW],
            &[(0x28, 0, 0, 0), ALLOW],
            &[(0x05, 0, 0, 9), ALLOW],
            &[(0x34, 0, 0, 0), (0x16, 0, 0, 0)],
        ] {
            assert_eq!(found(wrong, "read"), Verdict::Forbidden, "{wrong:?}");
        }
    }
}
