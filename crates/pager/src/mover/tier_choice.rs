//! The tier to evict into next: the cheapest overall, by ratios and by the cost of a fault.

use super::state::Mover;
use crate::evict::auto::faults;
use crate::evict::routes::route_of;
use std::sync::atomic::Ordering::*;
use terrace_os::PAGE;
use terrace_tiers::SwapKind;

/// From this pressure on, evictions go straight to the densest tier.
const PRESSURE_DENSE: u32 = 4;
/// Cost of evicting and restoring a page with the densest tier, as a multiple of that with the
/// first. With lz4 and zstd it is 16 to 19 and 22 to 27 µs overall where the program and the mover
/// share a CPU (`terrace-bench zram-servers`: 1.4). The factor is less because zstd saves more
/// faults there than Zipf's law predicts. At 80 % of memcached's memory and of redis' both give the
/// same throughput, zstd with a third fewer faults.
const DENSEST_COST: f64 = 1.3;
/// Cost of evicting and restoring a page with a tier in files, as a multiple of that with the first
/// tier. A read takes 100 µs.
const FILE_COST: f64 = 5.0;
/// Until the densest tier's ratio is known, it is tried once in this many choices.
const TRY_DENSEST: u32 = 32;
/// The first tier's ratio before it is known.
pub(super) const RATIO_ASSUMED: f64 = 0.5;
/// The densest tier's ratio before it is known, as a multiple of the first's: as zstd to lz4.
const DENSER_ASSUMED: f64 = 0.82;

impl Mover {
    /// The tiers that accept pages at present. A disk is used only if it is named.
    pub(super) fn accepting_tiers(&self) -> impl Iterator<Item = usize> {
        let auto = self.evictor.auto.is_some();
        (1..self.pager.tiers.len()).filter(move |tier| {
            let tier = &self.pager.tiers[*tier];
            let is_disk = tier.swap().is_some_and(|swap| swap.kind() == SwapKind::Disk);
            route_of(tier).accepts(tier) && !(auto && is_disk)
        })
    }

    /// The first (fastest) of the tiers that take pages at present, and the last (densest).
    pub(super) fn first_and_densest(&self) -> (usize, usize) {
        let mut all = self.accepting_tiers();
        let first = all.next().unwrap_or(1);
        (first, all.last().unwrap_or(first))
    }

    /// The tier to evict into next: the cheapest, and at intervals the densest until its ratio is
    /// known.
    pub(super) fn tier(&mut self) -> usize {
        let (_, densest) = self.first_and_densest();
        self.choices = self.choices.wrapping_add(1);
        let trial = self.choices.is_multiple_of(TRY_DENSEST) && self.ratio(densest).is_none();
        if trial {
            densest
        } else if self.evictor.auto.is_some() && self.pressure < PRESSURE_DENSE {
            self.measured_tier()
        } else {
            self.cheapest_tier()
        }
    }

    /// The tier that `--tiers auto` chooses by measured costs: see
    /// [`Auto`](crate::evict::auto::Auto).
    pub(super) fn measured_tier(&mut self) -> usize {
        let first_own = self.pager.own_tier(1);
        // The choice among our tiers, as without swap.
        let own = self.cheaper_of(first_own, self.pager.densest_own_tier().unwrap_or(first_own));
        let assumed = |tier: usize| {
            if tier == first_own { RATIO_ASSUMED } else { RATIO_ASSUMED * DENSER_ASSUMED }
        };
        let rivals = self
            .accepting_tiers()
            .filter(|tier| *tier == own || self.pager.tiers[*tier].swap().is_some());
        let takes: Vec<(usize, f64)> =
            rivals.map(|tier| (tier, self.ratio(tier).unwrap_or_else(|| assumed(tier)))).collect();
        let share_to_evict = self.share_to_evict();
        self.evictor.auto.as_mut().map_or(own, |auto| auto.choose(share_to_evict, &takes, own))
    }

    /// The share of the data that cannot stay in DRAM uncompressed.
    pub(super) fn share_to_evict(&self) -> f64 {
        let data = (self.pager.evicted_pages_total() + self.pager.account.resident()) * PAGE as u64;
        1.0 - self.pager.account.budget_bytes.load(Relaxed) as f64 / data.max(1) as f64
    }

    /// Bytes of DRAM for each byte in a tier, if that is known.
    pub(super) fn ratio(&self, tier: usize) -> Option<f64> {
        let place = &self.pager.tiers[tier];
        if place.leaves_dram() {
            return Some(0.0);
        }
        route_of(place).ratio(&self.evictor, self.pager, tier)
    }

    /// The first (fastest) compressed tier, or the densest where that costs less overall.
    ///
    /// With ratio r (physical per logical byte) a share x = (1 − budget/logical) / (1 − r) of the
    /// data must be evicted to meet the budget. It is less in a denser tier, whose faults cost
    /// more. By Zipf's law −ln(1 − x) of the accesses go to the least popular share x, up to a
    /// constant factor.
    pub(super) fn cheapest_tier(&self) -> usize {
        let (fastest, densest) = self.first_and_densest();
        if self.pressure >= PRESSURE_DENSE { densest } else { self.cheaper_of(fastest, densest) }
    }

    pub(super) fn cheaper_of(&self, fastest: usize, densest: usize) -> usize {
        let pager = self.pager;
        let share_to_evict = self.share_to_evict();
        let first = self.ratio(fastest).unwrap_or(RATIO_ASSUMED);
        let dense = self.ratio(densest).unwrap_or(first * DENSER_ASSUMED).min(first);
        // The first cannot do it.
        let Some(faults_first) = faults(share_to_evict, first) else { return densest };
        let faults_dense = faults(share_to_evict, dense).unwrap_or(faults_first);
        let cost = if pager.tiers[densest].leaves_dram() { FILE_COST } else { DENSEST_COST };
        if faults_dense * cost < faults_first { densest } else { fastest }
    }
}
