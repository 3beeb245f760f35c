//! `terrace solver`: the placement solver on a generated problem: its time, its memory, and how far
//! from the best it can be.

#[cfg(feature = "exact")]
mod exact;

#[cfg(feature = "exact")]
use self::exact::{Exact, exact};
use crate::quantity::{bytes, share};
use crate::values::knob;
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::time::Instant;
use terrace_policy::tiering::knapsack::{Problem, solve};
use terrace_sim::tiersets;

/// `terrace solver`.
#[derive(Args, Debug)]
pub struct SolverArguments {
    /// Number of regions (2 MiB each)
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub regions: u32,
    /// Set of tiers: tierscape-standard (4), tierscape-spectrum (6), gswap or tmo (2)
    #[arg(long, value_name = "SET", default_value = "tierscape-spectrum")]
    pub tiers: String,
    /// The knob: 1 is all speed, 0 all saving
    #[arg(long, value_name = "A", default_value_t = 0.3, value_parser = knob)]
    pub alpha: f64,
    /// DRAM has room for 40% of the data, and the slow medium for 25%
    #[arg(long)]
    pub limits: bool,
    /// From what all chance is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also solve it exactly, by HiGHS in one thread, for at most this many seconds
    #[cfg(feature = "exact")]
    #[arg(long, value_name = "SECONDS")]
    pub exact: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Answer {
    version: u32,
    regions: usize,
    tiers: usize,
    alpha: f64,
    limits: bool,
    elapsed_s: f64,
    /// Largest resident size of the process, with the problem's tables.
    peak_bytes: u64,
    time: f64,
    at_least: f64,
    /// How much more time it takes than the least by weak duality, as a share of that.
    gap: f64,
    bound_met: bool,
    limits_met: bool,
    /// The exact solution, with `--exact`.
    #[cfg(feature = "exact")]
    exact: Option<Exact>,
}

/// Runs the subcommand; the result is the exit status: 1 where nothing within the bound was found.
pub fn run(arguments: &SolverArguments) -> Result<u8> {
    let regions = arguments.regions as usize;
    let limits = arguments.limits;
    let of = tiersets::instance(&arguments.tiers, regions, arguments.alpha, limits, arguments.seed)
        .with_context(|| {
            format!(
                "there is no set of tiers `{}`; there are {}",
                arguments.tiers,
                tiersets::NAMES.join(", ")
            )
        })?;
    let problem = Problem {
        choices: of.choices,
        time: &of.time,
        cost: &of.cost,
        uses: &of.uses,
        limited: &of.limited,
        limits: &of.limits,
        bound: of.bound,
    };
    let begun = Instant::now();
    let solution = solve(&problem);
    let elapsed_s = begun.elapsed().as_secs_f64();
    let answer = Answer {
        version: 1,
        regions,
        tiers: of.choices,
        alpha: arguments.alpha,
        limits,
        elapsed_s,
        peak_bytes: peak_bytes().unwrap_or(0),
        time: solution.time,
        at_least: solution.at_least,
        gap: (solution.time - solution.at_least) / solution.at_least.max(f64::MIN_POSITIVE),
        bound_met: solution.bound_met,
        limits_met: solution.limits_met,
        #[cfg(feature = "exact")]
        exact: arguments.exact.and_then(|seconds| exact(&problem, seconds, solution.time)),
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    } else {
        writeln!(
            out,
            "{} regions, {} tiers: {:.1} ms, {} at most; at most {} above the least{}",
            regions,
            answer.tiers,
            elapsed_s * 1e3,
            bytes(answer.peak_bytes),
            format_args!("{:.4}%", answer.gap * 100.0),
            if answer.bound_met && answer.limits_met {
                format!(", at {} of what all-DRAM costs", share(solution.cost / regions as f64))
            } else {
                "; nothing within the bound and the limits was found".into()
            }
        )?;
        #[cfg(feature = "exact")]
        if let Some(exact) = &answer.exact {
            writeln!(
                out,
                "HiGHS: {:.1} s, {}; {:.4}% above it",
                exact.elapsed_s,
                if exact.is_optimal { "the optimum" } else { "no optimum in this time" },
                exact.gap * 100.0
            )?;
        }
    }
    Ok(u8::from(!(answer.bound_met && answer.limits_met)))
}

/// `VmHWM` of this process.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
