//! Zstandard frames: the dense tiers (level 1: 6.5 µs to restore a page, ratio 2 to 2.8 on heaps).
//!
//! Frames carry no magic number, content size or checksum: 5 bytes a page, 0.4 % of the ratio. A
//! page's length is known, and the pool keeps a checksum with every page. What is stored is one
//! byte, the number of the dictionary (0: none), and the frame.
//!
//! # Dictionaries
//! A page is too short to learn from: its tables of symbols cost a tenth of what is stored and a
//! third of the time. What it repeats of other pages it repeats in vain. So a codec that has seen
//! some pages makes a [`Dictionary`] of them, in 1 to 3 ms. It has 4 pages of content, and tables
//! made from 64. The codec keeps it if pages that had no part in it are then better off.
//!
//! Measured on this machine, level 1, before → after:
//! - JSON values in memcached: 4.60 → 5.21 times smaller, 10.0 → 6.8 µs to compress, 4.2 → 3.6 µs
//!   to decompress;
//! - python3's objects: 6.7 → 7.2, 9.1 → 4.5, 2.4 → 2.3;
//! - a chemical database (nci): 6.4 → 8.6, 8.7 → 6.1, 3.8 → 2.9;
//! - sqlite with words: 1.69 → 1.82, 12.8 → 17.2, 5.7 → 4.6, which is not kept.
//!
//! Trained content (fastCover) of the same or four times the size is no better, and takes 5 to 20
//! ms. (Those are times with the dictionary attached, zstd's usual way; [`super::primed`] is faster
//! and denser.) Later trainings choose again among all dictionaries that there are, and none.

use std::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::{Mutex, OnceLock, PoisonError};

use zstd_safe::{CCtx, CParameter, DCtx, DDict, DParameter, FrameFormat, ResetDirective};

use super::primed::Primed;
use super::{Codec, CodecError, PerThread, Scratch};
use crate::page::{PAGE_BYTES, Page};

const NO_CONTEXT: CodecError = CodecError::NoContext { codec: "zstd" };

/// Pages that a dictionary's tables are made from, and pages that are its content.
const SAMPLE_PAGES: usize = 60;
const CONTENT_PAGES: usize = 4;
const TRAINING_PAGES: usize = SAMPLE_PAGES + CONTENT_PAGES;
/// Pages on which a new dictionary is compared with what there was.
const TRIAL_PAGES: usize = 32;
/// Most bytes of the tables before the content. zstd makes no more, or says that it cannot.
const TABLES_BYTES_MAX: usize = 256;

/// Dictionaries of one codec at most. They are never given up, since a page may need them: 62 KiB
/// each.
const DICTIONARIES_MAX: usize = 4;
/// Dictionaries for which a thread is ready: those in use, of as many tiers.
const PRIMED_MAX: usize = 3;
/// Beyond this level a training would take 10 to 100 ms.
const LEVEL_MAX: i32 = 3;

/// What a fault and the eviction that it causes cost beside the codec, ns: a smaller page saves
/// that as often.
const FAULT_NS: u64 = 12_000;
/// The share of bytes × time to which another dictionary must reduce them to be used.
const CLEARLY: f64 = 0.97;

/// A thread's zstd contexts, created when first needed.
#[derive(Default)]
pub(super) struct Contexts {
    compressor: Option<Compressor>,
    /// Contexts with dictionaries, the newest last.
    primed: Vec<(&'static Dictionary, Primed)>,
    decompressor: Option<DCtx<'static>>,
}

struct Compressor {
    context: CCtx<'static>,
    /// What `context` is set to; several zstd tiers share one.
    level: i32,
}

/// What pages of one tier have in common. Lives as long as the process.
struct Dictionary {
    bytes: Vec<u8>,
    to_decompress: DDict<'static>,
}

impl PerThread for Contexts {
    fn prepare(&mut self) -> Result<(), CodecError> {
        // First what a restore needs.
        self.decompressor()?;
        self.compressor(zstd_safe::CLEVEL_DEFAULT).map(|_| ())
    }
}

impl Contexts {
    fn compressor(&mut self, level: i32) -> Result<&mut CCtx<'static>, CodecError> {
        if self.compressor.is_none() {
            self.compressor = Some(Compressor { context: new_compressor(level)?, level });
        }
        let compressor = self.compressor.as_mut().ok_or(NO_CONTEXT)?;
        if compressor.level != level {
            compressor
                .context
                .set_parameter(CParameter::CompressionLevel(level))
                .map_err(|_| NO_CONTEXT)?;
            compressor.level = level;
        }
        Ok(&mut compressor.context)
    }

    /// The context with a dictionary. `level` is that of the codec whose dictionary it is.
    fn primed(&mut self, level: i32, dictionary: &'static Dictionary) -> Option<&mut Primed> {
        if let Some(found) = self.primed.iter().position(|(of, _)| std::ptr::eq(*of, dictionary)) {
            return Some(&mut self.primed[found].1);
        }
        let new = Primed::new(&dictionary.bytes, level)?;
        if self.primed.len() >= PRIMED_MAX {
            self.primed.remove(0);
        }
        self.primed.try_reserve(1).ok()?;
        self.primed.push((dictionary, new));
        self.primed.last_mut().map(|(_, primed)| primed)
    }

    fn decompressor(&mut self) -> Result<&mut DCtx<'static>, CodecError> {
        if self.decompressor.is_none() {
            self.decompressor = Some(new_decompressor()?);
        }
        self.decompressor.as_mut().ok_or(NO_CONTEXT)
    }
}

fn new_decompressor<'d>() -> Result<DCtx<'d>, CodecError> {
    let mut context = DCtx::try_create().ok_or(NO_CONTEXT)?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| NO_CONTEXT)?;
    Ok(context)
}

fn new_compressor<'d>(level: i32) -> Result<CCtx<'d>, CodecError> {
    let mut context = CCtx::try_create().ok_or(NO_CONTEXT)?;
    for parameter in [
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
        CParameter::CompressionLevel(level),
    ] {
        context.set_parameter(parameter).map_err(|_| NO_CONTEXT)?;
    }
    Ok(context)
}

/// All dictionaries, which are to be found from here even when their codec is gone.
static DICTIONARIES: Mutex<Vec<&'static Dictionary>> = Mutex::new(Vec::new());

impl Dictionary {
    /// Makes a dictionary of pages. `None` if zstd can make none of these pages (all alike, say),
    /// or has no memory.
    fn of(pages: &[Page], level: i32) -> Option<Dictionary> {
        let (samples, content) = pages.split_at_checked(SAMPLE_PAGES)?;
        let (samples, content) = (samples.as_flattened(), content.as_flattened());
        const SIZES: [usize; SAMPLE_PAGES] = [PAGE_BYTES; SAMPLE_PAGES];
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(content.len() + TABLES_BYTES_MAX).ok()?;
        bytes.resize(content.len() + TABLES_BYTES_MAX, 0u8);
        // The number inside is for frames that carry it; ours do not.
        let parameters =
            zstd_sys::ZDICT_params_t { compressionLevel: level, notificationLevel: 0, dictID: 1 };
        // SAFETY: each pointer is to a live slice of the length given beside it (zdict.h);
        // `samples` is as long as the sum of `SIZES`; `bytes` is longer than the content and
        // overlaps nothing.
        let written = unsafe {
            zstd_sys::ZDICT_finalizeDictionary(
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                content.as_ptr().cast(),
                content.len(),
                samples.as_ptr().cast(),
                SIZES.as_ptr(),
                SIZES.len() as u32,
                parameters,
            )
        };
        // An error is a number beyond any length.
        if written > bytes.len() {
            return None;
        }
        bytes.truncate(written);
        let to_decompress = DDict::try_create(&bytes)?;
        Some(Dictionary { bytes, to_decompress })
    }

    /// Puts the dictionary into its place for good: threads of any kind, and forked children, may
    /// be reading a page with it at any time. False without memory.
    fn keep(self, place: &OnceLock<&'static Dictionary>) -> bool {
        let mut all = DICTIONARIES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut boxed = Vec::new();
        if all.try_reserve(1).is_err() || boxed.try_reserve_exact(1).is_err() {
            return false;
        }
        boxed.push(self);
        let Some(kept) = boxed.leak().first() else { return false };
        all.push(kept);
        place.set(kept).is_ok()
    }
}

/// Compresses without a dictionary; `None` if `out` has no room for it.
fn compress(context: &mut CCtx, page: &Page, out: &mut [u8]) -> Option<usize> {
    context
        .compress2(out, page)
        .inspect_err(|_| {
            // A failed compression leaves the context inside its frame, where it refuses new
            // parameters.
            let _ = context.reset(ResetDirective::SessionOnly);
        })
        .ok()
}

/// Bytes × ns to compress and restore `pages` with a dictionary, or none. `None` without memory, or
/// if a page is not restored.
fn cost(
    pages: &[Page],
    level: i32,
    dictionary: Option<&Dictionary>,
    clock_ns: &dyn Fn() -> u64,
) -> Option<f64> {
    let (mut out, mut home) = (new_compressor(level).ok()?, new_decompressor().ok()?);
    let mut primed = None;
    if let Some(dictionary) = dictionary {
        primed = Some(Primed::new(&dictionary.bytes, level)?);
        home.ref_ddict(&dictionary.to_decompress).ok()?;
    }
    let (mut stored, mut back) = ([0u8; PAGE_BYTES], [0u8; PAGE_BYTES]);
    let (mut bytes, mut ns) = (0, 0);
    // The first time is for the caches, and for memory that the contexts take then.
    for _ in 0..2 {
        bytes = 0;
        let begun_ns = clock_ns();
        for page in pages {
            let written = match &mut primed {
                Some(primed) => primed.compress(page, &mut stored),
                None => compress(&mut out, page, &mut stored),
            };
            let Some(len) = written else {
                // Kept as it is.
                bytes += PAGE_BYTES;
                continue;
            };
            if home.decompress(&mut back[..], &stored[..len]) != Ok(PAGE_BYTES) || back != *page {
                return None;
            }
            bytes += len;
        }
        ns = clock_ns().saturating_sub(begun_ns) / pages.len() as u64;
    }
    Some(bytes as f64 * (ns + FAULT_NS) as f64)
}

/// Zstandard at one level.
pub(super) struct Zstd {
    level: i32,
    name: String,
    /// Dictionaries made so far; never taken out.
    dictionaries: [OnceLock<&'static Dictionary>; DICTIONARIES_MAX],
    /// Number, from 1, of the dictionary to compress with; 0: none.
    using: AtomicU8,
}

impl Zstd {
    /// Zstandard at a level, -5..=19.
    pub(super) fn new(level: i32) -> Self {
        Zstd {
            level,
            name: format!("zstd:{level}"),
            dictionaries: Default::default(),
            using: AtomicU8::new(0),
        }
    }

    fn dictionary(&self, number: u8) -> Option<&'static Dictionary> {
        self.dictionaries.get(usize::from(number).checked_sub(1)?)?.get().copied()
    }
}

impl Codec for Zstd {
    fn name(&self) -> &str {
        &self.name
    }

    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        let number = self.using.load(Acquire);
        let dictionary = self.dictionary(number);
        let (first, rest) = scratch.output.get_mut(..capacity)?.split_first_mut()?;
        *first = if dictionary.is_some() { number } else { 0 };
        let written = match dictionary {
            Some(dictionary) => {
                scratch.states.zstd.primed(self.level, dictionary)?.compress(page, rest)
            }
            None => compress(scratch.states.zstd.compressor(self.level).ok()?, page, rest),
        };
        scratch.output.get(..1 + written?)
    }

    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        let damaged = |reason| CodecError::Damaged { codec: "zstd", len: bytes.len(), reason };
        let (number, frame) = bytes.split_first().ok_or(damaged("nothing"))?;
        let context = scratch.states.zstd.decompressor()?;
        let got = match number {
            0 => context.decompress(page.as_mut_slice(), frame),
            number => {
                let dictionary = self.dictionary(*number).ok_or(damaged("no such dictionary"))?;
                context.decompress_using_ddict(
                    page.as_mut_slice(),
                    frame,
                    &dictionary.to_decompress,
                )
            }
        };
        match got {
            Ok(PAGE_BYTES) => Ok(()),
            Ok(got) => Err(CodecError::WrongLength { codec: "zstd", got }),
            Err(code) => Err(damaged(zstd_safe::get_error_name(code))),
        }
    }

    fn training_pages(&self) -> usize {
        if self.level > LEVEL_MAX { 0 } else { TRAINING_PAGES + TRIAL_PAGES }
    }

    fn train(&self, pages: &[Page], clock_ns: &dyn Fn() -> u64) -> bool {
        if pages.len() < TRAINING_PAGES + TRIAL_PAGES {
            return false;
        }
        let (training, trial) = pages.split_at(TRAINING_PAGES);
        let cost = |dictionary: Option<&Dictionary>| cost(trial, self.level, dictionary, clock_ns);
        let made = self.dictionaries.iter().take_while(|made| made.get().is_some()).count();
        let using = self.using.load(Acquire);
        let Some(now) = cost(self.dictionary(using)) else { return false };
        // What there is, and none.
        let others = (0..=made as u8).filter(|number| *number != using);
        let others = others.filter_map(|number| Some((number, cost(self.dictionary(number))?)));
        let (best, least) =
            others.fold((using, now), |best, other| if other.1 < best.1 { other } else { best });
        let new = self
            .dictionaries
            .get(made)
            .and_then(|free| Some((free, Dictionary::of(training, self.level)?)));
        let new = new.filter(|(_, new)| cost(Some(new)).is_some_and(|cost| cost < least * CLEARLY));
        let number = if new.is_some_and(|(free, new)| new.keep(free)) {
            made as u8 + 1
        } else if least < now * CLEARLY {
            best
        } else {
            return false;
        };
        self.using.store(number, Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words, of which each page repeats others.
    fn page(number: usize) -> Page {
        let text: String = (0..600)
            .map(|at| format!("key{}={} ", at * number % 89, at * at * number % 613))
            .collect();
        text.as_bytes()[..PAGE_BYTES].try_into().expect("it is longer than a page")
    }

    #[test]
    fn pages_come_back_at_every_level_also_after_one_that_found_no_room() {
        let training: Vec<Page> = (1..=TRAINING_PAGES).map(page).collect();
        let dictionary = Dictionary::of(&training, 1).expect("there is much to learn");
        let mut home = new_decompressor().unwrap();
        for level in -5..=19 {
            let mut primed = Primed::new(&dictionary.bytes, level).unwrap();
            let (mut out, mut back) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
            for number in TRAINING_PAGES + 1..TRAINING_PAGES + 161 {
                // A page of noise, and room for a part only.
                let noise: Vec<u8> = (0..PAGE_BYTES as u64)
                    .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
                    .collect();
                assert_eq!(
                    primed.compress(noise.as_slice().try_into().unwrap(), &mut out[..64]),
                    None
                );
                let page = page(number);
                let len = primed.compress(&page, &mut out).expect("it has room");
                assert!(len < PAGE_BYTES, "level {level}: {len}");
                assert_eq!(
                    home.decompress_using_ddict(
                        &mut back[..],
                        &out[..len],
                        &dictionary.to_decompress
                    ),
                    Ok(PAGE_BYTES)
                );
                assert!(back == page);
            }
        }
    }
}
