//! Waiting for what comes about in another process or thread, with a limit on the time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long to wait, and how often to look meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    limit: Duration,
    interval: Duration,
}

impl Wait {
    /// Waits for this long at most, and looks every 20 ms.
    pub const fn within(limit: Duration) -> Wait {
        Wait { limit, interval: Duration::from_millis(20) }
    }

    /// Looks at this interval.
    pub const fn every(self, interval: Duration) -> Wait {
        Wait { limit: self.limit, interval }
    }

    /// Waits until `holds` says yes.
    ///
    /// # Panics
    /// With `what` was waited for, if the time is over.
    #[track_caller]
    pub fn until(self, what: &str, mut holds: impl FnMut() -> bool) {
        let waited = self.look(|| if holds() { Ok(()) } else { Err(()) });
        assert!(waited.is_ok(), "not within {:?}: {what}", self.limit);
    }

    /// Waits until `look` finds something, and returns it.
    ///
    /// # Panics
    /// With `what` was waited for, if the time is over.
    #[track_caller]
    pub fn until_some<T>(self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let Ok(found) = self.look(|| look().ok_or(())) else {
            panic!("not within {:?}: {what}", self.limit);
        };
        found
    }

    /// Waits until `look` succeeds, and returns its result.
    ///
    /// # Panics
    /// With `what` was waited for and the last error, if the time is over.
    #[track_caller]
    pub fn until_ok<T, E: Display>(self, what: &str, look: impl FnMut() -> Result<T, E>) -> T {
        match self.look(look) {
            Ok(found) => found,
            Err(error) => panic!("not within {:?}: {what}: {error}", self.limit),
        }
    }

    /// The first success of `look`, or its last error when the time is over.
    fn look<T, E>(self, mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        let begun = Instant::now();
        loop {
            match look() {
                Err(_) if begun.elapsed() < self.limit => std::thread::sleep(self.interval),
                last => return last,
            }
        }
    }
}
