//! The state with which the mover evicts, and the requests for it.

use crate::evict::auto::Auto;
use crate::evict::compression_sample::CompressionSample;
use crate::evict::training::TrainingSet;
use crate::fault::buffers::{PageBuffer, Tools};
use crate::pages::mm::Mm;
use crate::pages::staging::BATCH;
use crate::pages::table::REGION;
use crate::pages::word::Snapshot;
use std::collections::VecDeque;
use terrace_control::settings::Eviction;
use terrace_os::{self as sys, Fd, PAGE, Run};
use terrace_policy::eviction::victims::{MIN_TTL_MS, Passed, Writes, passed};
use terrace_tiers::{Location, PAGE_BYTES};

/// How long a page that did not compress is not tried again, ms. Doubles each time, as far as the
/// word's clock tick can represent.
const INCOMPRESSIBLE_MS: u64 = 5_000;

/// A request to evict pages of a region.
#[derive(Clone, Copy)]
pub(crate) struct EvictRequest {
    /// The largest number of pages to take.
    pub pages: usize,
    /// See [`passed`].
    pub pressure: u32,
    /// Take any present page, compressible or not: for stress tests.
    pub force: bool,
    /// The tier to evict into first; denser ones follow where a page does not compress.
    pub tier: usize,
    /// The page of the region at which to start (0–511).
    pub from: usize,
}

impl EvictRequest {
    /// The verdict on a resident page. `written`: see [`Run::is_written`]; `None` where it cannot
    /// be known.
    pub fn judge(&self, word: Snapshot, written: Option<bool>, now_ms: u64) -> Verdict {
        if self.force {
            return Verdict::Take;
        }
        if stays(word, now_ms) {
            return Verdict::Leave;
        }
        let writes = match written {
            None => Writes::Unknowable,
            // It has been left alone for long enough.
            Some(_) if word.is_incompressible() => Writes::Unknowable,
            Some(_) if !word.is_write_tracked() => Writes::Untracked,
            Some(false) => Writes::None,
            Some(true) => Writes::Some,
        };
        match passed(word.refaults(), word.is_on_probation(), writes, self.pressure) {
            Passed::Take => Verdict::Take,
            Passed::Leave => Verdict::Leave,
            Passed::Refaults(refaults) => Verdict::Change(word.with_refaults(refaults)),
            Passed::Track => Verdict::Track(word.write_tracked()),
        }
    }
}

/// The verdict on a resident page.
pub(crate) enum Verdict {
    Take,
    Leave,
    /// The page stays, with another word.
    Change(Snapshot),
    /// The page stays, with another word, and is write-protected to detect writes.
    Track(Snapshot),
}

/// Whether a page stays whatever the need for room. No pressure makes a page compressible; only
/// time may, by changing it. A page that was touched just now is in use.
fn stays(word: Snapshot, now_ms: u64) -> bool {
    let stay_ms =
        if word.is_incompressible() { INCOMPRESSIBLE_MS << word.tries() } else { MIN_TTL_MS };
    word.age_ms(now_ms) < stay_ms
}

/// The verdict on a page whose time on probation is over.
pub(crate) fn probation_verdict(word: Snapshot, now_ms: u64) -> Verdict {
    if word.is_on_probation() && !stays(word, now_ms) { Verdict::Take } else { Verdict::Leave }
}

/// The result of an attempt.
#[derive(Default, Clone, Copy)]
pub(crate) struct EvictOutcome {
    /// Pages evicted, to whichever tier.
    pub evicted: u32,
    /// Pages the kernel would not move, or did not find any more.
    pub refused: u32,
    /// Pages that were eligible.
    pub eligible: u32,
    /// Whether some pages may be taken in the next round.
    pub changed: bool,
    /// The page of the region to go on with; the first one past the region if there is none.
    pub next: usize,
}

pub(crate) struct Claimed {
    pub(super) address: usize,
    /// The word before the claim.
    pub(super) before: Snapshot,
}

pub(crate) struct Staged {
    pub(super) address: usize,
    /// The word as we left it.
    pub(super) word: Snapshot,
    pub(super) slot: usize,
    /// The stored copy kept when the page was last restored, owned by the mover since the claim.
    pub(super) copy: Option<Location>,
}

pub(crate) struct Probe {
    pub(super) region: u32,
    pub(super) chunk: usize,
    pub(super) staged: Vec<Staged>,
    pub(super) since_ns: u64,
}

/// The state with which the mover evicts. Owned by its thread.
pub(crate) struct Evictor {
    pub tools: Tools,
    /// What `--verify` decompresses into.
    pub(super) read_back: Box<PageBuffer>,
    pub(crate) runs: Box<[Run]>,
    /// Pages whose writes are to be tracked from now on.
    pub(super) to_track: Vec<usize>,
    /// Claimed pages of the current batch, kept because an allocation is four system calls (see
    /// `terrace_unmanaged_malloc`).
    pub(super) claimed: Vec<Claimed>,
    pub(super) staged: Vec<Staged>,
    /// A descriptor of this process, for [`sys::page_out`]; −1 without a tier for it.
    pub(crate) own_process: Fd,
    pub(super) probes: VecDeque<Probe>,
    pub(super) free_chunks: Vec<usize>,
    pub(super) locations: Vec<Location>,
    /// Old and new places of compacted pages of an extent, sorted.
    pub(super) compacted: Vec<(u64, u64)>,
    /// The compression ratio, by tier, of pages for which the tier was the first choice. Pages that
    /// another tier refused do not count.
    pub encoded: Vec<Ratio>,
    /// Pages collected for each tier's codec to learn from.
    pub(super) training: Vec<TrainingSet>,
    /// The measurements behind `--tiers auto`; `None` without that setting.
    pub auto: Option<Auto>,
    /// How pages compress in each tier; `None` without `--placement`.
    pub compression_sample: Option<CompressionSample>,
    /// Work since the mover last yielded: see `YIELD_AFTER` in store.rs.
    pub(super) work_since_yield: usize,
    /// When a fault from the kernel's swap was measured last.
    pub(crate) swap_measured_ns: u64,
    /// When to scan for pinned pages next (`dma.rs`); never for UFFDIO_MOVE.
    pub(super) next_pin_check_ns: u64,
}

/// Recent encoded bytes for each byte.
#[derive(Default)]
pub(crate) struct Ratio {
    pages: u32,
    bytes: u32,
}

impl Ratio {
    /// Pages from which on the ratio is believed. At 32 times as many, half of the counts are
    /// dropped.
    const PAGES: u32 = 256;

    pub(super) fn count(&mut self, bytes: usize) {
        if self.pages == 32 * Self::PAGES {
            self.pages /= 2;
            self.bytes /= 2;
        }
        self.pages += 1;
        self.bytes += bytes as u32;
    }

    /// The ratio, once it is known.
    pub fn known(&self) -> Option<f64> {
        (self.pages >= Self::PAGES)
            .then(|| f64::from(self.bytes) / (f64::from(self.pages) * PAGE as f64))
    }
}

impl Evictor {
    pub fn new(mm: &Mm) -> Self {
        Evictor {
            tools: Tools::new(),
            read_back: Box::new(PageBuffer([0; PAGE_BYTES])),
            runs: vec![Run::default(); REGION / PAGE].into(),
            to_track: Vec::with_capacity(REGION / PAGE),
            claimed: Vec::with_capacity(BATCH),
            staged: Vec::with_capacity(BATCH),
            own_process: mm.swap().and_then(|_| sys::own_process().ok()).unwrap_or(-1),
            probes: VecDeque::new(),
            free_chunks: (0..mm.staging.probe_chunks()).collect(),
            locations: Vec::new(),
            compacted: Vec::new(),
            encoded: mm.tiers.iter().map(|_| Ratio::default()).collect(),
            training: mm.tiers.iter().map(|_| TrainingSet::new()).collect(),
            auto: Auto::new(mm),
            compression_sample: mm
                .settings
                .placement
                .model()
                .map(|_| CompressionSample::new(&mm.tiers)),
            work_since_yield: 0,
            swap_measured_ns: 0,
            next_pin_check_ns: if mm.settings.evict == Eviction::WriteProtect {
                0
            } else {
                u64::MAX
            },
        }
    }
}
