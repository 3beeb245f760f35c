//! Hotness by a histogram of counters: what Memtis (Lee et al., SOSP 2023) and Jenga have in common
//! (Jenga §2.2.2, §2.3).
//!
//! Each unit has a counter that decays by half in every *cooling period* (a number of samples).
//! Sixteen bins hold how many units have a counter between 2ⁿ − 1 and 2ⁿ⁺¹ − 1. From time to time
//! the thresholds are adapted. As many of the highest bins are *hot* as fit into the fast tier. The
//! bin below is *warm*, which stays where it is; there is none if the hot ones fill three quarters
//! of the fast tier. Hot units in the slow tier wait in one queue, cold ones in the fast tier in
//! another. They are looked at again when it is their turn.
//!
//! Where this differs from Memtis's kernel module, on purpose: bins are exact. All units are looked
//! at when a period ends and when thresholds are adapted: a pass over 12 bytes a unit, once in
//! 100,000 samples. The module clears its histogram, and sorts a page in when it is next met or its
//! list is gone through.
//!
//! What else the module does is a part of [`Config`], and off in a live program:
//!
//! - it moves pages twice a second;
//! - it halves counters when memory grows too;
//! - it counts base pages 512-fold;
//! - it spares new pages their first halving;
//! - it has least and greatest sizes of what is kept free, one of them by mistake.
//!
//! Pages are never split here.
//!
//! Where units differ in size, bins hold base units, as the module's histogram holds base pages. A
//! sample of a unit counts the less the larger the unit is: 512 of a base page, 1 of a huge one. So
//! a counter is heat for each byte. What waits first comes first, whatever its size, and room is
//! made for it.

use crate::placement::sizes::Sizes;
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::collections::VecDeque;

/// Bins of the histogram (Jenga §2.2.2).
pub const BINS: usize = 16;

/// Thresholds are adapted when the capacity changes by one part of this many.
const CAPACITY_SHARE: u32 = 20;

/// How a counter decays within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// The counter is halved at once, at the end of each period: the sawtooth (Jenga §5.1).
    Sawtooth,
    /// The counter decays a little at every access, so that it is the same at the end of each
    /// period: see [`crate::placement::jenga`].
    Smooth,
}

/// Parameters of the mechanism.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The policy's name.
    pub name: &'static str,
    /// How counters decay.
    pub decay: Decay,
    /// Samples in a cooling period, at least 1.
    pub cooling_samples: u64,
    /// Samples between adaptations of the thresholds, at least 1.
    pub adapt_samples: u64,
    /// No bin is warm if hot units fill this share of the fast tier. 0.75 in Memtis (Jenga §2.2.2,
    /// footnote 1).
    pub no_warm_from: f64,
    /// Promotions leave this share of the fast tier free, and room is made for it while any wait.
    /// 0.03 in Memtis.
    pub promote_free: f64,
    /// Share below which that room is made while no unit waits. 0.02 in Memtis.
    pub demote_free: f64,
    /// The first adaptation after a cooling may only lower the hot threshold, and by one bin;
    /// others may only raise it. So does Memtis's module, by what looks like a mistake.
    pub one_way_adaptation: bool,
    /// A new unit begins one bin above the hot threshold, as in Memtis, and otherwise at 0.
    pub begins_hot: bool,
    /// Whether a new unit does not decay at the end of the period in which it came
    /// (`htmm_skip_cooling`).
    pub spared_once: bool,
    /// Count of a sample: 1 of a huge page in Memtis, 512 of a base page. Of a unit larger than a
    /// base unit it is divided by the unit's size, at least 1.
    pub sample_counts: u32,
    /// Least time between requests for moves, ns; 0 for none. Memtis's papers say 50 ms, its module
    /// has 500 ms.
    pub period_ns: u64,
    /// Growth of memory that ends a period too, bytes: 10 GB in Memtis. 0 for never.
    pub cooling_bytes: f64,
    /// What is kept free is at least 50 MB and at most 1000 MB, for promotions 100 MB and 1500 MB.
    /// Where that is less or more, the module takes the former for both, by mistake, and so does
    /// this.
    pub limits: bool,
    /// Bytes that a base unit stands for, for the two settings above.
    pub unit_bytes: f64,
}

/// Parameters that can be set of the policies with this mechanism.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob { name: "cooling", about: "samples in a cooling period", kind: Kind::Samples },
        get: |config| config.cooling_samples as f64,
        set: |config, value| config.cooling_samples = value as u64,
    },
    Setting {
        knob: Knob {
            name: "adapt",
            about: "samples between adaptations of the thresholds",
            kind: Kind::Samples,
        },
        get: |config| config.adapt_samples as f64,
        set: |config, value| config.adapt_samples = value as u64,
    },
    Setting {
        knob: Knob {
            name: "period",
            about: "time between moves; the module has 500ms",
            kind: Kind::Time,
        },
        get: |config| config.period_ns as f64,
        set: |config, value| config.period_ns = value as u64,
    },
    Setting {
        knob: Knob {
            name: "smooth",
            about: "counters decay all the time, as Jenga's",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.decay == Decay::Smooth)),
        set: |config, value| {
            config.decay = if value != 0.0 { Decay::Smooth } else { Decay::Sawtooth }
        },
    },
    Setting {
        knob: Knob {
            name: "one-way",
            about: "thresholds rise and fall by the module's rule",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.one_way_adaptation)),
        set: |config, value| config.one_way_adaptation = value != 0.0,
    },
    Setting {
        knob: Knob {
            name: "no-warm",
            about: "no bin is warm from this share of the fast tier on",
            kind: Kind::Share,
        },
        get: |config| config.no_warm_from,
        set: |config, value| config.no_warm_from = value,
    },
    Setting {
        knob: Knob {
            name: "promote-free",
            about: "the share of the fast tier that promotions leave free",
            kind: Kind::Share,
        },
        get: |config| config.promote_free,
        set: |config, value| config.promote_free = value,
    },
    Setting {
        knob: Knob {
            name: "demote-free",
            about: "less than this is free when that is made although none waits",
            kind: Kind::Share,
        },
        get: |config| config.demote_free,
        set: |config, value| config.demote_free = value,
    },
    Setting {
        knob: Knob {
            name: "limits",
            about: "least and greatest sizes of what is kept free",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.limits)),
        set: |config, value| config.limits = value != 0.0,
    },
    Setting {
        knob: Knob {
            name: "begins-hot",
            about: "new pages begin above the hot threshold",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.begins_hot)),
        set: |config, value| config.begins_hot = value != 0.0,
    },
    Setting {
        knob: Knob {
            name: "spared-once",
            about: "new pages do not decay at first",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.spared_once)),
        set: |config, value| config.spared_once = value != 0.0,
    },
    Setting {
        knob: Knob {
            name: "sample",
            about: "what a sample of one base unit counts: 1 of a huge page, 512 of a base page",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.sample_counts),
        set: |config, value| config.sample_counts = value as u32,
    },
    Setting {
        knob: Knob {
            name: "growth",
            about: "a period ends when memory has grown by so much; 0: never",
            kind: Kind::Bytes,
        },
        get: |config| config.cooling_bytes,
        set: |config, value| config.cooling_bytes = value,
    },
];

/// State of one unit.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Counter of the unit when this period began.
    before: f32,
    /// What was counted in this period.
    recent: u32,
    /// Bits 0 to 3 its bin; the others below.
    bits: u16,
}

const _: () = assert!(size_of::<Record>() <= 12);

const BIN: u16 = 0xF;
const PRESENT: u16 = 0x10;
const FAST: u16 = 0x20;
const WAITS: u16 = 0x40;
/// Bit: the unit's move was asked for in this decision.
const ASKED: u16 = 0x80;
/// Bit: the unit does not decay at the end of this period.
const SPARED: u16 = 0x100;

impl Record {
    fn is(self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    fn bin(self) -> usize {
        usize::from(self.bits & BIN)
    }

    fn set(&mut self, bit: u16, to: bool) {
        if to { self.bits |= bit } else { self.bits &= !bit }
    }

    /// `x`: the share of the period that is over.
    fn value(self, decay: Decay, x: f32) -> f32 {
        match decay {
            Decay::Sawtooth => self.before + self.recent as f32,
            Decay::Smooth => (1.0 - x / 2.0) * self.before + self.recent as f32 / 2.0,
        }
    }
}

/// The bin of a counter: floor(log2(counter + 1)), at most 15.
fn bin_of(counter: f32) -> u8 {
    ((counter + 1.0).log2() as u8).min(BINS as u8 - 1)
}

/// The mechanism: counters, bins, thresholds, queues.
#[derive(Debug)]
pub struct Hotness {
    config: Config,
    records: Vec<Record>,
    sizes: Sizes,
    /// Base units in each bin.
    bins: [u32; BINS],
    /// The lowest hot bin, and the lowest that stays where it is.
    hot: u8,
    warm: u8,
    samples: u64,
    now_ns: u64,
    /// When moves may be asked for again.
    due_ns: u64,
    /// Base units, and when growth ended a period last.
    present: u32,
    grown_to: u32,
    /// Samples when this period began.
    period_from: u64,
    adapted_at: u64,
    cooled_since: bool,
    capacity: u32,
    to_promote: VecDeque<UnitId>,
    to_demote: VecDeque<UnitId>,
    /// Units whose moves were asked for in the last decision.
    asked: Vec<UnitId>,
}

impl Hotness {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> Hotness {
        Hotness {
            config: Config {
                cooling_samples: config.cooling_samples.max(1),
                adapt_samples: config.adapt_samples.max(1),
                ..config
            },
            records: Vec::new(),
            sizes: Sizes::default(),
            bins: [0; BINS],
            hot: 1,
            warm: 1,
            samples: 0,
            now_ns: 0,
            due_ns: 0,
            present: 0,
            grown_to: 0,
            period_from: 0,
            adapted_at: 0,
            cooled_since: false,
            capacity: 0,
            to_promote: VecDeque::new(),
            to_demote: VecDeque::new(),
            asked: Vec::new(),
        }
    }

    /// Parameters of the mechanism.
    pub fn config(&self) -> Config {
        self.config
    }

    /// The counter of a unit as it would be met now; 0 of one that is not there.
    pub fn counter(&self, unit: UnitId) -> f32 {
        let record = self.records.get(unit as usize).copied().unwrap_or_default();
        if record.is(PRESENT) { record.value(self.config.decay, self.elapsed()) } else { 0.0 }
    }

    /// The lowest hot bin, and the lowest one that is not cold.
    pub fn thresholds(&self) -> (u8, u8) {
        (self.hot, self.warm)
    }

    /// How many base units are in each bin, by what units were when last looked at.
    pub fn bins(&self) -> &[u32; BINS] {
        &self.bins
    }

    fn elapsed(&self) -> f32 {
        ((self.samples - self.period_from) as f64 / self.config.cooling_samples as f64) as f32
    }

    /// Puts a present unit into the bin that its counter has now.
    fn rebin(&mut self, unit: UnitId) {
        let (decay, x, size) = (self.config.decay, self.elapsed(), self.sizes.of(unit));
        let record = &mut self.records[unit as usize];
        self.bins[record.bin()] -= size;
        record.bits = record.bits & !BIN | u16::from(bin_of(record.value(decay, x)));
        self.bins[record.bin()] += size;
    }

    /// Puts a present unit into its bin, and into a queue if it is in the wrong place.
    fn look_at(&mut self, unit: UnitId) {
        self.rebin(unit);
        let record = &mut self.records[unit as usize];
        let bin = record.bin();
        if record.is(WAITS) || record.is(ASKED) {
            return;
        }
        let queue = match record.is(FAST) {
            false if bin >= usize::from(self.hot) => &mut self.to_promote,
            true if bin < usize::from(self.warm) => &mut self.to_demote,
            _ => return,
        };
        record.set(WAITS, true);
        queue.push_back(unit);
    }

    fn look_at_all(&mut self) {
        for unit in 0..self.records.len() as UnitId {
            if self.records[unit as usize].is(PRESENT) {
                self.look_at(unit);
            }
        }
    }

    /// A period ends: AC ← (AC + cpaccesses) / 2.
    fn cool(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.is(PRESENT)) {
            if record.is(SPARED) {
                record.set(SPARED, false);
                record.before += record.recent as f32;
            } else {
                record.before = (record.before + record.recent as f32) / 2.0;
            }
            record.recent = 0;
        }
        self.period_from = self.samples;
        self.cooled_since = true;
        self.look_at_all();
    }

    /// Whether memory has grown enough to end a period.
    fn has_grown(&mut self) -> bool {
        let grown = f64::from(self.present) - f64::from(self.grown_to);
        let enough = self.config.cooling_bytes > 0.0
            && grown * self.config.unit_bytes >= self.config.cooling_bytes;
        if enough {
            self.grown_to = self.present;
        }
        enough
    }

    /// Base units to keep free while promotions wait, and while none does.
    fn to_keep_free(&self, capacity: u32) -> (f64, f64) {
        let (promote, demote) = (
            f64::from(capacity) * self.config.promote_free,
            f64::from(capacity) * self.config.demote_free,
        );
        if !self.config.limits {
            return (promote, demote);
        }
        let units = |megabytes: f64| megabytes * 1048576.0 / self.config.unit_bytes;
        let (least, most) = (units(50.0), units(1000.0));
        let promote = if promote < units(100.0) {
            least
        } else if promote > units(1500.0) {
            most
        } else {
            promote
        };
        (promote, demote.clamp(least, most))
    }

    /// Sets the thresholds by what is in the bins: after `adapt_samples` samples, or because the
    /// room has changed.
    fn adapt(&mut self, room_changed: bool) {
        // Bins first: since the last look counters have decayed.
        for unit in 0..self.records.len() as UnitId {
            if self.records[unit as usize].is(PRESENT) {
                self.rebin(unit);
            }
        }
        let room = f64::from(self.capacity) - self.to_keep_free(self.capacity).0;
        let (mut hot, mut units) = (BINS, 0.0);
        // As many of the highest as fit; bin 0 is never hot.
        while hot > 1 && units + f64::from(self.bins[hot - 1]) <= room {
            hot -= 1;
            units += f64::from(self.bins[hot]);
        }
        // One that holds more than there is room for is hot all the same, if nothing else would be.
        let mut hot = (hot as u8).min(BINS as u8 - 1);
        if self.config.one_way_adaptation && !room_changed {
            hot = if std::mem::take(&mut self.cooled_since) {
                hot.clamp(self.hot.saturating_sub(1).max(1), self.hot)
            } else {
                hot.max(self.hot)
            };
        }
        self.hot = hot;
        self.warm = if units < self.config.no_warm_from * room { hot - 1 } else { hot };
        self.look_at_all();
    }

    fn ask(&mut self, unit: UnitId) {
        self.records[unit as usize].set(ASKED, true);
        self.asked.push(unit);
    }

    /// Base units that wait to come up, as far as they are no more than `at_most`.
    fn waiting(&self, at_most: u32) -> u32 {
        let mut waiting = 0;
        for unit in &self.to_promote {
            waiting += self.sizes.of(*unit);
            if waiting >= at_most {
                return at_most;
            }
        }
        waiting
    }

    /// Puts a unit that did not fit back at the front of its queue.
    fn waits_on(&mut self, unit: UnitId, to: Place) {
        self.records[unit as usize].set(WAITS, true);
        match to {
            Place::Fast => self.to_promote.push_front(unit),
            Place::Slow => self.to_demote.push_front(unit),
        }
    }

    fn next_to_demote(&mut self) -> Option<UnitId> {
        while let Some(unit) = self.to_demote.pop_front() {
            let record = self.turn_of(unit);
            if record.is(PRESENT) && record.is(FAST) && record.bin() < usize::from(self.warm) {
                return Some(unit);
            }
        }
        None
    }

    fn next_to_promote(&mut self) -> Option<UnitId> {
        while let Some(unit) = self.to_promote.pop_front() {
            let record = self.turn_of(unit);
            if record.is(PRESENT) && !record.is(FAST) && record.bin() >= usize::from(self.hot) {
                return Some(unit);
            }
        }
        None
    }

    /// A unit that waited, as it is now.
    fn turn_of(&mut self, unit: UnitId) -> Record {
        self.records[unit as usize].set(WAITS, false);
        if self.records[unit as usize].is(PRESENT) {
            self.rebin(unit);
        }
        self.records[unit as usize]
    }
}

impl PlacementPolicy for Hotness {
    fn name(&self) -> &'static str {
        self.config.name
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.gone(unit);
        let index = unit as usize;
        if index >= self.records.len() {
            self.records.resize(index + 1, Record::default());
        }
        let begin = if self.config.begins_hot {
            (1u64 << (self.hot + 1).min(BINS as u8 - 1)) as f32
        } else {
            0.0
        };
        let record = &mut self.records[index];
        // Whether it waits is the queue's to end.
        let waits = record.bits & WAITS;
        // What it has as a smooth counter is what decays from here on.
        *record = Record { before: begin, recent: 0, bits: PRESENT | waits };
        record.set(SPARED, self.config.spared_once);
        record.set(FAST, place == Place::Fast);
        self.sizes.set(unit, size);
        self.present += size;
        self.bins[0] += size;
        self.rebin(unit);
    }

    fn gone(&mut self, unit: UnitId) {
        let size = self.sizes.of(unit);
        if let Some(record) =
            self.records.get_mut(unit as usize).filter(|record| record.is(PRESENT))
        {
            record.set(PRESENT, false);
            self.bins[record.bin()] -= size;
            self.present -= size;
        }
    }

    /// Counts a sample. Nothing is kept of a unit that never arrived.
    fn sampled(&mut self, unit: UnitId, weight: u32) {
        self.samples += 1;
        let counts = (self.config.sample_counts / self.sizes.of(unit)).max(1);
        if let Some(record) =
            self.records.get_mut(unit as usize).filter(|record| record.is(PRESENT))
        {
            record.recent = record.recent.saturating_add(weight.saturating_mul(counts));
            self.look_at(unit);
        }
        let adapts = self.samples - self.adapted_at >= self.config.adapt_samples;
        if adapts {
            self.adapted_at = self.samples;
        }
        // When both fall due, only cooling runs, and that adaptation is left out.
        if self.samples - self.period_from >= self.config.cooling_samples || self.has_grown() {
            self.cool();
        } else if adapts {
            self.adapt(false);
        }
    }

    fn at(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        for unit in std::mem::take(&mut self.asked) {
            self.records[unit as usize].set(ASKED, false);
        }
        moves.clear();
        // Not for every unit.
        if room.capacity.abs_diff(self.capacity) > self.capacity / CAPACITY_SHARE {
            self.capacity = room.capacity;
            self.adapt(true);
        }
        if self.now_ns < self.due_ns {
            return;
        }
        // By a grid, so that a caller that asks every period is never refused for being a little
        // early.
        self.due_ns = self
            .now_ns
            .checked_div(self.config.period_ns)
            .map_or(0, |periods| (periods + 1) * self.config.period_ns);
        let mut used = f64::from(room.used);
        let capacity = f64::from(room.capacity);
        // What may still be moved.
        let mut left = room.moves_max;
        let (free_for_promotion, free_for_none) = self.to_keep_free(room.capacity);
        // Half of the moves at most make room: the units that wait are to be promoted.
        let waiting = f64::from(self.waiting(left.div_ceil(2)));
        let enough_free = waiting == 0.0 && used + free_for_none <= capacity;
        // Once room is made, it is as much as promotions need.
        let wanted = if enough_free { 0.0 } else { waiting + free_for_promotion };
        while left > 0 && used + wanted > capacity {
            let Some(unit) = self.next_to_demote() else {
                if waiting == 0.0 || self.warm == self.hot {
                    break;
                }
                // Nothing is cold, and units wait: nothing is warm either.
                self.warm = self.hot;
                self.look_at_all();
                continue;
            };
            let size = self.sizes.of(unit);
            if size > left {
                self.waits_on(unit, Place::Slow);
                break;
            }
            moves.push(Move {
                unit,
                to: Place::Slow,
                reason: Reason::Cold {
                    bin: self.records[unit as usize].bin() as u8,
                    warm: self.warm,
                },
            });
            self.ask(unit);
            left -= size;
            used -= f64::from(size);
        }
        let limit = capacity - free_for_promotion;
        while left > 0 && used + 1.0 <= limit {
            let Some(unit) = self.next_to_promote() else { break };
            let size = self.sizes.of(unit);
            if f64::from(size) > limit {
                // It never will.
                continue;
            }
            if size > left || used + f64::from(size) > limit {
                self.waits_on(unit, Place::Fast);
                break;
            }
            moves.push(Move {
                unit,
                to: Place::Fast,
                reason: Reason::Hot { bin: self.records[unit as usize].bin() as u8, hot: self.hot },
            });
            self.ask(unit);
            left -= size;
            used += f64::from(size);
        }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        if let Some(record) = self.records.get_mut(unit as usize) {
            record.set(FAST, to == Place::Fast);
        }
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.counter(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{jenga, memtis};
    use proptest::prelude::*;

    fn recount(hotness: &Hotness) -> [u32; BINS] {
        let mut bins = [0; BINS];
        hotness
            .records
            .iter()
            .filter(|record| record.is(PRESENT))
            .for_each(|record| bins[record.bin()] += 1);
        bins
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrives(u32, bool),
        Goes(u32),
        Sampled(u32, u32),
        Decides(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            1 => (0u32..24, any::<bool>()).prop_map(|(unit, fast)| Step::Arrives(unit, fast)),
            1 => (0u32..24).prop_map(Step::Goes),
            // Some are met far more often than others.
            30 => (0u32..24, 0u32..24, 1u32..3).prop_map(
                |(a, b, weight)| Step::Sampled(a.min(b), weight)
            ),
            4 => (0u32..8).prop_map(Step::Decides),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        #[test]
        fn bins_are_a_recount_and_moves_keep_to_the_room(
            steps in steps(), which in 0usize..3, capacity in 0u32..12
        ) {
            let config = [jenga::CONFIG, memtis::CONFIG, memtis::QUICK_COOLING][which];
            let mut hotness = Hotness::new(Config {
                cooling_samples: 40 * (which as u64 + 1), adapt_samples: 25, ..config
            });
            let mut places = [None; 24];
            let mut moves = Vec::new();
            for step in steps {
                match step {
                    Step::Arrives(unit, fast) => {
                        let full = places
                            .iter()
                            .filter(|place| **place == Some(Place::Fast))
                            .count() >= capacity as usize;
                        let place = if fast && !full { Place::Fast } else { Place::Slow };
                        places[unit as usize] = Some(place);
                        hotness.arrived(unit, place, 1);
                    }
                    Step::Goes(unit) => {
                        places[unit as usize] = None;
                        hotness.gone(unit);
                    }
                    Step::Sampled(unit, weight) => hotness.sampled(unit, weight),
                    Step::Decides(moves_max) => {
                        let used = places
                            .iter()
                            .filter(|place| **place == Some(Place::Fast))
                            .count() as u32;
                        hotness.decide(Room { capacity, used, moves_max }, &mut moves);
                        prop_assert!(moves.len() <= moves_max as usize);
                        let mut used = used;
                        for step in &moves {
                            prop_assert!(
                                places[step.unit as usize].is_some_and(|place| place != step.to),
                                "{step:?} of {:?}",
                                places[step.unit as usize],
                            );
                            match step.reason {
                                Reason::Hot { bin, hot } => prop_assert!(
                                    step.to == Place::Fast && bin >= hot
                                ),
                                Reason::Cold { bin, warm } => prop_assert!(
                                    step.to == Place::Slow && bin < warm
                                ),
                                other => prop_assert!(false, "{other:?} is no reason here"),
                            }
                            used = if step.to == Place::Fast { used + 1 } else { used - 1 };
                            prop_assert!(used <= capacity);
                            places[step.unit as usize] = Some(step.to);
                            hotness.moved(step.unit, step.to);
                        }
                    }
                }
                prop_assert_eq!(recount(&hotness), *hotness.bins());
                let (hot, warm) = hotness.thresholds();
                prop_assert!(1 <= hot && hot < BINS as u8 && (warm == hot || warm + 1 == hot));
            }
        }
    }

    #[test]
    fn bins_are_powers_of_two() {
        let bins: Vec<u8> =
            [0.0, 0.9, 1.0, 2.9, 3.0, 6.9, 7.0, 1e9].into_iter().map(bin_of).collect();
        assert_eq!(bins, [0, 0, 1, 1, 2, 2, 3, 15]);
    }

    /// Thresholds of 8 units with counters 1, 3, 7, … in bins 1 to 8, in a fast tier of `capacity`.
    fn thresholds(capacity: u32) -> (u8, u8) {
        let mut hotness = Hotness::new(Config {
            cooling_samples: u64::MAX,
            adapt_samples: 8,
            begins_hot: false,
            promote_free: 0.0,
            ..jenga::CONFIG
        });
        hotness.capacity = capacity;
        (0..8).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        // A smooth counter is half of what was counted.
        (0..8).for_each(|unit| hotness.sampled(unit, 2 * ((2 << unit) - 1)));
        hotness.thresholds()
    }

    #[test]
    fn as_many_bins_are_hot_as_fit() {
        assert_eq!(thresholds(3).0, 6);
        assert_eq!(thresholds(7).0, 2);
        // All, and the bin of nothing never.
        assert_eq!(thresholds(100).0, 1);
        assert_eq!(thresholds(0).0, 9);
    }

    #[test]
    fn there_is_a_warm_bin_unless_hot_ones_fill_three_quarters() {
        // Whole units fill what they fit into here, so none.
        assert_eq!(thresholds(4), (5, 5));
        // 8 of 100.
        assert_eq!(thresholds(100), (1, 0));
    }

    #[test]
    fn who_waits_for_room_gets_what_is_warm() {
        let config = Config {
            cooling_samples: u64::MAX,
            adapt_samples: 1000,
            begins_hot: false,
            ..jenga::CONFIG
        };
        let mut hotness = Hotness::new(config);
        // Two in the fast tier, one bin below the three that are to come.
        (0..2).for_each(|unit| hotness.arrived(unit, Place::Fast, 1));
        (2..5).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        (0..2).for_each(|unit| hotness.sampled(unit, 10));
        (2..5).for_each(|unit| hotness.sampled(unit, 20));
        hotness.capacity = 2;
        (hotness.hot, hotness.warm) = (3, 2);
        hotness.look_at_all();
        let mut moves = Vec::new();
        hotness.decide(Room { capacity: 2, used: 2, moves_max: 10 }, &mut moves);
        assert!(moves.iter().any(|step| step.to == Place::Slow), "{moves:?}");
    }

    fn bare(cooling_samples: u64, adapt_samples: u64) -> Config {
        Config {
            cooling_samples,
            adapt_samples,
            begins_hot: false,
            one_way_adaptation: false,
            ..memtis::CONFIG
        }
    }

    /// Two units of the slow tier and the given number of samples, of which each third is of unit
    /// 1.
    fn sampled(config: Config, samples: u32) -> Hotness {
        let mut hotness = Hotness::new(config);
        (0..2).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        (0..samples).for_each(|n| hotness.sampled(u32::from(n % 3 == 2), 1));
        hotness
    }

    #[test]
    fn where_cooling_and_adaptation_fall_due_together_there_is_no_adaptation() {
        // The thresholds of nothing are 1 and 1. With 9 samples cooling has come at the sixth,
        // adaptation at the third and the ninth.
        let mut hotness = sampled(bare(6, 3), 2);
        hotness.capacity = 1;
        hotness.sampled(1, 1);
        // One fits: unit 0 with 2 of 3. It is in bin 1 as unit 1, so that neither bin fits, and all
        // that is hot is above.
        assert_eq!(hotness.thresholds().0, 2);
        hotness.capacity = 10;
        (3..7).for_each(|n| hotness.sampled(u32::from(n % 3 == 2), 1));
        // Cooled after the sixth; the seventh does not make up for it.
        assert_eq!((hotness.counter(0), hotness.thresholds().0), (3.0, 2));
        (7..9).for_each(|n| hotness.sampled(u32::from(n % 3 == 2), 1));
        assert_eq!(hotness.thresholds().0, 1);
    }

    #[test]
    fn a_base_page_counts_512_fold() {
        let hotness = sampled(Config { sample_counts: 512, ..bare(100, 100) }, 3);
        // 1024 and 512 are in bins 10 and 9.
        assert_eq!(
            (hotness.counter(0), hotness.counter(1), hotness.bins()[10], hotness.bins()[9]),
            (1024.0, 512.0, 1, 1)
        );
    }

    #[test]
    fn what_is_new_is_spared_the_first_halving() {
        let mut hotness =
            Hotness::new(Config { spared_once: true, begins_hot: true, ..bare(2, 100) });
        hotness.arrived(0, Place::Slow, 1);
        // Above a hot threshold of 1: 2² = 4.
        assert_eq!(hotness.counter(0), 4.0);
        (0..2).for_each(|_| hotness.sampled(0, 1));
        assert_eq!(hotness.counter(0), 6.0);
        (0..2).for_each(|_| hotness.sampled(0, 1));
        assert_eq!(hotness.counter(0), 4.0);
    }

    #[test]
    fn growth_ends_a_period() {
        let mut hotness =
            sampled(Config { cooling_bytes: 4.0, unit_bytes: 1.0, ..bare(100, 100) }, 6);
        (2..4).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        // Four units of one byte; it is seen at the next sample, and that once.
        assert_eq!(hotness.counter(0), 4.0);
        (0..2).for_each(|_| hotness.sampled(2, 1));
        assert_eq!((hotness.counter(0), hotness.counter(2)), (2.0, 1.5));
        // What goes has to come again.
        hotness.gone(3);
        (3..7).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        hotness.sampled(2, 1);
        assert_eq!(hotness.counter(0), 2.0);
        hotness.arrived(7, Place::Slow, 1);
        hotness.sampled(2, 1);
        assert_eq!(hotness.counter(0), 1.0);
    }

    #[test]
    fn moves_come_no_more_often_than_the_period() {
        let mut hotness = sampled(Config { period_ns: 500, promote_free: 0.0, ..bare(100, 5) }, 6);
        let mut moves_at = |now_ns: u64| {
            hotness.at(now_ns);
            let mut moves = Vec::new();
            hotness.decide(Room { capacity: 4, used: 0, moves_max: 1 }, &mut moves);
            moves.iter().for_each(|step| hotness.moved(step.unit, step.to));
            moves.len()
        };
        assert_eq!([moves_at(0), moves_at(499), moves_at(500), moves_at(1000)], [1, 0, 1, 0]);
    }

    #[test]
    fn room_is_made_below_two_percent_free_up_to_three() {
        let mut hotness = Hotness::new(bare(100, 100));
        (0..100).for_each(|unit| hotness.arrived(unit, Place::Fast, 1));
        // Nothing is met, so all are cold but for a warm bin 0.
        hotness.decide(Room { capacity: 100, used: 98, moves_max: 10 }, &mut Vec::new());
        (hotness.hot, hotness.warm) = (1, 1);
        hotness.look_at_all();
        for (used, demoted) in [(98, 0), (99, 2), (100, 3)] {
            let mut moves = Vec::new();
            hotness.decide(Room { capacity: 100, used, moves_max: 10 }, &mut moves);
            assert_eq!(moves.len(), demoted, "{used}");
        }
    }

    #[test]
    fn sizes_of_what_is_kept_free_have_the_modules_limits() {
        let hotness =
            Hotness::new(Config { limits: true, unit_bytes: 1048576.0, ..memtis::CONFIG });
        // In MB: 1 GB is below 100 MB and 50 MB, and the former becomes 50 MB too.
        assert_eq!(hotness.to_keep_free(1000), (50.0, 50.0));
        assert_eq!(hotness.to_keep_free(4000), (120.0, 80.0));
        assert_eq!(hotness.to_keep_free(60_000), (1000.0, 1000.0));
        assert_eq!(Hotness::new(memtis::CONFIG).to_keep_free(1000), (30.0, 20.0));
    }
}
