//! Accesses: how recorded ones are written, read, and survive damage; and what known ones cost.
//!
//! - [`counts`]: how often each region was touched in each window of time. What `terrace record` writes; `docs/trace-format.md` has it byte by byte.
//! - [`cache`]: which accesses of a known sequence would have gone to memory.
#![forbid(unsafe_code)]

pub mod cache;
pub mod counts;
