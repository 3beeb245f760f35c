//! Patterns of accesses to elements of memory: loads that a tiering policy should follow, or should
//! not fall for.
//!
//! Elements lie in memory in the order of their numbers, so what a pattern says of numbers is true
//! of pages. `terrace load memory` touches real memory by them, and the simulator's
//! [generators](crate::generators) units of placement.

use crate::scattered::{Scattered, mixed};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Zipf; popular elements are neighbours.
    Zipf,
    /// Zipf; popular elements are scattered over all memory.
    Scattered,
    /// 90 % of accesses to a fifth of the elements, which is another fifth after each change
    /// (Jenga's FlexKVS pattern, §7).
    Jump,
    /// 90 % of accesses to a fifth of the elements, which moves on all the time, by itself from one
    /// change to the next.
    Drift,
    /// Half of the accesses Zipf over a fifth of the elements, the other half one element after the
    /// other through all of them.
    Scan,
    /// Uniform over one quarter of the elements, then over the next.
    Phases,
    /// A chain of pointers through a fifth of the elements, each of which must be read to know the
    /// next; a tenth of the accesses anywhere.
    Chase,
    /// Sweeps over one third of the elements, neighbours included; the next third after each
    /// change.
    Stencil,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::Zipf,
        Kind::Scattered,
        Kind::Jump,
        Kind::Drift,
        Kind::Scan,
        Kind::Phases,
        Kind::Chase,
        Kind::Stencil,
    ];

    /// The name that commands use.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Zipf => "zipf",
            Kind::Scattered => "scattered",
            Kind::Jump => "jump",
            Kind::Drift => "drift",
            Kind::Scan => "scan",
            Kind::Phases => "phases",
            Kind::Chase => "chase",
            Kind::Stencil => "stencil",
        }
    }

    /// Line of text about the kind.
    pub fn about(self) -> &'static str {
        match self {
            Kind::Zipf => "Zipf; popular elements are neighbours",
            Kind::Scattered => "Zipf; popular elements are scattered over all memory",
            Kind::Jump => {
                "90 % of accesses to a fifth of the elements, which is another fifth after each change (Jenga's FlexKVS pattern, §7)"
            }
            Kind::Drift => {
                "The same, but the fifth moves on all the time, by itself from one change to the next"
            }
            Kind::Scan => {
                "Half of the accesses Zipf over a fifth of the elements, the other half one element after the other through all of them"
            }
            Kind::Phases => "Uniform over one quarter of the elements, then over the next",
            Kind::Chase => {
                "A chain of pointers through a fifth of the elements, each of which must be read to know the next; a tenth of the accesses anywhere"
            }
            Kind::Stencil => {
                "Sweeps over one third of the elements, neighbours included; the next third after each change"
            }
        }
    }
}

/// A chain through `elements` elements: behind each its next (Sattolo's algorithm).
pub fn chain(elements: u64, seed: u64) -> Vec<u32> {
    let mut links: Vec<u32> = (0..elements as u32).collect();
    for i in (1..elements).rev() {
        links.swap(i as usize, (mixed(seed ^ i) % i) as usize);
    }
    links
}

/// Way of one thread through the elements.
#[derive(Debug)]
pub struct Pattern {
    kind: Kind,
    elements: u64,
    zipf: Zipf<f64>,
    scattered: Scattered,
    random: SmallRng,
    /// First element of what is hot now.
    from: u64,
    /// Position of a scan or a sweep, in elements.
    cursor: u64,
    /// Step of a sweep: which neighbour of the position comes next.
    step: u64,
}

/// Number of accesses to the hot set in ten accesses to a pattern that has one.
const HOT_OF_10: u32 = 9;
/// Elements a row of the stencil.
const ROW: u64 = 512;

impl Pattern {
    /// Makes a pattern over `elements` elements, at least 16, with a Zipf exponent of `theta`, at
    /// least 0. A stencil of less than [`ELEMENTS_LEAST`] meets its neighbours twice. Threads of
    /// the same load have the same seed and different numbers.
    pub fn new(kind: Kind, elements: u64, theta: f64, seed: u64, thread: u64) -> Pattern {
        let zipf_over = if kind == Kind::Scan { elements / 5 } else { elements };
        Pattern {
            kind,
            elements,
            zipf: Zipf::new(zipf_over as f64, theta)
                .expect("there are elements, and theta is a number not below 0"),
            scattered: Scattered::new(elements, seed),
            random: SmallRng::seed_from_u64(mixed(mixed(seed) ^ thread)),
            from: 0,
            // Threads do not follow one another.
            cursor: mixed(seed ^ thread) % elements,
            step: 0,
        }
    }

    /// Elements that are hot at a time; all of them where none is hotter than others at any time
    /// but by Zipf.
    pub fn hot(kind: Kind, elements: u64) -> u64 {
        match kind {
            Kind::Zipf | Kind::Scattered => elements,
            Kind::Jump | Kind::Drift | Kind::Scan | Kind::Chase => elements / 5,
            Kind::Phases => elements / 4,
            Kind::Stencil => elements / 3,
        }
    }

    /// Tells the pattern how many changes there were since the load began, with the part of the
    /// time to the next one that is over. To be told now and then. True if something else is hot
    /// now.
    pub fn at(&mut self, changes: f64) -> bool {
        let hot = Self::hot(self.kind, self.elements);
        let from = match self.kind {
            // Never next to where it was.
            Kind::Jump => changes as u64 * 2 * hot % self.elements,
            Kind::Drift => (changes * hot as f64) as u64 % self.elements,
            Kind::Phases => changes as u64 % 4 * hot,
            Kind::Stencil => changes as u64 % 3 * hot,
            Kind::Zipf | Kind::Scattered | Kind::Scan | Kind::Chase => 0,
        };
        std::mem::replace(&mut self.from, from) != from
    }

    /// The next element. `link` is what the element touched last says of the next one.
    pub fn next(&mut self, link: u64) -> u64 {
        let hot = Self::hot(self.kind, self.elements);
        let kind = self.kind;
        match kind {
            Kind::Zipf => self.rank(),
            Kind::Scattered => {
                let rank = self.rank();
                self.scattered.item(rank)
            }
            Kind::Jump | Kind::Drift if self.is_to_hot() => {
                (self.from + self.below(hot)) % self.elements
            }
            Kind::Chase if self.is_to_hot() => link,
            Kind::Jump | Kind::Drift | Kind::Chase => self.below(self.elements),
            Kind::Scan if self.random.next_u32() & 1 == 0 => self.rank(),
            Kind::Scan => {
                self.cursor = (self.cursor + 1) % self.elements;
                self.cursor
            }
            Kind::Phases => self.from + self.below(hot),
            Kind::Stencil => {
                // North, west, itself, east, south; then the next.
                const AROUND: [u64; 5] = [0, ROW - 1, ROW, ROW + 1, 2 * ROW];
                self.step = (self.step + 1) % AROUND.len() as u64;
                if self.step == 0 {
                    self.cursor = self.cursor.wrapping_add(1);
                }
                self.from + (self.cursor + AROUND[self.step as usize]) % hot
            }
        }
    }

    fn is_to_hot(&mut self) -> bool {
        self.random.next_u32() % 10 < HOT_OF_10
    }

    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }

    fn below(&mut self, limit: u64) -> u64 {
        // The bias of a product is 2^-64 times the limit.
        ((u128::from(self.random.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

/// Fewer have no fifth to speak of.
pub const ELEMENTS_LEAST: u64 = 4 * ROW;

#[cfg(test)]
mod tests {
    use super::*;

    const N: u64 = 100_000;

    fn counts(pattern: &mut Pattern, accesses: usize) -> Vec<u64> {
        let mut counts = vec![0; N as usize];
        (0..accesses).for_each(|_| counts[pattern.next(7) as usize] += 1);
        counts
    }

    fn share(counts: &[u64], range: std::ops::Range<u64>) -> f64 {
        counts[range.start as usize..range.end as usize].iter().sum::<u64>() as f64
            / counts.iter().sum::<u64>() as f64
    }

    #[test]
    fn every_kind_stays_within_its_elements_at_any_time() {
        for kind in Kind::ALL {
            for elements in [ELEMENTS_LEAST, ELEMENTS_LEAST + 1, 12_345] {
                let mut pattern = Pattern::new(kind, elements, 0.99, 3, 1);
                for n in 0..2_000u32 {
                    pattern.at(f64::from(n) * 0.37);
                    for _ in 0..10 {
                        let element = pattern.next(u64::from(n) % elements);
                        assert!(element < elements, "{kind:?}: {element} of {elements}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_jump_takes_nine_tenths_along() {
        let mut pattern = Pattern::new(Kind::Jump, N, 0.99, 3, 0);
        let expected = 0.9 + 0.1 / 5.0;
        for (changes, from) in
            [(0.0, 0), (0.98, 0), (1.0, 2 * N / 5), (2.02, 4 * N / 5), (3.0, N / 5)]
        {
            pattern.at(changes);
            let there = share(&counts(&mut pattern, 50_000), from..from + N / 5);
            assert!((there - expected).abs() < 0.01, "{there} after {changes}");
        }
    }

    #[test]
    fn what_is_popular_is_together_or_not() {
        let popular_pages = |kind| {
            let counts = counts(&mut Pattern::new(kind, N, 0.99, 3, 0), 200_000);
            let mut pages: Vec<u64> = counts.chunks(500).map(|page| page.iter().sum()).collect();
            pages.sort_unstable_by(|a, b| b.cmp(a));
            pages[..pages.len() / 10].iter().sum::<u64>() as f64 / 200_000.0
        };
        let (together, scattered) = (popular_pages(Kind::Zipf), popular_pages(Kind::Scattered));
        assert!(together > 0.75 && scattered < 0.5, "{together} and {scattered}");
    }

    #[test]
    fn a_scan_meets_everything_and_half_is_hot() {
        let counts = counts(&mut Pattern::new(Kind::Scan, N, 0.99, 3, 0), 2 * N as usize + 10_000);
        assert!(counts.iter().all(|count| *count > 0));
        let hot = share(&counts, 0..N / 5);
        assert!((hot - 0.6).abs() < 0.02, "{hot}");
    }

    #[test]
    fn a_chase_follows_its_links() {
        let mut pattern = Pattern::new(Kind::Chase, N, 0.99, 3, 0);
        let followed = (0..10_000).filter(|_| pattern.next(4711) == 4711).count();
        assert!((8_700..9_300).contains(&followed), "{followed}");
    }

    #[test]
    fn threads_and_seeds_differ_and_the_same_is_the_same() {
        let first = |seed, thread| {
            let mut pattern = Pattern::new(Kind::Zipf, N, 0.99, seed, thread);
            (0..50).map(|_| pattern.next(0)).collect::<Vec<_>>()
        };
        assert_eq!(first(1, 0), first(1, 0));
        assert!(first(1, 0) != first(1, 1) && first(1, 0) != first(2, 0));
    }
}
