//! `terrace characterize`: what each tier makes of a user's own data on this machine: how much
//! it takes of memory, and how long a page takes to be stored and to be restored.
//!
//! Each tier is measured alone, with the codec and the pool that `terrace run` uses: pages are
//! encoded and stored one after the other, then restored in random order and compared. Nothing of
//! a fault is in these times: they are the tier's part of it.

use crate::cost::prices::{Price, Prices};
use crate::processes::idle;
use crate::quantity::{bytes, share, short_time};
use crate::reproduce::plot::{Drawing, Plot};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use terrace_tiers::{
    DramMedium, EXTENT_BYTES, FileMedium, Location, MediumKind, PAGE_BYTES, Page, ReadBuffer,
    RegionStore, Scratch, Tier, TierKind, TierSpec, parse_tiers, presets::Slow,
};

/// `terrace characterize`.
#[derive(Args, Debug)]
pub struct CharacterizeArguments {
    /// Data to measure with: pages evenly over this file (may be repeated). Without --data and
    /// --pid, text is generated that compresses as nci and dickens of the Silesia corpus do
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Pages of this process's anonymous memory, chosen at random (may be repeated; it runs on)
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// The tiers to measure, each alone, as in `terrace run`
    #[arg(long, value_name = "LIST", default_value = "dram,lz4,zstd:-1,zstd:1,zstd:3,zstd:9")]
    pub tiers: String,
    /// Measure the twelve tiers of TierScape's Figure 2 instead: lz4, lzo, deflate, in pools zbud
    /// and zsmalloc, in DRAM and on the slow medium (a node, else files)
    #[arg(long, conflicts_with = "tiers")]
    pub paper: bool,
    /// At most this many pages of each
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub pages: u32,
    /// A file of prices in place of the table that is built in (docs/explanation/tiers.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// What a byte costs on a medium, DRAM's being 1: dram, node or file (may be repeated)
    #[arg(long, value_name = "MEDIUM=PRICE")]
    pub price: Vec<Price>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw cost against the time of a restore into this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// Pages of a region, which has a pool of its own.
const REGION_PAGES: usize = 512;
/// Extents of a region at most, without compacting: 2 MiB of pages that do not compress take five.
const EXTENTS_MAX: usize = 8;

/// Pages and where they are from.
struct Data {
    name: String,
    pages: Vec<Page>,
}

/// What a tier makes of some data.
#[derive(Debug, Serialize)]
struct Measured {
    tier: String,
    /// Memory of the medium for each byte of data, with all that the pool takes.
    stored: f64,
    /// Cost of a byte of data at the medium's price: 1 is all of it in DRAM.
    cost: f64,
    store_p50_ns: u64,
    store_p99_ns: u64,
    restore_p50_ns: u64,
    restore_p99_ns: u64,
}

#[derive(Serialize)]
struct Of {
    data: String,
    pages: usize,
    tiers: Vec<Measured>,
}

#[derive(Serialize)]
struct Answer {
    version: u32,
    prices_of: String,
    sets: Vec<Of>,
}

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &CharacterizeArguments) -> Result<u8> {
    let named = match arguments.paper {
        true => papers_tiers()?,
        false => parse_tiers(&arguments.tiers)?,
    };
    let specs: Vec<TierSpec> =
        named.into_iter().filter(|spec| matches!(spec.kind, TierKind::Compressed { .. })).collect();
    ensure!(
        !specs.is_empty(),
        "no tier of `{}` stores pages of its own: name some with codecs, such as dram,lz4,zstd:1",
        arguments.tiers
    );
    let prices = Prices::with(arguments.prices.as_deref(), &arguments.price)?;
    let mut sets = Vec::new();
    for data in all_data(arguments)? {
        let tiers = specs
            .iter()
            .map(|spec| measure(spec, &data.pages, &prices))
            .collect::<Result<Vec<_>>>()
            .with_context(|| data.name.clone())?;
        sets.push(Of { data: data.name, pages: data.pages.len(), tiers });
    }
    let answer = Answer { version: 1, prices_of: prices.dated().to_owned(), sets };
    if let Some(path) = &arguments.svg {
        std::fs::write(path, picture(&answer).svg_file()?)
            .with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    } else {
        write!(out, "{}", text(&answer))?;
    }
    Ok(0)
}

/// C1 to C12 of TierScape's Figure 2, with the slow medium that this machine has.
fn papers_tiers() -> Result<Vec<TierSpec>> {
    let slow = Slow::of_machine().medium();
    let mut tiers = Vec::new();
    for codec in ["lz4", "lzo", "deflate"] {
        for pool in ["zbud", "zsmalloc"] {
            for medium in ["dram", &slow] {
                let tier = format!("dram,{codec}/{pool}@{medium}");
                tiers.push(parse_tiers(&tier)?.remove(1));
            }
        }
    }
    for (number, tier) in tiers.iter_mut().enumerate() {
        tier.name = format!("C{} {}", number + 1, tier.name);
    }
    Ok(tiers)
}

fn text(answer: &Answer) -> String {
    let mut lines = Vec::new();
    for set in &answer.sets {
        let size = bytes((set.pages * PAGE_BYTES) as u64);
        lines.push(format!("{} ({} pages, {size})", set.data, set.pages));
        let width =
            set.tiers.iter().map(|tier| tier.tier.chars().count()).max().unwrap_or(0).max(4);
        lines.push(format!(
            "  {:<width$} {:>8} {:>8} {:>11} {:>9} {:>13} {:>9}",
            "tier", "stored", "cost", "store, p50", "p99", "restore, p50", "p99"
        ));
        for tier in &set.tiers {
            lines.push(format!(
                "  {:<width$} {:>8} {:>8} {:>11} {:>9} {:>13} {:>9}",
                tier.tier,
                share(tier.stored),
                share(tier.cost),
                short_time(tier.store_p50_ns),
                short_time(tier.store_p99_ns),
                short_time(tier.restore_p50_ns),
                short_time(tier.restore_p99_ns)
            ));
        }
    }
    lines.push(format!(
        "stored: of what the pages take in DRAM; cost: at the prices of {} (DRAM is 100%); a fault takes some microseconds more",
        answer.prices_of
    ));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn picture(answer: &Answer) -> Plot {
    let several = answer.sets.len() > 1;
    let points = answer.sets.iter().flat_map(|set| {
        set.tiers.iter().map(move |tier| {
            let name =
                if several { format!("{}, {}", tier.tier, set.data) } else { tier.tier.clone() };
            (name, (tier.restore_p50_ns as f64 / 1e3, tier.cost * 100.0))
        })
    });
    Plot {
        name: "characterize".into(),
        title: "What a page costs in each tier, and how long it takes to be restored".into(),
        axes: ["restore, p50, µs", "cost, % of DRAM"],
        drawing: Drawing::Points(points.collect()),
    }
}

fn all_data(arguments: &CharacterizeArguments) -> Result<Vec<Data>> {
    let most = arguments.pages as usize;
    let mut all = Vec::new();
    for file in &arguments.data {
        let pages = pages_of_file(file, most).with_context(|| file.display().to_string())?;
        all.push(Data { name: file.display().to_string(), pages });
    }
    for pid in &arguments.pid {
        let pages = idle::sample_of(*pid, most);
        if pages.is_empty() {
            bail!(
                "no anonymous memory of process {pid} can be read: it has none, or is not yours (then be root)"
            );
        }
        all.push(Data { name: format!("process {pid}"), pages });
    }
    if all.is_empty() {
        for (name, random) in [("structured", 10), ("prose", 71)] {
            let name = format!("{name} text, generated");
            all.push(Data { name, pages: generated(random, most) });
        }
    }
    Ok(all)
}

/// Pages of a file, evenly over all of it. What is behind its last whole page is left out.
pub fn pages_of_file(path: &Path, most: usize) -> Result<Vec<Page>> {
    let file = File::open(path)?;
    let there = (file.metadata()?.len() / PAGE_BYTES as u64) as usize;
    ensure!(there > 0, "has less than a page (4096 bytes)");
    let taken = there.min(most);
    (0..taken)
        .map(|number| {
            let mut page = [0; PAGE_BYTES];
            let offset = (number as u64 * there as u64 / taken as u64) * PAGE_BYTES as u64;
            file.read_exact_at(&mut page, offset)?;
            Ok(page)
        })
        .collect()
}

/// Text of which one chunk of 16 bytes in a hundred is random for each of `random`, and the
/// others are words: 10 gives the ratio of nci, 71 that of dickens with lz4, of the Silesia corpus.
fn generated(random: u32, pages: usize) -> Vec<Page> {
    let mut source = SmallRng::seed_from_u64(1);
    (0..pages)
        .map(|_| {
            let mut page = [0; PAGE_BYTES];
            for chunk in page.as_chunks_mut::<16>().0 {
                *chunk = if source.random_range(0..100) < random {
                    source.random::<u128>().to_le_bytes()
                } else {
                    *[
                        b"the cell is not ",
                        b"and each of them",
                        b" 0.0000  0.0000 ",
                        b"what it had been",
                    ][source.random_range(0..4usize)]
                };
            }
            page
        })
        .collect()
}

/// Stores all pages in a tier of this kind and restores them.
fn measure(spec: &TierSpec, pages: &[Page], prices: &Prices) -> Result<Measured> {
    let (medium, tier) = match &spec.kind {
        TierKind::Compressed { medium: MediumKind::File { directory }, .. } => {
            FileMedium::check(directory)?;
            ("file", Tier::in_files(spec.clone(), FileMedium::new(directory)))
        }
        TierKind::Compressed { medium: MediumKind::Node { .. }, .. } => {
            bail!("memory of a node cannot be measured here: write @dram, whose codec is as fast")
        }
        _ => {
            // Addresses only: what is not stored takes no memory.
            let room = pages.len().div_ceil(REGION_PAGES) * EXTENTS_MAX * EXTENT_BYTES;
            ("dram", Tier::new(spec.clone(), Arc::new(DramMedium::new(room)?)))
        }
    };
    let begun = Instant::now();
    let clock = || begun.elapsed().as_nanos() as u64;
    let training = tier.training_pages();
    if training > 0 && pages.len() >= training {
        tier.train(&pages[..training], &clock);
    }
    let tiers = [tier];
    let mut scratch = Scratch::new();
    let mut stores: Vec<RegionStore> = Vec::new();
    let mut places: Vec<(usize, Location)> = Vec::with_capacity(pages.len());
    let mut store_ns = Vec::with_capacity(pages.len());
    for region in pages.chunks(REGION_PAGES) {
        let mut store = RegionStore::new();
        for page in region {
            let from = clock();
            let location = store.insert(&tiers, 0, tiers[0].encode(page, &mut scratch))?;
            store_ns.push(clock() - from);
            places.push((stores.len(), location));
        }
        stores.push(store);
    }
    let held = tiers[0].stats.physical_bytes();
    let mut order: Vec<usize> = (0..pages.len()).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(2));
    let mut restore_ns = Vec::with_capacity(pages.len());
    let (mut buffer, mut page) = (ReadBuffer::new(), [0; PAGE_BYTES]);
    for number in order {
        let (store, location) = places[number];
        let from = clock();
        let encoded = stores[store].page(location, &mut buffer)?;
        tiers[0].decode(encoded, &mut page, &mut scratch)?;
        restore_ns.push(clock() - from);
        ensure!(page == pages[number], "{} gave back another page than it was given", spec.name);
    }
    let stored = held as f64 / (pages.len() * PAGE_BYTES) as f64;
    Ok(Measured {
        tier: spec.name.clone(),
        stored,
        cost: stored * prices.of(medium),
        store_p50_ns: quantile(&mut store_ns, 50),
        store_p99_ns: quantile(&mut store_ns, 99),
        restore_p50_ns: quantile(&mut restore_ns, 50),
        restore_p99_ns: quantile(&mut restore_ns, 99),
    })
}

fn quantile(of: &mut [u64], percent: usize) -> u64 {
    of.sort_unstable();
    of.get((of.len() * percent / 100).min(of.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(tiers: &str, pages: &[Page]) -> Vec<Measured> {
        let specs = parse_tiers(tiers).unwrap();
        let compressed = specs.iter().filter(|s| matches!(s.kind, TierKind::Compressed { .. }));
        compressed.map(|spec| measure(spec, pages, &Prices::default()).unwrap()).collect()
    }

    #[test]
    fn generated_text_has_the_ratio_that_is_said() {
        for (random, ratio) in [(10, 3.52), (71, 1.27)] {
            let found = &measured("dram,lz4", &generated(random, 1024))[0];
            let is_near = (1.0 / found.stored - ratio).abs() < ratio * 0.1;
            assert!(is_near, "{} instead of {ratio}", 1.0 / found.stored);
        }
    }

    #[test]
    fn the_papers_twelve_are_measured_and_zsmalloc_is_denser() {
        let specs = papers_tiers().unwrap();
        assert_eq!(specs.len(), 12);
        assert!(specs[6].name.starts_with("C7 lzo/zsmalloc@dram"), "{}", specs[6].name);
        let pages = generated(10, 2048);
        let found: Vec<Measured> =
            specs.iter().map(|spec| measure(spec, &pages, &Prices::default()).unwrap()).collect();
        for pair in [(0, 2), (4, 6), (8, 10), (1, 3), (9, 11)] {
            assert!(found[pair.1].stored < found[pair.0].stored, "{found:?}");
        }
        assert!(found[0].stored >= 0.5, "zbud has two pages in one at most: {found:?}");
    }

    #[test]
    fn a_denser_tier_takes_less_and_a_file_costs_less() {
        let directory = std::env::temp_dir();
        let list = format!("dram,lz4,zstd:3,zstd:3@file:{}", directory.display());
        let found = measured(&list, &generated(10, 1024));
        assert!(found[1].stored < found[0].stored, "{found:?}");
        assert!(found[2].cost < found[1].cost / 10.0, "{found:?}");
        assert!(found.iter().all(|tier| tier.restore_p50_ns <= tier.restore_p99_ns), "{found:?}");
    }
}
