//! What the kernel reports of memory calls: a range was discarded, unmapped or moved.
//!
//! Calls that the program makes by the C library's names are announced by the interposed functions,
//! which keep page states themselves. Other calls are reported by the userfaultfd alone. They are
//! made by a system call instruction of the program's own, as in Go's runtime, or by a process that
//! shares the memory. The caller waits in the kernel until its event has been read; then:
//!
//! - *discarded* (MADV_DONTNEED, MADV_FREE): the event comes before the kernel frees the pages. The
//!   stored pages are dropped, and resident ones are marked as discarded. Such a page is not
//!   evicted again before it has faulted once, because it may be freed at any time.
//! - *moved* (mremap): the stored pages are put in place at the new address at once.
//! - *unmapped*: the stored pages have no owner. The mover drops them, unless something is
//!   registered there again.
//!
//! A userfaultfd's one reader must not wait in a way that keeps it from reading. While an event is
//! pending, the kernel refuses to fill pages of that userfaultfd (EAGAIN), for every thread. So
//! wherever the reader waits it goes on reading, into a queue. It checks there whether the page
//! that it is about to fill has been discarded or moved meanwhile. No other thread knows that in
//! time. Once a program makes such calls, any other thread that needs a page restored touches it.

use crate::fault::buffers::Tools;
use crate::fault::event_queue::Announcement;
use crate::pages::lock::Entry as GateEntry;
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION, pages_within};
use crate::pages::word::{Snapshot, State};
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, Event, Fd, PAGE};
use terrace_tiers::Location;

impl Mm {
    /// Whether the calling process's memory calls are to be followed before they are made. Calls of
    /// a process that only shares the memory are left to the kernel to report, if it does.
    pub fn serves_this_process(&self) -> bool {
        !self.faults.events.events_enabled.load(Acquire) || sys::is_program()
    }

    /// Announces that a thread of the program is about to make a memory call on a range and keeps
    /// page states itself.
    pub(crate) fn announce(&self, start: usize, end: usize) -> Announcement<'_> {
        loop {
            for slot in &self.faults.events.announced.0 {
                if slot.busy.compare_exchange(false, true, AcqRel, Relaxed).is_ok() {
                    // Never a mixture of the old and the new range: empty meanwhile.
                    slot.end.store(0, Release);
                    slot.start.store(start, Release);
                    slot.end.store(end, Release);
                    return Announcement(slot);
                }
            }
            sys::yield_now();
        }
    }

    /// Notes a range to be forgotten.
    fn note_unmapped(&self, start: usize, end: usize) {
        let mut unmapped = self.faults.events.unmapped.lock();
        if unmapped.len() < unmapped.capacity() {
            unmapped.push((start, end));
        }
    }

    /// Serves an event of `uffd`.
    pub(crate) fn handle_event(&self, uffd: Fd, event: Event, tools: &mut Tools) {
        let (start, end) = match event {
            Event::Removed { start, end } | Event::Unmapped { start, end } => (start, end),
            Event::Moved { from, len, .. } => (from, from + len),
            Event::Fault { .. } | Event::Other => return,
        };
        if self.faults.events.is_announced(start, end) {
            return;
        }
        if !self.faults.events.was_announced(start, end) {
            self.faults.events.bypasses_libc.store(true, Relaxed);
        }
        match event {
            Event::Removed { .. } => self.discard_pages(uffd, start, end),
            Event::Moved { to, .. } => {
                self.bring_to_new_address(uffd, (start, end), to, tools);
                // In the child the memory is the program's own, and inherited as it was before it
                // was registered.
                if self.ranges.lock().at(start).is_none_or(|attributes| !attributes.absent_in_child)
                {
                    sys::give_to_children(to, end - start);
                }
                self.note_unmapped(start, end);
            }
            _ => self.note_unmapped(start, end),
        }
    }

    /// Handles that the kernel is about to discard `start..end`.
    fn discard_pages(&self, uffd: Fd, start: usize, end: usize) {
        self.settled_pages(uffd, start, end, |entry, address, found| match found.state() {
            Some(State::Resident) => {
                entry.word(address).transition(found, found.discarded()).is_ok()
            }
            Some(State::Evicted) => {
                self.drop_evicted(entry, address);
                false
            }
            Some(State::Cached) => {
                self.drop_copy(entry, address, found.off_probation());
                false
            }
            // The mover finds the word changed and releases the slot.
            Some(State::Staged) => {
                entry.word(address).transition(found, Snapshot(0).discarded()).is_ok()
            }
            _ => true,
        });
    }

    /// Handles that the kernel has moved `start..end` to `to`.
    fn bring_to_new_address(
        &self,
        uffd: Fd,
        (start, end): (usize, usize),
        to: usize,
        tools: &mut Tools,
    ) {
        // What an earlier mapping there has left.
        self.settled_pages(uffd, to, to + (end - start), |entry, address, found| {
            match found.state() {
                Some(State::Evicted) => self.drop_evicted(entry, address),
                Some(State::Staged) => entry.word(address).transition(found, Snapshot(0)).is_ok(),
                Some(State::Cached) => {
                    self.drop_copy(entry, address, found.off_probation());
                    false
                }
                _ => true,
            }
        });
        self.settled_pages(uffd, start, end, |entry, address, found| match found.state() {
            Some(State::Evicted) => {
                self.bring_evicted(uffd, entry, address, address - start + to, tools)
            }
            Some(State::Staged) => {
                let claim = found.with(State::Restoring, found.payload());
                // While the page is claimed, the mover keeps the slot until the page has its copy.
                if entry.word(address).transition(found, claim).is_err() {
                    return false;
                }
                self.fill(
                    uffd,
                    address - start + to,
                    self.staging.address(found.payload() as usize),
                );
                self.settle(entry, address, claim, Snapshot(0));
                true
            }
            Some(State::Cached) => {
                self.drop_copy(entry, address, found.off_probation());
                false
            }
            _ => true,
        });
    }

    /// Puts the evicted page of `address` in place at `to`. False if it is no longer evicted.
    fn bring_evicted(
        &self,
        uffd: Fd,
        entry: &Entry,
        address: usize,
        to: usize,
        tools: &mut Tools,
    ) -> bool {
        // Claimed under the store's lock, so that its bytes stay where they are until they are
        // read.
        let store = entry.region.store.lock();
        let found = entry.word(address).load();
        let claim = found.with(State::Restoring, found.payload());
        if !found.is(State::Evicted) || entry.word(address).transition(found, claim).is_err() {
            return false;
        }
        let location = Location::from_bits(found.payload());
        let decoded = self.decode(
            &store,
            location,
            &mut tools.page.0,
            (&mut tools.scratch, &mut tools.stored),
        );
        drop(store);
        if let Err(e) = decoded {
            self.unrecoverable(address, &e);
        }
        self.fill(uffd, to, tools.page.0.as_ptr() as usize);
        let removed = entry.region.store.lock().remove(&self.tiers, location);
        self.check(removed.is_ok(), "a moved page's bytes were in its store");
        self.count_restored(entry, 1);
        self.settle(entry, address, claim, Snapshot(0));
        true
    }

    /// Calls `each` for every page of a range, and again as long as it returns false. It does so
    /// only while no other thread has claimed the page.
    fn settled_pages(
        &self,
        uffd: Fd,
        start: usize,
        end: usize,
        mut each: impl FnMut(&Entry, usize, Snapshot) -> bool,
    ) {
        for base in (start / REGION * REGION..end).step_by(REGION) {
            // Where the table is full nothing was ever evicted.
            let Some(entry) = self.table.get_or_create(base) else { continue };
            for address in pages_within(&entry, start, end) {
                loop {
                    let (entered, inside) = self.gate.handler();
                    let found = entry.word(address).load();
                    let done = match found.state() {
                        // A fork is under way, and nothing changes.
                        _ if entered == GateEntry::CopyOnly => false,
                        // Claimed by a call of the program's that settles it, and that waits for us
                        // to read.
                        Some(State::Restoring)
                            if self.faults.events.is_announced(address, address + PAGE) =>
                        {
                            true
                        }
                        Some(State::Moving | State::Restoring) => false,
                        _ => each(&entry, address, found),
                    };
                    drop(inside);
                    if done {
                        break;
                    }
                    self.wait_a_moment(uffd);
                }
            }
        }
    }

    /// Removes a range that is managed anew from those whose stored pages are to be dropped.
    pub(crate) fn cancel_unmapped(&self, start: usize, end: usize) {
        self.faults.events.unmapped.lock().retain(|(from, to)| *to <= start || end <= *from);
    }
}
