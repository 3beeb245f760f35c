//! Moving pages out of DRAM, a batch at a time: claim, move into staging (or, on old kernels,
//! write-protect, copy there and discard), compress, store.
//!
//! Under a region's lock, so that the program cannot change the mapping meanwhile; faults do not
//! take that lock, and a page that is touched while it is staged goes straight back.

pub(crate) mod auto;
mod dma;
pub(crate) mod gauge;
pub(crate) mod swapping;
pub(crate) mod training;

use crate::evict::auto::Auto;
use crate::evict::gauge::Gauge;
use crate::evict::swapping::own_tier;
use crate::evict::training::TrainingSet;
use crate::fault::buffers::{PageBuffer, Tools};
use crate::pager::Pager;
use crate::pages::staging::{BATCH, PROBE};
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{PageWord, Snapshot, State, tick_of};
use crate::settings::Eviction;
use crate::trace::EvictionStep;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, Errno, Fd, PAGE, Run};
use terrace_policy::victims::{FLOOR_MS, Passed, Writes, passed};
use terrace_tiers::{
    Encoded, Encoding, Location, PAGE_BYTES, Page, PoolError, ReadBuffer, RegionStore, Scratch,
    Tier, checksum,
};

/// Which pages of a region to take.
#[derive(Clone, Copy)]
pub(crate) struct EvictRequest {
    /// At most so many.
    pub pages: usize,
    /// See [`passed`].
    pub pressure: u32,
    /// Take anything present, compressible or not: for stress.
    pub anything: bool,
    /// The tier to move into first; denser ones follow where a page does not compress.
    pub tier: usize,
    /// Start looking at this page of the region (0–511).
    pub from: usize,
}

impl EvictRequest {
    /// What becomes of a resident page. `written`: see [`Run::is_written`]; `None` where that
    /// cannot be known.
    pub fn judge(&self, word: Snapshot, written: Option<bool>, now_ms: u64) -> Verdict {
        if self.anything {
            return Verdict::Take;
        }
        if stays(word, now_ms) {
            return Verdict::Leave;
        }
        let writes = match written {
            None => Writes::Unknowable,
            // It was left alone for long enough.
            Some(_) if word.is_incompressible() => Writes::Unknowable,
            Some(_) if !word.is_watched() => Writes::Unwatched,
            Some(false) => Writes::None,
            Some(true) => Writes::Some,
        };
        match passed(word.returns(), word.is_on_probation(), writes, self.pressure) {
            Passed::Take => Verdict::Take,
            Passed::Leave => Verdict::Leave,
            Passed::Returns(returns) => Verdict::Change(word.with_returns(returns)),
            Passed::Watch => Verdict::Watch(word.watched()),
        }
    }
}

/// What is to become of a resident page.
pub(crate) enum Verdict {
    Take,
    Leave,
    /// It stays, with another word.
    Change(Snapshot),
    /// And is write-protected, to see whether it is written.
    Watch(Snapshot),
}

/// Pages that stay whoever needs room: no pressure makes a page compressible, only time may, by
/// changing it; and what was touched just now is in use.
fn stays(word: Snapshot, now_ms: u64) -> bool {
    let stay_ms =
        if word.is_incompressible() { INCOMPRESSIBLE_MS << word.tries() } else { FLOOR_MS };
    word.age_ms(now_ms) < stay_ms
}

/// What becomes of a page whose time on probation is over.
pub(crate) fn leaves(word: Snapshot, now_ms: u64) -> Verdict {
    if word.is_on_probation() && !stays(word, now_ms) { Verdict::Take } else { Verdict::Leave }
}

/// What became of an attempt.
#[derive(Default, Clone, Copy)]
pub(crate) struct EvictOutcome {
    /// Pages now in a compressed tier.
    pub evicted: u32,
    /// Pages the kernel would not move, or did not find any more.
    pub refused: u32,
    /// Pages that were eligible.
    pub eligible: u32,
    /// Some may be taken in the next round.
    pub changed: bool,
    /// The page of the region to go on with; the first behind it if there is none.
    pub next: usize,
}

/// What became of a run of claimed pages.
struct RunOutcome {
    /// So many of its first pages went.
    pages: usize,
    /// The next one is not mapped any more; else it stays.
    is_gone: bool,
}

impl RunOutcome {
    fn of(pages: usize) -> RunOutcome {
        RunOutcome { pages, is_gone: false }
    }
}

pub(crate) struct Claimed {
    address: usize,
    /// The word before the claim.
    before: Snapshot,
}

pub(crate) struct Staged {
    address: usize,
    /// The word as we left it.
    word: Snapshot,
    slot: usize,
    /// The page's copy of when it came back, ours since the claim.
    copy: Option<Location>,
}

struct Probe {
    region: u32,
    chunk: usize,
    staged: Vec<Staged>,
    since_ns: u64,
}

/// What the mover evicts with. Owned by its thread.
pub(crate) struct Evictor {
    pub tools: Tools,
    /// What `--verify` decompresses into.
    read_back: Box<PageBuffer>,
    pub(crate) runs: Box<[Run]>,
    /// Pages that the hand wants to watch from now on.
    watch: Vec<usize>,
    /// Those of the batch under way: an allocation is four system calls (see
    /// `terrace_unmanaged_malloc`).
    claimed: Vec<Claimed>,
    staged: Vec<Staged>,
    /// A descriptor of this process, for [`sys::page_out`]; −1 without a tier for it.
    pub(crate) own_process: Fd,
    probes: VecDeque<Probe>,
    free_chunks: Vec<usize>,
    locations: Vec<Location>,
    /// From where to where pages of an extent were packed, sorted.
    packed: Vec<(u64, u64)>,
    /// For each tier, the compression ratio of pages for which it was the first choice. Pages that
    /// another tier refused do not count.
    pub encoded: Vec<Ratio>,
    /// For each tier, the pages collected for its codec to learn from.
    training: Vec<TrainingSet>,
    /// The measurements behind `--tiers auto`; `None` without that setting.
    pub auto: Option<Auto>,
    /// How pages compress in each tier; `None` without `--placement`.
    pub gauge: Option<Gauge>,
    /// Work since others had the processor: see [`BREATH`].
    without_breath: usize,
    /// When a fault from the kernel's swap was measured last.
    pub(crate) swap_measured_ns: u64,
    /// When to look for pinned pages next ([`dma`]), and never for UFFDIO_MOVE.
    look_ns: u64,
}

/// Encoded bytes for each byte, of late.
#[derive(Default)]
pub(crate) struct Ratio {
    pages: u32,
    bytes: u32,
}

impl Ratio {
    /// Believed from so many pages on; of those longer ago than 32 times as many, half are
    /// forgotten.
    const PAGES: u32 = 256;

    fn count(&mut self, bytes: usize) {
        if self.pages == 32 * Self::PAGES {
            self.pages /= 2;
            self.bytes /= 2;
        }
        self.pages += 1;
        self.bytes += bytes as u32;
    }

    /// The ratio, once it is known.
    pub fn known(&self) -> Option<f64> {
        (self.pages >= Self::PAGES)
            .then(|| f64::from(self.bytes) / (f64::from(self.pages) * PAGE as f64))
    }
}

/// Least time between looks for pinned pages, ns; and how many times the processor time of one.
const LOOK_EVERY_NS: u64 = 5_000_000;
const LOOK_SHARE: u64 = 20;
/// How long a probe lasts: long enough to be touched by whatever runs all the time, ns.
const PROBE_NS: u64 = 100_000_000;
/// How long a page that did not compress is left alone, ms; doubles each time, as far as a tick can
/// tell.
const INCOMPRESSIBLE_MS: u64 = 5_000;
/// First wait after the kernel refused to move pages of a region, ms; doubles up to 2^7.
const REFUSED_MS: u64 = 100;
/// Beyond this share of `vm.max_map_count`, ranges are registered in long runs, so that the
/// program never meets that limit. Each of ours may be two of the kernel's: half of the limit is a
/// quarter here.
const MAPPINGS_SHARE: usize = 4;
const LONG_RUN: usize = 64 << 20;
/// Pages so far apart are write-protected together, with those between them, each of which may cost
/// its next writer 1 µs. A call more interrupts the other CPUs: 14 µs here, and 6 on each of those
/// in a virtual machine (docs/notes/2026-11-27-where-a-fault-goes.md).
const WATCH_GAP: usize = 16 * PAGE;
/// After 16 pages that were compressed, 0.1 to 0.25 ms, others have the processor; one that left as
/// it came takes a third of the time.
const BREATH: usize = 16 * COMPRESSED;
const COMPRESSED: usize = 3;
const UNCHANGED: usize = 1;

impl Evictor {
    pub fn new(pager: &Pager) -> Self {
        Evictor {
            tools: Tools::new(),
            read_back: Box::new(PageBuffer([0; PAGE_BYTES])),
            runs: vec![Run::default(); REGION / PAGE].into(),
            watch: Vec::with_capacity(REGION / PAGE),
            claimed: Vec::with_capacity(BATCH),
            staged: Vec::with_capacity(BATCH),
            own_process: pager.swap().and_then(|_| sys::own_process().ok()).unwrap_or(-1),
            probes: VecDeque::new(),
            free_chunks: (0..pager.staging.probe_chunks()).collect(),
            locations: Vec::new(),
            packed: Vec::new(),
            encoded: pager.tiers.iter().map(|_| Ratio::default()).collect(),
            training: pager.tiers.iter().map(|_| TrainingSet::new()).collect(),
            auto: Auto::new(pager),
            gauge: pager.settings.placement.model().map(|_| Gauge::new(&pager.tiers)),
            without_breath: 0,
            swap_measured_ns: 0,
            look_ns: if pager.settings.evict == Eviction::WriteProtect { 0 } else { u64::MAX },
        }
    }

    /// Freezes the pager when the program may have pages pinned that this way of evicting would
    /// tear from under a device.
    fn look_for_pins(&mut self, pager: &Pager) {
        if sys::now_ns() < self.look_ns {
            return;
        }
        // Not by the clock: time in which others had the processor must not put the next look off.
        let before_ns = sys::thread_cpu_ns();
        if let Some(sign) = dma::sign() {
            pager.freeze(&format!(
                "the program uses {sign}, which may pin pages: write-protect and discard (--evict wp) is not safe beside it"
            ));
        }
        let cost_ns = sys::thread_cpu_ns() - before_ns;
        self.look_ns = sys::now_ns() + LOOK_EVERY_NS.max(cost_ns * LOOK_SHARE);
    }

    /// Evicts pages of a region.
    pub fn evict(&mut self, pager: &Pager, entry: Entry, mut wish: EvictRequest) -> EvictOutcome {
        if let Some(taken) = self.page_out(pager, entry, &mut wish) {
            return taken;
        }
        let mut taken = EvictOutcome::default();
        let mut from = wish.from;
        self.look_for_pins(pager);
        let now_ms = sys::now_ns() / 1_000_000;
        while (taken.evicted as usize) < wish.pages && from < REGION / PAGE {
            let _inside = pager.gate.worker();
            let _region = pager.table.lock(&entry);
            if pager.is_frozen() || !pager.tiers[1..].iter().any(accepts) {
                from = REGION / PAGE;
                break;
            }
            if !pager.has_small_pages(&entry) {
                taken.refused += 1;
                from = REGION / PAGE;
                break;
            }
            let limit = BATCH.min(wish.pages - taken.evicted as usize);
            let (mut claimed, mut staged) =
                (std::mem::take(&mut self.claimed), std::mem::take(&mut self.staged));
            from = pager.trace.evicting(EvictionStep::Scan, || {
                let judge = |word, written| wish.judge(word, written, now_ms);
                self.claim(
                    pager,
                    &entry,
                    limit,
                    from..REGION / PAGE,
                    &mut taken,
                    judge,
                    &mut claimed,
                )
            });
            taken.eligible += claimed.len() as u32;
            pager.trace.evicting(EvictionStep::Move, || {
                self.stage(pager, &entry, &claimed, 0, &mut taken, &mut staged)
            });
            taken.evicted += self.store(pager, &entry, &staged, 0, claimed.len(), Some(wish));
            claimed.clear();
            staged.clear();
            (self.claimed, self.staged) = (claimed, staged);
            pager.tell_progress();
            // Shared with a child, most likely all of it: not a whole region of refusals.
            if taken.refused as usize >= BATCH / 2 && taken.refused > taken.evicted {
                from = REGION / PAGE;
            }
        }
        taken.next = from;
        taken
    }

    /// Evicts pages whose probation is over, by their numbers; `report` gets the region of each
    /// that went. They lie scattered: one by one, but the staging slots are emptied together.
    pub fn end_probation(
        &mut self,
        pager: &Pager,
        pages: &[u32],
        tier: usize,
        mut report: impl FnMut(u32),
    ) {
        if pager.tiers[tier].swap().is_some_and(|swap| swap.accepts()) {
            return self.page_out_leaving(pager, pages, report);
        }
        self.look_for_pins(pager);
        let _inside = pager.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        let wish = EvictRequest {
            pages: 1,
            pressure: 0,
            anything: false,
            tier: own_tier(pager, tier),
            from: 0,
        };
        let possible = !pager.is_frozen() && pager.tiers[1..].iter().any(accepts);
        let swaps = sys::has_swap();
        let mut slot = 0;
        let mut staged = std::mem::take(&mut self.staged);
        for number in pages.iter().take(BATCH) {
            let (entry, address) = pager.table.page(*number);
            let word = entry.word(address);
            if !word.load().is_on_probation() {
                continue;
            }
            let _region = pager.table.lock(&entry);
            if possible && !is_refused(&entry, now_ms) && pager.has_small_pages(&entry) {
                let claimed = pager.trace.evicting(EvictionStep::Scan, || {
                    claim_from_probation(pager, &entry, address, swaps, now_ms)
                });
                let mut taken = EvictOutcome::default();
                let claimed = claimed.as_slice();
                pager.trace.evicting(EvictionStep::Move, || {
                    self.stage(pager, &entry, claimed, slot, &mut taken, &mut staged)
                });
                slot += staged.len();
                if self.store(pager, &entry, &staged, 0, 0, Some(wish)) > 0 {
                    report(entry.number);
                }
                staged.clear();
            }
            // If it could not leave.
            pager.end_probation(&entry, address);
        }
        self.staged = staged;
        if slot > 0 {
            empty_slots(pager, 0, slot);
        }
        pager.tell_progress();
    }

    /// Lets codecs learn from what left, where there is enough of it.
    pub fn learn(&mut self, pager: &Pager) {
        for (tier, training) in pager.tiers.iter().zip(&mut self.training) {
            if let Some(pages) = training.due(tier) {
                // No fork meanwhile.
                let _inside = pager.gate.worker();
                tier.learn(&pages, &sys::thread_cpu_ns);
                // One at a time: each takes milliseconds.
                return;
            }
        }
    }

    /// Takes a few pages of a region out of the page table, to see whether they are touched. False
    /// if none could be taken.
    pub fn probe(&mut self, pager: &Pager, entry: Entry, salt: u64) -> bool {
        let Some(chunk) = self.free_chunks.pop() else { return false };
        let slot = pager.staging.probe_slot(chunk);
        self.look_for_pins(pager);
        let _inside = pager.gate.worker();
        let _region = pager.table.lock(&entry);
        if !pager.has_small_pages(&entry) {
            self.free_chunks.push(chunk);
            return false;
        }
        let mut staged = Vec::with_capacity(PROBE);
        // Four runs of four pages, at four places: hot spots are seldom spread evenly.
        for part in 0..4 {
            let from = part * 128 + (salt.rotate_left(part as u32 * 8) % 120) as usize;
            let mut taken = EvictOutcome::default();
            let mut claimed = Vec::with_capacity(PROBE / 4);
            let unknown = |word: Snapshot, _| {
                if word.returns() == 0 && !word.is_on_probation() && !word.is_incompressible() {
                    Verdict::Take
                } else {
                    Verdict::Leave
                }
            };
            self.claim(
                pager,
                &entry,
                PROBE / 4,
                from..REGION / PAGE,
                &mut taken,
                unknown,
                &mut claimed,
            );
            self.stage(pager, &entry, &claimed, slot, &mut taken, &mut staged);
        }
        if staged.is_empty() || pager.is_frozen() {
            self.undo(pager, &entry, &staged, slot);
            self.free_chunks.push(chunk);
            return false;
        }
        self.probes.push_back(Probe {
            region: entry.number,
            chunk,
            staged,
            since_ns: sys::now_ns(),
        });
        true
    }

    /// Ends probes that lasted long enough. `report` gets region, staged, touched, evicted.
    /// Untouched pages are evicted.
    pub fn end_probes(
        &mut self,
        pager: &Pager,
        now_ns: u64,
        mut report: impl FnMut(u32, u32, u32, u32),
    ) {
        while self.probes.front().is_some_and(|probe| now_ns - probe.since_ns >= PROBE_NS) {
            let Some(probe) = self.probes.pop_front() else { return };
            let entry = pager.table.by_number(probe.region);
            let _inside = pager.gate.worker();
            let _region = pager.table.lock(&entry);
            let staged = probe.staged.len() as u32;
            let still =
                probe.staged.iter().filter(|s| entry.word(s.address).load() == s.word).count()
                    as u32;
            let tier = own_tier(pager, 1);
            let wish = EvictRequest { pages: PROBE, pressure: 0, anything: false, tier, from: 0 };
            let slot = pager.staging.probe_slot(probe.chunk);
            let evicted = self.store(pager, &entry, &probe.staged, slot, PROBE, Some(wish));
            self.free_chunks.push(probe.chunk);
            pager.tell_progress();
            report(probe.region, staged, staged - still, evicted);
        }
    }

    /// Brings everything back that is staged. For forks and for freezing.
    pub fn cancel_probes(&mut self, pager: &Pager) {
        while let Some(probe) = self.probes.pop_front() {
            let entry = pager.table.by_number(probe.region);
            let _region = pager.table.lock(&entry);
            self.undo(pager, &entry, &probe.staged, pager.staging.probe_slot(probe.chunk));
            self.free_chunks.push(probe.chunk);
        }
    }

    fn undo(&mut self, pager: &Pager, entry: &Entry, staged: &[Staged], slot: usize) {
        self.store(pager, entry, staged, slot, staged.len(), None);
    }

    /// Whether probes are out.
    pub fn probing(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Claims up to `limit` present pages among `pages` of the region, as `judge` says, and adds
    /// them to `claimed`. Registers their range if need be. Returns where it stopped.
    #[allow(clippy::too_many_arguments)] // Reason: what it works on, what it looks for, and where to put it.
    pub(crate) fn claim(
        &mut self,
        pager: &Pager,
        entry: &Entry,
        limit: usize,
        pages: Range<usize>,
        taken: &mut EvictOutcome,
        judge: impl Fn(Snapshot, Option<bool>) -> Verdict,
        claimed: &mut Vec<Claimed>,
    ) -> usize {
        let watches = pager.watches.load(Relaxed);
        let base = entry.region.address();
        let pieces =
            pager.ranges.lock().overlapping(base + pages.start * PAGE, base + pages.end * PAGE);
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let now_ms = sys::now_ns() / 1_000_000;
        let stopped = 'pieces: {
            for piece in pieces.iter().filter(|piece| piece.attributes.may_leave()) {
                let scan = if watches { sys::scan_watched } else { sys::scan_present };
                let Ok((count, _)) = scan(pagemap, piece.start, piece.end, &mut self.runs) else {
                    continue;
                };
                let mut registered = piece.attributes.registered;
                for run in &self.runs[..count] {
                    for address in (run.start as usize..run.end as usize).step_by(PAGE) {
                        if claimed.len() == limit {
                            break 'pieces (address - base) / PAGE;
                        }
                        let word = entry.word(address);
                        let before = word.load();
                        if !before.is_present()
                            || before.is_given_up()
                            || pager.see_return(entry, address, now_ms)
                        {
                            continue;
                        }
                        let verdict = judge(before, watches.then(|| run.is_written()));
                        if matches!(verdict, Verdict::Take | Verdict::Watch(_)) && !registered {
                            if !register(pager, piece.start, piece.end) {
                                break;
                            }
                            registered = true;
                        }
                        // If somebody was faster, he has more to say.
                        match verdict {
                            Verdict::Take => {}
                            Verdict::Leave => continue,
                            Verdict::Change(to) => {
                                taken.changed |= word.transition(before, to).is_ok();
                                continue;
                            }
                            Verdict::Watch(to) => {
                                if word.transition(before, to).is_ok() {
                                    taken.changed = true;
                                    self.watch.push(address);
                                }
                                continue;
                            }
                        }
                        if word.transition(before, before.moving()).is_ok() {
                            claimed.push(Claimed { address, before });
                        }
                    }
                }
            }
            pages.end
        };
        // Under the region's lock, so present but for what is done past the C library. One that is
        // not protected seems written: it stays.
        // Between two ranges there may be memory whose writes the program itself tracks.
        let together = |a: &usize, b: &usize| {
            b - a <= WATCH_GAP && pieces.iter().any(|piece| piece.start <= *a && *b < piece.end)
        };
        for span in self.watch.chunk_by(together) {
            let (start, end) = (span[0], span[span.len() - 1] + PAGE);
            let _ = sys::watch_writes(pagemap, start, end, &mut self.runs);
        }
        self.watch.clear();
        stopped
    }

    /// Moves claimed pages into staging slots, run by run, and adds them to `staged`: the first of
    /// those is in `slot`.
    pub(crate) fn stage(
        &mut self,
        pager: &Pager,
        entry: &Entry,
        claimed: &[Claimed],
        slot: usize,
        taken: &mut EvictOutcome,
        staged: &mut Vec<Staged>,
    ) {
        pager.check(
            claimed.is_empty() || !entry.is_huge(),
            "a huge page is split before anything is moved out of it",
        );
        let (mut index, mut refused) = (0, 0);
        while index < claimed.len() {
            let run = claimed[index..]
                .iter()
                .enumerate()
                .take_while(|(i, c)| c.address == claimed[index].address + i * PAGE)
                .count();
            let slot = slot + staged.len();
            let RunOutcome { pages: moved, is_gone } = match pager.settings.evict {
                Eviction::Move => self.move_run(pager, claimed[index].address, slot, run),
                Eviction::WriteProtect => self.copy_run(pager, claimed[index].address, slot, run),
            };
            for (i, page) in claimed[index..index + moved].iter().enumerate() {
                let word = page.before.moving().with(State::Staged, (slot + i) as u64);
                settle(pager, entry.word(page.address), page.before, word);
                staged.push(Staged {
                    address: page.address,
                    word,
                    slot: slot + i,
                    copy: page.before.copy(),
                });
            }
            pager.account.resident_pages.fetch_sub(moved as i64, Relaxed);
            index += moved;
            if moved < run {
                // The page at `index` would not move: back with it, and on with the next.
                let page = &claimed[index];
                settle(pager, entry.word(page.address), page.before, page.before);
                taken.refused += 1;
                refused += u64::from(!is_gone);
                index += 1;
            }
        }
        if refused > 0 {
            pager.account.failed_moves.fetch_add(refused, Relaxed);
        }
    }

    /// One UFFDIO_MOVE. A page that only *was* shared with a child is
    /// made our own and tried again.
    ///
    /// The kernel does not ask whether what it moves is registered, and what is not reads as zeros
    /// afterwards. So that is asked right before, whatever is believed: see [`Pager::disown`].
    fn move_run(&mut self, pager: &Pager, address: usize, slot: usize, pages: usize) -> RunOutcome {
        let uffd = pager.descriptors.staging.load(Relaxed);
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let mut done = 0;
        let mut unshared_at = usize::MAX;
        let mut step = pages;
        loop {
            let from = address + done * PAGE;
            let to = pager.staging.address(slot + done);
            let len = step.min(pages - done) * PAGE;
            match sys::uffd_has(pager.uffd_of(from), from, len) {
                Ok(true) => {}
                // Or in two mappings.
                Ok(false) if len > PAGE => {
                    step = 1;
                    continue;
                }
                Ok(false) => {
                    pager.disown(from);
                    return RunOutcome::of(done);
                }
                Err(_) => return RunOutcome::of(done),
            }
            let begun_ns = sys::now_ns();
            // SAFETY: the pages are claimed (Moving) and their faults answered; the slots are free.
            let (bytes, stopped) = unsafe { sys::uffd_move(uffd, pagemap, to, from, len) };
            done += bytes / PAGE;
            let (call_ns, moved) = (sys::now_ns() - begun_ns, (bytes / PAGE) as u64);
            pager.account.add_interruption(call_ns, moved);
            if let Some(auto) = self.auto.as_mut().filter(|_| moved > 0) {
                auto.moved.learn(call_ns, moved);
            }
            if done == pages {
                return RunOutcome::of(done);
            }
            let at = address + done * PAGE;
            // The program has given it back meanwhile: nothing is refused.
            if stopped == Some(Errno::ENOENT) {
                return RunOutcome { pages: done, is_gone: true };
            }
            if let Some(error) = stopped {
                pager.account.move_error.store(error.into_raw() as u64, Relaxed);
            }
            match stopped {
                None => {}
                // One call must stay within one of the kernel's mappings, and neighbours that look
                // alike to us may be two.
                Some(Errno::EINVAL) if step > 1 => step = 1,
                // Copy-on-write: not movable until written, even when no other process is left.
                // (Pinned for DMA looks the same, and stays so: hence one try.)
                Some(Errno::EBUSY) if unshared_at != at => {
                    if !sys::mapped_exclusively(pagemap, at) {
                        pager.account.shared_tries.fetch_add(1, Relaxed);
                        return RunOutcome::of(done);
                    }
                    unshared_at = at;
                    if sys::populate_for_writing(at, PAGE).is_err() {
                        return RunOutcome::of(done);
                    }
                }
                Some(Errno::EEXIST) => {
                    pager.check(false, "a free staging slot is empty");
                    return RunOutcome::of(done);
                }
                // Locked, protected, pinned: not ours to move.
                Some(_) => return RunOutcome::of(done),
            }
        }
    }

    /// Write-protect, copy, discard. Writers wait from the first step
    /// on: their fault finds the page claimed.
    fn copy_run(&mut self, pager: &Pager, address: usize, slot: usize, pages: usize) -> RunOutcome {
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let uffd = pager.uffd_of(address);
        // Copying would touch a missing page, and one that a child shares frees nothing.
        let exclusive =
            (0..pages).take_while(|i| sys::mapped_exclusively(pagemap, address + i * PAGE)).count();
        if exclusive == 0 {
            pager.account.shared_tries.fetch_add(1, Relaxed);
            return RunOutcome::of(0);
        }
        let mut copied = 0;
        let protected = sys::uffd_write_protect(uffd, address, exclusive * PAGE, true);
        if protected.is_ok() {
            copied = sys::copy_pages(address, pager.staging.address(slot), exclusive);
        }
        // SAFETY: claimed, write-protected, and their contents are in the slots.
        let dropped = copied == 0 || unsafe { sys::drop_copied(address, copied * PAGE) }.is_ok();
        // The kernel works in the order of addresses and may have failed half-way.
        let gone = if dropped {
            copied
        } else {
            (0..copied).take_while(|i| !sys::is_mapped(pagemap, address + i * PAGE)).count()
        };
        if gone < exclusive {
            // Those stay. A page left protected would stop its writers for ever.
            let (start, len) = (address + gone * PAGE, (exclusive - gone) * PAGE);
            while matches!(sys::uffd_write_protect(uffd, start, len, false), Err(Errno::ENOMEM)) {
                sys::sleep(Duration::from_millis(1));
            }
            if gone < copied {
                pager.staging.empty(slot + gone, copied - gone);
            }
        }
        // What is protected is registered: as for [`Evictor::move_run`].
        if protected == Err(Errno::ENOENT) {
            if exclusive > 1 {
                return self.copy_run(pager, address, slot, 1);
            }
            pager.disown(address);
        }
        RunOutcome::of(gone)
    }

    /// Compresses staged pages into their region's store and empties the slots `slot..slot +
    /// slots`. Without a wish, or where compression does not pay, pages go back. Returns how
    /// many were stored.
    pub(crate) fn store(
        &mut self,
        pager: &Pager,
        entry: &Entry,
        staged: &[Staged],
        slot: usize,
        slots: usize,
        wish: Option<EvictRequest>,
    ) -> u32 {
        let now_ms = sys::now_ns() / 1_000_000;
        let mut stored = 0;
        for page in staged {
            if entry.region.lock.is_waited_for() {
                pager.leave_background();
            } else if self.without_breath >= BREATH {
                pager.yield_if_due();
                self.without_breath = 0;
            }
            // Touched meanwhile: nothing to do. (Reading the slot would be harmless: it holds the
            // page until emptied.)
            let touched = entry.word(page.address).load() != page.word;
            let wish = wish.filter(|_| !touched && !pager.is_frozen());
            if let Some(copy) = page.copy {
                if wish
                    .is_some_and(|wish| self.store_as_copy(pager, entry, page, copy, wish, now_ms))
                {
                    stored += 1;
                    self.without_breath += UNCHANGED;
                    continue;
                }
                pager.remove_copy(&mut entry.region.store.lock(), copy);
            }
            if touched {
                continue;
            }
            let Some(wish) = wish else {
                pager.put_back(entry, page.address, page.word, page.word.off_probation());
                continue;
            };
            self.without_breath += COMPRESSED;
            let resident = match self.store_page(pager, entry, page, wish, now_ms) {
                StoreOutcome::Stored => {
                    stored += 1;
                    continue;
                }
                // Nothing is wrong with the page.
                StoreOutcome::Refused => page.word.off_probation(),
                StoreOutcome::Incompressible => page.word.incompressible_at(tick_of(now_ms)),
            };
            pager.put_back(entry, page.address, page.word, resident);
        }
        // A handler may still be copying out of a slot.
        for page in staged {
            loop {
                let word = entry.word(page.address).load();
                if !(word.is(State::Restoring) && word.payload() == page.slot as u64) {
                    break;
                }
                sys::yield_now();
            }
        }
        if slots > 0 {
            empty_slots(pager, slot, slots);
        }
        if stored > 0 {
            pager.trace.evicted(stored);
            pager.account.demoted_pages.fetch_add(u64::from(stored), Relaxed);
            self.repack(pager, entry, RegionStore::wants_repack);
        }
        stored
    }

    /// Stores a page that is as it was when it came back: its copy is there. False if it is not, or
    /// was touched; its copy is still ours then.
    fn store_as_copy(
        &mut self,
        pager: &Pager,
        entry: &Entry,
        page: &Staged,
        copy: Location,
        wish: EvictRequest,
        now_ms: u64,
    ) -> bool {
        // SAFETY: as in `store_page`.
        let contents: &Page =
            unsafe { &*(pager.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        let store = entry.region.store.lock();
        if store.tier_of(copy) != Some(wish.tier as u8) {
            return false;
        }
        let alike = store
            .page(copy, &mut self.tools.stored)
            .is_ok_and(|copy| copy.checksum == checksum(contents));
        let with = (&mut self.tools.scratch, &mut self.tools.stored);
        let is_that = || {
            pager.decode(&store, copy, &mut self.read_back.0, with).is_ok()
                && self.read_back.0 == *contents
        };
        if !alike || pager.settings.verify && !is_that() {
            return false;
        }
        let evicted =
            Snapshot::new(State::Evicted, page.word.returns(), tick_of(now_ms), copy.to_bits());
        let stored = entry.word(page.address).transition(page.word, evicted).is_ok();
        if stored {
            entry.region.count_evicted();
            pager.tiers[wish.tier].stats.no_copy();
            pager.account.unchanged_pages.fetch_add(1, Relaxed);
        }
        stored
    }

    fn store_page(
        &mut self,
        pager: &Pager,
        entry: &Entry,
        page: &Staged,
        wish: EvictRequest,
        now_ms: u64,
    ) -> StoreOutcome {
        // SAFETY: the slot holds the moved page until this function's caller empties it; nobody
        // writes to it.
        let contents: &Page =
            unsafe { &*(pager.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        if let Some(auto) = &mut self.auto {
            auto.offer(contents);
        }
        if let Some(gauge) = &mut self.gauge {
            gauge.offer(contents);
        }
        let (mut refused, mut incompressible) = (false, false);
        // Denser tiers where it does not compress, and any other that takes it where one refuses.
        for tier in (wish.tier..pager.tiers.len()).chain((1..wish.tier).rev()) {
            let place = &pager.tiers[tier];
            if !accepts(place) {
                refused = true;
                continue;
            }
            if incompressible && tier < wish.tier {
                continue;
            }
            let encoded = pager.trace.evicting(EvictionStep::Compress, || {
                place.encode(contents, &mut self.tools.scratch)
            });
            if tier == wish.tier {
                self.encoded[tier].count(encoded.bytes.len());
            }
            if encoded.encoding == Encoding::Coded {
                self.training[tier].offer(place, contents);
                // And to the densest, which may be worth its price only for what it learns: it
                // would not be chosen before, and so would never learn.
                if let Some(densest) = pager
                    .densest_own()
                    .filter(|densest| *densest != tier && self.training[*densest].is_first())
                {
                    self.training[densest].offer(&pager.tiers[densest], contents);
                }
            }
            if encoded.encoding == Encoding::Raw {
                incompressible = true;
                // As it is it gains nothing in DRAM.
                let wanted = place.leaves_dram() || wish.anything && tier + 1 == pager.tiers.len();
                if !wanted {
                    continue;
                }
            }
            let mut store = entry.region.store.lock();
            let location = match pager
                .trace
                .evicting(EvictionStep::Store, || store.insert(&pager.tiers, tier as u8, encoded))
            {
                Ok(location) => location,
                Err(refusal) => {
                    pager.note_refusal(tier, &refusal);
                    refused |= !accepts(place);
                    continue;
                }
            };
            let with = (&mut self.tools.scratch, &mut self.tools.stored);
            if !reads_back(
                pager,
                &mut store,
                location,
                page.address,
                contents,
                &mut self.read_back.0,
                with,
            ) {
                break;
            }
            let evicted = Snapshot::new(
                State::Evicted,
                page.word.returns(),
                tick_of(now_ms),
                location.to_bits(),
            );
            if entry.word(page.address).transition(page.word, evicted).is_ok() {
                entry.region.count_evicted();
                return StoreOutcome::Stored;
            }
            // Touched meanwhile.
            pager.check(
                store.remove(&pager.tiers, location).is_ok(),
                "what was just stored is there",
            );
            break;
        }
        if refused && !incompressible {
            StoreOutcome::Refused
        } else {
            StoreOutcome::Incompressible
        }
    }

    /// Packs those of the region's extents together that are `wanted`.
    fn repack(&mut self, pager: &Pager, entry: &Entry, wanted: fn(&RegionStore) -> Option<u8>) {
        let mut store = entry.region.store.lock();
        while let Some(extent) = wanted(&store) {
            // A page that is being restored still has bytes here, at a place its handler knows: not
            // now.
            if entry.words.iter().any(|word| word.load().is(State::Restoring)) {
                return;
            }
            let in_extent =
                |word: Snapshot| word.stored().filter(|location| location.extent == extent);
            self.locations.clear();
            self.locations.extend(entry.words.iter().filter_map(|word| in_extent(word.load())));
            self.packed.clear();
            self.packed.extend(self.locations.iter().map(|from| (from.to_bits(), 0)));
            match store.repack(&pager.tiers, extent, &mut self.locations) {
                Ok(()) => {}
                // A file without space, or unreadable: everything is as before. Who needs an
                // unreadable page will find out.
                Err(PoolError::Medium { .. } | PoolError::Read(_) | PoolError::NoMemory) => return,
                Err(_) => {
                    pager.check(false, "an extent's live pages are those of the page words");
                    return;
                }
            }
            self.packed
                .iter_mut()
                .zip(&self.locations)
                .for_each(|(moved, to)| moved.1 = to.to_bits());
            self.packed.sort_unstable();
            for word in entry.words {
                let found = word.load();
                if in_extent(found).is_some()
                    && let Ok(index) =
                        self.packed.binary_search_by_key(&found.payload(), |(from, _)| *from)
                {
                    settle_from(pager, word, found, found.stored_at(self.packed[index].1));
                }
            }
        }
    }

    /// Recompresses a region's pages from sparser tiers into the densest. Returns the bytes gained
    /// (packed).
    pub fn recompress_densest(&mut self, pager: &Pager, entry: Entry) -> u64 {
        let Some(densest) = pager.densest_own() else { return 0 };
        self.recompress(pager, entry, densest, Which::Denser).gained_bytes
    }

    /// Moves what is stored of a region into the tier `to`, one of ours. Pages that do not compress
    /// there stay where they are.
    pub fn recompress(
        &mut self,
        pager: &Pager,
        entry: Entry,
        to: usize,
        which: Which,
    ) -> Recompressed {
        let if_denser = which == Which::Denser;
        let mut done = Recompressed::default();
        if !accepts(&pager.tiers[to]) {
            return done;
        }
        for address in (0..REGION / PAGE).map(|i| entry.region.address() + i * PAGE) {
            // A fork does not wait for the rest.
            if pager.pause_asked() {
                break;
            }
            let word = entry.word(address);
            if !word.load().is(State::Evicted) {
                continue;
            }
            let _inside = pager.gate.worker();
            let mut store = entry.region.store.lock();
            let found = word.load();
            if !found.is(State::Evicted) {
                continue;
            }
            let old = Location::from_bits(found.payload());
            let is_meant = |from: &usize| *from != to && which.is_in(*from);
            let Some(from) = store.tier_of(old).map(usize::from).filter(is_meant) else {
                continue;
            };
            let gains_nothing = if_denser && pager.tiers[from].leaves_dram();
            // A repeated pattern takes no memory anywhere.
            let stays = old.encoding == Encoding::Same && !matches!(which, Which::In(_));
            if gains_nothing || stays {
                continue;
            }
            let old_len = u64::from(old.len);
            match self.copied(pager, &mut store, old, to, if_denser) {
                Copied::To(new) => {
                    let len = if pager.tiers[to].leaves_dram() { 0 } else { new.len.into() };
                    if settle_moved(pager, &mut store, word, found, new) {
                        done.count(pager, to > from, old_len, len);
                    }
                    continue;
                }
                Copied::Useless => continue,
                Copied::Refused => return done,
                Copied::OtherCodec => {}
            }
            let page = &mut self.tools.page.0;
            if let Err(e) =
                pager.decode(&store, old, page, (&mut self.tools.scratch, &mut self.tools.stored))
            {
                // Whoever touches it will be told; until then nobody has been given wrong bytes.
                pager.freeze(&format!("page {address:#x} cannot be restored: {e}"));
                return done;
            }
            let encoded = pager.tiers[to].encode(page, &mut self.tools.scratch);
            // Of DRAM.
            let len = if pager.tiers[to].leaves_dram() { 0 } else { encoded.bytes.len() as u64 };
            // Moving for less than an eighth is not worth a slower fault.
            let too_little = if_denser && len * 8 > old_len * 7;
            if too_little || encoded.encoding == Encoding::Raw && len > 0 {
                continue;
            }
            let new = match store.insert(&pager.tiers, to as u8, encoded) {
                Ok(new) => new,
                Err(refusal) => {
                    pager.note_refusal(to, &refusal);
                    return done;
                }
            };
            let with = (&mut self.tools.scratch, &mut self.tools.stored);
            if !reads_back(pager, &mut store, new, address, page, &mut self.read_back.0, with) {
                return done;
            }
            self.training[to].offer(&pager.tiers[to], page);
            if settle_moved(pager, &mut store, word, found, new) {
                done.count(pager, to > from, old_len, len);
            }
        }
        let _inside = pager.gate.worker();
        let _region = pager.table.lock(&entry);
        self.repack(pager, &entry, RegionStore::wants_repack);
        done
    }

    /// Copies what is stored of a page into the tier `to`, if that keeps it in the same form: not
    /// with `--verify`, which compares pages.
    fn copied(
        &mut self,
        pager: &Pager,
        store: &mut RegionStore,
        old: Location,
        to: usize,
        if_denser: bool,
    ) -> Copied {
        let Some(from) = store.tier_of(old).map(usize::from) else { return Copied::Useless };
        let into = &pager.tiers[to];
        if pager.settings.verify || !into.reads(&pager.tiers[from]) {
            return Copied::OtherCodec;
        }
        // In DRAM the same bytes are about as many, and a page that is not compressed saves none.
        let in_dram = !into.leaves_dram();
        let as_many = if_denser && !pager.tiers[from].leaves_dram();
        if in_dram && (as_many || old.encoding == Encoding::Raw) {
            return Copied::Useless;
        }
        let Ok(found) = store.page(old, &mut self.tools.stored) else { return Copied::OtherCodec };
        let page = &mut self.tools.page.0;
        let bytes = &mut page[..found.bytes.len()];
        bytes.copy_from_slice(found.bytes);
        let encoded = Encoded { encoding: found.encoding, checksum: found.checksum, bytes };
        match store.insert(&pager.tiers, to as u8, encoded) {
            Ok(new) => Copied::To(new),
            Err(refusal) => {
                pager.note_refusal(to, &refusal);
                Copied::Refused
            }
        }
    }

    /// Gives back what pages of the region that came back have left of its pool.
    pub fn tidy(&mut self, pager: &Pager, entry: &Entry) {
        let _inside = pager.gate.worker();
        let _region = pager.table.lock(entry);
        self.repack(pager, entry, RegionStore::wastes);
    }
}

/// What became of stored bytes that were to be copied to another tier.
enum Copied {
    To(Location),
    /// It would gain nothing.
    Useless,
    /// The tier has no room.
    Refused,
    /// The tier keeps pages in another form: decompress and compress.
    OtherCodec,
}

/// A page's bytes are at `new` too: from now on only there. False if the page was discarded
/// meanwhile: then they are in neither place.
fn settle_moved(
    pager: &Pager,
    store: &mut RegionStore,
    word: &PageWord,
    found: Snapshot,
    new: Location,
) -> bool {
    let moved = word.transition(found, found.with(State::Evicted, new.to_bits())).is_ok();
    // States of evicted pages change under the store's lock otherwise.
    let gone = if moved { Location::from_bits(found.payload()) } else { new };
    pager.check(store.remove(&pager.tiers, gone).is_ok(), "a moved page's old bytes are there");
    moved
}

/// What came of [`Evictor::recompress`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Recompressed {
    /// Pages that are in the new tier now.
    pub pages: u32,
    /// Encoded bytes that DRAM has less of.
    pub gained_bytes: u64,
}

impl Recompressed {
    /// A page's `from` encoded bytes in DRAM have become `to`; `demoted`: in a colder tier.
    fn count(&mut self, pager: &Pager, demoted: bool, from: u64, to: u64) {
        if demoted {
            pager.account.demoted_pages.fetch_add(1, Relaxed);
        }
        self.pages += 1;
        self.gained_bytes += from.saturating_sub(to);
    }
}

/// What became of a staged page that is to be stored.
enum StoreOutcome {
    Stored,
    /// A file has no room at present.
    Refused,
    /// No tier gains anything by it (or it was touched: then it is not ours any more).
    Incompressible,
}

/// What of a region is recompressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Which {
    /// All that is stored in other tiers.
    All,
    /// Only what takes an eighth less of DRAM in the new one.
    Denser,
    /// What is in one tier.
    In(usize),
}

impl Which {
    fn is_in(self, tier: usize) -> bool {
        match self {
            Which::All | Which::Denser => true,
            Which::In(of) => of == tier,
        }
    }
}

/// Whether it is worth trying to store in a tier.
pub(crate) fn accepts(tier: &Tier) -> bool {
    tier.is_ours() && !tier.is_disabled() && tier.files().is_none_or(|files| files.accepts())
}

impl Pager {
    /// A tier would not store a page. One in files is left alone for a while, and that is said
    /// once.
    fn note_refusal(&self, tier: usize, refusal: &PoolError) {
        match (refusal, self.tiers[tier].files()) {
            (PoolError::Medium { .. }, Some(files)) => {
                if files.refuse() {
                    let note = format!(
                        "{refusal}. Until that works again, pages stay in DRAM or go to other tiers"
                    );
                    self.complain(&note);
                    self.remark(&note);
                }
            }
            _ => self.no_room(refusal),
        }
    }
}

/// `--verify`: whether what was just stored at `location` is the page `original`. If not, it is
/// removed again, and nothing more is evicted.
fn reads_back(
    pager: &Pager,
    store: &mut RegionStore,
    location: Location,
    address: usize,
    original: &Page,
    read_back: &mut Page,
    with: (&mut Scratch, &mut ReadBuffer),
) -> bool {
    if !pager.settings.verify {
        return true;
    }
    let problem = match pager.decode(store, location, read_back, with) {
        Ok(_) if read_back == original => return true,
        Ok(_) => "it is another page".to_string(),
        Err(e) => e,
    };
    pager.check(store.remove(&pager.tiers, location).is_ok(), "what was just stored is there");
    pager.freeze(&format!(
        "--verify: what was stored of page {address:#x} does not give it back ({problem}). Nothing is lost: it stays where it was"
    ));
    false
}

/// Claims one page that is still on probation. It came back through us; if the kernel `swaps` and
/// has swapped it out meanwhile, it is out (and before Linux 6.14 UFFDIO_MOVE should not meet such
/// a page). Looking at each page takes a microsecond: where there is no swap, that the page is
/// there is left for the move to find out.
fn claim_from_probation(
    pager: &Pager,
    entry: &Entry,
    address: usize,
    swaps: bool,
    now_ms: u64,
) -> Option<Claimed> {
    pager.ranges.lock().at(address).filter(|range| range.may_leave() && range.registered)?;
    if swaps && !sys::is_present(pager.descriptors.pagemap.load(Relaxed), address) {
        return None;
    }
    let word = entry.word(address);
    let before = word.load();
    let claimed = matches!(leaves(before, now_ms), Verdict::Take)
        && word.transition(before, before.moving()).is_ok();
    claimed.then_some(Claimed { address, before })
}

/// Ends the mover's claim on a page.
fn settle(pager: &Pager, word: &PageWord, before: Snapshot, to: Snapshot) {
    settle_from(pager, word, before.moving(), to);
}

fn settle_from(pager: &Pager, word: &PageWord, from: Snapshot, to: Snapshot) {
    pager.check(
        word.transition(from, to).is_ok(),
        "a claimed page word is changed by its claimant only",
    );
}

/// Registers a piece of a managed range with its shard's userfaultfd. False if the kernel will not
/// have it: not now, or (then it is no longer evictable) not at all.
fn register(pager: &Pager, start: usize, end: usize) -> bool {
    let mut ranges = pager.ranges.lock();
    let (mut from, mut to) = (start, end);
    if ranges.len() > pager.mappings_max.load(Relaxed) / MAPPINGS_SHARE {
        // Few mappings are left: take the whole neighbourhood that is managed alike.
        let run = start / LONG_RUN * LONG_RUN;
        let pieces = ranges.overlapping(run, run + LONG_RUN);
        // Only our region is locked; but of a piece that is not registered nothing is out (see
        // `Pager::manage`).
        if let Some(piece) = pieces.iter().find(|p| p.start <= start && start < p.end) {
            (from, to) = (piece.start, piece.end);
        }
    }
    let done = sys::uffd_register(pager.uffd_of(start), from, to - from, pager.write_protects());
    if done.is_ok() {
        sys::keep_from_children(from, to - from);
    }
    ranges.update(from, to, |attributes| match done {
        Ok(()) => attributes.registered = true,
        // Of memory or of mappings: another time perhaps.
        Err(Errno::ENOMEM) => {}
        Err(_) => attributes.evictable = false,
    });
    done.is_ok()
}

impl Pager {
    /// A page that is there turned out not to be registered, although it was believed to be. What
    /// was managed there went past us (an unmapping by an instruction of the program's own),
    /// and what came is not ours: a small mapping, a thread's stack, a library. It is managed
    /// no longer, with all of its kind in the region, as far as the kernel tells. What may be
    /// stored there is nobody's: it goes when memory is managed there again.
    fn disown(&self, address: usize) {
        let base = address / REGION * REGION;
        let mut disowned = false;
        if self.watches.load(Relaxed) {
            disowned = self.disown_unregistered(base, base + REGION);
        }
        if !disowned {
            self.disown_run(address, address + PAGE);
        }
    }

    /// Gives up what is believed to be registered in `start..end`, and is something else. True if
    /// there was any. Only where [`Pager::watches`] is set can the kernel be asked.
    pub(crate) fn disown_unregistered(&self, start: usize, end: usize) -> bool {
        let pagemap = self.descriptors.pagemap.load(Relaxed);
        let mut runs = [Run::default(); 16];
        let mut disowned = false;
        let believed = self.ranges.lock().overlapping(start, end);
        for range in believed.into_iter().filter(|range| range.attributes.registered) {
            let mut from = range.start;
            while from < range.end {
                let Ok((count, walked)) =
                    sys::scan_unregistered(pagemap, from, range.end, &mut runs)
                else {
                    break;
                };
                for run in &runs[..count] {
                    disowned |= self.disown_run(run.start as usize, run.end as usize);
                }
                from = walked.max(from + PAGE);
            }
        }
        disowned
    }

    /// Gives up `start..end`, which is not registered. Not what is not believed to be: it may have
    /// been mapped since we looked, and is the program's.
    fn disown_run(&self, start: usize, end: usize) -> bool {
        let mut ranges = self.ranges.lock();
        let mut believed = ranges.overlapping(start, end);
        believed.retain(|range| range.attributes.registered);
        for range in &believed {
            ranges.remove(range.start, range.end);
        }
        drop(ranges);
        self.uncount(&believed);
        !believed.is_empty()
    }
}

/// Leaves a region alone for a growing time if the kernel refused to move most of its pages.
pub(crate) fn note_refusals(entry: &Entry, taken: &EvictOutcome) {
    if taken.refused * 2 >= taken.eligible.max(1) {
        let now_ms = sys::now_ns() / 1_000_000;
        let doublings = entry.region.refusals.load(Relaxed).min(7);
        entry.region.refusals.store(doublings + 1, Relaxed);
        entry
            .region
            .refused_until
            .store(((now_ms + (REFUSED_MS << doublings)) / 16) as u32, Relaxed);
    } else if taken.evicted > 0 {
        entry.region.refusals.store(0, Relaxed);
    }
}

/// Whether a region's refusal is still fresh.
pub(crate) fn is_refused(entry: &Entry, now_ms: u64) -> bool {
    entry.region.refused_until.load(Relaxed).wrapping_sub((now_ms / 16) as u32) as i32 > 0
}

/// Empties slots of the staging area whose pages were stored or are back.
fn empty_slots(pager: &Pager, slot: usize, slots: usize) {
    let begun_ns = sys::now_ns();
    pager.trace.evicting(EvictionStep::Empty, || pager.staging.empty(slot, slots));
    pager.account.add_interruption(sys::now_ns() - begun_ns, slots as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_test::without_forks;
    use crate::verify_test::{filled, pager};
    use terrace_policy::victims::PRESSURE_MAX;

    #[test]
    fn what_leaves_for_the_first_tier_is_the_densest_ones_first_lesson() {
        let _alone = without_forks();
        let Some(pager) = pager("dram,lz4,zstd", false, |_| Ok(())) else { return };
        let mut evictor = Evictor::new(pager);
        for _ in 0..2 {
            assert!(evictor.training[2].is_first());
            let (base, _) = filled(pager, |page| page as u64);
            let wish = EvictRequest {
                pages: REGION / PAGE,
                pressure: PRESSURE_MAX,
                anything: true,
                tier: 1,
                from: 0,
            };
            let taken = evictor.evict(pager, pager.table.get_or_create(base).unwrap(), wish);
            assert_eq!(taken.evicted as usize, REGION / PAGE);
            evictor.learn(pager);
        }
        assert!(!evictor.training[2].is_first(), "768 pages are enough");
        assert_eq!(pager.tiers[2].stats.pages(), 0);
    }
}
