//! Moves stored pages into another tier, and compacts what is left of a region's extents.

use crate::evict::claim::settle_from;
use crate::evict::evictor::Evictor;
use crate::evict::store::{accepts, reads_back};
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION};
use crate::pages::word::{PageWord, Snapshot, State};
use std::sync::atomic::Ordering::*;
use terrace_os::PAGE;
use terrace_tiers::{Encoded, Encoding, Location, PoolError, RegionStore};

impl Evictor {
    /// Compacts the region's extents that `wanted` returns.
    pub(crate) fn compact(
        &mut self,
        mm: &Mm,
        entry: &Entry,
        wanted: fn(&RegionStore) -> Option<u8>,
    ) {
        let mut store = entry.region.store.lock();
        while let Some(extent) = wanted(&store) {
            // Not now: a page that is being restored still has bytes here, at a place that its
            // handler knows.
            if entry.words.iter().any(|word| word.load().is(State::Restoring)) {
                return;
            }
            let in_extent =
                |word: Snapshot| word.stored().filter(|location| location.extent == extent);
            self.locations.clear();
            self.locations.extend(entry.words.iter().filter_map(|word| in_extent(word.load())));
            self.compacted.clear();
            self.compacted.extend(self.locations.iter().map(|from| (from.to_bits(), 0)));
            match store.compact(&mm.tiers, extent, &mut self.locations) {
                Ok(()) => {}
                // A file without space, or unreadable: nothing has changed. An unreadable page is
                // reported when a thread needs it.
                Err(PoolError::Medium { .. } | PoolError::Read(_) | PoolError::NoMemory) => return,
                Err(_) => {
                    mm.check(false, "an extent's live pages are those of the page words");
                    return;
                }
            }
            self.compacted
                .iter_mut()
                .zip(&self.locations)
                .for_each(|(moved, to)| moved.1 = to.to_bits());
            self.compacted.sort_unstable();
            for word in entry.words {
                let found = word.load();
                if in_extent(found).is_some()
                    && let Ok(index) =
                        self.compacted.binary_search_by_key(&found.payload(), |(from, _)| *from)
                {
                    settle_from(mm, word, found, found.stored_at(self.compacted[index].1));
                }
            }
        }
    }

    /// Recompresses a region's pages from sparser tiers into the densest. Returns the bytes gained
    /// (compacted).
    pub(crate) fn recompress_densest(&mut self, mm: &Mm, entry: Entry) -> u64 {
        let Some(densest) = mm.densest_own_tier() else { return 0 };
        self.recompress(mm, entry, densest, RecompressFilter::Smaller).gained_bytes
    }

    /// Moves what is stored of a region into the tier `to`, one of ours. Pages that do not compress
    /// there stay where they are.
    pub(crate) fn recompress(
        &mut self,
        mm: &Mm,
        entry: Entry,
        to: usize,
        filter: RecompressFilter,
    ) -> Recompressed {
        let if_smaller = filter == RecompressFilter::Smaller;
        let mut done = Recompressed::default();
        if !accepts(&mm.tiers[to]) {
            return done;
        }
        for address in (0..REGION / PAGE).map(|i| entry.region.address() + i * PAGE) {
            // A fork does not wait for the remaining pages.
            if mm.pause_asked() {
                break;
            }
            let word = entry.word(address);
            if !word.load().is(State::Evicted) {
                continue;
            }
            let _inside = mm.gate.worker();
            let mut store = entry.region.store.lock();
            let found = word.load();
            if !found.is(State::Evicted) {
                continue;
            }
            let old = Location::from_bits(found.payload());
            let is_meant = |from: &usize| *from != to && filter.is_in(*from);
            let Some(from) = store.tier_of(old).map(usize::from).filter(is_meant) else {
                continue;
            };
            let gains_nothing = if_smaller && mm.tiers[from].leaves_dram();
            // A repeated pattern takes no memory anywhere.
            let stays =
                old.encoding == Encoding::Same && !matches!(filter, RecompressFilter::In(_));
            if gains_nothing || stays {
                continue;
            }
            let old_len = u64::from(old.len);
            match self.copied(mm, &mut store, old, to, if_smaller) {
                RecodeOutcome::To(new) => {
                    let len = if mm.tiers[to].leaves_dram() { 0 } else { new.len.into() };
                    if settle_moved(mm, &mut store, word, found, new) {
                        done.count(mm, to > from, old_len, len);
                    }
                    continue;
                }
                RecodeOutcome::Useless => continue,
                RecodeOutcome::Refused => return done,
                RecodeOutcome::OtherCodec => {}
            }
            let page = &mut self.tools.page.0;
            if let Err(e) =
                mm.decode(&store, old, page, (&mut self.tools.scratch, &mut self.tools.stored))
            {
                // A thread that touches the page gets the error; until then none has been given
                // wrong bytes.
                mm.freeze(&format!("page {address:#x} cannot be restored: {e}"));
                return done;
            }
            let encoded = mm.tiers[to].encode(page, &mut self.tools.scratch);
            // Bytes of DRAM.
            let len = if mm.tiers[to].leaves_dram() { 0 } else { encoded.bytes.len() as u64 };
            // Moving for less than an eighth is not worth a slower fault.
            let too_little = if_smaller && len * 8 > old_len * 7;
            if too_little || encoded.encoding == Encoding::Raw && len > 0 {
                continue;
            }
            let new = match store.insert(&mm.tiers, to as u8, encoded) {
                Ok(new) => new,
                Err(refusal) => {
                    mm.note_refusal(to, &refusal);
                    return done;
                }
            };
            let with = (&mut self.tools.scratch, &mut self.tools.stored);
            if !reads_back(mm, &mut store, new, address, page, &mut self.read_back.0, with) {
                return done;
            }
            self.training[to].offer(&mm.tiers[to], page);
            if settle_moved(mm, &mut store, word, found, new) {
                done.count(mm, to > from, old_len, len);
            }
        }
        let _inside = mm.gate.worker();
        let _region = mm.table.lock(&entry);
        self.compact(mm, &entry, RegionStore::wants_compaction);
        done
    }

    /// Copies a page's stored bytes into the tier `to`, if that keeps them in the same form. Not
    /// with `--verify`, which compares pages.
    fn copied(
        &mut self,
        mm: &Mm,
        store: &mut RegionStore,
        old: Location,
        to: usize,
        if_smaller: bool,
    ) -> RecodeOutcome {
        let Some(from) = store.tier_of(old).map(usize::from) else { return RecodeOutcome::Useless };
        let into = &mm.tiers[to];
        if mm.settings.verify || !into.reads(&mm.tiers[from]) {
            return RecodeOutcome::OtherCodec;
        }
        // In DRAM the same bytes take as much room, and a page that is not compressed saves none.
        let in_dram = !into.leaves_dram();
        let as_many = if_smaller && !mm.tiers[from].leaves_dram();
        if in_dram && (as_many || old.encoding == Encoding::Raw) {
            return RecodeOutcome::Useless;
        }
        let Ok(found) = store.page(old, &mut self.tools.stored) else {
            return RecodeOutcome::OtherCodec;
        };
        let page = &mut self.tools.page.0;
        let bytes = &mut page[..found.bytes.len()];
        bytes.copy_from_slice(found.bytes);
        let encoded = Encoded { encoding: found.encoding, checksum: found.checksum, bytes };
        match store.insert(&mm.tiers, to as u8, encoded) {
            Ok(new) => RecodeOutcome::To(new),
            Err(refusal) => {
                mm.note_refusal(to, &refusal);
                RecodeOutcome::Refused
            }
        }
    }

    /// Compacts fragmented extents of the region: frees what restored pages have left in its pool.
    pub(crate) fn compact_fragmented(&mut self, mm: &Mm, entry: &Entry) {
        let _inside = mm.gate.worker();
        let _region = mm.table.lock(entry);
        self.compact(mm, entry, RegionStore::fragmented_extent);
    }
}

/// The result of copying stored bytes to another tier.
enum RecodeOutcome {
    To(Location),
    /// Copying would gain nothing.
    Useless,
    /// The tier has no room.
    Refused,
    /// The tier keeps pages in another form: decompress and compress.
    OtherCodec,
}

/// Ends the move of a page's bytes to `new`. False if a discard has claimed the page meanwhile:
/// then `new` is freed, and the old bytes belong to the discard.
fn settle_moved(
    mm: &Mm,
    store: &mut RegionStore,
    word: &PageWord,
    found: Snapshot,
    new: Location,
) -> bool {
    let moved = word.transition(found, found.with(State::Evicted, new.to_bits())).is_ok();
    // Only a discard (`claim_stored`) changes the word of an evicted page without the store's lock.
    let gone = if moved { Location::from_bits(found.payload()) } else { new };
    mm.check(store.remove(&mm.tiers, gone).is_ok(), "a moved page's old bytes are there");
    moved
}

/// The result of [`Evictor::recompress`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Recompressed {
    /// Pages that are in the new tier now.
    pub pages: u32,
    /// Encoded bytes by which DRAM use fell.
    pub gained_bytes: u64,
}

impl Recompressed {
    /// Counts a page whose `from` encoded bytes in DRAM have become `to`. `demoted` means that it
    /// is now in a colder tier.
    fn count(&mut self, mm: &Mm, demoted: bool, from: u64, to: u64) {
        if demoted {
            mm.account.demoted_pages.fetch_add(1, Relaxed);
        }
        self.pages += 1;
        self.gained_bytes += from.saturating_sub(to);
    }
}

/// The stored pages of a region to recompress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RecompressFilter {
    /// All pages that are stored in other tiers.
    All,
    /// Only pages that take an eighth less of DRAM in the new tier.
    Smaller,
    /// Only pages that are in this tier.
    In(usize),
}

impl RecompressFilter {
    fn is_in(self, tier: usize) -> bool {
        match self {
            RecompressFilter::All | RecompressFilter::Smaller => true,
            RecompressFilter::In(of) => of == tier,
        }
    }
}
