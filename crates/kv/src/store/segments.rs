//! Where items live: segments of bump allocation, and runs of whole pages for large items.
//!
//! Segments and large items stand in one queue, oldest first. When the limit is reached, some
//! segments from its front are merged, and large items there are freed. The items that were used
//! lately survive a merge. Before that, segments with much garbage are merged without losing
//! anything. While a segment has items that are not in the index yet, it is left alone.
//!
//! Up to three segments are open: for new items, and for hot and for cold ones that move. Eviction
//! and consolidation both fill them. A thread that finds a sealed segment without items gives it
//! back.

mod evict;
mod reclaim;
mod runs;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use terrace_objects::manager::Kind;
use terrace_os::PAGE;

use super::config::Config;
use super::heat::Heat;
use super::held::Held;
use super::index::{Index, Mapping};
use super::item::{Header, Item};
use crate::stats::Stats;
use crate::tiering::Tiering;
use runs::Runs;

/// Bytes of a segment.
pub(super) const SEGMENT: usize = 64 << 10;
/// Items above this are large: they have pages of their own.
pub(super) const SMALL_MAX: usize = SEGMENT / 8;
/// Number of segments merged at once.
const MERGED: usize = 4;
/// Number of kinds of open segments.
const KINDS: usize = 3;
/// The kind of segment for new items.
const NEW: usize = Kind::Fresh as usize;
/// The kinds of segments for items that consolidation moves.
pub(super) const MOVED: [Kind; 2] = [Kind::Hot, Kind::Cold];
/// Number of segments kept free for merging.
const RESERVED: usize = 8;
/// Least address space for segments, and as much for large items, bytes, for a limit that is raised
/// later.
const ARENA_MIN: usize = if cfg!(test) { 80 << 20 } else { 1 << 30 };
/// Entries of freed large items that the queue may hold besides as many as are alive.
const QUEUE_SLACK: usize = 1024;

/// The context of an eviction besides the segments.
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

/// The effect of flushes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flushed {
    /// The last second whose items have all vanished.
    pub(super) until: u32,
    /// Lowest identifier of an item that may still be there.
    pub(super) cas: u64,
}

impl Flushed {
    /// Whether flushes have made an item vanish.
    pub(super) fn has(&self, header: &Header) -> bool {
        header.created <= self.until || header.cas < self.cas
    }
}

/// Metadata of a segment, beside it.
#[derive(Debug, Default)]
struct Usage {
    /// Bytes of items in the index.
    live: AtomicU32,
    /// Items that are being written.
    pending: AtomicU32,
    /// Number of this use of the segment, given when it was sealed. Zero while it is not sealed.
    number: AtomicU64,
    /// Bytes used when the segment was sealed.
    length: AtomicU32,
    /// Time from the start until the segment was sealed, ms; some bits are lost in 50 days.
    sealed_ms: AtomicU32,
    /// Kind of items that the segment holds.
    kind: AtomicU8,
}

/// A segment that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) segment: usize,
    /// Bytes used.
    pub(super) filled: usize,
}

impl Open {
    /// Whether there is room for an item.
    pub(super) fn fits(self, size: usize) -> bool {
        self.filled + size <= SEGMENT
    }
}

/// State of a sealed segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    /// Number of this use of the segment, different from earlier ones.
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) length: usize,
    pub(super) live: usize,
    pub(super) age_s: f64,
}

/// A large item that is freed as a whole.
#[derive(Debug)]
struct Large {
    pages: usize,
    /// Whether the item is being written.
    pending: bool,
    /// Number that differs from an earlier item's at the same address.
    number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    /// A segment and its number. If the segment has another number by now, it is in another use.
    Segment(usize, u64),
    /// The address of a large item and its number.
    Large(usize, u64),
}

#[derive(Debug)]
struct State {
    free: Vec<usize>,
    /// Number of the first segment that was never used; none after it was.
    fresh: usize,
    /// The open segments, by kind.
    open: [Option<Open>; KINDS],
    /// Number of segments that are sealed, and (next) that were so far.
    sealed: usize,
    sealed_count: u64,
    queue: VecDeque<Unit>,
    large: HashMap<usize, Large>,
    large_count: u64,
    /// The pages of large items.
    runs: Runs,
    used: usize,
    /// The second and the last flush that `swept` is about.
    swept_for: (u32, u64),
    /// Number of entries of the queue that were swept in vain.
    swept: usize,
}

/// The memory of all items.
#[derive(Debug)]
pub(super) struct Segments {
    /// The segments, and as many bytes for large items behind them.
    arena: Mapping,
    usage: Vec<Usage>,
    state: Mutex<State>,
    limit: AtomicUsize,
    /// Bytes of the limit that are taken besides items.
    held: Arc<AtomicUsize>,
    evictions: bool,
    tiering: Option<Tiering>,
    heat: Arc<Heat>,
    begun: Instant,
}

impl Segments {
    /// Reserves the address space of the segments.
    pub(super) fn new(config: &Config, heat: Arc<Heat>) -> io::Result<Segments> {
        let (arena, count) = Segments::reserve(config.memory_limit)?;
        let state = State {
            free: Vec::new(),
            fresh: 0,
            open: [None; KINDS],
            sealed: 0,
            sealed_count: 0,
            queue: VecDeque::new(),
            large: HashMap::new(),
            large_count: 0,
            runs: Runs::new(count * SEGMENT / PAGE),
            used: config.used_from_start,
            swept_for: (0, 0),
            swept: 0,
        };
        match config.tiering {
            Some(tiering) => tiering.manage(arena.address(), 2 * count * SEGMENT),
            None => {
                arena.ask_for_huge_pages(count * SEGMENT);
                // A part of a huge page that is discarded would stay in memory.
                arena.refuse_huge_pages(count * SEGMENT, count * SEGMENT);
            }
        }
        Ok(Segments {
            arena,
            usage: (0..count).map(|_| Usage::default()).collect(),
            state: Mutex::new(state),
            limit: AtomicUsize::new(config.memory_limit),
            held: Arc::default(),
            evictions: config.evictions,
            tiering: config.tiering,
            heat,
            begun: Instant::now(),
        })
    }

    /// Reserves address space for twice the limit, or as little as will do where that is refused.
    /// Returns it and the number of segments in its first half.
    fn reserve(limit: usize) -> io::Result<(Mapping, usize)> {
        let of = |bytes: usize| {
            let count = bytes / SEGMENT;
            Ok((Mapping::new(2 * count * SEGMENT)?, count))
        };
        let least = limit.saturating_add(RESERVED * SEGMENT);
        of(limit.saturating_mul(2).max(ARENA_MIN)).or_else(|_: io::Error| of(least))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The limit in bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. Returns false where the address space is too small.
    pub(super) fn set_limit(&self, bytes: usize) -> bool {
        let fits = bytes / SEGMENT + RESERVED <= self.usage.len();
        if fits {
            self.limit.store(bytes, Relaxed);
        }
        fits
    }

    /// Bytes that items use.
    pub(super) fn used(&self) -> usize {
        self.state().used
    }

    /// Bytes of the limit that are taken besides items.
    pub(super) fn held(&self) -> &Arc<AtomicUsize> {
        &self.held
    }

    /// All bytes of the limit that are taken.
    fn taken(&self, state: &State) -> usize {
        state.used + self.held.load(Relaxed)
    }

    /// Takes bytes of the limit for something besides items, which are evicted where that is
    /// allowed. Returns false where there is no room.
    pub(super) fn hold(&self, held: &mut Held, bytes: usize, context: Context<'_>) -> bool {
        let mut state = self.state();
        let more = bytes.saturating_sub(held.bytes());
        let has_room = self.make_room(&mut state, more, context).is_some();
        if has_room {
            held.set(bytes);
        }
        has_room
    }

    /// Bytes that may be used before something is evicted.
    fn allowed(&self) -> usize {
        let limit = self.limit();
        limit - (RESERVED * SEGMENT).min(limit / 8)
    }

    pub(super) fn segment_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.arena.address() as usize);
        (offset / SEGMENT < self.usage.len()).then_some(offset / SEGMENT)
    }

    pub(super) fn address(&self, segment: usize) -> *mut u8 {
        debug_assert!(segment < self.usage.len());
        // SAFETY: the arena holds that many segments.
        unsafe { self.arena.address().add(segment * SEGMENT) }
    }

    /// The address of a page for large items.
    fn page(&self, page: usize) -> *mut u8 {
        let segments = self.usage.len() * SEGMENT;
        debug_assert!(page < segments / PAGE);
        // SAFETY: behind the segments the arena has as many bytes again.
        unsafe { self.arena.address().add(segments + page * PAGE) }
    }

    /// Makes space for an item, evicting others where allowed. `finished` must follow.
    pub(super) fn allocate(&self, size: usize, context: Context<'_>) -> Option<*mut u8> {
        let mut state = self.state();
        if size > SMALL_MAX {
            self.free_dead(&mut state, context);
            return self.allocate_large(&mut state, size, context);
        }
        let has_room = |state: &State| state.open[NEW].is_some_and(|open| open.fits(size));
        if !has_room(&state) {
            if !self.evictions && self.taken(&state) + SEGMENT > self.allowed() {
                // Only sealed segments are compacted, and nothing else makes room.
                self.seal_all(&mut state);
            }
            let room = self.make_room(&mut state, SEGMENT, context);
            // A merge may have left another open segment with room.
            if !has_room(&state) {
                room?;
                self.reopen(&mut state, NEW)?;
            }
        }
        let (segment, pointer) = self.take(state.open[NEW].as_mut()?, size);
        self.usage[segment].pending.fetch_add(1, AcqRel);
        Some(pointer)
    }

    /// Takes room in an open segment. It counts as live from now on.
    pub(super) fn take(&self, open: &mut Open, size: usize) -> (usize, *mut u8) {
        debug_assert!(open.fits(size));
        // SAFETY: `filled + size` is at most the segment's size.
        let pointer = unsafe { self.address(open.segment).add(open.filled) };
        open.filled += size;
        self.usage[open.segment].live.fetch_add(size as u32, Relaxed);
        (open.segment, pointer)
    }

    fn allocate_large(
        &self,
        state: &mut State,
        size: usize,
        context: Context<'_>,
    ) -> Option<*mut u8> {
        let pages = size.div_ceil(PAGE);
        self.make_room(state, pages * PAGE, context)?;
        let pointer = self.page(self.take_run(state, pages, context)?);
        state.used += pages * PAGE;
        state.large_count += 1;
        let number = state.large_count;
        state.large.insert(pointer as usize, Large { pages, pending: true, number });
        self.prune(state);
        state.queue.push_back(Unit::Large(pointer as usize, number));
        Some(pointer)
    }

    /// Removes entries of the queue that are stale, where they are many.
    fn prune(&self, state: &mut State) {
        if state.queue.len() > 2 * (state.large.len() + state.sealed) + QUEUE_SLACK {
            let large = &state.large;
            state.queue.retain(|unit| match unit {
                Unit::Segment(segment, number) => self.is_sealed(*segment, *number),
                Unit::Large(pointer, number) => {
                    large.get(pointer).is_some_and(|large| large.number == *number)
                }
            });
        }
    }

    /// Notes that an item is written, and not in the index yet. No bucket is locked.
    pub(super) fn written(&self, pointer: *mut u8) {
        if self.segment_of(pointer).is_none()
            && let Some(large) = self.state().large.get_mut(&(pointer as usize))
        {
            large.pending = false;
        }
    }

    /// Notes that the item at a pointer is in the index, or was given up.
    pub(super) fn finished(&self, pointer: *mut u8) {
        if let Some(segment) = self.segment_of(pointer) {
            self.usage[segment].pending.fetch_sub(1, Release);
        }
    }

    /// Counts an item as gone. Its bucket is locked.
    pub(super) fn forget(&self, pointer: *mut u8, header: &Header) {
        if let Some(segment) = self.segment_of(pointer) {
            self.usage[segment].live.fetch_sub(header.size, Release);
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
            state.used -= large.pages * PAGE;
            let first = (pointer - self.page(0) as usize) / PAGE;
            state.runs.give_back(first, large.pages, |first, pages| self.discard_run(first, pages));
        }
    }

    fn discard_run(&self, first: usize, pages: usize) {
        self.discard(self.page(first), pages * PAGE);
    }

    /// Discards the contents of a range of the arena, of which the index has no item any more.
    fn discard(&self, start: *mut u8, bytes: usize) {
        match self.tiering {
            // The contents need not be kept anywhere, nor restored when the range is used again.
            Some(tiering) => tiering.discard(start, bytes),
            // SAFETY: no thread reads what the index does not have.
            None => _ = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) },
        }
    }

    /// Seals the open segment of a kind, if there is one.
    fn seal(&self, state: &mut State, kind: usize) {
        if let Some(open) = state.open[kind].take() {
            self.seal_open(state, open);
        }
    }

    fn seal_all(&self, state: &mut State) {
        (0..KINDS).for_each(|kind| self.seal(state, kind));
    }

    fn seal_open(&self, state: &mut State, open: Open) {
        state.sealed += 1;
        state.sealed_count += 1;
        let usage = &self.usage[open.segment];
        usage.length.store(open.filled as u32, Relaxed);
        usage.sealed_ms.store(self.now_ms() as u32, Relaxed);
        usage.number.store(state.sealed_count, Release);
        self.prune(state);
        let unit = Unit::Segment(open.segment, state.sealed_count);
        // Cold items are evicted first.
        match self.kind(open.segment) {
            Kind::Cold => state.queue.push_front(unit),
            Kind::Fresh | Kind::Hot => state.queue.push_back(unit),
        }
    }

    /// Seals the open segment of a kind and opens another one, if there is address space.
    fn reopen(&self, state: &mut State, kind: usize) -> Option<()> {
        self.seal(state, kind);
        let segment = match state.free.pop() {
            Some(segment) => segment,
            None if state.fresh < self.usage.len() => {
                state.fresh += 1;
                state.fresh - 1
            }
            None => return None,
        };
        state.used += SEGMENT;
        self.usage[segment].kind.store(kind as u8, Relaxed);
        state.open[kind] = Some(Open { segment, filled: 0 });
        Some(())
    }

    /// Gives back a sealed segment of which the index has no item any more.
    fn close(&self, state: &mut State, segment: usize) {
        self.usage[segment].number.store(0, Relaxed);
        state.sealed -= 1;
        if self.tiering.is_some() || state.free.len() >= 2 * RESERVED {
            self.discard(self.address(segment), SEGMENT);
        }
        state.free.push(segment);
        state.used -= SEGMENT;
    }

    /// Whether a segment is sealed, and still has a number.
    pub(super) fn is_sealed(&self, segment: usize, number: u64) -> bool {
        self.usage[segment].number.load(Acquire) == number
    }

    fn is_pending(&self, segment: usize) -> bool {
        self.usage[segment].pending.load(Acquire) != 0
    }

    fn live(&self, segment: usize) -> usize {
        self.usage[segment].live.load(Acquire) as usize
    }

    fn length(&self, segment: usize) -> usize {
        self.usage[segment].length.load(Relaxed) as usize
    }

    fn kind(&self, segment: usize) -> Kind {
        match self.usage[segment].kind.load(Relaxed) {
            0 => Kind::Fresh,
            1 => Kind::Hot,
            _ => Kind::Cold,
        }
    }

    /// Time since the start, ms.
    pub(super) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Whether an item lies where a hot item may lie. That is among hot ones, in a segment that is
    /// being filled, or in pages of its own.
    pub(super) fn is_placed(&self, pointer: *mut u8) -> bool {
        self.segment_of(pointer).is_none_or(|segment| {
            self.kind(segment) == Kind::Hot || self.usage[segment].number.load(Acquire) == 0
        })
    }
}

/// The operations for consolidation. All locks are tried only, as its thread has requests to serve.
impl Segments {
    /// Number of segments that were ever used.
    pub(super) fn count(&self) -> Option<usize> {
        self.try_state().map(|state| state.fresh)
    }

    /// Number of segments that may still be used, and number of sealed ones.
    pub(super) fn spare(&self) -> Option<(usize, usize)> {
        let state = self.try_state()?;
        Some((self.allowed().saturating_sub(self.taken(&state)) / SEGMENT, state.sealed))
    }

    /// State of a segment, if it is sealed.
    pub(super) fn sealed(&self, segment: usize) -> Option<Sealed> {
        let usage = &self.usage[segment];
        let number = usage.number.load(Acquire);
        let age_ms = (self.now_ms() as u32).wrapping_sub(usage.sealed_ms.load(Relaxed));
        (number != 0).then(|| Sealed {
            number,
            kind: self.kind(segment),
            length: self.length(segment),
            live: self.live(segment),
            age_s: f64::from(age_ms) / 1000.0,
        })
    }

    /// Sets the kind of the items left in a segment, if it still has the number. Returns nothing
    /// where the state was locked.
    pub(super) fn sort(&self, segment: usize, number: u64, kind: Kind) -> Option<()> {
        // No thread closes and reopens it meanwhile.
        let _state = self.try_state()?;
        if self.is_sealed(segment, number) {
            self.usage[segment].kind.store(kind as u8, Relaxed);
        }
        Some(())
    }

    /// Adds the open segments for hot and for cold items, which no other thread fills then, to
    /// those in `taken`. Returns false where the state is locked.
    pub(super) fn take_open(&self, taken: &mut [Option<Open>; 2]) -> bool {
        let Some(mut state) = self.try_state() else { return false };
        for (kind, open) in MOVED.into_iter().zip(taken) {
            *open = open.take().or_else(|| state.open[kind as usize].take());
        }
        true
    }

    /// Returns the taken segments, unless the state is locked.
    pub(super) fn return_open(&self, taken: &mut [Option<Open>; 2]) {
        let Some(mut state) = self.try_state() else { return };
        for (kind, open) in MOVED.into_iter().zip(taken) {
            let Some(open) = open.take() else { continue };
            // Another thread may have opened another one meanwhile.
            self.seal(&mut state, kind as usize);
            state.open[kind as usize] = Some(open);
        }
    }

    /// Opens a segment for hot or for cold items, in place of a full one. With `from_reserve` a new
    /// one may be of those kept free for merging, except as many as a merge may need. That is for
    /// items whose segment is given back. Returns none, and leaves the full one, if it is
    /// impossible now.
    pub(super) fn replace_open(
        &self,
        full: Option<Open>,
        kind: Kind,
        from_reserve: bool,
    ) -> Option<Open> {
        let mut state = self.try_state()?;
        let kind = kind as usize;
        if state.open[kind].is_none() {
            let (needed, allowed) = match from_reserve {
                true => ((1 + MERGED) * SEGMENT, self.limit()),
                // Nothing is evicted for items that leave garbage behind.
                false => (SEGMENT, self.allowed()),
            };
            if self.taken(&state) + needed > allowed {
                return None;
            }
            self.reopen(&mut state, kind)?;
        }
        if let Some(full) = full {
            self.seal_open(&mut state, full);
        }
        state.open[kind].take()
    }

    /// Gives back a segment with a number if it is still there and has no items. Returns whether it
    /// did, or nothing where the state was locked.
    pub(super) fn close_if_empty(&self, segment: usize, number: u64) -> Option<bool> {
        let mut state = self.try_state()?;
        let is_empty =
            self.is_sealed(segment, number) && self.live(segment) == 0 && !self.is_pending(segment);
        if is_empty {
            self.close(&mut state, segment);
        }
        Some(is_empty)
    }

    /// Seals the segments for hot and for cold items, which no thread fills any more.
    pub(super) fn seal_moved(&self) -> Option<()> {
        let mut state = self.try_state()?;
        MOVED.into_iter().for_each(|kind| self.seal(&mut state, kind as usize));
        Some(())
    }
}
