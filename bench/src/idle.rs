//! What Terrace costs a program of which nothing is evicted: CPU time of interleaved pairs, with and without, and memory. Bar: 2 % time, 1 %
//! memory.

use crate::machine::terrace;
use crate::results::{self, median};
use anyhow::Context;
use serde_json::json;
use std::process::{Command, Stdio};

/// A program with a few hundred MiB that allocates, frees and looks up all the time.
const PROGRAM: &str = "
import random
random.seed(7)
docs = {i: 'user-%d ' % i * random.randrange(20, 60) for i in range(300000)}
n = 0
for _ in range(600000):
    i = random.randrange(300000)
    docs[i] = docs[i][8:] + 'x%d' % i
    n += len(docs[i])
print(n)
";

/// CPU seconds and peak RSS (bytes) of one run; `flags` for Terrace, `None` alone.
fn one(flags: Option<&[&str]>) -> anyhow::Result<(f64, f64)> {
    let before = children();
    let mut command = match flags {
        Some(flags) => {
            let mut command = Command::new(terrace()?);
            command.arg("run").args(flags).args(["--", "/usr/bin/env", "python3", "-c", PROGRAM]);
            command
        }
        None => {
            let mut command = Command::new("/usr/bin/env");
            command.args(["python3", "-c", PROGRAM]);
            command
        }
    };
    let mut child = command.env("PYTHONHASHSEED", "0").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak = 0f64;
    let program = child.id();
    while child.try_wait()?.is_none() {
        peak = peak.max(tree_rss(program));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok((children() - before, peak))
}

/// CPU seconds of all children waited for so far.
fn children() -> f64 {
    // SAFETY: writes one rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Resident bytes of the largest process below `process`.
fn tree_rss(process: u32) -> f64 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let own = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages: f64 = own.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    children.split_whitespace().filter_map(|c| c.parse().ok()).map(tree_rss).fold(pages * 4096.0, f64::max)
}

/// Runs `pairs` pairs.
pub fn run(pairs: usize) -> anyhow::Result<()> {
    println!("Idle cost: python3, 300,000 strings, {pairs} interleaved pairs, nothing evicted, CPU time of the whole tree:\n");
    let mut ratios = Vec::new();
    let mut memory = Vec::new();
    let mut alone_s = Vec::new();
    // The first pair fills caches.
    for pair in 0..=pairs {
        let with_first = pair % 2 == 0;
        let with = |first: bool| if first { one(Some(&["--dram", "16G"])) } else { one(None) };
        let (a, b) = (with(with_first)?, with(!with_first)?);
        let (terrace, alone) = if with_first { (a, b) } else { (b, a) };
        if pair > 0 {
            ratios.push(terrace.0 / alone.0);
            memory.push(terrace.1 / alone.1);
            alone_s.push(alone.0);
        }
    }
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    let deviation = (ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0)).sqrt();
    let half = 1.96 * deviation / n.sqrt();
    let memory_median = median(&memory);
    println!(
        "CPU time, Terrace / alone: {mean:.4} (95 % interval {:.4} to {:.4}; median {:.4})",
        mean - half,
        mean + half,
        median(&ratios)
    );
    println!("peak RSS, Terrace / alone: {memory_median:.4}");
    println!("alone: {:.2} s of CPU", median(&alone_s));
    let json = json!({
        "pairs": pairs, "cpu_ratio_mean": mean, "cpu_ratio_95": [mean - half, mean + half], "cpu_ratio_median": median(&ratios),
        "peak_rss_ratio_median": memory_median, "alone_cpu_s_median": median(&alone_s),
    });
    results::write("idle", json).context("results")
}
