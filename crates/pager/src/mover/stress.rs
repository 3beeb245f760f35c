//! `TERRACE_STRESS`: random pages are evicted, by every route there is, whatever the policy
//! decides.

use super::state::{Mover, SLICE_NS};
use crate::evict::{EvictOutcome, EvictRequest, is_refused, note_refusals};
use crate::pages::table::REGION;
use terrace_control::settings::Stress;
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::{PRESSURE_MAX, Reason};

impl Mover {
    /// For `TERRACE_STRESS`: evicts random pages of random regions, whatever the policy decides.
    /// True if stress is on.
    pub(super) fn stress(&mut self, now_ns: u64) -> bool {
        let pager = self.pager;
        let batch = match pager.settings.stress {
            Stress::Off => return false,
            Stress::Full => 4096,
            Stress::PagesPerSecond(rate) => {
                self.stress_due = (self.stress_due
                    + (now_ns - self.stress_ns) as f64 / 1e9 * rate as f64)
                    .min(4096.0);
                self.stress_due as usize
            }
        };
        self.stress_ns = now_ns;
        if self.measure.scan_due(now_ns) {
            self.scan();
        }
        let deadline = now_ns + SLICE_NS;
        let before = self.demoted();
        let mut left = batch;
        let mut tries = 64;
        while left > 0 && tries > 0 && sys::now_ns() < deadline && !pager.pause_asked() {
            tries -= 1;
            let random = self.next_random();
            let Some(view) =
                self.measure.views.get(random as usize % self.measure.views.len().max(1)).copied()
            else {
                break;
            };
            let entry = pager.table.by_number(view.region);
            if is_refused(&entry, now_ns / 1_000_000) {
                continue;
            }
            let pages = left.min(1 + (random >> 32) as usize % 64);
            let from = (random >> 40) as usize % (REGION / PAGE);
            let tier = 1 + (random >> 20) as usize % (pager.tiers.len() - 1);
            let mut moved = self.demoted();
            let outcome = if random >> 60 == 0 {
                self.evictor.probe(pager, entry, random);
                EvictOutcome::default()
            } else if let Some(far) = self.far.as_mut().filter(|_| random >> 60 < 4) {
                far.stress_migrate(pager, &entry, random >> 8 & 1 == 0);
                // It is in the list already.
                moved = self.demoted();
                EvictOutcome::default()
            } else {
                self.evictor.evict(
                    pager,
                    entry,
                    EvictRequest { pages, pressure: PRESSURE_MAX, force: true, tier, from },
                )
            };
            if self.huge.is_some() && random >> 59 & 1 == 0 {
                // Other regions: pages of this one have just been evicted.
                for _ in 0..4 {
                    let other = self.next_random() as usize % self.measure.views.len();
                    pager.make_huge(&pager.table.by_number(self.measure.views[other].region));
                }
            }
            if random >> 56 & 15 == 1 {
                self.evictor.recompress_densest(pager, entry);
            }
            if let Some(densest) = pager.densest_own_tier().filter(|_| random >> 56 & 15 == 2) {
                self.evictor.recompress_swapped(pager, entry, densest);
            }
            self.list(Reason::Stress, entry.number, self.demoted() - moved, tier);
            note_refusals(&entry, &outcome);
            left -= (outcome.evicted as usize).min(left);
        }
        self.count(Reason::Stress, before);
        self.stress_due -= (batch - left) as f64;
        true
    }

    /// xorshift64: speed and spread, nothing else, are asked of it.
    pub(super) fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
