//! How pages compress in each tier, and how long that takes: measured in all tiers of ours on a
//! sample of the evicted pages.
//!
//! Pages are copied as they are stored, when no thread can change them. What a region's pages take
//! in a tier is known where some are stored there. For other tiers it is scaled by how the tiers
//! compare on the sample.

use terrace_os::{self as sys, PAGE};
use terrace_tiers::codec::Assumed;
use terrace_tiers::{CodecKind, Page, Scratch, Tier};

/// Pages of the sample in a window: 64 take about 2 ms with lz4 and zstd.
const SAMPLE: usize = 64;
/// Number of evicted pages of which one is taken into the sample.
const ONE_IN: u32 = 16;
/// Weight of a window's sample.
const WEIGHT: f64 = 0.3;
/// Bytes of the medium that are taken for each encoded byte.
const POOL_OVERHEAD: f64 = 1.07;

/// What is measured of one tier, or assumed until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Bytes of the medium for each byte of data.
    pub stored: f64,
    /// Processor time to encode a page, and to decode it, ns.
    pub encode_ns: f64,
    pub decode_ns: f64,
}

/// What is assumed before the first sample. Tiers without a codec are assumed to be like zstd.
fn assumed(codec: Option<CodecKind>) -> Measured {
    let Assumed { stored, encode_ns, decode_ns } =
        codec.unwrap_or(CodecKind::Zstd { level: 1 }).assumed();
    Measured { stored, encode_ns, decode_ns }
}

/// The sample and its results.
pub(crate) struct CompressionSample {
    pages: Vec<Page>,
    seen: u32,
    measured: bool,
    /// What is known of each tier; the entry for DRAM is not used.
    pub known: Vec<Measured>,
}

impl CompressionSample {
    pub fn new(tiers: &[Tier]) -> CompressionSample {
        let known = tiers.iter().map(|tier| assumed(tier.spec.codec())).collect();
        CompressionSample { pages: Vec::new(), seen: 0, measured: false, known }
    }

    /// Offers a page that is about to be stored for the sample.
    pub fn offer(&mut self, page: &Page) {
        self.seen = self.seen.wrapping_add(1);
        if self.seen.is_multiple_of(ONE_IN) && self.pages.len() < SAMPLE {
            self.pages.push(*page);
        }
    }

    /// Encodes and decodes the sample in every tier of ours, and forgets it.
    pub fn measure(&mut self, tiers: &[Tier], scratch: &mut Scratch) {
        if self.pages.is_empty() {
            return;
        }
        let weight = if std::mem::replace(&mut self.measured, true) { WEIGHT } else { 1.0 };
        for (tier, known) in tiers.iter().zip(&mut self.known).filter(|(tier, _)| tier.is_ours()) {
            let now = measured(tier, &self.pages, scratch);
            let towards = |old: &mut f64, new: f64| *old += weight * (new - *old);
            towards(&mut known.stored, now.stored);
            towards(&mut known.encode_ns, now.encode_ns);
            towards(&mut known.decode_ns, now.decode_ns);
        }
        self.pages.clear();
    }

    /// Bytes of the medium for each byte of a region's data in `tier`. `of_region` says that
    /// `pages` of its pages take `bytes` encoded bytes in the tier `from`. Where nothing is known
    /// of the region, the sample's value.
    pub fn stored(&self, tier: usize, of_region: Option<(usize, u64, u32)>) -> f64 {
        let known = self.known[tier].stored;
        let Some((from, bytes, pages)) = of_region.filter(|(.., pages)| *pages > 0) else {
            return known;
        };
        let there = bytes as f64 * POOL_OVERHEAD / (f64::from(pages) * PAGE as f64);
        (there * known / self.known[from].stored.max(1e-3)).clamp(1e-3, 1.0)
    }
}

fn measured(tier: &Tier, pages: &[Page], scratch: &mut Scratch) -> Measured {
    let (mut bytes, mut encode_ns, mut decode_ns) = (0, 0, 0);
    for page in pages {
        let measured = tier.measure(page, scratch, sys::thread_cpu_ns);
        bytes += measured.bytes;
        encode_ns += measured.encode_ns;
        decode_ns += measured.decode_ns;
    }
    let count = pages.len() as f64;
    Measured {
        stored: (bytes as f64 * POOL_OVERHEAD / (count * PAGE as f64)).min(1.0),
        encode_ns: encode_ns as f64 / count,
        decode_ns: decode_ns as f64 / count,
    }
}
