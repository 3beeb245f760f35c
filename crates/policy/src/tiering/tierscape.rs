//! `tierscape`, the analytical model of the paper (§6.2–6.6), and `tierscape-artifact`, what the
//! published program computes.
//!
//! Both minimise the time of accesses under a bound on the cost (equations 2, 7 and 10).
//!
//! The paper has measured latencies and ratios and decides for each region. Its program has
//! constants for both, and decides for groups of ten regions that are next to each other in
//! hotness. Pages that refaulted stay until their region changes its tier. Theirs is solved by an
//! integer program, here by [`knapsack`](super::knapsack), which is as good within its stated gap.

use super::knapsack::{Problem, solve};
use super::{Codec, Kind, Model, Resend, Setting, Tier, Window};

/// Name of the paper's model.
pub const NAME: &str = "tierscape";
/// Name of the program's model.
pub const NAME_ARTIFACT: &str = "tierscape-artifact";

/// Regions that share a decision.
const GROUP: usize = 10;

/// The model as in the paper.
#[derive(Clone, Debug)]
pub struct TierScape {
    /// The knob.
    pub alpha: f64,
}

impl Model for TierScape {
    fn name(&self) -> &'static str {
        NAME
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        let (mut time, mut cost) = (Vec::new(), Vec::new());
        for (number, region) in window.regions.iter().enumerate() {
            for (index, tier) in window.tiers.iter().enumerate() {
                time.push((f64::from(region.accesses) * tier.access_ns()) as f32);
                cost.push(window.cost(number, index) as f32);
            }
        }
        *plan = within(window.tiers.len(), &time, &cost, self.alpha);
    }

    fn resend(&self, _region: usize) -> Resend {
        Resend::All
    }

    fn set(&mut self, setting: Setting) {
        self.alpha = setting.alpha;
    }
}

/// The model as in the published program (IntelLabs/tierscape at 0fdf5b0).
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The knob.
    pub alpha: f64,
}

/// Latency and cost of a tier, without units, by the program's constants. It knows DRAM, Optane,
/// lzo in DRAM, and zstd in both; what it does not know is taken as what is most alike.
pub fn constants(tier: &Tier) -> (f64, f64) {
    let is_dram = tier.medium == 0;
    let medium = if is_dram { 10.0 } else { 3.0 };
    match tier.kind {
        Kind::Bytes { .. } => (if is_dram { 2.0 } else { 4.0 }, medium),
        Kind::Compressed { codec, .. } => {
            let (latency, ratio) = match codec {
                Codec::Lz4 | Codec::Lzo => (5.0, 0.8),
                Codec::Zstd => (6.0, 0.5),
                Codec::Deflate => (6.0, 0.8),
            };
            (latency + if is_dram { 0.0 } else { 1.0 }, medium * ratio)
        }
    }
}

impl Model for Artifact {
    fn name(&self) -> &'static str {
        NAME_ARTIFACT
    }

    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>) {
        let mut order: Vec<usize> = (0..window.regions.len()).collect();
        order.sort_by(|a, b| {
            window.regions[*b].accesses.total_cmp(&window.regions[*a].accesses).then(a.cmp(b))
        });
        let (mut time, mut cost) = (Vec::new(), Vec::new());
        for group in order.chunks(GROUP) {
            let of = group.iter().map(|region| &window.regions[*region]);
            let hottest = of.clone().map(|region| region.accesses).fold(1.0, f32::max);
            let pages: u32 = of.map(|region| region.pages).sum();
            for tier in window.tiers {
                let (latency, price) = constants(tier);
                time.push(hottest * latency as f32);
                cost.push((f64::from(pages) * price) as f32);
            }
        }
        let chosen = within(window.tiers.len(), &time, &cost, self.alpha);
        plan.clear();
        plan.resize(window.regions.len(), 0);
        for (group, tier) in order.chunks(GROUP).zip(chosen) {
            group.iter().for_each(|region| plan[*region] = tier);
        }
    }

    fn resend(&self, _region: usize) -> Resend {
        Resend::Never
    }

    fn set(&mut self, setting: Setting) {
        self.alpha = setting.alpha;
    }
}

/// The least time within min + α (max − min) of the cost, by row.
fn within(choices: usize, time: &[f32], cost: &[f32], alpha: f64) -> Vec<u8> {
    let of =
        |row: &[f32], what: fn(f32, f32) -> f32| row.iter().copied().reduce(what).unwrap_or(0.0);
    // The dearest and the cheapest tier of each, as sums of what they are.
    let (least, most) = cost.chunks(choices).fold((0.0, 0.0), |(least, most), row| {
        (least + f64::from(of(row, f32::min)), most + f64::from(of(row, f32::max)))
    });
    let bound = least + alpha * (most - least);
    let problem = Problem { choices, time, cost, uses: &[], limited: &[], limits: &[], bound };
    solve(&problem).choice
}
