//! Takes claimed pages out of the page table. UFFDIO_MOVE moves them into staging slots. With
//! `--evict wp` they are write-protected, copied to staging and discarded instead.

use crate::evict::claim::settle;
use crate::evict::dma;
use crate::evict::evictor::{Claimed, EvictOutcome, Evictor, Staged};
use crate::pages::mm::Mm;
use crate::pages::table::Entry;
use crate::pages::word::State;
use crate::trace::EvictionStep;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_control::settings::Eviction;
use terrace_os::{self as sys, Errno, PAGE};

/// Least time between scans for pinned pages, ns. `POLL_SHARE` is the least time as a multiple of
/// one scan's processor time.
const POLL_INTERVAL_NS: u64 = 5_000_000;
const POLL_SHARE: u64 = 20;

/// The result for a run of claimed pages.
struct RunOutcome {
    /// How many of its first pages were moved.
    pages: usize,
    /// Whether the next page is no longer mapped; otherwise it stays.
    is_gone: bool,
}

impl RunOutcome {
    fn of(pages: usize) -> RunOutcome {
        RunOutcome { pages, is_gone: false }
    }
}

impl Evictor {
    /// Freezes the pager when the program may have pages pinned for a device. Eviction by
    /// write-protect and discard would break that device's access to them.
    pub(crate) fn check_for_pins(&mut self, mm: &Mm) {
        if sys::now_ns() < self.next_pin_check_ns {
            return;
        }
        // Not wall time: time in which other threads had the processor must not delay the next
        // scan.
        let before_ns = sys::thread_cpu_ns();
        if let Some(evidence) = dma::pin_evidence() {
            mm.freeze(&format!(
                "the program uses {evidence}, which may pin pages: write-protect and discard (--evict wp) is not safe beside it"
            ));
        }
        let cost_ns = sys::thread_cpu_ns() - before_ns;
        self.next_pin_check_ns = sys::now_ns() + POLL_INTERVAL_NS.max(cost_ns * POLL_SHARE);
    }

    /// Moves claimed pages into staging slots, run by run, and adds them to `staged`. The first
    /// page of `staged` is in `slot`.
    pub(crate) fn stage(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        claimed: &[Claimed],
        slot: usize,
        outcome: &mut EvictOutcome,
        staged: &mut Vec<Staged>,
    ) {
        mm.check(
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
            let RunOutcome { pages: moved, is_gone } = match mm.settings.evict {
                Eviction::Move => self.move_run(mm, claimed[index].address, slot, run),
                Eviction::WriteProtect => self.copy_run(mm, claimed[index].address, slot, run),
            };
            for (i, page) in claimed[index..index + moved].iter().enumerate() {
                let word = page.before.moving().with(State::Staged, (slot + i) as u64);
                settle(mm, entry.word(page.address), page.before, word);
                staged.push(Staged {
                    address: page.address,
                    word,
                    slot: slot + i,
                    copy: page.before.copy(),
                });
            }
            mm.account.resident_pages.fetch_sub(moved as i64, Relaxed);
            index += moved;
            if moved < run {
                // The page at `index` was not moved: undo its claim, and go on with the next.
                let page = &claimed[index];
                settle(mm, entry.word(page.address), page.before, page.before);
                outcome.refused += 1;
                refused += u64::from(!is_gone);
                index += 1;
            }
        }
        if refused > 0 {
            mm.account.failed_moves.fetch_add(refused, Relaxed);
        }
    }

    /// Moves a run with UFFDIO_MOVE. A page that only *was* shared with a child is made exclusive
    /// and tried again.
    ///
    /// The kernel does not check that what it moves is registered, and what is not reads as zeros
    /// afterwards. So registration is checked right before, whatever is believed: see
    /// [`Mm::unmanage_page`].
    fn move_run(&mut self, mm: &Mm, address: usize, slot: usize, pages: usize) -> RunOutcome {
        let uffd = mm.descriptors.staging.load(Relaxed);
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
        let mut done = 0;
        let mut unshared_at = usize::MAX;
        let mut step = pages;
        loop {
            let from = address + done * PAGE;
            let to = mm.staging.address(slot + done);
            let len = step.min(pages - done) * PAGE;
            match sys::uffd_has(mm.uffd_of(from), from, len) {
                Ok(true) => {}
                // Or the run spans two mappings.
                Ok(false) if len > PAGE => {
                    step = 1;
                    continue;
                }
                Ok(false) => {
                    mm.unmanage_page(from);
                    return RunOutcome::of(done);
                }
                Err(_) => return RunOutcome::of(done),
            }
            let begun_ns = sys::now_ns();
            // SAFETY: the pages are claimed (Moving) and their faults answered; the slots are free.
            let (bytes, stopped) = unsafe { sys::uffd_move(uffd, pagemap, to, from, len) };
            done += bytes / PAGE;
            let (call_ns, moved) = (sys::now_ns() - begun_ns, (bytes / PAGE) as u64);
            mm.account.add_interruption(call_ns, moved);
            if let Some(auto) = self.auto.as_mut().filter(|_| moved > 0) {
                auto.moved.add_sample(call_ns, moved);
            }
            if done == pages {
                return RunOutcome::of(done);
            }
            let at = address + done * PAGE;
            // The program has freed the page meanwhile: not a refusal.
            if stopped == Some(Errno::ENOENT) {
                return RunOutcome { pages: done, is_gone: true };
            }
            if let Some(error) = stopped {
                mm.account.move_error.store(error.into_raw() as u64, Relaxed);
            }
            match stopped {
                None => {}
                // One call must stay within one VMA, and neighbours that look alike to us may be
                // two.
                Some(Errno::EINVAL) if step > 1 => step = 1,
                // Copy-on-write: not movable until written, even if no other process is left. (A
                // page pinned for DMA looks the same, and stays so: hence one try.)
                Some(Errno::EBUSY) if unshared_at != at => {
                    if !sys::mapped_exclusively(pagemap, at) {
                        mm.account.shared_tries.fetch_add(1, Relaxed);
                        return RunOutcome::of(done);
                    }
                    unshared_at = at;
                    if sys::populate_for_writing(at, PAGE).is_err() {
                        return RunOutcome::of(done);
                    }
                }
                Some(Errno::EEXIST) => {
                    mm.check(false, "a free staging slot is empty");
                    return RunOutcome::of(done);
                }
                // Locked, protected, pinned: not ours to move.
                Some(_) => return RunOutcome::of(done),
            }
        }
    }

    /// Write-protects, copies and discards a run. Writers wait from the first step on: their fault
    /// finds the page claimed.
    fn copy_run(&mut self, mm: &Mm, address: usize, slot: usize, pages: usize) -> RunOutcome {
        let pagemap = mm.descriptors.pagemap.load(Relaxed);
        let uffd = mm.uffd_of(address);
        // Copying would touch a missing page, and evicting one that a child shares frees nothing.
        let exclusive =
            (0..pages).take_while(|i| sys::mapped_exclusively(pagemap, address + i * PAGE)).count();
        if exclusive == 0 {
            mm.account.shared_tries.fetch_add(1, Relaxed);
            return RunOutcome::of(0);
        }
        let mut copied = 0;
        let protected = sys::uffd_write_protect(uffd, address, exclusive * PAGE, true);
        if protected.is_ok() {
            copied = sys::copy_pages(address, mm.staging.address(slot), exclusive);
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
            // The rest stays. A page left protected would block its writers for ever.
            let (start, len) = (address + gone * PAGE, (exclusive - gone) * PAGE);
            while matches!(sys::uffd_write_protect(uffd, start, len, false), Err(Errno::ENOMEM)) {
                sys::sleep(Duration::from_millis(1));
            }
            if gone < copied {
                mm.staging.empty(slot + gone, copied - gone);
            }
        }
        // What is protected is registered: as for [`Evictor::move_run`].
        if protected == Err(Errno::ENOENT) {
            if exclusive > 1 {
                return self.copy_run(mm, address, slot, 1);
            }
            mm.unmanage_page(address);
        }
        RunOutcome::of(gone)
    }
}

/// Empties slots of the staging area whose pages were stored or put back.
pub(super) fn empty_slots(mm: &Mm, slot: usize, slots: usize) {
    let begun_ns = sys::now_ns();
    mm.trace.evicting(EvictionStep::Empty, || mm.staging.empty(slot, slots));
    mm.account.add_interruption(sys::now_ns() - begun_ns, slots as u64);
}
