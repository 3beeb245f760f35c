//! The tier `swap`: pages that the mover chooses leave by `madvise(MADV_PAGEOUT)` for whatever the
//! kernel swaps to, and come back by the kernel's own faults, in which no thread of ours takes
//! part.
//!
//! To the state machine such a page is Resident: its contents are the kernel's to keep, through
//! fork, discard, mremap, munmap and UFFDIO_MOVE. That it was paged out is a mark in its word, with
//! the time. The mark is a hint and the page table the truth: a mark too many or too few costs a
//! wrong guess about a page, never its contents. Marks end when a scan, or the search for victims,
//! finds the page present: then it came back, and is treated as one that a handler brought back, a
//! scan later than it was.
//!
//! The kernel refuses without a word (no room, a control group's limit, pages locked, pinned or
//! shared with a child): so it is looked at afterwards what has left.

use crate::evict::auto::{MEASURE_EVERY_NS, SAMPLE, measure_swap};
use crate::evict::{EvictOutcome, EvictRequest, Evictor, Verdict, is_refused, leaves};
use crate::pager::Pager;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State, tick_of};
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, PAGE, Run};
use terrace_policy::victims::returned;
use terrace_tiers::{Swap, SwapKind, Tier};

/// Pages paged out at a time, for which a region's lock is held: 0.6 ms with zram.
const CHUNK: usize = 64;
/// Pages swapped in and moved to a tier of ours at a time, for which a region's lock is held: 0.5
/// ms with zstd.
const DENSIFIED: usize = 16;

/// What reading a page from a disk takes, ns: what a fast NVMe drive needs, so that no less is told.
const DISK_READ_NS: u64 = 50_000;

struct Marked<'a> {
    entry: Entry<'a>,
    address: usize,
    /// The word as we left it.
    marked: Snapshot,
}

impl Marked<'_> {
    fn word(&self) -> Snapshot {
        self.entry.word(self.address).load()
    }
}

impl Pager {
    /// The tier `swap`, if it is in the list.
    pub(crate) fn swap(&self) -> Option<(&Tier, &Swap)> {
        let tier = &self.tiers[self.swap_number()?];
        Some((tier, &**tier.swap()?))
    }

    /// Its number in the list of tiers.
    pub(crate) fn swap_number(&self) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.swap().is_some())
    }

    /// The densest tier that is not the kernel's, of those that take pages.
    pub(crate) fn densest_own(&self) -> Option<usize> {
        (1..self.tiers.len()).rev().find(|tier| is_own(&self.tiers[*tier]))
    }

    /// The tier for what is meant for `tier`: this one, or where it is disabled the next of ours
    /// that is not, or else the one before.
    pub(crate) fn enabled_tier(&self, tier: usize) -> usize {
        if self.tiers[tier].is_disabled() { own_tier(self, tier) } else { tier }
    }

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
        let page = returned(found.returns(), out_ms - ago_ms, self.mover.soon_ms.load(Relaxed));
        let back = Snapshot::back(page, tick_of(now_ms - ago_ms));
        if word.transition(found, back).is_err() {
            return false;
        }
        entry.region.swapped.fetch_sub(1, Relaxed);
        entry.region.restores.fetch_add(1, Relaxed);
        entry.region.returned.fetch_add(1, Relaxed);
        self.account.promoted_pages.fetch_add(1, Relaxed);
        if let Some((tier, swap)) = self.swap() {
            // While swap is being taken away, nobody waits for what comes back.
            if swap.has_room() {
                let ns = self.fault_cost.of_swap_ns();
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

impl Evictor {
    /// Pages out what the wish says, if its tier is the kernel's swap and that takes pages.
    /// Otherwise `None`, and another tier is asked for.
    pub fn page_out(
        &mut self,
        pager: &Pager,
        entry: Entry,
        wish: &mut EvictRequest,
    ) -> Option<EvictOutcome> {
        let swap = pager.tiers.get(wish.tier)?.swap()?;
        if !swap.accepts() {
            wish.tier = own_tier(pager, wish.tier);
            return None;
        }
        let mut taken = EvictOutcome { next: wish.from, ..EvictOutcome::default() };
        let now_ms = sys::now_ns() / 1_000_000;
        while (taken.evicted as usize) < wish.pages && taken.next < REGION / PAGE {
            if pager.is_frozen() || !swap.accepts() {
                taken.next = REGION / PAGE;
                break;
            }
            let inside = pager.gate.worker();
            let region = pager.table.lock(&entry);
            if !pager.has_small_pages(&entry) {
                taken.refused += 1;
                taken.next = REGION / PAGE;
                break;
            }
            let limit = CHUNK.min(wish.pages - taken.evicted as usize);
            let (marked, next) =
                self.mark(pager, &entry, limit, taken.next..REGION / PAGE, &mut taken, |word| {
                    wish.judge(word, None, now_ms)
                });
            taken.next = next;
            self.send(pager, &marked, &mut taken);
            drop(region);
            drop(inside);
            pager.tell_progress();
            // Shared with a child, most likely all of it: not a whole region of refusals.
            if taken.refused as usize >= CHUNK / 4 && taken.refused > taken.evicted {
                taken.next = REGION / PAGE;
            }
        }
        Some(taken)
    }

    /// As [`Evictor::end_probation`], into the kernel's swap.
    pub fn page_out_leaving(&mut self, pager: &Pager, pages: &[u32], mut report: impl FnMut(u32)) {
        let _inside = pager.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        let (mut taken, mut marked) = (EvictOutcome::default(), Vec::with_capacity(pages.len()));
        for number in pages {
            let (entry, address) = pager.table.page(*number);
            if !entry.word(address).load().is_on_probation() {
                continue;
            }
            if !pager.is_frozen() && !is_refused(&entry, now_ms) {
                let page = (address - entry.region.address()) / PAGE;
                let _region = pager.table.lock(&entry);
                if pager.has_small_pages(&entry) {
                    // The kernel keeps no copies of ours.
                    pager.drop_copy(&entry, address, entry.word(address).load().without_copy());
                    marked.append(
                        &mut self
                            .mark(pager, &entry, 1, page..page + 1, &mut taken, |word| {
                                leaves(word, now_ms)
                            })
                            .0,
                    );
                }
            }
            pager.end_probation(&entry, address);
        }
        // They are scattered over regions, whose locks nobody holds any more: if one is unmapped
        // now, or something else is there, the kernel pages that out, whose contents are
        // safe with it whatever they are.
        self.send(pager, &marked, &mut taken);
        marked
            .iter()
            .filter(|page| page.word() == page.marked)
            .for_each(|page| report(page.entry.number));
        pager.tell_progress();
    }

    /// Moves pages of a region that have been in the kernel's swap for long into the tier `to`, of
    /// ours and denser. Returns how many.
    ///
    /// They are brought in first, as any page is that we evict: nothing of the kernel's swap is
    /// moved about.
    pub fn recompress_swapped(&mut self, pager: &Pager, entry: Entry, to: usize) -> u32 {
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let wish = EvictRequest { pages: 1, pressure: 0, anything: false, tier: to, from: 0 };
        let (base, mut from, mut stored) = (entry.region.address(), 0, 0);
        while from < REGION / PAGE && entry.region.swapped.load(Relaxed) > 0 && !pager.is_frozen() {
            let _inside = pager.gate.worker();
            let _region = pager.table.lock(&entry);
            if !pager.has_small_pages(&entry) {
                break;
            }
            let (now_ms, soon_ms) = (sys::now_ns() / 1_000_000, pager.mover.soon_ms.load(Relaxed));
            let mut pages = Vec::with_capacity(DENSIFIED);
            while from < REGION / PAGE && pages.len() < DENSIFIED {
                let found = entry.words[from].load();
                if found.is_swapped() && found.age_ms(now_ms) > soon_ms {
                    pages.push((from, found));
                }
                from += 1;
            }
            let pieces = pager.ranges.lock().overlapping(base, base + REGION);
            let evictable = |address: usize| {
                pieces
                    .iter()
                    .any(|p| p.attributes.may_leave() && (p.start..p.end).contains(&address))
            };
            let (mut taken, mut slot) = (EvictOutcome::default(), 0);
            for (page, found) in pages.drain(..).filter(|(page, _)| evictable(base + page * PAGE)) {
                let address = base + page * PAGE;
                // What came back meanwhile is in use.
                let in_swap =
                    !sys::is_present(pagemap, address) && sys::is_mapped(pagemap, address);
                if !in_swap || sys::populate_for_writing(address, PAGE).is_err() {
                    continue;
                }
                pager.account.resident_pages.fetch_add(1, Relaxed);
                if entry.word(address).transition(found, found.with(State::Resident, 0)).is_err() {
                    continue;
                }
                entry.region.swapped.fetch_sub(1, Relaxed);
                let (mut claimed, mut staged) = (Vec::new(), Vec::new());
                self.claim(
                    pager,
                    &entry,
                    1,
                    page..page + 1,
                    &mut taken,
                    |_, _| Verdict::Take,
                    &mut claimed,
                );
                self.stage(pager, &entry, &claimed, slot, &mut taken, &mut staged);
                slot += staged.len();
                stored += self.store(pager, &entry, &staged, 0, 0, Some(wish));
            }
            if slot > 0 {
                pager.staging.empty(0, slot);
            }
            pager.tell_progress();
        }
        stored
    }

    /// Marks up to `limit` present pages among `pages` of the region as paged out, as `judge` says.
    /// Also returns where it stopped.
    fn mark<'a>(
        &mut self,
        pager: &Pager,
        entry: &Entry<'a>,
        limit: usize,
        pages: Range<usize>,
        taken: &mut EvictOutcome,
        judge: impl Fn(Snapshot) -> Verdict,
    ) -> (Vec<Marked<'a>>, usize) {
        let mut marked = Vec::with_capacity(limit);
        let base = entry.region.address();
        let now_ms = sys::now_ns() / 1_000_000;
        let pieces =
            pager.ranges.lock().overlapping(base + pages.start * PAGE, base + pages.end * PAGE);
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        for piece in pieces.into_iter().filter(|piece| piece.attributes.may_leave()) {
            let Ok((count, _)) = sys::scan_present(pagemap, piece.start, piece.end, &mut self.runs)
            else {
                continue;
            };
            for address in self.runs[..count]
                .iter()
                .flat_map(|run| (run.start as usize..run.end as usize).step_by(PAGE))
            {
                if marked.len() == limit {
                    return (marked, (address - base) / PAGE);
                }
                let word = entry.word(address);
                // That it came back may be seen only now.
                pager.see_return(entry, address, now_ms);
                let mut before = word.load();
                if !before.is_present() {
                    continue;
                }
                match judge(before) {
                    Verdict::Take => {}
                    // (Nothing is watched here: memory that only the kernel swaps is not
                    // registered.)
                    Verdict::Leave | Verdict::Watch(_) => continue,
                    Verdict::Change(to) => {
                        taken.changed |= word.transition(before, to).is_ok();
                        continue;
                    }
                }
                // The kernel keeps no copies of ours.
                if before.is(State::Cached) {
                    pager.drop_copy(entry, address, before.without_copy());
                    before = word.load();
                }
                if !before.is(State::Resident) {
                    continue;
                }
                let to = before.swapped_at(tick_of(now_ms));
                if word.transition(before, to).is_ok() {
                    entry.region.swapped.fetch_add(1, Relaxed);
                    marked.push(Marked { entry: *entry, address, marked: to });
                }
            }
        }
        (marked, pages.end)
    }

    /// Measures, if that is due, what a fault costs whose page is in the kernel's swap: on copies of
    /// the first pages of these runs.
    fn measure_swap_fault(&mut self, pager: &Pager, swap: &Swap, runs: &[(usize, usize)]) {
        let now_ns = sys::now_ns();
        let pages: usize = runs.iter().map(|(_, bytes)| bytes / PAGE).sum();
        // Of a few pages, one during which the mover was preempted would be the median.
        if self.swap_measured_ns > 0 && now_ns - self.swap_measured_ns < MEASURE_EVERY_NS
            || pages < SAMPLE / 4
        {
            return;
        }
        self.swap_measured_ns = now_ns;
        if swap.kind() == SwapKind::Disk {
            // What has just been written there is still in memory.
            return pager.fault_cost.measured_swap(DISK_READ_NS);
        }
        let fill = |memory: usize| {
            runs.iter().fold(0, |filled, (start, bytes)| {
                let wanted = (bytes / PAGE).min(SAMPLE - filled);
                filled + sys::copy_pages(*start, memory + filled * PAGE, wanted)
            })
        };
        if let Some((_, home_ns)) = measure_swap(pager, sys::now_ns, fill) {
            pager.fault_cost.measured_swap(home_ns);
        }
    }

    /// Has the kernel page out what is marked, and takes the marks off what stayed.
    fn send(&mut self, pager: &Pager, marked: &[Marked], taken: &mut EvictOutcome) {
        let (Some((tier, swap)), Some(first)) = (pager.swap(), marked.first()) else { return };
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let runs = marked.chunk_by(|page, next| next.address == page.address + PAGE);
        let runs: Vec<(usize, usize)> =
            runs.map(|run| (run[0].address, run.len() * PAGE)).collect();
        self.measure_swap_fault(pager, swap, &runs);
        let begun_ns = sys::now_ns();
        let answered = sys::page_out(self.own_process, &runs);
        let call_ns = sys::now_ns() - begun_ns;
        let now = tick_of(sys::now_ns() / 1_000_000);
        let mut refused = 0;
        for pages in marked.chunk_by(|page, next| {
            page.entry.number == next.entry.number && page.address < next.address
        }) {
            let (start, end) = (pages[0].address, pages[pages.len() - 1].address + PAGE);
            // If the kernel does not say what has left, the next scan of everything will find what
            // stayed.
            let count = sys::scan_present(pagemap, start, end, &mut self.runs)
                .map_or(0, |(count, _)| count);
            for page in pages.iter().filter(|page| is_in(&self.runs[..count], page.address)) {
                refused += 1;
                let as_before = Snapshot::new(State::Resident, page.marked.returns(), now, 0);
                if page.entry.word(page.address).transition(page.marked, as_before).is_ok() {
                    page.entry.region.swapped.fetch_sub(1, Relaxed);
                }
            }
        }
        let gone = marked.len() - refused;
        if let Some(auto) = self.auto.as_mut().filter(|_| gone > 0) {
            auto.paged_out.learn(call_ns, gone as u64);
        }
        taken.eligible += marked.len() as u32;
        taken.evicted += gone as u32;
        taken.refused += refused as u32;
        pager.account.failed_moves.fetch_add(refused as u64, Relaxed);
        pager.account.demoted_pages.fetch_add(gone as u64, Relaxed);
        pager.account.resident_pages.fetch_sub(gone as i64, Relaxed);
        pager.set_swapped(tier.stats.pages() + gone as u64);
        if gone > 0 && swap.took(gone as u64) {
            swap.look(tier.stats.pages());
        }
        if refused == 0 {
            return;
        }
        if !sys::mapped_exclusively(pagemap, first.address) {
            pager.account.shared_tries.fetch_add(refused as u64, Relaxed);
        } else if gone == 0 && answered && swap.stayed(refused as u64) {
            swap.look(tier.stats.pages());
            if swap.kind() != SwapKind::None {
                let note = "the kernel takes no pages into its swap, though there is room in it: has a control group a limit of swap?";
                pager.warn_once(&pager.warned.swap_refuses, note);
            }
        }
    }
}

/// Whether it is one of ours and takes pages.
fn is_own(tier: &Tier) -> bool {
    tier.is_ours() && !tier.is_disabled()
}

/// The tier for what the kernel's swap, at `swap`, does not take: the next, or else the one before.
pub(crate) fn own_tier(pager: &Pager, swap: usize) -> usize {
    let own = |tier: &usize| is_own(&pager.tiers[*tier]);
    (swap..pager.tiers.len()).chain((1..swap).rev()).find(own).unwrap_or(swap)
}

fn is_in(runs: &[Run], address: usize) -> bool {
    let after = runs.partition_point(|run| run.end <= address as u64);
    runs.get(after).is_some_and(|run| run.start <= address as u64)
}
