//! Placement models in the simulator, over generated and recorded accesses and TierScape's two sets
//! of tiers: what each model saves in each setting, and what the program loses by it.
//!
//! Accesses are collected before they are played, so that all models meet the same ones. A seed
//! settles what is generated, and how regions compress. A recording is the same with each seed, but
//! for its compression.

mod verdict;

use crate::policies::{sets, traces};
use crate::results::{self, median};
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use terrace_policy::tiering::{self, Setting, Tier, cost};
use terrace_sim::objects::{Filter, layouts::Kind};
use terrace_sim::source::{Access, BLOCK, Source, SourceError};
use terrace_sim::tiering::{Outcome, Settings, regions_of, run as simulate, settings_of};
use terrace_sim::tiersets;
use terrace_sim::workload::{Pages, Workload};

/// What is compared.
#[derive(clap::Args)]
pub struct Options {
    /// Seeds, of generated accesses and of how regions compress
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Accesses of a generator
    #[arg(long, default_value_t = 8_000_000)]
    accesses: u64,
    /// Tell models what live programs tell, of which one access in 400 is sampled
    #[arg(long)]
    live: bool,
    /// Where recordings are; those that are missing are made [default: beside the benchmark]
    #[arg(long)]
    traces: Option<PathBuf>,
}

/// Pages of a generator: 256 MiB.
const PAGES: u32 = 65_536;
/// Names of the generated workloads, and what the simulator calls them. Four values of 1 KiB are in
/// a page, and one of 4 KiB.
const GENERATORS: [(&str, &str); 7] = [
    ("gauss", "gauss"),
    ("scattered-1k", "scattered:theta=0.99,elements=4"),
    ("scattered-4k", "scattered:theta=0.99,elements=1"),
    ("jump", "jump"),
    ("drift", "drift"),
    ("scan", "scan"),
    ("phases", "phases"),
];
/// Names of the recorded programs that are played.
const RECORDED: [&str; 4] = ["redis", "bfs", "pr", "lookup"];
/// Sets of tiers.
const SETS: [&str; 2] = ["tierscape-standard", "tierscape-spectrum"];
/// Knobs of our model beside those of its three settings: its curve.
const KNOBS: [f64; 9] = [0.95, 0.8, 0.7, 0.6, 0.4, 0.3, 0.2, 0.03, 0.0];

/// A model in one setting over one set of tiers.
struct Case {
    /// Index of the set.
    set: usize,
    model: &'static str,
    name: String,
    setting: Setting,
}

/// What came of a case with one seed. Latencies are multiples of those with all in DRAM.
#[derive(Clone, Copy)]
struct Found {
    saved: f64,
    slowdown: f64,
    p95: f64,
    p999: f64,
}

/// Rows of the results.
#[derive(Default)]
struct Rows {
    workloads: Vec<Value>,
    points: Vec<Value>,
    verdicts: Vec<Value>,
}

/// Runs the benchmark: prints, and writes `bench/results/placement-sim.json`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(!options.seeds.is_empty(), "no seed was named");
    let names: Vec<&str> = GENERATORS.iter().map(|(name, _)| *name).chain(RECORDED).collect();
    if let Some(name) = options.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no workload `{name}`; there are {}", names.join(", "));
    }
    let asked =
        |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let directory = match &options.traces {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?.with_file_name("recordings"),
    };
    let cases = cases();
    let mut rows = Rows::default();
    let (mut recordings, mut missing) = (Vec::new(), Vec::new());
    verdict::print_header();
    for (name, text) in GENERATORS.iter().filter(|(name, _)| asked(name)) {
        play(name, text, options, &cases, &mut rows)?;
    }
    for program in programs().filter(|program| asked(program.name)) {
        match recording(program, &directory) {
            Ok((file, description)) => {
                recordings.push(description);
                play(program.name, &file.display().to_string(), options, &cases, &mut rows)?;
            }
            Err(error) => {
                println!("without {}: {error:#}", program.name);
                missing.push(program.name);
            }
        }
    }
    if !options.only.is_empty() || options.live {
        println!("\nnot written to bench/results: it is a part, or as live\n");
        return Ok(());
    }
    results::write(
        "placement-sim",
        json!({
            "seeds": options.seeds, "accesses": options.accesses, "pages": PAGES,
            "recordings": recordings, "missing": missing, "workloads": rows.workloads,
            "rows": rows.points, "verdicts": rows.verdicts,
        }),
    )
}

/// The recorded programs, in the order of their names in [`RECORDED`].
fn programs() -> impl Iterator<Item = &'static sets::Program> {
    RECORDED.into_iter().flat_map(|name| {
        [sets::Set::Tuning, sets::Set::Heldout]
            .into_iter()
            .flat_map(|set| set.programs())
            .filter(move |program| program.name == name)
    })
}

/// A program's recording, which is made if it is missing, and what is in it.
fn recording(program: &sets::Program, directory: &Path) -> anyhow::Result<(PathBuf, Value)> {
    let file = traces::of(program, directory)?;
    let description = traces::description(program, &file)?;
    Ok((file, description))
}

/// Every model in its settings, and ours with more knobs, over both sets of tiers.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for set in 0..SETS.len() {
        for model in tiering::NAMES {
            for (name, setting) in settings_of(model) {
                cases.push(Case { set, model, name, setting });
            }
        }
        cases.extend(KNOBS.map(|alpha| Case {
            set,
            model: cost::NAME,
            name: format!("alpha {alpha}"),
            setting: Setting { alpha, percentile: 0.0 },
        }));
    }
    cases
}

/// Plays a workload with all seeds, and adds its rows.
fn play(
    name: &str,
    text: &str,
    options: &Options,
    cases: &[Case],
    rows: &mut Rows,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut found: Vec<Vec<Found>> = Vec::new();
    for seed in &options.seeds {
        let mut accesses = Accesses::of(text, options.accesses, *seed)?;
        if options.live {
            accesses.settings = Settings { live: true, sample_period: 400, ..accesses.settings };
        }
        if found.is_empty() {
            rows.workloads.push(accesses.description(name));
        }
        let regions = regions_of(accesses.units as usize);
        let mut media = Vec::new();
        for set in SETS {
            let tiers = tiersets::tiers(set).context("no such set")?;
            let stored = tiersets::stored_by_region(set, regions, *seed).context("no such set")?;
            media.push((tiers, stored));
        }
        found.push(in_parallel(cases, |case| {
            let (tiers, stored) = &media[case.set];
            one(case, &accesses, tiers, stored).with_context(|| format!("{name}, {}", case.model))
        })?);
    }
    for (number, case) in cases.iter().enumerate() {
        let each = |of: fn(&Found) -> f64| -> Vec<f64> {
            found.iter().map(|seed| of(&seed[number])).collect()
        };
        let (saved, slowdown) = (each(|of| of.saved), each(|of| of.slowdown));
        rows.points.push(json!({
            "workload": name, "tiers": SETS[case.set], "model": case.model, "setting": case.name,
            "saved": mean(&saved), "slowdown": mean(&slowdown),
            "p95": median(&each(|of| of.p95)), "p999": median(&each(|of| of.p999)),
            "saved_of_each": saved, "slowdown_of_each": slowdown,
        }));
    }
    for (set, set_name) in SETS.iter().enumerate() {
        let curves: Vec<verdict::Curves> = found
            .iter()
            .map(|seed| {
                let mut curves = verdict::Curves::new();
                for (case, of) in cases.iter().zip(seed).filter(|(case, _)| case.set == set) {
                    curves.entry(case.model).or_default().push((of.slowdown, of.saved));
                }
                curves
            })
            .collect();
        rows.verdicts.push(verdict::row(name, set_name, &curves));
    }
    println!("{name:>14}: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a case.
fn one(case: &Case, accesses: &Accesses, tiers: &[Tier], stored: &[f32]) -> anyhow::Result<Found> {
    let mut model = tiering::model(case.model, case.setting, tiers).context("no such model")?;
    let mut pass = Pass { of: accesses, next: 0 };
    let outcome: Outcome = simulate(&mut *model, &mut pass, tiers, stored, accesses.settings)?;
    ensure!(outcome.windows > 0, "there are too few accesses to judge");
    Ok(Found {
        saved: outcome.saved,
        slowdown: outcome.slowdown,
        p95: outcome.quantile(tiers, &accesses.settings, 0.05),
        p999: outcome.quantile(tiers, &accesses.settings, 0.001),
    })
}

/// Accesses of a workload, in memory, and how they are played.
struct Accesses {
    units: u32,
    all: Vec<Access>,
    settings: Settings,
}

impl Accesses {
    /// Collects the accesses of a workload. Those of a recording count from the window on in which
    /// the program has touched nearly all of its memory: until then it grows.
    fn of(text: &str, accesses: u64, seed: u64) -> anyhow::Result<Accesses> {
        let workload = Workload::parse(text, PAGES, accesses)?;
        let mut opened = workload.open(seed, Kind::Size, Filter::All, Pages::Alike(4096))?;
        let (units, mut settings) = (opened.source.units(), Settings::of(&opened));
        let (mut all, mut block) = (Vec::new(), Vec::new());
        loop {
            opened.source.next_block(&mut block)?;
            if block.is_empty() {
                break;
            }
            all.extend_from_slice(&block);
        }
        if let Some(why) = opened.ends_early.why() {
            bail!("{text} ends early: {why}");
        }
        if opened.pace.is_some() {
            let windows = all.len() as u64 / settings.window;
            let grown = grown_after(units, &all).div_ceil(settings.window);
            settings.warm_up = settings.warm_up.max(grown).min(windows / 2);
        }
        Ok(Accesses { units, all, settings })
    }

    fn description(&self, name: &str) -> Value {
        json!({
            "name": name, "pages": self.units, "accesses": self.all.len(),
            "window": self.settings.window, "warm_up": self.settings.warm_up,
            "access_ns": self.settings.access_ns, "misses": self.settings.misses,
        })
    }
}

/// Number of accesses after which 95 % of the units were touched.
fn grown_after(units: u32, all: &[Access]) -> u64 {
    let mut seen = vec![false; units as usize];
    let mut left = units - units / 20;
    for (number, access) in (0..).zip(all) {
        if !std::mem::replace(&mut seen[access.unit() as usize], true) {
            left -= 1;
            if left == 0 {
                return number;
            }
        }
    }
    all.len() as u64
}

/// One pass over accesses that are in memory.
struct Pass<'a> {
    of: &'a Accesses,
    next: usize,
}

impl Source for Pass<'_> {
    fn units(&self) -> u32 {
        self.of.units
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.of.all.len() as u64)
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        let end = (self.next + BLOCK).min(self.of.all.len());
        block.clear();
        block.extend_from_slice(&self.of.all[self.next..end]);
        self.next = end;
        Ok(())
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Does the work for all items, on all CPUs. Results are in the items' order.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<anyhow::Result<R>>>> =
        items.iter().map(|_| Mutex::new(None)).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((item, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).zip(results.get(at))
                } {
                    *slot.lock().expect("nothing panics with it") = Some(work(item));
                }
            });
        }
    });
    results
        .into_iter()
        .map(|slot| slot.into_inner().expect("nothing panics with it").expect("all was done"))
        .collect()
}
