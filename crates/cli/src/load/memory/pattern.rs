//! The patterns of `terrace load memory` by their names.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::sync::LazyLock;
use terrace_sim::patterns::Kind;

/// What can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// An array of elements in one of the patterns.
    Elements(Kind),
    /// Lookups in a B+-tree.
    Tree,
    /// PageRank over a graph.
    Graph,
}

impl ValueEnum for Load {
    fn value_variants<'a>() -> &'a [Load] {
        static ALL: LazyLock<Vec<Load>> = LazyLock::new(|| {
            Kind::ALL.map(Load::Elements).into_iter().chain([Load::Tree, Load::Graph]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Load::Elements(kind) => Some(PossibleValue::new(kind.name()).help(kind.about())),
            Load::Tree => Some(
                PossibleValue::new("btree")
                    .help("Lookups in a B+-tree that random inserts built, low keys more often"),
            ),
            Load::Graph => {
                Some(PossibleValue::new("graph").help("PageRank over a generated graph (R-MAT)"))
            }
        }
    }
}
