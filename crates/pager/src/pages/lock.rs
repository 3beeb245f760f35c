//! Locks ([`Lock`]), and the gate that lets a fork wait until no thread changes page states.
//!
//! The gate keeps no fault waiting for the fork. glibc's fork takes locks of its own (streams, name
//! service), whose holders may be waiting for a page.

use std::sync::atomic::{AtomicU32, Ordering::*};
use terrace_os as sys;
pub use terrace_os::lock::{Lock, LockGuard};

/// Decides which threads may change page states while a fork is pending or under way.
///
/// *Workers* (the mover, threads of the program inside the `mmap` family) wait while a fork is
/// pending or under way. *Handlers* do not wait for it. While it is pending they work as always, so
/// that a worker that faults is served and leaves. While it is under way they fill pages without
/// changing any state ([`Entry::CopyOnly`]) and leave a note. They wait only while the gate goes
/// from one phase to the next, for microseconds.
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
    /// No fork is under way: page states may be changed.
    Normal,
    /// A fork is under way: change no page state.
    CopyOnly,
}

impl Gate {
    /// Enters as a worker, after a wait while a fork is pending or under way. Leaves when the guard
    /// is dropped.
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

    /// Enters as a worker, or returns `None` if a fork is pending or under way.
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
    /// Callers must serialise forks. First workers drain while handlers still serve them. Then
    /// handlers, which wait for no thread, drain in microseconds.
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

    /// Holds handlers back and waits for copy-only ones, so that their notes can be worked off.
    /// Called in the parent after the fork. [`Gate::open`] must follow at once.
    pub fn settle(&self) {
        self.phase.store(SETTLING, SeqCst);
        self.drain_handlers();
    }

    fn drain_handlers(&self) {
        while self.handlers.load(SeqCst) != 0 {
            sys::yield_now();
        }
    }

    /// Lets workers and handlers in again.
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

    /// Opens the gate in a fork's child, where no thread is inside.
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
