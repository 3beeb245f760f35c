//! Restores evicted pages that no thread has touched yet. It serves a thread that is about to touch
//! them ([`crate::touch`]). It also serves the mover where there is room or a plan wants them in
//! DRAM.
//!
//! Everything here is a hint: where anything is in the way, the page is left to a handler.

use crate::fault::buffers::PageBuffer;
use crate::fault::run_tools::{Borrowed, RestoreTools, RunTools, TOOLS_MAX};
use crate::pages::mm::Mm;
use crate::pages::shards::SHARD_SHIFT;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{PageWord, Snapshot, State};
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, Fd, PAGE};
use terrace_policy::eviction::victims::Refault;
use terrace_tiers::{Location, PAGE_BYTES, Page, ReadBuffer, RegionStore, Scratch};

/// Most pages of one call to the kernel: beyond 16, the fixed cost of a call no longer counts.
pub(crate) const RUN_PAGES: usize = 16;

/// The result of copying a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOutcome {
    /// The copy is made.
    Yes,
    /// The page lies in a file, which is read elsewhere.
    InFile,
    /// The page is not evicted, or cannot be had in this way now.
    No,
}

/// Why a page is restored that no thread has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program said that it is about to touch it.
    Asked,
    /// Memory has room for the page.
    Room,
    /// A plan has its region in DRAM: the page is also restored from files, and however it is
    /// expected to be used.
    Planned,
}

impl RestoreTools {
    pub(crate) fn borrow_tools(&self, mm: &Mm) -> Option<Borrowed<'_>> {
        let kept = self
            .tools
            .iter()
            .map(|place| place.swap(std::ptr::null_mut(), AcqRel))
            .find(|tools| !tools.is_null());
        if let Some(tools) = kept {
            return Some(Borrowed { owner: self, tools });
        }
        if self
            .made
            .fetch_update(AcqRel, Relaxed, |made| (made < TOOLS_MAX as u32).then_some(made + 1))
            .is_err()
        {
            return None;
        }
        (mm.host.enter_internal)();
        let mut scratch = Scratch::new();
        // Memory that is missing now may be missing in the middle of a restore.
        let complete = scratch.prepare().is_ok();
        let pages = (0..RUN_PAGES).map(|_| PageBuffer([0; PAGE_BYTES])).collect();
        let tools = complete.then(|| {
            Box::into_raw(Box::new(RunTools { scratch, stored: ReadBuffer::new(), pages }))
        });
        (mm.host.leave_internal)();
        if tools.is_none() {
            self.made.fetch_sub(1, AcqRel);
        }
        tools.map(|tools| Borrowed { owner: self, tools })
    }
}

impl Mm {
    /// The first page in `address..end` that seems to be evicted.
    pub(crate) fn first_evicted(&self, address: usize, end: usize) -> Option<usize> {
        let in_region = |entry: Entry, from: usize, to: usize| {
            let base = entry.region.address();
            let pages = &entry.words[(from - base) / PAGE..(to - base).div_ceil(PAGE)];
            pages.iter().position(PageWord::seems_evicted).map(|page| from + page * PAGE)
        };
        if address >= end {
            return None;
        }
        // Most ranges lie in one region.
        if address / REGION == (end - 1) / REGION {
            return self.table.get(address).and_then(|entry| in_region(entry, address, end));
        }
        self.table
            .overlapping(address, end)
            .filter(|entry| entry.region.evicted.load(Relaxed) > 0)
            .find_map(|entry| {
                let base = entry.region.address();
                in_region(entry, address.max(base), end.min(base + REGION))
            })
    }

    /// How many consecutive pages from `address` on seem to be evicted: at most [`RUN_PAGES`], of
    /// one region.
    pub(crate) fn evicted_run_len(&self, entry: &Entry, address: usize, end: usize) -> usize {
        let page = (address - entry.region.address()) / PAGE;
        let most = (end - address).div_ceil(PAGE).min(RUN_PAGES);
        entry.words[page..].iter().take(most).take_while(|word| word.seems_evicted()).count().max(1)
    }

    /// In the mover: does what [`Pager::prefetch`](crate::Pager::prefetch) was asked for while
    /// `goes_on` returns true. The rest is dropped.
    pub(crate) fn drain_prefetches(&self, mut goes_on: impl FnMut(&Mm) -> bool) {
        if self.faults.run_tools.prefetches.lock().count == 0 {
            return;
        }
        let prefetches = std::mem::take(&mut *self.faults.run_tools.prefetches.lock());
        for (start, end) in prefetches.ranges.into_iter().take(prefetches.count) {
            let mut next = self.first_evicted(start, end);
            while let Some(address) = next {
                let Some(entry) = self.table.get(address).filter(|_| goes_on(self)) else { return };
                let pages = self.evicted_run_len(&entry, address, end);
                let back = self.readahead_run(&entry, address, pages, Cause::Asked, |mm, shard| {
                    Some(mm.uffd_of_shard(shard))
                });
                next = self.first_evicted(address + back.max(1) * PAGE, end);
            }
        }
    }

    /// Restores up to `pages` pages from `address` on; `uffd` gives the userfaultfd of a shard.
    /// Returns how many were restored.
    pub(crate) fn readahead_run(
        &self,
        entry: &Entry,
        address: usize,
        pages: usize,
        cause: Cause,
        uffd: impl FnOnce(&Mm, usize) -> Option<Fd>,
    ) -> usize {
        if self.faults.events.bypasses_libc() {
            return 0;
        }
        let Some(_inside) = self.gate.try_worker() else { return 0 };
        let Some(tools) = self.faults.run_tools.borrow_tools(self) else { return 0 };
        let shards = self.descriptors.shards.load(Acquire).max(1);
        let Some(uffd) = uffd(self, (address >> SHARD_SHIFT) % shards) else { return 0 };
        // SAFETY: taken out of its place, so no other thread has it.
        let tools = unsafe { &mut *tools.tools };
        match self.restore_run(uffd, entry, address, pages, cause, tools) {
            // One call takes pages of one mapping, and neighbours may be in two.
            0 if pages > 1 => self.restore_run(uffd, entry, address, 1, cause, tools),
            back => back,
        }
    }

    /// Restores a run of pages. The caller is inside the gate as a worker.
    fn restore_run(
        &self,
        uffd: Fd,
        entry: &Entry,
        address: usize,
        pages: usize,
        cause: Cause,
        tools: &mut RunTools,
    ) -> usize {
        let start_ns = sys::now_ns();
        let mut claims = [(Snapshot(0), 0); RUN_PAGES];
        let mut claimed = 0;
        while claimed < pages {
            let at = address + claimed * PAGE;
            let buffer = &mut tools.pages[claimed].0;
            let store = entry.region.store.lock();
            let with = (&mut tools.scratch, &mut tools.stored);
            let Some(claim) = self.decode_and_claim(
                &store,
                entry.word(at),
                buffer,
                with,
                cause == Cause::Planned,
            ) else {
                break;
            };
            claims[claimed] = claim;
            claimed += 1;
        }
        if claimed == 0 {
            return 0;
        }
        // SAFETY: the pages are claimed, and the source is ours.
        let copied = unsafe {
            sys::uffd_copy_run(uffd, address, tools.pages.as_ptr() as usize, claimed * PAGE)
        } / PAGE;
        for (i, (claim, _)) in claims[copied..claimed].iter().enumerate() {
            // The pages are not in place, and the stored bytes are where they were.
            let evicted = claim.with(State::Evicted, claim.payload());
            let given_back = entry.word(address + (copied + i) * PAGE).transition(*claim, evicted);
            self.check(given_back.is_ok(), "a claimed page word is changed by its claimant only");
        }
        if copied > 0 {
            self.settle_restored(entry, address, &claims[..copied], cause, start_ns);
        }
        copied
    }

    /// Decompresses an evicted page that no thread waits for and claims it; the caller holds the
    /// lock of its store. Returns claim and tier. `None` if the page is not evicted, or cannot be
    /// restored now. Also `None` if it is in a file and `from_files` is false: a read costs more
    /// than the wake-up that is saved.
    pub(crate) fn decode_and_claim(
        &self,
        store: &RegionStore,
        word: &PageWord,
        page: &mut Page,
        with: (&mut Scratch, &mut ReadBuffer),
        from_files: bool,
    ) -> Option<(Snapshot, u8)> {
        // Read first: a page that cannot be read is left as it is, and a thread that touches it
        // gets the error. Only a claim can come between.
        let (found, number) = self.decode_evicted(store, word, page, with, from_files).ok()?;
        let claim = found.with(State::Restoring, found.payload());
        word.transition(found, claim).ok()?;
        Some((claim, number))
    }

    /// Settles pages from `address` on that are in place. Their stored bytes are freed, everything
    /// is counted, and the claims end.
    fn settle_restored(
        &self,
        entry: &Entry,
        address: usize,
        claims: &[(Snapshot, u8)],
        cause: Cause,
        start_ns: u64,
    ) {
        let mut store = entry.region.store.lock();
        for (claim, _) in claims {
            let removed = store.remove(&self.tiers, Location::from_bits(claim.payload()));
            self.check(removed.is_ok(), "a restored page's bytes were in its store");
        }
        drop(store);
        self.count_restored(entry, claims.len());
        let counter = if cause == Cause::Asked {
            &self.account.ahead_pages
        } else {
            &self.account.room_pages
        };
        counter.fetch_add(claims.len() as u64, Relaxed);
        let now_ns = sys::now_ns();
        let now_ms = now_ns / 1_000_000;
        for (i, (claim, tier)) in claims.iter().enumerate() {
            let address = address + i * PAGE;
            if cause != Cause::Asked {
                // Restoring it ahead makes it no hotter.
                let page = Refault { refaults: claim.refaults(), probation: false };
                self.settle_in_place(entry, address, *claim, page, now_ms, None);
                continue;
            }
            let stats = &self.tiers[usize::from(*tier)].stats;
            stats.count_fault();
            stats.record_restore((now_ns - start_ns) / claims.len() as u64);
            entry.region.restores.fetch_add(1, Relaxed);
            self.settle_refaulted(
                entry,
                address,
                *claim,
                self.refaulted(*claim, claim.age_ms(now_ms)),
                now_ms,
                None,
            );
        }
    }

    /// Decompresses an evicted page without claiming it; the caller holds the lock of its store.
    /// Returns its word and its tier.
    pub(crate) fn decode_evicted(
        &self,
        store: &RegionStore,
        word: &PageWord,
        page: &mut Page,
        (scratch, stored): (&mut Scratch, &mut ReadBuffer),
        from_files: bool,
    ) -> Result<(Snapshot, u8), CopyOutcome> {
        let found = word.load();
        if !found.is(State::Evicted) {
            return Err(CopyOutcome::No);
        }
        let location = Location::from_bits(found.payload());
        let number = store.tier_of(location).ok_or(CopyOutcome::No)?;
        let tier = self.tiers.get(usize::from(number)).ok_or(CopyOutcome::No)?;
        if tier.files().is_some() && !from_files {
            return Err(CopyOutcome::InFile);
        }
        let encoded = store.page(location, stored).map_err(|_| CopyOutcome::No)?;
        tier.decode(encoded, page, scratch).map_err(|_| CopyOutcome::No)?;
        Ok((found, number))
    }
}
