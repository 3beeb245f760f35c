//! Restores pages that no thread has touched, while there is room that nothing else needs. Pages
//! evicted while the program grew would otherwise be restored by a fault each, for as long as it
//! runs.

use crate::fault::inline::{Cause, RUN_PAGES};
use crate::pager::Pager;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::State;
use std::sync::atomic::Ordering::Relaxed;
use terrace_control::moves::MoveReason;
use terrace_os::{self as sys, PAGE};

/// Time for which no page must have been evicted, ns: at first, and at most.
const NO_EVICTION_MIN_NS: u64 = 2_000_000_000;
const NO_EVICTION_MAX_NS: u64 = 128_000_000_000;
/// After this many times as long without an eviction, restoring no longer counts as too early.
const NO_EVICTION_AGAIN: u64 = 8;
/// Pages of one scan, half a millisecond, and regions that are scanned in it.
const PAGES_AT_ONCE: usize = 64;
const REGIONS_AT_ONCE: u32 = 64;
/// Pages claimed at a time: a thread may need them meanwhile.
const RUN: usize = RUN_PAGES / 2;
/// A scan is followed by a pause of this many times its length.
const PAUSES: u64 = 32;
/// Time until the next scan when nothing was found in all of memory, ns.
const AGAIN_NS: u64 = 10_000_000_000;

/// The state of idle restoring, owned by the mover.
pub(crate) struct IdleRestore {
    /// The region to go on with, and how many in a row had nothing to restore.
    region: u32,
    empty_in_row: u32,
    /// Pages demoted until the last scan (evicted, moved to the node, or recompressed into a colder
    /// tier), and since when that number is unchanged.
    demoted: u64,
    no_eviction_from_ns: u64,
    /// How long that number must be unchanged. It doubles each time that pages are evicted again
    /// after some were restored.
    no_eviction_ns: u64,
    restored: bool,
    not_before_ns: u64,
}

impl IdleRestore {
    pub fn new(now_ns: u64) -> IdleRestore {
        IdleRestore {
            region: 0,
            empty_in_row: 0,
            demoted: 0,
            no_eviction_from_ns: now_ns,
            no_eviction_ns: NO_EVICTION_MIN_NS,
            restored: false,
            not_before_ns: 0,
        }
    }

    /// Restores some pages if none was demoted lately and memory stays below `until` bytes, of a
    /// budget of `budget` bytes. Where not all evicted pages have room, an eighth of the budget is
    /// kept free. A mover that is near the budget has to scan memory more often.
    pub fn tick(&mut self, pager: &Pager, until: u64, budget: u64, now_ns: u64) {
        let demoted = pager.account.demoted_pages.load(Relaxed);
        if demoted != self.demoted {
            if std::mem::take(&mut self.restored) {
                self.no_eviction_ns = (self.no_eviction_ns * 2).min(NO_EVICTION_MAX_NS);
            }
            (self.demoted, self.no_eviction_from_ns) = (demoted, now_ns);
            return;
        }
        let no_eviction_ns = now_ns.saturating_sub(self.no_eviction_from_ns);
        if no_eviction_ns > self.no_eviction_ns * NO_EVICTION_AGAIN {
            self.no_eviction_ns = NO_EVICTION_MIN_NS;
        }
        if no_eviction_ns < self.no_eviction_ns
            || now_ns < self.not_before_ns
            || pager.evicted_pages_total() == 0
        {
            return;
        }
        let all_has_room =
            pager.touched_bytes() + pager.account.overhead_bytes.load(Relaxed) < until;
        let until = if all_has_room { until } else { until.min(budget - budget / 8) };
        let mut room = || {
            let goes_on = !pager.pause_asked() && !pager.is_shut_down();
            goes_on && pager.physical_bytes() + ((PAGES_AT_ONCE * PAGE) as u64) < until
        };
        let mut restored = 0;
        for _ in 0..pager.table.len().min(REGIONS_AT_ONCE) {
            if restored >= PAGES_AT_ONCE || !room() {
                break;
            }
            self.region %= pager.table.len();
            let entry = pager.table.by_number(self.region);
            let of_region =
                restore_region(pager, &entry, PAGES_AT_ONCE - restored, Cause::Room, &mut room);
            pager.list_move(entry.region.address(), of_region as u64, None, 0, MoveReason::Room);
            restored += of_region;
            if restored < PAGES_AT_ONCE {
                self.region += 1;
                self.empty_in_row = if of_region > 0 { 0 } else { self.empty_in_row + 1 };
            }
        }
        self.restored |= restored > 0;
        let after_ns = sys::now_ns();
        self.not_before_ns = after_ns + (after_ns - now_ns) * PAUSES;
        if self.empty_in_row >= pager.table.len() {
            self.empty_in_row = 0;
            self.not_before_ns = after_ns + AGAIN_NS;
        }
    }
}

/// Restores up to `most` pages of a region, while there is `room`. Returns how many. Ends at the
/// first that cannot be restored.
pub(crate) fn restore_region(
    pager: &Pager,
    entry: &Entry,
    most: usize,
    cause: Cause,
    room: &mut impl FnMut() -> bool,
) -> usize {
    // The program has declared these pages cold (MADV_PAGEOUT).
    let stays_out = cause == Cause::Room && entry.region.pageout_requested.load(Relaxed) != 0;
    if entry.region.evicted.load(Relaxed) == 0 || stays_out {
        return 0;
    }
    let (mut restored, mut from) = (0, 0);
    while restored < most && room() {
        let Some((page, pages)) = next_run(pager, entry, from, cause) else { break };
        let address = entry.region.address() + page * PAGE;
        let pages = pages.min(most - restored);
        let back = pager.readahead_run(entry, address, pages, cause, |pager, shard| {
            Some(pager.uffd_of_shard(shard))
        });
        if back == 0 {
            break;
        }
        restored += back;
        from = page + back;
        pager.yield_if_due();
    }
    restored
}

/// The next consecutive pages from `from` on that are evicted and may be evicted again. Where no
/// plan wants them, those in files and those with an expectation stay evicted.
fn next_run(pager: &Pager, entry: &Entry, mut from: usize, cause: Cause) -> Option<(usize, usize)> {
    let planned = cause == Cause::Planned;
    let _inside = pager.gate.try_worker()?;
    loop {
        let store = entry.region.store.lock();
        let in_files = |page: usize| {
            let found = entry.words[page].load();
            let stored = found.stored().filter(|_| found.is(State::Evicted))?;
            Some(pager.tiers[usize::from(store.tier_of(stored)?)].files().is_some())
        };
        let is_out = |page: usize| in_files(page).is_some_and(|in_files| planned || !in_files);
        let first = (from..REGION / PAGE).find(|page| is_out(*page))?;
        // A page that is read stays claimed until the last of its run is read: pages in a file are
        // read one by one.
        let run = if in_files(first) == Some(true) { 1 } else { RUN };
        let out = (first..REGION / PAGE).take(run).take_while(|page| is_out(*page)).count();
        drop(store);
        let ranges = pager.ranges.lock();
        let may_leave = |page: usize| {
            let range = ranges.at(entry.region.address() + page * PAGE);
            range.is_some_and(|range| range.may_leave() && (planned || range.expected.is_none()))
        };
        match (first..first + out).take_while(|page| may_leave(*page)).count() {
            0 => from = first + 1,
            pages => return Some((first, pages)),
        }
    }
}
