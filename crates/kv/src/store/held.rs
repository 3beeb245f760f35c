//! Memory beside items that is part of the memory limit: what connections have received or are
//! about to send.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of the memory limit that something beside items takes, until this is dropped.
#[derive(Debug)]
pub struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    /// Takes nothing yet. `all` counts what all of them take together.
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Held {
        Held { all: Arc::clone(all), bytes: 0 }
    }

    /// The bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes so many from now on, whether there is room or not. Items make way later.
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
