//! Refaulted pages that may have to be evicted again soon, oldest first (see
//! [`terrace_policy::eviction::victims::refaulted`]).

use crate::pages::lock::Lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A queue of page numbers: 512 times the region's, and the page's within it. An entry counts only
/// while the page's word says that it is on probation. Others are passed over.
#[derive(Default)]
pub(crate) struct Probation {
    queue: Lock<VecDeque<u32>>,
    /// How many pages were to stay at the last [`Probation::leave`].
    stay: AtomicUsize,
}

/// A queue is short while it holds at most this many times the pages that are to stay, and [`SOME`]
/// more. The multiple is at most a quarter of the evicted pages.
const SHORT: usize = 5;
/// Pages that some ticks of the mover take off probation.
const SOME: usize = 128;

impl Probation {
    /// Makes room for `pages` pages in all.
    pub fn reserve(&self, pages: usize) {
        let mut queue = self.queue.lock();
        let more = pages.saturating_sub(queue.len());
        // Without memory for it, pages do without probation.
        let _ = queue.try_reserve_exact(more);
    }

    /// Adds a page. False if there is no room: nothing is allocated here.
    pub fn enter(&self, page: u32) -> bool {
        let mut queue = self.queue.lock();
        let room = queue.len() < queue.capacity();
        if room {
            queue.push_back(page);
        }
        room
    }

    /// Moves the oldest pages to `leaving`, at most `at_most`, while there are more than `stay` and
    /// the oldest is `ready`.
    ///
    /// Where little room is needed, others enter as fast as these leave. The queue then stays as
    /// long as it was: see [`Probation::is_short`].
    pub fn leave(
        &self,
        stay: usize,
        at_most: usize,
        ready: impl Fn(u32) -> bool,
        leaving: &mut Vec<u32>,
    ) {
        self.stay.store(stay, Relaxed);
        let mut queue = self.queue.lock();
        let count = queue.len().saturating_sub(stay).min(at_most);
        let ready = queue.iter().take(count).take_while(|page| ready(**page)).count();
        leaving.extend(queue.drain(..ready));
    }

    /// Whether a page that enters now leaves soon enough to keep its clean copy meanwhile, which
    /// takes memory.
    pub fn is_short(&self) -> bool {
        self.queue.lock().len() <= SHORT * self.stay.load(Relaxed) + SOME
    }

    /// Whether a page is in the queue.
    #[cfg(test)]
    pub fn holds(&self, page: u32) -> bool {
        self.queue.lock().contains(&page)
    }

    /// Opens the lock in a fork's child.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.queue.reset_after_fork() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_first_and_a_full_queue_takes_nobody() {
        let probation = Probation::default();
        assert!(!probation.enter(1));
        probation.reserve(4);
        let entered = (0..100).filter(|page| probation.enter(*page)).count();
        assert!((4..100).contains(&entered));
        let mut leaving = Vec::new();
        probation.leave(2, 3, |_| false, &mut leaving);
        assert!(leaving.is_empty());
        probation.leave(2, 3, |_| true, &mut leaving);
        assert_eq!(leaving, (0..entered.saturating_sub(2).min(3) as u32).collect::<Vec<_>>());
        assert!(probation.enter(100));
    }

    #[test]
    fn a_queue_is_short_while_about_as_many_are_in_it_as_are_to_stay() {
        let probation = Probation::default();
        probation.reserve(1000);
        probation.leave(100, 1, |_| true, &mut Vec::new());
        let entered =
            (0..1000).take_while(|page| probation.is_short() && probation.enter(*page)).count();
        assert_eq!(entered, 100 * SHORT + SOME + 1);
        probation.leave(100, 1, |_| true, &mut Vec::new());
        assert!(probation.is_short());
    }
}
