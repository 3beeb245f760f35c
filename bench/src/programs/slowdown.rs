//! What `terrace run` does where nothing is said of memory (`--slowdown`), beside a control group
//! whose limit follows pressure, over zram. Told are how much slower a program is, and how much
//! less memory it has on average.
//!
//! One repeat: a run alone that warms up; then alone, under Terrace, and in the group at each of
//! two pressures, in random order. Memory is counted as in the other benchmark of programs.
//!
//! The target is kept where the median is at most [`ABOVE`] above it and the interval's lower end
//! is below it. Where the interval is wider than [`WIDEST`], or fewer than [`FEWEST`] repeats were
//! made, nothing is said of that. What is saved is compared with the group whose slowdown is the
//! nearest.

use super::list::SLOWED;
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
use std::fs;
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

/// The target where a report tells none.
const USUAL_TARGET: f64 = 0.02;
/// What the median may be above the target, as a part of the time.
const ABOVE: f64 = 0.02;
/// The widest interval that is judged.
const WIDEST: f64 = 0.04;
/// The fewest repeats that are judged: the interval of one has no width.
const FEWEST: usize = 5;
/// Part of memory below which a peer saves nothing worth a ratio.
const SAVES_NOTHING: f64 = 0.005;

/// Runs the benchmark: prints, and writes `bench/results/slowdown.json`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "{:>14} {:>8} {:>26} {:>7} {:>10}   peer at pressure: slower, saved; saved to the nearest",
        "program", "alone s", "Terrace slower", "saved", "verdict"
    );
    let directory = tempfile::tempdir()?;
    let mut runs = Runs::open(Kind::Slowdown, &options.terrace_flags)?;
    let mut rows = Vec::new();
    for program in asked_for(&SLOWED, &options.only) {
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
    let ratios: Vec<f64> = rows.iter().filter_map(|row| row["saved_to_peer"].as_f64()).collect();
    let mean = geometric_mean(&ratios);
    let count = |verdict: Verdict| {
        rows.iter().filter(|row| row["verdict"].as_str() == Some(verdict.name())).count()
    };
    let [met, missed, not_judged] = [Verdict::Met, Verdict::Missed, Verdict::NotJudged].map(count);
    let more = rows.iter().filter(|row| row["saves_more"] == true).count();
    println!(
        "\ntarget met by {met}, missed by {missed}, {not_judged} not judged; more saved than the nearest peer: {more} of {}; {mean:.2} times as much (geometric mean of {})",
        rows.len(),
        ratios.len()
    );
    results::write(
        "slowdown",
        json!({
            "terrace_flags": options.terrace_flags, "met": met, "missed": missed,
            "not_judged": not_judged, "saves_more": more, "saved_to_peer_mean": mean,
            "rows": rows,
        }),
    )
}

/// Whether the target was kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Met,
    Missed,
    /// The interval is too wide to say, or there are too few repeats.
    NotJudged,
}

impl Verdict {
    fn of(slower: f64, (from, to): (f64, f64), target: f64, repeats: usize) -> Verdict {
        // Where there is no interval it is not narrow either.
        let is_narrow = to - from <= WIDEST;
        if !is_narrow || repeats < FEWEST {
            Verdict::NotJudged
        } else if slower <= target + ABOVE && from < target {
            Verdict::Met
        } else {
            Verdict::Missed
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::NotJudged => "not judged",
        }
    }
}

/// The number of the peer whose slowdown is nearest to ours; `None` if no peer has one.
fn nearest(ours: f64, peers: &[f64]) -> Option<usize> {
    let distance = |peer: usize| (peers[peer] - ours).abs();
    let known = (0..peers.len()).filter(|peer| distance(*peer).is_finite());
    known.min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
}

/// What we save, as a multiple of what a peer saves; `None` where one of them saves nothing.
fn saved_to(ours: f64, peers: f64) -> Option<f64> {
    (ours > 0.0 && peers >= SAVES_NOTHING).then(|| ours / peers)
}

/// The geometric mean; not a number where there are no values.
fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
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
        // A run that was ended takes at least this long, and has no report.
        all[side] = match &sample {
            Some(sample) if side == "terrace" => {
                let report: Value =
                    serde_json::from_slice(&fs::read(report.path())?).unwrap_or_default();
                json!({
                    "s": sample.seconds, "mean_bytes": sample.mean,
                    "target": report["slowdown_target"], "told": report["slowdown_estimate"],
                })
            }
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
    let targets: Vec<f64> =
        samples.iter().filter_map(|sample| sample["terrace"]["target"].as_f64()).collect();
    let target = if targets.is_empty() { USUAL_TARGET } else { median(&targets) };
    let of = |side: &Value, figure: &str| side[figure].as_f64().unwrap_or(f64::NAN);
    let ends = (of(&terrace, "from"), of(&terrace, "to"));
    let verdict = Verdict::of(of(&terrace, "slower"), ends, target, samples.len());
    let percent = |value: &Value| value.as_f64().unwrap_or(f64::NAN) * 100.0;
    print!(
        "{name:>14} {:>8.2} {:>26} {:>6.1}% {:>10}  ",
        median(&alone),
        format!(
            "{:.1}% ({:.1} to {:.1})",
            percent(&terrace["slower"]),
            percent(&terrace["from"]),
            percent(&terrace["to"])
        ),
        percent(&terrace["saved"]),
        verdict.name()
    );
    let peers = PRESSURES.map(|(pressure, _)| side(pressure));
    for ((pressure, _), peer) in PRESSURES.iter().zip(&peers) {
        print!(" {pressure}: {:.1}%, {:.1}%;", percent(&peer["slower"]), percent(&peer["saved"]));
    }
    let slower: Vec<f64> = peers.iter().map(|peer| of(peer, "slower")).collect();
    let peer = nearest(of(&terrace, "slower"), &slower);
    let ours = of(&terrace, "saved");
    let theirs = peer.map(|peer| of(&peers[peer], "saved"));
    let ratio = theirs.and_then(|theirs| saved_to(ours, theirs));
    println!("{}", ratio.map_or(" no ratio".into(), |ratio| format!(" {ratio:.2} times")));
    let mut row = json!({
        "program": name, "alone_s": median(&alone), "target": target, "verdict": verdict.name(),
        "peer": peer.map(|peer| PRESSURES[peer].0), "saved_to_peer": ratio,
        "saves_more": theirs.is_some_and(|theirs| ours > theirs),
        "terrace": terrace, "samples": samples,
    });
    for ((pressure, _), peer) in PRESSURES.iter().zip(peers) {
        row[*pressure] = peer;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_interval_is_not_judged() {
        let verdict = |slower, from, to| Verdict::of(slower, (from, to), 0.02, FEWEST);
        assert_eq!(verdict(0.035, 0.015, 0.045), Verdict::Met);
        assert_eq!(verdict(0.045, 0.015, 0.05), Verdict::Missed);
        assert_eq!(verdict(0.03, 0.025, 0.04), Verdict::Missed);
        assert_eq!(verdict(0.03, 0.0, 0.05), Verdict::NotJudged);
        assert_eq!(verdict(f64::NAN, f64::NAN, f64::NAN), Verdict::NotJudged);
    }

    #[test]
    fn few_repeats_are_not_judged() {
        let verdict = |repeats| Verdict::of(0.01, (0.01, 0.01), 0.02, repeats);
        assert_eq!(verdict(FEWEST - 1), Verdict::NotJudged);
        assert_eq!(verdict(FEWEST), Verdict::Met);
    }

    #[test]
    fn savings_are_compared_with_the_nearest_peer() {
        assert_eq!(nearest(0.02, &[0.2, 0.03]), Some(1));
        assert_eq!(nearest(0.02, &[f64::NAN, 0.5]), Some(1));
        assert_eq!(nearest(0.02, &[f64::NAN]), None);
        assert_eq!(saved_to(0.3, 0.2).map(|ratio| (ratio * 10.0).round()), Some(15.0));
        assert_eq!((saved_to(0.3, 0.0), saved_to(-0.1, 0.2)), (None, None));
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-9);
    }
}
