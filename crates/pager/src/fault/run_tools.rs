//! The buffers with which threads of the program restore pages, and their copies of userfaultfds.

use crate::fault::buffers::PageBuffer;
use crate::pages::lock::Lock;
use crate::pages::shards::SHARDS_MAX;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use terrace_os::{self as sys, Fd, PAGE};
use terrace_tiers::{Identity, ReadBuffer, Scratch, identity};

/// Threads that can restore at a time; others leave it to handlers.
pub(crate) const TOOLS_MAX: usize = 8;

/// Prefetch requests that the mover has not handled yet; more are dropped.
pub(crate) const PREFETCHES_MAX: usize = 16;

/// The buffers with which a thread restores pages.
pub(crate) struct RunTools {
    pub(crate) scratch: Scratch,
    pub(crate) stored: ReadBuffer,
    pub(crate) pages: Box<[PageBuffer]>,
}

/// Buffers, prefetch requests and descriptor copies.
pub(crate) struct RestoreTools {
    pub(crate) tools: [AtomicPtr<RunTools>; TOOLS_MAX],
    /// Sets of buffers allocated.
    pub(crate) made: AtomicU32,
    pub(crate) copies: Lock<[Option<(Fd, Identity)>; SHARDS_MAX]>,
    /// Descriptor copies closed by the program.
    pub(crate) lost: AtomicU32,
    /// No new copy is fetched before this time.
    pub(crate) fetch_at_ns: AtomicU64,
    /// Whether a warning was given that no copy can be fetched.
    pub(crate) warned: AtomicBool,
    /// Address of a MADV_WIPEONFORK word: 1 in this process, 0 in a child whose fork was not
    /// reported to us. The address is 0 where the kernel has no such memory.
    pub(crate) own: usize,
    pub(crate) prefetches: Lock<PrefetchQueue>,
}

#[derive(Default)]
pub(crate) struct PrefetchQueue {
    pub(crate) ranges: [(usize, usize); PREFETCHES_MAX],
    pub(crate) count: usize,
}

/// A borrowed set of buffers. It is held inside the gate, so that a fork finds them all in their
/// places.
pub(crate) struct Borrowed<'a> {
    pub(crate) owner: &'a RestoreTools,
    pub(crate) tools: *mut RunTools,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        for place in &self.owner.tools {
            if place.compare_exchange(std::ptr::null_mut(), self.tools, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }
}

impl RestoreTools {
    pub fn new() -> RestoreTools {
        let own = sys::reserve(PAGE).ok().filter(|page| sys::wipe_in_children(*page, PAGE));
        let ahead = RestoreTools {
            tools: Default::default(),
            made: AtomicU32::new(0),
            copies: Lock::new([None; SHARDS_MAX]),
            lost: AtomicU32::new(0),
            fetch_at_ns: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            own: own.unwrap_or(0),
            prefetches: Lock::new(PrefetchQueue::default()),
        };
        ahead.begin();
        ahead
    }

    /// Records that the copies belong to this process from now on.
    pub(crate) fn begin(&self) {
        if let Some(own) = self.own() {
            own.store(1, Release);
        }
    }

    /// Whether this is a child whose fork was not reported to us. Its copies of our locks may be
    /// held for ever, and it has no thread that could help.
    pub(crate) fn is_foreign(&self) -> bool {
        self.own().is_some_and(|own| own.load(Acquire) != 1)
    }

    pub(crate) fn own(&self) -> Option<&AtomicU32> {
        // SAFETY: null, or a page of ours that lives for ever.
        unsafe { (self.own as *const AtomicU32).as_ref() }
    }

    /// Resets everything in a fork's child: the copies are its parent's.
    ///
    /// # Safety
    ///
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise. A thread that holds these is inside the gate, which was
        // closed.
        unsafe {
            self.copies.reset_after_fork();
            self.prefetches.reset_after_fork();
        }
        self.prefetches.lock().count = 0;
        self.close_copies();
        self.lost.store(0, Relaxed);
        self.fetch_at_ns.store(0, Relaxed);
        self.begin();
    }

    /// Closes the copies that are still ours in the program's table.
    pub fn close_copies(&self) {
        for copy in self.copies.lock().iter_mut() {
            if let Some((fd, _)) = copy.take().filter(|(fd, known)| identity(*fd) == Ok(*known)) {
                sys::close(fd);
            }
        }
    }
}
