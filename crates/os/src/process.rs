//! This process: its numbers, its filters, its end.

use crate::files::{close, duplicate_from};
use crate::ids::{process_id, thread_id};
use crate::simulated::simulated;
use crate::task::process_descriptor;
use crate::types::{Errno, Fd, Result};
use syscalls::{Sysno, syscall};

/// Forwards a call of the program's own to the kernel, untouched.
///
/// # Safety
/// The program asked for it: its arguments are its responsibility, as without us.
pub unsafe fn forward(number: i64, args: [usize; 6]) -> Result<usize> {
    let number = Sysno::from(number as i32);
    // SAFETY: the caller's promise.
    unsafe { syscall!(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// A descriptor of this process, in the calling thread's table.
pub fn own_process() -> Result<Fd> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::pidfd_open, process_id(), 0) }.map(|fd| fd as Fd)
}

/// The PID namespace of this process, by its inode; 0 if that cannot be known.
pub fn pid_namespace() -> u64 {
    let mut text = [0u8; 64];
    // SAFETY: the path is NUL-terminated; the kernel writes at most the buffer's length.
    let len = unsafe {
        syscall!(
            Sysno::readlinkat,
            libc::AT_FDCWD,
            c"/proc/self/ns/pid".as_ptr(),
            text.as_mut_ptr(),
            text.len()
        )
    };
    // pid:[4026531836]
    let digits = text[..len.unwrap_or(0)].iter().filter(|byte| byte.is_ascii_digit());
    digits
        .fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// The id of the process's parent.
pub fn parent_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(Sysno::getppid) }.unwrap_or(0) as i32
}

/// Waits for a change of state of a child, of any child (−1), or of a traced thread (with __WALL):
/// wait4(2). `options` are WNOHANG, WUNTRACED, WCONTINUED and __WALL. Returns the child's id, 0 if
/// nothing has changed (with WNOHANG), and its status. ECHILD: there is no such child. EINTR: a
/// signal came.
pub fn wait_for_child(child: i32, options: i32) -> Result<(i32, i32)> {
    let mut status = 0i32;
    // SAFETY: the kernel writes the status.
    let changed = unsafe { syscall!(Sysno::wait4, child, &raw mut status, options, 0) }?;
    Ok((changed as i32, status))
}

/// The process group of a process, 0 for the calling one. ESRCH: there is no such process.
pub fn process_group_of(process: i32) -> Result<i32> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::getpgid, process) }.map(|group| group as i32)
}

/// Moves the calling process into a process group of its session. EPERM: there is no such group, or
/// the process leads a session.
pub fn enter_process_group(group: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::setpgid, 0, group) }.map(drop)
}

/// From now on orphans among the process's descendants become its children.
pub fn become_subreaper() -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.map(drop)
}

/// The kernel sends this process a signal when the thread that made it ends. If that has ended
/// already, no signal comes: compare [`parent_id`] after this.
pub fn signal_at_parents_end(signal: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::prctl, libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }.map(drop)
}

/// No signal makes the kernel write a core file of this process, or pipe one, from now on; and no
/// other process of the user may trace it.
pub fn forbid_dumps() -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.map(drop)
}

/// Whether a seccomp filter is in force for this thread.
pub fn is_filtered() -> bool {
    simulated!(_kernel => false);
    // SAFETY: no memory is involved.
    let mode = unsafe { syscall!(Sysno::prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    mode == Ok(libc::SECCOMP_MODE_FILTER as usize)
}

/// Whether a child that does this comes to its end. It is a copy of this thread alone, of which the
/// program learns nothing. It sends no signal at its end, and only a wait for clones sees it. `act`
/// must make raw system calls only: in a copy of a process with many threads every lock may be
/// held.
pub fn survives(act: impl FnOnce()) -> Result<bool> {
    // SAFETY: a fork without a signal. The child leaves by exit_group, so nothing of this frame is
    // used twice.
    let child = unsafe { syscall!(Sysno::clone, 0, 0, 0, 0, 0) }?;
    if child == 0 {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit lives through the call, and concerns the child only.
        let _ = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_CORE, &raw const no_core, 0) };
        act();
        loop {
            // SAFETY: ends the child.
            let _ = unsafe { syscall!(Sysno::exit_group, 0) };
        }
    }
    let mut status = 0i32;
    loop {
        // SAFETY: the kernel writes the status.
        match unsafe { syscall!(Sysno::wait4, child, &raw mut status, libc::__WALL, 0) } {
            Ok(_) => return Ok(status == 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether a process descriptor, or one of the kernel's numbers below zero for it, stands for this
/// process (any of its threads).
pub fn is_this_process(pidfd: Fd) -> bool {
    if pidfd < 0 {
        return true;
    }
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).unwrap_or_default();
    let task = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    task.is_some_and(|task| {
        std::path::Path::new(&format!("/proc/self/task/{}", task.trim())).exists()
    })
}

/// Ends the process by SIGABRT, but not through the program's handler of it: that could touch
/// evicted pages, which nothing restores any more.
pub fn abort() -> ! {
    // struct sigaction as the kernel has it: SIG_DFL and nothing else.
    let default = [0usize; 4];
    let mask = 1u64 << (libc::SIGABRT - 1);
    // SAFETY: the kernel reads the two structures, which are as large as it expects.
    unsafe {
        let _ = syscall!(Sysno::rt_sigaction, libc::SIGABRT, default.as_ptr(), 0, 8);
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, 0, 8);
        let _ = syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT);
    }
    std::process::abort()
}

/// A descriptor of another process, which the caller must be allowed to trace.
pub fn descriptor_of(process: i32, fd: Fd) -> Result<Fd> {
    let pidfd = process_descriptor(process)?;
    let result = descriptor_behind(pidfd, fd);
    close(pidfd);
    result
}

pub(crate) fn descriptor_behind(pidfd: Fd, fd: Fd) -> Result<Fd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { syscall!(Sysno::pidfd_getfd, pidfd, fd, 0) }? as Fd;
    if fd > 2 {
        return Ok(fd);
    }
    // Not where it would be taken for standard input or output.
    let above = duplicate_from(fd, 3);
    close(fd);
    above
}
