//! Pages of every kind that programs have, for the property tests.

use proptest::prelude::*;
use terrace_tiers::{PAGE_BYTES, Page};

fn page_of(bytes: Vec<u8>) -> Box<Page> {
    bytes.into_boxed_slice().try_into().expect("the strategies make whole pages")
}

/// Random, text-like, pointer-like, same-filled, and random with a little order (around the reject margin).
pub fn any_page() -> impl Strategy<Value = Box<Page>> {
    let random = prop::collection::vec(any::<u8>(), PAGE_BYTES).prop_map(page_of);
    let words = prop::collection::vec(prop::sample::select(&b"etaoin shrdlu"[..]), PAGE_BYTES).prop_map(page_of);
    let pointers = (any::<u64>(), prop::collection::vec(0u64..4096, PAGE_BYTES / 8))
        .prop_map(|(base, offsets)| page_of(offsets.iter().flat_map(|offset| base.wrapping_add(offset * 16).to_le_bytes()).collect()));
    let same = any::<u64>().prop_map(|pattern| page_of(pattern.to_le_bytes().repeat(PAGE_BYTES / 8)));
    let zero = Just(page_of(vec![0; PAGE_BYTES]));
    let nearly_random = (prop::collection::vec(any::<u8>(), PAGE_BYTES), 0usize..200).prop_map(|(mut bytes, zeros)| {
        bytes[..zeros].fill(0);
        page_of(bytes)
    });
    let nearly_same = (any::<u64>(), 0..PAGE_BYTES, any::<u8>()).prop_map(|(pattern, at, byte)| {
        let mut bytes = pattern.to_le_bytes().repeat(PAGE_BYTES / 8);
        bytes[at] = byte;
        page_of(bytes)
    });
    prop_oneof![random, words, pointers, same, zero, nearly_random, nearly_same]
}
