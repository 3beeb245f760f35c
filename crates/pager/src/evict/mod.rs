//! Evicts pages from DRAM, a batch at a time: claim, move into staging, compress, store. With
//! `--evict wp` pages are write-protected, copied to staging and discarded instead.
//!
//! This runs under a region's lock, so that the program cannot change the mapping meanwhile. Faults
//! do not take that lock, and a page that is touched while it is staged is restored at once.
//!
//! The gate ([`crate::pages::lock::Gate`]) keeps page states fixed during a fork. Probation is 2Q's
//! first queue.
//!
//! *Tiers of ours* have pools of compressed pages that this process owns, in memory or in files.
//! The others are the kernel's swap and the memory of another NUMA node. To *claim* a page is to
//! set its word to a state in which only the claimant may change it; to *settle* it ends that.

pub(crate) mod auto;
pub(crate) mod claim;
pub(crate) mod compression_sample;
mod dma;
pub(crate) mod evictor;
pub(crate) mod priority;
mod probe;
pub(crate) mod recompress;
pub(crate) mod room;
pub(crate) mod routes;
pub(crate) mod split;
mod stage;
pub(crate) mod store;
pub(crate) mod training;

pub(crate) use claim::{is_refused, note_refusals};
pub(crate) use evictor::{EvictOutcome, EvictRequest, Evictor};
pub(crate) use recompress::RecompressFilter;
pub(crate) use store::accepts;
