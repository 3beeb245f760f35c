//! What huge pages for hot memory bring: `terrace load memory` where all of it fits, alone with and without huge pages, and under Terrace with and without
//! `--huge-pages hot`. Program and Terrace share one CPU.

use crate::machine;
use crate::results::{self, median, median_interval};
use anyhow::Context;
use serde_json::{Value, json};
use std::process::Stdio;

/// What is run.
#[derive(clap::Args)]
pub struct Options {
    /// Patterns of `terrace load memory`
    #[arg(long, value_delimiter = ',', default_values_t = ["zipf", "chase", "jump"].map(String::from))]
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

/// Looked at, of each run: its last so many seconds, when what is hot is huge.
const LATE_S: f64 = 10.0;

/// A name, huge pages from the C library (its tunable asks for them), and flags for `terrace run`.
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
        let scratch = tempfile::tempdir()?;
        let report = scratch.path().join("report.json");
        let terrace = machine::terrace()?;
        let (report_name, terrace) = (report.to_str().context("a path of letters")?, terrace.to_str().context("a path of letters")?);
        let flags = flags.map(|flags| [&["--dram", &options.dram, "--report", report_name], flags].concat());
        let seconds = options.seconds.to_string();
        let load = [terrace, "load", "memory", pattern, "--json", "--size", &options.size, "--seconds", &seconds, "--change-every", "1000"];
        let mut command = machine::pinned(flags.as_deref(), &load)?;
        if asks {
            command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        }
        let output = command.stderr(Stdio::piped()).output()?;
        anyhow::ensure!(output.status.success(), "{pattern}, {name}: {}", String::from_utf8_lossy(&output.stderr));
        let load: Value = serde_json::from_slice(&output.stdout)?;
        let report: Value = if flags.is_some() { serde_json::from_str(&std::fs::read_to_string(report)?)? } else { Value::Null };
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let over_time: Vec<f64> = load["over_time"].as_array().context("no throughput")?.iter().map(number).collect();
        let late = (LATE_S / number(&load["interval_s"])).round() as usize;
        let late = &over_time[over_time.len().saturating_sub(late)..];
        Ok(Run {
            per_s: number(&load["accesses_per_s"]),
            late_per_s: late.iter().sum::<f64>() / late.len().max(1) as f64,
            made: number(&report["moves"]["huge_made"]),
            split: number(&report["moves"]["huge_split"]),
            cpu_s: number(&report["cpu_fraction"]) * number(&report["elapsed_s"]),
        })
    }
}

/// Runs all.
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
            let ratios: Vec<f64> = side.iter().zip(&runs[0]).map(|(run, alone)| run.late_per_s / alone.late_per_s).collect();
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
                "side": name, "accesses_per_s": of(|run| run.per_s), "late_accesses_per_s": of(|run| run.late_per_s), "late_to_alone": ratio,
                "late_to_alone_interval": [from, to], "made": of(|run| run.made), "split": of(|run| run.split), "terrace_cpu_s": of(|run| run.cpu_s),
                "late_accesses_per_s_of_each": side.iter().map(|run| run.late_per_s).collect::<Vec<_>>(),
            }));
        }
        println!();
        all.push(json!({ "pattern": pattern, "sides": rows }));
    }
    results::write(
        "huge",
        json!({ "size": options.size, "dram": options.dram, "seconds": options.seconds, "repeats": options.repeats, "patterns": all }),
    )
}
