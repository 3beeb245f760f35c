//! What huge pages for hot memory bring: `terrace load memory` where all of it fits. It runs alone
//! with and without huge pages, and under Terrace with and without `--huge-pages hot`. Program and
//! Terrace share one CPU.

use crate::load::{self, Outcome, number};
use crate::results::{self, median, median_interval};
use anyhow::Context;
use serde_json::json;

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Patterns of `terrace load memory`
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = ["zipf", "chase", "jump"].map(String::from)
    )]
    patterns: Vec<String>,
    /// Memory of the load
    #[arg(long, default_value = "512M")]
    size: String,
    /// The budget
    #[arg(long, default_value = "2G")]
    dram: String,
    /// Seconds of each run
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    /// Interleaved repeats
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// Length of the end of a run for which a figure of its own is told, s: by then what is hot is
/// huge.
const LATE_S: f64 = 10.0;

/// A side of the comparison: a name, huge pages from the C library (its tunable asks for them), and
/// flags for `terrace run`.
type Side = (&'static str, bool, Option<&'static [&'static str]>);

const SIDES: [Side; 4] = [
    ("alone", false, None),
    ("alone, huge pages", true, None),
    ("terrace", false, Some(&["--sampler", "clock"])),
    ("terrace, hot huge", false, Some(&["--huge-pages", "hot"])),
];

struct Run {
    per_s: f64,
    late_per_s: f64,
    made: f64,
    split: f64,
    cpu_s: f64,
}

impl Run {
    fn of(options: &Options, pattern: &str, (name, asks, flags): Side) -> anyhow::Result<Run> {
        let flags = flags.map(|flags| [&["--dram", &options.dram], flags].concat());
        let seconds = options.seconds.to_string();
        let arguments = ["--size", &options.size, "--seconds", &seconds, "--change-every", "1000"];
        let variables: &[_] =
            if asks { &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")] } else { &[] };
        let Outcome { load, report, over_time, interval_s } =
            load::run(pattern, &arguments, flags.as_deref(), variables).with_context(|| name)?;
        let late =
            &over_time[over_time.len().saturating_sub((LATE_S / interval_s).round() as usize)..];
        Ok(Run {
            per_s: number(&load["accesses_per_s"]),
            late_per_s: late.iter().sum::<f64>() / late.len().max(1) as f64,
            made: number(&report["moves"]["huge_made"]),
            split: number(&report["moves"]["huge_split"]),
            cpu_s: number(&report["cpu_fraction"]) * number(&report["elapsed_s"]),
        })
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for pattern in &options.patterns {
        println!(
            "{pattern}: {}, everything on one CPU; medians of {} interleaved repeats, the last {LATE_S:.0} of {:.0} s beside all of it:\n",
            options.size, options.repeats, options.seconds
        );
        let mut runs: [Vec<Run>; SIDES.len()] = Default::default();
        for _ in 0..options.repeats {
            for (side, runs) in SIDES.into_iter().zip(&mut runs) {
                runs.push(Run::of(options, pattern, side)?);
            }
        }
        println!(
            "{:>20} {:>9} {:>9} {:>16} {:>22} {:>7} {:>7} {:>7}",
            "", "M/s", "late M/s", "to alone, late", "", "made", "split", "CPU s"
        );
        let mut rows = Vec::new();
        for ((name, ..), side) in SIDES.iter().zip(&runs) {
            let of = |get: fn(&Run) -> f64| median(&side.iter().map(get).collect::<Vec<_>>());
            let ratios: Vec<f64> = side
                .iter()
                .zip(&runs[0])
                .map(|(run, alone)| run.late_per_s / alone.late_per_s)
                .collect();
            let (ratio, (from, to)) = (median(&ratios), median_interval(&ratios));
            println!(
                "{name:>20} {:>9.2} {:>9.2} {ratio:>15.2}x {:>22} {:>7.0} {:>7.0} {:>7.2}",
                of(|run| run.per_s) / 1e6,
                of(|run| run.late_per_s) / 1e6,
                format!("({from:.2} to {to:.2})"),
                of(|run| run.made),
                of(|run| run.split),
                of(|run| run.cpu_s),
            );
            rows.push(json!({
                "side": name, "accesses_per_s": of(|run| run.per_s),
                "late_accesses_per_s": of(|run| run.late_per_s), "late_to_alone": ratio,
                "late_to_alone_interval": [from, to], "made": of(|run| run.made),
                "split": of(|run| run.split), "terrace_cpu_s": of(|run| run.cpu_s),
                "late_accesses_per_s_of_each": side
                    .iter()
                    .map(|run| run.late_per_s)
                    .collect::<Vec<_>>(),
            }));
        }
        println!();
        all.push(json!({ "pattern": pattern, "sides": rows }));
    }
    results::write(
        "huge",
        json!({
            "size": options.size, "dram": options.dram, "seconds": options.seconds,
            "repeats": options.repeats, "patterns": all,
        }),
    )
}
