//! A mutex that a fork can put right, and that never allocates.

use crate as sys;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A mutex around `T`: 4 bytes, valid when zeroed.
///
/// Opening it wakes all threads that wait. If one of them were chosen, it could be a thread of the
/// program whose stack's page has been evicted meanwhile. That thread goes on only after a handler
/// has restored the page, and the handler may be another of those that wait.
#[derive(Default)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, which one thread at a time holds.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
/// Tries before sleeping: most holders are done within a microsecond.
const SPINS: u32 = 100;

impl<T> Lock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> LockGuard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.lock_slow();
        }
        LockGuard { lock: self }
    }

    /// Takes the lock, if no thread holds it.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Made only where the lock was taken: a guard that is dropped opens the lock, whichever
        // thread holds it.
        self.state
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_ok()
            .then(|| LockGuard { lock: self })
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            if self.state.load(Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Acquire) != FREE {
            sys::futex_wait(&self.state, CONTENDED, None);
        }
    }

    /// The guard of a lock that this thread took and forgot, so that it can be dropped.
    ///
    /// # Safety
    /// The calling thread (after a fork: its parent's) holds the lock, and no other guard of it
    /// exists.
    pub unsafe fn held(&self) -> LockGuard<'_, T> {
        LockGuard { lock: self }
    }

    /// Whether a thread sleeps until the lock is free, as far as can be told.
    pub fn is_waited_for(&self) -> bool {
        self.state.load(Relaxed) == CONTENDED
    }

    /// Opens the lock, whichever thread held it: in a fork's child, whose copy may have been taken
    /// while another thread held it.
    ///
    /// # Safety
    /// No other thread may exist that uses this lock, and the value must be known to be consistent.
    pub unsafe fn reset_after_fork(&self) {
        self.state.store(FREE, Release);
    }
}

/// Access to a [`Lock`]'s value.
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only access.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only access.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Release) == CONTENDED {
            sys::futex_wake(&self.lock.state, u32::MAX >> 1);
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_lock_keeps_others_out() {
        let lock = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..50_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), 200_000);
    }

    #[test]
    fn a_try_that_fails_leaves_the_lock_to_its_holder() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "the first try opened it");
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    /// A waiting thread may be unable to go on before another one does: see [`Lock`].
    #[test]
    fn an_opened_lock_is_taken_by_another_where_the_first_that_waited_does_not() {
        let lock = Arc::new(Lock::new(()));
        let held = lock.lock();
        lock.state.store(CONTENDED, SeqCst);
        let first = lock.clone();
        let first = std::thread::spawn(move || {
            while first.state.load(SeqCst) == CONTENDED {
                sys::futex_wait(&first.state, CONTENDED, None);
            }
        });
        // Time for it to be the first in the kernel's queue; too little never fails the test.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let (tx, rx) = std::sync::mpsc::channel();
        let second = lock.clone();
        let second = std::thread::spawn(move || {
            drop(second.lock());
            tx.send(()).unwrap();
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(held);
        let got = rx.recv_timeout(std::time::Duration::from_secs(20));
        // Whatever came of it, both threads end.
        sys::futex_wake(&lock.state, u32::MAX >> 1);
        got.expect("the second waited for the first");
        first.join().unwrap();
        second.join().unwrap();
    }
}
