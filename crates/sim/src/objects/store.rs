//! A store of chained hash entries: each has an entry, a key and a value of their own, as
//! `terrace-bench objects` has it. Keys come in an order of chance; then lookups go along their
//! chain, comparing keys.
//!
//! What M2T has it say (§4): a bucket's entries, keys and values lie beside one another.

use super::{Event, Keys, ObjectId, ObjectSource, Request};
use crate::scattered::mixed;
use crate::source::SourceError;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

/// Bytes of an entry: two slices and a pointer.
const ENTRY_BYTES: u32 = 40;
/// Calling contexts.
const BUCKETS: u32 = 0;
const KEY: u32 = 1;
const VALUE: u32 = 2;
const ENTRY: u32 = 3;
/// Events of a block, about.
const BLOCK: usize = 4096;
/// Marks the end of a chain.
const NOBODY: u32 = u32::MAX;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Number of keys, at least 1.
    pub keys: u64,
    /// Exponent of the Zipf distribution of lookups; 0: uniform.
    pub theta: f64,
    /// Number of lookups after all keys are in.
    pub lookups: u64,
    /// The share of lookups that write their value.
    pub writes: f64,
    /// Settles the order of keys and of lookups.
    pub seed: u64,
    /// How keys come into buckets.
    pub buckets: Buckets,
}

/// How keys come into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// Buckets as in `terrace-bench objects`: one for two keys, of which its hash leaves many
    /// unused, so that a lookup meets some five keys.
    AsMeasured,
    /// Buckets that have this many keys on average, at least 1, by chance.
    Of(u64),
}

impl Config {
    /// Uniform reads.
    pub fn new(keys: u64, lookups: u64) -> Config {
        Config { keys, theta: 0.0, lookups, writes: 0.0, seed: 0, buckets: Buckets::AsMeasured }
    }
}

/// The program.
#[derive(Debug)]
pub struct Store {
    lookups: u64,
    writes: f64,
    keys: Keys,
    to_insert: Vec<u32>,
    /// The key that came last, and the one before it of each key.
    buckets: Vec<u32>,
    next: Vec<u32>,
    /// Id of each key's key object; its value and its entry have the next two ids.
    objects: Vec<ObjectId>,
    made: ObjectId,
    seed: u64,
    by_chance: bool,
}

fn hash(key: u32) -> u64 {
    (u64::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Size of a key, 16 to 55 bytes.
fn key_bytes(key: u32) -> u32 {
    16 + (hash(key) >> 20) as u32 % 40
}

/// Size of a value, 24 to 535 bytes, more often short than long.
fn value_bytes(key: u32) -> u32 {
    24 + ((hash(key) >> 40) as u32 % 512).min((hash(key) >> 50) as u32 % 512)
}

impl Store {
    /// Makes the store before its first key.
    pub fn new(config: Config) -> Store {
        let mut keys =
            Keys::new(config.keys, config.theta, SmallRng::seed_from_u64(mixed(config.seed)));
        let to_insert = keys.shuffled();
        let buckets = match config.buckets {
            Buckets::AsMeasured => config.keys.div_ceil(2).next_power_of_two(),
            Buckets::Of(keys) => config.keys.div_ceil(keys),
        };
        let of_each = |what| vec![what; config.keys as usize];
        Store {
            lookups: config.lookups,
            writes: config.writes,
            keys,
            to_insert,
            buckets: vec![NOBODY; buckets as usize],
            next: of_each(NOBODY),
            objects: of_each(0),
            made: 0,
            seed: config.seed,
            by_chance: config.buckets != Buckets::AsMeasured,
        }
    }

    fn bucket(&self, key: u32) -> usize {
        let spread = if self.by_chance { mixed(hash(key)) } else { hash(key) };
        (spread >> 32) as usize % self.buckets.len()
    }

    fn insert(&mut self, key: u32, events: &mut Vec<Event>) {
        let bucket = self.bucket(key);
        let before = std::mem::replace(&mut self.buckets[bucket], key);
        self.next[key as usize] = before;
        let object = self.made;
        self.objects[key as usize] = object;
        self.made += 3;
        // Beside the chain that it comes into; its own parts beside one another.
        let chain = (before != NOBODY).then(|| self.objects[before as usize]);
        for (bytes, context, near) in [
            (key_bytes(key), KEY, chain),
            (value_bytes(key), VALUE, Some(object)),
            (ENTRY_BYTES, ENTRY, Some(object)),
        ] {
            events.push(Event::Allocated(Request { bytes: u64::from(bytes), context, near }));
        }
    }

    fn look_up(&self, key: u32, write: bool, events: &mut Vec<Event>) {
        let bucket = self.bucket(key);
        events.push(Event::Touched {
            object: 0,
            offset: bucket as u64 * 8,
            bytes: 8,
            write: false,
        });
        let mut at = self.buckets[bucket];
        loop {
            assert_ne!(at, NOBODY, "key {key} is gone");
            let object = self.objects[at as usize];
            events.push(Event::read(object + 2, ENTRY_BYTES));
            events.push(Event::read(object, key_bytes(at)));
            if at == key {
                events.push(Event::Touched {
                    object: object + 1,
                    offset: 0,
                    bytes: value_bytes(key),
                    write,
                });
                return;
            }
            at = self.next[at as usize];
        }
    }
}

impl ObjectSource for Store {
    fn next_block(&mut self, events: &mut Vec<Event>) -> Result<(), SourceError> {
        events.clear();
        if self.made == 0 {
            events.push(Event::Allocated(Request {
                bytes: self.buckets.len() as u64 * 8,
                context: BUCKETS,
                near: None,
            }));
            self.made = 1;
        }
        while events.len() < BLOCK {
            if let Some(key) = self.to_insert.pop() {
                self.insert(key, events);
            } else if self.lookups > 0 {
                self.lookups -= 1;
                let key = self.keys.next_key() as u32;
                let chance = mixed(self.seed ^ self.lookups) as f64 / u64::MAX as f64;
                self.look_up(key, chance < self.writes, events);
            } else {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::for_each;

    #[test]
    fn every_key_is_found_with_what_precedes_it() {
        let keys = 8192;
        let mut store = Store::new(Config { writes: 0.25, seed: 3, ..Config::new(keys, 50_000) });
        let (mut objects, mut reads, mut writes, mut buckets) = (0, 0, 0, 0);
        for_each(&mut store, |event| match event {
            Event::Allocated(_) => objects += 1,
            Event::Touched { object, write, .. } => {
                assert!(object < objects);
                reads += 1;
                writes += u32::from(write);
                buckets += u32::from(object == 0);
            }
            _ => panic!("nothing is freed"),
        })
        .unwrap();
        assert_eq!((objects, buckets), (1 + 3 * keys as u32, 50_000));
        assert!((11_500..13_500).contains(&writes), "{writes}");
        // A key has two others in its bucket on average, half of which come first: two touches for
        // each and for itself, bucket and value. But so few keys' hashes are spread better
        // than chance (Fibonacci hashing).
        let each = f64::from(reads) / 50_000.0;
        assert!((4.5..6.1).contains(&each), "{each}");
    }

    /// With n keys placed by chance in buckets of k each, a lookup passes 1 + (k − k/n)/2 of them.
    #[test]
    fn chains_are_as_long_as_asked_for() {
        for keys in [2u64, 64] {
            let mut store = Store::new(Config {
                seed: 3,
                buckets: Buckets::Of(keys),
                ..Config::new(8192, 20_000)
            });
            let mut reads = 0;
            for_each(&mut store, |event| {
                reads += u32::from(matches!(event, Event::Touched { .. }))
            })
            .unwrap();
            let passed = (f64::from(reads) / 20_000.0 - 2.0) / 2.0;
            assert!((passed / (1.0 + keys as f64 / 2.0) - 1.0).abs() < 0.05, "{passed} of {keys}");
        }
    }
}
