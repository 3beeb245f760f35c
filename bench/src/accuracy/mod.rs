//! What samples know: the share of accesses, and of a modelled cache's misses, that is in the
//! regions that samples rank hottest, against the truth.

mod redis;

use crate::interrupt;
use crate::machine;
use crate::results;
use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Poisson};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes of a region.
const REGION: u64 = terrace_os::REGION as u64;
/// Shares of the regions that a fast tier has room for.
const ROOMS: [f64; 2] = [0.1, 0.2];

/// Times that as many samples are drawn from the truth.
const DRAWS: u64 = 32;

const REDIS: &str = "redis";
const REDIS_CLUSTERED: &str = "redis-clustered";

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Patterns of `terrace load memory`; and redis-server, with popular items scattered and side
    /// by side
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = ["zipf", "btree", "graph", "chase", "scattered", REDIS, REDIS_CLUSTERED]
            .map(String::from)
    )]
    patterns: Vec<String>,
    /// Memory of the load, MiB
    #[arg(long, default_value_t = 2048)]
    size_mib: u64,
    /// Seconds of each run, at a thousand samples a second
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 5.0, 20.0])]
    seconds: Vec<f64>,
}

/// What samples and the truth say of one region, in numbers of events.
#[derive(Default, Clone)]
struct Known {
    samples: f64,
    accesses: f64,
    misses: f64,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "Regions of 2 MiB that samples rank hottest, and the share of accesses and of misses of a 32 MiB cache in them; oracle: ranked by the truth."
    );
    println!(
        "The bar is 95 % of the oracle's lift over random, from 5 samples a region on. Drawn: the lift of as many samples drawn from the misses themselves.\n"
    );
    println!(
        "{:>15} {:>8} {:>9} {:>6} | {:>9} {:>8} {:>6} | {:>9} {:>8} {:>6} {:>6}",
        "pattern",
        "samples",
        "a region",
        "room",
        "accesses",
        "oracle",
        "lift",
        "misses",
        "oracle",
        "lift",
        "drawn"
    );
    let mut rows = Vec::new();
    for pattern in &options.patterns {
        for seconds in &options.seconds {
            interrupt::check()?;
            let regions = match pattern.as_str() {
                REDIS | REDIS_CLUSTERED => {
                    redis::measure(options.size_mib << 20, *seconds, pattern == REDIS_CLUSTERED)
                }
                _ => measure(options, pattern, *seconds),
            };
            let regions = regions.with_context(|| pattern.clone())?;
            let samples: f64 = regions.iter().map(|region| region.samples).sum();
            for room in ROOMS {
                let [accesses, misses] =
                    [|known: &Known| known.accesses, |known: &Known| known.misses]
                        .map(|of| caught(&regions, room, of));
                let drawn = lift((drawn(&regions, samples, room)?, misses.1), room);
                println!(
                    "{pattern:>15} {samples:>8.0} {:>9.1} {room:>6.2} | {:>9.3} {:>8.3} {:>6.2} | {:>9.3} {:>8.3} {:>6.2} {drawn:>6.2}",
                    samples / regions.len() as f64,
                    accesses.0,
                    accesses.1,
                    lift(accesses, room),
                    misses.0,
                    misses.1,
                    lift(misses, room),
                );
                let part = |(sampled, oracle): (f64, f64)| {
                    let lift = lift((sampled, oracle), room);
                    json!({ "sampled": sampled, "oracle": oracle, "lift": lift })
                };
                rows.push(json!({
                    "pattern": pattern, "seconds": seconds, "samples": samples,
                    "regions": regions.len(), "room": room,
                    "accesses": part(accesses), "misses": part(misses), "drawn_lift": drawn,
                }));
            }
        }
    }
    results::write("accuracy", json!({ "size_mib": options.size_mib, "rows": rows }))
}

/// Fraction of the oracle's lift over random choice that sampling reaches. NaN where the oracle is
/// less than 10 % above random choice.
fn lift((sampled, oracle): (f64, f64), room: f64) -> f64 {
    if oracle < room * 1.1 { f64::NAN } else { (sampled - room) / (oracle - room) }
}

/// Shares of what `of` says that are in the regions with most samples, and in the regions with most
/// of `of` itself.
fn caught(regions: &[Known], room: f64, of: fn(&Known) -> f64) -> (f64, f64) {
    let all: f64 = regions.iter().map(of).sum();
    let top = (regions.len() as f64 * room).round() as usize;
    let by = |key: fn(&Known) -> f64| {
        let mut sorted: Vec<&Known> = regions.iter().collect();
        sorted.sort_by(|a, b| key(b).total_cmp(&key(a)));
        sorted[..top].iter().map(|known| of(known)).sum::<f64>() / all
    };
    (by(|known| known.samples), by(of))
}

/// The share of misses in the regions that as many samples rank hottest, each drawn from the misses
/// at random. It is what a sampler without any error of its own would know.
fn drawn(regions: &[Known], samples: f64, room: f64) -> anyhow::Result<f64> {
    let all: f64 = regions.iter().map(|known| known.misses).sum();
    let mut random = SmallRng::seed_from_u64(1);
    let mut sum = 0.0;
    for _ in 0..DRAWS {
        let mut drawn = regions.to_vec();
        for known in &mut drawn {
            let expected = samples * known.misses / all;
            // Equals in any order.
            let tie: f64 = random.random();
            known.samples = tie / 2.0
                + if expected > 0.0 { Poisson::new(expected)?.sample(&mut random) } else { 0.0 };
        }
        sum += caught(&drawn, room, |known| known.misses).0;
    }
    Ok(sum / DRAWS as f64)
}

fn measure(options: &Options, pattern: &str, seconds: f64) -> anyhow::Result<Vec<Known>> {
    let scratch = tempfile::tempdir()?;
    let (recording, truth) = (scratch.path().join("r"), scratch.path().join("truth.json"));
    let terrace = machine::terrace()?;
    let mut command = record(&recording)?;
    command.arg(&terrace).args([
        "load",
        "memory",
        pattern,
        "--size",
        &format!("{}M", options.size_mib),
        "--seconds",
        &seconds.to_string(),
    ]);
    let output =
        command.arg("--truth").arg(&truth).arg("--json").stderr(Stdio::piped()).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let load: Value = serde_json::from_slice(&output.stdout)?;
    let truth: Value = serde_json::from_str(&std::fs::read_to_string(&truth)?)?;

    let first = truth["address"].as_u64().context("no address")?;
    let pages = |name: &str| {
        truth[name]
            .as_array()
            .context("no truth")
            .map(|all| all.iter().filter_map(Value::as_f64).collect::<Vec<_>>())
    };
    let mut regions: HashMap<u64, Known> = HashMap::new();
    for (page, (accesses, misses)) in
        (0..).zip(pages("accesses")?.into_iter().zip(pages("misses")?))
    {
        let known = regions.entry((first + page * 4096) / REGION).or_default();
        known.accesses += accesses;
        known.misses += misses;
    }
    // Not the filling before, nor the going again after.
    let fill_ms = load["fill_s"].as_f64().unwrap_or(0.0) * 1e3;
    let load_ms = load["seconds"].as_f64().unwrap_or(0.0) * 1e3;
    samples(&recording, [fill_ms, fill_ms + load_ms], &mut regions)?;
    Ok(regions.into_values().collect())
}

/// `terrace record` of the program that is to be added.
fn record(recording: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(machine::terrace()?);
    machine::ends_with_us(&mut command);
    command.arg("record").arg("-o").arg(recording).args(["--window", "10", "--"]);
    Ok(command)
}

/// Adds what was recorded between two times, ms, of the regions that are known.
fn samples(
    recording: &Path,
    [from_ms, to_ms]: [f64; 2],
    regions: &mut HashMap<u64, Known>,
) -> anyhow::Result<()> {
    let shown = Command::new(machine::terrace()?)
        .args(["report", "heatmap", "--json"])
        .arg(recording)
        .output()?;
    let shown: Value = serde_json::from_slice(&shown.stdout).context("no recording")?;
    for window in shown["windows"].as_array().context("no windows")? {
        let start_ms = window["start_ms"].as_f64().context("no time")?;
        if start_ms < from_ms || start_ms > to_ms {
            continue;
        }
        for region in window["regions"].as_array().context("no regions")? {
            let block = region["address"].as_u64().context("no address")? / REGION;
            if let Some(known) = regions.get_mut(&block) {
                known.samples += region["samples"].as_f64().unwrap_or(0.0);
            }
        }
    }
    Ok(())
}
