//! Shards: which userfaultfd a page belongs to.

/// Most handlers and userfaultfds. One is enough for one faulting thread; more than CPUs never
/// help.
pub const SHARDS_MAX: usize = 8;
/// Address bits of a shard's pieces: addresses of the same 64 MiB share a userfaultfd, so that
/// registered ranges can merge.
pub(crate) const SHARD_SHIFT: u32 = 26;
