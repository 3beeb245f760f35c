//! How sampled pages compress in each tier, and how long that takes on this machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use terrace_os::thread_cpu_ns;
use terrace_tiers::{
    DramMedium, EXTENT_BYTES, PAGE_BYTES, Page, Scratch, Tier, TierKind, parse_tiers,
};

/// Parts of equal size that pages are told in.
const PARTS: usize = 4;
/// Room that is taken of the medium for each encoded byte, as in the pager's gauge.
pub const PACKED: f64 = 1.07;

/// What pages take in a tier.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Deserialize, Serialize)]
pub struct Compressed {
    /// The tier, as in `--tiers`.
    pub tier: String,
    /// Stored bytes, as a part of the pages' size.
    pub fraction: f64,
    /// `fraction` of each quarter of the pages: first those that compress best in the first of the
    /// tiers, the same pages in each tier. Empty in reports of versions that did not tell it.
    #[serde(default)]
    pub by_quarter: Vec<f64>,
    /// Median processor time to compress a page, ns, where it was measured.
    #[serde(default)]
    pub store_ns: Option<u64>,
    /// Median processor time to decompress a page, ns, where it was measured.
    #[serde(default)]
    pub restore_ns: Option<u64>,
}

/// Compresses pages in all compressed tiers of a list, and keeps what came of it.
pub struct Gauge {
    tiers: Vec<Tier>,
    scratch: Scratch,
    /// Sizes of each page, by tier.
    sizes: Vec<Vec<u16>>,
    store_ns: Vec<Vec<u64>>,
    restore_ns: Vec<Vec<u64>>,
}

impl Gauge {
    /// A gauge for a list as in `--tiers`; a wrong list has no tiers.
    pub fn new(tiers: &str) -> Gauge {
        let medium = DramMedium::new(EXTENT_BYTES).ok().map(Arc::new);
        let tiers: Vec<Tier> = parse_tiers(tiers)
            .unwrap_or_default()
            .into_iter()
            .filter(|spec| matches!(spec.kind, TierKind::Compressed { .. }))
            .filter_map(|spec| Some(Tier::new(spec, medium.clone()?)))
            .collect();
        let times = vec![Vec::new(); tiers.len()];
        Gauge {
            tiers,
            scratch: Scratch::new(),
            sizes: Vec::new(),
            store_ns: times.clone(),
            restore_ns: times,
        }
    }

    /// Number of pages so far.
    pub fn pages(&self) -> usize {
        self.sizes.len()
    }

    /// Compresses more pages.
    pub fn add(&mut self, pages: &[Page]) {
        for page in pages {
            let mut sizes = Vec::with_capacity(self.tiers.len());
            for (number, tier) in self.tiers.iter().enumerate() {
                let measured = tier.measure(page, &mut self.scratch, thread_cpu_ns);
                self.store_ns[number].push(measured.encode_ns);
                self.restore_ns[number].push(measured.decode_ns);
                sizes.push(measured.bytes as u16);
            }
            self.sizes.push(sizes);
        }
    }

    /// What is known, by tier; nothing before the first page.
    pub fn compressed(&self) -> Vec<Compressed> {
        let mut sizes = self.sizes.clone();
        if sizes.is_empty() {
            return Vec::new();
        }
        sizes.sort();
        let fraction = |pages: &[Vec<u16>], tier: usize| {
            let bytes: u64 = pages.iter().map(|page| u64::from(page[tier])).sum();
            bytes as f64 / (pages.len() * PAGE_BYTES) as f64
        };
        let quarters =
            || (0..PARTS).map(|part| part * sizes.len() / PARTS..(part + 1) * sizes.len() / PARTS);
        self.tiers
            .iter()
            .enumerate()
            .map(|(tier, its)| Compressed {
                tier: its.spec.name.clone(),
                fraction: fraction(&sizes, tier),
                by_quarter: match sizes.len() {
                    PARTS.. => quarters().map(|part| fraction(&sizes[part], tier)).collect(),
                    _ => Vec::new(),
                },
                store_ns: median(&self.store_ns[tier]),
                restore_ns: median(&self.restore_ns[tier]),
            })
            .collect()
    }
}

fn median(times: &[u64]) -> Option<u64> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_by_quarters() {
        let mut gauge = Gauge::new("dram,lz4,zstd:1");
        assert!(gauge.compressed().is_empty());
        let mut noise = 1u64;
        let mut random = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 56) as u8
        };
        let pages: Vec<Page> = (0..40)
            .map(|number| {
                let mut page = [7; PAGE_BYTES];
                page[..number * 100].fill_with(&mut random);
                page
            })
            .collect();
        gauge.add(&pages);
        let told = gauge.compressed();
        assert_eq!((told.len(), gauge.pages()), (2, 40));
        for tier in &told {
            let quarters = &tier.by_quarter;
            assert!(quarters.len() == 4 && quarters.is_sorted(), "{tier:?}");
            let mean = quarters.iter().sum::<f64>() / 4.0;
            assert!((mean - tier.fraction).abs() < 1e-9, "{tier:?}");
            assert!(tier.store_ns.is_some_and(|ns| ns > 0) && tier.restore_ns.is_some());
        }
    }
}
