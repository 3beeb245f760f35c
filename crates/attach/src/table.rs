//! The record of pages: a word for each page of an address space, by address.
//!
//! It is a sparse file in memory of 256 GiB, mapped as it is, so it needs no ranges and never has
//! to grow. Only parts that were written take memory, 8 bytes a page. Keeper and guard share it.

use crate::sys::{self, PAGE};
use anyhow::{Context, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// First address that is not looked at: a program gets such addresses only where it asks for them.
pub const ADDRESSES: u64 = 1 << 47;
const BYTES: u64 = ADDRESSES / PAGE * 8;

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The page is resident, or zero until it is touched.
    None,
    /// The page is in the store: offset in bytes and number of bytes.
    Out(u64, u32),
    /// The page was resident when the kernel told that it is to be discarded, which may not have
    /// happened yet: not moved before it has faulted.
    Gone,
    /// The page was in the store when the kernel told that it is to be discarded. It is zero once
    /// the mark in the page table is gone, which the discard takes away. Offset and number of
    /// bytes.
    Doomed(u64, u32),
}

/// A page's word: its state, and what the choice of victims notes.
///
/// - Bits 0 and 1: state.
/// - Bit 2: known to be registered.
/// - Bits 3 to 5: faults, the use count of CLOCK.
/// - Bit 6: the page table has a mark for it.
/// - Bits 8 and up, of a page in the store: its length (13 bits) and its offset in units of 64
///   bytes.
/// - Bits 8 and up, of another page: the time of its last restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Word(pub u64);

impl Word {
    const REGISTERED: u64 = 4;
    const USES: u64 = 7 << 3;
    const MARKED: u64 = 1 << 6;

    pub fn state(self) -> State {
        let (offset, len) = (self.0 >> 21 << 6, (self.0 >> 8 & 0x1fff) as u32);
        match self.0 & 3 {
            1 => State::Out(offset, len),
            2 => State::Gone,
            3 => State::Doomed(offset, len),
            _ => State::None,
        }
    }

    /// Where the store has the page, if it does.
    pub fn slot(self) -> Option<u64> {
        match self.state() {
            State::Out(offset, _) | State::Doomed(offset, _) => Some(offset),
            State::None | State::Gone => None,
        }
    }

    /// The word of a page of the store that is to be discarded.
    pub fn doomed(self) -> Self {
        Word(self.0 | 3)
    }

    pub fn marked(self) -> Self {
        Word(self.0 | Self::MARKED)
    }

    pub fn is_marked(self) -> bool {
        self.0 & Self::MARKED != 0
    }

    /// The word of a page that went to the store.
    pub fn out(self, offset: u64, len: u32) -> Self {
        Word(1 | self.0 & (Self::REGISTERED | Self::USES) | u64::from(len) << 8 | offset >> 6 << 21)
    }

    /// The word of a page that is back, at a time in milliseconds.
    pub fn back(self, now_ms: u64) -> Self {
        let uses = (self.uses() + 1).min(7);
        Word(self.0 & Self::REGISTERED | uses << 3 | now_ms << 8)
    }

    pub fn gone(self) -> Self {
        Word(2 | self.0 & Self::REGISTERED)
    }

    pub fn none(self) -> Self {
        Word(self.0 & Self::REGISTERED)
    }

    pub fn is_registered(self) -> bool {
        self.0 & Self::REGISTERED != 0
    }

    pub fn unregistered(self) -> Self {
        Word(self.0 & !Self::REGISTERED)
    }

    pub fn registered(self) -> Self {
        Word(self.0 | Self::REGISTERED)
    }

    pub fn uses(self) -> u64 {
        (self.0 & Self::USES) >> 3
    }

    pub fn with_uses(self, uses: u64) -> Self {
        Word(self.0 & !Self::USES | uses << 3)
    }

    /// When a page that is not in the store was restored, in milliseconds.
    pub fn back_ms(self) -> u64 {
        self.0 >> 8
    }
}

fn map(descriptor: i32) -> Result<*mut AtomicU64> {
    let words = sys::map_shared(descriptor, BYTES).context("cannot map the record of pages")?;
    Ok(words.cast())
}

/// The words of one address space.
pub struct Table {
    file: OwnedFd,
    words: *mut AtomicU64,
}

impl Table {
    pub fn new() -> Result<Self> {
        let file = sys::memory_file(c"terrace-pages", BYTES)
            .context("cannot make the record of pages (memfd_create)")?;
        let words = map(file.as_raw_fd())?;
        Ok(Table { file, words })
    }

    /// Maps the table of a descriptor, and owns that once it is mapped.
    ///
    /// # Errors
    /// If it cannot be mapped: the descriptor stays open then, without an owner.
    ///
    /// # Safety
    /// The descriptor is of a file that [`Table::new`] made, and nothing else closes it.
    pub unsafe fn take(descriptor: i32) -> Result<Self> {
        let words = map(descriptor)?;
        // SAFETY: open, as it was just mapped, and without another owner, as the caller says.
        Ok(Table { file: unsafe { OwnedFd::from_raw_fd(descriptor) }, words })
    }

    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Unmaps the table, and leaves its descriptor open for another process that has it too.
    pub fn leave(self) {
        let table = std::mem::ManuallyDrop::new(self);
        table.unmap();
    }

    fn unmap(&self) {
        // SAFETY: mapped in this size by `map`. Only `leave` and `drop` call this, once and last,
        // so there is no reference into it.
        unsafe { terrace_os::unmap(self.words as usize, BYTES as usize) };
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        let index = page / PAGE;
        assert!(index < BYTES / 8, "no address of a program: {page:#x}");
        // SAFETY: inside the mapping, which lives as long as the table; shared words are atomic.
        unsafe { &*self.words.add(index as usize) }
    }

    pub fn get(&self, page: u64) -> Word {
        if page >= ADDRESSES { Word(0) } else { Word(self.word(page).load(Acquire)) }
    }

    pub fn set(&self, page: u64, word: Word) {
        self.word(page).store(word.0, Release);
    }

    /// Pages of a range of which anything is known. Parts of the file that were never written are
    /// passed over, and stay so.
    pub fn known(&self, start: u64, end: u64) -> Known<'_> {
        Known { table: self, at: start & !(PAGE - 1), written: start, end: end.min(ADDRESSES) }
    }

    /// How many bytes of memory the table takes.
    pub fn bytes(&self) -> u64 {
        let about = terrace_os::file_status(self.file.as_raw_fd());
        about.map_or(0, |about| about.st_blocks as u64 * 512)
    }

    fn seek(&self, page: u64, whence: i32) -> Option<u64> {
        let found = terrace_os::seek(self.file.as_raw_fd(), page / PAGE * 8, whence);
        found.ok().map(|at| at / 8 * PAGE)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// An iterator over pages with their words: [`Table::known`].
pub struct Known<'a> {
    table: &'a Table,
    at: u64,
    /// Address up to which the file was written.
    written: u64,
    end: u64,
}

impl Iterator for Known<'_> {
    type Item = (u64, Word);

    fn next(&mut self) -> Option<(u64, Word)> {
        loop {
            if self.at >= self.end {
                return None;
            }
            if self.at >= self.written {
                self.at = self.table.seek(self.at, libc::SEEK_DATA)?.max(self.at);
                self.written = self.table.seek(self.at, libc::SEEK_HOLE)?;
                continue;
            }
            let page = self.at;
            self.at += PAGE;
            let word = self.table.get(page);
            if word.0 != 0 {
                return Some((page, word));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_what_is_noted() {
        let word = Word(0).registered().with_uses(3).out(0x1_2345_6780 & !63, 4100);
        assert_eq!(word.state(), State::Out(0x1_2345_6780 & !63, 4100));
        assert!(word.is_registered() && word.uses() == 3);
        let back = word.back(77);
        assert_eq!((back.state(), back.uses(), back.back_ms()), (State::None, 4, 77));
        assert!(back.is_registered() && back.gone().is_registered());
        assert_eq!(back.gone().state(), State::Gone);
        assert_eq!(back.gone().none().state(), State::None);
        let doomed = word.marked().doomed();
        assert_eq!(doomed.state(), State::Doomed(0x1_2345_6780 & !63, 4100));
        assert!(doomed.is_marked() && doomed.is_registered());
        assert_eq!((doomed.slot(), back.slot()), (Some(0x1_2345_6780 & !63), None));
        assert!(!doomed.back(1).is_marked());
    }

    #[test]
    fn known_pages_are_found_and_holes_stay_holes() {
        let table = Table::new().unwrap();
        let pages = [0x1000, 0x40_0000_0000, 0x7fff_ffff_e000];
        for page in pages {
            table.set(page, Word(0).registered());
        }
        let found: Vec<u64> = table.known(0, ADDRESSES).map(|(page, _)| page).collect();
        assert_eq!(found, pages);
        assert_eq!(table.known(0x2000, 0x40_0000_0000).count(), 0);
        assert_eq!(table.bytes(), 3 * PAGE);
    }
}
