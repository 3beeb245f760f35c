//! How a claim on a page ends: its word, its copy in a tier, and what is counted.

use crate::pages::mm::Mm;
use crate::pages::table::Entry;
use crate::pages::word::{Snapshot, State, tick_of};
use std::sync::atomic::Ordering::*;
use terrace_policy::eviction::victims::{Refault, refaulted};
use terrace_tiers::{Location, RegionStore};

impl Mm {
    /// Whether pages on probation keep their compressed copy: only while the probation queue is
    /// short and pages are evicted at all.
    pub(crate) fn keeps_copies(&self) -> bool {
        !self.is_frozen() && !self.restores_only.load(Relaxed) && self.probation.is_short()
    }

    /// The refault state of a page that is restored after `out_ms`.
    pub(crate) fn refaulted(&self, claim: Snapshot, out_ms: u64) -> Refault {
        refaulted(claim.refaults(), out_ms, self.mover.refault_distance_ms.load(Relaxed))
    }

    /// Ends a claim whose page was restored now because the program wants it, or may.
    pub(crate) fn settle_refaulted(
        &self,
        entry: &Entry,
        address: usize,
        claim: Snapshot,
        page: Refault,
        now_ms: u64,
        copy: Option<Location>,
    ) {
        entry.region.refaults.fetch_add(1, Relaxed);
        self.settle_in_place(entry, address, claim, page, now_ms, copy);
    }

    /// Counts `pages` of a region that are no longer evicted. A page that was touched while it was
    /// staged is not included: it never counted as evicted.
    pub(crate) fn count_restored(&self, entry: &Entry, pages: usize) {
        entry.region.evicted.fetch_sub(pages as u32, Relaxed);
        self.account.promoted_pages.fetch_add(pages as u64, Relaxed);
    }

    /// Ends a claim whose page is in place now. `copy` is what is still stored of it.
    pub(crate) fn settle_in_place(
        &self,
        entry: &Entry,
        address: usize,
        claim: Snapshot,
        page: Refault,
        now_ms: u64,
        copy: Option<Location>,
    ) {
        let back = Snapshot::restored(page, tick_of(now_ms));
        let back = copy.map_or(back, |copy| back.with(State::Cached, copy.to_bits()));
        self.account.resident_pages.fetch_add(1, Relaxed);
        self.settle(entry, address, claim, back);
        if page.probation && !self.probation.enter(entry.page_number(address)) {
            // No room: the page is like any other.
            self.end_probation(entry, address);
        }
    }

    /// Ends a page's probation: it stays, like any other.
    pub(crate) fn end_probation(&self, entry: &Entry, address: usize) {
        let word = entry.word(address);
        let found = word.load();
        if found.is(State::Cached) {
            self.drop_copy(entry, address, found.off_probation());
        } else if found.is_on_probation() {
            let _ = word.transition(found, found.off_probation());
        }
    }

    /// Drops the compressed copy of a page that is Cached, if it is, and makes its word `to`.
    pub(crate) fn drop_copy(&self, entry: &Entry, address: usize, to: Snapshot) {
        let mut store = entry.region.store.lock();
        let found = entry.word(address).load();
        if let Some(copy) = found.copy()
            && entry.word(address).transition(found, to).is_ok()
        {
            self.remove_copy(&mut store, copy);
        }
    }

    /// Removes a copy that its caller owns.
    pub(crate) fn remove_copy(&self, store: &mut RegionStore, copy: Location) {
        let tier = store.tier_of(copy);
        if self.check(store.remove(&self.tiers, copy).is_ok(), "a page's copy was in its store")
            && let Some(tier) = tier
        {
            self.tiers[usize::from(tier)].stats.no_copy();
        }
    }

    pub(crate) fn settle(&self, entry: &Entry, address: usize, claim: Snapshot, to: Snapshot) {
        let settled = entry.word(address).transition(claim, to);
        self.check(settled.is_ok(), "a claimed page word is changed by its claimant only");
    }

    pub(crate) fn drop_evicted(&self, entry: &Entry, address: usize) -> bool {
        let mut store = entry.region.store.lock();
        let found = entry.word(address).load();
        if !found.is(State::Evicted) || entry.word(address).transition(found, Snapshot(0)).is_err()
        {
            return false;
        }
        let removed = store.remove(&self.tiers, Location::from_bits(found.payload()));
        self.check(removed.is_ok(), "a discarded page's bytes were in its store");
        entry.region.evicted.fetch_sub(1, Relaxed);
        true
    }
}
