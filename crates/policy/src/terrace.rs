//! The hotness model named `terrace`, ours and the default: what a unit's share of the samples is, on two time scales.
//!
//! Jenga's and Memtis's counters forget at one speed: slow ones follow a change late, quick ones take noise for change (`facts/hotness-policies.md` §2). Here
//! each unit has a *long* average, which is believed, and a *short* one, which only asks whether the long one still holds:
//!
//! - **Time is samples**, and as much of it as there are units to tell apart: the long average has its half-life after 64 samples a unit, the short one after 2. A slow
//!   sampler over much memory is as sure of itself as a quick one over little; it only takes longer.
//! - **A change point** of a unit is where its short average is further from the long one than chance allows (4 standard deviations up, 3 down): the long one starts again
//!   from it. Where a quarter of all that is met is met elsewhere, all start again, and the long average is as quick as the short one until there are more samples to go by.
//! - **Faults are quicker than samples**: when much more comes back than before, all start again too, and no unit is called hot until there are a few samples a unit.
//! - **A scan is no change**: a pass over memory meets each unit a few times in a row and never again. Of each unit, only [`THIN`] samples in an epoch (half a sample a unit)
//!   count for that comparison.
//! - **Thin evidence counts for little**: each unit is drawn towards the average of all by [`PRIOR`] samples' weight.

use crate::placement::UnitId;
use crate::regions::Model;

/// Half-life of the long average and of the short one, samples a unit.
const LONG_SAMPLES: f64 = 64.0;
const SHORT_SAMPLES: f64 = 2.0;
/// However few units there are, samples.
const LEAST_UNITS: f64 = 64.0;
/// Samples of a unit in an epoch that count for change points, and an epoch's length, samples a unit.
pub const THIN: f64 = 2.0;
const EPOCH_SAMPLES: f64 = 0.5;
/// Samples of average heat that each unit is credited with.
pub const PRIOR: f64 = 3.0;
/// All units start again after a change of so much of what is met.
const CHANGE_OF_ALL: f64 = 0.25;
/// No unit is hot before there are so many samples a unit.
const ENOUGH_SAMPLES: f64 = 3.0;
/// Standard deviations that make a change, upwards and downwards.
const CHANGE_UP: f64 = 4.0;
const CHANGE_DOWN: f64 = 3.0;
/// A unit is hot above this multiple of the average, if that is no chance by so many standard deviations.
const HOT_BEYOND: f64 = 1.5;
const HOT_SIGMAS: f64 = 3.5;

/// At present, samples.
#[derive(Clone, Copy)]
struct HalfLives {
    long: f64,
    short: f64,
}

/// Decayed counts of samples.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    long: f64,
    short: f64,
    /// The same of thinned samples.
    long_thin: f64,
    short_thin: f64,
}

impl Counts {
    /// After `age` samples.
    fn decayed(self, age: f64, half_lives: HalfLives) -> Counts {
        if age == 0.0 {
            // As in a ranking, of all units several times.
            return self;
        }
        let (long, short) = ((-age / half_lives.long).exp2(), (-age / half_lives.short).exp2());
        Counts { long: self.long * long, short: self.short * short, long_thin: self.long_thin * long, short_thin: self.short_thin * short }
    }

    fn add(&mut self, weight: f64, thin: f64) {
        self.long += weight;
        self.short += weight;
        self.long_thin += thin;
        self.short_thin += thin;
    }
}

/// One unit's state: 64 bytes for 2 MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    counts: Counts,
    /// When they were last decayed, samples.
    at: f64,
    epoch: u32,
    in_epoch: f64,
    present: bool,
}

/// The model.
#[derive(Debug, Default)]
pub struct Terrace {
    records: Vec<Record>,
    present: u32,
    /// Samples since `all` was last looked at; records count from there too.
    now: f64,
    epoch: u32,
    epoch_from: f64,
    all: Counts,
    all_at: f64,
    /// Of all samples, those that came to be elsewhere, as reviews found of late: it fades with the short half-life. And the same since all started again.
    changed: f64,
    changed_since: f64,
    /// Samples since all started again.
    since: f64,
}

impl Terrace {
    fn units(&self) -> f64 {
        f64::from(self.present).max(LEAST_UNITS)
    }

    fn half_lives(&self) -> HalfLives {
        let short = SHORT_SAMPLES * self.units();
        HalfLives { long: (self.since + self.now).clamp(short, LONG_SAMPLES * self.units()), short }
    }

    /// Counts of a unit as of now.
    fn counts(&self, unit: UnitId) -> Option<Counts> {
        let record = self.records.get(unit as usize).filter(|record| record.present)?;
        Some(record.counts.decayed(self.now - record.at, self.half_lives()))
    }

    fn of_all(&self) -> Counts {
        self.all.decayed(self.now - self.all_at, self.half_lives())
    }

    /// Looks for change points in all units. To be called now and then.
    fn review(&mut self) {
        let (all, half_lives, now) = (self.of_all(), self.half_lives(), self.now);
        let mut changed_samples = 0.0;
        if all.long_thin > 0.0 && all.short_thin > 0.0 {
            let (short_share, level) = (all.short_thin / all.long_thin, all.long / all.short.max(f64::MIN_POSITIVE));
            for record in self.records.iter_mut().filter(|record| record.present) {
                let counts = record.counts.decayed(now - record.at, half_lives);
                let expected = counts.long_thin * short_share;
                let deviation = (counts.short_thin - expected) / (expected + 1.0).sqrt();
                let changed = !(-CHANGE_DOWN..=CHANGE_UP).contains(&deviation);
                (record.counts, record.at) = (counts, now);
                if changed {
                    changed_samples += (counts.short_thin - expected).abs();
                    record.counts = Counts { long: counts.short * level, long_thin: counts.short_thin / short_share, ..counts };
                }
            }
        }
        let faded = (-now / half_lives.short).exp2();
        let changed = if changed_samples > 0.0 { changed_samples / all.short_thin } else { 0.0 };
        self.changed = self.changed * faded + changed;
        self.changed_since = self.changed_since * faded + changed;
        self.since += now;
        self.records.iter_mut().for_each(|record| record.at -= now);
        self.epoch_from -= now;
        (self.all, self.all_at, self.now) = (all, 0.0, 0.0);
        if self.changed_since > CHANGE_OF_ALL {
            self.start_again();
        }
    }

    /// What is hot has changed: what was met long ago counts no more.
    fn start_again(&mut self) {
        (self.changed_since, self.since) = (0.0, -self.now);
        let all = self.records.iter_mut().map(|record| &mut record.counts).chain([&mut self.all]);
        all.for_each(|counts| (counts.long, counts.long_thin) = (counts.short, counts.short_thin));
    }

    /// Samples of a unit that count at present, and those of the average unit.
    pub fn evidence(&self, unit: UnitId) -> (f64, f64) {
        (self.counts(unit).map_or(0.0, |counts| counts.long), self.mean())
    }

    fn mean(&self) -> f64 {
        self.of_all().long / f64::from(self.present).max(1.0)
    }
}

impl Model for Terrace {
    fn name(&self) -> &'static str {
        "terrace"
    }

    fn arrived(&mut self, unit: UnitId) {
        let index = unit as usize;
        if index >= self.records.len() {
            self.records.resize(index + 1, Record::default());
        }
        if !self.records[index].present {
            self.records[index] = Record { at: self.now, present: true, ..Record::default() };
            self.present += 1;
        }
    }

    fn gone(&mut self, unit: UnitId) {
        let Some(counts) = self.counts(unit) else { return };
        let mut all = self.of_all();
        all.long = (all.long - counts.long).max(0.0);
        all.short = (all.short - counts.short).max(0.0);
        all.long_thin = (all.long_thin - counts.long_thin).max(0.0);
        all.short_thin = (all.short_thin - counts.short_thin).max(0.0);
        (self.all, self.all_at) = (all, self.now);
        self.records[unit as usize].present = false;
        self.present -= 1;
    }

    fn sampled(&mut self, unit: UnitId, weight: f32) {
        let weight = f64::from(weight);
        let Some(counts) = self.counts(unit) else { return };
        let all = self.of_all();
        let units = self.units();
        let record = &mut self.records[unit as usize];
        record.counts = counts;
        record.at = self.now;
        if record.epoch != self.epoch {
            (record.epoch, record.in_epoch) = (self.epoch, 0.0);
        }
        let thin = weight.min(THIN - record.in_epoch).max(0.0);
        record.in_epoch += thin;
        record.counts.add(weight, thin);
        self.all = all;
        self.all.add(weight, thin);
        self.all_at = self.now;
        self.now += weight;
        if self.now - self.epoch_from >= EPOCH_SAMPLES * units {
            self.epoch = self.epoch.wrapping_add(1);
            self.epoch_from = self.now;
        }
    }

    fn settle(&mut self, _capacity: u32) {
        self.review();
    }

    fn surged(&mut self) {
        self.start_again();
    }

    /// By the last reviews.
    fn changed(&self) -> f32 {
        self.changed as f32
    }

    fn is_informed(&self) -> bool {
        self.since + self.now > ENOUGH_SAMPLES * self.units()
    }

    fn is_sure(&self) -> bool {
        self.since + self.now > LONG_SAMPLES * self.units()
    }

    /// 1 where nothing is known.
    fn heat(&self, unit: UnitId) -> f32 {
        let mean = self.mean();
        self.counts(unit).map_or(1.0, |counts| (counts.long + PRIOR) / (mean + PRIOR)) as f32
    }

    /// Hotter than the average, and that no chance.
    fn is_hot(&self, unit: UnitId) -> bool {
        let mean = self.mean();
        self.is_informed()
            && self
                .counts(unit)
                .is_some_and(|counts| counts.long > HOT_BEYOND * mean && counts.long - mean > HOT_SIGMAS * (mean + 1.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u32 = 400;

    struct Load {
        model: Terrace,
        random: u64,
    }

    impl Load {
        fn new() -> Load {
            let mut model = Terrace::default();
            (0..UNITS).for_each(|unit| model.arrived(unit));
            Load { model, random: 88_172_645_463_325_252 }
        }

        fn next(&mut self) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random >> 11
        }

        /// 90 % of the samples in a fifth of the units, from `hot_from` on.
        fn run(&mut self, samples: u32, hot_from: u32) {
            for n in 0..samples {
                let unit = if self.next().is_multiple_of(10) {
                    (self.next() % u64::from(UNITS)) as u32
                } else {
                    (hot_from + (self.next() % u64::from(UNITS / 5)) as u32) % UNITS
                };
                self.model.sampled(unit, 1.0);
                if n % (UNITS / 2) == 0 {
                    self.model.review();
                }
            }
        }

        fn hot(&self) -> Vec<u32> {
            (0..UNITS).filter(|unit| self.model.is_hot(*unit)).collect()
        }

        /// The share of the hottest fifth that is really hot.
        fn found(&self, hot_from: u32) -> f64 {
            let mut order: Vec<u32> = (0..UNITS).collect();
            order.sort_by(|a, b| self.model.heat(*b).total_cmp(&self.model.heat(*a)));
            let hot = |unit: &&u32| (**unit + UNITS - hot_from) % UNITS < UNITS / 5;
            order[..UNITS as usize / 5].iter().filter(hot).count() as f64 / f64::from(UNITS / 5)
        }
    }

    #[test]
    fn a_hot_fifth_is_found_with_five_samples_a_unit() {
        let mut load = Load::new();
        load.run(5 * UNITS, 100);
        assert!(load.found(100) > 0.98, "{}", load.found(100));
        assert!(load.hot().iter().all(|unit| (100..180).contains(unit)) && load.hot().len() > 70, "{:?}", load.hot());
    }

    #[test]
    fn a_jump_is_followed_as_soon_as_it_can_be_known() {
        let mut load = Load::new();
        load.run(100 * UNITS, 0);
        assert!(load.model.changed() < 0.1 && load.model.is_sure());
        let mut most = 0.0f32;
        for _ in 0..12 {
            load.run(UNITS / 2, 200);
            most = most.max(load.model.changed());
        }
        assert!(most > 0.1, "{most}");
        assert!(load.found(200) > 0.95, "{}", load.found(200));
    }

    #[test]
    fn where_all_are_alike_next_to_none_is_hot() {
        let mut load = Load::new();
        for n in 0..200 * UNITS {
            let unit = (load.next() % u64::from(UNITS)) as u32;
            load.model.sampled(unit, 1.0);
            if n % UNITS == 0 {
                load.model.review();
                assert!(load.hot().len() <= 4, "{:?}", load.hot());
            }
        }
    }

    #[test]
    fn a_scan_is_no_change() {
        let mut load = Load::new();
        load.run(60 * UNITS, 0);
        let before = load.hot().len();
        // Each unit thirty times in a row, as one word, between samples of what is hot.
        for unit in 100..UNITS {
            load.model.sampled(unit, 30.0);
            load.run(3, 0);
            load.model.review();
            assert!(!load.model.is_hot(unit), "{unit}");
        }
        assert!(load.hot().len() * 10 >= before * 9 && load.found(0) > 0.95, "{} of {before}", load.hot().len());
    }

    #[test]
    fn nothing_known_is_average() {
        let mut model = Terrace::default();
        assert_eq!((model.heat(7), model.is_hot(7)), (1.0, false));
        model.arrived(7);
        model.review();
        assert_eq!(model.heat(7), 1.0);
        // Of a unit that is not there nothing is kept.
        model.sampled(3, 1.0);
        assert_eq!(model.heat(3), 1.0);
    }
}
