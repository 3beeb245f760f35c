//! Brings pages back that nobody has touched, while there is room that nobody else wants: what left while the program grew would otherwise come back by
//! a fault each, for as long as it runs.

use crate::ahead::Cause;
use crate::moves::Why;
use crate::pager::Pager;
use crate::sys::PAGE;
use std::sync::atomic::Ordering::Relaxed;

/// Nothing must have left for so long, ns: at first, and at most.
const CALM_MIN_NS: u64 = 2_000_000_000;
const CALM_MAX_NS: u64 = 128_000_000_000;
/// Pages of one look: half a millisecond.
const AT_ONCE: usize = 64;
/// When nothing was found in all of memory, it is looked again after so long, ns.
const AGAIN_NS: u64 = 10_000_000_000;

/// The mover's.
pub(crate) struct Recall {
    /// The region to go on with.
    region: u32,
    /// Pages that had left when it was looked last, and since when it is so many.
    demoted: u64,
    calm_from_ns: u64,
    /// How long it must be calm: twice as long each time that pages leave again after some came back.
    calm_ns: u64,
    brought: bool,
    not_before_ns: u64,
}

impl Recall {
    pub fn new(now_ns: u64) -> Recall {
        Recall { region: 0, demoted: 0, calm_from_ns: now_ns, calm_ns: CALM_MIN_NS, brought: false, not_before_ns: 0 }
    }

    /// Brings some pages back if all is calm and memory stays below `until` bytes. True if there may be more to do soon.
    pub fn look(&mut self, pager: &Pager, until: u64, now_ns: u64) -> bool {
        let demoted = pager.account.demoted_pages.load(Relaxed);
        if demoted != self.demoted {
            if std::mem::take(&mut self.brought) {
                self.calm_ns = (self.calm_ns * 2).min(CALM_MAX_NS);
            }
            (self.demoted, self.calm_from_ns) = (demoted, now_ns);
            return false;
        }
        let calm_ns = now_ns - self.calm_from_ns;
        if calm_ns > self.calm_ns.saturating_mul(8) {
            self.calm_ns = CALM_MIN_NS;
        }
        if calm_ns < self.calm_ns || now_ns < self.not_before_ns || pager.pause_asked() || pager.is_retired() {
            return false;
        }
        let mut brought = 0;
        for _ in 0..pager.table.len() {
            let has_room = || pager.physical_bytes() + ((AT_ONCE * PAGE) as u64) < until;
            while brought < AT_ONCE && has_room() {
                let back = self.some_of_region(pager);
                if back == 0 {
                    break;
                }
                brought += back;
            }
            if brought >= AT_ONCE || !has_room() {
                self.brought |= brought > 0;
                return brought > 0;
            }
            self.region = (self.region + 1) % pager.table.len();
        }
        self.brought |= brought > 0;
        self.not_before_ns = now_ns + AGAIN_NS;
        false
    }

    /// Returns how many pages of the present region came back.
    fn some_of_region(&self, pager: &Pager) -> usize {
        if self.region >= pager.table.len() {
            return 0;
        }
        let entry = pager.table.by_number(self.region);
        let region = entry.region;
        if region.evicted.load(Relaxed) == 0 {
            region.asked_out.store(0, Relaxed);
            return 0;
        }
        // What the program has sent out it knows to be cold.
        if region.asked_out.load(Relaxed) != 0 {
            return 0;
        }
        let mut from = 0;
        while let Some(page) = entry.words[from..].iter().position(|word| word.seems_evicted()).map(|page| from + page) {
            let address = region.address() + page * PAGE;
            let pages = pager.pages_out(&entry, address, region.address() + crate::table::REGION);
            let back =
                pager.restore_ahead(&entry, address, pages, Cause::Room, |pager, shard| Some(pager.descriptors.uffds[shard].load(Relaxed)));
            if back > 0 {
                pager.list_move(region.address(), back as u64, None, 0, Why::Room);
                return back;
            }
            // One that cannot come back now, or lies in a file.
            from = page + pages;
        }
        0
    }
}
