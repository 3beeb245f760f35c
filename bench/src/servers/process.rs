//! Readings of a process from outside: CPU time by thread, faults, memory; and Terrace's own
//! counters from its statistics page.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;
use std::time::Duration;
use terrace_control::stats::{MAGIC, State, StatsFile, StatsPage, TierPage};
use terrace_testkit::process::{Stat, bytes_in, children, companion, file, status_bytes, threads};

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

/// CPU seconds of a whole process, and of Terrace's process beside it.
pub fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let beside = companion(pid).and_then(|companion| Stat::of(companion).ok());
    Ok((Stat::of(pid)?.cpu + beside.map_or(Duration::ZERO, |stat| stat.cpu)).as_secs_f64())
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
    for thread in threads(pid).with_context(|| format!("process {pid} is gone"))? {
        // One that has just ended has none.
        let Ok(text) = fs::read_to_string(thread.join("schedstat")) else { continue };
        time += Duration::from_nanos(
            text.split_whitespace().next().context("an empty schedstat")?.parse()?,
        );
    }
    Ok(time)
}

/// All counters now; `page` is Terrace's statistics page of that process.
pub fn counters(pid: u32, page: Option<&Page>) -> anyhow::Result<Counters> {
    let major_faults = Stat::of(pid)?.major_faults;
    let mut counters = Counters { cpu_s: cpu_s(pid)?, major_faults, ..Counters::default() };
    let beside = companion(pid).and_then(|companion| threads(companion).ok());
    for thread in beside.into_iter().flatten() {
        let Ok(name) = fs::read_to_string(thread.join("comm")) else { continue };
        let Ok(stat) = fs::read_to_string(thread.join("stat")) else { continue };
        if name.starts_with("terrace-")
            && let Ok(stat) = Stat::parse(&stat)
        {
            let cpu_s = counters.terrace_cpu_s.entry(name.trim().to_owned()).or_default();
            *cpu_s += stat.cpu.as_secs_f64();
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
    let text = file(pid, "smaps_rollup").context("cannot read smaps_rollup")?;
    Ok(move |name: &str| bytes_in(&text, name).map_or(0.0, |bytes| bytes as f64))
}

/// Memory that a process takes, bytes: its pages, shared ones in part, and page tables.
pub fn memory(pid: u32) -> anyhow::Result<f64> {
    let tables = status_bytes(pid, "VmPTE")
        .with_context(|| format!("process {pid} is gone, or has no VmPTE"))?;
    Ok(rollup(pid)?("Pss") + tables as f64)
}

/// The first child of a process.
pub fn child(pid: u32) -> Option<u32> {
    children(pid).first().copied()
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
        let maps = file(pid, "maps").context("the server is gone")?;
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
