//! A zram swap device for a test, undone when dropped.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use terrace_testkit::zram;

/// A device that the kernel swaps to. Only one test of a process has one at a time: swap is the
/// whole machine's.
pub struct Zram {
    device: zram::Zram,
    _alone: MutexGuard<'static, ()>,
}

/// Keeps the machine without swap for as long as the guard lives, as far as this process's tests
/// go.
pub fn without_swap() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel has somewhere to swap to.
pub fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}

impl Zram {
    /// Adds a device of this many bytes and swaps on it. `Err` says what is missing.
    pub fn swap_on(bytes: u64) -> Result<Zram, String> {
        let alone = without_swap();
        let device = zram::Zram::swap_on(bytes, "lz4").map_err(|e| format!("{e:#}"))?;
        Ok(Zram { device, _alone: alone })
    }

    /// Ends the swapping: what is there comes back.
    pub fn swap_off(&self) {
        let status = Command::new("swapoff")
            .arg(self.device.path())
            .status()
            .expect("swapoff is there, as swapon was");
        assert!(status.success(), "swapoff failed");
    }
}
