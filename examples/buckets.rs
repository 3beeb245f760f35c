//! The example `buckets.c` in Rust: each bucket is a vector in an arena of its own, and its strings
//! are, too.
//!
//!     cargo build --release -p terrace-api --features allocator-api2 --example buckets
//!     terrace run --dram 50% -- target/release/examples/buckets

use allocator_api2::vec::Vec as VecIn;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};
use terrace_api::{Arena, Placement};

const BUCKETS: usize = 1 << 16;
const KEYS: usize = 160_000;

#[global_allocator]
static ALLOCATOR: terrace_api::Global = terrace_api::Global;

type Text<'a> = VecIn<u8, &'a Arena>;

fn bucket_of(key: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as usize % BUCKETS
}

fn text<'a>(text: &str, arena: &'a Arena) -> Text<'a> {
    let mut copy = VecIn::with_capacity_in(text.len(), arena);
    copy.extend_from_slice(text.as_bytes());
    copy
}

fn key_of(n: usize) -> String {
    format!("user-{n}")
}

fn value_of(n: usize) -> String {
    format!("the value of user {n}")
}

/// Resident memory of this process, MiB; 0 where /proc is not mounted.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.unwrap_or(0u64) / 1024
}

fn main() {
    let arenas: Vec<Arena> = (0..BUCKETS).map(|_| Arena::new(Placement::Default)).collect();
    let mut table: Vec<VecIn<(Text, Text), &Arena>> = arenas.iter().map(VecIn::new_in).collect();
    for n in 0..KEYS {
        let (key, value) = (key_of(n), value_of(n));
        let bucket = bucket_of(&key);
        let arena = &arenas[bucket];
        table[bucket].push((text(&key, arena), text(&value, arena)));
    }
    let found = |n: &usize| {
        let (key, value) = (key_of(*n), value_of(*n));
        table[bucket_of(&key)].iter().any(|entry| {
            entry.0.as_slice() == key.as_bytes() && entry.1.as_slice() == value.as_bytes()
        })
    };
    // With the global allocator: all that a function allocates.
    let log: Vec<String> = terrace_api::cold(|| {
        (0..1_000_000).map(|n| format!("line {n} of a log that is seldom read")).collect()
    });
    println!("{} MiB are resident once it is filled", resident_mib());
    let seconds = std::env::args().nth(1).map_or(5, |word| word.parse().expect("seconds"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        assert!((0..KEYS / 10).all(|n| found(&n)));
    }
    println!("{} MiB are after {} s in which a tenth was read", resident_mib(), seconds);
    let found = (0..KEYS).filter(found).count();
    let figures: Vec<_> =
        arenas.iter().filter_map(Arena::figures).filter(|figures| figures.objects > 0).collect();
    let mean = |sum: usize| sum as f64 / figures.len().max(1) as f64;
    let (objects, pages) =
        (figures.iter().map(|f| f.objects).sum(), figures.iter().map(|f| f.pages).sum());
    println!(
        "{found} of {KEYS} keys found; {:.1} objects of a bucket lie on {:.2} pages",
        mean(objects),
        mean(pages)
    );
    assert!(found == KEYS && log.len() == 1_000_000);
}
