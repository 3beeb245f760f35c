//! Whether a signal that came to us came to the program too.
//!
//! The kernel tells the sender of a signal, and not its target: this process alone, its process
//! group (`kill -TERM -PGID`, `timeout`), or each process of a service (systemd). What went to
//! the group, the program has got; a second one might end it in the middle of its shutdown. So
//! there is a process of the same group and service that does nothing but keep the signals that it
//! gets.
//!
//! It has no command line and another name, so that no kill by those of `terrace` meets it.

use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use terrace_os::{ALL_SIGNALS, mask_of, process_group_of};

/// Time within which a sender of such a signal reaches each process of a service, one after the
/// other.
const ONE_AFTER_THE_OTHER: Duration = Duration::from_millis(30);
/// Signals with which services are stopped.
const STOPPING: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
/// Longest time that a signal counts which the witness got and this process did not.
const FORGET_AFTER: Duration = Duration::from_secs(1);
/// Time within which the witness answers. Else it has been stopped or killed, and is not asked
/// again.
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);
/// Longest wait for the witness's end.
const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// The process that gets what the group gets.
pub struct Witness {
    pid: libc::pid_t,
    socket: UnixStream,
    answers: bool,
    forget_at: Option<Instant>,
}

/// A signal, 0 for all, and how many milliseconds to wait for it.
type Question = [i32; 2];

impl Witness {
    /// Starts the witness, in a process with one thread. `None` if that is not possible: then a
    /// signal may come twice.
    pub fn start() -> Option<Witness> {
        let parent = std::process::id();
        let (socket, its) = UnixStream::pair().ok()?;
        socket.set_read_timeout(Some(ANSWERS_WITHIN)).ok()?;
        // SAFETY: this process has one thread, so the child may do whatever its parent may.
        match unsafe { terrace_os::fork() }.ok()? {
            0 => {
                drop(socket);
                testify(its, parent)
            }
            pid => Some(Witness { pid, socket, answers: true, forget_at: None }),
        }
    }

    /// Whether the witness has got the signal that this process has just got, and so has the
    /// program. For a signal that `came_to_it` for certain, the witness only forgets its own.
    pub fn saw(&mut self, signal: i32, program: libc::pid_t, came_to_it: bool) -> bool {
        // The program has not been waited for, so the number is still its own.
        let same_group = process_group_of(program) == process_group_of(0);
        await_senders();
        let wait = if same_group && !came_to_it && STOPPING.contains(&signal) {
            ONE_AFTER_THE_OTHER
        } else {
            Duration::ZERO
        };
        // A stop and a continuation discard each other where they are pending: what the witness had
        // may be gone by the other.
        let saw = self.ask(signal, wait) || opposite(signal).is_some_and(is_pending);
        if !saw {
            self.forget_at = Some(Instant::now() + FORGET_AFTER);
        } else if signal < libc::SIGRTMIN() {
            // `timeout` sends to us and then to the group. Where the first was taken before the
            // second came, that is still pending here: one that is pending stands for any number of
            // them, as ever.
            await_senders();
            take(mask_of(&[signal]), 0);
        }
        saw && same_group
    }

    /// Forgets what is due. Returns when to call again.
    pub fn rest(&mut self) -> Duration {
        let Some(at) = self.forget_at else { return Duration::MAX };
        let rest = at.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            self.forget_at = None;
            self.ask(0, Duration::ZERO);
            return Duration::MAX;
        }
        rest
    }

    fn ask(&mut self, signal: i32, wait: Duration) -> bool {
        let question: Question = [signal, wait.as_millis() as i32];
        let bytes = question.map(i32::to_ne_bytes);
        let mut answer = [0];
        self.answers = self.answers
            && self.socket.write_all(bytes.as_flattened()).is_ok()
            && self.socket.read_exact(&mut answer).is_ok();
        self.answers && answer == [1]
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let since = Instant::now();
        // If it has been waited for already, there is no such child.
        while terrace_os::wait_for_child(self.pid, libc::WNOHANG).is_ok_and(|(pid, _)| pid == 0)
            && since.elapsed() < ENDS_WITHIN
        {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// The witness: answers until no process asks any more.
fn testify(mut socket: UnixStream, parent: u32) -> ! {
    terrace_os::block_also(ALL_SIGNALS);
    rename(c"");
    leave_everything_but(socket.as_raw_fd());
    let _ = terrace_os::signal_at_parents_end(libc::SIGKILL);
    terrace_os::name_thread(c"signal-witness");
    // Otherwise it was too late for that.
    while std::os::unix::process::parent_id() == parent {
        let mut question = [[0; 4]; 2];
        if socket.read_exact(question.as_flattened_mut()).is_err() {
            break;
        }
        let [signal, wait_ms]: Question = question.map(i32::from_ne_bytes);
        let saw = if signal == 0 { forget_all() } else { take(mask_of(&[signal]), wait_ms) };
        if socket.write_all(&[saw.into()]).is_err() {
            break;
        }
    }
    // No destructor of this process's matters: they are its parent's.
    terrace_os::exit_process(0)
}

/// A sender to a group keeps the list of processes locked until all of them have the signal. To set
/// what is set already waits for that lock, and changes nothing.
fn await_senders() {
    // A group outside of this process's PID namespace has no number here.
    if let Ok(group @ 1..) = process_group_of(0) {
        let _ = terrace_os::enter_process_group(group);
    }
}

fn opposite(signal: i32) -> Option<i32> {
    match signal {
        libc::SIGTSTP => Some(libc::SIGCONT),
        libc::SIGCONT => Some(libc::SIGTSTP),
        _ => None,
    }
}

fn is_pending(signal: i32) -> bool {
    terrace_os::pending_signals() & mask_of(&[signal]) != 0
}

fn take(signals: u64, wait_ms: i32) -> bool {
    let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0));
    terrace_os::take_signal(signals, wait).is_ok()
}

fn forget_all() -> bool {
    while take(ALL_SIGNALS, 0) {}
    false
}

/// No pipe of the program's is kept open, and no directory in use.
fn leave_everything_but(fd: i32) {
    // SAFETY: this process uses no other descriptor.
    unsafe { terrace_os::close_from(0, vec![fd]) };
    terrace_os::leave_working_directory();
}

/// Replaces the command line that others see, as far as there is room for the new one.
pub fn rename(line: &CStr) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // What follows the name, which may hold anything, begins with field 3; where the arguments are
    // is in fields 48 and 49.
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let mut fields =
        rest.split_ascii_whitespace().skip(48 - 3).map_while(|field| field.parse::<usize>().ok());
    if let (Some(from), Some(to)) = (fields.next(), fields.next())
        && from != 0
        && to > from
    {
        let line = line.to_bytes();
        // SAFETY: the kernel put the arguments there, on this process's own stack; nothing in it
        // reads them any more. The new line is not longer, and the last byte stays 0.
        unsafe {
            std::ptr::write_bytes(from as *mut u8, 0, to - from);
            std::ptr::copy_nonoverlapping(
                line.as_ptr(),
                from as *mut u8,
                line.len().min(to - from - 1),
            );
        }
    }
}
