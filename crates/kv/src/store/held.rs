//! Memory besides items that is part of the memory limit: bytes that connections have received or
//! are about to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of the memory limit that something besides items takes, until this is dropped.
#[derive(Debug)]
pub struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    /// Makes a share that takes nothing yet. `all` counts what all shares take together.
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Held {
        Held { all: Arc::clone(all), bytes: 0 }
    }

    /// Bytes that the share takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the share take `bytes` from now on, whether there is room or not. Items make way
    /// later.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.all.fetch_add(bytes - self.bytes, Relaxed);
        } else if bytes < self.bytes {
            self.all.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
