//! The walk through the regions in the policy's order, until memory is down to the target. Then
//! what follows where a whole walk was not enough.

use super::state::{AT_ONCE, AT_ONCE_WAITED_FOR, Mover, REST_MAX_NS, REST_MIN_NS, SLICE_NS, list};
use super::tier_choice::RATIO_ASSUMED;
use crate::evict::{EvictRequest, is_refused, note_refusals};
use crate::mover::far::Far;
use crate::mover::huge::is_kept_huge;
use crate::pages::table::REGION;
use std::sync::atomic::Ordering::*;
use terrace_control::moves::MoveReason;
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::{
    Action, MIN_TTL_MS, PRESSURE_MAX, Reason, probation_room, refault_distance_pages,
};
use terrace_policy::placement;
use terrace_tiers::Tier;

/// A scan at most this long before the ranking is fresh, ns.
const FRESH_NS: u64 = 20_000_000;
/// Pressure is lowered a step after this long without need, ns.
const EASE_EVERY_NS: u64 = 200_000_000;
/// The least pressure where a full node's coldest regions are compressed.
const FAR_PRESSURE: u32 = 1;
/// The time to evict this part (1/n) of the resident pages is measured.
const PACE_PARTS: u64 = 8;
/// Room for this share of the resident pages on probation: where many pages refault, many are too
/// young to be evicted.
const PROBATION_ROOM: f64 = 0.25;

impl Mover {
    /// Evicts until memory is down to `target` or the time slice is over. True if there is more to
    /// do at once.
    pub(super) fn make_room(&mut self, target: u64, now_ns: u64) -> bool {
        let pager = self.pager;
        let budget = pager.account.budget_bytes.load(Relaxed);
        let deadline = now_ns + SLICE_NS;
        if now_ns < self.backoff_until_ns {
            return false;
        }
        if let Some(more) = self.make_room_in_node(target, deadline) {
            return more;
        }
        if let Some(far) = self.far.as_ref().filter(|_| self.accepting_tiers().next().is_none()) {
            if pager.physical_bytes() <= budget {
                return false;
            }
            if !far.accepts() {
                far.warn_full(pager);
            }
            self.ranked_ns = now_ns;
            return self.walk_ended(budget);
        }
        // Every region has its turn before any has another: the CLOCK hand.
        if self.cursor >= self.order.len() {
            self.rank(now_ns);
        }
        while pager.physical_bytes() > target {
            if pager.pause_asked() || sys::now_ns() > deadline {
                return true;
            }
            if pager.physical_bytes() <= budget {
                self.boost(false);
            }
            pager.yield_if_due();
            if self.end_probation() {
                continue;
            }
            let Some(choice) = self.order.get(self.cursor).copied() else {
                return self.walk_ended(budget);
            };
            let from = std::mem::take(&mut self.from);
            self.cursor += 1;
            let over = pager.physical_bytes().saturating_sub(target);
            let entry = pager.table.by_number(choice.region);
            let now_ms = sys::now_ns() / 1_000_000;
            if is_refused(&entry, now_ms) || is_kept_huge(&entry, &*self.policy, self.pressure) {
                continue;
            }
            if choice.action == Action::Probe && pager.physical_bytes() <= budget {
                let salt = self.next_random();
                self.walk_moved_bytes += u64::from(self.evictor.probe(pager, entry, salt));
                continue;
            }
            // Evicting a page frees about half of it.
            let (least, most) = self.at_once();
            let pages = (over as usize / PAGE * 2 + 1).clamp(least, most);
            let planned = self.placer.as_ref().and_then(|placer| placer.tier_of(choice.region));
            let tier = planned.unwrap_or_else(|| self.tier());
            let before = self.demoted();
            let outcome = self.evictor.evict(
                pager,
                entry,
                EvictRequest { pages, pressure: self.pressure, force: false, tier, from },
            );
            let reason = if self.pressure == 0 { Reason::Cold } else { Reason::Pressed };
            self.count(reason, before);
            self.list(reason, choice.region, outcome.evicted.into(), tier);
            if outcome.next < REGION / PAGE {
                self.cursor -= 1;
                self.from = outcome.next;
            }
            if outcome.evicted > 0 {
                self.policy.evicted(choice.region, outcome.evicted, now_ms);
                self.walk_moved_bytes += u64::from(outcome.evicted) * PAGE as u64;
            }
            self.walk_changed |= outcome.changed;
            note_refusals(&entry, &outcome);
        }
        self.note_within_budget();
        false
    }

    /// Makes room by moving pages to far memory, as long as that has room or room can be made in
    /// it; otherwise `None`. True if there is more to do at once.
    pub(super) fn make_room_in_node(&mut self, target: u64, deadline: u64) -> Option<bool> {
        self.far.as_ref()?;
        let pager = self.pager;
        let before = self.demoted();
        let more = loop {
            let now_ns = sys::now_ns();
            if pager.physical_bytes() <= target {
                self.note_within_budget();
                break Some(false);
            }
            if pager.pause_asked() || now_ns > deadline || pager.is_frozen() {
                break Some(!pager.is_frozen());
            }
            pager.yield_if_due();
            let far = self.far.as_mut()?;
            if far.demote_coldest(pager, now_ns) {
                continue;
            }
            if far.accepts() {
                // Memory touched after the last scan is not known yet.
                if self.measure.scan_due(now_ns) {
                    self.scan();
                    continue;
                }
                // Over the budget that cannot wait: the other tiers have to help.
                break (pager.physical_bytes() <= pager.account.budget_bytes.load(Relaxed))
                    .then_some(false);
            }
            if !self.compress_far(deadline) {
                // Other tiers have their turn.
                break None;
            }
        };
        self.count(Reason::Cold, before);
        more
    }

    /// Compresses the coldest regions of a full node. False if none was compressed.
    pub(super) fn compress_far(&mut self, deadline: u64) -> bool {
        let pager = self.pager;
        // If the node accepts nothing anyway, compressing its pages only costs DRAM.
        if !self.far.as_ref().is_some_and(Far::is_usable) || pager.densest_own_tier().is_none() {
            return false;
        }
        while let Some(entry) =
            self.far.as_mut().and_then(|far| far.coldest_far(pager, sys::now_ns()))
        {
            // Samples show that it is cold; a page that was recently restored from there, or is
            // written, stays at first.
            let request = EvictRequest {
                pages: REGION / PAGE,
                pressure: self.pressure.max(FAR_PRESSURE),
                force: false,
                tier: self.tier(),
                from: 0,
            };
            let outcome = self.evictor.evict(pager, entry, request);
            pager.list_move(
                entry.region.address(),
                outcome.evicted.into(),
                None,
                request.tier,
                MoveReason::Placed(placement::Reason::Coldest),
            );
            note_refusals(&entry, &outcome);
            if let Some(far) = &mut self.far {
                far.compressed(pager, &entry, outcome.evicted);
            }
            if outcome.evicted > 0 {
                return true;
            }
            if pager.pause_asked() || sys::now_ns() > deadline {
                return false;
            }
        }
        if let Some(far) = &mut self.far {
            far.compressed_none(sys::now_ns());
        }
        false
    }

    /// Least and most pages to take at a time.
    pub(super) fn at_once(&self) -> (usize, usize) {
        let waited_for = self.pager.mover.waiting.load(Relaxed) > 0;
        if waited_for { (AT_ONCE_WAITED_FOR, AT_ONCE_WAITED_FOR) } else { (AT_ONCE, 2 * AT_ONCE) }
    }

    /// Evicts pages that were on probation for long enough. True if there were some.
    pub(super) fn end_probation(&mut self) -> bool {
        let pager = self.pager;
        let stay = probation_room(pager.account.resident(), pager.evicted_pages_total());
        self.leaving.clear();
        let now_ms = sys::now_ns() / 1_000_000;
        let ready = |page: u32| {
            let (entry, address) = pager.table.page(page);
            let word = entry.word(address).load();
            !word.is_on_probation() || word.age_ms(now_ms) >= MIN_TTL_MS
        };
        pager.probation.leave(stay, self.at_once().0, ready, &mut self.leaving);
        if self.leaving.is_empty() {
            return false;
        }
        let (tier, before) = (self.tier(), self.demoted());
        let (policy, moved, pressure) =
            (&mut self.policy, &mut self.walk_moved_bytes, self.pressure);
        self.evictor.end_probation(pager, &self.leaving, tier, |region| {
            list(pager, Reason::Probation, (region, policy.heat(region)), pressure, 1, tier);
            policy.evicted(region, 1, now_ms);
            *moved += PAGE as u64;
        });
        self.count(Reason::Probation, before);
        true
    }

    /// Measures how long it takes to evict [`refault_distance_pages`], and reserves queue space for
    /// those on probation.
    pub(super) fn measure_refault_distance(&mut self, now_ns: u64) {
        let account = &self.pager.account;
        let resident = account.resident();
        let evicted = account.demoted_pages.load(Relaxed) - self.paced_pages;
        let part_ms = (now_ns - self.paced_ns) / 1_000_000;
        let refault_distance_pages =
            refault_distance_pages(resident, self.pager.evicted_pages_total());
        let refault_distance_ms = (part_ms as f64 * refault_distance_pages
            / evicted.max(resident / PACE_PARTS).max(1) as f64)
            as u64;
        let known_ms = &self.pager.mover.refault_distance_ms;
        if evicted > 0 && evicted * PACE_PARTS >= resident {
            known_ms.store(refault_distance_ms, Relaxed);
            self.paced_ns = now_ns;
            self.paced_pages += evicted;
            self.pager.probation.reserve((resident as f64 * PROBATION_ROOM) as usize);
        } else {
            known_ms.fetch_max(refault_distance_ms, Relaxed);
        }
    }

    /// Records that memory is within the budget.
    pub(super) fn note_within_budget(&mut self) {
        self.pager.mover.at_floor.store(false, Relaxed);
        self.backoff_until_ns = 0;
        self.rest_ns = REST_MIN_NS;
    }

    pub(super) fn lower_pressure(&mut self, now_ns: u64) {
        if self.pressure > 0 && now_ns - self.eased_ns > EASE_EVERY_NS {
            self.pressure -= 1;
            self.eased_ns = now_ns;
        }
    }

    /// Handles a walk through the whole order that was not enough: a new scan, denser tiers, more
    /// pressure, and then the floor. True if there is more to do at once.
    pub(super) fn walk_ended(&mut self, budget: u64) -> bool {
        let pager = self.pager;
        let now_ns = sys::now_ns();
        let excess = pager.physical_bytes().saturating_sub(budget);
        let found = self.walk_moved_bytes > excess / 4 || excess == 0 && self.walk_changed;
        if found && excess == 0 {
            // Otherwise it would never be lowered while memory is always at the budget.
            self.lower_pressure(now_ns);
        }
        let scanned_ns = self.measure.scanned_ns;
        let ranked_ns = std::mem::replace(&mut self.ranked_ns, 0);
        if !found && scanned_ns + FRESH_NS < ranked_ns {
            // Memory allocated since the last scan is not in the order.
            self.scan();
            return true;
        }
        if excess > 0
            && (self.pressure >= 2 || self.cheapest_tier() + 1 == pager.tiers.len())
            && self.recompress()
        {
            return true;
        }
        if self.pressure < PRESSURE_MAX && !found {
            self.pressure += 1;
            self.eased_ns = now_ns;
            return true;
        }
        if found || excess == 0 {
            return excess > 0;
        }
        // The floor: nothing more can be reclaimed. Threads that wait for room would wait in vain.
        pager.mover.at_floor.store(true, Relaxed);
        sys::futex_wake(&pager.mover.progress, u32::MAX >> 1);
        self.backoff_until_ns = now_ns + self.rest_ns;
        self.rest_ns = (self.rest_ns * 2).min(REST_MAX_NS);
        false
    }

    pub(super) fn rank(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        if self.measure.scan_due(now_ns) {
            self.scan();
        }
        self.report_refaults(now_ns);
        self.policy.rank(now_ms, self.pressure, &self.measure.views, &mut self.order);
        self.cursor = 0;
        self.from = 0;
        self.walk_moved_bytes = 0;
        self.walk_changed = false;
        self.ranked_ns = now_ns;
    }

    /// Recompresses evicted pages; true if that gained something.
    pub(super) fn recompress(&mut self) -> bool {
        let pager = self.pager;
        let Some(densest) = pager.densest_own_tier() else { return false };
        if pager.tiers[1..densest]
            .iter()
            .all(|tier| tier.node().is_some() || tier.stats.pages() == 0)
        {
            return false;
        }
        let swap = pager.swap_tier_index().filter(|swap| *swap < densest);
        // Moving for less than an eighth is not worth a slower fault.
        let swap_is_sparser = swap.is_some_and(|swap| {
            self.ratio(densest).unwrap_or(RATIO_ASSUMED) < self.ratio(swap).unwrap_or(0.0) * 0.875
        });
        let deadline = sys::now_ns() + SLICE_NS;
        let demoted = self.demoted();
        let before: u64 = pager.tiers.iter().map(Tier::dram_bytes).sum();
        let regions = pager.table.len();
        let first = (self.next_random() % u64::from(regions.max(1))) as u32;
        let mut gained = 0;
        for step in 0..regions {
            let entry = pager.table.by_number((first + step) % regions);
            let moved = self.demoted();
            if entry.region.evicted.load(Relaxed) > 0 {
                gained += self.evictor.recompress_densest(pager, entry);
            }
            if swap_is_sparser {
                gained += u64::from(self.evictor.recompress_swapped(pager, entry, densest));
            }
            self.list(Reason::Recompressed, entry.number, self.demoted() - moved, densest);
            if pager.pause_asked() || sys::now_ns() > deadline {
                break;
            }
        }
        self.count(Reason::Recompressed, demoted);
        let after: u64 = pager.tiers.iter().map(Tier::dram_bytes).sum();
        gained > 0 && after < before
    }
}
