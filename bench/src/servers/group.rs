//! The memory control group of one server: its limit is lowered by steps, and its usage read.

use crate::interrupt;
use anyhow::Context;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_testkit::group::MemoryGroup;

/// Share of its first value by which the group's limit is lowered at a time. With larger steps the
/// kernel ends the server instead of reclaiming (memcached, from 80 to 50 %).
const STEP_SHARE: f64 = 0.02;
/// Bytes that a group whose processes wait for memory is given for a moment: see [`Group::help`].
const HELP_BYTES: u64 = 1 << 20;
const LOWER_WITHIN: Duration = Duration::from_secs(120);

/// The memory control group of a server.
pub struct Group(MemoryGroup);

impl Group {
    /// Makes a group.
    pub fn create() -> anyhow::Result<Group> {
        let group = Group(MemoryGroup::create("terrace-bench")?);
        // Only groups of version 1 can wait.
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

    /// File in which the kernel tells how long the group's processes waited for memory; groups of
    /// version 1 have no such file.
    pub fn pressure_file(&self) -> PathBuf {
        self.0.path().join("memory.pressure")
    }

    /// Reader of the group's usage.
    pub fn meter(&self) -> Meter {
        Meter(self.0.usage_file())
    }

    /// Gives the group a little more room for a moment, if its processes wait for memory. The
    /// kernel gives up reclaiming for memcached now and then, though all of its memory could be
    /// swapped (Linux 6.18). With version 1 of control groups it can be asked to have the server
    /// wait instead of ending it. The server goes on with a little more room, which is taken back
    /// at once.
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

    /// Sets the group's limit, if the kernel can reclaim that much now.
    pub fn limit(&self, bytes: u64) {
        let _ = fs::write(self.0.limit_file(), bytes.to_string());
    }

    /// Lowers the group's limit, by steps, to `bytes`. `alive` is an error when the group's server
    /// is not there any more.
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
            // Version 1 says EBUSY while the kernel cannot reclaim that much.
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
    /// Memory that is charged now, bytes.
    pub fn usage_bytes(&self) -> anyhow::Result<u64> {
        Ok(fs::read_to_string(&self.0).context("the control group is gone")?.trim().parse()?)
    }
}
