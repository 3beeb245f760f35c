//! Runs of whole pages for large items, in the part of the arena behind the segments.
//!
//! An item gets the smallest free run that holds it, the lowest among equal ones. Freed runs are
//! joined with free neighbours. The runs freed last are kept as they are for items of the same
//! size; what the kernel or the pager holds of the others is discarded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most pages, and most runs, that are freed and not discarded.
const KEPT_PAGES: usize = 256;
const KEPT_RUNS: usize = 16;

/// The free runs of a range of pages, which are numbered from 0.
#[derive(Debug)]
pub(super) struct Runs {
    /// Free runs that hold nothing: the first page, and the number of pages.
    lengths: BTreeMap<usize, usize>,
    /// Runs in the order of their lengths: number of pages and first page.
    by_length: BTreeSet<(usize, usize)>,
    /// Free runs that were not discarded yet, the oldest first: first page and number of pages.
    kept: VecDeque<(usize, usize)>,
    kept_pages: usize,
}

impl Runs {
    /// Makes a range of free pages.
    pub(super) fn new(pages: usize) -> Runs {
        let mut runs = Runs {
            lengths: BTreeMap::new(),
            by_length: BTreeSet::new(),
            kept: VecDeque::new(),
            kept_pages: 0,
        };
        runs.insert(0, pages);
        runs
    }

    /// Takes a run of `pages` and returns its first page. Returns none where no free run is long
    /// enough.
    pub(super) fn take(&mut self, pages: usize) -> Option<usize> {
        if let Some(place) = self.kept.iter().rposition(|(_, kept)| *kept == pages) {
            let (first, _) = self.kept.remove(place)?;
            self.kept_pages -= pages;
            return Some(first);
        }
        let (length, first) = *self.by_length.range((pages, 0)..).next()?;
        self.remove(first, length);
        self.insert(first + pages, length - pages);
        Some(first)
    }

    /// Gives back a run that [`Runs::take`] returned. `discard` is called for each run of pages,
    /// first page and number, whose contents are not to be kept.
    pub(super) fn give_back(
        &mut self,
        first: usize,
        pages: usize,
        mut discard: impl FnMut(usize, usize),
    ) {
        self.kept.push_back((first, pages));
        self.kept_pages += pages;
        while self.kept_pages > KEPT_PAGES || self.kept.len() > KEPT_RUNS {
            self.join_oldest(&mut discard);
        }
    }

    /// Discards all kept runs, so that they can be parts of longer ones.
    pub(super) fn join_kept(&mut self, mut discard: impl FnMut(usize, usize)) {
        while !self.kept.is_empty() {
            self.join_oldest(&mut discard);
        }
    }

    fn join_oldest(&mut self, discard: &mut impl FnMut(usize, usize)) {
        if let Some((first, pages)) = self.kept.pop_front() {
            self.kept_pages -= pages;
            discard(first, pages);
            self.join(first, pages);
        }
    }

    /// Adds a discarded run, joined with the free runs beside it.
    fn join(&mut self, first: usize, pages: usize) {
        let (mut start, mut end) = (first, first + pages);
        if let Some((&before, &length)) = self.lengths.range(..first).next_back()
            && before + length == first
        {
            self.remove(before, length);
            start = before;
        }
        if let Some(&length) = self.lengths.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, first: usize, pages: usize) {
        if pages > 0 {
            self.lengths.insert(first, pages);
            self.by_length.insert((pages, first));
        }
    }

    fn remove(&mut self, first: usize, pages: usize) {
        self.lengths.remove(&first);
        self.by_length.remove(&(pages, first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 600;

    #[test]
    fn the_smallest_run_that_fits_is_taken() {
        let mut runs = Runs::new(1000);
        let taken: Vec<usize> = (0..4).map(|_| runs.take(250).expect("room")).collect();
        assert_eq!(taken, [0, 250, 500, 750]);
        assert_eq!(runs.take(1), None);
        // Two runs that are no neighbours; the second one kept, the first one discarded.
        let mut discarded = Vec::new();
        runs.give_back(0, 250, |first, pages| discarded.push((first, pages)));
        runs.give_back(500, 250, |first, pages| discarded.push((first, pages)));
        assert_eq!(discarded, [(0, 250)]);
        assert_eq!(runs.take(250), Some(500), "the kept run is of that size");
        assert_eq!(runs.take(100), Some(0));
        assert_eq!(runs.take(150), Some(100));
    }

    #[test]
    fn kept_runs_are_joined_where_a_longer_one_is_needed() {
        let mut runs = Runs::new(64);
        let taken: Vec<usize> = (0..16).map(|_| runs.take(4).expect("room")).collect();
        taken.into_iter().for_each(|first| runs.give_back(first, 4, |_, _| panic!("kept")));
        assert_eq!(runs.take(64), None);
        let mut discarded = 0;
        runs.join_kept(|_, pages| discarded += pages);
        assert_eq!((discarded, runs.take(64)), (64, Some(0)));
    }

    proptest! {
        /// Runs in use never overlap, freed ones are free again, and what is discarded was freed.
        #[test]
        fn pages_belong_to_one_item(steps in prop::collection::vec((1_usize..80, any::<u16>()), 1..400)) {
            let mut runs = Runs::new(PAGES);
            let mut used = vec![false; PAGES];
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (pages, choice) in steps {
                if choice % 2 == 0 && let Some(first) = runs.take(pages) {
                    let run = &mut used[first..first + pages];
                    prop_assert!(run.iter().all(|used| !used));
                    run.fill(true);
                    taken.push((first, pages));
                } else if !taken.is_empty() {
                    let (first, pages) = taken.swap_remove(choice as usize % taken.len());
                    used[first..first + pages].fill(false);
                    let mut all_free = true;
                    runs.give_back(first, pages, |first, pages| {
                        all_free &= used[first..first + pages].iter().all(|used| !used);
                    });
                    prop_assert!(all_free);
                }
                let in_use: usize = taken.iter().map(|(_, pages)| pages).sum();
                let free: usize = runs.lengths.values().sum();
                prop_assert_eq!(in_use + free + runs.kept_pages, PAGES);
                prop_assert_eq!(runs.lengths.len(), runs.by_length.len());
                prop_assert!(runs.kept_pages <= KEPT_PAGES && runs.kept.len() <= KEPT_RUNS);
                // No two free runs are neighbours.
                prop_assert!(runs.lengths.iter().all(|(first, pages)| !runs.lengths.contains_key(&(first + pages))));
            }
        }
    }
}
