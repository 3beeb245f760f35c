//! `--wake-latency`: while pages come back by faults, idle CPUs of the machine wake fast.
//!
//! A thread that faults sleeps until a handler has its page in place. Where a CPU is idle the scheduler wakes the one there, and then the other: out of a deep sleep, or in a
//! virtual machine by way of the host, that takes longer than all else that a fault is made of (docs/benchmarks.md, *Steps of a fault*: 34 of 44 µs). What the kernel has
//! against that is a request for a latency, `/dev/cpu_dma_latency`: idle CPUs then sleep no deeper than what they wake from within so many µs, and with 0 not at all. It holds while
//! the descriptor is open, so nothing is left behind, however `terrace run` ends. Since that costs power on all CPUs, it is asked for only while there are faults.

use crate::figures;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use terrace_pager::settings::SettingError;

/// The kernel's file of requests: each open descriptor is one, and 32 bits written to it are its latency in µs (Linux, `Documentation/power/pm_qos_interface.rst`).
const REQUESTS: &str = "/dev/cpu_dma_latency";
/// Written by who requests nothing for now.
const NOTHING: i32 = -1;
/// Between looks at how many pages came back.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From so many a second on, which makes 3 % of a thread's time of what a fault saves (34 µs).
const PAGES_PER_S: f64 = 1_000.0;
/// And until so long after there were fewer.
const CALM: Duration = Duration::from_millis(500);
/// Longer than any CPU takes to wake, µs.
const LATENCY_MAX_US: i32 = 1_000_000;

/// How long an idle CPU may take to wake (`--wake-latency`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeLatency {
    /// As long as the machine has it.
    #[default]
    Off,
    /// So many µs at most while pages come back by faults.
    Within(i32),
}

impl FromStr for WakeLatency {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "off" => Ok(WakeLatency::Off),
            number => match number.parse() {
                Ok(us @ 0..=LATENCY_MAX_US) => Ok(WakeLatency::Within(us)),
                _ => Err(SettingError(format!("`{text}` is no latency: write off, or how many µs an idle CPU may take to wake, 0 to {LATENCY_MAX_US}"))),
            },
        }
    }
}

impl fmt::Display for WakeLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WakeLatency::Off => f.write_str("off"),
            WakeLatency::Within(us) => us.fmt(f),
        }
    }
}

/// A request for a latency that is made while pages come back.
pub struct Wakefulness {
    run_dir: PathBuf,
    request: File,
    latency_us: i32,
    demand: Demand,
}

impl Wakefulness {
    /// For the processes that put their pages into `run_dir`. `Err` says what is missing, what that costs and how to get it.
    pub fn begin(latency_us: i32, run_dir: &Path) -> Result<Wakefulness, String> {
        let request = File::options().write(true).open(REQUESTS).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => "run terrace as root, or as a user who may write to that file",
                _ => "it takes a kernel with CONFIG_CPU_IDLE, and that file in the container",
            };
            format!("--wake-latency has no effect: {REQUESTS} cannot be opened ({error}), so who faults may wait for an idle CPU to wake; {remedy}")
        })?;
        Ok(Wakefulness { run_dir: run_dir.to_owned(), request, latency_us, demand: Demand::default() })
    }

    /// Looks how many pages came back, and requests what is to be had or takes that back. Returns when to look again.
    pub fn look(&mut self) -> Duration {
        let images = figures::page_files(&self.run_dir).filter_map(|file| figures::read_image(&file));
        let pages = images.map(|image| image.promoted_pages).sum();
        if let Some(wanted) = self.demand.is_wanted(Instant::now(), pages) {
            let latency_us = if wanted { self.latency_us } else { NOTHING };
            // It was opened for writing: there is no other reason to refuse than a latency out of bounds.
            let _ = self.request.write_all(&latency_us.to_ne_bytes());
        }
        LOOK_EVERY
    }

    /// How long it was requested.
    pub fn end(self) -> Duration {
        self.demand.held + self.demand.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// When a fast wake-up pays.
#[derive(Default)]
struct Demand {
    /// The last look, and how many pages had come back.
    looked: Option<(Instant, u64)>,
    /// When many came back last.
    busy: Option<Instant>,
    /// Since when it is requested.
    since: Option<Instant>,
    /// How long it was, before.
    held: Duration,
}

impl Demand {
    /// So many pages have come back in all: whether to request it from now on, if that is another thing than before.
    fn is_wanted(&mut self, now: Instant, pages: u64) -> Option<bool> {
        let (before, pages_before) = self.looked.replace((now, pages))?;
        let pages_per_s = pages.saturating_sub(pages_before) as f64 / (now - before).as_secs_f64().max(1e-3);
        if pages_per_s >= PAGES_PER_S {
            self.busy = Some(now);
        }
        let wanted = self.busy.is_some_and(|busy| now - busy < CALM);
        match (wanted, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.held += now - since;
                self.since = None;
            }
            _ => return None,
        }
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_requested_while_pages_come_back_and_a_while_longer() {
        let mut demand = Demand::default();
        let start = Instant::now();
        let mut look = |ms: u64, pages| demand.is_wanted(start + Duration::from_millis(ms), pages);
        // All that came back before the first look: nobody knows when.
        assert_eq!(look(0, 1_000_000), None);
        assert_eq!(look(100, 1_000_050), None);
        assert_eq!(look(200, 1_000_200), Some(true));
        assert_eq!(look(300, 1_000_200), None);
        assert_eq!(look(600, 1_000_200), None);
        assert_eq!(look(700, 1_000_200), Some(false));
        assert_eq!(look(800, 1_000_200), None);
        // Somebody's page is gone.
        assert_eq!(look(900, 200), None);
        assert_eq!(look(1000, 400), Some(true));
        assert_eq!(demand.held, Duration::from_millis(500));
    }

    #[test]
    fn latencies_are_read_and_written() {
        for (text, latency) in [("off", WakeLatency::Off), ("0", WakeLatency::Within(0)), ("1000000", WakeLatency::Within(1_000_000))] {
            assert_eq!(text.parse(), Ok(latency));
            assert_eq!(latency.to_string(), text);
        }
        for text in ["", "on", "-1", "1000001", "5us", "0.5"] {
            assert!(text.parse::<WakeLatency>().unwrap_err().0.contains("write off"), "{text}");
        }
    }
}
