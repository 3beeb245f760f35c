//! Recorded accesses: how they are written, read, and survive damage.
//!
//! [`counts`]: how often each region was touched in each window of time. What `terrace record` writes; `docs/trace-format.md` has it byte by byte.
#![forbid(unsafe_code)]

pub mod counts;
