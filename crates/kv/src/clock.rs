//! The time in whole seconds, which tests may move on.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Times up to this many seconds are relative, as in memcached.
const RELATIVE_MAX: i32 = 60 * 60 * 24 * 30;
/// A second at which everything has expired.
const GONE: u32 = 1;

/// The server's clock. It never goes back.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    started_unix: f64,
    moved: AtomicI64,
}

impl Default for Clock {
    /// Starts with the system's time.
    fn default() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            started: Instant::now(),
            started_unix: unix.as_secs_f64(),
            moved: AtomicI64::new(0),
        }
    }
}

impl Clock {
    /// Seconds since 1970, plus what the clock was moved.
    pub fn now(&self) -> u32 {
        let seconds = (self.started_unix + self.started.elapsed().as_secs_f64()) as i64;
        (seconds + self.moved.load(Relaxed)).clamp(2, i64::from(u32::MAX)) as u32
    }

    /// Seconds since the start.
    pub fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Moves the clock.
    pub fn advance(&self, seconds: i64) {
        self.moved.fetch_add(seconds, Relaxed);
    }

    /// The second that a client's expiry time means, or 0 for never.
    pub fn expiry(&self, time: i32) -> u32 {
        match time {
            0 => 0,
            ..0 => GONE,
            1..=RELATIVE_MAX => self.now().saturating_add(time as u32),
            _ if f64::from(time) <= self.started_unix => GONE,
            _ => time as u32,
        }
    }
}
