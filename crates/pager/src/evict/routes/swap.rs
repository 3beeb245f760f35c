//! The tier `swap`: pages that the mover chooses are swapped out with `madvise(MADV_PAGEOUT)` to
//! whatever the kernel swaps to. The kernel's own faults restore them, without any pager thread.
//!
//! To the state machine such a page is Resident. The kernel keeps its contents through fork,
//! discard, mremap, munmap and UFFDIO_MOVE. A mark in its word, with the time, says that it was
//! paged out. The mark is a hint and the page table the truth. A mark too many or too few costs a
//! wrong guess about a page, never its contents. A mark ends when a scan, or the search for
//! victims, finds the page present. Then it has refaulted, and is treated as one that a handler
//! restored, a scan later than it was.
//!
//! The kernel refuses without an error (no room, a control group's limit, pages locked, pinned or
//! shared with a child). So which pages were swapped out is checked afterwards.

use crate::evict::auto::{MEASURE_EVERY_NS, SAMPLE, measure_swap};
use crate::evict::claim::is_refused;
use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor, Verdict, probation_verdict};
use crate::evict::routes::route::Route;
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{Snapshot, State, tick_of};
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, PAGE, Run};
use terrace_tiers::{Swap, SwapKind, Tier};

/// Pages paged out at a time, while a region's lock is held: 0.6 ms with zram.
const CHUNK: usize = 64;
/// Pages swapped in and moved to a tier of ours at a time, while a region's lock is held: 0.5 ms
/// with zstd.
const SWAPPED_IN_AT_ONCE: usize = 16;

/// Cost of reading a page from a disk, ns: that of a fast NVMe drive, so that the cost is not
/// understated.
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

/// The route into the kernel's swap.
pub(super) struct ToSwap;

impl Route for ToSwap {
    fn accepts(&self, tier: &Tier) -> bool {
        tier.swap().is_some_and(|swap| swap.accepts())
    }

    fn ratio(&self, _evictor: &Evictor, mm: &Mm, tier: usize) -> Option<f64> {
        mm.tiers[tier].swap().map(|swap| swap.ratio())
    }

    fn evict(
        &self,
        evictor: &mut Evictor,
        mm: &Mm,
        entry: Entry,
        request: EvictRequest,
    ) -> EvictOutcome {
        let Some(swap) = mm.tiers[request.tier].swap() else { return EvictOutcome::default() };
        let mut outcome = EvictOutcome { next: request.from, ..EvictOutcome::default() };
        let now_ms = sys::now_ns() / 1_000_000;
        while (outcome.evicted as usize) < request.pages && outcome.next < REGION / PAGE {
            if mm.is_frozen() || !swap.accepts() {
                outcome.next = REGION / PAGE;
                break;
            }
            let inside = mm.gate.worker();
            let region = mm.table.lock(&entry);
            if !mm.ensure_split(&entry) {
                outcome.refused += 1;
                outcome.next = REGION / PAGE;
                break;
            }
            let limit = CHUNK.min(request.pages - outcome.evicted as usize);
            let (marked, next) = evictor.mark_paged_out(
                mm,
                &entry,
                limit,
                outcome.next..REGION / PAGE,
                &mut outcome,
                |word| request.judge(word, None, now_ms),
            );
            outcome.next = next;
            evictor.page_out_marked(mm, &marked, &mut outcome);
            drop(region);
            drop(inside);
            mm.signal_progress();
            // Most likely all of it is shared with a child: avoid a whole region of refusals.
            if outcome.refused as usize >= CHUNK / 4 && outcome.refused > outcome.evicted {
                outcome.next = REGION / PAGE;
            }
        }
        outcome
    }

    fn end_probation(
        &self,
        evictor: &mut Evictor,
        mm: &Mm,
        pages: &[u32],
        _tier: usize,
        report: &mut dyn FnMut(u32),
    ) {
        let _inside = mm.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        let (mut outcome, mut marked) = (EvictOutcome::default(), Vec::with_capacity(pages.len()));
        for number in pages {
            let (entry, address) = mm.table.page(*number);
            if !entry.word(address).load().is_on_probation() {
                continue;
            }
            if !mm.is_frozen() && !is_refused(&entry, now_ms) {
                let page = (address - entry.region.address()) / PAGE;
                let _region = mm.table.lock(&entry);
                if mm.ensure_split(&entry) {
                    // The kernel keeps no copies of ours.
                    mm.drop_copy(&entry, address, entry.word(address).load().without_copy());
                    marked.append(
                        &mut evictor
                            .mark_paged_out(mm, &entry, 1, page..page + 1, &mut outcome, |word| {
                                probation_verdict(word, now_ms)
                            })
                            .0,
                    );
                }
            }
            mm.end_probation(&entry, address);
        }
        // They are scattered over regions whose locks are no longer held. If one is unmapped now,
        // or something else is mapped there, the kernel pages that out; its contents are safe in
        // swap whatever they are.
        evictor.page_out_marked(mm, &marked, &mut outcome);
        marked
            .iter()
            .filter(|page| page.word() == page.marked)
            .for_each(|page| report(page.entry.number));
        mm.signal_progress();
    }
}

impl Evictor {
    /// Moves pages of a region that have been in the kernel's swap for long into the tier `to`, a
    /// denser one of ours. Returns how many.
    ///
    /// They are swapped in first, and then evicted as any other page: nothing is moved within the
    /// kernel's swap.
    pub fn recompress_swapped(&mut self, mm: &Mm, entry: Entry, to: usize) -> u32 {
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
        let request = EvictRequest { pages: 1, pressure: 0, force: false, tier: to, from: 0 };
        let (base, mut from, mut stored) = (entry.region.address(), 0, 0);
        while from < REGION / PAGE && entry.region.swapped.load(Relaxed) > 0 && !mm.is_frozen() {
            let _inside = mm.gate.worker();
            let _region = mm.table.lock(&entry);
            if !mm.ensure_split(&entry) {
                break;
            }
            let (now_ms, refault_distance_ms) =
                (sys::now_ns() / 1_000_000, mm.mover.refault_distance_ms.load(Relaxed));
            let mut pages = Vec::with_capacity(SWAPPED_IN_AT_ONCE);
            while from < REGION / PAGE && pages.len() < SWAPPED_IN_AT_ONCE {
                let found = entry.words[from].load();
                if found.is_swapped() && found.age_ms(now_ms) > refault_distance_ms {
                    pages.push((from, found));
                }
                from += 1;
            }
            let pieces = mm.ranges.lock().overlapping(base, base + REGION);
            let evictable = |address: usize| {
                pieces
                    .iter()
                    .any(|p| p.attributes.may_leave() && (p.start..p.end).contains(&address))
            };
            let (mut outcome, mut slot) = (EvictOutcome::default(), 0);
            for (page, found) in pages.drain(..).filter(|(page, _)| evictable(base + page * PAGE)) {
                let address = base + page * PAGE;
                // A page that refaulted meanwhile is in use.
                let in_swap =
                    !sys::is_present(pagemap, address) && sys::is_mapped(pagemap, address);
                if !in_swap || sys::populate_for_writing(address, PAGE).is_err() {
                    continue;
                }
                mm.account.resident_pages.fetch_add(1, Relaxed);
                if entry.word(address).transition(found, found.with(State::Resident, 0)).is_err() {
                    continue;
                }
                entry.region.swapped.fetch_sub(1, Relaxed);
                let (mut claimed, mut staged) = (Vec::new(), Vec::new());
                self.claim(
                    mm,
                    &entry,
                    1,
                    page..page + 1,
                    &mut outcome,
                    |_, _| Verdict::Take,
                    &mut claimed,
                );
                self.stage(mm, &entry, &claimed, slot, &mut outcome, &mut staged);
                slot += staged.len();
                stored += self.store(mm, &entry, &staged, 0, 0, Some(request));
            }
            if slot > 0 {
                mm.staging.empty(0, slot);
            }
            mm.signal_progress();
        }
        stored
    }

    /// Marks up to `limit` present pages among `pages` of the region as paged out, as `judge` says.
    /// Also returns where it stopped.
    fn mark_paged_out<'a>(
        &mut self,
        mm: &Mm,
        entry: &Entry<'a>,
        limit: usize,
        pages: Range<usize>,
        outcome: &mut EvictOutcome,
        judge: impl Fn(Snapshot) -> Verdict,
    ) -> (Vec<Marked<'a>>, usize) {
        let mut marked = Vec::with_capacity(limit);
        let base = entry.region.address();
        let now_ms = sys::now_ns() / 1_000_000;
        let pieces =
            mm.ranges.lock().overlapping(base + pages.start * PAGE, base + pages.end * PAGE);
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
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
                // A refault may be seen only now.
                mm.note_swap_in(entry, address, now_ms);
                let mut before = word.load();
                if !before.is_present() {
                    continue;
                }
                match judge(before) {
                    Verdict::Take => {}
                    // (No writes are tracked here: memory that only the kernel swaps is not
                    // registered.)
                    Verdict::Leave | Verdict::Track(_) => continue,
                    Verdict::Change(to) => {
                        outcome.changed |= word.transition(before, to).is_ok();
                        continue;
                    }
                }
                // The kernel keeps no copies of ours.
                if before.is(State::Cached) {
                    mm.drop_copy(entry, address, before.without_copy());
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

    /// Measures, if that is due, the cost of a fault on a page in the kernel's swap. It uses copies
    /// of the first pages of these runs.
    fn measure_swap_fault(&mut self, mm: &Mm, swap: &Swap, runs: &[(usize, usize)]) {
        let now_ns = sys::now_ns();
        let pages: usize = runs.iter().map(|(_, bytes)| bytes / PAGE).sum();
        // With only a few pages, one during which the mover was preempted would be the median.
        if self.swap_measured_ns > 0 && now_ns - self.swap_measured_ns < MEASURE_EVERY_NS
            || pages < SAMPLE / 4
        {
            return;
        }
        self.swap_measured_ns = now_ns;
        if swap.kind() == SwapKind::Disk {
            // What has just been written to the disk is still in memory.
            return mm.faults.cost.measured_swap(DISK_READ_NS);
        }
        let fill = |memory: usize| {
            runs.iter().fold(0, |filled, (start, bytes)| {
                let wanted = (bytes / PAGE).min(SAMPLE - filled);
                filled + sys::copy_pages(*start, memory + filled * PAGE, wanted)
            })
        };
        if let Some((_, swap_in_ns)) = measure_swap(mm, sys::now_ns, fill) {
            mm.faults.cost.measured_swap(swap_in_ns);
        }
    }

    /// Makes the kernel page out the marked pages, and removes the marks of those that stayed.
    fn page_out_marked(&mut self, mm: &Mm, marked: &[Marked], outcome: &mut EvictOutcome) {
        let (Some((tier, swap)), Some(first)) = (mm.swap(), marked.first()) else { return };
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
        let runs = marked.chunk_by(|page, next| next.address == page.address + PAGE);
        let runs: Vec<(usize, usize)> =
            runs.map(|run| (run[0].address, run.len() * PAGE)).collect();
        self.measure_swap_fault(mm, swap, &runs);
        let begun_ns = sys::now_ns();
        let answered = sys::page_out(self.own_process, &runs);
        let call_ns = sys::now_ns() - begun_ns;
        let now = tick_of(sys::now_ns() / 1_000_000);
        let mut refused = 0;
        for pages in marked.chunk_by(|page, next| {
            page.entry.number == next.entry.number && page.address < next.address
        }) {
            let (start, end) = (pages[0].address, pages[pages.len() - 1].address + PAGE);
            // If the kernel does not report which pages were swapped out, the next full scan will
            // find those that stayed.
            let count = sys::scan_present(pagemap, start, end, &mut self.runs)
                .map_or(0, |(count, _)| count);
            for page in pages.iter().filter(|page| is_in(&self.runs[..count], page.address)) {
                refused += 1;
                let as_before = Snapshot::new(State::Resident, page.marked.refaults(), now, 0);
                if page.entry.word(page.address).transition(page.marked, as_before).is_ok() {
                    page.entry.region.swapped.fetch_sub(1, Relaxed);
                }
            }
        }
        let gone = marked.len() - refused;
        if let Some(auto) = self.auto.as_mut().filter(|_| gone > 0) {
            auto.paged_out.add_sample(call_ns, gone as u64);
        }
        outcome.eligible += marked.len() as u32;
        outcome.evicted += gone as u32;
        outcome.refused += refused as u32;
        mm.account.failed_moves.fetch_add(refused as u64, Relaxed);
        mm.account.demoted_pages.fetch_add(gone as u64, Relaxed);
        mm.account.resident_pages.fetch_sub(gone as i64, Relaxed);
        mm.set_swapped(tier.stats.pages() + gone as u64);
        if gone > 0 && swap.took(gone as u64) {
            swap.poll(tier.stats.pages());
        }
        if refused == 0 {
            return;
        }
        if !sys::mapped_exclusively(pagemap, first.address) {
            mm.account.shared_tries.fetch_add(refused as u64, Relaxed);
        } else if gone == 0 && answered && swap.stayed(refused as u64) {
            swap.poll(tier.stats.pages());
            if swap.kind() != SwapKind::None {
                let note = "the kernel takes no pages into its swap, though there is room in it: has a control group a limit of swap?";
                mm.warn_once(&mm.warned.swap_refuses, note);
            }
        }
    }
}

fn is_in(runs: &[Run], address: usize) -> bool {
    let after = runs.partition_point(|run| run.end <= address as u64);
    runs.get(after).is_some_and(|run| run.start <= address as u64)
}
