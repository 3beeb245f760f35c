//! A tier's statistics: counters that any thread may read, and the distribution of its restore
//! times.
//!
//! Counters are relaxed: each is right in itself, but two read one after the other may be of
//! different moments.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use terrace_os::lock::{Lock, LockGuard};

use hdrhistogram::Histogram;

use crate::page::PAGE_BYTES;

/// The histogram's unit. With one of 1 µs, a restore of 2 µs would be right to 25 % only. With this
/// one, at 4 KB more, it is right to 1 %.
const RESTORE_UNIT_NS: u64 = 1;
/// The longest restore time told apart from longer ones.
const RESTORE_MAX_NS: u64 = 10_000_000_000;
/// Quantiles are right to this many significant digits (1 %), for about 14 KB of counters.
const RESTORE_DIGITS: u8 = 2;

/// What a tier holds and what it has done. The pool (or, where there is none, the code that knows)
/// keeps `pages`, `stored_bytes` and `physical_bytes`. The tier counts `rejected`. Faults and
/// restore times come from the caller that restores.
pub struct TierStats {
    pages: AtomicU64,
    copies: AtomicU64,
    stored_bytes: AtomicU64,
    physical_bytes: AtomicU64,
    faults: AtomicU64,
    rejected: AtomicU64,
    restores: Times,
}

/// How long something took, each time.
pub struct Times(Lock<Histogram<u32>>);

impl Times {
    /// Times with nothing recorded.
    pub fn new() -> Self {
        // The bounds are constants that satisfy the histogram's rules (low >= 1, high >= 2 * low,
        // digits <= 5).
        let histogram = Histogram::new_with_bounds(RESTORE_UNIT_NS, RESTORE_MAX_NS, RESTORE_DIGITS)
            .expect("constant histogram bounds are valid");
        Times(Lock::new(histogram))
    }

    /// Records a time of `ns`, `count` times. More than 10 s counts as 10 s.
    pub fn record(&self, ns: u64, count: u32) {
        self.histogram().saturating_record_n(ns, count);
    }

    /// The time, in nanoseconds, that a share `q` (0..=1) did not exceed; 0 with no data. Right to
    /// 1 %.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let histogram = self.histogram();
        if histogram.is_empty() { 0 } else { histogram.value_at_quantile(q.clamp(0.0, 1.0)) }
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.histogram().len()
    }

    /// Forgets all times, unless a thread is counting at this moment.
    pub fn clear(&self) {
        if let Some(mut histogram) = self.0.try_lock() {
            histogram.reset();
        }
    }

    /// Locks the histogram. Counts are whole after every statement, so those of a thread that
    /// panicked are as good as any.
    fn histogram(&self) -> LockGuard<'_, Histogram<u32>> {
        self.0.lock()
    }
}

impl Default for Times {
    fn default() -> Self {
        Times::new()
    }
}

impl TierStats {
    /// Statistics with all counters at zero.
    pub fn new() -> Self {
        TierStats {
            pages: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            physical_bytes: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            restores: Times::new(),
        }
    }

    /// Begins again in a forked child: what was counted since the start is its parent's. What is
    /// held stays.
    pub fn begin_again(&self) {
        self.faults.store(0, Relaxed);
        self.rejected.store(0, Relaxed);
        self.restores.clear();
    }

    /// Pages held now, without copies of pages that are back in DRAM.
    pub fn pages(&self) -> u64 {
        self.pages.load(Relaxed).saturating_sub(self.copies.load(Relaxed))
    }

    /// What the held pages are to the program, in bytes: 4096 each.
    pub fn logical_bytes(&self) -> u64 {
        self.pages() * PAGE_BYTES as u64
    }

    /// Notes that a page that is held is in DRAM again: what is stored is a copy.
    pub fn became_copy(&self) {
        self.copies.fetch_add(1, Relaxed);
    }

    /// Notes that a copy is none any more: it was removed, or is a page's only place again.
    pub fn no_copy(&self) {
        self.copies.fetch_sub(1, Relaxed);
    }

    /// The bytes of all held pages and copies as encoded, without checksums and packing losses.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed)
    }

    /// Memory of the medium in use, in bytes: over all extents, the pages touched since they were
    /// last given back. At least `stored_bytes`; the difference is checksums, packing and dead
    /// bytes not yet compacted.
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

    /// Counts one fault served from this tier. The time it took goes to
    /// [`TierStats::record_restore`].
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Relaxed);
    }

    /// Records how long one restore took. Times above 10 s count as 10 s. Counts no fault.
    pub fn record_restore(&self, ns: u64) {
        self.restores.record(ns, 1);
    }

    /// The restore time, in nanoseconds, that a share `q` (0..=1) of the restores did not exceed; 0
    /// with no data. Right to 1 %.
    pub fn restore_quantile_ns(&self, q: f64) -> u64 {
        self.restores.quantile_ns(q)
    }

    /// Sets how many pages a tier holds and the physical bytes that they take. It is for a tier
    /// whose pages are not in a pool of ours.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that only slept had thousands of restores once.
    #[test]
    fn a_child_begins_with_what_is_held_and_no_counts() {
        let stats = TierStats::new();
        stats.pages.store(3, Relaxed);
        stats.count_fault();
        stats.rejected.store(2, Relaxed);
        stats.record_restore(1_000_000);
        assert!(stats.restore_quantile_ns(0.5) > 0);
        stats.begin_again();
        assert_eq!(
            (stats.pages(), stats.faults(), stats.rejected(), stats.restore_quantile_ns(0.5)),
            (3, 0, 0, 0)
        );
    }
}
