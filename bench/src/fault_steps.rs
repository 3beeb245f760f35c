//! Where the time of a fault goes, from the instruction that touches an evicted page to the next
//! one. It is measured step by step, with everything on one CPU, and with two CPUs for all of it,
//! where the scheduler wakes the thread on whichever is idle. Likewise for an
//! eviction; beside both, zram's total.

use crate::machine::terrace;
use crate::results::{self, median};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::process::Command;
use terrace_testkit::zram::Zram;

/// The steps of a fault, as `probe::time_touches` names them, and what they are.
const FAULT: [(&str, &str); 7] = [
    ("read", "fault to the handler's read"),
    ("room", "wait for room"),
    ("claim", "gate, lock, claim"),
    ("decompress", "decompress"),
    ("copy", "UFFDIO_COPY"),
    ("return", "copy done to the program's return"),
    ("total", "total, as the program sees it"),
];
/// The steps of an eviction, as the report names them.
const EVICTION: [&str; 5] = ["scan_us", "move_us", "compress_us", "store_us", "empty_us"];

/// Numbers of CPUs, and the list of CPUs for each, as taskset takes it.
const PLACES: [(&str, &str); 2] = [("one CPU", "0"), ("two CPUs", "0,1")];

/// Runs the measured program once, under Terrace if there is a file for its report.
fn one(cpus: &str, report: Option<&str>) -> anyhow::Result<Value> {
    let own = std::env::current_exe()?;
    let mut command = Command::new("taskset");
    command.args(["-c", cpus]);
    if let Some(report) = report {
        command
            .arg(terrace()?)
            .args(["run", "--dram", "16G", "--tiers", "dram,lz4", "--report", report, "--"]);
        command.env("TERRACE_TRACE_FAULTS", "1");
    }
    command.arg(own).arg("time-touches");
    let output = command.output()?;
    if !output.status.success() {
        bail!("the measured program failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(text.lines().last().context("no figures")?)?)
}

/// Runs every side `repeats` times.
pub fn run(repeats: usize) -> anyhow::Result<()> {
    println!(
        "Steps of a fault, 64 MiB in random order, lz4, medians of {repeats} interleaved runs (µs, median / p99 / mean):\n"
    );
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_string_lossy().into_owned();
    let mut ours = [Vec::new(), Vec::new()];
    let mut theirs = [Vec::new(), Vec::new()];
    let mut evictions = Vec::new();
    let mut missing = None;
    for _ in 0..repeats {
        for (place, (_, cpus)) in PLACES.iter().enumerate() {
            ours[place].push(one(cpus, Some(&path))?);
            let report: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
            if place == 0 {
                evictions.push(report["steps"]["eviction"].clone());
            }
            if missing.is_none() {
                match Zram::for_measuring(1 << 30, "lz4") {
                    Ok(_zram) => theirs[place].push(one(cpus, None)?),
                    Err(e) => missing = Some(format!("{e:#}")),
                }
            }
        }
    }
    let of = |runs: &[Value], step: &str, which: &str| {
        median(
            &runs
                .iter()
                .map(|run| run[step][which].as_f64().unwrap_or(f64::NAN))
                .collect::<Vec<_>>(),
        )
    };
    let tell = |runs: &[Vec<Value>; 2], step: &str, what: &str, key: &str, json: &mut Value| {
        print!("{what:36}");
        for ((place, _), runs) in PLACES.iter().zip(runs) {
            let [p50, p99, mean] =
                ["p50_us", "p99_us", "mean_us"].map(|which| of(runs, step, which));
            print!("{:>22}", format!("{p50:.2} / {p99:.1} / {mean:.2}"));
            json[place][key] = json!({ "p50_us": p50, "p99_us": p99, "mean_us": mean });
        }
        println!();
    };
    let mut json = json!({ "repeats": repeats });
    println!("{:36}{:>22}{:>22}", "", PLACES[0].0, PLACES[1].0);
    for (step, what) in FAULT {
        tell(&ours, step, what, step, &mut json);
    }
    match &missing {
        None => {
            tell(&theirs, "total", "zram lz4, total", "zram_total", &mut json);
        }
        Some(why) => {
            println!("no zram side: {why}");
            json["zram_missing"] = json!(why);
        }
    }
    println!("\nSteps of an eviction, µs a page (one CPU; means, evicted by MADV_PAGEOUT):");
    let mut sum = 0.0;
    for step in EVICTION {
        let us = median(
            &evictions
                .iter()
                .map(|steps| steps[step].as_f64().unwrap_or(f64::NAN))
                .collect::<Vec<_>>(),
        );
        println!("{:36}{us:>16.2}", step.trim_end_matches("_us"));
        json["eviction"][step] = json!(us);
        sum += us;
    }
    let whole = of(&ours[0], "page_out", "us");
    println!("{:36}{sum:>16.2}\n{:36}{whole:>16.2}", "these", "all of it, as the program sees it");
    json["eviction"]["page_out_us"] = json!(whole);
    results::write("fault-steps", json)
}
