//! What memory costs beside all of it in DRAM: equations 8 to 10 of TierScape (EuroSys '26, §6.6),
//! at the prices of [`crate::cost::prices`]. The report of a run, `terrace report tiers` and
//! `terrace plan` have it from here.

use crate::cost::prices::Prices;
use crate::processes::statistics::Tier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_tiers::PAGE_BYTES;

/// What a run's data cost on average, of the process that the report tells of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tco {
    /// When the prices were gathered.
    pub prices_of: String,
    /// What the data cost, with Terrace's own memory; all of them in DRAM is 1.
    pub relative: f64,
    /// What is saved of the cost of all in DRAM; negative where more was paid.
    pub saved_fraction: f64,
    /// What each tier's part of the data costs, relative to all of the data in DRAM. The rest up to
    /// `relative` is Terrace's own memory.
    pub tiers: Vec<TierCost>,
}

/// What one tier's data cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TierCost {
    /// The tier.
    pub tier: String,
    /// The medium that its bytes are on: `dram`, `node` or `file`.
    pub medium: String,
    /// Bytes of that medium, on average. In files: the mean data, at the density that they had in
    /// the end.
    pub medium_bytes: u64,
    /// Price of a byte of the medium; DRAM's is 1.
    pub price: f64,
    /// Part of the cost of all data in DRAM.
    pub cost: f64,
}

/// The medium of a tier by its name, as users write it.
pub fn medium(tier: &str) -> &'static str {
    let medium = tier.split_once('@').map_or("dram", |(_, medium)| medium);
    match () {
        () if tier.starts_with("node:") || medium.starts_with("node:") => "node",
        () if medium.starts_with("file:") => "file",
        () => "dram",
    }
}

/// What data in a tier cost, in any unit of its bytes: those in DRAM are 1 each.
pub fn cost(tier: &str, medium_bytes: f64, prices: &Prices) -> f64 {
    medium_bytes * prices.of(medium(tier))
}

impl Tco {
    /// What follows from the mean figures of a process: its data, DRAM for all of it, overhead
    /// included, and its tiers. `None` where it had no data.
    pub fn of(logical: u64, physical: u64, tiers: &[Tier], prices: &Prices) -> Option<Tco> {
        if logical == 0 {
            return None;
        }
        let all = logical as f64;
        let tiers: Vec<TierCost> = tiers.iter().map(|tier| of_tier(tier, all, prices)).collect();
        // What is in DRAM is in `physical`, at its price of 1.
        let elsewhere: f64 =
            tiers.iter().filter(|tier| tier.medium != "dram").map(|tier| tier.cost).sum();
        let relative = physical as f64 / all + elsewhere;
        let (prices_of, saved_fraction) = (prices.dated().to_owned(), 1.0 - relative);
        Some(Tco { prices_of, relative, saved_fraction, tiers })
    }
}

fn of_tier(tier: &Tier, all: f64, prices: &Prices) -> TierCost {
    // Files in memory (tmpfs) and swap in memory (zram) are DRAM; both say so.
    let medium = match medium(&tier.name) {
        "file" if tier.physical_bytes > 0 => "dram",
        "dram" if tier.name == "swap" && tier.physical_bytes == 0 => "file",
        medium => medium,
    };
    let medium_bytes = match medium {
        "file" => {
            let density = tier
                .file_bytes
                .filter(|_| tier.pages > 0)
                .map_or(1.0, |bytes| bytes as f64 / (tier.pages as f64 * PAGE_BYTES as f64))
                // Files may hold more than the pages that are left at the end.
                .min(1.0);
            tier.logical_bytes as f64 * density
        }
        _ => tier.physical_bytes as f64,
    };
    let price = prices.of(medium);
    TierCost {
        tier: tier.name.clone(),
        medium: medium.to_owned(),
        medium_bytes: medium_bytes as u64,
        price,
        cost: medium_bytes * price / all,
    }
}

/// Dollars for `data_bytes` bytes of data that cost the part `relative` of all of it in DRAM.
/// `None` where no price of DRAM was given.
pub fn dollars(data_bytes: u64, relative: f64, prices: &Prices) -> Option<f64> {
    Some(data_bytes as f64 / (1u64 << 30) as f64 * relative * prices.usd_per_gib()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(name: &str, logical_bytes: u64, physical_bytes: u64, file_bytes: Option<u64>) -> Tier {
        Tier {
            name: name.into(),
            logical_bytes,
            physical_bytes,
            pages: logical_bytes / PAGE_BYTES as u64,
            faults: 0,
            fault_p50_us: None,
            fault_p99_us: None,
            rejected: 0,
            file_bytes,
            held_bytes: None,
        }
    }

    #[test]
    fn each_byte_costs_its_mediums_price() {
        let mib = |mib: u64| mib << 20;
        let tiers = [
            tier("dram", mib(40), mib(40), None),
            tier("lz4", mib(20), mib(10), None),
            tier("lz4@node:1", mib(20), mib(8), None),
            tier("zstd:3@file:/var/tmp", mib(20), 0, Some(mib(5))),
        ];
        let tco = Tco::of(mib(100), mib(52), &tiers, &Prices::default()).unwrap();
        // DRAM with 2 MiB of overhead, half a price on the node, a fortieth in files.
        assert!((tco.relative - (0.52 + 0.04 + 0.05 * 0.025)).abs() < 1e-9, "{tco:?}");
        assert!((tco.saved_fraction - (1.0 - tco.relative)).abs() < 1e-12);
        let media: Vec<&str> = tco.tiers.iter().map(|tier| tier.medium.as_str()).collect();
        assert_eq!(media, ["dram", "dram", "node", "file"]);
        assert_eq!(Tco::of(0, mib(1), &tiers, &Prices::default()), None);
    }

    #[test]
    fn files_and_swap_in_memory_are_dram() {
        let tiers = [
            tier("swap", 1 << 20, 0, None),
            tier("swap", 1 << 20, 9, None),
            tier("raw@file:/dev/shm", 1 << 20, 9, Some(9)),
        ];
        let tco = Tco::of(3 << 20, 18, &tiers, &Prices::default()).unwrap();
        let media: Vec<&str> = tco.tiers.iter().map(|tier| tier.medium.as_str()).collect();
        assert_eq!(media, ["file", "dram", "dram"]);
    }

    #[test]
    fn dollars_are_told_where_dram_has_a_price() {
        assert_eq!(dollars(1 << 30, 0.5, &Prices::default()), None);
        let prices = Prices::with(None, &["usd=4".parse().unwrap()]).unwrap();
        assert_eq!(dollars(3 << 30, 0.5, &prices), Some(6.0));
    }
}
