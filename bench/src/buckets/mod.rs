//! M2T's case (§III-C, §IV): a chained hash table, measured with YCSB A, B, C, D and F and skews
//! from 0.25 to 2.
//!
//! Two layouts are compared: a bucket in an arena each, key and value next to their node, and
//! objects as malloc puts them. Each runs with all of its memory and with a part of it. Where all
//! memory is there, the gain is locality; the rest is tiering.

mod program;
mod table;

use crate::objects::start;
use crate::results::{self, median};
use crate::{interrupt, machine};
use serde_json::{Value, json};
use std::io::{BufRead as _, Write as _};
use std::process::Stdio;

pub use program::{Task, run as run_program};

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Keys
    #[arg(long, default_value_t = 400_000)]
    keys: u64,
    /// Keys of a bucket, on the average
    #[arg(long, default_value_t = 4)]
    chain: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000)]
    value: usize,
    /// Seconds of a run, of which the second half counts
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Workloads of YCSB, with a skew of 0.99
    #[arg(long, value_delimiter = ',', default_values_t = ['A', 'B', 'C', 'D', 'F'])]
    workloads: Vec<char>,
    /// Skews of Zipf's law, with workload C
    #[arg(long, value_delimiter = ',', default_values_t = [0.25, 0.5, 0.75, 1.5, 2.0])]
    skews: Vec<f64>,
    /// Percent of what the table takes with malloc that may be in DRAM
    #[arg(long, value_delimiter = ',', default_values_t = [100, 50, 30])]
    shares: Vec<u64>,
}

/// Terrace's size order, with placements or without: so they differ in these only.
const SIDES: [bool; 2] = [false, true];

struct Bench<'a> {
    options: &'a Options,
    /// What the table takes with malloc.
    whole_bytes: u64,
    rows: Vec<Value>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "A chained hash table of {} keys, {} a bucket, values of {} bytes; one CPU, medians of {} interleaved repeats\n",
        options.keys, options.chain, options.value, options.repeats
    );
    let mut models = Vec::new();
    println!(
        "{:>5} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>9}",
        "skew", "objects", "pages", "lines", "L1", "L2", "LLC", "TLB 64", "TLB 1536"
    );
    for theta in [0.25, 0.99] {
        for placed in SIDES {
            let figures = measure(options, placed, 'C', theta, 0, None)?;
            let of = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
            let [pages, lines, l1, l2, llc, small, large] =
                ["pages", "lines", "l1", "l2", "llc", "tlb_64", "tlb_1536"].map(of);
            println!(
                "{theta:>5} {:>9} {pages:>7.2} {lines:>7.1} {l1:>7.2} {l2:>7.2} {llc:>7.2} {small:>8.2} {large:>9.2}   of a lookup; half of the misses on {} pages",
                name(placed),
                figures["pages_for_50"]
            );
            models.push(json!({ "theta": theta, "objects": name(placed), "of_a_lookup": figures }));
        }
    }
    println!();
    let whole = measure(options, false, 'C', 0.99, options.seconds, None)?;
    let mut bench = Bench {
        options,
        whole_bytes: whole["resident_bytes"].as_u64().unwrap_or(0),
        rows: Vec::new(),
    };
    println!(
        "{:>8} {:>5} {:>6} {:>11} {:>11} {:>7} {:>9} {:>9}",
        "workload", "skew", "DRAM", "malloc", "placed", "ratio", "load", "memory"
    );
    let cases = options
        .workloads
        .iter()
        .map(|workload| (*workload, 0.99))
        .chain(options.skews.iter().map(|skew| ('C', *skew)));
    for (workload, skew) in cases {
        for share in &options.shares {
            bench.compare(workload, skew, *share)?;
        }
    }
    println!();
    let Options { keys, chain, value, repeats, .. } = options;
    let figures = json!({
        "keys": keys, "chain": chain, "value_bytes": value, "repeats": repeats,
        "memory_bytes": bench.whole_bytes, "models": models, "rows": bench.rows,
    });
    results::write(&format!("buckets-{value}"), figures)
}

fn name(placed: bool) -> &'static str {
    if placed { "placed" } else { "malloc" }
}

/// Measures a run.
fn measure(
    options: &Options,
    placed: bool,
    workload: char,
    theta: f64,
    seconds: u64,
    dram: Option<u64>,
) -> anyhow::Result<Value> {
    interrupt::check()?;
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let Options { keys, chain, value, .. } = options;
    let words = format!(
        "buckets-program --workload {workload} --theta {theta} --keys {keys} --chain {chain} --value {value} --seconds {seconds}"
    );
    let words: Vec<&str> = std::iter::once(&*own)
        .chain(words.split(' '))
        .chain(placed.then_some("--placed"))
        .collect();
    let dram = dram.map_or("16G".to_owned(), |bytes| bytes.to_string());
    let mut command = machine::pinned(Some(&["--dram", &dram, "--allocator", "size"]), &words)?;
    command.stderr(Stdio::null());
    let text = if seconds == 0 {
        String::from_utf8(command.output()?.stdout)?
    } else {
        let (mut child, mut out) = start(command)?;
        drop(child.stdin.take());
        let mut text = String::new();
        out.read_line(&mut text)?;
        anyhow::ensure!(child.wait()?.success(), "the program failed");
        text
    };
    Ok(serde_json::from_str(&text)?)
}

impl Bench<'_> {
    fn compare(&mut self, workload: char, theta: f64, share: u64) -> anyhow::Result<()> {
        let mut found: [Vec<Value>; 2] = Default::default();
        for _ in 0..self.options.repeats {
            for placed in SIDES {
                let dram = (share < 100).then_some(self.whole_bytes * share / 100);
                found[usize::from(placed)].push(measure(
                    self.options,
                    placed,
                    workload,
                    theta,
                    self.options.seconds,
                    dram,
                )?);
            }
        }
        let of = |placed: usize, name: &str| {
            found[placed].iter().filter_map(|run| run[name].as_f64()).collect::<Vec<_>>()
        };
        let [malloc, placed] = [0, 1].map(|side| median(&of(side, "per_s")));
        let ratio = |name: &str| median(&of(1, name)) / median(&of(0, name));
        // What is resident is the same where a budget says so.
        let memory =
            if share == 100 { format!("{:.2}", ratio("resident_bytes")) } else { "-".to_owned() };
        println!(
            "{workload:>8} {theta:>5} {share:>5}% {malloc:>11.0} {placed:>11.0} {:>7.2} {:>9.2} {memory:>9}",
            placed / malloc,
            ratio("load_s")
        );
        std::io::stdout().flush()?;
        self.rows.push(json!({
            "workload": workload.to_string(), "theta": theta, "dram_percent": share,
            "malloc_per_s": of(0, "per_s"), "placed_per_s": of(1, "per_s"),
            "malloc_load_s": of(0, "load_s"), "placed_load_s": of(1, "load_s"),
            "malloc_resident_bytes": of(0, "resident_bytes"),
            "placed_resident_bytes": of(1, "resident_bytes"),
        }));
        Ok(())
    }
}
