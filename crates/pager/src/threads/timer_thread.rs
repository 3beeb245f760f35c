//! State of the thread that makes timers.

use std::sync::atomic::{AtomicBool, Ordering::*};

/// State of the thread that makes timers.
#[derive(Default)]
pub(crate) struct TimerThread {
    pub(super) running: AtomicBool,
    /// Whether the thread gave up, or could not be made.
    pub(super) over: AtomicBool,
}

impl TimerThread {
    /// Whether the thread runs.
    pub fn is_running(&self) -> bool {
        self.running.load(Acquire)
    }

    /// Notes that a fork's child does not have the thread.
    pub fn reset_after_fork(&self) {
        self.running.store(false, Release);
    }
}
