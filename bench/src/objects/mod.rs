//! Programs of many small objects, by where an allocator puts them. Told is how many pages hold
//! what is missed in the processor's cache, and what that is worth when memory is short.
//!
//! There are two programs: a store of chained hash entries, and a B+-tree of nodes, keys, pointers
//! and records with objects of their own. The tree is as in the published one that Jenga and
//! Mitosis measure.
//!
//! - Pages: every access of every lookup goes through a model of a cache of 4 MiB; a page's misses
//!   are counted.
//! - Speed: lookups a second in a control group over zram, in which the program as it is has a
//!   share of its memory. Beside it, lookups a second under Terrace at the same total.

mod measured;
mod program;
mod recorded;
mod store;
mod tree;

use crate::results::{self, median};
use crate::servers::group::Group;
use crate::side::jemalloc;
use crate::{interrupt, machine};
use anyhow::Context;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use terrace_testkit::zram::Zram;

pub use program::run as run_program;
pub use tree::Tree;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Keys of the tree; the store has a quarter
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Only one of the two
    #[arg(long)]
    only: Option<Part>,
    /// Share of its memory that the program has in the control group, percent
    #[arg(long, default_value_t = 30)]
    resident: u64,
    /// Seconds of a run for speed
    #[arg(long, default_value_t = 12)]
    seconds: u64,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Pages that hold the misses
    Pages,
    /// Lookups a second where memory is short
    Speed,
}

const PROGRAMS: [(&str, &str); 4] =
    [("tree", "uniform"), ("tree", "zipf"), ("store", "uniform"), ("store", "zipf")];

/// Side with the allocator by size, but for what the program places itself.
const PLACED: &str = "placed";

/// Sides of the comparison: name, and flags of `terrace run` where the program runs under it.
const SIDES: [(&str, Option<&[&str]>); 5] = [
    ("glibc", None),
    ("jemalloc", None),
    ("size", Some(&["--allocator", "size", "--sampler", "none"])),
    (PLACED, Some(&["--allocator", "size", "--sampler", "none"])),
    ("context", Some(&["--allocator", "context", "--sampler", "none"])),
];

/// Runs both parts.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if options.only != Some(Part::Speed) {
        pages(options)?;
    }
    if options.only != Some(Part::Pages) {
        speed(options)?;
    }
    Ok(())
}

fn program(kind: &str, distribution: &str, keys: u64, seconds: u64) -> anyhow::Result<Vec<String>> {
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let keys = if kind == "store" { keys / 4 } else { keys };
    Ok([&own, "objects-program", kind, distribution, &keys.to_string(), &seconds.to_string()]
        .map(str::to_owned)
        .to_vec())
}

fn command(side: &str, flags: Option<&[&str]>, words: &[String]) -> anyhow::Result<Command> {
    let words: Vec<&str> =
        words.iter().map(String::as_str).chain((side == PLACED).then_some("--placed")).collect();
    let mut command = machine::pinned(flags, &words)?;
    if side == "jemalloc" {
        command.env("LD_PRELOAD", jemalloc().context("libjemalloc.so.2 is not installed")?);
    }
    Ok(command)
}

fn pages(options: &Options) -> anyhow::Result<()> {
    println!(
        "Share of the heap's pages that hold 50 % and 80 % of the misses of a 4 MiB cache; medians of {} repeats\n",
        options.repeats
    );
    println!(
        "{:>6} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9}",
        "what", "keys", "objects", "50 %", "80 %", "50 %", "80 %", "pages"
    );
    let mut rows = Vec::new();
    for (kind, distribution) in PROGRAMS {
        let words = program(kind, distribution, options.keys, 0)?;
        pages_of(kind, distribution, options.repeats, &mut rows, |side, flags, _| {
            let output = command(side, flags, &words)?.stderr(Stdio::null()).output()?;
            anyhow::ensure!(output.status.success(), "{kind} on the side {side} failed");
            Ok(Some(serde_json::from_slice(&output.stdout)?))
        })?;
    }
    match recorded::build() {
        Ok(programs) => {
            for name in recorded::PROGRAMS {
                pages_of(name, "zipf", options.repeats, &mut rows, |side, _, seed| {
                    recorded::pages(&programs, name, side, seed)
                })?;
            }
        }
        Err(error) => println!("without SQLite and redis-server: {error:#}"),
    }
    println!();
    results::write(
        "objects-pages",
        json!({ "keys": options.keys, "repeats": options.repeats, "rows": rows }),
    )
}

/// Measures a program on all sides. `once` runs it on a side once and returns the figures.
fn pages_of(
    kind: &str,
    distribution: &str,
    repeats: usize,
    rows: &mut Vec<Value>,
    run: impl Fn(&str, Option<&[&str]>, u64) -> anyhow::Result<Option<Value>>,
) -> anyhow::Result<()> {
    let (mut by_size, mut placed) = (f64::NAN, f64::NAN);
    for (side, flags) in SIDES {
        let found: Option<Vec<Value>> = (1..=repeats as u64)
            .map(|seed| run(side, flags, seed))
            .collect::<anyhow::Result<_>>()?;
        let Some(found) = found else { continue };
        let of = |path: &str| {
            median(
                &found.iter().filter_map(|value| value.pointer(path)?.as_f64()).collect::<Vec<_>>(),
            )
        };
        let mut line = |name: &str, half: f64, most: f64, pages: f64| {
            let share = |part: f64| format!("{:.1}%", part / pages * 100.0);
            println!(
                "{kind:>6} {distribution:>8} {name:>9} {:>8} {:>8} {half:>9.0} {most:>9.0} {pages:>9.0}",
                share(half),
                share(most)
            );
            rows.push(json!({
                "program": kind, "keys": distribution, "objects": name, "pages": pages,
                "pages_for_50": half, "pages_for_80": most,
            }));
        };
        line(side, of("/pages_for_50"), of("/pages_for_80"), of("/pages"));
        if side == "jemalloc" {
            by_size = of("/pages_for_50");
        }
        if side == PLACED {
            placed = of("/pages_for_50");
        }
        if side == "context" {
            line(
                "oracle",
                of("/oracle/pages_for_50"),
                of("/oracle/pages_for_80"),
                of("/oracle/pages"),
            );
            let (context, oracle) = (of("/pages_for_50"), of("/oracle/pages_for_50"));
            print!(
                "{:>25} at 50 %: context / jemalloc {:.2}, context / oracle {:.2}",
                "",
                context / by_size,
                context / oracle
            );
            println!(
                "{}",
                if placed.is_nan() {
                    String::new()
                } else {
                    format!(", placed / oracle {:.2}", placed / oracle)
                }
            );
        }
    }
    Ok(())
}

/// Starts a program that says when it has its objects, and begins when the input ends.
pub fn start(mut command: Command) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut out = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    anyhow::ensure!(line == "ready\n", "the program said {line:?}");
    Ok((child, out))
}

/// Runs a program in a control group over zram. Returns lookups a second of the second half, and
/// bytes in all.
fn in_group(words: &[String], share: u64, zram: &Zram) -> anyhow::Result<(f64, f64)> {
    let group = Group::create()?;
    let mut command = command("glibc", None, words)?;
    let file = group.processes_file();
    // SAFETY: between fork and exec one file is written.
    unsafe { command.pre_exec(move || std::fs::write(&file, "0")) };
    let (mut child, mut out) = start(command)?;
    let whole = group.meter().usage_bytes()?;
    let before = zram.used_bytes()?;
    group.lower_to(whole * share / 100, || match child.try_wait()? {
        None => Ok(()),
        Some(status) => anyhow::bail!("the program ended with {status}"),
    })?;
    drop(child.stdin.take());
    // It says this when the measured half is over, and waits.
    let mut rest = String::new();
    out.read_line(&mut rest)?;
    let total = group.meter().usage_bytes()? + zram.used_bytes()? - before;
    anyhow::ensure!(child.wait()?.success(), "the program failed");
    Ok((rest.trim().parse()?, total as f64))
}

/// Bytes that a program takes where nothing limits it.
fn whole_bytes(words: &[String]) -> anyhow::Result<f64> {
    let group = Group::create()?;
    let mut command = command("glibc", None, words)?;
    let file = group.processes_file();
    // SAFETY: as above.
    unsafe { command.pre_exec(move || std::fs::write(&file, "0")) };
    let (mut child, _out) = start(command)?;
    let whole = group.meter().usage_bytes()?;
    child.kill()?;
    child.wait()?;
    Ok(whole as f64)
}

/// Lookups a second of the second half of a run under Terrace.
fn under(side: &str, flags: &[&str], words: &[String]) -> anyhow::Result<f64> {
    let mut command = command(side, Some(flags), words)?;
    command.stderr(Stdio::null());
    let (mut child, mut out) = start(command)?;
    drop(child.stdin.take());
    let mut rest = String::new();
    out.read_line(&mut rest)?;
    anyhow::ensure!(child.wait()?.success(), "the program failed");
    Ok(rest.trim().parse()?)
}

fn speed(options: &Options) -> anyhow::Result<()> {
    println!(
        "Lookups a second at equal memory: a control group with {} % of the program's memory over zram lz4, and Terrace with what both take; one CPU, medians of {} interleaved repeats\n",
        options.resident, options.repeats
    );
    interrupt::watch()?;
    let zram = Zram::for_measuring(4 << 30, "lz4")?;
    let mut rows = Vec::new();
    for (kind, distribution) in PROGRAMS {
        let words = program(kind, distribution, options.keys, options.seconds)?;
        let mut found: [Vec<f64>; 5] = Default::default();
        let mut memory = Vec::new();
        for _ in 0..options.repeats {
            interrupt::check()?;
            // The kernel ends a program now and then whose group's limit is this low, instead of
            // reclaiming.
            let total = match (0..3)
                .map(|_| in_group(&words, options.resident, &zram))
                .find_map(Result::ok)
            {
                Some((per_s, total)) => {
                    found[0].push(per_s);
                    total
                }
                None => {
                    println!(
                        "{kind} {distribution}: ended three times in its control group; Terrace has {} % of its memory",
                        options.resident
                    );
                    whole_bytes(&words)? * options.resident as f64 / 100.0
                }
            };
            let dram = (total as u64).to_string();
            memory.push(total);
            let sides: [(&str, &[&str]); 4] = [
                ("size", &["--allocator", "size"]),
                ("context", &["--allocator", "context", "--sampler", "none"]),
                ("sampled", &["--allocator", "context"]),
                (PLACED, &["--allocator", "size"]),
            ];
            for ((side, flags), found) in sides.iter().zip(&mut found[1..]) {
                found.push(under(side, &[&["--dram", &dram], *flags].concat(), &words)?);
            }
        }
        let [zram, size, context, sampled, placed] = found.each_ref().map(|found| median(found));
        println!(
            "{kind:>6} {distribution:>8} {:>7.0} MiB: zram {zram:>9.0}, by size {size:>9.0} ({:.2}), by context {context:>9.0} ({:.2}; to size {:.2}), with samples {sampled:>9.0} ({:.2}), placed {placed:>9.0} ({:.2}; to size {:.2})",
            median(&memory) / f64::from(1 << 20),
            size / zram,
            context / zram,
            context / size,
            sampled / zram,
            placed / zram,
            placed / size
        );
        rows.push(json!({
            "program": kind, "keys": distribution, "memory_bytes": memory, "zram": found[0],
            "size": found[1], "context": found[2], "context_sampled": found[3], "placed": found[4],
        }));
    }
    println!();
    results::write(
        &format!("objects-speed-{}", options.resident),
        json!({ "keys": options.keys, "rows": rows }),
    )
}
