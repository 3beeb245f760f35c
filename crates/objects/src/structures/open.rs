//! An open hash: one array of references, looked through from where a key's hash says. Locks are
//! by key; an empty place is taken by compare-and-swap, since two keys may want it.

use super::index::{Change, EntryAt, Full, Index, hash, key_of, tagged, untagged};
use super::latch::Latch;
use crate::sync::{AtomicU64, Ordering};

const EMPTY: u64 = 0;
/// A place whose key was deleted: lookups go on behind it.
const DELETED: u64 = 1;
const LOCKS: usize = 1024;

/// The table. It does not grow.
pub struct Open {
    places: Box<[AtomicU64]>,
    locks: Box<[AtomicU64]>,
}

impl Open {
    /// For that many keys at most.
    pub fn for_keys(keys: usize) -> Open {
        let places = (keys * 4 / 3).next_power_of_two().max(64);
        let empty = |count| (0..count).map(|_| AtomicU64::new(EMPTY)).collect();
        Open { places: empty(places), locks: empty(LOCKS) }
    }

    fn lock(&self, hash: u64) -> &AtomicU64 {
        &self.locks[hash as usize % LOCKS]
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        let mask = self.places.len() - 1;
        (0..=mask).map(move |step| &self.places[(hash as usize + step) & mask])
    }

    fn place(&self, key: u64, hash: u64) -> Option<(&AtomicU64, EntryAt)> {
        for place in self.places(hash) {
            match place.load(Ordering::Acquire) {
                EMPTY => return None,
                DELETED => {}
                word => {
                    if let Some(entry) = untagged(word, hash) {
                        // SAFETY: was referred to after the caller came inside.
                        if unsafe { key_of(entry) } == key {
                            return Some((place, entry));
                        }
                    }
                }
            }
        }
        None
    }

    fn insert(&self, word: u64, hash: u64) -> Result<(), Full> {
        for place in self.places(hash) {
            let found = place.load(Ordering::Relaxed);
            let is_free = found == EMPTY || found == DELETED;
            if is_free
                && place.compare_exchange(found, word, Ordering::Release, Ordering::Relaxed).is_ok()
            {
                return Ok(());
            }
        }
        Err(Full)
    }
}

// SAFETY: slots are changed under a lock, and hold what was put there for their key.
unsafe impl Index for Open {
    unsafe fn find(&self, key: u64) -> Option<EntryAt> {
        self.place(key, hash(key)).map(|(_, entry)| entry)
    }

    unsafe fn replace(&self, key: u64, entry: Option<EntryAt>) -> Result<Option<EntryAt>, Full> {
        let hash = hash(key);
        let _locked = Latch::lock(self.lock(hash));
        match (self.place(key, hash), entry) {
            (Some((place, old)), entry) => {
                let word = entry.map_or(DELETED, |entry| tagged(entry, hash));
                place.store(word, Ordering::Release);
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
            place.store(tagged(new, hash), Ordering::Release);
        }
        Change::Done(result)
    }
}
