//! The item store: a cache-line index over items in segments, within a memory limit.
//!
//! Every item is read and changed only under the lock of its index bucket. The lock of the segments
//! is taken before bucket locks, never while one is held. The thread that brings hot items together
//! takes both by trying.

mod config;
mod consolidate;
mod heat;
mod held;
mod index;
mod item;
mod segments;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use terrace_objects::Progress;
use twox_hash::XxHash3_64;

pub use config::{Config, Rules};
pub use held::Held;
pub use item::{FETCHED, Header, Item, KEY_BINARY, NewItem, STALE, TOKEN_SENT, item_bytes};

use crate::protocol::KEY_MAX;
use crate::stats::{Count, Stats};
use crate::tiering::Aside;
use consolidate::{Around, Consolidator};
use heat::Heat;
use index::{Index, Slot};
use segments::{Context, Flushed, SMALL_MAX, Segments};

/// Maximum number of keys that are prefetched at once: more would evict what was fetched first.
pub const PREFETCHED: usize = 16;

/// The outcome of a search for a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<R> {
    /// The key has a live item.
    Hit(R),
    /// The key has no item.
    Miss,
    /// The key had an item whose time was over.
    Expired,
    /// The key had an item from before a flush.
    Flushed,
}

/// What a caller decides to do with the item that it was shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep the item.
    Keep,
    /// Remove the item.
    Remove,
}

/// The reason that an item was not stored.
#[derive(Debug, PartialEq, Eq)]
pub enum PutError<E> {
    /// Memory for the item is out.
    OutOfMemory,
    /// The caller refused after it saw the present item.
    Refused(E),
}

/// State for listing items: a page, and a key.
#[derive(Debug)]
pub struct Lister {
    aside: Aside,
    key: Box<[u8; KEY_MAX]>,
}

/// A store of items, shared by all threads.
#[derive(Debug)]
pub struct Store {
    index: Index,
    segments: Segments,
    heat: Arc<Heat>,
    consolidator: Mutex<Consolidator>,
    /// Seed of hashes, so that no client can know which keys have similar ones.
    hash_seed: u64,
    /// The settings.
    pub config: Config,
    next_cas: AtomicU64,
    flush_at: AtomicU32,
    flush_cas: AtomicU64,
}

impl Store {
    /// Reserves address space for the index and the items.
    pub fn new(config: Config) -> io::Result<Store> {
        let heat = Arc::new(Heat::new(config.consolidate));
        Ok(Store {
            index: Index::new(config.memory_limit, config.items)?,
            segments: Segments::new(&config, Arc::clone(&heat))?,
            heat,
            consolidator: Mutex::new(Consolidator::new(config.rules.clone())),
            hash_seed: RandomState::new().hash_one(0),
            config,
            next_cas: AtomicU64::new(1),
            flush_at: AtomicU32::new(0),
            flush_cas: AtomicU64::new(0),
        })
    }

    /// Draws a new CAS identifier.
    pub fn new_cas(&self) -> u64 {
        self.next_cas.fetch_add(1, Relaxed)
    }

    /// The CAS identifier that clients see.
    pub fn visible_cas(&self, header: &Header) -> u64 {
        if self.config.cas { header.cas } else { 0 }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.hash_seed, key)
    }

    /// Prefetches what searches for some keys will touch, all at once. One by one, each search
    /// would wait for its bucket and then for its item.
    pub fn prefetch<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let mut hashes = [0; PREFETCHED];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
            self.index.prefetch(*hash);
            count += 1;
        }
        for &hash in &hashes[..count] {
            self.index.prefetch_items(hash);
        }
    }

    /// Whether the item at a pointer from a locked bucket has a key. If it is small, its pages are
    /// in DRAM then.
    fn has_key(&self, pointer: *mut u8, key: &[u8]) -> bool {
        if let Some(tiering) = self.config.tiering {
            // Header and key first: the header says how long the whole item is.
            tiering.restore(pointer, size_of::<Header>() + key.len());
            let same = item::has_key(pointer, key);
            // A large one may be about to be replaced, or deleted.
            if same && item::size(pointer) <= SMALL_MAX {
                tiering.restore(pointer, item::size(pointer));
            }
            return same;
        }
        item::has_key(pointer, key)
    }

    /// Restores the pages of a large item, the bucket of which is locked.
    fn restore_large(&self, pointer: *mut u8) {
        if let Some(tiering) = self.config.tiering
            && item::size(pointer) > SMALL_MAX
        {
            tiering.restore(pointer, item::size(pointer));
        }
    }

    /// Makes all items that exist at a second vanish then.
    pub fn flush(&self, at: u32, now: u32) {
        if at <= now && self.config.cas {
            // Another flush may have been given a later one meanwhile, and answered.
            self.flush_cas.fetch_max(self.new_cas(), Relaxed);
            // The identifier tells old from new better than the second does.
            self.flush_at.store(0, Relaxed);
        } else {
            self.flush_at.store(if self.config.cas { at - 1 } else { at }, Relaxed);
        }
    }

    /// The flushes' effect so far.
    fn flushed(&self, now: u32) -> Flushed {
        let at = self.flush_at.load(Relaxed);
        let cas = self.flush_cas.load(Relaxed);
        Flushed { until: if at <= now { at } else { 0 }, cas }
    }

    /// Finds the live item of a key and shows it under the bucket's lock.
    pub fn with<R>(
        &self,
        key: &[u8],
        now: u32,
        stats: &Stats,
        bump: bool,
        view: impl FnOnce(&mut Item<'_>) -> (R, Decision),
    ) -> Found<R> {
        let hash = self.hash(key);
        let guard = self.index.lock(hash);
        let Some(slot) = guard.find(hash, |pointer| self.has_key(pointer, key)) else {
            return Found::Miss;
        };
        let pointer = slot.pointer();
        // SAFETY: the index has the item, and its bucket is locked as long as the guard lives.
        let mut item = unsafe { Item::from_pointer(pointer) };
        let (dead, outcome) = if item.is_expired(now) {
            (true, Found::Expired)
        } else if self.flushed(now).has(item.header) {
            (true, Found::Flushed)
        } else {
            // What does not count as a use mostly needs the header alone.
            if bump {
                self.restore_large(pointer);
            }
            let (result, decision) = view(&mut item);
            if bump && decision == Decision::Keep {
                if item.header.state & FETCHED == 0 || item.header.accessed != now {
                    item.header.state |= FETCHED;
                    item.header.accessed = now;
                }
                let is_placed = || self.segments.is_placed(pointer);
                guard.set(slot, self.heat.touched(slot, hash, is_placed));
            }
            (decision == Decision::Remove, Found::Hit(result))
        };
        if dead {
            stats.item_gone(item.header);
            self.segments.forget(pointer, item.header);
            guard.clear(slot);
            drop(guard);
            self.segments.release(pointer);
        }
        outcome
    }

    /// Stores an item unless `decide` refuses after it saw the present one. Returns the new CAS.
    pub fn put<E>(
        &self,
        new: NewItem<'_>,
        now: u32,
        stats: &Stats,
        decide: impl FnOnce(Option<&Item<'_>>) -> Result<(), E>,
    ) -> Result<u64, PutError<E>> {
        let hash = self.hash(new.key);
        let size = item::allocated_bytes(&new);
        let context = Context { index: &self.index, now, flushed: self.flushed(now), stats };
        let Some(pointer) = self.segments.allocate(size, context) else {
            return Err(PutError::OutOfMemory);
        };
        // SAFETY: the space is of `size` bytes, aligned, and no other thread knows it yet.
        unsafe { item::write(pointer, &new, hash, now, size) };
        self.segments.written(pointer);
        let guard = self.index.lock(hash);
        // The identifier is drawn under the lock, so that a flush tells old from new.
        let cas = self.new_cas();
        let mut old = guard.find(hash, |pointer| self.has_key(pointer, new.key));
        let mut gone = None;
        if let Some(slot) = old {
            // SAFETY: the index has the item, and its bucket is locked.
            let present = unsafe { Item::from_pointer(slot.pointer()) };
            if present.is_expired(now) || self.flushed(now).has(present.header) {
                stats.add(Count::Reclaimed);
                stats.class_of(present.header).reclaimed.fetch_add(1, Relaxed);
                stats.item_gone(present.header);
                self.segments.forget(slot.pointer(), present.header);
                guard.clear(slot);
                gone = Some(slot.pointer());
                old = None;
            }
        }
        let decision = match old {
            // SAFETY: as above.
            Some(slot) => decide(Some(&unsafe { Item::from_pointer(slot.pointer()) })),
            None => decide(None),
        };
        // SAFETY: written above; the bucket is locked.
        let item = unsafe { Item::from_pointer(pointer) };
        item.header.cas = cas;
        let outcome = match (decision, old) {
            (Err(refusal), _) => Err(PutError::Refused(refusal)),
            (Ok(()), Some(slot)) => {
                // SAFETY: as above.
                let present = unsafe { Item::from_pointer(slot.pointer()) };
                stats.item_gone(present.header);
                self.segments.forget(slot.pointer(), present.header);
                guard.set(slot, Slot::new(hash, pointer));
                gone = Some(slot.pointer());
                Ok(cas)
            }
            (Ok(()), None) if guard.insert(Slot::new(hash, pointer)) => Ok(cas),
            (Ok(()), None) => match guard.coldest().filter(|_| self.config.evictions) {
                // The index has no room left in this chain, whatever memory there is.
                Some(slot) => {
                    // SAFETY: the index has the item, and its bucket is locked.
                    let coldest = unsafe { Item::from_pointer(slot.pointer()) };
                    stats.item_dropped(coldest.header, context.is_dead(&coldest));
                    self.segments.forget(slot.pointer(), coldest.header);
                    guard.set(slot, Slot::new(hash, pointer));
                    gone = Some(slot.pointer());
                    Ok(cas)
                }
                None => Err(PutError::OutOfMemory),
            },
        };
        match outcome {
            Ok(_) => stats.item_came(item.header),
            Err(_) => self.segments.forget(pointer, item.header),
        }
        self.segments.finished(pointer);
        drop(guard);
        if outcome.is_err() {
            self.segments.release(pointer);
        }
        if let Some(pointer) = gone {
            self.segments.release(pointer);
        }
        outcome
    }

    /// Brings hot items together, for about `budget`. To be called often by one thread, between
    /// requests. Returns at once while another thread does it.
    pub fn consolidate(&self, now: u32, stats: &Stats, budget: Duration) -> Progress {
        let Ok(mut consolidator) = self.consolidator.try_lock() else {
            return Progress::Waiting;
        };
        let around = Around {
            segments: &self.segments,
            heat: &self.heat,
            tiering: self.config.tiering,
            context: Context { index: &self.index, now, flushed: self.flushed(now), stats },
        };
        consolidator.step(around, budget)
    }

    /// Switches bringing hot items together on or off.
    pub fn switch_consolidation(&self, on: bool) {
        self.heat.switch(on);
    }

    /// Counters of bringing hot items together, for `stats terrace`.
    pub fn consolidation(&self) -> Vec<(&'static str, u64)> {
        let consolidator = self.consolidator.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = vec![("consolidate", u64::from(self.heat.is_on()))];
        lines.extend(consolidator.figures());
        lines
    }

    /// The number of chains of the index, for walks through all items.
    pub fn chains(&self) -> usize {
        self.index.chains()
    }

    /// Makes the state for listing items.
    pub fn lister(&self) -> Lister {
        Lister { aside: Aside::new(self.config.tiering), key: Box::new([0; KEY_MAX]) }
    }

    /// Shows header and key of every item of a chain, dead ones too. That does not count as a use:
    /// none becomes hotter, or is restored.
    pub fn list(&self, chain: usize, lister: &mut Lister, mut view: impl FnMut(&Header, &[u8])) {
        let guard = self.index.lock_chain(chain);
        for slot in guard.slots() {
            let (header, key) = item::list(slot.pointer(), &mut lister.aside, &mut lister.key);
            view(&header, key);
        }
    }

    /// Whether an item with this header is gone for clients.
    pub fn is_dead(&self, header: &Header, now: u32) -> bool {
        header.is_expired(now) || self.flushed(now).has(header)
    }

    /// Bytes that items may take.
    pub fn memory_limit(&self) -> usize {
        self.segments.limit()
    }

    /// Changes the bytes that items may take. Returns false where that is out of bounds.
    pub fn set_memory_limit(&self, bytes: usize) -> bool {
        self.segments.set_limit(bytes)
    }

    /// Makes a share of the memory limit for something besides items. It takes nothing yet.
    pub fn share(&self) -> Held {
        Held::new(self.segments.held())
    }

    /// Takes bytes of the memory limit for something besides items, and evicts items where that is
    /// allowed. Returns false where there is no room; nothing more is taken then.
    pub fn hold(&self, held: &mut Held, bytes: usize, now: u32, stats: &Stats) -> bool {
        let flushed = self.flushed(now);
        let context = Context { index: &self.index, now, flushed, stats };
        self.segments.hold(held, bytes, context)
    }

    /// Bytes of the memory limit that are taken besides items.
    pub fn held_bytes(&self) -> usize {
        self.segments.held().load(Relaxed)
    }

    /// The bytes that segments and large items take.
    pub fn used_bytes(&self) -> usize {
        self.segments.used()
    }

    /// The bytes of the index without overflow, and the base-2 logarithm of its buckets.
    pub fn index_size(&self) -> (usize, u32) {
        self.index.size()
    }
}

#[cfg(test)]
mod tests;
