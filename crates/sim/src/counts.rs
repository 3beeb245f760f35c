//! What came of a stretch of accesses, and of all.

use crate::machine::{Machine, Slow};
use serde::Serialize;

/// Sums over a stretch. Accesses are those of the stream; each stands for several real ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Number of accesses, each of which is a hit or a miss.
    pub accesses: u64,
    /// Accesses to units that were in the fast tier, or came there before the access went on
    /// because a hint asked for it.
    pub hits: u64,
    /// Number of accesses that were writes.
    pub writes: u64,
    /// Units moved to the fast tier: asked for, and by faults.
    pub promoted: u64,
    /// Units moved to the slow tier: asked for, and for faults that found no room.
    pub demoted: u64,
    /// Moves that were asked for and not made: beyond the budget, without room, of units that were
    /// there already.
    pub refused: u64,
    /// Accesses that found their unit compressed.
    pub faults: u64,
    /// First accesses to armed units.
    pub hints: u64,
    /// Accesses that the policy was told of by samples.
    pub samples: u64,
    /// Time that the stretch took, ns.
    pub time_ns: f64,
    /// Part of the time spent on moves, ns.
    pub move_ns: f64,
    /// Part of the time spent on faults of compressed units and of hints, ns.
    pub fault_ns: f64,
    /// Sum over all accesses of the latency of the memory that was accessed, ns.
    pub latency_ns: f64,
    /// Base units in the fast tier times ns, and those in the slow one.
    pub fast_unit_ns: f64,
    /// Base units in the slow tier times ns.
    pub slow_unit_ns: f64,
}

impl Counts {
    /// Adds the counts of another stretch.
    pub fn add(&mut self, other: &Counts) {
        self.accesses += other.accesses;
        self.hits += other.hits;
        self.writes += other.writes;
        self.promoted += other.promoted;
        self.demoted += other.demoted;
        self.refused += other.refused;
        self.faults += other.faults;
        self.hints += other.hints;
        self.samples += other.samples;
        self.time_ns += other.time_ns;
        self.move_ns += other.move_ns;
        self.fault_ns += other.fault_ns;
        self.latency_ns += other.latency_ns;
        self.fast_unit_ns += other.fast_unit_ns;
        self.slow_unit_ns += other.slow_unit_ns;
    }

    /// Share of the accesses that were hits; 0 of none.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.accesses as f64).max(1.0)
    }

    /// Real accesses a second, of which each access of the stream stands for `stands_for`.
    pub fn per_s(&self, stands_for: f64) -> f64 {
        if self.time_ns > 0.0 {
            self.accesses as f64 * stands_for / self.time_ns * 1e9
        } else {
            0.0
        }
    }

    /// Average memory access time, ns: latencies, and faults, which are those of one in
    /// `stands_for` real accesses. What moves take is not in it.
    pub fn amat_ns(&self, stands_for: f64) -> f64 {
        (self.latency_ns + self.fault_ns / stands_for) / (self.accesses as f64).max(1.0)
    }

    /// Cost of the memory that held the units, over that of DRAM for all of them; an average over
    /// time.
    pub fn cost(&self, machine: &Machine) -> f64 {
        let slow = match machine.slow {
            Slow::Memory(memory) => memory.cost,
            Slow::Compressed(compressed) => machine.fast.cost / compressed.ratio,
        };
        let units = self.fast_unit_ns + self.slow_unit_ns;
        if units > 0.0 {
            (self.fast_unit_ns * machine.fast.cost + self.slow_unit_ns * slow) / units
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_by_hand() {
        let counts = Counts {
            accesses: 10,
            hits: 8,
            time_ns: 2_000.0,
            latency_ns: 1_240.0,
            fault_ns: 600.0,
            fast_unit_ns: 1.0,
            slow_unit_ns: 3.0,
            ..Counts::default()
        };
        assert_eq!((counts.hit_rate(), counts.per_s(100.0)), (0.8, 5e8));
        assert_eq!(counts.amat_ns(100.0), 124.6);
        // A quarter at 1, three quarters at a third.
        assert!((counts.cost(&Machine::preset("optane").unwrap()) - 0.5).abs() < 1e-12);
        // Or at 1/1.93.
        assert!(
            (counts.cost(&Machine::preset("lz4").unwrap()) - (0.25 + 0.75 / 1.93)).abs() < 1e-12
        );
        let mut twice = counts;
        twice.add(&counts);
        assert_eq!((twice.hit_rate(), twice.accesses, twice.time_ns), (0.8, 20, 4_000.0));
        assert_eq!((Counts::default().hit_rate(), Counts::default().per_s(1.0)), (0.0, 0.0));
    }
}
