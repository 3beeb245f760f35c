//! TPP (Maruf et al., ASPLOS 2023): a page of the slow tier comes up when a hint fault finds it
//! active. Room is kept free for it ahead of time.
//!
//! [`kernel`](crate::placement::kernel) has the scan and the reclaim. A hint fault on a page that
//! is not active makes it so. The next one promotes it, if more is free than the *high* watermark.
//! When less than 2 % of the fast tier is free, pages are demoted until as much is. (That is
//! `demote_scale_factor` 200, and at least twice the high watermark.) What is demoted faults at its
//! next access.
//!
//! All of that is from the published patch, as the authors of Nomad keep it, for Linux 5.13. So is
//! the high watermark of the kernel, 0.2 % above the minimum. In the patch a first fault only marks
//! a page *referenced* unless it was already, so that up to three are needed:
//! [`Config::referenced_first`]. The paper says two, and so do papers that compare with it (Jenga
//! §2.2.1).
//!
//! Choices: the scan keeps its second, which that kernel adapts between 60 s and, for 20 GB, a
//! tenth. New pages go where the simulation puts them (in TPP as long as the minimum is free).

use crate::placement::kernel::{self, Kernel, part};
use crate::placement::{Move, Place, PlacementPolicy, Room, Senses, UnitId};
use crate::settings::{Kind, Knob, Setting};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The scan.
    pub kernel: kernel::Config,
    /// The share of the fast tier that demotion keeps free.
    pub demotion: f64,
    /// Promotions leave this share of the fast tier free.
    pub high: f64,
    /// A page's first fault only marks it, and the second one makes it active.
    pub referenced_first: bool,
}

/// The policy named `tpp`.
pub const CONFIG: Config = Config {
    kernel: kernel::Config { arm_demoted: true, ..kernel::CONFIG },
    demotion: 0.02,
    high: kernel::HIGH,
    referenced_first: false,
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
            name: "high",
            about: "the share of the fast tier that promotion leaves free",
            kind: Kind::Share,
        },
        get: |config| config.high,
        set: |config, value| config.high = value,
    },
    Setting {
        knob: Knob {
            name: "waits",
            about: "a promotion without room waits for it",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.kernel.waits)),
        set: |config, value| config.kernel.waits = value != 0.0,
    },
    Setting {
        knob: Knob {
            name: "referenced-first",
            about: "a page's first fault only marks it, as in the patch",
            kind: Kind::Switch,
        },
        get: |config| f64::from(u8::from(config.referenced_first)),
        set: |config, value| config.referenced_first = value != 0.0,
    },
];

/// The policy: 10 bytes a unit.
#[derive(Debug)]
pub struct Tpp {
    config: Config,
    kernel: Kernel,
}

impl Tpp {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> Tpp {
        Tpp { config, kernel: Kernel::new(config.kernel) }
    }
}

impl PlacementPolicy for Tpp {
    fn name(&self) -> &'static str {
        "tpp"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.kernel.arrived(unit, place, size);
    }

    fn gone(&mut self, unit: UnitId) {
        self.kernel.gone(unit);
    }

    fn sampled(&mut self, _unit: UnitId, _weight: u32) {}

    fn senses(&self) -> Senses {
        Senses { hints: true, referenced: true, ..Senses::default() }
    }

    fn at(&mut self, now_ns: u64) {
        self.kernel.at(now_ns);
    }

    fn arm(&mut self, units: &mut Vec<UnitId>) {
        self.kernel.arm(units);
    }

    fn hinted(&mut self, unit: UnitId, _write: bool) -> bool {
        self.kernel.hinted(unit);
        if self.kernel.place(unit) != Some(Place::Slow) {
            return false;
        }
        if self.kernel.is_active(unit) {
            let high = part(self.kernel.capacity(), self.config.high);
            return self.kernel.promotes(unit, high);
        }
        if self.config.referenced_first {
            self.kernel.mark_accessed(unit)
        } else {
            self.kernel.activate(unit)
        }
        false
    }

    fn referenced(&mut self, touched: &[u64]) {
        self.kernel.referenced(touched);
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        self.kernel.decide(room);
        self.kernel.make_room(
            self.kernel.kept_free(self.config.demotion, self.config.high),
            room,
            moves,
        );
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        self.kernel.moved(unit, to);
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.kernel.heat(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 units in a fast tier that has room for them, and 10 in the slow one.
    fn tpp(config: Config) -> Tpp {
        let mut tpp = Tpp::new(config);
        (0..110).for_each(|unit| {
            tpp.arrived(unit, if unit < 100 { Place::Fast } else { Place::Slow }, 1)
        });
        tpp
    }

    fn decide(tpp: &mut Tpp, used: u32) -> Vec<(UnitId, Place)> {
        let mut moves = Vec::new();
        tpp.decide(Room { capacity: 100, used, moves_max: 10 }, &mut moves);
        moves.iter().for_each(|step| tpp.moved(step.unit, step.to));
        moves.into_iter().map(|step| (step.unit, step.to)).collect()
    }

    #[test]
    fn two_percent_are_kept_free_and_the_second_fault_promotes() {
        let mut tpp =
            tpp(Config { kernel: kernel::Config { waits: false, ..CONFIG.kernel }, ..CONFIG });
        assert_eq!(decide(&mut tpp, 100), [(0, Place::Slow), (1, Place::Slow)]);
        assert_eq!(decide(&mut tpp, 98), []);
        assert!(!tpp.hinted(100, false));
        assert!(tpp.hinted(100, false));
        tpp.moved(100, Place::Fast);
        // One is free, and 0.2 % of 100 is one too: no more than that.
        assert!(!tpp.hinted(101, false));
        assert!(!tpp.hinted(101, false));
        // The next unit makes room; then the page is active still.
        assert_eq!(decide(&mut tpp, 99), [(2, Place::Slow)]);
        assert!(tpp.hinted(101, false));
        // A fault in the fast tier is none of its business.
        assert!(!tpp.hinted(5, false) && !tpp.hinted(5, false));
    }

    #[test]
    fn what_was_demoted_faults_at_once_and_is_inactive() {
        let mut tpp = tpp(CONFIG);
        decide(&mut tpp, 100);
        let mut armed = Vec::new();
        tpp.arm(&mut armed);
        assert_eq!(armed, [0, 1]);
        assert!(!tpp.hinted(0, false));
        assert!(tpp.hinted(0, false));
    }

    #[test]
    fn in_the_patch_it_takes_three_faults() {
        let mut tpp = tpp(Config { referenced_first: true, ..CONFIG });
        decide(&mut tpp, 100);
        assert_eq!(
            [tpp.hinted(100, false), tpp.hinted(100, false), tpp.hinted(100, false)],
            [false, false, true]
        );
    }

    #[test]
    fn who_is_touched_stays() {
        let mut tpp = tpp(CONFIG);
        // All were touched when they came, and are looked at once; 0 and 1 then leave.
        decide(&mut tpp, 100);
        tpp.referenced(&[0b1100, 0]);
        assert_eq!(decide(&mut tpp, 100), [(4, Place::Slow), (5, Place::Slow)]);
    }
}
