//! Simulation of a policy over a stream of accesses: where units are, how late it is, what the
//! policy is told and asks for.
//!
//! Time is what accesses, faults and moves take ([`machine`](crate::machine)), so a policy that
//! does better has fewer ticks over the same accesses. Between ticks only samples, hints and faults
//! reach the policy. At each tick, in this order:
//!
//! - the policy is told the time, which units were touched and written, and what is to come, as far
//!   as it asks;
//! - it decides, and is told which moves were made;
//! - it says which units it arms.
//!
//! Units may be of several sizes ([`Simulation::sized`]). What the fast tier holds, what may be
//! moved and what a move costs is counted in base units. Which size a unit has is looked at when it
//! arrives and when it moves, and by no access.
//!
//! What holds at any time, and is asserted: every access is a hit or a miss; the fast tier never
//! holds more than its capacity.

use crate::counts::Counts;
use crate::machine::{Machine, Slow, Traffic};
use crate::sampling::Gaps;
use crate::scattered::mixed;
use crate::source::Access;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use std::sync::Arc;
use terrace_policy::placement::{Move, Place, PlacementPolicy, Room, Senses, UnitId};
use terrace_policy::registry::simulated::Parameters;

/// What is simulated, besides the policy and the accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Tiers and costs.
    pub machine: Machine,
    /// Number of units: all are below this.
    pub units: u32,
    /// Bytes of a base unit, which is a unit where all are alike, for what moves and faults cost.
    pub unit_bytes: f64,
    /// Base units that the fast tier has room for. Of a machine with a compressed tier it is at
    /// least the largest unit.
    pub capacity: u32,
    /// All units are there at first, those with low numbers in the fast tier; otherwise each
    /// arrives when it is touched first. Then it comes into the fast tier if there is room, as
    /// with the kernel's.
    pub populated: bool,
    /// Time from the end of a tick to the next, ns. 50 ms in the papers.
    pub tick_ns: f64,
    /// Real accesses that each access of the stream stands for, at least 1.
    pub stands_for: f64,
    /// Real accesses from one sample to the next, on average; at least `stands_for`.
    pub sample_period: f64,
    /// Accesses of the stream that are counted together.
    pub window: u64,
    /// Settles which accesses are sampled.
    pub seed: u64,
}

impl Settings {
    /// Settings for a machine and `units` units of 2 MiB, of which the fast tier holds a fifth.
    pub fn new(machine: Machine, units: u32) -> Settings {
        Settings {
            machine,
            units,
            unit_bytes: crate::machine::REGION as f64,
            capacity: units / 5,
            populated: true,
            tick_ns: 50e6,
            stands_for: 100.0,
            sample_period: 5003.0,
            window: u64::MAX,
            seed: 1,
        }
    }

    /// What policies are to know of the settings. `samples` multiplies what they count in samples.
    pub fn parameters(&self, samples: f64) -> Parameters {
        let machine = &self.machine;
        let fast_ns = machine.fast.latency_ns;
        let slowness = match machine.slow {
            Slow::Memory(memory) => memory.latency_ns / fast_ns,
            // Of the real accesses that one stands for the first is a fault.
            Slow::Compressed(compressed) => {
                1.0 + compressed.fault_ns * self.pages() / self.stands_for / fast_ns
            }
        };
        let move_ns =
            (machine.promotion.ns(self.unit_bytes) + machine.demotion.ns(self.unit_bytes)) / 2.0;
        let sample_ns = self.sample_period * fast_ns / f64::from(machine.in_flight);
        Parameters {
            unit_bytes: self.unit_bytes,
            samples,
            slowness: slowness.max(1.0),
            move_samples: move_ns / sample_ns,
            ..Parameters::default()
        }
    }

    /// Pages of a base unit.
    fn pages(&self) -> f64 {
        (self.unit_bytes / crate::machine::PAGE as f64).max(1.0)
    }

    /// Base units that may be moved in a tick.
    pub fn moves_max(&self) -> u32 {
        (self.machine.move_bytes as f64 * (self.tick_ns / 50e6) / self.unit_bytes)
            .round()
            .clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

/// A unit's place and marks, in a byte: in the slow tier; touched and written since the last tick.
const SLOW: u8 = 1;
const TOUCHED: u8 = 2;
const WRITTEN: u8 = 4;
/// Marks from this one on make the next access more than a look at where the unit is. The policy
/// wants to know of it, the unit never was touched, or it is compressed.
const SPECIAL: u8 = 8;
const ARMED: u8 = 8;
const ABSENT: u8 = 16;
const FAULTS: u8 = 32;

/// Number of fast-tier units drawn by chance on a fault without room. The coldest of them makes
/// room for the unit that faults.
const CANDIDATES: u32 = 16;

/// Simulation of one policy.
pub struct Simulation {
    settings: Settings,
    policy: Box<dyn PlacementPolicy>,
    /// Size of each unit, base units; empty where each is one base unit.
    sizes: Arc<[u32]>,
    /// Base units that may be moved in a tick.
    moves_max: u32,
    senses: Senses,
    /// Whether the policy asks which units were touched or written.
    marks: bool,
    places: Vec<u8>,
    /// Base units in the fast tier, and in all.
    used: u32,
    present: u32,
    gaps: Gaps,
    /// Number of accesses up to the next sample, which is the last of them.
    until_sample: u64,
    now_ns: f64,
    tick_at_ns: f64,
    ticks: u64,
    /// Latency of a hit and of a miss in this tick.
    latencies: [f64; 2],
    traffic: Traffic,
    /// Time of faults since time was last added up, ns.
    pending_ns: f64,
    window: Counts,
    windows: Vec<Counts>,
    moves: Vec<Move>,
    units: Vec<UnitId>,
    bits: Vec<u64>,
    coming: Vec<u32>,
    /// Where there are faults: units in the fast tier, and where in that list each is.
    resident: Vec<UnitId>,
    index: Vec<u32>,
    random: SmallRng,
}

/// Accesses to units of the slow tier.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    reads: u64,
    writes: u64,
}

impl Misses {
    fn add(&mut self, others: Misses) {
        self.reads += others.reads;
        self.writes += others.writes;
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Counts of all accesses.
    pub total: Counts,
    /// Counts of each window of the stream, the last one shorter.
    pub windows: Vec<Counts>,
    /// Times that the policy was asked.
    pub ticks: u64,
}

impl Simulation {
    /// Makes a simulation of units that are all alike, before the first access. The settings must
    /// be possible ones (as their fields say).
    pub fn new(settings: Settings, policy: Box<dyn PlacementPolicy>) -> Simulation {
        Simulation::sized(settings, Arc::from([]), policy)
    }

    /// Makes a simulation of units with the given sizes in base units, each at least 1, and less
    /// than 2³¹ together. No sizes: all are one. In a tick three of the largest units may be moved,
    /// if sizes differ, even where that is more than the machine's bytes.
    pub fn sized(
        settings: Settings,
        sizes: Arc<[u32]>,
        policy: Box<dyn PlacementPolicy>,
    ) -> Simulation {
        assert!(
            sizes.is_empty()
                || sizes.len() == settings.units as usize && sizes.iter().all(|size| *size > 0),
            "each unit has a size"
        );
        assert!(
            sizes.iter().map(|size| u64::from(*size)).sum::<u64>() < 1 << 31,
            "too much memory for base units this small"
        );
        let largest = sizes.iter().copied().max().unwrap_or(1);
        assert!(
            settings.sample_period >= settings.stands_for && settings.stands_for >= 1.0,
            "more than one sample an access"
        );
        assert!(settings.tick_ns > 0.0 && settings.window > 0 && settings.unit_bytes > 0.0);
        let faults = matches!(settings.machine.slow, Slow::Compressed(_));
        assert!(!faults || settings.capacity >= largest, "what faults needs room");
        let mut gaps =
            Gaps::new(settings.sample_period / settings.stands_for, mixed(settings.seed));
        let mut simulation = Simulation {
            senses: policy.senses(),
            marks: policy.senses().referenced || policy.senses().written,
            policy,
            sizes,
            moves_max: settings.moves_max().max(if largest > 1 { 3 * largest } else { 1 }),
            places: vec![ABSENT; settings.units as usize],
            used: 0,
            present: 0,
            until_sample: gaps.next_gap(),
            gaps,
            now_ns: 0.0,
            tick_at_ns: settings.tick_ns,
            ticks: 0,
            latencies: settings.machine.loaded(&Traffic::default()),
            traffic: Traffic::default(),
            pending_ns: 0.0,
            window: Counts::default(),
            windows: Vec::new(),
            moves: Vec::new(),
            units: Vec::new(),
            bits: Vec::new(),
            coming: Vec::new(),
            resident: Vec::new(),
            index: if faults { vec![0; settings.units as usize] } else { Vec::new() },
            random: SmallRng::seed_from_u64(mixed(!settings.seed)),
            settings,
        };
        if settings.populated {
            for unit in 0..settings.units {
                let place = if simulation.has_room(unit) { Place::Fast } else { Place::Slow };
                simulation.arrive(unit, place);
            }
        }
        simulation
    }

    fn size(&self, unit: UnitId) -> u32 {
        self.sizes.get(unit as usize).copied().unwrap_or(1)
    }

    /// Whether the fast tier has room for a unit beside what is there.
    fn has_room(&self, unit: UnitId) -> bool {
        self.settings.capacity - self.used >= self.size(unit)
    }

    /// Settings of the simulation.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Simulated time since the beginning, ns.
    pub fn now_ns(&self) -> f64 {
        self.now_ns
    }

    /// Most accesses that [`run`](Simulation::run) wants to look ahead: as many as there can be in
    /// a tick, if the policy asks for what is to come.
    pub fn looks_ahead(&self) -> u64 {
        if self.senses.foretold {
            (self.settings.tick_ns / self.access_ns(self.settings.machine.fast.latency_ns)).ceil()
                as u64
        } else {
            0
        }
    }

    /// Runs the accesses that come next in the stream; `later` are those after them. Units are
    /// below `settings.units`.
    pub fn run(&mut self, mut accesses: &[Access], later: &[Vec<Access>]) {
        while !accesses.is_empty() {
            // At least this many come before the tick is due; then the rest of it again, until it
            // is due.
            let until_tick = ((self.tick_at_ns - self.now_ns) / self.slowest_ns()) as u64;
            let until_window = self.settings.window - self.window.accesses;
            let (now, rest) = accesses
                .split_at(until_tick.clamp(1, until_window).min(accesses.len() as u64) as usize);
            accesses = rest;
            self.stretch(now);
            if self.window.accesses == self.settings.window {
                self.windows.push(std::mem::take(&mut self.window));
            }
            if self.now_ns >= self.tick_at_ns {
                if self.senses.foretold {
                    self.count_coming(accesses.iter().chain(later.iter().flatten()));
                }
                self.tick();
            }
        }
    }

    /// Ends the stream.
    pub fn finish(mut self) -> Outcome {
        let in_fast = (0..).zip(&self.places).filter(|(_, place)| **place & (SLOW | ABSENT) == 0);
        assert_eq!(
            in_fast.map(|(unit, _)| self.size(unit)).sum::<u32>(),
            self.used,
            "what is in the fast tier, counted again"
        );
        match self.windows.last_mut() {
            // What moved in a tick behind the last access of a whole window.
            Some(last) if self.window.accesses == 0 => last.add(&self.window),
            _ if self.window.accesses > 0 => self.windows.push(self.window),
            _ => {}
        }
        let mut total = Counts::default();
        self.windows.iter().for_each(|window| total.add(window));
        Outcome { total, windows: self.windows, ticks: self.ticks }
    }

    /// How far time goes on by an access of the stream, whose memory takes `latency_ns`, ns.
    fn access_ns(&self, latency_ns: f64) -> f64 {
        latency_ns * self.settings.stands_for / f64::from(self.settings.machine.in_flight)
    }

    fn slowest_ns(&self) -> f64 {
        self.access_ns(self.latencies[0].max(self.latencies[1]))
    }

    /// Accesses within a tick and a window.
    fn stretch(&mut self, accesses: &[Access]) {
        let mut misses = Misses::default();
        let mut rest = accesses;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.until_sample.min(rest.len() as u64) as usize);
            rest = later;
            misses.add(self.misses(now));
            self.until_sample -= now.len() as u64;
            if self.until_sample == 0 {
                self.sample(now[now.len() - 1]);
            }
        }
        assert!(
            self.used <= self.settings.capacity,
            "{} base units in a tier for {}",
            self.used,
            self.settings.capacity
        );
        let (all, misses_all) = (accesses.len() as u64, misses.reads + misses.writes);
        let writes = accesses.iter().map(|access| u64::from(access.is_write())).sum::<u64>();
        self.traffic.fast[0] += all - writes - misses.reads;
        self.traffic.fast[1] += writes - misses.writes;
        self.traffic.slow[0] += misses.reads;
        self.traffic.slow[1] += misses.writes;
        let latency_ns =
            (all - misses_all) as f64 * self.latencies[0] + misses_all as f64 * self.latencies[1];
        self.window.accesses += all;
        self.window.hits += all - misses_all;
        self.window.writes += writes;
        self.window.latency_ns += latency_ns;
        self.window.fault_ns += self.pending_ns;
        let ns = self.access_ns(latency_ns) + std::mem::take(&mut self.pending_ns);
        self.pass(ns);
    }

    fn pass(&mut self, ns: f64) {
        self.now_ns += ns;
        self.window.time_ns += ns;
        self.window.fast_unit_ns += ns * f64::from(self.used);
        self.window.slow_unit_ns += ns * f64::from(self.present - self.used);
    }

    /// Looks at where each access's unit is. This is the inner loop: a byte of the unit, and three
    /// sums. Most stretches have nothing special in them, and that is seen when they are over;
    /// others are gone through again.
    fn misses(&mut self, accesses: &[Access]) -> Misses {
        if self.marks {
            return self.misses_one_by_one(accesses);
        }
        let (mut misses, mut writes, mut marks) = (0u32, 0u32, 0u8);
        for access in accesses {
            let place = self.places[access.unit() as usize];
            marks |= place;
            misses += u32::from(place & SLOW);
            writes += u32::from(place & SLOW & u8::from(access.is_write()));
        }
        if marks >= SPECIAL {
            return self.misses_one_by_one(accesses);
        }
        Misses { reads: u64::from(misses - writes), writes: u64::from(writes) }
    }

    /// Counts misses access by access, where a unit needs special treatment or accesses are marked.
    fn misses_one_by_one(&mut self, accesses: &[Access]) -> Misses {
        let (mut hits, mut misses) = (0, Misses::default());
        for access in accesses {
            let at = access.unit() as usize;
            let mut place = self.places[at];
            if place >= SPECIAL {
                place = if self.special(*access) == Place::Slow { SLOW } else { 0 };
            }
            if self.marks {
                self.places[at] |= if access.is_write() { TOUCHED | WRITTEN } else { TOUCHED };
            }
            let (slow, write) = (u64::from(place & SLOW), u64::from(access.is_write()));
            hits += slow ^ 1;
            misses.reads += slow & !write;
            misses.writes += slow & write;
        }
        assert_eq!(
            hits + misses.reads + misses.writes,
            accesses.len() as u64,
            "every access is a hit or a miss"
        );
        misses
    }

    /// An access to a unit that is armed, absent or compressed; where it counts as met.
    #[cold]
    fn special(&mut self, access: Access) -> Place {
        let unit = access.unit();
        let at = unit as usize;
        if self.places[at] & ABSENT != 0 {
            let faults = matches!(self.settings.machine.slow, Slow::Compressed(_));
            while faults && !self.has_room(unit) {
                // Nothing is born compressed.
                self.evict_one();
            }
            self.arrive(unit, if self.has_room(unit) { Place::Fast } else { Place::Slow });
        }
        if self.places[at] & ARMED != 0 {
            self.places[at] &= !ARMED;
            self.window.hints += 1;
            self.pending_ns += self.settings.machine.hint_ns;
            let promote = self.policy.hinted(unit, access.is_write());
            if promote && self.places[at] & SLOW != 0 && self.has_room(unit) {
                let cost = self.policy.move_cost(unit, Place::Fast);
                self.make(unit, Place::Fast, cost);
            }
        }
        let place = if self.places[at] & SLOW != 0 { Place::Slow } else { Place::Fast };
        if self.places[at] & FAULTS != 0 {
            self.fault(unit);
        }
        place
    }

    /// A compressed unit comes back, another goes where there is no room.
    fn fault(&mut self, unit: UnitId) {
        let Slow::Compressed(compressed) = self.settings.machine.slow else {
            unreachable!("only compressed units fault")
        };
        while !self.has_room(unit) {
            self.evict_one();
        }
        self.window.faults += 1;
        self.window.promoted += 1;
        self.pending_ns += compressed.fault_ns * self.settings.pages() * f64::from(self.size(unit));
        self.put(unit, Place::Fast);
        self.policy.moved(unit, Place::Fast);
    }

    /// Evicts the coldest of a few units at once, for one that comes.
    fn evict_one(&mut self) {
        let below = self.resident.len() as u64;
        let mut drawn = || {
            self.resident[((u128::from(self.random.next_u64()) * u128::from(below)) >> 64) as usize]
        };
        let mut coldest = drawn();
        for _ in 1..CANDIDATES {
            let other = drawn();
            if self.policy.heat(other) < self.policy.heat(coldest) {
                coldest = other;
            }
        }
        self.make(coldest, Place::Slow, 1.0);
    }

    fn arrive(&mut self, unit: UnitId, place: Place) {
        self.places[unit as usize] = SLOW;
        self.present += self.size(unit);
        match place {
            Place::Fast => self.put(unit, Place::Fast),
            // Nothing is in the fast tier's list.
            Place::Slow => self.places[unit as usize] |= self.faulting(),
        }
        self.policy.arrived(unit, place, self.size(unit));
    }

    fn faulting(&self) -> u8 {
        if self.index.is_empty() { 0 } else { FAULTS }
    }

    /// Puts a present unit into a place; it was in the other. Its next access is not waited for any
    /// more, as the kernel's migration makes its entry anew.
    fn put(&mut self, unit: UnitId, to: Place) {
        let at = unit as usize;
        self.places[at] &= !ARMED;
        match to {
            Place::Fast => {
                assert!(
                    self.places[at] & SLOW != 0 && self.has_room(unit),
                    "unit {unit} has no room in the fast tier"
                );
                self.places[at] &= !(SLOW | FAULTS);
                self.used += self.size(unit);
                if !self.index.is_empty() {
                    self.index[at] = self.resident.len() as u32;
                    self.resident.push(unit);
                }
            }
            Place::Slow => {
                assert!(
                    self.places[at] & (SLOW | ABSENT) == 0,
                    "unit {unit} is not in the fast tier"
                );
                self.places[at] |= SLOW | self.faulting();
                self.used -= self.size(unit);
                if !self.index.is_empty() {
                    let index = self.index[at] as usize;
                    self.resident.swap_remove(index);
                    if let Some(other) = self.resident.get(index) {
                        self.index[*other as usize] = index as u32;
                    }
                }
            }
        }
    }

    /// Moves a unit at `times` the cost of a move, and tells the policy.
    fn make(&mut self, unit: UnitId, to: Place, times: f32) {
        let machine = &self.settings.machine;
        let (cost, count) = match to {
            Place::Fast => (machine.promotion, &mut self.window.promoted),
            Place::Slow => (machine.demotion, &mut self.window.demoted),
        };
        *count += 1;
        let ns = cost.ns(self.settings.unit_bytes * f64::from(self.size(unit))) * f64::from(times);
        self.window.move_ns += ns;
        self.pass(ns);
        self.put(unit, to);
        self.policy.moved(unit, to);
    }

    fn sample(&mut self, access: Access) {
        self.until_sample = self.gaps.next_gap();
        self.window.samples += 1;
        if access.is_write() {
            self.policy.sampled_write(access.unit(), 1)
        } else {
            self.policy.sampled(access.unit(), 1)
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.policy.at(self.now_ns as u64);
        if self.senses.referenced {
            self.collect(TOUCHED);
            self.policy.referenced(&self.bits);
        }
        if self.senses.written {
            self.collect(WRITTEN);
            self.policy.written(&self.bits);
        }
        if self.senses.foretold {
            self.policy.foretold(&self.coming);
        }
        let mut moves = std::mem::take(&mut self.moves);
        self.policy.decide(
            Room { capacity: self.settings.capacity, used: self.used, moves_max: self.moves_max },
            &mut moves,
        );
        let mut left = self.moves_max;
        for step in &moves {
            let fits = match (step.to, self.places.get(step.unit as usize)) {
                (Place::Fast, Some(place)) => {
                    place & (SLOW | ABSENT) == SLOW && self.has_room(step.unit)
                }
                (Place::Slow, Some(place)) => place & (SLOW | ABSENT) == 0,
                (_, None) => false,
            };
            let cost = if fits { self.policy.move_cost(step.unit, step.to) } else { 1.0 };
            // What takes nothing is no part of the budget.
            let counts = if cost > 0.0 { self.size(step.unit) } else { 0 };
            if fits && left >= counts {
                left -= counts;
                self.make(step.unit, step.to, cost);
            } else {
                self.window.refused += 1;
            }
        }
        self.moves = moves;
        if self.senses.hints {
            let mut units = std::mem::take(&mut self.units);
            self.policy.arm(&mut units);
            for unit in &units {
                if let Some(place) =
                    self.places.get_mut(*unit as usize).filter(|place| **place & ABSENT == 0)
                {
                    *place |= ARMED;
                }
            }
            self.units = units;
        }
        // What was going on since the last tick is what the next one expects.
        self.latencies = self.settings.machine.loaded(&std::mem::take(&mut self.traffic));
        // A thread that moves pages sleeps when that is done, as kernel threads do.
        self.tick_at_ns = self.now_ns + self.settings.tick_ns;
    }

    /// Collects the units that have a mark into `bits`, and clears the mark.
    fn collect(&mut self, mark: u8) {
        self.bits.clear();
        self.bits.extend(self.places.chunks_mut(64).map(|places| {
            let mut word = 0;
            for (bit, place) in places.iter_mut().enumerate() {
                word |= u64::from(*place & mark != 0) << bit;
                *place &= !mark;
            }
            word
        }));
    }

    /// Counts the accesses until the next tick, if they go on as fast as those since the last one.
    fn count_coming<'a>(&mut self, accesses: impl Iterator<Item = &'a Access>) {
        let [hits, misses] =
            [self.traffic.fast, self.traffic.slow].map(|[reads, writes]| (reads + writes) as f64);
        let latency_ns =
            (hits * self.latencies[0] + misses * self.latencies[1]) / (hits + misses).max(1.0);
        let until_tick = (self.settings.tick_ns / self.access_ns(latency_ns)).ceil() as usize;
        self.coming.clear();
        self.coming.resize(self.settings.units as usize, 0);
        accesses.take(until_tick).for_each(|access| self.coming[access.unit() as usize] += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::{Generator, names};
    use crate::machine::{Memory, MoveCost};
    use crate::pass;
    use crate::source::{Given, Source as _};
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};
    use terrace_policy::placement::Reason;
    use terrace_policy::registry::simulated;

    /// 100 and 300 ns, one request at a time, moves of 1000 ns up and 2000 down, hints of 50.
    fn machine() -> Machine {
        let memory =
            |latency_ns, cost| Memory { latency_ns, read_gbps: 1e12, write_gbps: 1e12, cost };
        Machine {
            fast: memory(100.0, 1.0),
            slow: Slow::Memory(memory(300.0, 0.5)),
            in_flight: 1,
            promotion: MoveCost { unit_ns: 1000.0, page_ns: 0.0 },
            demotion: MoveCost { unit_ns: 2000.0, page_ns: 0.0 },
            hint_ns: 50.0,
            ..Machine::preset("optane").unwrap()
        }
    }

    fn settings(units: u32, capacity: u32) -> Settings {
        Settings {
            capacity,
            tick_ns: 1e9,
            stands_for: 1.0,
            sample_period: 1.0,
            ..Settings::new(machine(), units)
        }
    }

    fn reads(units: &[u32]) -> Vec<Access> {
        units.iter().map(|unit| Access::new(*unit, false)).collect()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs().max(1e-3)
    }

    /// Says and does what it is told, and writes down what it hears.
    #[derive(Default)]
    struct Told {
        senses: Senses,
        /// Moves that are asked for at the nth tick.
        moves: Vec<Vec<(UnitId, Place)>>,
        arms: Vec<Vec<UnitId>>,
        promotes: bool,
        /// Cost of a move of each unit, as a multiple of the machine's, by unit.
        costs: Vec<f32>,
        tick: usize,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Told {
        fn hear(&self, what: String) {
            self.heard.lock().unwrap().push(what);
        }
    }

    impl PlacementPolicy for Told {
        fn name(&self) -> &'static str {
            "told"
        }
        fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
            let size = if size == 1 { String::new() } else { format!(" of {size}") };
            self.hear(format!("arrived {unit} {place:?}{size}"));
        }
        fn gone(&mut self, _unit: UnitId) {}
        fn sampled(&mut self, unit: UnitId, _weight: u32) {
            self.hear(format!("read {unit}"));
        }
        fn sampled_write(&mut self, unit: UnitId, _weight: u32) {
            self.hear(format!("write {unit}"));
        }
        fn senses(&self) -> Senses {
            self.senses
        }
        fn at(&mut self, now_ns: u64) {
            self.hear(format!("at {now_ns}"));
        }
        fn arm(&mut self, units: &mut Vec<UnitId>) {
            *units = self.arms.get(self.tick - 1).cloned().unwrap_or_default();
            self.hear("arm".into());
        }
        fn hinted(&mut self, unit: UnitId, write: bool) -> bool {
            self.hear(format!("hinted {unit} {write}"));
            self.promotes
        }
        fn referenced(&mut self, touched: &[u64]) {
            self.hear(format!("referenced {touched:?}"));
        }
        fn written(&mut self, written: &[u64]) {
            self.hear(format!("written {written:?}"));
        }
        fn foretold(&mut self, accesses: &[u32]) {
            self.hear(format!("foretold {accesses:?}"));
        }
        fn move_cost(&self, unit: UnitId, _to: Place) -> f32 {
            self.costs.get(unit as usize).copied().unwrap_or(1.0)
        }
        fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
            self.hear(format!(
                "decide {} of {}, {} moves",
                room.used, room.capacity, room.moves_max
            ));
            let asked = self.moves.get(self.tick).cloned().unwrap_or_default();
            *moves = asked
                .into_iter()
                .map(|(unit, to)| Move { unit, to, reason: Reason::Coldest })
                .collect();
            self.tick += 1;
        }
        fn moved(&mut self, unit: UnitId, to: Place) {
            self.hear(format!("moved {unit} {to:?}"));
        }
        fn heat(&self, unit: UnitId) -> f32 {
            unit as f32
        }
    }

    /// Runs what `Told` says; what it heard since it was made, and what came of it.
    fn tell(settings: Settings, told: Told, accesses: &[Access]) -> (Vec<String>, Outcome) {
        tell_of(&[], settings, told, accesses)
    }

    /// Runs what `Told` says with units of the given sizes. Returns what it heard and what came of
    /// it.
    fn tell_of(
        sizes: &[u32],
        settings: Settings,
        told: Told,
        accesses: &[Access],
    ) -> (Vec<String>, Outcome) {
        let heard = told.heard.clone();
        let mut simulation = Simulation::sized(settings, sizes.into(), Box::new(told));
        heard.lock().unwrap().clear();
        simulation.run(accesses, &[]);
        let outcome = simulation.finish();
        let heard = heard.lock().unwrap().clone();
        (heard, outcome)
    }

    #[test]
    fn time_and_hits_by_hand() {
        // Units 0 and 1 are fast.
        let accesses = [reads(&[0, 1, 2, 3, 0]), vec![Access::new(3, true)]].concat();
        let (heard, outcome) = tell(settings(4, 2), Told::default(), &accesses);
        let total = outcome.total;
        assert_eq!((total.accesses, total.hits, total.writes, total.samples), (6, 3, 1, 6));
        assert!(
            near(total.time_ns, 3.0 * 100.0 + 3.0 * 300.0) && near(total.amat_ns(1.0), 200.0),
            "{total:?}"
        );
        assert!(near(total.per_s(1.0), 5e6));
        // Half of the units at 1, half at 0.5.
        assert!(near(total.cost(&machine()), 0.75));
        assert_eq!(heard, ["read 0", "read 1", "read 2", "read 3", "read 0", "write 3"]);
        // Four requests at a time, each access standing for ten: 2.5 times as long.
        let four = Settings {
            machine: Machine { in_flight: 4, ..machine() },
            stands_for: 10.0,
            sample_period: 10.0,
            ..settings(4, 2)
        };
        let (_, outcome) = tell(four, Told::default(), &accesses);
        assert!(
            near(outcome.total.time_ns, 3000.0) && near(outcome.total.amat_ns(10.0), 200.0),
            "{outcome:?}"
        );
    }

    #[test]
    fn policies_are_told_what_a_move_and_a_miss_cost() {
        let optane = Settings::new(Machine::preset("optane").unwrap(), 10_240);
        let parameters = optane.parameters(1.0);
        // 0.4 ms; 5003 accesses of 80 ns, 16 at a time.
        assert!(
            near(parameters.move_samples, 400_000.0 / (5003.0 * 80.0 / 16.0))
                && near(parameters.slowness, 3.75),
            "{parameters:?}"
        );
        let lz4 = Settings {
            unit_bytes: 4096.0,
            ..Settings::new(Machine::preset("lz4").unwrap(), 10_240)
        };
        assert!(near(lz4.parameters(1.0).slowness, 1.0 + 5870.0 / 100.0 / 80.0));
    }

    #[test]
    fn ticks_come_when_they_are_due_and_moves_take_their_time() {
        let moves = vec![vec![
            (0, Place::Slow),
            (2, Place::Fast),
            (3, Place::Fast),
            (2, Place::Fast),
            (1, Place::Fast),
        ]];
        let setup = Settings { tick_ns: 1000.0, window: 5, ..settings(4, 2) };
        let setup =
            Settings { machine: Machine { move_bytes: u64::MAX, ..setup.machine }, ..setup };
        let (heard, outcome) = tell(
            setup,
            Told { moves, ..Told::default() },
            &reads(&[[0; 3].as_slice(), &[2; 13]].concat()),
        );
        let heard: Vec<&str> =
            heard.iter().map(String::as_str).filter(|heard| !heard.starts_with("read")).collect();
        // 3 · 100 + 3 · 300 ns until the tick, moves of 3000, the next tick 1000 later; all units
        // being fast now: no room for 3, 2 and 1 are there.
        let moves_max = setup.moves_max();
        let decide = format!("decide 2 of 2, {moves_max} moves");
        assert_eq!(heard, ["at 1200", &decide, "moved 0 Slow", "moved 2 Fast", "at 5200", &decide]);
        assert_eq!(
            (outcome.total.promoted, outcome.total.demoted, outcome.total.refused, outcome.ticks),
            (1, 1, 3, 2)
        );
        assert_eq!(
            outcome.windows.iter().map(|window| window.hits).collect::<Vec<_>>(),
            [3, 4, 5, 1]
        );
        assert!(
            near(outcome.total.time_ns, 13.0 * 100.0 + 3.0 * 300.0 + 3000.0)
                && near(outcome.total.move_ns, 3000.0)
        );
        assert!(
            near(outcome.windows[1].time_ns, 300.0 + 3000.0 + 400.0),
            "{:?}",
            outcome.windows[1]
        );
    }

    #[test]
    fn no_more_moves_than_the_budget() {
        let moves = vec![vec![(0, Place::Slow), (1, Place::Slow), (2, Place::Fast)]];
        let two = Settings { tick_ns: 100.0, ..settings(4, 2) };
        // Two units in 50 ms.
        let two = Settings {
            machine: Machine {
                move_bytes: (2.0 * two.unit_bytes * 50e6 / 100.0) as u64,
                ..two.machine
            },
            ..two
        };
        let (_, outcome) = tell(two, Told { moves, ..Told::default() }, &reads(&[0]));
        assert_eq!(
            (outcome.total.promoted, outcome.total.demoted, outcome.total.refused),
            (0, 2, 1)
        );
    }

    /// 0 to 3 are of 4, 1, 2 and 3 base units, and 5 are fast: 0 and 1.
    const SIZES: [u32; 4] = [4, 1, 2, 3];

    #[test]
    fn moves_fit_and_cost_by_their_sizes() {
        let moves = vec![vec![
            (2, Place::Fast),
            (0, Place::Slow),
            (3, Place::Fast),
            // 1 and 3 are there, which leaves one.
            (2, Place::Fast),
            (0, Place::Fast),
        ]];
        let page = MoveCost { unit_ns: 100.0, page_ns: 10.0 };
        // A base unit has two pages.
        let setup = Settings { tick_ns: 100.0, unit_bytes: 8192.0, ..settings(4, 5) };
        let setup = Settings {
            machine: Machine { promotion: page, demotion: page, ..setup.machine },
            ..setup
        };
        let (heard, outcome) =
            tell_of(&SIZES, setup, Told { moves: moves.clone(), ..Told::default() }, &reads(&[0]));
        assert_eq!(
            heard[1..],
            ["at 100", "decide 5 of 5, 12 moves", "moved 0 Slow", "moved 3 Fast"]
        );
        let total = outcome.total;
        assert_eq!((total.promoted, total.demoted, total.refused), (1, 1, 3));
        assert!(near(total.move_ns, 2.0 * 100.0 + (4.0 + 3.0) * 2.0 * 10.0), "{total:?}");
        // 5 of 10 at 1 and the others at half, until 0 has moved; then 1 until 3 has, which is
        // added up when the move is done.
        let fast_ns = 100.0 * 5.0 + 180.0 * 5.0 + 160.0;
        assert!(
            near(total.cost(&setup.machine), (fast_ns + (440.0 * 10.0 - fast_ns) / 2.0) / 4400.0),
            "{total:?}"
        );
        // 12 is three of the largest; more fit where the machine moves more.
        let more = Settings { machine: Machine { move_bytes: u64::MAX, ..setup.machine }, ..setup };
        assert!(
            tell_of(&SIZES, more, Told::default(), &reads(&[0])).0[2]
                .starts_with(&format!("decide 5 of 5, {} moves", more.moves_max()))
        );
        // No more than that: 4, 4 and 4 of 12.
        let moves =
            vec![[Place::Slow, Place::Fast, Place::Slow, Place::Fast].map(|to| (0, to)).to_vec()];
        let (_, outcome) = tell_of(&SIZES, setup, Told { moves, ..Told::default() }, &reads(&[0]));
        assert_eq!(
            (outcome.total.promoted, outcome.total.demoted, outcome.total.refused),
            (1, 2, 1)
        );
    }

    #[test]
    fn units_arrive_where_they_fit() {
        let setup = Settings { populated: false, ..settings(4, 5) };
        let (heard, _) = tell_of(&SIZES, setup, Told::default(), &reads(&[0, 2, 1, 3]));
        let heard: Vec<&str> =
            heard.iter().map(String::as_str).filter(|heard| !heard.starts_with("read")).collect();
        assert_eq!(
            heard,
            ["arrived 0 Fast of 4", "arrived 2 Slow of 2", "arrived 1 Fast", "arrived 3 Slow of 3"]
        );
        // A hint is no promotion where there is too little room, and one where there is enough.
        let told = Told {
            senses: Senses { hints: true, ..Senses::default() },
            promotes: true,
            arms: vec![vec![2], vec![2]],
            moves: vec![vec![], vec![(0, Place::Slow)]],
            ..Told::default()
        };
        let setup = Settings { tick_ns: 100.0, ..settings(4, 5) };
        let (heard, _) = tell_of(&SIZES, setup, told, &reads(&[1, 2, 2]));
        let heard: Vec<&str> = heard
            .iter()
            .map(String::as_str)
            .filter(|heard| heard.starts_with("moved") || heard.starts_with("hint"))
            .collect();
        assert_eq!(heard, ["hinted 2 false", "moved 0 Slow", "hinted 2 false", "moved 2 Fast"]);
    }

    #[test]
    fn large_compressed_units_fault_page_by_page_and_displace_as_much() {
        let compressed =
            Slow::Compressed(crate::machine::Compressed { fault_ns: 5000.0, ratio: 2.0 });
        let setup = Settings {
            machine: Machine { slow: compressed, ..machine() },
            unit_bytes: 4096.0,
            sample_period: 1e9,
            ..settings(4, 4)
        };
        // 0 to 2 are there. 3 needs all the room but one.
        let (heard, outcome) = tell_of(&[1, 1, 2, 3], setup, Told::default(), &reads(&[3]));
        assert_eq!(heard.last().map(String::as_str), Some("moved 3 Fast"));
        assert!(
            (2..=3).contains(&outcome.total.demoted) && near(outcome.total.fault_ns, 15_000.0),
            "{heard:?} {outcome:?}"
        );
    }

    #[test]
    fn what_takes_nothing_is_no_part_of_the_budget() {
        let moves = vec![vec![(0, Place::Slow), (1, Place::Slow), (2, Place::Fast)]];
        let one = Settings { tick_ns: 100.0, ..settings(4, 2) };
        assert_eq!(one.moves_max(), 1);
        let (_, outcome) =
            tell(one, Told { moves, costs: vec![0.0, 0.5, 0.0], ..Told::default() }, &reads(&[0]));
        assert_eq!(
            (outcome.total.promoted, outcome.total.demoted, outcome.total.refused),
            (1, 2, 0)
        );
        assert!(near(outcome.total.move_ns, 1000.0), "{outcome:?}");
    }

    #[test]
    fn units_arrive_when_they_are_touched_first() {
        let setup = Settings { populated: false, ..settings(10, 2) };
        let (heard, outcome) = tell(setup, Told::default(), &reads(&[7, 7, 3, 5, 3]));
        let heard: Vec<&str> =
            heard.iter().map(String::as_str).filter(|heard| !heard.starts_with("read")).collect();
        assert_eq!(heard, ["arrived 7 Fast", "arrived 3 Fast", "arrived 5 Slow"]);
        assert_eq!(outcome.total.hits, 4);
    }

    #[test]
    fn armed_units_are_told_once_and_promoted_if_there_is_room() {
        let senses = Senses { hints: true, referenced: true, written: true, foretold: true };
        let told = |promotes| Told {
            senses,
            promotes,
            // 0 goes, so that there is room for one.
            moves: vec![vec![(0, Place::Slow)]],
            arms: vec![vec![2, 3, 1, 9]],
            ..Told::default()
        };
        let setup = Settings { tick_ns: 400.0, sample_period: 1e9, ..settings(4, 2) };
        // One tick at 400; the next one would be 400 after it.
        let accesses = [reads(&[0, 3]), vec![Access::new(2, true)], reads(&[2])].concat();
        let (heard, outcome) = tell(setup, told(true), &accesses);
        assert_eq!(
            heard[..9],
            [
                "at 400",
                "referenced [9]",
                "written [0]",
                "foretold [0, 0, 2, 0]",
                "decide 2 of 2, 1 moves",
                "moved 0 Slow",
                "arm",
                "hinted 2 true",
                "moved 2 Fast"
            ]
        );
        assert_eq!((outcome.total.hits, outcome.total.hints, outcome.total.promoted), (3, 1, 1));
        assert!(near(outcome.total.time_ns, 400.0 + 2000.0 + 50.0 + 1000.0 + 200.0), "{outcome:?}");
        let (_, outcome) = tell(setup, told(false), &accesses);
        assert_eq!((outcome.total.hits, outcome.total.hints, outcome.total.promoted), (1, 1, 0));
        // 3 is armed too, and there is no room for it.
        let (heard, _) = tell(setup, told(true), &reads(&[0, 3, 2, 3]));
        let hinted = heard.iter().position(|heard| heard == "hinted 3 false").unwrap();
        assert!(heard[hinted + 1..].iter().all(|heard| !heard.starts_with("moved")), "{heard:?}");
    }

    #[test]
    fn what_was_touched_is_told_once() {
        let senses = Senses { referenced: true, ..Senses::default() };
        let setup = Settings { tick_ns: 400.0, sample_period: 1e9, ..settings(70, 70) };
        let (heard, _) =
            tell(setup, Told { senses, ..Told::default() }, &reads(&[0, 65, 65, 1, 0, 0, 0, 0]));
        let told = |heard: &[String], what: &str| {
            heard.iter().filter(|heard| heard.starts_with(what)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(told(&heard, "referenced"), ["referenced [3, 2]", "referenced [1, 0]"]);
        let senses = Senses { written: true, ..Senses::default() };
        let accesses =
            [reads(&[0, 65, 65]), vec![Access::new(69, true)], reads(&[0, 0, 0, 0])].concat();
        let (heard, _) = tell(setup, Told { senses, ..Told::default() }, &accesses);
        assert_eq!(
            (told(&heard, "written"), told(&heard, "referenced").len()),
            (vec!["written [0, 32]".to_owned(), "written [0, 0]".to_owned()], 0)
        );
    }

    #[test]
    fn compressed_units_come_back_by_faults() {
        let compressed =
            Slow::Compressed(crate::machine::Compressed { fault_ns: 5000.0, ratio: 2.0 });
        let setup = Settings {
            machine: Machine { slow: compressed, ..machine() },
            unit_bytes: 4096.0,
            sample_period: 1e9,
            ..settings(4, 2)
        };
        let (heard, outcome) = tell(setup, Told::default(), &reads(&[0, 3, 3, 3]));
        // The coldest of the two goes, which is 0.
        assert_eq!(heard, ["moved 0 Slow", "moved 3 Fast"]);
        let total = outcome.total;
        assert_eq!((total.hits, total.faults, total.promoted, total.demoted), (3, 1, 1, 1));
        assert!(
            near(total.time_ns, 4.0 * 100.0 + 2000.0 + 5000.0) && near(total.fault_ns, 5000.0),
            "{total:?}"
        );
        // Two of four units at half; AMAT has the fault, not the move.
        assert!(near(total.cost(&setup.machine), 0.75) && near(total.amat_ns(1.0), 1350.0));
        // What is new is not compressed, and makes room for itself.
        let (heard, outcome) =
            tell(Settings { populated: false, ..setup }, Told::default(), &reads(&[2, 1, 0]));
        assert_eq!(heard, ["arrived 2 Fast", "arrived 1 Fast", "moved 1 Slow", "arrived 0 Fast"]);
        assert_eq!((outcome.total.hits, outcome.total.faults), (3, 0));
    }

    /// All policies that there are.
    fn all(settings: Settings) -> Vec<Simulation> {
        all_of(&[], settings)
    }

    /// Over units of such sizes.
    fn all_of(sizes: &[u32], settings: Settings) -> Vec<Simulation> {
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let parameters =
            Parameters { slowness: 3.75, samples: 0.05, largest, ..Parameters::default() };
        let policies =
            simulated::NAMES.iter().map(|name| simulated::policy(name, &parameters).unwrap());
        policies.map(|policy| Simulation::sized(settings, sizes.into(), policy)).collect()
    }

    #[test]
    fn the_same_again_is_the_same_alone_or_together() {
        let setup = Settings {
            window: 30_000,
            tick_ns: 1e6,
            ..Settings::new(Machine::preset("optane").unwrap(), 500)
        };
        let stream = || Generator::parse("jump", 500, 300_000).unwrap().stream(3);
        let outcomes = |mut simulations: Vec<Simulation>| {
            pass::run(&mut stream(), &mut simulations, &mut |_| {}).unwrap();
            simulations.into_iter().map(Simulation::finish).collect::<Vec<_>>()
        };
        let together = outcomes(all(setup));
        assert_eq!(together, outcomes(all(setup)));
        for (number, expected) in together.iter().enumerate() {
            let alone = vec![all(setup).swap_remove(number)];
            assert_eq!(outcomes(alone), std::slice::from_ref(expected));
            assert_eq!((expected.total.accesses, expected.windows.len()), (300_000, 10));
        }
        let other = outcomes(all(Settings { seed: 2, ..setup }));
        let same = together.iter().zip(&other).filter(|(a, b)| a == b).count();
        // Those that learn nothing from samples.
        assert!(same <= 5, "{same} are the same with other samples");
    }

    /// Accesses in a tick and a window of [`free_moves`].
    const TICK: usize = 2_000;

    /// Settings where both tiers are as fast as each other, and moves take no time.
    fn free_moves(units: u32, capacity: u32) -> Settings {
        let free = MoveCost { unit_ns: 0.0, page_ns: 0.0 };
        let slow = Slow::Memory(machine().fast);
        let machine =
            Machine { slow, promotion: free, demotion: free, move_bytes: u64::MAX, ..machine() };
        Settings {
            tick_ns: TICK as f64 * 100.0,
            sample_period: 5.0,
            window: TICK as u64,
            capacity,
            stands_for: 1.0,
            ..Settings::new(machine, units)
        }
    }

    /// Where both tiers are as fast as each other and moves take no time, ticks come at the same
    /// accesses for all. Then no policy has more hits in any window than the oracle.
    #[test]
    fn nobody_beats_who_knows_what_comes() {
        let units = 300;
        let setup = free_moves(units, 60);
        for (name, _) in names() {
            let mut stream = Generator::parse(name, units, 60_000).unwrap().stream(3);
            let mut simulations = all(setup);
            let mut parameters = Parameters::default();
            parameters.set("oracle.free=on").unwrap();
            simulations
                .push(Simulation::new(setup, simulated::policy("oracle", &parameters).unwrap()));
            pass::run(&mut stream, &mut simulations, &mut |_| {}).unwrap();
            let hints: Vec<bool> =
                simulations.iter().map(|simulation| simulation.senses.hints).collect();
            let names: Vec<&str> = simulations.iter().map(Simulation::policy).collect();
            let mut outcomes: Vec<Outcome> =
                simulations.into_iter().map(Simulation::finish).collect();
            let best = outcomes.pop().unwrap();
            for ((policy, hints), outcome) in names.iter().zip(hints).zip(&outcomes) {
                assert!(
                    outcome.total.hits <= best.total.hits,
                    "{policy} with {name}: {} and {}",
                    outcome.total.hits,
                    best.total.hits
                );
                if hints {
                    // Faults take their time, and what they promote is there before a tick.
                    continue;
                }
                assert_eq!(outcome.ticks, best.ticks);
                for (window, known) in outcome.windows.iter().zip(&best.windows) {
                    assert!(
                        window.hits <= known.hits,
                        "{policy} with {name}: {} and {}",
                        window.hits,
                        known.hits
                    );
                }
            }
            // And the policies do move units.
            assert!(outcomes.iter().any(|outcome| outcome.total.promoted > 0), "{name}");
        }
    }

    /// With units of several sizes the oracle may be short of the best choice by the accesses of
    /// one unit (`policy::oracle`). Those are no more than the accesses of the window's most
    /// accessed unit.
    #[test]
    fn with_several_sizes_nobody_beats_who_knows_what_comes_by_more_than_one_unit() {
        let sizes: Vec<u32> = (0..300).map(|unit| if unit % 10 == 0 { 16 } else { 1 }).collect();
        let setup = free_moves(300, 150);
        for name in ["jump", "drift", "uniform", "phases", "zipf:theta=0.4"] {
            let mut simulations = all_of(&sizes, setup);
            let mut parameters = Parameters::default();
            parameters.set("oracle.free=on").unwrap();
            simulations.push(Simulation::sized(
                setup,
                sizes.clone().into(),
                simulated::policy("oracle", &parameters).unwrap(),
            ));
            let generator = Generator::parse(name, 300, 60_000).unwrap();
            pass::run(&mut generator.stream(3), &mut simulations, &mut |_| {}).unwrap();
            let (mut all, mut block, mut stream) = (Vec::new(), Vec::new(), generator.stream(3));
            while stream.next_block(&mut block).map(|()| !block.is_empty()).unwrap() {
                all.extend_from_slice(&block);
            }
            let most_of_one_unit = |accesses: &[Access]| {
                let mut counts = [0; 300];
                accesses.iter().for_each(|access| counts[access.unit() as usize] += 1);
                counts.into_iter().max().unwrap_or(0)
            };
            let hints: Vec<bool> =
                simulations.iter().map(|simulation| simulation.senses.hints).collect();
            let names: Vec<&str> = simulations.iter().map(Simulation::policy).collect();
            let mut outcomes: Vec<Outcome> =
                simulations.into_iter().map(Simulation::finish).collect();
            let best = outcomes.pop().unwrap();
            for ((policy, _), outcome) in
                names.iter().zip(hints).zip(&outcomes).filter(|((_, hints), _)| !hints)
            {
                assert_eq!(outcome.ticks, best.ticks);
                for ((window, known), accesses) in
                    outcome.windows.iter().zip(&best.windows).zip(all.chunks(TICK))
                {
                    let most = known.hits + most_of_one_unit(accesses);
                    assert!(
                        window.hits <= most,
                        "{policy} with {name}: {} and {}",
                        window.hits,
                        known.hits
                    );
                }
            }
        }
    }

    /// Asks for anything.
    struct Wild(SmallRng, u32);

    impl PlacementPolicy for Wild {
        fn name(&self) -> &'static str {
            "wild"
        }
        fn arrived(&mut self, _unit: UnitId, _place: Place, _size: u32) {}
        fn gone(&mut self, _unit: UnitId) {}
        fn sampled(&mut self, _unit: UnitId, _weight: u32) {}
        fn senses(&self) -> Senses {
            Senses { hints: true, referenced: true, written: true, foretold: true }
        }
        fn arm(&mut self, units: &mut Vec<UnitId>) {
            units.clear();
            units.extend((0..20).map(|_| self.0.next_u32() % (self.1 + 5)));
        }
        fn hinted(&mut self, _unit: UnitId, _write: bool) -> bool {
            self.0.next_u32() & 1 == 0
        }
        fn decide(&mut self, _room: Room, moves: &mut Vec<Move>) {
            moves.clear();
            let place = |random: u32| if random & 1 == 0 { Place::Fast } else { Place::Slow };
            moves.extend((0..self.0.next_u32() % 60).map(|_| Move {
                unit: self.0.next_u32() % (self.1 + 5),
                to: place(self.0.next_u32()),
                reason: Reason::Coldest,
            }));
        }
        fn moved(&mut self, _unit: UnitId, _to: Place) {}
        fn heat(&self, _unit: UnitId) -> f32 {
            0.0
        }
    }

    proptest! {
        /// Whatever is asked for, on any machine: all accesses are accounted for, and what moved
        /// explains what is where (`finish` counts it again).
        #[test]
        fn nothing_is_lost(
            seed: u64,
            units in 16u32..200,
            capacity in 8u32..400,
            preset in 0usize..7,
            populated: bool,
            window in 1u64..5000,
            alike: bool,
        ) {
            let mut random = SmallRng::seed_from_u64(!seed);
            let sizes: Vec<u32> = if alike {
                Vec::new()
            } else {
                (0..units).map(|_| 1 + random.next_u32() % 8).collect()
            };
            let machine = crate::machine::PRESETS[preset];
            let setup = Settings {
                capacity,
                populated,
                window,
                tick_ns: 50_000.0,
                stands_for: 1.0,
                sample_period: 7.0,
                seed,
                ..Settings::new(machine, units)
            };
            let policy = Box::new(Wild(SmallRng::seed_from_u64(seed), units));
            let mut simulation = vec![Simulation::sized(setup, sizes.clone().into(), policy)];
            let mut stream = Generator::parse("scan", units, 20_000).unwrap().stream(seed);
            pass::run(&mut stream, &mut simulation, &mut |_| {}).unwrap();
            let (used, present) = (i64::from(simulation[0].used), simulation[0].present);
            let is_fast = |place: &&u8| **place & (SLOW | ABSENT) == 0;
            let fast = simulation[0].places.iter().filter(is_fast).count() as i64;
            let outcome = simulation.remove(0).finish();
            let total = outcome.total;
            prop_assert_eq!(total.accesses, 20_000);
            prop_assert!(
                total.hits <= total.accesses && total.faults <= total.accesses - total.hits
            );
            prop_assert!(outcome.windows.iter().rev().skip(1).all(|of| of.accesses == window));
            let arrived = fast - total.promoted as i64 + total.demoted as i64;
            prop_assert!((0..=i64::from(units)).contains(&arrived) && used <= i64::from(capacity));
            prop_assert!(!populated || !alike || arrived == i64::from(units.min(capacity)));
            let all: u32 = if alike { units } else { sizes.iter().sum() };
            prop_assert!(!populated || present == all);
            prop_assert!(total.time_ns > total.move_ns + total.fault_ns);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Every policy, over units of any sizes. The tier is never too full, which is asserted all
        /// the time, and counted again at the end. What is asked for is the same each time.
        #[test]
        fn policies_keep_to_the_room_of_units_of_any_size(
            seed: u64,
            sizes in prop::collection::vec(prop_oneof![3 => Just(1u32), 1 => 2u32..40], 40..200),
            capacity in 40u32..600,
            preset in 0usize..7,
            populated: bool,
        ) {
            let units = sizes.len() as u32;
            let machine = crate::machine::PRESETS[preset];
            let setup = Settings {
                capacity,
                populated,
                tick_ns: 50_000.0,
                stands_for: 1.0,
                sample_period: 7.0,
                seed,
                ..Settings::new(machine, units)
            };
            let outcomes = || {
                let mut simulations = all_of(&sizes, setup);
                let mut stream = Generator::parse("drift", units, 20_000).unwrap().stream(seed);
                pass::run(&mut stream, &mut simulations, &mut |_| {}).unwrap();
                simulations.into_iter().map(Simulation::finish).collect::<Vec<_>>()
            };
            let first = outcomes();
            prop_assert_eq!(&first, &outcomes());
            // What they ask for fits.
            for (name, outcome) in simulated::NAMES.iter().zip(&first) {
                prop_assert_eq!(outcome.total.refused, 0, "{}", name);
            }
        }
    }

    #[test]
    fn a_stream_that_breaks_its_word_is_an_error() {
        let mut simulations = vec![Simulation::new(
            settings(4, 2),
            simulated::policy("first-touch", &Parameters::default()).unwrap(),
        )];
        let error =
            pass::run(&mut Given::reads(10, [1, 9]), &mut simulations, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "unit 9 was touched, where 4 were announced");
    }
}
