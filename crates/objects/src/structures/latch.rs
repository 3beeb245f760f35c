//! A lock of one bit in a word whose other bits hold something else.

use crate::sync::{AtomicU64, Ordering, spin_loop};

/// The bit of the lock.
pub const LOCKED: u64 = 1;

/// A word's lock, held until it is dropped.
pub struct Latch<'word>(&'word AtomicU64);

impl<'word> Latch<'word> {
    /// Takes the lock, unless another thread has it.
    pub fn try_lock(word: &'word AtomicU64) -> Option<Latch<'word>> {
        let before = word.fetch_or(LOCKED, Ordering::Acquire);
        // Not `then_some`: a latch that is not taken would be dropped, which unlocks.
        (before & LOCKED == 0).then(|| Latch(word))
    }

    /// Waits for the lock, which is held for some instructions only.
    pub fn lock(word: &'word AtomicU64) -> Latch<'word> {
        loop {
            if let Some(latch) = Latch::try_lock(word) {
                return latch;
            }
            while word.load(Ordering::Relaxed) & LOCKED != 0 {
                #[cfg(loom)]
                loom::thread::yield_now();
                spin_loop();
            }
        }
    }
}

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!LOCKED, Ordering::Release);
    }
}
