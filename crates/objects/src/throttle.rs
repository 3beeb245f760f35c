//! A limit on time and bytes, as a debt that shrinks while time passes.

use std::time::{Duration, Instant};

/// What was used beyond the share so far.
pub struct Throttle {
    cpu_share: f64,
    bytes_per_s: f64,
    looked: Instant,
    debt_s: f64,
    debt_bytes: f64,
}

impl Throttle {
    /// For a share of time, 0 to 1, and bytes a second.
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

    /// So much was used.
    pub fn charge(&mut self, time: Duration, bytes: u64) {
        self.debt_s += time.as_secs_f64() * (1.0 - self.cpu_share);
        self.debt_bytes += bytes as f64;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
