//! Finds an address's region record and page words, without a lock.
//!
//! A directory of two levels holds one number for each 2 MiB of the 47-bit address space. Its
//! leaves cover 1 TiB each and are made when first used. Two arrays in ranges of their own hold the
//! region records, and 512 page words a region. They are made accessible as they grow. Nothing is
//! accessible before it is used, so that neither `mlockall` nor strict overcommit makes it cost
//! more than it does. A region's number is given at its first use and stays bound to that address
//! for ever. A handler with a stale fault may hold it at any time.
//!
//! Cost: 4,096 bytes of words and 128 of record for 2 MiB with evicted pages (0.20 %). A region
//! that was only looked at costs 128 bytes (0.006 %).
//!
//! # Which thread may change what
//!
//! The mover works on a region while it holds the lock in its record ([`Table::lock`]). A thread of
//! the program that changes a mapping must keep the mover out of all its regions. Those without a
//! record count too, because the mover may make one at any time. To make them all would fill the
//! table with reservations that no thread touches. So where records are missing, such a thread
//! announces its range ([`Table::change`]):
//!
//! - Announced ranges never overlap, by whole regions: the second thread waits.
//! - The announcing thread then takes the locks of the existing records, after a wait for the
//!   threads that hold them.
//! - Every other thread takes a region's lock and checks afterwards whether the region lies in an
//!   announced range. If so, it releases all its locks until the range is withdrawn. Records that
//!   are made later are of no use until then.
//!
//! So two threads never work on one region. If one of them announced its range, the other one has
//! looked before that, or it would have released its lock. Its record existed then, and the
//! announcing thread waits for its lock. Announcing and locking are each followed by a full fence,
//! so that at least one of the two sees the other.

use crate::pages::lock::{Lock, LockGuard};
use crate::pages::word::PageWord;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, fence};
pub use terrace_os::REGION;
use terrace_os::space::Span;
use terrace_os::{self as sys, PAGE};
use terrace_tiers::RegionStore;

/// Pages of a region.
pub const REGION_PAGES: usize = REGION / PAGE;
const REGION_SHIFT: u32 = 21;
const ADDRESS_BITS: u32 = 47;
/// Address bits of a directory leaf: its 1 TiB takes 2 MiB of region numbers.
const LEAF_SHIFT: u32 = 40;
const LEAVES: usize = 1 << (ADDRESS_BITS - LEAF_SHIFT);
const LEAF_BYTES: usize = size_of::<AtomicU32>() << (LEAF_SHIFT - REGION_SHIFT);
/// Regions by which the arrays grow: 1 MiB of words.
const GROWTH: u32 = 256;
/// Regions for which both arrays are reserved from the start: 16 GiB of memory.
const RESERVED: usize = 8192;

/// The record of a region.
#[repr(C, align(128))]
pub struct Region {
    /// Held by the mover while it works on the region, and by threads of the program while they
    /// change its mapping.
    pub lock: Lock<()>,
    /// The compressed pages. Held for the time of a copy or a decompression.
    pub store: Lock<RegionStore>,
    /// Pages that the program is known to have wanted back since the mover last asked. It faulted
    /// on them, or they were restored ahead of a fault and used.
    pub restores: AtomicU32,
    /// Evicted pages that the program freed since the mover last asked.
    pub freed: AtomicU32,
    /// Pages that came back since the mover last asked, for the list of moves.
    pub refaults: AtomicU32,
    /// Pages in state Evicted.
    pub evicted: AtomicU32,
    /// Pages whose word says that they were paged out.
    pub swapped: AtomicU32,
    /// Address divided by [`REGION`].
    pub block: u32,
    /// Do not try to evict before this time (ms / 16): the kernel refused (pages shared with a
    /// child, pinned, locked).
    pub refused_until: AtomicU32,
    /// Doublings of the wait after a refusal.
    pub refusals: AtomicU32,
    /// 1 from when the region was made one huge page until it has been split.
    pub huge: AtomicU32,
    /// 1 if the program had pages of the region evicted (MADV_PAGEOUT) since it last had none out.
    pub pageout_requested: AtomicU32,
}

impl Region {
    /// Counts a page that was evicted. For the mover only.
    pub(crate) fn count_evicted(&self) {
        if self.evicted.fetch_add(1, Relaxed) == 0 {
            self.pageout_requested.store(0, Relaxed);
        }
    }

    /// Address of the region's first byte.
    #[inline]
    pub fn address(&self) -> usize {
        (self.block as usize) << REGION_SHIFT
    }
}

/// A region with its number and its page words.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The region's number; numbers are dense from 0.
    pub number: u32,
    /// The region's record.
    pub region: &'a Region,
    /// The words of the region's pages.
    pub words: &'a [PageWord; REGION_PAGES],
}

impl<'a> Entry<'a> {
    /// The number of the page at `address`, which must lie in the region. [`Table::page`] finds the
    /// page by it.
    pub fn page_number(&self, address: usize) -> u32 {
        self.number * REGION_PAGES as u32 + ((address - self.region.address()) / PAGE) as u32
    }

    /// Whether the region may be a huge page, whole or cut.
    pub fn is_huge(&self) -> bool {
        self.region.huge.load(Relaxed) != 0
    }

    /// The word of the page at `address`, which must lie in the region.
    #[inline]
    pub fn word(&self, address: usize) -> &'a PageWord {
        &self.words[(address - self.region.address()) / PAGE]
    }
}

/// Announced ranges, by whole regions. A thread of the program changes the mapping of each,
/// although some of their regions may have no record.
struct Changing {
    ranges: Lock<Vec<(usize, usize)>>,
    count: AtomicU32,
    /// Counts withdrawn ranges. Threads that wait for one sleep on it.
    withdrawn: AtomicU32,
    /// Threads that sleep on `withdrawn`: without any, no system call is made.
    waiting: AtomicU32,
}

impl Changing {
    /// Waits until the count of withdrawn ranges differs from `withdrawn`. Returns early at times.
    fn wait(&self, withdrawn: u32) {
        self.waiting.fetch_add(1, SeqCst);
        sys::futex_wait(&self.withdrawn, withdrawn, None);
        self.waiting.fetch_sub(1, SeqCst);
    }
}

/// An announced range (see the module), withdrawn when this is dropped.
pub struct Change<'a> {
    changing: &'a Changing,
    range: (usize, usize),
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut ranges = self.changing.ranges.lock();
        if let Some(index) = ranges.iter().position(|range| *range == self.range) {
            ranges.swap_remove(index);
        }
        drop(ranges);
        self.changing.count.fetch_sub(1, SeqCst);
        self.changing.withdrawn.fetch_add(1, SeqCst);
        if self.changing.waiting.load(SeqCst) > 0 {
            sys::futex_wake(&self.changing.withdrawn, u32::MAX >> 1);
        }
    }
}

/// The regions, by address and by number: the directory, the records and the page words.
pub struct Table {
    /// Addresses of leaves; 0 where there is none yet.
    directory: [AtomicUsize; LEAVES],
    records: Span,
    words: Span,
    /// The range of all leaves, each made accessible when it is first used.
    leaves: Span,
    capacity: u32,
    grown: Lock<u32>,
    changing: Changing,
    /// Whether a region was refused once: no memory for it, or the table is full.
    refused: AtomicBool,
}

impl Table {
    /// A table for at most `capacity` regions (rounded up to whole growths). Needs 4,224 bytes of
    /// address space a region, and 256 MiB for the directory.
    pub fn new(capacity: u32) -> Result<Table, sys::Errno> {
        let capacity = capacity.next_multiple_of(GROWTH);
        Ok(Table {
            directory: [const { AtomicUsize::new(0) }; LEAVES],
            records: Span::new(
                size_of::<Region>() * capacity as usize,
                size_of::<Region>() * RESERVED,
            )?,
            words: Span::new(
                size_of::<[PageWord; REGION_PAGES]>() * capacity as usize,
                size_of::<[PageWord; REGION_PAGES]>() * RESERVED,
            )?,
            leaves: Span::new(LEAF_BYTES * LEAVES, 0)?,
            capacity,
            grown: Lock::new(0),
            changing: Changing {
                ranges: Lock::new(Vec::new()),
                count: AtomicU32::new(0),
                withdrawn: AtomicU32::new(0),
                waiting: AtomicU32::new(0),
            },
            refused: AtomicBool::new(false),
        })
    }

    #[inline]
    fn slot(&self, address: usize) -> Option<&AtomicU32> {
        let leaf = self.directory.get(address >> LEAF_SHIFT)?.load(Acquire);
        if leaf == 0 {
            return None;
        }
        let index = (address & ((1 << LEAF_SHIFT) - 1)) >> REGION_SHIFT;
        // SAFETY: a leaf has a number for each region of its 1 TiB and is never unmapped; zeroed
        // memory is a valid AtomicU32.
        Some(unsafe { &*((leaf as *const AtomicU32).add(index)) })
    }

    /// Makes the next records and words accessible, from number `from` on. The caller holds
    /// `grown`.
    fn grow(&self, from: u32) -> Result<(), sys::Errno> {
        let part =
            |span: &Span, size: usize| (span.start + size * from as usize, size * GROWTH as usize);
        let (records, words) = (
            part(&self.records, size_of::<Region>()),
            part(&self.words, size_of::<[PageWord; REGION_PAGES]>()),
        );
        // SAFETY: inside our own ranges, whose lengths are multiples of the growth. Where the
        // second is refused, the first is not published, so no thread uses it.
        unsafe {
            self.records.open(records.0, records.1)?;
            self.words
                .open(words.0, words.1)
                .inspect_err(|_| self.records.shut(records.0, records.1))
        }
    }

    #[inline]
    fn entry(&self, number: u32) -> Entry<'_> {
        debug_assert!(number < self.capacity);
        // SAFETY: `number` came out of the directory or is below `grown`, so the record was written
        // before it was published (Release in `get_or_create`). Words are valid when zeroed. Both
        // arrays live as long as the table.
        unsafe {
            Entry {
                number,
                region: &*(self.records.start as *const Region).add(number as usize),
                words: &*(self.words.start as *const [PageWord; REGION_PAGES]).add(number as usize),
            }
        }
    }

    /// The region at `address`, if it was ever used.
    #[inline]
    pub fn get(&self, address: usize) -> Option<Entry<'_>> {
        match self.slot(address)?.load(Acquire) {
            0 => None,
            number => Some(self.entry(number - 1)),
        }
    }

    /// The region at `address`, made if need be. `None` beyond 2^47, without memory for it, or when
    /// the table is full: such memory stays in DRAM.
    pub fn get_or_create(&self, address: usize) -> Option<Entry<'_>> {
        if let Some(entry) = self.get(address) {
            return Some(entry);
        }
        let leaf = self.directory.get(address >> LEAF_SHIFT)?;
        let mut grown = self.grown.lock();
        if leaf.load(Acquire) == 0 {
            let start = self.leaves.start + (address >> LEAF_SHIFT) * LEAF_BYTES;
            // SAFETY: this leaf's part of the range, not opened yet.
            unsafe { self.leaves.open(start, LEAF_BYTES) }.ok()?;
            leaf.store(start, Release);
        }
        let slot = self.slot(address)?;
        if slot.load(Acquire) == 0 {
            if *grown == self.capacity || grown.is_multiple_of(GROWTH) && self.grow(*grown).is_err()
            {
                self.refused.store(true, Relaxed);
                return None;
            }
            let record = Region {
                lock: Lock::new(()),
                store: Lock::new(RegionStore::new()),
                restores: AtomicU32::new(0),
                freed: AtomicU32::new(0),
                refaults: AtomicU32::new(0),
                evicted: AtomicU32::new(0),
                swapped: AtomicU32::new(0),
                block: (address >> REGION_SHIFT) as u32,
                refused_until: AtomicU32::new(0),
                refusals: AtomicU32::new(0),
                huge: AtomicU32::new(0),
                pageout_requested: AtomicU32::new(0),
            };
            // SAFETY: record number `grown` is inside the reservation and not yet published, so no
            // thread reads it.
            unsafe { (self.records.start as *mut Region).add(*grown as usize).write(record) };
            *grown += 1;
            slot.store(*grown, Release);
        }
        Some(self.entry(slot.load(Acquire) - 1))
    }

    /// Regions used so far; numbers below it are valid.
    pub fn len(&self) -> u32 {
        *self.grown.lock()
    }

    /// Whether a region could not be made, without memory or in a full table: its pages stay in
    /// DRAM.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// Whether no region was used yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A region by its number, which must be below [`Table::len`].
    pub fn by_number(&self, number: u32) -> Entry<'_> {
        self.entry(number)
    }

    /// The region and address of the page with this number, which [`Entry::page_number`] gave.
    pub fn page(&self, number: u32) -> (Entry<'_>, usize) {
        let entry = self.entry(number / REGION_PAGES as u32);
        (entry, entry.region.address() + number as usize % REGION_PAGES * PAGE)
    }

    /// The regions that overlap `start..end` and were ever used, in address order.
    pub fn overlapping(&self, start: usize, end: usize) -> impl Iterator<Item = Entry<'_>> {
        // Leaf by leaf: most of a huge reservation has none.
        let leaves = start >> LEAF_SHIFT..end.div_ceil(1 << LEAF_SHIFT).min(LEAVES);
        let leaves = leaves.filter(|leaf| self.directory[*leaf].load(Acquire) != 0);
        let blocks = leaves.flat_map(move |leaf| {
            start.max(leaf << LEAF_SHIFT) >> REGION_SHIFT
                ..end.min((leaf + 1) << LEAF_SHIFT).div_ceil(REGION)
        });
        blocks.filter_map(|block| self.get(block << REGION_SHIFT))
    }

    /// Announces that the mapping of a range is changed (see the module). Waits while an announced
    /// range overlaps it. The caller has announced nothing else and holds no region's lock.
    pub fn change(&self, start: usize, end: usize) -> Change<'_> {
        let range = (start / REGION * REGION, end.div_ceil(REGION).saturating_mul(REGION));
        let changing = &self.changing;
        loop {
            let withdrawn = changing.withdrawn.load(SeqCst);
            let mut ranges = changing.ranges.lock();
            if !ranges.iter().any(|other| overlap(*other, range)) {
                ranges.push(range);
                changing.count.fetch_add(1, SeqCst);
                drop(ranges);
                fence(SeqCst);
                return Change { changing, range };
            }
            drop(ranges);
            changing.wait(withdrawn);
        }
    }

    /// Locks a region (see the module). The caller has announced nothing and holds no other
    /// region's lock.
    pub fn lock<'a>(&self, entry: &Entry<'a>) -> LockGuard<'a, ()> {
        loop {
            let withdrawn = self.changing.withdrawn.load(SeqCst);
            let guard = entry.region.lock.lock();
            if !self.is_announced(std::slice::from_ref(entry)) {
                return guard;
            }
            drop(guard);
            self.changing.wait(withdrawn);
        }
    }

    /// Locks regions, which are in address order. The caller has announced nothing and holds no
    /// region's lock. `None`, after a wait, if any of them lies in an announced range.
    pub fn try_lock_all<'a>(&self, entries: &[Entry<'a>]) -> Option<Vec<LockGuard<'a, ()>>> {
        let withdrawn = self.changing.withdrawn.load(SeqCst);
        let guards: Vec<_> = entries.iter().map(|entry| entry.region.lock.lock()).collect();
        if !self.is_announced(entries) {
            return Some(guards);
        }
        drop(guards);
        self.changing.wait(withdrawn);
        None
    }

    /// Whether any of these regions, whose locks the caller has, lies in an announced range.
    fn is_announced(&self, entries: &[Entry]) -> bool {
        fence(SeqCst);
        if self.changing.count.load(SeqCst) == 0 {
            return false;
        }
        let ranges = self.changing.ranges.lock();
        entries
            .iter()
            .map(|entry| entry.region.address())
            .any(|base| ranges.iter().any(|range| overlap(*range, (base, base + REGION))))
    }

    /// Address ranges of the table that may take memory: leaves, records and page words.
    pub fn footprint(&self) -> Vec<(usize, usize)> {
        let len = self.len().next_multiple_of(GROWTH) as usize;
        let leaves = self
            .directory
            .iter()
            .map(|leaf| leaf.load(Acquire))
            .filter(|leaf| *leaf != 0)
            .map(|leaf| (leaf, leaf + LEAF_BYTES));
        leaves
            .chain([
                (self.records.start, self.records.start + size_of::<Region>() * len),
                (self.words.start, self.words.start + size_of::<[PageWord; REGION_PAGES]>() * len),
            ])
            .collect()
    }

    /// Opens every lock, in a fork's child.
    ///
    /// # Safety
    /// The caller is the only thread, and the fork was made behind a closed gate, so that every
    /// value is consistent.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise, for each lock.
        unsafe {
            self.grown.reset_after_fork();
            // No worker was inside the gate at the fork, so nothing is announced.
            self.changing.ranges.reset_after_fork();
            for number in 0..self.len() {
                let region = self.by_number(number).region;
                region.lock.reset_after_fork();
                region.store.reset_after_fork();
            }
        }
    }
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// The pages of a region that lie in `start..end`, by their addresses.
pub(crate) fn pages_within(entry: &Entry, start: usize, end: usize) -> impl Iterator<Item = usize> {
    let base = entry.region.address();
    (start.max(base)..end.min(base + REGION)).step_by(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Threads that announce ranges and one that locks regions never meet. Some regions get their
    /// records meanwhile.
    #[test]
    fn nobody_works_on_a_region_of_an_announced_range() {
        const REGIONS: usize = 64;
        const ROUNDS: usize = 2000;
        let table = Table::new(REGIONS as u32).unwrap();
        let owners: [AtomicU64; REGIONS] = std::array::from_fn(|_| AtomicU64::new(0));
        let work = |region: usize, who: u64| {
            assert_eq!(owners[region].swap(who, SeqCst), 0, "two are at work in region {region}");
            std::hint::spin_loop();
            assert_eq!(owners[region].swap(0, SeqCst), who);
        };
        std::thread::scope(|scope| {
            for who in 1..=2 {
                let (table, owners) = (&table, &owners);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let from = (round * 7 + who as usize * 3) % (REGIONS - 8);
                        let (start, end) = ((1 + from) * REGION, (1 + from + 8) * REGION);
                        let _change = table.change(start, end);
                        let entries: Vec<_> = table.overlapping(start, end).collect();
                        let _locks: Vec<_> =
                            entries.iter().map(|entry| entry.region.lock.lock()).collect();
                        for (region, owner) in owners.iter().enumerate().skip(from).take(8) {
                            assert_eq!(
                                owner.swap(who, SeqCst),
                                0,
                                "two are at work in region {region}"
                            );
                        }
                        std::thread::yield_now();
                        for owner in &owners[from..from + 8] {
                            assert_eq!(owner.swap(0, SeqCst), who);
                        }
                    }
                });
            }
            // Like the mover, makes a record when it is first needed.
            for round in 0..ROUNDS * 4 {
                let region = round % (ROUNDS / 4) * REGIONS / (ROUNDS / 4);
                let entry = table.get_or_create((1 + region) * REGION).unwrap();
                let _lock = table.lock(&entry);
                work(region, 3);
            }
        });
        assert_eq!(table.changing.count.load(SeqCst), 0);
    }

    #[test]
    fn regions_are_numbered_by_first_use_and_found_again() {
        let table = Table::new(2).unwrap();
        assert!(table.get(5 * REGION).is_none());
        assert_eq!(table.get_or_create(5 * REGION + 7).unwrap().number, 0);
        assert_eq!(table.get_or_create(9 * REGION).unwrap().number, 1);
        assert_eq!(table.get_or_create(6 * REGION - 1).unwrap().number, 0);
        for n in 0..u64::from(GROWTH) - 2 {
            assert!(table.get_or_create((100 + n as usize) * REGION).is_some());
        }
        assert!(table.get_or_create(7 * REGION).is_none(), "full");
        assert!(table.get_or_create(1 << 47).is_none(), "beyond user space");
        assert_eq!(
            table.overlapping(5 * REGION, 9 * REGION).map(|e| e.number).collect::<Vec<_>>(),
            [0]
        );
        assert_eq!(size_of::<Region>(), 128);
    }
}
