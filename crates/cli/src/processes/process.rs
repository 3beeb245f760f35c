//! What the kernel says about a process of the run: whether it is still the same one, and how much
//! of its memory is its own; and our own CPU time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// CPU time of this thread, for what bounds its own cost.
pub fn cpu_time() -> Duration {
    Duration::from_nanos(terrace_os::thread_cpu_ns())
}

/// What /proc/PID/stat says about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// When it started, in clock ticks: with the process id, the same process for certain.
    pub start_ticks: u64,
    /// Whether it has ended, and its parent has not waited for it yet. (The first thread alone may
    /// have ended: then others are there.)
    pub ended: bool,
    /// Whether the first thread runs, wants a CPU, or waits for a disk.
    pub busy: bool,
}

/// The process with this id, if there is one.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The id that a process has in our /proc. What is known is its id in its own PID namespace, the
/// inode of that namespace, and when it started, in clock ticks (0: unknown). `None` where no
/// process is seen to be that one.
pub fn find(pid: u32, namespace: u64, start_ticks: u64) -> Option<u32> {
    let is_it = |here: &u32| {
        id_inside(*here) == Some(pid)
            && pid_namespace(*here) == Some(namespace)
            && stat(*here).is_some_and(|stat| [0, stat.start_ticks].contains(&start_ticks))
    };
    if is_it(&pid) { Some(pid) } else { all().find(is_it) }
}

/// All processes of our /proc.
fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The PID namespace of a process, by its inode.
fn pid_namespace(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|about| about.ino())
}

/// The id of a process in its own PID namespace.
fn id_inside(pid: u32) -> Option<u32> {
    parse_id_inside(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_id_inside(status: &str) -> Option<u32> {
    // In all namespaces that the process is in, its own last.
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().next_back()?.parse().ok()
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The program's name, in parentheses, may hold anything; what follows it is field 3.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let state = *fields.first()?;
    let gone = matches!(state, "Z" | "X");
    Some(Stat {
        start_ticks: number(22)?,
        ended: gone && number(20)? <= 1,
        busy: matches!(state, "R" | "D"),
    })
}

/// Anonymous resident memory; 0 if it cannot be known.
pub fn anonymous_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: Vec<u64> =
        text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    // Resident less shared.
    if pages.len() < 3 { 0 } else { pages[1].saturating_sub(pages[2]) * 4096 }
}

/// All resident memory; `None` if there is no such process.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    Some(text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 4096)
}

/// The name of what a process executes, as the kernel has it: the first 15 bytes; and the file's
/// path, empty if that cannot be known.
pub fn name_and_file(pid: u32) -> Option<(String, String)> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let file = fs::read_link(format!("/proc/{pid}/exe"))
        .map_or_else(|_| String::new(), |file| file.to_string_lossy().into_owned());
    Some((name.trim_end().replace(char::is_control, "\u{fffd}"), file))
}

/// The processes whose parent is a thread of this one.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |text: String| -> Vec<u32> {
        text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(numbers).collect()
}

/// All processes that descend from this one.
pub fn descendants() -> Vec<u32> {
    let mut found = children(std::process::id());
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children(*parent));
        next += 1;
    }
    found
}

/// A process's memory by kind, of /proc/PID/status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Private memory that no file is behind.
    pub anonymous_bytes: u64,
    /// Shared memory: anonymous, memfd, System V, files in memory.
    pub shared_bytes: u64,
    /// Private memory in the kernel's swap: not resident.
    pub swapped_bytes: u64,
    /// The most that was resident at a time.
    pub peak_bytes: u64,
    /// Threads.
    pub threads: u64,
}

/// Resident memory of a process; `None` if there is no such process, or it has ended.
pub fn resident(pid: u32) -> Option<Resident> {
    parse_resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_resident(status: &str) -> Option<Resident> {
    let bytes =
        |name: &str| status.lines().find_map(|line| kib_of(line, name)).map(|kib| kib << 10);
    let threads =
        status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok());
    Some(Resident {
        anonymous_bytes: bytes("RssAnon")?,
        shared_bytes: bytes("RssShmem")?,
        swapped_bytes: bytes("VmSwap").unwrap_or(0),
        peak_bytes: bytes("VmHWM")?,
        threads: threads.unwrap_or(1),
    })
}

/// The number of a line `name: N kB`.
pub fn kib_of(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// How much of its anonymous memory is a process's own, from 0 to 1: a page that N processes share
/// is 1/N of each. `None` if that cannot be known. Looks at every page of it.
pub fn own_fraction(pid: u32) -> Option<f64> {
    parse_own_fraction(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn parse_own_fraction(rollup: &str) -> Option<f64> {
    let kib = |name: &str| -> Option<f64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let (all, own) = (kib("Anonymous")?, kib("Pss_Anon")?);
    (all > 0.0).then(|| (own / all).clamp(0.0, 1.0))
}

/// Shared memory in a process, where a page that is mapped N times, there or elsewhere, counts
/// 1/N each time. `None` if that cannot be known. Looks at every page of it.
pub fn own_shared_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    rollup.lines().find_map(|line| kib_of(line, "Pss_Shmem")).map(|kib| kib << 10)
}

/// Whether a process has a file mapped. `true` if that cannot be known.
pub fn maps(pid: u32, file: &str) -> bool {
    fs::read(format!("/proc/{pid}/maps")).map_or(true, |maps| {
        maps.split(|byte| *byte == b'\n').any(|line| line.ends_with(file.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_start() {
        let tail = "1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0";
        let stat = |state, threads| {
            parse_stat(&format!("7 (a) b) c) {state} {tail} {threads} 0 4711 0 0\n"))
        };
        let there = Stat { start_ticks: 4711, ended: false, busy: false };
        assert_eq!(stat("S", 1), Some(there));
        assert_eq!(stat("R", 1), Some(Stat { busy: true, ..there }));
        assert_eq!(stat("D", 1), Some(Stat { busy: true, ..there }));
        assert_eq!(stat("Z", 1), Some(Stat { ended: true, ..there }));
        assert_eq!(stat("Z", 3), Some(there), "the first thread left, others work on");
        assert_eq!(parse_stat("nonsense"), None);
        let me = std::process::id();
        assert!(super::stat(me).is_some_and(|stat| !stat.ended && stat.start_ticks > 0));
        assert!(anonymous_bytes(me) > 0 && super::own_fraction(me).is_some_and(|own| own > 0.0));
        assert_eq!(super::stat(u32::MAX), None);
    }

    #[test]
    fn a_process_is_found_by_its_number_in_its_own_namespace() {
        let status = "Name:\tsleep\nNSpid:\t4711\t12\t2\nNSpgid:\t4711\t12\t1\n";
        assert_eq!(parse_id_inside(status), Some(2));
        assert_eq!(parse_id_inside("Name:\tsleep\n"), None);
        let (me, namespace) = (std::process::id(), terrace_os::pid_namespace());
        let ticks = super::stat(me).expect("this process is there").start_ticks;
        assert_eq!(find(me, namespace, ticks), Some(me));
        assert_eq!(find(me, namespace, 0), Some(me));
        // Another process of that number, and another namespace.
        assert_eq!(find(me, namespace, ticks + 1), None);
        assert_eq!(find(me, namespace + 1, ticks), None);
        assert_eq!(find(u32::MAX, namespace, 0), None);
    }

    #[test]
    fn resident_memory_is_told_by_kind() {
        let status = "VmHWM:\t 950 kB\nVmRSS:\t  900 kB\nRssAnon:\t     300 kB\nRssFile:\t 200 kB\nRssShmem:\t   400 kB\nVmSwap:\t 50 kB\nThreads:\t3\n";
        let expected = Resident {
            anonymous_bytes: 300 << 10,
            shared_bytes: 400 << 10,
            swapped_bytes: 50 << 10,
            peak_bytes: 950 << 10,
            threads: 3,
        };
        assert_eq!(parse_resident(status), Some(expected));
        assert_eq!(parse_resident("Name: zombie\nState: Z\n"), None);
        assert!(resident(std::process::id()).is_some_and(|resident| resident.anonymous_bytes > 0));
    }

    #[test]
    fn shared_pages_count_in_part() {
        assert_eq!(
            parse_own_fraction("Pss:  900 kB\nPss_Anon:  100 kB\nAnonymous:  200 kB\n"),
            Some(0.5)
        );
        assert_eq!(parse_own_fraction("Pss_Anon: 0 kB\nAnonymous: 0 kB\n"), None);
        assert_eq!(parse_own_fraction(""), None);
    }

    #[test]
    fn a_mapped_file_is_found_by_its_name() {
        assert!(maps(std::process::id(), "[stack]") && !maps(std::process::id(), "/no-such.stats"));
    }
}
