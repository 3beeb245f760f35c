//! `--wake-latency`: while pages are restored by faults, idle CPUs of the machine wake fast.
//!
//! A thread that faults sleeps until a handler has its page in place. Where a CPU is idle the
//! scheduler wakes the one there, and then the other. Out of a deep sleep, or in a virtual machine
//! by way of the host, that takes longer than all else in a fault: 34 of 44 µs
//! (`docs/notes/2026-11-27-benchmarks.md`, *Steps of a fault*).
//!
//! What the kernel has against that is a request for a latency, `/dev/cpu_dma_latency`. Idle CPUs
//! then sleep no deeper than what they wake from within that many µs, and with 0 not at all. The
//! request holds while the descriptor is open, so nothing is left behind, however `terrace run`
//! ends. It costs power on all CPUs, so it is made only while there are faults.

use crate::processes::process::cpu_time;
use crate::processes::statistics;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use terrace_control::settings::SettingError;

/// The kernel's file of requests: each open descriptor is one, and 32 bits written to it are its
/// latency in µs (Linux, `Documentation/power/pm_qos_interface.rst`).
const REQUESTS: &str = "/dev/cpu_dma_latency";
/// Written by a process that requests nothing for now.
const NOTHING: i32 = -1;
/// Time between polls of the count of faults, which processes tell ten times a second. A poll takes
/// at most one part in `POLL_SHARE` of a CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_SHARE: u32 = 64;
/// Faults a second from which on a latency is requested: a fault saves 34 µs, so that is 3 % of a
/// thread's time.
const FAULTS_PER_S: f64 = 1_000.0;
/// Time for which the request stays after there were fewer faults.
const CALM: Duration = Duration::from_millis(500);
/// Directory where the kernel names the driver and the governor that put idle CPUs to sleep.
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";
/// Longer than any CPU takes to wake, µs.
const LATENCY_MAX_US: i32 = 1_000_000;

/// How long an idle CPU may take to wake (`--wake-latency`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WakeLatency {
    /// Idle CPUs take as long as the machine has it.
    #[default]
    Off,
    /// Idle CPUs take at most this many µs while pages are restored by faults.
    Within(i32),
}

impl FromStr for WakeLatency {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "off" => Ok(WakeLatency::Off),
            number => match number.parse() {
                Ok(us @ 0..=LATENCY_MAX_US) => Ok(WakeLatency::Within(us)),
                _ => Err(SettingError(format!(
                    "`{text}` is no latency: write off, or how many µs an idle CPU may take to wake, 0 to {LATENCY_MAX_US}"
                ))),
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

/// A request for a latency that is made while pages are restored.
pub struct Wakefulness {
    run_dir: PathBuf,
    request: File,
    latency_us: i32,
    demand: Demand,
}

impl Wakefulness {
    /// A request for the processes that put their pages into `run_dir`. `Err` says what is missing,
    /// what that costs and how to get it.
    pub fn begin(latency_us: i32, run_dir: &Path) -> Result<Wakefulness, String> {
        let request = File::options().write(true).open(REQUESTS).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EACCES) => {
                    "run terrace as root, or as a user who may write to that file"
                }
                Some(libc::EPERM) => "allow that device in the container",
                _ => "it takes a kernel with CONFIG_CPU_IDLE, and that file in the container",
            };
            no_effect(&format!("{REQUESTS} cannot be opened ({error})"), remedy)
        })?;
        let told = |name: &str| {
            fs::read_to_string(Path::new(CPUIDLE).join(name))
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        if told("current_driver") == "none" {
            return Err(no_effect(
                "no cpuidle driver knows how fast this machine's CPUs wake",
                "in a virtual machine the driver haltpoll does, if the kernel has it",
            ));
        }
        if latency_us > 0
            && [told("current_driver"), told("current_governor")]
                .iter()
                .any(|name| name == "haltpoll")
        {
            return Err(no_effect(
                "the virtual machine's haltpoll knows no other latency than 0",
                "write --wake-latency 0",
            ));
        }
        Ok(Wakefulness {
            run_dir: run_dir.to_owned(),
            request,
            latency_us,
            demand: Demand::default(),
        })
    }

    /// Looks how many faults there were, and requests what is to be had or takes that back. Returns
    /// when to poll again.
    pub fn poll(&mut self) -> Duration {
        let begun = cpu_time();
        let images =
            statistics::page_files(&self.run_dir).filter_map(|file| statistics::read_image(&file));
        let faults = images.map(|image| image.served_faults).sum();
        if let Some(wanted) = self.demand.is_wanted(Instant::now(), faults) {
            self.request(wanted);
        }
        POLL_INTERVAL.max((cpu_time() - begun) * POLL_SHARE)
    }

    /// Takes the request back until there are faults again: there is no look for a while.
    pub fn rest(&mut self) {
        if self.demand.rest(Instant::now()) {
            self.request(false);
        }
    }

    fn request(&mut self, wanted: bool) {
        let latency_us = if wanted { self.latency_us } else { NOTHING };
        // It was opened for writing: there is no other reason to refuse than a latency out of
        // bounds.
        let _ = self.request.write_all(&latency_us.to_ne_bytes());
    }

    /// How long the latency was requested.
    pub fn held(&self) -> Duration {
        self.demand.held + self.demand.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

fn no_effect(why: &str, remedy: &str) -> String {
    format!(
        "--wake-latency has no effect: {why}, so who faults may wait for an idle CPU to wake; {remedy}"
    )
}

/// When a fast wake-up pays.
#[derive(Default)]
struct Demand {
    /// The last poll, and how many faults there had been.
    polled: Option<(Instant, u64)>,
    /// When there were many last.
    busy: Option<Instant>,
    /// Since when the latency is requested.
    since: Option<Instant>,
    /// How long the latency was requested before.
    held: Duration,
}

impl Demand {
    /// Notes that there have been `faults` faults in all. Returns whether to request the latency
    /// from now on, if that has changed.
    fn is_wanted(&mut self, now: Instant, faults: u64) -> Option<bool> {
        let (before, faults_before) = self.polled.replace((now, faults))?;
        let faults_per_s =
            faults.saturating_sub(faults_before) as f64 / (now - before).as_secs_f64().max(1e-3);
        if faults_per_s >= FAULTS_PER_S {
            self.busy = Some(now);
        }
        let wanted = self.busy.is_some_and(|busy| now - busy < CALM);
        match (wanted, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(_)) => _ = self.let_go(now),
            _ => return None,
        }
        Some(wanted)
    }

    /// Forgets what is known. Returns whether the latency was requested.
    fn rest(&mut self, now: Instant) -> bool {
        (self.polled, self.busy) = (None, None);
        self.let_go(now)
    }

    /// Requests no latency from now on. Returns whether it was requested.
    fn let_go(&mut self, now: Instant) -> bool {
        let since = self.since.take();
        self.held += since.map_or(Duration::ZERO, |since| now - since);
        since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_requested_while_there_are_faults_and_a_while_longer() {
        let mut demand = Demand::default();
        let start = Instant::now();
        let mut look =
            |ms: u64, faults| demand.is_wanted(start + Duration::from_millis(ms), faults);
        // Those before the first poll: it is not known when.
        assert_eq!(look(0, 1_000_000), None);
        assert_eq!(look(100, 1_000_050), None);
        assert_eq!(look(200, 1_000_200), Some(true));
        assert_eq!(look(300, 1_000_200), None);
        assert_eq!(look(600, 1_000_200), None);
        assert_eq!(look(700, 1_000_200), Some(false));
        assert_eq!(look(800, 1_000_200), None);
        // A process's page is gone.
        assert_eq!(look(900, 200), None);
        assert_eq!(look(1000, 400), Some(true));
        assert_eq!(demand.held, Duration::from_millis(500));
        // There is no look for an hour.
        assert!(
            demand.rest(start + Duration::from_millis(1100))
                && !demand.rest(start + Duration::from_millis(1200))
        );
        assert_eq!(demand.held, Duration::from_millis(600));
        let mut look =
            |ms: u64, faults| demand.is_wanted(start + Duration::from_millis(ms), faults);
        assert_eq!(
            (look(3_600_000, 100_000), look(3_600_100, 100_000), look(3_600_200, 100_200)),
            (None, None, Some(true))
        );
    }

    #[test]
    fn latencies_are_read_and_written() {
        for (text, latency) in [
            ("off", WakeLatency::Off),
            ("0", WakeLatency::Within(0)),
            ("1000000", WakeLatency::Within(1_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(latency));
            assert_eq!(latency.to_string(), text);
        }
        for text in ["", "on", "-1", "1000001", "5us", "0.5"] {
            assert!(text.parse::<WakeLatency>().unwrap_err().0.contains("write off"), "{text}");
        }
    }
}
