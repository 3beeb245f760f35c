//! What can be loaded.

use super::truth::Watch;
use std::ops::Range;

/// Data in memory, and what threads do with it. The same again for the same arguments, thread by
/// thread, but for what others write.
pub trait Program: Sync {
    /// Where a thread is.
    type Way;

    /// Starting point of the thread with number `thread`, where there are `threads` of them.
    fn way(&self, thread: usize, threads: usize) -> Self::Way;

    /// So much time has passed since the load began. To be told now and then; true if something
    /// else is hot now.
    fn at(&self, _way: &mut Self::Way, _seconds: f64) -> bool {
        false
    }

    /// A fraction of a millisecond of work where nothing waits (and some where a vertex has half a
    /// million edges).
    fn batch(&self, way: &mut Self::Way, watch: &mut impl Watch) -> Batch;

    /// After all: what is not as it should be, and one more if of so many writes one was lost.
    fn check(&self, writes: u64) -> u64;

    /// Where its data are.
    fn place(&self) -> Range<usize>;
}

/// Addresses of these.
pub fn addresses<T>(of: &[T]) -> Range<usize> {
    let Range { start, end } = of.as_ptr_range();
    start as usize..end as usize
}

/// What was done.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// In whatever unit the program counts.
    pub accesses: u64,
    /// Number of accesses that found a wrong value.
    pub wrong: u64,
    /// Number of accesses that wrote.
    pub writes: u64,
}
