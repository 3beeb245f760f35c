//! Victims by faults and probes alone: the first policy, for where nothing samples accesses.
//!
//! A region is cold while little of what was evicted from it refaults. Regions are taken coldest
//! first. A region of which nothing is known is probed before it is emptied. A region that refaults
//! more than others is left alone for an exponentially growing time. Within a region, pages have
//! their own history (see [`crate::eviction::victims::refaulted`]), because in scattered workloads
//! hot and cold pages share every region.
//!
//! A walk takes only the regions that are clearly colder than the mean, again and again, while they
//! have something to give. Programs that sweep through their memory (a garbage collector, an array
//! that is read from end to end) need that. A CLOCK hand that goes through all regions evicts each
//! of them once a sweep; so it is better that the same few go each time, and all others stay.

use crate::eviction::victims::{
    Action, Choice, Expectation, KEPT_PRESSURE, Pressure, RegionId, RegionView, VictimPolicy,
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
    /// A walk takes only regions with less heat than this share of the mean (0–1), if there are
    /// some. Default 0.8: with less there are too few of them. See
    /// `docs/notes/2026-11-30-cold-regions-first.md`.
    pub cold_below_mean: f32,
    /// They must hold this share of the resident pages (0–1), but for regions that rest. Default
    /// 1/50.
    pub cold_share: f32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            hot_share: 0.125,
            hot_beyond_mean: 2.0,
            rest_base_ms: 1_000,
            rest_doublings_max: 6,
            half_life_ms: 4_000.0,
            cold_below_mean: 0.8,
            cold_share: 0.02,
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

/// A region in the order in which victims are taken.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    /// Share of what was evicted that refaulted, and a little more the fewer pages are resident.
    heat: f32,
    choice: Choice,
    /// Resident pages.
    pages: u32,
}

/// A walk through cold regions alone found something if it evicted this part (1/n) of their pages.
const FOUND_PARTS: u32 = 1_024;

/// The policy named `faults`.
#[derive(Debug, Default)]
pub struct Faults {
    config: Config,
    records: Vec<Record>,
    /// Mean heat of all regions with resident pages, when they were last ranked.
    mean_heat: f32,
    /// Pages evicted since the regions were last ranked, and how many must be if the walk was
    /// through cold regions only and is to be so again.
    evicted: u32,
    evicted_least: u32,
    scratch: Vec<Ranked>,
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

    /// Keeps only the cold ones of all `ranked` regions, if there are enough of them and the last
    /// walk through cold regions alone found something.
    fn keep_cold(&mut self, pressure: Pressure, ranked: &mut Vec<Ranked>) {
        let found = self.evicted >= self.evicted_least;
        (self.evicted, self.evicted_least) = (0, 0);
        if pressure >= KEPT_PRESSURE || !found {
            return;
        }
        let below = self.config.cold_below_mean * self.mean_heat;
        let cold = ranked.partition_point(|region| region.heat < below);
        let pages = |of: &[Ranked]| of.iter().map(|region| region.pages).sum::<u32>();
        let cold_pages = pages(&ranked[..cold]);
        if cold_pages as f32 >= self.config.cold_share * pages(ranked) as f32 {
            self.evicted_least = cold_pages / FOUND_PARTS;
            ranked.truncate(cold);
        }
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

    /// Counts as a refault: neither gave room for longer.
    fn freed(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        self.restored(region, pages, now_ms);
    }

    fn evicted(&mut self, region: RegionId, pages: u32, now_ms: u64) {
        self.evicted = self.evicted.saturating_add(pages);
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
            ranked.push(Ranked {
                heat: Self::heat(&record) + emptiness,
                choice: Choice { region: view.region, action },
                pages: view.resident_pages,
            });
        }
        ranked
            .sort_by(|a, b| a.heat.total_cmp(&b.heat).then(a.choice.region.cmp(&b.choice.region)));
        self.mean_heat = Self::heat(&all);
        self.keep_cold(pressure, &mut ranked);
        order.clear();
        order.extend(ranked.iter().map(|region| region.choice));
        self.scratch = ranked;
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
            policy.rank(now_ms, KEPT_PRESSURE, &views, &mut order);
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
        let mut ranked = |pressure| {
            let order = ranked(&mut policy, 20, pressure, 3);
            order.iter().map(|choice| choice.region).collect::<Vec<_>>()
        };
        assert_eq!(ranked(KEPT_PRESSURE), [2, 1, 0]);
        assert_eq!(ranked(KEPT_PRESSURE - 1), [2, 1]);
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

    /// Three of eight regions give pages that stay out. Whatever left the others came back.
    fn three_cold_of_eight() -> Faults {
        let mut policy = Faults::default();
        for region in 0..8 {
            policy.evicted(region, 200, 0);
            if region >= 3 {
                policy.restored(region, 150, 0);
            }
        }
        policy
    }

    #[test]
    fn a_walk_takes_cold_regions_alone_while_they_give_something() {
        let mut policy = three_cold_of_eight();
        for now_ms in [2_000, 2_010, 2_020] {
            let order = ranked(&mut policy, now_ms, 0, 8);
            assert_eq!(order.iter().map(|choice| choice.region).collect::<Vec<_>>(), [0, 1, 2]);
            policy.evicted(0, 2, now_ms);
        }
        assert_eq!(ranked(&mut policy, 2_030, 0, 8).len(), 3);
        assert_eq!(ranked(&mut policy, 2_040, 0, 8).len(), 8, "the last walk found nothing");
        assert_eq!(ranked(&mut policy, 2_050, 0, 8).len(), 3, "and after the others, again");
        assert_eq!(ranked(&mut policy, 2_060, KEPT_PRESSURE, 8).len(), 8);
    }

    #[test]
    fn what_was_freed_while_it_was_out_makes_a_region_no_better_a_victim() {
        let mut policy = three_cold_of_eight();
        policy.freed(1, 200, 0);
        let order = ranked(&mut policy, 2_000, 0, 8);
        assert_eq!(order.iter().map(|choice| choice.region).collect::<Vec<_>>(), [0, 2]);
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
