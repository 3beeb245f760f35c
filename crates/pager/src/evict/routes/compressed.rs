//! The route into compressed pools of our own, in memory or files: claim, stage, compress, store.

use crate::evict::claim::{claim_from_probation, is_refused};
use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor};
use crate::evict::routes::route::Route;
use crate::evict::stage::empty_slots;
use crate::evict::store::accepts;
use crate::pages::mm::{Mm, is_own};
use crate::pages::staging::BATCH;
use crate::pages::table::{Entry, REGION};
use crate::trace::EvictionStep;
use terrace_os::{self as sys, PAGE};
use terrace_tiers::Tier;

/// What a pool takes for its pages, as a multiple of their encoded bytes.
const POOL_OVERHEAD: f64 = 1.07;

/// The route into a tier of ours.
pub(super) struct Compressed;

impl Route for Compressed {
    fn accepts(&self, tier: &Tier) -> bool {
        is_own(tier)
    }

    fn ratio(&self, evictor: &Evictor, _mm: &Mm, tier: usize) -> Option<f64> {
        evictor.encoded[tier].known().map(|ratio| (ratio * POOL_OVERHEAD).min(1.0))
    }

    fn evict(
        &self,
        evictor: &mut Evictor,
        mm: &Mm,
        entry: Entry,
        request: EvictRequest,
    ) -> EvictOutcome {
        let mut outcome = EvictOutcome::default();
        let mut from = request.from;
        evictor.check_for_pins(mm);
        let now_ms = sys::now_ns() / 1_000_000;
        while (outcome.evicted as usize) < request.pages && from < REGION / PAGE {
            let _inside = mm.gate.worker();
            let _region = mm.table.lock(&entry);
            if mm.is_frozen() || !mm.tiers[1..].iter().any(accepts) {
                from = REGION / PAGE;
                break;
            }
            if !mm.ensure_split(&entry) {
                outcome.refused += 1;
                from = REGION / PAGE;
                break;
            }
            let limit = BATCH.min(request.pages - outcome.evicted as usize);
            let (mut claimed, mut staged) =
                (std::mem::take(&mut evictor.claimed), std::mem::take(&mut evictor.staged));
            from = mm.trace.evicting(EvictionStep::Scan, || {
                let judge = |word, written| request.judge(word, written, now_ms);
                evictor.claim(
                    mm,
                    &entry,
                    limit,
                    from..REGION / PAGE,
                    &mut outcome,
                    judge,
                    &mut claimed,
                )
            });
            outcome.eligible += claimed.len() as u32;
            mm.trace.evicting(EvictionStep::Move, || {
                evictor.stage(mm, &entry, &claimed, 0, &mut outcome, &mut staged)
            });
            outcome.evicted += evictor.store(mm, &entry, &staged, 0, claimed.len(), Some(request));
            claimed.clear();
            staged.clear();
            (evictor.claimed, evictor.staged) = (claimed, staged);
            mm.signal_progress();
            // Most likely all of it is shared with a child: avoid a whole region of refusals.
            if outcome.refused as usize >= BATCH / 2 && outcome.refused > outcome.evicted {
                from = REGION / PAGE;
            }
        }
        outcome.next = from;
        outcome
    }

    fn end_probation(
        &self,
        evictor: &mut Evictor,
        mm: &Mm,
        pages: &[u32],
        tier: usize,
        report: &mut dyn FnMut(u32),
    ) {
        evictor.check_for_pins(mm);
        let _inside = mm.gate.worker();
        let now_ms = sys::now_ns() / 1_000_000;
        let request = EvictRequest { pages: 1, pressure: 0, force: false, tier, from: 0 };
        let possible = !mm.is_frozen() && mm.tiers[1..].iter().any(accepts);
        let swaps = sys::has_swap();
        let mut slot = 0;
        let mut staged = std::mem::take(&mut evictor.staged);
        for number in pages.iter().take(BATCH) {
            let (entry, address) = mm.table.page(*number);
            let word = entry.word(address);
            if !word.load().is_on_probation() {
                continue;
            }
            let _region = mm.table.lock(&entry);
            if possible && !is_refused(&entry, now_ms) && mm.ensure_split(&entry) {
                let claimed = mm.trace.evicting(EvictionStep::Scan, || {
                    claim_from_probation(mm, &entry, address, swaps, now_ms)
                });
                let mut outcome = EvictOutcome::default();
                let claimed = claimed.as_slice();
                mm.trace.evicting(EvictionStep::Move, || {
                    evictor.stage(mm, &entry, claimed, slot, &mut outcome, &mut staged)
                });
                slot += staged.len();
                if evictor.store(mm, &entry, &staged, 0, 0, Some(request)) > 0 {
                    report(entry.number);
                }
                staged.clear();
            }
            // If it could not be evicted.
            mm.end_probation(&entry, address);
        }
        evictor.staged = staged;
        if slot > 0 {
            empty_slots(mm, 0, slot);
        }
        mm.signal_progress();
    }
}
