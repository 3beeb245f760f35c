//! One pass over a stream for several simulations: block by block, so that a block is made once and stays in the cache for all of them.

use crate::simulation::Simulation;
use crate::source::{Source, SourceError};

/// Runs all over the whole stream. `progress` is told the accesses of each block.
///
/// The stream's units must be below those of each simulation; a recorded stream that breaks its word is an error.
pub fn run(source: &mut dyn Source, simulations: &mut [Simulation], progress: &mut dyn FnMut(u64)) -> Result<(), SourceError> {
    let units = simulations.iter().map(|simulation| simulation.settings().units).min().unwrap_or(u32::MAX);
    let mut block = Vec::new();
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            return Ok(());
        }
        let highest = block.iter().map(|access| access.unit()).max().unwrap_or(0);
        if highest >= units {
            return Err(SourceError(format!("unit {highest} was touched, where {units} were announced").into()));
        }
        for simulation in simulations.iter_mut() {
            simulation.run(&block);
        }
        progress(block.len() as u64);
    }
}
