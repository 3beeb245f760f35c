//! Memtis (Lee et al., SOSP 2023): counters that are halved at the end of each period, as Jenga's paper compares itself with (§7).

use crate::histogram::{Config, Decay};

/// The policy named `memtis`: cooling each 2,000,000 samples, adaptation each 100,000 (Jenga §2.2.2; the module's defaults). The thresholds' one-way
/// adaptation is the module's too, and [can be left out](Config::one_way_adaptation).
pub const CONFIG: Config = Config {
    name: "memtis",
    decay: Decay::Sawtooth,
    cooling_samples: 2_000_000,
    adapt_samples: 100_000,
    no_warm_from: 0.75,
    promote_free: 0.03,
    demote_free: 0.02,
    one_way_adaptation: true,
    begins_hot: true,
    spared_once: false,
    sample_counts: 1,
    period_ns: 0,
    cooling_bytes: 0.0,
    limits: false,
    unit_bytes: 0.0,
};

/// A policy with Memtis's mechanism as its module runs, where a unit stands for so many bytes: what a live program leaves out of it. Moves are made
/// every 50 ms, as the papers say; smooth counters have no first halving to be spared.
pub fn as_published(config: Config, unit_bytes: f64) -> Config {
    Config {
        spared_once: config.decay == Decay::Sawtooth,
        sample_counts: if unit_bytes <= BASE_PAGE { 512 } else { 1 },
        period_ns: 50_000_000,
        cooling_bytes: 10.0 * (1u64 << 30) as f64,
        limits: true,
        unit_bytes,
        ..config
    }
}

const BASE_PAGE: f64 = 4096.0;

/// The policy named `memtis-qc`, quick cooling: Memtis with Jenga's period (Jenga §7). The paper names no interval of adaptation for it.
pub const QUICK_COOLING: Config = Config { name: "memtis-qc", cooling_samples: crate::jenga::COOLING_SAMPLES, ..CONFIG };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Hotness;
    use crate::placement::{Place, PlacementPolicy, Room};

    /// Two units for one place, by hand.
    #[test]
    fn the_hotter_of_two_gets_the_place() {
        let config =
            Config { cooling_samples: 40, adapt_samples: 10, begins_hot: false, one_way_adaptation: false, promote_free: 0.0, ..CONFIG };
        let mut memtis = Hotness::new(config);
        memtis.arrived(0, Place::Fast);
        memtis.arrived(1, Place::Slow);
        let room = |used| Room { capacity: 1, used, moves_max: 10 };
        let mut moves = Vec::new();
        memtis.decide(room(1), &mut moves);
        assert!(moves.is_empty(), "{moves:?}");
        // Unit 1 is met nine times of ten. Bin 3 from 7 on, and unit 0 in bin 1 or 0.
        for n in 0..10 {
            memtis.sampled(u32::from(n != 0), 1);
        }
        assert_eq!(memtis.counter(1), 9.0);
        assert_eq!((memtis.bins()[3], memtis.bins()[1]), (1, 1));
        // The one hot unit fills the place, so none is warm: above bin 1, which would be too many.
        assert_eq!(memtis.thresholds(), (2, 2));
        memtis.decide(room(1), &mut moves);
        let there: Vec<(u32, Place)> = moves.iter().map(|step| (step.unit, step.to)).collect();
        assert_eq!(there, [(0, Place::Slow), (1, Place::Fast)]);
        for step in &moves {
            memtis.moved(step.unit, step.to);
        }
        memtis.decide(room(1), &mut moves);
        assert!(moves.is_empty(), "{moves:?}");
        // A period's end halves: 36 of 40 samples, then 18.
        for n in 10..40 {
            memtis.sampled(u32::from(n % 10 != 0), 1);
        }
        assert_eq!((memtis.counter(1), memtis.counter(0)), (18.0, 2.0));
    }

    #[test]
    fn thresholds_of_the_module_move_one_way() {
        let config = Config { cooling_samples: 1000, adapt_samples: 100, begins_hot: false, ..CONFIG };
        let mut memtis = Hotness::new(config);
        (0..8).for_each(|unit| memtis.arrived(unit, Place::Slow));
        memtis.decide(Room { capacity: 8, used: 0, moves_max: 0 }, &mut Vec::new());
        let mut before = memtis.thresholds().0;
        for sample in 1..20_000u64 {
            memtis.sampled((sample % 8) as u32, 1);
            let now = memtis.thresholds().0;
            if now < before {
                assert!(sample % 1000 <= 200, "lowered at sample {sample}");
                assert_eq!(before - now, 1);
            }
            before = now;
        }
    }
}
