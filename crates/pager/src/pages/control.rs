//! How threads reach the mover and the keeper, and the descriptors of the companion.

use crate::pages::lock::Lock;
use crate::pages::shards::SHARDS_MAX;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_os::{self as sys, Fd, SignalsBlocked};

/// The companion's open descriptors, and what the kernel said of itself. Descriptors are in the
/// companion's table, −1 where closed, and mean nothing to a thread of the program.
pub(crate) struct Descriptors {
    /// A descriptor of the program's process.
    pub program: AtomicI32,
    pub uffds: [AtomicI32; SHARDS_MAX],
    pub shards: AtomicUsize,
    pub staging: AtomicI32,
    pub pagemap: AtomicI32,
    pub statm: AtomicI32,
    /// The kernel tells which pages of registered memory were written (before 6.7 it does not).
    pub tracks_writes: AtomicBool,
    /// `vm.max_map_count`.
    pub mappings_max: AtomicUsize,
    /// The page whose fault tells a handler to end (see `Pager::stop_handlers`); 0 until then.
    pub shutdown_page: AtomicUsize,
}

impl Default for Descriptors {
    fn default() -> Self {
        Descriptors {
            program: AtomicI32::new(-1),
            uffds: std::array::from_fn(|_| AtomicI32::new(-1)),
            shards: AtomicUsize::new(0),
            staging: AtomicI32::new(-1),
            pagemap: AtomicI32::new(-1),
            statm: AtomicI32::new(-1),
            tracks_writes: AtomicBool::new(false),
            mappings_max: AtomicUsize::new(0),
            shutdown_page: AtomicUsize::new(0),
        }
    }
}

impl Descriptors {
    /// The open userfaultfds, that of the staging area included: evicted pages depend on them.
    pub fn all_userfaultfds(&self) -> Vec<Fd> {
        let shards = &self.uffds[..self.shards.load(Acquire)];
        shards
            .iter()
            .chain([&self.staging])
            .map(|fd| fd.load(Relaxed))
            .filter(|fd| *fd >= 0)
            .collect()
    }
}

/// How other threads reach the mover.
#[derive(Default)]
pub(crate) struct MoverControl {
    /// Counts calls; the mover sleeps on it.
    pub calls: AtomicU32,
    /// Counts batches done. Threads that wait for room sleep on it.
    pub progress: AtomicU32,
    /// How many threads sleep on `progress`.
    pub waiting: AtomicU32,
    /// Threads of ours that are touching a page of the program's: see `Mm::touch_page`.
    pub touching: AtomicU32,
    /// The mover's priority among the program's threads: `Priority` in evict/priority.rs.
    pub priority: AtomicU32,
    /// Until when the priority is not lowered (CLOCK_MONOTONIC, ns); 0 without a mover.
    pub normal_until_ns: AtomicU64,
    /// The program's nice value.
    pub own_nice: AtomicI32,
    /// The low watermark: bytes that the mover keeps free below the budget.
    pub low_watermark: AtomicU64,
    /// Requests of [`Pager::page_out`](crate::Pager::page_out) to the mover.
    pub page_out: RangeRequest,
    /// The refault distance, ms: a page that refaults within it was worth keeping. See
    /// [`terrace_policy::eviction::victims::refaulted`].
    pub refault_distance_ms: AtomicU64,
    /// Bytes for which threads wait, beyond the low watermark.
    pub demand: AtomicU64,
    /// Whether the mover is to pause: `RUN`, `PAUSE` or `PAUSED` of [`crate::threads::fork_notes`].
    pub pause: AtomicU32,
    /// The floor: nothing more can be reclaimed, so waiting for room is pointless.
    pub at_floor: AtomicBool,
    pub running: AtomicBool,
    /// Whether Terrace's threads are to end, and none starts again (see `Pager::shut_down`).
    pub shut_down: AtomicBool,
}

/// A request of a thread of the program to one of ours, for a range. The thread waits until it is
/// done.
#[derive(Default)]
pub(crate) struct RangeRequest {
    /// Held by the thread that asks.
    pub asking: Lock<()>,
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    /// [`IDLE`], or the request. Both sides sleep on it.
    pub asked: AtomicU32,
}

/// State without a request.
pub(crate) const IDLE: u32 = 0;
/// The usual request: to restore a range (the keeper), or to page it out (the mover).
pub(crate) const DO: u32 = 1;

impl RangeRequest {
    /// Asks for `what` on `start..end` and waits until it is done, or until `alive` says that no
    /// thread is there to do it. `wake` wakes the thread that is asked.
    pub fn ask(
        &self,
        what: u32,
        start: usize,
        end: usize,
        wake: impl FnOnce(),
        alive: impl Fn() -> bool,
    ) {
        let _signals = SignalsBlocked::new();
        let _asking = self.asking.lock();
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
        self.asked.store(what, Release);
        wake();
        while self.asked.load(Acquire) == what {
            if !alive() {
                self.asked.store(IDLE, Release);
                return;
            }
            sys::futex_wait(&self.asked, what, Some(Duration::from_millis(100)));
        }
    }

    /// The request and its range, `(what, start, end)`; `None` if there is no request.
    pub fn asked(&self) -> Option<(u32, usize, usize)> {
        match self.asked.load(Acquire) {
            IDLE => None,
            what => Some((what, self.start.load(Relaxed), self.end.load(Relaxed))),
        }
    }

    /// Tells the asking thread that its request is done.
    pub fn done(&self) {
        self.asked.store(IDLE, Release);
        sys::futex_wake(&self.asked, u32::MAX >> 1);
    }
}
