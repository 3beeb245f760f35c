//! Limits of this process and of its user.

use crate::files::{close, open, read_at};
use crate::types::{PAGE, Result};
use syscalls::{Sysno, syscall};

/// A limit of this process (`resource` is one of `libc::RLIMIT_*`, which says its unit): the soft
/// one, and the hard one. `libc::RLIM_INFINITY` is none.
pub fn limit_of(resource: u32) -> Result<(u64, u64)> {
    limit_of_process(0, resource)
}

/// A limit of another process, or of this one (0), as [`limit_of`] tells it. EPERM: it is another
/// user's. ESRCH: there is no such process.
pub fn limit_of_process(process: i32, resource: u32) -> Result<(u64, u64)> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit, which lives through the call; nothing is set.
    unsafe { syscall!(Sysno::prlimit64, process, resource, 0, &raw mut limit) }?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Sets a limit of this process, the soft and the hard one, as [`limit_of`] tells them. EPERM: the
/// hard one is raised without the privilege.
pub fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    set_limit_of_process(0, resource, soft, hard)
}

/// Sets a limit of another process, or of this one (0), as [`set_limit`] does.
pub fn set_limit_of_process(process: i32, resource: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the kernel reads the limit, which lives through the call.
    unsafe { syscall!(Sysno::prlimit64, process, resource, &raw const limit, 0) }.map(drop)
}

/// How much this process may lock, bytes.
pub fn lock_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit.
    let asked = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_MEMLOCK, 0, &raw mut limit) };
    if asked.is_ok() { limit.rlim_cur } else { 0 }
}

/// How long a file may become (RLIMIT_FSIZE); 0 if that is unknown.
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit.
    let asked = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit) };
    if asked.is_ok() { limit.rlim_cur } else { 0 }
}

/// How many tasks this user may have (RLIMIT_NPROC); `None` without a limit, or where the kernel
/// lets this process exceed it.
pub fn user_task_limit() -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the limit; no arguments.
    let (asked, user) = unsafe {
        (
            syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NPROC, 0, &raw mut limit),
            syscall!(Sysno::getuid),
        )
    };
    // Root of the first user namespace, whose map of users is the identity.
    let is_root = user == Ok(0) && small_file("/proc/self/uid_map\0").contains("4294967295");
    (asked.is_ok() && limit.rlim_cur != libc::RLIM64_INFINITY && !is_root).then_some(limit.rlim_cur)
}

/// The directories of the control groups that may limit this process's tasks: version 1's `pids`,
/// or version 2's; its own and those above it.
pub fn task_groups() -> Vec<String> {
    let text = small_file("/proc/self/cgroup\0");
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            "pids" => "/sys/fs/cgroup/pids",
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        groups.push(format!("{root}{path}"));
        while let Some((above, _)) = path.rsplit_once('/') {
            path = above;
            groups.push(format!("{root}{path}"));
        }
    }
    groups
}

/// The first 4 KiB of a file; empty if it cannot be read.
fn small_file(path: &str) -> String {
    let mut text = vec![0u8; PAGE];
    let Ok(fd) = open(path, libc::O_RDONLY, 0) else { return String::new() };
    let len = read_at(fd, &mut text, 0).unwrap_or(0);
    close(fd);
    String::from_utf8_lossy(&text[..len]).into_owned()
}
