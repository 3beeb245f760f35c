//! Room in the budget: a thread that needs some waits briefly for the mover.

use crate::pages::mm::{Mm, Mode};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os as sys;

impl Mm {
    /// Waits briefly for the mover if memory is over the budget and there is something to evict.
    /// `bytes` are about to be touched. Never waits longer than `at_most`: the budget gives way,
    /// not the program.
    pub(crate) fn wait_for_room(&self, bytes: u64, at_most: Duration) {
        if self.mode() != Mode::Active || self.is_frozen() {
            return;
        }
        let deadline = sys::now_ns() + at_most.as_nanos() as u64;
        let mut called = false;
        self.mover.demand.fetch_add(bytes, Relaxed);
        loop {
            // Before all else, so that a thread that changes something later finds this thread
            // awake.
            let seen = self.mover.progress.load(SeqCst);
            let waits = self.physical_bytes() + bytes > self.account.budget_bytes.load(Relaxed)
                && !self.mover.at_floor.load(Relaxed)
                && self.mover.running.load(Relaxed)
                && self.mover.pause.load(Relaxed) == 0
                && self.mover.touching.load(SeqCst) == 0;
            let now = sys::now_ns();
            if !waits || now >= deadline {
                break;
            }
            if !called {
                self.account.room_waits.fetch_add(1, Relaxed);
                self.wake_mover();
                called = true;
            }
            self.mover.waiting.fetch_add(1, SeqCst);
            sys::futex_wait(&self.mover.progress, seen, Some(Duration::from_nanos(deadline - now)));
            self.mover.waiting.fetch_sub(1, SeqCst);
        }
        self.mover.demand.fetch_sub(bytes, Relaxed);
    }

    /// Reports that the mover made room. A thread that waited for it gets the processor next. With
    /// only one processor, it would otherwise wait for the end of the mover's time slice (5 ms).
    /// Until it has run, the mover counts it as a waiting thread.
    pub(crate) fn signal_progress(&self) {
        if self.wake_waiting() {
            sys::yield_now();
        }
    }

    /// Makes the threads that wait for room check again; true if there are any.
    fn wake_waiting(&self) -> bool {
        self.mover.progress.fetch_add(1, SeqCst);
        let has_waiters = self.mover.waiting.load(SeqCst) > 0;
        if has_waiters {
            sys::futex_wake(&self.mover.progress, u32::MAX >> 1);
        }
        has_waiters
    }

    /// Touches a page of the program's on a pager thread, so that its handler restores it.
    /// Meanwhile no handler waits for room, because this thread may be the one that makes it.
    pub(crate) fn touch_page(&self, address: usize) {
        self.mover.touching.fetch_add(1, SeqCst);
        self.wake_waiting();
        sys::peek(address, &mut [0]);
        self.mover.touching.fetch_sub(1, SeqCst);
    }

    /// Wakes the mover.
    pub(crate) fn wake_mover(&self) {
        self.mover.calls.fetch_add(1, Release);
        sys::futex_wake(&self.mover.calls, 1);
    }
}
