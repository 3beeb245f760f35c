//! Counters that every thread of ours may change.

use crate::pages::lock::Lock;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};
use terrace_control::stats::{Counted, Counts};
use terrace_os::{self as sys, Fd};

/// Counters that every thread of ours may change.
pub(crate) struct Account {
    /// Managed pages in DRAM; an estimate between scans.
    pub resident_pages: AtomicI64,
    /// Our own metadata, buffers and allocations, bytes, at the last scan.
    pub overhead_bytes: AtomicU64,
    /// The budget now; `u64::MAX` without one.
    pub budget_bytes: AtomicU64,
    /// The budget of a forked child until `terrace run` assigns it a share; `u64::MAX` in a program
    /// that was executed.
    pub(super) interim_bytes: AtomicU64,
    /// The budget that [`Mm::limit`](crate::Mm::limit) was told, bytes; `u64::MAX` without one.
    pub assigned_bytes: AtomicU64,
    /// Forks in a row, each at most `FORKS_IN_A_ROW_NS` after the one before.
    pub(super) forks: AtomicU32,
    /// When the last fork was, ns.
    pub(super) forked_ns: AtomicU64,
    /// Counts that are published of this process.
    pub counts: Counts,
    /// The part of `stall_ns` that is CPU time of the program's threads.
    pub stall_cpu_ns: AtomicU64,
    /// The part of `stall_ns` that is judged: whether the program lost that time, or other threads
    /// of it ran meanwhile.
    pub judged_stall_ns: AtomicU64,
    /// The part of `stall_cpu_ns` that is judged.
    pub judged_stall_cpu_ns: AtomicU64,
    /// When stalls were judged last, ns; 0 before they first were.
    pub judged_ns: AtomicU64,
    /// Pages found shared with a child since the last scan.
    pub shared_tries: AtomicU64,
    /// When all pages were scanned last, ms.
    pub scanned_ms: AtomicU64,
    /// The schedstat files of our threads.
    pub(super) threads: Lock<Vec<Fd>>,
}

impl Account {
    pub fn new() -> Self {
        Account {
            resident_pages: AtomicI64::new(0),
            overhead_bytes: AtomicU64::new(0),
            budget_bytes: AtomicU64::new(u64::MAX),
            interim_bytes: AtomicU64::new(u64::MAX),
            assigned_bytes: AtomicU64::new(u64::MAX),
            forks: AtomicU32::new(0),
            forked_ns: AtomicU64::new(0),
            counts: Counts::default(),
            stall_cpu_ns: AtomicU64::new(0),
            judged_stall_ns: AtomicU64::new(0),
            judged_stall_cpu_ns: AtomicU64::new(0),
            judged_ns: AtomicU64::new(0),
            shared_tries: AtomicU64::new(0),
            scanned_ms: AtomicU64::new(0),
            threads: Lock::new(Vec::new()),
        }
    }

    /// Managed pages in DRAM.
    pub fn resident(&self) -> u64 {
        self.resident_pages.load(Relaxed).max(0) as u64
    }

    /// Counts the calling thread's CPU time as ours.
    pub fn count_this_thread(&self) {
        if let Ok(schedstat) = sys::open("/proc/thread-self/schedstat\0", libc::O_RDONLY, 0) {
            self.threads.lock().push(schedstat);
        }
    }

    /// CPU time of our threads so far, ns.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.threads
            .lock()
            .iter()
            .filter_map(|fd| sys::ran_and_waited_ns(*fd))
            .map(|(ran_ns, _)| ran_ns)
            .sum()
    }

    /// Resets the counters in a fork's child, which has none of our threads and counts anew.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.threads.reset_after_fork() };
        self.threads.lock().clear();
        self.counts.write(&Counted::default());
        self.stall_cpu_ns.store(0, Relaxed);
        self.judged_stall_ns.store(0, Relaxed);
        self.judged_stall_cpu_ns.store(0, Relaxed);
        self.judged_ns.store(0, Relaxed);
        self.shared_tries.store(0, Relaxed);
    }
}

/// Access to the published counts by name: `account.promoted_pages`.
impl Deref for Account {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}
