//! The index: buckets of one cache line, each with seven slots and a control word.
//!
//! A slot holds a 16-bit tag and a 48-bit pointer. Items are aligned to 8 bytes, so the low bits
//! of the pointer hold the 2-bit clock. A search touches an item only if its tag is that of the
//! key. The control word holds the lock and the number of an overflow bucket.

use std::hint;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::thread;

const SLOTS: usize = 7;
const LOCKED: u64 = 1;
const OVERFLOW_SHIFT: u32 = 16;
const CLOCK_MASK: u64 = 3;
const POINTER_MASK: u64 = (1 << 48) - 8;
const TAG_SHIFT: u32 = 48;
/// The bytes of memory limit for which there is one slot.
const BYTES_PER_SLOT: usize = 128;
const BUCKETS_MIN: usize = 1024;
/// Average number of slots of a bucket that are taken, where the number of items is known: six of
/// seven.
const ITEMS_PER_BUCKET: usize = SLOTS - 1;
/// Number of cache lines of an item that are prefetched. The CPU prefetches those that follow.
const ITEM_LINES: usize = 3;
/// Number of spins before a waiting thread gives up its CPU: a lock is held for the copy of a
/// value.
const SPINS: u32 = 64;

#[repr(C, align(64))]
#[derive(Debug)]
struct Bucket {
    control: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

/// Has the CPU fetch a cache line, of whatever lies there.
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Anonymous memory that is zero until it is written.
#[derive(Debug)]
pub(super) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; its users synchronise.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves address space that takes no memory until it is written.
    pub(super) fn new(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping replaces nothing.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, bytes })
    }

    /// Asks for huge pages, where the kernel gives them on request (`madvise`): nearly every access
    /// to a part misses the TLB otherwise.
    pub(super) fn ask_for_huge_pages(&self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        // SAFETY: the range is within the mapping, and the advice changes no contents.
        unsafe { libc::madvise(self.address.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    /// Asks for no huge pages in a part, from `offset` on.
    pub(super) fn refuse_huge_pages(&self, offset: usize, bytes: usize) {
        let offset = offset.min(self.bytes);
        let bytes = bytes.min(self.bytes - offset);
        // SAFETY: the range is within the mapping, and the advice changes no contents.
        unsafe {
            let start = self.address.as_ptr().add(offset);
            libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE);
        }
    }

    /// The first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new` with this size.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// The place of an item in the index, with the word that it held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    word: u64,
    place: Option<&'a AtomicU64>,
}

impl Slot<'_> {
    /// A word for an item, not yet in a place.
    pub(super) fn new(hash: u64, pointer: *mut u8) -> Slot<'static> {
        let address = pointer as u64;
        debug_assert!(address & !POINTER_MASK == 0, "items are aligned, user space has 48 bits");
        Slot { word: hash >> TAG_SHIFT << TAG_SHIFT | address, place: None }
    }

    /// Whether the slot has an item that may have a hash.
    pub(super) fn is_of(&self, hash: u64) -> bool {
        self.word != 0 && self.word >> TAG_SHIFT == hash >> TAG_SHIFT
    }

    /// The item.
    pub(super) fn pointer(&self) -> *mut u8 {
        (self.word & POINTER_MASK) as usize as *mut u8
    }

    /// The clock: how often the item was used lately, at most 3.
    pub(super) fn clock(&self) -> u64 {
        self.word & CLOCK_MASK
    }

    /// A word for this item with its clock one step on, at most 3.
    pub(super) fn used(self) -> Self {
        if self.clock() < CLOCK_MASK { Slot { word: self.word + 1, ..self } } else { self }
    }

    /// A word for this item at another address.
    pub(super) fn at(self, pointer: *mut u8) -> Self {
        Slot { word: self.word & !POINTER_MASK | pointer as u64, ..self }
    }

    /// A word for this item at another address, with its clock one step back.
    pub(super) fn moved(self, pointer: *mut u8) -> Self {
        let word = self.word - self.clock().min(1);
        Slot { word, ..self }.at(pointer)
    }

    /// Subtracts a step from the clock in the index, if the slot still is as it was found. The
    /// bucket need not be locked: a thread that locked it may overwrite the step, but this never
    /// overwrites a changed slot.
    pub(super) fn cool(self) -> Self {
        if self.clock() == 0 {
            return self;
        }
        let word = self.word - 1;
        if let Some(place) = self.place {
            let _ = place.compare_exchange(self.word, word, Relaxed, Relaxed);
        }
        Slot { word, ..self }
    }
}

/// A hash table of a fixed number of buckets, with overflow buckets behind them.
#[derive(Debug)]
pub(super) struct Index {
    mapping: Mapping,
    heads: usize,
    buckets: usize,
    overflows: AtomicUsize,
}

impl Index {
    /// Makes an index for `items` items, or for as many as a memory limit lets one expect. It does
    /// not grow: it has room for about four times as many.
    pub(super) fn new(memory_limit: usize, items: Option<usize>) -> io::Result<Index> {
        let buckets = match items {
            Some(items) => items / ITEMS_PER_BUCKET,
            None => memory_limit / BYTES_PER_SLOT / SLOTS,
        };
        let heads = buckets.max(BUCKETS_MIN).next_power_of_two();
        // Three overflow buckets for each head. Without `items`, that is enough for items of 56
        // bytes, the least. With it, and as they are never given back, they can run out.
        let buckets = heads * 4;
        let mapping = Mapping::new(buckets * size_of::<Bucket>())?;
        mapping.ask_for_huge_pages(heads * size_of::<Bucket>());
        Ok(Index { mapping, heads, buckets, overflows: AtomicUsize::new(heads) })
    }

    /// Bytes of the buckets that begin a chain, and the base-2 logarithm of their number.
    pub(super) fn size(&self) -> (usize, u32) {
        (self.heads * size_of::<Bucket>(), self.heads.trailing_zeros())
    }

    fn bucket(&self, number: usize) -> &Bucket {
        debug_assert!(number < self.buckets);
        // SAFETY: the mapping holds that many buckets, and zeros are valid ones.
        unsafe { &*self.mapping.address().cast::<Bucket>().add(number) }
    }

    /// Has the CPU fetch the bucket of a hash.
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(ptr::from_ref(self.bucket(self.chain_of(hash))).cast());
    }

    /// Prefetches the items that a hash may mean. Their bucket should be cached by now. It is not
    /// locked: an item that is gone by then is fetched in vain.
    pub(super) fn prefetch_items(&self, hash: u64) {
        let bucket = self.bucket(self.chain_of(hash));
        for slot in &bucket.slots {
            let slot = Slot { word: slot.load(Relaxed), place: None };
            if slot.is_of(hash) {
                for line in 0..ITEM_LINES {
                    prefetch(slot.pointer().wrapping_add(line * size_of::<Bucket>()));
                }
            }
        }
    }

    /// Locks the bucket of a hash.
    pub(super) fn lock(&self, hash: u64) -> Guard<'_> {
        self.lock_chain(self.chain_of(hash))
    }

    /// The number of chains.
    pub(super) fn chains(&self) -> usize {
        self.heads
    }

    /// The chain of a hash.
    pub(super) fn chain_of(&self, hash: u64) -> usize {
        hash as usize & (self.heads - 1)
    }

    /// The taken slots of a chain. The chain is not locked: their items may be gone by now, and
    /// must not be read.
    pub(super) fn peek(&self, chain: usize) -> impl Iterator<Item = Slot<'_>> {
        chain_from(self, self.bucket(chain))
            .flat_map(|bucket| bucket.slots.iter())
            .filter_map(taken)
    }

    /// Locks a chain, unless another thread has it.
    pub(super) fn try_lock(&self, chain: usize) -> Option<Guard<'_>> {
        let head = self.bucket(chain);
        let was_locked = head.control.fetch_or(LOCKED, Acquire) & LOCKED != 0;
        (!was_locked).then(|| Guard { index: self, head })
    }

    /// Locks a chain.
    pub(super) fn lock_chain(&self, chain: usize) -> Guard<'_> {
        let head = self.bucket(chain);
        let mut spins = 0;
        while head.control.fetch_or(LOCKED, Acquire) & LOCKED != 0 {
            while head.control.load(Relaxed) & LOCKED != 0 {
                spins += 1;
                if spins < SPINS { hint::spin_loop() } else { thread::yield_now() }
            }
        }
        Guard { index: self, head }
    }
}

/// The buckets of a chain. They are never given back, so that no lock is needed to follow it.
fn chain_from<'a>(
    index: &'a Index,
    head: &'a Bucket,
) -> impl Iterator<Item = &'a Bucket> + use<'a> {
    let mut next = Some(head);
    std::iter::from_fn(move || {
        let bucket = next?;
        let overflow = (bucket.control.load(Relaxed) >> OVERFLOW_SHIFT) as usize;
        next = (overflow != 0).then(|| index.bucket(overflow));
        Some(bucket)
    })
}

/// The slot at a place, if it is taken.
fn taken(place: &AtomicU64) -> Option<Slot<'_>> {
    let slot = Slot { word: place.load(Relaxed), place: Some(place) };
    (slot.word != 0).then_some(slot)
}

/// A locked bucket with its chain.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    index: &'a Index,
    head: &'a Bucket,
}

impl<'a> Guard<'a> {
    fn chain(&self) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        chain_from(self.index, self.head)
    }

    /// The slots that are taken.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'a>> + use<'a> {
        self.places().filter_map(taken)
    }

    fn places(&self) -> impl Iterator<Item = &'a AtomicU64> + use<'a> {
        self.chain().flat_map(|bucket| bucket.slots.iter())
    }

    /// Finds the slot that has the hash's tag and whose item `matches`.
    // Not left to chance: as a call it takes 2 % more instructions of a pipelined GET.
    #[inline]
    pub(super) fn find(&self, hash: u64, matches: impl Fn(*mut u8) -> bool) -> Option<Slot<'a>> {
        self.places().find_map(|place| {
            let slot = Slot { word: place.load(Relaxed), place: Some(place) };
            (slot.is_of(hash) && matches(slot.pointer())).then_some(slot)
        })
    }

    /// Puts a word into the place of a slot that was found.
    pub(super) fn set(&self, slot: Slot<'a>, new: Slot<'_>) {
        if let Some(place) = slot.place {
            place.store(new.word, Relaxed);
        }
    }

    /// Empties a slot that was found.
    pub(super) fn clear(&self, slot: Slot<'a>) {
        if let Some(place) = slot.place {
            place.store(0, Relaxed);
        }
    }

    /// The item that was used least lately.
    pub(super) fn coldest(&self) -> Option<Slot<'a>> {
        self.places()
            .map(|place| Slot { word: place.load(Relaxed), place: Some(place) })
            .filter(|slot| slot.word != 0)
            .min_by_key(Slot::clock)
    }

    /// Puts a word into a free slot. Returns false where all buckets are taken.
    pub(super) fn insert(&self, new: Slot<'_>) -> bool {
        let mut last = self.head;
        for bucket in self.chain() {
            if let Some(place) = bucket.slots.iter().find(|place| place.load(Relaxed) == 0) {
                place.store(new.word, Relaxed);
                return true;
            }
            last = bucket;
        }
        let overflow = self.index.overflows.fetch_add(1, Relaxed);
        if overflow >= self.index.buckets {
            self.index.overflows.fetch_sub(1, Relaxed);
            return false;
        }
        self.index.bucket(overflow).slots[0].store(new.word, Relaxed);
        last.control.fetch_or((overflow as u64) << OVERFLOW_SHIFT, Relaxed);
        true
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.head.control.fetch_and(!LOCKED, Release);
    }
}
