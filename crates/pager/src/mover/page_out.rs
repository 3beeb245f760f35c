//! Eviction that the program asks for, by MADV_PAGEOUT.

use super::state::Mover;
use crate::evict::EvictRequest;
use crate::pager::Pager;
use crate::pages::control::DO;
use crate::pages::mm::Mode;
use crate::pages::table::REGION;
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, PAGE, Run};
use terrace_policy::eviction::victims::{PRESSURE_MAX, Reason};

impl Mover {
    /// Serves [`Pager::page_out`].
    pub(super) fn page_out(&mut self) {
        let pager = self.pager;
        let line = &pager.mover.page_out;
        let Some((_, start, end)) = line.asked() else { return };
        let before = self.demoted();
        let mut address = start;
        if let Some(far) = self.far.as_mut().filter(|_| pager.densest_own_tier().is_none()) {
            far.page_out(pager, start, end);
            address = end;
        }
        while address < end && !pager.is_frozen() && !pager.pause_asked() {
            if pager.table.get(address).is_none() {
                // Never scanned: if nothing is there, it needs no record.
                let mut first = [Run::default()];
                let found = sys::scan_present(
                    pager.descriptors.pagemap.load(Relaxed),
                    address,
                    end,
                    &mut first,
                );
                address = match found {
                    Ok((0, _)) => end,
                    Ok(_) => address.max(first[0].start as usize),
                    Err(_) => (address / REGION + 1) * REGION,
                };
                if address >= end || found.is_err() {
                    continue;
                }
            }
            let region_end = (address / REGION + 1) * REGION;
            if let Some(entry) = pager.table.get_or_create(address) {
                let pages = (end.min(region_end) - address) / PAGE;
                let request = EvictRequest {
                    pages,
                    pressure: PRESSURE_MAX,
                    force: false,
                    tier: self.first_and_densest().0,
                    from: address % REGION / PAGE,
                };
                let outcome = self.evictor.evict(pager, entry, request);
                self.list(Reason::Asked, entry.number, outcome.evicted.into(), request.tier);
                if entry.region.evicted.load(Relaxed) > 0 {
                    entry.region.pageout_requested.store(1, Relaxed);
                }
            }
            address = region_end;
        }
        self.count(Reason::Asked, before);
        line.done();
    }
}

impl Pager {
    /// Evicts what is resident in `start..start + len`, as MADV_PAGEOUT asks: the program will not
    /// need it soon. False if nothing is evicted at present; then the kernel may try.
    pub fn page_out(&self, start: usize, len: usize) -> bool {
        if self.mode() != Mode::Active || self.is_frozen() || !self.mover.running.load(Acquire) {
            return false;
        }
        self.mover.page_out.ask(
            DO,
            start,
            start + len,
            || self.wake_mover(),
            || !self.is_shut_down(),
        );
        true
    }
}
