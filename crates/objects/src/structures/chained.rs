//! A chained hash: buckets of a cache line, with seven references and a lock; full ones chain to
//! another. References carry a part of their key's hash, so a lookup touches no other entry. To
//! touch a cold one would bring its page back.

use super::index::{Change, Entry, EntryAt, Full, Index, hash, key_of, tagged, untagged};
use super::latch::{LOCKED, Latch};
use crate::sync::{AtomicU64, Ordering};
use std::ptr::NonNull;

const SLOTS: usize = 7;
/// Average number of references of a bucket at first.
const FILL: usize = 5;
#[repr(C, align(64))]
struct Bucket {
    slots: [AtomicU64; SLOTS],
    /// The address of the next bucket, and beside it the lock.
    next: AtomicU64,
}

impl Bucket {
    fn empty() -> Bucket {
        Bucket { slots: [(); SLOTS].map(|()| AtomicU64::new(0)), next: AtomicU64::new(0) }
    }

    fn next(&self) -> Option<&Bucket> {
        let address = (self.next.load(Ordering::Acquire) & !LOCKED) as usize;
        // SAFETY: a bucket that `append` made, which lives as long as the table.
        unsafe { std::ptr::with_exposed_provenance::<Bucket>(address).as_ref() }
    }

    /// Chains an empty bucket to this one, under the lock of the chain.
    fn append(&self) -> &Bucket {
        let bucket = Box::into_raw(Box::new(Bucket::empty()));
        self.next.fetch_or(bucket.expose_provenance() as u64, Ordering::Release);
        // SAFETY: just made, and freed with the table only.
        unsafe { &*bucket }
    }
}

/// The table. It does not grow: chains do.
pub struct Chained {
    buckets: Box<[Bucket]>,
}

impl Chained {
    /// Makes a table for about `keys` keys.
    pub fn for_keys(keys: usize) -> Chained {
        let count = (keys / FILL).max(1);
        Chained { buckets: (0..count).map(|_| Bucket::empty()).collect() }
    }

    fn bucket(&self, hash: u64) -> &Bucket {
        let number = u128::from(hash << 16) * self.buckets.len() as u128;
        &self.buckets[(number >> 64) as usize]
    }

    /// The slot of a key, and its entry.
    fn slot(head: &Bucket, key: u64, hash: u64) -> Option<(&AtomicU64, EntryAt)> {
        let mut bucket = Some(head);
        while let Some(at) = bucket {
            for slot in &at.slots {
                if let Some(entry) = untagged(slot.load(Ordering::Acquire), hash) {
                    // SAFETY: referred to, so not given back while the caller is inside.
                    if unsafe { key_of(entry) } == key {
                        return Some((slot, entry));
                    }
                }
            }
            bucket = at.next();
        }
        None
    }

    fn insert(head: &Bucket, word: u64) {
        let mut bucket = head;
        loop {
            let free = bucket.slots.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
            if let Some(slot) = free {
                return slot.store(word, Ordering::Release);
            }
            bucket = bucket.next().unwrap_or_else(|| bucket.append());
        }
    }
}

// SAFETY: slots are changed under their chain's lock, and hold what was put there for their key.
unsafe impl Index for Chained {
    unsafe fn find(&self, key: u64) -> Option<EntryAt> {
        let hash = hash(key);
        Chained::slot(self.bucket(hash), key, hash).map(|(_, entry)| entry)
    }

    unsafe fn replace(
        &self,
        key: u64,
        entry: Option<NonNull<Entry>>,
    ) -> Result<Option<EntryAt>, Full> {
        let hash = hash(key);
        let head = self.bucket(hash);
        let _locked = Latch::lock(&head.next);
        let word = entry.map_or(0, |entry| tagged(entry, hash));
        match Chained::slot(head, key, hash) {
            Some((slot, old)) => {
                slot.store(word, Ordering::Release);
                Ok(Some(old))
            }
            None => {
                if word != 0 {
                    Chained::insert(head, word);
                }
                Ok(None)
            }
        }
    }

    unsafe fn change<R>(
        &self,
        key: u64,
        wait: bool,
        change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
    ) -> Change<R> {
        let hash = hash(key);
        let head = self.bucket(hash);
        let locked = if wait { Some(Latch::lock(&head.next)) } else { Latch::try_lock(&head.next) };
        let Some(_locked) = locked else { return Change::Busy };
        let Some((slot, entry)) = Chained::slot(head, key, hash) else { return Change::Missing };
        let (result, new) = change(entry);
        if let Some(new) = new {
            slot.store(tagged(new, hash), Ordering::Release);
        }
        Change::Done(result)
    }
}

impl Drop for Chained {
    fn drop(&mut self) {
        for bucket in &self.buckets {
            let mut next = bucket.next().map(NonNull::from);
            while let Some(chained) = next {
                // SAFETY: `append` made it by `Box`; no other thread has the table.
                let chained = unsafe { Box::from_raw(chained.as_ptr()) };
                next = chained.next().map(NonNull::from);
            }
        }
    }
}
