//! Reads evicted pages and leaves them evicted ([`Pager::copy_evicted`]): for a caller that looks
//! at much of the memory once. Such reads say nothing about what will be used.
//!
//! A page's stored bytes stay where they are as long as the lock of its store is held, so nothing
//! is claimed. Files are read by the keeper, which has their descriptors.

use crate::fault::buffers::Tools;
use crate::fault::inline::CopyOutcome;
use crate::pager::{COPY_EVICTED, Pager};
use crate::pages::table::Entry;
use std::sync::atomic::{AtomicBool, Ordering::*};
use terrace_os::{ErrnoKept, PAGE, SignalsBlocked};
use terrace_tiers::{Page, ReadBuffer, Scratch};

/// A page that the keeper is asked to fill, and whether it did.
struct Wanted<'a> {
    page: &'a mut Page,
    there: AtomicBool,
}

impl Pager {
    /// Copies the contents of the evicted page at `address` into `page`, which is not managed. The
    /// page stays evicted, and nothing is counted. False where it is not evicted, or cannot be
    /// copied now: then it can be read as usual, which brings it back.
    ///
    /// The page may be back by the time that this returns, and have changed.
    pub fn copy_evicted(&self, address: usize, page: &mut Page) -> bool {
        let address = address & !(PAGE - 1);
        let seems = |entry: Entry<'_>| entry.word(address).seems_evicted();
        if !self.table.get(address).is_some_and(seems) {
            return false;
        }
        if self.is_shut_down()
            || self.faults.run_tools.is_foreign()
            || self.faults.events.bypasses_libc()
        {
            return false;
        }
        let _signals = SignalsBlocked::new();
        let _errno = ErrnoKept::new();
        match self.copy_by_borrowed_tools(address, page) {
            CopyOutcome::Yes => true,
            CopyOutcome::No => false,
            CopyOutcome::InFile => {
                let mut wanted = Wanted { page, there: AtomicBool::new(false) };
                self.ask_keeper(COPY_EVICTED, address, &raw mut wanted as usize);
                wanted.there.load(Acquire)
            }
        }
    }

    fn copy_by_borrowed_tools(&self, address: usize, page: &mut Page) -> CopyOutcome {
        let Some(_inside) = self.gate.try_worker() else { return CopyOutcome::No };
        let Some(tools) = self.faults.run_tools.borrow_tools(self) else { return CopyOutcome::No };
        // SAFETY: the tools were taken out of their place, so no other thread has them.
        let tools = unsafe { &mut *tools.tools };
        self.copy_aside(address, page, (&mut tools.scratch, &mut tools.stored), false)
    }

    /// Does what [`Pager::copy_evicted`] asks for, in the keeper.
    ///
    /// # Safety
    /// `wanted` is the address of a [`Wanted`], which waits for the answer.
    pub(crate) unsafe fn copy_evicted_for(&self, address: usize, wanted: usize, tools: &mut Tools) {
        let Some(_inside) = self.gate.try_worker() else { return };
        let with = (&mut tools.scratch, &mut tools.stored);
        if self.copy_aside(address, &mut tools.page.0, with, true) == CopyOutcome::Yes {
            // SAFETY: the caller's promise.
            let wanted = unsafe { &mut *(wanted as *mut Wanted<'_>) };
            wanted.page.copy_from_slice(&tools.page.0);
            wanted.there.store(true, Release);
        }
    }

    /// Decodes the evicted page at `address` into `page`; one in a file only if `from_files`. The
    /// caller is inside the gate as a worker.
    fn copy_aside(
        &self,
        address: usize,
        page: &mut Page,
        with: (&mut Scratch, &mut ReadBuffer),
        from_files: bool,
    ) -> CopyOutcome {
        let Some(entry) = self.table.get(address) else { return CopyOutcome::No };
        let store = entry.region.store.lock();
        match self.decode_evicted(&store, entry.word(address), page, with, from_files) {
            Ok(_) => CopyOutcome::Yes,
            Err(copied) => copied,
        }
    }
}
