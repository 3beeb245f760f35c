//! The policies by their names: those of `terrace run`, and those of a simulation.

pub mod live;
pub mod simulated;
