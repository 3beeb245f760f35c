//! Nomad (Xiang et al., OSDI 2024): TPP's demotion, and promotions that do not stop the program. A
//! copy of what was promoted stays in the slow tier.
//!
//! [`kernel`](crate::placement::kernel) has the scan and the reclaim; 2 % of the fast tier are kept
//! free as in [`tpp`](crate::placement::kernel::tpp).
//!
//! - **Which pages are promoted** (`decide_queue_page`). A hint fault puts its page into a list of
//!   candidates, after looking through those that are there already. A candidate that is active
//!   goes into the queue of promotions. Others are marked accessed, which makes them active the
//!   second time, and dropped once they were there for more than 20 faults. So a page needs one
//!   fault of its own, and three of others after it.
//! - **How.** The queue, of 512 at most, is worked off in the background. The page stays mapped
//!   while it is copied; one that was written meanwhile is given up and comes later. What finds no
//!   room is dropped.
//! - **Shadows.** The page's old copy is kept, and the page is write-protected. As long as nothing
//!   writes to it, its demotion only maps the old copy again.
//!
//! From the published code: the above, without two things. Accessed bits of candidates are not
//! tested, as the access that faulted always set them. Shadows are not given back, as there is room
//! for all.
//!
//! Choices: what moves take, as multiples of what they take others ([`Config`]), a half for
//! promotions and a tenth for demotions, assumed and not measured. A unit that is written is never
//! given up: whether it is written in the moment of the copy is not known. The other extreme is
//! [`Config::abort_if_written`].

use crate::placement::kernel::{self, Kernel};
use crate::placement::{Move, Place, PlacementPolicy, Reason, Room, Senses, UnitId};
use crate::settings::{Kind, Knob, Setting};
use std::collections::VecDeque;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The scan.
    pub kernel: kernel::Config,
    /// The share of the fast tier that demotion keeps free.
    pub demotion: f64,
    /// Faults for which a page is a candidate.
    pub look_back: u32,
    /// Pages that wait for their promotion at most.
    pub queue: u32,
    /// What a promotion takes, as a multiple of one that stops the program.
    pub promotion_cost: f64,
    /// What a demotion takes where there is a clean copy already.
    pub clean_demotion_cost: f64,
    /// A promotion is put off as long as the unit was written since the last decision.
    pub abort_if_written: bool,
}

/// The policy named `nomad`.
pub const CONFIG: Config = Config {
    kernel: kernel::Config { arm_demoted: true, ..kernel::CONFIG },
    demotion: 0.02,
    look_back: 20,
    queue: 512,
    promotion_cost: 0.5,
    clean_demotion_cost: 0.1,
    abort_if_written: false,
};

/// Parameters that can be set.
pub const SETTINGS: &[Setting<Config>] = &[
    Setting {
        knob: Knob { name: "scan", about: "what is armed in one scan", kind: Kind::Bytes },
        get: |config| config.kernel.scan_bytes,
        set: |config, value| config.kernel.scan_bytes = value,
    },
    Setting {
        knob: Knob {
            name: "scan-period",
            about: "time from one scan to the next",
            kind: Kind::Time,
        },
        get: |config| config.kernel.scan_ns as f64,
        set: |config, value| config.kernel.scan_ns = value as u64,
    },
    Setting {
        knob: Knob {
            name: "demotion",
            about: "the share of the fast tier that demotion keeps free",
            kind: Kind::Share,
        },
        get: |config| config.demotion,
        set: |config, value| config.demotion = value,
    },
    Setting {
        knob: Knob {
            name: "look-back",
            about: "faults for which a page is a candidate",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.look_back),
        set: |config, value| config.look_back = value as u32,
    },
    Setting {
        knob: Knob {
            name: "queue",
            about: "pages that wait for their promotion at most",
            kind: Kind::Count,
        },
        get: |config| f64::from(config.queue),
        set: |config, value| config.queue = value as u32,
    },
    Setting {
        knob: Knob {
            name: "promotion-cost",
            about: "a promotion's, as a multiple of one that stops the program",
            kind: Kind::Count,
        },
        get: |config| config.promotion_cost,
        set: |config, value| config.promotion_cost = value,
    },
    Setting {
        knob: Knob {
            name: "clean-demotion-cost",
            about: "a demotion's that has a clean copy",
            kind: Kind::Count,
        },
        get: |config| config.clean_demotion_cost,
        set: |config, value| config.clean_demotion_cost = value,
    },
    Setting {
        knob: Knob {
            name: "abort-if-written",
            about: "what was written of late comes up later",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.abort_if_written)),
        set: |config, value| config.abort_if_written = value != 0.0,
    },
];

/// The policy: 10 bytes a unit.
#[derive(Debug)]
pub struct Nomad {
    config: Config,
    kernel: Kernel,
    /// Units of the fast tier that have a clean copy in the slow one.
    shadowed: Vec<u64>,
    /// Units that were written since the last decision.
    written: Vec<u64>,
    /// Candidates for promotion, the latest first.
    candidates: VecDeque<UnitId>,
    queue: VecDeque<UnitId>,
}

fn bit(words: &[u64], unit: UnitId) -> bool {
    words.get(unit as usize / 64).is_some_and(|word| word & 1 << (unit % 64) != 0)
}

impl Nomad {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> Nomad {
        Nomad {
            kernel: Kernel::new(config.kernel),
            shadowed: Vec::new(),
            written: Vec::new(),
            candidates: VecDeque::new(),
            queue: VecDeque::new(),
            config,
        }
    }

    fn set_shadowed(&mut self, unit: UnitId, to: bool) {
        if let Some(word) = self.shadowed.get_mut(unit as usize / 64) {
            if to { *word |= 1 << (unit % 64) } else { *word &= !(1 << (unit % 64)) }
        }
    }

    /// Looks through the candidates, as each fault does.
    fn review(&mut self) {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut place = 0;
        candidates.retain(|unit| {
            place += 1;
            if self.kernel.place(*unit) != Some(Place::Slow) {
                return false;
            }
            if self.kernel.is_active(*unit) {
                if self.queue.len() < self.config.queue as usize && !self.queue.contains(unit) {
                    self.queue.push_back(*unit);
                }
                return false;
            }
            self.kernel.mark_accessed(*unit);
            place <= self.config.look_back + 1
        });
        self.candidates = candidates;
    }
}

impl PlacementPolicy for Nomad {
    fn name(&self) -> &'static str {
        "nomad"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.kernel.arrived(unit, place, size);
        let words = unit as usize / 64 + 1;
        if words > self.shadowed.len() {
            self.shadowed.resize(words, 0);
        }
        self.set_shadowed(unit, false);
    }

    fn gone(&mut self, unit: UnitId) {
        self.kernel.gone(unit);
        self.candidates.retain(|other| *other != unit);
        self.queue.retain(|other| *other != unit);
    }

    fn sampled(&mut self, _unit: UnitId, _weight: u32) {}

    fn senses(&self) -> Senses {
        Senses { hints: true, referenced: true, written: true, ..Senses::default() }
    }

    fn at(&mut self, now_ns: u64) {
        self.kernel.at(now_ns);
    }

    fn arm(&mut self, units: &mut Vec<UnitId>) {
        self.kernel.arm(units);
    }

    fn hinted(&mut self, unit: UnitId, _write: bool) -> bool {
        self.kernel.hinted(unit);
        if self.kernel.place(unit) == Some(Place::Slow) {
            self.review();
            self.candidates.retain(|other| *other != unit);
            self.candidates.push_front(unit);
        }
        false
    }

    fn referenced(&mut self, touched: &[u64]) {
        self.kernel.referenced(touched);
    }

    fn written(&mut self, written: &[u64]) {
        self.shadowed.iter_mut().zip(written).for_each(|(shadowed, written)| *shadowed &= !written);
        self.written.clear();
        self.written.extend_from_slice(written);
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        self.kernel.decide(room);
        // What may still be moved.
        let mut left = room.moves_max;
        let mut free = room.capacity.saturating_sub(room.used);
        for _ in 0..self.queue.len() {
            let Some(unit) =
                self.queue.front().copied().filter(|unit| self.kernel.size(*unit) <= left)
            else {
                break;
            };
            self.queue.pop_front();
            let size = self.kernel.size(unit);
            if self.config.abort_if_written && bit(&self.written, unit) {
                self.queue.push_back(unit);
            } else if size <= free && self.kernel.place(unit) == Some(Place::Slow) {
                free -= size;
                left -= size;
                moves.push(Move { unit, to: Place::Fast, reason: Reason::Hinted });
            }
        }
        let target = self.kernel.kept_free(self.config.demotion, kernel::HIGH);
        let mut demotions = Vec::new();
        self.kernel.make_room(target, Room { moves_max: left, ..room }, &mut demotions);
        moves.append(&mut demotions);
    }

    fn move_cost(&self, unit: UnitId, to: Place) -> f32 {
        match to {
            Place::Fast => self.config.promotion_cost as f32,
            Place::Slow if bit(&self.shadowed, unit) => self.config.clean_demotion_cost as f32,
            Place::Slow => 1.0,
        }
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        let before = self.kernel.place(unit);
        self.kernel.moved(unit, to);
        self.set_shadowed(unit, to == Place::Fast && before == Some(Place::Slow));
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.kernel.heat(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 90 units in a fast tier of 100, and 30 in the slow one.
    fn nomad(config: Config) -> Nomad {
        let mut nomad = Nomad::new(config);
        (0..120).for_each(|unit| {
            nomad.arrived(unit, if unit < 90 { Place::Fast } else { Place::Slow }, 1)
        });
        nomad
    }

    fn decide(nomad: &mut Nomad, used: u32) -> Vec<(UnitId, Place)> {
        let mut moves = Vec::new();
        nomad.decide(Room { capacity: 100, used, moves_max: 20 }, &mut moves);
        moves.iter().for_each(|step| nomad.moved(step.unit, step.to));
        moves.into_iter().map(|step| (step.unit, step.to)).collect()
    }

    #[test]
    fn a_page_comes_up_after_one_fault_of_its_own_and_three_of_others() {
        let mut nomad = nomad(CONFIG);
        for (fault, comes) in [
            (100, vec![]),
            (101, vec![]),
            (102, vec![]),
            (103, vec![100]),
            (104, vec![101]),
            (105, vec![102]),
        ] {
            assert!(!nomad.hinted(fault, false));
            let expected: Vec<_> = comes.into_iter().map(|unit| (unit, Place::Fast)).collect();
            assert_eq!(decide(&mut nomad, 90), expected, "after {fault}");
        }
        // A fault in the fast tier is not looked at.
        nomad.hinted(3, false);
        assert_eq!(decide(&mut nomad, 90), []);
    }

    #[test]
    fn candidates_are_dropped_after_so_many_faults() {
        let mut nomad = nomad(Config { look_back: 0, ..CONFIG });
        // Marked by the next fault, active by the one after, and dropped then: it is the second in
        // the list.
        (100..110).for_each(|unit| {
            nomad.hinted(unit, false);
        });
        assert_eq!(decide(&mut nomad, 90), []);
        assert!(nomad.kernel.is_active(100) && nomad.candidates.len() == 2);
        // But it stays active: another fault of its own, and one more.
        nomad.hinted(100, false);
        nomad.hinted(110, false);
        assert_eq!(decide(&mut nomad, 90), [(100, Place::Fast)]);
    }

    #[test]
    fn what_was_not_written_since_its_promotion_goes_down_for_next_to_nothing() {
        let mut nomad = nomad(CONFIG);
        assert_eq!(
            (nomad.move_cost(100, Place::Fast), nomad.move_cost(3, Place::Slow)),
            (0.5, 1.0)
        );
        nomad.moved(100, Place::Fast);
        nomad.moved(101, Place::Fast);
        assert_eq!(
            (nomad.move_cost(100, Place::Slow), nomad.move_cost(101, Place::Slow)),
            (0.1, 0.1)
        );
        nomad.written(&[0, 1 << (100 - 64)]);
        nomad.written(&[0, 0]);
        assert_eq!(
            (nomad.move_cost(100, Place::Slow), nomad.move_cost(101, Place::Slow)),
            (1.0, 0.1)
        );
        // The copy is the page then, and there is none any more.
        nomad.moved(101, Place::Slow);
        assert_eq!(nomad.move_cost(101, Place::Slow), 1.0);
    }

    #[test]
    fn two_percent_are_kept_free_and_what_finds_no_room_is_dropped() {
        let mut nomad = nomad(CONFIG);
        (90..100).for_each(|unit| nomad.moved(unit, Place::Fast));
        (100..106).for_each(|unit| {
            nomad.hinted(unit, false);
        });
        assert_eq!(decide(&mut nomad, 100), [(0, Place::Slow), (1, Place::Slow)]);
        assert_eq!(decide(&mut nomad, 98), []);
    }

    #[test]
    fn with_aborts_what_is_being_written_waits() {
        let mut nomad = nomad(Config { abort_if_written: true, ..CONFIG });
        (100..104).for_each(|unit| {
            nomad.hinted(unit, false);
        });
        nomad.written(&[0, 1 << (100 - 64)]);
        assert_eq!(decide(&mut nomad, 90), []);
        nomad.written(&[0, 0]);
        assert_eq!(decide(&mut nomad, 90), [(100, Place::Fast)]);
    }
}
