//! Work that a fork leaves: notes on pages that were filled meanwhile, and files that a child
//! shares.

use crate::pages::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use terrace_os::{self as sys, Errno, Fd};
use terrace_tiers::DataFile;

/// Most pages filled during one fork. A fork takes milliseconds, and a handler restores at most
/// some 200 pages in one of them.
pub(super) const NOTES: usize = 1 << 16;

/// Value of `MoverControl::pause`: the mover runs.
pub(crate) const RUN: u32 = 0;

/// Value of `MoverControl::pause`: the mover is asked to pause.
pub(crate) const PAUSE: u32 = 1;

/// Value of `MoverControl::pause`: the mover has paused, and nothing is staged.
pub(crate) const PAUSED: u32 = 2;

/// State of the fork that is under way, if any.
pub(crate) struct ForkState {
    pub(super) notes: usize,
    pub(super) noted: AtomicUsize,
    /// Held from prepare to the end of the parent's or child's part, and while our threads are
    /// started.
    pub(crate) forking: Lock<()>,
    /// The descriptors of files that hold pages, in the *program's* table for the time of the
    /// fork.
    pub(super) files: Lock<Vec<(Arc<DataFile>, [Fd; 2])>>,
    /// Whether the keeper could prepare the files for a child.
    pub(super) shared: AtomicBool,
}

impl ForkState {
    pub fn new() -> Result<Self, Errno> {
        Ok(ForkState {
            notes: sys::reserve(NOTES * 8)?,
            noted: AtomicUsize::new(0),
            forking: Lock::new(()),
            files: Lock::new(Vec::new()),
            shared: AtomicBool::new(false),
        })
    }

    pub(super) fn slots(&self) -> &[AtomicU64] {
        // SAFETY: the reservation holds NOTES words, valid when zeroed, and lives for ever.
        unsafe { std::slice::from_raw_parts(self.notes as *const AtomicU64, NOTES) }
    }

    /// Notes a page that is about to be filled; false if there is no room, and the fault must wait.
    pub fn note(&self, address: usize) -> bool {
        let index = self.noted.fetch_add(1, AcqRel);
        match self.slots().get(index) {
            Some(slot) => {
                slot.store(address as u64, Release);
                true
            }
            None => {
                self.noted.fetch_sub(1, AcqRel);
                false
            }
        }
    }
}
