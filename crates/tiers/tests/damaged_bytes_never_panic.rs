//! Bytes that a codec did not write give an error or a wrong page; they never panic or reach outside their buffers.

mod pages;

use std::sync::Arc;

use proptest::prelude::*;
use terrace_tiers::{DecodeError, DramMedium, EXTENT_BYTES, Encoding, Medium, PAGE_BYTES, Scratch, Tier, parse_tiers};

fn tiers() -> Vec<Tier> {
    let medium: Arc<dyn Medium> = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
    let specs = parse_tiers("dram,lz4,zstd").unwrap();
    specs.into_iter().map(|spec| Tier::new(spec, Arc::clone(&medium))).collect()
}

const ENCODINGS: [Encoding; 3] = [Encoding::Same, Encoding::Raw, Encoding::Coded];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn noise(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
        for tier in tiers() {
            for encoding in ENCODINGS {
                let _ = tier.decode(encoding, &bytes, &mut page, &mut scratch);
            }
        }
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
            let (encoding, mut bytes) = (encoded.encoding, encoded.bytes.to_vec());
            for (at, bit) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            // Exactly as long as what is read, so that tools that watch the heap see one byte too many.
            let cut = bytes[..keep.index(bytes.len())].to_vec().into_boxed_slice();
            let mut back = Box::new([0; PAGE_BYTES]);
            let _ = tier.decode(encoding, &bytes, &mut back, &mut scratch);
            prop_assert!(tier.decode(encoding, &cut, &mut back, &mut scratch).is_err());
            // The scratch works on after errors.
            let encoded = tier.encode(&page, &mut scratch);
            let (encoding, bytes) = (encoded.encoding, encoded.bytes.to_vec());
            tier.decode(encoding, &bytes, &mut back, &mut scratch).unwrap();
            prop_assert!(back == page);
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
    let tiers = tiers();
    for tier in &tiers {
        let length = tier.decode(Encoding::Same, &[1; 7], &mut page, &mut scratch).unwrap_err();
        assert!(matches!(length, DecodeError::Length { got: 7, want: 8, .. }), "{length}");
        let length = tier.decode(Encoding::Raw, &[1; 4095], &mut page, &mut scratch).unwrap_err();
        assert!(matches!(length, DecodeError::Length { got: 4095, want: PAGE_BYTES, .. }), "{length}");
    }
    let none = tiers[0].decode(Encoding::Coded, &[1; 70], &mut page, &mut scratch).unwrap_err();
    assert!(matches!(none, DecodeError::NoCodec { .. }), "{none}");
    for tier in &tiers[1..] {
        let empty = tier.decode(Encoding::Coded, &[], &mut page, &mut scratch).unwrap_err();
        assert!(matches!(empty, DecodeError::Codec(_)), "{empty}");
    }
}
