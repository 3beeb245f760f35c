//! Objects that move: hot ones share pages, and so do cold ones.
//!
//! Memory is tiered by pages, so a page is only as cold as the hottest object on it. A program
//! that can say where the references to an object are ([`Relocate`]) has this library bring hot
//! objects together, a slice of time after the other ([`Consolidator::step`]). It works over any
//! tiering beneath: Terrace's, the kernel's swap, or none. The idea is ObjecTier's (ICPE Companion 2025);
//! the contract of the callback is in `docs/moving-objects.md`.
//!
//! - [`Heap`]: segments, allocation, and what is known of objects, beside them.
//! - [`Consolidator`]: which segments are emptied, when, and into what.
//! - [`manager`]: the decisions alone, for programs that have segments of their own.
//! - [`Reader`]: what a thread reads stays readable until it leaves.
//! - [`structures`]: maps whose entries move; [`rows`]: a row store with transactions.

mod advice;
mod area;
mod c;
mod classifier;
mod consolidator;
mod counters;
pub mod epoch;
mod evacuation;
mod heap;
pub mod manager;
mod marks;
mod policy;
mod relocate;
pub mod rows;
mod seen;
mod segment;
mod slice;
pub mod structures;
pub mod sync;
mod throttle;

pub use consolidator::{Consolidator, Progress, Rules};
pub use counters::Counters;
pub use epoch::{Guard, Reader};
pub use heap::{Heap, HeapError, Settings, Usage, Utilisation};
pub use policy::Choice;
pub use relocate::{Misuse, Object, Outcome, Paper, Relocate};
pub use slice::Slice;
