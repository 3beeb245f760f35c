//! Room in the budget: who needs some waits for the mover, for a moment.

use crate::pages::mm::{Mm, Mode};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os as sys;

impl Mm {
    /// Waits a moment for the mover if memory is over the budget and there is something to evict.
    /// `bytes` are about to be touched. Never waits longer than `at_most`: the budget gives
    /// way, not the program.
    pub(crate) fn wait_for_room(&self, bytes: u64, at_most: Duration) {
        if self.mode() != Mode::Active || self.is_frozen() {
            return;
        }
        let deadline = sys::now_ns() + at_most.as_nanos() as u64;
        let mut called = false;
        self.mover.demand.fetch_add(bytes, Relaxed);
        loop {
            // Before all else, so that whoever changes something later finds this thread awake.
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
                self.call_mover();
                called = true;
            }
            self.mover.waiting.fetch_add(1, SeqCst);
            sys::futex_wait(&self.mover.progress, seen, Some(Duration::from_nanos(deadline - now)));
            self.mover.waiting.fetch_sub(1, SeqCst);
        }
        self.mover.demand.fetch_sub(bytes, Relaxed);
    }

    /// The mover made room. Whoever waited for it has the processor next: where there is only this
    /// one, it would have to wait for the end of the mover's time slice (5 ms) otherwise, and
    /// as long as it has not run the mover takes it for somebody who waits.
    pub(crate) fn tell_progress(&self) {
        if self.wake_waiting() {
            sys::yield_now();
        }
    }

    /// Has whoever waits for room look again; true if somebody does.
    fn wake_waiting(&self) -> bool {
        self.mover.progress.fetch_add(1, SeqCst);
        let somebody = self.mover.waiting.load(SeqCst) > 0;
        if somebody {
            sys::futex_wake(&self.mover.progress, u32::MAX >> 1);
        }
        somebody
    }

    /// Touches a page of the program's on a thread of ours, so that its handler brings it.
    /// Meanwhile no handler waits for room: it may be this thread that makes it.
    pub(crate) fn touch_page(&self, address: usize) {
        self.mover.touching.fetch_add(1, SeqCst);
        self.wake_waiting();
        sys::peek(address, &mut [0]);
        self.mover.touching.fetch_sub(1, SeqCst);
    }

    /// Wakes the mover.
    pub(crate) fn call_mover(&self) {
        self.mover.calls.fetch_add(1, Release);
        sys::futex_wake(&self.mover.calls, 1);
    }
}
