//! What the kernel says of processes, from outside: /proc and kcmp.
//!
//! A process is named by its number. Where only one file of /proc is read, `self` will do, too.

use crate::wait::Wait;
use anyhow::Context;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The text of a file of a process, such as `maps`.
pub fn file(pid: impl Display, name: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{name}"))
}

/// All processes on the machine.
///
/// # Panics
/// If /proc is not mounted.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The name of a process, which is that of its main thread; `None` if the process is gone.
pub fn name(pid: impl Display) -> Option<String> {
    Some(file(pid, "comm").ok()?.trim_end().to_owned())
}

/// The children of a process that its main thread has forked.
pub fn children(pid: impl Display) -> Vec<u32> {
    numbers(&file(&pid, &format!("task/{pid}/children")).unwrap_or_default())
}

/// A process and all processes that descend from it, whichever threads forked them.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        for thread in threads(found[next]).unwrap_or_default() {
            let children = fs::read_to_string(thread.join("children"));
            found.extend(numbers(&children.unwrap_or_default()));
        }
        next += 1;
    }
    found
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The directories of a process's threads in /proc.
pub fn threads(pid: impl Display) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Another process with the memory of this one, such as Terrace's companion process, or a child
/// before it executes a program.
pub fn companion(pid: u32) -> Option<u32> {
    let shares = |other: &u32| terrace_os::have_one_memory(pid as i32, *other as i32) == Some(true);
    all().filter(|other| *other != pid).find(shares)
}

/// Name and bytes of a line such as `VmRSS:   16 kB`.
pub fn size(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    Some((name, rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10))
}

/// Bytes that a text has under a name, such as `VmRSS`, in a line such as `VmRSS:   16 kB`.
pub fn bytes_in(text: &str, name: &str) -> Option<u64> {
    text.lines().filter_map(size).find(|(found, _)| *found == name).map(|(_, bytes)| bytes)
}

/// Bytes that a process's `status` has under a name, such as `VmRSS`; `None` if the process is
/// gone.
pub fn status_bytes(pid: impl Display, name: &str) -> Option<u64> {
    bytes_in(&file(pid, "status").ok()?, name)
}

/// Bytes that a process's `smaps_rollup` has under a name, such as `Pss`; `None` if the process is
/// gone. The kernel walks all of the process's pages for it.
pub fn rollup_bytes(pid: impl Display, name: &str) -> Option<u64> {
    bytes_in(&file(pid, "smaps_rollup").ok()?, name)
}

/// Resident memory of a process in bytes, from its `statm`.
pub fn resident_bytes(pid: impl Display) -> anyhow::Result<u64> {
    let text = file(&pid, "statm").with_context(|| format!("process {pid} is gone"))?;
    let pages: u64 = text.split_ascii_whitespace().nth(1).context("an empty statm")?.parse()?;
    Ok(pages * terrace_os::page_bytes() as u64)
}

/// Fields of the `stat` of a process or thread.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// State as a letter, such as `T` for stopped and `Z` for a zombie.
    pub state: char,
    /// Faults for which the kernel read from a disk or from swap.
    pub major_faults: u64,
    /// CPU time, of a process with that of the threads that have ended.
    pub cpu: Duration,
}

impl Stat {
    /// Reads the figures of a process, as it is now.
    pub fn of(pid: impl Display) -> anyhow::Result<Stat> {
        let text = file(&pid, "stat").with_context(|| format!("process {pid} is gone"))?;
        Stat::parse(&text)
    }

    /// From the text of a file `stat`.
    pub fn parse(text: &str) -> anyhow::Result<Stat> {
        // The name, in parentheses, may hold anything; what follows it is field 3.
        let after = text.rsplit_once(") ").context("a stat without a name")?.1;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).context("a field is missing");
        let ticks = field(14)?.parse::<u64>()? + field(15)?.parse::<u64>()?;
        // SAFETY: no pointers.
        let ticks_a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Stat {
            state: field(3)?.chars().next().context("no state")?,
            major_faults: field(12)?.parse()?,
            cpu: Duration::from_secs(ticks) / ticks_a_second as u32,
        })
    }
}

/// Whether a process is gone, or its main thread is a zombie. Other threads may still run then.
///
/// # Panics
/// If `pid` is 0, which is no process, or if /proc cannot be read.
pub fn has_ended(pid: impl Display) -> bool {
    let pid = pid.to_string();
    assert_ne!(pid, "0", "not a process");
    match file(&pid, "stat") {
        Ok(text) => Stat::parse(&text).expect("a stat").state == 'Z',
        Err(error) => {
            let is_gone = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
            assert!(is_gone, "process {pid}: {error}");
            true
        }
    }
}

/// Sends a signal to a process, or to a process group by its number below zero. Returns whether it
/// was sent.
///
/// # Panics
/// If `pid` is 0 or -1: that would be the test's own group, or all processes.
pub fn signal(pid: i32, signal: i32) -> bool {
    assert!(!matches!(pid, 0 | -1), "not a process of the test's: {pid}");
    terrace_os::signal_by_id(pid, signal).is_ok()
}

/// Stops a process, and waits until each of its threads has stopped: they do so one by one, when
/// they have a CPU. `signal` with SIGCONT has it go on.
///
/// # Panics
/// If the process is gone, or does not stop in 20 seconds.
pub fn stop(pid: i32) {
    assert!(signal(pid, libc::SIGSTOP), "process {pid} is gone");
    Wait::within(Duration::from_secs(20)).until("all of its threads are stopped", || {
        let threads = threads(pid).expect("it has threads");
        // A thread may end meanwhile.
        let stats =
            threads.iter().filter_map(|thread| fs::read_to_string(thread.join("stat")).ok());
        stats.map(|text| Stat::parse(&text).expect("a stat")).all(|stat| stat.state == 'T')
    });
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    terrace_os::effective_user_id() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_behind_a_name_that_looks_like_one() {
        let text = "7 (a) Z 1 () S 1 7 7 0 -1 4194560 90 0 12 0 250 130 0 0 20 0 1 0 99 0 0";
        let stat = Stat::parse(text).expect("it is one");
        assert_eq!((stat.state, stat.major_faults), ('S', 12));
        assert!(stat.cpu > Duration::ZERO);
    }

    #[test]
    fn sizes_are_found_by_their_whole_name() {
        let text = "Name:\tsize: 7 kB\nVmRSSX:\t1 kB\nVmRSS:\t    16 kB\nThreads:\t1\n";
        assert_eq!(bytes_in(text, "VmRSS"), Some(16 << 10));
        assert_eq!(bytes_in(text, "Threads"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let own = std::process::id();
        assert!(all().any(|pid| pid == own));
        assert!(descendants(own).contains(&own));
        assert!(!threads("self").expect("it has threads").is_empty());
        assert!(!has_ended(own) && resident_bytes(own).is_ok_and(|bytes| bytes > 0));
        assert!(status_bytes(own, "VmRSS").is_some() && name(own).is_some());
    }
}
