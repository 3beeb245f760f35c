//! How policies follow a load that changes: throughput over time, time to recover, moves. One
//! program, `terrace load memory`, under each policy in turn. With `--slowdown` it is the limit on
//! memory whose movements are looked at, not policies.

mod jump;

use crate::load::{self, Outcome, number};
use crate::picture;
use crate::results::{self, median};
use anyhow::Context;
use serde_json::{Value, json};
use terrace_policy::registry::live;
use terrace_policy::slowdown::Target;

/// Share of the throughput before a change at which a policy has recovered.
const RECOVERED: f64 = 0.8;
/// Time before a change over which throughput is averaged, and the shortest recovery that counts,
/// s.
const BEFORE_S: f64 = 2.0;

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Look at the limit of `terrace run --slowdown` with this target, instead of policies
    #[arg(long, conflicts_with_all = ["policies", "dram"])]
    slowdown: Option<Target>,
    /// Patterns of `terrace load memory` [default: jump; with --slowdown phases]
    #[arg(long, value_delimiter = ',')]
    patterns: Vec<String>,
    /// Policies
    #[arg(long, value_delimiter = ',', default_values_t = live::NAMES.map(String::from))]
    policies: Vec<String>,
    /// Memory of the load [default: 512M; with --slowdown 1G]
    #[arg(long)]
    size: Option<String>,
    /// The budget
    #[arg(long, default_value = "50%")]
    dram: String,
    /// Seconds of each run [default: 24; with --slowdown 240]
    #[arg(long)]
    seconds: Option<f64>,
    /// Seconds between changes [default: 8; with --slowdown 60]
    #[arg(long)]
    change_every: Option<f64>,
    /// Interleaved repeats [default: 5; with --slowdown 3]
    #[arg(long)]
    repeats: Option<usize>,
    /// More flags for `terrace run`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    terrace_flags: String,
}

/// The load, with what is usual where nothing is said.
struct Shape {
    patterns: Vec<String>,
    size: String,
    seconds: f64,
    change_every: f64,
    repeats: usize,
}

impl Options {
    fn shape(&self, usual: Shape) -> Shape {
        Shape {
            patterns: if self.patterns.is_empty() { usual.patterns } else { self.patterns.clone() },
            size: self.size.clone().unwrap_or(usual.size),
            seconds: self.seconds.unwrap_or(usual.seconds),
            change_every: self.change_every.unwrap_or(usual.change_every),
            repeats: self.repeats.unwrap_or(usual.repeats),
        }
    }
}

/// Figures of a run.
struct Run {
    over_time: Vec<f64>,
    interval_s: f64,
    per_s: f64,
    demoted: f64,
    promoted: f64,
    samples: f64,
    sampler_cpu: f64,
}

impl Run {
    fn of(options: &Options, shape: &Shape, pattern: &str, policy: &str) -> anyhow::Result<Run> {
        let mut flags = vec!["--dram", &options.dram, "--policy", policy];
        flags.extend(options.terrace_flags.split_ascii_whitespace());
        let (seconds, change_every) = (shape.seconds.to_string(), shape.change_every.to_string());
        let arguments =
            ["--size", &shape.size, "--seconds", &seconds, "--change-every", &change_every];
        let Outcome { load, report, over_time, interval_s } =
            load::run(pattern, &arguments, Some(&flags), &[])
                .with_context(|| format!("under {policy}"))?;
        Ok(Run {
            over_time,
            interval_s,
            per_s: number(&load["accesses_per_s"]),
            demoted: number(&report["moves"]["demoted_pages"]),
            promoted: number(&report["moves"]["promoted_pages"]),
            samples: number(&report["sampler"]["samples"]),
            sampler_cpu: number(&report["sampler"]["cpu_fraction"]),
        })
    }

    /// Mean throughput from one second to another.
    fn between(&self, from_s: f64, to_s: f64) -> f64 {
        let index =
            |seconds: f64| ((seconds / self.interval_s).round() as usize).min(self.over_time.len());
        let part = &self.over_time[index(from_s)..index(to_s)];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    }

    /// Seconds from each change until throughput is what it was, or until the next one.
    fn recoveries(&self, shape: &Shape) -> Vec<f64> {
        let changes = (shape.seconds / shape.change_every).ceil() as usize;
        (1..changes)
            .map(|change| {
                let at = change as f64 * shape.change_every;
                let goal = self.between(at - BEFORE_S, at) * RECOVERED;
                let from = (at / self.interval_s).round() as usize;
                // Half a second of it, not one lucky interval.
                let stretch = (0.5 / self.interval_s).round().max(1.0) as usize;
                let later = self.over_time.get(from..).unwrap_or_default();
                let later =
                    &later[..later.len().min((shape.change_every / self.interval_s) as usize)];
                let found = later
                    .windows(stretch)
                    .position(|part| part.iter().sum::<f64>() / stretch as f64 >= goal);
                found.map_or(shape.change_every, |intervals| intervals as f64 * self.interval_s)
            })
            .collect()
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(target) = options.slowdown {
        return jump::run(options, target);
    }
    let shape = options.shape(Shape {
        patterns: vec!["jump".into()],
        size: "512M".into(),
        seconds: 24.0,
        change_every: 8.0,
        repeats: 5,
    });
    let mut all = Vec::new();
    for pattern in &shape.patterns {
        all.push(json!({ "pattern": pattern, "policies": compare(options, &shape, pattern)? }));
    }
    results::write(
        "adapt",
        json!({
            "size": shape.size, "dram": options.dram, "seconds": shape.seconds,
            "change_every_s": shape.change_every,
            "repeats": shape.repeats, "terrace_flags": options.terrace_flags, "patterns": all,
        }),
    )
}

fn compare(options: &Options, shape: &Shape, pattern: &str) -> anyhow::Result<Vec<Value>> {
    println!(
        "{pattern}: {} in {} of DRAM, everything on one CPU, a change each {:.0} s; medians of {} interleaved repeats:\n",
        shape.size, options.dram, shape.change_every, shape.repeats
    );
    let mut runs: Vec<Vec<Run>> = options.policies.iter().map(|_| Vec::new()).collect();
    for _ in 0..shape.repeats {
        for (policy, runs) in options.policies.iter().zip(&mut runs) {
            runs.push(Run::of(options, shape, pattern, policy)?);
        }
    }
    println!(
        "{:>12} {:>10} {:>10} {:>10} {:>12} {:>12} {:>9} {:>8}",
        "policy", "M/s", "late M/s", "recover s", "out pages", "back pages", "samples", "CPU"
    );
    let mut rows = Vec::new();
    let mut curves = Vec::new();
    for (policy, runs) in options.policies.iter().zip(&runs) {
        let of = |get: &dyn Fn(&Run) -> f64| median(&runs.iter().map(get).collect::<Vec<_>>());
        let recoveries: Vec<f64> = runs.iter().flat_map(|run| run.recoveries(shape)).collect();
        let late = of(&|run| run.between(shape.seconds - BEFORE_S, shape.seconds));
        println!(
            "{policy:>12} {:>10.2} {:>10.2} {:>10.1} {:>12.0} {:>12.0} {:>9.0} {:>7.2}%",
            of(&|run| run.per_s) / 1e6,
            late / 1e6,
            median(&recoveries),
            of(&|run| run.demoted),
            of(&|run| run.promoted),
            of(&|run| run.samples),
            of(&|run| run.sampler_cpu) * 100.0,
        );
        let intervals = runs.iter().map(|run| run.over_time.len()).min().unwrap_or(0);
        let over_time: Vec<f64> = (0..intervals).map(|i| of(&|run| run.over_time[i])).collect();
        let interval_s = of(&|run| run.interval_s);
        curves.push((
            policy.as_str(),
            picture::smooth(&over_time, 5)
                .enumerate()
                .map(|(i, v)| (i as f64 * interval_s, v / 1e6))
                .collect(),
        ));
        rows.push(json!({
            "policy": policy, "accesses_per_s": of(&|run| run.per_s), "late_accesses_per_s": late,
            "recover_s": median(&recoveries),
            "recoveries_s": recoveries, "demoted_pages": of(&|run| run.demoted),
            "promoted_pages": of(&|run| run.promoted),
            "samples": of(&|run| run.samples), "sampler_cpu_fraction": of(&|run| run.sampler_cpu),
            "interval_s": interval_s,
            "over_time": over_time,
            "accesses_per_s_of_each": runs.iter().map(|run| run.per_s).collect::<Vec<_>>(),
        }));
    }
    println!();
    let title = format!("{pattern}: {} in {} of DRAM", shape.size, options.dram);
    picture::over_time(&format!("adapt-{pattern}"), &title, "million accesses a second", curves)?;
    Ok(rows)
}
