//! `terrace reproduce`: the papers' figures, from the simulator: each number beside ours, with a
//! plot, as JSON and as a page that needs no network.
//!
//! One file per paper, which lists its figures; [`figure`] is what each is made of, [`plot`] draws,
//! [`page`] writes. [`study`] has policies run on what is smaller than what the papers ran.
//! `docs/reproduce.md` says what each figure is run with.

pub mod args;
mod figure;
mod jenga;
mod m2t;
mod objectier;
mod page;
pub mod plot;
mod study;
mod tierscape;

use anyhow::{Context, Result};
use args::ReproduceArguments;
use figure::{Figure, Row};
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A paper whose figures are reproduced.
pub struct Paper {
    /// The paper's name on the command line.
    name: &'static str,
    title: &'static str,
    /// Authors, venue and date of the paper, as far as given, and which part of it is reproduced
    /// here.
    cited: &'static str,
    /// What is modelled, for the page.
    about: &'static str,
    figures: &'static [&'static str],
    run: fn(&[&'static str], &Options) -> Result<Vec<Figure>>,
}

const PAPERS: [&Paper; 4] = [&jenga::PAPER, &objectier::PAPER, &m2t::PAPER, &tierscape::PAPER];

/// How figures are run.
pub struct Options {
    /// A small version.
    quick: bool,
    /// Seed from which all chance is made.
    seed: u64,
}

/// What is to be reproduced: papers, and which of their figures.
#[derive(Clone, Debug)]
pub struct Wanted(Vec<(usize, Vec<&'static str>)>, String);

/// `all`, a paper, or a figure.
pub fn wanted(name: &str) -> Result<Wanted, String> {
    let papers = PAPERS.iter().enumerate().filter_map(|(number, paper)| {
        let whole = name == "all" || name == paper.name;
        let figures: Vec<&'static str> =
            paper.figures.iter().copied().filter(|figure| whole || *figure == name).collect();
        (!figures.is_empty()).then_some((number, figures))
    });
    match papers.collect::<Vec<_>>() {
        found if !found.is_empty() => Ok(Wanted(found, name.to_owned())),
        _ => {
            let names =
                PAPERS.iter().map(|paper| format!("{} ({})", paper.name, paper.figures.join(", ")));
            Err(format!(
                "there is no such paper or figure; there are all, {}",
                names.collect::<Vec<_>>().join(", ")
            ))
        }
    }
}

/// Reproduces what is asked for, and writes it down.
pub fn run(arguments: &ReproduceArguments) -> Result<u8> {
    let options = Options { quick: arguments.quick, seed: arguments.seed };
    let out = &arguments.out;
    std::fs::create_dir_all(out)
        .with_context(|| format!("cannot make the directory {}", out.display()))?;
    let Wanted(wanted, name) = &arguments.name;
    let mut papers = Vec::new();
    for (number, figures) in wanted {
        let paper = PAPERS[*number];
        crate::say(&format!("{}: {}", paper.name, paper.title));
        let figures = (paper.run)(figures, &options)?;
        figures.iter().for_each(|figure| crate::say(&format!("  {}: {}", figure.id, figure.title)));
        papers.push((paper, figures));
    }
    // Of each figure, of each paper, and of what was asked for.
    let json = |name: &str, figures: &[&Figure]| {
        write(
            out,
            &format!("{name}.json"),
            &(json_of(figures.iter().copied(), &options).to_string() + "\n"),
        )
    };
    for (paper, figures) in &papers {
        if paper.figures.len() == figures.len() {
            json(paper.name, &figures.iter().collect::<Vec<_>>())?;
        }
        for figure in figures {
            json(figure.id, &[figure])?;
            for plot in &figure.plots {
                write(out, &format!("{}.svg", plot.name), &plot.svg_file()?)?;
            }
        }
    }
    let all = || papers.iter().flat_map(|(_, figures)| figures);
    json(name, &all().collect::<Vec<_>>())?;
    write(out, "index.html", &page::page(&papers, &options)?)?;
    let text = if arguments.json {
        json_of(all(), &options).to_string() + "\n"
    } else {
        let rows: Vec<Row> = all().flat_map(|figure| figure.rows.clone()).collect();
        page::text(&rows)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    crate::say(&format!("see {}", out.join("index.html").display()));
    Ok(0)
}

fn json_of<'f>(figures: impl Iterator<Item = &'f Figure> + Clone, options: &Options) -> Value {
    let rows: Vec<&Row> = figures.clone().flat_map(|figure| &figure.rows).collect();
    let about: Vec<Value> = figures
        .map(|figure| {
            json!({
                "figure": figure.id, "title": figure.title, "claim": figure.claim,
                "run_with": figure.run_with, "note": figure.note,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "quick": options.quick, "seed": options.seed,
        "figures": about, "rows": rows,
    })
}

fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Time between messages of progress where standard error is no terminal.
const TOLD_EVERY: Duration = Duration::from_secs(20);

/// Works on all items, as many at a time as there are processors, and says how far it is: in one
/// line of a terminal that is gone in the end, or now and then. The results have the items' order.
fn parallel<T: Sync, R: Send>(
    items: &[T],
    name: impl Fn(&T) -> String + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (terminal, told) = (std::io::stderr().is_terminal(), Mutex::new(Instant::now()));
    let tell = |name: String, done: usize| {
        let text = format!("  {name} ({done} of {})", items.len());
        let mut told = told.lock().expect("nobody panics with it");
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        } else if told.elapsed() >= TOLD_EVERY {
            *told = Instant::now();
            crate::say(&text);
        }
    };
    let results: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((item, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).zip(results.get(at))
                } {
                    let result = work(item);
                    *slot.lock().expect("nobody panics with it") = Some(result);
                    tell(name(item), done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    results
        .into_iter()
        .map(|slot| slot.into_inner().expect("nobody panics with it").expect("each was worked on"))
        .collect()
}
