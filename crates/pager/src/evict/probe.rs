//! Probes: a few pages of a region are taken out of the page table for a moment, to see whether
//! they are touched.

use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor, Probe, Staged, Verdict};
use crate::pages::mm::Mm;
use crate::pages::staging::PROBE;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::Snapshot;
use terrace_os::{self as sys, PAGE};

/// How long a probe lasts, ns: long enough to be touched by any thread that runs all the time.
const PROBE_NS: u64 = 100_000_000;

impl Evictor {
    /// Takes a few pages of a region out of the page table, to see whether they are touched. False
    /// if none could be taken.
    pub(crate) fn probe(&mut self, mm: &Mm, entry: Entry, salt: u64) -> bool {
        let Some(chunk) = self.free_chunks.pop() else { return false };
        let slot = mm.staging.probe_slot(chunk);
        self.check_for_pins(mm);
        let _inside = mm.gate.worker();
        let _region = mm.table.lock(&entry);
        if !mm.ensure_split(&entry) {
            self.free_chunks.push(chunk);
            return false;
        }
        let mut staged = Vec::with_capacity(PROBE);
        // Four runs of four pages, at four places: hot spots are seldom spread evenly.
        for part in 0..4 {
            let from = part * 128 + (salt.rotate_left(part as u32 * 8) % 120) as usize;
            let mut outcome = EvictOutcome::default();
            let mut claimed = Vec::with_capacity(PROBE / 4);
            let unknown = |word: Snapshot, _| {
                if word.refaults() == 0 && !word.is_on_probation() && !word.is_incompressible() {
                    Verdict::Take
                } else {
                    Verdict::Leave
                }
            };
            self.claim(
                mm,
                &entry,
                PROBE / 4,
                from..REGION / PAGE,
                &mut outcome,
                unknown,
                &mut claimed,
            );
            self.stage(mm, &entry, &claimed, slot, &mut outcome, &mut staged);
        }
        if staged.is_empty() || mm.is_frozen() {
            self.undo(mm, &entry, &staged, slot);
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
    pub(crate) fn end_probes(
        &mut self,
        mm: &Mm,
        now_ns: u64,
        mut report: impl FnMut(u32, u32, u32, u32),
    ) {
        while self.probes.front().is_some_and(|probe| now_ns - probe.since_ns >= PROBE_NS) {
            let Some(probe) = self.probes.pop_front() else { return };
            let entry = mm.table.by_number(probe.region);
            let _inside = mm.gate.worker();
            let _region = mm.table.lock(&entry);
            let staged = probe.staged.len() as u32;
            let still =
                probe.staged.iter().filter(|s| entry.word(s.address).load() == s.word).count()
                    as u32;
            let tier = mm.own_tier(1);
            let request = EvictRequest { pages: PROBE, pressure: 0, force: false, tier, from: 0 };
            let slot = mm.staging.probe_slot(probe.chunk);
            let evicted = self.store(mm, &entry, &probe.staged, slot, PROBE, Some(request));
            self.free_chunks.push(probe.chunk);
            mm.signal_progress();
            report(probe.region, staged, staged - still, evicted);
        }
    }

    /// Puts back every staged page. For forks and for freezing.
    pub(crate) fn cancel_probes(&mut self, mm: &Mm) {
        while let Some(probe) = self.probes.pop_front() {
            let entry = mm.table.by_number(probe.region);
            let _region = mm.table.lock(&entry);
            self.undo(mm, &entry, &probe.staged, mm.staging.probe_slot(probe.chunk));
            self.free_chunks.push(probe.chunk);
        }
    }

    pub(crate) fn undo(&mut self, mm: &Mm, entry: &Entry, staged: &[Staged], slot: usize) {
        self.store(mm, entry, staged, slot, staged.len(), None);
    }

    /// Whether probes are in progress.
    pub(crate) fn probing(&self) -> bool {
        !self.probes.is_empty()
    }
}
