//! Benchmarks of Terrace, side by side with its peers in one run on one machine.
//!
//! `make bench` runs all; each prints a table with ratios and writes JSON to bench/results/. Figures are medians of interleaved
//! repeats; nothing here passes or fails, it only tells.

mod faulters;
mod idle;
mod interrupt;
mod machine;
mod metadata;
mod pages;
mod probe;
mod results;
mod servers;
mod zram;
mod zswap;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Benchmarks of Terrace against its peers")]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Restore, fault and eviction of one page, against zram lz4
    Pages {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
    },
    /// 1 to 64 threads that touch evicted memory, on one CPU and on two, against zram lz4
    Faulters {
        /// Interleaved repeats of each side
        #[arg(long, default_value_t = 5)]
        repeats: usize,
        /// Numbers of threads
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8, 64])]
        threads: Vec<usize>,
        /// More flags for `terrace run`
        #[arg(long, default_value = "", allow_hyphen_values = true)]
        terrace_flags: String,
    },
    /// What Terrace costs a program of which nothing is evicted
    Idle {
        /// Interleaved pairs
        #[arg(long, default_value_t = 30)]
        pairs: usize,
    },
    /// memcached and redis-server at equal memory, against a control group over zram or zswap (as root)
    ZramServers(Box<servers::Options>),
    /// Metadata per managed byte, at 1 and 8 GiB
    Metadata,
    /// (internal) the measured program of `pages`
    #[command(hide = true)]
    TouchPages,
    /// (internal) the measured program of `faulters`
    #[command(hide = true)]
    TouchFromThreads {
        /// Numbers of threads
        #[arg(value_delimiter = ',')]
        threads: Vec<usize>,
    },
    /// (internal) the measured program of `metadata`
    #[command(hide = true)]
    FillMemory {
        /// GiB to fill
        gib: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        Some(What::Pages { repeats }) => pages::run(repeats),
        Some(What::Faulters { repeats, threads, terrace_flags }) => faulters::run(repeats, &threads, &terrace_flags),
        Some(What::Idle { pairs }) => idle::run(pairs),
        Some(What::ZramServers(options)) => servers::run(&options),
        Some(What::Metadata) => metadata::run(),
        Some(What::TouchPages) => probe::touch_pages(),
        Some(What::TouchFromThreads { threads }) => probe::touch_from_threads(&threads),
        Some(What::FillMemory { gib }) => probe::fill_memory(gib),
        None => {
            pages::run(5)?;
            metadata::run()?;
            idle::run(30)
        }
    }
}
