//! The measured program: fills the table, and says how fast it is, or what a lookup touches.

use super::table::Table;
use crate::place;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};
use terrace_testkit::process::resident_bytes;
use terrace_trace::cache::Cache;

const PAGE: u64 = 4096;

/// What the program is told.
#[derive(clap::Args)]
pub struct Task {
    /// Whether a bucket is an arena
    #[arg(long)]
    placed: bool,
    /// A, B, C, D or F of YCSB
    #[arg(long, default_value = "C")]
    workload: char,
    /// Skew of the Zipf distribution of keys
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Keys
    #[arg(long)]
    keys: u64,
    /// Keys of a bucket, on the average
    #[arg(long)]
    chain: u64,
    /// Bytes of a value
    #[arg(long)]
    value: usize,
    /// 0: what a lookup touches
    #[arg(long)]
    seconds: u64,
}

/// Mix of a YCSB workload: shares of updates, of reads with an update, and of inserts. The rest are
/// reads; in D they are of what was inserted last.
fn mix(workload: char) -> anyhow::Result<(f64, f64, f64)> {
    Ok(match workload {
        'A' => (0.5, 0.0, 0.0),
        'B' => (0.05, 0.0, 0.0),
        'C' => (0.0, 0.0, 0.0),
        'D' => (0.0, 0.0, 0.05),
        'F' => (0.0, 0.5, 0.0),
        _ => anyhow::bail!("workload {workload}: write A, B, C, D or F"),
    })
}

pub fn run(task: &Task) -> anyhow::Result<()> {
    place::set(task.placed);
    let mut table = Table::new((task.keys / task.chain).max(1) as usize, task.value);
    let mut order: Vec<u64> = (0..task.keys).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(3));
    let begun = Instant::now();
    order.drain(..).for_each(|key| table.insert(key));
    drop(order);
    let load_s = begun.elapsed().as_secs_f64();
    let zipf = Zipf::new(task.keys as f64, task.theta)?;
    let mut random = SmallRng::seed_from_u64(7);
    if task.seconds == 0 {
        println!("{}", model(&table, &zipf, &mut random));
    } else {
        println!("ready");
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new())?;
        let memory = resident_bytes("self")?;
        let length = Duration::from_millis(task.seconds * 500);
        operate(&mut table, task.workload, &zipf, &mut random, length)?;
        let per_s = operate(&mut table, task.workload, &zipf, &mut random, length)?;
        println!("{}", json!({ "per_s": per_s, "load_s": load_s, "resident_bytes": memory }));
        std::io::stdout().flush()?;
    }
    // Not object by object.
    std::process::exit(0);
}

fn operate(
    table: &mut Table,
    workload: char,
    zipf: &Zipf<f64>,
    random: &mut SmallRng,
    length: Duration,
) -> anyhow::Result<f64> {
    let (updates, both, inserts) = mix(workload)?;
    let (begun, mut done) = (Instant::now(), 0u64);
    while begun.elapsed() < length {
        for _ in 0..64 {
            let rank = zipf.sample(random) as u64 - 1;
            let keys = table.keys();
            // Popular ones are scattered, since buckets are by hash; in D the last are popular.
            let key = if workload == 'D' { keys - 1 - rank.min(keys - 1) } else { rank };
            let draw: f64 = random.random();
            let mut held = true;
            if draw < inserts {
                table.insert(keys);
            } else if draw < updates {
                held = table.update(key, done);
            } else {
                held = table.get(key, &mut |_, _| ());
                if draw > 1.0 - both {
                    held &= table.update(key, done);
                }
            }
            assert!(held, "key {key} is gone");
            done += 1;
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

/// Misses of modelled caches and TLBs, and pages, of a lookup.
fn model(table: &Table, zipf: &Zipf<f64>, random: &mut SmallRng) -> Value {
    const LOOKUPS: u64 = 1_000_000;
    let mut caches = [("l1", 32 << 10), ("l2", 1 << 20), ("llc", 4 << 20)]
        .map(|(name, bytes)| (name, Cache::of(bytes), 0u64));
    // An entry for each line of these.
    let mut tlbs = [("tlb_64", 64), ("tlb_1536", 1536)]
        .map(|(name, entries)| (name, Cache::of(entries * 64), 0u64));
    let (mut lines, mut pages) = (0u64, 0u64);
    let mut by_page: HashMap<u64, u64> = HashMap::new();
    for lookup in 0..LOOKUPS {
        let counts = lookup >= LOOKUPS / 2;
        let mut met: Vec<u64> = Vec::new();
        let found = table.get(zipf.sample(random) as u64 - 1, &mut |address, bytes| {
            for line in address / 64..=(address + bytes as u64 - 1) / 64 {
                lines += u64::from(counts);
                let mut missed = true;
                for (_, cache, misses) in &mut caches {
                    // The next is asked where this has not got it.
                    missed = missed && !cache.touch(line * 64);
                    *misses += u64::from(missed && counts);
                }
                if missed && counts {
                    *by_page.entry(line * 64 / PAGE).or_default() += 1;
                }
                let mut missed = true;
                for (_, tlb, misses) in &mut tlbs {
                    missed = missed && !tlb.touch(line * 64 / PAGE * 64);
                    *misses += u64::from(missed && counts);
                }
                met.push(line * 64 / PAGE);
            }
        });
        assert!(found, "a key is gone");
        met.sort_unstable();
        met.dedup();
        pages += if counts { met.len() as u64 } else { 0 };
    }
    let mut counts: Vec<u64> = by_page.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let half: u64 = counts.iter().sum::<u64>() / 2;
    let before = counts.iter().scan(0, |sum, count| {
        *sum += count;
        Some(*sum - count)
    });
    let pages_for_50 = before.take_while(|before| *before < half).count();
    let each = |count: u64| count as f64 / (LOOKUPS / 2) as f64;
    let mut figures =
        json!({ "pages": each(pages), "lines": each(lines), "pages_for_50": pages_for_50 });
    for (name, misses) in
        caches.iter().map(|cache| (cache.0, cache.2)).chain(tlbs.iter().map(|tlb| (tlb.0, tlb.2)))
    {
        figures[name] = json!(each(misses));
    }
    figures
}
