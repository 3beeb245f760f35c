//! What `terrace run` does where nothing is said of memory (`--slowdown`), beside a control group
//! whose limit follows pressure, over zram. Told are how much slower a program is, and how much
//! less memory it has on average.
//!
//! One repeat: a run alone that warms up; then alone, under Terrace, and in the group at each of
//! two pressures, in random order. Memory is counted as in the other benchmark of programs.

use super::list::PROGRAMS;
use super::one::{Limit, one};
use super::runs::Runs;
use super::senpai::Senpai;
use super::{Kind, SLOWEST, ZRAM_BYTES, alone, asked_for, under_terrace};
use crate::interrupt;
use crate::results::{self, median};
use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::time::Duration;
use terrace_testkit::zram::Zram;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// More flags for `terrace run`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    terrace_flags: String,
}

/// The pressures of the peer, as shares of the time.
const PRESSURES: [(&str, f64); 2] = [("0.1%", 0.001), ("1%", 0.01)];
/// Number of draws of the bootstrap.
const DRAWS: usize = 10_000;
/// Width of the interval that is told, as a share of the draws.
const INTERVAL: f64 = 0.9;

/// Runs the benchmark: prints, and writes `bench/results/slowdown.json`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "{:>14} {:>8} {:>26} {:>7}   peer at pressure: slower, saved",
        "program", "alone s", "Terrace slower", "saved"
    );
    let directory = tempfile::tempdir()?;
    let mut runs = Runs::open(Kind::Slowdown, &options.terrace_flags)?;
    let mut rows = Vec::new();
    for program in asked_for(&PROGRAMS, &options.only) {
        let words = (program.command)(directory.path()).with_context(|| program.name)?;
        let make = |repeat| sample(program.name, &words, &options.terrace_flags, repeat);
        match runs.repeat(program.name, 0, options.repeats, make).err() {
            None => {}
            Some(error) if interrupt::came() => return Err(error),
            Some(error) => println!("{:>14}: {error:#}", program.name),
        }
        let samples = runs.made(program.name, 0, options.repeats);
        if !samples.is_empty() {
            rows.push(row(program.name, &samples));
        }
    }
    runs.are_done()?;
    results::write("slowdown", json!({ "terrace_flags": options.terrace_flags, "rows": rows }))
}

/// Runs a program once on each side. The order is random because the machine's speed changes.
fn sample(name: &str, words: &[String], flags: &str, repeat: usize) -> anyhow::Result<Value> {
    let report = tempfile::NamedTempFile::new()?;
    let under = under_terrace(words, report.path(), flags)?;
    let first = alone(name, words)?;
    let longest = Duration::from_secs_f64(first.seconds) * SLOWEST;
    let mut sides = vec!["alone", "terrace"];
    sides.extend(PRESSURES.iter().map(|(name, _)| *name));
    sides.shuffle(&mut SmallRng::seed_from_u64(repeat as u64));
    let mut all = json!({});
    for side in sides {
        let pressure = PRESSURES.iter().find(|(name, _)| *name == side);
        let sample = match pressure {
            Some((_, target)) => {
                let zram = Zram::for_measuring(ZRAM_BYTES, "lz4")?;
                one(words, Limit::Pressure(Senpai::new(*target)), Some(&zram), longest)?
            }
            None if side == "terrace" => one(&under, Limit::None, None, longest)?,
            None => one(words, Limit::None, None, longest)?,
        };
        // A run that was ended takes at least this long.
        all[side] = match &sample {
            Some(sample) => json!({ "s": sample.seconds, "mean_bytes": sample.mean }),
            None => json!({ "s": longest.as_secs_f64(), "was_ended": true }),
        };
        let is_same = sample.is_none_or(|sample| sample.output == first.output);
        ensure!(is_same, "{name} computes something else with {side}");
    }
    Ok(all)
}

/// Medians of a program; prints them.
fn row(name: &str, samples: &[&Value]) -> Value {
    let relative = |side: &str, figure: &str| -> Vec<f64> {
        let of = |sample: &Value, side: &str| sample[side][figure].as_f64().unwrap_or(f64::NAN);
        let all = samples.iter().map(|sample| of(sample, side) / of(sample, "alone") - 1.0);
        all.filter(|relative| relative.is_finite()).collect()
    };
    let side = |side: &str| {
        let slower = relative(side, "s");
        let (least, most) = interval(&slower);
        json!({
            "slower": median(&slower), "from": least, "to": most,
            "saved": -median(&relative(side, "mean_bytes")),
        })
    };
    let alone: Vec<f64> =
        samples.iter().filter_map(|sample| sample["alone"]["s"].as_f64()).collect();
    let terrace = side("terrace");
    let percent = |value: &Value| value.as_f64().unwrap_or(f64::NAN) * 100.0;
    print!(
        "{name:>14} {:>8.2} {:>26} {:>6.1}%  ",
        median(&alone),
        format!(
            "{:.1}% ({:.1} to {:.1})",
            percent(&terrace["slower"]),
            percent(&terrace["from"]),
            percent(&terrace["to"])
        ),
        percent(&terrace["saved"])
    );
    let mut row = json!({
        "program": name, "alone_s": median(&alone), "terrace": terrace, "samples": samples
    });
    for (pressure, _) in PRESSURES {
        let peer = side(pressure);
        print!(" {pressure}: {:.1}%, {:.1}%;", percent(&peer["slower"]), percent(&peer["saved"]));
        row[pressure] = peer;
    }
    println!();
    row
}

/// The bootstrap's interval of a median.
fn interval(of: &[f64]) -> (f64, f64) {
    let mut random = SmallRng::seed_from_u64(1);
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn: Vec<f64> = of.iter().map(|_| of[random.random_range(0..of.len())]).collect();
            median(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((DRAWS as f64 * share) as usize).min(DRAWS - 1)];
    (at((1.0 - INTERVAL) / 2.0), at((1.0 + INTERVAL) / 2.0))
}
