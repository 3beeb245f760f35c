//! Compresses staged pages into their region's store, or puts them back.

use crate::evict::evictor::{EvictRequest, Evictor, Staged};
use crate::evict::stage::empty_slots;
use crate::pages::mm::{Mm, is_own};
use crate::pages::table::Entry;
use crate::pages::word::{Snapshot, State, tick_of};
use crate::trace::EvictionStep;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;
use terrace_tiers::{
    Encoding, Location, PAGE_BYTES, Page, PoolError, ReadBuffer, RegionStore, Scratch, Tier,
    checksum,
};

/// Work after which the mover yields the processor: 16 compressed pages, which take 0.1 to 0.25 ms.
/// An unchanged page, for which only its old copy is kept, takes a third of the time.
const YIELD_AFTER: usize = 16 * COMPRESSED;
const COMPRESSED: usize = 3;
const UNCHANGED: usize = 1;

impl Evictor {
    /// Lets codecs learn from evicted pages, where there are enough of them.
    pub(crate) fn train(&mut self, mm: &Mm) {
        for (tier, training) in mm.tiers.iter().zip(&mut self.training) {
            if let Some(pages) = training.due(tier) {
                // No fork may take place meanwhile.
                let _inside = mm.gate.worker();
                let has_changed = tier.train(&pages, &sys::thread_cpu_ns);
                mm.account.dictionary_changes.fetch_add(u64::from(has_changed), Relaxed);
                // One at a time: each takes milliseconds.
                return;
            }
        }
    }

    /// Compresses staged pages into their region's store and empties the slots `slot..slot +
    /// slots`. Without a request, or where compression does not pay, pages are put back. Returns
    /// how many were stored.
    pub(crate) fn store(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        staged: &[Staged],
        slot: usize,
        slots: usize,
        request: Option<EvictRequest>,
    ) -> u32 {
        let now_ms = sys::now_ns() / 1_000_000;
        let mut stored = 0;
        for page in staged {
            if entry.region.lock.is_waited_for() {
                mm.leave_background();
            } else if self.work_since_yield >= YIELD_AFTER {
                mm.yield_if_due();
                self.work_since_yield = 0;
            }
            // Touched meanwhile: nothing to do. (Reading the slot would be harmless: it holds the
            // page until emptied.)
            let touched = entry.word(page.address).load() != page.word;
            let request = request.filter(|_| !touched && !mm.is_frozen());
            if let Some(copy) = page.copy {
                if request.is_some_and(|request| {
                    self.store_as_copy(mm, entry, page, copy, request, now_ms)
                }) {
                    stored += 1;
                    self.work_since_yield += UNCHANGED;
                    continue;
                }
                mm.remove_copy(&mut entry.region.store.lock(), copy);
            }
            if touched {
                continue;
            }
            let Some(request) = request else {
                mm.put_back(entry, page.address, page.word, page.word.off_probation());
                continue;
            };
            self.work_since_yield += COMPRESSED;
            let resident = match self.store_page(mm, entry, page, request, now_ms) {
                StoreOutcome::Stored => {
                    stored += 1;
                    continue;
                }
                // Nothing is wrong with the page.
                StoreOutcome::Refused => page.word.off_probation(),
                StoreOutcome::Incompressible => page.word.incompressible_at(tick_of(now_ms)),
            };
            mm.put_back(entry, page.address, page.word, resident);
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
            empty_slots(mm, slot, slots);
        }
        if stored > 0 {
            mm.trace.evicted(stored);
            mm.account.demoted_pages.fetch_add(u64::from(stored), Relaxed);
            self.compact(mm, entry, RegionStore::wants_compaction);
        }
        stored
    }

    /// Stores a page that is unchanged since it was restored, by keeping its copy. False if the
    /// page has changed or was touched; its copy still belongs to the mover then.
    fn store_as_copy(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        page: &Staged,
        copy: Location,
        request: EvictRequest,
        now_ms: u64,
    ) -> bool {
        // SAFETY: as in `store_page`.
        let contents: &Page =
            unsafe { &*(mm.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        let store = entry.region.store.lock();
        if store.tier_of(copy) != Some(request.tier as u8) {
            return false;
        }
        let alike = store
            .page(copy, &mut self.tools.stored)
            .is_ok_and(|copy| copy.checksum == checksum(contents));
        let with = (&mut self.tools.scratch, &mut self.tools.stored);
        let is_that = || {
            mm.decode(&store, copy, &mut self.read_back.0, with).is_ok()
                && self.read_back.0 == *contents
        };
        if !alike || mm.settings.verify && !is_that() {
            return false;
        }
        let evicted =
            Snapshot::new(State::Evicted, page.word.refaults(), tick_of(now_ms), copy.to_bits());
        let stored = entry.word(page.address).transition(page.word, evicted).is_ok();
        if stored {
            entry.region.count_evicted();
            mm.tiers[request.tier].stats.no_copy();
            mm.account.unchanged_pages.fetch_add(1, Relaxed);
        }
        stored
    }

    fn store_page(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        page: &Staged,
        request: EvictRequest,
        now_ms: u64,
    ) -> StoreOutcome {
        // SAFETY: the slot holds the moved page until this function's caller empties it; no thread
        // writes to it.
        let contents: &Page =
            unsafe { &*(mm.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        if let Some(auto) = &mut self.auto {
            auto.offer(contents);
        }
        if let Some(compression_sample) = &mut self.compression_sample {
            compression_sample.offer(contents);
        }
        let (mut refused, mut incompressible) = (false, false);
        // Denser tiers where it does not compress, and any other that accepts it where one refuses.
        for tier in (request.tier..mm.tiers.len()).chain((1..request.tier).rev()) {
            let place = &mm.tiers[tier];
            if !accepts(place) {
                refused = true;
                continue;
            }
            if incompressible && tier < request.tier {
                continue;
            }
            let encoded = mm.trace.evicting(EvictionStep::Compress, || {
                place.encode(contents, &mut self.tools.scratch)
            });
            if tier == request.tier {
                self.encoded[tier].count(encoded.bytes.len());
            }
            if encoded.encoding == Encoding::Coded {
                self.training[tier].offer(place, contents);
                // Offer it to the densest tier too, which may pay only after training. It would not
                // be chosen before, and so would never learn.
                if let Some(densest) = mm
                    .densest_own_tier()
                    .filter(|densest| *densest != tier && self.training[*densest].is_first())
                {
                    self.training[densest].offer(&mm.tiers[densest], contents);
                }
            }
            if encoded.encoding == Encoding::Raw {
                incompressible = true;
                // Uncompressed, it gains nothing in DRAM.
                let wanted = place.leaves_dram() || request.force && tier + 1 == mm.tiers.len();
                if !wanted {
                    continue;
                }
            }
            let mut store = entry.region.store.lock();
            let location = match mm
                .trace
                .evicting(EvictionStep::Store, || store.insert(&mm.tiers, tier as u8, encoded))
            {
                Ok(location) => location,
                Err(refusal) => {
                    mm.note_refusal(tier, &refusal);
                    refused |= !accepts(place);
                    continue;
                }
            };
            let with = (&mut self.tools.scratch, &mut self.tools.stored);
            if !reads_back(
                mm,
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
                page.word.refaults(),
                tick_of(now_ms),
                location.to_bits(),
            );
            if entry.word(page.address).transition(page.word, evicted).is_ok() {
                entry.region.count_evicted();
                return StoreOutcome::Stored;
            }
            // Touched meanwhile.
            mm.check(store.remove(&mm.tiers, location).is_ok(), "what was just stored is there");
            break;
        }
        if refused && !incompressible {
            StoreOutcome::Refused
        } else {
            StoreOutcome::Incompressible
        }
    }
}

/// The result for a staged page that is to be stored.
enum StoreOutcome {
    Stored,
    /// A tier that is disabled, not ours, or without file space did not accept the page.
    Refused,
    /// No tier saves memory by it, or a pool had no memory. Or it was touched: then it no longer
    /// belongs to the mover.
    Incompressible,
}

/// Whether it is worth trying to store pages in a tier.
pub(crate) fn accepts(tier: &Tier) -> bool {
    is_own(tier) && tier.files().is_none_or(|files| files.accepts())
}

impl Mm {
    /// Records that a tier would not store a page. A tier in files is not tried for a while, which
    /// is logged once.
    pub(super) fn note_refusal(&self, tier: usize, refusal: &PoolError) {
        match (refusal, self.tiers[tier].files()) {
            (PoolError::Medium { .. }, Some(files)) => {
                if files.refuse() {
                    let note = format!(
                        "{refusal}. Until that works again, pages stay in DRAM or go to other tiers"
                    );
                    self.warn(&note);
                    self.set_note_if_empty(&note);
                }
            }
            _ => self.no_room(refusal),
        }
    }
}

/// For `--verify`: whether what was just stored at `location` is the page `original`. If not, it is
/// removed again, and nothing more is evicted.
pub(super) fn reads_back(
    mm: &Mm,
    store: &mut RegionStore,
    location: Location,
    address: usize,
    original: &Page,
    read_back: &mut Page,
    with: (&mut Scratch, &mut ReadBuffer),
) -> bool {
    if !mm.settings.verify {
        return true;
    }
    let problem = match mm.decode(store, location, read_back, with) {
        Ok(_) if read_back == original => return true,
        Ok(_) => "it is another page".to_string(),
        Err(e) => e,
    };
    mm.check(store.remove(&mm.tiers, location).is_ok(), "what was just stored is there");
    mm.freeze(&format!(
        "--verify: what was stored of page {address:#x} does not give it back ({problem}). Nothing is lost: it stays where it was"
    ));
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_test::without_forks;
    use crate::pages::table::REGION;
    use crate::verify_test::{filled, pager};
    use terrace_os::PAGE;
    use terrace_policy::eviction::victims::PRESSURE_MAX;

    #[test]
    fn what_leaves_for_the_first_tier_is_the_densest_ones_first_lesson() {
        let _alone = without_forks();
        let Some(pager) = pager("dram,lz4,zstd", false, |_| Ok(())) else { return };
        let mut evictor = Evictor::new(pager);
        for _ in 0..2 {
            assert!(evictor.training[2].is_first());
            let (base, _) = filled(pager, |page| page as u64);
            let request = EvictRequest {
                pages: REGION / PAGE,
                pressure: PRESSURE_MAX,
                force: true,
                tier: 1,
                from: 0,
            };
            let outcome = evictor.evict(pager, pager.table.get_or_create(base).unwrap(), request);
            assert_eq!(outcome.evicted as usize, REGION / PAGE);
            evictor.train(pager);
        }
        assert!(!evictor.training[2].is_first(), "768 pages are enough");
        assert_eq!(pager.tiers[2].stats.pages(), 0);
    }
}
