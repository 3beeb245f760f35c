//! What Terrace costs a program of which nothing is evicted, in CPU time and in memory. Bar: 2 %
//! time, 1 % memory, against the program alone.
//!
//! A replaced allocator alone makes programs slower or faster, larger or smaller. So there are more
//! sides than these two:
//!
//! - the system's jemalloc tells what any replaced allocator costs;
//! - Terrace with samples tells what samples cost;
//! - Terrace around the program's own allocator tells what is Terrace's own.

use crate::machine;
use crate::results::{self, median, median_interval};
use crate::servers::{self, process};
use crate::side::{Footprint, Side, hold};
use anyhow::Context;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// CPU time
    Cpu,
    /// Memory
    Memory,
    /// CPU time and memory of memcached and redis-server (as root)
    Servers,
}

/// Program that changes strings of a hundred MiB of them all the time, as often as its argument
/// says.
const CHANGES: &str = "
import random, sys
random.seed(7)
docs = {i: 'user-%d ' % i * random.randrange(20, 60) for i in range(200000)}
n = 0
for _ in range(int(sys.argv[1])):
    i = random.randrange(200000)
    docs[i] = docs[i][8:] + 'x%d' % i
    n += len(docs[i])
print(n)
";
/// Program that holds strings, whose MiB and least and most repeats are its arguments. Strings of
/// up to 512 bytes are in Python's own arenas, larger ones are malloc's. Then it does next to
/// nothing, as a server without requests.
const HOLDS: &str = "
import sys, random, select
random.seed(7)
docs, size = {}, 0
while size < int(sys.argv[1]) << 20:
    docs[len(docs)] = text = 'user-%d ' % len(docs) * random.randrange(*map(int, sys.argv[2:4]))
    size += len(text)
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    bytes(3000)
";
/// Debian's interpreter. A wrapper of the user's would start dozens of processes before the
/// program.
const PYTHON: &str = "/usr/bin/python3";
const SETTLE: Duration = Duration::from_millis(2500);

/// Number of changes that takes some two seconds.
pub const CHANGES_SHORT: u32 = 1_500_000;

/// Runs `pairs` rounds of the sides for CPU time, with `changes` changes each, and as many of
/// servers. Runs `repeats` rounds for memory.
pub fn run(pairs: usize, changes: u32, repeats: usize, only: Option<Part>) -> anyhow::Result<()> {
    let sides = Side::all();
    let wanted = |part| only.is_none_or(|only| only == part);
    // That takes longer, and must be asked for.
    if only == Some(Part::Servers) {
        servers::idle::run(pairs)?;
    }
    if wanted(Part::Memory) {
        results::write("idle-memory", memory(&sides, repeats)?)?;
    }
    if wanted(Part::Cpu) {
        let name = if changes == CHANGES_SHORT {
            "idle-cpu".into()
        } else {
            format!("idle-cpu-{changes}")
        };
        results::write(&name, cpu(&[sides, vec![Side::Sampled]].concat(), pairs, changes)?)?;
    }
    Ok(())
}

/// CPU seconds of one run, of all processes; and those of `terrace run` itself among them, as far
/// as it was seen.
fn seconds(side: Side, changes: u32) -> anyhow::Result<(f64, f64)> {
    let before = machine::cpu_seconds(libc::RUSAGE_CHILDREN);
    let mut child = side
        .command(&[PYTHON, "-c", CHANGES, &changes.to_string()])?
        .stdout(Stdio::null())
        .spawn()?;
    let mut own = 0.0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if side.is_under_terrace() {
            own = run_seconds(child.id()).unwrap_or(own);
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    anyhow::ensure!(status.success(), "on the side {} the program failed ({status})", side.name());
    Ok((machine::cpu_seconds(libc::RUSAGE_CHILDREN) - before, own))
}

/// CPU seconds of `terrace run` without its children, while it has one.
fn run_seconds(pid: u32) -> Option<f64> {
    process::child(pid)?;
    Some(process::run_time(pid).ok()?.as_secs_f64())
}

fn cpu(sides: &[Side], rounds: usize, changes: u32) -> anyhow::Result<Value> {
    println!(
        "CPU time of all processes on one CPU: python3, 200,000 strings with {changes} changes, {rounds} rounds, nothing evicted:\n"
    );
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    let mut own: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    // The first round fills caches. Every second one goes backwards: what drifts meets all sides
    // alike.
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (all, run) = seconds(sides[index], changes)?;
            if round > 0 {
                found[index].push(all);
                own[index].push(run);
            }
        }
    }
    let of = |side: Side| sides.iter().position(|found| *found == side).map(|index| &found[index]);
    let alone = of(Side::Alone).context("no program alone")?;
    let mut rows = Vec::new();
    let pairs = [
        (Side::Jemalloc, Side::Alone),
        (Side::Terrace, Side::Alone),
        (Side::Terrace, Side::Jemalloc),
        (Side::Sampled, Side::Terrace),
        (Side::System, Side::Alone),
        (Side::Context, Side::Terrace),
    ];
    for (side, base) in pairs {
        let (Some(with), Some(without)) = (of(side), of(base)) else { continue };
        let ratios: Vec<f64> =
            with.iter().zip(without).map(|(with, without)| with / without).collect();
        let (low, high) = median_interval(&ratios);
        let ratio = median(&ratios);
        println!(
            "{:>9} / {:<9} {ratio:.4}   95 % interval {low:.4} to {high:.4}",
            side.name(),
            base.name()
        );
        rows.push(json!({
            "side": side.name(), "against": base.name(), "ratio_median": ratio,
            "ratio_95": [low, high],
        }));
    }
    println!("alone: {:.2} s", median(alone));
    let mut shares = serde_json::Map::new();
    for (side, own) in sides.iter().zip(&own).filter(|(side, _)| side.is_under_terrace()) {
        let share = median(own) / median(alone);
        println!(
            "`terrace run` itself, start included, on the side {}: {:.3} % of that",
            side.name(),
            share * 100.0
        );
        shares.insert(side.name().into(), json!(share));
    }
    println!();
    let samples: serde_json::Map<String, Value> =
        sides.iter().zip(&found).map(|(side, found)| (side.name().into(), json!(found))).collect();
    Ok(json!({
        "rounds": rounds, "changes": changes, "ratios": rows, "cpu_s": samples,
        "run_itself_share": shares,
    }))
}

fn memory(sides: &[Side], repeats: usize) -> anyhow::Result<Value> {
    println!(
        "Memory of a program (two python3, one not) that holds so many MiB and does next to nothing, MiB; medians of {repeats} interleaved repeats:\n"
    );
    println!(
        "{:>18} {:>9} {:>8} {:>8} {:>8}   {:>7} {:>7}   text data  overhead  terrace run",
        "program", "side", "RSS", "Pss", "anon", "RSS +%", "Pss +%"
    );
    let own = std::env::current_exe()?;
    let own = own.to_string_lossy();
    let mut rows = Vec::new();
    let programs = ["small strings", "strings", "objects"]
        .into_iter()
        .flat_map(|name| [50, 300, 1000].map(|mib| (name, mib)));
    for (name, mib) in programs {
        let size = mib.to_string();
        let program: &[&str] = match name {
            "small strings" => &[PYTHON, "-c", HOLDS, &size, "5", "35"],
            "strings" => &[PYTHON, "-c", HOLDS, &size, "10", "80"],
            _ => &[&own, "hold-heap", &size],
        };
        let mut found: Vec<Vec<Footprint>> = vec![Vec::new(); sides.len()];
        for _ in 0..repeats {
            for (side, found) in sides.iter().zip(&mut found) {
                found.push(hold(*side, program, SETTLE)?);
            }
        }
        let mut alone = (0.0, 0.0);
        for (side, found) in sides.iter().zip(&found) {
            let of = |get: fn(&Footprint) -> f64| {
                median(&found.iter().map(get).collect::<Vec<_>>()) / 1048576.0
            };
            let (rss, pss, anonymous) = (of(|f| f.rss), of(|f| f.pss), of(|f| f.anonymous));
            if *side == Side::Alone {
                alone = (rss, pss);
            }
            let more = |with: f64, without: f64| (with / without - 1.0) * 100.0;
            print!(
                "{:>18} {:>9} {rss:>8.1} {pss:>8.1} {anonymous:>8.1}   {:>7.2} {:>7.2}",
                format!("{name} {mib}"),
                side.name(),
                more(rss, alone.0),
                more(pss, alone.1)
            );
            if *side == Side::Terrace {
                print!(
                    "   {:.2} {:.2} {:>9.2} {:>12.2}",
                    of(|f| f.library_file),
                    of(|f| f.library_data),
                    of(|f| f.overhead),
                    of(|f| f.run_pss)
                );
            }
            println!();
            rows.push(json!({
                "program": name, "mib": mib, "side": side.name(), "rss_mib": rss, "pss_mib": pss,
                "anonymous_mib": anonymous,
                "rss_more_percent": more(rss, alone.0), "pss_more_percent": more(pss, alone.1),
                "samples": found.iter().map(Footprint::json).collect::<Vec<_>>(),
            }));
        }
    }
    println!();
    Ok(json!(rows))
}
