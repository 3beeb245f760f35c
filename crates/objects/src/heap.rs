//! The heap: segments that are filled one after the other, and the metadata of their objects.

use crate::advice::Adviser;
use crate::area::{Area, PAGE};
use crate::epoch::{Epochs, Guard, Reader, Stamp};
use crate::marks::{Bits, Clock, GRANULE, HEATS};
use crate::relocate::Object;
use crate::seen::{Seen, is_sampled};
use crate::segment::{Kind, Segment, State};
use crate::sync::Arc;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::Instant;

/// Segments that only the relocator may take. There is one for each kind that it fills, and one
/// more, so that it can always begin.
const RESERVE: usize = 3;

/// Message of a panic about a reader that protects nothing here.
const OTHER_HEAP: &str = "a reader of another heap: take one that `reader()` of this heap gave";

/// What a heap is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Maximum bytes of objects, with what is wasted between them. The address space is reserved,
    /// no memory is taken.
    pub capacity: usize,
    /// Bytes of a segment, a power of two: 64 KiB over compressed memory or swap, 2 MiB over NUMA
    /// nodes with huge pages.
    pub segment_bytes: usize,
    /// Whether callbacks are checked for keeping their contract. If so, a breach is reported by
    /// name and ends the program. On in debug builds. If off, breaches that can be seen are
    /// counted.
    pub check_callbacks: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            capacity: 1 << 30,
            segment_bytes: 64 << 10,
            check_callbacks: cfg!(debug_assertions),
        }
    }
}

/// Why a heap cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// The segment size is not one that works.
    #[error("segment_bytes is {0}: it must be a power of two from 4 KiB to 64 MiB")]
    SegmentBytes(usize),
    /// The heap would have too few segments.
    #[error("capacity is {capacity} bytes: it must be at least {least}, eight segments")]
    Capacity {
        /// Capacity that was asked for, bytes.
        capacity: usize,
        /// Least capacity that works, bytes.
        least: usize,
    },
    /// The kernel refused address space.
    #[error(
        "cannot reserve {bytes} bytes of address space ({error}): ask for less capacity, or raise ulimit -v or vm.overcommit_memory"
    )]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// The kernel's error.
        error: std::io::Error,
    },
}

/// Segments without objects, and the open one for new objects.
struct Allocation {
    free: Vec<u32>,
    untouched: Range<u32>,
    open: Option<u32>,
    used: usize,
}

/// Memory in which objects can be moved.
///
/// Objects are aligned to 16 bytes. All methods may be called by any thread.
pub struct Heap {
    area: Area,
    live: Bits,
    ends: Bits,
    /// Granules of objects that are not ready yet.
    unready: Bits,
    clock: Clock,
    /// Objects whose heat the program set.
    ranked: Bits,
    has_ranked: AtomicBool,
    segments: Box<[Segment]>,
    allocation: Mutex<Allocation>,
    epochs: Arc<Epochs>,
    begun: Instant,
    double_frees: AtomicU64,
    /// One touch in 2^`sampling` is counted.
    sampling: AtomicU32,
    /// Heat from which on objects among cold ones are noted in `seen`.
    noted_from: AtomicU8,
    seen: Seen,
    consolidated: AtomicBool,
    /// Whether a structure has its objects here.
    claimed: AtomicBool,
    /// Segments that former consolidators emptied, and when; readers may still be there.
    limbo: Mutex<VecDeque<(u32, Stamp)>>,
    adviser: Adviser,
    settings: Settings,
}

/// A heat that no object has.
const NEVER: u8 = u8::MAX;

/// How well pages are used: bytes of hot objects, and bytes of the pages that have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utilisation {
    /// Bytes of objects that are hot.
    pub hot_bytes: u64,
    /// Bytes of pages that hold at least a part of a hot object.
    pub page_bytes: u64,
}

impl Utilisation {
    /// Hot bytes ÷ bytes of hot pages, 0 to 1; 0 where nothing is hot.
    pub fn share(&self) -> f64 {
        if self.page_bytes == 0 { 0.0 } else { self.hot_bytes as f64 / self.page_bytes as f64 }
    }
}

/// Memory that a heap takes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of live objects, each rounded up to 16.
    pub live_bytes: u64,
    /// Bytes of all segments that are not free.
    pub segment_bytes: u64,
}

impl Heap {
    /// Makes a heap: reserves address space, but takes no memory yet.
    pub fn new(settings: Settings) -> Result<Heap, HeapError> {
        let Settings { capacity, segment_bytes, .. } = settings;
        if !segment_bytes.is_power_of_two() || !(PAGE..=64 << 20).contains(&segment_bytes) {
            return Err(HeapError::SegmentBytes(segment_bytes));
        }
        let count = capacity / segment_bytes;
        let (least, most) = (8, u32::MAX as usize);
        if !(least..most).contains(&count) {
            return Err(HeapError::Capacity { capacity, least: least * segment_bytes });
        }
        let bytes = count * segment_bytes;
        let refused = |error| HeapError::Memory { bytes, error };
        let area = Area::reserve(bytes, segment_bytes.max(PAGE)).map_err(refused)?;
        area.huge(segment_bytes >= 2 << 20);
        let granules = bytes / GRANULE;
        Ok(Heap {
            area,
            live: Bits::new(granules).map_err(refused)?,
            ends: Bits::new(granules).map_err(refused)?,
            unready: Bits::new(granules).map_err(refused)?,
            clock: Clock::new(granules).map_err(refused)?,
            ranked: Bits::new(granules).map_err(refused)?,
            has_ranked: AtomicBool::new(false),
            segments: (0..count).map(|_| Segment::default()).collect(),
            allocation: Mutex::new(Allocation {
                free: Vec::new(),
                untouched: 0..count as u32,
                open: None,
                used: 0,
            }),
            epochs: Arc::new(Epochs::default()),
            begun: Instant::now(),
            double_frees: AtomicU64::new(0),
            sampling: AtomicU32::new(0),
            noted_from: AtomicU8::new(NEVER),
            seen: Seen::default(),
            consolidated: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            limbo: Mutex::default(),
            adviser: Adviser::find(),
            settings,
        })
    }

    /// The settings that the heap was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A reader for one thread, which protects what it reads from being given back.
    pub fn reader(&self) -> Reader {
        Epochs::reader(&self.epochs)
    }

    /// Begins to read with one of this heap's readers.
    ///
    /// Panics if the reader is another heap's: it would protect nothing here.
    pub fn enter<'reader>(&self, reader: &'reader Reader) -> Guard<'reader> {
        assert!(reader.is_of(&self.epochs), "{OTHER_HEAP}");
        reader.enter()
    }

    /// Maximum bytes of an object: a quarter of a segment.
    pub fn largest(&self) -> usize {
        self.settings.segment_bytes / 4
    }

    /// Allocates an object of `bytes` bytes, at least 1. `None` if that is more than
    /// [`Heap::largest`], or no segment is left. Its contents are undefined. It does not move until
    /// it is [`Heap::ready`]. [`Heap::free`] also ends it before that.
    pub fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes == 0 || bytes > self.largest() {
            return None;
        }
        let bytes = bytes.next_multiple_of(GRANULE);
        let mut allocation = self.allocation();
        let segment = match allocation.open {
            Some(open) if allocation.used + bytes <= self.settings.segment_bytes => open,
            open => {
                let next = take(&mut allocation, RESERVE)?;
                if let Some(full) = open {
                    self.segments[full as usize].seal(allocation.used, self.now_ms());
                }
                self.segments[next as usize].open(Kind::Fresh);
                (allocation.open, allocation.used) = (Some(next), 0);
                next
            }
        };
        let object = self.object_at(segment, allocation.used, bytes);
        allocation.used += bytes;
        self.measure(object);
        self.unready.set(self.granule(object.start));
        Some(object.start)
    }

    /// Tells that an object is written: from now on it may be moved. To be called before a
    /// reference to it can be found, and once: an object that is ready, or has ended, is left
    /// alone.
    ///
    /// Panics if the pointer is none of this heap's.
    ///
    /// # Safety
    /// [`Heap::allocate`] of this heap gave the pointer. Its bytes are written as the heap's
    /// relocator reads them. A heap with a [`Map`](crate::structures::Map) or
    /// [`Rows`](crate::rows::Rows) has no other objects.
    pub unsafe fn ready(&self, pointer: NonNull<u8>) {
        let granule = self.granule(pointer);
        if self.unready.clear(granule) {
            self.live.set(granule);
        }
    }

    /// Ends an object, also one that was never [`Heap::ready`]. No reference to it may be left. Its
    /// bytes stay readable for threads that are inside. An object that has ended before is left
    /// alone and counted.
    ///
    /// Panics if the pointer is none of this heap's.
    ///
    /// # Safety
    /// No thread can find the object any more, and every thread that found it before is inside.
    pub unsafe fn free(&self, pointer: NonNull<u8>) {
        let granule = self.granule(pointer);
        let bytes = self.extent(granule);
        if self.live.clear(granule) || self.unready.clear(granule) {
            self.segment_of(granule).sub_live(bytes);
        } else {
            self.double_frees.fetch_add(1, Relaxed);
        }
    }

    /// Number of objects that were freed when they had ended already.
    pub fn double_frees(&self) -> u64 {
        self.double_frees.load(Relaxed)
    }

    /// Counts that an object was used; where uses are many, one use in some. It is one load, and
    /// seldom a store, beside the object. An object that was ranked keeps its rank.
    ///
    /// Panics if the pointer is none of this heap's.
    pub fn touch(&self, pointer: NonNull<u8>) {
        if !is_sampled(self.sampling.load(Relaxed)) {
            return;
        }
        let granule = self.granule(pointer);
        let heat = match self.is_ranked(granule) {
            true => self.clock.heat(granule),
            false => self.clock.touch(granule),
        };
        if heat >= self.noted_from.load(Relaxed) {
            let segment = self.segment_of(granule);
            if segment.kind() != Kind::Hot && segment.state() == State::Sealed {
                self.seen.push(granule as u64);
            }
        }
    }

    /// Sets how hot an object is, 0 to 3, for programs that rank objects themselves: 3 is hot. The
    /// rank stays, also where the object moves, until the program ranks it anew.
    ///
    /// Panics if the pointer is none of this heap's.
    pub fn rank(&self, pointer: NonNull<u8>, heat: u8) {
        let granule = self.granule(pointer);
        self.has_ranked.store(true, Relaxed);
        self.ranked.set(granule);
        self.clock.set(granule, heat.min(HEATS as u8 - 1));
    }

    /// Keeps the memory around an object as it is after the guard has gone, for sending without a
    /// copy. Its segment is not emptied meanwhile, or is not given back. [`Heap::unpin`] ends it.
    ///
    /// Panics if the guard is of another heap's reader: it would protect nothing here.
    pub fn pin(&self, pointer: NonNull<u8>, inside: &Guard<'_>) {
        assert!(inside.is_of(&self.epochs), "{OTHER_HEAP}");
        self.segment_of(self.granule(pointer)).pin();
    }

    /// Ends a pin. Panics if there is none.
    ///
    /// # Safety
    /// The pin was this caller's, which does not access the object any more.
    pub unsafe fn unpin(&self, pointer: NonNull<u8>) {
        assert!(self.segment_of(self.granule(pointer)).unpin(), "unpinned more often than pinned");
    }

    /// Whether the pointer leads into this heap.
    pub fn contains(&self, pointer: *const u8) -> bool {
        (pointer as usize).wrapping_sub(self.base()) < self.area.len()
    }

    /// Memory that the heap takes now.
    pub fn usage(&self) -> Usage {
        let taken = self.segments.iter().filter(|segment| segment.state() != State::Free);
        taken.fold(Usage::default(), |sum, segment| Usage {
            live_bytes: sum.live_bytes + segment.live() as u64,
            segment_bytes: sum.segment_bytes + self.settings.segment_bytes as u64,
        })
    }

    /// How well pages are used, where hot means a heat of at least `least`, 1 to 3.
    pub fn utilisation(&self, least: u8) -> Utilisation {
        let mut found = Utilisation::default();
        for index in 0..self.segments.len() as u32 {
            if matches!(self.segment(index).state(), State::Free | State::Retired) {
                continue;
            }
            let mut counted = usize::MAX;
            self.each_live(index, 0, |granule, bytes| {
                if self.clock.heat(granule) >= least {
                    let (first, last) =
                        (granule * GRANULE / PAGE, (granule * GRANULE + bytes - 1) / PAGE);
                    let new =
                        (first..=last).filter(|page| counted == usize::MAX || *page > counted);
                    found.page_bytes += new.count() as u64 * PAGE as u64;
                    found.hot_bytes += bytes as u64;
                    counted = last;
                }
                true
            });
        }
        found
    }

    // ---- for the consolidator ----

    /// Claims the heap for a consolidator; false if there is one.
    pub(crate) fn begin_consolidation(&self) -> bool {
        !self.consolidated.swap(true, Acquire)
    }

    /// Ends a consolidation; leaves what was emptied to the next consolidator.
    pub(crate) fn end_consolidation(&self, limbo: VecDeque<(u32, Stamp)>) {
        *self.limbo() = limbo;
        self.consolidated.store(false, Release);
    }

    /// Takes the emptied segments of the consolidator before.
    pub(crate) fn take_limbo(&self) -> VecDeque<(u32, Stamp)> {
        std::mem::take(&mut *self.limbo())
    }

    fn limbo(&self) -> std::sync::MutexGuard<'_, VecDeque<(u32, Stamp)>> {
        self.limbo.lock().expect("no panic under this lock")
    }

    /// Claims the heap for a structure's objects, for ever: the objects that it leaves there stay
    /// its own. Panics if the heap has a structure.
    pub(crate) fn claim(&self) {
        assert!(!self.claimed.swap(true, Relaxed), "the heap has a structure already");
    }

    /// Ends the rest of all segments.
    pub(crate) fn wake(&self) {
        self.segments.iter().for_each(Segment::wake);
    }

    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether the program set the heat of the object that begins at this granule.
    pub(crate) fn is_ranked(&self, granule: usize) -> bool {
        self.has_ranked.load(Relaxed) && self.ranked.get(granule)
    }

    /// Subtracts one from the counted heats of a segment.
    pub(crate) fn decay(&self, index: u32) {
        let ranked = self.has_ranked.load(Relaxed).then_some(&self.ranked);
        self.clock.decay(self.granules(index), ranked);
    }

    /// Gives a copy the heat of its object, which is at `granule`.
    pub(crate) fn copy_heat(&self, granule: usize, heat: u8, copy: Object) {
        match self.is_ranked(granule) {
            true => self.rank(copy.start, heat),
            false => self.clock.set(self.granule(copy.start), heat),
        }
    }

    /// Exponent of two of the number of touches of which one is counted.
    pub(crate) fn sampling(&self) -> u32 {
        self.sampling.load(Relaxed)
    }

    /// Sets that one touch in 2^`shift` is counted.
    pub(crate) fn sample(&self, shift: u32) {
        self.sampling.store(shift, Relaxed);
    }

    /// Has objects of at least this heat noted, where they lie among cold ones.
    pub(crate) fn note_from(&self, heat: Option<u8>) {
        self.noted_from.store(heat.unwrap_or(NEVER), Relaxed);
    }

    /// Heat from which on such objects are noted now.
    pub(crate) fn noted_from(&self) -> u8 {
        self.noted_from.load(Relaxed)
    }

    /// Takes an object that was noted, if it is still there, in a segment that is sealed and not
    /// hot.
    pub(crate) fn next_seen(&self) -> Option<Object> {
        while let Some(granule) = self.seen.pop() {
            let granule = granule as usize;
            let segment = self.segment_of(granule);
            if segment.kind() != Kind::Hot
                && segment.state() == State::Sealed
                && self.live.get(granule)
            {
                return Some(self.object(granule, self.extent(granule)));
            }
        }
        None
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    pub(crate) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    pub(crate) fn segment(&self, index: u32) -> &Segment {
        &self.segments[index as usize]
    }

    pub(crate) fn granules(&self, index: u32) -> Range<usize> {
        let each = self.settings.segment_bytes / GRANULE;
        index as usize * each..(index as usize + 1) * each
    }

    /// Opens a segment for objects that move; it may be one of the reserve.
    pub(crate) fn open(&self, kind: Kind) -> Option<u32> {
        let index = take(&mut self.allocation(), 0)?;
        self.segment(index).open(kind);
        Some(index)
    }

    /// The object at an offset of a segment.
    pub(crate) fn object_at(&self, index: u32, offset: usize, bytes: usize) -> Object {
        let offset = index as usize * self.settings.segment_bytes + offset;
        assert!(offset + bytes <= self.area.len(), "beyond the heap");
        // SAFETY: within the area, as checked.
        Object { start: unsafe { self.area.start().add(offset) }, bytes }
    }

    /// The object that begins at a granule.
    pub(crate) fn object(&self, granule: usize, bytes: usize) -> Object {
        self.object_at(0, granule * GRANULE, bytes)
    }

    /// Makes an object live. Its end is marked first, so that a thread that finds it knows its
    /// size.
    pub(crate) fn begin(&self, object: Object) {
        self.measure(object);
        self.live.set(self.granule(object.start));
    }

    /// Marks where an object ends, and counts its bytes.
    fn measure(&self, object: Object) {
        let granule = self.granule(object.start);
        self.segment_of(granule).add_live(object.bytes);
        self.ends.set(granule + object.bytes / GRANULE - 1);
    }

    /// Makes a live object dead; false if it was not live.
    pub(crate) fn end(&self, object: Object) -> bool {
        let granule = self.granule(object.start);
        let ended = self.live.clear(granule);
        if ended {
            self.segment_of(granule).sub_live(object.bytes);
        }
        ended
    }

    /// Undoes an allocation that no thread has seen.
    pub(crate) fn forget(&self, object: Object) {
        let granule = self.granule(object.start);
        self.end(object);
        self.ends.clear(granule + object.bytes / GRANULE - 1);
        self.clock.set(granule, 0);
        if self.is_ranked(granule) {
            self.ranked.clear(granule);
        }
    }

    /// The segment that an object lies in.
    pub(crate) fn segment_at(&self, object: Object) -> &Segment {
        self.segment_of(self.granule(object.start))
    }

    /// Gives up an object whose contents are not known: it takes its room, and is never moved.
    /// [`Heap::free`] ends it.
    pub(crate) fn abandon(&self, object: Object) {
        let granule = self.granule(object.start);
        if self.live.clear(granule) {
            self.unready.set(granule);
        }
    }

    /// Calls the callback for live objects of a segment from a granule of it on, with granule and
    /// bytes, until it returns false. Returns the granule of that object.
    pub(crate) fn each_live(
        &self,
        index: u32,
        from: usize,
        mut visit: impl FnMut(usize, usize) -> bool,
    ) -> Option<usize> {
        let granules = self.granules(index);
        let mut at = granules.start + from;
        while let Some(granule) = self.live.next(at..granules.end) {
            let bytes = self.extent(granule);
            if bytes == 0 {
                // Another thread has freed it since.
                at = granule + 1;
                continue;
            }
            if !visit(granule, bytes) {
                return Some(granule - granules.start);
            }
            at = granule + bytes / GRANULE;
        }
        None
    }

    /// Which pages of a segment are in memory, of those that were used when it was sealed. Others
    /// were never touched, and do not count.
    pub(crate) fn residency(&self, index: u32, pages: &mut Vec<u8>) {
        pages.resize(self.segment(index).used().div_ceil(PAGE), 0);
        self.area.residency(index as usize * self.settings.segment_bytes, pages);
    }

    /// Whether all pages of an object are in memory now.
    pub(crate) fn is_resident(&self, object: Object) -> bool {
        const AT_ONCE: usize = 64;
        let start = self.granule(object.start) * GRANULE;
        let (first, end) = (start / PAGE * PAGE, (start + object.bytes).next_multiple_of(PAGE));
        let mut pages = [0; AT_ONCE];
        (first..end).step_by(AT_ONCE * PAGE).all(|from| {
            let asked = &mut pages[..((end - from) / PAGE).min(AT_ONCE)];
            self.area.residency(from, asked);
            asked.iter().all(|page| page & 1 == 1)
        })
    }

    /// Advises Terrace of a segment's expected use, where that has changed and Terrace is there.
    pub(crate) fn advise(&self, index: u32, cooled: bool) {
        if self.adviser.is_there()
            && let Some(advice) = self.segment(index).new_advice(cooled)
        {
            let segment = self.object_at(index, 0, self.settings.segment_bytes);
            self.adviser.advise(segment.start.as_ptr(), segment.bytes, advice);
        }
    }

    /// Sets another adviser.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn advised_by(self, adviser: Adviser) -> Heap {
        Heap { adviser, ..self }
    }

    /// Gives a retired segment's memory back.
    ///
    /// # Safety
    /// No reader from before it was retired is inside, no thread has it pinned, and no reference
    /// leads into it.
    pub(crate) unsafe fn give_back(&self, index: u32) {
        let granules = self.granules(index);
        self.live.clear_all(granules.clone());
        self.ends.clear_all(granules.clone());
        // No object is unready there: its bytes would have kept the segment.
        if self.has_ranked.load(Relaxed) {
            self.ranked.clear_all(granules.clone());
        }
        self.clock.clear_all(granules);
        let bytes = self.settings.segment_bytes;
        // SAFETY: no thread can reach it, the caller says; it is not in the list of free ones yet.
        unsafe { self.area.discard(index as usize * bytes, bytes) };
        self.segment(index).change(State::Retired, State::Free);
        self.advise(index, false);
        self.allocation().free.push(index);
    }

    fn allocation(&self) -> std::sync::MutexGuard<'_, Allocation> {
        self.allocation.lock().expect("no panic under this lock")
    }

    fn base(&self) -> usize {
        self.area.start().as_ptr() as usize
    }

    pub(crate) fn granule(&self, pointer: NonNull<u8>) -> usize {
        let offset = (pointer.as_ptr() as usize).wrapping_sub(self.base());
        assert!(offset < self.area.len(), "a pointer that is none of this heap's");
        offset / GRANULE
    }

    fn segment_of(&self, granule: usize) -> &Segment {
        &self.segments[granule * GRANULE / self.settings.segment_bytes]
    }

    /// Bytes of the object that begins at a granule.
    fn extent(&self, granule: usize) -> usize {
        let each = self.settings.segment_bytes / GRANULE;
        let until = (granule / each + 1) * each;
        self.ends.next(granule..until).map_or(0, |end| (end - granule + 1) * GRANULE)
    }
}

/// Takes a free segment, if more than `kept` are left.
fn take(allocation: &mut Allocation, kept: usize) -> Option<u32> {
    if allocation.free.len() + allocation.untouched.len() <= kept {
        return None;
    }
    allocation.free.pop().or_else(|| allocation.untouched.next())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn heap() -> Heap {
        Heap::new(Settings { capacity: 1 << 20, ..Settings::default() }).unwrap()
    }

    fn new(heap: &Heap, bytes: usize) -> NonNull<u8> {
        let object = heap.allocate(bytes).unwrap();
        // SAFETY: of this heap; nothing reads its bytes.
        unsafe { heap.ready(object) };
        object
    }

    #[test]
    fn objects_lie_side_by_side_and_know_their_sizes() {
        let heap = heap();
        let objects: Vec<_> = [1, 16, 17, 100].map(|bytes| new(&heap, bytes)).into();
        let sizes: Vec<_> =
            objects.iter().map(|object| heap.extent(heap.granule(*object))).collect();
        assert_eq!(sizes, [16, 16, 32, 112]);
        assert_eq!(heap.usage().live_bytes, 176);
        // SAFETY: no thread looks at it.
        unsafe {
            heap.free(objects[2]);
            heap.free(objects[2]);
        }
        assert_eq!((heap.usage().live_bytes, heap.double_frees()), (144, 1));
    }

    #[test]
    fn room_that_was_never_ready_can_be_given_up_once() {
        let heap = heap();
        let (given_up, kept) = (heap.allocate(100).unwrap(), new(&heap, 16));
        // SAFETY: no thread looks at either. A wrong pointer is left alone and counted.
        unsafe {
            heap.free(given_up);
            assert_eq!((heap.usage().live_bytes, heap.double_frees()), (16, 0));
            heap.ready(given_up);
            heap.free(given_up);
            assert_eq!((heap.usage().live_bytes, heap.double_frees()), (16, 1));
            heap.free(kept);
            heap.ready(kept);
        }
        assert_eq!(heap.usage().live_bytes, 0);
        assert_eq!(heap.each_live(0, 0, |_, _| false), None);
    }

    #[test]
    fn what_was_ranked_stays_so_when_it_is_touched() {
        let heap = heap();
        let (ranked, counted) = (new(&heap, 16), new(&heap, 16));
        heap.rank(ranked, 1);
        (0..1000).for_each(|_| [ranked, counted].into_iter().for_each(|object| heap.touch(object)));
        let heats = || [ranked, counted].map(|object| heap.clock.heat(heap.granule(object)));
        assert_eq!(heats(), [1, 3]);
        heap.decay(0);
        assert_eq!(heats(), [1, 2]);
    }

    #[test]
    fn allocation_leaves_the_relocator_its_reserve() {
        let heap = heap();
        while heap.allocate(heap.largest()).is_some() {}
        assert_eq!(heap.usage().segment_bytes, (1 << 20) - (RESERVE as u64) * (64 << 10));
        assert!(heap.open(Kind::Hot).is_some());
        assert!(heap.allocate(heap.largest() + 1).is_none() && heap.allocate(0).is_none());
    }

    #[test]
    fn utilisation_counts_each_hot_page_once() {
        let heap = heap();
        let objects: Vec<_> = (0..256).map(|_| new(&heap, 64)).collect();
        assert_eq!(heap.utilisation(1).share(), 0.0);
        [0, 1, 70].into_iter().for_each(|hot: usize| heap.touch(objects[hot]));
        let found = heap.utilisation(1);
        assert_eq!((found.hot_bytes, found.page_bytes), (3 * 64, 2 * 4096));
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_what_would() {
        let told = |settings| Heap::new(settings).err().unwrap().to_string();
        assert!(
            told(Settings { segment_bytes: 5000, ..Settings::default() }).contains("power of two")
        );
        assert!(
            told(Settings { capacity: 4096, ..Settings::default() }).contains("at least 524288")
        );
        let huge = Settings { capacity: 1 << 47, ..Settings::default() };
        assert!(told(Settings { segment_bytes: 64 << 20, ..huge }).contains("less capacity"));
    }
}
