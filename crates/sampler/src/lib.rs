//! Where a program touches memory, by samples.
//!
//! A **sample** is an observed access. Hardware that samples accesses (PEBS, IBS) says the address
//! itself. Where there is none, an interrupt by the clock says where a thread was, with its
//! registers. The address is what the instruction *before* that one touched ([`operand`]): the
//! interrupt comes when the stalled instruction retires.
//!
//! - [`source`]: any of the sources: [`hardware`] that samples accesses, or the [`clock`], which
//!   needs none; or interrupts that come from elsewhere, for the [`decoder`].
//! - [`trial`]: whether a source counts here: it is tried before it is believed.
//! - [`events`]: perf events of a process's threads, and [`ring`]: the records that the kernel
//!   writes for them.
//! - [`code`]: the program's code as it is in memory, and [`text`]: its instruction boundaries and
//!   branches.
//! - [`operand`]: from an interrupted instruction to the address that it waited for.

pub mod clock;
pub mod code;
pub mod decoder;
pub mod events;
pub mod hardware;
pub mod operand;
pub mod ring;
pub mod source;
pub mod text;
pub mod trial;

use std::ops::AddAssign;

/// An observed access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The address touched.
    pub address: u64,
    /// How many samples this is: 1, or a part of one where any of several addresses may have been
    /// touched.
    pub weight: f32,
    /// Time of the access, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The process that made the access.
    pub process: u32,
    /// The thread that made the access.
    pub thread: u32,
    /// What the access did.
    pub kind: Access,
}

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The access reads.
    Load,
    /// The access writes.
    Store,
    /// The access does both, or either.
    Update,
}

impl Access {
    /// Whether the access may have written.
    pub fn writes(self) -> bool {
        self != Access::Load
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.samples += more.samples;
        self.located += more.located;
        self.lost += more.lost;
        self.throttled += more.throttled;
        self.damaged += more.damaged;
    }
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Interrupts.
    pub samples: u64,
    /// Samples of which a wanted address was found.
    pub located: u64,
    /// Samples for which the ring had no room.
    pub lost: u64,
    /// Times that the kernel stopped the source for a tick.
    pub throttled: u64,
    /// Times that a ring's contents could not be understood and were thrown away.
    pub damaged: u64,
}
