//! How many different things there are, by samples that met some of them.
//!
//! The estimate is Chao1 with its correction of bias (A. Chao, Scandinavian Journal of Statistics
//! 11, 1984): to the things that were met it adds f1 (f1 - 1) / (2 (f2 + 1)), where f1 were met
//! once and f2 twice. It is right where all things are met about equally often. Where some are met
//! much less often than others it is too low, and grows with the number of samples. So it is also
//! made of each half of the samples, and is none where the halves tell much less than all.

use crate::quantity::share;

/// How often a thing was met, by either half of the samples. A sample's half is drawn at random.
pub type Counts = [u32; 2];

/// Samples below which nothing is estimated.
const SAMPLES_LEAST: u64 = 100;
/// Largest part of the samples that may have met what no other sample met. That part of the
/// accesses is to things that no sample met (I. J. Good, Biometrika 40, 1953).
const ONCE_MOST: f64 = 0.5;
/// Least that half of the samples may estimate, as a part of what all of them do.
const HALF_LEAST: f64 = 0.85;

/// Things that were met, by how often.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    any: u64,
    once: u64,
    twice: u64,
}

impl Met {
    fn add(&mut self, count: u32) {
        self.any += u64::from(count > 0);
        self.once += u64::from(count == 1);
        self.twice += u64::from(count == 2);
    }

    /// How many things there are: Chao1.
    fn all(&self) -> f64 {
        let (once, twice) = (self.once as f64, self.twice as f64);
        self.any as f64 + once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0))
    }
}

/// Number of different things, as samples tell it.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// Samples in all.
    pub samples: u64,
    /// Things that were met: there are at least as many.
    pub met: u64,
    /// Things that were met by one sample.
    pub once: u64,
    /// Things that there are, as all samples estimate it.
    pub all: f64,
    /// Things that there are, as half of the samples estimate it.
    pub half: f64,
}

impl Estimate {
    /// Estimates from how often each thing was met.
    pub fn of<'a>(counts: impl Iterator<Item = &'a Counts>) -> Estimate {
        let (mut samples, mut all, mut halves) = (0, Met::default(), [Met::default(); 2]);
        for count in counts {
            let sum = count[0] + count[1];
            samples += u64::from(sum);
            all.add(sum);
            for (half, count) in halves.iter_mut().zip(count) {
                half.add(*count);
            }
        }
        Estimate {
            samples,
            met: all.any,
            once: all.once,
            all: all.all(),
            half: (halves[0].all() + halves[1].all()) / 2.0,
        }
    }

    /// Why the samples are too few for an estimate, in words that call them `them`; `None` if they
    /// are enough.
    pub fn too_few(&self) -> Option<String> {
        if self.samples < SAMPLES_LEAST {
            return Some(format!("there are {}", self.samples));
        }
        let once = self.once as f64 / self.samples as f64;
        if once > ONCE_MOST {
            return Some(format!("{} of them met what no other met", share(once)));
        }
        let half = self.half / self.all;
        (half < HALF_LEAST)
            .then(|| format!("half of them estimate {} less than all do", share(1.0 - half)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    /// What so many samples tell, each of a thing that `draw` makes of a number below 1.
    fn sampled(things: usize, samples: u64, draw: impl Fn(f64) -> f64) -> Estimate {
        let mut random = SmallRng::seed_from_u64(7);
        let mut counts = vec![Counts::default(); things];
        for _ in 0..samples {
            let thing = (draw(random.random()) * things as f64) as usize;
            counts[thing.min(things - 1)][usize::from(random.random::<bool>())] += 1;
        }
        Estimate::of(counts.iter())
    }

    #[test]
    fn things_that_are_met_alike_are_estimated() {
        for (samples, off) in [(2_000, 0.1), (3_000, 0.05), (20_000, 0.01)] {
            let estimate = sampled(1000, samples, |number| number);
            assert!((estimate.all / 1000.0 - 1.0).abs() < off, "{samples}: {estimate:?}");
            assert!(estimate.met <= 1000 && estimate.samples == samples, "{estimate:?}");
        }
        assert_eq!(sampled(1000, 20_000, |number| number).too_few(), None);
        assert_eq!(sampled(1, 20_000, |number| number).too_few(), None);
    }

    #[test]
    fn too_few_samples_are_told() {
        let why = |things, samples| sampled(things, samples, |number| number).too_few();
        assert!(why(10, 99).is_some_and(|why| why == "there are 99"));
        assert!(why(100_000, 1000).is_some_and(|why| why.contains("no other")));
        // The most frequent ones are met again and again, and most of the others never.
        let estimate = sampled(1_000_000, 20_000, |number| number.powi(12));
        let why = estimate.too_few();
        assert!(why.is_some_and(|why| why.contains("half of them")), "{estimate:?}");
        assert!(Estimate::of(std::iter::empty()).too_few().is_some());
    }
}
