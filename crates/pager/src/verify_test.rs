//! Codecs that make mistakes and page words that are damaged. No thread gets wrong bytes, and
//! nothing more is evicted. Only a page that cannot be restored ends the process.

use crate::evict::{EvictRequest, Evictor};
use crate::model_test::{HOST, adopt_descriptors, cannot_run, without_forks};
use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::pages::table::REGION;
use crate::pages::word::State;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use terrace_control::settings::{Dram, Settings};
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::PRESSURE_MAX;
use terrace_tiers::codec::codec_for;
use terrace_tiers::{Codec, CodecError, CodecKind, Page, Scratch, Tier, TierKind};

/// The first 64 pages of a region.
const WISH: EvictRequest =
    EvictRequest { pages: 64, pressure: PRESSURE_MAX, force: true, tier: 1, from: 0 };
/// How a page begins that the codec gets wrong.
const UNLUCKY: u64 = 0xBAD;

/// lz4, but for unlucky pages, to which this is done when they are decompressed.
struct Mistaken(fn(&mut Page) -> Result<(), CodecError>);

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
        codec_for(CodecKind::Lz4).compress(page, scratch, limit)
    }
    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        codec_for(CodecKind::Lz4).decompress(bytes, page, scratch)?;
        if page.starts_with(&UNLUCKY.to_ne_bytes()) { self.0(page) } else { Ok(()) }
    }
}

fn spoil(page: &mut Page) -> Result<(), CodecError> {
    page[3000] ^= 1;
    Ok(())
}

/// A pager with these tiers, `lz4` with such a codec. Its mover is idle: the budget is never
/// reached.
pub(crate) fn pager(
    tiers: &str,
    verify: bool,
    codec: fn(&mut Page) -> Result<(), CodecError>,
) -> Option<&'static Pager> {
    let settings =
        Settings { dram: Dram::Bytes(1 << 40), tiers: tiers.into(), verify, ..Settings::default() };
    let pager = Pager::create_with(settings, HOST, |spec, medium| {
        if matches!(spec.kind, TierKind::Swap) {
            return Tier::in_swap(spec);
        }
        let tier = Tier::new(spec, medium);
        if tier.spec.name == "lz4" { tier.with_codec(Box::new(Mistaken(codec))) } else { tier }
    })
    .unwrap();
    pager.start();
    if pager.mode() != Mode::Active {
        cannot_run();
        return None;
    }
    adopt_descriptors(pager);
    Some(pager)
}

fn page_words(first: u64) -> [u64; PAGE / 8] {
    std::array::from_fn(|i| if i == 0 { first } else { i as u64 % 50 })
}

/// Pages of a region that hold `first` and the rest of [`page_words`], page by page.
pub(crate) fn filled(
    pager: &Pager,
    first: impl Fn(usize) -> u64,
) -> (usize, Vec<*mut [u64; PAGE / 8]>) {
    let base = sys::reserve(2 * REGION).unwrap().next_multiple_of(REGION);
    pager.manage(base, REGION, true);
    let pages: Vec<_> =
        (0..REGION / PAGE).map(|page| (base + page * PAGE) as *mut [u64; PAGE / 8]).collect();
    for (number, page) in pages.iter().enumerate() {
        // SAFETY: a page of the test's own mapping.
        unsafe { page.write_volatile(page_words(first(number))) };
    }
    (base, pages)
}

#[test]
fn a_page_that_does_not_read_back_stays_and_was_the_last() {
    let _alone = without_forks();
    let Some(pager) = pager("dram,lz4", true, spoil) else { return };
    let first = |page: usize| if page == 70 { UNLUCKY } else { page as u64 };
    let (base, pages) = filled(pager, first);
    let entry = pager.table.get_or_create(base).unwrap();
    let evicted = |from: usize, to: usize| {
        (from..to).filter(|page| entry.word(base + page * PAGE).load().is(State::Evicted)).count()
    };
    let mut evictor = Evictor::new(pager);
    assert_eq!(evictor.evict(pager, entry, WISH).evicted, 64);
    assert!(!pager.is_frozen(), "pages that read back are no reason to stop");
    // 64 to 69 leave, 70 is found out, and all behind it stays.
    evictor.evict(pager, entry, EvictRequest { from: 64, pages: 400, ..WISH });
    assert!(pager.is_frozen());
    assert_eq!((evicted(0, 70), evicted(70, 512)), (70, 0));
    evictor.evict(pager, entry, EvictRequest { from: 200, ..WISH });
    assert_eq!(evicted(70, 512), 0, "nothing is evicted after that");
    for (number, page) in pages.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { page.read_volatile() }, page_words(first(number)), "page {number}");
    }
}

/// Set in a process that a test made of itself, to end there.
const OWN_PROCESS: &str = "TERRACE_TEST_OWN_PROCESS";

/// Runs a test of this file again, in a process of its own, where it must be ended by SIGKILL with
/// these words.
#[track_caller]
fn ends_a_process(test: &str, told: &str, words: &str) {
    let itself = std::env::current_exe().unwrap();
    let arguments = ["--exact", &format!("verify_test::{test}"), "--nocapture"];
    let output =
        std::process::Command::new(itself).args(arguments).env(OWN_PROCESS, told).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{told}: {said}");
    assert!(
        said.contains(words)
            && said.contains("Ending the program rather than giving it wrong data"),
        "{told}: {said}"
    );
}

/// Page 40 comes out of its store as another page.
#[test]
fn what_is_found_while_recompressing_is_the_end_only_for_who_reads_it() {
    let _alone = without_forks();
    let Some(pager) = pager("dram,lz4,zstd:1", false, spoil) else { return };
    let first = |page: usize| if page == 40 { UNLUCKY } else { page as u64 };
    let (base, pages) = filled(pager, first);
    let entry = pager.table.get_or_create(base).unwrap();
    let mut evictor = Evictor::new(pager);
    assert_eq!(evictor.evict(pager, entry, WISH).evicted, 64);
    assert!(!pager.is_frozen());

    evictor.recompress_densest(pager, entry);
    assert!(pager.is_frozen(), "the page's checksum is not that of what came out");
    assert_eq!(
        evictor.evict(pager, entry, EvictRequest { from: 64, ..WISH }).evicted,
        0,
        "nothing is evicted after that"
    );
    for (number, page) in pages.iter().enumerate().filter(|(number, _)| *number != 40) {
        // SAFETY: a page of the test's own mapping.
        assert_eq!(unsafe { page.read_volatile() }, page_words(first(number)), "page {number}");
    }
    if std::env::var_os(OWN_PROCESS).is_none() {
        return ends_a_process(
            "what_is_found_while_recompressing_is_the_end_only_for_who_reads_it",
            "",
            "its checksum is",
        );
    }
    // SAFETY: as above.
    unsafe { pages[40].read_volatile() };
}

/// Bits of the state, of the location, and of what else is in the word.
#[test]
fn a_damaged_page_word_ends_the_process_that_touches_the_page() {
    let _alone = without_forks();
    let Ok(bit) = std::env::var(OWN_PROCESS) else {
        for bit in ["0", "1", "2", "12", "24", "35", "63"] {
            let words = "cannot be restored: its page word is damaged";
            ends_a_process(
                "a_damaged_page_word_ends_the_process_that_touches_the_page",
                bit,
                words,
            );
        }
        return;
    };
    // Rather than to wait for the page for ever.
    // SAFETY: the process is this test's own.
    unsafe { libc::alarm(60) };
    let Some(pager) = pager("dram,lz4", false, spoil) else { std::process::abort() };
    let (base, pages) = filled(pager, |page| page as u64);
    let entry = pager.table.get_or_create(base).unwrap();
    assert_eq!(Evictor::new(pager).evict(pager, entry, WISH).evicted, 64);
    entry.words[40].damage(1 << bit.parse::<u32>().unwrap());
    for (number, page) in pages.iter().enumerate().filter(|(number, _)| *number != 40) {
        // SAFETY: a page of the test's own mapping.
        assert_eq!(unsafe { page.read_volatile() }, page_words(number as u64), "page {number}");
    }
    // SAFETY: as above.
    unsafe { pages[40].read_volatile() };
}

/// Times that there was no memory for a codec's context.
static REFUSED: AtomicU32 = AtomicU32::new(0);

fn refuse_three_times(_: &mut Page) -> Result<(), CodecError> {
    match REFUSED.fetch_add(1, Relaxed) {
        0..3 => Err(CodecError::NoContext { codec: "mistaken" }),
        _ => Ok(()),
    }
}

#[test]
fn who_needs_a_page_waits_for_memory_to_decompress_it() {
    let _alone = without_forks();
    let Some(pager) = pager("dram,lz4", false, refuse_three_times) else { return };
    let (base, pages) = filled(pager, |_| UNLUCKY);
    let entry = pager.table.get_or_create(base).unwrap();
    assert_eq!(Evictor::new(pager).evict(pager, entry, WISH).evicted, 64);
    for page in pages {
        // SAFETY: a page of the test's own mapping.
        assert_eq!(unsafe { page.read_volatile() }, page_words(UNLUCKY));
    }
    assert_eq!(REFUSED.load(Relaxed), 3 + 64, "three times one waited");
    assert!(pager.warned.restore_waits.load(Relaxed) && !pager.is_frozen());
}
