//! Restores a page: claim its word, fill the page, give up the claim.
//!
//! A fault handler waits neither for a thread of the program nor for a fork (see
//! [`crate::pages::lock::Gate`]). [`Mm::restore_now`] does wait for a fork. A handler never touches
//! managed memory, and frees the compressed bytes only after the page is in place.

use crate::fault::buffers::{PageBuffer, Tools};
use crate::pages::lock::Entry as GateEntry;
use crate::pages::mm::Mm;
use crate::pages::shards::SHARDS_MAX;
use crate::pages::table::Entry;
use crate::pages::word::{Snapshot, State};
use crate::trace::FaultStep;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, Errno, Event, Fd, PAGE};
use terrace_tiers::{Location, PAGE_BYTES, Page, ReadBuffer, RegionStore, Scratch, Tier};

static ZEROS: PageBuffer = PageBuffer([0; PAGE_BYTES]);
/// Wait between attempts to restore a page for which there is no memory.
const MEMORY_WAIT: Duration = Duration::from_millis(2);
/// How an attempt to restore a page ended.
#[derive(PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The page is in place, or its mapping is gone.
    Done,
    /// Another thread has claimed the page; try again.
    Busy,
}

/// How filling a page ended.
#[derive(PartialEq, Eq)]
pub(crate) enum Fill {
    /// The page is in place: by us, or (present before) by a thread that had the right to.
    Present,
    /// The mapping is no longer there.
    Gone,
}

/// What happened to a page that is about to be filled.
pub(crate) enum Change {
    /// No change is known.
    None,
    /// The page is zeros now.
    Discarded,
    /// The page's mapping is gone.
    Unmapped,
    /// The page is at another address now.
    Moved(usize),
}

impl Mm {
    /// Restores one page without a fault. For the mover and the keeper (the pager's service
    /// thread).
    pub(crate) fn restore_now(&self, address: usize, tools: &mut Tools) {
        let start_ns = sys::now_ns();
        let mut touched = false;
        loop {
            let (entry, inside) = self.gate.handler();
            if entry == GateEntry::CopyOnly {
                // A thread forks: nothing changes until that is over.
                drop(inside);
                sys::yield_now();
                continue;
            }
            let Some(region) = self.table.get(address) else { return };
            if region.word(address).load().is_present() {
                return;
            }
            if self.faults.events.bypasses_libc() && !std::mem::replace(&mut touched, true) {
                // The program may discard the page at this moment, which only its handler knows in
                // time: touch it so that the handler restores it. A page that is still evicted then
                // is in place, in a forked child whose parent noted it.
                drop(inside);
                self.touch_page(address);
                continue;
            }
            let outcome =
                self.restore(self.uffd_of(address), address, false, tools, start_ns, false);
            drop(inside);
            match outcome {
                Outcome::Done => return,
                Outcome::Busy => sys::yield_now(),
            }
        }
    }

    /// Restores a page. `may_keep` says that a copy of the page may stay in the store.
    pub(crate) fn restore(
        &self,
        uffd: Fd,
        address: usize,
        write: bool,
        tools: &mut Tools,
        start_ns: u64,
        may_keep: bool,
    ) -> Outcome {
        let Some(entry) = self.table.get_or_create(address) else {
            // With a full table nothing here was ever evicted: the page was never touched.
            self.fill_zero(uffd, address, write);
            return Outcome::Done;
        };
        let word = entry.word(address);
        let found = word.load();
        match found.state() {
            Some(State::Resident) => {
                // Claimed even to fill in zeros. Otherwise the mover could take the page between
                // our check and our ioctl, and the zeros would replace its contents.
                let claim = found.with(State::Restoring, 0);
                if word.transition(found, claim).is_err() {
                    return Outcome::Busy;
                }
                self.fill_zero(uffd, address, write);
                self.settle(&entry, address, claim, found.faulted());
                Outcome::Done
            }
            // Discarded by the program, past us: a page of zeros, whose stored copy is worthless.
            Some(State::Cached) => {
                self.drop_copy(&entry, address, found.off_probation());
                Outcome::Busy
            }
            Some(State::Staged) => {
                let claim = found.with(State::Restoring, found.payload());
                if word.transition(found, claim).is_err() {
                    return Outcome::Busy;
                }
                let source = self.staging.address(found.payload() as usize);
                self.fill(uffd, address, source);
                let now_ms = sys::now_ns() / 1_000_000;
                // The refault is reported to the policy; the page was not evicted, so no move is
                // counted.
                entry.region.restores.fetch_add(1, Relaxed);
                let page = self.refaulted(claim, 0);
                self.settle_in_place(&entry, address, claim, page, now_ms, None);
                Outcome::Done
            }
            Some(State::Evicted) => {
                self.restore_evicted(uffd, &entry, address, tools, start_ns, may_keep)
            }
            Some(State::Moving | State::Restoring) => Outcome::Busy,
            None => self.unrecoverable(address, "its page word is damaged"),
        }
    }

    fn restore_evicted(
        &self,
        uffd: Fd,
        entry: &Entry,
        address: usize,
        tools: &mut Tools,
        start_ns: u64,
        may_keep: bool,
    ) -> Outcome {
        let word = entry.word(address);
        let store = entry.region.store.lock();
        let found = word.load();
        let claim = found.with(State::Restoring, found.payload());
        if !found.is(State::Evicted) || word.transition(found, claim).is_err() {
            return Outcome::Busy;
        }
        let location = Location::from_bits(found.payload());
        tools.timer.mark(FaultStep::Claim);
        let decoded = self.decode(
            &store,
            location,
            &mut tools.page.0,
            (&mut tools.scratch, &mut tools.stored),
        );
        drop(store);
        let tier = decoded.unwrap_or_else(|e| self.unrecoverable(address, &e));
        tools.timer.mark(FaultStep::Decode);
        self.fill(uffd, address, tools.page.0.as_ptr() as usize);
        tools.timer.mark(FaultStep::Copy);
        let now_ns = sys::now_ns();
        let now_ms = now_ns / 1_000_000;
        let page = self.refaulted(claim, claim.age_ms(now_ms));
        // Keep the compressed copy: if the page is evicted again unchanged, nothing is compressed.
        // No copies in files, whose blocks a forked child may share.
        let copy = (may_keep && page.probation && tier.files().is_none() && self.keeps_copies())
            .then_some(location);
        if copy.is_some() {
            tier.stats.became_copy();
        } else {
            let removed = entry.region.store.lock().remove(&self.tiers, location);
            self.check(removed.is_ok(), "a restored page's bytes were in its store");
        }
        self.count_restored(entry, 1);
        tier.stats.count_fault();
        tier.stats.record_restore(now_ns - start_ns);
        entry.region.restores.fetch_add(1, Relaxed);
        self.settle_refaulted(entry, address, claim, page, now_ms, copy);
        tools.timer.mark(FaultStep::After);
        self.trace.fault(address, &mut tools.timer);
        Outcome::Done
    }

    /// Decompresses a stored page; returns its tier. `Err` says why it cannot be read. Where only
    /// memory is missing it waits: the page is safe.
    pub(crate) fn decode(
        &self,
        store: &RegionStore,
        location: Location,
        page: &mut Page,
        (scratch, buffer): (&mut Scratch, &mut ReadBuffer),
    ) -> Result<&Tier, String> {
        let tier = store
            .tier_of(location)
            .and_then(|index| self.tiers.get(usize::from(index)))
            .ok_or("its extent is gone")?;
        let encoded = store.page(location, buffer).map_err(|e| e.to_string())?;
        loop {
            match tier.decode(encoded, page, scratch) {
                Ok(()) => return Ok(tier),
                Err(e) if e.is_out_of_memory() => {
                    self.warn_once(
                        &self.warned.restore_waits,
                        &format!("a stored page cannot be read yet ({e}): a thread that touches it waits (reported once)"),
                    );
                    sys::sleep(MEMORY_WAIT);
                }
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Handles a page whose bytes cannot be read.
    pub(crate) fn unrecoverable(&self, address: usize, why: &str) -> ! {
        self.end_program(&format!("page {address:#x} cannot be restored: {why}"))
    }

    /// Puts one page in place. Returns only when the page is there or its mapping is gone.
    pub(crate) fn fill(&self, uffd: Fd, mut address: usize, mut source: usize) -> Fill {
        loop {
            match self.pending_change(uffd, address) {
                Change::None => {}
                Change::Discarded => source = ZEROS.0.as_ptr() as usize,
                Change::Unmapped => {
                    sys::uffd_wake(uffd, address, PAGE);
                    return Fill::Gone;
                }
                Change::Moved(to) => {
                    sys::uffd_wake(uffd, address, PAGE);
                    address = to;
                }
            }
            // SAFETY: the caller holds the page's claim; `source` is a page of our own.
            match unsafe { sys::uffd_copy(uffd, address, source) } {
                Ok(()) => return Fill::Present,
                // Memory is being changed.
                Err(Errno::EAGAIN) => self.wait_a_moment(uffd),
                // There already, and threads that wait for what was mapped here before are not
                // woken for that.
                Err(Errno::EEXIST) => {
                    sys::uffd_wake(uffd, address, PAGE);
                    return Fill::Present;
                }
                // Not this descriptor's: a mapping that grew or moved kept its first registration.
                Err(Errno::ENOENT) => return self.fill_elsewhere(uffd, address, source),
                Err(Errno::ESRCH) => return Fill::Gone,
                Err(e) => {
                    // Mostly out of memory. The program's thread waits; nothing is lost.
                    self.warn_once(
                        &self.warned.restore_waits,
                        &format!("the kernel cannot put a page back yet ({e}): a thread that touches it waits (reported once)"),
                    );
                    sys::sleep(MEMORY_WAIT);
                }
            }
        }
    }

    /// The known pending change of a page that is about to be filled: events that were read wait to
    /// be served. A thread that made the memory call goes on as soon as its event is read. So the
    /// page's earlier contents must not be restored after it.
    fn pending_change(&self, uffd: Fd, address: usize) -> Change {
        let (mut at, mut change) = (address, Change::None);
        let Some(queue) = self.queue_of(uffd) else { return change };
        for message in &*queue.messages.lock() {
            let within = |start: usize, end: usize| start <= at && at < end;
            match message.event() {
                Event::Removed { start, end }
                    if within(start, end) && !self.faults.events.is_announced(start, end) =>
                {
                    return Change::Discarded;
                }
                Event::Unmapped { start, end } if within(start, end) => return Change::Unmapped,
                Event::Moved { from, to, len } if within(from, from + len) => {
                    at = at - from + to;
                    change = Change::Moved(at);
                }
                _ => {}
            }
        }
        change
    }

    #[cold]
    fn fill_elsewhere(&self, tried: Fd, address: usize, source: usize) -> Fill {
        for slot in &self.descriptors.uffds[..self.descriptors.shards.load(Acquire).min(SHARDS_MAX)]
        {
            let uffd = slot.load(Relaxed);
            if uffd == tried {
                continue;
            }
            // SAFETY: as in `fill`.
            match unsafe { sys::uffd_copy(uffd, address, source) } {
                Err(Errno::ENOENT) => {}
                Ok(()) => return Fill::Present,
                Err(_) => return self.fill(uffd, address, source),
            }
        }
        // Threads that wait for what was there before must check again: the kernel does not wake
        // them when it takes a mapping away.
        sys::uffd_wake(tried, address, PAGE);
        Fill::Gone
    }

    pub(crate) fn fill_zero(&self, uffd: Fd, address: usize, write: bool) {
        if write {
            // A page of its own at once: the zero page would fault again.
            self.fill(uffd, address, ZEROS.0.as_ptr() as usize);
            return;
        }
        // SAFETY: the caller holds the claim, or a fork keeps the mover away.
        match unsafe { sys::uffd_zero(uffd, address) } {
            Ok(()) | Err(Errno::ESRCH) => {}
            // Also if something is there: the kernel's marker of a write-protected page prevents a
            // page of zeros, but not a copy.
            Err(_) => {
                self.fill(uffd, address, ZEROS.0.as_ptr() as usize);
            }
        }
    }

    /// Serves a fault while a fork is in progress: fills the page and changes nothing but the note
    /// for later.
    pub(crate) fn fill_during_fork(
        &self,
        uffd: Fd,
        address: usize,
        write: bool,
        tools: &mut Tools,
    ) -> Outcome {
        let Some(entry) = self.table.get(address) else {
            self.fill_zero(uffd, address, write);
            return Outcome::Done;
        };
        let found = entry.word(address).load();
        match found.state() {
            Some(State::Resident | State::Cached) => self.fill_zero(uffd, address, write),
            Some(State::Evicted) => {
                // Noted before it is filled: a child that finds the page present finds the note
                // too.
                if !self.fork.note(address) {
                    return Outcome::Busy;
                }
                if let Err(e) = self.decode_frozen(&entry, found, tools) {
                    self.unrecoverable(address, &e);
                }
                self.fill(uffd, address, tools.page.0.as_ptr() as usize);
            }
            // The forking thread restored staged pages before it closed the gate, and waited for
            // claims to end.
            _ => return Outcome::Busy,
        }
        Outcome::Done
    }

    /// Reads an evicted page while page states stand still. Other readers may hold the store's
    /// lock; no writer can.
    pub(crate) fn decode_frozen(
        &self,
        entry: &Entry,
        found: Snapshot,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let store = entry.region.store.lock();
        self.decode(
            &store,
            Location::from_bits(found.payload()),
            &mut tools.page.0,
            (&mut tools.scratch, &mut tools.stored),
        )
        .map(drop)
    }

    /// Puts back a page that the mover staged and will not store. The word must be `staged`; false
    /// if another thread changed it first.
    pub(crate) fn put_back(
        &self,
        entry: &Entry,
        address: usize,
        staged: Snapshot,
        to: Snapshot,
    ) -> bool {
        if self.faults.events.bypasses_libc() {
            // As in `restore_now`.
            self.touch_page(address);
            if entry.word(address).load() != staged {
                return true;
            }
            // It cannot be read (PROT_NONE, since a probe). Its slot is about to be emptied, so it
            // is put back anyway.
        }
        let claim = staged.with(State::Restoring, staged.payload());
        if entry.word(address).transition(staged, claim).is_err() {
            return false;
        }
        let source = self.staging.address(staged.payload() as usize);
        self.fill(self.uffd_of(address), address, source);
        self.account.resident_pages.fetch_add(1, Relaxed);
        self.settle(entry, address, claim, to);
        true
    }
}
