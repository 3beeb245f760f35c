//! The measured program: builds its objects, looks keys up, and says where the misses were or how
//! fast it was.

use super::measured::Measured;
use super::store::Store;
use super::tree::Tree;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};
use terrace_trace::cache::Cache;

const PAGE: u64 = 4096;
const CACHE_BYTES: usize = 4 << 20;

/// The key of a number. Keys are scattered, so that popular ones are not neighbours; they are small
/// numbers, so that they compress.
fn key_of(number: u64, keys: u64) -> u64 {
    number * 48_611 % keys
}

/// Draws numbers of keys.
enum Drawn {
    Uniform(u64),
    Zipf(Zipf<f64>),
}

impl Drawn {
    fn next(&self, random: &mut SmallRng) -> u64 {
        match self {
            Drawn::Uniform(keys) => random.random_range(0..*keys),
            Drawn::Zipf(zipf) => zipf.sample(random) as u64 - 1,
        }
    }
}

/// Runs `objects-program KIND DISTRIBUTION KEYS SECONDS`; 0 seconds: pages.
pub fn run(kind: &str, distribution: &str, keys: u64, seconds: u64) -> anyhow::Result<()> {
    let drawn = match distribution {
        "uniform" => Drawn::Uniform(keys),
        _ => Drawn::Zipf(Zipf::new(keys as f64, 0.99)?),
    };
    // Inserted at random.
    let mut order: Vec<u64> = (0..keys).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(3));
    match kind {
        "tree" => {
            let mut tree = Tree::default();
            order.drain(..).for_each(|key| tree.insert(key));
            drop(order);
            measure(&tree, &drawn, keys, seconds)
        }
        _ => {
            let mut store = Store::new(keys as usize);
            order.drain(..).for_each(|key| store.insert(key));
            drop(order);
            measure(&store, &drawn, keys, seconds)
        }
    }
}

fn measure(measured: &impl Measured, drawn: &Drawn, keys: u64, seconds: u64) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(7);
    if seconds == 0 {
        println!("{}", pages(measured, drawn, keys, &mut random));
        return Ok(());
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let mut half = |length: Duration| {
        let (begun, mut done) = (Instant::now(), 0u64);
        while begun.elapsed() < length {
            for _ in 0..64 {
                assert!(
                    measured.look_up(key_of(drawn.next(&mut random), keys), &mut |_, _| ()),
                    "a key is gone"
                );
            }
            done += 64;
        }
        done as f64 / begun.elapsed().as_secs_f64()
    };
    let length = Duration::from_millis(seconds * 500);
    half(length);
    println!("{}", half(length));
    // Its memory is read now.
    std::io::stdout().flush()?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// Numbers of pages that hold given shares of the misses, as they are and as if the most missed
/// objects lay side by side.
fn pages(measured: &impl Measured, drawn: &Drawn, keys: u64, random: &mut SmallRng) -> Value {
    const LOOKUPS: u64 = 2_000_000;
    let mut cache = Cache::of(CACHE_BYTES);
    let mut misses: HashMap<u64, (u64, u64)> = HashMap::new();
    measured.objects(&mut |address, bytes| {
        misses.insert(address, (bytes as u64, 0));
    });
    let mut by_page: HashMap<u64, u64> = HashMap::new();
    for (address, (bytes, _)) in &misses {
        for page in address / PAGE..=(address + bytes - 1) / PAGE {
            by_page.entry(page).or_default();
        }
    }
    // The first half fills the cache.
    for lookup in 0..LOOKUPS {
        let found = measured.look_up(key_of(drawn.next(random), keys), &mut |address, bytes| {
            for line in address / 64..=(address + bytes as u64 - 1) / 64 {
                if !cache.touch(line * 64) && lookup >= LOOKUPS / 2 {
                    *by_page.entry(line * 64 / PAGE).or_default() += 1;
                    if let Some((_, met)) = misses.get_mut(&address) {
                        *met += 1;
                    }
                }
            }
        });
        assert!(found, "a key is gone");
    }
    let mut counts: Vec<u64> = by_page.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // The most missed byte for byte first.
    let mut objects: Vec<(u64, u64)> = misses.into_values().collect();
    objects.sort_unstable_by(|(bytes, met), (other_bytes, other)| {
        (other * bytes).cmp(&(met * other_bytes))
    });
    let mut packed = vec![0u64];
    let mut used = 0;
    for (bytes, met) in objects {
        if used + bytes > PAGE {
            packed.push(0);
            used = 0;
        }
        used += bytes;
        *packed.last_mut().expect("there is one") += met;
    }
    let mut found = figures(&counts);
    found["oracle"] = figures(&packed);
    found
}

fn figures(counts: &[u64]) -> Value {
    let all: u64 = counts.iter().sum();
    let needed = |percent: u64| {
        let mut sum = 0;
        let mut before = |count: &u64| {
            sum += count;
            sum - count
        };
        counts.iter().take_while(|count| before(count) < all * percent / 100).count()
    };
    json!({ "pages": counts.len(), "pages_for_50": needed(50), "pages_for_80": needed(80) })
}
