//! The oracle is told how often each unit will be accessed until the next decision. It has the most
//! accessed ones in the fast tier. No system can do that: it is what others are measured by.
//!
//! Where units differ in size, those with the most accesses a base unit come first, and what does
//! not fit any more is passed over. The best choice of all may be another, as in every knapsack. It
//! has no more accesses than this one and the first unit that did not fit. What fits in part is a
//! bound for any choice (Dantzig 1957).
//!
//! The oracle keeps to the moves that others may make, and asks for none that changes nothing. It
//! does not ask whether a move pays. So it is a bound for the share of accesses that meet the fast
//! tier, not for how quick the program is. With `free=on` its moves cost nothing and are as many as
//! it takes: that bounds both. With `memory` above 0 it does not chase every window by itself: each
//! window before the last counts that much less.

use crate::placement::sizes::Sizes;
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, Senses, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::cmp::Ordering;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// What a window counts when the next one is told, of what it counted before: 0 where only the
    /// last counts, less than 1.
    pub memory: f64,
    /// Moves cost nothing.
    pub free_moves: bool,
}

/// The policy named `oracle`.
pub const CONFIG: Config = Config { memory: 0.0, free_moves: false };

/// Parameters that can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob {
            name: "memory",
            about: "what a window counts, of what it counted one window before",
            kind: Kind::Share,
        },
        get: |config| config.memory,
        set: |config, value| config.memory = value,
    },
    Setting {
        knob: Knob {
            name: "free",
            about: "moves cost nothing, and there may be any number",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.free_moves)),
        set: |config, value| config.free_moves = value != 0.0,
    },
];

/// The policy: 13 bytes a unit.
#[derive(Debug)]
pub struct Oracle {
    config: Config,
    accesses: Vec<f32>,
    places: Vec<Option<Place>>,
    sizes: Sizes,
    /// Scratch: units with their accesses a base unit.
    units: Vec<(f32, UnitId)>,
}

impl Oracle {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> Oracle {
        Oracle {
            config,
            accesses: Vec::new(),
            places: Vec::new(),
            sizes: Sizes::default(),
            units: Vec::new(),
        }
    }

    fn place(&mut self, unit: UnitId) -> &mut Option<Place> {
        let index = unit as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
            self.accesses.resize(index + 1, 0.0);
        }
        &mut self.places[index]
    }
}

impl PlacementPolicy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        *self.place(unit) = Some(place);
        self.accesses[unit as usize] = 0.0;
        self.sizes.set(unit, size);
    }

    fn gone(&mut self, unit: UnitId) {
        *self.place(unit) = None;
    }

    fn sampled(&mut self, _unit: UnitId, _weight: u32) {}

    fn senses(&self) -> Senses {
        Senses { foretold: true, ..Senses::default() }
    }

    fn foretold(&mut self, accesses: &[u32]) {
        let memory = self.config.memory as f32;
        for (unit, known) in self.accesses.iter_mut().enumerate() {
            *known = *known * memory + accesses.get(unit).copied().unwrap_or(0) as f32;
        }
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        // What may still be moved.
        let mut left = if self.config.free_moves { u64::MAX } else { u64::from(room.moves_max) };
        let capacity = room.capacity as usize;
        let mut units = std::mem::take(&mut self.units);
        units.clear();
        units.extend(
            (0..)
                .zip(&self.places)
                .filter(|(_, place)| place.is_some())
                .map(|(unit, _)| (self.heat(unit), unit)),
        );
        // The most accessed come first; of equal ones those that are there.
        let is_slow = |unit: UnitId| self.places[unit as usize] == Some(Place::Slow);
        let by = |a: &(f32, UnitId), b: &(f32, UnitId)| -> Ordering {
            b.0.total_cmp(&a.0).then(is_slow(a.1).cmp(&is_slow(b.1))).then(a.1.cmp(&b.1))
        };
        if !self.sizes.are_all_one() {
            units.sort_unstable_by(by);
        } else if 0 < capacity && capacity < units.len() {
            // As many as fit come first, which is enough.
            units.select_nth_unstable_by(capacity, by);
        }
        let (mut to_come, mut to_go) = (Vec::new(), Vec::new());
        let mut unfilled = room.capacity;
        for (heat, unit) in units.iter().copied() {
            let size = self.sizes.of(unit);
            if size > unfilled {
                if !is_slow(unit) {
                    to_go.push((heat, unit));
                }
                continue;
            }
            unfilled -= size;
            if is_slow(unit) && heat > 0.0 {
                to_come.push((heat, unit));
            }
        }
        to_come.sort_unstable_by(by);
        to_go.sort_unstable_by(|a, b| by(b, a));
        let mut to_go = to_go.as_slice();
        let mut excess = room.used.saturating_sub(room.capacity);
        while let Some(((_, unit), rest)) = to_go.split_first().filter(|_| excess > 0) {
            let size = self.sizes.of(*unit);
            if u64::from(size) > left {
                break;
            }
            excess = excess.saturating_sub(size);
            left -= u64::from(size);
            to_go = rest;
            moves.push(Move { unit: *unit, to: Place::Slow, reason: Reason::Coldest });
        }
        let mut free = room.capacity.saturating_sub(room.used);
        for (_, unit) in to_come {
            if left == 0 {
                break;
            }
            let size = self.sizes.of(unit);
            let (before, mut rest, mut made) = (moves.len(), to_go, 0);
            while let Some(((_, other), after)) = rest.split_first().filter(|_| free + made < size)
            {
                made += self.sizes.of(*other);
                rest = after;
                moves.push(Move {
                    unit: *other,
                    to: Place::Slow,
                    reason: Reason::SwappedFor { unit },
                });
            }
            let moved = u64::from(made) + u64::from(size);
            if free + made < size || left < moved {
                // A smaller one may fit.
                moves.truncate(before);
                continue;
            }
            (to_go, free, left) = (rest, free + made - size, left - moved);
            moves.push(Move {
                unit,
                to: Place::Fast,
                reason: Reason::Foretold { accesses: self.accesses[unit as usize] as u32 },
            });
        }
        self.units = units;
    }

    fn move_cost(&self, _unit: UnitId, _to: Place) -> f32 {
        if self.config.free_moves { 0.0 } else { 1.0 }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        if let Some(place) = self.places.get_mut(unit as usize).filter(|place| place.is_some()) {
            *place = Some(to);
        }
    }

    /// Heat of a unit: accesses a base unit.
    fn heat(&self, unit: UnitId) -> f32 {
        self.accesses.get(unit as usize).copied().unwrap_or(0.0) / self.sizes.of(unit) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Units 0 and 1 in the fast tier, with room for two; 2 to 4 in the slow one.
    fn five(config: Config) -> Oracle {
        let mut oracle = Oracle::new(config);
        (0..5).for_each(|unit| {
            oracle.arrived(unit, if unit < 2 { Place::Fast } else { Place::Slow }, 1)
        });
        oracle
    }

    fn decide(oracle: &mut Oracle, accesses: &[u32], moves_max: u32) -> Vec<(UnitId, Place)> {
        oracle.foretold(accesses);
        let used = oracle.places.iter().filter(|place| **place == Some(Place::Fast)).count() as u32;
        let mut moves = Vec::new();
        oracle.decide(Room { capacity: 2, used, moves_max }, &mut moves);
        moves.iter().for_each(|step| oracle.moved(step.unit, step.to));
        moves.into_iter().map(|step| (step.unit, step.to)).collect()
    }

    #[test]
    fn the_most_accessed_are_there_and_equal_ones_stay() {
        let mut oracle = five(CONFIG);
        assert_eq!(decide(&mut oracle, &[3, 3, 3, 3, 3], 10), []);
        assert_eq!(
            decide(&mut oracle, &[1, 2, 4, 0, 3], 10),
            [(0, Place::Slow), (2, Place::Fast), (1, Place::Slow), (4, Place::Fast)]
        );
        // Units beyond the end are not accessed.
        assert_eq!(decide(&mut oracle, &[1, 2, 4], 10), [(4, Place::Slow), (1, Place::Fast)]);
        assert_eq!(decide(&mut oracle, &[], 10), []);
    }

    #[test]
    fn it_keeps_to_the_moves_unless_they_are_free() {
        let next = [0, 0, 4, 0, 3];
        assert_eq!(decide(&mut five(CONFIG), &next, 3), [(1, Place::Slow), (2, Place::Fast)]);
        let mut free = five(Config { free_moves: true, ..CONFIG });
        assert_eq!(decide(&mut free, &next, 0).len(), 4);
        assert_eq!(
            (free.move_cost(2, Place::Fast), five(CONFIG).move_cost(2, Place::Fast)),
            (0.0, 1.0)
        );
    }

    #[test]
    fn accesses_a_base_unit_count_and_what_does_not_fit_is_passed_over() {
        let next = [2, 6, 10, 3, 9];
        let decide = |moves_max: u32| {
            let mut oracle = Oracle::new(CONFIG);
            let units = [
                (Place::Fast, 2),
                (Place::Fast, 2),
                (Place::Slow, 4),
                (Place::Slow, 1),
                (Place::Slow, 3),
            ];
            (0..).zip(units).for_each(|(unit, (place, size))| oracle.arrived(unit, place, size));
            oracle.foretold(&next);
            let mut moves = Vec::new();
            oracle.decide(Room { capacity: 6, used: 4, moves_max }, &mut moves);
            moves.into_iter().map(|step| (step.unit, step.to)).collect::<Vec<_>>()
        };
        // 1, 3 and 4 have 3 accesses a base unit and fill the tier; 2, with 2.5, and 0, with 1, do
        // not fit beside them.
        assert_eq!(decide(10), [(3, Place::Fast), (0, Place::Slow), (4, Place::Fast)]);
        // After unit 3 four base units may move; unit 4 and what makes room for it are five.
        assert_eq!(decide(5), [(3, Place::Fast)]);
    }

    proptest! {
        /// No choice of units has as many accesses as this one and the first unit that did not fit.
        /// Where all are alike none has more.
        #[test]
        fn no_choice_is_better_by_more_than_a_unit(
            units in prop::collection::vec((0u32..100, 1u32..9), 1..12),
            capacity in 0u32..40,
            alike: bool,
        ) {
            let size = |size: u32| if alike { 1 } else { size };
            let mut oracle = Oracle::new(Config { free_moves: true, ..CONFIG });
            (0..)
                .zip(&units)
                .for_each(|(unit, (_, of))| oracle.arrived(unit, Place::Slow, size(*of)));
            oracle.foretold(&units.iter().map(|(accesses, _)| *accesses).collect::<Vec<_>>());
            let mut moves = Vec::new();
            oracle.decide(Room { capacity, used: 0, moves_max: 0 }, &mut moves);
            let chosen = |set: u32| (0..).zip(&units).filter(move |(unit, _)| set & 1 << unit != 0);
            let accesses = |set: u32| chosen(set).map(|(_, (accesses, _))| accesses).sum::<u32>();
            let fits =
                |set: u32| chosen(set).map(|(_, (_, of))| size(*of)).sum::<u32>() <= capacity;
            let own = moves.iter().fold(0, |set, step| set | 1 << step.unit);
            prop_assert!(fits(own));
            let best =
                (0..1 << units.len()).filter(|set| fits(*set)).map(accesses).max().unwrap_or(0);
            let passed_over = (0..)
                .zip(&units)
                .filter(|(unit, _)| own & 1 << unit == 0)
                .map(|(_, (accesses, _))| *accesses)
                .max();
            if alike {
                prop_assert_eq!(accesses(own), best);
            } else {
                prop_assert!(
                    best <= accesses(own) + passed_over.unwrap_or(0), "{} of {best}", accesses(own)
                );
            }
        }
    }

    #[test]
    fn with_a_memory_one_window_is_not_all() {
        let mut oracle = five(Config { memory: 0.5, ..CONFIG });
        assert_eq!(decide(&mut oracle, &[8, 8, 0, 0, 0], 10), []);
        // 4 and 4 are left of those.
        assert_eq!(decide(&mut oracle, &[0, 0, 3, 0, 0], 10), []);
        // 2 and 2, and 1.5 and 3 more.
        assert_eq!(decide(&mut oracle, &[0, 0, 3, 0, 0], 10), [(1, Place::Slow), (2, Place::Fast)]);
    }
}
