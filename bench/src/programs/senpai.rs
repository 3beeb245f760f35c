//! The peer of `--slowdown`: a control group's limit that follows the pressure on its memory, over
//! zram. It is in the manner of senpai (Weiner et al., *TMO: Transparent Memory Offloading in
//! Datacenters*, ASPLOS 2022, §3.3).
//!
//! Memory groups of version 1 have no pressure of their own. There the processes are in a group of
//! version 2 as well, for its `memory.pressure`. Like Terrace, the peer takes nothing before memory
//! has stopped growing, looks once a second, and takes 3 % in a second at most. The published
//! settings (1 % in six seconds) are for services that run for weeks.

use crate::servers::group::Group;
use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_testkit::group;

const EVERY: Duration = Duration::from_secs(1);
/// Number of looks for which the limit is not lowered after it was raised.
const GRACE: u32 = 5;
const PROBE_MOST: f64 = 0.03;
const PROBE_COEFFICIENT: f64 = 10.0;
const BACKOFF_MOST: f64 = 1.0;
const BACKOFF_COEFFICIENT: f64 = 20.0;
/// Share above what memory was [`GROWS_WITHIN`] ago, from which on it counts as growing.
const GROWS: f64 = 0.02;
const GROWS_WITHIN: Duration = Duration::from_secs(5);

/// A limit that follows pressure.
pub struct Senpai {
    /// Share of time that some process may wait for memory.
    target: f64,
    pressure: PathBuf,
    /// The group that was made for its pressure.
    made: Option<PathBuf>,
    waited_us: u64,
    looked: Instant,
    grace: u32,
    /// What was in use at the looks of the last seconds.
    used: Vec<(Instant, u64)>,
    limit: Option<f64>,
}

impl Senpai {
    /// Makes a limit that keeps to a pressure.
    pub fn new(target: f64) -> Senpai {
        Senpai {
            target,
            pressure: PathBuf::new(),
            made: None,
            waited_us: 0,
            looked: Instant::now(),
            grace: 0,
            used: Vec::new(),
            limit: None,
        }
    }

    /// Watches the processes of a memory group. A group of version 1 tells of no pressure, so
    /// another is made for that. Then the result is the file where a process writes `0` to join
    /// that one as well.
    pub fn watch(&mut self, group: &Group) -> anyhow::Result<Option<PathBuf>> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        self.pressure = group.pressure_file();
        if !self.pressure.exists() {
            let root = Path::new("/sys/fs/cgroup/unified");
            let count = COUNT.fetch_add(1, Relaxed);
            let made = root.join(format!("terrace-bench-senpai-{}-{count}", std::process::id()));
            fs::create_dir(&made)
                .with_context(|| format!("cannot make {} (mount -t cgroup2)", made.display()))?;
            self.pressure = made.join("memory.pressure");
            self.made = Some(made);
        }
        self.waited_us = self.read_waited_us()?;
        Ok(self.made.as_ref().map(|made| made.join("cgroup.procs")))
    }

    fn read_waited_us(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string(&self.pressure)
            .context("no pressure of a control group (CONFIG_PSI, psi=1)")?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "));
        let total = some.and_then(|line| line.split_once("total=")?.1.trim().parse().ok());
        total.context("memory.pressure has a line `some … total=`")
    }

    /// The limit for what is in use now, bytes; `None` while there is none.
    pub fn limit(&mut self, used: u64) -> anyhow::Result<Option<u64>> {
        let now = Instant::now();
        if now - self.looked >= EVERY {
            let waited_us = self.read_waited_us()?;
            let waited =
                (waited_us - self.waited_us) as f64 / (now - self.looked).as_micros() as f64;
            (self.waited_us, self.looked) = (waited_us, now);
            self.used.push((now, used));
            self.used.retain(|(then, _)| now - *then <= GROWS_WITHIN + EVERY / 2);
            self.adjust(waited, used as f64);
        }
        Ok(self.limit.map(|limit| limit as u64))
    }

    fn adjust(&mut self, waited: f64, used: f64) {
        let Some(limit) = self.limit else {
            let (oldest, least) = self.used[0];
            let is_known = self.looked - oldest >= GROWS_WITHIN - EVERY;
            self.limit = (is_known && used <= least as f64 * (1.0 + GROWS)).then_some(used);
            return;
        };
        let change = if waited > self.target {
            self.grace = GRACE;
            (waited / self.target / BACKOFF_COEFFICIENT).powi(2).min(BACKOFF_MOST)
        } else if self.grace > 0 {
            self.grace -= 1;
            0.0
        } else {
            let below = self.target / waited.max(1e-6);
            -(below / PROBE_COEFFICIENT).powi(2).min(PROBE_MOST)
        };
        self.limit = Some(limit.min(used * (1.0 + GROWS)) * (1.0 + change));
    }
}

impl Drop for Senpai {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            group::remove(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(target: f64) -> Senpai {
        let mut senpai = Senpai::new(target);
        senpai.limit = Some(1000.0);
        senpai
    }

    #[test]
    fn the_limit_falls_while_nobody_waits_and_rises_where_somebody_does() {
        let mut senpai = settled(0.01);
        senpai.adjust(0.0, 1000.0);
        assert_eq!(senpai.limit, Some(970.0));
        // A little below the target hardly anything is taken.
        senpai.adjust(0.009, 970.0);
        assert!(senpai.limit.is_some_and(|limit| limit > 955.0), "{:?}", senpai.limit);
        let before = senpai.limit.unwrap_or(0.0);
        senpai.adjust(0.2, before);
        assert!(senpai.limit.is_some_and(|limit| limit > before * 1.9), "{:?}", senpai.limit);
        // Then it rests.
        let raised = senpai.limit.unwrap_or(0.0);
        senpai.adjust(0.0, raised);
        assert_eq!(senpai.limit, Some(raised));
    }
}
