//! Where items live: segments of bump allocation, and allocations of their own for large items.
//!
//! Segments and large items stand in one queue, oldest first. When the limit is reached, some
//! segments from its front are merged into one, and large items there are freed. The items that
//! were used lately survive a merge. Before that, segments with much garbage are merged without
//! losing anything. While a segment has items that are not in the index yet, it is left alone.

mod reclaim;

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ptr;
use std::sync::atomic::{
    AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::index::{Index, Mapping};
use super::item::{Header, Item};
use super::{Config, FETCHED};
use crate::stats::{Count, Stats};
use crate::tiering::Tiering;
use reclaim::fit_in_fewer;

/// The bytes of a segment.
const SEGMENT: usize = 64 << 10;
/// Items above this have an allocation of their own.
const SMALL_MAX: usize = SEGMENT / 8;
/// Large items take whole multiples of this.
const LARGE_UNIT: usize = 4 << 10;
/// How many segments are merged at once.
const MERGED: usize = 4;
/// How many entries at the queue's front are looked through for segments to merge.
const OLDEST: usize = 64;
/// Segments that are kept free for merging.
const RESERVED: usize = 8;
/// The least address space for segments, for a limit that is raised later.
const ARENA_MIN: usize = 1 << 30;
/// Entries of freed large items that the queue may hold beside as many as are alive.
const QUEUE_SLACK: usize = 1024;

/// What evicting needs beside the segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) index: &'a Index,
    pub(super) now: u32,
    pub(super) flushed: Flushed,
    pub(super) stats: &'a Stats,
}

impl Context<'_> {
    /// Whether an item's time is over, or a flush has made it vanish.
    pub(super) fn is_dead(&self, item: &Item<'_>) -> bool {
        item.is_expired(self.now) || self.flushed.has(item.header)
    }
}

/// What flushes have made vanish.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flushed {
    /// The last second whose items have all vanished.
    pub(super) until: u32,
    /// The lowest identifier of an item that may be there still.
    pub(super) cas: u64,
}

impl Flushed {
    /// Whether flushes have made an item vanish.
    pub(super) fn has(&self, header: &Header) -> bool {
        header.created <= self.until || header.cas < self.cas
    }
}

/// What is counted for a segment.
#[derive(Debug, Default)]
struct Usage {
    /// Bytes of items in the index.
    live: AtomicU32,
    /// Items that are being written.
    pending: AtomicU32,
}

/// A large item that is freed as a whole.
#[derive(Debug)]
struct Large {
    layout: Layout,
    /// Whether it is being written.
    pending: bool,
    /// Tells it from an earlier one at the same address.
    number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Segment(usize),
    Large(usize, u64),
}

#[derive(Debug)]
struct State {
    free: Vec<usize>,
    /// The segments from here on were never used.
    fresh: usize,
    open: Option<usize>,
    /// The bytes used of the open segment.
    filled: usize,
    /// The bytes used of each sealed segment.
    lengths: HashMap<usize, usize>,
    queue: VecDeque<Unit>,
    large: HashMap<usize, Large>,
    large_count: u64,
    used: usize,
    /// The second and the last flush that `swept` is about.
    swept_for: (u32, u64),
    /// How many entries of the queue were swept in vain.
    swept: usize,
}

/// The memory of all items.
#[derive(Debug)]
pub(super) struct Segments {
    arena: Mapping,
    usage: Vec<Usage>,
    state: Mutex<State>,
    limit: AtomicUsize,
    evictions: bool,
    tiering: Option<Tiering>,
}

impl Segments {
    /// Reserves the address space of the segments.
    pub(super) fn new(config: &Config) -> io::Result<Segments> {
        let count = config.memory_limit.saturating_mul(2).max(ARENA_MIN) / SEGMENT;
        let state = State {
            free: Vec::new(),
            fresh: 0,
            open: None,
            filled: 0,
            lengths: HashMap::new(),
            queue: VecDeque::new(),
            large: HashMap::new(),
            large_count: 0,
            used: config.used_from_start,
            swept_for: (0, 0),
            swept: 0,
        };
        let arena = Mapping::new(count * SEGMENT)?;
        match config.tiering {
            Some(tiering) => tiering.manage(arena.address(), count * SEGMENT),
            None => arena.ask_for_huge_pages(count * SEGMENT),
        }
        Ok(Segments {
            arena,
            usage: (0..count).map(|_| Usage::default()).collect(),
            state: Mutex::new(state),
            limit: AtomicUsize::new(config.memory_limit),
            evictions: config.evictions,
            tiering: config.tiering,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit in bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. Gives false where the address space is too small.
    pub(super) fn set_limit(&self, bytes: usize) -> bool {
        let fits = bytes / SEGMENT + RESERVED <= self.usage.len();
        if fits {
            self.limit.store(bytes, Relaxed);
        }
        fits
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> usize {
        self.state().used
    }

    /// What may be used before something is evicted.
    fn allowed(&self) -> usize {
        let limit = self.limit();
        limit - (RESERVED * SEGMENT).min(limit / 8)
    }

    fn segment_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.arena.address() as usize);
        (offset / SEGMENT < self.usage.len()).then_some(offset / SEGMENT)
    }

    fn address(&self, segment: usize) -> *mut u8 {
        debug_assert!(segment < self.usage.len());
        // SAFETY: the arena holds that many segments.
        unsafe { self.arena.address().add(segment * SEGMENT) }
    }

    /// Makes space for an item, evicting others where allowed. `finished` must follow.
    pub(super) fn allocate(&self, size: usize, context: Context<'_>) -> Option<*mut u8> {
        let mut state = self.state();
        if size > SMALL_MAX {
            self.free_dead(&mut state, context);
            return self.allocate_large(&mut state, size, context);
        }
        if state.open.is_none() || state.filled + size > SEGMENT {
            if !self.evictions {
                // Only what is not open is compacted, and nothing else makes room.
                self.seal(&mut state);
            }
            let room = self.make_room(&mut state, SEGMENT, context);
            // A merge may have left another open segment with room.
            if state.open.is_none() || state.filled + size > SEGMENT {
                room?;
                self.seal(&mut state);
                self.open(&mut state)?;
            }
        }
        let segment = state.open?;
        self.usage[segment].pending.fetch_add(1, AcqRel);
        // SAFETY: `filled + size` is at most the segment's size.
        let pointer = unsafe { self.address(segment).add(state.filled) };
        state.filled += size;
        self.usage[segment].live.fetch_add(size as u32, Relaxed);
        Some(pointer)
    }

    fn allocate_large(
        &self,
        state: &mut State,
        size: usize,
        context: Context<'_>,
    ) -> Option<*mut u8> {
        let layout = Layout::from_size_align(size.next_multiple_of(LARGE_UNIT), 8).ok()?;
        self.make_room(state, layout.size(), context)?;
        // SAFETY: the size is not 0.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return None;
        }
        state.used += layout.size();
        state.large_count += 1;
        let number = state.large_count;
        state.large.insert(pointer as usize, Large { layout, pending: true, number });
        if state.queue.len() > 2 * (state.large.len() + state.lengths.len()) + QUEUE_SLACK {
            let large = &state.large;
            state.queue.retain(|unit| match unit {
                Unit::Segment(_) => true,
                Unit::Large(pointer, number) => {
                    large.get(pointer).is_some_and(|large| large.number == *number)
                }
            });
        }
        state.queue.push_back(Unit::Large(pointer as usize, number));
        Some(pointer)
    }

    /// The item is written, and not in the index yet. No bucket is locked.
    pub(super) fn written(&self, pointer: *mut u8) {
        if self.segment_of(pointer).is_none()
            && let Some(large) = self.state().large.get_mut(&(pointer as usize))
        {
            large.pending = false;
        }
    }

    /// The item at a pointer is in the index, or was given up.
    pub(super) fn finished(&self, pointer: *mut u8) {
        if let Some(segment) = self.segment_of(pointer) {
            self.usage[segment].pending.fetch_sub(1, Release);
        }
    }

    /// Counts an item as gone. Its bucket is locked.
    pub(super) fn forget(&self, pointer: *mut u8, header: &Header) {
        if let Some(segment) = self.segment_of(pointer) {
            self.usage[segment].live.fetch_sub(header.size, Relaxed);
        }
    }

    /// Frees an item that is no longer in the index. No bucket is locked.
    pub(super) fn release(&self, pointer: *mut u8) {
        if self.segment_of(pointer).is_none() {
            self.free_large(&mut self.state(), pointer as usize);
        }
    }

    fn free_large(&self, state: &mut State, pointer: usize) {
        if let Some(large) = state.large.remove(&pointer) {
            state.used -= large.layout.size();
            // SAFETY: it was allocated with this layout, and the index has it no more.
            unsafe { dealloc(pointer as *mut u8, large.layout) };
        }
    }

    fn seal(&self, state: &mut State) {
        if let Some(segment) = state.open.take() {
            state.lengths.insert(segment, state.filled);
            state.queue.push_back(Unit::Segment(segment));
        }
        state.filled = 0;
    }

    fn open(&self, state: &mut State) -> Option<()> {
        let segment = match state.free.pop() {
            Some(segment) => segment,
            None if state.fresh < self.usage.len() => {
                state.fresh += 1;
                state.fresh - 1
            }
            None => return None,
        };
        state.used += SEGMENT;
        state.open = Some(segment);
        state.filled = 0;
        Some(())
    }

    fn close(&self, state: &mut State, segment: usize) {
        state.lengths.remove(&segment);
        if let Some(tiering) = self.tiering {
            // Nothing of it needs to be kept anywhere, and nothing restored when it is used again.
            tiering.discard(self.address(segment), SEGMENT);
        } else if state.free.len() >= 2 * RESERVED {
            // SAFETY: the index has no item of the segment any more, so that nobody reads it.
            unsafe { libc::madvise(self.address(segment).cast(), SEGMENT, libc::MADV_DONTNEED) };
        }
        state.free.push(segment);
        state.used -= SEGMENT;
    }

    /// Evicts until so many more bytes can be used.
    fn make_room(&self, state: &mut State, bytes: usize, context: Context<'_>) -> Option<()> {
        let mut attempts = 8 * state.queue.len() + 8;
        while state.used + bytes > self.allowed() {
            if attempts == 0 {
                return None;
            }
            attempts -= 1;
            if let Some(victims) = self.sparse_segments(state) {
                self.merge(state, &victims, context);
                continue;
            }
            if !self.evictions {
                if self.sweep(state, context) {
                    continue;
                }
                return None;
            }
            let Some(oldest) = state.queue.pop_front() else {
                // At most the open segment is left.
                state.open?;
                self.seal(state);
                continue;
            };
            match oldest {
                Unit::Large(pointer, number) => {
                    self.evict_large(state, pointer, number, context, false);
                }
                Unit::Segment(segment) => {
                    let victims = self.oldest_segments(state, segment);
                    self.merge(state, &victims, context);
                }
            }
        }
        Some(())
    }

    fn is_pending(&self, segment: usize) -> bool {
        self.usage[segment].pending.load(Acquire) != 0
    }

    fn live(&self, segment: usize) -> usize {
        self.usage[segment].live.load(Relaxed) as usize
    }

    /// Takes a segment and those that follow it near the queue's front, without busy ones.
    fn oldest_segments(&self, state: &mut State, first: usize) -> Vec<usize> {
        if self.is_pending(first) {
            state.queue.push_back(Unit::Segment(first));
            return Vec::new();
        }
        let mut victims = vec![first];
        let mut place = 0;
        for _ in 0..OLDEST.min(state.queue.len()) {
            match state.queue[place] {
                Unit::Segment(segment) if !self.is_pending(segment) => {
                    state.queue.remove(place);
                    victims.push(segment);
                    if victims.len() == MERGED {
                        break;
                    }
                }
                _ => place += 1,
            }
        }
        victims
    }

    /// Frees a large item, unless it was used lately. Gives whether it is gone; if not, it stands
    /// at the queue's back.
    fn evict_large(
        &self,
        state: &mut State,
        pointer: usize,
        number: u64,
        context: Context<'_>,
        dead_only: bool,
    ) -> bool {
        let pending = match state.large.get(&pointer) {
            Some(large) if large.number == number => large.pending,
            _ => return true,
        };
        let at = pointer as *mut u8;
        let unit = Unit::Large(pointer, number);
        if pending {
            state.queue.push_back(unit);
            return false;
        }
        // SAFETY: a large item in the table is not freed without the lock of the state, and a
        // finished one has its hash.
        let hash = unsafe { (*at.cast::<Header>()).hash };
        let guard = context.index.lock(hash);
        let Some(slot) = guard.find(hash, |other| ptr::eq(other, at)) else {
            // It is on its way into the index, or out of it: then who took it out frees it.
            state.queue.push_back(unit);
            return false;
        };
        // SAFETY: the index has the item, and its bucket is locked.
        let item = unsafe { Item::from_pointer(at) };
        let dead = context.is_dead(&item);
        if !dead && (dead_only || slot.clock() > 0) {
            if !dead_only {
                guard.set(slot, slot.moved(at));
            }
            drop(guard);
            state.queue.push_back(unit);
            return false;
        }
        count_dropped(context.stats, &item, dead);
        guard.clear(slot);
        drop(guard);
        self.free_large(state, pointer);
        true
    }

    /// Merges segments into new ones, one fewer at most. What was not used is dropped.
    fn merge(&self, state: &mut State, victims: &[usize], context: Context<'_>) {
        let live: usize = victims.iter().map(|&segment| self.live(segment)).sum();
        let keep_all = fit_in_fewer(victims.len(), live);
        // One segment fewer than before, so that every merge frees memory.
        let mut spare = victims.len().saturating_sub(1);
        // The open segment is no victim, so that the first items go into what is left of it.
        for &segment in victims {
            let length = state.lengths.get(&segment).copied().unwrap_or(0);
            let mut offset = 0;
            while offset < length {
                // SAFETY: items stand one behind the other up to the segment's length, and all
                // of them are finished.
                let at = unsafe { self.address(segment).add(offset) };
                offset += self.move_or_drop(state, at, context, keep_all, &mut spare);
            }
            self.close(state, segment);
        }
    }

    /// Copies an item into the open segment, or drops it. Gives its size.
    fn move_or_drop(
        &self,
        state: &mut State,
        at: *mut u8,
        context: Context<'_>,
        keep_all: bool,
        spare: &mut usize,
    ) -> usize {
        // SAFETY: hash and size never change while an item's segment exists.
        let (hash, size) = unsafe {
            let header = at.cast::<Header>();
            ((*header).hash, (*header).size as usize)
        };
        let guard = context.index.lock(hash);
        let Some(slot) = guard.find(hash, |other| ptr::eq(other, at)) else { return size };
        // SAFETY: the index has the item, and its bucket is locked.
        let item = unsafe { Item::from_pointer(at) };
        let dead = context.is_dead(&item);
        let from = self.segment_of(at);
        let mut kept = !dead && (keep_all || slot.clock() > 0);
        if kept && (state.open.is_none() || state.filled + size > SEGMENT) {
            kept = *spare > 0;
            if kept {
                self.seal(state);
                kept = self.open(state).is_some();
                *spare -= 1;
            }
        }
        match state.open {
            Some(open) if kept => {
                // SAFETY: the open segment has room for it, and is another one.
                let to = unsafe {
                    let to = self.address(open).add(state.filled);
                    ptr::copy_nonoverlapping(at, to, size);
                    to
                };
                state.filled += size;
                self.usage[open].live.fetch_add(size as u32, Relaxed);
                guard.set(slot, slot.moved(to));
            }
            _ => {
                count_dropped(context.stats, &item, dead);
                guard.clear(slot);
            }
        }
        if let Some(segment) = from {
            self.usage[segment].live.fetch_sub(size as u32, Relaxed);
        }
        size
    }
}

/// Counts an item as gone, either because it was dead or to make room.
pub(super) fn count_dropped(stats: &Stats, item: &Item<'_>, dead: bool) {
    let class = stats.class_of(item.header);
    if dead {
        stats.add(Count::Reclaimed);
        class.reclaimed.fetch_add(1, Relaxed);
    } else {
        stats.add(Count::Evictions);
        class.evicted.fetch_add(1, Relaxed);
        class.evicted_nonzero.fetch_add(u64::from(item.header.expires != 0), Relaxed);
        if item.header.state & FETCHED == 0 {
            stats.add(Count::EvictedUnfetched);
        }
    }
    stats.item_gone(item.header);
}
