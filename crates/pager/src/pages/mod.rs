//! What is known of pages: their states, their regions and ranges, and what guards both.

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
