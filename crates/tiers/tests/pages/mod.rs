//! Pages of every kind that programs have, for the property tests.

use proptest::prelude::*;
use terrace_testkit::random::Xorshift;
use terrace_tiers::{PAGE_BYTES, Page};

fn page_of(bytes: Vec<u8>) -> Box<Page> {
    bytes.into_boxed_slice().try_into().expect("the strategies make whole pages")
}

/// Random, text-like, pointer-like, same-filled, and random with a little order (around the reject
/// margin).
pub fn any_page() -> impl Strategy<Value = Box<Page>> {
    let random = prop::collection::vec(any::<u8>(), PAGE_BYTES).prop_map(page_of);
    let words = prop::collection::vec(prop::sample::select(&b"etaoin shrdlu"[..]), PAGE_BYTES)
        .prop_map(page_of);
    let pointers = (any::<u64>(), prop::collection::vec(0u64..4096, PAGE_BYTES / 8)).prop_map(
        |(base, offsets)| {
            page_of(
                offsets
                    .iter()
                    .flat_map(|offset| base.wrapping_add(offset * 16).to_le_bytes())
                    .collect(),
            )
        },
    );
    let same =
        any::<u64>().prop_map(|pattern| page_of(pattern.to_le_bytes().repeat(PAGE_BYTES / 8)));
    let zero = Just(page_of(vec![0; PAGE_BYTES]));
    let nearly_random = (prop::collection::vec(any::<u8>(), PAGE_BYTES), 0usize..200).prop_map(
        |(mut bytes, zeros)| {
            bytes[..zeros].fill(0);
            page_of(bytes)
        },
    );
    let nearly_same = (any::<u64>(), 0..PAGE_BYTES, any::<u8>()).prop_map(|(pattern, at, byte)| {
        let mut bytes = pattern.to_le_bytes().repeat(PAGE_BYTES / 8);
        bytes[at] = byte;
        page_of(bytes)
    });
    prop_oneof![random, words, pointers, same, zero, nearly_random, nearly_same]
}

/// Records with the same field names and other values, as servers keep them: what a codec can learn
/// from. Number `n` of a long row.
pub fn records(n: u64) -> Page {
    let mut random = Xorshift::new(n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut next = || random.draw();
    let mut text = String::new();
    while text.len() < PAGE_BYTES {
        text += &format!(
            r#"{{"id":{},"name":"user-{}","email":"{:x}@example.org","score":{},"active":{},"tags":[]}},"#,
            next() % 1_000_000,
            next() % 10_000,
            next() >> 24,
            next() % 5_000,
            next() % 2 == 0
        );
    }
    text.as_bytes()[..PAGE_BYTES].try_into().expect("it is cut to a page")
}

/// A clock that stands still: only sizes decide.
pub fn no_clock() -> impl Fn() -> u64 {
    || 0
}

/// Shows a tier as many of the records as it wants, from number `from` on.
pub fn teach(tier: &terrace_tiers::Tier, from: u64) -> bool {
    let pages: Vec<Page> = (from..from + tier.training_pages() as u64).map(records).collect();
    tier.train(&pages, &no_clock())
}
