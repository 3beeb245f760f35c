//! A zram swap device, undone when dropped, also on a panic.

use anyhow::{Context, bail};
use std::fs;
use std::process::{Command, Stdio};

/// An active zram swap device.
pub struct Zram {
    /// The algorithm that the device compresses with.
    pub algorithm: &'static str,
    device: String,
    added: bool,
    _page_cluster: Option<Changed>,
}

impl Zram {
    /// Takes a fresh device (or the first one, if it is unused) and swaps on it. `Err` says what is
    /// missing.
    pub fn swap_on(bytes: u64, algorithm: &'static str) -> anyhow::Result<Zram> {
        no_other_swap()?;
        let (device, added) = match fs::read_to_string("/sys/class/zram-control/hot_add") {
            Ok(number) => (format!("zram{}", number.trim()), true),
            Err(_) if fs::read_to_string("/sys/block/zram0/disksize")?.trim() == "0" => {
                ("zram0".to_string(), false)
            }
            Err(_) => bail!("zram0 is in use, and this kernel adds no other device"),
        };
        // Undone by the drop, whatever fails from here on.
        let zram = Zram { algorithm, device, added, _page_cluster: None };
        zram.write("comp_algorithm", algorithm)
            .with_context(|| format!("zram without {algorithm}"))?;
        zram.write("disksize", &bytes.to_string())?;
        swap_on(&zram.path())?;
        Ok(zram)
    }

    /// Swaps as [`Zram::swap_on`] does, for a benchmark: a fault brings the page that is touched,
    /// and no others.
    pub fn for_measuring(bytes: u64, algorithm: &'static str) -> anyhow::Result<Zram> {
        let mut zram = Zram::swap_on(bytes, algorithm)?;
        zram._page_cluster = Some(Changed::to("/proc/sys/vm/page-cluster", "0")?);
        Ok(zram)
    }

    /// Path of the device.
    pub fn path(&self) -> String {
        format!("/dev/{}", self.device)
    }

    /// Bytes of memory that the device takes: compressed pages, their pools and tables.
    pub fn used_bytes(&self) -> anyhow::Result<u64> {
        used_bytes(&self.device)
    }

    fn setting(&self, name: &str) -> String {
        format!("/sys/block/{}/{name}", self.device)
    }

    fn write(&self, name: &str, value: &str) -> anyhow::Result<()> {
        fs::write(self.setting(name), value)
            .with_context(|| format!("cannot write {value} to {}", self.setting(name)))
    }
}

/// Bytes of memory that a zram device such as `zram0` takes: compressed pages, their pools and
/// tables.
pub fn used_bytes(device: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/block/{device}/mm_stat");
    let statistics = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let total = statistics
        .split_whitespace()
        .nth(2)
        .context("mm_stat has mem_used_total as its third field")?;
    Ok(total.parse()?)
}

impl Drop for Zram {
    fn drop(&mut self) {
        swap_off(&self.path());
        let _ = self.write("reset", "1");
        if self.added {
            let _ = fs::write(
                "/sys/class/zram-control/hot_remove",
                self.device.trim_start_matches("zram"),
            );
        }
    }
}

/// An error if swap is in use already: then pages would go there too.
pub fn no_other_swap() -> anyhow::Result<()> {
    if fs::read_to_string("/proc/swaps")?.lines().count() > 1 {
        bail!(
            "another swap device is in use: the comparison would not be zram's. Turn it off for the time of the benchmark (swapoff)"
        );
    }
    Ok(())
}

/// Makes a device or file a swap and swaps on it.
pub fn swap_on(path: &str) -> anyhow::Result<()> {
    for command in ["mkswap", "swapon"] {
        let output = Command::new(command)
            .arg(path)
            .stdout(Stdio::null())
            .output()
            .with_context(|| format!("no {command}"))?;
        if !output.status.success() {
            bail!("{command} {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(())
}

/// Ends swapping on a device or file, if it is a swap.
pub fn swap_off(path: &str) {
    let _ = Command::new("swapoff").arg(path).stderr(Stdio::null()).status();
}

/// A setting of the kernel's that gets its old value back when this is dropped.
pub struct Changed {
    path: String,
    before: String,
}

impl Changed {
    /// Writes `value` to the file.
    pub fn to(path: &str, value: &str) -> anyhow::Result<Changed> {
        let before = fs::read_to_string(path)
            .with_context(|| format!("cannot read {path}"))?
            .trim()
            .to_owned();
        fs::write(path, value).with_context(|| format!("cannot write {value} to {path}"))?;
        Ok(Changed { path: path.to_owned(), before })
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.before);
    }
}
