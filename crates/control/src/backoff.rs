//! How long to sleep between polls of memory in which nothing happens. Sleeps get longer each time,
//! but never longer than it could take to fill the room.

use std::time::Duration;

/// The most that a program can fill of memory, bytes per second.
const FILLED_PER_S: u64 = 8 << 30;
/// The most that comes and goes between two polls of an idle program, bytes.
const QUIET_BYTES: u64 = 1 << 20;

/// The rhythm of one observer.
#[derive(Debug)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    sleep: Duration,
    bytes: u64,
}

impl Backoff {
    /// Sleeps between the two lengths.
    pub fn new(shortest: Duration, longest: Duration) -> Backoff {
        Backoff { shortest, longest, sleep: shortest, bytes: 0 }
    }

    /// How long to sleep after a poll that found `bytes` in use and room for `room` more, and
    /// whatever else tells a `change`.
    pub fn sleep(&mut self, bytes: u64, room: u64, change: bool) -> Duration {
        let quiet = !change && bytes.abs_diff(self.bytes) <= QUIET_BYTES;
        self.bytes = bytes;
        let longest = Duration::from_millis(room / (FILLED_PER_S / 1000)).min(self.longest);
        self.sleep =
            if quiet { (self.sleep * 2).min(longest).max(self.shortest) } else { self.shortest };
        self.sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_longer_while_nothing_happens_and_never_past_the_room() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(250));
        let plenty = u64::MAX;
        let sleeps: Vec<_> = (0..4).map(|_| backoff.sleep(QUIET_BYTES, plenty, false)).collect();
        assert_eq!(sleeps, [ms(100), ms(200), ms(250), ms(250)]);
        assert_eq!(backoff.sleep(QUIET_BYTES, plenty, true), ms(50), "something came");
        assert_eq!(backoff.sleep(3 * QUIET_BYTES, plenty, false), ms(50), "memory grew");
        backoff.sleep(3 * QUIET_BYTES, plenty, false);
        // 80 ms of filling.
        assert_eq!(backoff.sleep(3 * QUIET_BYTES, FILLED_PER_S / 1000 * 80, false), ms(80));
    }
}
