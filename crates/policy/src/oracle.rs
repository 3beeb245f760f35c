//! The oracle: it is told how often each unit will be accessed until the next decision, and has the most accessed ones in the fast tier. No system
//! can do that: it is what others are measured by.
//!
//! It keeps to the moves that others may make, and asks for none that changes nothing; but it does not ask whether a move pays, so that it is a bound
//! for the share of accesses that meet the fast tier, not for how quick the program is. With `free=on` its moves cost nothing and are as many as it
//! takes: that bounds both. With `memory` above 0 it does not chase every window by itself: each window before the last counts that much less.

use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, Senses, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::cmp::Ordering;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// What a window counts when the next one is told, of what it counted before: 0 where only the last counts, less than 1.
    pub memory: f64,
    /// Moves cost nothing.
    pub free_moves: bool,
}

/// The policy named `oracle`.
pub const CONFIG: Config = Config { memory: 0.0, free_moves: false };

/// What can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob { name: "memory", about: "what a window counts, of what it counted one window before", kind: Kind::Share },
        get: |config| config.memory,
        set: |config, value| config.memory = value,
    },
    Setting {
        knob: Knob { name: "free", about: "moves cost nothing, and there may be any number", kind: Kind::Switch },
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
    /// Scratch.
    units: Vec<(f32, UnitId)>,
}

impl Oracle {
    /// Of no units yet.
    pub fn new(config: Config) -> Oracle {
        Oracle { config, accesses: Vec::new(), places: Vec::new(), units: Vec::new() }
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

    fn arrived(&mut self, unit: UnitId, place: Place) {
        *self.place(unit) = Some(place);
        self.accesses[unit as usize] = 0.0;
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
        let at_most = if self.config.free_moves { usize::MAX } else { room.moves_max as usize };
        let capacity = room.capacity as usize;
        let mut units = std::mem::take(&mut self.units);
        units.clear();
        units.extend((0..).zip(&self.places).filter(|(_, place)| place.is_some()).map(|(unit, _)| (self.accesses[unit as usize], unit)));
        // The most accessed come first; of equal ones those that are there.
        let is_slow = |unit: UnitId| self.places[unit as usize] == Some(Place::Slow);
        let by = |a: &(f32, UnitId), b: &(f32, UnitId)| -> Ordering {
            b.0.total_cmp(&a.0).then(is_slow(a.1).cmp(&is_slow(b.1))).then(a.1.cmp(&b.1))
        };
        if 0 < capacity && capacity < units.len() {
            units.select_nth_unstable_by(capacity, by);
        }
        let (top, rest) = units.split_at(capacity.min(units.len()));
        let mut to_come: Vec<_> = top.iter().copied().filter(|(accesses, unit)| is_slow(*unit) && *accesses > 0.0).collect();
        let mut to_go: Vec<_> = rest.iter().copied().filter(|(_, unit)| !is_slow(*unit)).collect();
        to_come.sort_unstable_by(by);
        to_go.sort_unstable_by(|a, b| by(b, a));
        let mut to_go = to_go.into_iter();
        let excess = room.used.saturating_sub(room.capacity) as usize;
        moves.extend(to_go.by_ref().take(excess.min(at_most)).map(|(_, unit)| Move { unit, to: Place::Slow, reason: Reason::Coldest }));
        let mut free = room.capacity.saturating_sub(room.used);
        for (accesses, unit) in to_come {
            if free > 0 && moves.len() < at_most {
                free -= 1;
            } else if at_most - moves.len() >= 2 {
                let Some((_, other)) = to_go.next() else { break };
                moves.push(Move { unit: other, to: Place::Slow, reason: Reason::SwappedFor { unit } });
            } else {
                break;
            }
            moves.push(Move { unit, to: Place::Fast, reason: Reason::Foretold { accesses: accesses as u32 } });
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

    fn heat(&self, unit: UnitId) -> f32 {
        self.accesses.get(unit as usize).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units 0 and 1 in the fast tier, with room for two; 2 to 4 in the slow one.
    fn five(config: Config) -> Oracle {
        let mut oracle = Oracle::new(config);
        (0..5).for_each(|unit| oracle.arrived(unit, if unit < 2 { Place::Fast } else { Place::Slow }));
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
        assert_eq!(decide(&mut oracle, &[1, 2, 4, 0, 3], 10), [(0, Place::Slow), (2, Place::Fast), (1, Place::Slow), (4, Place::Fast)]);
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
        assert_eq!((free.move_cost(2, Place::Fast), five(CONFIG).move_cost(2, Place::Fast)), (0.0, 1.0));
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
