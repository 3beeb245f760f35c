//! Page states, regions and address ranges, and the locks that guard them.

pub(crate) mod budget;
pub(crate) mod control;
pub mod lock;
pub mod mm;
pub(crate) mod probation;
pub mod ranges;
pub(crate) mod shards;
pub(crate) mod staging;
pub(crate) mod swapped;
pub mod table;
pub mod word;
