//! Accesses that a sampler meets: one in a period, with the noise that this brings.

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp1};

/// Accesses from one sample to the next.
///
/// Each access is met with the same chance, whatever came before. Gaps are geometric, so that a
/// unit's samples are as noisy as counts of chance are (Poisson). Real samplers count to a fixed
/// period. Over many units and what else a program does between, which access of a unit they meet
/// is chance too.
#[derive(Debug)]
pub struct Gaps {
    random: SmallRng,
    /// −1 / ln(1 − chance); 0 where every access is met.
    scale: f64,
    /// No gap is longer; a period is far from it.
    most: f64,
}

impl Gaps {
    /// Makes gaps of `period` accesses on average, at least 1. The same seed gives the same gaps.
    pub fn new(period: f64, seed: u64) -> Gaps {
        assert!(period >= 1.0, "a period of {period} accesses");
        let scale = if period > 1.0 { -1.0 / (-1.0 / period).ln_1p() } else { 0.0 };
        Gaps { random: SmallRng::seed_from_u64(seed), scale, most: f64::from(u32::MAX) }
    }

    /// Number of accesses up to the next sample, which is the last of them; at least 1.
    pub fn next_gap(&mut self) -> u64 {
        // The whole part of an exponential gap is geometric.
        let exponential: f64 = Exp1.sample(&mut self.random);
        1 + (exponential * self.scale).min(self.most) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean p, variance p (p − 1) of a geometric gap with chance 1/p.
    #[test]
    fn gaps_are_geometric() {
        for period in [1.0, 1.5, 50.0, 5003.0] {
            let mut gaps = Gaps::new(period, 7);
            let drawn: Vec<f64> = (0..200_000).map(|_| gaps.next_gap() as f64).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance =
                drawn.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
            assert!((mean / period - 1.0).abs() < 0.01, "mean {mean} of {period}");
            let expected = period * (period - 1.0);
            assert!(
                (variance - expected).abs() <= 0.05 * expected,
                "variance {variance} instead of {expected}"
            );
        }
    }

    #[test]
    fn seeds_settle_them() {
        let several = |seed| {
            let mut gaps = Gaps::new(50.0, seed);
            (0..50).map(|_| gaps.next_gap()).collect::<Vec<_>>()
        };
        assert!(several(1) == several(1) && several(1) != several(2));
    }
}
