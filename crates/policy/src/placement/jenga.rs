//! Jenga (paper §5): smooth cooling. Counters decay a little at every access, so that pages in a
//! steady working set stay in their bins.
//!
//! With AC the counter when the cooling period began, cpaccesses what was counted since, and x the
//! share of the period that is over,
//!
//! > AS = (1 − x/2) · AC + ½ · cpaccesses, and at the period's end AC ← (AC + cpaccesses) / 2.
//!
//! The paper prints (½ · x) · AC + ½ · cpaccesses (§5.2), which is 0 when a period begins. Of the
//! forms with its ½ of cpaccesses this is the only one that has the properties that the paper asks
//! for. It equals AC at the end of each period, is continuous, and stays the same under a steady
//! rate. The printed form varies 60-fold at a steady rate of 100 samples a period; this one does
//! not.

use crate::placement::histogram::{Config, Decay};

/// Jenga's cooling period: 120,000 samples (§7.4, Figure 11).
pub const COOLING_SAMPLES: u64 = 120_000;

/// The policy named `jenga`: what the paper says. Where that is silent it has Memtis's values:
/// adaptation each 100,000 samples, the warm bin, the watermarks, where a new unit begins.
pub const CONFIG: Config = Config {
    name: "jenga",
    decay: Decay::Smooth,
    cooling_samples: COOLING_SAMPLES,
    one_way_adaptation: false,
    ..crate::placement::memtis::CONFIG
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::histogram::Hotness;
    use crate::placement::{Place, PlacementPolicy};

    const PERIOD: u64 = 1000;

    fn small() -> Hotness {
        Hotness::new(Config {
            cooling_samples: PERIOD,
            adapt_samples: u64::MAX,
            begins_hot: false,
            ..CONFIG
        })
    }

    /// Counter AC by its definition (§5.1): what was counted until now, halved at the end of each
    /// period.
    fn by_definition(accesses: &[bool]) -> Vec<f64> {
        let mut counter = 0.0;
        let mut at_each_end = Vec::new();
        for period in accesses.chunks(PERIOD as usize) {
            counter = (counter + period.iter().filter(|met| **met).count() as f64) / 2.0;
            at_each_end.push(counter);
        }
        at_each_end
    }

    /// Counters of a unit before each sample. The unit is met where `accesses` says so, another one
    /// otherwise.
    fn counters(accesses: &[bool]) -> Vec<f32> {
        let mut hotness = small();
        (0..2).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
        let mut seen = Vec::new();
        for met in accesses {
            seen.push(hotness.counter(0));
            hotness.sampled(u32::from(!met), 1);
        }
        seen.push(hotness.counter(0));
        seen
    }

    fn random(seed: u64, share: u64, periods: u64) -> Vec<bool> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..PERIOD * periods).map(|_| next() % 1000 < share).collect()
    }

    #[test]
    fn it_is_the_counter_of_the_definition_at_each_periods_end() {
        for share in [1, 30, 500, 999] {
            let accesses = random(share, share, 12);
            let counters = counters(&accesses);
            for (end, expected) in by_definition(&accesses).into_iter().enumerate() {
                let got = f64::from(counters[(end + 1) * PERIOD as usize]);
                assert!((got - expected).abs() < 0.01, "{got} and {expected} after period {end}");
            }
        }
    }

    #[test]
    fn it_has_no_jumps() {
        let accesses = random(7, 300, 12);
        let counters = counters(&accesses);
        for (pair, met) in counters.windows(2).zip(&accesses) {
            let step = pair[1] - pair[0];
            // Half an access, less what decays in one sample.
            let decay = pair[0].max(pair[1]) / PERIOD as f32 + 0.001;
            let access = if *met { 0.5 } else { 0.0 };
            assert!((step - access).abs() <= decay, "from {} to {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn it_is_constant_under_a_steady_rate_and_the_sawtooth_is_not() {
        let steady: Vec<bool> = (0..PERIOD * 20).map(|n| n % 10 == 0).collect();
        let spread = |counters: &[f32]| {
            let late = &counters[15 * PERIOD as usize..];
            late.iter().copied().fold(0.0, f32::max) / late.iter().copied().fold(f32::MAX, f32::min)
        };
        assert!(spread(&counters(&steady)) < 1.02);
        let mut sawtooth = Hotness::new(Config { decay: Decay::Sawtooth, ..small().config() });
        (0..2).for_each(|unit| sawtooth.arrived(unit, Place::Slow, 1));
        let mut seen = Vec::new();
        for met in &steady {
            seen.push(sawtooth.counter(0));
            sawtooth.sampled(u32::from(!met), 1);
        }
        assert!(spread(&seen) > 1.9, "{}", spread(&seen));
    }
}
