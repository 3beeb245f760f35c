//! What the kernel answers, laid out as it does: messages of a userfaultfd, runs of pages.

use crate::types::PAGE;

/// A message of a userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u8,
    _reserved: [u8; 7],
    flags: u64,
    address: u64,
    third: u64,
}

impl Message {
    /// What the message tells.
    pub fn event(&self) -> Event {
        const FLAG_WRITE: u64 = 1;
        // Three words, whose names are those of a fault's.
        let (first, second, third) =
            (self.flags as usize, self.address as usize, self.third as usize);
        match self.event {
            0x12 => Event::Fault {
                address: second,
                write: self.flags & FLAG_WRITE != 0,
                thread: third as i32,
            },
            0x14 => Event::Moved { from: first, to: second, len: third },
            0x15 => Event::Removed { start: first, end: second },
            0x16 => Event::Unmapped { start: first, end: second },
            _ => Event::Other,
        }
    }
}

/// What a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Reason: addresses and lengths in bytes, as their names say.
pub enum Event {
    /// A thread waits for a page, to write to it or only to read. `thread` is its id in its own PID
    /// namespace, or 0.
    Fault { address: usize, write: bool, thread: i32 },
    /// A range is about to be discarded.
    Removed { start: usize, end: usize },
    /// A range has been unmapped.
    Unmapped { start: usize, end: usize },
    /// A range has been moved to another address.
    Moved { from: usize, to: usize, len: usize },
    /// A message of a kind that Terrace does not ask for.
    Other,
}

/// A run of pages of one kind, as PAGEMAP_SCAN reports it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Run {
    /// The run's first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    pub(crate) categories: u64,
}

impl Run {
    /// A run of one page, at `address`.
    pub fn of(address: usize, written: bool) -> Run {
        Run {
            start: address as u64,
            end: (address + PAGE) as u64,
            categories: if written { PAGE_IS_WRITTEN } else { 0 },
        }
    }

    /// Length of the run, bytes.
    pub fn bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// After [`scan_writes`]: the pages have been written since they were last write-protected, or
    /// never were.
    pub fn is_written(&self) -> bool {
        self.categories & PAGE_IS_WRITTEN != 0
    }

    /// Whether these pages are in the kernel's swap; of runs of [`scan_held`].
    pub fn is_swapped(&self) -> bool {
        self.categories & PAGE_IS_SWAPPED != 0
    }
}

pub(crate) const PAGE_IS_WRITTEN: u64 = 1 << 1;

pub(crate) const PAGE_IS_SWAPPED: u64 = 1 << 4;
