//! Where each region is to be, of several tiers: compressed, byte-addressable, on several media.
//!
//! A [`Model`] is told once a window what each region is like and where it is ([`Window`]), and
//! answers with a tier for each. The published ones are [`thresholds`] of hotness (`hemem*`,
//! `gswap*`, `tmo*`), [`waterfall`] and [`tierscape`], as the paper and as its artifact have it;
//! ours is [`mod@cost`], by what [`predict`] expects. [`knapsack`] solves what two of them ask for,
//! and [`moves`] orders and filters what has to move. [`forecast`] says beforehand what tiers would
//! come to.
//!
//! What all of it costs is equation 10 of TierScape (EuroSys '26, §6.6): each byte of a medium at
//! that medium's price. All data in DRAM are 1. The knob α bounds it (equation 2).

pub mod cost;
pub mod forecast;
pub mod heat;
pub mod knapsack;
pub mod moves;
pub mod predict;
pub mod thresholds;
pub mod tierscape;
pub mod waterfall;

#[cfg(test)]
mod tests;

/// Codec of a compressed tier's pages, as far as a model cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// LZ4.
    Lz4,
    /// LZO, or LZO-RLE.
    Lzo,
    /// Zstandard.
    Zstd,
    /// DEFLATE.
    Deflate,
}

/// How pages of a tier are reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The page is accessed directly, by an address.
    Bytes {
        /// Time that an access takes more than in DRAM, ns; 0 for DRAM.
        extra_ns: f64,
    },
    /// The page is accessed by a fault, which brings it back to DRAM.
    Compressed {
        /// Codec of the pages.
        codec: Codec,
        /// Processor time to compress and store a page, ns.
        store_ns: f64,
        /// The whole time of a fault as the program sees it, ns.
        fault_ns: f64,
    },
}

/// Tier of memory. The first of a list is DRAM, where pages begin and are restored to.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Name of the tier, as users write it.
    pub name: String,
    /// How the tier is reached.
    pub kind: Kind,
    /// Medium that the tier is on: an index into what limits media. DRAM is 0.
    pub medium: usize,
    /// Price of a byte of the medium; DRAM's is 1.
    pub price: f64,
}

impl Tier {
    /// Whether pages are in the tier as they are.
    pub fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes { .. })
    }

    /// Time that one access to a page in the tier takes more than in DRAM, ns, where each is
    /// charged as the first: equation 7.
    pub fn access_ns(&self) -> f64 {
        match self.kind {
            Kind::Bytes { extra_ns } => extra_ns,
            Kind::Compressed { fault_ns, .. } => fault_ns,
        }
    }
}

/// A region (2 MiB, or what of it is mapped) and what was seen of it in the last window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Region {
    /// Number of pages of 4 KiB, at least 1.
    pub pages: u32,
    /// The tier that the region was given last; 0 at first.
    pub tier: u8,
    /// Pages that are in DRAM although the tier is another: they were touched, and restored.
    pub leaked: u32,
    /// Accesses by samples.
    pub accesses: f32,
    /// Different pages that were touched.
    pub touched: u32,
    /// Number of touched pages that had not been touched in the window before. They would have been
    /// faults, had all idle pages been away.
    pub fresh: u32,
}

/// All that a model is told at a window's end.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Tiers, DRAM first, by latency.
    pub tiers: &'a [Tier],
    /// Regions in the order of their addresses. The same index is the same region in each window.
    pub regions: &'a [Region],
    /// Bytes of the medium for each byte of data, from 0 to 1: a row for each region, a column
    /// for each tier. Byte-addressable tiers have 1.
    pub stored: &'a [f32],
    /// Pages (4 KiB) that fit into each medium, if that is limited; may be shorter.
    pub limits: &'a [Option<f64>],
}

impl Window<'_> {
    /// Bytes that a region takes of a tier's medium for each of its data.
    pub fn stored(&self, region: usize, tier: usize) -> f64 {
        f64::from(self.stored[region * self.tiers.len() + tier])
    }

    /// What a region costs if all its pages are in a tier, in pages of DRAM: equation 8.
    pub fn cost(&self, region: usize, tier: usize) -> f64 {
        let pages = f64::from(self.regions[region].pages);
        pages * self.stored(region, tier) * self.tiers[tier].price
    }

    /// Costs of all regions in DRAM, and each where it is cheapest: TCO_max and TCO_min.
    pub fn range(&self) -> (f64, f64) {
        (0..self.regions.len()).fold((0.0, 0.0), |(most, least), region| {
            let costs = (0..self.tiers.len()).map(|tier| self.cost(region, tier));
            (most + self.cost(region, 0), least + costs.fold(f64::INFINITY, f64::min))
        })
    }
}

/// Pages of an evicted region that are evicted again after they refaulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// None, before the region's tier changes (TierScape's artifact).
    Never,
    /// All, at each window's end.
    All,
    /// Pages that were not touched in the last window.
    Idle,
}

impl Resend {
    /// What to list for a mover that looks for idle pages by itself. All pages in DRAM of an evicted
    /// region count as touched in [`heat`], so by that none of them would be idle.
    pub fn by_mover(self) -> Resend {
        if self == Resend::Idle { Resend::All } else { self }
    }
}

/// Decides the tier of each region.
pub trait Model: Send {
    /// The name that commands and reports use.
    fn name(&self) -> &'static str;
    /// Clears `plan` and fills it with a tier for each region.
    fn place(&mut self, window: &Window<'_>, plan: &mut Vec<u8>);
    /// Pages of a region that the model sends out, by the last plan.
    fn resend(&self, region: usize) -> Resend;
    /// Changes the setting, from the next window on.
    fn set(&mut self, setting: Setting);
    /// The most that the last plan was to cost, pages of DRAM, where the model has such a bound.
    fn bound(&self) -> Option<f64> {
        None
    }
}

/// A model and its name.
struct ModelRow {
    name: &'static str,
    /// Makes the model over the given tiers; `None` if there is none for it to use.
    make: Make,
}

type Make = fn(Setting, &[Tier]) -> Option<Box<dyn Model>>;

const MODELS: &[ModelRow] = &[
    ModelRow {
        name: thresholds::NAMES[0],
        make: |setting, tiers| thresholds(thresholds::NAMES[0], setting, tiers),
    },
    ModelRow {
        name: thresholds::NAMES[1],
        make: |setting, tiers| thresholds(thresholds::NAMES[1], setting, tiers),
    },
    ModelRow {
        name: thresholds::NAMES[2],
        make: |setting, tiers| thresholds(thresholds::NAMES[2], setting, tiers),
    },
    ModelRow {
        name: waterfall::NAME,
        make: |setting, _| Some(Box::new(waterfall::Waterfall::new(setting.percentile))),
    },
    ModelRow {
        name: tierscape::NAME,
        make: |setting, _| Some(Box::new(tierscape::TierScape { alpha: setting.alpha })),
    },
    ModelRow {
        name: tierscape::NAME_ARTIFACT,
        make: |setting, _| Some(Box::new(tierscape::Artifact { alpha: setting.alpha })),
    },
    ModelRow {
        name: cost::NAME,
        make: |setting, _| {
            let config = cost::Config { alpha: setting.alpha, ..cost::CONFIG };
            Some(Box::new(cost::TerraceCost::new(config)))
        },
    },
];

fn thresholds(name: &str, setting: Setting, tiers: &[Tier]) -> Option<Box<dyn Model>> {
    let model = thresholds::Thresholds::new(name, setting.percentile, tiers)?;
    Some(Box::new(model))
}

/// Names of all models.
pub const NAMES: [&str; MODELS.len()] = names!(MODELS);

/// The three settings in which TierScape's authors ran each model, by how much they save (§8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Preset {
    /// 25th percentile, α = 0.9.
    Conservative,
    /// 50th percentile, α = 0.5.
    Moderate,
    /// 75th percentile, α = 0.1.
    Aggressive,
    /// 95th percentile, which the artifact has instead of the 75th; α = 0.1.
    Artifact,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 4] =
        [Preset::Conservative, Preset::Moderate, Preset::Aggressive, Preset::Artifact];

    /// Name of the preset.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Conservative => "conservative",
            Preset::Moderate => "moderate",
            Preset::Aggressive => "aggressive",
            Preset::Artifact => "artifact",
        }
    }

    /// Knob α of the preset.
    pub fn alpha(self) -> f64 {
        match self {
            Preset::Conservative => 0.9,
            Preset::Moderate => 0.5,
            Preset::Aggressive | Preset::Artifact => 0.1,
        }
    }

    /// Threshold of hotness, as a percentile.
    pub fn percentile(self) -> f64 {
        match self {
            Preset::Conservative => 25.0,
            Preset::Moderate => 50.0,
            Preset::Aggressive => 75.0,
            Preset::Artifact => 95.0,
        }
    }
}

/// How much a model is to save.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Where the model has a knob: 1 is all speed, 0 all saving.
    pub alpha: f64,
    /// Percentile of the threshold, where the model has one.
    pub percentile: f64,
}

impl From<Preset> for Setting {
    fn from(preset: Preset) -> Setting {
        Setting { alpha: preset.alpha(), percentile: preset.percentile() }
    }
}

impl Setting {
    /// The setting of a knob from 0 to 1. A threshold's percentile is on the line through the
    /// paper's three presets: 25 % at 0.9, 50 % at 0.5, 75 % at 0.1.
    pub fn of_knob(alpha: f64) -> Setting {
        Setting { alpha, percentile: 81.25 - 62.5 * alpha }
    }
}

/// The model of a name over these tiers. `None`: there is none, or it has no tier to use.
pub fn model(name: &str, setting: Setting, tiers: &[Tier]) -> Option<Box<dyn Model>> {
    let row = MODELS.iter().find(|row| row.name == name)?;
    (row.make)(setting, tiers)
}
