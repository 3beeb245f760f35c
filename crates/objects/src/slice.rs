//! Slices of time: how long a step may go on, without reading the clock for each object.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum number of questions between two readings of the clock.
const MOST_BETWEEN_LOOKS: u32 = 64;

/// The time that a step has.
pub struct Slice {
    begun: Instant,
    budget: Duration,
    asked: Cell<u32>,
    look_at: Cell<u32>,
    over: Cell<bool>,
}

impl Slice {
    /// Begins a slice.
    pub fn begin(budget: Duration) -> Slice {
        Slice {
            begun: Instant::now(),
            budget,
            asked: Cell::new(0),
            look_at: Cell::new(1),
            over: Cell::new(budget.is_zero()),
        }
    }

    /// Whether the time is over. Reads the clock only where half of the rest could have passed, by
    /// how long questions took so far: some 1 ns for most objects.
    pub fn should_stop(&self) -> bool {
        let asked = self.asked.get() + 1;
        self.asked.set(asked);
        if asked < self.look_at.get() || self.over.get() {
            return self.over.get();
        }
        let spent = self.begun.elapsed();
        self.over.set(spent >= self.budget);
        let each = (spent.as_nanos() / u128::from(asked)).max(1);
        let rest = self.budget.saturating_sub(spent).as_nanos();
        let next = (rest / 2 / each).clamp(1, u128::from(MOST_BETWEEN_LOOKS)) as u32;
        self.look_at.set(asked + next);
        self.over.get()
    }

    /// Time since the slice began.
    pub fn spent(&self) -> Duration {
        self.begun.elapsed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_and_stays_ended() {
        let slice = Slice::begin(Duration::from_micros(50));
        while !slice.should_stop() {}
        assert!(slice.should_stop());
        assert!(slice.spent() >= Duration::from_micros(50));
        assert!(Slice::begin(Duration::ZERO).should_stop());
    }
}
