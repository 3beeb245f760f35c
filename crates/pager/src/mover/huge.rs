//! Huge pages for regions that stay hot (`--huge-pages hot`).
//!
//! Managed memory is kept from huge pages ([`Pager::manage`]). UFFDIO_MOVE splits one before it
//! takes a page out of it, and repeats that for ever while the huge page is pinned. A region
//! becomes huge by MADV_COLLAPSE (0.7 ms) if samples show for some seconds that it is hot. All of
//! its pages must be in DRAM meanwhile. It has its `huge` flag from then on: nothing is claimed
//! there before [`crate::Mm::ensure_split`] has split it in a way that ends.
//!
//! MADV_COLD of a single page splits a huge page (0.2 ms), or leaves it unchanged if it is pinned
//! or a child shares it. PAGEMAP_SCAN shows which. It shows only whole ones. One that was split in
//! part, as by a write while a child shared it, is made whole again first. A pin prevents that as
//! well.
//!
//! A page's word does not show any of this: it is Resident.

use crate::memory::has_one_piece;
use crate::pager::Pager;
use crate::pages::table::{Entry, REGION, REGION_PAGES};
use std::sync::atomic::Ordering::*;
use terrace_control::settings::{Eviction, HugePages};
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::KEPT_PRESSURE;
use terrace_policy::eviction::victims::{Choice, Pressure, RegionView, VictimPolicy};

/// How often hot regions are searched for, ns.
const POLL_INTERVAL_NS: u64 = 1_000_000_000;
/// Scans in a row in which a region must be hot and whole to be stable.
const STEADY_SCANS: i16 = 3;
/// Longest time in which regions are made huge at a time, ns: 5 % of a CPU.
const POLL_NS: u64 = 50_000_000;
/// Scans for which a region that the kernel did not collapse is not tried again.
const REFUSED_SCANS: i16 = 60;
/// A region is hot if it has at least this part of the average's samples. A colder one may have to
/// be evicted. (For regions that no sample met, the model gives less than this.)
const HOT: f32 = 0.8;
/// A huge page must pay back within this time, s. `TRANSLATIONS` is the part of the time a program
/// waits for memory that goes to address translation (`docs/notes/2026-11-27-benchmarks.md`, *Huge
/// pages for hot memory*).
const HORIZON_S: f64 = 60.0;
const TRANSLATIONS: f64 = 0.2;
/// What making a huge page costs before it is measured, ns: 0.7 ms where the kernel has one at
/// hand, and 0.2 to split it. (It is 7 ms where the machine is virtual and its host has none.)
const COST_NS: f64 = 1e6;
/// A huge page is kept up to [`KEPT_PRESSURE`], as hot regions are, if it has more than this part
/// of the average.
const COOLED: f32 = 0.25;

/// Makes regions huge. Owned by the mover.
pub(crate) struct Huge {
    /// Number of scans in a row in which each region was hot and fully resident. A negative count
    /// says for how many scans it is not tried.
    steady: Vec<i16>,
    polled_ns: u64,
    /// Recent cost of making a region huge, ns.
    cost_ns: f64,
    /// Scratch: which regions have something resident.
    seen: Vec<bool>,
    order: Vec<Choice>,
}

impl Huge {
    /// Makes the state. `None` where no huge pages are wanted, no samples show what is hot, or no
    /// tier takes single pages. (In the last case managed memory is not kept from huge pages
    /// either.)
    pub fn new(pager: &Pager) -> Option<Huge> {
        let wanted = pager.settings.huge_pages == HugePages::Hot
            && pager.settings.evict == Eviction::Move
            && pager.moves();
        (wanted && pager.settings.policy.uses_samples() && pager.keeps_from_huge_pages()).then(
            || Huge {
                steady: Vec::new(),
                polled_ns: 0,
                cost_ns: COST_NS,
                seen: Vec::new(),
                order: Vec::new(),
            },
        )
    }

    /// Searches for hot regions at intervals, and makes some of them huge while there is room.
    /// `views` are those of the scan at `scanned_ns`.
    pub fn poll(
        &mut self,
        pager: &Pager,
        policy: &mut dyn VictimPolicy,
        views: &[RegionView],
        scanned_ns: u64,
    ) {
        let now_ns = sys::now_ns();
        if now_ns - self.polled_ns < POLL_INTERVAL_NS || scanned_ns < self.polled_ns {
            return;
        }
        self.polled_ns = now_ns;
        // So that the policy reads its samples even where no victims are needed.
        policy.rank(now_ns / 1_000_000, 0, views, &mut self.order);
        self.steady.resize(pager.table.len() as usize, 0);
        // The share of all samples above which less waiting saves as much time as making the region
        // huge costs.
        let worth = self.cost_ns / 1e9 / (HORIZON_S * TRANSLATIONS);
        let least_heat = HOT.max((worth * views.len() as f64) as f32);
        for view in views {
            let entry = pager.table.by_number(view.region);
            let steady = &mut self.steady[view.region as usize];
            let whole = view.resident_pages as usize == REGION_PAGES && !entry.is_huge();
            *steady = match *steady {
                scans if scans < 0 => scans + 1,
                scans
                    if whole && policy.heat(view.region).is_some_and(|heat| heat >= least_heat) =>
                {
                    (scans + 1).min(STEADY_SCANS)
                }
                _ => 0,
            };
            let room =
                pager.physical_bytes() + REGION as u64 <= pager.account.budget_bytes.load(Relaxed);
            let begun_ns = sys::now_ns();
            if *steady == STEADY_SCANS
                && room
                && begun_ns - now_ns < POLL_NS
                && !pager.pause_asked()
            {
                let begun_cpu_ns = sys::thread_cpu_ns();
                *steady = -REFUSED_SCANS;
                if pager.make_huge(&entry) {
                    *steady = 0;
                    self.cost_ns +=
                        ((sys::thread_cpu_ns() - begun_cpu_ns) as f64 - self.cost_ns) / 16.0;
                }
            }
        }
        self.seen.clear();
        self.seen.resize(self.steady.len(), false);
        views.iter().for_each(|view| self.seen[view.region as usize] = true);
        for number in (0..self.steady.len() as u32).filter(|number| !self.seen[*number as usize]) {
            pager.forget_empty(&pager.table.by_number(number));
        }
    }
}

/// Whether no victims are to be looked for in a region, because it is a huge page that is still in
/// use.
pub(crate) fn is_kept_huge(entry: &Entry, policy: &dyn VictimPolicy, pressure: Pressure) -> bool {
    entry.is_huge()
        && pressure < KEPT_PRESSURE
        && policy.heat(entry.number).is_none_or(|heat| heat >= COOLED)
}

impl Pager {
    /// Whether managed memory is advised against huge pages. The kernel's move of a pinned one may
    /// never end, and moving single pages would split it anyway. (To another node they are moved
    /// whole.)
    pub(crate) fn keeps_from_huge_pages(&self) -> bool {
        self.moves() && self.tiers[1..].iter().any(|tier| tier.node().is_none())
    }

    /// Makes one huge page of a region, if all of it is present and the kernel can.
    pub(crate) fn make_huge(&self, entry: &Entry) -> bool {
        let base = entry.region.address();
        let _inside = self.gate.worker();
        let _region = self.table.lock(entry);
        if self.is_frozen()
            || entry.is_huge()
            || entry.words.iter().any(|word| !word.load().is_present())
        {
            return false;
        }
        // Without the kernel's count of failed splits a split cannot be verified. Collapsing would
        // also refill freed pages with zeros.
        if sys::failed_splits().is_none() || self.present_bytes(base) != Ok(REGION) {
            return false;
        }
        let pieces = self.ranges.lock().overlapping(base, base + REGION);
        if !has_one_piece(&pieces, base, base + REGION) {
            return false;
        }
        // The kernel makes none from write-protected pages. Unprotected, they seem written, and
        // stay. Pages between tracked ones are protected too, and their words do not say so.
        if pieces[0].attributes.registered && self.descriptors.tracks_writes.load(Relaxed) {
            let _ = sys::uffd_write_protect(self.uffd_of(base), base, REGION, false);
        }
        // A page that is evicted soon would split all of it.
        (0..REGION_PAGES).for_each(|page| self.end_probation(entry, base + page * PAGE));
        entry.region.huge.store(1, Relaxed);
        let made = self.collapse(base);
        if made {
            self.account.huge_made.fetch_add(1, Relaxed);
        } else if self.forbid_huge_pages(base) {
            entry.region.huge.store(0, Relaxed);
        }
        made
    }

    /// Clears the flag where nothing is present any more, and so no huge page is. This covers
    /// memory that the program freed in parts, or past the C library.
    fn forget_empty(&self, entry: &Entry) {
        if entry.is_huge() {
            let _inside = self.gate.worker();
            let _region = self.table.lock(entry);
            if self.present_bytes(entry.region.address()) == Ok(0) {
                entry.region.huge.store(0, Relaxed);
            }
        }
    }
}
