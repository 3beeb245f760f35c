//! Moves the pages of this process between DRAM and tiers.
//!
//! A page leaves with UFFDIO_MOVE (out of the page table in one atomic step), is compressed, and
//! comes back when it is touched, through a userfaultfd. [`word`] has the states of a page;
//! [`pager`] the parts and threads; `handler` faults; `evict` and `mover` the way out; [`memory`]
//! what the program does to its mappings; [`fork`] forking.
//!
//! Promises: no byte is lost or stale; no thread of the program ever waits for one of ours that
//! waits for it; whatever is missing, the program runs on.

mod account;
mod ahead;
mod auto;
mod companion;
mod dma;
mod events;
mod evict;
mod far;
mod fault_cost;
mod following;
pub mod fork;
mod handler;
mod huge;
pub mod injection;
pub mod kept;
mod lesson;
pub mod lock;
pub mod locking;
pub mod memory;
#[cfg(test)]
mod model_test;
mod mover;
pub mod moves;
pub mod pager;
mod patience;
mod probation;
pub mod quiet;
pub mod ranges;
mod readahead;
mod recall;
pub mod rehearsal;
pub mod settings;
#[cfg(test)]
mod simulation;
pub mod space;
mod staging;
pub mod stats;
mod stats_file;
mod streams;
mod swapping;
pub mod sys;
pub mod table;
mod tasks;
mod timers;
pub mod trace;
pub mod unreached;
#[cfg(test)]
mod verify_test;
pub mod word;

pub use pager::{Figures, Host, Mode, Pager, TierFigures};
pub use terrace_policy::victims::Expectation;
pub use timers::is_own_thread;
