//! A counting Bloom filter (Fan et al., 2000), in blocks of a cache line. It tells about how often
//! each of many keys was counted, in less memory than a counter for each.
//!
//! A key has four counters in one block, and its count is the least of them. When as many were
//! counted as the *window*, all counters are halved, as in TinyLFU (Einziger et al., 2017). Half of
//! the window is then over.

use crate::placement::UnitId;

/// Counters of a key.
const HASHES: usize = 4;

/// The filter.
#[derive(Clone, Debug)]
pub struct Sketch {
    counters: Vec<u16>,
    /// Counters in a block, a power of two.
    block: usize,
    most: u16,
    window: u64,
    counted: u64,
}

/// Counters that `keys` keys need for a share `false_positives` of false positives, with four of
/// them each: n · −k / ln(1 − p^(1/k)).
pub fn counters_for(keys: u32, false_positives: f64) -> f64 {
    let hashes = HASHES as f64;
    (f64::from(keys) * -hashes / (1.0 - (false_positives.ln() / hashes).exp()).ln()).ceil()
}

impl Sketch {
    /// Makes a filter with at least one block, rounded up to a power of two. Counters go up to
    /// `most` and are halved each `window` counts.
    pub fn new(counters: f64, block: usize, most: u16, window: u64) -> Sketch {
        assert!(
            block.is_power_of_two() && (HASHES..=HASHES * 256).contains(&block),
            "each of a key's counters is in its own part of a block, by 8 bits"
        );
        let counters = (counters.max(1.0) as usize).next_power_of_two().max(block);
        Sketch { counters: vec![0; counters], block, most, window: window.max(1), counted: 0 }
    }

    fn places(&self, key: UnitId) -> [usize; HASHES] {
        // SplitMix64, whose bits are independent enough of each other.
        let mut hash = (u64::from(key) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^= hash >> 31;
        let first = (hash >> 32) as usize % (self.counters.len() / self.block) * self.block;
        let part = self.block / HASHES;
        std::array::from_fn(|nth| first + nth * part + (hash >> (8 * nth)) as usize % part)
    }

    /// The count of a key: never too small, but for what was halved.
    pub fn count(&self, key: UnitId) -> u16 {
        self.places(key).into_iter().map(|place| self.counters[place]).min().unwrap_or(0)
    }

    /// Counts a key `times` times. True if all counts were halved then.
    pub fn add(&mut self, key: UnitId, times: u32) -> bool {
        for place in self.places(key) {
            let counter = &mut self.counters[place];
            *counter = u32::from(*counter).saturating_add(times).min(u32::from(self.most)) as u16;
        }
        self.counted += u64::from(times);
        let over = self.counted >= self.window;
        if over {
            self.halve();
        }
        over
    }

    /// Takes one count of a key back.
    pub fn take_one(&mut self, key: UnitId) {
        for place in self.places(key) {
            self.counters[place] = self.counters[place].saturating_sub(1);
        }
    }

    fn halve(&mut self) {
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
        self.counted /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_size_is_that_of_the_formula() {
        // −4 / ln(1 − 0.001^¼) = 20.429.
        assert_eq!(counters_for(1000, 0.001), 20_429.0);
        assert_eq!(Sketch::new(20_429.0, 128, 15, 1).counters.len(), 32_768);
        assert_eq!(Sketch::new(3.0, 128, 15, 1).counters.len(), 128);
    }

    #[test]
    fn counts_end_at_the_most_and_halve_after_a_window() {
        let mut sketch = Sketch::new(4096.0, 128, 15, 40);
        assert!(!sketch.add(7, 9));
        assert!(!sketch.add(8, 30));
        assert_eq!((sketch.count(7), sketch.count(8), sketch.count(9)), (9, 15, 0));
        assert!(sketch.add(9, 1));
        assert_eq!(
            (sketch.count(7), sketch.count(8), sketch.count(9), sketch.counted),
            (4, 7, 0, 20)
        );
        sketch.take_one(7);
        assert_eq!(sketch.count(7), 3);
    }

    #[test]
    fn it_is_seldom_wrong_and_never_counts_too_few() {
        let keys = 2000;
        let mut sketch = Sketch::new(counters_for(keys, 0.001), 128, 15, u64::MAX);
        (0..keys).for_each(|key| {
            sketch.add(key, 1 + key % 5);
        });
        assert!((0..keys).all(|key| u32::from(sketch.count(key)) > key % 5));
        let wrong = (keys..100 * keys).filter(|key| sketch.count(*key) > 0).count();
        // Blocks cost a little of the thousandth.
        assert!(wrong < 99 * keys as usize / 300, "{wrong}");
    }
}
