//! Shards: which userfaultfd a page belongs to.

/// Handlers and userfaultfds at most. One is enough for one faulting thread; more than CPUs never
/// help.
pub const SHARDS_MAX: usize = 8;
/// Neighbouring addresses of this size share a userfaultfd, so that registered ranges can merge.
pub(crate) const SHARD_SHIFT: u32 = 26;
