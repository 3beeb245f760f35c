//! `terrace report utilisation` of any program: how much of the bytes of hot pages is hot, by
//! samples in units that are smaller than a page (`terrace record --accesses --unit 64`).
//!
//! A unit, or a page, is hot in a window of time if it was touched in it. Samples meet a part of
//! what was touched, so as many are hot at least as were met. How many are in all is estimated, or
//! not told where the samples of a window are too few ([`Estimate`]).
//!
//! Hits are told from the safe side. For pages as they are, the pages are chosen by the samples
//! that then count, so their hits are at most what is told. For units side by side, one half of the
//! samples chooses and the other counts, so theirs are at least what is told.

use crate::quantity::{bytes, share};
use crate::report::args::UtilisationArguments;
use crate::report::estimate::{Counts, Estimate};
use crate::report::recording::{self, count};
use crate::report::utilisation::{BUDGETS, PAGES, hits, picture, window_length};
use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use terrace_trace::accesses::{Header, Reader, page_of};

/// What was found in a window.
#[derive(Clone, Copy, Debug)]
struct Found {
    units: Estimate,
    pages: [Estimate; PAGES.len()],
    /// Parts of the accesses that hit, by budget: pages as they are at most, and hot units side by
    /// side at least.
    hits: [(f64, f64); BUDGETS.len()],
}

/// What a recording tells.
pub(super) struct Told {
    header: Header,
    window: u64,
    windows: Vec<Found>,
    /// Bytes of the pages of 4 KiB that were met at any time.
    met_bytes: u64,
    left_out: u64,
}

/// Hot bytes, and bytes of the pages that hold some.
type HotAndPages = (f64, f64);

/// The units that were met within a window, by process and by address divided by their bytes.
type Met = BTreeMap<(u32, u64), Counts>;

impl Found {
    /// What the units that were met tell, each of `unit` bytes. `budgets` are in bytes.
    fn of(met: &Met, unit: u64, budgets: &[f64; BUDGETS.len()]) -> Found {
        let by_page = PAGES.map(|page| {
            let mut counts: HashMap<(u32, u64), Counts> = HashMap::new();
            for ((process, number), [one, other]) in met {
                let sum = counts.entry((*process, number / (page / unit))).or_default();
                sum[0] += one;
                sum[1] += other;
            }
            counts
        });
        let of_pages = |counts: &Counts| (f64::from(counts[0] + counts[1]), PAGES[0] as f64);
        let as_is = hits(by_page[0].values().map(of_pages).collect(), budgets);
        let apart = hits_by_halves(met, unit as f64, budgets);
        Found {
            units: Estimate::of(met.values()),
            pages: by_page.each_ref().map(|counts| Estimate::of(counts.values())),
            hits: std::array::from_fn(|at| (as_is[at], apart[at])),
        }
    }

    /// Why it cannot be told how much is hot of so large pages, by their place in [`PAGES`].
    fn too_few(&self, page: usize) -> Option<String> {
        self.units.too_few().or_else(|| self.pages[page].too_few())
    }

    fn seen(&self, page: usize, unit: u64) -> HotAndPages {
        ((self.units.met * unit) as f64, (self.pages[page].met * PAGES[page]) as f64)
    }

    /// What is hot as estimated; `None` where samples are too few.
    fn estimated(&self, page: usize, unit: u64) -> Option<HotAndPages> {
        let pages = self.pages[page].all * PAGES[page] as f64;
        let hot = (self.units.all * unit as f64).min(pages);
        self.too_few(page).is_none().then_some((hot, pages))
    }
}

/// Part of one half's samples that hit the units that the other half met most, by budget; the mean
/// of both ways.
fn hits_by_halves(met: &Met, unit: f64, budgets: &[f64; BUDGETS.len()]) -> Vec<f64> {
    let mut hit = vec![0.0; budgets.len()];
    let mut all = 0.0;
    for (chosen, counted) in [(0usize, 1usize), (1, 0)] {
        let mut counts: Vec<&Counts> = met.values().collect();
        counts.sort_by_key(|counts| std::cmp::Reverse(counts[chosen]));
        all += counts.iter().map(|counts| f64::from(counts[counted])).sum::<f64>();
        for (hit, budget) in hit.iter_mut().zip(budgets) {
            let fits = (budget / unit) as usize;
            let known = counts.iter().take(fits).filter(|counts| counts[chosen] > 0);
            *hit += known.map(|counts| f64::from(counts[counted])).sum::<f64>();
        }
    }
    hit.into_iter().map(|hit| hit / f64::max(all, 1.0)).collect()
}

/// What is told, and the exit status.
pub(super) fn read(arguments: &UtilisationArguments) -> Result<(Told, u8)> {
    let reader = Reader::open(&arguments.file)?;
    let unit = reader.header.page_bytes;
    if unit >= PAGES[0] {
        bail!(
            "its accesses are known by {}, which does not tell what of a page is hot: \
             `terrace record --accesses --unit 64` writes them by 64 bytes",
            bytes(unit)
        );
    }
    let window = window_length(arguments.window, reader.header.clock, reader.end_clock())?;
    let of_4k: HashSet<_> =
        reader.pages().iter().map(|at| (at.process, at.number / (PAGES[0] / unit))).collect();
    let met_bytes = of_4k.len() as u64 * PAGES[0];
    let budgets = BUDGETS.map(|part| part * met_bytes as f64);
    let starts: Vec<u64> = (0..reader.blocks()).map(|block| reader.block(block).0).collect();
    // What came after the last block of a file that was full, or was cut off, is not known.
    let is_whole = reader.left_out() == 0 && reader.incomplete().is_none();
    let last = starts.last().copied().unwrap_or(0);
    let mut until = if is_whole { reader.end_clock().max(last) } else { last };
    let mut incomplete = reader.incomplete().map(str::to_owned);

    let (mut met, mut windows, mut end) = (Met::new(), Vec::new(), window);
    let mut random = SmallRng::seed_from_u64(1);
    let (mut blocks, mut number) = (reader.iter(), 0);
    while let Some(block) = blocks.next() {
        let (start, records) = match block {
            Ok(block) => block,
            Err(why) => {
                incomplete = Some(why);
                until = starts[number];
                break;
            }
        };
        number += 1;
        let behind = starts.get(number).copied().unwrap_or(until);
        let length = u128::from(behind.saturating_sub(start));
        for (index, record) in (0u128..).zip(records) {
            // Records are at equal distances, as far as is known.
            let now = start + (length * index / records.len() as u128) as u64;
            if now >= end {
                if !met.is_empty() {
                    windows.push(Found::of(&met, unit, &budgets));
                    met.clear();
                }
                let passed = ((now - end) / window + 1).saturating_mul(window);
                end = end.saturating_add(passed);
            }
            let at = reader.pages()[page_of(*record) as usize];
            let counts = met.entry((at.process, at.number)).or_default();
            counts[usize::from(random.random::<bool>())] += 1;
        }
    }
    // The last window is not whole, as a rule, but in a recording of one.
    if !met.is_empty() && (until >= end || windows.is_empty()) {
        windows.push(Found::of(&met, unit, &budgets));
    }
    let status = recording::status(&arguments.file, incomplete.as_deref(), "shown");
    if windows.is_empty() {
        bail!("no access is in it, so nothing is hot (a higher --rate sees more)");
    }
    let (header, left_out) = (reader.header.clone(), reader.left_out());
    Ok((Told { header, window, windows, met_bytes, left_out }, status))
}

impl Told {
    fn unit(&self) -> u64 {
        self.header.page_bytes
    }

    /// Means over all windows of what was met.
    fn seen(&self, page: usize) -> HotAndPages {
        mean(self.windows.iter().map(|found| found.seen(page, self.unit())))
            .expect("a recording without a window is refused")
    }

    /// Means over the windows with enough samples of what is estimated, and how many these are;
    /// `None` where there are none.
    fn estimated(&self, page: usize) -> Option<(HotAndPages, usize)> {
        let of = |found: &Found| found.estimated(page, self.unit());
        let estimated: Vec<_> = self.windows.iter().filter_map(of).collect();
        Some((mean(estimated.iter().copied())?, estimated.len()))
    }

    /// Why there is no estimate of a window; the first that has none is taken.
    fn too_few(&self, page: usize) -> Option<String> {
        self.windows.iter().find_map(|found| found.too_few(page))
    }

    /// Means over all windows of the parts of accesses that hit, by budget.
    fn hits(&self) -> Vec<(f64, (f64, f64))> {
        let of = |(at, budget): (usize, f64)| {
            let hits = mean(self.windows.iter().map(|found: &Found| found.hits[at]));
            (budget, hits.expect("a recording without a window is refused"))
        };
        BUDGETS.into_iter().enumerate().map(of).collect()
    }

    fn samples(&self) -> u64 {
        self.windows.iter().map(|found| found.units.samples).sum()
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "utilisation of the pages of `{}`: {} samples in {} of {}, by {}\n",
            self.header.command.join(" "),
            count(self.samples()),
            match self.windows.len() {
                1 => "one window".to_owned(),
                windows => format!("{windows} windows"),
            },
            recording::length(self.header.clock, self.window),
            bytes(self.unit())
        );
        for (page, size) in PAGES.into_iter().enumerate() {
            let (hot, pages) = self.seen(page);
            let _ = write!(
                out,
                "  pages of {:>5}: at least {} hot, in at least {} of pages",
                bytes(size),
                bytes(hot as u64),
                bytes(pages as u64)
            );
            if let Some(((hot, pages), windows)) = self.estimated(page) {
                let _ = write!(
                    out,
                    "; about {} in {}: {}; side by side it would take {} less",
                    bytes(hot as u64),
                    bytes(pages as u64),
                    share(hot / pages.max(1.0)),
                    bytes((pages - hot) as u64)
                );
                if windows < self.windows.len() {
                    let _ = write!(out, " (in {windows} windows; too few samples in others)");
                }
            } else if let Some(why) = self.too_few(page) {
                let _ = write!(out, "; too few samples to tell more: {why}");
            }
            out.push('\n');
        }
        // Few samples bound nothing: what each met is hot, and no other sample finds it.
        let hits = self.estimated(0).map(|_| self.hits()).unwrap_or_default();
        if !hits.is_empty() {
            out += "  accesses that hit, of pages of 4 KiB, with a budget of all pages that were met:\n";
        }
        for (budget, (as_is, apart)) in hits {
            let _ = writeln!(
                out,
                "    {:>4} ({}): at most {} as it is, at least {} with what is hot side by side",
                share(budget),
                bytes((self.met_bytes as f64 * budget) as u64),
                share(as_is),
                share(apart)
            );
        }
        if let Some(full) = recording::full(self.left_out) {
            out += &full;
            out.push('\n');
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let figures = |seen: HotAndPages, estimated: Option<HotAndPages>| {
            json!({
                "hot_bytes": estimated.map(|(hot, _)| hot as u64),
                "page_bytes": estimated.map(|(_, pages)| pages as u64),
                "utilisation": estimated.map(|(hot, pages)| hot / pages.max(1.0)),
                "saved_bytes": estimated.map(|(hot, pages)| (pages - hot) as u64),
                "hot_bytes_seen": seen.0 as u64, "page_bytes_seen": seen.1 as u64,
            })
        };
        let with = |mut figures: Value, more: Value| {
            if let (Value::Object(figures), Value::Object(more)) = (&mut figures, more) {
                figures.extend(more);
            }
            figures
        };
        let pages = PAGES.into_iter().enumerate().map(|(page, size)| {
            let windows = self.windows.iter().map(|found| {
                let (seen, estimated) =
                    (found.seen(page, self.unit()), found.estimated(page, self.unit()));
                let more = json!({
                    "samples": found.units.samples, "units_met_once": found.units.once,
                    "too_few_samples": found.too_few(page),
                });
                with(figures(seen, estimated), more)
            });
            let estimated = self.estimated(page);
            let more = json!({
                "page_size": size,
                "windows_estimated": estimated.map_or(0, |(_, windows)| windows),
                "windows": windows.collect::<Vec<_>>(),
            });
            with(figures(self.seen(page), estimated.map(|(figures, _)| figures)), more)
        });
        let budgets = self.hits().into_iter().map(|(budget, (as_is, apart))| {
            json!({ "share": budget, "bytes": (self.met_bytes as f64 * budget) as u64,
                "hits_at_most": as_is, "hits_side_by_side_at_least": apart })
        });
        json!({
            "command": self.header.command.join(" "), "window": self.window,
            "source": self.header.source, "rate_hz": self.header.rate_hz,
            "unit_bytes": self.unit(), "samples": self.samples(), "met_bytes": self.met_bytes,
            "left_out": self.left_out, "pages": pages.collect::<Vec<_>>(),
            "budgets": budgets.collect::<Vec<_>>(),
        })
    }

    /// Hot bytes within the bytes of hot pages, window by window, and estimates around them.
    pub(super) fn svg(&self) -> String {
        let bars = |found: &Found| {
            let (hot, pages) = found.seen(0, self.unit());
            let mut bars = vec![(pages, "pages"), (hot, "hot")];
            if let Some((hot, pages)) = found.estimated(0, self.unit()) {
                bars.extend([(pages, "about"), (hot, "about")]);
            }
            bars
        };
        let windows: Vec<_> = self.windows.iter().map(bars).collect();
        picture(
            "bytes of pages of 4 KiB that samples met (pale), and met in them (strong); lines: \
             estimates",
            &windows,
        )
    }
}

/// Means of both parts of each; `None` of none.
fn mean(all: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
    let (mut sums, mut count) = ((0.0, 0.0), 0u64);
    for (one, other) in all {
        sums = (sums.0 + one, sums.1 + other);
        count += 1;
    }
    (count > 0).then(|| (sums.0 / count as f64, sums.1 / count as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_trace::accesses::{Clock, Page, Writer};

    const SECOND: u64 = 1_000_000;

    /// What is told of so many samples, even over `us`. Each is of a unit of 64 bytes that is drawn
    /// from `units`: its number is its address divided by 64.
    fn told_of(units: &[u64], samples: u64, us: u64, window: Option<u64>) -> Result<Told> {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("recording");
        write(&file, 64, units, samples, us);
        read(&UtilisationArguments { file, window, json: false, svg: None }).map(|(told, _)| told)
    }

    fn write(file: &std::path::Path, unit: u64, units: &[u64], samples: u64, us: u64) {
        let header = Header {
            terrace: String::new(),
            command: vec!["store".into()],
            source: "clock".into(),
            clock: Clock::Us,
            period: 1,
            rate_hz: 1000,
            writes: true,
            cache: None,
            page_bytes: unit,
        };
        let mut writer = Writer::create(file, &header, u64::MAX).unwrap();
        let mut random = SmallRng::seed_from_u64(5);
        for sample in 0..samples {
            let number = units[random.random_range(0..units.len())];
            writer.append(Page { process: 7, number }, false, sample * us / samples).unwrap();
        }
        writer.finish(us).unwrap();
    }

    /// Every 64 bytes of so many pages.
    fn dense(pages: u64) -> Vec<u64> {
        (0..pages * 64).map(|unit| (1 << 24) + unit).collect()
    }

    /// One line of 64 bytes in each of so many pages.
    fn strewn(pages: u64) -> Vec<u64> {
        (0..pages).map(|page| (1 << 24) + page * 64 + 9).collect()
    }

    #[test]
    fn utilisation_is_estimated_where_samples_suffice() {
        // 4096 units each.
        for (units, pages) in [(dense(64), 64), (strewn(4096), 4096)] {
            let told = told_of(&units, 12_000, 10 * SECOND, None).unwrap();
            assert_eq!((told.windows.len(), told.window), (1, 10 * SECOND));
            let ((hot, of), windows) = told.estimated(0).unwrap();
            assert_eq!(windows, 1);
            let truth = (4096.0 * 64.0, pages as f64 * 4096.0);
            assert!((hot / truth.0 - 1.0).abs() < 0.04, "{hot} of {truth:?}");
            assert!((of / truth.1 - 1.0).abs() < 0.04, "{of} of {truth:?}");
            // What was met is less.
            let seen = told.seen(0);
            assert!(seen.0 < truth.0 && seen.0 > 0.9 * truth.0 && seen.1 <= truth.1, "{seen:?}");
            let text = told.text();
            assert!(text.contains("; about 2") && text.contains("at least"), "{text}");
            assert!(!text.contains("too few"), "{text}");
            let json = told.json();
            let told_share = json["pages"][0]["utilisation"].as_f64().unwrap();
            assert!((told_share / (truth.0 / truth.1) - 1.0).abs() < 0.08, "{json}");
            assert_eq!(json["pages"][0]["windows"].as_array().unwrap().len(), 1);
            assert!(told.svg().contains("class=\"about\""));
            // 64 pages are in one of 2 MiB, and 4096 in eight.
            let large = json["pages"][1]["page_bytes"].as_f64().unwrap();
            assert_eq!(large, (pages as f64 / 512.0).ceil() * PAGES[1] as f64);
        }
    }

    #[test]
    fn no_figure_is_told_where_samples_are_too_few() {
        let told = told_of(&strewn(100_000), 1000, 10 * SECOND, None).unwrap();
        assert_eq!(told.estimated(0), None);
        let seen = told.seen(0);
        assert!(seen.0 > 900.0 * 64.0 && seen.0 <= 1000.0 * 64.0, "{seen:?}");
        let text = told.text();
        assert!(text.contains("too few samples to tell more: "), "{text}");
        assert!(!text.contains("about"), "{text}");
        let json = told.json();
        let of_4k = &json["pages"][0];
        assert!(of_4k["utilisation"].is_null() && of_4k["saved_bytes"].is_null(), "{json}");
        assert!(of_4k["windows"][0]["too_few_samples"].is_string(), "{json}");
        assert!(!told.svg().contains("class=\"about\""));
    }

    #[test]
    fn what_is_strewn_would_hit_more_side_by_side() {
        let hits = |units: &[u64]| -> Vec<_> {
            let told = told_of(units, 20_000, 10 * SECOND, None).unwrap();
            told.hits().into_iter().map(|(_, hits)| hits).collect()
        };
        // All of 256 KiB fits into a twentieth of the pages; of those a twentieth does.
        let (as_is, apart) = hits(&strewn(4096))[0];
        assert!(as_is < 0.15 && apart > 0.85, "{as_is} and {apart}");
        for (as_is, apart) in hits(&dense(64)) {
            assert!(apart < as_is + 0.05, "{as_is} and {apart}");
        }
    }

    #[test]
    fn windows_are_whole_but_in_a_recording_of_one() {
        let windows = |us, window| -> Vec<u64> {
            let told = told_of(&dense(1), 2_500, us, window).unwrap();
            told.windows.iter().map(|found| found.units.samples).collect()
        };
        assert_eq!(windows(25 * SECOND, None), [1000, 1000]);
        assert_eq!(windows(20 * SECOND, None), [1250, 1250]);
        assert_eq!(windows(3 * SECOND, None), [2500]);
        assert_eq!(windows(5 * SECOND, Some(SECOND)), [500; 5]);
        assert!(told_of(&dense(1), 10, SECOND, Some(0)).is_err());
        let none = told_of(&dense(1), 0, SECOND, None);
        assert!(none.is_err_and(|why| why.to_string().contains("no access")));
    }

    #[test]
    fn accesses_by_whole_pages_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("recording");
        write(&file, 4096, &dense(1), 100, SECOND);
        let told = read(&UtilisationArguments { file, window: None, json: false, svg: None });
        assert!(told.is_err_and(|why| why.to_string().contains("--unit 64")));
    }
}
