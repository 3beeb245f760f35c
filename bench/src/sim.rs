//! How fast the simulator is: Jenga's policy over a stream, against a bare loop that counts the accesses to each unit of the same stream.

use crate::results::{self, median};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;
use terrace_policy::published::{self, Parameters};
use terrace_sim::generators::Generator;
use terrace_sim::machine::Machine;
use terrace_sim::simulation::{Settings, Simulation};
use terrace_sim::source::{Access, Source as _};

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
    #[arg(long, value_delimiter = ',', default_values_t = ["jenga".to_string(), "memtis".into(), "tpp".into(), "terrace".into()])]
    policies: Vec<String>,
}

/// Runs it.
pub fn run(options: &Options) -> anyhow::Result<()> {
    println!("Accesses a second of one core, in millions; medians of {} interleaved repeats\n", options.repeats);
    println!(
        "{:>10} {:>10} {:>9} {:>12} {:>12} {:>7} {:>14}",
        "stream", "units", "bare loop", "policy", "simulated", "ratio", "bytes a unit"
    );
    let mut rows = Vec::new();
    for units in &options.units {
        for name in ["scattered", "jump"] {
            let generator = Generator::parse(name, *units, options.accesses)?;
            let mut stream = generator.stream(1);
            let (mut all, mut block) = (Vec::with_capacity(options.accesses as usize), Vec::new());
            loop {
                stream.next_block(&mut block)?;
                if block.is_empty() {
                    break;
                }
                all.extend_from_slice(&block);
            }
            let mut bare = Vec::new();
            let mut simulated: Vec<Vec<f64>> = options.policies.iter().map(|_| Vec::new()).collect();
            let mut bytes = vec![0.0; options.policies.len()];
            for _ in 0..options.repeats {
                bare.push(count(&all, *units));
                for ((policy, rates), bytes) in options.policies.iter().zip(&mut simulated).zip(&mut bytes) {
                    let (rate, more) = simulate(&all, *units, policy)?;
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
                    "stream": generator.to_string(), "units": units, "policy": policy, "bare_per_s": bare_rate, "simulated_per_s": rate,
                    "ratio": rate / bare_rate, "bytes_a_unit": bytes, "bare_per_s_of_each": bare, "simulated_per_s_of_each": rates,
                }));
            }
        }
    }
    println!();
    results::write("sim", json!({ "accesses": options.accesses, "repeats": options.repeats, "rows": rows }))
}

/// The bare loop, accesses a second.
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

/// The same under a policy; and the bytes that it needs.
fn simulate(all: &[Access], units: u32, policy: &str) -> anyhow::Result<(f64, f64)> {
    let machine = Machine::preset("optane").ok_or_else(|| anyhow::anyhow!("no such machine"))?;
    let parameters = Parameters { slowness: 3.75, ..Parameters::of_units(units) };
    let policy = published::policy(policy, &parameters)
        .ok_or_else(|| anyhow::anyhow!("there is no policy `{policy}`; there are {}", published::NAMES.join(", ")))?;
    let settings = Settings { unit_bytes: parameters.unit_bytes, ..Settings::new(machine, units) };
    let before = resident_bytes()?;
    let mut simulation = Simulation::new(settings, policy);
    let begun = Instant::now();
    // As a pass hands them on.
    for block in black_box(all).chunks(terrace_sim::source::BLOCK) {
        simulation.run(block, &[]);
    }
    let rate = all.len() as f64 / begun.elapsed().as_secs_f64();
    let bytes = resident_bytes()? - before;
    black_box(simulation.finish());
    Ok((rate, bytes))
}

fn resident_bytes() -> anyhow::Result<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).unwrap_or_default().parse()?;
    Ok(pages * 4096.0)
}
