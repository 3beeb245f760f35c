//! The policies as a simulation names them, with the parameters that their papers and programs
//! have, and what of those can be set.
//!
//! A simulation is smaller than what the papers ran, and often shorter. [`Parameters::samples`] and
//! [`Parameters::time`] scale what policies count in samples and in time. Where N units play 20 GiB
//! of 10,240 × 2 MiB, the factor is N / 10,240 ([`Parameters::of_units`]). Policies are then as
//! sure of a unit as they were there. What is counted for each unit, as HeMem's thresholds, stays;
//! what is in bytes follows [`Parameters::unit_bytes`].
//!
//! How often samples are taken is the simulation's: each paper has its own. Memtis takes one load
//! of 199 and one store of 100,007, or fewer where that costs more than 3 % of a core; HeMem one
//! access of 5003 to 19,997, HybridTier up to 100,001 a second and CPU. Policies with numbers for
//! each unit (HeMem, HybridTier) or with a horizon in samples (`terrace`) are others at another
//! rate.

mod recency;

use crate::placement::gate::{self, Gated};
use crate::placement::hemem::{self, HeMem};
use crate::placement::histogram::{self, Hotness};
use crate::placement::hybridtier::{self, HybridTier};
use crate::placement::kernel::tpp::{self, Tpp};
use crate::placement::kernel::{autonuma, nomad};
use crate::placement::oracle::{self, Oracle};
use crate::placement::{FirstTouch, PlacementPolicy, jenga, kernel, memtis};
use crate::settings::{Assignment, Invalid, Knob, Scale, Setting, assignment, configured};

/// A policy of the simulator.
struct Published {
    name: &'static str,
    /// Parameters that can be set of the policy.
    knobs: fn() -> Vec<Knob>,
    /// Makes the policy of the given name.
    make: fn(&str, &Parameters) -> Box<dyn PlacementPolicy>,
}

const POLICIES: &[Published] = &[
    Published {
        name: "first-touch",
        knobs: Vec::new,
        make: |_, _| Box::new(FirstTouch::published()),
    },
    Published {
        name: "autonuma",
        knobs: || all(autonuma::SETTINGS),
        make: |name, parameters| {
            let kernel = parameters.kernel(autonuma::CONFIG.kernel);
            let config = autonuma::Config { kernel, ..autonuma::CONFIG };
            Box::new(autonuma::AutoNuma::new(parameters.of(name, config, autonuma::SETTINGS)))
        },
    },
    Published {
        name: "autonuma-6",
        knobs: || all(autonuma::TIERING_SETTINGS),
        make: |name, parameters| {
            let kernel = parameters.kernel(autonuma::TIERING.kernel);
            let config = autonuma::TieringConfig { kernel, ..autonuma::TIERING };
            let config = parameters.of(name, config, autonuma::TIERING_SETTINGS);
            Box::new(autonuma::Tiering::new(config))
        },
    },
    Published {
        name: "tpp",
        knobs: || all(tpp::SETTINGS),
        make: |name, parameters| {
            let kernel = parameters.kernel(tpp::CONFIG.kernel);
            let config = tpp::Config { kernel, ..tpp::CONFIG };
            Box::new(Tpp::new(parameters.of(name, config, tpp::SETTINGS)))
        },
    },
    Published {
        name: "nomad",
        knobs: || all(nomad::SETTINGS),
        make: |name, parameters| {
            let kernel = parameters.kernel(nomad::CONFIG.kernel);
            let config = nomad::Config { kernel, ..nomad::CONFIG };
            Box::new(nomad::Nomad::new(parameters.of(name, config, nomad::SETTINGS)))
        },
    },
    Published { name: "recency", knobs: Vec::new, make: |_, _| Box::new(recency::Recency::new()) },
    Published {
        name: hemem::CONFIG.name,
        knobs: || all(hemem::SETTINGS),
        make: |name, parameters| hemem(name, parameters, hemem::CONFIG),
    },
    Published {
        name: hemem::SLOW_COOLING.name,
        knobs: || all(hemem::SETTINGS),
        make: |name, parameters| hemem(name, parameters, hemem::SLOW_COOLING),
    },
    Published {
        name: "hybridtier",
        knobs: || all(hybridtier::SETTINGS),
        make: |name, parameters| {
            let config = hybridtier::of_pages(parameters.unit_bytes, parameters.largest);
            Box::new(HybridTier::new(parameters.of(name, config, hybridtier::SETTINGS)))
        },
    },
    Published {
        name: memtis::CONFIG.name,
        knobs: || all(histogram::SETTINGS),
        make: |name, parameters| hotness(name, parameters, memtis::CONFIG),
    },
    Published {
        name: memtis::QUICK_COOLING.name,
        knobs: || all(histogram::SETTINGS),
        make: |name, parameters| hotness(name, parameters, memtis::QUICK_COOLING),
    },
    Published {
        name: jenga::CONFIG.name,
        knobs: || all(histogram::SETTINGS),
        make: |name, parameters| hotness(name, parameters, jenga::CONFIG),
    },
    Published {
        name: "terrace",
        knobs: || all(gate::SETTINGS),
        make: |name, parameters| {
            let Parameters { slowness, move_samples, .. } = *parameters;
            let config = gate::Config { slowness, move_samples, ..gate::CONFIG };
            Box::new(Gated::with(parameters.of(name, config, gate::SETTINGS)))
        },
    },
    Published {
        name: "oracle",
        knobs: || all(oracle::SETTINGS),
        make: |name, parameters| {
            Box::new(Oracle::new(parameters.of(name, oracle::CONFIG, oracle::SETTINGS)))
        },
    },
];

fn hemem(name: &str, parameters: &Parameters, config: hemem::Config) -> Box<dyn PlacementPolicy> {
    let config = hemem::Config { unit_bytes: parameters.unit_bytes, ..config };
    Box::new(HeMem::new(parameters.of(name, config, hemem::SETTINGS)))
}

fn hotness(
    name: &str,
    parameters: &Parameters,
    config: histogram::Config,
) -> Box<dyn PlacementPolicy> {
    let config = memtis::as_published(config, parameters.unit_bytes, parameters.largest);
    Box::new(Hotness::new(parameters.of(name, config, histogram::SETTINGS)))
}

fn all<C>(settings: &[Setting<C>]) -> Vec<Knob> {
    settings.iter().map(|setting| setting.knob).collect()
}

/// Names of all policies.
pub const NAMES: [&str; POLICIES.len()] = names!(POLICIES);

/// A huge page, which is what most of the papers' policies move.
const HUGE_PAGE: f64 = 2097152.0;
/// Huge pages of the 20 GiB that all units together play: see the head of this file.
const UNITS: f64 = 10_240.0;

/// What a simulation is like, and what was set.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Bytes that a unit stands for, whatever it is in the trace; a base unit, where units differ
    /// in size.
    pub unit_bytes: f64,
    /// Base units of the largest unit, at least 1. Where that is more, base units play base pages
    /// and the largest units huge ones.
    pub largest: u32,
    /// Multiplies all numbers of samples.
    pub samples: f64,
    /// Multiplies all times.
    pub time: f64,
    /// How many times as long an access takes in the slow tier, at least 1. For `terrace`.
    pub slowness: f64,
    /// Cost of a move, in the time that a sample stands for: the accesses from one sample to the
    /// next, in the fast tier. For `terrace`, unless it is set.
    pub move_samples: f64,
    /// What was set ([`Parameters::set`]).
    pub assigned: Vec<Assignment>,
}

impl Default for Parameters {
    /// Units are huge pages, nothing is scaled, and nothing is slow.
    fn default() -> Parameters {
        Parameters {
            unit_bytes: HUGE_PAGE,
            largest: 1,
            samples: 1.0,
            time: 1.0,
            slowness: 1.0,
            move_samples: 1.0,
            assigned: Vec::new(),
        }
    }
}

impl Parameters {
    /// Parameters for this many units, which play 20 GiB in huge pages.
    pub fn of_units(units: u32) -> Parameters {
        let scale = f64::from(units.max(1)) / UNITS;
        Parameters { unit_bytes: HUGE_PAGE / scale, samples: scale, ..Parameters::default() }
    }

    /// Sets a parameter: `policy.name=value`, in the unit that its paper has, before anything is
    /// scaled. If a parameter is set twice, the last one counts.
    pub fn set(&mut self, text: &str) -> Result<(), Invalid> {
        let assigned = assignment(text, &NAMES, |policy| knobs(policy).unwrap_or_default())?;
        self.assigned.push(assigned);
        Ok(())
    }

    fn of<C>(&self, policy: &str, config: C, settings: &[Setting<C>]) -> C {
        configured(
            config,
            policy,
            settings,
            &self.assigned,
            Scale { samples: self.samples, time: self.time },
        )
    }

    fn kernel(&self, config: kernel::Config) -> kernel::Config {
        kernel::Config { unit_bytes: self.unit_bytes, ..config }
    }
}

fn by_name(name: &str) -> Option<&'static Published> {
    POLICIES.iter().find(|policy| policy.name == name)
}

/// Parameters that can be set of the policy of the given name.
pub fn knobs(name: &str) -> Option<Vec<Knob>> {
    by_name(name).map(|policy| (policy.knobs)())
}

/// The policy of the given name.
pub fn policy(name: &str, parameters: &Parameters) -> Option<Box<dyn PlacementPolicy>> {
    by_name(name).map(|policy| (policy.make)(name, parameters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Move, Place, Room, UnitId};
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_is_a_policy_of_that_name_and_every_knob_can_be_set() {
        for name in NAMES {
            assert_eq!(
                policy(name, &Parameters::default()).map(|policy| policy.name()),
                Some(name)
            );
            let knobs = knobs(name).expect(name);
            let names: HashSet<_> = knobs.iter().map(|knob| knob.name).collect();
            assert_eq!(names.len(), knobs.len(), "{name}");
            for knob in knobs {
                let text = |value: &str| format!("{name}.{}={value}", knob.name);
                let mut parameters = Parameters::default();
                assert!(
                    ["1", "1s", "on"].into_iter().any(|value| parameters.set(&text(value)).is_ok()),
                    "{name}.{}",
                    knob.name
                );
                assert!(policy(name, &parameters).is_some());
            }
        }
        assert!(policy("lru", &Parameters::default()).is_none() && knobs("lru").is_none());
    }

    #[test]
    fn a_misspelt_parameter_names_those_that_there_are() {
        let mut parameters = Parameters::default();
        let error = parameters.set("hemem.coolling=1024").unwrap_err().to_string();
        assert_eq!(
            error,
            "hemem has no parameter \"coolling\": it has hot-reads, hot-writes, cooling, rate, late-shift"
        );
        assert!(
            parameters
                .set("heme.cooling=1024")
                .unwrap_err()
                .to_string()
                .contains("first-touch, autonuma")
        );
        assert!(parameters.assigned.is_empty());
    }

    #[test]
    fn what_is_set_is_scaled_too_and_only_for_its_policy() {
        // A twentieth of the units.
        let mut parameters = Parameters::of_units(512);
        assert_eq!((parameters.samples, parameters.unit_bytes), (0.05, 20.0 * HUGE_PAGE));
        parameters.set("memtis.cooling=120K").unwrap();
        let of = |name: &str| {
            parameters.of(
                name,
                memtis::as_published(memtis::CONFIG, parameters.unit_bytes, 1),
                histogram::SETTINGS,
            )
        };
        assert_eq!((of("memtis").cooling_samples, of("memtis").adapt_samples), (6_000, 5_000));
        assert_eq!(of("memtis-qc").cooling_samples, 100_000);
    }

    /// A program of some units whose accesses, faults and bits a policy is told as a simulation
    /// does, and what it asks for is checked.
    struct Simulation {
        policy: Box<dyn PlacementPolicy>,
        places: Vec<Option<Place>>,
        sizes: Vec<u32>,
        armed: HashSet<UnitId>,
        capacity: u32,
        touched: u64,
        written: u64,
        now_ns: u64,
        log: Vec<(UnitId, Place)>,
    }

    const TICK_NS: u64 = 50_000_000;
    const UNITS: usize = 64;
    const ALIKE: [u32; UNITS] = [1; UNITS];

    impl Simulation {
        fn new(name: &str, capacity: u32, sizes: &[u32; UNITS]) -> Simulation {
            // So that things happen within a few hundred accesses.
            let largest = *sizes.iter().max().unwrap();
            let parameters = Parameters {
                samples: 2e-4,
                time: 0.05,
                slowness: 3.0,
                largest,
                ..Parameters::of_units(24)
            };
            let policy = policy(name, &parameters).expect(name);
            let (places, sizes) = (vec![None; UNITS], sizes.to_vec());
            Simulation {
                policy,
                places,
                sizes,
                armed: HashSet::new(),
                capacity,
                touched: 0,
                written: 0,
                now_ns: 0,
                log: Vec::new(),
            }
        }

        fn used(&self) -> u32 {
            let fast = self
                .places
                .iter()
                .zip(&self.sizes)
                .filter(|(place, _)| **place == Some(Place::Fast));
            fast.map(|(_, size)| size).sum()
        }

        fn has_room(&self, unit: UnitId) -> bool {
            self.used() + self.sizes[unit as usize] <= self.capacity
        }

        fn moved(&mut self, unit: UnitId, to: Place) {
            self.places[unit as usize] = Some(to);
            assert!(self.used() <= self.capacity);
            self.armed.remove(&unit);
            self.policy.moved(unit, to);
            self.log.push((unit, to));
        }

        fn access(&mut self, unit: UnitId, write: bool) {
            if self.places[unit as usize].is_none() {
                let place = if self.has_room(unit) { Place::Fast } else { Place::Slow };
                self.places[unit as usize] = Some(place);
                self.policy.arrived(unit, place, self.sizes[unit as usize]);
            }
            self.touched |= 1 << unit;
            self.written |= u64::from(write) << unit;
            if self.armed.remove(&unit)
                && self.policy.hinted(unit, write)
                && self.places[unit as usize] == Some(Place::Slow)
                && self.has_room(unit)
            {
                self.moved(unit, Place::Fast);
            }
            if write { self.policy.sampled_write(unit, 1) } else { self.policy.sampled(unit, 1) }
        }

        fn tick(&mut self, moves_max: u32) {
            self.now_ns += TICK_NS;
            self.policy.at(self.now_ns);
            let senses = self.policy.senses();
            if senses.referenced {
                self.policy.referenced(&[std::mem::take(&mut self.touched)]);
            }
            if senses.written {
                self.policy.written(&[std::mem::take(&mut self.written)]);
            }
            if senses.foretold {
                // As good as any.
                let next: Vec<u32> = (0..40)
                    .map(|unit| unit * 7 % 11 + (self.now_ns / TICK_NS % 3) as u32 * (unit % 5))
                    .collect();
                self.policy.foretold(&next);
            }
            let mut moves =
                vec![Move { unit: 9, to: Place::Fast, reason: crate::placement::Reason::Idle }];
            self.policy
                .decide(Room { capacity: self.capacity, used: self.used(), moves_max }, &mut moves);
            let moved: u32 = moves.iter().map(|step| self.sizes[step.unit as usize]).sum();
            assert!(
                moved <= moves_max,
                "{} moved {moved} of {moves_max}: {moves:?}",
                self.policy.name()
            );
            for step in moves {
                assert!(
                    self.places[step.unit as usize].is_some_and(|place| place != step.to),
                    "{step:?}"
                );
                assert!(self.policy.move_cost(step.unit, step.to) >= 0.0);
                self.moved(step.unit, step.to);
            }
            if senses.hints {
                let mut units = vec![9];
                self.policy.arm(&mut units);
                assert!(
                    units.iter().all(|unit| self.places[*unit as usize].is_some()),
                    "{units:?}"
                );
                self.armed.extend(units);
            }
        }
    }

    fn run(
        name: &str,
        capacity: u32,
        sizes: &[u32; UNITS],
        steps: &[(u32, u32, u8, u32)],
    ) -> Simulation {
        let mut simulation = Simulation::new(name, capacity, sizes);
        for (a, b, what, moves_max) in steps {
            match what {
                0 => {
                    // Some are accessed far more often than others.
                    (0..30).for_each(|_| simulation.access(*a.min(b), false));
                }
                1..=8 => simulation.access(*a.min(b), *what == 1),
                9 => {
                    if simulation.places[*a as usize].take().is_some() {
                        simulation.armed.remove(a);
                        simulation.policy.gone(*a);
                    }
                }
                _ => simulation.tick(*moves_max),
            }
        }
        simulation
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever happens: moves are of units that are elsewhere, they fit, and the same calls
        /// give the same answers.
        #[test]
        fn moves_keep_to_the_room_and_are_the_same_each_time(
            steps in prop::collection::vec((0u32..40, 0u32..40, 0u8..14, 0u32..8), 1..300),
            capacity in 0u32..24,
        ) {
            for name in NAMES {
                let first = run(name, capacity, &ALIKE, &steps);
                prop_assert_eq!(&run(name, capacity, &ALIKE, &steps).log, &first.log);
            }
        }

        /// With units of different sizes: moves fit, counted in base units, and the same calls give
        /// the same answers.
        #[test]
        fn units_of_any_size_keep_to_the_room(
            steps in prop::collection::vec((0u32..40, 0u32..40, 0u8..14, 0u32..30), 1..300),
            sizes in prop::collection::vec(prop_oneof![2 => Just(1u32), 1 => 2u32..9], UNITS),
            capacity in 0u32..60,
        ) {
            let sizes: [u32; UNITS] = sizes.try_into().unwrap();
            for name in NAMES {
                let first = run(name, capacity, &sizes, &steps);
                prop_assert_eq!(&run(name, capacity, &sizes, &steps).log, &first.log);
            }
        }
    }

    #[test]
    fn what_is_hot_comes_up_in_all_that_move_anything() {
        for name in NAMES {
            what_is_hot_comes_up(name, &ALIKE, 4);
        }
        // Of the ten that are hot two are of three base units: together they fit still.
        let sizes = std::array::from_fn(|unit| if unit % 5 == 0 { 3 } else { 1 });
        // To count faults is too coarse for so few units.
        for name in NAMES
            .into_iter()
            .filter(|name| !policy(name, &Parameters::default()).unwrap().senses().hints)
        {
            what_is_hot_comes_up(name, &sizes, 9);
        }
    }

    /// Half of the memory is fast; a quarter of it is hot, which is not there at first.
    fn what_is_hot_comes_up(name: &str, sizes: &[u32; UNITS], moves_max: u32) {
        let mut simulation = Simulation::new(name, 20, sizes);
        (0..40).for_each(|unit| simulation.access(unit, false));
        let mut random = 88_172_645_463_325_252u64;
        for _ in 0..400 {
            for n in 0..60u32 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let unit = (random >> 11) % if n % 10 == 0 { 40 } else { 10 };
                simulation
                    .access(if n % 10 == 0 { unit as u32 } else { 28 + unit as u32 }, n % 7 == 0);
            }
            simulation.tick(moves_max);
        }
        let there = (28..38).filter(|unit| simulation.places[*unit] == Some(Place::Fast)).count();
        match name {
            "first-touch" => assert_eq!(there, 0),
            // Room is never made.
            "autonuma" => assert_eq!(there, 0),
            // Told of something else.
            "oracle" => {}
            _ => assert!(there >= 7, "{name}: {there} of 10 after {} moves", simulation.log.len()),
        }
    }
}
