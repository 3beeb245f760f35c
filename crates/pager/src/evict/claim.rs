//! Claims pages of a region, in memory that is registered, and records regions of which the kernel
//! moves no pages.

use crate::evict::evictor::{Claimed, EvictOutcome, Evictor, Verdict, probation_verdict};
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{PageWord, Snapshot};
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use terrace_os::{self as sys, Errno, PAGE, Run};

/// First wait after the kernel refused to move pages of a region, ms. Doubles with each refusal, at
/// most seven times (12.8 s).
const REFUSED_MS: u64 = 100;
/// Inverse of the share of `vm.max_map_count` above which ranges are registered in long runs, so
/// that the program never meets that limit. Each of our ranges may be two of the kernel's VMAs:
/// half of the limit is a quarter here.
const MAPPINGS_SHARE: usize = 4;
const LONG_RUN: usize = 64 << 20;
/// Pages at most this far apart are write-protected together, with those between them. Each of
/// those may cost its next writer 1 µs. One more call interrupts the other CPUs: 14 µs here, and 6
/// on each of those in a virtual machine (docs/notes/2026-11-27-where-a-fault-goes.md).
const TRACK_GAP: usize = 16 * PAGE;

impl Evictor {
    /// Claims up to `limit` present pages among `pages` of the region, as `judge` says, and adds
    /// them to `claimed`. Registers their range if need be. Returns where it stopped.
    // Reason: what it works on, what it looks for, and where to put it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn claim(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        limit: usize,
        pages: Range<usize>,
        outcome: &mut EvictOutcome,
        judge: impl Fn(Snapshot, Option<bool>) -> Verdict,
        claimed: &mut Vec<Claimed>,
    ) -> usize {
        let tracks_writes = mm.descriptors.tracks_writes.load(Relaxed);
        let base = entry.region.address();
        let pieces =
            mm.ranges.lock().overlapping(base + pages.start * PAGE, base + pages.end * PAGE);
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
        let now_ms = sys::now_ns() / 1_000_000;
        let stopped = 'pieces: {
            for piece in pieces.iter().filter(|piece| piece.attributes.may_leave()) {
                let scan = if tracks_writes { sys::scan_writes } else { sys::scan_present };
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
                            || before.is_discarded()
                            || mm.note_swap_in(entry, address, now_ms)
                        {
                            continue;
                        }
                        let verdict = judge(before, tracks_writes.then(|| run.is_written()));
                        if matches!(verdict, Verdict::Take | Verdict::Track(_)) && !registered {
                            if !register(mm, piece.start, piece.end) {
                                break;
                            }
                            registered = true;
                        }
                        // Where another thread changed the word first, the page is not claimed.
                        match verdict {
                            Verdict::Take => {}
                            Verdict::Leave => continue,
                            Verdict::Change(to) => {
                                outcome.changed |= word.transition(before, to).is_ok();
                                continue;
                            }
                            Verdict::Track(to) => {
                                if word.transition(before, to).is_ok() {
                                    outcome.changed = true;
                                    self.to_track.push(address);
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
        // The pages are present, because the region is locked, except for changes made past the C
        // library. A page that is not protected seems written: it stays. Between two ranges there
        // may be memory whose writes the program itself tracks.
        let together = |a: &usize, b: &usize| {
            b - a <= TRACK_GAP && pieces.iter().any(|piece| piece.start <= *a && *b < piece.end)
        };
        for span in self.to_track.chunk_by(together) {
            let (start, end) = (span[0], span[span.len() - 1] + PAGE);
            let _ = sys::track_writes(pagemap, start, end, &mut self.runs);
        }
        self.to_track.clear();
        stopped
    }
}

/// Claims one page that is still on probation. A handler restored it; if the kernel `swaps`, it may
/// have swapped it out since. Before Linux 6.14 UFFDIO_MOVE should not meet such a page. Checking a
/// page takes a microsecond. Where there is no swap, the move itself finds out whether the page is
/// present.
pub(super) fn claim_from_probation(
    mm: &Mm,
    entry: &Entry,
    address: usize,
    swaps: bool,
    now_ms: u64,
) -> Option<Claimed> {
    mm.ranges.lock().at(address).filter(|range| range.may_leave() && range.registered)?;
    if swaps && !sys::is_present(mm.descriptors.pagemap.load(Relaxed), address) {
        return None;
    }
    let word = entry.word(address);
    let before = word.load();
    let claimed = matches!(probation_verdict(before, now_ms), Verdict::Take)
        && word.transition(before, before.moving()).is_ok();
    claimed.then_some(Claimed { address, before })
}

/// Ends the mover's claim on a page.
pub(super) fn settle(mm: &Mm, word: &PageWord, before: Snapshot, to: Snapshot) {
    settle_from(mm, word, before.moving(), to);
}

pub(super) fn settle_from(mm: &Mm, word: &PageWord, from: Snapshot, to: Snapshot) {
    mm.check(
        word.transition(from, to).is_ok(),
        "a claimed page word is changed by its claimant only",
    );
}

/// Registers a piece of a managed range with its shard's userfaultfd. False if the kernel refuses:
/// for now, or for good (then the range is no longer evictable).
fn register(mm: &Mm, start: usize, end: usize) -> bool {
    let mut ranges = mm.ranges.lock();
    let (mut from, mut to) = (start, end);
    if ranges.len() > mm.descriptors.mappings_max.load(Relaxed) / MAPPINGS_SHARE {
        // Few mappings are left: take all of the neighbourhood that is managed alike.
        let run = start / LONG_RUN * LONG_RUN;
        let pieces = ranges.overlapping(run, run + LONG_RUN);
        // Only this region is locked; but no page of a piece that is not registered is evicted (see
        // `Pager::manage`).
        if let Some(piece) = pieces.iter().find(|p| p.start <= start && start < p.end) {
            (from, to) = (piece.start, piece.end);
        }
    }
    let done = sys::uffd_register(mm.uffd_of(start), from, to - from, mm.write_protects());
    if done.is_ok() {
        sys::keep_from_children(from, to - from);
    }
    ranges.update(from, to, |attributes| match done {
        Ok(()) => attributes.registered = true,
        // Out of memory or of mappings: another time perhaps.
        Err(Errno::ENOMEM) => {}
        Err(_) => attributes.evictable = false,
    });
    done.is_ok()
}

impl Mm {
    /// Stops managing a present page that turned out not to be registered, although it was believed
    /// to be. The managed memory there was unmapped without our knowledge, by a system call
    /// instruction of the program's own. What is mapped now is not ours: a small mapping, a
    /// thread's stack, a library. All such memory in the region is unmanaged with it, as far as the
    /// kernel shows it. Anything still stored for it has no owner, and is dropped when memory is
    /// managed there again.
    pub(super) fn unmanage_page(&self, address: usize) {
        let base = address / REGION * REGION;
        let mut unmanaged = false;
        if self.descriptors.tracks_writes.load(Relaxed) {
            unmanaged = self.unmanage_unregistered(base, base + REGION);
        }
        if !unmanaged {
            self.unmanage_run(address, address + PAGE);
        }
    }

    /// Stops managing what is believed to be registered in `start..end`, and is not. True if there
    /// was any. The kernel can be asked only where `Descriptors::tracks_writes` is set.
    pub(crate) fn unmanage_unregistered(&self, start: usize, end: usize) -> bool {
        let pagemap = self.descriptors.pagemap.load(Relaxed);
        let mut runs = [Run::default(); 16];
        let mut unmanaged = false;
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
                    unmanaged |= self.unmanage_run(run.start as usize, run.end as usize);
                }
                from = walked.max(from + PAGE);
            }
        }
        unmanaged
    }

    /// Stops managing `start..end`, which is not registered. Ranges that are not believed to be
    /// registered are kept. They may have been mapped since the check, and are the program's.
    fn unmanage_run(&self, start: usize, end: usize) -> bool {
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

/// Suspends eviction from a region for a growing time if the kernel refused to move most of its
/// pages.
pub(crate) fn note_refusals(entry: &Entry, outcome: &EvictOutcome) {
    if outcome.refused * 2 >= outcome.eligible.max(1) {
        let now_ms = sys::now_ns() / 1_000_000;
        let doublings = entry.region.refusals.load(Relaxed).min(7);
        entry.region.refusals.store(doublings + 1, Relaxed);
        entry
            .region
            .refused_until
            .store(((now_ms + (REFUSED_MS << doublings)) / 16) as u32, Relaxed);
    } else if outcome.evicted > 0 {
        entry.region.refusals.store(0, Relaxed);
    }
}

/// Whether a region's refusal is recent.
pub(crate) fn is_refused(entry: &Entry, now_ms: u64) -> bool {
    entry.region.refused_until.load(Relaxed).wrapping_sub((now_ms / 16) as u32) as i32 > 0
}
