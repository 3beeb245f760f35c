//! What is done now and then beside evicting: pools are packed, files give back what was freed in
//! them, and the kernel's swap is looked at.

use super::state::{Mover, POOLS_AT_ONCE, SLICE_NS};
use crate::evict::Which;
use std::sync::atomic::Ordering::Relaxed;
use terrace_os as sys;
use terrace_policy::victims::Reason;
use terrace_tiers::Tier;

impl Mover {
    /// Pages that come back leave holes in their regions' pools. Where pages leave again, those are
    /// filled or packed; here the others have their turn.
    pub(super) fn tidy_pools(&mut self, now_ns: u64) {
        let pager = self.pager;
        if pager.pause_asked() || !self.tidy_pools.is_turn(now_ns) {
            return;
        }
        for _ in 0..pager.table.len().min(POOLS_AT_ONCE) {
            self.tidied_region = (self.tidied_region + 1) % pager.table.len();
            let entry = pager.table.by_number(self.tidied_region);
            let wastes = entry.region.store.lock().wastes();
            if wastes.is_some() {
                self.evictor.tidy(pager, &entry);
                return;
            }
        }
    }

    /// Disables and enables tiers, as `terrace set` wants it.
    pub(super) fn follow_list_of_tiers(&mut self, now_ns: u64) {
        if !self.follow_tiers.is_turn(now_ns) {
            return;
        }
        let pager = self.pager;
        let told = pager.stats().map_or(0, |page| page.tiers_told.load(Relaxed));
        for (number, tier) in pager.tiers.iter().enumerate().skip(1) {
            let disabled = told != 0 && told >> number & 1 == 0;
            if tier.is_disabled() != disabled {
                tier.set_disabled(disabled);
                self.empty_again.done(0);
            }
        }
    }

    /// Moves pages out of disabled tiers for a slice of time; true while there are more. What no
    /// other tier takes stays there until it is touched, and is tried again once in a while. Pages
    /// in the kernel's swap stay.
    pub(super) fn empty_disabled(&mut self, now_ns: u64) -> bool {
        let pager = self.pager;
        let emptied = |number: &usize| {
            let tier = &pager.tiers[*number];
            tier.is_disabled() && tier.is_ours() && tier.stats.pages() > 0
        };
        let Some(from) = (1..pager.tiers.len()).find(emptied) else { return false };
        let to = pager.enabled_tier(from);
        if pager.tiers[to].is_disabled() || pager.pause_asked() || !self.empty_again.is_due(now_ns)
        {
            return false;
        }
        let (demoted, deadline) = (self.demoted(), sys::now_ns() + SLICE_NS);
        while sys::now_ns() < deadline {
            if self.emptied_region >= pager.table.len() {
                // All were looked at.
                self.emptied_region = 0;
                self.empty_again.done(now_ns);
                break;
            }
            let entry = pager.table.by_number(self.emptied_region);
            if entry.region.evicted.load(Relaxed) > 0 {
                self.evictor.recompress(pager, entry, to, Which::In(from));
            }
            if pager.pause_asked() {
                break;
            }
            self.emptied_region += 1;
        }
        self.count(Reason::Recompressed, demoted);
        self.empty_again.is_due(now_ns)
    }

    pub(super) fn tidy_files(&mut self, now_ns: u64) {
        if !self.tidy_files.is_turn(now_ns) {
            return;
        }
        let try_again = self.try_files_again.is_turn(now_ns);
        for files in self.pager.tiers.iter().filter_map(Tier::files) {
            if files.tidy() || try_again {
                files.try_again();
            }
        }
    }

    pub(super) fn look_at_swap(&mut self, now_ns: u64) {
        let Some((tier, swap)) = self.pager.swap() else { return };
        if !self.look_at_swap.is_turn(now_ns) {
            return;
        }
        // Each second: as files that refused.
        if self.try_swap_again.is_turn(now_ns) {
            swap.try_again();
        }
        swap.look(tier.stats.pages());
        if let Some(auto) = &mut self.evictor.auto {
            auto.measure(self.pager, &mut self.evictor.tools.scratch, now_ns);
        }
    }
}
