//! Accesses, and where they come from.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// Access to a unit of placement, in 32 bits: twice the unit, and one more if it is changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Most units: their numbers are below this.
    pub const UNITS_MOST: u32 = 1 << 31;

    /// Makes an access to a unit below [`UNITS_MOST`](Access::UNITS_MOST).
    pub fn new(unit: u32, write: bool) -> Access {
        debug_assert!(unit < Access::UNITS_MOST);
        Access(unit << 1 | u32::from(write))
    }

    /// The unit that is touched.
    pub fn unit(self) -> u32 {
        self.0 >> 1
    }

    /// Whether the unit is changed.
    pub fn is_write(self) -> bool {
        self.0 & 1 != 0
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_write() { 'w' } else { 'r' }, self.unit())
    }
}

/// A stream of accesses to units that are numbered without gaps, block by block: what is generated,
/// or recorded.
pub trait Source: Send {
    /// Number of units: all are below this.
    fn units(&self) -> u32;
    /// Size of each unit, base units, at least 1; empty where each is one.
    fn sizes(&self) -> Arc<[u32]> {
        Arc::from([])
    }
    /// How many accesses there are in all, if that is known.
    fn accesses(&self) -> Option<u64>;
    /// Clears `block` and fills it with what comes next; leaves it empty at the end. An error says
    /// what is wrong, and with what.
    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError>;
}

/// Why accesses could not be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SourceError(#[from] pub Box<dyn std::error::Error + Send + Sync>);

/// Why a stream ends before what it is of does, as where a recording is damaged: known at the
/// stream's end at the latest. All clones share the reason.
#[derive(Clone, Debug, Default)]
pub struct EndsEarly(Arc<OnceLock<String>>);

impl EndsEarly {
    /// Says why the stream ends early. The first reason that is given counts.
    pub fn because(&self, why: String) {
        // Each further pass over the same recording comes to the same place.
        let _ = self.0.set(why);
    }

    /// The reason why the stream ends early, if that is known so far.
    pub fn why(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Accesses that are there already.
pub struct Given {
    units: u32,
    all: Vec<Access>,
    next: usize,
}

/// Number of accesses in a block where the length is free: 64 KiB. A block and the places of ten
/// thousand units then stay in a core's cache.
pub const BLOCK: usize = 16 << 10;

impl Given {
    /// Makes a source of accesses to units below `units`.
    pub fn new(units: u32, all: Vec<Access>) -> Given {
        assert!(all.iter().all(|access| access.unit() < units), "a unit is not below {units}");
        Given { units, all, next: 0 }
    }

    /// Makes a source of reads alone, of these units.
    pub fn reads(units: u32, of: impl IntoIterator<Item = u32>) -> Given {
        Given::new(units, of.into_iter().map(|unit| Access::new(unit, false)).collect())
    }
}

impl Source for Given {
    fn units(&self) -> u32 {
        self.units
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.all.len() as u64)
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        let end = (self.next + BLOCK).min(self.all.len());
        block.clear();
        block.extend_from_slice(&self.all[self.next..end]);
        self.next = end;
        Ok(())
    }
}
