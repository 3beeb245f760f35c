//! A page that a tier encodes comes back byte for byte, and is stored in the form promised.

mod pages;

use std::sync::Arc;

use proptest::prelude::*;
use terrace_tiers::codec::codec_for;
use terrace_tiers::{
    CodecKind, DramMedium, EXTENT_BYTES, Encoded, Encoding, Medium, PAGE_BYTES, Page, REJECT_MARGIN, Scratch, Tier, parse_tiers,
};

fn tiers() -> Vec<Tier> {
    let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
    let specs = parse_tiers("dram,lz4,zstd:-5,zstd:1,zstd:3,zstd:19").unwrap();
    specs.into_iter().map(|spec| Tier::new(spec, Arc::clone(&medium))).collect()
}

fn noise(seed: u64) -> Box<Page> {
    let mut state = seed | 1;
    let mut page = Box::new([0; PAGE_BYTES]);
    for byte in page.iter_mut() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
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
            let (encoding, checksum, bytes) = (encoded.encoding, encoded.checksum, encoded.bytes.to_vec());
            prop_assert_eq!(encoding == Encoding::Same, same);
            match encoding {
                Encoding::Same => prop_assert_eq!(bytes.len(), 8),
                Encoding::Raw => prop_assert_eq!(bytes.len(), PAGE_BYTES),
                Encoding::Coded => prop_assert!((1..=PAGE_BYTES - REJECT_MARGIN).contains(&bytes.len())),
            }
            let rejected = u64::from(encoding == Encoding::Raw && tier.is_compressed());
            prop_assert_eq!(tier.stats.rejected(), rejected);
            let mut back = [0xEE; PAGE_BYTES];
            tier.decode(Encoded { encoding, checksum, bytes: &bytes }, &mut back, &mut scratch).unwrap();
            prop_assert!(back == *page, "{} changed the page", tier.spec.name);
        }
    }

    #[test]
    fn a_limit_is_exclusive(page in pages::any_page()) {
        let mut scratch = Scratch::new();
        for kind in [CodecKind::Lz4, CodecKind::Zstd { level: 1 }] {
            let codec = codec_for(kind);
            let Some(len) = codec.compress(&page, &mut scratch, usize::MAX).map(<[u8]>::len) else { continue };
            prop_assert!(len < PAGE_BYTES);
            prop_assert!(codec.compress(&page, &mut scratch, len).is_none());
            prop_assert!(codec.compress(&page, &mut scratch, 0).is_none());
            // The codec may fail to fit what would just fit, but must then say so rather than write on.
            if let Some(bytes) = codec.compress(&page, &mut scratch, len + 1) {
                prop_assert!(bytes.len() <= len);
            }
        }
    }
}

#[test]
fn one_scratch_serves_all_codecs_after_pages_that_do_not_fit() {
    let mut scratch = Scratch::new();
    scratch.prepare().unwrap();
    let tiers = tiers();
    let text = b"the same scratch again ".iter().copied().cycle().take(PAGE_BYTES).collect::<Vec<u8>>();
    let text: Page = text.try_into().unwrap();
    for seed in 0..50 {
        let noise = noise(seed);
        for tier in tiers.iter().filter(|tier| tier.is_compressed()) {
            assert_eq!(tier.encode(&noise, &mut scratch).encoding, Encoding::Raw, "{}", tier.spec.name);
            let encoded = tier.encode(&text, &mut scratch);
            assert_eq!(encoded.encoding, Encoding::Coded);
            let (checksum, bytes) = (encoded.checksum, encoded.bytes.to_vec());
            let mut back = [0; PAGE_BYTES];
            tier.decode(Encoded { encoding: Encoding::Coded, checksum, bytes: &bytes }, &mut back, &mut scratch).unwrap();
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
