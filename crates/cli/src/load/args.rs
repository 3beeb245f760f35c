//! What `terrace load` takes.

use super::accesses::Workload;
use super::memory::pattern::Load;
use super::numbers::Numbers;
use super::protocol::Protocol;
use super::target::Target;
use super::values::{LEAST_BYTES, MOST_BYTES, MOST_ITEMS};
use crate::values::{number_within, percent, seconds, size, some_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `terrace load`.
#[derive(Args, Debug)]
pub struct LoadArguments {
    /// What is loaded.
    #[command(subcommand)]
    pub kind: LoadKind,
}

/// `terrace load …`.
#[derive(Subcommand, Debug)]
pub enum LoadKind {
    /// Fill a memcached or redis server with values that can be told apart, then read and write
    /// them
    #[command(after_long_help = LOAD_HELP)]
    Kv(KvArguments),
    /// Touch memory of this command's own in a known pattern, to see what a policy makes of it
    #[command(after_long_help = MEMORY_HELP)]
    Memory(MemoryArguments),
}

const MEMORY_HELP: &str = "\
All that is read is checked.

Exit status:
  0    all was what it should be
  1    something was not
  125  terrace itself failed

Examples:
  terrace run --dram 50% -- terrace load memory jump --size 1G --seconds 30
  terrace record -o zipf.rec -- terrace load memory zipf --truth zipf.json";

/// `terrace load memory`.
#[derive(Args, Debug)]
pub struct MemoryArguments {
    /// What is touched when
    #[arg(value_enum, value_name = "PATTERN")]
    pub pattern: Load,

    /// How much memory (512M, 4G: powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub size: u64,

    /// How long, after it was filled
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = some_seconds)]
    pub seconds: f64,

    /// How long what is hot stays the same, where it changes
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = some_seconds)]
    pub change_every: f64,

    /// How many threads, each with a way of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub threads: usize,

    /// Percentage of accesses that write
    #[arg(long, value_name = "PCT", default_value = "10", value_parser = percent)]
    pub write_share: f64,

    /// The exponent of the Zipf distribution; 0: all alike
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = theta)]
    pub theta: f64,

    /// From what all is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Accesses are counted for so long each
    #[arg(long, value_name = "S", default_value_t = 0.1, value_parser = some_seconds)]
    pub interval: f64,

    /// At the end check all that was not read too, and that no write was lost (of a graph: all but
    /// its ranks)
    #[arg(long)]
    pub check_all: bool,

    /// Count accesses to each page, and write them into this file as JSON
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const LOAD_HELP: &str = "\
Every value that comes back is checked: key, version, checksum. A missing, stale or damaged one is an error.

Exit status:
  0    every answer was right
  1    one was not
  125  terrace itself failed, or the server went away

Examples:
  terrace load kv 127.0.0.1:11211 --items 1000000 --connections 32
  terrace load kv /run/redis.sock --protocol redis --get-share 90 --depth 16 --json";

/// `terrace load kv`.
#[derive(Args, Debug)]
pub struct KvArguments {
    /// HOST:PORT, or the path of a Unix socket
    #[arg(value_name = "TARGET")]
    pub target: Target,

    /// The protocol that it speaks; without it the server is asked
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// Fill the server, load it, or both. A server that is only loaded must have been filled with
    /// the same items, value bytes and seed
    #[arg(long, value_enum, default_value = "both")]
    pub phase: Phase,

    /// How many items
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=MOST_ITEMS))]
    pub items: u64,

    /// How long values are, from 64 to 1000000 bytes: a number, a range (100..4000), or numbers
    /// with weights (100:70,4000:30). Each item has a length of its own
    #[arg(long, value_name = "BYTES", default_value = "1000", value_parser = value_bytes)]
    pub value_bytes: Numbers,

    /// What share of each value does not compress, in percent: a number, a range (0..100), or
    /// numbers with weights (0:70,100:30)
    #[arg(long, value_name = "PCT", default_value = "0", value_parser = incompressible)]
    pub incompressible: Numbers,

    /// From what all data are made, and which items are popular
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// With the seed, the order of accesses: a run after another one should have another, not to
    /// repeat its accesses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub order: u64,

    /// Which items are asked for most
    #[arg(long, value_enum, default_value = "zipf")]
    pub keys: Keys,

    /// The exponent of the Zipf distribution; 0: all items alike
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = theta)]
    pub theta: f64,

    /// The deviation of the normal distribution, in percent of the items
    #[arg(long, value_name = "PCT", default_value = "10", value_parser = sigma)]
    pub sigma: f64,

    /// Popular items are those that were written first, so they are neighbours in the server's
    /// memory; else they are scattered
    #[arg(long)]
    pub clustered: bool,

    /// Percentage of operations that are GETs; the others are SETs
    #[arg(long, value_name = "PCT", default_value = "100", value_parser = percent)]
    pub get_share: f64,

    /// The operations of one of YCSB's workloads instead
    #[arg(long, value_enum, conflicts_with = "get_share")]
    pub workload: Option<Workload>,

    /// After this many operations other items are popular
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "workload")]
    pub jump_every: Option<u64>,

    /// An open loop: this many operations a second set out, and times count from when they are due
    #[arg(long, value_name = "OPS", value_parser = rate)]
    pub rate: Option<f64>,

    /// How many threads, which share the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub threads: usize,

    /// How many connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub connections: usize,

    /// Requests on the way on each of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub depth: usize,

    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,

    /// Measure this many operations instead
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub operations: Option<u64>,

    /// How long to load before that
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub warm_up: f64,

    /// Give up when the server has not answered for so long
    #[arg(long, alias = "patience", value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub timeout: f64,

    /// Count operations on each item while it is measured, and write them into this file as JSON
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Take values of any contents, from a server that keeps none, for benchmarks
    #[arg(long, hide = true)]
    pub unchecked: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How popular items are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// By Zipf's law (--theta)
    Zipf,
    /// All alike
    Uniform,
    /// By half of a normal distribution (--sigma)
    Gaussian,
    /// By Zipf's law, the latest most
    Latest,
}

/// What of a load is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Write every item, then load and measure
    Both,
    /// Only write every item
    Fill,
    /// Only load and measure
    Run,
}

/// Least deviation of a normal distribution: a narrower one has one item.
const SIGMA_LEAST: f64 = 1e-6;
/// Most threads, connections, and requests on each connection: more would be a mistake.
const COUNT_MOST: usize = 10_000;

fn theta(text: &str) -> Result<f64, String> {
    number_within(text, 0.0, 10.0)
}

fn rate(text: &str) -> Result<f64, String> {
    number_within(text, 1.0, 1e8)
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=COUNT_MOST).contains(&count) => Ok(count),
        _ => Err(format!("write a whole number from 1 to {COUNT_MOST}")),
    }
}

fn sigma(text: &str) -> Result<f64, String> {
    let share = percent(text)?;
    if share < SIGMA_LEAST {
        Err("write a percentage from 0.0001 to 100".to_owned())
    } else {
        Ok(share)
    }
}

fn value_bytes(text: &str) -> Result<Numbers, String> {
    let read = Numbers::parse(text, &(LEAST_BYTES..=MOST_BYTES));
    read.map_err(|what| format!("{what}; a value names its key and version"))
}

fn incompressible(text: &str) -> Result<Numbers, String> {
    Numbers::parse(text, &(0..=100))
}
