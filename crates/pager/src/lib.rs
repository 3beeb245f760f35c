//! Moves the pages of this process between DRAM and tiers.
//!
//! A page is evicted with UFFDIO_MOVE (out of the page table in one atomic step), is compressed,
//! and refaults through a userfaultfd. [`word`] has the states of a page, and `pages::mm` all that
//! is known of a process's memory. `fault` restores pages; `evict` and `mover` evict them.
//! [`memory`] handles what the program does to its mappings, [`pager`] processes and threads, and
//! [`fork`] forks.
//!
//! Promises: no byte is lost or stale. No thread of the program ever waits for one of ours that
//! waits for it. Whatever is missing, the program runs on.

mod copy_evicted;
mod counters;
mod evict;
mod fault;
mod first_thread;
mod health;
pub mod locking;
pub mod memory;
#[cfg(test)]
mod model_test;
mod mover;
pub mod pager;
mod pages;
mod proc_files;
#[cfg(test)]
mod simulation;
mod stats_file;
mod stats_line;
mod threads;
pub mod time_lost;
mod touch;
pub mod trace;
#[cfg(test)]
mod verify_test;

pub use pager::{Pager, PagerStats, PagerTierStats};
pub use pages::mm::{Host, Mm, Mode};
pub use pages::{lock, ranges, table, word};
pub use terrace_policy::eviction::victims::Expectation;
pub use threads::fork;
pub use threads::timers::is_own_thread;
