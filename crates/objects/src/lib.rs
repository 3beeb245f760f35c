//! Objects that move: hot ones share pages, and so do cold ones.
//!
//! Memory is tiered by pages, so a page is only as cold as the hottest object on it. This library
//! brings hot objects together, in slices of time ([`Consolidator::step`]). The program must be
//! able to say where the references to an object are ([`Relocate`]). It works over any tiering
//! beneath: Terrace's, the kernel's swap, or none. The idea is ObjecTier's (ICPE Companion 2025).
//! The contract of the callback is in `docs/moving-objects.md`.
//!
//! - [`Heap`]: segments, allocation, and metadata of objects, beside them.
//! - [`Consolidator`]: which segments are emptied, when, and into what.
//! - [`manager`]: the decisions alone, for programs that have segments of their own.
//! - [`Reader`]: objects that a thread reads stay readable until it leaves.
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
