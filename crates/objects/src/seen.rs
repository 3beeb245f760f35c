//! Objects that were hot when they were touched, but lie among cold ones. At that moment their page
//! is in memory; a scan that comes later may find it gone again.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of objects kept; of more, the latest.
const KEPT: usize = 256;

/// A ring of numbers that name objects, written by any thread and emptied by one. Some may be lost.
#[derive(Debug)]
pub struct Seen {
    slots: [AtomicU64; KEPT],
    written: AtomicU64,
    read: AtomicU64,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            slots: [(); KEPT].map(|()| AtomicU64::new(0)),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }
}

impl Seen {
    /// Adds an object.
    pub fn push(&self, object: u64) {
        let at = self.written.fetch_add(1, Relaxed) as usize;
        // Zero is an empty slot: of all numbers, the largest is lost.
        self.slots[at % KEPT].store(object.wrapping_add(1), Relaxed);
    }

    /// Whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.read.load(Relaxed) >= self.written.load(Relaxed)
    }

    /// Takes an object out.
    pub fn pop(&self) -> Option<u64> {
        let written = self.written.load(Relaxed);
        let mut at = self.read.load(Relaxed).max(written.saturating_sub(KEPT as u64));
        let mut found = None;
        while at < written && found.is_none() {
            found = self.slots[at as usize % KEPT].swap(0, Relaxed).checked_sub(1);
            at += 1;
        }
        self.read.store(at, Relaxed);
        found
    }
}

/// Whether to count this touch, one in 2^`shift` by chance.
pub fn is_sampled(shift: u32) -> bool {
    thread_local!(static RANDOM: Cell<u32> = const { Cell::new(1) });
    shift == 0
        || RANDOM.with(|random| {
            let next = random.get().wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            random.set(next);
            next >> (32 - shift) == 0
        })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let seen = Seen::default();
        let kept = KEPT as u64;
        (0..kept * 3).for_each(|object| seen.push(object));
        let found: Vec<_> = std::iter::from_fn(|| seen.pop()).collect();
        assert_eq!(found, (kept * 2..kept * 3).collect::<Vec<_>>());
        assert!(seen.is_empty());
        seen.push(7);
        assert!(!seen.is_empty());
        assert_eq!((seen.pop(), seen.pop()), (Some(7), None));
    }

    #[test]
    fn one_in_so_many_is_sampled() {
        let counted = (0..80_000).filter(|_| is_sampled(3)).count();
        assert!((9_000..11_000).contains(&counted), "{counted}");
        assert!((0..100).all(|_| is_sampled(0)));
    }
}
