//! What `terrace sim` takes.

use super::cases::{Cache, Fast, Page, Plays, Seeds};
use crate::values::{knob, number_within, size};
use clap::Args;
use std::path::PathBuf;

/// What stands below the help.
pub const HELP: &str = "\
What is simulated:
  Units of memory in a fast tier and a slow one, accesses to them, samples of these, and a policy that moves units every 50 ms; time is what accesses,
  faults and moves take. `docs/simulator.md` says how, and what it cannot say. --list shows all names.

Results:
  A table on standard output. With -o each finished case is a line of JSON in FILE at once, with what went on over time; cases that are in FILE already are not
  run again, so that one who was interrupted, or wants more, gives the same command again. A recording that is cut off or damaged is run up to there; its
  results say so (`incomplete`), and are made again by the next such command.

Exit status:
  0    all cases were run
  1    a recording is damaged, or none at all
  125  terrace itself failed, or some cases did

Examples:
  terrace sim jump --policies jenga,memtis,terrace
  terrace sim zipf:theta=0.99 drift app.acc --machines optane,cxl --fast 10%,20%,50% --seeds 1-5 -o runs.jsonl
  terrace sim jump --policies memtis --set memtis.cooling=120K,500K,2M
  terrace sim store:keys=300K --layouts time,context,oracle --policies terrace";

/// `terrace sim`.
#[derive(Args, Debug)]
pub struct SimArguments {
    /// What is accessed: a generator or a program of objects, as NAME or NAME:key=value,…
    /// (--list), or the file of a recording
    #[arg(value_name = "WORKLOAD", required_unless_present = "list")]
    pub workloads: Vec<String>,

    /// Policies [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,

    /// A policy's parameter; with several values it is run with each of them
    /// (memtis.cooling=120K,2M)
    #[arg(long, value_name = "POLICY.NAME=VALUES")]
    pub set: Vec<String>,

    /// How much the fast tier holds: shares of the units, or sizes
    #[arg(long, value_name = "SIZES|PCTS", value_delimiter = ',', default_value = "20%")]
    pub fast: Vec<Fast>,

    /// Machines: optane, cxl, numa; lz4, zstd-fast, zstd, deflate
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "optane")]
    pub machines: Vec<String>,

    /// Numbers that settle what is generated and sampled (1,2,7-9)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub seeds: Vec<Seeds>,

    /// How objects lie in memory, where there are objects: time, size, context, near,
    /// consolidated, oracle
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "time,size,context")]
    pub layouts: Vec<String>,

    /// Units of a generator [default: 10240; with --placement 65536 pages]
    #[arg(long, value_name = "N", value_parser = units)]
    pub units: Option<u32>,

    /// Accesses of a generator [default: 120M; with --placement 8M]
    #[arg(long, value_name = "N", value_parser = some)]
    pub accesses: Option<u64>,

    /// Models that place regions over several tiers, in their settings, instead of policies:
    /// hemem*, gswap*, tmo*, waterfall, tierscape, tierscape-artifact, terrace-cost, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub placement: Vec<String>,

    /// Set of tiers for --placement: tierscape-standard, tierscape-spectrum, gswap or tmo
    #[arg(long, value_name = "SET", default_value = "tierscape-spectrum")]
    pub tiers: String,

    /// The knob of --placement's models that have one, instead of 0.9, 0.5 and 0.1
    #[arg(long, value_name = "A", value_parser = knob)]
    pub alpha: Option<f64>,

    /// What of a recording's and a program's memory is one unit; `mixed`: 2M of which at least half
    /// of the pages is touched at all (`mixed:90%`: 90% of them), and 4K elsewhere
    #[arg(long, value_name = "SIZE|mixed", default_value = "4K")]
    pub page: Page,

    /// How much memory all units together play, with policies' intervals scaled alike; `real`:
    /// they are what they are (a generator's 2M, or 4K and 2M with huge=). Compressed ones
    /// always are pages
    #[arg(long, value_name = "SIZE|real", default_value = "20G")]
    pub plays: Plays,

    /// Accesses of a program that each one stands for [default: 100, or with --plays real what the
    /// recording says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stands_for: Option<u32>,

    /// Accesses of a program from one sample to the next, on average
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5003,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub sample_period: u32,

    /// Milliseconds from one decision to the next
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = tick_ms)]
    pub tick: f64,

    /// Accesses on their way at a time [default: the machine's, 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: Option<u32>,

    /// A cache before memory, for programs of objects and recordings of all accesses to them; or
    /// `none`
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = cache)]
    pub cache: Cache,

    /// Parts of a run of which figures are kept
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub windows: u32,

    /// Threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,

    /// Write each finished case into FILE, and do not run again what is there
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    /// Show all workloads, policies with their parameters, machines and layouts
    #[arg(long)]
    pub list: bool,
}

fn units(text: &str) -> Result<u32, String> {
    match terrace_sim::quantity::count(text) {
        Some(count) if (16..=1 << 28).contains(&count) => Ok(count as u32),
        _ => Err("write a whole number from 16 to 268435456 (10K is 10000)".into()),
    }
}

fn some(text: &str) -> Result<u64, String> {
    match terrace_sim::quantity::count(text) {
        Some(count) if count > 0 => Ok(count),
        _ => Err("write a whole number from 1 (120M is 120000000)".into()),
    }
}

fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "none" => Ok(Cache(None)),
        _ => match size(text)? {
            size if (4096..=1 << 32).contains(&size) => Ok(Cache(Some(size as usize))),
            _ => Err("write `none`, or a size from 4K to 4G".into()),
        },
    }
}

fn tick_ms(text: &str) -> Result<f64, String> {
    number_within(text, 0.001, 1e6)
}
