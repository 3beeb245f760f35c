//! The hotness model named `terrace`, ours and the default. It tells how often a unit is met, by
//! averages at four speeds. Each counts for as much as it foretold.
//!
//! Jenga's and Memtis's counters forget at one speed: slow ones follow a change late, quick ones
//! take noise for change. They are compared in `docs/notes/2026-11-27-benchmarks.md`, "Tiering
//! policies in the simulator". Here each unit has [four](HALF_LIVES), and what they say is weighed
//! by how well each foretold what came:
//!
//! - **Time is samples a unit**, in [epochs](EPOCH). A slow sampler over much memory is as sure of
//!   itself as a quick one over little; it only takes longer. A unit's *heat* is how often it is
//!   met in the time in which the average unit is met once. Where sizes differ, it is how often for
//!   its size. A huge page is met often because it is huge, and all the sooner is its heat known.
//! - **Weights follow success.** Each average foretells how often the unit is met in the next
//!   epoch. Its weight is multiplied by the chance that it gave to what then came (Poisson). All
//!   weights are drawn a little towards one another, so that none is lost (*fixed share*: Herbster
//!   and Warmuth, Tracking the best expert, 1998). Where nothing changes the slowest gains the
//!   most. After a change of this unit the quickest do, within a few samples.
//! - **A scan is no change**: a pass over memory meets each unit some times in a row and never
//!   again. No average foretold that, so none gains by it; and those that follow it are wrong in
//!   the next epochs. Of more than [`BURST`] samples in an epoch beyond the usual the rest does not
//!   count.
//! - **Thin evidence counts for little**: the slowest average is drawn towards that of all units,
//!   and each quicker one towards the next slower.
//! - **First touch is no heat**: what fills a unit is not what uses it. A unit's past begins with
//!   the epoch after the one in which it came.
//! - **Faults are quicker than samples**: when much more refaults than before, all that is older
//!   than the second quickest average is forgotten. No unit is called hot until there are a few
//!   samples a unit.

use crate::eviction::regions::Model;
use crate::placement::UnitId;
use crate::placement::sizes::Sizes;

/// An epoch's length, samples a unit.
pub const EPOCH: f32 = 0.125;
const SPEEDS: usize = 4;
/// A weight where nothing tells the averages apart.
const EVEN: f32 = 1.0 / SPEEDS as f32;
/// Half-lives of the averages, epochs: 0.5, 2.5, 15 and 100 samples a unit.
pub const HALF_LIVES: [f32; SPEEDS] = [4.0, 20.0, 120.0, 800.0];
/// What a count of each keeps over an epoch: `2^(-1 / half-life)`.
const KEEP: [f32; SPEEDS] = [0.840_896_4, 0.965_936_3, 0.994_240_4, 0.999_133_9];
/// Share of all weights that is divided evenly after each epoch.
const SHARED: f32 = 0.01;
/// Weight of a prior, in samples a unit. `PRIOR`: of the average of all units in a unit's slowest
/// average. `PRIOR_QUICKER`: of each average in the next quicker one.
const PRIOR: f32 = 2.0;
const PRIOR_QUICKER: f32 = 0.3;
/// Samples of a unit in an epoch that count, beyond the double of those expected: of a larger unit
/// than the average in proportion.
pub const BURST: f32 = 2.0;
/// Least number of units by which an epoch's length is reckoned.
const LEAST_UNITS: f32 = 64.0;
/// Samples a unit before which no unit is hot.
const ENOUGH_SAMPLES: f32 = 3.0;
/// Samples a unit from which on hot units are told from others.
const SURE_SAMPLES: f32 = 64.0;
/// A unit is hot above `HOT_BEYOND` times the average, if that is no chance by `HOT_SIGMAS`
/// standard deviations.
const HOT_BEYOND: f32 = 1.5;
const HOT_SIGMAS: f32 = 3.0;

/// What is known of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Heat of the unit: times that it is met while the average unit is met once, for its size.
    pub heat: f32,
    /// Variance of the heat: what chance and the averages' disagreement make.
    pub variance: f32,
}

/// State of one unit: 40 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Samples, each count fading with its half-life.
    counts: [f32; SPEEDS],
    /// The averages' weights, 1 together.
    weights: [f32; SPEEDS],
    /// The epoch in which the unit's past begins; [`ABSENT`] of a unit that is not there.
    born: u32,
    /// Samples in this epoch that count.
    seen: f32,
}

const ABSENT: u32 = u32::MAX;

/// What counts hold of an average unit, samples, whose past is `age` epochs long. The last answer
/// is kept, as many units came together.
struct Exposures {
    age: u32,
    of: [f32; SPEEDS],
}

impl Exposures {
    fn new() -> Exposures {
        Exposures { age: 0, of: [0.0; SPEEDS] }
    }

    fn at(&mut self, age: u32) -> &[f32; SPEEDS] {
        if age != self.age {
            self.age = age;
            self.of = std::array::from_fn(|speed| {
                EPOCH * (1.0 - (-(age as f32) / HALF_LIVES[speed]).exp2()) / (1.0 - KEEP[speed])
            });
        }
        &self.of
    }
}

impl Record {
    fn is_present(&self) -> bool {
        self.born != ABSENT
    }

    /// Epochs of the unit's past, at the beginning of the given one.
    fn age(&self, epoch: u32) -> u32 {
        epoch.saturating_sub(self.born)
    }

    /// The averages, of a unit that is `size` times as large as the average one.
    fn rates(&self, exposures: &[f32; SPEEDS], size: f32) -> [f32; SPEEDS] {
        let (mut rates, mut slower, mut prior) = ([0.0; SPEEDS], 1.0, PRIOR);
        for speed in (0..SPEEDS).rev() {
            rates[speed] =
                (self.counts[speed] + prior * slower) / (exposures[speed] * size + prior);
            (slower, prior) = (rates[speed], PRIOR_QUICKER);
        }
        rates
    }

    fn heat(&self, rates: &[f32; SPEEDS]) -> f32 {
        rates.iter().zip(&self.weights).map(|(rate, weight)| rate * weight).sum()
    }

    /// Ends an epoch for a unit of the given size whose averages were these.
    fn turn(&mut self, rates: &[f32; SPEEDS], size: f32) {
        // Logarithms of the chances, but for what is the same in all: large numbers are expected of
        // large units.
        let came = |rate: f32| if self.seen > 0.0 { self.seen * rate.ln() } else { 0.0 };
        let chances = rates.map(|rate| came(rate) - rate * size * EPOCH);
        let best = chances.into_iter().fold(f32::MIN, f32::max);
        let mut sum = 0.0;
        for (weight, chance) in self.weights.iter_mut().zip(chances) {
            *weight *= (chance - best).exp();
            sum += *weight;
        }
        for weight in &mut self.weights {
            *weight = *weight / sum * (1.0 - SHARED) + SHARED * EVEN;
        }
        for (count, keep) in self.counts.iter_mut().zip(KEEP) {
            *count = (*count + self.seen) * keep;
        }
        self.seen = 0.0;
    }
}

/// The model named `terrace`.
#[derive(Debug)]
pub struct Terrace {
    records: Vec<Record>,
    present: u32,
    sizes: Sizes,
    /// Sum of the sizes of all present units, base units.
    extent: u64,
    /// The present epoch, and samples in it.
    epoch: u32,
    in_epoch: f32,
    /// The epoch in which all units' past began anew.
    begun: u32,
    /// Share of the accesses that now meets other units than the slowest averages predict.
    changed: f32,
}

impl Default for Terrace {
    fn default() -> Terrace {
        Terrace {
            records: Vec::new(),
            present: 0,
            sizes: Sizes::default(),
            extent: 0,
            epoch: 1,
            in_epoch: 0.0,
            begun: 1,
            changed: 0.0,
        }
    }
}

impl Terrace {
    fn record(&self, unit: UnitId) -> Option<&Record> {
        self.records.get(unit as usize).filter(|record| record.is_present())
    }

    /// How large the average unit is, base units.
    pub fn mean_size(&self) -> f32 {
        self.extent as f32 / (self.present as f32).max(1.0)
    }

    /// How large units are, base units.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// A unit [`arrived`](Model::arrived) that has `size` base units.
    pub fn arrived_with_size(&mut self, unit: UnitId, size: u32) {
        self.gone(unit);
        let index = unit as usize;
        if index >= self.records.len() {
            self.records.resize(index + 1, Record { born: ABSENT, ..Record::default() });
        }
        self.records[index] =
            Record { weights: [EVEN; SPEEDS], born: self.epoch + 1, ..Record::default() };
        self.sizes.set(unit, size);
        self.present += 1;
        self.extent += u64::from(size);
    }

    /// What is known of a unit that is there.
    pub fn evidence(&self, unit: UnitId) -> Option<Evidence> {
        let record = self.record(unit)?;
        let size = self.sizes.of(unit) as f32 / self.mean_size();
        let mut exposures = Exposures::new();
        let exposures = exposures.at(record.age(self.epoch));
        let rates = record.rates(exposures, size);
        let heat = record.heat(&rates);
        let of_speed = |speed: usize| {
            let exposure = exposures[speed] * size + PRIOR;
            let chance = (rates[speed] + 1.0 / exposure) / exposure;
            record.weights[speed] * (chance + (rates[speed] - heat).powi(2))
        };
        Some(Evidence { heat, variance: (0..SPEEDS).map(of_speed).sum() })
    }

    /// Units that are there, and their heat.
    pub fn heats(&self) -> impl Iterator<Item = (UnitId, f32)> + '_ {
        let (mut exposures, mean) = (Exposures::new(), self.mean_size());
        (0..).zip(&self.records).filter(|(_, record)| record.is_present()).map(
            move |(unit, record)| {
                let rates = record
                    .rates(exposures.at(record.age(self.epoch)), self.sizes.of(unit) as f32 / mean);
                (unit, record.heat(&rates))
            },
        )
    }

    /// The number of the present epoch. Heats only change with it.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Samples a unit since the beginning.
    pub fn elapsed(&self) -> f32 {
        self.epoch as f32 * EPOCH
    }

    /// Samples a unit since all units' past began anew.
    fn since(&self) -> f32 {
        (self.epoch - self.begun) as f32 * EPOCH
    }

    /// Ends an epoch.
    fn turn(&mut self) {
        let (mut elsewhere, mut all, mut exposures, mean) =
            (0.0, 0.0, Exposures::new(), self.mean_size());
        for (unit, record) in (0..).zip(&mut self.records).filter(|(_, record)| record.is_present())
        {
            let size = self.sizes.of(unit) as f32 / mean;
            let rates = record.rates(exposures.at(record.age(self.epoch)), size);
            record.turn(&rates, size);
            let heat = record.heat(&rates);
            elsewhere += (heat - rates[SPEEDS - 1]).abs() * size;
            all += heat * size;
        }
        // What one unit has more another has less.
        self.changed = if all > 0.0 { 0.5 * elsewhere / all } else { 0.0 };
        self.epoch += 1;
    }

    /// Forgets what was met long ago.
    fn start_again(&mut self) {
        const RECENT: usize = 1;
        let (epoch, mut exposures, mut anew) = (self.epoch, Exposures::new(), Exposures::new());
        // As long a past as the average of that speed looks back on.
        let recent = (HALF_LIVES[RECENT] * std::f32::consts::LOG2_E) as u32;
        for record in self.records.iter_mut().filter(|record| record.is_present()) {
            let age = record.age(epoch);
            if age <= recent {
                continue;
            }
            let heat = record.counts[RECENT] / exposures.at(age)[RECENT];
            let anew = anew.at(recent);
            record.born = epoch - recent;
            (RECENT..SPEEDS).for_each(|speed| record.counts[speed] = heat * anew[speed]);
            record.weights = [EVEN; SPEEDS];
        }
        self.begun = epoch;
    }
}

impl Model for Terrace {
    fn name(&self) -> &'static str {
        "terrace"
    }

    fn arrived(&mut self, unit: UnitId) {
        if self.record(unit).is_none() {
            self.arrived_with_size(unit, 1);
        }
    }

    fn gone(&mut self, unit: UnitId) {
        if self.record(unit).is_some() {
            self.records[unit as usize].born = ABSENT;
            self.present -= 1;
            self.extent -= u64::from(self.sizes.of(unit));
        }
    }

    fn sampled(&mut self, unit: UnitId, weight: f32) {
        let (epoch, size) = (self.epoch, self.sizes.of(unit) as f32 / self.mean_size());
        let Some(record) = self.records.get_mut(unit as usize).filter(|record| record.is_present())
        else {
            return;
        };
        // What the second quickest average makes expect, of a unit with a past.
        let expected = record.counts[1] * (1.0 - KEEP[1]);
        // What does not count takes no time either.
        let counts = weight.min(BURST * size.max(1.0) + 2.0 * expected - record.seen).max(0.0);
        if epoch >= record.born {
            record.seen += counts;
        }
        self.in_epoch += counts;
        let length = EPOCH * (self.present as f32).max(LEAST_UNITS);
        while self.in_epoch >= length {
            self.in_epoch -= length;
            self.turn();
        }
    }

    fn settle(&mut self, _capacity: u32) {}

    fn surged(&mut self) {
        self.start_again();
    }

    fn changed(&self) -> f32 {
        self.changed
    }

    fn is_informed(&self) -> bool {
        self.since() > ENOUGH_SAMPLES
    }

    fn is_sure(&self) -> bool {
        self.since() > SURE_SAMPLES
    }

    /// Heat of a unit; 1 where nothing is known.
    fn heat(&self, unit: UnitId) -> f32 {
        self.evidence(unit).map_or(1.0, |evidence| evidence.heat)
    }

    /// Whether a unit is hotter than the average, and that is no chance.
    fn is_hot(&self, unit: UnitId) -> bool {
        // By how much as much evidence of an average unit would vary.
        let sure = |of: Evidence| {
            of.heat > HOT_BEYOND && of.heat - 1.0 > HOT_SIGMAS * (of.variance / of.heat).sqrt()
        };
        self.is_informed() && self.evidence(unit).is_some_and(sure)
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
            for _ in 0..samples {
                let unit = if self.next().is_multiple_of(10) {
                    (self.next() % u64::from(UNITS)) as u32
                } else {
                    (hot_from + (self.next() % u64::from(UNITS / 5)) as u32) % UNITS
                };
                self.model.sampled(unit, 1.0);
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
        assert!(
            load.hot().iter().all(|unit| (100..180).contains(unit)) && load.hot().len() > 70,
            "{:?}",
            load.hot()
        );
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
            assert!(!load.model.is_hot(unit), "{unit}");
        }
        // All keep their order; and most are still called hot, though they have only three of five
        // samples that count meanwhile.
        assert!(
            load.hot().len() * 4 >= before * 3 && load.found(0) > 0.95,
            "{} of {before}",
            load.hot().len()
        );
    }

    /// A quarter of memory is pages of one base unit, the rest is huge ones of 64. A tenth of each
    /// is met nine times as often for its size as the rest.
    #[test]
    fn heat_is_by_size() {
        let (small, huge) = (320u32, 15u32);
        let mut model = Terrace::default();
        (0..small).for_each(|unit| model.arrived_with_size(unit, 1));
        (small..small + huge).for_each(|unit| model.arrived_with_size(unit, 64));
        let size = |unit: u32| if unit < small { 1 } else { 64 };
        let is_hot = |unit: u32| unit < 32 || (small..small + 2).contains(&unit);
        let mut random = 88_172_645_463_325_252u64;
        let total = small + 64 * huge;
        let mut samples = 0;
        while samples < 40 * total {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let page = ((random >> 11) % u64::from(total)) as u32;
            let unit = if page < small { page } else { small + (page - small) / 64 };
            if is_hot(unit) || (random >> 50).is_multiple_of(9) {
                model.sampled(unit, 1.0);
                samples += 1;
            }
        }
        let hot = (0..small + huge).filter(|unit| is_hot(*unit)).map(size).sum::<u32>() as f32;
        // Where all is met as often as its size says, heat is 1.
        let cold = total as f32 / (9.0 * hot + (total as f32 - hot));
        for (unit, heat) in model.heats().filter(|(unit, _)| *unit >= small) {
            let truth = if is_hot(unit) { 9.0 * cold } else { cold };
            assert!((heat / truth - 1.0).abs() < 0.25, "{unit}: {heat}, {truth}");
        }
        let of_small = |hot: bool| {
            let heats: Vec<f32> = model
                .heats()
                .filter(|(unit, _)| *unit < small && is_hot(*unit) == hot)
                .map(|(_, heat)| heat)
                .collect();
            heats.iter().sum::<f32>() / heats.len() as f32
        };
        assert!(
            (of_small(true) / (9.0 * cold) - 1.0).abs() < 0.2
                && (of_small(false) / cold - 1.0).abs() < 0.2,
            "{} {}",
            of_small(true),
            of_small(false)
        );
        // What is huge is not hot for that.
        assert!((small + 2..small + huge).all(|unit| !model.is_hot(unit)) && model.is_hot(small));
        // And what is gone does not count.
        (small..small + huge).for_each(|unit| model.gone(unit));
        assert_eq!(model.mean_size(), 1.0);
    }

    #[test]
    fn counts_are_halved_in_their_half_lives() {
        for (keep, half_life) in KEEP.into_iter().zip(HALF_LIVES) {
            assert!((keep.powf(half_life) - 0.5).abs() < 1e-3, "{keep} in {half_life}");
        }
    }

    #[test]
    fn nothing_known_is_average() {
        let mut model = Terrace::default();
        assert_eq!((model.heat(7), model.is_hot(7)), (1.0, false));
        model.arrived(7);
        assert_eq!(model.heat(7), 1.0);
        // Of a unit that is not there nothing is kept.
        model.sampled(3, 1.0);
        assert_eq!(model.heat(3), 1.0);
    }
}
