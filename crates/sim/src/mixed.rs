//! Pages of two sizes: 2 MiB of memory is one huge page, or 512 base pages of 4 KiB.
//!
//! The accesses are those of a source whose units are base pages; only what is one unit differs.

use crate::machine::{PAGE, REGION};
use crate::source::{Access, Source, SourceError};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Base pages of a huge one.
pub const HUGE: u32 = (REGION / PAGE) as u32;

/// A source's accesses, by huge pages and what base pages are left.
pub struct Mixed {
    source: Box<dyn Source>,
    /// The unit of each base page.
    unit_of: Vec<u32>,
    sizes: Arc<[u32]>,
}

impl Mixed {
    /// Makes a source from one of base pages. `huge` says of each base page, in order, which huge
    /// page it is part of, if any. Units are numbered in that order too.
    pub fn new<K: Hash + Eq>(
        source: Box<dyn Source>,
        huge: impl Iterator<Item = Option<K>>,
    ) -> Mixed {
        let mut numbers = HashMap::new();
        let mut sizes = Vec::new();
        let mut unit = |size| {
            sizes.push(size);
            sizes.len() as u32 - 1
        };
        let unit_of: Vec<u32> = huge
            .map(|huge| match huge {
                Some(range) => *numbers.entry(range).or_insert_with(|| unit(HUGE)),
                None => unit(1),
            })
            .collect();
        assert_eq!(unit_of.len(), source.units() as usize, "each base page is in a unit");
        Mixed { source, unit_of, sizes: sizes.into() }
    }

    /// Makes a source from one of base pages at the given addresses, each a space and a page number
    /// in it. An aligned range is huge if at least `share` of its pages is `touched` at all. A
    /// well-filled heap with transparent huge pages is like that: a range becomes huge as a whole.
    pub fn by_address(
        source: Box<dyn Source>,
        addresses: &[(u32, u64)],
        touched: impl Fn(usize) -> bool,
        share: f64,
    ) -> Mixed {
        let range = |(space, number): (u32, u64)| (space, number / u64::from(HUGE));
        let mut counts: HashMap<(u32, u64), u32> = HashMap::new();
        for (_, address) in addresses.iter().enumerate().filter(|(page, _)| touched(*page)) {
            *counts.entry(range(*address)).or_default() += 1;
        }
        let is_huge = |range: &(u32, u64)| {
            counts.get(range).is_some_and(|count| f64::from(*count) >= share * f64::from(HUGE))
        };
        Mixed::new(source, addresses.iter().map(|address| Some(range(*address)).filter(is_huge)))
    }

    /// Makes a source from one of base pages that lie in a row. The given share of the ranges is
    /// huge, spread evenly over all of them.
    pub fn evenly(source: Box<dyn Source>, share: f64) -> Mixed {
        let units = source.units();
        // A share of 0.3 of ten is three, and not a little less.
        let before = |range: u32| (f64::from(range) * share + 1e-9) as u32;
        let is_huge = |range: &u32| *range < units / HUGE && before(range + 1) > before(*range);
        Mixed::new(source, (0..units).map(|page| Some(page / HUGE).filter(is_huge)))
    }
}

impl Source for Mixed {
    fn units(&self) -> u32 {
        self.sizes.len() as u32
    }

    fn sizes(&self) -> Arc<[u32]> {
        self.sizes.clone()
    }

    fn accesses(&self) -> Option<u64> {
        self.source.accesses()
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        self.source.next_block(block)?;
        for access in block {
            *access = Access::new(self.unit_of[access.unit() as usize], access.is_write());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Given;

    fn units(mut source: Mixed) -> (Vec<u32>, Vec<u32>) {
        let mut block = Vec::new();
        source.next_block(&mut block).unwrap();
        (block.iter().map(|access| access.unit()).collect(), source.sizes().to_vec())
    }

    #[test]
    fn a_range_is_huge_if_enough_of_it_is_touched() {
        // Pages of the ranges 0, 1 and 7 of a process and the range 0 of another one. They are 2,
        // 3, 1 and 2 pages, one of the last not touched.
        let addresses =
            [(1, 512), (1, 3), (1, 513), (2, 0), (1, 5), (1, 900), (1, 7 * 512), (2, 1)];
        let reads = || Box::new(Given::reads(8, 0..8));
        let share = |pages: f64| pages / f64::from(HUGE);
        let touched = |page: usize| page != 7;
        let (accesses, sizes) = units(Mixed::by_address(reads(), &addresses, touched, share(2.0)));
        assert_eq!((accesses, sizes), (vec![0, 1, 0, 2, 1, 0, 3, 4], vec![512, 512, 1, 1, 1]));
        let (accesses, sizes) = units(Mixed::by_address(reads(), &addresses, touched, share(3.0)));
        assert_eq!((accesses, sizes), (vec![0, 1, 0, 2, 3, 0, 4, 5], vec![512, 1, 1, 1, 1, 1]));
    }

    #[test]
    fn a_share_of_the_ranges_is_huge_evenly() {
        let pages = 10 * HUGE + 7;
        for (share, huge) in [(0.0, vec![]), (0.3, vec![3, 6, 9]), (1.0, (0..10).collect())] {
            let (accesses, sizes) = units(Mixed::evenly(
                Box::new(Given::reads(pages, (0..pages).step_by(HUGE as usize))),
                share,
            ));
            assert_eq!(sizes.iter().sum::<u32>(), pages);
            let found: Vec<usize> = (0..accesses.len())
                .filter(|range| sizes[accesses[*range] as usize] == HUGE)
                .collect();
            assert_eq!(
                (found, sizes.len()),
                (huge.clone(), huge.len() + (pages as usize - huge.len() * HUGE as usize)),
                "{share}"
            );
        }
    }
}
