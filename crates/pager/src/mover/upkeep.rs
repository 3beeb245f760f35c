//! What is done now and then beside evicting: pools are packed, files give back what was freed in
//! them, and the kernel's swap is looked at.

use super::state::{Mover, POOLS_AT_ONCE};
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
