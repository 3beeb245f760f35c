//! The placement solver on problems of many sizes: time, memory, and distance from the least time
//! that a placement could take. Each run is a process of its own, so that its memory is its peak.

use crate::results::{self, median};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::process::Command;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Numbers of regions
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 1_000_000])]
    regions: Vec<u32>,
    /// Knobs
    #[arg(long, value_delimiter = ',', default_values_t = [0.1, 0.3, 0.5, 0.9])]
    alpha: Vec<f64>,
    /// Runs of each, each with another seed
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Solve the smallest also exactly, by HiGHS, for this many seconds at most; needs a build with
    /// `--features terrace-cli/exact`
    #[arg(long, value_name = "SECONDS")]
    exact: Option<u32>,
}

/// Regions up to which a problem is solved exactly in a reasonable time.
const EXACT_MAX: u32 = 1_000;

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    println!("Placement solver: medians over seeds, largest gap over knobs and seeds\n");
    println!(
        "{:>9} {:>6} {:>7} {:>10} {:>10} {:>11} {:>12}",
        "regions", "tiers", "limits", "ms", "MiB", "gap, most", "to optimum"
    );
    let mut rows = Vec::new();
    for regions in &options.regions {
        for set in ["tierscape-standard", "tierscape-spectrum"] {
            for limits in [false, true] {
                rows.push(row(options, *regions, set, limits)?);
            }
        }
    }
    results::write("solver", json!({ "repeats": options.repeats, "rows": rows }))
}

fn row(options: &Options, regions: u32, set: &str, limits: bool) -> anyhow::Result<Value> {
    let mut all: Vec<Value> = Vec::new();
    for alpha in &options.alpha {
        for seed in 1..=options.repeats {
            all.push(once(options, regions, set, *alpha, limits, seed)?);
        }
    }
    let of = |key: &str, answers: &[Value]| -> Vec<f64> {
        answers.iter().filter_map(|answer| answer[key].as_f64()).collect()
    };
    let found: Vec<Value> = all
        .iter()
        .filter(|answer| answer["bound_met"] == true && answer["limits_met"] == true)
        .cloned()
        .collect();
    let ms = median(&of("elapsed_s", &all)) * 1e3;
    let most_ms = of("elapsed_s", &all).into_iter().fold(0.0, f64::max) * 1e3;
    let mib = of("peak_bytes", &all).into_iter().fold(0.0, f64::max) / f64::from(1 << 20);
    let gap = of("gap", &found).into_iter().fold(0.0, f64::max);
    let tiers = all[0]["tiers"].clone();
    let exact: Vec<f64> = found
        .iter()
        .filter(|answer| answer["exact"]["is_optimal"] == true)
        .filter_map(|answer| answer["exact"]["gap"].as_f64())
        .collect();
    let to_optimum = exact.iter().copied().reduce(f64::max);
    println!(
        "{regions:>9} {tiers:>6} {:>7} {ms:>10.1} {mib:>10.0} {:>10.4}% {:>12}",
        if limits { "yes" } else { "no" },
        gap * 100.0,
        to_optimum.map_or("-".into(), |gap| format!("{:.4}%", gap * 100.0))
    );
    Ok(json!({
        "regions": regions, "set": set, "tiers": tiers, "limits": limits, "median_ms": ms,
        "most_ms": most_ms, "peak_mib": mib, "largest_gap": gap,
        "largest_gap_to_optimum": to_optimum, "optima": exact.len(),
        "not_found": all.len() - found.len(), "runs": all
    }))
}

fn once(
    options: &Options,
    regions: u32,
    set: &str,
    alpha: f64,
    limits: bool,
    seed: u32,
) -> anyhow::Result<Value> {
    let terrace = std::env::current_exe()?.with_file_name("terrace");
    let mut command = Command::new(&terrace);
    command.args(["solver", "--json", "--tiers", set]);
    command.args(["--regions", &regions.to_string(), "--alpha", &alpha.to_string()]);
    command.args(["--seed", &seed.to_string()]);
    if limits {
        command.arg("--limits");
    }
    if let Some(seconds) = options.exact.filter(|_| regions <= EXACT_MAX) {
        command.args(["--exact", &seconds.to_string()]);
    }
    let output = command.output().with_context(|| terrace.display().to_string())?;
    ensure!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
