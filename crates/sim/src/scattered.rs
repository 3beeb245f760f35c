//! Chance that is the same each time: numbers that look like it, and a permutation.

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): close numbers become far ones.
pub fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A permutation of the numbers below a limit: a Feistel network over the next even power of two.
/// It is walked until it is below the limit again (Black and Rogaway 2002, "cycle walking"; four
/// steps at most on average).
#[derive(Clone, Copy, Debug)]
pub struct Scattered {
    items: u64,
    half_bits: u32,
    keys: [u64; Scattered::ROUNDS],
}

impl Scattered {
    const ROUNDS: usize = 4;

    /// Makes a permutation of the numbers below `items`, which is at least 1.
    pub fn new(items: u64, seed: u64) -> Self {
        assert!((1..1 << 62).contains(&items), "a permutation of {items} numbers");
        let bits = u64::BITS - (items - 1).leading_zeros();
        Scattered {
            items,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|round| mixed(seed.wrapping_add(round as u64))),
        }
    }

    /// The number at `rank`, which is below `items`.
    pub fn item(&self, rank: u64) -> u64 {
        assert!(rank < self.items);
        let mut number = self.shuffled(rank);
        while number >= self.items {
            number = self.shuffled(number);
        }
        number
    }

    fn shuffled(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            let turned = mixed(right ^ key);
            (left, right) = (right, left ^ (turned & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbouring_ranks_are_not_neighbours() {
        let scattered = Scattered::new(1_000_000, 1);
        let close = (0..10_000)
            .filter(|rank| scattered.item(*rank).abs_diff(scattered.item(rank + 1)) < 1000)
            .count();
        assert!(close < 50, "{close} of 10,000; chance gives 20");
    }

    proptest! {
        #[test]
        fn every_item_has_one_rank(items in 1u64..3000, seed: u64) {
            let scattered = Scattered::new(items, seed);
            let mut seen = vec![false; items as usize];
            for rank in 0..items {
                prop_assert!(!std::mem::replace(&mut seen[scattered.item(rank) as usize], true));
            }
        }
    }
}
