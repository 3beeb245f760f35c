//! The policies as `terrace run --policy` names them, with the parameters that they have in a live
//! program.

use crate::faults::Faults;
use crate::gate::Gated;
use crate::histogram::{Config, Hotness};
use crate::placement::{FirstTouch, PlacementPolicy};
use crate::regions::{Counters, Regions};
use crate::terrace::Terrace;
use crate::victims::VictimPolicy;
use crate::{jenga, memtis};

/// Names of all policies, the default first.
pub const NAMES: [&str; 5] = ["terrace", "faults", "jenga", "memtis", "memtis-qc"];

/// What the policy of that name moves out of DRAM into compressed tiers, from where pages come back
/// by faults.
pub fn victims(name: &str) -> Option<Box<dyn VictimPolicy>> {
    Some(match name {
        "terrace" => Box::new(Regions::new(Terrace::default())),
        "faults" => Box::new(Faults::default()),
        _ => Box::new(Regions::new(Counters::new(published(name)?))),
    })
}

/// What it has in DRAM and what in far memory, `slowness` times as slow.
pub fn placement(name: &str, slowness: f64) -> Option<Box<dyn PlacementPolicy>> {
    Some(match name {
        "terrace" => Box::new(Gated::new(slowness)),
        "faults" => Box::new(FirstTouch::live()),
        _ => Box::new(Hotness::new(published(name)?)),
    })
}

/// Periods of the papers are in samples, some 20,000 a second there; a clock at 1,000 a second
/// gives them the same time in a twentieth.
const LIVE_SCALE: u64 = 20;

fn published(name: &str) -> Option<Config> {
    let config = [jenga::CONFIG, memtis::CONFIG, memtis::QUICK_COOLING]
        .into_iter()
        .find(|config| config.name == name)?;
    Some(Config {
        cooling_samples: config.cooling_samples / LIVE_SCALE,
        adapt_samples: config.adapt_samples / LIVE_SCALE,
        // All memory is in the fast tier when it is first seen, so that would say nothing.
        begins_hot: false,
        ..config
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy_of_that_name() {
        for name in NAMES {
            assert_eq!(victims(name).map(|policy| policy.name()), Some(name));
            assert_eq!(placement(name, 2.0).map(|policy| policy.name()), Some(name));
        }
        assert!(victims("lru").is_none() && placement("lru", 2.0).is_none());
    }
}
