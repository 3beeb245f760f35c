//! Evicts pages from DRAM, a batch at a time: claim, move into staging, compress, store. On old
//! kernels pages are write-protected, copied to staging and discarded instead.
//!
//! This runs under a region's lock, so that the program cannot change the mapping meanwhile. Faults
//! do not take that lock, and a page that is touched while it is staged is restored at once.

pub(crate) mod auto;
pub(crate) mod claim;
mod dma;
pub(crate) mod evictor;
pub(crate) mod gauge;
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
pub(crate) use recompress::Which;
pub(crate) use store::accepts;
