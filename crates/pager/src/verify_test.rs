//! `--verify` with a codec that makes mistakes: the page stays, and nothing more is evicted.

use crate::evict::{Evictor, Wish};
use crate::model_test::{HOST, adopt_descriptors, cannot_run};
use crate::pager::{Mode, Pager};
use crate::settings::{Dram, Settings};
use crate::sys::{self, PAGE};
use crate::table::REGION;
use crate::word::State;
use terrace_policy::victims::PRESSURE_MAX;
use terrace_tiers::codec::codec_for;
use terrace_tiers::{Codec, CodecError, CodecKind, Page, Scratch, Tier};

/// How a page begins that the codec gets wrong.
const UNLUCKY: u64 = 0xBAD;

/// lz4, but for unlucky pages.
struct Mistaken;

impl Codec for Mistaken {
    fn name(&self) -> &str {
        "mistaken"
    }
    fn compress<'s>(&self, page: &Page, scratch: &'s mut Scratch, limit: usize) -> Option<&'s [u8]> {
        codec_for(CodecKind::Lz4).compress(page, scratch, limit)
    }
    fn decompress(&self, bytes: &[u8], page: &mut Page, scratch: &mut Scratch) -> Result<(), CodecError> {
        codec_for(CodecKind::Lz4).decompress(bytes, page, scratch)?;
        if page.starts_with(&UNLUCKY.to_ne_bytes()) {
            page[3000] ^= 1;
        }
        Ok(())
    }
}

fn page_words(first: u64) -> [u64; PAGE / 8] {
    std::array::from_fn(|i| if i == 0 { first } else { i as u64 % 50 })
}

/// Pages of a region that hold `first` and the rest of [`page_words`], page by page.
fn filled(pager: &Pager, first: impl Fn(usize) -> u64) -> (usize, Vec<*mut [u64; PAGE / 8]>) {
    let base = sys::reserve(2 * REGION).unwrap().next_multiple_of(REGION);
    pager.manage(base, REGION, true);
    let pages: Vec<_> = (0..REGION / PAGE).map(|page| (base + page * PAGE) as *mut [u64; PAGE / 8]).collect();
    for (number, page) in pages.iter().enumerate() {
        // SAFETY: a page of the test's own mapping.
        unsafe { page.write_volatile(page_words(first(number))) };
    }
    (base, pages)
}

#[test]
fn a_page_that_does_not_read_back_stays_and_was_the_last() {
    let settings = Settings { dram: Dram::Bytes(1 << 40), tiers: "dram,lz4".into(), verify: true, ..Settings::default() };
    let pager = Pager::create_with(settings, HOST, |spec, medium| {
        let tier = Tier::new(spec, medium);
        if tier.is_compressed() { tier.with_codec(Box::new(Mistaken)) } else { tier }
    })
    .unwrap();
    pager.start();
    if pager.mode() != Mode::Active {
        return cannot_run();
    }
    adopt_descriptors(pager);
    let first = |page: usize| if page == 70 { UNLUCKY } else { page as u64 };
    let (base, pages) = filled(pager, first);
    let entry = pager.table.get_or_create(base).unwrap();
    let evicted = |from: usize, to: usize| (from..to).filter(|page| entry.word(base + page * PAGE).load().is(State::Evicted)).count();
    let mut evictor = Evictor::new(pager);
    let wish = Wish { pages: 64, pressure: PRESSURE_MAX, anything: true, tier: 1, from: 0 };

    assert_eq!(evictor.evict(pager, entry, wish).evicted, 64);
    assert!(!pager.is_frozen(), "pages that read back are no reason to stop");
    // 64 to 69 leave, 70 is found out, and all behind it stays.
    evictor.evict(pager, entry, Wish { from: 64, pages: 400, ..wish });
    assert!(pager.is_frozen());
    assert_eq!((evicted(0, 70), evicted(70, 512)), (70, 0));
    evictor.evict(pager, entry, Wish { from: 200, ..wish });
    assert_eq!(evicted(70, 512), 0, "nothing is evicted after that");
    for (number, page) in pages.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { page.read_volatile() }, page_words(first(number)), "page {number}");
    }
}
