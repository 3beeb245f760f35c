//! The region pool against a plain map: same bytes, exact statistics, and everything given back at
//! the end.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_testkit::random::Xorshift;
use terrace_tiers::{
    Checksum, DramMedium, EXTENT_BYTES, Encoded, Encoding, FileMedium, Location, Medium,
    PAGE_BYTES, PoolError, ReadBuffer, RegionStore, Tier, parse_tiers,
};

const EXTENT_POOLS: &str = "dram,lz4,zstd:1";
const SLOT_POOLS: &str = "dram,lz4/zsmalloc,zstd:1/zbud";

fn tiers(extents: usize) -> (Arc<DramMedium>, Vec<Tier>) {
    tiers_of(EXTENT_POOLS, extents)
}

fn tiers_of(list: &str, extents: usize) -> (Arc<DramMedium>, Vec<Tier>) {
    let medium = Arc::new(DramMedium::new(extents * EXTENT_BYTES).unwrap());
    let shared: Arc<dyn Medium> = medium.clone();
    let specs = parse_tiers(list).unwrap();
    (medium, specs.into_iter().map(|spec| Tier::new(spec, Arc::clone(&shared))).collect())
}

/// Tiers whose pools are in files, one on disk and one in a file system in memory.
fn tiers_in_files(list: &str) -> Vec<Tier> {
    let mut specs = parse_tiers(list).unwrap().into_iter();
    let dram = Tier::new(specs.next().unwrap(), Arc::new(DramMedium::new(EXTENT_BYTES).unwrap()));
    let directories = [std::env::temp_dir().display().to_string(), "/dev/shm".to_string()];
    let in_files = specs
        .zip(directories)
        .map(|(spec, directory)| Tier::in_files(spec, FileMedium::new(&directory)));
    std::iter::once(dram).chain(in_files).collect()
}

/// Whether pools are those that all regions share.
fn shares_a_pool(tiers: &[Tier]) -> bool {
    tiers[1].spec.name.contains("zsmalloc")
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        tier: u8,
        len: usize,
        encoding: Encoding,
    },
    Remove(prop::sample::Index),
    /// Removes about half of the pages: what makes extents worth compacting.
    Thin,
    CompactWanted,
    CompactAll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![Just(8usize), Just(PAGE_BYTES), 1..=PAGE_BYTES, 800usize..2400];
    let encoding = prop::sample::select(&[Encoding::Same, Encoding::Raw, Encoding::Coded][..]);
    let insert = (1u8..=2, len, encoding).prop_map(|(tier, len, encoding)| Step::Insert {
        tier,
        len,
        encoding,
    });
    let step = prop_oneof![
        40 => insert,
        15 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => Just(Step::Thin),
        3 => Just(Step::CompactWanted),
        1 => Just(Step::CompactAll),
    ];
    prop::collection::vec(step, 1..900)
}

/// What the pool should hold: by a page's number, its tier, location and bytes.
#[derive(Default)]
struct Model {
    pages: HashMap<u64, (u8, Location, Vec<u8>)>,
    next: u64,
}

impl Model {
    fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.pages.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    fn compact(&mut self, store: &mut RegionStore, tiers: &[Tier], extent: u8) {
        let numbers: Vec<u64> = self
            .pages
            .iter()
            .filter(|(_, page)| page.1.extent == extent)
            .map(|(n, _)| *n)
            .collect();
        let mut live: Vec<Location> = numbers.iter().map(|n| self.pages[n].1).collect();
        store.compact(tiers, extent, &mut live).unwrap();
        for (number, location) in numbers.iter().zip(live) {
            self.pages.get_mut(number).unwrap().1 = location;
        }
    }

    fn check(&self, store: &RegionStore, tiers: &[Tier]) {
        let mut physical = 0;
        for (index, tier) in tiers.iter().enumerate() {
            let held = self.pages.values().filter(|page| usize::from(page.0) == index);
            let stored: u64 = held.clone().map(|page| page.2.len() as u64).sum();
            assert_eq!(tier.stats.pages(), held.count() as u64);
            assert_eq!(tier.stats.logical_bytes(), tier.stats.pages() * 4096);
            assert_eq!(tier.stats.stored_bytes(), stored);
            assert!(tier.stats.physical_bytes() >= stored);
            physical += tier.stats.physical_bytes();
        }
        if !shares_a_pool(tiers) {
            assert_eq!(store.physical_bytes(), physical);
        }
        assert_eq!(store.is_empty(), self.pages.is_empty());
    }

    fn check_bytes(&self, store: &RegionStore) {
        for (tier, location, bytes) in self.pages.values() {
            assert_eq!(
                stored(store, *location, &mut ReadBuffer::new()),
                (bytes.as_slice(), number_of(bytes))
            );
            assert_eq!(store.tier_of(*location), Some(*tier));
            assert_eq!(Location::from_bits(location.to_bits()), *location);
        }
    }
}

fn content(number: u64, len: usize) -> Vec<u8> {
    let mut random = Xorshift::new(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..len).map(|_| random.draw() as u8).collect()
}

/// Any number that goes with the bytes, in place of a page's checksum.
fn number_of(bytes: &[u8]) -> Checksum {
    bytes.iter().fold(7, |sum, byte| Checksum::rotate_left(sum, 5) ^ Checksum::from(*byte))
}

fn stored<'b>(
    store: &'b RegionStore,
    location: Location,
    buffer: &'b mut ReadBuffer,
) -> (&'b [u8], Checksum) {
    let page = store.page(location, buffer).unwrap();
    assert_eq!(page.encoding, location.encoding);
    (page.bytes, page.checksum)
}

fn as_a_map(steps: &[Step], tiers: &[Tier]) -> Result<(), TestCaseError> {
    let mut store = RegionStore::new();
    let mut model = Model::default();
    for step in steps.iter().cloned() {
        match step {
            Step::Insert { tier, len, encoding } => {
                let bytes = content(model.next, len);
                let location = store
                    .insert(
                        tiers,
                        tier,
                        Encoded { encoding, checksum: number_of(&bytes), bytes: &bytes },
                    )
                    .unwrap();
                prop_assert_eq!((usize::from(location.len), location.encoding), (len, encoding));
                model.pages.insert(model.next, (tier, location, bytes));
                model.next += 1;
            }
            Step::Remove(index) if !model.pages.is_empty() => {
                let number = *index.get(&model.numbers());
                let (_, location, _) = model.pages.remove(&number).unwrap();
                store.remove(tiers, location).unwrap();
            }
            Step::Remove(_) => {}
            Step::Thin => {
                for number in model
                    .numbers()
                    .into_iter()
                    .filter(|n| n.wrapping_mul(0x9E37_79B9) >> 7 & 1 == 0)
                {
                    let (_, location, _) = model.pages.remove(&number).unwrap();
                    store.remove(tiers, location).unwrap();
                }
            }
            Step::CompactWanted => {
                while let Some(extent) = store.wants_compaction() {
                    let before = store.physical_bytes();
                    model.compact(&mut store, tiers, extent);
                    prop_assert!(
                        shares_a_pool(tiers) || store.physical_bytes() < before,
                        "a compaction that was wanted gave nothing back"
                    );
                }
            }
            Step::CompactAll => {
                let mut extents: Vec<u8> = model.pages.values().map(|page| page.1.extent).collect();
                extents.sort_unstable();
                extents.dedup();
                for extent in extents {
                    model.compact(&mut store, tiers, extent);
                }
                model.check_bytes(&store);
            }
        }
        model.check(&store, tiers);
    }
    model.check_bytes(&store);
    for number in model.numbers() {
        let (_, location, _) = model.pages.remove(&number).unwrap();
        store.remove(tiers, location).unwrap();
    }
    model.check(&store, tiers);
    prop_assert_eq!(tiers.iter().map(|tier| tier.stats.physical_bytes()).sum::<u64>(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn as_a_map_would(steps in steps()) {
        for list in [EXTENT_POOLS, SLOT_POOLS] {
            let (medium, tiers) = tiers_of(list, 128);
            as_a_map(&steps, &tiers)?;
            prop_assert_eq!(medium.allocated_bytes(), 0);
            let tiers = tiers_in_files(list);
            as_a_map(&steps, &tiers)?;
            for files in tiers.iter().filter_map(Tier::files) {
                files.tidy();
                prop_assert_eq!(files.held_bytes(), 0);
            }
        }
    }

    #[test]
    fn any_bits_are_a_location_and_are_refused_or_in_bounds(bits in any::<u64>()) {
        let location = Location::from_bits(bits);
        prop_assert!(location.extent < 64);
        prop_assert!((1..=4096).contains(&location.len));
        prop_assert!(location.to_bits() < 1 << Location::BITS);
        prop_assert_eq!(Location::from_bits(location.to_bits()), location);
        let (_, tiers) = tiers(1);
        let mut store = RegionStore::new();
        store
            .insert(
                &tiers, 1, Encoded { encoding: Encoding::Raw, checksum: 0, bytes: &[1; PAGE_BYTES] }
            )
            .unwrap();
        if let Ok(page) = store.page(location, &mut ReadBuffer::new()) {
            prop_assert!(
                usize::from(location.offset) * 8 + 16 + page.bytes.len() <= PAGE_BYTES + 16
            );
        }
    }
}

fn insert(store: &mut RegionStore, tiers: &[Tier], len: usize) -> Location {
    let bytes = content(len as u64, len);
    store
        .insert(
            tiers,
            1,
            Encoded { encoding: Encoding::Coded, checksum: number_of(&bytes), bytes: &bytes },
        )
        .unwrap()
}

#[test]
fn a_region_of_raw_pages_takes_five_extents_and_little_more() {
    let (medium, tiers) = tiers(8);
    let mut store = RegionStore::new();
    for _ in 0..512 {
        insert(&mut store, &tiers, PAGE_BYTES);
    }
    assert_eq!(medium.allocated_bytes(), 5 * EXTENT_BYTES);
    // 16 bytes of checksum a page, and the rest of a page in each extent.
    assert!(
        store.physical_bytes() <= (2 << 20) + 512 * 16 + 5 * 4096,
        "{}",
        store.physical_bytes()
    );
    drop(store);
    assert_eq!(medium.allocated_bytes(), 0, "a dropped store gives its memory back");
}

#[test]
fn a_medium_without_memory_changes_nothing() {
    let (_, tiers) = tiers(1);
    let mut store = RegionStore::new();
    let locations: Vec<Location> =
        (0..127).map(|_| insert(&mut store, &tiers, PAGE_BYTES)).collect();
    for tier in [1, 2] {
        let refused = store.insert(
            &tiers,
            tier,
            Encoded { encoding: Encoding::Raw, checksum: 0, bytes: &[1; PAGE_BYTES] },
        );
        assert!(matches!(refused, Err(PoolError::Medium { .. })), "{refused:?}");
    }
    assert_eq!(
        (tiers[1].stats.pages(), tiers[2].stats.pages(), store.physical_bytes()),
        (127, 0, 512 << 10)
    );
    for location in locations {
        store.remove(&tiers, location).unwrap();
    }
    store
        .insert(&tiers, 2, Encoded { encoding: Encoding::Coded, checksum: 0, bytes: &[1; 100] })
        .unwrap();
}

#[test]
fn a_caller_that_never_repacks_is_told_that_the_region_is_full() {
    let (_, tiers) = tiers(80);
    let mut store = RegionStore::new();
    let error = loop {
        match store.insert(
            &tiers,
            1,
            Encoded { encoding: Encoding::Raw, checksum: 0, bytes: &[1; PAGE_BYTES] },
        ) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PoolError::Full), "{error}");
    assert_eq!(tiers[1].stats.pages(), 64 * 127);
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let (medium, tiers) = tiers(1);
    let mut store = RegionStore::new();
    for (tier, bytes, wanted) in
        [(0u8, 8usize, "pool"), (3, 8, "pool"), (1, 0, "0 bytes"), (1, 4097, "4097 bytes")]
    {
        let refused = store.insert(
            &tiers,
            tier,
            Encoded { encoding: Encoding::Coded, checksum: 0, bytes: &vec![1; bytes] },
        );
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(wanted), "{text}");
    }
    assert_eq!(medium.allocated_bytes(), 0);
}

#[test]
fn a_page_removed_twice_is_refused_once_it_shows() {
    let (_, tiers) = tiers(1);
    let mut store = RegionStore::new();
    let location = insert(&mut store, &tiers, 100);
    store.remove(&tiers, location).unwrap();
    assert!(matches!(store.remove(&tiers, location), Err(PoolError::NoSuchPage { .. })));
    assert!(matches!(
        store.page(location, &mut ReadBuffer::new()),
        Err(PoolError::NoSuchPage { .. })
    ));
    assert_eq!(store.tier_of(location), None);
    let (a, b) = (insert(&mut store, &tiers, 100), insert(&mut store, &tiers, 3000));
    store.remove(&tiers, a).unwrap();
    assert!(
        matches!(store.remove(&tiers, a), Err(PoolError::NoSuchPage { .. })),
        "not all of what is live"
    );
    store.remove(&tiers, b).unwrap();
    assert_eq!(tiers[1].stats.stored_bytes(), 0);
}

#[test]
fn a_repack_with_the_wrong_pages_moves_nothing() {
    let (_, tiers) = tiers(1);
    let mut store = RegionStore::new();
    let locations: Vec<Location> = (0..20).map(|_| insert(&mut store, &tiers, 1000)).collect();
    for location in &locations[..10] {
        store.remove(&tiers, *location).unwrap();
    }
    assert_eq!(store.wants_compaction(), Some(0));
    let live = &locations[10..];
    let mut twice = live.to_vec();
    twice[0] = twice[1];
    let mut elsewhere = live.to_vec();
    elsewhere[3].extent = 1;
    let mut outside = live.to_vec();
    outside[3].offset = u16::MAX;
    let mut refused = |mut given: Vec<Location>, extent| {
        let before = given.clone();
        let error = store.compact(&tiers, extent, &mut given).unwrap_err();
        assert_eq!(given, before, "{error}");
        error.to_string()
    };
    assert!(
        refused(live[1..].to_vec(), 0)
            .contains("holds 10 pages in 10160 bytes, but 9 pages in 9144")
    );
    assert!(refused(twice, 0).contains("overlap"));
    assert!(refused(elsewhere, 0).contains("not in this region"));
    assert!(refused(outside, 0).contains("not in this region"));
    assert!(refused(live.to_vec(), 1).contains("holds 0 pages"));
    assert!(
        live.iter()
            .all(|location| stored(&store, *location, &mut ReadBuffer::new()).0
                == content(1000, 1000))
    );
    let mut live = live.to_vec();
    live.reverse();
    store.compact(&tiers, 0, &mut live).unwrap();
    assert_eq!((store.wants_compaction(), store.physical_bytes()), (None, 3 * 4096));
    assert!(
        live.iter()
            .all(|location| stored(&store, *location, &mut ReadBuffer::new()).0
                == content(1000, 1000))
    );
    assert!(
        live.windows(2).all(|pair| pair[0].offset > pair[1].offset),
        "each location is updated where it stands"
    );
}

#[test]
fn an_empty_store_is_small_and_free() {
    assert!(size_of::<RegionStore>() <= 32);
    let store = RegionStore::new();
    assert!(store.is_empty());
    assert_eq!((store.physical_bytes(), store.wants_compaction()), (0, None));
}
