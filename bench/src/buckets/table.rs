//! M2T's hash table (§III-C): a fixed array of linked lists, whose nodes, keys and values are
//! objects of their own.

use crate::place::{self, next_to, place};
use terrace_api::{Arena, Placement};
use terrace_testkit::random::Congruential;

struct Node {
    next: Option<Box<Node>>,
    key: Box<[u8]>,
    value: Box<[u8]>,
}

/// A bucket of the table. The fields are dropped in this order, so that objects end before their
/// arena.
struct Bucket {
    first: Option<Box<Node>>,
    arena: Option<Arena>,
}

/// The table: each bucket in an arena of its own, key and value next to their node, or all of it
/// wherever malloc puts it.
pub struct Table {
    buckets: Vec<Bucket>,
    value_bytes: usize,
    keys: u64,
}

fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Key of a number, in the form that YCSB's keys have: 23 bytes.
fn key_of(number: u64) -> [u8; 23] {
    let mut key = *b"user0000000000000000000";
    let mut rest = mixed(number);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

fn tell<T: ?Sized>(object: &T, touched: &mut impl FnMut(u64, usize)) {
    touched(std::ptr::from_ref(object).cast::<u8>() as u64, size_of_val(object));
}

impl Table {
    pub fn new(buckets: usize, value_bytes: usize) -> Self {
        let bucket = || Bucket {
            first: None,
            arena: place::is_on().then(|| Arena::new(Placement::Default)),
        };
        Table { buckets: (0..buckets).map(|_| bucket()).collect(), value_bytes, keys: 0 }
    }

    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn value(&self, version: u64) -> Vec<u8> {
        // Words: lz4 makes a third of them.
        const WORDS: [&[u8; 8]; 16] = [
            b"amber   ",
            b"basalt  ",
            b"cedar   ",
            b"delta   ",
            b"ember   ",
            b"fjord   ",
            b"granite ",
            b"harbour ",
            b"indigo  ",
            b"jasper  ",
            b"kelp    ",
            b"lagoon  ",
            b"meadow  ",
            b"nectar  ",
            b"obsidian",
            b"pebble  ",
        ];
        let mut random = Congruential::new(mixed(version));
        let mut value = Vec::with_capacity(self.value_bytes + 8);
        while value.len() < self.value_bytes {
            value.extend_from_slice(WORDS[(random.draw() >> 60) as usize]);
        }
        value
    }

    /// Puts a key in that is not there.
    pub fn insert(&mut self, number: u64) {
        let value = self.value(number);
        let key = key_of(number);
        let index = self.bucket(&key);
        let arena = self.buckets[index]
            .arena
            .as_ref()
            .map_or(Placement::Default, |arena| Placement::Arena(arena.id()));
        let next = self.buckets[index].first.take();
        let mut node =
            place(arena, || Box::new(Node { next, key: Box::default(), value: Box::default() }));
        (node.key, node.value) =
            place(next_to(&*node), || (Box::from(&key[..]), Box::from(&value[..self.value_bytes])));
        self.buckets[index].first = Some(node);
        self.keys += 1;
    }

    /// Gives a key another value.
    pub fn update(&mut self, number: u64, version: u64) -> bool {
        let value_bytes = self.value_bytes;
        let key = key_of(number);
        let index = self.bucket(&key);
        let bucket = &mut self.buckets[index];
        let mut at = bucket.first.as_deref_mut();
        while let Some(node) = at {
            if *node.key == key {
                // The same words, from another place on: it compresses as before.
                let mut value = place(next_to(node), || vec![0; value_bytes].into_boxed_slice());
                value.copy_from_slice(&node.value);
                value.rotate_left(version as usize % 8);
                node.value = value;
                return true;
            }
            at = node.next.as_deref_mut();
        }
        false
    }

    /// Looks a key up and reads all of its value; tells of each object that it touches.
    pub fn get(&self, number: u64, touched: &mut impl FnMut(u64, usize)) -> bool {
        let key = key_of(number);
        let bucket = &self.buckets[self.bucket(&key)];
        tell(&bucket.first, touched);
        let mut at = bucket.first.as_deref();
        while let Some(node) = at {
            tell(node, touched);
            tell(&*node.key, touched);
            if *node.key == key {
                tell(&*node.value, touched);
                return node.value.iter().step_by(64).fold(0, |sum, byte| sum | byte) != 0;
            }
            at = node.next.as_deref();
        }
        false
    }

    fn bucket(&self, key: &[u8; 23]) -> usize {
        // FNV-1a.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ hash >> 29) as usize % self.buckets.len()
    }
}
