//! Many threads that touch evicted memory: pages brought back per second, a touch's time, and CPU
//! time a page, against zram lz4. The same program on both sides, on CPU 0 only and on the first
//! two; interleaved.

use crate::machine::pinned_to;
use crate::probe::{FAULTER_CASES, FaulterCase};
use crate::results::{self, median};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use terrace_testkit::zram::Zram;

/// Names of one case's figures in the program's output, and in the table.
const FIGURES: [(&str, &str); 5] = [
    ("pages_per_s", "pages/s"),
    ("touch_p50_us", "p50 µs"),
    ("touch_p99_us", "p99 µs"),
    ("cpu_us", "CPU µs/page"),
    ("memory_mib", "MiB with all of it out"),
];

/// Runs the program once. Returns its figures, by case.
fn one(flags: Option<&[&str]>, cpus: &str, threads: &[usize]) -> anyhow::Result<Vec<Value>> {
    let own = std::env::current_exe()?;
    let threads = threads.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let output = pinned_to(cpus, flags, &[&own.to_string_lossy(), "touch-from-threads", &threads])?
        .output()?;
    if !output.status.success() {
        bail!("the measured program failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .map(|line| serde_json::from_str(line).context("figures that are no JSON"))
        .collect()
}

/// Runs both sides `repeats` times with each of the numbers of threads. `swap`: zram is set up for
/// Terrace too, which has its default tiers then.
pub fn run(
    repeats: usize,
    threads: &[usize],
    terrace_flags: &str,
    swap: bool,
) -> anyhow::Result<()> {
    let tiers: &[&str] = if swap { &[] } else { &["--tiers", "dram,lz4"] };
    let flags: Vec<&str> = ["--dram", "16G"]
        .into_iter()
        .chain(tiers.iter().copied())
        .chain(terrace_flags.split_whitespace())
        .collect();
    let mut json = json!({ "repeats": repeats, "terrace_flags": terrace_flags });
    let mut missing = None;
    let several = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    for (place, cpus) in [("CPU 0", "0"), ("CPUs 0 and 1", "0,1")] {
        if cpus != "0" && !several {
            println!("one CPU only: nothing for {place}");
            continue;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            {
                let _zram = swap.then(|| Zram::for_measuring(1 << 30, "lz4")).transpose()?;
                ours.push(one(Some(&flags), cpus, threads)?);
            }
            if missing.is_none() {
                match Zram::for_measuring(1 << 30, "lz4") {
                    Ok(_zram) => theirs.push(one(None, cpus, threads)?),
                    Err(e) => missing = Some(format!("{e:#}")),
                }
            }
        }
        println!(
            "64 MiB touched from threads on {place}, medians of {repeats} interleaved runs (Terrace, zram lz4, ratio):\n"
        );
        print!("{:34}", "");
        FIGURES.iter().for_each(|(_, title)| print!("{title:>31}"));
        println!();
        let cases = threads.iter().flat_map(|threads| FAULTER_CASES.map(|case| (*threads, case)));
        let mut rows = Vec::new();
        for (index, (threads, FaulterCase { title, .. })) in cases.enumerate() {
            let of = |side: &[Vec<Value>], name: &str| {
                median(
                    &side
                        .iter()
                        .map(|run| {
                            run.get(index).and_then(|case| case[name].as_f64()).unwrap_or(f64::NAN)
                        })
                        .collect::<Vec<_>>(),
                )
            };
            print!("{:34}", format!("{threads} threads, {title}"));
            let mut row = json!({ "threads": threads, "case": title });
            for (name, _) in FIGURES {
                let (a, b) = (of(&ours, name), of(&theirs, name));
                print!("{a:>12.1}{b:>12.1}{:>6.2}x", a / b);
                row[name] = json!({ "terrace": a, "zram": b, "ratio": a / b });
            }
            println!();
            row["samples"] = json!({
                "terrace": ours.iter().map(|run| run.get(index)).collect::<Vec<_>>(),
                "zram": theirs.iter().map(|run| run.get(index)).collect::<Vec<_>>(),
            });
            rows.push(row);
        }
        println!();
        json[place] = json!(rows);
    }
    if let Some(why) = missing {
        println!("no zram side: {why}");
        json["zram_missing"] = json!(why);
    }
    results::write(if swap { "faulters-swap" } else { "faulters" }, json)
}
