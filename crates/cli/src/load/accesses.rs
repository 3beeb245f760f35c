//! Which item is asked for next: Zipf over ranks, and ranks scattered over items, so that popular
//! items are not neighbours in memory.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use terrace_sim::scattered::{Scattered, mixed};

/// What is done with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read it.
    Get(u64),
    /// Write it.
    Set(u64),
}

impl Operation {
    /// With which it is done.
    pub fn item(self) -> u64 {
        match self {
            Operation::Get(item) | Operation::Set(item) => item,
        }
    }
}

/// An endless load.
#[derive(Debug)]
pub struct Accesses {
    zipf: Zipf<f64>,
    /// Unless ranks are items.
    scattered: Option<Scattered>,
    random: SmallRng,
    /// Number of reads in 2^32 operations, on average.
    gets: u64,
}

impl Accesses {
    /// Zipf with exponent `theta` ≥ 0 over `items` ≥ 1; of all operations the share `get_share` (0
    /// to 1) reads. `seed` settles which items are popular, `order` with it the order in which
    /// they come.
    pub fn new(items: u64, theta: f64, get_share: f64, seed: u64, order: u64) -> Self {
        Accesses {
            zipf: Zipf::new(items as f64, theta).expect("checked with the arguments"),
            scattered: Some(Scattered::new(items, seed)),
            random: SmallRng::seed_from_u64(mixed(mixed(seed) ^ order)),
            gets: (get_share * (1u64 << 32) as f64) as u64,
        }
    }

    /// With ranks for items.
    pub fn clustered(self) -> Self {
        Accesses { scattered: None, ..self }
    }

    /// A rank, the most popular first, from 0.
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }
}

impl Iterator for Accesses {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        let rank = self.rank();
        let item = self.scattered.map_or(rank, |scattered| scattered.item(rank));
        let get = u64::from(self.random.next_u32()) < self.gets;
        Some(if get { Operation::Get(item) } else { Operation::Set(item) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(items: u64, theta: f64, draws: usize) -> Vec<u64> {
        let mut accesses = Accesses::new(items, theta, 1.0, 11, 1);
        let mut counts = vec![0; items as usize];
        (0..draws).for_each(|_| counts[accesses.rank() as usize] += 1);
        counts
    }

    /// Against the exact probabilities, rank by rank: chi square of 999 degrees has mean 999 and
    /// deviation 45. The seed is fixed.
    #[test]
    fn ranks_are_as_likely_as_zipf_says() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.3] {
            let draws = 1_000_000;
            let counts = drawn(1000, theta, draws);
            let weights: Vec<f64> = (1..=1000).map(|rank| f64::from(rank).powf(-theta)).collect();
            let sum: f64 = weights.iter().sum();
            let expected = weights.iter().map(|weight| weight / sum * draws as f64);
            let chi_square: f64 = counts
                .iter()
                .zip(expected)
                .map(|(count, expected)| (*count as f64 - expected).powi(2) / expected)
                .sum();
            assert!((800.0..1200.0).contains(&chi_square), "theta {theta}: {chi_square}");
        }
    }

    /// Checks the distribution over a million items, with a sum that is not approximated. The first
    /// 10 ranks have a fifth of all draws at exponent 0.99.
    #[test]
    fn the_first_ranks_of_many_have_their_share() {
        let counts = drawn(1_000_000, 0.99, 1_000_000);
        let sum: f64 = (1..=1_000_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let first: f64 = (1..=10).map(|rank| f64::from(rank).powf(-0.99)).sum::<f64>() / sum;
        let drawn = counts[..10].iter().sum::<u64>() as f64 / 1e6;
        assert!((drawn - first).abs() < 0.003, "{drawn} instead of {first}");
    }

    #[test]
    fn so_many_read_as_were_asked_for() {
        for share in [0.0, 0.9, 1.0] {
            let gets = Accesses::new(1000, 0.99, share, 3, 1)
                .take(100_000)
                .filter(|operation| matches!(operation, Operation::Get(_)))
                .count();
            assert!((gets as f64 / 1e5 - share).abs() < 0.01, "{gets} of 100,000 at {share}");
        }
    }

    /// A run after another one must not touch again what that one touched last.
    #[test]
    fn another_order_has_the_same_popular_items() {
        let accesses = |order| Accesses::new(1000, 0.99, 1.0, 3, order).take(100_000);
        assert!(accesses(1).eq(accesses(1)) && !accesses(1).eq(accesses(2)));
        let most_popular = |order| {
            let mut counts = vec![0; 1000];
            accesses(order).for_each(|operation| {
                if let Operation::Get(item) = operation {
                    counts[item as usize] += 1
                }
            });
            (0..1000).max_by_key(|item| counts[*item])
        };
        assert_eq!(most_popular(1), most_popular(2));
    }
}
