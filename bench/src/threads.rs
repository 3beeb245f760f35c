//! What each thread of a program costs in memory: threads that allocate a little, free half of it,
//! and sleep.

use crate::results::{self, median};
use crate::side::{Footprint, Side, hold};
use serde_json::{Value, json};
use std::time::Duration;

const COUNTS: [usize; 3] = [1, 64, 1000];
const SETTLE: Duration = Duration::from_millis(1500);

/// Runs the benchmark.
pub fn run(repeats: usize) -> anyhow::Result<()> {
    println!(
        "Memory of threads that allocated 64 objects each and sleep; medians of {repeats} interleaved repeats:\n"
    );
    println!(
        "{:>8} {:>10} {:>12} {:>12} {:>14} {:>12}",
        "threads", "side", "RSS KiB", "Pss KiB", "KiB a thread", "overhead KiB"
    );
    let sides = Side::all();
    let own = std::env::current_exe()?;
    let own = own.to_string_lossy();
    let mut rows: Vec<Value> = Vec::new();
    let mut first = vec![0.0; sides.len()];
    for threads in COUNTS {
        let mut found: Vec<Vec<Footprint>> = vec![Vec::new(); sides.len()];
        for _ in 0..repeats {
            for (side, found) in sides.iter().zip(&mut found) {
                found.push(hold(*side, &[&own, "hold-threads", &threads.to_string()], SETTLE)?);
            }
        }
        for (index, (side, found)) in sides.iter().zip(&found).enumerate() {
            let of = |get: fn(&Footprint) -> f64| {
                median(&found.iter().map(get).collect::<Vec<_>>()) / 1024.0
            };
            let (rss, pss, overhead) = (of(|f| f.rss), of(|f| f.pss), of(|f| f.overhead));
            if threads == COUNTS[0] {
                first[index] = pss;
            }
            let each = (threads > 1).then(|| (pss - first[index]) / (threads - COUNTS[0]) as f64);
            let each_text = each.map_or_else(|| "-".into(), |kib| format!("{kib:.1}"));
            println!(
                "{threads:>8} {:>10} {rss:>12.0} {pss:>12.0} {each_text:>14} {overhead:>12.0}",
                side.name()
            );
            rows.push(json!({
                "threads": threads, "side": side.name(), "rss_kib": rss, "pss_kib": pss,
                "anonymous_kib": of(|f| f.anonymous),
                "kib_a_thread": each, "overhead_kib": overhead,
                "samples": found.iter().map(Footprint::json).collect::<Vec<_>>(),
            }));
        }
    }
    results::write("threads", json!(rows))
}
