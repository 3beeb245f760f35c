//! Ahead of a fault: a thread of the program brings evicted pages back itself ([`Pager::touch`]),
//! or has the mover do it ([`Pager::prefetch`]).
//!
//! Half of what a fault costs is not restoring but exception, wake-ups and switches. A thread that
//! says what it is about to touch pays only for the rest: it claims, decompresses and copies into
//! place as a handler does, and what follows in memory comes with one call. Everything here is a
//! hint: where anything is in the way, the page is left to a handler.
//!
//! What makes that safe on a thread of the program:
//!
//! - *Waiting.* It enters the gate as a worker, and only if no fork is about: handlers go on
//!   serving whatever it waits for. It holds no region lock, waits for no claim of others, and
//!   blocks signals. A thread that runs on managed memory could be kept waiting for its own stack
//!   by a lock that it holds itself: it does not come here.
//! - *Its descriptors.* Our userfaultfds are not in the program's table. Copies of them are fetched
//!   into it when first needed, with high numbers. The program may close them, and put others in
//!   their place: each is compared with what it was before it is used, and nothing but a copied
//!   page is believed. On any other answer the claim is given back with the stored bytes untouched.
//! - *A forked child* has its parent's copies, which lead into its parent's memory.
//!   [`Pager::fork_child`] closes them; and where a child was made that we know nothing of, a page
//!   that the kernel wipes in every child says that they are not its own.

use crate::fault::buffers::PageBuffer;
use crate::fault::run_tools::{Ahead, Borrowed, RunTools, TOOLS_MAX};
use crate::pager::Pager;
use crate::pages::shards::SHARD_SHIFT;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{PageWord, Snapshot, State};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, Errno, ErrnoKept, Fd, PAGE, SignalsBlocked};
use terrace_policy::victims::Return;
use terrace_tiers::{
    Identity, Location, PAGE_BYTES, Page, ReadBuffer, RegionStore, Scratch, identity,
};

/// Most pages of one call to the kernel: beyond 16, the fixed cost of a call no longer counts.
pub(crate) const RUN_PAGES: usize = 16;
/// Our copies have the first free numbers from here on: below what `select` can watch and above
/// what programs count on.
const FIRST_NUMBER: Fd = 960;
/// A program that closes them so often does it on purpose.
const LOST_MAX: u32 = 16;
/// After a failure, they are not fetched again for so long, ns.
const FETCH_AGAIN_NS: u64 = 1_000_000_000;
/// Longest wait for room, as for a fault.
const ROOM_WAIT: Duration = Duration::from_millis(5);
/// So much of a stack is used here at most.
const STACK_BYTES: usize = 64 << 10;

/// Why a page comes back that nobody has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program said that it is about to touch it.
    Asked,
    /// There is room for it.
    Room,
    /// A plan has its region in DRAM: from files too, and whatever is expected of it.
    Planned,
}

impl Ahead {
    pub(super) fn borrow_tools(&self, pager: &Pager) -> Option<Borrowed<'_>> {
        let kept = self
            .tools
            .iter()
            .map(|place| place.swap(std::ptr::null_mut(), AcqRel))
            .find(|tools| !tools.is_null());
        if let Some(tools) = kept {
            return Some(Borrowed { ahead: self, tools });
        }
        if self
            .made
            .fetch_update(AcqRel, Relaxed, |made| (made < TOOLS_MAX as u32).then_some(made + 1))
            .is_err()
        {
            return None;
        }
        (pager.host.enter_internal)();
        let mut scratch = Scratch::new();
        // What is missing now may be missing in the middle of a restore.
        let complete = scratch.prepare().is_ok();
        let pages = (0..RUN_PAGES).map(|_| PageBuffer([0; PAGE_BYTES])).collect();
        let tools = complete.then(|| {
            Box::into_raw(Box::new(RunTools { scratch, stored: ReadBuffer::new(), pages }))
        });
        (pager.host.leave_internal)();
        if tools.is_none() {
            self.made.fetch_sub(1, AcqRel);
        }
        tools.map(|tools| Borrowed { ahead: self, tools })
    }

    /// Fetches copies of all our userfaultfds into the program's table, so that they stay open if
    /// the companion is killed.
    pub fn keep_copies(&self, pager: &Pager) {
        for shard in 0..pager.descriptors.shards.load(Acquire) {
            self.copy_of(pager, shard);
        }
    }

    /// Our userfaultfd of a shard in the program's table, if it is there or can be had.
    fn copy_of(&self, pager: &Pager, shard: usize) -> Option<Fd> {
        if self.own()?.load(Acquire) != 1 || pager.is_retired() {
            return None;
        }
        let mut copies = self.copies.lock();
        let copy = &mut copies[shard];
        if let Some((fd, known)) = *copy {
            if identity(fd) == Ok(known) {
                return Some(fd);
            }
            *copy = None;
            self.lost.fetch_add(1, Relaxed);
        }
        let now_ns = sys::now_ns();
        if self.lost.load(Relaxed) >= LOST_MAX || now_ns < self.fetch_at_ns.load(Relaxed) {
            return None;
        }
        match fetch(pager, shard) {
            Ok((fd, identity)) => {
                *copy = Some((fd, identity));
                Some(fd)
            }
            Err(e) => {
                self.fetch_at_ns.store(now_ns + FETCH_AGAIN_NS, Relaxed);
                drop(copies);
                pager.warn_once(
                    &self.said,
                    &format!("terrace_touch cannot restore by itself yet ({e}; it needs a free descriptor, and the right to fetch one of Terrace's): faults do it"),
                );
                None
            }
        }
    }
}

/// Fetches a copy into the calling thread's table.
fn fetch(pager: &Pager, shard: usize) -> Result<(Fd, Identity), Errno> {
    let descriptors = &pager.descriptors;
    let low = sys::descriptor_of(pager.companion.pid(), descriptors.uffds[shard].load(Acquire))?;
    let fd = sys::duplicate_from(low, FIRST_NUMBER).or_else(|_| sys::duplicate_from(low, 3));
    sys::close(low);
    let fd = fd?;
    identity(fd).map(|identity| (fd, identity)).inspect_err(|_| sys::close(fd))
}

impl Pager {
    /// Brings every page of `start..start + len` that is out back now, without faults where that is
    /// possible. Any address will do; what is not managed, or not there, is left alone.
    pub fn touch(&self, start: usize, len: usize) {
        let end = start.saturating_add(len);
        let address = start & !(PAGE - 1);
        // At most two pages of one region: what is called most often.
        if len == 0 {
            return;
        }
        let last = end - 1;
        if last - address < 2 * PAGE && last / REGION == address / REGION {
            match self.table.get(address) {
                Some(entry)
                    if entry.word(address).seems_evicted() || entry.word(last).seems_evicted() => {}
                _ => return,
            }
        }
        if let Some(first) = self.first_out(address, end) {
            self.touch_from(first, end);
        }
    }

    /// Has the pages brought back that are out, soon, by another thread and as far as there is
    /// room. Never waits.
    pub fn prefetch(&self, start: usize, len: usize) {
        let end = start.saturating_add(len);
        let Some(first) = self
            .first_out(start & !(PAGE - 1), end)
            .filter(|_| len > 0 && !self.ahead.is_foreign())
        else {
            return;
        };
        let _signals = SignalsBlocked::new();
        let _errno = ErrnoKept::new();
        let Some(inside) = self.gate.try_worker() else { return };
        let mut prefetches = self.ahead.prefetches.lock();
        let count = prefetches.count;
        if let Some(place) = prefetches.ranges.get_mut(count) {
            *place = (first, end);
            prefetches.count += 1;
        }
        drop(prefetches);
        drop(inside);
        self.call_mover();
    }

    /// How many pages of `start..start + len` are out, by what is known of them: no page is touched,
    /// and each may come or go meanwhile.
    pub fn evicted_pages(&self, start: usize, len: usize) -> usize {
        let end = start.saturating_add(len);
        let mut address = start & !(PAGE - 1);
        let mut count = 0;
        while address < end {
            let until = end.min((address / REGION + 1) * REGION);
            if let Some(entry) = self.table.get(address) {
                let base = entry.region.address();
                let pages = &entry.words[(address - base) / PAGE..(until - base).div_ceil(PAGE)];
                let is_out = |word: &&PageWord| word.seems_evicted() || word.load().is_swapped();
                count += pages.iter().filter(is_out).count();
            }
            address = until;
        }
        count
    }

    /// The first page in `address..end` that seems to be out.
    fn first_out(&self, address: usize, end: usize) -> Option<usize> {
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

    #[cold]
    fn touch_from(&self, first: usize, end: usize) {
        // The program may not be allowed our calls, and nothing is out.
        if self.is_retired() || self.ahead.is_foreign() || self.events.past_us() {
            return;
        }
        let mut signals = SignalsBlocked::new();
        let _errno = ErrnoKept::new();
        let by_itself = self.is_on_memory_of_its_own();
        let mut address = first;
        loop {
            let start_ns = sys::now_ns();
            let Some(entry) = self.table.get(address) else { return };
            let pages = self.pages_out(&entry, address, end);
            self.wait_for_room((pages * PAGE) as u64, ROOM_WAIT);
            let mut back = 0;
            if by_itself {
                back = self.restore_ahead(&entry, address, pages, Cause::Asked, |pager, shard| {
                    pager.ahead.copy_of(pager, shard)
                });
            }
            if back == 0 {
                // By a handler, as if the program had touched it: one page is not more than the
                // caller asked for.
                sys::peek(address, &mut [0]);
                back = 1;
            } else {
                // In this thread. What a handler does it counts itself.
                self.account.add_stall(0, sys::now_ns() - start_ns);
            }
            let Some(next) = self.first_out(address + back * PAGE, end) else { return };
            address = next;
            // Those that came meanwhile have their turn.
            drop(signals);
            signals = SignalsBlocked::new();
        }
    }

    /// How many pages from `address` on seem to be out, one after the other: at most [`RUN_PAGES`],
    /// of one region.
    pub(crate) fn pages_out(&self, entry: &Entry, address: usize, end: usize) -> usize {
        let page = (address - entry.region.address()) / PAGE;
        let most = (end - address).div_ceil(PAGE).min(RUN_PAGES);
        entry.words[page..].iter().take(most).take_while(|word| word.seems_evicted()).count().max(1)
    }

    /// In the mover: does what [`Pager::prefetch`] was asked for while `goes_on` says so; the rest
    /// is forgotten.
    pub(crate) fn drain_prefetches(&self, mut goes_on: impl FnMut(&Pager) -> bool) {
        if self.ahead.prefetches.lock().count == 0 {
            return;
        }
        let prefetches = std::mem::take(&mut *self.ahead.prefetches.lock());
        for (start, end) in prefetches.ranges.into_iter().take(prefetches.count) {
            let mut next = self.first_out(start, end);
            while let Some(address) = next {
                let Some(entry) = self.table.get(address).filter(|_| goes_on(self)) else { return };
                let pages = self.pages_out(&entry, address, end);
                let back =
                    self.restore_ahead(&entry, address, pages, Cause::Asked, |pager, shard| {
                        Some(pager.uffd_of_shard(shard))
                    });
                next = self.first_out(address + back.max(1) * PAGE, end);
            }
        }
    }

    /// Restores up to `pages` pages from `address` on; `uffd` gives the userfaultfd of a shard.
    /// Returns how many came back.
    pub(crate) fn restore_ahead(
        &self,
        entry: &Entry,
        address: usize,
        pages: usize,
        cause: Cause,
        uffd: impl FnOnce(&Pager, usize) -> Option<Fd>,
    ) -> usize {
        if self.events.past_us() {
            return 0;
        }
        let Some(_inside) = self.gate.try_worker() else { return 0 };
        let Some(tools) = self.ahead.borrow_tools(self) else { return 0 };
        let shards = self.descriptors.shards.load(Acquire).max(1);
        let Some(uffd) = uffd(self, (address >> SHARD_SHIFT) % shards) else { return 0 };
        // SAFETY: taken out of its place, so nobody else has it.
        let tools = unsafe { &mut *tools.tools };
        match self.restore_run(uffd, entry, address, pages, cause, tools) {
            // One call takes pages of one mapping, and neighbours may be two.
            0 if pages > 1 => self.restore_run(uffd, entry, address, 1, cause, tools),
            back => back,
        }
    }

    /// The caller is inside the gate as a worker.
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
            // Not in place, and the stored bytes are where they were.
            let evicted = claim.with(State::Evicted, claim.payload());
            let given_back = entry.word(address + (copied + i) * PAGE).transition(*claim, evicted);
            self.check(given_back.is_ok(), "a claimed page word is changed by its claimant only");
        }
        if copied > 0 {
            self.now_back(entry, address, &claims[..copied], cause, start_ns);
        }
        copied
    }

    /// Decompresses an evicted page that nobody waits for and claims it, as somebody who holds the
    /// lock of its store. Returns claim and tier; `None` if it is not out, lies in a file where
    /// `from_files` is false (a read costs more than the wake-up that is saved), or cannot be had
    /// now.
    pub(crate) fn decode_and_claim(
        &self,
        store: &RegionStore,
        word: &PageWord,
        page: &mut Page,
        with: (&mut Scratch, &mut ReadBuffer),
        from_files: bool,
    ) -> Option<(Snapshot, u8)> {
        // Read first: what cannot be had is left as it is, and whoever touches the page will be
        // told. Only a claim can come between.
        let (found, number) = self.decode_evicted(store, word, page, with, from_files).ok()?;
        let claim = found.with(State::Restoring, found.payload());
        word.transition(found, claim).ok()?;
        Some((claim, number))
    }

    /// Pages from `address` on are in place: what was stored goes, everything is counted, and the
    /// claims end.
    fn now_back(
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
                // It is no hotter for that.
                let page = Return { returns: claim.returns(), probation: false };
                self.settle_in_place(entry, address, *claim, page, now_ms, None);
                continue;
            }
            let stats = &self.tiers[usize::from(*tier)].stats;
            stats.count_fault();
            stats.record_restore((now_ns - start_ns) / claims.len() as u64);
            entry.region.restores.fetch_add(1, Relaxed);
            self.settle_back(
                entry,
                address,
                *claim,
                self.returned(*claim, claim.age_ms(now_ms)),
                now_ms,
                None,
            );
        }
    }

    /// Whether the calling thread's stack cannot be evicted from under it. Signals are blocked.
    fn is_on_memory_of_its_own(&self) -> bool {
        let here = 0u8;
        let here = &raw const here as usize;
        let inside = self.gate.try_worker();
        inside.is_some_and(|_inside| {
            !self.ranges.lock().overlaps(here.saturating_sub(STACK_BYTES), here + PAGE)
        })
    }
}
