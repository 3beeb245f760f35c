//! Pools that all regions of a tier share, by the packing rules of two of the kernel's:
//!
//! ```text
//! zsmalloc  a block is 1 to 8 pages, cut into slots of one size     |slot|slot|slot|slo·t|slot|··|
//!           (size classes 16 bytes apart; as many pages as waste least of the rest)
//! zbud      a block is a page with two at most: from behind its     |··|first →  · · ·  ← last|
//!           first 64 bytes up, and from its end down, in 64-byte chunks
//! ```
//!
//! As there (`mm/zsmalloc.c`, `mm/zbud.c` of Linux 6.1 to 6.14), classes of which equally many go
//! into equally many pages are one. The fullest block with room is filled first; zbud takes the
//! block whose room fits best. Otherwise, a slot has no header, since what belongs to it is in its
//! region's [table](crate::pool). Blocks are contiguous. A page that does not fit beside zbud's
//! header has a block of its own.
//!
//! Invariants: slots of live pages do not overlap. A block without pages gives its frames back at
//! once, to be used again or, when many are idle, to the system. An extent without blocks goes back
//! to its medium. A slot is read without the lock here: its bytes change only when its page is
//! removed, which its region's owner alone does. No fork happens while a lock here is held.

use std::ptr::NonNull;
use std::sync::Arc;
use terrace_os::lock::{Lock, LockGuard};

use crate::file::{FileSlot, ReadBuffer};
use crate::medium::{EXTENT_BYTES, Medium, MediumError};
use crate::page::PAGE_BYTES;
use crate::spec::PoolKind;
use crate::stats::TierStats;
use crate::tier::Backing;

/// Frames of an extent, a page each.
const FRAMES: usize = EXTENT_BYTES / PAGE_BYTES;
/// Pages of a zsmalloc block at most (CONFIG_ZSMALLOC_CHAIN_SIZE).
const CHAIN_MAX: usize = 8;
/// Bytes between zsmalloc's sizes, and its smallest size.
const CLASS_STEP: usize = 16;
const CLASS_MIN: usize = 32;
/// Slots of a block at most: 256 of 48 bytes in three pages.
const SLOTS_MAX: usize = 256;
/// Lists of blocks of a class, by how full they are, in tenths.
const GROUPS: usize = 10;
/// zbud's unit; a page has 64, of which the first is the header.
const CHUNK: usize = 64;
const CHUNKS: usize = PAGE_BYTES / CHUNK;
/// Blocks of a list that are looked at for one that takes more.
const TRIES: usize = 8;
/// Frames without pages that are kept from the system: this many, and a share of those in use.
const IDLE_MIN: usize = 64;
const IDLE_ONE_IN: usize = 16;
/// Packing is worth improving if more than one byte in this many of slots is free …
const LOOSE_ONE_IN: usize = 8;
/// … and this many pages were removed since a region's pages were moved last.
const REMOVES_A_ROUND: u32 = 1024;

const NONE: u32 = u32::MAX;

/// A pool of one tier.
pub(crate) struct SlotPool {
    rule: Rule,
    backing: Backing,
    /// Held while a file is written, around the state's lock: a write reads what lies beside its
    /// slot. Restores take the state's lock alone, and so wait for no device.
    writing: Lock<()>,
    state: Lock<State>,
}

enum Rule {
    Zsmalloc(Box<Classes>),
    Zbud,
}

/// Size classes, merged, and which of them a length in steps of 16 bytes goes to.
struct Classes {
    all: Vec<Class>,
    of_length: [u8; PAGE_BYTES / CLASS_STEP + 1],
}

#[derive(Clone, Copy)]
struct Class {
    size: u16,
    pages: u8,
    slots: u16,
}

impl Classes {
    fn new() -> Classes {
        let mut all: Vec<Class> = Vec::new();
        let mut of_length = [0; PAGE_BYTES / CLASS_STEP + 1];
        // From the largest down, so that a class is the largest of those that are one with it.
        for size in (CLASS_MIN..=PAGE_BYTES).rev().step_by(CLASS_STEP) {
            let least_waste = (1..=CHAIN_MAX).min_by_key(|pages| pages * PAGE_BYTES % size);
            let pages = least_waste.unwrap_or(1);
            let slots = pages * PAGE_BYTES / size;
            let (pages, slots) = (pages as u8, slots as u16);
            if all.last().is_none_or(|last| (last.pages, last.slots) != (pages, slots)) {
                all.push(Class { size: size as u16, pages, slots });
            }
            of_length[size / CLASS_STEP] = all.len() as u8 - 1;
        }
        let smallest = of_length[CLASS_MIN / CLASS_STEP];
        of_length[..CLASS_MIN / CLASS_STEP].fill(smallest);
        Classes { all, of_length }
    }

    fn index(&self, len: usize) -> usize {
        self.of_length[len.div_ceil(CLASS_STEP)].into()
    }
}

/// State behind the pool's lock.
#[derive(Default)]
struct State {
    blocks: Vec<Block>,
    /// First of the unused places in `blocks`, linked by `next`.
    unused: u32,
    /// First blocks of the lists: of each class and group, or of each number of free chunks.
    heads: Vec<u32>,
    extents: Vec<Option<Extent>>,
    /// Frames of blocks, and others that have memory.
    used_frames: usize,
    idle_frames: usize,
    /// Room of slots with pages, in bytes.
    live_bytes: usize,
    removes: u32,
}

struct Extent {
    memory: Arc<SlotExtent>,
    /// Bits of the frames, one each: whether it is of a block; whether it has memory.
    used: u128,
    touched: u128,
}

/// Pages of memory, with slots.
struct Block {
    extent: u32,
    frame: u8,
    pages: u8,
    /// Size class; for zbud 0.
    class: u8,
    /// Slots with pages. For zbud both bits of those that are there.
    live: u16,
    taken: [u64; SLOTS_MAX / 64],
    /// Chunks of zbud's first page and of its last.
    chunks: [u8; 2],
    /// The list that the block is in, `NONE` for full ones, and its neighbours there.
    list: u32,
    previous: u32,
    next: u32,
}

/// Memory of blocks.
struct SlotExtent(Memory);

enum Memory {
    Mapped {
        /// Keeps the memory at `base` mapped.
        medium: Arc<dyn Medium>,
        base: NonNull<u8>,
    },
    File(Box<FileSlot>),
}

// SAFETY: memory of an extent is the pool's alone. A slot of it is read by the caller that stored
// there, and written before that, once (module documentation). Media are Send and Sync.
unsafe impl Send for SlotExtent {}
// SAFETY: as for Send.
unsafe impl Sync for SlotExtent {}

impl Drop for SlotExtent {
    fn drop(&mut self) {
        if let Memory::Mapped { medium, base } = &self.0 {
            medium.release(*base);
        }
    }
}

impl SlotExtent {
    fn takes_more(&self) -> bool {
        match &self.0 {
            Memory::Mapped { .. } => true,
            Memory::File(file) => file.takes_more() && !file.is_frozen(),
        }
    }

    /// Writes to a slot that has no page. `block`: first byte and length of the frames around it;
    /// `is_new`: nothing in them is needed.
    fn write(
        &self,
        at: usize,
        bytes: &[u8],
        block: (usize, usize),
        is_new: bool,
    ) -> Result<(), MediumError> {
        debug_assert!(block.0 <= at && at + bytes.len() <= block.0 + block.1);
        match &self.0 {
            // SAFETY: the slot lies in its block, and that in the extent, which `self` keeps in
            // being. It was taken for this page, so no other thread reads or writes it.
            Memory::Mapped { base, .. } => unsafe {
                base.add(at).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                Ok(())
            },
            Memory::File(file) => file.write(at, bytes, block, is_new),
        }
    }
}

/// Where a page is: given out by [`SlotPool::insert`], given back to [`SlotPool::remove`].
pub(crate) struct Slot {
    extent: Arc<SlotExtent>,
    /// First byte, in the extent.
    at: u32,
    block: u32,
}

impl Slot {
    /// Reads the first `len` bytes of the slot, in place or into `buffer`.
    pub fn read<'b>(
        &'b self,
        len: usize,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8], MediumError> {
        match &self.extent.0 {
            Memory::Mapped { base, .. } => {
                // SAFETY: the slot lies in the extent, which `self` keeps in being. It has at least
                // the length that was stored (the caller's table has it). No thread writes it while
                // its page is there.
                let bytes =
                    unsafe { std::slice::from_raw_parts(base.add(self.at as usize).as_ptr(), len) };
                Ok(bytes)
            }
            Memory::File(file) => file.read(self.at as usize, len, buffer),
        }
    }
}

/// A slot that was taken for a page and is to be written, once.
struct Reserved {
    slot: Slot,
    /// First byte and length of the frames around the slot.
    around: (usize, usize),
    /// Whether nothing else in those frames is needed.
    is_new: bool,
}

impl Reserved {
    fn write(&self, bytes: &[u8]) -> Result<(), MediumError> {
        self.slot.extent.write(self.slot.at as usize, bytes, self.around, self.is_new)
    }
}

/// Why there is no slot.
pub(crate) enum SlotError {
    Medium(MediumError),
    NoMemory,
}

/// Frames that got memory and frames that gave it back.
#[derive(Default)]
struct Change {
    grown: usize,
    shrunk: usize,
}

impl Change {
    fn tell(&self, stats: &TierStats) {
        stats.physical_grew((self.grown * PAGE_BYTES) as u64);
        stats.physical_shrank((self.shrunk * PAGE_BYTES) as u64);
    }
}

impl SlotPool {
    /// An empty pool; `None` for a kind of pool, or a backing, that has none of these.
    pub fn new(kind: PoolKind, backing: &Backing) -> Option<SlotPool> {
        if !matches!(backing, Backing::Memory(_) | Backing::File(_)) {
            return None;
        }
        let (rule, lists) = match kind {
            PoolKind::Extent => return None,
            PoolKind::Zsmalloc => {
                let classes = Classes::new();
                let lists = classes.all.len() * GROUPS;
                (Rule::Zsmalloc(Box::new(classes)), lists)
            }
            PoolKind::Zbud => (Rule::Zbud, CHUNKS),
        };
        let state = State { unused: NONE, heads: vec![NONE; lists], ..State::default() };
        let backing = backing.clone();
        Some(SlotPool { rule, backing, writing: Lock::new(()), state: Lock::new(state) })
    }

    /// Locks the state. Every path leaves it whole before anything that could panic.
    fn lock(&self) -> LockGuard<'_, State> {
        self.state.lock()
    }

    /// Copies `bytes`, 1 to 4096, into a slot. Nothing has changed after an error.
    pub fn insert(&self, bytes: &[u8], stats: &TierStats) -> Result<Slot, SlotError> {
        let _turn = matches!(self.backing, Backing::File(_)).then(|| self.writing.lock());
        let mut change = Change::default();
        let reserved = self.reserve(&mut self.lock(), bytes.len(), None, &mut change);
        let result = reserved.and_then(|reserved| match reserved.write(bytes) {
            Ok(()) => Ok(reserved.slot),
            Err(error) => {
                self.free(&mut self.lock(), &reserved.slot, bytes.len(), &mut change);
                Err(SlotError::Medium(error))
            }
        });
        change.tell(stats);
        result
    }

    /// Takes a slot for `len` bytes. `fuller_than`: only in a block of the same class that is
    /// fuller than this.
    fn reserve(
        &self,
        state: &mut State,
        len: usize,
        fuller_than: Option<u32>,
        change: &mut Change,
    ) -> Result<Reserved, SlotError> {
        let found = self.find(state, len, fuller_than);
        let is_new = found.is_none();
        let block = match found {
            Some(block) => block,
            None if fuller_than.is_some() => return Err(SlotError::NoMemory),
            None => self.add_block(state, len, change)?,
        };
        let offset = self.take(state, block, len);
        let Block { extent, frame, pages, .. } = state.blocks[block as usize];
        let Some(extent) = state.extents[extent as usize].as_ref() else {
            return Err(SlotError::NoMemory);
        };
        let start = usize::from(frame) * PAGE_BYTES;
        let around = (start, usize::from(pages) * PAGE_BYTES);
        let slot = Slot { extent: Arc::clone(&extent.memory), at: (start + offset) as u32, block };
        Ok(Reserved { slot, around, is_new })
    }

    /// Gives a slot back.
    pub fn remove(&self, slot: &Slot, len: usize, stats: &TierStats) {
        let mut change = Change::default();
        self.free(&mut self.lock(), slot, len, &mut change);
        change.tell(stats);
    }

    /// Whether it is worth while to move a region's pages into fuller blocks, which was done last
    /// in round `last`. The second value is the number of the round.
    pub fn is_loose(&self, last: u32) -> (bool, u32) {
        let state = self.lock();
        let round = state.removes / REMOVES_A_ROUND;
        let all = state.used_frames * PAGE_BYTES;
        let loose = all.saturating_sub(state.live_bytes) * LOOSE_ONE_IN > all;
        let may = matches!((&self.rule, &self.backing), (Rule::Zsmalloc(_), Backing::Memory(_)));
        (may && loose && state.used_frames > IDLE_MIN && round != last, round)
    }

    /// Moves a page into a fuller block of its class, if there is one with room.
    pub fn move_to_fuller(&self, slot: &mut Slot, len: usize, stats: &TierStats) {
        let mut change = Change::default();
        let mut state = self.lock();
        if let Memory::Mapped { base, .. } = &slot.extent.0 {
            // SAFETY: as in `Slot::read`; what is written below lies in another slot.
            let bytes =
                unsafe { std::slice::from_raw_parts(base.add(slot.at as usize).as_ptr(), len) };
            if let Ok(new) = self.reserve(&mut state, len, Some(slot.block), &mut change) {
                // Memory takes whatever is written.
                let old = match new.write(bytes) {
                    Ok(()) => std::mem::replace(slot, new.slot),
                    Err(_) => new.slot,
                };
                self.free(&mut state, &old, len, &mut change);
            }
        }
        change.tell(stats);
    }

    /// A block with room for `len` bytes.
    fn find(&self, state: &State, len: usize, fuller_than: Option<u32>) -> Option<u32> {
        match &self.rule {
            Rule::Zsmalloc(classes) => {
                let class = classes.index(len);
                let least = fuller_than.map_or(0, |block| {
                    // A full block is in no list; those with as much room are no better.
                    let list = state.blocks[block as usize].list;
                    if list == NONE { GROUPS } else { list as usize % GROUPS + 1 }
                });
                let lists = (class * GROUPS + least..(class + 1) * GROUPS).rev();
                lists.into_iter().find_map(|list| state.first_that_takes(list))
            }
            Rule::Zbud => {
                let chunks = len.div_ceil(CHUNK);
                (chunks..CHUNKS).find_map(|free| state.first_that_takes(free))
            }
        }
    }

    /// Takes room for `len` bytes in a block that has it; says where, from the block's first byte.
    fn take(&self, state: &mut State, block: u32, len: usize) -> usize {
        let its = &mut state.blocks[block as usize];
        let (offset, room) = match &self.rule {
            Rule::Zsmalloc(classes) => {
                let class = classes.all[usize::from(its.class)];
                let free = |word: &u64| *word != u64::MAX;
                let word = its.taken.iter().position(free).unwrap_or(0);
                let slot = word * 64 + its.taken[word].trailing_ones() as usize;
                debug_assert!(slot < class.slots.into());
                its.taken[word] |= 1 << (slot % 64);
                (slot * usize::from(class.size), class.size.into())
            }
            Rule::Zbud => {
                let chunks = len.div_ceil(CHUNK);
                // Whether it is all of the page, first, or last.
                let (side, offset) = match its.chunks {
                    [0, _] if chunks >= CHUNKS => (0, 0),
                    [0, _] => (0, CHUNK),
                    _ => (1, PAGE_BYTES - chunks * CHUNK),
                };
                its.chunks[side] = chunks as u8;
                (offset, chunks * CHUNK)
            }
        };
        its.live += 1;
        state.live_bytes += room;
        self.relist(state, block);
        offset
    }

    fn free(&self, state: &mut State, slot: &Slot, len: usize, change: &mut Change) {
        let its = &mut state.blocks[slot.block as usize];
        let offset = slot.at as usize - usize::from(its.frame) * PAGE_BYTES;
        let room = match &self.rule {
            Rule::Zsmalloc(classes) => {
                let size = usize::from(classes.all[usize::from(its.class)].size);
                let slot = offset / size;
                its.taken[slot / 64] &= !(1 << (slot % 64));
                size
            }
            Rule::Zbud => {
                let side = usize::from(offset > CHUNK || its.chunks[0] == 0);
                its.chunks[side] = 0;
                len.div_ceil(CHUNK) * CHUNK
            }
        };
        its.live -= 1;
        state.live_bytes -= room;
        state.removes = state.removes.wrapping_add(1);
        if state.blocks[slot.block as usize].live == 0 {
            self.remove_block(state, slot.block, change);
        } else {
            self.relist(state, slot.block);
        }
    }

    /// Puts a block into the list where it belongs.
    fn relist(&self, state: &mut State, block: u32) {
        let its = &state.blocks[block as usize];
        let list = match &self.rule {
            Rule::Zsmalloc(classes) => {
                let class = classes.all[usize::from(its.class)];
                if its.live == class.slots {
                    NONE
                } else {
                    let group = usize::from(its.live) * GROUPS / usize::from(class.slots);
                    (usize::from(its.class) * GROUPS + group) as u32
                }
            }
            // Two, or one that is all of it: full.
            Rule::Zbud => match its.chunks {
                [0, used] | [used, 0] if usize::from(used) < CHUNKS - 1 => {
                    (CHUNKS - 1) as u32 - u32::from(used)
                }
                _ => NONE,
            },
        };
        if its.list != list {
            state.unlink(block);
            state.link(block, list);
        }
    }

    /// A new block for a page of `len` bytes, in no list and without pages.
    fn add_block(
        &self,
        state: &mut State,
        len: usize,
        change: &mut Change,
    ) -> Result<u32, SlotError> {
        let (class, pages) = match &self.rule {
            Rule::Zsmalloc(classes) => {
                let class = classes.index(len);
                (class as u8, usize::from(classes.all[class].pages))
            }
            Rule::Zbud => (0, 1),
        };
        let slots = match &self.rule {
            Rule::Zsmalloc(classes) => usize::from(classes.all[usize::from(class)].slots),
            Rule::Zbud => 2,
        };
        if state.unused == NONE {
            state.blocks.try_reserve(1).map_err(|_| SlotError::NoMemory)?;
        }
        let (extent, frame) = self.take_frames(state, pages, change)?;
        // Slots that the block does not have are taken for ever.
        let mut taken = [u64::MAX; SLOTS_MAX / 64];
        for (number, word) in taken.iter_mut().enumerate() {
            let there = slots.saturating_sub(number * 64).min(64);
            *word = u64::MAX.checked_shl(there as u32).unwrap_or(0);
        }
        let new = Block {
            extent,
            frame,
            pages: pages as u8,
            class,
            live: 0,
            taken,
            chunks: [0; 2],
            list: NONE,
            previous: NONE,
            next: NONE,
        };
        let block = state.unused;
        if block == NONE {
            state.blocks.push(new);
            return Ok(state.blocks.len() as u32 - 1);
        }
        state.unused = state.blocks[block as usize].next;
        state.blocks[block as usize] = new;
        Ok(block)
    }

    fn remove_block(&self, state: &mut State, block: u32, change: &mut Change) {
        state.unlink(block);
        let Block { extent, frame, pages, .. } = state.blocks[block as usize];
        state.blocks[block as usize].next = state.unused;
        state.unused = block;
        let Some(its) = state.extents[extent as usize].as_mut() else { return };
        its.used &= !frames(frame, pages.into());
        state.used_frames -= usize::from(pages);
        state.idle_frames += usize::from(pages);
        if its.used == 0 {
            let idle = its.touched.count_ones() as usize;
            state.idle_frames -= idle;
            change.shrunk += idle;
            state.extents[extent as usize] = None;
        } else if state.idle_frames > IDLE_MIN + state.used_frames / IDLE_ONE_IN {
            state.give_idle_back(change);
        }
    }

    /// Takes `pages` frames in a row, of the first extent that has them.
    fn take_frames(
        &self,
        state: &mut State,
        pages: usize,
        change: &mut Change,
    ) -> Result<(u32, u8), SlotError> {
        let fits =
            |extent: &Extent| run_of(!extent.used, pages).filter(|_| extent.memory.takes_more());
        let mut extents = state.extents.iter().enumerate();
        let found = extents.find_map(|(index, extent)| Some((index, fits(extent.as_ref()?)?)));
        let (index, frame) = match found {
            Some(found) => found,
            None => (self.add_extent(state)?, 0),
        };
        let Some(extent) = state.extents[index].as_mut() else { return Err(SlotError::NoMemory) };
        let bits = frames(frame, pages);
        let fresh = (bits & !extent.touched).count_ones() as usize;
        extent.used |= bits;
        extent.touched |= bits;
        state.used_frames += pages;
        state.idle_frames -= pages - fresh;
        change.grown += fresh;
        Ok((index as u32, frame))
    }

    fn add_extent(&self, state: &mut State) -> Result<usize, SlotError> {
        let free = state.extents.iter().position(Option::is_none);
        if free.is_none() {
            state.extents.try_reserve(1).map_err(|_| SlotError::NoMemory)?;
        }
        let memory = match &self.backing {
            Backing::Memory(medium) => Memory::Mapped {
                base: medium.allocate().map_err(SlotError::Medium)?,
                medium: Arc::clone(medium),
            },
            Backing::File(files) => {
                let slot = files.allocate_slot().map_err(SlotError::Medium)?;
                Memory::File(Box::new(slot))
            }
            Backing::Node(_) | Backing::Swap(_) => return Err(SlotError::NoMemory),
        };
        let new = Extent { memory: Arc::new(SlotExtent(memory)), used: 0, touched: 0 };
        let index = free.unwrap_or(state.extents.len());
        match free {
            Some(free) => state.extents[free] = Some(new),
            None => state.extents.push(Some(new)),
        }
        Ok(index)
    }
}

impl State {
    fn first_that_takes(&self, list: usize) -> Option<u32> {
        let mut block = self.heads[list];
        for _ in 0..TRIES {
            let its = self.blocks.get(block as usize)?;
            let extent = self.extents[its.extent as usize].as_ref()?;
            if extent.memory.takes_more() {
                return Some(block);
            }
            block = its.next;
        }
        None
    }

    fn link(&mut self, block: u32, list: u32) {
        let its = &mut self.blocks[block as usize];
        its.list = list;
        if list == NONE {
            return;
        }
        let next = std::mem::replace(&mut self.heads[list as usize], block);
        (its.previous, its.next) = (NONE, next);
        if next != NONE {
            self.blocks[next as usize].previous = block;
        }
    }

    fn unlink(&mut self, block: u32) {
        let Block { list, previous, next, .. } = self.blocks[block as usize];
        if list == NONE {
            return;
        }
        match previous {
            NONE => self.heads[list as usize] = next,
            previous => self.blocks[previous as usize].next = next,
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
        self.blocks[block as usize].list = NONE;
    }

    /// Memory of frames without pages goes to the system. (Of files it stays, to be used again.)
    fn give_idle_back(&mut self, change: &mut Change) {
        for extent in self.extents.iter_mut().flatten() {
            let Memory::Mapped { medium, base } = &extent.memory.0 else { continue };
            let mut idle = extent.touched & !extent.used;
            extent.touched = extent.used;
            change.shrunk += idle.count_ones() as usize;
            self.idle_frames -= idle.count_ones() as usize;
            while idle != 0 {
                let from = idle.trailing_zeros() as usize;
                let len = (idle >> from).trailing_ones() as usize;
                medium.release_part(*base, from * PAGE_BYTES, (from + len) * PAGE_BYTES);
                idle &= !frames(from as u8, len);
            }
        }
    }
}

/// The bits of `count` frames from `first` on.
fn frames(first: u8, count: usize) -> u128 {
    (u128::MAX >> (FRAMES - count)) << first
}

/// The first of `count` set bits in a row.
fn run_of(bits: u128, count: usize) -> Option<u8> {
    let runs = (1..count).fold(bits, |runs, shift| runs & bits >> shift);
    (runs != 0).then(|| runs.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_kernels() {
        let classes = Classes::new();
        // zs_create_pool of Linux 6.6 with chains of 8 and 4 KiB pages merges 255 classes to 119
        // (`/sys/kernel/debug/zsmalloc`). What is above 3632 bytes has a page of its own.
        assert_eq!(classes.all.len(), 119);
        for len in 1..=PAGE_BYTES {
            let class = classes.all[classes.index(len)];
            assert!(usize::from(class.size) >= len, "{len}");
            assert!(usize::from(class.slots) <= SLOTS_MAX);
            let room = usize::from(class.pages) * PAGE_BYTES;
            assert!(usize::from(class.slots) * usize::from(class.size) <= room);
        }
        let class = classes.all[classes.index(3633)];
        assert_eq!((class.size, class.pages, class.slots), (4096, 1, 1));
        assert_eq!(classes.all[classes.index(3632)].size, 3632);
    }

    #[test]
    fn runs_are_found() {
        assert_eq!(run_of(u128::MAX, 8), Some(0));
        assert_eq!(run_of(0b1101_1100, 2), Some(2));
        assert_eq!(run_of(0b1101_1100, 3), Some(2));
        assert_eq!(run_of(0b1101_1100, 4), None);
        assert_eq!(run_of(1 << 127, 2), None);
        assert_eq!(frames(126, 2), 3 << 126);
    }

    #[test]
    fn a_page_is_restored_while_a_file_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let files = crate::file::FileMedium::new(directory.path().to_str().unwrap());
        let backing = Backing::File(Arc::new(files));
        let pool = SlotPool::new(PoolKind::Zsmalloc, &backing).unwrap();
        let stats = TierStats::default();
        let Ok(slot) = pool.insert(&[7; 1000], &stats) else { panic!("there is room") };
        let _another_is_written = pool.writing.lock();
        let mut buffer = ReadBuffer::default();
        assert_eq!(slot.read(1000, &mut buffer).unwrap(), [7; 1000]);
        pool.remove(&slot, 1000, &stats);
    }
}
