//! Accesses: how recorded ones are written, read, and survive damage; and what known ones cost.
//! `docs/trace-format.md` has the formats byte by byte.
//!
//! - [`counts`]: how often each region was touched in each window of time. What `terrace record`
//!   writes.
//! - [`accesses`]: which page was touched, one access after the other: what a simulator replays.
//!   What `terrace record --accesses` and the recorder (`crates/recorder`) write.
//! - [`objects`]: objects, when they come and go, by what code, and which were touched.
//! - [`oracle_general`]: the same for libCacheSim.
//! - [`cache`]: which accesses of a known sequence would have gone to memory.
//! - [`framing`], [`mod@file`]: what these formats have in common.
#![forbid(unsafe_code)]

pub mod accesses;
pub mod cache;
pub mod counts;
pub mod file;
pub mod framing;
mod kinds;
pub use kinds::KINDS;
#[cfg(test)]
mod mutation;
mod numbers;
pub mod objects;
pub mod oracle_general;
