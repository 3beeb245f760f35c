//! Bytes that a tier did not store give an error: never a wrong page, never a panic, and nothing
//! outside their buffers is touched.

mod pages;

use std::sync::Arc;

use proptest::prelude::*;
use terrace_tiers::codec::CODECS;
use terrace_tiers::{
    Codec, CodecError, DecodeError, DramMedium, EXTENT_BYTES, Encoded, Encoding, Medium,
    PAGE_BYTES, Page, ReadBuffer, RegionStore, Scratch, Tier, checksum, parse_tiers,
};

fn tiers() -> Vec<Tier> {
    let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
    let words = CODECS.iter().filter(|row| row.is_built && row.word != "raw").map(|row| row.word);
    let list = words.fold("dram".to_owned(), |list, word| list + "," + word);
    let specs = parse_tiers(&list).unwrap();
    let mut tiers: Vec<Tier> =
        specs.into_iter().map(|spec| Tier::new(spec, Arc::clone(&medium))).collect();
    let learned = Tier::new(parse_tiers("dram,zstd").unwrap().remove(1), medium);
    assert!(pages::teach(&learned, 0));
    tiers.push(learned);
    tiers
}

const ENCODINGS: [Encoding; 3] = [Encoding::Same, Encoding::Raw, Encoding::Coded];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..5000), checksum in any::<u128>()) {
        let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
        for tier in tiers() {
            for encoding in ENCODINGS {
                let decoded = tier.decode(
                    Encoded { encoding, checksum, bytes: &bytes }, &mut page, &mut scratch
                );
                prop_assert!(decoded.is_err());
            }
        }
    }

    /// Checksums alone tell that a page did not change since it was stored.
    #[test]
    fn a_page_that_changed_has_another_checksum(
        mut page in pages::any_page(), at in 0..PAGE_BYTES, change in 1u8..
    ) {
        let before = checksum(&page);
        prop_assert_eq!(checksum(&page), before);
        page[at] ^= change;
        prop_assert_ne!(checksum(&page), before);
    }

    #[test]
    fn flipped_and_cut(
        page in pages::any_page(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..4),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut scratch = Scratch::new();
        for tier in tiers() {
            let encoded = tier.encode(&page, &mut scratch);
            let (encoding, checksum, mut bytes) =
                (encoded.encoding, encoded.checksum, encoded.bytes.to_vec());
            for (at, bit) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            // Exactly as long as what is read, so that tools that watch the heap see one byte too
            // many.
            let cut = bytes[..keep.index(bytes.len())].to_vec().into_boxed_slice();
            let mut back = Box::new([0; PAGE_BYTES]);
            // Another spelling of the same page is no damage.
            let whole =
                tier.decode(Encoded { encoding, checksum, bytes: &bytes }, &mut back, &mut scratch);
            prop_assert!(whole.is_err() || back == page, "a wrong page passed");
            let short =
                tier.decode(Encoded { encoding, checksum, bytes: &cut }, &mut back, &mut scratch);
            prop_assert!(short.is_err() || back == page, "a wrong page passed");
            // The scratch works on after errors.
            let encoded = tier.encode(&page, &mut scratch);
            let (encoding, checksum, bytes) =
                (encoded.encoding, encoded.checksum, encoded.bytes.to_vec());
            tier.decode(Encoded { encoding, checksum, bytes: &bytes }, &mut back, &mut scratch)
                .unwrap();
            prop_assert!(back == page);
        }
    }

    /// Changes one bit of what the pool keeps, in any form of page, checksum included.
    #[test]
    fn one_bit_in_the_pool(
        page in pages::any_page(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        tier in 1u8..=2,
    ) {
        let medium = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
        let tiers: Vec<Tier> = parse_tiers("dram,lz4,zstd")
            .unwrap()
            .into_iter()
            .map(|spec| Tier::new(spec, Arc::clone(&medium) as Arc<dyn Medium>))
            .collect();
        let (mut scratch, mut store, mut back) =
            (Scratch::new(), RegionStore::new(), [0; PAGE_BYTES]);
        let encoded = tiers[usize::from(tier)].encode(&page, &mut scratch);
        let location = store.insert(&tiers, tier, encoded).unwrap();
        // The only page is at the start of the only extent: 16 bytes of checksum, then its bytes.
        let at = at.index(16 + usize::from(location.len));
        // SAFETY: the first extent of the medium, which is allocated, and which nothing else reads
        // or writes now.
        unsafe { *(medium.range().0 as *mut u8).add(at) ^= 1 << bit };
        let decoded = tiers[usize::from(tier)].decode(
            store.page(location, &mut ReadBuffer::new()).unwrap(), &mut back, &mut scratch
        );
        prop_assert!(decoded.is_err() || back == *page, "a wrong page passed");
        prop_assert!(decoded.is_err() || at >= 16, "a damaged checksum passed");
    }
}

/// Gives every page back with one byte changed.
struct Mistaken;

impl Codec for Mistaken {
    fn name(&self) -> &str {
        "mistaken"
    }
    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        terrace_tiers::codec::codec_for(terrace_tiers::CodecKind::Lz4)
            .compress(page, scratch, limit)
    }
    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        terrace_tiers::codec::codec_for(terrace_tiers::CodecKind::Lz4)
            .decompress(bytes, page, scratch)?;
        page[4000] ^= 1;
        Ok(())
    }
}

#[test]
fn a_codecs_mistake_is_an_error() {
    let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
    let tier = tiers().remove(1).with_codec(Box::new(Mistaken));
    let text: Vec<u8> =
        b"a page that compresses ".iter().copied().cycle().take(PAGE_BYTES).collect();
    let encoded = tier.encode(text.as_slice().try_into().unwrap(), &mut scratch);
    let (encoding, checksum, bytes) = (encoded.encoding, encoded.checksum, encoded.bytes.to_vec());
    assert_eq!(encoding, Encoding::Coded);
    let mistake = tier
        .decode(Encoded { encoding, checksum, bytes: &bytes }, &mut page, &mut scratch)
        .unwrap_err();
    assert!(
        matches!(mistake, DecodeError::Checksum { .. }) && !mistake.is_out_of_memory(),
        "{mistake}"
    );
}

#[test]
fn errors_say_what_is_wrong() {
    let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
    let tiers = tiers();
    let mut refused = |tier: &Tier, encoding, bytes: &[u8]| {
        tier.decode(Encoded { encoding, checksum: 0, bytes }, &mut page, &mut scratch).unwrap_err()
    };
    for tier in &tiers {
        let length = refused(tier, Encoding::Same, &[1; 7]);
        assert!(matches!(length, DecodeError::Length { got: 7, want: 8, .. }), "{length}");
        let length = refused(tier, Encoding::Raw, &[1; 4095]);
        assert!(
            matches!(length, DecodeError::Length { got: 4095, want: PAGE_BYTES, .. }),
            "{length}"
        );
        let other = refused(tier, Encoding::Same, &[1; 8]);
        assert!(
            other.to_string().contains(&format!("and was {} when it was stored", "0".repeat(32))),
            "{other}"
        );
    }
    let none = refused(&tiers[0], Encoding::Coded, &[1; 70]);
    assert!(matches!(none, DecodeError::NoCodec { .. }), "{none}");
    for tier in &tiers[1..] {
        let empty = refused(tier, Encoding::Coded, &[]);
        assert!(matches!(empty, DecodeError::Codec(_)), "{empty}");
    }
}
