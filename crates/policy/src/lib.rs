//! Decides which pages go where.
//!
//! Pure decisions: no I/O, no clock (time is an argument), no threads, no `unsafe`. The same code runs in a live program
//! and, later, in the simulator. This version holds victim choice by faults ([`faults`]); sampled hotness joins behind
//! the same trait.
#![forbid(unsafe_code)]

pub mod faults;
pub mod victims;
