//! The policies as `terrace run --policy` names them, with the parameters that they have in a live
//! program.

mod random;

use crate::eviction::faults::Faults;
use crate::eviction::regions::{Counters, Regions};
use crate::eviction::victims::VictimPolicy;
use crate::placement::gate::Gated;
use crate::placement::histogram::{Config, Hotness};
use crate::placement::terrace::Terrace;
use crate::placement::{FirstTouch, PlacementPolicy, jenga, memtis};

/// A policy of a live program.
pub struct LivePolicy {
    /// Name of the policy.
    pub name: &'static str,
    /// What the policy goes by, for the help text; empty where that is its paper's to say.
    pub about: &'static str,
    /// Whether samples change what it does.
    pub uses_samples: bool,
    /// What the policy moves out of DRAM into compressed tiers, from where pages are restored by
    /// faults.
    pub victims: fn() -> Box<dyn VictimPolicy>,
    /// What the policy has in DRAM and what in far memory, the given number of times as slow.
    pub placement: fn(f64) -> Box<dyn PlacementPolicy>,
}

/// All policies, the default first.
pub const POLICIES: &[LivePolicy] = &[
    LivePolicy {
        name: "terrace",
        about: "ours, by faults, and by samples if there are any",
        uses_samples: true,
        victims: || Box::new(Regions::new(Terrace::default())),
        placement: |slowness| Box::new(Gated::new(slowness)),
    },
    LivePolicy {
        name: "faults",
        about: "by faults alone",
        uses_samples: false,
        victims: || Box::new(Faults::default()),
        placement: |_| Box::new(FirstTouch::live("faults")),
    },
    LivePolicy {
        name: random::NAME,
        about: "regions in a random order, to judge others by",
        uses_samples: false,
        victims: || Box::new(random::Random::default()),
        placement: |_| Box::new(FirstTouch::live(random::NAME)),
    },
    LivePolicy {
        name: jenga::CONFIG.name,
        about: "",
        uses_samples: true,
        victims: || counters(jenga::CONFIG),
        placement: |_| hotness(jenga::CONFIG),
    },
    LivePolicy {
        name: memtis::CONFIG.name,
        about: "",
        uses_samples: true,
        victims: || counters(memtis::CONFIG),
        placement: |_| hotness(memtis::CONFIG),
    },
    LivePolicy {
        name: memtis::QUICK_COOLING.name,
        about: "",
        uses_samples: true,
        victims: || counters(memtis::QUICK_COOLING),
        placement: |_| hotness(memtis::QUICK_COOLING),
    },
];

/// Names of all policies, the default first.
pub const NAMES: [&str; POLICIES.len()] = names!(POLICIES);

/// The policy of that name.
pub fn by_name(name: &str) -> Option<&'static LivePolicy> {
    POLICIES.iter().find(|policy| policy.name == name)
}

/// What the policy of that name moves out of DRAM into compressed tiers.
pub fn victims(name: &str) -> Option<Box<dyn VictimPolicy>> {
    by_name(name).map(|policy| (policy.victims)())
}

/// What it has in DRAM and what in far memory, `slowness` times as slow.
pub fn placement(name: &str, slowness: f64) -> Option<Box<dyn PlacementPolicy>> {
    by_name(name).map(|policy| (policy.placement)(slowness))
}

fn counters(config: Config) -> Box<dyn VictimPolicy> {
    Box::new(Regions::new(Counters::new(live(config))))
}

fn hotness(config: Config) -> Box<dyn PlacementPolicy> {
    Box::new(Hotness::new(live(config)))
}

/// Factor by which the papers' periods are divided. They are in samples, some 20,000 a second
/// there. A clock at 1,000 a second gives them the same time in a twentieth.
const LIVE_SCALE: u64 = 20;

/// A published policy with the parameters of a live program.
fn live(config: Config) -> Config {
    Config {
        cooling_samples: config.cooling_samples / LIVE_SCALE,
        adapt_samples: config.adapt_samples / LIVE_SCALE,
        // All memory is in the fast tier when it is first seen, so that would say nothing.
        begins_hot: false,
        ..config
    }
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
