//! A limit on time and bytes, as a debt that shrinks while time passes; and how long to pause.

use std::time::{Duration, Instant};

/// A round moves next to nothing if it moves less than this share of all bytes.
const NEXT_TO_NOTHING: f64 = 0.001;

/// How long to pause from one round to the next: for longer each time while next to nothing moves.
#[derive(Debug)]
pub struct Pauses {
    first_ms: u64,
    longest_ms: u64,
    now_ms: u64,
}

impl Pauses {
    /// Makes pauses of length `first` while objects move, and up to `longest` when nothing pays.
    pub fn new(first: Duration, longest: Duration) -> Pauses {
        let first_ms = first.as_millis() as u64;
        Pauses { first_ms, longest_ms: longest.as_millis() as u64, now_ms: first_ms }
    }

    /// The pause, ms, after a round that moved `moved` bytes of `all`.
    pub fn after(&mut self, moved: u64, all: u64) -> u64 {
        let little = (moved as f64) < all as f64 * NEXT_TO_NOTHING;
        self.now_ms = match little {
            true => (self.now_ms.max(1) * 2).min(self.longest_ms),
            false => self.first_ms,
        };
        self.now_ms
    }
}

/// Tracks what was used beyond the share so far.
#[derive(Debug)]
pub struct Throttle {
    cpu_share: f64,
    bytes_per_s: f64,
    looked: Instant,
    debt_s: f64,
    debt_bytes: f64,
}

impl Throttle {
    /// Makes a throttle for a share of time, 0 to 1, and bytes a second.
    pub fn new(cpu_share: f64, bytes_per_s: u64) -> Throttle {
        Throttle {
            cpu_share,
            bytes_per_s: bytes_per_s as f64,
            looked: Instant::now(),
            debt_s: 0.0,
            debt_bytes: 0.0,
        }
    }

    /// Whether nothing is owed now.
    pub fn has_room(&mut self) -> bool {
        let passed = self.looked.elapsed().as_secs_f64();
        self.looked = Instant::now();
        self.debt_s = (self.debt_s - passed * self.cpu_share).max(0.0);
        self.debt_bytes = (self.debt_bytes - passed * self.bytes_per_s).max(0.0);
        self.debt_s == 0.0 && self.debt_bytes == 0.0
    }

    /// Charges what a slice used. The time that the slice took also counts as passed when the next
    /// one asks for room.
    pub fn charge(&mut self, time: Duration, bytes: u64) {
        if self.cpu_share < 1.0 {
            self.debt_s += time.as_secs_f64();
        }
        self.debt_bytes += bytes as f64;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_nothing_pays() {
        let mut pauses = Pauses::new(Duration::from_secs(1), Duration::from_secs(3));
        let found = [0, 0, 0, 500, 0].map(|moved| pauses.after(moved, 1000));
        assert_eq!(found, [2000, 3000, 3000, 1000, 2000]);
    }

    #[test]
    fn what_was_used_is_owed_until_its_share_of_time_has_passed() {
        let mut throttle = Throttle::new(0.5, 1 << 20);
        assert!(throttle.has_room());
        throttle.charge(Duration::from_secs(3600), 0);
        assert!(!throttle.has_room());
        let mut all = Throttle::new(1.0, u64::MAX);
        all.charge(Duration::from_secs(3600), 1 << 30);
        std::thread::sleep(Duration::from_millis(1));
        assert!(all.has_room(), "a share of one owes nothing");
    }
}
