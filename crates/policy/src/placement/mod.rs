//! What a tiering policy is told: units of memory, and sampled accesses to them. What it answers:
//! moves between a fast tier and a slow one.
//!
//! The same trait serves a live program and the simulator. In a live program a unit is a region of
//! 2 MiB, and samples come from hardware or the clock. Time is an argument everywhere, and a policy
//! does nothing between calls: the same calls give the same answers.
//!
//! Units may be of several sizes, as pages of 4 KiB beside huge ones. A size is a number of *base
//! units*, told when the unit arrives, and so is what [`Room`] says. Where units are all alike each
//! is one base unit.

pub mod gate;
pub mod hemem;
pub mod histogram;
pub mod hybridtier;
pub mod jenga;
pub mod kernel;
pub mod lists;
pub mod memtis;
pub mod oracle;
pub mod sizes;
pub mod sketch;
pub mod terrace;

/// A unit of memory that is placed as a whole. Dense from 0, so that a policy can keep its state in
/// a vector; may be used again once it is gone.
pub type UnitId = u32;

/// Where a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the fast tier.
    Fast,
    /// In the slow tier, which has room for all.
    Slow,
}

/// Why a unit is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The unit's bin of the hotness histogram (0–15) is not below the hot threshold.
    Hot {
        /// The unit's bin.
        bin: u8,
        /// The lowest hot bin.
        hot: u8,
    },
    /// The unit's bin is below the warm threshold, and room is needed.
    Cold {
        /// The unit's bin.
        bin: u8,
        /// The lowest bin that stays.
        warm: u8,
    },
    /// The move pays: the unit is met enough more than what it takes the place of.
    Pays {
        /// What is gained before the horizon, as a multiple of what the moves cost, in hundredths.
        hundredths: u32,
    },
    /// The unit makes room for another.
    SwappedFor {
        /// The unit that comes up instead.
        unit: UnitId,
    },
    /// The fast tier holds more than it has room for, and nothing there is colder than the unit.
    Coldest,
    /// The unit's count of samples is not below the threshold and it comes up, or it is and it goes
    /// down.
    Counted {
        /// The count, on the policy's own scale.
        count: u32,
        /// The threshold, on the policy's own scale.
        threshold: u32,
    },
    /// A hint fault says that the unit is in use.
    Hinted,
    /// The unit was not touched since it was looked at last, and room is needed.
    Idle,
    /// The unit will be accessed this often, which only an oracle knows.
    Foretold {
        /// Number of accesses to come.
        accesses: u32,
    },
}

impl Reason {
    /// Name of the reason, as in lists of moves.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Hot { .. } => "hot",
            Reason::Cold { .. } => "cold",
            Reason::Pays { .. } => "pays",
            Reason::SwappedFor { .. } => "swapped",
            Reason::Coldest => "coldest",
            Reason::Counted { .. } => "counted",
            Reason::Hinted => "hinted",
            Reason::Idle => "idle",
            Reason::Foretold { .. } => "foretold",
        }
    }

    /// A number for the kind of reason, and two for its fields.
    pub fn to_numbers(self) -> (u8, [u32; 2]) {
        match self {
            Reason::Hot { bin, hot } => (0, [bin.into(), hot.into()]),
            Reason::Cold { bin, warm } => (1, [bin.into(), warm.into()]),
            Reason::Pays { hundredths } => (2, [hundredths, 0]),
            Reason::SwappedFor { unit } => (3, [unit, 0]),
            Reason::Coldest => (4, [0; 2]),
            Reason::Counted { count, threshold } => (5, [count, threshold]),
            Reason::Hinted => (6, [0; 2]),
            Reason::Idle => (7, [0; 2]),
            Reason::Foretold { accesses } => (8, [accesses, 0]),
        }
    }

    /// The reason with the numbers of [`to_numbers`](Reason::to_numbers), if there is one.
    pub fn from_numbers(kind: u8, [first, second]: [u32; 2]) -> Option<Reason> {
        let small = |number: u32| u8::try_from(number).ok();
        Some(match kind {
            0 => Reason::Hot { bin: small(first)?, hot: small(second)? },
            1 => Reason::Cold { bin: small(first)?, warm: small(second)? },
            2 => Reason::Pays { hundredths: first },
            3 => Reason::SwappedFor { unit: first },
            4 => Reason::Coldest,
            5 => Reason::Counted { count: first, threshold: second },
            6 => Reason::Hinted,
            7 => Reason::Idle,
            8 => Reason::Foretold { accesses: first },
            _ => return None,
        })
    }
}

/// A move that a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Number of the unit.
    pub unit: UnitId,
    /// Place that the unit is to move to.
    pub to: Place,
    /// Why the unit is to move.
    pub reason: Reason,
}

/// The fast tier at the time of asking, in base units: in units, where they are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Base units that the fast tier has room for.
    pub capacity: u32,
    /// Base units that are in the fast tier.
    pub used: u32,
    /// Base units that will be moved at most, up and down together. Where units differ it is enough
    /// for three of the largest, so that one can come up and what makes room for it go.
    pub moves_max: u32,
}

/// What a policy learns accesses from, besides samples. Each costs its provider something: a policy
/// asks for what it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Senses {
    /// The first access to a unit that the policy armed, at once, by a fault
    /// ([`PlacementPolicy::arm`], [`PlacementPolicy::hinted`]).
    pub hints: bool,
    /// Units that were touched at all between two looks, by accessed bits
    /// ([`PlacementPolicy::referenced`]).
    pub referenced: bool,
    /// Units that were written between two looks ([`PlacementPolicy::written`]).
    pub written: bool,
    /// How often each unit is going to be accessed ([`PlacementPolicy::foretold`]): only a
    /// simulation can provide it.
    pub foretold: bool,
}

/// Decides which units are in the fast tier.
pub trait PlacementPolicy: Send {
    /// The name that `--policy`, simulations and reports use.
    fn name(&self) -> &'static str;
    /// A unit came into being in a place. `size`: base units, at least 1; always 1 where units are
    /// all alike, as in a live program. The unit keeps that size until it is
    /// [`gone`](PlacementPolicy::gone).
    fn arrived(&mut self, unit: UnitId, place: Place, size: u32);
    /// A unit is gone.
    fn gone(&mut self, unit: UnitId);
    /// The unit was met by a sample that stands for `weight` (1 of a source whose samples all count
    /// alike).
    fn sampled(&mut self, unit: UnitId, weight: u32);
    /// A sample as in [`sampled`](PlacementPolicy::sampled), of an access that was a write.
    fn sampled_write(&mut self, unit: UnitId, weight: u32) {
        self.sampled(unit, weight);
    }
    /// What the policy learns accesses from besides samples. Always the same.
    fn senses(&self) -> Senses {
        Senses::default()
    }
    /// Tells the time, ns since the beginning; never less than before. What is told next happens
    /// then.
    fn at(&mut self, _now_ns: u64) {}
    /// Clears `units` and fills it with those whose next access is to be told by
    /// [`hinted`](PlacementPolicy::hinted). A unit that moves is armed no more, as what is
    /// mapped anew is mapped plainly.
    fn arm(&mut self, units: &mut Vec<UnitId>) {
        units.clear();
    }
    /// The first access to a unit that was armed. True if it is to be promoted before the access
    /// goes on, which is done if there is room.
    fn hinted(&mut self, _unit: UnitId, _write: bool) -> bool {
        false
    }
    /// Bit `unit % 64` of word `unit / 64` says whether the unit was touched since this was told
    /// last.
    fn referenced(&mut self, _touched: &[u64]) {}
    /// Written units, as bits like those of [`referenced`](PlacementPolicy::referenced).
    fn written(&mut self, _written: &[u64]) {}
    /// Entry `unit` says how often that unit will be accessed between the next decision and the one
    /// after it. Units beyond the end will not be.
    fn foretold(&mut self, _accesses: &[u32]) {}
    /// Clears `moves` and fills it with what should move now, in this order. Those that fit are
    /// made at once, and told by [`moved`](PlacementPolicy::moved); others are forgotten.
    fn decide(&mut self, room: Room, moves: &mut Vec<Move>);
    /// Cost of a move that the policy asks for. It is a multiple of that of a move which stops the
    /// program for as long as it copies. It is asked just before the move is made. What takes
    /// nothing does not count for [`Room::moves_max`].
    fn move_cost(&self, _unit: UnitId, _to: Place) -> f32 {
        1.0
    }
    /// A unit moved, for whatever reason.
    fn moved(&mut self, unit: UnitId, to: Place);
    /// How hot a unit is, for a caller that must choose among units whether or not the policy would
    /// move them. The scale is free; colder units have less.
    fn heat(&self, unit: UnitId) -> f32;
}

/// The policy under which each unit stays where it was first put.
pub struct FirstTouch {
    name: &'static str,
}

impl FirstTouch {
    /// The policy of a live program, by the name of a victim policy that learns nothing of memory
    /// that does not fault.
    pub fn live(name: &'static str) -> FirstTouch {
        FirstTouch { name }
    }

    /// The policy of a simulation, beside others.
    pub fn published() -> FirstTouch {
        FirstTouch { name: "first-touch" }
    }
}

impl PlacementPolicy for FirstTouch {
    fn name(&self) -> &'static str {
        self.name
    }

    fn arrived(&mut self, _unit: UnitId, _place: Place, _size: u32) {}

    fn gone(&mut self, _unit: UnitId) {}

    fn sampled(&mut self, _unit: UnitId, _weight: u32) {}

    fn decide(&mut self, _room: Room, moves: &mut Vec<Move>) {
        moves.clear();
    }

    fn moved(&mut self, _unit: UnitId, _to: Place) {}

    fn heat(&self, _unit: UnitId) -> f32 {
        0.0
    }
}
