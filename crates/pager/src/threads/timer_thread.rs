//! Whether the thread that makes timers is there.

use std::sync::atomic::{AtomicBool, Ordering::*};

/// Whether the thread that makes timers is there.
#[derive(Default)]
pub(crate) struct TimerThread {
    pub(super) running: AtomicBool,
    /// It gave up, or could not be made.
    pub(super) over: AtomicBool,
}

impl TimerThread {
    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.running.load(Acquire)
    }

    /// In a fork's child, where there is none.
    pub fn reset_after_fork(&self) {
        self.running.store(false, Release);
    }
}
