//! Memtis (Lee et al., SOSP 2023): counters that are halved at the end of each period, as Jenga's
//! paper compares itself with (§7).

use crate::placement::histogram::{Config, Decay};

/// The policy named `memtis`: cooling each 2,000,000 samples, adaptation each 100,000 (Jenga
/// §2.2.2; the module's defaults). The thresholds' one-way adaptation is the module's too, and [can
/// be left out](Config::one_way_adaptation).
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

/// The configuration of a policy with Memtis's mechanism as its module runs: what a live program
/// leaves out of it. A base unit stands for `unit_bytes`, the largest unit is `largest` base units.
///
/// Moves are made every 50 ms, as the papers say. Smooth counters have no first halving to be
/// spared. A sample counts 1 of the largest unit where units differ, and more of smaller ones in
/// proportion: 512 of a base page.
pub fn as_published(config: Config, unit_bytes: f64, largest: u32) -> Config {
    Config {
        spared_once: config.decay == Decay::Sawtooth,
        sample_counts: if largest == 1 && unit_bytes <= BASE_PAGE { 512 } else { largest },
        period_ns: 50_000_000,
        cooling_bytes: 10.0 * (1u64 << 30) as f64,
        limits: true,
        unit_bytes,
        ..config
    }
}

const BASE_PAGE: f64 = 4096.0;

/// The policy named `memtis-qc`, quick cooling: Memtis with Jenga's period (Jenga §7). The paper
/// names no interval of adaptation for it.
pub const QUICK_COOLING: Config = Config {
    name: "memtis-qc",
    cooling_samples: crate::placement::jenga::COOLING_SAMPLES,
    ..CONFIG
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::histogram::Hotness;
    use crate::placement::{Place, PlacementPolicy, Room};

    /// Two units for one place, by hand.
    #[test]
    fn the_hotter_of_two_gets_the_place() {
        let config = Config {
            cooling_samples: 40,
            adapt_samples: 10,
            begins_hot: false,
            one_way_adaptation: false,
            promote_free: 0.0,
            ..CONFIG
        };
        let mut memtis = Hotness::new(config);
        memtis.arrived(0, Place::Fast, 1);
        memtis.arrived(1, Place::Slow, 1);
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

    fn there(moves: &[crate::placement::Move]) -> Vec<(u32, Place)> {
        moves.iter().map(|step| (step.unit, step.to)).collect()
    }

    /// The published configuration, less what these tests are not about.
    fn mixed() -> Config {
        let published = as_published(CONFIG, BASE_PAGE, 512);
        Config {
            adapt_samples: 1000,
            begins_hot: false,
            one_way_adaptation: false,
            promote_free: 0.0,
            limits: false,
            ..published
        }
    }

    /// A huge page and two base pages, by hand. A sample counts 1 of the former and 512 of the
    /// latter. Bins hold base pages.
    #[test]
    fn heat_is_for_each_byte() {
        // The base page that was met twice is hotter than the huge one that was met 997 times. That
        // is as hot as the base page that was met once: 1025, 998 and 513 have the logarithms 10, 9
        // and 9.
        for (capacity, hot, comes) in [
            (513, 10, vec![(1, Place::Fast)]),
            (514, 1, vec![(0, Place::Fast), (1, Place::Fast), (2, Place::Fast)]),
        ] {
            let mut memtis = Hotness::new(mixed());
            (0..3).for_each(|unit| {
                memtis.arrived(unit, Place::Slow, if unit == 0 { 512 } else { 1 })
            });
            let room = Room { capacity, used: 0, moves_max: 2000 };
            let mut moves = Vec::new();
            memtis.decide(room, &mut moves);
            (0..997).for_each(|_| memtis.sampled(0, 1));
            [1, 2, 1].into_iter().for_each(|unit| memtis.sampled(unit, 1));
            assert_eq!([0, 1, 2].map(|unit| memtis.counter(unit)), [997.0, 1024.0, 512.0]);
            assert_eq!((memtis.bins()[10], memtis.bins()[9]), (1, 513));
            // All of bin 9 is hot, or none.
            assert_eq!(memtis.thresholds().0, hot, "{capacity}");
            memtis.at(50_000_000);
            memtis.decide(room, &mut moves);
            assert_eq!(there(&moves), comes, "{capacity}");
        }
    }

    #[test]
    fn a_huge_page_gets_the_room_that_it_needs() {
        let mut memtis = Hotness::new(mixed());
        // A cold huge page and 88 base pages are in the fast tier. A hot huge page is to come, for
        // which there is no room beside it.
        memtis.arrived(0, Place::Fast, 512);
        memtis.arrived(1, Place::Slow, 512);
        (2..90).for_each(|unit| memtis.arrived(unit, Place::Fast, 1));
        let mut moves = Vec::new();
        memtis.decide(Room { capacity: 600, used: 600, moves_max: 0 }, &mut moves);
        (2..90).for_each(|unit| (0..4).for_each(|_| memtis.sampled(unit, 1)));
        (0..648).for_each(|_| memtis.sampled(1, 1));
        // Base pages are in bin 11, the huge one in bin 9, and all of them are 600.
        assert_eq!((memtis.bins()[11], memtis.bins()[9], memtis.bins()[0]), (88, 512, 512));
        // Half of what may be moved is room for it, and it needs the other half.
        memtis.at(50_000_000);
        memtis.decide(Room { capacity: 600, used: 600, moves_max: 1023 }, &mut moves);
        assert_eq!(there(&moves), [(0, Place::Slow)]);
        moves.iter().for_each(|step| memtis.moved(step.unit, step.to));
        memtis.at(100_000_000);
        memtis.decide(Room { capacity: 600, used: 88, moves_max: 1023 }, &mut moves);
        assert_eq!(there(&moves), [(1, Place::Fast)]);
    }

    #[test]
    fn thresholds_of_the_module_move_one_way() {
        let config =
            Config { cooling_samples: 1000, adapt_samples: 100, begins_hot: false, ..CONFIG };
        let mut memtis = Hotness::new(config);
        (0..8).for_each(|unit| memtis.arrived(unit, Place::Slow, 1));
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
