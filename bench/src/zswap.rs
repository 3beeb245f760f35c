//! zswap before a swap file, for the time of a benchmark, undone when dropped. The file is never
//! written to while the pool has room.

use anyhow::{Context, bail};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use terrace_testkit::zram::{Changed, no_other_swap, swap_off, swap_on};

const PARAMETERS: &str = "/sys/module/zswap/parameters";

/// Compressors in order of preference: the first that the kernel offers for zswap is used. All can
/// be used with zram as well.
const COMPRESSORS: [&str; 3] = ["lz4", "lzo-rle", "lzo"];

/// Active zswap. Fields are dropped in this order: the swap before the settings.
pub struct Zswap {
    /// Name of the algorithm that compresses.
    pub compressor: &'static str,
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
    /// Swaps to a file of this many bytes in the temporary directory, with a pool in front of it.
    /// `Err` says what is missing.
    pub fn swap_on(bytes: u64) -> anyhow::Result<Zswap> {
        if !Path::new(PARAMETERS).exists() {
            bail!("this kernel has no zswap");
        }
        no_other_swap()?;
        let mut settings = vec![Changed::to("/proc/sys/vm/page-cluster", "0")?];
        let path = |name: &str| format!("{PARAMETERS}/{name}");
        // Before it is enabled for the first time it believes any compressor, and then takes
        // another.
        for (name, value) in
            [("enabled", "Y"), ("max_pool_percent", "50"), ("shrinker_enabled", "N")]
        {
            // The shrinker came later.
            if Path::new(&path(name)).exists() {
                settings.push(Changed::to(&path(name), value)?);
            }
        }
        let taken = COMPRESSORS
            .iter()
            .find_map(|name| Some((*name, Changed::to(&path("compressor"), name).ok()?)));
        let (compressor, setting) =
            taken.with_context(|| format!("zswap has none of {}", COMPRESSORS.join(", ")))?;
        settings.push(setting);
        let file = SwapFile {
            path: std::env::temp_dir().join(format!("terrace-bench-{}.swap", std::process::id())),
        };
        let mut handle = File::create_new(&file.path)
            .with_context(|| format!("cannot make {}", file.path.display()))?;
        handle.set_permissions(fs::Permissions::from_mode(0o600))?;
        // Written, not only allocated: not every file system swaps to what was never written.
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes.div_ceil(1 << 20) {
            handle.write_all(&zeros).with_context(|| {
                format!("no room for {}; set TMPDIR to another file system", file.path.display())
            })?;
            crate::interrupt::check()?;
        }
        handle.sync_all()?;
        swap_on(&file.path.to_string_lossy())?;
        Ok(Zswap { compressor, _file: file, _settings: settings })
    }

    /// Memory that the pool takes, bytes.
    pub fn used_bytes(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Zswap:"))
            .context("/proc/meminfo has no Zswap line")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }
}
