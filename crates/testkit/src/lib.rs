//! What tests and benchmarks share. No part of what users run.
//!
//! Some of it is set up on the machine and undone when it is dropped: a swap device in zram, a
//! control group, a child process. The rest looks at processes, waits, and draws numbers.

pub mod child;
pub mod group;
pub mod port;
pub mod process;
pub mod public;
pub mod random;
pub mod skipping;
pub mod wait;
pub mod zram;
