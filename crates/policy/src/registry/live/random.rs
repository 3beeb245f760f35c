//! Regions in a random order. No paper's proposal, but what chance comes to in a live program, by
//! which the other policies can be judged.
//!
//! Nothing that faults or samples tell changes the order. Each ranking is another one, by random
//! numbers that are the same in each run.

use crate::eviction::victims::{Action, Choice, Pressure, RegionId, RegionView, VictimPolicy};

/// Name of the policy.
pub const NAME: &str = "random";

/// The policy: the state of its random numbers.
#[derive(Debug, Default)]
pub struct Random(u64);

impl Random {
    /// Draws a random number (splitmix64).
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl VictimPolicy for Random {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sampled(&mut self, _region: RegionId, _weight: f32) {}

    fn samples_wanted(&mut self) -> f32 {
        0.0
    }

    fn restored(&mut self, _region: RegionId, _pages: u32, _now_ms: u64) {}

    fn freed(&mut self, _region: RegionId, _pages: u32, _now_ms: u64) {}

    fn evicted(&mut self, _region: RegionId, _pages: u32, _now_ms: u64) {}

    fn probed(&mut self, _region: RegionId, _staged: u32, _touched: u32, _now_ms: u64) {}

    fn rank(
        &mut self,
        _now_ms: u64,
        _pressure: Pressure,
        regions: &[RegionView],
        order: &mut Vec<Choice>,
    ) {
        order.clear();
        let resident = regions.iter().filter(|view| view.resident_pages > 0);
        order.extend(resident.map(|view| Choice { region: view.region, action: Action::Evict }));
        // The shuffle of Fisher and Yates.
        for last in (1..order.len()).rev() {
            order.swap(last, (self.draw() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(region: RegionId) -> RegionView {
        RegionView { region, resident_pages: region % 2, evicted_pages: 1, expected: None }
    }

    fn ranked(policy: &mut Random) -> Vec<RegionId> {
        let views: Vec<RegionView> = (0..64).map(view).collect();
        let mut order = Vec::new();
        policy.rank(0, 0, &views, &mut order);
        order.iter().map(|choice| choice.region).collect()
    }

    #[test]
    fn each_ranking_has_all_resident_regions_in_another_order_the_same_in_each_run() {
        let (mut policy, mut again) = (Random::default(), Random::default());
        let (mut first, second) = (ranked(&mut policy), ranked(&mut policy));
        assert_ne!(first, second);
        assert_eq!((ranked(&mut again), ranked(&mut again)), (first.clone(), second));
        first.sort_unstable();
        assert_eq!(first, (0..64).filter(|region| region % 2 == 1).collect::<Vec<RegionId>>());
    }
}
