//! The kernel's NUMA balancing, as the tiering papers compare with it, and as it is today.
//!
//! **`autonuma`**: ordinary balancing of a machine whose slow memory is a node without CPUs (Jenga
//! §7: "AutoNUMA does not have a page demotion mechanism"). The scan of
//! [`kernel`](crate::placement::kernel) arms pages of both nodes. The first fault on one of the
//! slow node promotes it if there is room above the high watermark. Choices: the period of the scan
//! is not adapted, and a page comes up at its first fault. The kernel asks for two in a row from
//! the same node unless the process is new.
//!
//! **`autonuma-6`**: memory tiering (`numa_balancing` = 2, `demotion_enabled`) since Linux 6.1,
//! from `should_numa_migrate_memory` and what it calls in `kernel/sched/fair.c`. Only the slow node
//! is armed. A page is hot if the time from its arming to its fault is less than a threshold:
//!
//! - it is 1 s at first. Each minute it is lowered by ⅛ s if more than 110 % of the *rate limit*
//!   were hot in it. It is raised by as much if less than 90 % were, up to 2 s. The limit is 65536
//!   MB/s unless it is set, so that in practice the threshold rises;
//! - while as much as the greater of 1 GB and a sixteenth of the node is free, every page that
//!   faults comes up;
//! - a promotion needs room above the high watermark; where there is none it wakes reclaim, which
//!   makes room up to the *promotion* watermark. Reclaim also wakes below the low one. These three
//!   are one, two and three times `watermark_scale_factor` (0.1 %) above the minimum. (HybridTier's
//!   authors run it with 2 % and 3400 MB/s.)
//!
//! Choices: one minimum of free memory, none; two lists, not the multi-generation LRU.

use crate::placement::kernel::{self, Kernel, part};
use crate::placement::{Move, Place, PlacementPolicy, Room, Senses, UnitId};
use crate::settings::{Kind, Knob, Setting};

const SECOND: u64 = 1_000_000_000;

/// Parameters of `autonuma`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The scan.
    pub kernel: kernel::Config,
    /// Promotions leave this share of the fast tier free.
    pub high: f64,
}

/// The policy named `autonuma`.
pub const CONFIG: Config =
    Config { kernel: kernel::Config { scan_fast: true, ..kernel::CONFIG }, high: kernel::HIGH };

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
        knob: Knob { name: "scan-fast", about: "the fast tier is armed too", kind: Kind::Switch },
        get: |config| f64::from(u8::from(config.kernel.scan_fast)),
        set: |config, value| config.kernel.scan_fast = value != 0.0,
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
];

/// The policy `autonuma`: 10 bytes a unit.
#[derive(Debug)]
pub struct AutoNuma {
    config: Config,
    kernel: Kernel,
}

impl AutoNuma {
    /// Makes the policy with no units yet.
    pub fn new(config: Config) -> AutoNuma {
        AutoNuma { config, kernel: Kernel::new(config.kernel) }
    }
}

impl PlacementPolicy for AutoNuma {
    fn name(&self) -> &'static str {
        "autonuma"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.kernel.arrived(unit, place, size);
    }

    fn gone(&mut self, unit: UnitId) {
        self.kernel.gone(unit);
    }

    fn sampled(&mut self, _unit: UnitId, _weight: u32) {}

    fn senses(&self) -> Senses {
        Senses { hints: true, ..Senses::default() }
    }

    fn at(&mut self, now_ns: u64) {
        self.kernel.at(now_ns);
    }

    fn arm(&mut self, units: &mut Vec<UnitId>) {
        self.kernel.arm(units);
    }

    fn hinted(&mut self, unit: UnitId, _write: bool) -> bool {
        self.kernel.hinted(unit);
        self.kernel.place(unit) == Some(Place::Slow)
            && self.kernel.has_room(unit, part(self.kernel.capacity(), self.config.high))
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        self.kernel.decide(room);
    }

    fn moved(&mut self, unit: UnitId, to: Place) {
        self.kernel.moved(unit, to);
    }

    fn heat(&self, unit: UnitId) -> f32 {
        self.kernel.heat(unit)
    }
}

/// Parameters of `autonuma-6`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieringConfig {
    /// The scan.
    pub kernel: kernel::Config,
    /// The threshold at first, ns.
    pub hot_ns: u64,
    /// Time between adaptations of the threshold, ns.
    pub adapt_ns: u64,
    /// What may come up, bytes a second.
    pub bytes_per_s: f64,
    /// Length of the second in which the limit is kept, ns.
    pub second_ns: u64,
    /// Every page that faults comes up while this many bytes are free, and a sixteenth of the tier.
    pub enough_bytes: f64,
    /// The distance of the watermarks, as a share of the fast tier.
    pub watermarks: f64,
}

/// The policy named `autonuma-6`.
pub const TIERING: TieringConfig = TieringConfig {
    kernel: kernel::CONFIG,
    hot_ns: SECOND,
    adapt_ns: 60 * SECOND,
    bytes_per_s: 65536.0 * 1048576.0,
    second_ns: SECOND,
    enough_bytes: (1u64 << 30) as f64,
    watermarks: 0.001,
};

/// Parameters that can be set.
pub const TIERING_SETTINGS: &[Setting<TieringConfig>] = &[
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
            name: "hot",
            about: "a page is hot that faults sooner after it was armed, at first",
            kind: Kind::Time,
        },
        get: |config| config.hot_ns as f64,
        set: |config, value| config.hot_ns = value as u64,
    },
    Setting {
        knob: Knob {
            name: "adapt",
            about: "time between adaptations of that threshold",
            kind: Kind::Time,
        },
        get: |config| config.adapt_ns as f64,
        set: |config, value| config.adapt_ns = value as u64,
    },
    Setting {
        knob: Knob { name: "rate", about: "what may come up", kind: Kind::Rate },
        get: |config| config.bytes_per_s,
        set: |config, value| config.bytes_per_s = value,
    },
    Setting {
        knob: Knob {
            name: "rate-period",
            about: "the time in which that limit is kept",
            kind: Kind::Time,
        },
        get: |config| config.second_ns as f64,
        set: |config, value| config.second_ns = value as u64,
    },
    Setting {
        knob: Knob {
            name: "enough",
            about: "all that faults comes up while so much is free",
            kind: Kind::Bytes,
        },
        get: |config| config.enough_bytes,
        set: |config, value| config.enough_bytes = value,
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
            name: "watermarks",
            about: "their distance, as a share of the fast tier",
            kind: Kind::Share,
        },
        get: |config| config.watermarks,
        set: |config, value| config.watermarks = value,
    },
];

/// The policy `autonuma-6`: 14 bytes a unit.
#[derive(Debug)]
pub struct Tiering {
    config: TieringConfig,
    kernel: Kernel,
    /// Time at which each unit was armed, µs modulo 2³² (71 minutes).
    armed_us: Vec<u32>,
    threshold_ns: u64,
    /// Hot base pages so far; those before this second began, and before this period of
    /// adaptation.
    hot: u64,
    hot_before_second: u64,
    second_from_ns: u64,
    hot_before_adapting: u64,
    adapted_ns: u64,
    /// Base units of the largest promotion that found no room; 0 of none.
    missed: u32,
}

/// Steps between no threshold and the greatest one (`NUMA_MIGRATION_ADJUST_STEPS`).
const STEPS: u64 = 16;

impl Tiering {
    /// Makes the tiering state with no units yet.
    pub fn new(config: TieringConfig) -> Tiering {
        Tiering {
            kernel: Kernel::new(config.kernel),
            armed_us: Vec::new(),
            threshold_ns: config.hot_ns,
            hot: 0,
            hot_before_second: 0,
            second_from_ns: 0,
            hot_before_adapting: 0,
            adapted_ns: 0,
            missed: 0,
            config,
        }
    }

    fn now_us(&self) -> u32 {
        (self.kernel.now_ns() / 1000) as u32
    }

    /// The given number of distances of watermarks, base units.
    fn watermark(&self, times: f64) -> u32 {
        part(self.kernel.capacity(), times * self.config.watermarks)
    }

    /// Base units that may come up in the given time.
    fn limit(&self, ns: u64) -> f64 {
        self.config.bytes_per_s * ns as f64 / 1e9 / self.config.kernel.unit_bytes
    }

    fn adapt(&mut self) {
        let now = self.kernel.now_ns();
        if now - self.adapted_ns <= self.config.adapt_ns {
            return;
        }
        self.adapted_ns = now;
        let (hot, wanted) =
            ((self.hot - self.hot_before_adapting) as f64, self.limit(self.config.adapt_ns));
        self.hot_before_adapting = self.hot;
        let (most, step) = (2 * self.config.hot_ns, 2 * self.config.hot_ns / STEPS);
        if hot > wanted * 1.1 {
            self.threshold_ns = self.threshold_ns.saturating_sub(step).max(step);
        } else if hot < wanted * 0.9 {
            self.threshold_ns = (self.threshold_ns + step).min(most);
        }
    }

    /// Counts one more hot page, of `size` base pages. False if it may not come up in this second.
    fn within_limit(&mut self, size: u32) -> bool {
        let now = self.kernel.now_ns();
        self.hot += u64::from(size);
        if now - self.second_from_ns > self.config.second_ns {
            (self.second_from_ns, self.hot_before_second) = (now, self.hot);
        }
        ((self.hot - self.hot_before_second) as f64) < self.limit(self.config.second_ns)
    }
}

impl PlacementPolicy for Tiering {
    fn name(&self) -> &'static str {
        "autonuma-6"
    }

    fn arrived(&mut self, unit: UnitId, place: Place, size: u32) {
        self.kernel.arrived(unit, place, size);
        let index = unit as usize;
        if index >= self.armed_us.len() {
            self.armed_us.resize(index + 1, 0);
        }
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
        let now = self.now_us();
        units.iter().for_each(|unit| self.armed_us[*unit as usize] = now);
    }

    fn hinted(&mut self, unit: UnitId, _write: bool) -> bool {
        self.kernel.hinted(unit);
        if self.kernel.place(unit) != Some(Place::Slow) {
            return false;
        }
        let enough = (self.config.enough_bytes / self.config.kernel.unit_bytes)
            .max(f64::from(self.kernel.capacity() / 16));
        if f64::from(self.kernel.free()) > enough + f64::from(self.watermark(3.0)) {
            // What is hot has changed.
            self.threshold_ns = self.config.hot_ns;
        } else {
            self.adapt();
            let took_us = self.now_us().wrapping_sub(self.armed_us[unit as usize]);
            if u64::from(took_us) * 1000 >= self.threshold_ns
                || !self.within_limit(self.kernel.size(unit))
            {
                return false;
            }
        }
        let room = self.kernel.promotes(unit, self.watermark(2.0));
        if !room {
            self.missed = self.missed.max(self.kernel.size(unit));
        }
        room
    }

    fn referenced(&mut self, touched: &[u64]) {
        self.kernel.referenced(touched);
    }

    fn decide(&mut self, room: Room, moves: &mut Vec<Move>) {
        moves.clear();
        self.kernel.decide(room);
        let low = room.used + self.watermark(1.0) > room.capacity;
        let missed = std::mem::take(&mut self.missed);
        if missed > 0 || low {
            // Enough for one more than where promotions stop, however small the tier.
            let target = self.watermark(3.0).max(self.watermark(2.0) + missed.max(1));
            self.kernel.make_room(target.min(room.capacity), room, moves);
            // Those that could not come yet.
            self.missed = u32::from(self.kernel.anyone_waits());
        }
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

    fn room(used: u32) -> Room {
        Room { capacity: 100, used, moves_max: 50 }
    }

    fn decide(policy: &mut dyn PlacementPolicy, used: u32) -> Vec<UnitId> {
        let mut moves = Vec::new();
        policy.decide(room(used), &mut moves);
        moves.iter().for_each(|step| policy.moved(step.unit, step.to));
        moves.into_iter().map(|step| step.unit).collect()
    }

    #[test]
    fn the_papers_version_promotes_at_the_first_fault_while_there_is_room_and_never_demotes() {
        let mut autonuma = AutoNuma::new(CONFIG);
        (0..120).for_each(|unit| {
            autonuma.arrived(unit, if unit < 98 { Place::Fast } else { Place::Slow }, 1)
        });
        assert_eq!(decide(&mut autonuma, 98), []);
        assert!(!autonuma.hinted(3, false));
        assert!(autonuma.hinted(100, false));
        autonuma.moved(100, Place::Fast);
        // One is left free.
        assert!(!autonuma.hinted(101, false));
        assert_eq!(decide(&mut autonuma, 99), []);
    }

    /// A unit is 1 GB, so that more than 6 of 100 are enough free: a sixteenth.
    fn tiering(config: TieringConfig, fast: u32) -> Tiering {
        let gigabyte = (1u64 << 30) as f64;
        let kernel =
            kernel::Config { unit_bytes: gigabyte, scan_bytes: 60.0 * gigabyte, ..config.kernel };
        let mut tiering = Tiering::new(TieringConfig { kernel, ..config });
        (0..200).for_each(|unit| {
            tiering.arrived(unit, if unit < fast { Place::Fast } else { Place::Slow }, 1)
        });
        tiering
    }

    fn arm(tiering: &mut Tiering, now_ns: u64) -> Vec<UnitId> {
        let mut units = Vec::new();
        tiering.at(now_ns);
        tiering.arm(&mut units);
        units
    }

    #[test]
    fn a_page_is_hot_that_faults_within_a_second_of_its_arming() {
        let mut tiering = tiering(TIERING, 96);
        decide(&mut tiering, 96);
        assert_eq!(arm(&mut tiering, SECOND), (96..120).collect::<Vec<_>>());
        tiering.at(2 * SECOND - 1);
        assert!(tiering.hinted(100, false));
        tiering.at(2 * SECOND);
        assert!(!tiering.hinted(101, false));
    }

    #[test]
    fn where_enough_is_free_all_come_up() {
        // Seven free: six and one for the promotion watermark, and it has to be more.
        for (fast, comes) in [(93, false), (92, true)] {
            let mut tiering = tiering(TIERING, fast);
            decide(&mut tiering, fast);
            arm(&mut tiering, SECOND);
            tiering.at(30 * SECOND);
            assert_eq!(tiering.hinted(96, false), comes, "{fast}");
        }
    }

    #[test]
    fn a_promotion_without_room_wakes_reclaim() {
        for (waits, made) in [(true, vec![0, 1, 100]), (false, vec![0])] {
            let mut tiering = tiering(
                TieringConfig { kernel: kernel::Config { waits, ..kernel::CONFIG }, ..TIERING },
                99,
            );
            assert_eq!(decide(&mut tiering, 99), []);
            arm(&mut tiering, SECOND);
            // The high watermark is one. Up to the promotion watermark, or one more than the high
            // one, room is made.
            assert!(!tiering.hinted(100, false));
            assert_eq!(decide(&mut tiering, 99), made);
            assert_eq!(decide(&mut tiering, 98), []);
            assert!(tiering.hinted(101, false));
            // A tier that is full wakes it too.
            tiering.moved(101, Place::Fast);
            tiering.moved(102, Place::Fast);
            assert_eq!(decide(&mut tiering, 100).len(), 2);
        }
    }

    #[test]
    fn no_more_come_up_than_the_limit_allows() {
        let gigabyte = (1u64 << 30) as f64;
        let mut tiering = tiering(TieringConfig { bytes_per_s: 3.0 * gigabyte, ..TIERING }, 96);
        decide(&mut tiering, 96);
        arm(&mut tiering, 1_500_000_000);
        let mut comes = |unit: UnitId, now_ms: u64| {
            tiering.at(now_ms * 1_000_000);
            tiering.hinted(unit, false)
        };
        // The first hot one in more than a second begins a new one and does not count.
        assert_eq!(
            [comes(96, 1600), comes(97, 1700), comes(98, 1800), comes(99, 1900)],
            [true, true, true, false]
        );
        // A second later.
        assert!(!comes(100, 2400));
    }

    #[test]
    fn the_threshold_follows_the_limit() {
        let gigabyte = (1u64 << 30) as f64;
        // One page in a minute is the limit: 1.1 and 0.9 are two and none.
        let mut tiering = tiering(TieringConfig { bytes_per_s: gigabyte / 60.0, ..TIERING }, 96);
        decide(&mut tiering, 96);
        let mut minute = |n: u64, faults: u32| {
            for unit in 0..faults {
                tiering.at(n * 61 * SECOND);
                tiering.armed_us[96 + unit as usize] = tiering.now_us();
                tiering.hinted(96 + unit, false);
            }
            tiering.threshold_ns
        };
        let eighth = SECOND / 8;
        // At the first fault of each minute what was hot in the one before counts: none, then
        // three, then one, then one.
        assert_eq!(minute(1, 3), SECOND + eighth);
        assert_eq!(minute(2, 1), SECOND);
        assert_eq!(minute(3, 1), SECOND);
        // One that is not hot: none was in the minute before the last.
        assert_eq!((4..30).map(|n| minute(n, 1)).last(), Some(SECOND));
        let mut idle = |n: u64| {
            tiering.at(n * 61 * SECOND);
            tiering.armed_us[96] = tiering.now_us() - 30_000_000;
            tiering.hinted(96, false);
            tiering.threshold_ns
        };
        // The last hot one first, and never more than two seconds.
        assert_eq!([idle(30), idle(31), idle(32)], [SECOND, SECOND + eighth, SECOND + 2 * eighth]);
        assert_eq!((33..60).map(idle).last(), Some(2 * SECOND));
    }
}
