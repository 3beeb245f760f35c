//! Restores pages before they are touched, ahead of a stream of faults ([`crate::fault::streams`]).
//!
//! The page that faulted is restored first. What follows is done in steps, with a check between
//! them for a thread that waits for another page. Nothing is restored ahead beyond the budget,
//! during a fork, or from files (a read costs more than the wake-up that is saved). A page that
//! cannot be restored stays evicted: no thread asked for it.
//!
//! The policy treats such a page as one that refaulted late. It goes on probation, because no
//! thread has touched it yet, and its count of refaults is unchanged. Whether it is then touched
//! cannot be seen, and a stream seldom returns soon. The policy is told of the refault only when
//! the stream's next fault proves that the page was wanted. The move list shows it at once.

use crate::fault::buffers::{MESSAGES, PageBuffer, Tools};
use crate::fault::streams::Streams;
use crate::pages::lock::Entry as GateEntry;
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, Errno, Fd, Message, PAGE};
use terrace_policy::eviction::victims::Refault;
use terrace_tiers::{Location, PAGE_BYTES};

/// Pages of one step: a thread that waits for another page waits no longer than for these.
pub(crate) const STEP: usize = 4;

/// The state with which a handler restores ahead.
pub(crate) struct ReadAhead {
    streams: Streams,
    /// Streams of the faults noted last that are long enough to be restored ahead.
    ready: Vec<usize>,
    pub step: Step,
    /// Whether waiting threads can be detected (Linux 6.10).
    detects_waiters: bool,
}

/// The buffers for a step.
pub(crate) struct Step {
    buffer: Box<[PageBuffer; STEP]>,
    claimed: Vec<Claimed>,
}

/// A page of a step.
struct Claimed {
    address: usize,
    word: Snapshot,
    /// Index of the page in the buffer.
    place: usize,
}

impl ReadAhead {
    pub fn new() -> Self {
        let buffer = Box::new([const { PageBuffer([0; PAGE_BYTES]) }; STEP]);
        let step = Step { buffer, claimed: Vec::with_capacity(STEP) };
        ReadAhead {
            streams: Streams::new(),
            ready: Vec::with_capacity(MESSAGES),
            step,
            detects_waiters: true,
        }
    }
}

impl Mm {
    /// Notes a fault that is about to be served. Returns whether there is something to restore
    /// ahead of it.
    pub(crate) fn note_fault(&self, address: usize, ahead: &mut ReadAhead) -> bool {
        if !self.settings.readahead {
            return false;
        }
        let word =
            |page: usize| self.table.get(page * PAGE).map(|entry| entry.word(page * PAGE).load());
        let noted =
            ahead.streams.note(address / PAGE, |page| word(page).is_none_or(Snapshot::is_present));
        if noted.hits > 0
            && let Some(entry) = self.table.get(address)
        {
            entry.region.restores.fetch_add(noted.hits as u32, Relaxed);
        }
        ahead.ready.extend(noted.ready);
        noted.ready.is_some()
    }

    /// Restores pages ahead of the streams whose faults were noted. Each gets one step, which saves
    /// more of the handler's time than it takes. The rest follows until a thread waits for another
    /// page. Returns how many `messages` came.
    pub(crate) fn read_ahead(
        &self,
        uffd: Fd,
        messages: &mut [Message],
        tools: &mut Tools,
        ahead: &mut ReadAhead,
    ) -> usize {
        let ReadAhead { streams, ready, step, detects_waiters } = ahead;
        ready.retain(|index| self.advance(uffd, *index, tools, streams, step));
        while let Some(index) = ready.last().filter(|_| *detects_waiters) {
            match sys::uffd_read_now(uffd, messages) {
                Ok(count) => {
                    ready.clear();
                    return count;
                }
                Err(Errno::EAGAIN) => {}
                Err(_) => *detects_waiters = false,
            }
            if !self.advance(uffd, *index, tools, streams, step) {
                ready.pop();
            }
        }
        ready.clear();
        0
    }

    /// Makes one step of one stream. False if there is nothing more to do, or not now.
    fn advance(
        &self,
        uffd: Fd,
        index: usize,
        tools: &mut Tools,
        streams: &mut Streams,
        step: &mut Step,
    ) -> bool {
        let Some((pages, up)) = streams.wanted(index) else { return false };
        let Some(front) = self.restore_step(uffd, pages, up, tools, step) else { return false };
        streams.restored(index, front);
        streams.wanted(index).is_some()
    }

    /// Restores up to [`STEP`] of these evicted pages, nearest first: up from the first, or down
    /// from the last. Returns how far it got. `None` if there is nothing to restore, or not now.
    pub(crate) fn restore_step(
        &self,
        uffd: Fd,
        pages: RangeInclusive<usize>,
        up: bool,
        tools: &mut Tools,
        Step { buffer, claimed }: &mut Step,
    ) -> Option<usize> {
        let (entered, _inside) = self.gate.handler();
        if entered == GateEntry::CopyOnly || !self.has_room_ahead() {
            return None;
        }
        let nearest = if up { *pages.start() } else { *pages.end() } * PAGE;
        if self.uffd_of(nearest) != uffd {
            return None;
        }
        let entry = self.table.get(nearest)?;
        let base = entry.region.address() / PAGE;
        let (first, last) =
            ((*pages.start()).max(base), (*pages.end()).min(base + REGION / PAGE - 1));
        let store = entry.region.store.lock();
        claimed.clear();
        let mut front = None;
        for n in 0..=last.checked_sub(first)? {
            let page = if up { first + n } else { last - n };
            let found = entry.word(page * PAGE).load();
            match found.state() {
                Some(State::Resident | State::Cached) => {}
                Some(State::Evicted) if claimed.len() < STEP => {
                    let place = if up { claimed.len() } else { STEP - 1 - claimed.len() };
                    let with = (&mut tools.scratch, &mut tools.stored);
                    let claim = self.decode_and_claim(
                        &store,
                        entry.word(page * PAGE),
                        &mut buffer[place].0,
                        with,
                        false,
                    );
                    let Some((word, _)) = claim else { break };
                    claimed.push(Claimed { address: page * PAGE, word, place });
                }
                _ => break,
            }
            front = Some(page);
        }
        drop(store);
        if claimed.is_empty() {
            return None;
        }
        if !up {
            claimed.reverse();
        }
        self.put_in_place(uffd, &entry, claimed, buffer);
        front
    }

    /// Whether the budget has room for a step, and no thread waits for room.
    fn has_room_ahead(&self) -> bool {
        let after = self.physical_bytes() + (STEP * PAGE) as u64;
        after <= self.account.budget_bytes.load(Relaxed) && self.mover.waiting.load(Relaxed) == 0
    }

    fn put_in_place(
        &self,
        uffd: Fd,
        entry: &Entry,
        claimed: &[Claimed],
        buffer: &[PageBuffer; STEP],
    ) {
        for run in claimed.chunk_by(|a, b| a.address + PAGE == b.address) {
            let source = buffer[run[0].place].0.as_ptr() as usize;
            self.fill_run(uffd, run[0].address, source, run.len());
        }
        // A page that is only read once is evicted unchanged.
        let keeps = self.keeps_copies();
        let mut store = entry.region.store.lock();
        for location in claimed.iter().map(|page| Location::from_bits(page.word.payload())) {
            if !keeps {
                self.check(
                    store.remove(&self.tiers, location).is_ok(),
                    "a restored page's bytes were in its store",
                );
            } else if let Some(tier) = store.tier_of(location) {
                self.tiers[usize::from(tier)].stats.became_copy();
            }
        }
        drop(store);
        self.count_restored(entry, claimed.len());
        let now_ms = sys::now_ns() / 1_000_000;
        for page in claimed {
            let back = Refault { refaults: page.word.refaults(), probation: true };
            let copy = keeps.then(|| Location::from_bits(page.word.payload()));
            self.settle_refaulted(entry, page.address, page.word, back, now_ms, copy);
        }
    }

    /// Puts claimed pages that lie side by side in place, as [`Mm::fill`] does with one.
    fn fill_run(&self, uffd: Fd, address: usize, source: usize, pages: usize) {
        let mut done = 0;
        while done < pages {
            let (to, from) = (address + done * PAGE, source + done * PAGE);
            if !self.has_messages(uffd) {
                // SAFETY: the pages are claimed; `source` is as many pages of our own.
                done += unsafe { sys::uffd_copy_run(uffd, to, from, (pages - done) * PAGE) } / PAGE;
            }
            if done < pages {
                self.fill(uffd, address + done * PAGE, source + done * PAGE);
                done += 1;
            }
        }
    }
}
