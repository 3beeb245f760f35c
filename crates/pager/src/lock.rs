//! Locks that a fork can put right, and that never allocate.
//!
//! [`Lock`] is a futex mutex. [`Gate`] lets a fork wait until nobody changes page states, without
//! ever keeping a fault waiting for the fork: glibc's fork takes locks of its own (streams, name
//! service) whose holders may be waiting for a page.

use crate::sys;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A mutex around `T`: 4 bytes, valid when zeroed.
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

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // Made only where the lock was taken: a guard that is dropped opens the lock, whoever holds
        // it.
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

    /// Whether somebody sleeps until it is free, as far as can be told.
    pub fn is_waited_for(&self) -> bool {
        self.state.load(Relaxed) == CONTENDED
    }

    /// Opens the lock whoever held it: in a fork's child, whose copy may have been taken while
    /// another thread held it.
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
            sys::futex_wake(&self.lock.state, 1);
        }
    }
}

/// Decides which threads may change page states while a fork is pending or under way.
///
/// *Workers* (the mover, threads of the program inside the `mmap` family) wait while a fork is
/// pending or under way. *Handlers* never wait for it: while it is pending they work as always, so
/// that a worker that faults is served and leaves; while it is under way they fill pages without
/// changing any state ([`Entry::CopyOnly`]) and leave a note.
///
/// A worker must not enter twice, and must not wait for another worker while inside.
#[derive(Default)]
pub struct Gate {
    phase: AtomicU32,
    workers: AtomicU32,
    handlers: AtomicU32,
    /// Sleepers on `phase`: without any, no system call is made (a sandboxed program may not be
    /// allowed it).
    waiting: AtomicU32,
}

const OPEN: u32 = 0;
const PENDING: u32 = 1;
const FORKING: u32 = 2;
const SETTLING: u32 = 3;

/// How a handler was let in.
#[derive(PartialEq, Eq)]
pub enum Entry {
    /// As always.
    Normal,
    /// A fork is under way: change no page state.
    CopyOnly,
}

impl Gate {
    /// Enters as a worker; leaves when the guard goes.
    pub fn worker(&self) -> WorkerGuard<'_> {
        loop {
            self.workers.fetch_add(1, SeqCst);
            let phase = self.phase.load(SeqCst);
            if phase == OPEN {
                return WorkerGuard { gate: self };
            }
            self.leave_worker();
            self.wait_while(phase);
        }
    }

    /// Enters as a worker if no fork is about.
    pub fn try_worker(&self) -> Option<WorkerGuard<'_>> {
        self.workers.fetch_add(1, SeqCst);
        if self.phase.load(SeqCst) == OPEN {
            return Some(WorkerGuard { gate: self });
        }
        self.leave_worker();
        None
    }

    fn leave_worker(&self) {
        if self.workers.fetch_sub(1, SeqCst) == 1 && self.phase.load(SeqCst) != OPEN {
            sys::futex_wake(&self.workers, 1);
        }
    }

    /// Enters as a handler. [`Entry::CopyOnly`] entries are counted too: [`Gate::settle`] waits for
    /// them.
    pub fn handler(&self) -> (Entry, HandlerGuard<'_>) {
        loop {
            self.handlers.fetch_add(1, SeqCst);
            let guard = HandlerGuard { gate: self };
            match self.phase.load(SeqCst) {
                OPEN | PENDING => return (Entry::Normal, guard),
                FORKING => return (Entry::CopyOnly, guard),
                settling => {
                    drop(guard);
                    self.wait_while(settling);
                }
            }
        }
    }

    /// Closes the gate for a fork: returns when no worker and no normally entered handler is
    /// inside.
    ///
    /// Callers must serialise forks. The two steps matter: first workers drain while handlers still
    /// serve them, then handlers, which wait for nobody, drain in microseconds.
    pub fn close(&self) {
        self.phase.store(PENDING, SeqCst);
        loop {
            match self.workers.load(SeqCst) {
                0 => break,
                workers => sys::futex_wait(
                    &self.workers,
                    workers,
                    Some(std::time::Duration::from_millis(1)),
                ),
            }
        }
        self.phase.store(SETTLING, SeqCst);
        self.drain_handlers();
        self.set_phase(FORKING);
    }

    /// After the fork, in the parent: holds handlers back and waits for copy-only ones, so that
    /// their notes can be worked off. [`Gate::open`] must follow at once.
    pub fn settle(&self) {
        self.phase.store(SETTLING, SeqCst);
        self.drain_handlers();
    }

    fn drain_handlers(&self) {
        while self.handlers.load(SeqCst) != 0 {
            sys::yield_now();
        }
    }

    /// Lets everybody in again.
    pub fn open(&self) {
        self.set_phase(OPEN);
    }

    fn wait_while(&self, phase: u32) {
        self.waiting.fetch_add(1, SeqCst);
        sys::futex_wait(&self.phase, phase, None);
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn set_phase(&self, phase: u32) {
        self.phase.store(phase, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            sys::futex_wake(&self.phase, u32::MAX >> 1);
        }
    }

    /// In a fork's child: open, with nobody inside.
    ///
    /// # Safety
    /// The caller is the only thread.
    pub unsafe fn reset_after_fork(&self) {
        self.workers.store(0, SeqCst);
        self.handlers.store(0, SeqCst);
        self.waiting.store(0, SeqCst);
        self.phase.store(OPEN, SeqCst);
    }
}

/// A worker's stay inside a [`Gate`].
pub struct WorkerGuard<'a> {
    gate: &'a Gate,
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        self.gate.leave_worker();
    }
}

/// A handler's stay inside a [`Gate`].
pub struct HandlerGuard<'a> {
    gate: &'a Gate,
}

impl Drop for HandlerGuard<'_> {
    fn drop(&mut self) {
        self.gate.handlers.fetch_sub(1, SeqCst);
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

    #[test]
    fn a_closed_gate_lets_handlers_copy_and_keeps_workers_waiting() {
        let gate = Arc::new(Gate::default());
        gate.close();
        assert!(gate.handler().0 == Entry::CopyOnly);
        let (tx, rx) = std::sync::mpsc::channel();
        let other = gate.clone();
        let thread = std::thread::spawn(move || {
            let _inside = other.worker();
            tx.send(()).unwrap();
        });
        assert!(rx.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        gate.settle();
        gate.open();
        rx.recv().unwrap();
        thread.join().unwrap();
        assert!(gate.handler().0 == Entry::Normal);
    }
}
