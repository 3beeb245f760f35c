//! `hemem*`, `gswap*` and `tmo*`: DRAM and one slow tier, by a percentile of hotness, as TierScape
//! has its rivals (§8.1).
//!
//! The percentile is of regions that were touched at all, as in the artifact. With untouched ones
//! among them a percentile is 0 as soon as enough memory is idle.

use super::{Codec, Kind, Model, Resend, Setting, Tier, Window};

/// Names, by what is the slow tier: memory of another node; DRAM, compressed by the fastest; the
/// densest compressed one.
pub const NAMES: [&str; 3] = ["hemem*", "gswap*", "tmo*"];

/// Accesses that a percentage of the touched regions do not exceed; `None` if none was touched.
pub fn percentile(window: &Window<'_>, percent: f64) -> Option<f32> {
    let mut counts: Vec<f32> =
        window.regions.iter().map(|region| region.accesses).filter(|count| *count > 0.0).collect();
    counts.sort_unstable_by(f32::total_cmp);
    let last = counts.len().checked_sub(1)?;
    counts.get((percent / 100.0 * last as f64).round() as usize).copied()
}

/// The model of one of the three names.
#[derive(Clone, Debug)]
pub struct Thresholds {
    name: &'static str,
    percent: f64,
    slow: u8,
}

impl Thresholds {
    /// Makes the model with this name. `None`: no model has it, or there is no slow tier for it.
    /// `hemem*` takes the nearest slow tier where no other node is one.
    pub fn new(name: &str, percent: f64, tiers: &[Tier]) -> Option<Thresholds> {
        let name = NAMES.into_iter().find(|known| *known == name)?;
        let compressed = |tier: &Tier| !tier.is_bytes();
        let by = |codecs: &[Codec]| {
            tiers.iter().position(|tier| match tier.kind {
                Kind::Compressed { codec, .. } => codecs.contains(&codec),
                Kind::Bytes { .. } => false,
            })
        };
        let slow = match name {
            "hemem*" => tiers.iter().skip(1).position(Tier::is_bytes).map_or(1, |slow| slow + 1),
            "gswap*" => by(&[Codec::Lzo]).or_else(|| tiers.iter().position(compressed))?,
            _ => by(&[Codec::Zstd]).or_else(|| tiers.iter().rposition(compressed))?,
        };
        let slow = u8::try_from(slow).ok().filter(|slow| usize::from(*slow) < tiers.len())?;
        Some(Thresholds { name, percent, slow })
    }
}

impl Model for Thresholds {
    fn name(&self) -> &'static str {
        self.name
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        let limit = percentile(window, self.percent).unwrap_or(f32::INFINITY);
        plan.clear();
        plan.extend(window.regions.iter().map(
            |region| {
                if region.accesses > limit { 0 } else { self.slow }
            },
        ));
    }

    fn resend(&self, _region: usize) -> Resend {
        Resend::All
    }

    fn set(&mut self, setting: Setting) {
        self.percent = setting.percentile;
    }
}
