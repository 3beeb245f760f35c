//! A page that a tier encodes comes back byte for byte, and is stored in the form promised.

mod pages;

use std::sync::Arc;

use proptest::prelude::*;
use terrace_testkit::random::Xorshift;
use terrace_tiers::codec::{CODECS, codec_for};
use terrace_tiers::{
    Checksum, DramMedium, EXTENT_BYTES, Encoded, Encoding, Medium, PAGE_BYTES, Page, REJECT_MARGIN,
    Scratch, Tier, parse_tiers,
};

fn tiers() -> Vec<Tier> {
    let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
    let tier = |word: &str| {
        let spec = parse_tiers(&format!("dram,{word}")).unwrap().remove(1);
        Tier::new(spec, Arc::clone(&medium))
    };
    let mut tiers = vec![Tier::new(parse_tiers("dram").unwrap().remove(0), Arc::clone(&medium))];
    // Each codec at its default, its lowest and its highest level.
    for row in CODECS.iter().filter(|row| row.is_built && row.word != "raw") {
        tiers.push(tier(row.word));
        for level in row.levels.iter().flat_map(|levels| [levels.min, levels.max]) {
            tiers.push(tier(&format!("{}:{level}", row.word)));
        }
    }
    // And three that have learned.
    for mut spec in parse_tiers("dram,zstd:-5,zstd:1,zstd:3").unwrap().into_iter().skip(1) {
        spec.name += " that has learned";
        let tier = Tier::new(spec, Arc::clone(&medium));
        assert!(pages::teach(&tier, 0), "{}", tier.spec.name);
        tiers.push(tier);
    }
    tiers
}

fn noise(seed: u64) -> Box<Page> {
    let mut random = Xorshift::new(seed | 1);
    let mut page = Box::new([0; PAGE_BYTES]);
    for byte in page.iter_mut() {
        *byte = random.draw() as u8;
    }
    page
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_page_comes_back(page in pages::any_page()) {
        let mut scratch = Scratch::new();
        let same = page.chunks(8).all(|chunk| chunk == &page[..8]);
        for tier in tiers() {
            let encoded = tier.encode(&page, &mut scratch);
            let (encoding, checksum, bytes) =
                (encoded.encoding, encoded.checksum, encoded.bytes.to_vec());
            prop_assert_eq!(encoding == Encoding::Same, same);
            match encoding {
                Encoding::Same => prop_assert_eq!(bytes.len(), 8),
                Encoding::Raw => prop_assert_eq!(bytes.len(), PAGE_BYTES),
                Encoding::Coded => prop_assert!(
                    (1..=PAGE_BYTES - REJECT_MARGIN).contains(&bytes.len())
                ),
            }
            let rejected = u64::from(encoding == Encoding::Raw && tier.is_compressed());
            prop_assert_eq!(tier.stats.rejected(), rejected);
            let mut back = [0xEE; PAGE_BYTES];
            tier.decode(Encoded { encoding, checksum, bytes: &bytes }, &mut back, &mut scratch)
                .unwrap();
            prop_assert!(back == *page, "{} changed the page", tier.spec.name);
        }
    }

    #[test]
    fn a_limit_is_exclusive(page in pages::any_page()) {
        let mut scratch = Scratch::new();
        for row in CODECS {
            let codec =
                codec_for((row.kind)(row.levels.as_ref().map_or(0, |levels| levels.default)));
            for limit in 0..4 {
                prop_assert!(
                    codec
                        .compress(&page, &mut scratch, limit)
                        .is_none_or(|bytes| bytes.len() < limit)
                );
            }
            let Some(len) =
                codec.compress(&page, &mut scratch, usize::MAX).map(<[u8]>::len) else { continue };
            prop_assert!(len < PAGE_BYTES);
            prop_assert!(codec.compress(&page, &mut scratch, len).is_none());
            prop_assert!(codec.compress(&page, &mut scratch, 0).is_none());
            // The codec may fail to fit what would just fit, but must then say so rather than write
            // on.
            if let Some(bytes) = codec.compress(&page, &mut scratch, len + 1) {
                prop_assert!(bytes.len() <= len);
            }
        }
    }
}

fn zstd() -> Tier {
    Tier::new(
        parse_tiers("dram,zstd").unwrap().remove(1),
        Arc::new(DramMedium::new(EXTENT_BYTES).unwrap()),
    )
}

fn keep(tier: &Tier, page: &Page, scratch: &mut Scratch) -> (Vec<u8>, Checksum) {
    let encoded = tier.encode(page, scratch);
    assert_eq!(encoded.encoding, Encoding::Coded);
    (encoded.bytes.to_vec(), encoded.checksum)
}

fn comes_back(
    tier: &Tier,
    (bytes, checksum): &(Vec<u8>, Checksum),
    page: &Page,
    scratch: &mut Scratch,
) {
    let mut back = [0; PAGE_BYTES];
    tier.decode(
        Encoded { encoding: Encoding::Coded, checksum: *checksum, bytes },
        &mut back,
        scratch,
    )
    .unwrap();
    assert!(back == *page);
}

#[test]
fn a_lesson_makes_pages_smaller_and_what_was_stored_before_is_read_as_before() {
    let tier = zstd();
    let mut scratch = Scratch::new();
    // Numbers that no training shows.
    let page = pages::records(1 << 40);
    let before = keep(&tier, &page, &mut scratch);
    assert!(pages::teach(&tier, 0));
    let after = keep(&tier, &page, &mut scratch);
    assert!(
        after.0.len() * 20 < before.0.len() * 19,
        "{} bytes, and {} before",
        after.0.len(),
        before.0.len()
    );
    comes_back(&tier, &before, &page, &mut scratch);
    comes_back(&tier, &after, &page, &mut scratch);
    // Nothing new.
    assert!(!pages::teach(&tier, 1000));
    assert_eq!(keep(&tier, &page, &mut scratch), after);
}

#[test]
fn lessons_of_nothing_useful_change_nothing() {
    let tier = zstd();
    let mut scratch = Scratch::new();
    let page = pages::records(1);
    let before = keep(&tier, &page, &mut scratch);
    let wanted = tier.training_pages();
    let noise: Vec<Page> = (0..wanted).map(|seed| *noise(seed as u64)).collect();
    for training in [&noise[..], &noise[..1], &[]] {
        assert!(!tier.train(training, &pages::no_clock()));
    }
    // What would be smaller but too slow is not kept either.
    let now = std::cell::Cell::new((0u64, 1u64));
    let slower_each_time = || {
        let (ns, step) = now.get();
        now.set((ns + step, step * 100));
        ns + step
    };
    let records: Vec<Page> = (0..wanted as u64).map(pages::records).collect();
    assert!(!tier.train(&records, &slower_each_time));
    assert_eq!(keep(&tier, &page, &mut scratch), before);
}

#[test]
fn lessons_choose_among_what_was_learned_and_every_page_is_still_read() {
    let tier = zstd();
    let mut scratch = Scratch::new();
    let mut kept = Vec::new();
    let mut lengths = [0; 10];
    // Each time another world: every byte moved on. More of them than there may be dictionaries,
    // twice.
    for turn in 0..20 {
        let world = turn % 10;
        let of_world = |n| pages::records(n).map(|byte| byte.wrapping_add(world as u8 * 20));
        let pages: Vec<Page> = (0..tier.training_pages() as u64).map(of_world).collect();
        tier.train(&pages, &pages::no_clock());
        let page = of_world(1 << 40);
        kept.push((keep(&tier, &page, &mut scratch), page));
        let len = kept.last().unwrap().0.0.len();
        // What was learned in the first turn is used again in the second.
        assert!(
            turn < 10 || len <= lengths[world],
            "{len} bytes in turn {turn}, {} before",
            lengths[world]
        );
        lengths[world] = len;
    }
    // The number stands first.
    let numbers: std::collections::BTreeSet<u8> =
        kept.iter().map(|(stored, _)| stored.0[0]).collect();
    assert!(numbers.len() >= 4 && numbers.iter().all(|number| *number <= 4), "{numbers:?}");
    kept.iter().for_each(|(stored, page)| comes_back(&tier, stored, page, &mut scratch));
    // With another's number a page is refused, or is right.
    for ((bytes, checksum), page) in &kept {
        for number in 0..=u8::MAX {
            let bytes = [&[number], &bytes[1..]].concat();
            let mut back = [0; PAGE_BYTES];
            let read = tier.decode(
                Encoded { encoding: Encoding::Coded, checksum: *checksum, bytes: &bytes },
                &mut back,
                &mut scratch,
            );
            assert!(read.is_err() || back == *page);
        }
    }
}

#[test]
fn two_tiers_learn_on_one_scratch() {
    let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
    let tiers: Vec<Tier> = parse_tiers("dram,zstd:-3,zstd:3")
        .unwrap()
        .into_iter()
        .skip(1)
        .map(|spec| Tier::new(spec, Arc::clone(&medium)))
        .collect();
    let mut scratch = Scratch::new();
    let mut kept = Vec::new();
    for n in 0..60u64 {
        if n.is_multiple_of(20) {
            let world = |page: Page| page.map(|byte| byte.wrapping_add(n as u8));
            let pages: Vec<Page> = (0..96).map(|m| world(pages::records(m))).collect();
            for tier in &tiers {
                tier.train(&pages, &pages::no_clock());
            }
        }
        for (index, tier) in tiers.iter().enumerate() {
            let page = pages::records(1 << 40 | n);
            kept.push((index, keep(tier, &page, &mut scratch), page));
            assert_eq!(tier.encode(&noise(n), &mut scratch).encoding, Encoding::Raw);
            let rejected = tier.stats.rejected();
            assert_eq!(tier.encode_sample(&noise(n), &mut scratch).encoding, Encoding::Raw);
            assert_eq!(
                (rejected, tier.stats.rejected()),
                (n + 1, n + 1),
                "a sample is not counted"
            );
        }
    }
    kept.iter()
        .for_each(|(index, stored, page)| comes_back(&tiers[*index], stored, page, &mut scratch));
}

#[test]
fn others_read_and_write_while_one_learns() {
    let tier = zstd();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let tier = &tier;
            scope.spawn(move || {
                let mut scratch = Scratch::new();
                for n in 0..2_000 {
                    let page = pages::records(worker << 32 | n)
                        .map(|byte| byte.wrapping_add((n / 400) as u8));
                    let stored = keep(tier, &page, &mut scratch);
                    comes_back(tier, &stored, &page, &mut scratch);
                }
            });
        }
        for world in 0..5u8 {
            let pages: Vec<Page> =
                (0..96).map(|n| pages::records(n).map(|byte| byte.wrapping_add(world))).collect();
            tier.train(&pages, &pages::no_clock());
        }
    });
}

#[test]
fn one_scratch_serves_all_codecs_after_pages_that_do_not_fit() {
    let mut scratch = Scratch::new();
    scratch.prepare().unwrap();
    let tiers = tiers();
    let text =
        b"the same scratch again ".iter().copied().cycle().take(PAGE_BYTES).collect::<Vec<u8>>();
    let text: Page = text.try_into().unwrap();
    for seed in 0..50 {
        let noise = noise(seed);
        for tier in tiers.iter().filter(|tier| tier.is_compressed()) {
            assert_eq!(
                tier.encode(&noise, &mut scratch).encoding,
                Encoding::Raw,
                "{}",
                tier.spec.name
            );
            let encoded = tier.encode(&text, &mut scratch);
            assert_eq!(encoded.encoding, Encoding::Coded);
            let (checksum, bytes) = (encoded.checksum, encoded.bytes.to_vec());
            let mut back = [0; PAGE_BYTES];
            tier.decode(
                Encoded { encoding: Encoding::Coded, checksum, bytes: &bytes },
                &mut back,
                &mut scratch,
            )
            .unwrap();
            assert_eq!(back, text);
        }
    }
}

#[test]
fn a_scratch_can_go_to_another_thread() {
    fn sent<T: Send>(_: &T) {}
    fn shared<T: Send + Sync>(_: &T) {}
    sent(&Scratch::new());
    sent(&terrace_tiers::RegionStore::new());
    shared(&tiers());
}
