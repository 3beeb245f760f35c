//! A structure with readers, writers, deleters and the relocator at once. Every byte is checked, no
//! update in place is lost, and all values at the end are those set last. `TERRACE_SOAK_SECONDS`
//! has it go on for a sixth of that: there are five structures, and rows.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_objects::structures::{Index, Map};
use terrace_objects::{Choice, Consolidator, Heap, Reader, Rules, Settings};

const WRITERS: u64 = 2;
/// Keys that come and go.
pub const KEYS: u64 = 6000;
/// Least number of changes of each writer, and (next) of objects that are to move meanwhile.
const CHANGES: u64 = 60_000;
const MOVES: u64 = 2000;

/// A value that has its key and version in every byte.
fn value(key: u64, version: u64) -> Vec<u8> {
    let word = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let words = 2 + (key + version) % 30;
    [version, key]
        .into_iter()
        .chain(std::iter::repeat_n(word, words as usize))
        .flat_map(u64::to_le_bytes)
        .collect()
}

fn check(key: u64, bytes: &[u8]) {
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, value(key, version), "the value of {key} is wrong");
}

/// A writer; each has keys of its own, so it knows their values.
struct Writer {
    number: u64,
    random: SmallRng,
    versions: Vec<Option<u64>>,
    added: Vec<u32>,
}

impl Writer {
    fn new(number: u64) -> Writer {
        let random = SmallRng::seed_from_u64(number);
        let keys = (KEYS / WRITERS) as usize;
        Writer { number, random, versions: vec![None; keys], added: vec![0; keys] }
    }

    fn change<I: Index>(&mut self, map: &Map<I>, reader: &Reader, change: u64) {
        let at = self.random.random_range(0..self.versions.len());
        let key = at as u64 * WRITERS + self.number;
        match self.random.random_range(0..10) {
            0 => {
                assert_eq!(map.delete(reader, key), self.versions[at].is_some());
                self.versions[at] = None;
            }
            1..5 => {
                // A full heap is left as it is; the relocator makes room.
                if map.set(reader, key, &value(key, change)).is_ok() {
                    (self.versions[at], self.added[at]) = (Some(change), 0);
                }
            }
            5..8 => {
                let sum = map.add(reader, key, 1);
                self.added[at] += 1;
                assert_eq!(sum, self.versions[at].map(|_| self.added[at]), "an update of {key}");
                if sum.is_none() {
                    self.added[at] = 0;
                }
            }
            _ => self.compare(map, reader, at),
        }
    }

    fn compare<I: Index>(&self, map: &Map<I>, reader: &Reader, at: usize) {
        let key = at as u64 * WRITERS + self.number;
        let found = map.read(reader, key, <[u8]>::to_vec);
        assert_eq!(found, self.versions[at].map(|version| value(key, version)), "of {key}");
    }
}

fn rules() -> Rules {
    Rules {
        // Mixed segments are emptied, whether that pays or not.
        choice: Choice::RandomMixed,
        bytes_per_s: u64::MAX,
        cpu_share: 1.0,
        pause: Duration::ZERO,
        longest_pause: Duration::ZERO,
        ..Rules::default()
    }
}

/// Runs all of them at once, on an index for [`KEYS`] keys.
pub fn all_at_once<I: Index>(index: I) {
    let settings = Settings { capacity: 16 << 20, segment_bytes: 16 << 10, check_callbacks: true };
    let map = Map::new(Arc::new(Heap::new(settings).unwrap()), index);
    let until = std::env::var("TERRACE_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let until = until.map(|seconds: u64| Instant::now() + Duration::from_secs(seconds) / 6);
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let relocator = scope.spawn(|| {
            let mut consolidator = Consolidator::new(map.heap().clone(), rules());
            while !done.load(Ordering::Relaxed) {
                consolidator.step(&mut &map, Duration::from_micros(300));
                moved.store(consolidator.counters().moved, Ordering::Relaxed);
            }
            *consolidator.counters()
        });
        let reading = scope.spawn(|| {
            let (reader, mut random) = (map.heap().reader(), SmallRng::seed_from_u64(99));
            while !done.load(Ordering::Relaxed) {
                // Few keys are popular.
                let key = random.random_range(0..KEYS).min(random.random_range(0..KEYS));
                map.read(&reader, key, |bytes| check(key, bytes));
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (map, moved) = (&map, &moved);
                scope.spawn(move || {
                    let (reader, mut writer) = (map.heap().reader(), Writer::new(number));
                    let mut changes = 0;
                    while changes < CHANGES
                        || moved.load(Ordering::Relaxed) < MOVES
                        || until.is_some_and(|until| Instant::now() < until)
                    {
                        (0..100).for_each(|next| writer.change(map, &reader, changes + next));
                        changes += 100;
                    }
                    (0..writer.versions.len()).for_each(|at| writer.compare(map, &reader, at));
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        reading.join().expect("readers saw nothing wrong");
        let counters = relocator.join().expect("the relocator saw nothing wrong");
        written.into_iter().for_each(|result| result.expect("writers saw nothing wrong"));
        println!("{counters:?}");
        assert_eq!((counters.misused, map.heap().double_frees()), (0, 0));
    });
}
