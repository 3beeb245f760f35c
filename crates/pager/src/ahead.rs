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

use crate::handler::PageBuffer;
use crate::lock::Lock;
use crate::pager::{Pager, SHARD_SHIFT, SHARDS_MAX};
use crate::sys::{self, Errno, ErrnoKept, Fd, PAGE, SignalsBlocked};
use crate::table::{Entry, REGION};
use crate::word::{PageWord, Snapshot, State};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;
use terrace_policy::victims::Return;
use terrace_tiers::{
    Identity, Location, PAGE_BYTES, Page, ReadBuffer, RegionStore, Scratch, identity,
};

/// Most pages of one call to the kernel: from 16 on, nothing is gained (`facts/faults.md` §6).
pub(crate) const RUN_PAGES: usize = 16;
/// Threads that can restore at a time; others leave it to handlers.
const TOOLS_MAX: usize = 8;
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
/// Wishes that the mover has not looked at yet; more are dropped.
const WISHES: usize = 16;

/// Why a page comes back that nobody has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program said that it is about to touch it.
    Asked,
    /// There is room for it.
    Room,
}

/// What a thread restores with.
struct RunTools {
    scratch: Scratch,
    stored: ReadBuffer,
    pages: Box<[PageBuffer]>,
}

/// State of all this.
pub(crate) struct Ahead {
    tools: [AtomicPtr<RunTools>; TOOLS_MAX],
    made: AtomicU32,
    copies: Lock<[Option<(Fd, Identity)>; SHARDS_MAX]>,
    lost: AtomicU32,
    fetch_at_ns: AtomicU64,
    said: AtomicBool,
    /// The address of a number that is 1 in this process, and 0 in a child that nobody told us of.
    /// 0 where the kernel has no such memory.
    own: usize,
    wishes: Lock<Wishes>,
}

#[derive(Default)]
struct Wishes {
    ranges: [(usize, usize); WISHES],
    count: usize,
}

/// A tool for as long as it is used. Inside the gate, so that a fork finds them all in their
/// places.
struct Borrowed<'a> {
    ahead: &'a Ahead,
    tools: *mut RunTools,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        for place in &self.ahead.tools {
            if place.compare_exchange(std::ptr::null_mut(), self.tools, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }
}

impl Ahead {
    pub fn new() -> Ahead {
        let own = sys::reserve(PAGE).ok().filter(|page| sys::wipe_in_children(*page, PAGE));
        let ahead = Ahead {
            tools: Default::default(),
            made: AtomicU32::new(0),
            copies: Lock::new([None; SHARDS_MAX]),
            lost: AtomicU32::new(0),
            fetch_at_ns: AtomicU64::new(0),
            said: AtomicBool::new(false),
            own: own.unwrap_or(0),
            wishes: Lock::new(Wishes::default()),
        };
        ahead.begin();
        ahead
    }

    /// This process is what the copies belong to from now on.
    fn begin(&self) {
        if let Some(own) = self.own() {
            own.store(1, Release);
        }
    }

    /// Whether this is a child that nobody told us of: our locks are in it as they were, perhaps
    /// held for ever, and there is nobody who could help.
    fn is_foreign(&self) -> bool {
        self.own().is_some_and(|own| own.load(Acquire) != 1)
    }

    fn own(&self) -> Option<&AtomicU32> {
        // SAFETY: null, or a page of ours that lives for ever.
        unsafe { (self.own as *const AtomicU32).as_ref() }
    }

    /// In a fork's child: the copies are its parent's.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise. Who holds these is inside the gate, which was closed.
        unsafe {
            self.copies.reset_after_fork();
            self.wishes.reset_after_fork();
        }
        self.wishes.lock().count = 0;
        self.close_copies();
        self.lost.store(0, Relaxed);
        self.fetch_at_ns.store(0, Relaxed);
        self.begin();
    }

    /// Closes what is still ours in the program's table.
    pub fn close_copies(&self) {
        for copy in self.copies.lock().iter_mut() {
            if let Some((fd, _)) = copy.take().filter(|(fd, known)| identity(*fd) == Ok(*known)) {
                sys::close(fd);
            }
        }
    }

    fn borrow_tools(&self, pager: &Pager) -> Option<Borrowed<'_>> {
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
                pager.say_once(
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
        let mut wishes = self.ahead.wishes.lock();
        let count = wishes.count;
        if let Some(place) = wishes.ranges.get_mut(count) {
            *place = (first, end);
            wishes.count += 1;
        }
        drop(wishes);
        drop(inside);
        self.call_mover();
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
            }
            self.account.stall_ns.fetch_add(sys::now_ns() - start_ns, Relaxed);
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
    pub(crate) fn grant_wishes(&self, mut goes_on: impl FnMut(&Pager) -> bool) {
        if self.ahead.wishes.lock().count == 0 {
            return;
        }
        let wishes = std::mem::take(&mut *self.ahead.wishes.lock());
        for (start, end) in wishes.ranges.into_iter().take(wishes.count) {
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
            let Some(claim) = self.decode_and_claim(&store, entry.word(at), buffer, with) else {
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
    /// lock of its store. Returns claim and tier; `None` if it is not out, lies in a file (a
    /// read costs more than the wake-up that is saved), or cannot be had now.
    pub(crate) fn decode_and_claim(
        &self,
        store: &RegionStore,
        word: &PageWord,
        page: &mut Page,
        (scratch, stored): (&mut Scratch, &mut ReadBuffer),
    ) -> Option<(Snapshot, u8)> {
        let found = word.load();
        if !found.is(State::Evicted) {
            return None;
        }
        let location = Location::from_bits(found.payload());
        let number = store.tier_of(location)?;
        let tier = self.tiers.get(usize::from(number)).filter(|tier| tier.files().is_none())?;
        // Read first: what cannot be had is left as it is, and whoever touches the page will be
        // told. Only a claim can come between.
        tier.decode(store.page(location, stored).ok()?, page, scratch).ok()?;
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
        let counter =
            if cause == Cause::Room { &self.account.room_pages } else { &self.account.ahead_pages };
        counter.fetch_add(claims.len() as u64, Relaxed);
        let now_ns = sys::now_ns();
        let now_ms = now_ns / 1_000_000;
        for (i, (claim, tier)) in claims.iter().enumerate() {
            let address = address + i * PAGE;
            if cause == Cause::Room {
                // It is no hotter for that.
                let page = Return { returns: claim.returns(), probation: false };
                self.settle_in_place(entry, address, *claim, page, now_ms, None);
                continue;
            }
            let stats = &self.tiers[usize::from(*tier)].stats;
            stats.count_fault();
            stats.record_restore((now_ns - start_ns) / claims.len() as u64);
            self.back(
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
