//! Readings of a process from outside: CPU time by thread, faults, memory; and Terrace's own
//! counters from its statistics page.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;
use std::time::Duration;
use terrace_control::stats::{MAGIC, State, StatsFile, StatsPage, TierPage};

/// Counters that only grow.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// CPU seconds of the process, threads that ended included.
    pub cpu_s: f64,
    /// CPU seconds of Terrace's threads, by thread name. They are part of the process's CPU
    /// seconds.
    pub terrace_cpu_s: BTreeMap<String, f64>,
    /// Faults for which the kernel read from its swap.
    pub major_faults: u64,
    /// Pages that Terrace restored, if it is there.
    pub restored_pages: Option<u64>,
    /// Pages that Terrace moved out, if it is there.
    pub demoted_pages: Option<u64>,
}

/// Utime and stime of a stat file, in seconds, and major faults.
fn stat(path: &str) -> anyhow::Result<(f64, u64)> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {path}; has the server ended?"))?;
    // The name, in parentheses, may hold anything; what follows it is field 3.
    let fields: Vec<&str> =
        text.rsplit_once(") ").context("no stat")?.1.split_ascii_whitespace().collect();
    let number = |field: usize| -> anyhow::Result<u64> {
        Ok(fields.get(field - 3).context("a field is missing")?.parse()?)
    };
    // SAFETY: no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok(((number(14)? + number(15)?) as f64 / ticks, number(12)?))
}

/// The process in which Terrace moves a process's pages: it shares its memory.
pub fn companion(pid: u32) -> Option<u32> {
    const SHARED_MEMORY: i32 = 1;
    let shares = |other: &u32| {
        // SAFETY: no memory is involved.
        unsafe { libc::syscall(libc::SYS_kcmp, pid, *other, SHARED_MEMORY, 0, 0) == 0 }
    };
    let processes = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|other| *other != pid).find(shares)
}

/// CPU seconds of a whole process, and of Terrace's process beside it.
pub fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let beside = companion(pid).and_then(|companion| stat(&format!("/proc/{companion}/stat")).ok());
    Ok(stat(&format!("/proc/{pid}/stat"))?.0 + beside.map_or(0.0, |(cpu_s, _)| cpu_s))
}

/// Time for which the threads that a process has now have run on a CPU, with Terrace's process
/// beside it.
pub fn run_time(pid: u32) -> anyhow::Result<Duration> {
    let beside = companion(pid).map_or(Ok(Duration::ZERO), run_time_alone);
    Ok(run_time_alone(pid)? + beside.unwrap_or_default())
}

/// How long the threads that a process has now have run on a CPU.
pub fn run_time_alone(pid: u32) -> anyhow::Result<Duration> {
    let mut time = Duration::ZERO;
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("process {pid} is gone"))?;
    for task in tasks.flatten() {
        // One that has just ended has none.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        time += Duration::from_nanos(
            text.split_whitespace().next().context("an empty schedstat")?.parse()?,
        );
    }
    Ok(time)
}

/// All counters now; `page` is Terrace's statistics page of that process.
pub fn counters(pid: u32, page: Option<&Page>) -> anyhow::Result<Counters> {
    let (_, major_faults) = stat(&format!("/proc/{pid}/stat"))?;
    let mut counters = Counters { cpu_s: cpu_s(pid)?, major_faults, ..Counters::default() };
    let beside = companion(pid)
        .into_iter()
        .flat_map(|companion| fs::read_dir(format!("/proc/{companion}/task")));
    for task in beside.flatten().flatten() {
        let path = task.path();
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        if name.starts_with("terrace-")
            && let Ok((cpu_s, _)) = stat(&path.join("stat").to_string_lossy())
        {
            *counters.terrace_cpu_s.entry(name.trim().to_owned()).or_default() += cpu_s;
        }
    }
    if let Some(page) = page {
        let words = page.read()?;
        let tiers = words.u32_at(offset_of!(StatsPage, tier_count)) as usize;
        let faults = |tier| {
            words.u64_at(
                offset_of!(StatsPage, tiers)
                    + tier * size_of::<TierPage>()
                    + offset_of!(TierPage, faults),
            )
        };
        counters.restored_pages = Some((0..tiers).map(faults).sum());
        counters.demoted_pages = Some(words.u64_at(offset_of!(StatsPage, counts.demoted_pages)));
    }
    Ok(counters)
}

/// Bytes by name (such as `Pss`) that smaps_rollup has of a process; 0 for what it does not have.
/// The kernel walks all pages for it: not while something is measured.
pub fn rollup(pid: u32) -> anyhow::Result<impl Fn(&str) -> f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .context("cannot read smaps_rollup")?;
    Ok(move |name: &str| {
        text.lines()
            .filter_map(kib)
            .find(|(found, _)| *found == name)
            .map_or(0.0, |(_, bytes)| bytes)
    })
}

/// Memory that a process takes, bytes: its pages, shared ones in part, and page tables.
pub fn memory(pid: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let tables =
        status.lines().filter_map(kib).find(|(name, _)| *name == "VmPTE").context("no VmPTE")?.1;
    Ok(rollup(pid)?("Pss") + tables)
}

/// Name and bytes of a line of smaps.
pub fn kib(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.split_once(':')?;
    Some((name, rest.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? * 1024.0))
}

/// The first child of a process.
pub fn child(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The statistics page of a process under Terrace.
pub struct Page(PathBuf);

struct Words(Vec<u8>);

impl Words {
    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
}

impl Page {
    /// Finds the page among what the process has mapped. (Its environment will not do: redis writes
    /// its title over it.)
    pub fn of(pid: u32) -> anyhow::Result<Page> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("the server is gone")?;
        let own = format!("/{pid}-");
        let path = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .find(|path| path.ends_with(".stats") && path.contains(&own));
        Ok(Page(PathBuf::from(path.context("Terrace is not in the server")?)))
    }

    fn read(&self) -> anyhow::Result<Words> {
        let bytes = fs::read(&self.0).context("the server's statistics page is gone")?;
        anyhow::ensure!(
            bytes.len() == size_of::<StatsFile>(),
            "the server's statistics page is of another version"
        );
        let words = Words(bytes);
        anyhow::ensure!(
            words.u64_at(offset_of!(StatsPage, magic)) == MAGIC,
            "the server's statistics page is of another version"
        );
        anyhow::ensure!(
            (words.u32_at(offset_of!(StatsPage, tier_count)) as usize)
                <= terrace_control::settings::MAX_TIERS,
            "it is damaged"
        );
        Ok(words)
    }

    /// Bytes that the budget is about: managed pages in DRAM, pools, overhead.
    pub fn physical_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.read()?.u64_at(offset_of!(StatsPage, physical_bytes)))
    }

    /// The highest that Terrace's own tables, buffers and threads took, bytes; 0 before its threads
    /// run.
    pub fn overhead_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.read()?.u64_at(offset_of!(StatsPage, peak_overhead_bytes)))
    }

    /// An error if Terrace does not manage the process: then there is nothing to compare.
    pub fn expect_managed(&self) -> anyhow::Result<()> {
        let state = State::from_number(self.read()?.u32_at(offset_of!(StatsPage, state)));
        anyhow::ensure!(
            state == State::Active,
            "Terrace is {state:?} in the server, not active: see `terrace doctor`"
        );
        Ok(())
    }
}
