//! The settings of a store.

pub use terrace_objects::Rules;

use crate::tiering::Tiering;

/// The settings that a store is created with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum bytes that items may take, with their headers.
    pub memory_limit: usize,
    /// Maximum bytes of an item.
    pub item_size_max: usize,
    /// Whether old items make room for new ones.
    pub evictions: bool,
    /// Whether clients see CAS identifiers.
    pub cas: bool,
    /// Bytes that count as used from the beginning, for tests only.
    pub used_from_start: usize,
    /// Number of items that the index is for. `None`: as many as the memory limit lets one expect.
    pub items: Option<usize>,
    /// The pager that moves cold segments out of DRAM.
    pub tiering: Option<Tiering>,
    /// Whether hot items are brought together from the beginning.
    pub consolidate: bool,
    /// The rules for bringing hot items together.
    pub rules: Rules,
}
