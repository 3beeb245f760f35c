//! The two sides of a process's statistics, and how much of them has been copied.

use crate::pages::lock::Lock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use terrace_control::stats::StatsFile;

/// Most lines that are kept from being said twice where the run directory cannot be written.
pub(super) const SAID_MOST: usize = 64;

/// The two sides of a process's statistics.
pub(crate) struct StatsMappings {
    /// The private side; null without a run directory.
    pub own: AtomicPtr<StatsFile>,
    /// Where the file is mapped, which no thread touches; 0 where there is no file.
    pub(super) mapping: AtomicUsize,
    /// How much of the rings has been copied. Held while that is done.
    pub(super) rings: Lock<RingsTold>,
    /// Hashes of what this program and its forked children have said, where they may not write into
    /// the run directory; null where they may. Shared between them.
    pub(super) said: AtomicPtr<[AtomicU64; SAID_MOST]>,
    /// The most committed bytes that were told so far.
    pub(super) committed: AtomicU64,
    /// When committed bytes were told last, ns.
    pub(super) committed_ns: AtomicU64,
}

/// How many notes of each ring are in the file too.
#[derive(Default)]
pub(super) struct RingsTold {
    pub(super) interrupts: u64,
    pub(super) moves: u64,
    pub(super) windows: u64,
}

impl Default for StatsMappings {
    fn default() -> Self {
        StatsMappings {
            own: AtomicPtr::default(),
            mapping: AtomicUsize::new(0),
            rings: Lock::new(RingsTold::default()),
            said: AtomicPtr::default(),
            committed: AtomicU64::new(0),
            committed_ns: AtomicU64::new(0),
        }
    }
}

impl StatsMappings {
    /// Opens the lock in a forked child.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.rings.reset_after_fork() };
    }

    /// Drops both sides, in a forked child that may make no system call: they are its parent's.
    pub fn forget(&self) {
        self.own.store(std::ptr::null_mut(), Release);
        self.mapping.store(0, Release);
    }
}
