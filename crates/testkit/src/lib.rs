//! What tests and benchmarks set up of the machine, undone when it is dropped: a swap device in
//! zram, a control group. No part of what users run.

pub mod group;
pub mod zram;
