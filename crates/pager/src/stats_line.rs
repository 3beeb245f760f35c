//! The two sides of a process's statistics, and what of them has been copied.

use crate::pages::lock::Lock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use terrace_control::stats::StatsFile;

/// So many lines at most are kept from being said twice where there is no run directory.
pub(super) const SAID_MOST: usize = 64;

/// The two sides of a process's statistics.
pub(crate) struct StatsLine {
    /// The private side; null without a run directory.
    pub own: AtomicPtr<StatsFile>,
    /// Where the file is mapped, which nobody touches; 0 where there is none.
    pub(super) mapping: AtomicUsize,
    /// How much of the rings has been copied. Held while that is done.
    pub(super) rings: Lock<RingsTold>,
    /// What this program and its forked children have said, where they may not write into the run
    /// directory, by hash; null where they may. Shared between them.
    pub(super) said: AtomicPtr<[AtomicU64; SAID_MOST]>,
    /// The most that was committed when that was told last, and when that was.
    pub(super) committed: AtomicU64,
    pub(super) committed_ns: AtomicU64,
}

/// Notes in the rings that are in the file too.
#[derive(Default)]
pub(super) struct RingsTold {
    pub(super) interrupts: u64,
    pub(super) moves: u64,
    pub(super) windows: u64,
}

impl Default for StatsLine {
    fn default() -> Self {
        StatsLine {
            own: AtomicPtr::default(),
            mapping: AtomicUsize::new(0),
            rings: Lock::new(RingsTold::default()),
            said: AtomicPtr::default(),
            committed: AtomicU64::new(0),
            committed_ns: AtomicU64::new(0),
        }
    }
}

impl StatsLine {
    /// In a forked child: opens the lock.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.rings.reset_after_fork() };
    }

    /// In a forked child that may make no system call: both sides are its parent's.
    pub fn forget(&self) {
        self.own.store(std::ptr::null_mut(), Release);
        self.mapping.store(0, Release);
    }
}
