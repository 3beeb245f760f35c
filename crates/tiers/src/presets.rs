//! Lists of tiers by name: TierScape's two (§8) and those of the two systems that it compares with.
//!
//! The papers' slow medium is persistent memory. Here it is memory of another NUMA node where this
//! process may use one, else files in [`SLOW_DIRECTORY`]. A codec that the build lacks is replaced,
//! and both are said: see [`Preset::notes`].

use crate::codec::CODECS;
use crate::node::Nodes;

/// Where the slow medium is if there is no other node. Not `/tmp`, which is often in DRAM.
pub const SLOW_DIRECTORY: &str = "/var/tmp";

/// Nodes that are looked at, from 0.
const NODES_MAX: u32 = 64;

/// Names of the lists, and their tiers, fastest first: pages as they are, or packed. A medium of
/// `slow` is the slow one.
const LISTS: [(&str, &[&str]); 4] = [
    ("tierscape-standard", &["dram", "slow", "lzo/zsmalloc@dram", "zstd/zsmalloc@slow"]),
    // C1, C2, C4, C7 and C12 of the paper's Figure 2.
    (
        "tierscape-spectrum",
        &[
            "dram",
            "lz4/zbud@dram",
            "lz4/zbud@slow",
            "lz4/zsmalloc@slow",
            "lzo/zsmalloc@dram",
            "deflate/zsmalloc@slow",
        ],
    ),
    ("gswap", &["dram", "lzo/zsmalloc@dram"]),
    ("tmo", &["dram", "zstd/zsmalloc@dram"]),
];

/// What stands in for a codec that the build lacks: the nearest in density.
const STAND_INS: [(&str, &str); 1] = [("deflate", "zstd:3")];

/// What the slow medium is on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Memory of this node.
    Node(u32),
    /// Files in this directory.
    File(String),
}

impl Slow {
    /// The first other node whose memory this process may use, else files.
    pub fn of_machine() -> Slow {
        let nodes = Nodes::of_machine();
        (0..NODES_MAX)
            .find(|node| nodes.check(*node).is_ok())
            .map_or_else(|| Slow::File(SLOW_DIRECTORY.to_owned()), Slow::Node)
    }

    /// The medium as it is written in a list of tiers.
    pub fn medium(&self) -> String {
        match self {
            Slow::Node(node) => format!("node:{node}"),
            Slow::File(directory) => format!("file:{directory}"),
        }
    }

    /// Pages as they are on the slow medium.
    fn bytes(&self) -> String {
        match self {
            Slow::Node(_) => self.medium(),
            Slow::File(_) => format!("raw@{}", self.medium()),
        }
    }
}

/// A list by its name, as it is on some machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name of the list.
    pub name: &'static str,
    /// The tiers, separated by commas.
    pub tiers: String,
    /// What is not as in the paper, a sentence each.
    pub notes: Vec<String>,
}

/// The names, in the order of the list.
pub fn names() -> impl Iterator<Item = &'static str> {
    LISTS.iter().map(|(name, _)| *name)
}

/// All lists, as they are on this machine and in this build.
pub fn all() -> Vec<Preset> {
    let slow = Slow::of_machine();
    LISTS.iter().map(|list| preset(list, &slow, is_built)).collect()
}

/// The list of this name, as it is on this machine and in this build.
pub fn by_name(name: &str) -> Option<Preset> {
    let list = LISTS.iter().find(|(known, _)| *known == name)?;
    Some(preset(list, &Slow::of_machine(), is_built))
}

/// The tiers of the list of this name.
pub(crate) fn list(name: &str) -> Option<String> {
    by_name(name).map(|preset| preset.tiers)
}

fn is_built(codec: &str) -> bool {
    CODECS.iter().any(|row| row.word == codec && row.is_built)
}

fn preset(
    (name, tiers): &(&'static str, &[&'static str]),
    slow: &Slow,
    is_built: impl Fn(&str) -> bool,
) -> Preset {
    let mut notes = Vec::new();
    if tiers.iter().any(|tier| tier.ends_with("slow")) {
        notes.push(match slow {
            Slow::Node(node) => format!("The slow medium is memory of node {node}."),
            Slow::File(directory) => {
                format!("The slow medium is files in {directory}, as there is no other node.")
            }
        });
    }
    let tiers = tiers.iter().map(|tier| {
        if *tier == "slow" {
            return slow.bytes();
        }
        let mut tier = tier.replace("@slow", &format!("@{}", slow.medium()));
        for (codec, stand_in) in STAND_INS {
            if tier.starts_with(codec) && !is_built(codec) {
                tier = tier.replacen(codec, stand_in, 1);
                notes.push(format!("This build has no {codec}; {stand_in} stands in for it."));
            }
        }
        tier
    });
    let tiers = tiers.collect::<Vec<_>>().join(",");
    Preset { name, tiers, notes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_tiers;

    #[test]
    fn every_list_is_one_that_parses_with_either_slow_medium() {
        for slow in [Slow::Node(1), Slow::File("/var/tmp".to_owned())] {
            for list in &LISTS {
                let preset = preset(list, &slow, |_| true);
                let tiers = parse_tiers(&preset.tiers);
                if cfg!(feature = "deflate") {
                    assert_eq!(tiers.unwrap().len(), list.1.len(), "{}", preset.tiers);
                }
            }
        }
        for name in names() {
            assert_eq!(parse_tiers(name).unwrap(), parse_tiers(&list(name).unwrap()).unwrap());
        }
    }

    #[test]
    fn what_is_not_as_in_the_paper_is_said() {
        let file = Slow::File("/var/tmp".to_owned());
        let without = preset(&LISTS[1], &file, |codec| codec != "deflate");
        assert!(without.tiers.ends_with(",zstd:3/zsmalloc@file:/var/tmp"), "{}", without.tiers);
        assert_eq!(
            without.notes,
            [
                "The slow medium is files in /var/tmp, as there is no other node.",
                "This build has no deflate; zstd:3 stands in for it."
            ]
        );
        assert!(parse_tiers(&without.tiers).is_ok());
        let with = preset(&LISTS[0], &Slow::Node(2), |_| true);
        assert_eq!(with.tiers, "dram,node:2,lzo/zsmalloc@dram,zstd/zsmalloc@node:2");
        assert_eq!(with.notes, ["The slow medium is memory of node 2."]);
        assert!(preset(&LISTS[2], &file, |_| true).notes.is_empty());
    }
}
