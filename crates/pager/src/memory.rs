//! Memory calls of the program, and what they mean for page states. Called by the interposed `mmap`
//! family and by the allocator's extent hooks, on threads of the program.
//!
//! Every call that changes a managed range holds the locks of the regions in it, so the mover is
//! not at work there. Faults are served meanwhile. No function here touches managed memory while it
//! holds a lock.

use crate::pager::{LEND_STAGING, Pager, TAKE_STAGING};
use crate::pages::ranges::{Attributes, Range, evictable_bytes};
use crate::pages::table::{Entry, REGION, REGION_PAGES, pages_within};
use crate::pages::word::{Snapshot, State};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_control::settings::Eviction;
use terrace_os::{self as sys, Errno, PAGE, SignalsBlocked};
use terrace_policy::eviction::victims::{Expectation, REFAULTS_MAX};
use terrace_tiers::Location;

/// Longest wait of an allocation for room. It is the only brake on first touches, which no fault
/// reports.
const ALLOCATION_WAIT: Duration = Duration::from_millis(100);
/// At most this many bytes of an advised range are looked at, to note advice for pages that were
/// never touched.
const ADVISED_BYTES: usize = 1 << 30;
/// Allocations of this size and more may wait for [`ALLOCATION_WAIT`]; smaller ones for less of it,
/// by their size.
const WAIT_FULL_FROM: usize = 1 << 20;
/// Allocations below this size never wait.
const WAIT_FROM: usize = 256 << 10;
/// How often everything is restored in vain before the companion ends all the same.
const SHUTDOWN_ROUNDS: usize = 100;

/// Whether the kernel reports the memory call that is to be made (see [`crate::fault::events`]).
enum Told {
    Yes,
    No,
}

impl Pager {
    /// Takes a new private anonymous mapping under management. `evictable` says whether it is
    /// readable and writable.
    pub fn manage(&self, start: usize, len: usize, evictable: bool) {
        self.manage_as(start, len, Attributes { evictable, ..Attributes::default() });
    }

    /// Takes a private anonymous mapping under management, with the attributes it had where it was
    /// managed before.
    pub fn manage_as(&self, start: usize, len: usize, attributes: Attributes) {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        if self.keeps_from_huge_pages() {
            // SAFETY: changes no contents; kernels without huge pages refuse, which is as good.
            let _ = unsafe { sys::advise(start, len, libc::MADV_NOHUGEPAGE) };
        }
        for entry in self.table.overlapping(start, start + len) {
            let _region = self.table.lock(&entry);
            // An earlier mapping was removed past the C library: its evicted pages have no owner
            // now.
            self.drop_pages(&[entry], start, start + len);
        }
        self.cancel_unmapped(start, start + len);
        self.ranges.lock().insert(
            start,
            start + len,
            Attributes { registered: false, ..attributes },
        );
        self.count_committed(if attributes.evictable { len as isize } else { 0 });
    }

    /// Lets first touches of a range of ours take memory of the far node, as long as that has room.
    /// So do pages that come back there from lower tiers. Without a far node, or where that is
    /// refused, they take DRAM, as all else does.
    pub fn begin_far(&self, start: usize, len: usize) {
        if let Some((_, node)) = self.far().filter(|_| self.moves() && !self.is_shut_down()) {
            // A filter may end a process that asks.
            if !sys::is_filtered() {
                let _ = sys::prefer_node(start, len, node.number());
            }
        }
    }

    /// Notes how the program says that a range will be used. For a page this lasts as long as it
    /// stays; for whole regions until the program says otherwise.
    pub fn advise(&self, start: usize, len: usize, expected: Option<Expectation>) {
        let (start, end) = whole_pages(start, len);
        let refaults = expected.map(|expected| match expected {
            Expectation::Hot => REFAULTS_MAX,
            Expectation::Cold => 0,
        });
        self.make_records(start, end);
        self.with_regions_as_they_are(start, end - start, Told::No, |entries| {
            for (entry, refaults) in entries.iter().filter_map(|entry| Some((entry, refaults?))) {
                for address in pages_within(entry, start, end) {
                    let found = entry.word(address).load();
                    let is_plain = !found.is_swapped()
                        && !found.is_incompressible()
                        && !found.is_on_probation();
                    if found.is(State::Resident) && is_plain {
                        // A word that was changed meanwhile knows better.
                        let _ =
                            entry.word(address).transition(found, found.with_refaults(refaults));
                    }
                }
            }
            let (first, last) = (start.next_multiple_of(REGION), end / REGION * REGION);
            if first < last {
                self.ranges.lock().update(first, last, |attributes| attributes.expected = expected);
            }
        });
    }

    /// Makes records of managed regions, so that advice can be noted for pages that were never
    /// touched. Of a large range only the first [`ADVISED_BYTES`]: the table is for what is used.
    fn make_records(&self, start: usize, end: usize) {
        if self.mode() == crate::Mode::Off {
            return;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        let managed =
            self.ranges.lock().overlapping(start, end.min(start.saturating_add(ADVISED_BYTES)));
        for range in managed {
            let regions = range.start / REGION..range.end.div_ceil(REGION);
            regions
                .filter(|_| range.attributes.evictable)
                .for_each(|region| _ = self.table.get_or_create(region * REGION));
        }
    }

    /// Brings the pages of a range back and keeps them in DRAM, until it is not `pinned` any more.
    /// For what is not managed, nothing is done.
    pub fn pin(&self, start: usize, len: usize, pinned: bool) {
        let (start, end) = whole_pages(start, len);
        self.with_regions(start, end - start, Told::No, |entries| {
            if pinned && entries.iter().any(|entry| self.has_pages_out(entry, start, end)) {
                self.restore_range(start, end);
            }
            self.ranges.lock().update(start, end, |attributes| attributes.pinned = pinned);
        });
    }

    /// Waits briefly for room for `len` bytes about to be handed out, and counts that as a wait.
    pub fn make_room(&self, len: usize) {
        if len >= WAIT_FROM {
            let part = len.min(WAIT_FULL_FROM) as f64 / WAIT_FULL_FROM as f64;
            let begun_ns = sys::now_ns();
            self.wait_for_room(len as u64, ALLOCATION_WAIT.mul_f64(part));
            self.account.add_stall(sys::now_ns() - begun_ns, 0);
        }
    }

    /// Whether anything in the range is managed.
    pub fn manages(&self, start: usize, len: usize) -> bool {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        self.ranges.lock().overlaps(start, start.saturating_add(len))
    }

    /// Discards the contents of a range, which the program gives up (MADV_DONTNEED, MADV_FREE, an
    /// allocator's purge). `act` tells the kernel, part by part in the order of addresses. What it
    /// does not refuse goes from the stores too. The result of `act` is handed back.
    ///
    /// `act` reaches each page that is in the page table once at most. As soon as a page reads as
    /// zeros, another thread may write to it, and what it writes must stay. So no fault may bring
    /// old contents back between `act` and the dropping of what is stored. Evicted pages are
    /// claimed first, as a handler claims them, and faults on them wait.
    pub fn discard<R>(
        &self,
        start: usize,
        len: usize,
        act: impl Fn(usize, usize) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let Some(end) = start.checked_add(len) else { return act(start, len) };
        self.with_regions(start, len, Told::Yes, |entries| {
            self.restore_staged(entries, start, end);
            let result = self.discard_in_parts(entries, start, end, &act);
            if is_done(&result) {
                for entry in
                    entries.iter().filter(|entry| entry.is_huge() && covers(start, end, entry))
                {
                    // Where that failed before, the kernel would make new huge pages.
                    // SAFETY: changes no contents.
                    let _ = unsafe {
                        sys::advise(entry.region.address(), REGION, libc::MADV_NOHUGEPAGE)
                    };
                }
                forget_huge(entries, start, end);
            }
            self.forget_swapped(entries, start, end);
            result
        })
    }

    /// Restores pages that a probe has staged, before their range is discarded: a claim on one
    /// could not be given back. The regions are locked, so no more are staged.
    fn restore_staged(&self, entries: &[Entry], start: usize, end: usize) {
        for entry in entries {
            let is_staged = |address: &usize| entry.word(*address).load().is(State::Staged);
            let mut staged = pages_within(entry, start, end).filter(is_staged);
            if let Some(first) = staged.next() {
                let last = staged.last().unwrap_or(first);
                // What is evicted between them comes back, too: probes are few and short.
                self.restore_range(first, last + PAGE);
            }
        }
    }

    /// Discards `start..end`. Each region with stored pages is a part of its own; what lies between
    /// them is discarded at once.
    fn discard_in_parts<R>(
        &self,
        entries: &[Entry],
        start: usize,
        end: usize,
        act: &impl Fn(usize, usize) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (mut done, mut has_holes) = (None, false);
        let mut note = |result: Result<R, Errno>| {
            match result {
                Ok(result) => done = Some(result),
                Err(Errno::ENOMEM) => has_holes = true,
                Err(errno) => return Err(errno),
            }
            Ok(())
        };
        let mut from = start;
        let is_stored = |entry: &&Entry| {
            pages_within(entry, start, end).any(|page| !entry.word(page).load().is(State::Resident))
        };
        for entry in entries.iter().filter(is_stored) {
            let (base, to) =
                (entry.region.address().max(start), end.min(entry.region.address() + REGION));
            if from < base {
                note(act(from, base - from))?;
            }
            note(self.discard_in_region(entry, base, to, act))?;
            from = to;
        }
        if from < end || start == end {
            note(act(from, end - from))?;
        }
        done.filter(|_| !has_holes).ok_or(Errno::ENOMEM)
    }

    /// Does [`Pager::discard`] for `start..end`, which lies in one region.
    fn discard_in_region<R>(
        &self,
        entry: &Entry,
        start: usize,
        end: usize,
        act: &impl Fn(usize, usize) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut claimed = Pages::default();
        for address in pages_within(entry, start, end) {
            if self.claim_stored(entry, address) {
                claimed.add(entry, address);
            }
        }
        let result = act(start, end - start);
        let done = is_done(&result);
        if done {
            let is_kept = |address: &usize| entry.word(*address).load().is(State::Cached);
            pages_within(entry, start, end)
                .filter(is_kept)
                .for_each(|address| self.drop_copy(entry, address, Snapshot(0)));
        }
        // The kernel stops at the first page that it refuses (locked memory, say): up to there it
        // is done.
        let until = if done {
            end
        } else if claimed.is_empty() {
            start
        } else {
            first_locked(start, end)
        };
        let mut goes = true;
        for address in claimed.of(entry) {
            // Where the whole was refused, the kernel is asked for the page itself: nothing is in
            // place there, and nothing can come.
            goes = goes && address < until && (done || is_done(&act(address, PAGE)));
            self.end_claim(entry, address, goes);
        }
        result
    }

    /// Claims a page of which only the stored bytes are left, after a wait for a thread that is
    /// bringing it back. True if it is claimed: until [`Pager::end_claim`], faults on it wait. Its
    /// region is locked.
    fn claim_stored(&self, entry: &Entry, address: usize) -> bool {
        let word = entry.word(address);
        loop {
            let found = word.load();
            match found.state() {
                Some(State::Resident | State::Cached) => return false,
                Some(State::Evicted) => {
                    if word.transition(found, found.with(State::Restoring, found.payload())).is_ok()
                    {
                        return true;
                    }
                }
                // Brought back before ([`Pager::restore_staged`]), unless there is no keeper.
                Some(State::Staged) => {
                    let _ = word.transition(found, Snapshot(0));
                }
                // Its handler will be done in microseconds.
                Some(State::Restoring | State::Moving) => sys::yield_now(),
                None => {
                    self.freeze(&format!("damaged page word at {address:#x}"));
                    return false;
                }
            }
        }
    }

    /// Ends a claim of [`Pager::claim_stored`]: the page `goes`, or is evicted as before.
    fn end_claim(&self, entry: &Entry, address: usize, goes: bool) {
        let word = entry.word(address);
        let claim = word.load();
        if goes {
            let removed =
                entry.region.store.lock().remove(&self.tiers, Location::from_bits(claim.payload()));
            self.check(removed.is_ok(), "a discarded page's bytes were in its store");
            entry.region.evicted.fetch_sub(1, Relaxed);
            entry.region.freed.fetch_add(1, Relaxed);
        }
        let to = if goes { Snapshot(0) } else { claim.with(State::Evicted, claim.payload()) };
        self.check(
            word.transition(claim, to).is_ok(),
            "a claimed page word is changed by its claimant only",
        );
    }

    /// Unmaps a range for the program, which replaces or removes a mapping: `act` does it and says
    /// whether it worked. If so the range is no longer managed, and nothing of it is kept.
    pub fn unmap<R>(
        &self,
        start: usize,
        len: usize,
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let end = start + len;
        self.with_regions(start, len, Told::Yes, |entries| {
            // Out of the ranges first: as soon as the kernel is done, another thread may be given
            // these addresses.
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

    /// Forgets a range in which something is mapped that is not to be managed. What was managed
    /// there was removed past the C library, and nothing of it is kept.
    pub fn forget(&self, start: usize, len: usize) {
        self.forget_where(start, len, true, || true);
    }

    /// Forgets what was managed in a range if `is_gone` says so, once nothing there can be managed
    /// anew. `all` is whether this includes what was never registered.
    pub(crate) fn forget_where(
        &self,
        start: usize,
        len: usize,
        all: bool,
        is_gone: impl FnOnce() -> bool,
    ) {
        let end = start + len;
        self.with_regions(start, len, Told::No, |entries| {
            if is_gone() {
                // Unless `all` is set, what was never registered stays: it was mapped there later.
                let mut ranges = self.ranges.lock();
                let stale: Vec<Range> = ranges
                    .overlapping(start, end)
                    .into_iter()
                    .filter(|range| range.attributes.registered || all)
                    .collect();
                stale.iter().for_each(|range| drop(ranges.remove(range.start, range.end)));
                drop(ranges);
                for range in &stale {
                    self.drop_pages(entries, range.start, range.end);
                    forget_huge(entries, range.start, range.end);
                    self.forget_swapped(entries, range.start, range.end);
                }
                self.uncount(&stale);
            }
        });
    }

    /// Forgets what was unmapped past the C library, unless something is registered there again.
    /// Called in the mover, outside the gate.
    pub(crate) fn forget_unmapped(&self) {
        if self.faults.events.unmapped.try_lock().is_none_or(|unmapped| unmapped.is_empty()) {
            return;
        }
        let unmapped: Vec<_> = self.faults.events.unmapped.lock().drain(..).collect();
        let pagemap = self.descriptors.pagemap.load(Relaxed);
        for (start, end) in unmapped {
            self.forget_where(start, end - start, false, || {
                sys::is_registered_nowhere(pagemap, start, end)
            });
        }
    }

    /// Restores everything in a range, then lets `act` move or resize the mapping, or do what
    /// evicted pages would not survive. On success the old range is no longer managed. What was
    /// managed of it is handed back, for the caller to manage what came of it.
    pub fn restore_then<R>(
        &self,
        start: usize,
        len: usize,
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<(R, Vec<Range>), Errno> {
        let end = start + len;
        self.with_regions(start, len, Told::Yes, |entries| {
            if entries.iter().any(|entry| self.has_pages_out(entry, start, end)) {
                self.restore_range(start, end);
            }
            for entry in entries {
                pages_within(entry, start, end)
                    .for_each(|address| self.end_probation(entry, address));
            }
            self.split(entries.iter());
            self.give_registered_to_children(start, end);
            let mut pieces = self.ranges.lock().remove(start, end);
            if pieces.iter().any(|piece| piece.attributes.registered) {
                // Registration cut the mapping into several for the kernel, which remaps only one
                // at a time: let it be one again.
                self.unregister_range(start, end);
                pieces.iter_mut().for_each(|piece| piece.attributes.registered = false);
            }
            match act() {
                Ok(done) => {
                    self.forget_swapped(entries, start, end);
                    self.uncount(&pieces);
                    // A huge page that could not be split stays in DRAM: at its new address it is
                    // not known to be huge.
                    for entry in entries.iter().filter(|entry| entry.is_huge()) {
                        pieces.retain(|piece| {
                            piece.end <= entry.region.address()
                                || entry.region.address() + REGION <= piece.start
                        });
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

    /// Restores a range, which stays in DRAM from now on. Returns what was managed of it.
    pub fn unmanage(&self, start: usize, len: usize) -> Vec<Range> {
        self.restore_then(start, len, || Ok(())).map_or(Vec::new(), |((), pieces)| pieces)
    }

    /// Undoes [`Pager::unmanage`].
    pub fn manage_again(&self, pieces: Vec<Range>) {
        for piece in pieces {
            self.manage_as(piece.start, piece.end - piece.start, piece.attributes);
        }
    }

    /// The managed pieces of `start..end`, in the order of addresses.
    pub fn ranges_within(&self, start: usize, end: usize) -> Vec<Range> {
        let _signals = SignalsBlocked::new();
        let _inside = self.gate.worker();
        self.ranges.lock().overlapping(start, end)
    }

    /// Restores everything, hands all memory back to the kernel and ends our threads for good. For
    /// a program that is about to forbid system calls to all its threads, or in which our threads
    /// cannot stay for another reason. `why` says which, in a sentence for the user.
    pub fn shut_down(&self, why: &str) {
        self.freeze(why);
        crate::locking::forget_future();
        sys::end_rseq();
        let _signals = SignalsBlocked::new();
        // No fork and no start meanwhile: both talk to the threads that end here.
        let _forking = self.fork.forking.lock();
        if self.mode() != crate::Mode::Active && self.mode() != crate::Mode::Observing {
            self.publish_end_of_measuring();
            self.mover.shut_down.store(true, Release);
            self.set_mode(crate::Mode::Failed);
            return;
        }
        // Another thread may put a range back that the kernel would not unmap.
        for _ in 0..SHUTDOWN_ROUNDS {
            for range in self.ranges_within(0, usize::MAX) {
                // Unregisters too: first touches must not need our threads any more either.
                self.unmanage(range.start, range.end - range.start);
            }
            if !self.table_has_evicted() {
                break;
            }
            sys::sleep(Duration::from_millis(1));
        }
        self.publish_last();
        self.publish_end_of_measuring();
        self.end_threads();
        // No process needs to find out any more whether it is the program.
        self.faults.events.set_events_enabled(false);
        self.faults.run_tools.close_copies();
        // Nothing is out and nothing will be: a forked child has nothing to start either.
        self.set_mode(crate::Mode::Failed);
    }

    /// Tells readers of the statistics when measuring ended, so that they do not take the figures
    /// for those of the whole run. Must be called while system calls may still be made.
    fn publish_end_of_measuring(&self) {
        if let Some(page) = self.stats() {
            let _ = page.measured_until_ns.compare_exchange(0, sys::now_ns(), AcqRel, Relaxed);
            self.publish_stats();
        }
    }

    /// Runs `act`, which is `mlockall`: the kernel touches every page of every mapping.
    ///
    /// Staging must not be touched while it is registered, because no thread answers there. It must
    /// not stay locked either. The kernel moves a page only where both sides are alike, so it
    /// refuses to move a locked page of the program into unlocked staging. That is right, for
    /// locked memory is to stay resident. After `munlockall` everything is as before.
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

    /// Changes a range's protection for the program: `act` does it. Only what is readable and
    /// writable is `evictable`.
    pub fn protect<R>(
        &self,
        start: usize,
        len: usize,
        evictable: bool,
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.with_regions(start, len, Told::No, |_| {
            let result = act();
            if result.is_ok() {
                self.set_evictable(start, start + len, evictable);
            }
            result
        })
    }

    /// Notes whether a forked child is to have a range (MADV_DOFORK) or not (MADV_DONTFORK): `act`
    /// tells the kernel. Managed memory stays managed, and is forgotten in a child (`fork.rs`).
    pub fn inherit<R>(
        &self,
        start: usize,
        len: usize,
        inherited: bool,
        act: impl FnOnce() -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let Some(end) = start.checked_add(len) else { return act() };
        // Memory that is kept from children is what devices write to; UFFDIO_MOVE alone sees that.
        if !inherited && self.settings.evict == Eviction::WriteProtect {
            self.unmanage(start, len);
            return act();
        }
        // A fork waits for threads in the gate: what the kernel has and what is known here change
        // as one.
        let result = self.with_regions(start, len, Told::No, |_| {
            let result = act();
            if is_done(&result) {
                self.ranges
                    .lock()
                    .update(start, end, |attributes| attributes.absent_in_child = !inherited);
                self.keep_registered_from_children(start, end);
            }
            result
        });
        if !is_done(&result) {
            // The kernel got to somewhere within the range and does not say where.
            self.unmanage(start, len);
        }
        result
    }

    /// The ranges in `start..end` that are registered and inherited: only a fork that is prepared
    /// may hand them on.
    fn registered_and_inherited(&self, start: usize, end: usize) -> Vec<Range> {
        let mut ranges = self.ranges.lock().overlapping(start, end);
        ranges.retain(|range| range.attributes.registered && !range.attributes.absent_in_child);
        ranges
    }

    /// Keeps registered ranges in `start..end` from forked children: see
    /// [`sys::keep_from_children`].
    pub(crate) fn keep_registered_from_children(&self, start: usize, end: usize) {
        for range in self.registered_and_inherited(start, end) {
            sys::keep_from_children(range.start, range.end - range.start);
        }
    }

    /// Undoes [`Pager::keep_registered_from_children`]: for a fork that is prepared, and where all
    /// pages are back for good.
    pub(crate) fn give_registered_to_children(&self, start: usize, end: usize) {
        for range in self.registered_and_inherited(start, end) {
            sys::give_to_children(range.start, range.end - range.start);
        }
    }

    /// Takes out of the managed ranges what a forked child did not inherit, before anything is
    /// started. Its stored pages are for [`Pager::drop_absent`]. A range counts only where nothing
    /// is mapped: the program may have taken its advice back past the C library.
    pub(crate) fn take_absent(&self) -> Vec<Range> {
        let mut ranges = self.ranges.lock();
        let mut absent = ranges.all();
        absent.retain(|range| {
            range.attributes.absent_in_child && sys::is_nothing_mapped(range.start, range.end)
        });
        for range in &absent {
            ranges.remove(range.start, range.end);
            if range.attributes.evictable {
                self.committed.fetch_sub(range.end - range.start, Relaxed);
            }
        }
        absent
    }

    /// Drops a forked child's stored pages of ranges that it did not inherit. Called as soon as
    /// stores can be used and before anything is started. The child has one thread, so no lock of a
    /// region is needed.
    pub(crate) fn drop_absent(&self, absent: &[Range]) {
        for range in absent {
            let entries: Vec<Entry> = self.table.overlapping(range.start, range.end).collect();
            self.drop_pages(&entries, range.start, range.end);
            forget_huge(&entries, range.start, range.end);
            self.forget_swapped(&entries, range.start, range.end);
        }
    }

    /// Brings a part of managed memory back, with the pages that it lies in, and keeps it in DRAM
    /// from now on. For what the kernel itself changes at moments when it does not wait for a
    /// handler. The kernel's mappings stay as they are.
    pub fn pin_for_kernel(&self, start: usize, len: usize) {
        let (start, end) = whole_pages(start, len);
        self.with_regions(start, end - start, Told::No, |entries| {
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

    fn reinsert(&self, pieces: Vec<Range>) {
        let mut ranges = self.ranges.lock();
        for piece in pieces {
            ranges.insert(piece.start, piece.end, piece.attributes);
        }
    }

    /// Runs `f` with the locked regions of a range that have a record, in address order. Keeps the
    /// mover out of the others too ([`crate::pages::table`] says how). Before
    /// [`crate::Mode::Starting`] there is no mover (see `Pager::start`).
    fn with_regions<R>(
        &self,
        start: usize,
        len: usize,
        told: Told,
        f: impl FnOnce(&[Entry]) -> R,
    ) -> R {
        self.with_regions_as_they_are(start, len, told, |entries| {
            // A huge page that is cut is harder to split.
            self.split(entries.iter().filter(|entry| !covers(start, start + len, entry)));
            f(entries)
        })
    }

    /// Runs `f` with the locked regions of a range, for a call that changes no mapping, so huge
    /// pages are not split.
    fn with_regions_as_they_are<R>(
        &self,
        start: usize,
        len: usize,
        told: Told,
        f: impl FnOnce(&[Entry]) -> R,
    ) -> R {
        let _signals = SignalsBlocked::new();
        let _announced = matches!(told, Told::Yes).then(|| self.announce(start, start + len));
        let _inside = self.gate.worker();
        if self.mode() == crate::Mode::Off {
            return f(&[]);
        }
        loop {
            let managed = self.ranges.lock().overlapping(start, start + len);
            let (entries, complete) = self.regions_of(&managed);
            if complete {
                let Some(_locks) = self.table.try_lock_all(&entries) else { continue };
                return f(&entries);
            }
            let _change = self.table.change(start, start + len);
            // More records may have been made, and ranges managed, before it was announced.
            let managed = self.ranges.lock().overlapping(start, start + len);
            let (entries, _) = self.regions_of(&managed);
            let _locks: Vec<_> = entries.iter().map(|entry| entry.region.lock.lock()).collect();
            return f(&entries);
        }
    }

    /// The regions of `ranges` that have a record, and whether the mover can get to no other.
    fn regions_of(&self, ranges: &[Range]) -> (Vec<Entry<'_>>, bool) {
        let (mut entries, mut complete): (Vec<Entry>, bool) = (Vec::new(), true);
        for range in ranges {
            let mut count = 0;
            for entry in self.table.overlapping(range.start, range.end) {
                count += 1;
                if entries.last().is_none_or(|last| last.number != entry.number) {
                    entries.push(entry);
                }
            }
            let regions = range.end.div_ceil(REGION) - range.start / REGION;
            complete &= count == regions || !range.attributes.evictable;
        }
        (entries, complete)
    }

    /// Has the keeper split the huge pages among these regions, which are locked, as far as they
    /// can be. The page map, which tells of them, is among the companion's descriptors.
    fn split<'e>(&self, entries: impl Iterator<Item = &'e Entry<'e>>) {
        for base in entries.filter(|entry| entry.is_huge()).map(|entry| entry.region.address()) {
            self.split_range(base, base + REGION);
        }
    }

    fn has_pages_out(&self, entry: &Entry, start: usize, end: usize) -> bool {
        pages_within(entry, start, end).any(|address| !entry.word(address).load().is_present())
    }

    /// Forgets every page of `start..end` that is not in the page table, and every clean copy. The
    /// regions are locked.
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
                        Some(State::Cached) => {
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
}

/// A set of pages of one region.
#[derive(Default)]
struct Pages([u64; REGION_PAGES / 64]);

impl Pages {
    fn add(&mut self, entry: &Entry, address: usize) {
        let page = (address - entry.region.address()) / PAGE;
        self.0[page / 64] |= 1 << (page % 64);
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; REGION_PAGES / 64]
    }

    /// The addresses of the pages, in order.
    fn of<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = usize> + 'a {
        let pages = (0..REGION_PAGES).filter(|page| self.0[page / 64] >> (page % 64) & 1 != 0);
        pages.map(|page| entry.region.address() + page * PAGE)
    }
}

/// Whether the kernel discarded a range. ENOMEM means that it did, but for holes in it.
fn is_done<R>(result: &Result<R, Errno>) -> bool {
    matches!(result, Ok(_) | Err(Errno::ENOMEM))
}

/// The first page of `start..end` that lies in locked memory, or in other memory of which the
/// kernel discards nothing. It refuses MADV_COLD there as well, which changes no contents. `start`
/// where it refuses nothing: then the page is not known.
fn first_locked(start: usize, end: usize) -> usize {
    // SAFETY: changes no contents.
    let refuses =
        |until: usize| !is_done(&unsafe { sys::advise(start, until - start, libc::MADV_COLD) });
    if !refuses(end) {
        return start;
    }
    // All before `known` is not refused, and something before `refused` is.
    let (mut known, mut refused) = (start, end);
    while refused - known > PAGE {
        let middle = known + (refused - known) / PAGE / 2 * PAGE;
        if refuses(middle) { refused = middle } else { known = middle }
    }
    known
}

/// The bounds of the pages that a range lies in.
fn whole_pages(start: usize, len: usize) -> (usize, usize) {
    (
        start / PAGE * PAGE,
        start
            .saturating_add(len)
            .checked_next_multiple_of(PAGE)
            .unwrap_or(usize::MAX / PAGE * PAGE),
    )
}

/// Whether a range holds all of a region.
fn covers(start: usize, end: usize, entry: &Entry) -> bool {
    start <= entry.region.address() && entry.region.address() + REGION <= end
}

/// Forgets the huge pages of a range whose contents are gone or elsewhere. Its regions are locked.
fn forget_huge(entries: &[Entry], start: usize, end: usize) {
    entries
        .iter()
        .filter(|entry| covers(start, end, entry))
        .for_each(|entry| entry.region.huge.store(0, Relaxed));
}

/// Whether a range is one managed piece whose pages may leave.
pub(crate) fn has_one_piece(pieces: &[Range], start: usize, end: usize) -> bool {
    matches!(
        pieces,
        [piece] if piece.start <= start && end <= piece.end && piece.attributes.may_leave()
    )
}
