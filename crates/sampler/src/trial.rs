//! Whether a source counts: before it is believed, it is tried on accesses that are known.
//!
//! An event that can be opened proves nothing. Virtual machines count no accesses, containers
//! forbid to read other processes' code, and a seccomp filter may end a process that asks. So the
//! trial happens in a child.

use crate::clock::Clock;
use crate::code::Code;
use crate::events::{OpenError, Whose};
use crate::hardware::{Hardware, Kind};
use std::io;
use std::time::{Duration, Instant};
use terrace_os::{Errno, io_error, set_limit, wait_for_child};

/// What a child says by its exit status, beside an error's number: that a source counts, and that
/// it counts nothing.
const COUNTS: u8 = 0;
const COUNTS_NOTHING: u8 = 255;
/// How often the known program is sampled; and how many samples of the right place are enough.
const RATE_HZ: u32 = 10_000;
const ENOUGH: u32 = 4;
/// The clock counts nothing if none came of this much running, or of this many interrupts.
const RUNNING_MOST: Duration = Duration::from_millis(100);
const INTERRUPTS_MOST: u64 = 200;
/// The longest that a trial takes, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Tries the clock on a process that reads one page and nothing else. Takes some milliseconds.
///
/// # Errors
/// See [`OpenError`]; [`OpenError::Blind`] if interrupts do not lead to that page.
pub fn clock() -> Result<(), OpenError> {
    let why = "interrupts come from the clock, but not what they interrupted: process_vm_readv may be refused here, by a seccomp filter or kernel.yama.ptrace_scope";
    verdict(in_child(judge_clock), why)
}

/// Whether other processes' code can be read, which interrupts by timers need. Takes less than a
/// millisecond.
///
/// # Errors
/// [`OpenError::Blind`] if not.
pub fn reading() -> Result<(), OpenError> {
    let why = "the code of other processes cannot be read: process_vm_readv is refused here, by a seccomp filter or kernel.yama.ptrace_scope";
    match verdict(in_child(judge_reading), why) {
        Err(OpenError::Forbidden(_)) => Err(OpenError::Blind(why)),
        other => other,
    }
}

/// Tries hardware on memory that few caches hold. Takes 0.1 s at most.
pub fn hardware(kind: Kind) -> bool {
    let judge = || if Hardware::counts_here(kind) { COUNTS } else { COUNTS_NOTHING };
    matches!(in_child(judge), Ok(Outcome::Status(COUNTS)))
}

/// What became of a child.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Status(u8),
    /// A signal ended the child, as a filter does.
    Ended,
}

fn verdict(outcome: io::Result<Outcome>, blind: &'static str) -> Result<(), OpenError> {
    match outcome? {
        Outcome::Status(COUNTS) => Ok(()),
        Outcome::Status(COUNTS_NOTHING) => Err(OpenError::Blind(blind)),
        Outcome::Status(error) => Err(io::Error::from_raw_os_error(error.into()).into()),
        Outcome::Ended => {
            Err(OpenError::Forbidden(io::Error::other("a seccomp filter ends who asks for them")))
        }
    }
}

fn in_child(judge: impl FnOnce() -> u8) -> io::Result<Outcome> {
    let child = Child::of(judge)?;
    let status = loop {
        match wait_for_child(child.0, 0) {
            Ok((_, status)) => break status,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(io_error(errno)),
        }
    };
    std::mem::forget(child);
    Ok(if libc::WIFEXITED(status) {
        Outcome::Status(libc::WEXITSTATUS(status) as u8)
    } else {
        Outcome::Ended
    })
}

/// A process that is ended and waited for when this is dropped.
struct Child(libc::pid_t);

impl Child {
    /// A child that does `act`, and ends with its status; it ends with this process at the latest.
    fn of(act: impl FnOnce() -> u8) -> io::Result<Child> {
        let parent = std::process::id();
        // SAFETY: the C library's own fork, after which the child can allocate. It takes no lock of
        // another thread's, and leaves by `exit_process`, so nothing of this frame is used twice.
        match unsafe { terrace_os::fork() }.map_err(io_error)? {
            0 => {
                let seconds = LONGEST.as_secs();
                let _ = terrace_os::signal_at_parents_end(libc::SIGKILL);
                let _ = set_limit(libc::RLIMIT_CORE, 0, 0);
                let _ = set_limit(libc::RLIMIT_CPU, seconds, seconds);
                // A parent that ended before that signal was asked for sends none.
                let orphan = terrace_os::parent_id() as u32 != parent;
                let status = if orphan { COUNTS_NOTHING } else { act() };
                terrace_os::exit_process(status.into())
            }
            child => Ok(Child(child)),
        }
    }

    /// How long the child has run.
    fn running(&self) -> Duration {
        terrace_os::process_cpu_ns(self.0).map_or(Duration::ZERO, Duration::from_nanos)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = terrace_os::signal_by_id(self.0, libc::SIGKILL);
        let _ = wait_for_child(self.0, 0);
    }
}

/// Reads a page, for ever, in more instructions in a row than emulators run between two looks at
/// interrupts (QEMU: 512). What is interrupted before the first one of a loop has several that may
/// have come before.
fn read_all(page: &[u64]) -> u8 {
    loop {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads a word of the page, and writes the register that it says.
        unsafe {
            std::arch::asm!(
                ".rept 2000",
                "mov {word}, qword ptr [{page}]",
                ".endr",
                page = in(reg) page.as_ptr(),
                word = out(reg) _,
                options(readonly, nostack),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(page);
    }
}

fn judge_clock() -> u8 {
    let page = vec![0u64; 512];
    let inside = page.as_ptr() as u64..page.as_ptr() as u64 + 4096;
    let (Ok(reader), begun) = (Child::of(|| read_all(&page)), Instant::now()) else {
        return COUNTS_NOTHING;
    };
    let mut clock = match Clock::open(Whose::Threads(&[reader.0]), RATE_HZ) {
        Ok(clock) => clock,
        Err(error) => return number(&error),
    };
    let (mut interrupts, mut seen) = (0, 0);
    while begun.elapsed() < LONGEST {
        std::thread::sleep(POLL_INTERVAL);
        // Asked before: what it ran for until then has been sampled by now.
        let running = reader.running();
        interrupts +=
            clock.drain(|_| true, |_, address| inside.contains(&address), |_| seen += 1).samples;
        if seen >= ENOUGH {
            return COUNTS;
        }
        if interrupts >= INTERRUPTS_MOST || running >= RUNNING_MOST {
            break;
        }
    }
    COUNTS_NOTHING
}

fn judge_reading() -> u8 {
    let Ok(other) = Child::of(|| read_all(&[0; 8])) else { return COUNTS_NOTHING };
    let found = Code::of(other.0).around(read_all as fn(&[u64]) -> u8 as usize as u64).is_some();
    if found { COUNTS } else { COUNTS_NOTHING }
}

/// The error as an exit status.
fn number(error: &OpenError) -> u8 {
    let number = match error {
        OpenError::Forbidden(error) | OpenError::Unsupported(error) | OpenError::Other(error) => {
            error.raw_os_error()
        }
        OpenError::NoThreads | OpenError::Blind(_) => None,
    };
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(COUNTS_NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a system call fail with this error, or end the process that makes it (0). It holds for
    /// the calling process from now on.
    fn refuse(call: libc::c_long, error: u16) {
        let step = |code: u32, jump_false: u8, value: u32| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: jump_false,
            k: value,
        };
        let (load, equal, answer) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::BPF_RET | libc::BPF_K,
        );
        let refusal = if error == 0 {
            libc::SECCOMP_RET_KILL_PROCESS
        } else {
            libc::SECCOMP_RET_ERRNO | u32::from(error)
        };
        let mut steps = [
            step(load, 0, 0),
            step(equal, 1, call as u32),
            step(answer, 0, refusal),
            step(answer, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
        // SAFETY: a whole filter, which lives through the call.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
                0
            );
        }
    }

    /// What is found where a call is refused: in a child, for good.
    fn without(call: libc::c_long, error: u16, found: impl Fn() -> bool) -> bool {
        let act = || {
            refuse(call, error);
            u8::from(found())
        };
        in_child(act).unwrap() == Outcome::Status(1)
    }

    #[test]
    fn the_clock_is_believed_where_it_counts() {
        match clock() {
            Ok(()) => {}
            Err(error) if std::env::var_os("TERRACE_NO_SKIP").is_none() => {
                println!("skipped: {error}")
            }
            Err(error) => panic!("{error}"),
        }
        reading().unwrap();
    }

    #[test]
    fn what_is_refused_is_not_believed() {
        let open = libc::SYS_perf_event_open;
        for error in [libc::EPERM as u16, libc::EACCES as u16, 0] {
            assert!(
                without(open, error, || matches!(clock(), Err(OpenError::Forbidden(_)))),
                "{error}"
            );
        }
        assert!(without(open, libc::ENOSYS as u16, || matches!(
            clock(),
            Err(OpenError::Unsupported(_))
        )));
        let read = libc::SYS_process_vm_readv;
        for error in [libc::EPERM as u16, libc::ENOSYS as u16] {
            assert!(
                without(read, error, || matches!(reading(), Err(OpenError::Blind(_)))),
                "{error}"
            );
            // Events can be opened, and their interrupts come; but what they are of cannot be told.
            // (Or there are no events.)
            assert!(without(read, error, || clock().is_err()), "{error}");
        }
        assert!(without(read, 0, || reading().is_err() && clock().is_err()));
    }

    #[test]
    fn a_child_says_how_it_ended() {
        assert_eq!(in_child(|| 7).unwrap(), Outcome::Status(7));
        assert_eq!(in_child(|| std::process::abort()).unwrap(), Outcome::Ended);
    }
}
