//! How fast the simulator is. Over a stream, Jenga's policy is compared with a bare loop that
//! counts the accesses to each unit of that stream. Over a recording in its compressed file, it is
//! compared with the same accesses from memory.

mod recording;

use crate::results::{self, median};
use anyhow::Context as _;
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;
use terrace_policy::placement::PlacementPolicy;
use terrace_policy::registry::simulated::{self, Parameters};
use terrace_sim::generators::Generator;
use terrace_sim::machine::Machine;
use terrace_sim::simulation::{Settings, Simulation};
use terrace_sim::source::{Access, BLOCK, Source};
use terrace_testkit::process::resident_bytes;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Accesses of a stream, which is in memory
    #[arg(long, default_value_t = 40_000_000)]
    accesses: u64,
    /// Units of the streams
    #[arg(long, value_delimiter = ',', default_values_t = [10_240, 1_000_000])]
    units: Vec<u32>,
    /// Policies; the first is the one that is to keep up
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = ["jenga".to_string(), "memtis".into(), "tpp".into(), "terrace".into()]
    )]
    policies: Vec<String>,
    /// A run is ended after this many seconds, however far it is
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Recordings to be simulated beside those that are made here
    #[arg(long)]
    trace: Vec<PathBuf>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let streams = streams(options)?;
    let recordings = recording::run(options)?;
    results::write(
        "sim",
        json!({
            "accesses": options.accesses, "repeats": options.repeats, "rows": streams,
            "recordings": recordings,
        }),
    )
}

/// Measures generated accesses, from memory.
fn streams(options: &Options) -> anyhow::Result<Vec<Value>> {
    println!(
        "Accesses a second of one core, in millions; medians of {} interleaved repeats\n",
        options.repeats
    );
    println!(
        "{:>10} {:>10} {:>9} {:>12} {:>12} {:>7} {:>14}",
        "stream", "units", "bare loop", "policy", "simulated", "ratio", "bytes a unit"
    );
    let mut rows = Vec::new();
    for units in &options.units {
        for name in ["scattered", "jump"] {
            let generator = Generator::parse(name, *units, options.accesses)?;
            let all = collected(&mut generator.stream(1))?;
            let mut bare = Vec::new();
            let mut simulated: Vec<Vec<f64>> =
                options.policies.iter().map(|_| Vec::new()).collect();
            let mut bytes = vec![0.0; options.policies.len()];
            for _ in 0..options.repeats {
                bare.push(count(&all, *units));
                for ((policy, rates), bytes) in
                    options.policies.iter().zip(&mut simulated).zip(&mut bytes)
                {
                    let (rate, more) = simulate(&all, *units, policy, options.seconds)?;
                    rates.push(rate);
                    *bytes = f64::max(*bytes, more / f64::from(*units));
                }
            }
            let bare_rate = median(&bare);
            for ((policy, rates), bytes) in options.policies.iter().zip(&simulated).zip(&bytes) {
                let rate = median(rates);
                println!(
                    "{name:>10} {units:>10} {:>9.0} {policy:>12} {:>12.0} {:>7.2} {bytes:>14.1}",
                    bare_rate / 1e6,
                    rate / 1e6,
                    rate / bare_rate
                );
                rows.push(json!({
                    "stream": generator.to_string(), "units": units, "policy": policy,
                    "bare_per_s": bare_rate, "simulated_per_s": rate,
                    "ratio": rate / bare_rate, "bytes_a_unit": bytes, "bare_per_s_of_each": bare,
                    "simulated_per_s_of_each": rates,
                }));
            }
        }
    }
    println!();
    Ok(rows)
}

/// Collects all accesses of a stream.
fn collected(stream: &mut dyn Source) -> anyhow::Result<Vec<Access>> {
    let (mut all, mut block) = (Vec::new(), Vec::new());
    loop {
        stream.next_block(&mut block)?;
        if block.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&block);
    }
}

/// Speed of the bare loop, accesses a second.
fn count(all: &[Access], units: u32) -> f64 {
    let mut counts = vec![0u32; units as usize];
    // Its pages are there.
    counts.fill(1);
    let begun = Instant::now();
    for access in black_box(all) {
        counts[access.unit() as usize] += 1;
    }
    black_box(&counts);
    all.len() as f64 / begun.elapsed().as_secs_f64()
}

/// Simulates the accesses under a policy. Returns accesses a second, and resident bytes that the
/// simulation needs.
fn simulate(all: &[Access], units: u32, policy: &str, seconds: f64) -> anyhow::Result<(f64, f64)> {
    let machine = Machine::preset("optane").context("no such machine")?;
    let parameters = Parameters { slowness: 3.75, ..Parameters::of_units(units) };
    let policy = named(policy, &parameters)?;
    let settings = Settings { unit_bytes: parameters.unit_bytes, ..Settings::new(machine, units) };
    let before = resident_bytes("self")?;
    let simulation = Simulation::new(settings, policy);
    let (rate, simulation) = timed(all, simulation, seconds);
    let bytes = resident_bytes("self")? as f64 - before as f64;
    black_box(simulation.finish());
    Ok((rate, bytes))
}

fn named(policy: &str, parameters: &Parameters) -> anyhow::Result<Box<dyn PlacementPolicy>> {
    simulated::policy(policy, parameters).ok_or_else(|| {
        anyhow::anyhow!("there is no policy `{policy}`; there are {}", simulated::NAMES.join(", "))
    })
}

/// Accesses a second from memory, in a run of `seconds` seconds at most.
fn timed(all: &[Access], mut simulation: Simulation, seconds: f64) -> (f64, Simulation) {
    let begun = Instant::now();
    let mut done = 0;
    // As a pass hands them on.
    for block in black_box(all).chunks(BLOCK) {
        simulation.run(block, &[]);
        done += block.len();
        if begun.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    (done as f64 / begun.elapsed().as_secs_f64(), simulation)
}
