//! A tier's statistics: counters that any thread may read, and the distribution of its restore times.
//!
//! Counters are relaxed: each is right in itself, but two read one after the other may be of different moments.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;

use crate::PAGE_BYTES;

/// The histogram's unit. With one of 1 µs, a restore of 2 µs would be right to 25 % only; with this one, at 4 KB more,
/// it is right to 1 %.
const RESTORE_UNIT_NS: u64 = 1;
/// The longest restore time told apart from longer ones.
const RESTORE_MAX_NS: u64 = 10_000_000_000;
/// Quantiles are right to this many significant digits (1 %), for about 14 KB of counters.
const RESTORE_DIGITS: u8 = 2;

/// What a tier holds and what it has done. The pool (or whoever knows, where there is none) keeps `pages`, `stored_bytes` and `physical_bytes`; the tier counts
/// `rejected`; faults and restore times come from whoever restores.
pub struct TierStats {
    pages: AtomicU64,
    stored_bytes: AtomicU64,
    physical_bytes: AtomicU64,
    faults: AtomicU64,
    rejected: AtomicU64,
    restore_ns: Mutex<Histogram<u32>>,
}

impl TierStats {
    /// All zero.
    pub fn new() -> Self {
        // The bounds are constants that satisfy the histogram's rules (low >= 1, high >= 2 * low, digits <= 5).
        let restore_ns =
            Histogram::new_with_bounds(RESTORE_UNIT_NS, RESTORE_MAX_NS, RESTORE_DIGITS).expect("constant histogram bounds are valid");
        TierStats {
            pages: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            physical_bytes: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            restore_ns: Mutex::new(restore_ns),
        }
    }

    /// Pages held now.
    pub fn pages(&self) -> u64 {
        self.pages.load(Relaxed)
    }

    /// What the held pages are to the program, in bytes: 4096 each.
    pub fn logical_bytes(&self) -> u64 {
        self.pages() * PAGE_BYTES as u64
    }

    /// The bytes of all held pages as encoded, without checksums and packing losses.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed)
    }

    /// Memory of the medium in use, in bytes: over all extents, the pages touched since they were last given back. At
    /// least `stored_bytes`; the difference is checksums, packing and dead bytes not yet repacked.
    pub fn physical_bytes(&self) -> u64 {
        self.physical_bytes.load(Relaxed)
    }

    /// Faults served from this tier since the start.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Pages kept raw since the start because they did not shrink enough.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// Counts one fault served from this tier. The time it took goes to [`TierStats::record_restore`].
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Relaxed);
    }

    /// Records how long one restore took. Times above 10 s count as 10 s. Counts no fault.
    pub fn record_restore(&self, ns: u64) {
        self.restores().saturating_record(ns);
    }

    /// The restore time, in nanoseconds, that a share `q` (0..=1) of the restores did not exceed; 0 with no data. Right
    /// to 1 %.
    pub fn restore_quantile_ns(&self, q: f64) -> u64 {
        let restores = self.restores();
        if restores.is_empty() { 0 } else { restores.value_at_quantile(q.clamp(0.0, 1.0)) }
    }

    /// Counts are whole after every statement, so those of a thread that panicked are as good as any.
    fn restores(&self) -> MutexGuard<'_, Histogram<u32>> {
        self.restore_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a tier whose pages are not in a pool of ours: what is there now, and what that takes.
    pub fn set_held(&self, pages: u64, physical_bytes: u64) {
        self.pages.store(pages, Relaxed);
        self.physical_bytes.store(physical_bytes, Relaxed);
    }

    pub(crate) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    pub(crate) fn page_added(&self, stored_bytes: u64) {
        self.pages.fetch_add(1, Relaxed);
        self.stored_bytes.fetch_add(stored_bytes, Relaxed);
    }

    pub(crate) fn page_removed(&self, stored_bytes: u64) {
        self.pages.fetch_sub(1, Relaxed);
        self.stored_bytes.fetch_sub(stored_bytes, Relaxed);
    }

    pub(crate) fn physical_grew(&self, bytes: u64) {
        self.physical_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn physical_shrank(&self, bytes: u64) {
        self.physical_bytes.fetch_sub(bytes, Relaxed);
    }
}

impl Default for TierStats {
    fn default() -> Self {
        TierStats::new()
    }
}
