//! Starts the program and stays its parent: passes signals on, follows it when the terminal stops
//! it, waits for its end.
//!
//! Signals are blocked and taken with `sigtimedwait`, which tells their sender:
//!
//! - Those of the kernel (the terminal's ^C) went to the whole foreground group and so reached the
//!   program already.
//! - Those of a process are passed on, unless they were sent to the group too, or to each process
//!   of the service ([`Witness`]).
//!
//! The program starts with the signal mask and dispositions that we were started with.

use crate::OUR_FAULT;
use crate::processes::going_on::GoingOn;
use crate::run::disposition;
use crate::run::service::Manager;
use crate::run::witness::Witness;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_os::{TakenSignal, mask_of, process_group_of, signal_by_id, take_signal};

/// Signals passed on; the real-time ones are added to them. Not here: those that report a fault of
/// the receiver itself, those that cannot be caught, SIGCHLD, and SIGTTIN/SIGTTOU, which are about
/// the use of the terminal.
const FORWARDED: [i32; 15] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGURG,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Longest wait that no kernel's or C library's arithmetic has trouble with.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program exited with this status.
    Exited(u8),
    /// The program was killed by this signal.
    Killed(i32),
}

impl End {
    /// The end as shells number it: the status, or 128 + the signal.
    pub fn exit_status(self) -> i32 {
        match self {
            End::Exited(status) => i32::from(status),
            End::Killed(signal) => 128 + signal,
        }
    }

    /// Ends us in the same way: gives the exit status, or dies of the signal (where it cannot kill
    /// us, gives the status too).
    pub fn pass_on(self) -> u8 {
        if let End::Killed(signal) = self {
            die_of(signal);
        }
        self.exit_status().try_into().unwrap_or(OUR_FAULT)
    }
}

/// A program that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Process id of the program.
    pub pid: u32,
    /// How it ended.
    pub end: End,
    /// Time from the program's start to its end.
    pub elapsed: Duration,
}

/// Runs `command` to its end. The error is the failure to start it; nothing is running then.
/// `meanwhile` is called now and then, with the program's process: it returns in what time it wants
/// to be called again.
///
/// Leaves the signals blocked, so that the report is written whole. Call it once, from a process
/// with one thread.
pub fn run(
    mut command: Command,
    meanwhile: impl FnMut(u32, Moment) -> Duration,
) -> io::Result<Ended> {
    let signals = forwarded_and_child();
    let mask_before = terrace_os::block_also(signals);
    let child_ignored = terrace_os::is_ignored(libc::SIGCHLD);
    let pipe_ignored = disposition::sigpipe_was_ignored();
    let size_limit_ignored = disposition::ignores_size_limit();
    if child_ignored {
        // Otherwise the kernel would drop the program's exit status.
        let _ = terrace_os::restore_default(libc::SIGCHLD);
    }
    // SAFETY: between fork and exec the closure makes a few system calls that are
    // async-signal-safe, allocates nothing and takes no lock; what it reads was copied into it.
    unsafe {
        command.pre_exec(move || {
            if child_ignored {
                let _ = terrace_os::ignore_signal(libc::SIGCHLD);
            }
            if pipe_ignored {
                let _ = terrace_os::ignore_signal(libc::SIGPIPE);
            }
            if size_limit_ignored {
                let _ = terrace_os::restore_default(libc::SIGXFSZ);
            }
            terrace_os::restore_signals(mask_before);
            Ok(())
        });
    }
    adopt_orphans();
    let manager = Manager::of_environment();
    let started = Instant::now();
    let pid = start(command, &manager)?;
    let_go_of_pipes();
    // After the program, which so is the first child of this process.
    let witness = Witness::start();
    let end = supervise(pid, signals, witness, meanwhile);
    let elapsed = started.elapsed();
    // A manager that takes our word learns from our end how the program ended.
    manager.notify_main(std::process::id());
    await_companions();
    Ok(Ended { pid: pid as u32, end, elapsed })
}

/// Starts the program, once the manager of our service knows of it. (Not by `Command::spawn`: the
/// child is to know its own number, and to wait.)
fn start(mut command: Command, manager: &Manager) -> io::Result<libc::pid_t> {
    // Closed by exec.
    let (mut ours, mut childs) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the child may do whatever its parent may.
    let pid = unsafe { terrace_os::fork() }.map_err(terrace_os::io_error)?;
    if pid == 0 {
        drop(ours);
        manager.name(&mut command, std::process::id());
        let _ = childs.read(&mut [0]);
        let error = command.exec();
        let _ = childs.write_all(&error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
        // No destructor of ours matters.
        terrace_os::exit_process(127);
    }
    drop(childs);
    manager.notify_main(pid as u32);
    let _ = ours.shutdown(Shutdown::Write);
    let mut error = [0; 4];
    if ours.read_exact(&mut error).is_err() {
        return Ok(pid);
    }
    manager.notify_main(std::process::id());
    let _ = terrace_os::wait_for_child(pid, 0);
    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error)))
}

/// Orphans among the program's descendants become children of this process, which reaps them: the
/// processes in which the library moves pages are such. Elsewhere they would stay as zombies where
/// process 1 of a container reaps nothing.
fn adopt_orphans() {
    // Where it is refused, orphans go where they always went.
    let _ = terrace_os::become_subreaper();
}

/// Waits a moment for the processes in which the library moved pages: they hold the program's
/// memory until they have seen its end, and their CPU time counts once they are reaped. Those of
/// processes that live on are not waited for longer.
fn await_companions() {
    const AT_MOST: Duration = Duration::from_millis(100);
    let since = Instant::now();
    let own = std::process::id();
    loop {
        let children =
            std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let is_companion = |child: &&str| {
            std::fs::read_to_string(format!("/proc/{child}/comm"))
                .is_ok_and(|name| name == "terrace-pager\n")
        };
        if children.split_ascii_whitespace().find(is_companion).is_none()
            || since.elapsed() > AT_MOST
        {
            return;
        }
        reap(0);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The program's input and output are the program's: a reader of its output must see the end of it
/// when the program closes it, not when we do. What we have to say goes to standard error.
fn let_go_of_pipes() {
    use std::os::fd::AsRawFd;
    let Ok(nowhere) = std::fs::File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    for ours in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // Nothing else in this process owns these.
        let _ = terrace_os::duplicate_onto(nowhere.as_raw_fd(), ours);
    }
}

fn supervise(
    child: libc::pid_t,
    signals: u64,
    mut witness: Option<Witness>,
    mut meanwhile: impl FnMut(u32, Moment) -> Duration,
) -> End {
    let mut called = Instant::now();
    let mut again = Duration::ZERO;
    loop {
        // The first poll comes before the first wait only for the sake of one loop: SIGCHLD is
        // blocked since before the start, so none can be missed.
        match reap(child) {
            Some(News::Ended(end)) => return end,
            Some(News::Stopped) => {
                meanwhile(child as u32, Moment::Stopping);
                stop_with_it();
            }
            None => {}
        }
        if called.elapsed() >= again {
            again = meanwhile(child as u32, Moment::Running);
            called = Instant::now();
        }
        let rest = witness.as_mut().map_or(LONGEST_WAIT, Witness::rest);
        let wait = again.saturating_sub(called.elapsed()).min(LONGEST_WAIT).min(rest);
        // (An error if the time is up, or this process was stopped and continued.)
        let Ok(TakenSignal { number: signal, code, sender }) = take_signal(signals, wait) else {
            continue;
        };
        if signal == libc::SIGCHLD {
            continue;
        }
        // A positive code is the kernel's. What the program sent to its own process group, it has
        // got.
        let came_to_it = code > 0 || sender == child;
        if !witness.as_mut().is_some_and(|witness| witness.saw(signal, child, came_to_it))
            && !came_to_it
        {
            // The child has not been waited for, so the number is still its own.
            let _ = signal_by_id(child, signal);
        }
    }
}

/// After [`run`], while other processes of the program's go on: passes signals on to them until
/// `look` says that there are none. It says how long to wait for the next poll.
pub fn stay(others: &mut GoingOn, mut look: impl FnMut(&mut GoingOn) -> Option<Duration>) {
    let signals = forwarded_and_child();
    let own = std::process::id() as libc::pid_t;
    let mut witness = Witness::start();
    while let Some(wait) = look(others) {
        // Orphans, and the witness if it was killed.
        reap(0);
        let wait = wait.min(witness.as_mut().map_or(LONGEST_WAIT, Witness::rest));
        let Ok(TakenSignal { number: signal, code, .. }) = take_signal(signals, wait) else {
            continue;
        };
        let is_of_kernel = code > 0;
        if signal == libc::SIGTSTP && is_of_kernel {
            stop_with_it();
        } else if signal != libc::SIGCHLD {
            // What went to our process group, those in it have got.
            let went_to_group =
                witness.as_mut().is_some_and(|witness| witness.saw(signal, own, is_of_kernel))
                    || is_of_kernel;
            for other in others.managed() {
                let other = other as libc::pid_t;
                // The number was that of a process of the run a moment ago.
                if !went_to_group || process_group_of(other) != process_group_of(0) {
                    let _ = signal_by_id(other, signal);
                }
            }
        }
    }
}

/// When [`run`] calls `meanwhile`.
pub enum Moment {
    /// The program runs.
    Running,
    /// The program was stopped by the terminal, and this process is about to be. What `meanwhile`
    /// answers counts for nothing.
    Stopping,
}

enum News {
    Ended(End),
    /// The program was stopped by the terminal's stop signals, not by SIGSTOP: that, sent to one
    /// process, is meant for that one.
    Stopped,
}

/// Takes all changes of state that are due. Other children than the program are orphans (see
/// [`adopt_orphans`]).
fn reap(child: libc::pid_t) -> Option<News> {
    let mut news = None;
    loop {
        let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        let Ok((pid, status)) = terrace_os::wait_for_child(-1, options) else { return news };
        if pid == 0 {
            return news;
        }
        if pid != child {
            continue;
        }
        if libc::WIFEXITED(status) {
            return Some(News::Ended(End::Exited(libc::WEXITSTATUS(status) as u8)));
        } else if libc::WIFSIGNALED(status) {
            return Some(News::Ended(End::Killed(libc::WTERMSIG(status))));
        } else if libc::WIFSTOPPED(status) {
            let stop =
                matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
            news = stop.then_some(News::Stopped);
        } else {
            news = None;
        }
    }
}

/// Stops this process too, so that the shell that waits for it takes the terminal back. Returns
/// when continued.
fn stop_with_it() {
    // Without a terminal no shell would continue us.
    if std::fs::File::open("/dev/tty").is_err() {
        return;
    }
    let only_stop = mask_of(&[libc::SIGTSTP]);
    let _ = signal_by_id(terrace_os::process_id(), libc::SIGTSTP);
    terrace_os::unblock(only_stop);
    terrace_os::block_also(only_stop);
}

/// Dies of `signal` as the program did, without a core file of our own. Returns only if the signal
/// does not kill us (process 1 of a container).
fn die_of(signal: i32) {
    let _ = terrace_os::set_limit(libc::RLIMIT_CORE, 0, 0);
    // A core_pattern that is a pipe does not ask for the limit.
    let _ = terrace_os::forbid_dumps();
    let _ = terrace_os::restore_default(signal);
    let _ = signal_by_id(terrace_os::process_id(), signal);
    terrace_os::unblock(mask_of(&[signal]));
}

fn forwarded_and_child() -> u64 {
    let mut all = FORWARDED.to_vec();
    all.push(libc::SIGCHLD);
    all.extend(libc::SIGRTMIN()..=libc::SIGRTMAX());
    mask_of(&all)
}
