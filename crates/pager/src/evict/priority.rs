//! The priority of the mover's thread among the program's threads that share a processor with it.
//! It is in the background while there is room, and boosted where a program that swaps would outrun
//! it.

use crate::pages::control::IDLE;
use crate::pages::mm::Mm;
use std::sync::atomic::Ordering::*;
use terrace_os as sys;

/// The priority of the mover's thread.
#[derive(Clone, Copy)]
pub(crate) enum Priority {
    /// The program's own.
    Normal,
    /// Lower than the program's threads, which then wait less often for the mover.
    Background,
    /// Higher than all of them, where they take memory faster than the mover makes room.
    Boosted,
}

/// What [`Priority::Background`] adds to the program's nice value.
const BACKGROUND_NICE: i32 = 10;
/// The nice value of [`Priority::Boosted`].
const BOOSTED_NICE: i32 = -20;
/// Background priority begins while more than the low watermark divided by this is free and no
/// thread waits for the mover. In the background the mover gets a tenth of what another thread
/// gets, and falls behind where that goes on. Normal priority returns where less than a quarter of
/// the watermark is free.
///
/// Measured on two servers in turn, against a mover that always has normal priority. Redis at 30 %
/// of its memory has 0.84 to 0.86 times the p99, memcached at 50 % has 0.95. Always in the
/// background, memcached's p99.9 is 1.28 times as long (`docs/notes/2026-11-27-benchmarks.md`, *The
/// tail*).
const BACKGROUND_ABOVE: u64 = 2;
/// Background priority ends while less than the low watermark divided by this is free; see
/// [`BACKGROUND_ABOVE`].
const NORMAL_BELOW: u64 = 4;
/// Time from the start in which priority is not lowered, ns. A program that gives up its privileges
/// mostly does so just after it starts or forks. It could not raise its mover's priority again. (A
/// program that gives them up later keeps the priority that the mover has then.)
pub(crate) const BACKGROUND_AFTER_NS: u64 = 2_000_000_000;

impl Mm {
    /// Whether a thread waits for the mover to pause.
    pub(crate) fn pause_asked(&self) -> bool {
        self.mover.pause.load(Relaxed) != 0
    }

    /// In the mover: gives up the processor while memory is within the budget, unless a thread
    /// waits for the mover.
    pub(crate) fn yield_if_due(&self) {
        let waited_for = self.mover.waiting.load(Relaxed) > 0 || self.pause_asked();
        let room = self.set_priority_by_room();
        if !waited_for && room > 0 {
            sys::yield_now();
        }
    }

    /// In the mover: background priority while there is room and no thread waits for it, else
    /// normal priority. Returns the room, in bytes.
    pub(crate) fn set_priority_by_room(&self) -> u64 {
        let room = self.account.budget_bytes.load(Relaxed).saturating_sub(self.physical_bytes());
        let watermark = self.mover.low_watermark.load(Relaxed);
        let waited_for = self.mover.waiting.load(Relaxed) > 0
            || self.pause_asked()
            || self.mover.page_out.asked.load(Relaxed) != IDLE;
        if room > watermark / BACKGROUND_ABOVE && !waited_for {
            self.set_priority(Priority::Background);
        } else if room < watermark / NORMAL_BELOW || waited_for {
            self.leave_background();
        }
        room
    }

    /// In the mover: returns to normal priority, if it is in the background.
    pub(crate) fn leave_background(&self) {
        if self.has_priority(Priority::Background) {
            self.set_priority(Priority::Normal);
        }
    }

    /// Whether the mover has this priority.
    pub(crate) fn has_priority(&self, priority: Priority) -> bool {
        self.mover.priority.load(Relaxed) == priority as u32
    }

    /// Gives the mover another priority, where it may have it and may return from it.
    pub(crate) fn set_priority(&self, to: Priority) {
        let normal_until_ns = self.mover.normal_until_ns.load(Relaxed);
        let too_soon = matches!(to, Priority::Background) && sys::now_ns() <= normal_until_ns;
        if normal_until_ns == 0 || too_soon || self.has_priority(to) {
            return;
        }
        self.mover.priority.store(to as u32, Relaxed);
        let own_nice = self.mover.own_nice.load(Relaxed);
        match to {
            // Only raising it shows whether it may be raised again later; else it stays.
            Priority::Background => {
                if ![own_nice - 1, own_nice, own_nice + BACKGROUND_NICE]
                    .into_iter()
                    .all(sys::set_thread_nice)
                {
                    self.mover.normal_until_ns.store(u64::MAX, Relaxed);
                }
            }
            Priority::Normal => _ = sys::set_thread_nice(own_nice),
            Priority::Boosted => _ = sys::set_thread_nice(BOOSTED_NICE),
        }
    }
}
