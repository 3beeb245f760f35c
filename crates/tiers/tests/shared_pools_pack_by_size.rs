//! zsmalloc's and zbud's pools, which regions share: what they take of memory, that it comes back,
//! and that regions do not disturb each other.

use std::sync::Arc;

use proptest::prelude::*;
use terrace_testkit::random::Xorshift;
use terrace_tiers::{
    DramMedium, EXTENT_BYTES, Encoded, Encoding, FileMedium, Location, Medium, PAGE_BYTES,
    PoolError, ReadBuffer, RegionStore, Tier, parse_tiers,
};

fn tier(name: &str, extents: usize) -> (Arc<DramMedium>, [Tier; 1]) {
    let medium = Arc::new(DramMedium::new(extents * EXTENT_BYTES).unwrap());
    let shared: Arc<dyn Medium> = medium.clone();
    let spec = parse_tiers(&format!("dram,{name}")).unwrap().remove(1);
    (medium, [Tier::new(spec, shared)])
}

/// Bytes that tell which page they are of.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Xorshift::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    std::iter::repeat_with(|| random.draw() as u8).take(len).collect()
}

fn insert(
    store: &mut RegionStore,
    tiers: &[Tier],
    seed: u64,
    len: usize,
) -> Result<Location, PoolError> {
    let bytes = content(seed, len);
    let encoded = Encoded { encoding: Encoding::Coded, checksum: seed.into(), bytes: &bytes };
    store.insert(tiers, 0, encoded)
}

fn check(store: &RegionStore, at: Location, seed: u64) {
    let mut buffer = ReadBuffer::new();
    let found = store.page(at, &mut buffer).unwrap();
    assert_eq!(found.checksum, u128::from(seed));
    assert!(found.bytes == content(seed, at.len.into()), "page {seed} was overwritten");
}

/// A region's pages with their numbers.
#[derive(Default)]
struct Region {
    store: RegionStore,
    pages: Vec<(u64, Location)>,
}

impl Region {
    fn check(&self) {
        self.pages.iter().for_each(|(seed, at)| check(&self.store, *at, *seed));
    }

    fn clear(&mut self, tiers: &[Tier]) {
        for (_, at) in self.pages.drain(..) {
            self.store.remove(tiers, at).unwrap();
        }
    }

    fn compact_wanted(&mut self, tiers: &[Tier]) -> bool {
        let mut packed = false;
        while let Some(part) = self.store.wants_compaction() {
            let mut live: Vec<Location> = self.pages.iter().map(|page| page.1).collect();
            let before = live.clone();
            self.store.compact(tiers, part, &mut live).unwrap();
            assert_eq!(live, before, "pages of a table keep their rows");
            packed = true;
        }
        packed
    }
}

/// 65,536 pages of 300 to 3,300 bytes over 128 regions.
fn fill(tiers: &[Tier], regions: &mut [Region]) -> u64 {
    let mut seed = 0u64;
    let mut stored = 0;
    for region in regions.iter_mut() {
        for _ in 0..512 {
            seed += 1;
            let len = 300 + (seed.wrapping_mul(0x9E37_79B9) >> 12) as usize % 3000;
            region.pages.push((seed, insert(&mut region.store, tiers, seed, len).unwrap()));
            stored += len as u64;
        }
    }
    stored
}

fn regions(count: usize) -> Vec<Region> {
    (0..count).map(|_| Region::default()).collect()
}

#[test]
fn zsmalloc_packs_as_densely_as_the_kernels() {
    let (medium, tiers) = tier("lz4/zsmalloc", 400);
    let mut regions = regions(128);
    let stored = fill(&tiers, &mut regions);
    let packing = stored as f64 / tiers[0].stats.physical_bytes() as f64;
    assert!(packing > 0.93, "{packing}");
    assert!(medium.allocated_bytes() as u64 >= tiers[0].stats.physical_bytes());
    regions.iter().for_each(Region::check);
    // Half of them go, everywhere.
    for region in &mut regions {
        let keep = |seed: u64| seed.wrapping_mul(0xC2B2_AE35) >> 9 & 1 == 0;
        let (stay, go): (Vec<_>, Vec<_>) = region.pages.drain(..).partition(|page| keep(page.0));
        region.pages = stay;
        go.iter().for_each(|page| region.store.remove(&tiers, page.1).unwrap());
    }
    let loose = tiers[0].stats.stored_bytes() as f64 / tiers[0].stats.physical_bytes() as f64;
    assert!(loose < 0.75, "{loose}: there is something to pack");
    // Until it is dense enough, region by region.
    let packings =
        regions.iter_mut().filter_map(|region| region.compact_wanted(&tiers).then_some(()));
    assert!(packings.count() > 1);
    let packed = tiers[0].stats.stored_bytes() as f64 / tiers[0].stats.physical_bytes() as f64;
    // An eighth of slots free, a sixteenth of frames idle, and 4 % of classes.
    assert!(packed > 0.78, "{packed}, {loose} before");
    regions.iter().for_each(Region::check);
    assert!(regions.iter_mut().all(|region| !region.compact_wanted(&tiers)), "it ends");
    regions.iter_mut().for_each(|region| region.clear(&tiers));
    assert_eq!((tiers[0].stats.physical_bytes(), medium.allocated_bytes()), (0, 0));
}

#[test]
fn zbud_has_two_pages_in_one_at_most() {
    let (medium, tiers) = tier("lz4/zbud", 400);
    let mut regions = regions(64);
    fill(&tiers, &mut regions);
    let pages = tiers[0].stats.pages();
    let frames = tiers[0].stats.physical_bytes() / PAGE_BYTES as u64;
    assert!(frames >= pages / 2 && frames < pages * 3 / 4, "{frames} for {pages}");
    regions.iter().for_each(Region::check);
    // One that does not fit beside the header has a page of its own.
    let mut last = Region::default();
    for len in [PAGE_BYTES, 4033, 4032, 3969] {
        let before = tiers[0].stats.physical_bytes();
        last.pages.push((9, insert(&mut last.store, &tiers, 9, len).unwrap()));
        assert_eq!(tiers[0].stats.physical_bytes(), before + PAGE_BYTES as u64);
    }
    last.check();
    last.clear(&tiers);
    regions.iter_mut().for_each(|region| region.clear(&tiers));
    assert_eq!((tiers[0].stats.physical_bytes(), medium.allocated_bytes()), (0, 0));
}

#[test]
fn room_of_pages_that_are_gone_is_used_again() {
    for name in ["lz4/zsmalloc", "lz4/zbud"] {
        let (medium, tiers) = tier(name, 64);
        let mut region = Region::default();
        let mut most = 0;
        for round in 0..40 {
            for seed in 0..500u64 {
                let len = 100 + (seed as usize * 7 + round * 13) % 3900;
                region.pages.push((seed, insert(&mut region.store, &tiers, seed, len).unwrap()));
            }
            region.check();
            region.clear(&tiers);
            most = most.max(medium.allocated_bytes());
        }
        assert!(most <= 10 * EXTENT_BYTES, "{name}: {most}");
    }
}

#[test]
fn a_medium_without_room_is_said_and_nothing_changes() {
    for name in ["lz4/zsmalloc", "lz4/zbud"] {
        let (medium, tiers) = tier(name, 2);
        let mut region = Region::default();
        let refusal = loop {
            let seed = region.pages.len() as u64;
            match insert(&mut region.store, &tiers, seed, PAGE_BYTES) {
                Ok(at) => region.pages.push((seed, at)),
                Err(refusal) => break refusal,
            }
        };
        assert!(matches!(refusal, PoolError::Medium { .. }), "{refusal}");
        assert_eq!(region.pages.len(), 2 * EXTENT_BYTES / PAGE_BYTES);
        assert_eq!(tiers[0].stats.pages(), region.pages.len() as u64);
        assert_eq!(medium.allocated_bytes(), 2 * EXTENT_BYTES);
        region.check();
        let (_, at) = region.pages.pop().unwrap();
        region.store.remove(&tiers, at).unwrap();
        assert!(region.store.remove(&tiers, at).is_err(), "it was removed already");
        region.pages.push((7, insert(&mut region.store, &tiers, 7, PAGE_BYTES).unwrap()));
        region.check();
        region.clear(&tiers);
    }
}

#[test]
fn a_store_that_is_dropped_with_pages_gives_their_memory_back() {
    let (medium, tiers) = tier("lz4/zsmalloc", 8);
    let mut store = RegionStore::new();
    for seed in 0..100 {
        insert(&mut store, &tiers, seed, 1000).unwrap();
    }
    drop(store);
    assert_eq!(medium.allocated_bytes(), 0);
}

#[test]
fn threads_with_regions_of_their_own_share_a_pool() {
    let directory = std::env::temp_dir().display().to_string();
    let files = ["/dev/shm".to_owned(), directory].map(|directory| {
        let spec = parse_tiers(&format!("dram,lz4/zbud@file:{directory}")).unwrap().remove(1);
        [Tier::in_files(spec, FileMedium::new(&directory))]
    });
    let in_memory = ["lz4/zsmalloc", "lz4/zbud"].map(|name| tier(name, 128).1);
    for tiers in in_memory.iter().chain(&files) {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let mut region = Region::default();
                    let mut random = Xorshift::new(thread + 1);
                    for step in 0..2500u64 {
                        let state = random.draw();
                        let seed = thread << 32 | step;
                        if state % 5 < 2 && !region.pages.is_empty() {
                            let index = state as usize / 8 % region.pages.len();
                            let (seed, at) = region.pages.swap_remove(index);
                            check(&region.store, at, seed);
                            region.store.remove(tiers, at).unwrap();
                        } else if region.pages.len() < 600 {
                            let len = 1 + state as usize / 8 % PAGE_BYTES;
                            let at = insert(&mut region.store, tiers, seed, len).unwrap();
                            region.pages.push((seed, at));
                        }
                        if step % 500 == 0 {
                            region.check();
                            region.compact_wanted(tiers);
                        }
                    }
                    region.check();
                    region.clear(tiers);
                });
            }
        });
        assert_eq!(tiers[0].stats.physical_bytes(), 0, "{}", tiers[0].spec.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Pages of several regions, coming and going in any order, never overlap.
    #[test]
    fn no_order_of_steps_makes_pages_overlap(
        steps in prop::collection::vec((0usize..3, any::<u16>(), 1usize..=PAGE_BYTES), 1..600),
        zbud in any::<bool>(),
    ) {
        let (medium, tiers) = tier(if zbud { "lz4/zbud" } else { "lz4/zsmalloc" }, 16);
        let mut regions = regions(3);
        for (number, (region, choice, len)) in steps.into_iter().enumerate() {
            let region = &mut regions[region];
            if choice % 5 < 2 && !region.pages.is_empty() {
                let (seed, at) = region.pages.swap_remove(usize::from(choice) % region.pages.len());
                check(&region.store, at, seed);
                region.store.remove(&tiers, at).unwrap();
            } else {
                let seed = number as u64;
                region.pages.push((seed, insert(&mut region.store, &tiers, seed, len).unwrap()));
            }
            if choice % 64 == 0 {
                region.compact_wanted(&tiers);
            }
        }
        regions.iter().for_each(Region::check);
        regions.iter_mut().for_each(|region| region.clear(&tiers));
        prop_assert_eq!((tiers[0].stats.physical_bytes(), medium.allocated_bytes()), (0, 0));
    }
}
