//! Where pages wait between leaving the page table and being compressed: private memory registered
//! with a userfaultfd of its own that nobody reads and that reports no events: an
//! event of our own discards on the program's userfaultfd would block the thread that reads it.
//!
//! A slot that holds no moved page must never be read: it would fault for ever.

use terrace_os::{self as sys, Errno, Fd, PAGE};

/// Slots in all: 4 MiB.
pub const STAGING_PAGES: usize = 1024;
/// Slots of one batch. 64: the ioctl's fixed cost no longer counts from 16 on; longer
/// batches hold the region longer.
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

    /// Registers the (empty) area.
    pub fn register(&self, uffd: Fd) -> Result<(), Errno> {
        self.empty(0, self.pages);
        sys::uffd_register(uffd, self.base, self.pages * PAGE, false)
    }

    /// Hands the (empty) area to the kernel.
    pub fn unregister(&self, uffd: Fd) {
        let _ = sys::uffd_unregister(uffd, self.base, self.pages * PAGE);
    }

    /// A slot's address.
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

    /// Empties slots: their contents are elsewhere now, or nobody's.
    pub fn empty(&self, slot: usize, count: usize) {
        debug_assert!(slot + count <= self.pages);
        // SAFETY: the area is ours, and the callers have made sure that nobody reads these slots
        // any more.
        unsafe { sys::empty(self.base + slot * PAGE, count * PAGE) };
    }

    /// The area as an address range.
    pub fn range(&self) -> (usize, usize) {
        (self.base, self.base + self.pages * PAGE)
    }
}
