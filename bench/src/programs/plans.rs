//! What `terrace plan` expects of its three settings, against what they do. Compared are the part
//! of its time that a program loses, and how much memory it has on average.
//!
//! One repeat: `terrace plan`, which observes the program alone, and then each of its settings
//! between two runs alone.

use super::list::PLANNED;
use super::one::{Limit, one};
use super::runs::Runs;
use super::{Kind, SLOWEST, alone, asked_for, under_terrace};
use crate::results::{self, median};
use crate::{interrupt, machine};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the benchmark: prints, and writes `bench/results/plans.json`.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "{:>14} {:>13} {:>8} {:>22} {:>24}",
        "program", "setting", "alone s", "lost: expected, was", "memory: expected, was"
    );
    let directory = tempfile::tempdir()?;
    let mut runs = Runs::open(Kind::Plans, "")?;
    let mut rows = Vec::new();
    for program in asked_for(&PLANNED, &options.only) {
        let words = (program.command)(directory.path()).with_context(|| program.name)?;
        let make = |_| sample(program.name, &words);
        match runs.repeat(program.name, 0, options.repeats, make).err() {
            None => {}
            Some(error) if interrupt::came() => return Err(error),
            Some(error) => println!("{:>14}: {error:#}", program.name),
        }
        rows.extend(settings(program.name, &runs.made(program.name, 0, options.repeats)));
    }
    runs.are_done()?;
    results::write("plans", json!({ "rows": rows }))
}

/// Plans for a program, and runs it with each setting.
fn sample(name: &str, words: &[String]) -> anyhow::Result<Value> {
    let first = alone(name, words)?;
    let plan = Command::new(machine::terrace()?)
        .args(["plan", "--json", "--"])
        .args(words)
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    ensure!(
        plan.status.success(),
        "no plan was made: {}",
        String::from_utf8_lossy(&plan.stderr).trim()
    );
    let plan: Value = serde_json::from_slice(&plan.stdout)?;
    let settings = plan["settings"].as_array().cloned().unwrap_or_default();
    ensure!(!settings.is_empty(), "the plan has no settings: {}", plan["untold"]);
    let longest = Duration::from_secs_f64(first.seconds) * SLOWEST;
    let mut before = first;
    let mut all = Vec::new();
    for setting in settings {
        let command = setting["command"].as_str().context("a setting without a command")?;
        let flags = command
            .strip_prefix("terrace run ")
            .and_then(|rest| rest.split_once(" -- "))
            .context("a setting whose command is not `terrace run … -- …`")?
            .0;
        let report = tempfile::NamedTempFile::new()?;
        let under = under_terrace(words, report.path(), flags)?;
        let terrace = one(&under, Limit::None, None, longest)?
            .with_context(|| format!("{command} takes more than {SLOWEST} times the time alone"))?;
        ensure!(terrace.output == before.output, "{name} computes something else with {flags}");
        let after = alone(name, words)?;
        let alone_s = (before.seconds + after.seconds) / 2.0;
        all.push(json!({
            "setting": setting["name"], "flags": flags, "alone_s": alone_s,
            "lost_expected": setting["slowdown"], "lost_is_lower_bound": setting["at_least"],
            "lost": 1.0 - alone_s / terrace.seconds,
            "memory_expected": setting["cost"],
            "memory": terrace.mean * 2.0 / (before.mean + after.mean),
        }));
        before = after;
    }
    Ok(json!(all))
}

/// Medians of each setting of a program; prints them.
fn settings(name: &str, samples: &[&Value]) -> Vec<Value> {
    let count = samples.first().and_then(|sample| sample.as_array()).map_or(0, Vec::len);
    (0..count)
        .map(|number| {
            let of = |figure: &str| {
                let all: Vec<f64> =
                    samples.iter().filter_map(|sample| sample[number][figure].as_f64()).collect();
                median(&all)
            };
            let setting = &samples[0][number]["setting"];
            let row = json!({
                "program": name, "setting": setting, "alone_s": of("alone_s"),
                "lost_expected": of("lost_expected"), "lost": of("lost"),
                "memory_expected": of("memory_expected"), "memory": of("memory"),
                "samples": samples.iter().map(|sample| &sample[number]).collect::<Vec<_>>(),
            });
            println!(
                "{name:>14} {:>13} {:>8.2} {:>12.1}%, {:>6.1}% {:>14.0}%, {:>6.0}%",
                setting.as_str().unwrap_or_default(),
                of("alone_s"),
                of("lost_expected") * 100.0,
                of("lost") * 100.0,
                of("memory_expected") * 100.0,
                of("memory") * 100.0
            );
            row
        })
        .collect()
}
