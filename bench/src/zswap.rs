//! zswap before a swap file, for the time of a benchmark, undone when dropped. The file is never written to while the pool has room.

use crate::zram::{Changed, no_other_swap, swap_off, swap_on};
use anyhow::{Context, bail};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PARAMETERS: &str = "/sys/module/zswap/parameters";

/// Active zswap. Fields are dropped in this order: the swap before the settings.
pub struct Zswap {
    _file: SwapFile,
    _settings: Vec<Changed>,
}

struct SwapFile {
    path: PathBuf,
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        swap_off(&self.path.to_string_lossy());
        let _ = fs::remove_file(&self.path);
    }
}

impl Zswap {
    /// Swaps to a file of so many bytes in the temporary directory, with an lz4 pool in front of it. `Err` says what is missing.
    pub fn swap_on(bytes: u64) -> anyhow::Result<Zswap> {
        if !Path::new(PARAMETERS).exists() {
            bail!("this kernel has no zswap");
        }
        no_other_swap()?;
        let mut settings = vec![Changed::to("/proc/sys/vm/page-cluster", "0")?];
        for (name, value) in [("compressor", "lz4"), ("max_pool_percent", "50"), ("shrinker_enabled", "N"), ("enabled", "Y")] {
            let path = format!("{PARAMETERS}/{name}");
            // The shrinker came later.
            if Path::new(&path).exists() {
                settings.push(Changed::to(&path, value)?);
            }
        }
        let file = SwapFile { path: std::env::temp_dir().join(format!("terrace-bench-{}.swap", std::process::id())) };
        let mut handle = File::create_new(&file.path).with_context(|| format!("cannot make {}", file.path.display()))?;
        handle.set_permissions(fs::Permissions::from_mode(0o600))?;
        // Written, not only allocated: not every file system swaps to what was never written.
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes.div_ceil(1 << 20) {
            handle.write_all(&zeros).with_context(|| format!("no room for {}; set TMPDIR to another file system", file.path.display()))?;
            crate::interrupt::check()?;
        }
        handle.sync_all()?;
        swap_on(&file.path.to_string_lossy())?;
        Ok(Zswap { _file: file, _settings: settings })
    }

    /// What its pool takes of memory.
    pub fn used_bytes(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Zswap:")).context("/proc/meminfo has no Zswap line")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}
