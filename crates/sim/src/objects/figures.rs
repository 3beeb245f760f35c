//! Figures of layouts: how few pages hold most of what is touched (Jenga's Figure 2), and what that
//! is worth by skew (M2T's Figure 3).

use super::layouts::{Kind, layout};
use super::store::{self, Store};
use super::tree::{self, Tree};
use super::{Event, Heap, MakeSource, PAGE, for_each};
use crate::source::SourceError;
use serde::Serialize;
use terrace_trace::cache::{Cache, LINE};

/// Entries of a TLB's second level, to the next power of two.
const TLB_ENTRIES: usize = 2048;

/// Figures of one layout. The first half of the touches only fills caches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The layout.
    pub layout: &'static str,
    /// Pages of 4 KiB that have an object on them.
    pub pages: usize,
    /// Fewest pages that hold 50 % of the lines touched.
    pub pages_for_50: usize,
    /// Fewest pages that hold 80 % of the lines touched.
    pub pages_for_80: usize,
    /// Fewest pages that hold 50 % of the cache misses.
    pub pages_for_50_of_misses: usize,
    /// Fewest pages that hold 80 % of the cache misses.
    pub pages_for_80_of_misses: usize,
    /// Lines that were touched.
    pub touches: u64,
    /// Number of touched lines that missed the cache and went to memory.
    pub misses: u64,
    /// Number of touched lines whose page was in none of the TLB's 2048 entries.
    pub tlb_misses: u64,
    /// Share of the cache misses that goes to the fifth of the pages with most of them. It is the
    /// best hit ratio of a fast tier of that size.
    pub hit_rate: f64,
    /// Bytes that were moved from one place to another, in all.
    pub moved_bytes: u64,
}

impl Row {
    /// Average time of an access that goes to memory, ns, where a fifth of the pages is in the fast
    /// tier.
    pub fn amat_ns(&self, fast_ns: f64, slow_ns: f64) -> f64 {
        self.hit_rate * fast_ns + (1.0 - self.hit_rate) * slow_ns
    }
}

/// Least number of the counts, the highest first, that are this share of their sum.
fn fewest(sorted: &[u64], share: f64) -> usize {
    let goal = sorted.iter().sum::<u64>() as f64 * share;
    let mut sum = 0.0;
    sorted
        .iter()
        .take_while(|count| {
            let before = sum;
            sum += **count as f64;
            before < goal
        })
        .count()
}

/// A program's figures in a layout, with a cache of `cache_bytes`.
pub fn measure(make: &MakeSource<'_>, kind: Kind, cache_bytes: usize) -> Result<Row, SourceError> {
    let mut touches = 0u64;
    for_each(make().as_mut(), |event| {
        touches += u64::from(matches!(event, Event::Touched { .. }))
    })?;
    let mut heap = Heap::new(layout(kind, make)?);
    let (mut cache, mut tlb) = (Cache::of(cache_bytes), Cache::of(TLB_ENTRIES * LINE as usize));
    let mut by_page: Vec<[u64; 2]> = Vec::new();
    let (mut seen, mut lines, mut misses, mut tlb_misses) = (0, 0, 0, 0);
    for_each(make().as_mut(), |event| {
        seen += u64::from(matches!(event, Event::Touched { .. }));
        let counts = seen > touches / 2;
        heap.follow(event, &mut |address, _| {
            let (miss, tlb_miss) = (!cache.touch(address), !tlb.touch(address / PAGE * LINE));
            if counts {
                let number = (address / PAGE) as usize;
                if number >= by_page.len() {
                    by_page.resize(number + 1, [0; 2]);
                }
                let page = &mut by_page[number];
                page[0] += 1;
                page[1] += u64::from(miss);
                lines += 1;
                misses += u64::from(miss);
                tlb_misses += u64::from(tlb_miss);
            }
        });
    })?;
    let pages = heap.pages().count();
    let [by_lines, by_misses] = [0, 1].map(|which| {
        let mut counts: Vec<u64> = by_page.iter().map(|counts| counts[which]).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    });
    Ok(Row {
        layout: kind.name(),
        pages,
        pages_for_50: fewest(&by_lines, 0.5),
        pages_for_80: fewest(&by_lines, 0.8),
        pages_for_50_of_misses: fewest(&by_misses, 0.5),
        pages_for_80_of_misses: fewest(&by_misses, 0.8),
        touches: lines,
        misses,
        tlb_misses,
        hit_rate: by_misses.iter().take(pages / 5).sum::<u64>() as f64 / (misses as f64).max(1.0),
        moved_bytes: heap.moved_bytes(),
    })
}

/// Jenga's Figure 2: the B+-tree under each layout.
pub fn jenga_figure_2(config: tree::Config, cache_bytes: usize) -> Result<Vec<Row>, SourceError> {
    let make = move || -> Box<dyn super::ObjectSource> { Box::new(Tree::new(config)) };
    Kind::ALL.into_iter().map(|kind| measure(&make, kind, cache_bytes)).collect()
}

/// Skew of M2T's Figure 3.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skew {
    /// Exponent of the Zipf distribution of lookups.
    pub theta: f64,
    /// Figures of each layout.
    pub rows: Vec<Row>,
}

/// M2T's Figure 3: the chained store under each layout, by skew. To be compared are misses, of the
/// cache and of the TLB, and the hit rate. M2T's factors of throughput are those of all three on
/// one machine.
pub fn m2t_figure_3(
    config: store::Config,
    thetas: &[f64],
    cache_bytes: usize,
) -> Result<Vec<Skew>, SourceError> {
    thetas
        .iter()
        .map(|theta| {
            let config = store::Config { theta: *theta, ..config };
            let make = move || -> Box<dyn super::ObjectSource> { Box::new(Store::new(config)) };
            let rows = Kind::ALL
                .into_iter()
                .map(|kind| measure(&make, kind, cache_bytes))
                .collect::<Result<_, _>>()?;
            Ok(Skew { theta: *theta, rows })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewest_by_hand() {
        assert_eq!(fewest(&[5, 3, 1, 1], 0.5), 1);
        assert_eq!(fewest(&[5, 3, 1, 1], 0.8), 2);
        assert_eq!(fewest(&[5, 3, 1, 1], 0.81), 3);
        assert_eq!((fewest(&[], 0.5), fewest(&[0, 0], 0.5)), (0, 0));
    }

    fn share(rows: &[Row], layout: Kind) -> (f64, f64) {
        let row = rows.iter().find(|row| row.layout == layout.name()).unwrap();
        (
            row.pages_for_50_of_misses as f64 / row.pages as f64,
            row.pages_for_80_of_misses as f64 / row.pages as f64,
        )
    }

    /// A tree by context needs half of the pages. Real allocators were measured with a million keys
    /// and a cache of 4 MiB (`bench/results/objects-pages.json`). There glibc needs .314 and .652
    /// of the pages, jemalloc .366 and .693, by context .176 and .445. With those keys this says
    /// .319 and .658, .366 and .693, .151 and .439. Here there are fewer keys, and a smaller cache.
    #[test]
    fn a_tree_by_context_needs_half_of_the_pages() {
        let rows = jenga_figure_2(
            tree::Config { keys: 30_000, theta: 0.0, lookups: 100_000, seed: 3 },
            128 << 10,
        )
        .unwrap();
        let (time, size, context, oracle) = (
            share(&rows, Kind::Time),
            share(&rows, Kind::Size),
            share(&rows, Kind::Context),
            share(&rows, Kind::Oracle),
        );
        assert!((0.28..0.37).contains(&time.0) && (0.60..0.72).contains(&time.1), "{time:?}");
        assert!((0.32..0.43).contains(&size.0) && (0.64..0.75).contains(&size.1), "{size:?}");
        assert!(context.0 < 0.55 * size.0 && context.1 < 0.75 * size.1, "{context:?}");
        assert!(oracle.0 < context.0 && oracle.1 < context.1, "{oracle:?}");
        // Consolidation learns what is hot from where objects begin by size, and moves them.
        let consolidated = share(&rows, Kind::Consolidated);
        assert!(consolidated.0 < 0.85 * size.0, "{consolidated:?}");
        assert!(rows.iter().all(|row| (row.moved_bytes > 0) == (row.layout == "consolidated")));
        let pages =
            |layout: Kind| rows.iter().find(|row| row.layout == layout.name()).unwrap().pages;
        assert!(pages(Kind::Consolidated) * 10 < pages(Kind::Size) * 11, "{rows:?}");
        assert_eq!(
            rows,
            jenga_figure_2(
                tree::Config { keys: 30_000, theta: 0.0, lookups: 100_000, seed: 3 },
                128 << 10
            )
            .unwrap()
        );
    }

    /// Buckets whose entries lie together touch fewer pages, at any skew; the more so the less skew
    /// there is. (M2T §VI: 9.5 times fewer misses of the TLB. Factors of throughput are from 3.5 at
    /// low to 2.4 at high skew.)
    #[test]
    fn a_bucket_that_lies_together_saves_misses() {
        let config = store::Config { seed: 3, ..store::Config::new(60_000, 60_000) };
        for skew in m2t_figure_3(config, &[0.25, 0.99, 1.5], 128 << 10).unwrap() {
            let of =
                |layout: Kind| skew.rows.iter().find(|row| row.layout == layout.name()).unwrap();
            let (time, near) = (of(Kind::Time), of(Kind::Near));
            assert!((near.tlb_misses as f64) < 0.75 * time.tlb_misses as f64, "{skew:?}");
            assert!(near.misses < time.misses && near.hit_rate >= time.hit_rate, "{skew:?}");
        }
    }
}
