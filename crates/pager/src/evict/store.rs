//! Staged pages are compressed into their region's store, or go back.

use crate::evict::evictor::{EvictRequest, Evictor, Staged};
use crate::evict::stage::empty_slots;
use crate::pages::mm::Mm;
use crate::pages::table::Entry;
use crate::pages::word::{Snapshot, State, tick_of};
use crate::trace::EvictionStep;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;
use terrace_tiers::{
    Encoding, Location, PAGE_BYTES, Page, PoolError, ReadBuffer, RegionStore, Scratch, Tier,
    checksum,
};

/// After 16 pages that were compressed, 0.1 to 0.25 ms, others have the processor; one that left as
/// it came takes a third of the time.
const BREATH: usize = 16 * COMPRESSED;
const COMPRESSED: usize = 3;
const UNCHANGED: usize = 1;

impl Evictor {
    /// Lets codecs learn from what left, where there is enough of it.
    pub(crate) fn learn(&mut self, mm: &Mm) {
        for (tier, training) in mm.tiers.iter().zip(&mut self.training) {
            if let Some(pages) = training.due(tier) {
                // No fork meanwhile.
                let _inside = mm.gate.worker();
                tier.learn(&pages, &sys::thread_cpu_ns);
                // One at a time: each takes milliseconds.
                return;
            }
        }
    }

    /// Compresses staged pages into their region's store and empties the slots `slot..slot +
    /// slots`. Without a wish, or where compression does not pay, pages go back. Returns how
    /// many were stored.
    pub(crate) fn store(
        &mut self,
        mm: &Mm,
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
                mm.leave_background();
            } else if self.without_breath >= BREATH {
                mm.yield_if_due();
                self.without_breath = 0;
            }
            // Touched meanwhile: nothing to do. (Reading the slot would be harmless: it holds the
            // page until emptied.)
            let touched = entry.word(page.address).load() != page.word;
            let wish = wish.filter(|_| !touched && !mm.is_frozen());
            if let Some(copy) = page.copy {
                if wish.is_some_and(|wish| self.store_as_copy(mm, entry, page, copy, wish, now_ms))
                {
                    stored += 1;
                    self.without_breath += UNCHANGED;
                    continue;
                }
                mm.remove_copy(&mut entry.region.store.lock(), copy);
            }
            if touched {
                continue;
            }
            let Some(wish) = wish else {
                mm.put_back(entry, page.address, page.word, page.word.off_probation());
                continue;
            };
            self.without_breath += COMPRESSED;
            let resident = match self.store_page(mm, entry, page, wish, now_ms) {
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
            self.repack(mm, entry, RegionStore::wants_repack);
        }
        stored
    }

    /// Stores a page that is as it was when it came back: its copy is there. False if it is not, or
    /// was touched; its copy is still ours then.
    fn store_as_copy(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        page: &Staged,
        copy: Location,
        wish: EvictRequest,
        now_ms: u64,
    ) -> bool {
        // SAFETY: as in `store_page`.
        let contents: &Page =
            unsafe { &*(mm.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        let store = entry.region.store.lock();
        if store.tier_of(copy) != Some(wish.tier as u8) {
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
            Snapshot::new(State::Evicted, page.word.returns(), tick_of(now_ms), copy.to_bits());
        let stored = entry.word(page.address).transition(page.word, evicted).is_ok();
        if stored {
            entry.region.count_evicted();
            mm.tiers[wish.tier].stats.no_copy();
            mm.account.unchanged_pages.fetch_add(1, Relaxed);
        }
        stored
    }

    fn store_page(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        page: &Staged,
        wish: EvictRequest,
        now_ms: u64,
    ) -> StoreOutcome {
        // SAFETY: the slot holds the moved page until this function's caller empties it; nobody
        // writes to it.
        let contents: &Page =
            unsafe { &*(mm.staging.address(page.slot) as *const [u8; PAGE_BYTES]) };
        if let Some(auto) = &mut self.auto {
            auto.offer(contents);
        }
        if let Some(gauge) = &mut self.gauge {
            gauge.offer(contents);
        }
        let (mut refused, mut incompressible) = (false, false);
        // Denser tiers where it does not compress, and any other that takes it where one refuses.
        for tier in (wish.tier..mm.tiers.len()).chain((1..wish.tier).rev()) {
            let place = &mm.tiers[tier];
            if !accepts(place) {
                refused = true;
                continue;
            }
            if incompressible && tier < wish.tier {
                continue;
            }
            let encoded = mm.trace.evicting(EvictionStep::Compress, || {
                place.encode(contents, &mut self.tools.scratch)
            });
            if tier == wish.tier {
                self.encoded[tier].count(encoded.bytes.len());
            }
            if encoded.encoding == Encoding::Coded {
                self.training[tier].offer(place, contents);
                // And to the densest, which may be worth its price only for what it learns: it
                // would not be chosen before, and so would never learn.
                if let Some(densest) = mm
                    .densest_own()
                    .filter(|densest| *densest != tier && self.training[*densest].is_first())
                {
                    self.training[densest].offer(&mm.tiers[densest], contents);
                }
            }
            if encoded.encoding == Encoding::Raw {
                incompressible = true;
                // As it is it gains nothing in DRAM.
                let wanted = place.leaves_dram() || wish.anything && tier + 1 == mm.tiers.len();
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
                page.word.returns(),
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

/// What became of a staged page that is to be stored.
enum StoreOutcome {
    Stored,
    /// A file has no room at present.
    Refused,
    /// No tier gains anything by it (or it was touched: then it is not ours any more).
    Incompressible,
}

/// Whether it is worth trying to store in a tier.
pub(crate) fn accepts(tier: &Tier) -> bool {
    tier.is_ours() && !tier.is_disabled() && tier.files().is_none_or(|files| files.accepts())
}

impl Mm {
    /// A tier would not store a page. One in files is left alone for a while, and that is said
    /// once.
    pub(super) fn note_refusal(&self, tier: usize, refusal: &PoolError) {
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
