//! Compressed pages: slots in slabs of 64 KiB, each slab of one size of slot.
//!
//! Slots lie in a file in memory that keeper and guard map. Only the keeper knows which are free:
//! the guard only reads what the record of pages names. A stored page begins with a checksum of the
//! page; what has more than 4,000 bytes is stored as it is.

use crate::sys;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use terrace_os::punch_hole;
use terrace_tiers::{Codec, CodecKind, Page, Scratch, codec::codec_for};

const SLAB: u64 = 64 << 10;
const UNIT: u64 = 64;
/// Number of slabs: 256 GiB, of which only what is used takes memory.
const SLABS: u64 = 4 << 20;
const BYTES: u64 = SLAB * SLABS;
/// Number of the first slab for rescued pages: 64 of 8 KiB.
const LAST: u64 = SLABS - 8;
const CHECKSUM: usize = 4;
/// Compressed bytes below which a page is worth its fault.
const WORTH: usize = 3 << 10;

/// A slab, and which of its slots are taken.
struct Slab {
    units: u64,
    used: u32,
    taken: [u64; 16],
}

/// The evicted pages.
pub struct Store {
    file: OwnedFd,
    memory: *mut u8,
    slabs: Vec<Slab>,
    /// Slabs without a slot in use.
    empty: Vec<u32>,
    /// Slabs with free slots, by units of their slots.
    partial: Vec<Vec<u32>>,
    /// How many more words than one name a slot, where any do: pages of forked children.
    shared: HashMap<u64, u32>,
    codec: Box<dyn Codec>,
    scratch: Scratch,
    only_read: bool,
}

impl Store {
    pub fn new(codec: CodecKind) -> Result<Self> {
        let file = sys::memory_file(c"terrace-store", BYTES)
            .context("cannot make the store (memfd_create)")?;
        let memory = sys::map_shared(file.as_raw_fd(), BYTES).context("cannot map the store")?;
        Ok(Store {
            file,
            memory,
            slabs: Vec::new(),
            empty: Vec::new(),
            partial: (0..=(CHECKSUM + 4096) as u64 / UNIT + 1).map(|_| Vec::new()).collect(),
            shared: HashMap::new(),
            codec: codec_for(codec),
            scratch: Scratch::new(),
            only_read: false,
        })
    }

    /// Frees nothing from now on: another process knew what is free.
    pub fn only_read(&mut self) {
        self.only_read = true;
    }

    /// Stores a page as it is, at a place of its own that no slab has: a place for each page of a
    /// batch.
    pub fn rescue(&mut self, index: usize, page: &Page) -> (u64, u32) {
        let offset = BYTES - (index as u64 + 1) * 2 * 4096;
        // SAFETY: the last slabs are never handed out, see `LAST`.
        unsafe {
            let at = self.memory.add(offset as usize);
            std::ptr::copy_nonoverlapping(
                crc32fast::hash(page).to_ne_bytes().as_ptr(),
                at,
                CHECKSUM,
            );
            std::ptr::copy_nonoverlapping(page.as_ptr(), at.add(CHECKSUM), page.len());
        }
        (offset, (CHECKSUM + page.len()) as u32)
    }

    /// Compresses a page and stores it. Returns where it is, its length, and whether that was worth
    /// while. `None` if the store is full.
    pub fn put(&mut self, page: &Page) -> Option<(u64, u32, bool)> {
        let checksum = crc32fast::hash(page).to_ne_bytes();
        let mut scratch = std::mem::take(&mut self.scratch);
        let compressed = self.codec.compress(page, &mut scratch, WORTH);
        let bytes: &[u8] = compressed.unwrap_or(page);
        let len = CHECKSUM + bytes.len();
        let found = self.slot(len as u64).map(|offset| {
            // SAFETY: the slot was free, so no word names it, and it has `len` bytes.
            unsafe {
                let at = self.memory.add(offset as usize);
                std::ptr::copy_nonoverlapping(checksum.as_ptr(), at, CHECKSUM);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(CHECKSUM), bytes.len());
            }
            (offset, len as u32, compressed.is_some())
        });
        self.scratch = scratch;
        found
    }

    /// Brings a stored page back.
    pub fn get(&mut self, offset: u64, len: u32, page: &mut Page) -> Result<()> {
        if offset + u64::from(len) > BYTES || (len as usize) <= CHECKSUM {
            bail!("the record of pages names no place of the store ({offset:#x}, {len} bytes)");
        }
        // SAFETY: inside the mapping, as just checked; the slot is in use, so no thread writes it.
        let stored =
            unsafe { std::slice::from_raw_parts(self.memory.add(offset as usize), len as usize) };
        let (checksum, bytes) = stored.split_at(CHECKSUM);
        match <&Page>::try_from(bytes) {
            Ok(plain) => page.copy_from_slice(plain),
            Err(_) => self.codec.decompress(bytes, page, &mut self.scratch)?,
        }
        if crc32fast::hash(page).to_ne_bytes() != checksum {
            bail!("a stored page is damaged (at {offset:#x})");
        }
        Ok(())
    }

    /// Counts a further word that names a slot.
    pub fn share(&mut self, offset: u64) {
        if !self.only_read {
            *self.shared.entry(offset).or_default() += 1;
        }
    }

    /// Counts a word less that names a slot; the last one frees it.
    pub fn release(&mut self, offset: u64) {
        if self.only_read {
            return;
        }
        if let Some(more) = self.shared.get_mut(&offset) {
            *more -= 1;
            if *more == 0 {
                self.shared.remove(&offset);
            }
            return;
        }
        let number = (offset / SLAB) as usize;
        let Some(slab) = self.slabs.get_mut(number) else { return };
        let slot = (offset % SLAB / (slab.units * UNIT)) as usize;
        let was_full = u64::from(slab.used) == SLAB / (slab.units * UNIT);
        slab.taken[slot / 64] &= !(1 << (slot % 64));
        slab.used -= 1;
        if slab.used == 0 {
            let units = slab.units as usize;
            self.partial[units].retain(|other| *other != number as u32);
            self.empty.push(number as u32);
            // SAFETY: no slot of the slab is in use any more, so nothing reads it before it is
            // written again.
            let _ = unsafe { punch_hole(self.file.as_raw_fd(), number as u64 * SLAB, SLAB) };
        } else if was_full {
            self.partial[slab.units as usize].push(number as u32);
        }
    }

    /// Bytes of memory that the store takes.
    pub fn bytes(&self) -> u64 {
        (self.slabs.len() - self.empty.len()) as u64 * SLAB
    }

    fn slot(&mut self, bytes: u64) -> Option<u64> {
        let units = bytes.div_ceil(UNIT);
        let slots = SLAB / (units * UNIT);
        let number = match self.partial[units as usize].last() {
            Some(number) => *number,
            None => {
                let fresh = Slab { units, used: 0, taken: [0; 16] };
                let number = match self.empty.pop() {
                    Some(number) => {
                        self.slabs[number as usize] = fresh;
                        number
                    }
                    None if (self.slabs.len() as u64) < LAST => {
                        self.slabs.push(fresh);
                        self.slabs.len() as u32 - 1
                    }
                    None => return None,
                };
                self.partial[units as usize].push(number);
                number
            }
        };
        let slab = &mut self.slabs[number as usize];
        let slot =
            (0..slots).find(|slot| slab.taken[*slot as usize / 64] >> (slot % 64) & 1 == 0)?;
        slab.taken[slot as usize / 64] |= 1 << (slot % 64);
        slab.used += 1;
        if u64::from(slab.used) == slots {
            self.partial[units as usize].pop();
        }
        Some(u64::from(number) * SLAB + slot * units * UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_memory_is_given_up() {
        let mut store = Store::new(CodecKind::Lz4).unwrap();
        let mut state = 1u64;
        let pages: Vec<Page> = (0..500)
            .map(|number| {
                let mut page = [0; 4096];
                // From all equal to incompressible.
                for byte in &mut page[..number * 8] {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (state >> 56) as u8;
                }
                page
            })
            .collect();
        let places: Vec<_> = pages.iter().map(|page| store.put(page).unwrap()).collect();
        let mut back = [0; 4096];
        for (page, place) in pages.iter().zip(&places) {
            store.get(place.0, place.1, &mut back).unwrap();
            assert_eq!(*page, back);
        }
        assert!(store.bytes() > 0);
        store.share(places[7].0);
        for place in &places {
            store.release(place.0);
        }
        store.get(places[7].0, places[7].1, &mut back).unwrap();
        assert_eq!((pages[7], store.bytes()), (back, SLAB));
        store.release(places[7].0);
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn a_damaged_page_is_not_given_back() {
        let mut store = Store::new(CodecKind::Lz4).unwrap();
        let place = store.put(&[7; 4096]).unwrap();
        // SAFETY: a byte of the slot that was just made.
        unsafe { *store.memory.add(place.0 as usize + CHECKSUM + 2) ^= 1 };
        assert!(store.get(place.0, place.1, &mut [0; 4096]).is_err());
    }
}
