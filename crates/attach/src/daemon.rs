//! What the command calls: a keeper is a process of its own, which outlives the command.

use crate::channel::{self, Channel};
use crate::family::Family;
use crate::limit::{Limit, SET};
use crate::outside::{self, Outside, Whom};
use crate::state::Keeper;
use crate::stats::AttachedStats;
use crate::{process, refusals};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;
use terrace_os::{exit_process, fork};

/// Attaches to a process, whose memory is to keep to a limit. Returns what was done, in words.
///
/// # Errors
/// Why that cannot be; nothing is changed then.
pub fn attach(pid: i32, limit: Limit) -> Result<String> {
    refusals::check(pid)?;
    let family = match limit.family {
        Some(descriptor) => Family::inherited(descriptor)?,
        None => Family::new(limit.budget.dram_bytes)?,
    };
    let kept = Some(family.descriptor());
    in_the_background(kept, move |said| keep(pid, limit, family, said))
        .with_context(|| format!("cannot attach to {pid}"))
}

/// Whether this process may attach to others on this machine.
///
/// # Errors
/// Why not.
pub fn possible() -> Result<()> {
    refusals::check_ourselves()
}

/// Has the kernel's swap take memory of a process that is not entered. Returns what was done, in
/// words.
///
/// # Errors
/// Why that cannot be; nothing is changed then.
pub fn attach_outside(pid: i32, limit: Limit) -> Result<String> {
    page_out(Whom::Process(pid), limit).with_context(|| format!("cannot attach to {pid}"))
}

/// Has the kernel's swap take memory of all processes of a control group, a directory.
///
/// # Errors
/// Why that cannot be; nothing is changed then.
pub fn attach_group(path: &Path, limit: Limit) -> Result<String> {
    let path = std::path::absolute(path)?;
    page_out(Whom::Group(path), limit)
}

fn page_out(whom: Whom, limit: Limit) -> Result<String> {
    outside::check(&whom, limit.route())?;
    in_the_background(None, move |said| {
        let own = std::process::id() as i32;
        let (number, text) = match &whom {
            Whom::Process(pid) => (*pid, format!("{pid} ({})", process::name(*pid))),
            Whom::Group(path) => (own, format!("{}, as {own}", path.display())),
        };
        let channel = match Channel::open(number) {
            Ok(channel) => channel,
            Err(error) => return said.error(&error),
        };
        let mut outside = Outside::new(whom, limit, channel);
        let count = outside.count();
        let processes = if count == 1 { "process" } else { "processes" };
        said.ok(&format!("attached from outside to {text}: {count} {processes}, none was stopped"));
        outside.run();
    })
}

/// The end of a pipe at which the command waits.
struct Answer(PipeWriter);

impl Answer {
    fn ok(mut self, text: &str) {
        let _ = write!(self.0, "ok {text}");
    }

    fn error(mut self, error: &anyhow::Error) {
        let _ = write!(self.0, "error {error:#}");
    }
}

/// Does something in a process of its own, which keeps a descriptor. Returns what that process
/// says, once it has.
fn in_the_background(kept: Option<i32>, act: impl FnOnce(Answer)) -> Result<String> {
    let (mut reader, writer) = std::io::pipe().context("pipe")?;
    // SAFETY: this process has one thread, so every lock is free in the child.
    match unsafe { fork() } {
        Err(errno) => bail!("cannot make a process: {}", terrace_os::io_error(errno)),
        Ok(0) => {
            drop(reader);
            leave_the_terminal(kept.into_iter().chain([writer.as_raw_fd()]));
            // A fault of ours ends the process as it stands: unwinding would close what the guard
            // has in common with the keeper.
            std::panic::set_hook(Box::new(|_| exit_process(101)));
            act(Answer(writer));
            // What the command had is not undone twice.
            exit_process(0)
        }
        Ok(_) => drop(writer),
    }
    let mut said = String::new();
    reader.read_to_string(&mut said)?;
    match said.split_once(' ') {
        Some(("ok", text)) => Ok(text.to_string()),
        Some((_, error)) => bail!("{error}"),
        None => bail!("the keeper ended"),
    }
}

fn keep(pid: i32, limit: Limit, family: Family, said: Answer) {
    let channel = Channel::open(pid);
    let begun = channel.and_then(|channel| Keeper::attach(pid, limit, family, channel));
    let (keeper, attached) = match begun {
        Ok(begun) => begun,
        Err(error) => return said.error(&error),
    };
    // Its descriptors are the guard's too, which needs them where the keeper could not leave.
    let mut keeper = std::mem::ManuallyDrop::new(keeper);
    let name = process::name(pid);
    let stopped_ms = attached.stopped_ns as f64 / 1e6;
    said.ok(&format!(
        "attached to {pid} ({name}): one thread stood still for {stopped_ms:.1} ms; the process beside it is {}",
        attached.stub
    ));
    if keeper.run().is_ok_and(|has_executed| has_executed) && keeper.stays() {
        attach_again(pid, &keeper);
    }
}

/// Attaches to a process that has executed another program, in place of this process, with the
/// limit that holds now. All descriptors but the family's close with that.
fn attach_again(pid: i32, keeper: &Keeper) {
    let Ok(family) = crate::sys::inherited(keeper.family.descriptor()) else { return };
    let Ok(mut command) = keeper.command_for(pid, family.as_raw_fd()) else { return };
    let report = keeper.limit.report.iter();
    command.args(report.flat_map(|file| [std::ffi::OsStr::new("--report"), file.as_os_str()]));
    // The figures of the program that it has left are not those of the end.
    let _ = keeper.limit.report.iter().try_for_each(std::fs::remove_file);
    crate::sys::unblock_signals();
    // Where that cannot be, the program runs on as it is.
    let _ = command.exec();
}

/// Makes this process one of its own: no terminal, no directory, no signals of a terminal, many
/// descriptors. Of the command's descriptors it keeps none but these: otherwise a pipe would not
/// end, and a lock would stay.
fn leave_the_terminal(kept: impl Iterator<Item = i32>) {
    let _ = terrace_os::new_session();
    terrace_os::name_thread(c"terrace-keeper");
    terrace_os::set_thread_nice(-10);
    if let Ok((_, hard)) = terrace_os::limit_of(libc::RLIMIT_NOFILE) {
        let _ = terrace_os::set_limit(libc::RLIMIT_NOFILE, hard, hard);
    }
    let _ = terrace_os::ignore_signal(libc::SIGPIPE);
    terrace_os::leave_working_directory();
    // SAFETY: nothing that goes on in this process has one of the descriptors that are closed.
    unsafe { terrace_os::close_from(3, kept.collect()) };
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        for fd in 0..3 {
            let _ = terrace_os::duplicate_onto(nothing.as_raw_fd(), fd);
        }
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Detaches from a process: everything is back. Returns how long that took, in milliseconds. `None`
/// where it was attached to from outside, and what is in swap or on a node stays there.
///
/// # Errors
/// If no keeper is attached to it, or something of ours could not be taken away.
pub fn detach(pid: i32) -> Result<Option<u64>> {
    let answer = channel::ask(pid, "detach", None)?.unwrap_or_default();
    let took = answer.strip_prefix("ok ");
    let took = took.and_then(|took| match took {
        outside::STAYS => Some(None),
        ms => ms.parse().ok().map(Some),
    });
    let took = took.with_context(|| format!("the keeper says {answer}"))?;
    // The keeper ends right after it has answered.
    for _ in 0..200 {
        if !channel::attached().contains(&pid) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(took)
}

/// Has a process that is attached to keep to another limit: the values of `--dram` and
/// `--slowdown`. A value that is not given stays. Returns what holds then and what held before, in
/// words.
///
/// # Errors
/// If no keeper is attached to it, or its keeper cannot change that.
pub fn set(pid: i32, dram: Option<&str>, slowdown: Option<&str>) -> Result<String> {
    let request = format!("{SET}{} {}", dram.unwrap_or("-"), slowdown.unwrap_or("-"));
    let answer = channel::ask(pid, &request, Some(SET_WAIT))?;
    answer.with_context(|| format!("{pid}: {NO_ANSWER}"))
}

/// How long a keeper may take to answer [`set`]: it may be bringing many pages back.
const SET_WAIT: Duration = Duration::from_secs(10);

/// How long a keeper may take to say how its process stands: others are still to be asked.
const STATUS_WAIT: Duration = Duration::from_secs(2);
const NO_ANSWER: &str = "the keeper is silent: it is busy, detaches, or the program is paused";

/// The figures of a process that is attached to; nothing but a note where its keeper is silent.
///
/// # Errors
/// If it is not attached to, or another user attached to it.
pub fn status(pid: i32) -> Result<AttachedStats> {
    let Some(answer) = channel::ask(pid, "status", Some(STATUS_WAIT))? else {
        let (program, note) = (process::name(pid), NO_ANSWER.into());
        return Ok(AttachedStats { pid, program, note, ..AttachedStats::default() });
    };
    serde_json::from_str(&answer).context("the keeper is of another version")
}

/// The processes that are attached to.
pub fn attached() -> Vec<i32> {
    channel::attached()
}
