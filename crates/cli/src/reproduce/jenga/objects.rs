//! Figures of objects and counters: 2 (pages for half of the accesses), 5 (popularity by context),
//! 6 (smooth and sawtooth), 12 (depth of the backtrace).

use crate::reproduce::figure::{Figure, Rows, percent, short};
use crate::reproduce::plot::{Drawing, Plot};
use crate::reproduce::{Options, parallel};
use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use terrace_policy::placement::histogram::{Config as Counters, Hotness};
use terrace_policy::placement::{Place, PlacementPolicy as _, jenga, memtis};
use terrace_sim::objects::figures::{Row, measure};
use terrace_sim::objects::layouts::Kind;
use terrace_sim::objects::tree::{Config, Tree};
use terrace_sim::objects::{Event, ObjectSource, for_each};
use terrace_sim::source::SourceError;

/// The wanted figures that this file has.
pub fn figures(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    let here: Vec<&'static str> = wanted
        .iter()
        .copied()
        .filter(|id| ["jenga-fig5", "jenga-fig6", "jenga-fig12"].contains(id))
        .collect();
    let mut figures = parallel(
        &here,
        |id| id.to_string(),
        |id| match *id {
            "jenga-fig5" => figure_5(options),
            "jenga-fig6" => Ok(figure_6(options)),
            _ => figure_12(options),
        },
    )?;
    if wanted.contains(&"jenga-fig2") {
        figures.push(figure_2(options)?);
    }
    Ok(figures)
}

fn tree(options: &Options) -> (Config, usize) {
    let (keys, lookups, cache) =
        if options.quick { (10_000, 30_000, 8 << 10) } else { (400_000, 1_000_000, 128 << 10) };
    (Config { keys, theta: 0.0, lookups, seed: options.seed }, cache)
}

fn about(options: &Options) -> String {
    let (Config { keys, lookups, .. }, cache) = tree(options);
    format!(
        "A B+-tree of order 4 in which nodes, their keys, their pointers and records are objects: {keys} keys in an order of chance \
         (paper: 200 million), then {lookups} uniform lookups, of which the second half is counted; what misses a cache of {} KiB (16 \
         ways), about the share of memory that the paper's processor has in all its caches. Pages of 4 KiB.",
        cache >> 10
    )
}

/// Why levels of Figure 2 differ.
const CACHED: &str = "levels hang on what the caches hold back, of which the paper's processor has another share: with a larger cache (rows below) \
                      inner nodes stay in it, and more pages are needed by any allocator";

/// A cache that has this many times as large a share of memory as the paper's.
const LARGER: usize = 16;

fn figure_2(options: &Options) -> Result<Figure> {
    let id = "jenga-fig2";
    let (config, cache) = tree(options);
    let make = move || -> Box<dyn ObjectSource> { Box::new(Tree::new(config)) };
    let kinds = [Kind::Time, Kind::Size, Kind::Context, Kind::Consolidated, Kind::Oracle];
    let each: Vec<(Kind, usize)> = [cache, cache * LARGER]
        .into_iter()
        .flat_map(|bytes| kinds.map(|kind| (kind, bytes)))
        .collect();
    let name = |(kind, bytes): &(Kind, usize)| format!("{id} {}, {} KiB", kind.name(), bytes >> 10);
    let measured: Vec<Row> =
        parallel(&each, name, |(kind, bytes)| Ok(measure(&make, *kind, *bytes)?))?;
    let (measured, larger) = measured.split_at(kinds.len());
    let share = |row: &Row| row.pages_for_50_of_misses as f64 / row.pages as f64;
    let [time, size, context, _, oracle] = measured else { unreachable!("there are five") };
    let mut rows = Rows::of(id);
    rows.number("pages for 50 % of accesses, by time (glibc)", "%", 60.0, share(time) * 100.0, 0.2)
        .because(format!("half of the accesses are never in more than half of the pages, if the hottest come first: ∼60 % was counted in another way. {CACHED}"));
    rows.number(
        "pages for 50 % of accesses, by size (jemalloc)",
        "%",
        30.0,
        share(size) * 100.0,
        0.2,
    )
    .because(CACHED);
    rows.number(
        "pages for 50 % of accesses, by popularity (oracle)",
        "%",
        5.0,
        share(oracle) * 100.0,
        0.2,
    )
    .because(CACHED);
    let order = |rows: [&Row; 2]| share(rows[0]) > share(rows[1]);
    let said =
        |rows: [&Row; 2]| format!("{} and {}", percent(share(rows[0])), percent(share(rows[1])));
    rows.claim(
        "by size needs fewer pages than by time",
        "30 % instead of 60 %",
        said([time, size]),
        "it does",
        order([time, size]),
    )
    .because(
        "all of this tree's objects have two sizes, so that size tells nothing. With real glibc and jemalloc under the same tree it is 31 and 37 % \
         (terrace-bench objects, a million keys, 4 MiB of cache)",
    );
    rows.claim(
        "by context needs fewer pages than by size",
        "yes",
        said([size, context]),
        "it does",
        order([size, context]),
    )
    .because("the inner nodes' misses are too few to show");
    rows.claim(
        "by popularity needs fewer pages than by context",
        "yes",
        said([context, oracle]),
        "it does",
        order([context, oracle]),
    )
    .because("popularity was counted over all touches, not over misses of the cache");
    rows.ours("pages for 50 % of accesses, by context (Jenga)", "%", share(context) * 100.0);
    for row in larger {
        rows.ours(
            format!("the same with {LARGER} times the cache, {}", row.layout),
            "%",
            share(row) * 100.0,
        );
    }
    for row in measured {
        let lines = row.pages_for_50 as f64 / row.pages as f64 * 100.0;
        rows.ours(
            format!("pages for 50 % of all lines touched, cached or not, {}", row.layout),
            "%",
            lines,
        );
    }
    let groups = measured.iter().map(|row| row.layout.to_owned()).collect();
    let bars = |rows: &[Row], of: fn(&Row) -> usize| {
        rows.iter().map(|row| of(row) as f64 / row.pages as f64 * 100.0).collect()
    };
    let bars = vec![
        ("for 50 %".to_owned(), bars(measured, |row| row.pages_for_50_of_misses)),
        ("for 80 %".to_owned(), bars(measured, |row| row.pages_for_80_of_misses)),
        (format!("50 %, {LARGER}× cache"), bars(larger, |row| row.pages_for_50_of_misses)),
    ];
    Ok(Figure {
        id,
        title: "How many pages have half of the accesses, by allocator",
        claim: "For a read-only Btree, glibc and jemalloc need ∼60 % and ∼30 % of the pages in the fast tier for 50 % of the accesses, \
                an allocator that sorts by popularity ∼5 %; context-based grouping comes next to that.",
        run_with: format!("{} And with a cache {LARGER} times as large.", about(options)),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Pages that have 50 % and 80 % of the accesses to memory".into(),
            axes: ["allocator", "% of all pages"],
            drawing: Drawing::Bars(groups, bars),
        }],
        note: "That grouping by context needs about half as many pages as by size, and popularity fewer still, is what the paper says. \
               The levels are not, and cannot all be: taken from the hottest page on, half of the accesses are in half of the pages at \
               most, so ∼60 % must have been counted in another way. Levels depend on what the caches hold back: the larger they are, \
               the more of what is left goes to leaves and records, which are all alike under uniform lookups. By size does not come out \
               better than by time here: all of this tree's objects have two sizes. With real glibc and jemalloc under the same tree \
               (terrace-bench objects, a million keys, 4 MiB of cache) it is 31 and 37 %. Counting every access, cached or not, half of \
               them are in a few pages under any allocator."
            .into(),
    })
}

/// Contexts of the tree's objects of 32 bytes, as `tree` numbers them.
const OF_32_BYTES: [(u32, &str); 5] = [
    (5, "inner node"),
    (3, "inner node's pointers"),
    (2, "leaf"),
    (0, "leaf's pointers"),
    (6, "record"),
];

fn figure_5(options: &Options) -> Result<Figure> {
    let id = "jenga-fig5";
    let (config, _) = tree(options);
    let (mut contexts, mut counts) = (Vec::new(), Vec::<u32>::new());
    for_each(&mut Tree::new(config), |event| match event {
        Event::Allocated(request) => {
            contexts.push(request.context);
            counts.push(0);
        }
        Event::Touched { object, .. } => counts[object as usize] += 1,
        _ => {}
    })?;
    let of = |context: u32| -> Vec<f64> {
        let mut counts: Vec<f64> = contexts
            .iter()
            .zip(&counts)
            .filter(|(other, _)| **other == context)
            .map(|(_, count)| f64::from(*count))
            .collect();
        counts.sort_by(f64::total_cmp);
        counts
    };
    let groups: Vec<(&str, Vec<f64>)> =
        OF_32_BYTES.iter().map(|(context, name)| (*name, of(*context))).collect();
    let explained = explained(
        &groups
            .iter()
            .map(|(_, counts)| counts.iter().map(|count| (1.0 + count).log2()).collect())
            .collect::<Vec<_>>(),
    );
    let mean = |counts: &[f64]| counts.iter().sum::<f64>() / (counts.len() as f64).max(1.0);
    let mut rows = Rows::of(id);
    let (inner, leaf, record) = (mean(&groups[0].1), mean(&groups[2].1), mean(&groups[4].1));
    rows.claim(
        "one context's objects differ in popularity from others' of the same size",
        "context 1 differs from 2 and 3",
        format!(
            "accesses per object: inner nodes {}, leaves {}, records {}",
            short(inner),
            short(leaf),
            short(record)
        ),
        "context 1's have twice the accesses of the others'",
        inner > 2.0 * leaf.max(record),
    )
    .because("inner nodes are too few levels above leaves in so small a tree");
    rows.claim(
        "objects of one context are alike",
        "\"similar access patterns\"",
        format!(
            "the context explains {} of how objects differ (variance of the logarithm)",
            percent(explained)
        ),
        "it explains more than half",
        explained > 0.5,
    )
    .because("within inner nodes there is the height in the tree besides, which no context knows");
    for (name, counts) in &groups {
        rows.ours(format!("accesses per object, {name}"), "", mean(counts));
    }
    let line = |counts: &[f64]| {
        (0..=100)
            .map(|at| {
                (f64::from(at), (1.0 + counts[(counts.len() - 1) * at as usize / 100]).log2())
            })
            .collect()
    };
    // Pointers are read as often as their nodes.
    let lines =
        groups.iter().filter(|(name, counts)| !counts.is_empty() && !name.ends_with("pointers"));
    let lines = lines.map(|(name, counts)| ((*name).to_owned(), line(counts))).collect();
    Ok(Figure {
        id,
        title: "Popularity of objects of the same size, by calling context",
        claim: "Objects with the same calling context and size have similar access patterns, compared to objects of the same size from \
                other contexts.",
        run_with: format!(
            "{} Here all touches of objects are counted, in the cache or not.",
            about(options)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Accesses of the tree's objects of 32 bytes".into(),
            axes: ["% of the context's objects, the least popular first", "log2 (1 + accesses)"],
            drawing: Drawing::Lines(lines),
        }],
        note: "The paper shows some objects of three contexts, without numbers. Here contexts separate inner nodes from leaves and \
               records; within inner nodes there is the height in the tree besides, which no context knows."
            .into(),
    })
}

/// The share of the variance that is between groups.
fn explained(groups: &[Vec<f64>]) -> f64 {
    let all: Vec<f64> = groups.iter().flatten().copied().collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let overall = mean(&all);
    let total: f64 = all.iter().map(|value| (value - overall).powi(2)).sum();
    let between: f64 = groups
        .iter()
        .filter(|group| !group.is_empty())
        .map(|group| group.len() as f64 * (mean(group) - overall).powi(2))
        .sum();
    if total > 0.0 { between / total } else { 0.0 }
}

/// Samples of the page in a period, and periods.
const A_PERIOD: u64 = 100;
const PERIODS: u64 = 20;
/// Number of looks at the counter in a period.
const LOOKS: u64 = 100;

/// A page's counter through `PERIODS` cooling periods, after as many in which it settles. It is met
/// by `A_PERIOD` samples of each, evenly or by chance.
fn counters(config: Counters, by_chance: bool, seed: u64) -> Vec<(f64, f64)> {
    let period = jenga::COOLING_SAMPLES;
    let mut hotness = Hotness::new(Counters {
        begins_hot: false,
        cooling_samples: period,
        adapt_samples: u64::MAX,
        ..config
    });
    (0..2).for_each(|unit| hotness.arrived(unit, Place::Slow, 1));
    let mut random = SmallRng::seed_from_u64(seed);
    let mut seen = Vec::new();
    for sample in 0..2 * PERIODS * period {
        let met = if by_chance {
            u64::from(random.next_u32()) * period < A_PERIOD << 32
        } else {
            sample % (period / A_PERIOD) == 0
        };
        hotness.sampled(u32::from(!met), 1);
        if sample >= PERIODS * period && sample % (period / LOOKS) == 0 {
            seen.push((
                (sample - PERIODS * period) as f64 / period as f64,
                f64::from(hotness.counter(0)),
            ));
        }
    }
    seen
}

fn bin(counter: f64) -> u32 {
    ((counter + 1.0).log2() as u32).min(15)
}

fn figure_6(options: &Options) -> Figure {
    let id = "jenga-fig6";
    let (sawtooth, smooth) = (
        counters(memtis::QUICK_COOLING, false, options.seed),
        counters(jenga::CONFIG, false, options.seed),
    );
    let ratio = |line: &[(f64, f64)]| {
        let (low, high) = line.iter().fold((f64::MAX, f64::MIN), |(low, high), (_, value)| {
            (low.min(*value), high.max(*value))
        });
        high / low
    };
    let changes = |config| {
        counters(config, true, options.seed)
            .windows(2)
            .filter(|pair| bin(pair[0].1) != bin(pair[1].1))
            .count() as f64
    };
    let (sawtooth_changes, smooth_changes) =
        (changes(memtis::QUICK_COOLING), changes(jenga::CONFIG));
    // As it is printed: (x/2) · AC + cpaccesses / 2, with AC = cpaccesses at the end.
    let steady = A_PERIOD as f64;
    let literal: Vec<(f64, f64)> = (0..PERIODS * LOOKS)
        .map(|look| {
            let x = (look % LOOKS) as f64 / LOOKS as f64;
            (look as f64 / LOOKS as f64, x / 2.0 * steady + x * steady / 2.0)
        })
        .collect();
    let mut rows = Rows::of(id);
    rows.claim(
        "sawtooth: a counter is halved at each period's end",
        "by 1/2",
        format!("highest over lowest {}", short(ratio(&sawtooth))),
        "between 1.8 and 2.1",
        (1.8..=2.1).contains(&ratio(&sawtooth)),
    )
    .because("a counter of few samples is rounded");
    rows.claim(
        "smooth: no sudden change under a steady rate",
        "none",
        format!("highest over lowest {}", short(ratio(&smooth))),
        "below 1.1",
        ratio(&smooth) < 1.1,
    )
    .because("a counter of few samples is rounded");
    rows.claim(
        "fewer changes of bin under sampling noise",
        "pages \"do not frequently move across bins\"",
        format!("{smooth_changes} instead of {sawtooth_changes} in {PERIODS} periods"),
        "they are fewer",
        smooth_changes < sawtooth_changes,
    )
    .because("chance, of one page");
    let literal_ratio =
        ratio(&literal.iter().copied().map(|(x, value)| (x, value + 1.0)).collect::<Vec<_>>());
    rows.claim(
        "the formula as printed (§5.2) is smooth",
        "yes",
        "it goes from 0 to what it should be in each period",
        "highest over lowest below 1.1",
        literal_ratio < 1.1,
    )
    .because(
        "½ · x · AC + ½ · cpaccesses is 0 at x = 0, where the text wants AC; at x = 1 it is right. (1 − x/2) · AC + ½ · cpaccesses is both, \
         and what the policy here has",
    );
    let shown =
        |line: &[(f64, f64)]| line.iter().copied().filter(|(x, _)| *x < 6.0).collect::<Vec<_>>();
    let lines = vec![
        ("sawtooth (AC)".to_owned(), shown(&sawtooth)),
        ("smooth (AS)".to_owned(), shown(&smooth)),
        ("as printed".to_owned(), shown(&literal)),
    ];
    Figure {
        id,
        title: "Smooth against sawtooth hotness",
        claim: "Halving counters at the end of each cooling period gives a sawtooth; Jenga's counter decays a little at every access and \
                does not.",
        run_with: format!(
            "The policies' own counters: a page with {A_PERIOD} samples in each cooling period of {} samples, evenly; and by chance for \
             the changes of bin, one seed.",
            jenga::COOLING_SAMPLES
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "A page's counter under a steady rate".into(),
            axes: ["cooling periods", "counter"],
            drawing: Drawing::Lines(lines),
        }],
        note: "The formula that the paper prints, ½ · x · AC + ½ · cpaccesses, is 0 at each period's beginning. The policy here has the \
               one form with the paper's ½ of cpaccesses that is continuous, steady under a steady rate, and equal to AC at each \
               period's end, as the paper asks: (1 − x/2) · AC + ½ · cpaccesses."
            .into(),
    }
}

/// What an allocator sees of a stack, in this order:
/// - `wrappers` frames of the program's own allocation functions, the same for every caller;
/// - where in `make_node` or `make_record` it was called;
/// - the caller of that, which alone tells leaves from inner nodes.
struct Shallow {
    tree: Tree,
    /// Frames behind the wrappers.
    visible: u32,
}

impl ObjectSource for Shallow {
    fn next_block(&mut self, events: &mut Vec<Event>) -> Result<(), SourceError> {
        self.tree.next_block(events)?;
        for event in events {
            if let Event::Allocated(request) = event {
                request.context = match (self.visible, request.context) {
                    (0, _) => 0,
                    // A leaf's three objects and an inner node's are made by the same lines.
                    (1, context @ 3..=5) => context - 3,
                    (_, context) => context,
                };
            }
        }
        Ok(())
    }
}

const DEPTHS: u32 = 14;

fn figure_12(options: &Options) -> Result<Figure> {
    let id = "jenga-fig12";
    let (config, cache) = tree(options);
    let by_frames = (0..=2)
        .map(|visible| {
            measure(
                &move || -> Box<dyn ObjectSource> {
                    Box::new(Shallow { tree: Tree::new(config), visible })
                },
                Kind::Context,
                cache,
            )
        })
        .collect::<Result<Vec<Row>, _>>()?;
    let amat = |depth: u32, wrappers: u32| {
        by_frames[depth.saturating_sub(wrappers).min(2) as usize].amat_ns(80.0, 300.0)
            * by_frames[depth.saturating_sub(wrappers).min(2) as usize].misses as f64
    };
    let best = amat(DEPTHS, 0);
    let line = |wrappers| {
        (1..=DEPTHS)
            .map(|depth| (f64::from(depth), best / amat(depth, wrappers)))
            .collect::<Vec<_>>()
    };
    let mut rows = Rows::of(id);
    let pages = |visible: usize| {
        by_frames
            .get(visible)
            .map(|row| row.pages_for_50_of_misses as f64 / row.pages as f64)
            .context("there are three")
    };
    rows.claim(
        "contexts too short to tell callers apart group badly",
        "depths 1 to 3 \"are not able to group objects effectively\"",
        format!(
            "pages for half of the accesses: no caller {}, the allocating line {}, its caller too {}",
            percent(pages(0)?),
            percent(pages(1)?),
            percent(pages(2)?)
        ),
        "the caller saves a fifth of the pages or more, and nothing less does",
        pages(2)? < 0.8 * pages(0)?.min(pages(1)?),
    )
    .because("too few inner nodes miss the cache");
    rows.unjudged(
        "from which depth on",
        "4",
        "2 frames behind the program's own wrappers of malloc: 2 without any, 4 with two of them",
    );
    rows.unjudged(
        "insensitive from 4 to 14",
        "yes",
        "deeper frames tell this tree nothing more; what they cost is not modelled",
    );
    rows.unjudged(
        "cost of a backtrace of depth 10",
        "100 cycles",
        "a matter of processors: measured by terrace-bench contexts (docs/benchmarks.md)",
    );
    rows.ours(
        "performance of a depth of 1 over that of 4, without wrappers",
        "",
        best / amat(1, 0),
    );
    Ok(Figure {
        id,
        title: "Depth of the backtrace",
        claim: "Depths of 1 to 3 are not able to group objects effectively, which costs performance; from 4 to 14 it makes no difference.",
        run_with: format!(
            "{} Contexts are cut to so many frames; with 0 or 2 wrappers of malloc in the program. Performance: time of all accesses to \
             memory at 80 and 300 ns, the hottest fifth of the pages fast, over that of the full context.",
            about(options)
        ),
        rows: rows.done(),
        plots: vec![Plot {
            name: id.into(),
            title: "Performance by depth, relative to the full context".into(),
            axes: ["frames", ""],
            drawing: Drawing::Lines(vec![
                ("no wrapper".into(), line(0)),
                ("two wrappers".into(), line(2)),
            ]),
        }],
        note: "Where the step is depends on the program, not on the allocator: this tree's is at 2 frames, and each wrapper moves it by \
               one. The paper's at 4 would be a program with two, or an allocator that counts two frames of its own."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_by_hand() {
        // Means 1 and 4 about 2.5: 2 · 2.25 · 2 of a total of 9 + 2 · 0.5.
        assert!((explained(&[vec![0.5, 1.5], vec![3.5, 4.5]]) - 9.0 / 10.0).abs() < 1e-12);
        assert_eq!(explained(&[vec![1.0], vec![1.0]]), 0.0);
    }

    #[test]
    fn the_sawtooth_halves_and_the_smooth_one_does_not() {
        let figure = figure_6(&Options { quick: true, seed: 1 });
        let verdicts: Vec<&str> = figure.rows.iter().map(|row| row.verdict.name()).collect();
        assert_eq!(
            verdicts,
            ["reproduced", "reproduced", "reproduced", "not reproduced"],
            "{:?}",
            figure.rows
        );
    }
}
