//! Duties of the mover that are due at intervals.

/// A duty that is due again when its interval has passed since it was done last.
pub(super) struct Every {
    interval_ns: u64,
    done_ns: u64,
}

impl Every {
    /// A duty that counts as done at `done_ns`, which may be 0: then it is due at once.
    pub fn new(interval_ns: u64, done_ns: u64) -> Every {
        Every { interval_ns, done_ns }
    }

    /// Whether it is due.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns - self.done_ns > self.interval_ns
    }

    /// Records that it is done now.
    pub fn done(&mut self, now_ns: u64) {
        self.done_ns = now_ns;
    }

    /// Whether it is due. If so, records that it is done now.
    pub fn take_due(&mut self, now_ns: u64) -> bool {
        let due = self.is_due(now_ns);
        if due {
            self.done(now_ns);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_once_in_an_interval() {
        let mut every = Every::new(100, 0);
        assert!(every.take_due(101) && !every.take_due(102) && !every.take_due(201));
        assert!(every.is_due(202) && every.take_due(202));
        every.done(300);
        assert!(!every.is_due(400) && every.is_due(401));
    }
}
