//! A store of chained hash entries. Each has an entry, a key and a value of their own, of sizes
//! that meet in the same classes.

use super::measured::Measured;
use crate::place::place;
use terrace_api::Placement;
use terrace_testkit::random::Congruential;

struct Entry {
    key: Box<[u8]>,
    value: Box<[u8]>,
    next: Option<Box<Entry>>,
}

/// The store.
pub struct Store {
    buckets: Vec<Option<Box<Entry>>>,
}

fn mixed(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(never)]
fn make_key(number: u64) -> Box<[u8]> {
    // 16 to 55 bytes.
    let len = 16 + (mixed(number) >> 20) as usize % 40;
    // With placements: hot, as lookups of other keys come by.
    let mut key = place(Placement::Hot, || vec![b'k'; len].into_boxed_slice());
    key[..8].copy_from_slice(&number.to_le_bytes());
    std::hint::black_box(key)
}

#[inline(never)]
fn make_value(number: u64) -> Box<[u8]> {
    // 24 to 535 bytes, more often short than long, of which a half compresses.
    let random = mixed(number);
    let len = 24 + ((random >> 40) as usize % 512).min((random >> 50) as usize % 512);
    let mut random = Congruential::new(random);
    let mut byte = |at: usize| {
        let drawn = random.draw();
        if at.is_multiple_of(2) { b'v' } else { (drawn >> 56) as u8 }
    };
    // With placements: cold, as only those of its own key do.
    std::hint::black_box(place(Placement::Cold, || (0..len).map(&mut byte).collect()))
}

#[inline(never)]
fn make_entry(key: Box<[u8]>, value: Box<[u8]>, next: Option<Box<Entry>>) -> Box<Entry> {
    std::hint::black_box(place(Placement::Hot, || Box::new(Entry { key, value, next })))
}

fn bytes(object: &[u8], touched: &mut impl FnMut(u64, usize)) {
    touched(object.as_ptr() as u64, object.len());
}

fn entry_of(entry: &Entry, touched: &mut impl FnMut(u64, usize)) {
    touched(std::ptr::from_ref(entry) as u64, size_of::<Entry>());
}

impl Store {
    /// Makes a store with a bucket for two keys.
    pub fn new(keys: usize) -> Self {
        Store { buckets: (0..keys.div_ceil(2).next_power_of_two()).map(|_| None).collect() }
    }

    fn bucket(&self, number: u64) -> usize {
        (mixed(number) >> 32) as usize % self.buckets.len()
    }

    /// Puts a key in that is not there.
    pub fn insert(&mut self, number: u64) {
        let bucket = self.bucket(number);
        let next = self.buckets[bucket].take();
        let (key, value) = (make_key(number), make_value(number));
        self.buckets[bucket] = Some(make_entry(key, value, next));
    }
}

impl Measured for Store {
    fn look_up(&self, number: u64, touched: &mut impl FnMut(u64, usize)) -> bool {
        let bucket = &self.buckets[self.bucket(number)];
        touched(std::ptr::from_ref(bucket) as u64, 8);
        let mut at = bucket.as_deref();
        while let Some(entry) = at {
            entry_of(entry, touched);
            bytes(&entry.key, touched);
            if entry.key[..8] == number.to_le_bytes() {
                bytes(&entry.value, touched);
                // All of it is read.
                return entry.value.iter().step_by(64).fold(0u8, |sum, byte| sum | byte) != 0;
            }
            at = entry.next.as_deref();
        }
        false
    }

    fn objects(&self, each: &mut impl FnMut(u64, usize)) {
        for bucket in &self.buckets {
            each(std::ptr::from_ref(bucket) as u64, 8);
            let mut at = bucket.as_deref();
            while let Some(entry) = at {
                entry_of(entry, each);
                bytes(&entry.key, each);
                bytes(&entry.value, each);
                at = entry.next.as_deref();
            }
        }
    }
}
