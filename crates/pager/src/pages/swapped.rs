//! Pages that are in the kernel's swap, by what their words say, and those of them that came back.

use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State, tick_of};
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, PAGE};
use terrace_policy::victims::refaulted;
use terrace_tiers::SwapKind;

impl Mm {
    /// From now on so many managed pages are taken to be in the kernel's swap.
    pub(crate) fn set_swapped(&self, pages: u64) {
        if let Some((tier, swap)) = self.swap() {
            tier.stats.set_held(pages, swap.held_bytes(pages));
        }
    }

    /// The pages of `start..end`, in one region, are present: those that were paged out have come
    /// back. Returns how many.
    pub(crate) fn see_returns(&self, entry: &Entry, start: usize, end: usize) -> u64 {
        if entry.region.swapped.load(Relaxed) == 0 {
            return 0;
        }
        let _inside = self.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        (start..end)
            .step_by(PAGE)
            .filter(|address| self.see_return(entry, *address, now_ms))
            .count() as u64
    }

    /// Notes that a present page was swapped in; true if it had been paged out. Called by the
    /// mover.
    ///
    /// It came back between the last scan (or when it left) and now: in the middle, for all that is
    /// known.
    pub(crate) fn see_return(&self, entry: &Entry, address: usize, now_ms: u64) -> bool {
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
        let back = Snapshot::back(page, tick_of(now_ms - ago_ms));
        if word.transition(found, back).is_err() {
            return false;
        }
        entry.region.swapped.fetch_sub(1, Relaxed);
        entry.region.restores.fetch_add(1, Relaxed);
        entry.region.refaults.fetch_add(1, Relaxed);
        self.account.promoted_pages.fetch_add(1, Relaxed);
        if let Some((tier, swap)) = self.swap() {
            // While swap is being taken away, nobody waits for what comes back.
            if swap.has_room() {
                let ns = self.faults.cost.of_swap_ns();
                // But for a disk, the kernel works in the thread that touched it.
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

    /// The contents of a range are gone or elsewhere: what comes there next was never paged out.
    /// Its regions are locked.
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
