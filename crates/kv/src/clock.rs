//! The time in whole seconds, which tests may move on.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Times up to this many seconds are relative, as in memcached.
const RELATIVE_MAX: i32 = 60 * 60 * 24 * 30;
/// A second at which everything has expired.
const GONE: u32 = 1;

/// The server's clock. It stands still between two ticks.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    started_unix: f64,
    moved: AtomicI64,
    /// Seconds since 1970 at the last tick.
    now: AtomicU32,
}

impl Default for Clock {
    /// Starts with the system's time.
    fn default() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = Clock {
            started: Instant::now(),
            started_unix: unix.as_secs_f64(),
            moved: AtomicI64::new(0),
            now: AtomicU32::new(0),
        };
        clock.tick();
        clock
    }
}

impl Clock {
    /// Seconds since 1970 at the last tick, plus what the clock was moved.
    pub fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// Takes over the system's time. Each thread does so once a turn of its loop, as a request
    /// takes less time than it takes to ask for it.
    pub fn tick(&self) {
        let seconds = (self.started_unix + self.started.elapsed().as_secs_f64()) as i64;
        let now = (seconds + self.moved.load(Relaxed)).clamp(2, i64::from(u32::MAX)) as u32;
        // Nothing is written in most turns, so that threads do not take the line from each other.
        // A thread that was preempted since it looked at the time does not put the clock back.
        if now > self.now() {
            self.now.fetch_max(now, Relaxed);
        }
    }

    /// Seconds since the start.
    pub fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Moves the clock.
    pub fn advance(&self, seconds: i64) {
        self.moved.fetch_add(seconds, Relaxed);
        if seconds < 0 {
            self.now.store(0, Relaxed);
        }
        self.tick();
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
