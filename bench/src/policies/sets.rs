//! What policies are compared on: three sets, fixed here before the default policy was run on the
//! last of them.
//!
//! The generators are the simulator's; the programs are graph kernels, tables and learners of the
//! kinds that the papers run. The default policy was tuned on the first two sets. Of the third no
//! recording was run with it before it was frozen.

use clap::ValueEnum;

/// A set of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Set {
    /// Generated accesses
    Synthetic,
    /// Recorded programs on which the default policy was tuned
    Tuning,
    /// Recorded programs that were kept aside
    Heldout,
}

/// Generators, in units that play 2 MiB each; `terrace sim` has 120 million accesses to 10,240 of
/// them.
const SYNTHETIC: [&str; 6] = ["jump", "btree", "drift", "phases", "scan", "zipf"];

/// A program that is recorded from its start on, as its data are built, so that memory is first
/// touched in that order. Recorded are misses of a modelled cache, one in [`Program::period`].
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The workload's name.
    pub name: &'static str,
    /// What `bench/programs/build.sh` calls it.
    pub built_as: &'static str,
    /// The command in its directory and its arguments; of redis the keys, operations and seed that
    /// its script is given.
    pub command: &'static [&'static str],
    /// Number of misses of which one is recorded.
    pub period: u32,
}

/// Number of real accesses that a recording plays, as many as a generator's stream does: 12 billion
/// to 20 GiB. With fewer it would be over before policies with the papers' intervals have come to a
/// decision.
pub const REAL_ACCESSES: u64 = 12_000_000_000;

/// Size of the simulated cache in front of recorded memory: 512 KiB. As the memory is a fiftieth of
/// what papers run, so is the cache.
pub const CACHE: &str = "512K";

const TUNING: [Program; 4] = [
    Program {
        name: "btree",
        built_as: "btree",
        command: &["btree", "3000000", "16000000", "1"],
        period: 8,
    },
    Program {
        name: "pr",
        built_as: "graph",
        command: &["graph", "pr", "21", "12", "16", "1"],
        period: 16,
    },
    Program {
        name: "bc",
        built_as: "graph",
        command: &["graph", "bc", "21", "12", "5", "1"],
        period: 16,
    },
    Program {
        name: "lookup",
        built_as: "lookup",
        command: &["lookup", "12000", "4000000", "1"],
        period: 8,
    },
];

const HELDOUT: [Program; 5] = [
    Program {
        name: "bfs",
        built_as: "graph",
        command: &["graph", "bfs", "21", "16", "10", "1"],
        period: 16,
    },
    Program { name: "cg", built_as: "cg", command: &["cg", "1500000", "16", "8", "1"], period: 8 },
    Program {
        name: "logistic",
        built_as: "logistic",
        command: &["logistic", "1000000", "4000000", "8", "1"],
        period: 8,
    },
    Program {
        name: "sqlite",
        built_as: "sqlite",
        command: &["sqlite_points", "1000000", "1500000", "1"],
        period: 8,
    },
    Program { name: "redis", built_as: "redis", command: &["600000", "2000000", "1"], period: 1 },
];

impl Set {
    /// Name of the set on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Set::Synthetic => "synthetic",
            Set::Tuning => "tuning",
            Set::Heldout => "heldout",
        }
    }

    /// Names of the set's generators.
    pub fn generators(self) -> &'static [&'static str] {
        if self == Set::Synthetic { &SYNTHETIC } else { &[] }
    }

    /// Programs of the set.
    pub fn programs(self) -> &'static [Program] {
        match self {
            Set::Synthetic => &[],
            Set::Tuning => &TUNING,
            Set::Heldout => &HELDOUT,
        }
    }

    /// How much of the memory is fast.
    pub fn fast(self) -> &'static [&'static str] {
        if self == Set::Synthetic { &["20%"] } else { &["25%", "50%"] }
    }

    /// The bar of the geometric mean of throughput over Jenga's.
    pub fn bar(self) -> f64 {
        if self == Set::Synthetic { 1.10 } else { 1.05 }
    }
}

/// The bar of throughput over the best rival's, for every workload.
pub const BAR_BEST: f64 = 0.90;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_program_is_in_two_sets() {
        let names = || {
            [Set::Tuning, Set::Heldout]
                .into_iter()
                .flat_map(|set| set.programs().iter().map(|program| program.name))
        };
        assert_eq!(names().collect::<HashSet<_>>().len(), names().count());
    }
}
