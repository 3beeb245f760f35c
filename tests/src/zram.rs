//! A zram swap device of a test's own, undone when dropped.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device that the kernel swaps to. Only one test of a process has one at a time: swap is the
/// whole machine's.
pub struct Zram {
    number: String,
    _alone: MutexGuard<'static, ()>,
}

/// Keeps the machine without swap for as long as it lives, as far as this process's tests go.
pub fn without_swap() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel has somewhere to swap to.
pub fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

impl Zram {
    /// Adds one of so many bytes and swaps on it. `Err` says what is missing.
    pub fn swap_on(bytes: u64) -> Result<Zram, String> {
        let alone = without_swap();
        if has_swap() {
            return Err("another swap is in use".into());
        }
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(|e| format!("no zram device can be added: {e}"))?;
        let zram = Zram { number: number.trim().to_owned(), _alone: alone };
        // Where the kernel has it.
        let _ = fs::write(zram.file("comp_algorithm"), "lz4");
        fs::write(zram.file("disksize"), bytes.to_string())
            .map_err(|e| format!("zram takes no size: {e}"))?;
        for command in ["mkswap", "swapon"] {
            let output = Command::new(command)
                .arg(zram.device())
                .output()
                .map_err(|e| format!("{command}: {e}"))?;
            if !output.status.success() {
                return Err(format!(
                    "{command}: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ));
            }
        }
        Ok(zram)
    }

    /// Ends the swapping: what is there comes back.
    pub fn swap_off(&self) {
        let status = Command::new("swapoff")
            .arg(self.device())
            .status()
            .expect("swapoff is there, as swapon was");
        assert!(status.success(), "swapoff failed");
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn file(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.number)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.device()).output();
        let _ = fs::write(self.file("reset"), "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}
