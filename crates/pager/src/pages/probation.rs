//! Pages that came back and may have to leave again soon, oldest first (see
//! [`terrace_policy::victims::refaulted`]).

use crate::pages::lock::Lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A queue of page numbers: 512 times the region's, and the page's within it. That a page is in it
/// says its word; one whose word does not, or which is not resident any more, is passed over.
#[derive(Default)]
pub(crate) struct Probation {
    queue: Lock<VecDeque<u32>>,
    /// How many were to stay when it was last asked who leaves.
    stay: AtomicUsize,
}

/// A queue is short up to so many times as many pages as are to stay, a quarter of those that are
/// out, and those of some looks of the mover.
const SHORT: usize = 5;
const SOME: usize = 128;

impl Probation {
    /// Has room for so many pages from now on.
    pub fn reserve(&self, pages: usize) {
        let mut queue = self.queue.lock();
        let more = pages.saturating_sub(queue.len());
        // Without memory for it, pages do without probation.
        let _ = queue.try_reserve_exact(more);
    }

    /// A page enters. False if there is no room: nothing is allocated here.
    pub fn enter(&self, page: u32) -> bool {
        let mut queue = self.queue.lock();
        let room = queue.len() < queue.capacity();
        if room {
            queue.push_back(page);
        }
        room
    }

    /// Takes the oldest out, at most `at_most`, while there are more than `stay` and the oldest is
    /// `ready`.
    ///
    /// Where little room is needed, others enter as fast as they leave, and the queue stays as long
    /// as it was: see [`Probation::is_short`].
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

    /// Whether one that enters now leaves soon enough to keep its copy meanwhile, which takes
    /// memory.
    pub fn is_short(&self) -> bool {
        self.queue.lock().len() <= SHORT * self.stay.load(Relaxed) + SOME
    }

    /// Whether a page is in it.
    #[cfg(test)]
    pub fn holds(&self, page: u32) -> bool {
        self.queue.lock().contains(&page)
    }

    /// In a fork's child.
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
