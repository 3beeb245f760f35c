//! Pages that are in the kernel's swap, as far as their words say, and refaults of such pages.

use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State, tick_of};
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::refaulted;
use terrace_tiers::SwapKind;

impl Mm {
    /// Sets how many managed pages are taken to be in the kernel's swap.
    pub(crate) fn set_swapped(&self, pages: u64) {
        if let Some((tier, swap)) = self.swap() {
            tier.stats.set_held(pages, swap.held_bytes(pages));
        }
    }

    /// Notes that the pages of `start..end`, in one region, are present. Returns how many of them
    /// were paged out and have come back.
    pub(crate) fn note_swap_ins(&self, entry: &Entry, start: usize, end: usize) -> u64 {
        if entry.region.swapped.load(Relaxed) == 0 {
            return 0;
        }
        let _inside = self.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        (start..end)
            .step_by(PAGE)
            .filter(|address| self.note_swap_in(entry, *address, now_ms))
            .count() as u64
    }

    /// Notes that a present page was swapped in; true if it had been paged out. Called by the
    /// mover.
    ///
    /// It came back between the last scan, or its eviction, and now. The middle of that time is
    /// taken.
    pub(crate) fn note_swap_in(&self, entry: &Entry, address: usize, now_ms: u64) -> bool {
        let word = entry.word(address);
        let found = word.load();
        if !found.is_swapped() {
            return false;
        }
        let out_ms = found.age_ms(now_ms);
        let ago_ms = out_ms.min(now_ms.saturating_sub(self.account.scanned_ms.load(Relaxed))) / 2;
        let page = refaulted(
            found.refaults(),
            out_ms - ago_ms,
            self.mover.refault_distance_ms.load(Relaxed),
        );
        let back = Snapshot::restored(page, tick_of(now_ms - ago_ms));
        if word.transition(found, back).is_err() {
            return false;
        }
        entry.region.swapped.fetch_sub(1, Relaxed);
        entry.region.restores.fetch_add(1, Relaxed);
        entry.region.refaults.fetch_add(1, Relaxed);
        self.account.promoted_pages.fetch_add(1, Relaxed);
        if let Some((tier, swap)) = self.swap() {
            // While swap is being taken away, no thread waits for what comes back.
            if swap.has_room() {
                let ns = self.faults.cost.of_swap_ns();
                // Except for a disk, the kernel works in the thread that touched the page.
                match swap.kind() {
                    SwapKind::Disk => self.account.add_stall(ns, 0),
                    _ => self.account.add_stall(0, ns),
                }
            }
            tier.stats.count_fault();
        }
        if page.probation && !self.probation.enter(entry.page_number(address)) {
            let _ = word.transition(back, back.off_probation());
        }
        true
    }

    /// Clears the paged-out mark of a range's pages, whose contents are gone or elsewhere. What
    /// comes there next was never paged out. The regions are locked.
    pub(crate) fn forget_swapped(&self, entries: &[Entry], start: usize, end: usize) {
        for entry in entries.iter().filter(|entry| entry.region.swapped.load(Relaxed) > 0) {
            let base = entry.region.address();
            for address in (start.max(base)..end.min(base + REGION)).step_by(PAGE) {
                let found = entry.word(address).load();
                if found.is_swapped()
                    && entry.word(address).transition(found, found.with(State::Resident, 0)).is_ok()
                {
                    entry.region.swapped.fetch_sub(1, Relaxed);
                }
            }
        }
    }
}
