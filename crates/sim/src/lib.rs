//! Runs the policies of live programs over accesses that are generated or recorded, and says what would have come of it.
#![forbid(unsafe_code)]

pub mod patterns;
pub mod scattered;
