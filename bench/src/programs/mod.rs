//! Whole programs at a share of their memory, not pinned to any CPU. They run alone, under Terrace,
//! and in a control group over zram that holds as much as Terrace took. What is compared is work, 1
//! ÷ time. Another benchmark compares what the report tells of the time that was lost with what was
//! lost.
//!
//! Memory is what the control group is charged, and what zram takes beside it; Terrace's own
//! processes are in the group. Terrace's budget is the share of the program's peak alone. The limit
//! of the other group follows what zram takes. So both together stay below the 95th percentile of
//! what the Terrace run before it took.
//!
//! Each run is a line of a file; a benchmark that was cut off goes on behind the last of them.

mod list;
mod one;
pub mod placement;
pub mod plans;
mod runs;
mod senpai;
pub mod slowdown;

use crate::picture::{self, Frame, Points};
use crate::results::{self, median};
use crate::{interrupt, machine};
use anyhow::{Context, bail, ensure};
use list::{FILLING, PROGRAMS, Program};
use one::{Limit, one};
use plotters::prelude::*;
use runs::Runs;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_testkit::zram::Zram;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats [default: 5 at 60 %, else 3]
    #[arg(long)]
    repeats: Option<usize>,
    /// Shares of the peak alone, percent
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [60u64, 80, 40],
        value_parser = clap::value_parser!(u64).range(10..=95)
    )]
    shares: Vec<u64>,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// More flags for `terrace run`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    terrace_flags: String,
    /// Set up zram swap for Terrace's runs too, as on a machine that has it
    #[arg(long)]
    swap: bool,
}

/// Multiple of the time alone after which a run is ended.
const SLOWEST: u32 = 25;
/// Tries of a run over zram. The kernel gives up reclaiming for a group now and then, and fails
/// page faults and system calls of the group's processes. (Linux 6.18, version 1 of control
/// groups.) Such a run is made again.
const PEER_TRIES: u32 = 4;
const LONGEST_ALONE: Duration = Duration::from_secs(120);
/// Bytes that zram can hold.
const ZRAM_BYTES: u64 = 8 << 30;
/// Share within which what is told of the time that was lost is right. It is a share of that time,
/// or [`HONEST_OF_RUN`] of the run, whichever is more.
const HONEST_SHARE: f64 = 0.2;
/// Share of the run within which it is right in any case.
const HONEST_OF_RUN: f64 = 0.02;

/// A benchmark of whole programs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    AgainstZram,
    /// Programs that grow, to a share of their own peak.
    Fill,
    Honesty,
    Slowdown,
    Plans,
    Placement,
}

impl Kind {
    /// Whether each run has a run over zram beside it.
    fn has_peer(self) -> bool {
        matches!(self, Kind::AgainstZram | Kind::Fill)
    }
}

/// Prints the heading of rows that have a peer.
fn print_heading() {
    println!(
        "{:>14} {:>6} {:>9} {:>10} {:>9} {:>19} {:>10} {:>8}",
        "program", "share", "alone s", "Terrace s", "zram s", "work to zram", "p95 memory", "told"
    );
}

/// Compares with zram: prints, and writes `bench/results/programs.json` and `programs.svg`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    print_heading();
    let (rows, without) = of_all(options, Kind::AgainstZram)?;
    let name = if options.swap { "programs-swap" } else { "programs" };
    draw(name, &rows)?;
    let flags = &options.terrace_flags;
    results::write(name, json!({ "terrace_flags": flags, "rows": rows, "without": without }))
}

/// Runs programs that grow, under `--dram PERCENT`, against a group that is held to the same share
/// of the peak from the start. Prints, and writes `bench/results/fill.json`.
pub fn fill(options: &Options) -> anyhow::Result<()> {
    print_heading();
    let (rows, without) = of_all(options, Kind::Fill)?;
    let flags = &options.terrace_flags;
    results::write("fill", json!({ "terrace_flags": flags, "rows": rows, "without": without }))
}

/// Compares what the report tells with what was: prints, and writes `bench/results/honesty.json`.
pub fn honesty(options: &Options) -> anyhow::Result<()> {
    println!(
        "{:>14} {:>6} {:>9} {:>10} {:>12} {:>12}",
        "program", "share", "alone s", "Terrace s", "time lost", "told"
    );
    let (rows, without) = of_all(options, Kind::Honesty)?;
    let count = |name: &str| rows.iter().filter(|row| row[name] == true).count();
    let (right, half) = (count("is_right"), count("is_half_or_more"));
    let told = rows.iter().filter(|row| row["is_right"].is_boolean()).count();
    println!(
        "\n{right} of {told} told within 20 % of what was lost or 2 points of the run; {} told less than half of it",
        told - half
    );
    results::write(
        "honesty",
        json!({
            "terrace_flags": options.terrace_flags, "right": right, "half_or_more": half,
            "rows": rows, "without": without,
        }),
    )
}

/// Runs all programs that are here, at all shares. Returns the rows, and why some of these
/// programs have none.
fn of_all(options: &Options, kind: Kind) -> anyhow::Result<(Vec<Value>, Vec<Value>)> {
    interrupt::watch()?;
    let directory = tempfile::tempdir()?;
    let over = if options.swap { " over swap" } else { "" };
    let mut runs = Runs::open(kind, &format!("{}{over}", options.terrace_flags))?;
    let (mut rows, mut without) = (Vec::new(), Vec::new());
    let programs: &[Program] = if kind == Kind::Fill { &FILLING } else { &PROGRAMS };
    for program in asked_for(programs, &options.only) {
        let words = (program.command)(directory.path()).with_context(|| program.name)?;
        let mut is_warm = false;
        for share in &options.shares {
            let repeats = options.repeats.unwrap_or(if *share == 60 { 5 } else { 3 });
            let made = runs.repeat(program.name, *share, repeats, |_| {
                if !is_warm {
                    // Files that it reads are in the page cache then.
                    alone(program.name, &words)?;
                    is_warm = true;
                }
                sample(program, &words, *share, options, kind)
            });
            match made {
                Ok(samples) => rows.push(row(program.name, *share, &samples, kind)),
                Err(error) if interrupt::came() => return Err(error),
                Err(error) => {
                    let why = format!("{error:#}");
                    println!("{:>14} {share:>5}%: {why}", program.name);
                    let name = program.name;
                    without.push(json!({ "program": name, "share_percent": share, "why": why }));
                }
            }
        }
    }
    runs.are_done()?;
    Ok((rows, without))
}

/// Programs with these names that are here, or all that are here if no names are given. Prints what
/// is not here.
fn asked_for(
    programs: &'static [Program],
    only: &[String],
) -> impl Iterator<Item = &'static Program> {
    let is_asked =
        |program: &&Program| only.is_empty() || only.iter().any(|name| name == program.name);
    programs.iter().filter(is_asked).filter(|program| {
        let missing = program.is_missing();
        if let Some(missing) = missing {
            println!("{:>14}: not here: install {missing}", program.name);
        }
        missing.is_none()
    })
}

/// Runs a program without a limit and without Terrace.
fn alone(name: &str, words: &[String]) -> anyhow::Result<one::Sample> {
    one(words, Limit::None, None, LONGEST_ALONE)?
        .with_context(|| format!("{name} takes longer than {LONGEST_ALONE:?}"))
}

/// Makes a repeat: alone, under Terrace, over zram.
fn sample(
    program: &Program,
    words: &[String],
    share: u64,
    options: &Options,
    kind: Kind,
) -> anyhow::Result<Value> {
    let report = tempfile::NamedTempFile::new()?;
    let alone = one(words, Limit::None, None, LONGEST_ALONE)?.context("slower than before")?;
    let longest = Duration::from_secs_f64(alone.seconds) * SLOWEST;
    let budget = alone.peak as u64 * share / 100;
    let dram = if kind == Kind::Fill { format!("{share}%") } else { budget.to_string() };
    let flags = format!("--dram {dram} {} {}", program.flags, options.terrace_flags);
    let under = under_terrace(words, report.path(), &flags)?;
    let swap = options.swap.then(|| Zram::for_measuring(ZRAM_BYTES, "lz4")).transpose()?;
    let Some(terrace) =
        one(&under, Limit::None, swap.as_ref(), longest).context("under Terrace")?
    else {
        bail!("Terrace takes more than {SLOWEST} times the time alone")
    };
    let name = program.name;
    ensure!(terrace.output == alone.output, "{name} computes something else under Terrace");
    let figures: Value = serde_json::from_slice(&fs::read(report.path())?)?;
    let mut sample = json!({
        "alone_s": alone.seconds, "alone_peak_bytes": alone.peak, "alone_mean_bytes": alone.mean,
        "terrace_s": terrace.seconds, "terrace_mean_bytes": terrace.mean,
        "terrace_p95_bytes": terrace.p95,
        "slowdown_told": figures["slowdown_estimate"],
        "alone_p99_us": alone.p99_us, "terrace_p99_us": terrace.p99_us,
        "restored_pages": figures["tiers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|tier| tier["faults"].as_u64())
            .sum::<u64>(),
    });
    if kind.has_peer() {
        let zram = match swap {
            Some(zram) => zram,
            None => Zram::for_measuring(ZRAM_BYTES, "lz4")?,
        };
        let limit = if kind == Kind::Fill { budget } else { terrace.p95 as u64 };
        let over_zram = || one(words, Limit::Bytes(limit), Some(&zram), longest);
        let mut peer = over_zram();
        for _ in 1..PEER_TRIES {
            if peer.is_ok() || interrupt::came() {
                break;
            }
            peer = over_zram();
        }
        let peer = peer.with_context(|| format!("over zram, {PEER_TRIES} times"))?;
        // One that was ended takes longer than all.
        sample["zram_s"] = json!(peer.as_ref().map_or(longest.as_secs_f64(), |peer| peer.seconds));
        sample["zram_restored_pages"] = json!(peer.as_ref().map(|peer| peer.swapped_in_pages));
        sample["zram_p99_us"] = json!(peer.as_ref().and_then(|peer| peer.p99_us));
        sample["zram_mean_bytes"] = json!(peer.as_ref().map(|peer| peer.mean));
        sample["zram_p95_bytes"] = json!(peer.as_ref().map(|peer| peer.p95));
    }
    Ok(sample)
}

/// Medians of a program at one share; prints them.
fn row(name: &str, share: u64, samples: &[&Value], kind: Kind) -> Value {
    let all = |figure: &dyn Fn(&Value) -> Option<f64>| -> Vec<f64> {
        samples.iter().filter_map(|sample| figure(sample)).collect()
    };
    let of = |figure: &'static str| median(&all(&|sample| sample[figure].as_f64()));
    let (alone, terrace, told) = (of("alone_s"), of("terrace_s"), of("slowdown_told"));
    let mut row = json!({
        "program": name, "share_percent": share, "alone_s": alone, "terrace_s": terrace,
        "alone_mean_bytes": of("alone_mean_bytes"), "terrace_mean_bytes": of("terrace_mean_bytes"),
        "slowdown_told": told, "samples": samples,
    });
    print!("{name:>14} {share:>5}% {alone:>9.2} {terrace:>10.2} ");
    if kind.has_peer() {
        // Of neighbours in time, as the machine's speed changes.
        let ratios =
            all(&|sample| Some(sample["zram_s"].as_f64()? / sample["terrace_s"].as_f64()?));
        let (least, most) = ratios
            .iter()
            .fold((f64::MAX, f64::MIN), |(a, b), ratio| (a.min(*ratio), b.max(*ratio)));
        let (zram, ratio) = (of("zram_s"), median(&ratios));
        let tails = all(&|sample| {
            Some(sample["terrace_p99_us"].as_f64()? / sample["zram_p99_us"].as_f64()?)
        });
        let tail = (!tails.is_empty()).then(|| median(&tails));
        // What is compared at equal memory: how equal it was.
        let memory = median(&all(&|sample| {
            Some(sample["terrace_p95_bytes"].as_f64()? / sample["zram_p95_bytes"].as_f64()?)
        }));
        // Of a process that is attached to no time is told.
        let told = if told.is_nan() { "not".into() } else { format!("{:.0}%", told * 100.0) };
        println!(
            "{zram:>9.2} {:>19} {memory:>10.2} {told:>8}{}",
            format!("{ratio:.2} ({least:.2} to {most:.2})"),
            tail.map_or(String::new(), |tail| format!("  p99 {tail:.2} times zram's"))
        );
        row["p99_to_zram"] = json!(tail);
        row["zram_s"] = json!(zram);
        row["work_to_zram"] = json!({ "median": ratio, "least": least, "most": most });
    } else {
        // Of the run's own time, as it is told.
        let lost = median(&all(&|sample| {
            Some(1.0 - sample["alone_s"].as_f64()? / sample["terrace_s"].as_f64()?)
        }));
        let bound = (lost * HONEST_SHARE).max(HONEST_OF_RUN);
        row["lost"] = json!(lost);
        if told.is_nan() {
            // Attached to, or nothing of it was managed: the report says that it is not known.
            println!("{:>11.0}% {:>12}", lost * 100.0, "not told");
            return row;
        }
        let is_right = (told - lost).abs() <= bound;
        let is_half = told >= lost / 2.0 || lost - told <= HONEST_OF_RUN;
        let mark = if is_right { "" } else { "  not within the bound" };
        println!("{:>11.0}% {:>11.0}%{mark}", lost * 100.0, told * 100.0);
        row["is_right"] = json!(is_right);
        row["is_half_or_more"] = json!(is_half);
    }
    row
}

fn under_terrace(words: &[String], report: &Path, flags: &str) -> anyhow::Result<Vec<String>> {
    let terrace: PathBuf = machine::terrace()?;
    let mut under = vec![terrace.to_string_lossy().into_owned(), "run".into()];
    under.extend(["--report".into(), report.to_string_lossy().into_owned()]);
    under.extend(flags.split_whitespace().map(str::to_owned));
    under.push("--".into());
    under.extend(words.iter().cloned());
    Ok(under)
}

/// Draws work against memory, both relative to the program alone: one panel a program.
fn draw(file: &str, rows: &[Value]) -> anyhow::Result<()> {
    const WIDE: usize = 3;
    const PANEL: (u32, u32) = (320, 260);
    let mut names: Vec<&str> = rows.iter().filter_map(|row| row["program"].as_str()).collect();
    names.dedup();
    if names.is_empty() {
        return Ok(());
    }
    let deep = names.len().div_ceil(WIDE);
    let size = (PANEL.0 * WIDE as u32, PANEL.1 * deep as u32);
    let points = |name: &str, seconds: &str| -> Points {
        let mut points: Points = rows
            .iter()
            .filter(|row| row["program"] == name)
            .filter_map(|row| {
                let of = |figure: &str| row[figure].as_f64();
                let memory = of("terrace_mean_bytes")? / of("alone_mean_bytes")?;
                Some((memory * 100.0, of("alone_s")? / of(seconds)?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    picture::make(file, size, |root| {
        for (area, name) in root.split_evenly((deep, WIDE)).iter().zip(&names) {
            let frame = Frame {
                title: name,
                x: "memory, % of the mean alone",
                y: "speed alone = 1",
                across: 20.0..110.0,
                legend: SeriesLabelPosition::LowerRight,
            };
            let curves = vec![
                ("Terrace", points(name, "terrace_s"), RGBColor(0, 90, 181)),
                ("zram lz4", points(name, "zram_s"), RGBColor(220, 50, 32)),
            ];
            picture::panel(area, frame, true, curves)?;
        }
        Ok(())
    })
}
