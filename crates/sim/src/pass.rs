//! A pass over a stream for several simulations, block by block. So a block is made once and stays
//! in the cache for all of them.

use crate::simulation::Simulation;
use crate::source::{Access, Source, SourceError};

/// Runs all simulations over the whole stream. `progress` is told the accesses of each block. For a
/// simulation that asks for what is to come blocks are read ahead.
///
/// The stream's units must be below those of each simulation; a recorded stream that breaks its
/// word is an error.
pub fn run(
    source: &mut dyn Source,
    simulations: &mut [Simulation],
    progress: &mut dyn FnMut(u64),
) -> Result<(), SourceError> {
    let units =
        simulations.iter().map(|simulation| simulation.settings().units).min().unwrap_or(u32::MAX);
    let looks_ahead = simulations.iter().map(Simulation::looks_ahead).max().unwrap_or(0);
    // What was read and not run yet, and blocks to be filled again.
    let (mut blocks, mut empty): (Vec<Vec<Access>>, Vec<Vec<Access>>) = Default::default();
    let (mut ahead, mut ended) = (0, false);
    loop {
        while !ended && (blocks.is_empty() || ahead < looks_ahead + blocks[0].len() as u64) {
            let mut block = empty.pop().unwrap_or_default();
            source.next_block(&mut block)?;
            // A sum of comparisons, as vectors have no maximum on every machine.
            if block.iter().map(|access| u32::from(access.unit() >= units)).sum::<u32>() > 0 {
                let highest = block.iter().map(|access| access.unit()).max().unwrap_or(0);
                return Err(SourceError(
                    format!("unit {highest} was touched, where {units} were announced").into(),
                ));
            }
            ended = block.is_empty();
            ahead += block.len() as u64;
            if !ended {
                blocks.push(block);
            }
        }
        let Some((now, later)) = blocks.split_first() else { return Ok(()) };
        for simulation in simulations.iter_mut() {
            simulation.run(now, later);
        }
        progress(now.len() as u64);
        ahead -= now.len() as u64;
        empty.push(blocks.remove(0));
    }
}
