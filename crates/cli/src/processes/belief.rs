//! What is believed of a statistics page: no more than /proc says of its process.
//!
//! A page is a file that its process may write, so a process can tell anything in it. What it had
//! in memory is bounded by its resident memory and what the kernel swapped out; times by how long
//! it lives. How much data that is cannot be known by /proc, but each page that is evicted takes a
//! word of its memory. Counts (of faults, of moved pages) are believed: nothing is decided by them.

use crate::doctor;
use crate::processes::statistics::ProcessStats;

/// Most data for each byte of a process's memory: a page that is out takes a word of 8 bytes.
const DATA_MOST: u64 = 512;
/// Most data for each byte of memory that a budget is divided by: what compresses better needs no
/// share of its size.
const DEMAND_MOST: u64 = 16;
/// Slack of what /proc says: it is a little old, and counted for each CPU apart.
const SLACK_BYTES: u64 = 4 << 20;
const SLACK_SHARE: u64 = 16;
/// Most threads that a process is believed to have had if it was never seen.
const THREADS_MOST: u64 = 1024;
/// Most memory that a process takes in a second, bytes.
const GROWTH_PER_S: f64 = (2u64 << 30) as f64;

/// Memory that tiers of a run may take outside its processes: of files, which can be in memory.
pub fn elsewhere(tiers: &str) -> u64 {
    if tiers.contains('@') { doctor::machine_memory().unwrap_or(u64::MAX >> 1) } else { 0 }
}

/// Whether any tier below DRAM takes single pages, and so no huge ones.
pub fn takes_single_pages(tiers: &str) -> bool {
    tiers.trim() == "auto" || tiers.split(',').skip(1).any(|tier| !tier.starts_with("node:"))
}

/// The most that is believed of memory, if the kernel says `bytes`.
pub fn memory(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / SLACK_SHARE + SLACK_BYTES)
}

/// The most data that a budget is divided by.
pub fn demand(bytes: u64) -> u64 {
    memory(bytes).saturating_mul(DEMAND_MOST)
}

/// What the kernel said of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Most memory of the process, resident and swapped, bytes.
    pub bytes: u64,
    /// How long it lived.
    pub seconds: f64,
    /// Most of its threads at a time.
    pub threads: u64,
    /// Whether it told more than there was, when both were looked at.
    pub lied: bool,
    /// How long it may have lived after it was looked at last.
    pub unseen_s: f64,
}

impl Bounds {
    /// Bounds for a process that was never seen, in a run of `seconds` seconds.
    pub fn of_nobody(seconds: f64) -> Bounds {
        let bytes = doctor::machine_memory().unwrap_or(u64::MAX >> 10);
        Bounds { bytes, seconds, threads: THREADS_MOST, lied: false, unseen_s: 0.0 }
    }

    /// The figures, as far as they are believed.
    pub fn apply(&self, figures: &ProcessStats) -> ProcessStats {
        let grown = if self.lied { 0.0 } else { self.unseen_s * GROWTH_PER_S };
        let memory = memory(self.bytes).saturating_add(grown as u64);
        let data = memory.saturating_mul(DATA_MOST);
        let seconds = self.seconds + self.unseen_s;
        let ms = (seconds * 1e3) as u64;
        let ns = (seconds * 1e9) as u64;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let mut figures = figures.clone();
        let most = |fields: &mut [&mut u64], most: u64| {
            fields.iter_mut().for_each(|field| **field = most.min(**field))
        };
        most(
            &mut [
                &mut figures.mean_physical_bytes,
                &mut figures.peak_physical_bytes,
                &mut figures.mean_overhead_bytes,
                &mut figures.peak_overhead_bytes,
                &mut figures.mean_unmanaged_bytes,
                &mut figures.floor_bytes,
            ],
            memory,
        );
        most(&mut [&mut figures.mean_logical_bytes, &mut figures.peak_logical_bytes], data);
        most(
            &mut [
                &mut figures.mean_window_ms,
                &mut figures.over_budget_ms,
                &mut figures.far_over_budget_ms,
                &mut figures.floor_ms,
            ],
            ms,
        );
        most(&mut [&mut figures.updated_ns], figures.started_ns.saturating_add(ns));
        most(&mut [&mut figures.counts.stall_ns], ns.saturating_mul(self.threads.max(1)));
        most(&mut [&mut figures.counts.lost_ns, &mut figures.last_minute_ns], ns);
        most(&mut [&mut figures.last_minute_lost_ns], figures.last_minute_ns);
        most(&mut [&mut figures.counts.cpu_ns], ns.saturating_mul(cpus));
        most(&mut [&mut figures.counts.shared_pages], memory / 4096);
        for tier in &mut figures.tiers {
            most(&mut [&mut tier.physical_bytes], memory);
            most(&mut [&mut tier.logical_bytes], data);
            most(&mut [&mut tier.pages], data / 4096);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::statistics::samples::active;

    #[test]
    fn an_honest_page_is_believed_as_it_is() {
        let honest = ProcessStats { mean_unmanaged_bytes: 12 << 20, ..active(7) };
        let seen =
            Bounds { bytes: 2_100_000_000, seconds: 61.0, threads: 4, lied: false, unseen_s: 0.0 };
        assert_eq!(seen.apply(&honest), honest);
        // It grew after it was looked at last.
        let before = Bounds { bytes: 1_900_000_000, seconds: 60.5, unseen_s: 0.5, ..seen };
        assert_eq!(before.apply(&honest), honest);
    }

    #[test]
    fn what_proc_does_not_bear_out_is_not_believed() {
        let mut lie = ProcessStats {
            mean_logical_bytes: 1 << 50,
            mean_physical_bytes: 1 << 50,
            peak_physical_bytes: u64::MAX,
            mean_window_ms: u64::MAX,
            far_over_budget_ms: u64::MAX,
            updated_ns: u64::MAX,
            ..active(7)
        };
        lie.counts.stall_ns = u64::MAX;
        (lie.counts.lost_ns, lie.counts.cpu_ns) = (u64::MAX, u64::MAX);
        lie.tiers[1].physical_bytes = u64::MAX;
        let believed =
            Bounds { bytes: 4 << 20, seconds: 2.0, threads: 3, lied: true, unseen_s: 0.5 }
                .apply(&lie);
        let most = memory(4 << 20);
        assert_eq!(
            (
                believed.peak_physical_bytes,
                believed.mean_physical_bytes,
                believed.tiers[1].physical_bytes
            ),
            (most, most, most)
        );
        assert!(believed.mean_logical_bytes <= most * 512);
        assert_eq!((believed.mean_window_ms, believed.far_over_budget_ms), (2_500, 2_500));
        assert_eq!(believed.counts.stall_ns, 7_500_000_000);
        assert_eq!(believed.counts.lost_ns, 2_500_000_000);
        assert!(believed.elapsed_s() <= 2.5 && believed.counts.cpu_ns < 2_500_000_000 * 10_000);
    }
}
