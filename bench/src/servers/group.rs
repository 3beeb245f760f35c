//! The memory control group of one server: its limit is lowered by steps, and its usage read.

use crate::interrupt;
use anyhow::Context;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_testkit::group::MemoryGroup;

/// The group's limit is lowered by this share of where it began at a time: much at once and the
/// kernel ends the server instead of reclaiming (memcached, from 80 to 50 %).
const STEP_SHARE: f64 = 0.02;
/// Given for a moment to a group whose processes wait for memory: see [`Group::help`].
const HELP_BYTES: u64 = 1 << 20;
const LOWER_WITHIN: Duration = Duration::from_secs(120);

/// A group.
pub struct Group(MemoryGroup);

impl Group {
    /// Makes one.
    pub fn create() -> anyhow::Result<Group> {
        let group = Group(MemoryGroup::create("terrace-bench")?);
        // Version 1 alone can.
        if group.oom_control().exists() {
            fs::write(group.oom_control(), "1")?;
        }
        Ok(group)
    }

    /// Where a process writes `0` to join.
    pub fn processes_file(&self) -> PathBuf {
        self.0.processes_file()
    }

    fn oom_control(&self) -> PathBuf {
        self.0.path().join("memory.oom_control")
    }

    /// Where the kernel tells how long its processes waited for memory; groups of version 1 have
    /// no such file.
    pub fn pressure_file(&self) -> PathBuf {
        self.0.path().join("memory.pressure")
    }

    /// What reads its usage.
    pub fn meter(&self) -> Meter {
        Meter(self.0.usage_file())
    }

    /// The kernel gives up reclaiming for memcached now and then, though all of its memory could be
    /// swapped (Linux 6.18). Instead of ending it, it is to wait (of version 1 that can be
    /// asked), and goes on as soon as there is a little more room, which is taken back at once.
    pub fn help(&self) {
        let waits = fs::read_to_string(self.oom_control())
            .is_ok_and(|told| told.lines().any(|line| line == "under_oom 1"));
        if !waits {
            return;
        }
        let limit = self.0.limit_file();
        if let Some(bytes) =
            fs::read_to_string(&limit).ok().and_then(|told| told.trim().parse::<u64>().ok())
        {
            let _ = fs::write(&limit, (bytes + HELP_BYTES).to_string());
            // It cannot, while much comes in: it has to in the end.
            while fs::write(&limit, bytes.to_string()).is_err() && !interrupt::came() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Sets its limit, if the kernel can reclaim so much now.
    pub fn limit(&self, bytes: u64) {
        let _ = fs::write(self.0.limit_file(), bytes.to_string());
    }

    /// Lowers its limit, by steps, to `bytes`. `alive` is an error when its server is not there any
    /// more.
    pub fn lower_to(
        &self,
        bytes: u64,
        mut alive: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let usage = self.meter().usage_bytes()?;
        let step = ((usage as f64 * STEP_SHARE) as u64).max(1 << 20);
        let mut next = usage;
        while next > bytes {
            next = next.saturating_sub(step).max(bytes);
            // Version 1 says EBUSY while it cannot reclaim so much.
            while let Err(error) = fs::write(self.0.limit_file(), next.to_string()) {
                alive()?;
                self.help();
                if begun.elapsed() > LOWER_WITHIN {
                    return Err(error).with_context(|| {
                        format!("cannot lower the limit from {usage} to {next} bytes")
                    });
                }
                interrupt::sleep(Duration::from_millis(50))?;
            }
            interrupt::sleep(Duration::from_millis(20))?;
            alive()?;
            self.help();
        }
        Ok(())
    }
}

/// Reads the memory charged to a group: resident pages, page cache, and what the kernel keeps for
/// it.
pub struct Meter(PathBuf);

impl Meter {
    /// Now.
    pub fn usage_bytes(&self) -> anyhow::Result<u64> {
        Ok(fs::read_to_string(&self.0).context("the control group is gone")?.trim().parse()?)
    }
}
