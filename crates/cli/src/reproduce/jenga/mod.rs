//! Jenga: its policy and its allocator against the systems that it compares itself with, and what
//! its allocator does for objects.
//!
//! [`programs`]: what stands for its ten applications; [`systems`]: figures that run policies on
//! them (3, 7 to 11); [`objects`]: figures of objects and counters (2, 5, 6, 12).

mod objects;
mod programs;
mod systems;

use super::figure::Figure;
use super::{Options, Paper};
use anyhow::Result;

/// The paper.
pub const PAPER: Paper = Paper {
    name: "jenga",
    title: "Jenga: tiered memory with context-based allocation and smooth hotness tracking",
    cited: "The figures whose claims the text gives in numbers or in words: 1, 2, 3, 5 to 12.",
    about: "The ten applications were not run: each is played by a stream of accesses that behaves as the paper describes it (Table 1, \
            §3.1, §7.1), listed under Figure 1. What the paper says of an application is judged on its stand-in; that is a test of the \
            mechanisms, not of the applications. Sizes are the paper's in GB, at a smaller scale (below each figure). Time is modelled: \
            80 and 300 ns (DRAM, Optane), 16 accesses on their way, contention at 100 and 39/14 GB/s, and a move of 2 MiB stops the \
            program for 0.4 ms, which is an assumption. Policies are sampled one access in 5003 and act every 50 ms. One seed; the paper \
            has medians of three runs.",
    figures: &[
        "jenga-fig1",
        "jenga-fig2",
        "jenga-fig3",
        "jenga-fig5",
        "jenga-fig6",
        "jenga-fig7",
        "jenga-fig8",
        "jenga-fig9",
        "jenga-fig10",
        "jenga-fig11",
        "jenga-fig12",
    ],
    run,
};

fn run(wanted: &[&'static str], options: &Options) -> Result<Vec<Figure>> {
    let mut figures = objects::figures(wanted, options)?;
    figures.extend(systems::figures(wanted, options)?);
    figures.sort_by_key(|figure| PAPER.figures.iter().position(|id| *id == figure.id));
    Ok(figures)
}
