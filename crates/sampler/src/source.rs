//! A source of samples, whichever it is.

use crate::clock::Clock;
use crate::events::{OpenError, Whose};
use crate::hardware::{Hardware, Kind};
use crate::{Sample, Tally, trial};

/// Where samples come from.
pub enum Source {
    /// The processor.
    Hardware(Hardware),
    /// The clock.
    Clock(Clock),
}

impl Source {
    /// The processor, where it samples accesses: in the first of these ways that counts.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] also where events can be opened and count nothing; see
    /// [`OpenError`] for the others.
    pub fn hardware(kinds: &[Kind], whose: Whose) -> Result<Source, OpenError> {
        let Some(kind) = kinds.iter().copied().find(|kind| trial::hardware(*kind)) else {
            let name = kinds
                .first()
                .map_or_else(|| "hardware".to_owned(), |kind| kind.name().to_uppercase());
            return Err(OpenError::Unsupported(std::io::Error::other(format!(
                "{name} counts nothing here"
            ))));
        };
        Hardware::open(kind, whose).map(Source::Hardware)
    }

    /// The clock: `hz` samples a second of each running thread.
    ///
    /// # Errors
    /// See [`OpenError`]; also where events can be opened and tell of nothing.
    pub fn clock(whose: Whose, hz: u32) -> Result<Source, OpenError> {
        trial::clock()?;
        Clock::open(whose, hz).map(Source::Clock)
    }

    /// Name of the source, as `--sampler` and reports have it.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Hardware(hardware) => hardware.kind().name(),
            Source::Clock(_) => "clock",
        }
    }

    /// Stops sampling, or goes on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn enable(&self, on: bool) -> std::io::Result<()> {
        match self {
            Source::Hardware(hardware) => hardware.enable(on),
            Source::Clock(clock) => clock.enable(on),
        }
    }

    /// Makes samples rarer or more frequent by what they cost, where the source has periods that
    /// can be changed: see [`Hardware::pace`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn pace(
        &mut self,
        cost: f64,
        allowed: f64,
        hurried: bool,
        wanted: bool,
    ) -> std::io::Result<()> {
        match self {
            Source::Hardware(hardware) => hardware.pace(cost, allowed, hurried, wanted),
            Source::Clock(_) => Ok(()),
        }
    }

    /// Takes out what was sampled, and tells `each` of the accesses at addresses that are `wanted`
    /// of a process that is `ours`.
    pub fn drain(
        &mut self,
        ours: impl Fn(u32) -> bool,
        wanted: impl Fn(u32, u64) -> bool,
        each: impl FnMut(Sample),
    ) -> Tally {
        match self {
            Source::Hardware(hardware) => hardware.drain(ours, wanted, each),
            Source::Clock(clock) => clock.drain(ours, wanted, each),
        }
    }
}
