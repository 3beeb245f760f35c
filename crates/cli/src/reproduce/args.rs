//! What `terrace reproduce` takes.

use super::{Wanted, wanted};
use clap::Args;
use std::path::PathBuf;

/// What stands below the help.
pub const HELP: &str = "\
What is written:
  index.html, which needs no network and no scripts; an SVG for each plot; NAME.json (`all`: one of each paper) with
  `rows`: figure, metric, paper, ours, deviation, unit, verdict. A claim that does not reproduce is no error: it stands there, with why.

Examples:
  terrace reproduce all --out papers
  terrace reproduce jenga-fig7 --seed 2 --json";

/// `terrace reproduce`.
#[derive(Args, Debug)]
pub struct ReproduceArguments {
    /// A paper (jenga, objectier, m2t, tierscape), one of its figures (jenga-fig7), or all
    #[arg(value_name = "NAME", value_parser = wanted)]
    pub name: Wanted,

    /// The directory to write into; files of the same names are replaced
    #[arg(long, value_name = "DIR", default_value = "terrace-reproduce")]
    pub out: PathBuf,

    /// A small version, some seconds: shows that all runs, and no more
    #[arg(long)]
    pub quick: bool,

    /// From what all chance is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print the rows as JSON
    #[arg(long)]
    pub json: bool,
}
