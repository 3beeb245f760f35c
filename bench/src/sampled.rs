//! What sampling costs a program whose memory stays where it is: its throughput with samples, at
//! the full rate, to that without. Reader and interrupts share the program's CPU, so both are in
//! it. Bar: 1 % of a core for each running thread in all.

use crate::load::{self, number};
use crate::results::{self, median, median_interval};
use serde_json::json;

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Patterns of `terrace load memory`
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = ["zipf", "chase", "scan"].map(String::from)
    )]
    patterns: Vec<String>,
    /// Memory of the load
    #[arg(long, default_value = "256M")]
    size: String,
    /// Seconds of each run; samples cost more in its first ones, when code is found and processes
    /// are new
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Interleaved pairs
    #[arg(long, default_value_t = 10)]
    pairs: usize,
}

/// Flags of `terrace run`: with room for all, sites are what asks for samples all the time.
const FLAGS: [&str; 6] = ["--dram", "16G", "--policy", "jenga", "--allocator", "context"];

pub fn run(options: &Options) -> anyhow::Result<()> {
    println!(
        "`terrace load memory`, {} of memory, {} s, everything on one CPU, nothing evicted: without samples to with them (clock):\n",
        options.size, options.seconds
    );
    println!(
        "{:>12} {:>12} {:>22} {:>12} {:>12}",
        "pattern", "slower", "95 % interval", "samples/s", "told of"
    );
    let seconds = options.seconds.to_string();
    let mut rows = Vec::new();
    for pattern in &options.patterns {
        let (mut slower, mut told, mut rate) = (Vec::new(), Vec::new(), Vec::new());
        // The first pair fills caches. Every second one goes backwards: what drifts meets both
        // sides alike.
        for pair in 0..=options.pairs {
            let mut order = ["none", "clock"];
            if pair % 2 == 1 {
                order.reverse();
            }
            let mut per_s = [0.0; 2];
            for sampler in order {
                let flags = [&FLAGS[..], &["--sampler", sampler]].concat();
                let outcome = load::run(
                    pattern,
                    &["--size", &options.size, "--seconds", &seconds],
                    Some(&flags),
                    &[],
                )?;
                let sampled = usize::from(sampler == "clock");
                per_s[sampled] = number(&outcome.load["accesses_per_s"]);
                if sampled == 1 && pair > 0 {
                    told.push(number(&outcome.report["sampler"]["cpu_fraction"]));
                    rate.push(
                        number(&outcome.report["sampler"]["samples"])
                            / number(&outcome.report["elapsed_s"]),
                    );
                }
            }
            if pair > 0 {
                slower.push(per_s[0] / per_s[1]);
            }
        }
        let (least, most) = median_interval(&slower);
        let (median_slower, told, rate) = (median(&slower), median(&told), median(&rate));
        println!(
            "{pattern:>12} {median_slower:>12.4} {least:>11.4} to {most:>7.4} {rate:>12.0} {:>11.2}%",
            told * 100.0
        );
        rows.push(json!({
            "pattern": pattern, "slower": median_slower, "slower_95": [least, most],
            "slower_of_each": slower, "told_cpu_fraction": told, "samples_per_s": rate,
        }));
    }
    println!();
    results::write(
        "sampled",
        json!({
            "size": options.size, "seconds": options.seconds, "flags": FLAGS, "patterns": rows
        }),
    )
}
