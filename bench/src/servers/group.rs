//! A memory control group of one server's, below the one that the benchmark runs in. Removed when
//! dropped, once its processes are gone.

use crate::interrupt;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The group's limit is lowered by this share of where it began at a time: much at once and the
/// kernel ends the server instead of reclaiming (memcached, from 80 to 50 %).
const STEP_SHARE: f64 = 0.02;
/// Given for a moment to a group whose processes wait for memory: see [`Group::help`].
const HELP_BYTES: u64 = 1 << 20;
const LOWER_WITHIN: Duration = Duration::from_secs(120);
const REMOVE_WITHIN: Duration = Duration::from_secs(3);

const OOM_CONTROL: &str = "memory.oom_control";

/// A group.
pub struct Group {
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl Group {
    /// Makes one.
    pub fn create() -> anyhow::Result<Group> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let parts = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let own = |controller: &str| {
            parts
                .clone()
                .find(|(names, _)| names.split(',').any(|name| name == controller))
                .map(|(_, path)| path)
        };
        let parent = match (own("memory"), own("")) {
            (Some(path), _) => {
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'))
            }
            (None, path) => {
                Path::new("/sys/fs/cgroup").join(path.unwrap_or_default().trim_start_matches('/'))
            }
        };
        let path = parent.join(format!(
            "terrace-bench-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        ));
        fs::create_dir(&path).with_context(|| {
            format!("cannot make a control group in {}; be root", parent.display())
        })?;
        let (limit, usage) = match path.join("memory.limit_in_bytes").exists() {
            true => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            false => ("memory.max", "memory.current"),
        };
        let group = Group { path, limit, usage };
        if !group.path.join(limit).exists() {
            bail!(
                "no memory controller in {}: enable it (cgroup.subtree_control)",
                parent.display()
            );
        }
        // Version 1 alone can.
        if group.path.join(OOM_CONTROL).exists() {
            fs::write(group.path.join(OOM_CONTROL), "1")?;
        }
        Ok(group)
    }

    /// Where a process writes `0` to join.
    pub fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Where the kernel tells how long its processes waited for memory; groups of version 1 have
    /// no such file.
    pub fn pressure_file(&self) -> PathBuf {
        self.path.join("memory.pressure")
    }

    /// What reads its usage.
    pub fn meter(&self) -> Meter {
        Meter(self.path.join(self.usage))
    }

    /// The kernel gives up reclaiming for memcached now and then, though all of its memory could be
    /// swapped (Linux 6.18). Instead of ending it, it is to wait (of version 1 that can be
    /// asked), and goes on as soon as there is a little more room, which is taken back at once.
    pub fn help(&self) {
        let waits = fs::read_to_string(self.path.join(OOM_CONTROL))
            .is_ok_and(|told| told.lines().any(|line| line == "under_oom 1"));
        if !waits {
            return;
        }
        let limit = self.path.join(self.limit);
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
        let _ = fs::write(self.path.join(self.limit), bytes.to_string());
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
            while let Err(error) = fs::write(self.path.join(self.limit), next.to_string()) {
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

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        // A process that was just waited for may still be on its way out of it.
        while fs::remove_dir(&self.path).is_err() && begun.elapsed() < REMOVE_WITHIN {
            std::thread::sleep(interrupt::LOOK_EVERY);
        }
    }
}
