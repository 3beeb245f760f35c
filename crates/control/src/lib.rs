//! What `terrace run` and the library tell each other.
//!
//! Settings come through the environment ([`settings`]), one row each. Figures go back through a
//! page in a file ([`stats`]), with rings for moves ([`moves`]) and windows of placement
//! ([`windows`]). A command needs this crate and not the pager.

pub mod backoff;
pub mod budget_status;
pub mod moves;
pub mod seccomp_probe;
pub mod settings;
pub mod stats;
pub mod unreached;
pub mod windows;

/// Smaller mappings are not worth a range of their own. V8's chunks and the arenas of Python before
/// 3.10 are exactly this size; neighbours that are alike are one range.
pub const MANAGED_FROM: usize = 256 << 10;

/// Less than this is not worth threads of Terrace's, however small a process's share of the budget.
pub const START_MIN_BYTES: usize = 8 << 20;
