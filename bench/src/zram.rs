//! A zram swap device for the time of a benchmark, undone when dropped, also on a panic.

use anyhow::{Context, bail};
use std::fs;
use std::process::{Command, Stdio};

/// An active zram swap device.
pub struct Zram {
    device: String,
    added: bool,
    page_cluster: String,
}

impl Zram {
    /// Takes a fresh device (or an unused one), lz4, and swaps on it. `Err` says what is missing.
    pub fn swap_on(bytes: u64) -> anyhow::Result<Zram> {
        if fs::read_to_string("/proc/swaps")?.lines().count() > 1 {
            bail!("another swap device is in use: the comparison would not be zram's");
        }
        let (device, added) = match fs::read_to_string("/sys/class/zram-control/hot_add") {
            Ok(number) => (format!("zram{}", number.trim()), true),
            Err(_) => ("zram0".to_string(), false),
        };
        let page_cluster = fs::read_to_string("/proc/sys/vm/page-cluster")?;
        let zram = Zram { device, added, page_cluster };
        zram.attribute("comp_algorithm", "lz4").context("zram without lz4")?;
        zram.attribute("disksize", &bytes.to_string())?;
        let path = format!("/dev/{}", zram.device);
        for command in ["mkswap", "swapon"] {
            let status = Command::new(command).arg(&path).stdout(Stdio::null()).status().with_context(|| format!("no {command}"))?;
            if !status.success() {
                bail!("{command} {path} failed");
            }
        }
        fs::write("/proc/sys/vm/page-cluster", "0")?;
        Ok(zram)
    }

    fn attribute(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/sys/block/{}/{name}", self.device);
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let path = format!("/dev/{}", self.device);
        let _ = Command::new("swapoff").arg(&path).stderr(Stdio::null()).status();
        let _ = self.attribute("reset", "1");
        if self.added {
            let _ = fs::write("/sys/class/zram-control/hot_remove", self.device.trim_start_matches("zram"));
        }
        let _ = fs::write("/proc/sys/vm/page-cluster", self.page_cluster.trim());
    }
}
