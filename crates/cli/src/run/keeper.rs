//! The keeper of a run: what is left of `terrace run` where the program has ended and managed
//! processes go on (daemons).
//!
//! It is forked from `terrace run`, which then ends as the program did. It divides the budget on,
//! and writes the report when the last of them has ended. It is a session of its own and holds
//! nothing that another process may wait for: no terminal, no pipe, no descriptor that `terrace
//! run` inherited. It passes no signals on, and those that can be ignored do not end it: what stops
//! a whole service sends them to it too, and the processes that it is there for may take their
//! time.

use crate::run::witness;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Side of the fork that a process is on: the front, or the keeper.
#[derive(Debug)]
pub enum Side {
    /// `terrace run` as it was started.
    Front,
    /// The keeper.
    Keeper(Front),
}

/// The front, as the keeper knows it.
#[derive(Debug)]
pub struct Front(UnixStream);

impl Front {
    /// Waits until the front has ended, and so has said and written all that it has to.
    pub fn await_end(mut self) {
        let _ = self.0.read(&mut [0]);
    }
}

/// Forks, from a process with one thread. `first` is called in the keeper before anything else.
/// With `leave_directory` it does not keep the current directory in use. Returns in the front when
/// the keeper has let go of everything.
pub fn leave_behind(first: impl FnOnce(), leave_directory: bool) -> io::Result<Side> {
    let (mut ours, mut its) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the child may do whatever its parent may.
    let pid = unsafe { terrace_os::fork() }.map_err(terrace_os::io_error)?;
    if pid == 0 {
        first();
        drop(ours);
        detach(&its);
        if leave_directory {
            let _ = std::env::set_current_dir("/");
        }
        let _ = its.write_all(&[1]);
        return Ok(Side::Keeper(Front(its)));
    }
    drop(its);
    ours.read_exact(&mut [0]).inspect_err(|_| {
        // It ended before it began.
        let _ = terrace_os::wait_for_child(pid, 0);
    })?;
    // Open until this process ends, which tells the keeper so.
    std::mem::forget(ours);
    Ok(Side::Front)
}

/// Whether standard error can be written to long after the program's end: a file, or the system's
/// journal. A terminal has other users by then, and the reader of a pipe or a socket waits for its
/// end.
pub fn stderr_stays() -> bool {
    let Ok(about) = terrace_os::file_status(libc::STDERR_FILENO) else { return false };
    // systemd's word for where it has connected standard error.
    let is_journal = || {
        std::env::var("JOURNAL_STREAM")
            .is_ok_and(|place| place == format!("{}:{}", about.st_dev, about.st_ino))
    };
    about.st_mode & libc::S_IFMT == libc::S_IFREG || is_journal()
}

/// `stream` leads nowhere once the front has ended: it stands in where there is no /dev/null.
fn detach(stream: &UnixStream) {
    let stays = stderr_stays();
    let _ = terrace_os::new_session();
    terrace_os::name_thread(c"terrace-keeper");
    witness::rename(c"terrace keeper");
    let nowhere = File::options().read(true).write(true).open("/dev/null");
    let nowhere = nowhere.as_ref().map_or(stream.as_raw_fd(), AsRawFd::as_raw_fd);
    let standard = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];
    for fd in standard.into_iter().filter(|fd| *fd != libc::STDERR_FILENO || !stays) {
        // Nothing else in this process owns these.
        let _ = terrace_os::duplicate_onto(nowhere, fd);
    }
    close_inherited();
}

/// What was inherited through exec is not marked to be closed by it; all that this process opened
/// is.
fn close_inherited() {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> =
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in numbers.into_iter().filter(|fd| *fd > libc::STDERR_FILENO) {
        // A descriptor without the mark has no owner in this process.
        if terrace_os::is_closed_by_exec(fd) == Ok(false) {
            terrace_os::close(fd);
        }
    }
}
