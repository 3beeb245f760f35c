//! An open hash: one array of references, probed from the place that a key's hash gives. Locks are
//! by key; an empty place is taken by compare-and-swap, since two keys may want it.
//!
//! Each place has a count of the keys that passed it to one behind it (as in Folly's F14). A lookup
//! ends where that is zero, so a deleted key leaves nothing behind that others have to pass. Keys
//! stay where they were put. Where two thirds are taken and keys come and go, a lookup of a missing
//! key looks at some twenty places. That number stays, however long it goes on.

use super::index::{Change, EntryAt, Full, Index, hash, key_of, tagged, untagged};
use super::latch::Latch;
use crate::sync::{AtomicU64, Ordering};
use std::sync::atomic::AtomicU32;

const EMPTY: u64 = 0;
const LOCKS: usize = 1024;

/// The table. It does not grow.
pub struct Open {
    places: Box<[AtomicU64]>,
    /// For each place: number of keys whose hash leads there or before it, and that lie behind it.
    passed: Box<[AtomicU32]>,
    locks: Box<[AtomicU64]>,
}

impl Open {
    /// Makes a table for at most `keys` keys.
    pub fn for_keys(keys: usize) -> Open {
        let places = (keys * 3 / 2).next_power_of_two().max(64);
        let empty = |count| (0..count).map(|_| AtomicU64::new(EMPTY)).collect();
        Open {
            places: empty(places),
            passed: (0..places).map(|_| AtomicU32::new(0)).collect(),
            locks: empty(LOCKS),
        }
    }

    fn lock(&self, hash: u64) -> &AtomicU64 {
        &self.locks[hash as usize % LOCKS]
    }

    /// Numbers of all places, in the order in which a key's are probed.
    fn order(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.places.len() - 1;
        (0..=mask).map(move |step| (hash as usize + step) & mask)
    }

    /// The number of a key's place, and its entry.
    fn place(&self, key: u64, hash: u64) -> Option<(usize, EntryAt)> {
        for place in self.order(hash) {
            let word = self.places[place].load(Ordering::Acquire);
            if let Some(entry) = untagged(word, hash) {
                // SAFETY: was referred to after the caller came inside.
                if unsafe { key_of(entry) } == key {
                    return Some((place, entry));
                }
            }
            if self.passed[place].load(Ordering::Acquire) == 0 {
                return None;
            }
        }
        None
    }

    /// Inserts a key that is not there, under its lock. Each place that it passes is counted before
    /// its own is taken: a thread that finds the key there has passed them.
    fn insert(&self, word: u64, hash: u64) -> Result<(), Full> {
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        for place in self.order(hash) {
            let at = &self.places[place];
            if at.load(relaxed) == EMPTY
                && at.compare_exchange(EMPTY, word, release, relaxed).is_ok()
            {
                return Ok(());
            }
            self.passed[place].fetch_add(1, relaxed);
        }
        self.order(hash).for_each(|place| self.forget_passing(place));
        Err(Full)
    }

    /// Removes a key from its place, under its lock.
    fn remove(&self, hash: u64, place: usize) {
        self.places[place].store(EMPTY, Ordering::Release);
        let passed = self.order(hash).take_while(|before| *before != place);
        passed.for_each(|before| self.forget_passing(before));
    }

    fn forget_passing(&self, place: usize) {
        self.passed[place].fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: places are changed under the lock of the key that they hold, and hold what was put there
// for it. Empty ones are taken by one key only.
unsafe impl Index for Open {
    unsafe fn find(&self, key: u64) -> Option<EntryAt> {
        self.place(key, hash(key)).map(|(_, entry)| entry)
    }

    unsafe fn replace(&self, key: u64, entry: Option<EntryAt>) -> Result<Option<EntryAt>, Full> {
        let hash = hash(key);
        let _locked = Latch::lock(self.lock(hash));
        match (self.place(key, hash), entry) {
            (Some((place, old)), Some(entry)) => {
                self.places[place].store(tagged(entry, hash), Ordering::Release);
                Ok(Some(old))
            }
            (Some((place, old)), None) => {
                self.remove(hash, place);
                Ok(Some(old))
            }
            (None, Some(entry)) => self.insert(tagged(entry, hash), hash).map(|()| None),
            (None, None) => Ok(None),
        }
    }

    unsafe fn change<R>(
        &self,
        key: u64,
        wait: bool,
        change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
    ) -> Change<R> {
        let hash = hash(key);
        let lock = self.lock(hash);
        let locked = if wait { Some(Latch::lock(lock)) } else { Latch::try_lock(lock) };
        let Some(_locked) = locked else { return Change::Busy };
        let Some((place, entry)) = self.place(key, hash) else { return Change::Missing };
        let (result, new) = change(entry);
        if let Some(new) = new {
            self.places[place].store(tagged(new, hash), Ordering::Release);
        }
        Change::Done(result)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Map;
    use super::*;
    use crate::heap::{Heap, Settings};
    use std::sync::Arc;

    impl Open {
        /// Average number of places that a lookup of a missing key looks at.
        fn looked_at(&self) -> f64 {
            let mut sum = 0;
            for first in 0..self.places.len() {
                let passed = self
                    .order(first as u64)
                    .take_while(|place| self.passed[*place].load(Ordering::Relaxed) > 0);
                sum += 1 + passed.count();
            }
            sum as f64 / self.places.len() as f64
        }
    }

    #[test]
    fn misses_stay_short_however_many_keys_have_come_and_gone() {
        const KEYS: u64 = 1365;
        let heap = Heap::new(Settings { capacity: 64 << 20, ..Settings::default() }).unwrap();
        let map = Map::new(Arc::new(heap), Open::for_keys(KEYS as usize));
        let reader = map.heap().reader();
        for key in 0..100 * KEYS {
            map.set(&reader, key, b"value").unwrap();
            assert!(key < KEYS || map.delete(&reader, key - KEYS));
        }
        let index = map.index();
        assert!(index.looked_at() < 64.0, "{}", index.looked_at());
        for key in 99 * KEYS..100 * KEYS {
            assert!(map.delete(&reader, key));
        }
        assert_eq!(index.looked_at(), 1.0, "what is gone leaves nothing behind");
    }

    #[test]
    fn a_full_table_says_so_and_stays_as_it_was() {
        let heap = Heap::new(Settings::default()).unwrap();
        let map = Map::new(Arc::new(heap), Open::for_keys(1));
        let reader = map.heap().reader();
        let fitted = (0..).take_while(|key| map.set(&reader, *key, b"value").is_ok()).count();
        assert_eq!(fitted, 64);
        for key in 0..64 {
            assert_eq!(map.read(&reader, key, <[u8]>::to_vec).as_deref(), Some(&b"value"[..]));
            assert!(map.delete(&reader, key));
        }
        assert_eq!(map.index().looked_at(), 1.0);
    }
}
