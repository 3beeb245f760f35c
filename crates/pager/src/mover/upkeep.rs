//! Periodic work besides eviction: compacting pools, giving back file space, checking the kernel's
//! swap, and moving pages out of disabled tiers.

use super::state::{Mover, POOLS_AT_ONCE, SLICE_NS};
use crate::evict::RecompressFilter;
use std::sync::atomic::Ordering::Relaxed;
use terrace_os as sys;
use terrace_policy::eviction::victims::{Reason, RegionId};
use terrace_tiers::Tier;

/// Rest after a pass over disabled tiers, ns: the shortest, and the longest after passes that moved
/// nothing.
const REST_MIN_NS: u64 = 10_000_000_000;
const REST_MAX_NS: u64 = 3_600_000_000_000;

/// How far the mover is with moving pages out of disabled tiers.
pub(super) struct Drain {
    /// The tier and the region to go on with.
    tier: usize,
    region: RegionId,
    /// Pages that were moved in this pass over all of them.
    moved: u64,
    /// No pass continues before this time.
    again_ns: u64,
    rest_ns: u64,
}

impl Drain {
    /// A state in which the first pass begins at `from_ns`.
    pub fn new(from_ns: u64) -> Drain {
        Drain { tier: 1, region: 0, moved: 0, again_ns: from_ns, rest_ns: REST_MIN_NS }
    }

    fn end_pass(&mut self, now_ns: u64) {
        let rest_ns = if self.moved > 0 { REST_MIN_NS } else { self.rest_ns };
        *self = Drain { rest_ns: (rest_ns * 2).min(REST_MAX_NS), ..Drain::new(now_ns + rest_ns) };
    }
}

impl Mover {
    /// Compacts pools with holes left by restored pages. Where pages are evicted again, holes are
    /// filled or compacted; this serves the other regions.
    pub(super) fn compact_pools(&mut self, now_ns: u64) {
        let pager = self.pager;
        if pager.pause_asked() || !self.compact_pools.take_due(now_ns) {
            return;
        }
        for _ in 0..pager.table.len().min(POOLS_AT_ONCE) {
            self.tidied_region = (self.tidied_region + 1) % pager.table.len();
            let entry = pager.table.by_number(self.tidied_region);
            let fragmented = entry.region.store.lock().fragmented_extent();
            if fragmented.is_some() {
                self.evictor.compact_fragmented(pager, &entry);
                return;
            }
        }
    }

    /// Disables and enables tiers, as `terrace set` asks.
    pub(super) fn follow_list_of_tiers(&mut self, now_ns: u64) {
        if !self.follow_tiers.take_due(now_ns) {
            return;
        }
        let pager = self.pager;
        let told = pager.stats().map_or(0, |page| page.tiers_told.load(Relaxed));
        for (number, tier) in pager.tiers.iter().enumerate().skip(1) {
            let disabled = told != 0 && told >> number & 1 == 0;
            if tier.is_disabled() != disabled {
                tier.set_disabled(disabled);
                self.drain = Drain::new(now_ns);
            }
        }
    }

    /// Moves pages out of disabled tiers for a slice of time, while there is room for them within
    /// the budget. True while there are more. Pages that no other tier accepts stay there until
    /// they are touched, and are tried again ever more seldom. Pages in the kernel's swap stay.
    pub(super) fn empty_disabled(&mut self, budget: u64, watermark: u64, now_ns: u64) -> bool {
        let pager = self.pager;
        let is_left = |number: &usize| {
            let tier = &pager.tiers[*number];
            tier.is_disabled() && tier.is_ours() && tier.stats.pages() > 0
        };
        if now_ns < self.drain.again_ns || !(1..pager.tiers.len()).any(|tier| is_left(&tier)) {
            return false;
        }
        // Above that the mover makes room, which it could not do where the disabled tier is denser.
        let until = budget.saturating_sub(watermark / 2);
        let goes_on = || !pager.pause_asked() && pager.physical_bytes() < until;
        let (demoted, deadline) = (self.demoted(), sys::now_ns() + SLICE_NS);
        while goes_on() && sys::now_ns() < deadline {
            let Some(from) = (self.drain.tier..pager.tiers.len()).find(is_left) else {
                self.drain.end_pass(now_ns);
                break;
            };
            if from != self.drain.tier {
                (self.drain.tier, self.drain.region) = (from, 0);
            }
            let to = pager.enabled_tier(from);
            if pager.tiers[to].is_disabled() || self.drain.region >= pager.table.len() {
                (self.drain.tier, self.drain.region) = (from + 1, 0);
                continue;
            }
            pager.yield_if_due();
            let entry = pager.table.by_number(self.drain.region);
            if entry.region.evicted.load(Relaxed) > 0 {
                let done = self.evictor.recompress(pager, entry, to, RecompressFilter::In(from));
                self.drain.moved += u64::from(done.pages);
            }
            if !pager.pause_asked() {
                self.drain.region += 1;
            }
        }
        self.count(Reason::Recompressed, demoted);
        now_ns >= self.drain.again_ns && goes_on()
    }

    pub(super) fn tidy_files(&mut self, now_ns: u64) {
        if !self.tidy_files.take_due(now_ns) {
            return;
        }
        let try_again = self.try_files_again.take_due(now_ns);
        for files in self.pager.tiers.iter().filter_map(Tier::files) {
            if files.tidy() || try_again {
                files.try_again();
            }
        }
    }

    pub(super) fn poll_swap(&mut self, now_ns: u64) {
        let Some((tier, swap)) = self.pager.swap() else { return };
        if !self.poll_swap.take_due(now_ns) {
            return;
        }
        // Each second, as for files that refused.
        if self.try_swap_again.take_due(now_ns) {
            swap.try_again();
        }
        swap.poll(tier.stats.pages());
        if let Some(auto) = &mut self.evictor.auto {
            auto.measure(self.pager, &mut self.evictor.tools.scratch, now_ns);
        }
    }
}
