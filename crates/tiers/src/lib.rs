//! What a tier is: a codec that compresses pages, a pool that packs them, a medium that holds them,
//! and its statistics. Or it is what is known of another NUMA node or of the kernel's swap.
//!
//! Invariants:
//! - A page is restored byte for byte or with an error: each is stored with a checksum of itself.
//! - A failed call changes nothing.
//! - Memory is taken only from a [`Medium`] or a [`FileMedium`], by raw system calls, because the
//!   library interposes libc's `mmap`.
//!
//! This crate decides nothing (that is `policy`), and moves nothing in or out of a page table (that
//! is `pager`). It starts no thread and reads no clock.

pub mod codec;
pub mod encode;
pub mod file;
pub mod medium;
pub mod node;
pub mod page;
pub mod pool;
pub mod presets;
mod slot_table;
mod slots;
pub mod spec;
pub mod stats;
pub mod swap;
pub mod tier;

pub use codec::{Codec, CodecError, CodecKind, Scratch};
pub use encode::{Checksum, Encoded, Encoding, checksum};
pub use file::{DataFile, FileMedium, Identity, ReadBuffer, identity};
pub use medium::{DramMedium, EXTENT_BYTES, Medium, MediumError, Open};
pub use node::{Node, NodeError, NodeView, Nodes};
pub use page::{PAGE_BYTES, Page};
pub use pool::{Location, PoolError, RegionStore};
pub use spec::{AUTO, MediumKind, PoolKind, SpecError, TierKind, TierSpec, parse_tiers};
pub use stats::{TierStats, Times};
pub use swap::{Swap, SwapDevice, SwapKind, SwapView, meminfo_bytes, swap_devices};
pub use tier::{Backing, DecodeError, Measured, REJECT_MARGIN, Tier};
