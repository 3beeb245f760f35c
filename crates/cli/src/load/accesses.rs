//! Which item is asked for next: Zipf over ranks, and ranks scattered over items, so that popular
//! items are not neighbours in memory.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use terrace_sim::scattered::{Scattered, mixed};

/// What is done with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read it.
    Get(u64),
    /// Write it, also where it is new.
    Set(u64),
    /// Read it, and write it when its value is there.
    Update(u64),
}

impl Operation {
    /// With which it is done.
    pub fn item(self) -> u64 {
        match self {
            Operation::Get(item) | Operation::Set(item) | Operation::Update(item) => item,
        }
    }
}

/// A core workload of YCSB (Cooper et al. 2010, table 2). E is left out: it scans ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 50 % reads, 50 % writes
    A,
    /// 95 % reads, 5 % writes
    B,
    /// Reads only
    C,
    /// 95 % reads, of the latest items most; 5 % new items
    D,
    /// 50 % reads, 50 % reads each followed by a write of the item
    F,
}

/// Shares of all operations; the rest are writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Reads.
    pub gets: f64,
    /// Reads, each followed by a write.
    pub updates: f64,
    /// Writes of new items. Where there are any, the latest items are read most.
    pub inserts: f64,
}

impl Mix {
    /// Reads and writes.
    pub fn of_gets(gets: f64) -> Mix {
        Mix { gets, updates: 0.0, inserts: 0.0 }
    }
}

impl Workload {
    /// Its shares.
    pub fn mix(self) -> Mix {
        match self {
            Workload::A => Mix::of_gets(0.5),
            Workload::B => Mix::of_gets(0.95),
            Workload::C => Mix::of_gets(1.0),
            Workload::D => Mix { gets: 0.95, updates: 0.0, inserts: 0.05 },
            Workload::F => Mix { gets: 0.5, updates: 0.5, inserts: 0.0 },
        }
    }
}

/// An endless load.
#[derive(Debug)]
pub struct Accesses {
    zipf: Zipf<f64>,
    /// How many items there are.
    items: u64,
    /// Unless ranks are items.
    scattered: Option<Scattered>,
    random: SmallRng,
    /// Out of 2^32 operations: the reads; with those that a write follows; with new items.
    below: [u64; 3],
    latest: bool,
    seed: u64,
    /// After how many operations other items are popular, and how many were drawn.
    jump_every: Option<u64>,
    drawn: u64,
}

impl Accesses {
    /// Zipf with exponent `theta` ≥ 0 over `items` ≥ 1, in the shares of `mix`. `seed` settles which
    /// items are popular, `order` with it the order in which they come.
    pub fn new(items: u64, theta: f64, mix: Mix, seed: u64, order: u64) -> Self {
        let of_all = |share: f64| (share * (1u64 << 32) as f64) as u64;
        Accesses {
            zipf: Zipf::new(items as f64, theta).expect("checked with the arguments"),
            items,
            scattered: Some(Scattered::new(items, seed)),
            random: SmallRng::seed_from_u64(mixed(mixed(seed) ^ order)),
            below: [
                of_all(mix.gets),
                of_all(mix.gets + mix.updates),
                of_all(mix.gets + mix.updates + mix.inserts),
            ],
            latest: mix.inserts > 0.0,
            seed,
            jump_every: None,
            drawn: 0,
        }
    }

    /// With ranks for items.
    pub fn clustered(self) -> Self {
        Accesses { scattered: None, ..self }
    }

    /// With other popular items after each so many operations.
    pub fn jumping(self, every: Option<u64>) -> Self {
        Accesses { jump_every: every, ..self }
    }

    /// A rank, the most popular first, from 0.
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }

    fn item(&mut self) -> u64 {
        let rank = self.rank();
        if self.latest {
            return self.items - 1 - rank;
        }
        let jumps = self.jump_every.map_or(0, |every| self.drawn / every);
        match self.scattered {
            // Neighbours in memory stay neighbours, elsewhere.
            None => (rank + mixed(jumps) % self.items * jumps.min(1)) % self.items,
            Some(scattered) => scattered.item(rank),
        }
    }
}

impl Iterator for Accesses {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if let (Some(every), Some(_)) = (self.jump_every, self.scattered)
            && self.drawn > 0
            && self.drawn.is_multiple_of(every)
        {
            let jump = mixed(self.drawn / every);
            self.scattered = Some(Scattered::new(self.items, self.seed ^ jump));
        }
        let item = self.item();
        self.drawn += 1;
        let chance = u64::from(self.random.next_u32());
        let [gets, updates, inserts] = self.below;
        Some(match chance {
            _ if chance < gets => Operation::Get(item),
            _ if chance < updates => Operation::Update(item),
            _ if chance < inserts => {
                self.items += 1;
                Operation::Set(self.items - 1)
            }
            _ => Operation::Set(item),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(items: u64, theta: f64, draws: usize) -> Vec<u64> {
        let mut accesses = Accesses::new(items, theta, Mix::of_gets(1.0), 11, 1);
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
            let gets = Accesses::new(1000, 0.99, Mix::of_gets(share), 3, 1)
                .take(100_000)
                .filter(|operation| matches!(operation, Operation::Get(_)))
                .count();
            assert!((gets as f64 / 1e5 - share).abs() < 0.01, "{gets} of 100,000 at {share}");
        }
    }

    /// A run after another one must not touch again what that one touched last.
    #[test]
    fn another_order_has_the_same_popular_items() {
        let accesses = |order| Accesses::new(1000, 0.99, Mix::of_gets(1.0), 3, order).take(100_000);
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

    #[test]
    fn workloads_have_their_shares() {
        for workload in Workload::value_variants() {
            let mix = workload.mix();
            let mut counts = [0; 3];
            for operation in Accesses::new(1000, 0.99, mix, 3, 1).take(100_000) {
                counts[match operation {
                    Operation::Get(_) => 0,
                    Operation::Update(_) => 1,
                    Operation::Set(_) => 2,
                }] += 1;
            }
            let expected = [mix.gets, mix.updates, 1.0 - mix.gets - mix.updates];
            for (count, share) in counts.into_iter().zip(expected) {
                assert!((f64::from(count) / 1e5 - share).abs() < 0.01, "{workload:?}: {counts:?}");
            }
        }
    }

    /// New items follow those that were there, and the latest are read most.
    #[test]
    fn the_latest_items_are_read_most() {
        let (mut newest, mut late, mut reads) = (999, 0, 0);
        for operation in Accesses::new(1000, 0.99, Workload::D.mix(), 3, 1).take(100_000) {
            match operation {
                Operation::Set(item) => {
                    assert_eq!(item, newest + 1);
                    newest = item;
                }
                read => {
                    assert!((newest - 999..=newest).contains(&read.item()));
                    reads += 1;
                    late += u64::from(newest - read.item() < 10);
                }
            }
        }
        assert!(newest > 5000 && late > reads / 4, "{late} of {reads}, newest {newest}");
    }

    #[test]
    fn a_jump_makes_other_items_popular() {
        for clustered in [false, true] {
            let mut accesses = Accesses::new(1000, 0.99, Mix::of_gets(1.0), 3, 1);
            if clustered {
                accesses = accesses.clustered();
            }
            let mut accesses = accesses.jumping(Some(10_000));
            let mut popular = || {
                let mut counts = vec![0; 1000];
                accesses.by_ref().take(10_000).for_each(|o| counts[o.item() as usize] += 1);
                (0..1000).max_by_key(|item| counts[*item])
            };
            let all = [popular(), popular(), popular()];
            assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2], "{all:?}");
        }
    }
}
