//! Victims by faults and probes alone: the first policy, for where nothing samples accesses.
//!
//! A region is cold while little of what was evicted from it refaults. Regions are taken coldest
//! first. A region of which nothing is known is probed before it is emptied. A region that refaults
//! more than others is left alone for an exponentially growing time. Within a region, pages have
//! their own history (see [`crate::eviction::victims::refaulted`]), because in scattered workloads
//! hot and cold pages share every region.

use crate::eviction::victims::{
    Action, Choice, Expectation, Pressure, RegionId, RegionView, VictimPolicy,
};

/// Parameters, with the reasons for their defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// A region is hot if more than this share of its evicted pages refaulted lately (0–1). Default
    /// 1/8: a restored page costs about two evictions, so below it eviction still pays.
    pub hot_share: f32,
    /// Least heat of a hot region, as a multiple of the mean heat. Where all regions are alike,
    /// they do not tell which pages to take. Default 2.
    pub hot_beyond_mean: f32,
    /// First rest of a hot region, ms; doubles each time. Default 1,000.
    pub rest_base_ms: u64,
    /// Most doublings of the rest. Default 6: 64 s.
    pub rest_doublings_max: u8,
    /// Time in which old refaults lose half their weight, ms. Default 4,000.
    pub half_life_ms: f32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            hot_share: 0.125,
            hot_beyond_mean: 2.0,
            rest_base_ms: 1_000,
            rest_doublings_max: 6,
            half_life_ms: 4_000.0,
        }
    }
}

/// Record of one region: 20 bytes for 2 MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Refaults, decayed.
    refaults: f32,
    /// Evictions and probes, decayed alike: `refaults / evictions` is the region's heat.
    evictions: f32,
    /// When the two were last decayed, ms / 16 (wraps after two years).
    decayed_at: u32,
    /// No victims before this time, ms / 16.
    rest_until: u32,
    /// Doublings of the next rest.
    doublings: u8,
    /// Whether anything is known at all.
    known: bool,
    /// See [`RegionView::expected`].
    expected: Option<Expectation>,
}

/// The policy named `faults`.
#[derive(Debug, Default)]
pub struct Faults {
    config: Config,
    records: Vec<Record>,
    /// Mean heat of all regions with resident pages, when they were last ranked.
    mean_heat: f32,
    scratch: Vec<(f32, Choice)>,
}

impl Faults {
    /// A policy with the given parameters.
    pub fn new(config: Config) -> Self {
        Faults { config, ..Faults::default() }
    }

    fn record(&mut self, region: RegionId, now_ms: u64) -> &mut Record {
        let index = region as usize;
        if index >= self.records.len() {
            self.records.resize(index + 1, Record::default());
        }
        let half_life_ms = self.config.half_life_ms;
        let record = &mut self.records[index];
        let now = (now_ms / 16) as u32;
        let age_ms = now.wrapping_sub(record.decayed_at) as f32 * 16.0;
        if age_ms > 0.0 {
            let keep = (-age_ms / half_life_ms).exp2();
            record.refaults *= keep;
            record.evictions *= keep;
            record.decayed_at = now;
        }
        record
    }

    /// How much of what was evicted from the region refaulted, when it was last looked at (0.06
    /// where nothing is known or expected).
    pub fn heat_of(&self, region: RegionId) -> f32 {
        Self::heat(&self.records.get(region as usize).copied().unwrap_or_default())
    }

    /// Refaults per eviction, as if 8 more pages had been evicted and half a page had refaulted:
    /// thin evidence counts for little. If the program expects something of the region, 6 pages
    /// (hot) or 0.01 (cold) are taken instead of the half.
    fn heat(record: &Record) -> f32 {
        let refaults = match record.expected {
            None => 0.5,
            Some(Expectation::Hot) => 6.0,
            Some(Expectation::Cold) => 0.01,
        };
        (record.refaults + refaults) / (record.evictions + 8.0)
    }
}

impl VictimPolicy for Faults {
    fn name(&self) -> &'static str {
        "faults"
    }

    fn sampled(&mut self, _region: RegionId, _weight: f32) {}

    fn samples_wanted(&mut self) -> f32 {
        0.0
    }

    fn restored(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        let config = self.config.clone();
        let hot = config.hot_share.max(config.hot_beyond_mean * self.mean_heat);
        let record = self.record(region, now_ms);
        record.refaults += pages as f32;
        record.known = true;
        let rests = (now_ms / 16) as u32;
        let resting = record.rest_until.wrapping_sub(rests) as i32 > 0;
        if !resting && Self::heat(record) > hot {
            let rest_ms = config.rest_base_ms << record.doublings;
            record.rest_until = ((now_ms + rest_ms) / 16) as u32;
            record.doublings = (record.doublings + 1).min(config.rest_doublings_max);
        }
    }

    fn evicted(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        let record = self.record(region, now_ms);
        record.evictions += pages as f32;
        record.known = true;
    }

    fn probed(&mut self, region: RegionId, staged: u32, touched: u32, now_ms: u64) {
        self.evicted(region, staged, now_ms);
        if touched > 0 {
            self.restored(region, touched, now_ms);
        } else {
            let record = self.record(region, now_ms);
            record.doublings = record.doublings.saturating_sub(1);
        }
    }

    fn rank(
        &mut self,
        now_ms: u64,
        pressure: Pressure,
        regions: &[RegionView],
        order: &mut Vec<Choice>,
    ) {
        let mut ranked = std::mem::take(&mut self.scratch);
        ranked.clear();
        let mut all = Record::default();
        let rest_longest_ms = self.config.rest_base_ms << self.config.rest_doublings_max;
        for view in regions.iter().filter(|view| view.resident_pages > 0) {
            self.record(view.region, now_ms).expected = view.expected;
            let record = self.records[view.region as usize];
            all.refaults += record.refaults;
            all.evictions += record.evictions;
            let rest_left_ms =
                i64::from(record.rest_until.wrapping_sub((now_ms / 16) as u32) as i32) * 16;
            // Pressure halves rests by cutting off their ends: a region rests while more than the
            // relieved part is left.
            let relieved_ms =
                if pressure == 0 { 0 } else { rest_longest_ms - (rest_longest_ms >> pressure) };
            if rest_left_ms > relieved_ms as i64 {
                continue;
            }
            let known = record.known || record.expected == Some(Expectation::Cold);
            let action = if known || pressure > 0 { Action::Evict } else { Action::Probe };
            // Regions that are mostly evicted already give little for the walk: slightly later.
            let emptiness = view.evicted_pages as f32 / 512.0 * 0.01;
            ranked.push((Self::heat(&record) + emptiness, Choice { region: view.region, action }));
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.region.cmp(&b.1.region)));
        order.clear();
        order.extend(ranked.iter().map(|(_, choice)| *choice));
        self.scratch = ranked;
        self.mean_heat = Self::heat(&all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn ranked(policy: &mut Faults, now_ms: u64, pressure: Pressure, n: u32) -> Vec<Choice> {
        let mut order = Vec::new();
        policy.rank(now_ms, pressure, &views(n), &mut order);
        order
    }

    #[test]
    fn unknown_regions_are_probed_unless_room_is_needed_now() {
        let mut policy = Faults::default();
        assert!(ranked(&mut policy, 0, 0, 4).iter().all(|c| c.action == Action::Probe));
        assert!(ranked(&mut policy, 0, 1, 4).iter().all(|c| c.action == Action::Evict));
    }

    /// What is expected decides while nothing is known, and little when something is.
    #[test]
    fn expectations_hold_until_faults_say_otherwise() {
        let mut policy = Faults::default();
        let mut views = views(3);
        (views[1].expected, views[2].expected) = (Some(Expectation::Hot), Some(Expectation::Cold));
        let mut order = Vec::new();
        let mut ranked = |policy: &mut Faults, now_ms| {
            policy.rank(now_ms, 1, &views, &mut order);
            order.iter().map(|choice| choice.region).collect::<Vec<_>>()
        };
        assert_eq!(ranked(&mut policy, 0), [2, 0, 1]);
        for region in 0..3 {
            policy.evicted(region, 200, 10);
        }
        policy.restored(2, 22, 20);
        policy.restored(0, 4, 20);
        assert_eq!(ranked(&mut policy, 20), [0, 1, 2]);
    }

    #[test]
    fn coldest_first() {
        let mut policy = Faults::default();
        for region in 0..3 {
            policy.evicted(region, 400, 0);
        }
        policy.restored(0, 30, 10);
        policy.restored(1, 5, 10);
        let order: Vec<_> = ranked(&mut policy, 20, 0, 3).iter().map(|c| c.region).collect();
        assert_eq!(order, [2, 1, 0]);
    }

    #[test]
    fn a_region_that_faults_back_rests_longer_each_time() {
        let mut policy = Faults::default();
        let mut now = 0;
        let mut rests = Vec::new();
        for _ in 0..4 {
            for region in 0..8 {
                policy.evicted(region, 100, now);
            }
            policy.restored(0, 100, now + 16);
            let start = now + 16;
            now = start;
            while !ranked(&mut policy, now, 0, 8).iter().any(|choice| choice.region == 0) {
                now += 16;
            }
            rests.push(now - start);
        }
        for pair in rests.windows(2) {
            assert!(pair[1] >= pair[0] * 3 / 2, "{rests:?}");
        }
    }

    #[test]
    fn where_all_regions_are_alike_none_rests() {
        let mut policy = Faults::default();
        for now_ms in (0..10_000).step_by(100) {
            for region in 0..8 {
                policy.evicted(region, 10, now_ms);
                policy.restored(region, 8, now_ms);
            }
            let all = ranked(&mut policy, now_ms, 0, 8).len();
            assert!(all == 8 || now_ms < 2_000, "{all} at {now_ms}");
        }
    }

    #[test]
    fn full_pressure_ends_every_rest() {
        let mut policy = Faults::default();
        policy.evicted(0, 100, 0);
        policy.restored(0, 100, 16);
        assert!(ranked(&mut policy, 32, 0, 1).is_empty());
        assert_eq!(ranked(&mut policy, 32, crate::eviction::victims::PRESSURE_MAX, 1).len(), 1);
    }

    #[test]
    fn regions_without_resident_pages_are_no_victims() {
        let mut policy = Faults::default();
        let mut order = vec![Choice { region: 9, action: Action::Evict }];
        policy.rank(
            0,
            12,
            &[RegionView { region: 0, resident_pages: 0, evicted_pages: 512, expected: None }],
            &mut order,
        );
        assert!(order.is_empty());
    }
}
