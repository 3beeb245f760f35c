//! The command line of `terrace plan`.

use crate::cost::prices::Price;
use crate::every::Every;
use crate::values::tiers;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_policy::slowdown::Target as Slowdown;

/// Printed below the options of `--help`.
pub const HELP: &str = "\
What is told:
  What is hot, warm and cold, and for how long; how it compresses; cost against slowdown over the knob, with where the program is now; and three settings, each
  with the command for it. Nothing is moved. Costs of what is not in use yet, and slowdowns, are estimates: expected faults times the whole time of a fault.

Examples:
  terrace plan -- python3 job.py
  terrace plan $(pidof -s redis-server) --for 2m --choose-tiers 3
  terrace plan run.json --price usd=4.5 --svg plan.svg
  terrace plan app.rec --data heap.bin";

/// `terrace plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// A process that runs (its number: it is watched for a while and runs on), the report of an
    /// earlier `terrace run --observe --report FILE`, or what `terrace record` wrote
    #[arg(value_name = "PID|FILE", conflicts_with = "command")]
    pub of: Option<PathBuf>,
    /// How long to watch a process that runs
    #[arg(long = "for", value_name = "TIME", default_value = "15s")]
    pub observe: Every,
    /// The tiers to choose from; those of a report are what its --tiers were
    #[arg(long, value_name = "LIST", value_parser = tiers,
          default_value = "dram,lz4,zstd:-1,zstd:1,zstd:3,zstd:9")]
    pub tiers: String,
    /// Name the best set of up to K tiers below DRAM for this data, what the last one adds, and
    /// when one is enough; the settings then use it
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub choose_tiers: Option<u8>,
    /// The slowdown that the sets are compared at
    #[arg(long, value_name = "PCT", default_value = "2%")]
    pub slowdown: Slowdown,
    /// Take how pages compress from this file, where the rest does not tell it
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file of prices in place of the table that is built in (docs/explanation/tiers.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// What a byte costs on a medium, DRAM's being 1: dram, node or file; or usd=, and what a GiB
    /// of DRAM costs, for figures in dollars (may be repeated)
    #[arg(long, value_name = "MEDIUM=PRICE")]
    pub price: Vec<Price>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw savings against slowdown into this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// The program to observe first, to its end, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
