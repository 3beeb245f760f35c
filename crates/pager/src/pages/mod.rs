//! What is known of pages: their states, their regions and ranges, and what guards both.

pub mod lock;
pub(crate) mod probation;
pub mod ranges;
pub(crate) mod shards;
pub(crate) mod staging;
pub mod table;
pub mod word;
