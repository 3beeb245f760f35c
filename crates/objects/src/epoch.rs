//! Epochs: memory that was taken out of use is given back when every reader that could have seen it
//! has left (Fraser, "Practical lock-freedom", 2004, §5.2.3).
//!
//! A reader announces the epoch in which it begins. To retire memory is to begin a new epoch; the
//! memory may be reused once no reader announces the old one or an earlier one. Two fences make it
//! safe that a reader announces without a lock: either the scan sees the announcement, or the
//! reader sees the new reference.

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence};
use std::cell::Cell;

/// Value announced by a reader that holds no reference.
const OUTSIDE: u64 = 0;

/// The epoch that a reader announces, on cache lines of its own.
#[repr(align(128))]
struct Announcement(AtomicU64);

/// The epoch and all readers.
pub struct Epochs {
    now: AtomicU64,
    readers: Mutex<Vec<Arc<Announcement>>>,
}

/// The epoch in which something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Default for Epochs {
    fn default() -> Epochs {
        Epochs { now: AtomicU64::new(OUTSIDE + 1), readers: Mutex::new(Vec::new()) }
    }
}

impl Epochs {
    /// Makes a reader, for one thread.
    pub fn reader(epochs: &Arc<Epochs>) -> Reader {
        let announced = Arc::new(Announcement(AtomicU64::new(OUTSIDE)));
        epochs.readers.lock().expect("no panic under this lock").push(announced.clone());
        Reader { epochs: epochs.clone(), announced, depth: Cell::new(0) }
    }

    /// Begins a new epoch. To be called once no reference leads to what is retired.
    pub fn retire(&self) -> Stamp {
        fence(Ordering::SeqCst);
        Stamp(self.now.fetch_add(1, Ordering::AcqRel))
    }

    /// Whether all readers have left that may hold what was retired at that stamp.
    pub fn is_over(&self, stamp: Stamp) -> bool {
        fence(Ordering::SeqCst);
        let readers = self.readers.lock().expect("no panic under this lock");
        readers.iter().all(|reader| {
            let announced = reader.0.load(Ordering::Acquire);
            announced == OUTSIDE || announced > stamp.0
        })
    }
}

/// The right of one thread to read objects.
pub struct Reader {
    epochs: Arc<Epochs>,
    announced: Arc<Announcement>,
    depth: Cell<u32>,
}

impl Reader {
    /// Begins to read: what is reachable now stays readable until the guard is dropped. Guards of
    /// one reader nest.
    pub fn enter(&self) -> Guard<'_> {
        if self.depth.replace(self.depth.get() + 1) == 0 {
            let now = self.epochs.now.load(Ordering::Acquire);
            // Release: a thread that sees this announcement need not have seen the end of the one
            // before.
            self.announced.0.store(now, Ordering::Release);
            fence(Ordering::SeqCst);
        }
        Guard { reader: self }
    }

    /// Whether this is a reader of these epochs.
    pub fn is_of(&self, epochs: &Arc<Epochs>) -> bool {
        Arc::ptr_eq(&self.epochs, epochs)
    }

    /// Ends the innermost reading begun by [`Reader::enter`] whose guard was forgotten: for
    /// callers without scopes, such as C. Does nothing outside.
    pub(crate) fn leave(&self) {
        match self.depth.get() {
            0 => return,
            1 => self.announced.0.store(OUTSIDE, Ordering::Release),
            _ => {}
        }
        self.depth.set(self.depth.get() - 1);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.epochs.readers.lock().expect("no panic under this lock");
        readers.retain(|reader| !Arc::ptr_eq(reader, &self.announced));
    }
}

/// Proof that its reader is inside.
pub struct Guard<'reader> {
    reader: &'reader Reader,
}

impl Guard<'_> {
    /// Whether its reader is of these epochs.
    pub fn is_of(&self, epochs: &Arc<Epochs>) -> bool {
        self.reader.is_of(epochs)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.reader.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_waits_for_readers_that_may_hold_it_and_for_no_others() {
        let epochs = Arc::new(Epochs::default());
        let (before, after) = (Epochs::reader(&epochs), Epochs::reader(&epochs));
        let guard = before.enter();
        let nested = before.enter();
        let stamp = epochs.retire();
        let _later = after.enter();
        assert!(!epochs.is_over(stamp));
        drop(nested);
        assert!(!epochs.is_over(stamp), "the outer guard holds on");
        drop(guard);
        assert!(epochs.is_over(stamp), "who came later cannot hold it");
    }

    #[test]
    fn a_reader_that_ended_holds_nothing() {
        let epochs = Arc::new(Epochs::default());
        let reader = Epochs::reader(&epochs);
        std::mem::forget(reader.enter());
        let stamp = epochs.retire();
        assert!(!epochs.is_over(stamp));
        drop(reader);
        assert!(epochs.is_over(stamp));
    }
}
