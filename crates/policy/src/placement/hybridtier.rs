//! HybridTier (Song et al., ASPLOS 2025). How often a page is met in the long run is its
//! *frequency*, how often of late its *momentum*. Each is in a counting Bloom filter.
//!
//! Samples are gathered into batches of 100,000. When a batch was counted, pages of the slow tier
//! that were in it come up, as far as there is room. A page comes up if one of these holds:
//!
//! - its frequency is not below a threshold;
//! - its momentum is not below a fixed one.
//!
//! If no more than 1.25 % of the fast tier is free after a batch, room is made until 5 % are. The
//! fast tier's pages are gone through, from where that ended last:
//!
//! | frequency | momentum | |
//! |---|---|---|
//! | low | none | demoted |
//! | high | none | a second chance: demoted a minute later if it was not met until then |
//! | any | some | stays |
//!
//! The published artifact has two programs, for base pages ([`BASE`]: counters up to 15) and for
//! huge ones ([`HUGE`]: up to 65535, thresholds of hundreds). From there are all numbers, and these
//! rules:
//!
//! - The frequency's threshold, 5 or 1000, is lowered in steps, as far as 3 or 600. That happens
//!   when promotions have all but ceased while pages above it fill less than 80 % of the fast tier.
//! - A page whose counter is full loses one count when it gets its second chance.
//! - Demotion of more than 100 MB/s is followed by a second of sleep, in which samples are lost.
//!
//! Papers say otherwise. Jenga's: momentum is over 500,000 samples and frequency over 80 million
//! (§2.2.2). The artifact has 1.1 million, and 160 (base) or 64,000 (huge) samples for each page of
//! the fast tier. HybridTier's: the threshold comes from the histogram of frequencies. It is the
//! highest at which hot pages are more than the fast tier holds, at least 2. The artifact has that
//! rule too, without using it: `hot=0` here.
//!
//! Neither program has pages of two sizes. Where units differ this is the one for base pages. A
//! sample of a page counts the same whatever its size. The histogram, the room and what is demoted
//! are in base pages.
//!
//! Left out: the artifact's *monitor mode*, and its halving of the sampling rate of the fast tier.
//! The mode stops sampling while the share of accesses to the fast tier is steady. Choices: a
//! batch's pages are counted and moved in order of units. What finds no room in a batch has to be
//! met again.

use crate::placement::sizes::Sizes;
use crate::placement::sketch::{Sketch, counters_for};
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::collections::VecDeque;

const FALSE_POSITIVES: f64 = 0.001;
/// Bits of a block of counters: a cache line.
const BLOCK_BITS: usize = 512;
/// Demotion of more than `THROTTLE_FROM` bytes a second is followed by a sleep, until it is less
/// than `THROTTLE_UNTIL`.
const THROTTLE_FROM: f64 = 100.0 * 1048576.0;
const THROTTLE_UNTIL: f64 = 10.0 * 1048576.0;
/// The threshold is lowered while pages above it fill less than this share of the fast tier.
const FULL_OF_HOT: f64 = 0.8;
/// The least threshold by the histogram, because most pages were met once.
const LEAST_HOT: u32 = 2;
/// The sketches are made anew when the capacity changes by one part of this many.
const CAPACITY_SHARE: u32 = 20;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Bytes that a base unit stands for.
    pub unit_bytes: f64,
    /// Samples in a batch.
    pub batch: u64,
    /// Counters have 16 bits, not 4.
    pub wide: bool,
    /// Number of the frequency filter's counters for each of the momentum filter's.
    pub momentum_part: f64,
    /// Samples for each page of the fast tier after which frequencies are halved.
    pub frequency_window: f64,
    /// Samples after which momenta are halved.
    pub momentum_window: u64,
    /// The frequency from which a page is hot, at first; 0 to take it from the histogram.
    pub hot: u32,
    /// Step by which the threshold is lowered when promotions cease.
    pub hot_step: u32,
    /// Least threshold to which that is lowered.
    pub hot_least: u32,
    /// Promotions have ceased if no more than this came up in
    /// [`ceased_batches`](Config::ceased_batches), bytes.
    pub ceased_bytes: f64,
    /// Batches after which it is looked at whether promotions have ceased.
    pub ceased_batches: u64,
    /// Number of batches up to which the threshold is not lowered.
    pub ceased_not_before: u64,
    /// The momentum from which a page is hot.
    pub momentum: u32,
    /// The momentum below which a page of low frequency has none.
    pub cold_momentum: u32,
    /// The momentum below which a page of high frequency has none.
    pub second_momentum: u32,
    /// Samples of a page in its second chance below which that has failed.
    pub second_samples: u32,
    /// Time after which second chances are looked at, ns.
    pub second_ns: u64,
    /// Most that pages with a second chance hold, bytes.
    pub second_bytes: f64,
    /// Free share of the fast tier from which on downwards demotion begins.
    pub allocation: f64,
    /// Free share of the fast tier at which demotion ends.
    pub demotion: f64,
    /// Length of the sleep after too much demotion, ns; 0 for none.
    pub sleep_ns: u64,
    /// Length of the second in which rates of demotion are told, ns.
    pub second_of_rates_ns: u64,
}

/// Parameters for base pages, as in `hybridtier.cpp` of the artifact.
pub const BASE: Config = Config {
    unit_bytes: 4096.0,
    batch: 100_000,
    wide: false,
    momentum_part: 100.0,
    frequency_window: 160.0,
    momentum_window: 1_100_000,
    hot: 5,
    hot_step: 1,
    hot_least: 3,
    ceased_bytes: 25_000.0 * 4096.0,
    ceased_batches: 20,
    ceased_not_before: 500,
    momentum: 3,
    cold_momentum: 1,
    second_momentum: 1,
    second_samples: 1,
    second_ns: 60_000_000_000,
    second_bytes: 10_000.0 * 4096.0,
    allocation: 0.0125,
    demotion: 0.05,
    sleep_ns: 1_000_000_000,
    second_of_rates_ns: 1_000_000_000,
};

/// Parameters for huge pages, as in `hybridtier_huge.cpp`.
pub const HUGE: Config = Config {
    unit_bytes: 2097152.0,
    wide: true,
    momentum_part: 8.0,
    frequency_window: 64_000.0,
    hot: 1000,
    hot_step: 100,
    hot_least: 600,
    ceased_bytes: 100.0 * 2097152.0,
    ceased_batches: 50,
    ceased_not_before: 100,
    momentum: 200,
    cold_momentum: 400,
    second_momentum: 20,
    second_samples: 100,
    second_bytes: 1_000.0 * 2097152.0,
    ..BASE
};

/// The parameters where a base unit stands for `unit_bytes`: those of the program whose pages are
/// nearer to that. Where some units are larger, base units are base pages whatever they stand for.
pub fn of_pages(unit_bytes: f64, largest: u32) -> Config {
    let base = largest > 1 || unit_bytes < (BASE.unit_bytes * HUGE.unit_bytes).sqrt();
    Config { unit_bytes, ..if base { BASE } else { HUGE } }
}

/// Parameters that can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob {
            name: "batch",
            about: "samples that are counted at once",
            kind: Kind::Samples,
        },
        get: |config| config.batch as f64,
        set: |config, value| config.batch = value as u64,
    },
    Setting {
        knob: Knob {
            name: "frequency-window",
            about: "samples a page of the fast tier after which frequencies are halved",
            kind: Kind::Count,
        },
        get: |config| config.frequency_window,
        set: |config, value| config.frequency_window = value,
    },
    Setting {
        knob: Knob {
            name: "momentum-window",
            about: "samples after which momenta are halved",
            kind: Kind::Samples,
        },
        get: |config| config.momentum_window as f64,
        set: |config, value| config.momentum_window = value as u64,
    },
    Setting {
        knob: Knob {
            name: "hot",
            about: "the frequency from which a page is hot at first; 0: by the histogram",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.hot),
        set: |config, value| config.hot = value as u32,
    },
    Setting {
        knob: Knob { name: "momentum", about: "the momentum from which it is", kind: Kind::Count },
        get: |config| f64::from(config.momentum),
        set: |config, value| config.momentum = value as u32,
    },
    Setting {
        knob: Knob {
            name: "cold-momentum",
            about: "less is none, of a page that is not frequent",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.cold_momentum),
        set: |config, value| config.cold_momentum = value as u32,
    },
    Setting {
        knob: Knob {
            name: "second-momentum",
            about: "less is none, of a frequent page, which gets a second chance",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.second_momentum),
        set: |config, value| config.second_momentum = value as u32,
    },
    Setting {
        knob: Knob {
            name: "second-chance",
            about: "time until that is looked at",
            kind: Kind::Time,
        },
        get: |config| config.second_ns as f64,
        set: |config, value| config.second_ns = value as u64,
    },
    Setting {
        knob: Knob {
            name: "allocation",
            about: "demotion begins when so little is free",
            kind: Kind::Share,
        },
        get: |config| config.allocation,
        set: |config, value| config.allocation = value,
    },
    Setting {
        knob: Knob { name: "demotion", about: "and ends when so much is", kind: Kind::Share },
        get: |config| config.demotion,
        set: |config, value| config.demotion = value,
    },
    Setting {
        knob: Knob {
            name: "sleep",
            about: "after demotions of more than 100 MB/s; 0: never",
            kind: Kind::Time,
        },
        get: |config| config.sleep_ns as f64,
        set: |config, value| config.sleep_ns = value as u64,
    },
    Setting {
        knob: Knob { name: "rate-period", about: "the second of that rate", kind: Kind::Time },
        get: |config| config.second_of_rates_ns as f64,
        set: |config, value| config.second_of_rates_ns = value as u64,
    },
];

/// The two filters, and how many base pages have which frequency.
#[derive(Debug)]
struct Filters {
    frequency: Sketch,
    momentum: Sketch,
    pages: Vec<u32>,
}

impl Filters {
    fn new(config: &Config, capacity: u32) -> Filters {
        let (bits, most) = if config.wide { (16, u16::MAX) } else { (4, 15) };
        let (counters, block) = (counters_for(capacity, FALSE_POSITIVES), BLOCK_BITS / bits);
        let window = (config.frequency_window * f64::from(capacity)).max(1.0) as u64;
        Filters {
            frequency: Sketch::new(counters, block, most, window),
            momentum: Sketch::new(
                counters / config.momentum_part,
                block,
                most,
                config.momentum_window,
            ),
            pages: vec![0; usize::from(most) + 1],
        }
    }

    /// Counts a page of `size` base pages, and gives its frequency and momentum.
    fn add(&mut self, unit: UnitId, size: u32, times: u32) -> (u32, u32) {
        let before = usize::from(self.frequency.count(unit));
        let halved = self.frequency.add(unit, times);
        self.momentum.add(unit, times);
        // Collisions make it inexact, as in the artifact.
        self.pages[before] = self.pages[before].saturating_sub(size);
        let after = usize::from(self.frequency.count(unit));
        if halved {
            for n in 0..self.pages.len() {
                self.pages[n] = if n < self.pages.len() / 2 {
                    self.pages[2 * n] + self.pages[2 * n + 1]
                } else {
                    0
                };
            }
        }
        self.pages[after] = self.pages[after].saturating_add(size);
        (after as u32, u32::from(self.momentum.count(unit)))
    }

    /// The highest frequency from which on pages are more than the fast tier holds.
    fn threshold(&self, capacity: u32) -> u32 {
        let mut pages = 0;
        for (frequency, with_it) in self.pages.iter().enumerate().skip(LEAST_HOT as usize + 1).rev()
        {
            pages += u64::from(*with_it);
            if pages > u64::from(capacity) {
                return frequency as u32;
            }
        }
        LEAST_HOT
    }
}

/// A round of demotion.
#[derive(Debug)]
struct Round {
    /// Second chances that failed.
    failed: VecDeque<UnitId>,
    /// Base units still to be demoted, once it is known how much is free, and those that were.
    left: Option<u32>,
    demoted: u32,
}

/// The policy: a byte a unit, and 20 counters for each of the fast tier.
#[derive(Debug)]
pub struct HybridTier {
    config: Config,
    filters: Option<Filters>,
    capacity: u32,
    threshold: u32,
    places: Vec<Option<Place>>,
    sizes: Sizes,
    batch: Vec<UnitId>,
    /// Pages of the last batch that are to come up, with what they were judged by.
    candidates: VecDeque<(UnitId, u32, u32)>,
    /// A batch was counted, and it was not looked yet whether there is room enough.
    counted: bool,
    batches: u64,
    /// Base units that came up since it was last looked whether any still do.
    promoted: u32,
    round: Option<Round>,
    /// Where demotion goes on.
    scan_at: UnitId,
    second_chances: Vec<(UnitId, u32)>,
    /// Base units of the pages in `second_chances`.
    second_units: u32,
    second_looked_ns: u64,
    round_ended_ns: u64,
    throttled: bool,
    asleep_until_ns: u64,
    now_ns: u64,
}

impl HybridTier {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> HybridTier {
        HybridTier {
            config: Config { batch: config.batch.max(1), ..config },
            filters: None,
            capacity: 0,
            threshold: if config.hot == 0 { LEAST_HOT } else { config.hot },
            places: Vec::new(),
            sizes: Sizes::default(),
            batch: Vec::new(),
            candidates: VecDeque::new(),
            counted: false,
            batches: 0,
            promoted: 0,
            round: None,
            scan_at: 0,
            second_chances: Vec::new(),
            second_units: 0,
            second_looked_ns: 0,
            round_ended_ns: 0,
            throttled: false,
            asleep_until_ns: 0,
            now_ns: 0,
        }
    }

    fn place(&self, unit: UnitId) -> Option<Place> {
        self.places.get(unit as usize).copied().flatten()
    }

    fn count_batch(&mut self) {
        let Some(filters) = &mut self.filters else { return self.batch.clear() };
        self.batch.sort_unstable();
        self.candidates.clear();
        for same in self.batch.chunk_by(|a, b| a == b) {
            let (frequency, momentum) =
                filters.add(same[0], self.sizes.of(same[0]), same.len() as u32);
            let place = self.places.get(same[0] as usize).copied().flatten();
            if place == Some(Place::Slow)
                && (frequency >= self.threshold || momentum >= self.config.momentum)
            {
                let judged_by = if frequency >= self.threshold {
                    (frequency, self.threshold)
                } else {
                    (momentum, self.config.momentum)
                };
                self.candidates.push_back((same[0], judged_by.0, judged_by.1));
            }
        }
        self.batch.clear();
        self.counted = true;
        self.batches += 1;
        if self.config.hot == 0 {
            self.threshold = filters.threshold(self.capacity);
        } else if self.batches % self.config.ceased_batches.max(1)
            == self.config.ceased_batches.saturating_sub(1)
        {
            let ceased = f64::from(std::mem::take(&mut self.promoted)) * self.config.unit_bytes
                <= self.config.ceased_bytes;
            let hot: u64 = filters
                .pages
                .iter()
                .skip(self.threshold as usize)
                .map(|pages| u64::from(*pages))
                .sum();
            let room = (hot as f64) < f64::from(self.capacity) * FULL_OF_HOT;
            if ceased
                && room
                && self.batches > self.config.ceased_not_before
                && self.threshold > self.config.hot_least
            {
                self.threshold =
                    self.threshold.saturating_sub(self.config.hot_step).max(self.config.hot_least);
            }
        }
    }

    fn begin_round(&mut self) -> Round {
        let mut failed = Vec::new();
        if let Some(filters) = self
            .filters
            .as_ref()
            .filter(|_| self.now_ns - self.second_looked_ns > self.config.second_ns)
        {
            self.second_looked_ns = self.now_ns;
            self.second_units = 0;
            for (unit, before) in self.second_chances.drain(..) {
                let now = u32::from(filters.frequency.count(unit));
                // Frequencies that were halved meanwhile say nothing.
                if now.checked_sub(before).is_some_and(|more| more < self.config.second_samples) {
                    failed.push(unit);
                }
            }
        }
        // Some had more than one.
        failed.sort_unstable();
        failed.dedup();
        Round { failed: failed.into(), left: None, demoted: 0 }
    }

    /// Goes on with a round, as far as `budget` base units may be moved. True when it is over.
    fn go_on(
        &mut self,
        round: &mut Round,
        free: u32,
        mut budget: u32,
        moves: &mut Vec<Move>,
    ) -> bool {
        let Some(filters) = &mut self.filters else { return true };
        while let Some(unit) =
            round.failed.front().copied().filter(|unit| self.sizes.of(*unit) <= budget)
        {
            round.failed.pop_front();
            if self.places.get(unit as usize).copied().flatten() == Some(Place::Fast) {
                budget -= self.sizes.of(unit);
                moves.push(Move { unit, to: Place::Slow, reason: Reason::Idle });
            }
        }
        if !moves.is_empty() || !round.failed.is_empty() {
            // How much is free is known when these are gone.
            return false;
        }
        let target = (f64::from(self.capacity) * self.config.demotion).ceil() as u32;
        let mut left = round.left.unwrap_or(target.saturating_sub(free));
        let second_units = (self.config.second_bytes / self.config.unit_bytes) as u32;
        while left > 0 && budget > 0 {
            let unit = self.scan_at;
            if unit as usize >= self.places.len() {
                self.scan_at = 0;
                return true;
            }
            self.scan_at += 1;
            if self.places[unit as usize] != Some(Place::Fast) {
                continue;
            }
            let (frequency, momentum) =
                (u32::from(filters.frequency.count(unit)), u32::from(filters.momentum.count(unit)));
            let size = self.sizes.of(unit);
            if frequency < self.threshold && momentum < self.config.cold_momentum {
                if size > budget {
                    self.scan_at = unit;
                    break;
                }
                moves.push(Move {
                    unit,
                    to: Place::Slow,
                    reason: Reason::Counted { count: frequency, threshold: self.threshold },
                });
                budget -= size;
                left = left.saturating_sub(size);
                round.demoted += size;
            } else if frequency >= self.threshold
                && momentum < self.config.second_momentum
                && self.second_units < second_units
            {
                if frequency as usize == filters.pages.len() - 1 {
                    filters.frequency.take_one(unit);
                }
                self.second_chances.push((unit, u32::from(filters.frequency.count(unit))));
                self.second_units = self.second_units.saturating_add(size);
            }
        }
        round.left = Some(left);
        left == 0
    }

    fn end_round(&mut self, round: &Round) {
        let elapsed = (self.now_ns - self.round_ended_ns).max(1) as f64
            / self.config.second_of_rates_ns.max(1) as f64;
        let bytes_per_s = f64::from(round.demoted) * self.config.unit_bytes / elapsed;
        if bytes_per_s > THROTTLE_FROM {
            self.throttled = true;
        } else if bytes_per_s < THROTTLE_UNTIL {
            self.throttled = false;
        }
        self.round_ended_ns = self.now_ns;
        if self.throttled {
            self.asleep_until_ns = self.now_ns + self.config.sleep_ns;
        }
    }
}

impl PlacementPolicy for HybridTier {
    fn name(&self) -> &'static str {
        "hybridtier"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        let index = unit as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(place);
        self.sizes.set(unit, size);
    }

    fn gone(&mut self, unit: UnitId) {
        if let Some(place) = self.places.get_mut(unit as usize) {
            *place = None;
        }
    }

    /// Counts a sample. Samples of greater weight count as one: a batch is a number of samples.
    fn sampled(&mut self, unit: UnitId, _weight: u32) {
        if self.place(unit).is_some() && self.now_ns >= self.asleep_until_ns {
            self.batch.push(unit);
            if self.batch.len() as u64 >= self.config.batch {
                self.count_batch();
            }
        }
    }

    fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        if self.filters.is_none()
            || room.capacity.abs_diff(self.capacity) > self.capacity / CAPACITY_SHARE
        {
            self.filters = Some(Filters::new(&self.config, room.capacity));
        }
        self.capacity = room.capacity;
        if self.now_ns < self.asleep_until_ns {
            return;
        }
        let mut budget = room.moves_max;
        let mut free = room.capacity.saturating_sub(room.used);
        while free > 0 && budget > 0 {
            let Some((unit, count, threshold)) = self.candidates.pop_front() else { break };
            let size = self.sizes.of(unit);
            // What is too large for the room that is left has found none.
            if self.place(unit) == Some(Place::Slow) && size <= free {
                if size > budget {
                    self.candidates.push_front((unit, count, threshold));
                    break;
                }
                moves.push(Move {
                    unit,
                    to: Place::Fast,
                    reason: Reason::Counted { count, threshold },
                });
                free -= size;
                budget -= size;
            }
        }
        if free > 0 && !self.candidates.is_empty() {
            return;
        }
        self.candidates.clear();
        if std::mem::take(&mut self.counted)
            && self.round.is_none()
            && f64::from(free) <= f64::from(room.capacity) * self.config.allocation
        {
            self.round = Some(self.begin_round());
        }
        // Room is made when what came up is there.
        if moves.is_empty()
            && let Some(mut round) = self.round.take()
        {
            if self.go_on(&mut round, free, room.moves_max, moves) {
                self.end_round(&round);
            } else {
                self.round = Some(round);
            }
        }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        if let Some(place) = self.places.get_mut(unit as usize).filter(|place| place.is_some()) {
            *place = Some(to);
            self.promoted += if to == Place::Fast { self.sizes.of(unit) } else { 0 };
        }
    }

    /// Heat of a unit: its frequency.
    fn heat(&self, unit: UnitId) -> f32 {
        self.filters.as_ref().map_or(0.0, |filters| f32::from(filters.frequency.count(unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 units in a fast tier of 20 and 20 in the slow one; batches of 10 samples. One free of 20
    /// is 5 %, and none is less than 1.25 %.
    fn hybridtier(config: Config) -> HybridTier {
        let mut policy = HybridTier::new(Config { batch: 10, sleep_ns: 0, ..config });
        (0..40).for_each(|unit| {
            policy.arrived(unit, if unit < 20 { Place::Fast } else { Place::Slow }, 1)
        });
        policy
    }

    fn sample(policy: &mut HybridTier, unit: UnitId, times: u32) {
        (0..times).for_each(|_| policy.sampled(unit, 1));
    }

    fn decide(policy: &mut HybridTier) -> Vec<(UnitId, Place)> {
        let used = policy.places.iter().filter(|place| **place == Some(Place::Fast)).count() as u32;
        let mut moves = Vec::new();
        policy.decide(Room { capacity: 20, used, moves_max: 10 }, &mut moves);
        moves.iter().for_each(|step| policy.moved(step.unit, step.to));
        moves.into_iter().map(|step| (step.unit, step.to)).collect()
    }

    #[test]
    fn what_has_momentum_comes_up_once_there_is_room() {
        let mut policy = hybridtier(Config { hot: 15, ..BASE });
        assert_eq!(decide(&mut policy), []);
        // Nothing is counted before a batch is full.
        sample(&mut policy, 30, 9);
        assert_eq!((decide(&mut policy), policy.heat(30)), (vec![], 0.0));
        sample(&mut policy, 31, 1);
        assert_eq!((policy.heat(30), policy.heat(31)), (9.0, 1.0));
        // 30 has to wait: nothing is free, so first 5 % are made free, in order of units.
        assert_eq!(decide(&mut policy), [(0, Place::Slow)]);
        // It is asked for when it is met again, and 31 is not with two samples in all.
        sample(&mut policy, 30, 9);
        sample(&mut policy, 31, 1);
        assert_eq!(decide(&mut policy), [(30, Place::Fast)]);
        // The next round goes on where the last one ended.
        assert_eq!(decide(&mut policy), [(1, Place::Slow)]);
    }

    #[test]
    fn frequency_without_momentum_gets_a_second_chance() {
        let config = Config { hot: 4, momentum_window: 10, ..BASE };
        let mut policy = hybridtier(config);
        decide(&mut policy);
        // Units 0 and 1 become frequent; momenta are halved with each batch, so that 1's is gone
        // after some.
        sample(&mut policy, 0, 5);
        sample(&mut policy, 1, 5);
        for _ in 0..4 {
            sample(&mut policy, 0, 10);
        }
        assert_eq!((policy.heat(0), policy.heat(1)), (15.0, 5.0));
        // 0 has momentum, 1 gets its chance, 2 goes.
        assert_eq!(decide(&mut policy), [(2, Place::Slow)]);
        assert_eq!(policy.second_chances, [(1, 5)]);
        // After less than a minute it is not looked at. 21 comes up with its momentum and fills the
        // tier.
        policy.at(59_000_000_000);
        sample(&mut policy, 21, 10);
        assert_eq!(decide(&mut policy), [(21, Place::Fast)]);
        assert_eq!(decide(&mut policy), [(3, Place::Slow)]);
        policy.at(61_000_000_000);
        sample(&mut policy, 22, 10);
        assert_eq!(decide(&mut policy), [(22, Place::Fast)]);
        assert_eq!(decide(&mut policy), [(1, Place::Slow)]);
        // That was room enough.
        assert_eq!(decide(&mut policy), []);
    }

    #[test]
    fn who_uses_its_second_chance_stays() {
        let mut policy = hybridtier(Config { hot: 4, momentum_window: 10, ..BASE });
        decide(&mut policy);
        sample(&mut policy, 0, 20);
        // Full, and three batches without it: its momentum is gone.
        sample(&mut policy, 30, 30);
        assert_eq!(policy.heat(0), 15.0);
        assert_eq!(decide(&mut policy), [(1, Place::Slow)]);
        // One count was taken back, so that another sample shows.
        assert_eq!(policy.second_chances, [(0, 14)]);
        policy.at(61_000_000_000);
        sample(&mut policy, 0, 1);
        sample(&mut policy, 31, 9);
        assert_eq!(decide(&mut policy), [(31, Place::Fast)]);
        assert_eq!(decide(&mut policy), [(2, Place::Slow)]);
        assert_eq!(policy.second_chances, []);
    }

    #[test]
    fn the_threshold_is_where_hot_pages_are_more_than_fit() {
        let mut filters = Filters::new(&BASE, 1000);
        assert_eq!(filters.threshold(20), 2);
        // 100 pages met 15 times, 50 met 14 times and 30 met 13 times, where 120 fit (the
        // artifact's own example).
        filters.pages[15] = 100;
        filters.pages[14] = 50;
        filters.pages[13] = 30;
        assert_eq!(filters.threshold(120), 14);
        assert_eq!(filters.threshold(99), 15);
        assert_eq!(filters.threshold(1000), 2);
    }

    #[test]
    fn the_threshold_is_lowered_when_nothing_comes_up_any_more() {
        let config = Config {
            hot: 6,
            hot_least: 3,
            hot_step: 2,
            ceased_batches: 3,
            ceased_not_before: 4,
            ceased_bytes: 4096.0,
            momentum: 99,
            ..BASE
        };
        let mut policy = hybridtier(config);
        decide(&mut policy);
        let mut after_batch = || {
            sample(&mut policy, 0, 10);
            policy.threshold
        };
        // It is looked at after 2, 5, 8 and 11 batches, and not lowered before there were more than
        // 4; not below 3.
        assert_eq!(
            (0..12).map(|_| after_batch()).collect::<Vec<_>>(),
            [6, 6, 6, 6, 4, 4, 4, 3, 3, 3, 3, 3]
        );
        // With two promotions of a page each they have not ceased.
        let mut policy = hybridtier(config);
        decide(&mut policy);
        (20..22).for_each(|unit| policy.moved(unit, Place::Fast));
        (0..5).for_each(|_| sample(&mut policy, 0, 10));
        assert_eq!(policy.threshold, 4);
        let mut policy = hybridtier(config);
        decide(&mut policy);
        (0..3).for_each(|_| sample(&mut policy, 0, 10));
        (20..22).for_each(|unit| policy.moved(unit, Place::Fast));
        (0..2).for_each(|_| sample(&mut policy, 0, 10));
        assert_eq!(policy.threshold, 6);
    }

    #[test]
    fn the_histogram_follows_counts_and_halving() {
        let mut filters = Filters::new(&Config { frequency_window: 1.0, ..BASE }, 100);
        (0..10).for_each(|unit| {
            filters.add(unit, 1, 6);
        });
        assert_eq!((filters.pages[6], filters.pages[3]), (10, 0));
        // 60 and 40 are 100: all are halved.
        assert_eq!(filters.add(20, 1, 40).0, 7);
        assert_eq!((filters.pages[6], filters.pages[3], filters.pages[7]), (0, 10, 1));
    }

    #[test]
    fn too_much_demotion_is_followed_by_sleep() {
        let config =
            Config { hot: 15, unit_bytes: 101.0 * 1048576.0, sleep_ns: 1_000_000_000, ..BASE };
        let mut policy = hybridtier(config);
        policy.config.sleep_ns = 1_000_000_000;
        decide(&mut policy);
        policy.at(1_000_000_000);
        sample(&mut policy, 30, 10);
        // 101 MB in the second since the beginning.
        assert_eq!(decide(&mut policy), [(0, Place::Slow)]);
        sample(&mut policy, 30, 10);
        assert_eq!((decide(&mut policy), policy.heat(30)), (vec![], 10.0));
        policy.at(2_000_000_000);
        sample(&mut policy, 30, 10);
        assert_eq!(decide(&mut policy), [(30, Place::Fast)]);
    }
}
