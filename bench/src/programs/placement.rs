//! Models that place regions over compressed tiers, on whole programs, each at some settings of the
//! knob. Told are how much of its time a program loses, how much memory it has on average, and what
//! all of its data cost.
//!
//! One repeat: each model at each setting, in random order, with a run alone before every
//! [`BETWEEN`] of them and behind the last. Each run is compared with the two runs alone around it.
//! Memory is counted as in the other benchmarks of programs. So it has Terrace's own in it, which
//! the cost of the data has not.

use super::list::PLACED;
use super::one::{Limit, Sample, one};
use super::runs::Runs;
use super::{Kind, alone, asked_for, under_terrace};
use crate::interrupt;
use crate::load::number;
use crate::results::{self, median};
use anyhow::{Context, ensure};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Models, by their names for `terrace run --placement`
    #[arg(long, value_delimiter = ',', default_values_t = MODELS.map(String::from))]
    models: Vec<String>,
    /// Settings of the knob, from 0 (all saving) to 1 (all speed)
    #[arg(long, value_delimiter = ',', default_values_t = KNOBS)]
    knobs: Vec<f64>,
    /// Time between two plans
    #[arg(long, default_value = "1s")]
    window: String,
}

const MODELS: [&str; 6] = ["hemem*", "gswap*", "tmo*", "waterfall", "tierscape", "terrace-cost"];
const KNOBS: [f64; 3] = [0.9, 0.5, 0.1];
const TIERS: &str = "dram,lz4,zstd:1";

/// Number of runs under Terrace between two runs alone.
const BETWEEN: usize = 3;
/// Multiple of the time alone after which a run is ended.
const LONGEST: u32 = 6;
/// Number under which the first run alone of a repeat is kept, of which there are several. The
/// settings have numbers below it.
const ALONE: usize = 1_000;

/// A model at a setting of the knob.
struct Setting<'a> {
    model: &'a str,
    knob: f64,
    /// Flags of `terrace run`.
    flags: String,
}

/// Runs the benchmark: prints, and writes `bench/results/placement.json`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut settings = Vec::new();
    for model in &options.models {
        for knob in &options.knobs {
            let window = &options.window;
            let flags =
                format!("--placement {model} --knob {knob} --tiers {TIERS} --window {window}");
            settings.push(Setting { model, knob: *knob, flags });
        }
    }
    ensure!(settings.len() <= ALONE, "more than {ALONE} settings");
    println!(
        "{:>14} {:>13} {:>5} {:>8} {:>22} {:>7} {:>7} {:>6} {:>20} {:>22}",
        "program",
        "model",
        "knob",
        "alone s",
        "lost",
        "told",
        "memory",
        "cost",
        "p95 us: alone, was",
        "p99.9 us: alone, was"
    );
    let directory = tempfile::tempdir()?;
    let all: Vec<&str> = settings.iter().map(|setting| setting.flags.as_str()).collect();
    let mut runs = Runs::open(Kind::Placement, &all.join("; "))?;
    let mut rows = Vec::new();
    for program in asked_for(&PLACED, &options.only) {
        let words = (program.command)(directory.path()).with_context(|| program.name)?;
        match measure(&mut runs, program.name, &words, &settings, options.repeats) {
            Ok(()) => {}
            Err(error) if interrupt::came() => return Err(error),
            Err(error) => println!("{:>14}: {error:#}", program.name),
        }
        for (number, setting) in settings.iter().enumerate() {
            let samples = samples(&runs, program.name, number, settings.len(), options.repeats);
            if !samples.is_empty() {
                rows.push(row(program.name, setting, &samples));
            }
        }
    }
    runs.are_done()?;
    results::write(
        "placement",
        json!({
            "tiers": TIERS, "window": options.window, "repeats": options.repeats, "rows": rows,
        }),
    )
}

/// The settings' numbers in the order of a repeat. It is random because the machine's speed
/// changes, and always the same because a benchmark that was cut off goes on.
fn order(settings: usize, repeat: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..settings).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(repeat as u64));
    order
}

/// Makes the runs of a program that are missing.
fn measure(
    runs: &mut Runs,
    name: &str,
    words: &[String],
    settings: &[Setting<'_>],
    repeats: usize,
) -> anyhow::Result<()> {
    if runs.made(name, ALONE as u64, repeats).len() < repeats {
        // Files that it reads are in the page cache then.
        alone(name, words)?;
    }
    for repeat in 0..repeats {
        let mut before = Value::Null;
        for (place, number) in order(settings.len(), repeat).into_iter().enumerate() {
            if place.is_multiple_of(BETWEEN) {
                before = made_alone(runs, name, words, place / BETWEEN, repeat)?;
            }
            let flags = &settings[number].flags;
            let make = |_| match placed(name, words, flags, &before) {
                Err(error) if !interrupt::came() => {
                    println!("{name:>14} {flags}: {error:#}");
                    Ok(json!({ "failed": format!("{error:#}") }))
                }
                made => made,
            };
            runs.repeat(name, number as u64, repeat + 1, make)?;
        }
        made_alone(runs, name, words, settings.len().div_ceil(BETWEEN), repeat)?;
    }
    Ok(())
}

/// One of the runs alone of a repeat, which is made if it is missing.
fn made_alone(
    runs: &mut Runs,
    name: &str,
    words: &[String],
    number: usize,
    repeat: usize,
) -> anyhow::Result<Value> {
    let number = (ALONE + number) as u64;
    let made = runs.repeat(name, number, repeat + 1, |_| Ok(figures(&alone(name, words)?)))?;
    made.get(repeat).copied().cloned().context("a run alone is missing")
}

/// Runs a program under Terrace. What it computes is what it computed alone.
fn placed(name: &str, words: &[String], flags: &str, alone: &Value) -> anyhow::Result<Value> {
    let report = tempfile::NamedTempFile::new()?;
    let under = under_terrace(words, report.path(), flags)?;
    let alone_s = alone["s"].as_f64().context("a run alone without a time")?;
    let longest = Duration::from_secs_f64(alone_s) * LONGEST;
    let Some(sample) = one(&under, Limit::None, None, longest)? else {
        // A run that was ended takes at least this long, and has no report.
        return Ok(json!({ "s": longest.as_secs_f64(), "was_ended": true }));
    };
    let mut made = figures(&sample);
    ensure!(made["output"] == alone["output"], "{name} computes something else with {flags}");
    let report: Value = serde_json::from_slice(&fs::read(report.path())?)?;
    made["told"] = report["slowdown_estimate"].clone();
    made["told_is_lower_bound"] = report["slowdown_is_lower_bound"].clone();
    made["cost"] = report["placement"]["mean_cost"].clone();
    let tiers = report["tiers"].as_array().into_iter().flatten();
    let restored = tiers.filter_map(|tier| tier["faults"].as_u64()).sum::<u64>();
    made["restored_pages"] = json!(restored);
    Ok(made)
}

/// Figures of a run.
fn figures(sample: &Sample) -> Value {
    let times = &sample.served["run"]["all_us"];
    json!({
        "s": sample.seconds, "mean_bytes": sample.mean,
        "p95_us": times["p95"], "p999_us": times["p999"],
        // Of a program that works for a set time.
        "load_s": sample.served["seconds"], "work_per_s": sample.served["accesses_per_s"],
        "output": String::from_utf8_lossy(&sample.output),
    })
}

/// Runs of a setting, each compared with the runs alone around it.
fn samples(runs: &Runs, name: &str, number: usize, settings: usize, repeats: usize) -> Vec<Value> {
    let mut samples = Vec::new();
    for repeat in 0..repeats {
        let made = |number: usize| runs.made(name, number as u64, repeats).get(repeat).copied();
        let place = order(settings, repeat).into_iter().position(|other| other == number);
        let before = ALONE + place.unwrap_or(0) / BETWEEN;
        if let (Some(placed), Some(first), Some(second)) =
            (made(number), made(before), made(before + 1))
        {
            samples.push(compared(placed, first, second));
        }
    }
    samples
}

/// Figures of a run beside two runs alone.
fn compared(placed: &Value, first: &Value, second: &Value) -> Value {
    let alone = |figure: &str| (number(&first[figure]) + number(&second[figure])) / 2.0;
    // Where the time is set, how long as much work as alone would take.
    let more = alone("work_per_s") / number(&placed["work_per_s"]) - 1.0;
    let more_s = if more.is_finite() { number(&placed["load_s"]) * more } else { 0.0 };
    let mut all = placed.clone();
    all["alone_s"] = json!(alone("s"));
    all["lost"] = json!(1.0 - alone("s") / (number(&placed["s"]) + more_s));
    all["memory"] = json!(number(&placed["mean_bytes"]) / alone("mean_bytes"));
    all["alone_p95_us"] = json!(alone("p95_us"));
    all["alone_p999_us"] = json!(alone("p999_us"));
    if let Some(all) = all.as_object_mut() {
        all.remove("output");
    }
    all
}

/// Medians of a program with a model at a setting; prints them.
fn row(name: &str, setting: &Setting<'_>, samples: &[Value]) -> Value {
    let all = |figure: &str| -> Vec<f64> {
        samples.iter().filter_map(|sample| sample[figure].as_f64()).collect()
    };
    let of = |figure: &str| median(&all(figure));
    let ends = |figure: &str| {
        let all = all(figure);
        let least = all.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
        (least, all.iter().copied().reduce(f64::max).unwrap_or(f64::NAN))
    };
    let (lost, memory) = (ends("lost"), ends("memory"));
    let count = |what: &str| samples.iter().filter(|sample| !sample[what].is_null()).count();
    let (ended, failed) = (count("was_ended"), count("failed"));
    let percent = |value: f64| value * 100.0;
    let pair = |first: f64, second: f64| match first.is_finite() {
        true => format!("{first:.0}, {second:.0}"),
        false => String::new(),
    };
    println!(
        "{name:>14} {:>13} {:>5} {:>8.2} {:>22} {:>6.1}% {:>6.1}% {:>6.2} {:>20} {:>22}{}{}",
        setting.model,
        setting.knob,
        of("alone_s"),
        format!("{:.1}% ({:.1} to {:.1})", percent(of("lost")), percent(lost.0), percent(lost.1)),
        percent(of("told")),
        percent(of("memory")),
        of("cost"),
        pair(of("alone_p95_us"), of("p95_us")),
        pair(of("alone_p999_us"), of("p999_us")),
        if ended > 0 { format!("  {ended} ended") } else { String::new() },
        if failed > 0 { format!("  {failed} failed") } else { String::new() },
    );
    json!({
        "program": name, "model": setting.model, "knob": setting.knob, "alone_s": of("alone_s"),
        "lost": of("lost"), "lost_from": lost.0, "lost_to": lost.1, "told": of("told"),
        "memory": of("memory"), "memory_from": memory.0, "memory_to": memory.1,
        "cost": of("cost"), "restored_pages": of("restored_pages"),
        "p95_us": of("p95_us"), "alone_p95_us": of("alone_p95_us"),
        "p999_us": of("p999_us"), "alone_p999_us": of("alone_p999_us"),
        "ended": ended, "failed": failed, "samples": samples,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repeat_has_all_settings_in_an_order_of_its_own() {
        let mut orders: Vec<Vec<usize>> = (0..3).map(|repeat| order(18, repeat)).collect();
        assert_eq!(orders[1], order(18, 1));
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
        for order in &mut orders {
            order.sort_unstable();
            assert!(order.iter().copied().eq(0..18));
        }
    }

    #[test]
    fn runs_are_compared_with_those_around_them() {
        let run = |s: f64, bytes: f64| json!({ "s": s, "mean_bytes": bytes, "output": "" });
        let sample = compared(&run(20.0, 60.0), &run(9.0, 80.0), &run(11.0, 120.0));
        assert_eq!((number(&sample["lost"]), number(&sample["memory"])), (0.5, 0.6));
        assert_eq!((number(&sample["alone_s"]), sample.get("output")), (10.0, None));
        assert!(sample["alone_p95_us"].is_null());
    }

    #[test]
    fn a_set_time_is_compared_by_work() {
        let run = |rate: f64| json!({ "s": 12.0, "load_s": 10.0, "work_per_s": rate });
        let sample = compared(&run(5.0), &run(9.0), &run(11.0));
        // Ten seconds' work takes twenty.
        assert!((number(&sample["lost"]) - (1.0 - 12.0 / 22.0)).abs() < 1e-9, "{sample}");
        let ended = json!({ "s": 72.0, "was_ended": true });
        let sample = compared(&ended, &run(9.0), &run(11.0));
        assert!((number(&sample["lost"]) - (1.0 - 12.0 / 72.0)).abs() < 1e-9, "{sample}");
    }

    #[test]
    fn what_failed_has_no_figures() {
        let run = json!({ "s": 12.0, "mean_bytes": 1.0 });
        let sample = compared(&json!({ "failed": "why" }), &run, &run);
        assert!(sample["lost"].is_null() && sample["memory"].is_null(), "{sample}");
    }
}
