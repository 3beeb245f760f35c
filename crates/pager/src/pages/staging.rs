//! The staging area, where pages wait between leaving the page table and being compressed.
//!
//! It is private memory registered with a userfaultfd of its own, which no thread reads and which
//! reports no events. On the program's userfaultfd, our own discards would raise an event and block
//! the thread that reads it.
//!
//! A slot that holds no moved page must never be read: no thread would serve the fault.

use terrace_os::{self as sys, Errno, Fd, PAGE};

/// Slots in all: 4 MiB.
pub const STAGING_PAGES: usize = 1024;
/// Slots of one batch. From 16 on, the ioctl's fixed cost no longer counts; batches longer than 64
/// would hold the region longer.
pub const BATCH: usize = 64;
/// Pages of one probe.
pub const PROBE: usize = 16;

/// The area: first [`BATCH`] slots for the batch under way, then chunks of [`PROBE`] for probes.
pub struct Staging {
    base: usize,
    pages: usize,
}

impl Staging {
    /// Reserves the area.
    pub fn new(pages: usize) -> Result<Staging, Errno> {
        Ok(Staging { base: sys::reserve(pages * PAGE)?, pages })
    }

    /// Empties the area and registers it with `uffd`.
    pub fn register(&self, uffd: Fd) -> Result<(), Errno> {
        self.empty(0, self.pages);
        sys::uffd_register(uffd, self.base, self.pages * PAGE, false)
    }

    /// Unregisters the area, which is empty: the kernel serves its faults again.
    pub fn unregister(&self, uffd: Fd) {
        let _ = sys::uffd_unregister(uffd, self.base, self.pages * PAGE);
    }

    /// The address of a slot. Panics if the area has no such slot.
    pub fn address(&self, slot: usize) -> usize {
        assert!(slot < self.pages, "a staging slot is always one of ours");
        self.base + slot * PAGE
    }

    /// How many probes can be out at a time.
    pub fn probe_chunks(&self) -> usize {
        (self.pages - BATCH) / PROBE
    }

    /// The first slot of a probe chunk.
    pub fn probe_slot(&self, chunk: usize) -> usize {
        BATCH + chunk * PROBE
    }

    /// Empties `count` slots from `slot` on: their contents are elsewhere now, or no longer wanted.
    pub fn empty(&self, slot: usize, count: usize) {
        debug_assert!(slot + count <= self.pages);
        // SAFETY: the area is ours, and the callers have made sure that no thread reads these slots
        // any more.
        unsafe { sys::empty(self.base + slot * PAGE, count * PAGE) };
    }

    /// The area as an address range.
    pub fn range(&self) -> (usize, usize) {
        (self.base, self.base + self.pages * PAGE)
    }
}
