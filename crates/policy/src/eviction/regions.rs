//! Victims by samples: any hotness model over regions, beside what faults tell.
//!
//! Samples know regions, faults know pages. With 20,000 samples the rank correlation of single
//! pages of 4 KiB with their true accesses was measured at 0.06 to 0.25.
//!
//! So a model says which regions are hot, and they are left alone while others have something to
//! give. Among the others the coldest come first. Which of a region's pages are evicted is decided
//! by the CLOCK hand ([`crate::eviction::victims::passed`]). Where all regions are alike, as with
//! popular objects scattered over a heap, no model calls any of them hot. Then the order is that of
//! [`Faults`].
//!
//! Promotion has no part here: from a compressed tier a page is restored by its fault, which is as
//! good a sample as there is.

use crate::eviction::faults::Faults;
use crate::eviction::victims::{
    Choice, KEPT_PRESSURE, Pressure, RegionId, RegionView, VictimPolicy,
};
use crate::placement::histogram::{Config, Hotness};
use crate::placement::{Place, PlacementPolicy, Room, UnitId};

/// What says how hot a region is.
pub trait Model: Send {
    /// The policy's name.
    fn name(&self) -> &'static str;
    /// A region was seen for the first time.
    fn arrived(&mut self, region: RegionId);
    /// A region is gone.
    fn gone(&mut self, region: RegionId);
    /// Samples of the given weight met the region.
    fn sampled(&mut self, region: RegionId, weight: f32);
    /// Told before regions are ranked: `capacity` regions have room in DRAM.
    fn settle(&mut self, capacity: u32);
    /// Much more refaults than before: what was hot may not be any more.
    fn surged(&mut self);
    /// How much of what is met is met elsewhere of late, as a share.
    fn changed(&self) -> f32;
    /// Whether the model has seen enough to say anything of regions.
    fn is_informed(&self) -> bool;
    /// Whether the model has seen enough to tell hot regions from others.
    fn is_sure(&self) -> bool;
    /// Heat of a region, as a multiple of the average.
    fn heat(&self, region: RegionId) -> f32;
    /// Whether a region should be left alone.
    fn is_hot(&self, region: RegionId) -> bool;
}

/// Jenga's or Memtis's counters.
pub struct Counters {
    hotness: Hotness,
    mean: f32,
    known: Vec<UnitId>,
    /// The fraction of a sample not counted yet: the counters count whole samples.
    carry: f32,
}

impl Counters {
    /// Makes the model with the given parameters.
    pub fn new(config: Config) -> Self {
        Counters { hotness: Hotness::new(config), mean: 0.0, known: Vec::new(), carry: 0.0 }
    }
}

impl Model for Counters {
    fn name(&self) -> &'static str {
        self.hotness.config().name
    }

    fn arrived(&mut self, region: RegionId) {
        self.hotness.arrived(region, Place::Fast, 1);
        self.known.push(region);
    }

    fn gone(&mut self, region: RegionId) {
        self.hotness.gone(region);
        self.known.retain(|known| *known != region);
    }

    fn sampled(&mut self, region: RegionId, weight: f32) {
        self.carry += weight;
        while self.carry >= 1.0 {
            self.carry -= 1.0;
            self.hotness.sampled(region, 1);
        }
    }

    fn settle(&mut self, capacity: u32) {
        self.hotness.decide(Room { capacity, used: capacity, moves_max: 0 }, &mut Vec::new());
        let sum: f32 = self.known.iter().map(|region| self.hotness.counter(*region)).sum();
        self.mean = sum / self.known.len().max(1) as f32;
    }

    /// Does nothing: the published policies do not look at faults.
    fn surged(&mut self) {}

    fn changed(&self) -> f32 {
        0.0
    }

    fn is_informed(&self) -> bool {
        self.mean > 0.0
    }

    /// Always false: counters cannot tell heat from noise.
    fn is_sure(&self) -> bool {
        false
    }

    fn heat(&self, region: RegionId) -> f32 {
        (self.hotness.counter(region) + 1.0) / (self.mean + 1.0)
    }

    fn is_hot(&self, region: RegionId) -> bool {
        let (hot, _) = self.hotness.thresholds();
        // Bins by what the counter is now. (In the papers a warm region stays as well as a hot one;
        // there, noise costs no fault.)
        self.mean > 0.0 && self.hotness.counter(region) + 1.0 >= (1u32 << hot) as f32
    }
}

/// Hot regions are kept resident up to this share of all resident pages. The rest must have
/// something to give.
const KEPT_SHARE: f64 = 0.6;

/// Rate of refaults, pages a second.
#[derive(Debug, Default)]
struct Refaults {
    /// Beginning of the period in which `pages` are counted, ms.
    since_ms: u64,
    pages: u32,
    /// Averages with half-lives of [`Refaults::FAST_MS`] and [`Refaults::SLOW_MS`].
    fast: f32,
    slow: f32,
}

impl Refaults {
    const EVERY_MS: u64 = 100;
    const FAST_MS: f32 = 200.0;
    const SLOW_MS: f32 = 4_000.0;
    /// A surge is a rate of more than `TIMES` times the usual one plus `LEAST` pages a second.
    const TIMES: f32 = 2.0;
    const LEAST: f32 = 500.0;

    /// Counts pages that refaulted. True when a surge begins.
    fn count(&mut self, pages: u32, now_ms: u64) -> bool {
        self.pages = self.pages.saturating_add(pages);
        let elapsed_ms = now_ms.saturating_sub(self.since_ms);
        if elapsed_ms < Self::EVERY_MS {
            return false;
        }
        let rate = self.pages as f32 * 1_000.0 / elapsed_ms as f32;
        (self.since_ms, self.pages) = (now_ms, 0);
        let towards = |average: &mut f32, half_life_ms: f32| {
            *average += (rate - *average) * (1.0 - (-(elapsed_ms as f32) / half_life_ms).exp2())
        };
        towards(&mut self.fast, Self::FAST_MS);
        towards(&mut self.slow, Self::SLOW_MS);
        let surge = self.fast > Self::TIMES * self.slow + Self::LEAST;
        if surge {
            // It is the usual now.
            self.slow = self.fast;
        }
        surge
    }
}

/// Samples wanted, as a multiple of the usual. `FEW` are enough while samples change nothing, to
/// see when that ends. `MANY` are worth while after a change of more than `CHANGE` of what is met.
const FEW: f32 = 0.1;
const MANY: f32 = 3.0;
const CHANGE: f32 = 0.1;

/// A model over regions, beside the faults.
pub struct Regions<M> {
    model: M,
    faults: Faults,
    /// Ranking in which each region was seen last; 0 if the model does not know the region.
    seen: Vec<u32>,
    rankings: u32,
    refaults: Refaults,
    /// The most that was found changed since it was last asked for, and whether samples make a
    /// difference.
    changed: f32,
    helped: bool,
    /// Scratch: what is kept, and sort keys.
    kept: Vec<bool>,
    by_heat: Vec<(f32, RegionView)>,
    keyed: Vec<(f32, Choice)>,
}

impl<M: Model> Regions<M> {
    /// Makes the policy over a model that was told nothing yet.
    pub fn new(model: M) -> Self {
        Regions {
            model,
            faults: Faults::default(),
            seen: Vec::new(),
            rankings: 1,
            refaults: Refaults::default(),
            changed: 0.0,
            helped: true,
            kept: Vec::new(),
            by_heat: Vec::new(),
            keyed: Vec::new(),
        }
    }

    fn see(&mut self, region: RegionId) {
        let index = region as usize;
        if index >= self.seen.len() {
            self.seen.resize(index + 1, 0);
        }
        if std::mem::replace(&mut self.seen[index], self.rankings) == 0 {
            self.model.arrived(region);
        }
    }

    /// Marks the hottest regions, as far as they are hot and together no more than [`KEPT_SHARE`].
    fn keep_hot(&mut self, resident_pages: u64, regions: &[RegionView]) {
        self.kept.clear();
        self.kept.resize(self.seen.len(), false);
        self.by_heat.clear();
        let model = &self.model;
        self.by_heat.extend(
            regions
                .iter()
                .filter(|view| model.is_hot(view.region))
                .map(|view| (model.heat(view.region), *view)),
        );
        self.by_heat.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.region.cmp(&b.1.region)));
        let mut left = (resident_pages as f64 * KEPT_SHARE) as u64;
        self.helped = !self.by_heat.is_empty() || !model.is_sure();
        for (_, view) in &self.by_heat {
            let Some(rest) = left.checked_sub(u64::from(view.resident_pages)) else { break };
            left = rest;
            self.kept[view.region as usize] = true;
        }
    }
}

impl<M: Model> VictimPolicy for Regions<M> {
    fn name(&self) -> &'static str {
        self.model.name()
    }

    fn sampled(&mut self, region: RegionId, weight: f32) {
        self.see(region);
        self.model.sampled(region, weight);
    }

    fn heat(&self, region: RegionId) -> Option<f32> {
        self.model.is_informed().then(|| self.model.heat(region))
    }

    fn samples_wanted(&mut self) -> f32 {
        let changed = std::mem::take(&mut self.changed) > CHANGE;
        match (changed, self.helped) {
            (true, _) => MANY,
            (false, true) => 1.0,
            (false, false) => FEW,
        }
    }

    fn restored(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        self.faults.restored(region, pages, now_ms);
        if self.refaults.count(pages, now_ms) {
            self.model.surged();
            self.changed = 1.0;
        }
    }

    fn freed(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        self.faults.freed(region, pages, now_ms);
    }

    fn evicted(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        self.faults.evicted(region, pages, now_ms);
    }

    fn probed(&mut self, region: RegionId, staged: u32, touched: u32, now_ms: u64) {
        self.faults.probed(region, staged, touched, now_ms);
    }

    fn rank(
        &mut self,
        now_ms: u64,
        pressure: Pressure,
        regions: &[RegionView],
        order: &mut Vec<Choice>,
    ) {
        regions.iter().for_each(|view| self.see(view.region));
        for (region, seen) in
            (0..).zip(&mut self.seen).filter(|(_, seen)| **seen != 0 && **seen != self.rankings)
        {
            *seen = 0;
            self.model.gone(region);
        }
        self.rankings = self.rankings.checked_add(1).unwrap_or(1);
        let resident: u64 = regions.iter().map(|view| u64::from(view.resident_pages)).sum();
        self.model.settle((resident / 512) as u32);
        self.changed = self.changed.max(self.model.changed());
        self.faults.rank(now_ms, pressure, regions, order);
        self.keep_hot(resident, regions);
        let (model, faults, kept) = (&self.model, &self.faults, &self.kept);
        if self.by_heat.is_empty() {
            // All are alike.
            return;
        }
        let stays = |choice: &Choice| pressure < KEPT_PRESSURE && kept[choice.region as usize];
        self.keyed.clear();
        self.keyed.extend(
            order
                .iter()
                .filter(|choice| !stays(choice))
                .map(|choice| (model.heat(choice.region) * faults.heat_of(choice.region), *choice)),
        );
        // Stable: equals stay in the order of faults.
        self.keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        order.clear();
        order.extend(self.keyed.iter().map(|(_, choice)| *choice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::live;

    fn views(n: u32) -> Vec<RegionView> {
        (0..n)
            .map(|region| RegionView {
                region,
                resident_pages: 512,
                evicted_pages: 0,
                expected: None,
            })
            .collect()
    }

    fn ranked(policy: &mut dyn VictimPolicy, pressure: Pressure, n: u32) -> Vec<u32> {
        let mut order = Vec::new();
        policy.rank(10_000, pressure, &views(n), &mut order);
        order.iter().map(|choice| choice.region).collect()
    }

    /// 90 % of the samples in the first tenth of 200 regions.
    fn told(name: &str) -> Box<dyn VictimPolicy> {
        let mut policy = live::victims(name).expect("a policy");
        ranked(&mut *policy, 0, 200);
        for n in 0..8_000u32 {
            let region = if n % 10 == 0 { n / 10 * 7 % 200 } else { (n / 10 * 9 + n % 10) % 20 };
            policy.sampled(region, 1.0);
        }
        policy
    }

    #[test]
    fn hot_regions_are_left_alone_until_room_is_needed_now() {
        for name in ["terrace", "jenga", "memtis", "memtis-qc"] {
            let mut policy = told(name);
            let calm = ranked(&mut *policy, 0, 200);
            assert!(
                calm.iter().all(|region| *region >= 20) && calm.len() >= 80,
                "{name}: {calm:?}"
            );
            let pressed = ranked(&mut *policy, KEPT_PRESSURE, 200);
            assert_eq!(pressed.len(), 200, "{name}");
            assert!(
                pressed[180..].iter().all(|region| *region < 20),
                "{name}: the hottest come last: {pressed:?}"
            );
        }
    }

    #[test]
    fn faults_alone_hears_no_samples() {
        assert_eq!(ranked(&mut *told("faults"), 0, 200), (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn without_samples_the_order_is_that_of_faults() {
        for name in live::NAMES.into_iter().filter(|name| *name != "random") {
            let mut policy = live::victims(name).expect(name);
            for region in 0..3 {
                policy.evicted(region, 400, 0);
            }
            policy.restored(0, 30, 10);
            policy.restored(1, 5, 10);
            assert_eq!(ranked(&mut *policy, KEPT_PRESSURE, 3), [2, 1, 0], "{name}");
        }
    }

    #[test]
    fn samples_are_wanted_while_they_change_something() {
        let mut policy = told("terrace");
        ranked(&mut *policy, 0, 200);
        policy.samples_wanted();
        ranked(&mut *policy, 0, 200);
        assert_eq!(policy.samples_wanted(), 1.0);
        // The hot tenth is another one.
        for n in 0..2_000u32 {
            policy.sampled(100 + n * 13 % 20, 1.0);
            if n % 100 == 0 {
                ranked(&mut *policy, 0, 200);
            }
        }
        assert_eq!(policy.samples_wanted(), MANY);
        // All alike.
        let mut policy = live::victims("terrace").unwrap();
        ranked(&mut *policy, 0, 200);
        assert_eq!(policy.samples_wanted(), 1.0);
        for n in 0..20_000u32 {
            policy.sampled(n * 77 % 200, 1.0);
            if n % 500 == 0 {
                ranked(&mut *policy, 0, 200);
            }
        }
        policy.samples_wanted();
        ranked(&mut *policy, 0, 200);
        assert_eq!(policy.samples_wanted(), FEW);
    }

    #[test]
    fn a_surge_of_returns_is_a_change() {
        let mut refaults = Refaults::default();
        let surges = |refaults: &mut Refaults, from_ms: u64, pages: u32| -> Vec<u64> {
            (from_ms..from_ms + 5_000)
                .step_by(20)
                .filter(|now_ms| refaults.count(pages, *now_ms))
                .collect()
        };
        // 5,000 a second, from nothing; then as before, with less, and with four times as many.
        assert_eq!(surges(&mut refaults, 0, 100).len(), 1);
        assert!(
            surges(&mut refaults, 5_000, 100).is_empty()
                && surges(&mut refaults, 10_000, 60).is_empty()
        );
        let found = surges(&mut refaults, 15_000, 400);
        assert!(!found.is_empty() && found.len() < 3 && found[0] < 15_500, "{found:?}");
        let mut policy = told("terrace");
        assert_eq!(ranked(&mut *policy, 0, 200).iter().filter(|region| **region < 20).count(), 0);
        for now_ms in (10_000..11_000).step_by(20) {
            policy.restored(150, 100, now_ms);
        }
        // Nothing is hot until samples say so again.
        assert_eq!(ranked(&mut *policy, 0, 200).iter().filter(|region| **region < 20).count(), 20);
    }

    #[test]
    fn hot_regions_are_never_all_of_them() {
        let mut policy = told("terrace");
        // Nothing else is resident.
        let mut order = Vec::new();
        policy.rank(10_000, 0, &views(20), &mut order);
        assert!(order.len() >= 8, "{order:?}");
    }
}
