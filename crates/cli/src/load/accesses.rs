//! Which item is asked for next: ranks by Zipf's law or others, and ranks scattered over items, so
//! that popular items are not neighbours in memory.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, StandardNormal, Zipf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
    /// The item with which it is done.
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
    /// A mix of reads, a share `gets` of all operations, and writes.
    pub fn of_gets(gets: f64) -> Mix {
        Mix { gets, updates: 0.0, inserts: 0.0 }
    }
}

impl Workload {
    /// Shares of the workload's operations.
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

/// How popular items are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// By Zipf's law with this exponent, 0 or more.
    Zipf(f64),
    /// By half of a normal distribution: the deviation is this share of the items, above 0.
    Gaussian(f64),
}

/// What ranks are drawn from.
#[derive(Debug)]
enum Ranks {
    Zipf(Zipf<f64>),
    /// A normal distribution with this deviation, in ranks.
    Gaussian(f64),
}

/// An endless load.
#[derive(Debug)]
pub struct Accesses {
    ranks: Ranks,
    /// How many items there are. Loads that add items side by side share the number.
    items: Arc<AtomicU64>,
    /// How ranks are scattered over items; `None` where ranks are items.
    scattered: Option<Scattered>,
    random: SmallRng,
    /// Out of 2^32 operations: the reads; with those that a write follows; with new items.
    below: [u64; 3],
    latest: bool,
    seed: u64,
    /// Number of operations after which other items are popular, and how many were drawn.
    jump_every: Option<u64>,
    drawn: u64,
}

impl Accesses {
    /// An endless load over `items` ≥ 1 items, in the shares of `mix`. `seed` settles which items
    /// are popular; with `order` it settles the order in which they come.
    pub fn new(items: u64, popularity: Popularity, mix: Mix, seed: u64, order: u64) -> Self {
        let ranks = match popularity {
            Popularity::Zipf(theta) => {
                Ranks::Zipf(Zipf::new(items as f64, theta).expect("checked with the arguments"))
            }
            Popularity::Gaussian(share) => Ranks::Gaussian(share * items as f64),
        };
        let of_all = |share: f64| (share * (1u64 << 32) as f64) as u64;
        Accesses {
            ranks,
            items: Arc::new(AtomicU64::new(items)),
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

    /// This load with ranks for items.
    pub fn clustered(self) -> Self {
        Accesses { scattered: None, ..self }
    }

    /// This load with the latest items read most.
    pub fn latest(self) -> Self {
        Accesses { latest: true, ..self }
    }

    /// This load beside another one: items that either of them adds are there for both.
    pub fn beside(self, other: &Accesses) -> Self {
        Accesses { items: Arc::clone(&other.items), ..self }
    }

    /// This load with other popular items after every `every` operations.
    pub fn jumping(self, every: Option<u64>) -> Self {
        Accesses { jump_every: every, ..self }
    }

    /// A rank, the most popular first, from 0.
    fn rank(&mut self) -> u64 {
        match &self.ranks {
            Ranks::Zipf(zipf) => zipf.sample(&mut self.random) as u64 - 1,
            Ranks::Gaussian(deviation) => loop {
                let far: f64 = StandardNormal.sample(&mut self.random);
                let rank = (far.abs() * deviation) as u64;
                // There are as many ranks as there were items at the beginning, or more.
                if rank < self.items.load(Relaxed) {
                    break rank;
                }
            },
        }
    }

    fn item(&mut self) -> u64 {
        let rank = self.rank();
        let items = self.items.load(Relaxed);
        if self.latest {
            return items - 1 - rank;
        }
        let jumps = self.jump_every.map_or(0, |every| self.drawn / every);
        match self.scattered {
            // Neighbours in memory stay neighbours, elsewhere.
            None => (rank + mixed(jumps) % items * jumps.min(1)) % items,
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
            self.scattered = Some(Scattered::new(self.items.load(Relaxed), self.seed ^ jump));
        }
        let item = self.item();
        self.drawn += 1;
        let chance = u64::from(self.random.next_u32());
        let [gets, updates, inserts] = self.below;
        Some(match chance {
            _ if chance < gets => Operation::Get(item),
            _ if chance < updates => Operation::Update(item),
            _ if chance < inserts => Operation::Set(self.items.fetch_add(1, Relaxed)),
            _ => Operation::Set(item),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZIPF: Popularity = Popularity::Zipf(0.99);

    fn drawn(items: u64, theta: f64, draws: usize) -> Vec<u64> {
        let mut accesses = Accesses::new(items, Popularity::Zipf(theta), Mix::of_gets(1.0), 11, 1);
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

    /// In a normal distribution, 68.3 % lie within one deviation and 95.4 % within two.
    #[test]
    fn ranks_are_as_likely_as_the_normal_distribution_says() {
        for (share, clustered) in [(0.1, true), (0.1, false), (0.02, false)] {
            let all = Mix::of_gets(1.0);
            let mut accesses = Accesses::new(10_000, Popularity::Gaussian(share), all, 3, 1);
            let deviation = (share * 10_000.0) as usize;
            if clustered {
                accesses = accesses.clustered();
            }
            let mut counts = vec![0; 10_000];
            accesses.take(200_000).for_each(|o| counts[o.item() as usize] += 1);
            let neighbours: i32 = counts[..deviation].iter().sum();
            if !clustered {
                assert!(f64::from(neighbours) / 2e5 < 2.0 * share, "popular items are anywhere");
                counts.sort_unstable_by(|a, b| b.cmp(a));
            }
            for (deviations, within) in [(1, 0.683), (2, 0.954)] {
                let drawn: i32 = counts[..deviations * deviation].iter().sum();
                let drawn = f64::from(drawn) / 2e5;
                assert!((drawn - within).abs() < 0.02, "{drawn} within {deviations}");
            }
        }
    }

    #[test]
    fn loads_side_by_side_add_no_item_twice() {
        let mut one = Accesses::new(1000, ZIPF, Workload::D.mix(), 3, 1);
        let mut other = Accesses::new(1000, ZIPF, Workload::D.mix(), 3, 2).beside(&one);
        let mut added = Vec::new();
        for _ in 0..10_000 {
            for operation in [one.next(), other.next()].into_iter().flatten() {
                match operation {
                    Operation::Set(item) => added.push(item),
                    read => assert!(read.item() < 1000 + added.len() as u64),
                }
            }
        }
        assert!(added.iter().copied().eq(1000..1000 + added.len() as u64) && added.len() > 500);
    }

    #[test]
    fn the_latest_may_be_read_most_without_new_ones() {
        let accesses = Accesses::new(1000, ZIPF, Mix::of_gets(0.5), 3, 1).latest();
        let late = accesses.take(10_000).filter(|o| o.item() >= 990).count();
        assert!(late > 2500, "{late}");
    }

    #[test]
    fn so_many_read_as_were_asked_for() {
        for share in [0.0, 0.9, 1.0] {
            let gets = Accesses::new(1000, ZIPF, Mix::of_gets(share), 3, 1)
                .take(100_000)
                .filter(|operation| matches!(operation, Operation::Get(_)))
                .count();
            assert!((gets as f64 / 1e5 - share).abs() < 0.01, "{gets} of 100,000 at {share}");
        }
    }

    /// A run after another one must not touch again what that one touched last.
    #[test]
    fn another_order_has_the_same_popular_items() {
        let accesses = |order| Accesses::new(1000, ZIPF, Mix::of_gets(1.0), 3, order).take(100_000);
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
            for operation in Accesses::new(1000, ZIPF, mix, 3, 1).take(100_000) {
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
        for operation in Accesses::new(1000, ZIPF, Workload::D.mix(), 3, 1).take(100_000) {
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
            let mut accesses = Accesses::new(1000, ZIPF, Mix::of_gets(1.0), 3, 1);
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
