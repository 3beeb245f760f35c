//! From which heat on an object is hot, and how touches are counted so that heats tell.
//!
//! Pure: what a scan has found comes in, with the time.

use crate::marks::HEATS;
use crate::policy::{self, Scale};
use std::time::Duration;

/// Time in which heats should not decay, ms; otherwise fewer touches are counted.
const SOONEST_DECAY_MS: u64 = 2000;
/// Time after which heats that did not decay are too few, ms; then more touches are counted.
const LATEST_DECAY_MS: u64 = 30_000;
const LEAST_SAMPLED: u32 = 10;

/// What heats mean, from one scan of all objects to the next.
#[derive(Debug)]
pub struct Classifier {
    scale: Scale,
    /// One touch in 2^`sampling` is counted.
    sampling: u32,
    decays: bool,
    decayed_ms: u64,
    sampled_ms: u64,
    window_ms: u64,
}

impl Classifier {
    /// Makes a classifier. A touch costs `fault_ns` where the page is not in fast memory, and gains
    /// are counted for `horizon`. One touch in 2^`sampling` is counted at first, from `since_ms`
    /// on.
    pub fn new(fault_ns: f64, horizon: Duration, sampling: u32, since_ms: u64) -> Classifier {
        Classifier {
            scale: Scale {
                hot_from: 1,
                window_s: 1.0,
                object_bytes: 1.0,
                fault_ns,
                horizon_s: horizon.as_secs_f64(),
            },
            sampling,
            decays: false,
            decayed_ms: since_ms,
            sampled_ms: since_ms,
            window_ms: 1000,
        }
    }

    /// What a heat means now.
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Whether the next scan is to subtract one from every heat.
    pub fn decays(&self) -> bool {
        self.decays
    }

    /// Exponent of two of the number of touches of which one is to be counted.
    pub fn sampling(&self) -> u32 {
        self.sampling
    }

    /// Takes the result of a scan: bytes of all objects by heat, their number, and bytes that are
    /// to be hot. False if heats tell too little until they have decayed: then the next scan is to
    /// follow at once.
    pub fn scanned(
        &mut self,
        bytes: &[u64; HEATS],
        objects: u64,
        hot_bytes: u64,
        now_ms: u64,
    ) -> bool {
        self.measure_window(now_ms);
        (self.scale.hot_from, self.decays) = policy::boundary(bytes, hot_bytes);
        let live: u64 = bytes.iter().sum();
        self.scale.object_bytes = live as f64 / (objects as f64).max(1.0);
        !self.decays
    }

    /// From which heat on an object is worth moving by itself, as it is touched.
    pub fn pays_from(&self) -> Option<u8> {
        let heat = self.scale.hot_from.max(2);
        policy::pays(heat, &self.scale).then_some(heat)
    }

    /// How long heats were counted, and whether to count fewer touches or more.
    fn measure_window(&mut self, now_ms: u64) {
        let passed = now_ms - self.decayed_ms;
        if std::mem::take(&mut self.decays) {
            if passed < SOONEST_DECAY_MS && self.sampling < LEAST_SAMPLED {
                self.sampling += 1;
            }
            self.window_ms = passed.max(1);
            (self.decayed_ms, self.sampled_ms) = (now_ms, now_ms);
        } else if now_ms - self.sampled_ms > LATEST_DECAY_MS && self.sampling > 0 {
            self.sampling -= 1;
            self.sampled_ms = now_ms;
        }
        self.window_ms = self.window_ms.max(now_ms - self.decayed_ms);
        self.scale.window_s = self.window_ms as f64 / 1000.0 / f64::from(1 << self.sampling);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn heats_that_fill_up_at_once_are_counted_less() {
        let mut classifier = Classifier::new(16_000.0, Duration::from_secs(60), 0, 0);
        assert!(!classifier.scanned(&[0, 0, 0, 1000], 10, 500, 100), "all is hot: decay first");
        assert!(classifier.decays());
        assert!(classifier.scanned(&[0, 0, 1000, 0], 10, 500, 110));
        assert_eq!((classifier.sampling(), classifier.decays()), (1, false));
        assert!(classifier.scanned(&[900, 0, 0, 100], 10, 500, 40_200));
        assert_eq!(classifier.sampling(), 0, "nothing decayed for long: count more");
        assert_eq!(classifier.scale().object_bytes, 100.0);
    }
}
