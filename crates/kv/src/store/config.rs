//! What a store is created with.

pub use terrace_objects::Rules;

use crate::tiering::Tiering;

/// What the store is created with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The most bytes that items may take, with their headers.
    pub memory_limit: usize,
    /// The most bytes of one item.
    pub item_size_max: usize,
    /// Whether old items make room for new ones.
    pub evictions: bool,
    /// Whether clients see CAS identifiers.
    pub cas: bool,
    /// Bytes that count as used from the beginning, for tests only.
    pub used_from_start: usize,
    /// The index is for that many items; for as many as the memory limit lets one expect, if it is
    /// none.
    pub items: Option<usize>,
    /// What moves cold segments out of DRAM.
    pub tiering: Option<Tiering>,
    /// Whether hot items are brought together from the beginning.
    pub consolidate: bool,
    /// How much is done for that.
    pub rules: Rules,
}
