//! Least recently used: what was met last is in the fast tier. No paper's proposal, but what
//! recency alone comes to, by which the others can be judged.
//!
//! A unit that was met comes up into free room. Else it takes the place of units that were met
//! longest ago, if all of them were met before it. The policy sees samples, and so is blind to what
//! was touched between two of them.

use crate::placement::lists::Lists;
use crate::placement::sizes::Sizes;
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, UnitId};

/// List of units of the fast tier, met longest ago first.
const FAST: usize = 0;
/// List of units of the slow tier, met last first.
const SLOW: usize = 1;

/// The policy: 17 bytes a unit.
#[derive(Debug, Default)]
pub struct Recency {
    lists: Lists<2>,
    sizes: Sizes,
    /// The number of the sample that met each unit last.
    met: Vec<u64>,
    samples: u64,
}

impl Recency {
    /// Makes the policy with no units yet.
    pub fn new() -> Recency {
        Recency::default()
    }

    fn put(&mut self, unit: UnitId, place: Place) {
        match place {
            Place::Fast => self.lists.push(FAST, unit),
            // What went down is not what was met last.
            Place::Slow => self.lists.push(SLOW, unit),
        }
    }
}

impl PlacementPolicy for Recency {
    fn name(&self) -> &'static str {
        "recency"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        let index = unit as usize;
        if index >= self.met.len() {
            self.met.resize(index + 1, 0);
        }
        self.met[index] = self.samples;
        self.sizes.set(unit, size);
        self.put(unit, place);
    }

    fn gone(&mut self, unit: UnitId) {
        self.lists.remove(unit);
    }

    fn sampled(&mut self, unit: UnitId, _weight: u32) {
        let Some(list) = self.lists.list_of(unit) else { return };
        self.samples += 1;
        self.met[unit as usize] = self.samples;
        if list == FAST { self.lists.push(FAST, unit) } else { self.lists.push_first(SLOW, unit) }
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        let mut left = room.moves_max;
        let mut free = room.capacity.saturating_sub(room.used);
        let (mut oldest, mut next) = (self.lists.first(FAST), self.lists.first(SLOW));
        while let Some(unit) = next.filter(|_| left > 0) {
            next = self.lists.after(unit);
            let (size, met) = (self.sizes.of(unit), self.met[unit as usize]);
            let before = moves.len();
            let (mut after, mut made) = (oldest, 0);
            let gives_way = |other: &UnitId| self.met[*other as usize] < met;
            while let Some(other) = after.filter(gives_way).filter(|_| free + made < size) {
                after = self.lists.after(other);
                made += self.sizes.of(other);
                let reason = Reason::SwappedFor { unit };
                moves.push(Move { unit: other, to: Place::Slow, reason });
            }
            if free + made < size || left < made + size {
                moves.truncate(before);
                break;
            }
            (oldest, free, left) = (after, free + made - size, left - made - size);
            let reason = Reason::Counted { count: 1, threshold: 1 };
            moves.push(Move { unit, to: Place::Fast, reason });
        }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        if self.lists.list_of(unit).is_some() {
            self.put(unit, to);
        }
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.lists.list_of(unit).map_or(0.0, |_| self.met[unit as usize] as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_met_last_takes_the_place_of_what_was_met_longest_ago() {
        let mut policy = Recency::new();
        (0..2).for_each(|unit| policy.arrived(unit, Place::Fast, 1));
        (2..4).for_each(|unit| policy.arrived(unit, Place::Slow, 1));
        [1, 3, 0].into_iter().for_each(|unit| policy.sampled(unit, 1));
        let mut moves = Vec::new();
        policy.decide(Room { capacity: 2, used: 2, moves_max: 8 }, &mut moves);
        // 3 was met after 1 and before 0; 2 was not met at all.
        let steps: Vec<_> = moves.iter().map(|step| (step.unit, step.to)).collect();
        assert_eq!(steps, [(1, Place::Slow), (3, Place::Fast)]);
        steps.into_iter().for_each(|(unit, to)| policy.moved(unit, to));
        policy.decide(Room { capacity: 2, used: 2, moves_max: 8 }, &mut moves);
        assert_eq!(moves, []);
    }
}
