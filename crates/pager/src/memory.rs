//! What the program does to its mappings, and what that means for page states. Called by the interposed `mmap` family and by the
//! allocator's extent hooks, on threads of the program.
//!
//! Every call that changes a managed range holds the locks of the regions in it, so the mover is not at work there; faults
//! are served meanwhile. No function here touches managed memory while it holds a lock.

use crate::pager::{LEND_STAGING, Pager, TAKE_STAGING};
use crate::ranges::{Attributes, Range};
use crate::sys::{self, Errno, PAGE, SignalsBlocked};
use crate::table::{Entry, REGION};
use crate::word::{Snapshot, State};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_policy::victims::{Expectation, RETURNS_MAX};
use terrace_tiers::Location;

/// Longest wait of an allocation for room. It is the only brake on first touches, which no fault tells us of.
const ALLOCATION_WAIT: Duration = Duration::from_millis(100);
/// Allocations below this size never wait.
const WAIT_FROM: usize = 1 << 20;

impl Pager {
    /// Takes a new private anonymous mapping under management. `evictable`: readable and writable.
    pub fn manage(&self, start: usize, len: usize, evictable: bool) {
        self.manage_as(start, len, Attributes { evictable, ..Attributes::default() });
    }

    /// The same for what was managed so elsewhere.
    pub fn manage_as(&self, start: usize, len: usize, attributes: Attributes) {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        if self.keeps_from_huge_pages() {
            // SAFETY: changes no contents; kernels without huge pages refuse, which is as good.
            let _ = unsafe { sys::advise(start, len, libc::MADV_NOHUGEPAGE) };
        }
        for entry in self.table.overlapping(start, start + len) {
            let _region = entry.region.lock.lock();
            // Removed behind our back (by a system call made without the C library): what was out is nobody's now.
            self.drop_pages(&[entry], start, start + len);
        }
        self.ranges.lock().insert(start, start + len, Attributes { registered: false, ..attributes });
        self.count_committed(if attributes.evictable { len as isize } else { 0 });
    }

    /// What is touched first in a range of ours comes from the far node as long as that has room, if there is one; as does what comes back there from lower tiers. Where
    /// that is refused, it comes from DRAM, as all else does.
    pub fn begin_far(&self, start: usize, len: usize) {
        if let Some((_, node)) = self.far().filter(|_| self.moves() && !self.is_retired()) {
            // A filter may end who asks.
            if !sys::is_filtered() {
                let _ = sys::prefer_node(start, len, node.number());
            }
        }
    }

    /// The program says how a range will be used. Of pages it is remembered for as long as they stay; of whole regions until it says otherwise.
    pub fn advise(&self, start: usize, len: usize, expected: Option<Expectation>) {
        let (start, end) = whole_pages(start, len);
        let returns = expected.map(|expected| match expected {
            Expectation::Hot => RETURNS_MAX,
            Expectation::Cold => 0,
        });
        self.with_regions_as_they_are(start, end - start, |entries| {
            for (entry, returns) in entries.iter().filter_map(|entry| Some((entry, returns?))) {
                for address in pages_within(entry, start, end) {
                    let found = entry.word(address).load();
                    let is_plain = !found.is_swapped() && !found.is_incompressible() && !found.is_on_probation();
                    if found.is(State::Resident) && is_plain {
                        // Changed meanwhile: then it is known better.
                        let _ = entry.word(address).transition(found, found.with_returns(returns));
                    }
                }
            }
            let (first, last) = (start.next_multiple_of(REGION), end / REGION * REGION);
            if first < last {
                self.ranges.lock().update(first, last, |attributes| attributes.expected = expected);
            }
        });
    }

    /// The pages of a range stay in DRAM, where they are brought, until it is not `pinned` any more. Of what is not managed nothing is known.
    pub fn pin(&self, start: usize, len: usize, pinned: bool) {
        let (start, end) = whole_pages(start, len);
        self.with_regions(start, end - start, |entries| {
            if pinned && entries.iter().any(|entry| self.has_pages_out(entry, start, end)) {
                self.restore_range(start, end);
            }
            self.ranges.lock().update(start, end, |attributes| attributes.pinned = pinned);
        });
    }

    /// Waits briefly for room for `len` bytes about to be handed out.
    pub fn make_room(&self, len: usize) {
        if len >= WAIT_FROM {
            self.wait_for_room(len as u64, ALLOCATION_WAIT);
        }
    }

    /// Whether anything in the range is managed.
    pub fn manages(&self, start: usize, len: usize) -> bool {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        self.ranges.lock().overlaps(start, start.saturating_add(len))
    }

    /// The program gives up the contents of a range (MADV_DONTNEED, MADV_FREE, an allocator's purge): `act` tells the
    /// kernel, for the range or a part of it, and what that does not refuse goes from the stores too. Its result for the range is handed back.
    pub fn discard<R>(&self, start: usize, len: usize, act: impl Fn(usize, usize) -> Result<R, Errno>) -> Result<R, Errno> {
        self.with_regions(start, len, |entries| {
            // Copies are to go too.
            let stored = |entry: &Entry| pages_within(entry, start, start + len).any(|page| !entry.word(page).load().is(State::Resident));
            let out = entries.iter().any(stored);
            let result = act(start, len);
            // ENOMEM: done but for holes in the range.
            if matches!(result, Ok(_) | Err(Errno::ENOMEM)) {
                for entry in entries.iter().filter(|entry| entry.is_huge() && covers(start, start + len, entry)) {
                    // Where that failed before, the kernel would give new ones.
                    // SAFETY: changes no contents.
                    let _ = unsafe { sys::advise(entry.region.address(), REGION, libc::MADV_NOHUGEPAGE) };
                }
                forget_huge(entries, start, start + len);
            }
            self.forget_swapped(entries, start, start + len);
            if out {
                self.discard_stored(entries, start, start + len, len, &result, &act);
            }
            result
        })
    }

    /// The stores' part of [`Pager::discard`] in `start..end`, where `act` had this result. The kernel refuses (locked memory, say) when it
    /// comes to the first page in question: up to there it is done, and found out here in steps: the whole, regions, pages.
    fn discard_stored<R>(
        &self,
        entries: &[Entry],
        start: usize,
        end: usize,
        step: usize,
        result: &Result<R, Errno>,
        act: &impl Fn(usize, usize) -> Result<R, Errno>,
    ) -> bool {
        // ENOMEM means done but for holes in the range.
        if matches!(result, Ok(_) | Err(Errno::ENOMEM)) {
            self.drop_pages(entries, start, end);
            // A fault in between may have brought old contents back.
            let _ = act(start, end - start);
            return true;
        }
        if step <= PAGE {
            return false;
        }
        let step = if step > REGION { REGION } else { PAGE };
        let mut from = start;
        while from < end {
            let to = end.min((from / step + 1) * step);
            if !self.discard_stored(entries, from, to, step, &act(from, to - from), act) {
                return false;
            }
            from = to;
        }
        true
    }

    /// The program replaces or removes a mapping: `act` does it and says whether it worked. If so the range is no longer managed, and
    /// nothing of it is kept.
    pub fn unmap<R>(&self, start: usize, len: usize, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let end = start + len;
        self.with_regions(start, len, |entries| {
            // Out of the ranges first: as soon as the kernel is done, another thread may be given these addresses.
            let pieces = self.ranges.lock().remove(start, end);
            let result = act();
            match result {
                Ok(_) => {
                    self.drop_pages(entries, start, end);
                    forget_huge(entries, start, end);
                    self.forget_swapped(entries, start, end);
                    self.uncount(&pieces);
                }
                Err(_) => self.reinsert(pieces),
            }
            result
        })
    }

    /// The program moves or resizes a mapping, or does something to it that evicted pages would not survive: everything is
    /// restored, then `act` does it. On success the old range is no longer managed: what was managed of it is handed back, for the caller to
    /// manage what came of it.
    pub fn restore_then<R>(&self, start: usize, len: usize, act: impl FnOnce() -> Result<R, Errno>) -> Result<(R, Vec<Range>), Errno> {
        let end = start + len;
        self.with_regions(start, len, |entries| {
            if entries.iter().any(|entry| self.has_pages_out(entry, start, end)) {
                self.restore_range(start, end);
            }
            for entry in entries {
                pages_within(entry, start, end).for_each(|address| self.end_probation(entry, address));
            }
            self.split(entries.iter());
            let mut pieces = self.ranges.lock().remove(start, end);
            if pieces.iter().any(|piece| piece.attributes.registered) {
                // Registration cut the mapping into several for the kernel, which remaps only one at a time: let it be one again.
                self.unregister_range(start, end);
                pieces.iter_mut().for_each(|piece| piece.attributes.registered = false);
            }
            match act() {
                Ok(done) => {
                    self.forget_swapped(entries, start, end);
                    self.uncount(&pieces);
                    // What could not be split stays in DRAM: where it is now, nobody knows that it is huge.
                    for entry in entries.iter().filter(|entry| entry.is_huge()) {
                        pieces.retain(|piece| piece.end <= entry.region.address() || entry.region.address() + REGION <= piece.start);
                    }
                    forget_huge(entries, start, end);
                    Ok((done, pieces))
                }
                Err(errno) => {
                    self.reinsert(pieces);
                    Err(errno)
                }
            }
        })
    }

    /// Like [`Pager::restore_then`] with nothing to do: the range stays in DRAM from now on. Returns what was managed of it.
    pub fn unmanage(&self, start: usize, len: usize) -> Vec<Range> {
        self.restore_then(start, len, || Ok(())).map_or(Vec::new(), |((), pieces)| pieces)
    }

    /// Undoes [`Pager::unmanage`].
    pub fn manage_again(&self, pieces: Vec<Range>) {
        for piece in pieces {
            self.manage_as(piece.start, piece.end - piece.start, piece.attributes);
        }
    }

    fn ranges_within(&self, start: usize, end: usize) -> Vec<Range> {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        self.ranges.lock().overlapping(start, end)
    }

    /// Restores everything, hands all memory back to the kernel and ends our threads: for a program that is about to forbid system calls to
    /// all its threads.
    pub fn retire(&self, why: &str) {
        self.freeze(why);
        crate::locking::forget_future();
        let _signals = SignalsBlocked::new();
        // No fork and no start meanwhile: both talk to the threads that end here.
        let _forking = self.fork.forking.lock();
        if self.mode() != crate::Mode::Active && self.mode() != crate::Mode::Observing {
            self.mover.retired.store(true, Release);
            self.set_mode(crate::Mode::Failed);
            return;
        }
        for range in self.ranges_within(0, usize::MAX) {
            // Unregisters too: first touches must not need our threads any more either.
            self.unmanage(range.start, range.end - range.start);
        }
        self.end_threads();
        self.ahead.close_copies();
        // Nothing is out and nothing will be: a forked child has nothing to start either.
        self.set_mode(crate::Mode::Failed);
    }

    /// Around `mlockall` (`act`): the kernel touches every page of every mapping.
    ///
    /// Staging must not be touched while it is registered (nobody answers there), and must not stay locked: the kernel then refuses to move
    /// a locked page of the program into it (both sides must be alike), which is right, for locked memory is to stay resident. After
    /// `munlockall` everything is as before.
    pub(crate) fn with_staging_lent<R>(&self, act: impl FnOnce() -> R) -> R {
        let _signals = SignalsBlocked::new();
        let _forking = self.fork.forking.lock();
        let active = self.mode() == crate::Mode::Active;
        if active {
            self.pause_mover();
            self.ask_keeper(LEND_STAGING, 0, 0);
        }
        let result = act();
        let (start, end) = self.staging.range();
        sys::unlock_memory(start, end - start);
        if active {
            self.ask_keeper(TAKE_STAGING, 0, 0);
            self.resume_mover();
        }
        result
    }

    /// The program changes a range's protection: `act` does it. Only what is readable and writable is evictable.
    pub fn protect<R>(&self, start: usize, len: usize, evictable: bool, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.with_regions(start, len, |_| {
            let result = act();
            if result.is_ok() {
                self.set_evictable(start, start + len, evictable);
            }
            result
        })
    }

    /// Brings a part of managed memory back and keeps it in DRAM from now on, with the pages that it lies in: for what the kernel itself
    /// changes at moments when it does not wait for a handler. The kernel's mappings stay as they are.
    pub fn keep(&self, start: usize, len: usize) {
        let (start, end) = whole_pages(start, len);
        self.with_regions(start, end - start, |entries| {
            if entries.iter().any(|entry| self.has_pages_out(entry, start, end)) {
                self.restore_range(start, end);
            }
            self.set_evictable(start, end, false);
        });
    }

    fn set_evictable(&self, start: usize, end: usize, evictable: bool) {
        let mut ranges = self.ranges.lock();
        let before = evictable_bytes(&ranges.overlapping(start, end));
        ranges.update(start, end, |attributes| attributes.evictable = evictable);
        let after = evictable_bytes(&ranges.overlapping(start, end));
        drop(ranges);
        self.count_committed(after as isize - before as isize);
    }

    fn uncount(&self, pieces: &[Range]) {
        self.count_committed(-(evictable_bytes(pieces) as isize));
    }

    fn reinsert(&self, pieces: Vec<Range>) {
        let mut ranges = self.ranges.lock();
        for piece in pieces {
            ranges.insert(piece.start, piece.end, piece.attributes);
        }
    }

    /// Runs `f` with the locks of the range's regions, in address order. A region that was never used is made where the mover
    /// could get to it meanwhile; before [`crate::Mode::Starting`] there is no mover (see `Pager::start`).
    fn with_regions<R>(&self, start: usize, len: usize, f: impl FnOnce(&[Entry]) -> R) -> R {
        self.with_regions_as_they_are(start, len, |entries| {
            // Cut, a huge page is harder to split.
            self.split(entries.iter().filter(|entry| !covers(start, start + len, entry)));
            f(entries)
        })
    }

    /// The same for what changes no mapping.
    fn with_regions_as_they_are<R>(&self, start: usize, len: usize, f: impl FnOnce(&[Entry]) -> R) -> R {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        let managed = self.ranges.lock().overlapping(start, start + len);
        let mut entries: Vec<Entry> = Vec::new();
        if self.mode() != crate::pager::Mode::Off {
            for range in managed {
                let mut address = range.start / REGION * REGION;
                while address < range.end {
                    let entry = if range.attributes.evictable { self.table.get_or_create(address) } else { self.table.get(address) };
                    entries.extend(entry.filter(|e| entries.last().is_none_or(|last| last.number != e.number)));
                    address += REGION;
                }
            }
        }
        let _locks: Vec<_> = entries.iter().map(|entry| entry.region.lock.lock()).collect();
        f(&entries)
    }

    /// Has the huge pages among these regions, which are locked, split as far as they can be: the page map, which tells of them, is among our threads' descriptors.
    fn split<'e>(&self, entries: impl Iterator<Item = &'e Entry<'e>>) {
        for base in entries.filter(|entry| entry.is_huge()).map(|entry| entry.region.address()) {
            self.split_range(base, base + REGION);
        }
    }

    fn has_pages_out(&self, entry: &Entry, start: usize, end: usize) -> bool {
        pages_within(entry, start, end).any(|address| !entry.word(address).load().is_present())
    }

    /// Forgets every page of `start..end` that is not in the page table, and every copy. The regions are locked.
    fn drop_pages(&self, entries: &[Entry], start: usize, end: usize) {
        for entry in entries {
            for address in pages_within(entry, start, end) {
                let word = entry.word(address);
                loop {
                    let found = word.load();
                    let dropped = match found.state() {
                        Some(State::Resident) => true,
                        // A probe's page: the mover finds the word changed and lets the slot go.
                        Some(State::Staged) => word.transition(found, Snapshot(0)).is_ok(),
                        Some(State::Evicted) => self.drop_evicted(entry, address),
                        Some(State::Kept) => {
                            self.drop_copy(entry, address, Snapshot(0));
                            false
                        }
                        // Being restored: its handler will be done in microseconds.
                        Some(State::Restoring | State::Moving) => false,
                        None => {
                            self.freeze(&format!("damaged page word at {address:#x}"));
                            true
                        }
                    };
                    if dropped {
                        break;
                    }
                    sys::yield_now();
                }
            }
        }
    }

    fn drop_evicted(&self, entry: &Entry, address: usize) -> bool {
        let mut store = entry.region.store.lock();
        let found = entry.word(address).load();
        if !found.is(State::Evicted) || entry.word(address).transition(found, Snapshot(0)).is_err() {
            return false;
        }
        let removed = store.remove(&self.tiers, Location::from_bits(found.payload()));
        self.check(removed.is_ok(), "a discarded page's bytes were in its store");
        entry.region.evicted.fetch_sub(1, Relaxed);
        true
    }
}

/// The pages that a range lies in.
fn whole_pages(start: usize, len: usize) -> (usize, usize) {
    (start / PAGE * PAGE, start.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX / PAGE * PAGE))
}

/// Whether a range holds all of a region.
fn covers(start: usize, end: usize, entry: &Entry) -> bool {
    start <= entry.region.address() && entry.region.address() + REGION <= end
}

/// The contents of a range are gone or elsewhere, and with them its huge pages. Its regions are locked.
fn forget_huge(entries: &[Entry], start: usize, end: usize) {
    entries.iter().filter(|entry| covers(start, end, entry)).for_each(|entry| entry.region.huge.store(0, Relaxed));
}

/// Whether a range is one managed piece whose pages may leave.
pub(crate) fn has_one_piece(pieces: &[Range], start: usize, end: usize) -> bool {
    matches!(pieces, [piece] if piece.start <= start && end <= piece.end && piece.attributes.may_leave())
}

fn evictable_bytes(pieces: &[Range]) -> usize {
    pieces.iter().filter(|piece| piece.attributes.evictable).map(|piece| piece.end - piece.start).sum()
}

fn pages_within(entry: &Entry, start: usize, end: usize) -> impl Iterator<Item = usize> {
    let base = entry.region.address();
    (start.max(base)..end.min(base + REGION)).step_by(PAGE)
}
