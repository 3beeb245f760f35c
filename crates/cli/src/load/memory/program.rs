//! What can be loaded.

use super::truth::Watch;
use std::ops::Range;

/// Data in memory, and what threads do with it. For the same arguments each thread does the same
/// again, but for what other threads write.
pub trait Program: Sync {
    /// Where a thread is.
    type Way;

    /// Starting point of the thread with number `thread`, where there are `threads` of them.
    fn way(&self, thread: usize, threads: usize) -> Self::Way;

    /// Tells the program how many seconds have passed since the load began, now and then. True if
    /// something else is hot now.
    fn at(&self, _way: &mut Self::Way, _seconds: f64) -> bool {
        false
    }

    /// Does a batch: a fraction of a millisecond of work where nothing waits. It is some
    /// milliseconds where a vertex has half a million edges.
    fn batch(&self, way: &mut Self::Way, watch: &mut impl Watch) -> Batch;

    /// Counts at the end what is not as it should be. It is one more if one of `writes` writes was
    /// lost.
    fn check(&self, writes: u64) -> u64;

    /// Address range of the program's data.
    fn place(&self) -> Range<usize>;
}

/// Address range of a slice.
pub fn addresses<T>(of: &[T]) -> Range<usize> {
    let Range { start, end } = of.as_ptr_range();
    start as usize..end as usize
}

/// What a batch did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Number of accesses, in whatever unit the program counts.
    pub accesses: u64,
    /// Number of accesses that found a wrong value.
    pub wrong: u64,
    /// Number of accesses that wrote.
    pub writes: u64,
}
