//! `waterfall`: what is hot is in DRAM, and all else goes down one tier in each window
//! (TierScape §6.1).

use super::thresholds::percentile;
use super::{Model, Resend, Setting, Window};

/// Name of the model.
pub const NAME: &str = "waterfall";

/// The model named `waterfall`.
#[derive(Clone, Debug)]
pub struct Waterfall {
    percent: f64,
}

impl Waterfall {
    /// Makes the model. Regions with at least the accesses of this percentile are hot (`H_th`).
    pub fn new(percent: f64) -> Waterfall {
        Waterfall { percent }
    }
}

impl Model for Waterfall {
    fn name(&self) -> &'static str {
        NAME
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        let limit = percentile(window, self.percent).unwrap_or(f32::INFINITY);
        let last = window.tiers.len().saturating_sub(1);
        plan.clear();
        plan.extend(window.regions.iter().map(|region| {
            if region.accesses >= limit { 0 } else { last.min(usize::from(region.tier) + 1) as u8 }
        }));
    }

    fn resend(&self, _region: usize) -> Resend {
        Resend::All
    }

    fn set(&mut self, setting: Setting) {
        self.percent = setting.percentile;
    }
}
