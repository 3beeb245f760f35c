//! A memory control group below the one that this process is in, of version 1 or 2.

use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the last processes of a group may take to end.
const REMOVE_WITHIN: Duration = Duration::from_secs(5);

/// Removes the directory of a control group, as soon as its last processes have ended.
pub fn remove(path: &Path) {
    let deadline = Instant::now() + REMOVE_WITHIN;
    while fs::remove_dir(path).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A group without processes, removed when this is dropped.
pub struct MemoryGroup {
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl MemoryGroup {
    /// Makes a group, whose name begins with `name`. The error says what is missing.
    pub fn create(name: &str) -> anyhow::Result<MemoryGroup> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let parent = parent()?;
        let number = COUNT.fetch_add(1, Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", process::id()));
        fs::create_dir(&path).with_context(|| {
            format!("cannot make a control group in {}; be root", parent.display())
        })?;
        let (limit, usage) = match path.join("memory.limit_in_bytes").exists() {
            true => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            false => ("memory.max", "memory.current"),
        };
        let group = MemoryGroup { path, limit, usage };
        if !group.limit_file().exists() {
            bail!(
                "no memory controller in {}: enable it (cgroup.subtree_control)",
                parent.display()
            );
        }
        Ok(group)
    }

    /// Makes a group as [`MemoryGroup::create`] does, limited to `bytes`.
    pub fn limited(name: &str, bytes: u64) -> anyhow::Result<MemoryGroup> {
        let group = MemoryGroup::create(name)?;
        fs::write(group.limit_file(), bytes.to_string()).context("the group takes no limit")?;
        Ok(group)
    }

    /// Directory of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// File that holds the group's limit, bytes.
    pub fn limit_file(&self) -> PathBuf {
        self.path.join(self.limit)
    }

    /// File that tells the group's usage, bytes.
    pub fn usage_file(&self) -> PathBuf {
        self.path.join(self.usage)
    }

    /// File to which a process writes `0` to join.
    pub fn processes_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The directory of this process's own group.
fn parent() -> anyhow::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let parts = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let own = |controller: &str| {
        parts
            .clone()
            .find(|(names, _)| names.split(',').any(|name| name == controller))
            .map(|(_, path)| path)
    };
    Ok(match (own("memory"), own("")) {
        (Some(path), _) => Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')),
        (None, path) => {
            Path::new("/sys/fs/cgroup").join(path.unwrap_or_default().trim_start_matches('/'))
        }
    })
}
