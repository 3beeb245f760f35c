//! How threads reach the mover and the keeper, and the descriptors of the companion.

use crate::pages::lock::Lock;
use crate::pages::shards::SHARDS_MAX;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_os::{self as sys, Fd, SignalsBlocked};

/// What the companion has open, and what the kernel said of it. Descriptors are in the companion's
/// table, −1 where closed, and mean nothing to a thread of the program.
pub(crate) struct Descriptors {
    /// The program's process.
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
    /// The page with which handlers are let go (see `Pager::dismiss_handlers`); 0 until then.
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
    /// Those that pages depend on.
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

/// How others reach the mover.
#[derive(Default)]
pub(crate) struct MoverControl {
    /// Counts calls; the mover sleeps on it.
    pub calls: AtomicU32,
    /// Counts batches done; who waits for room sleeps on it.
    pub progress: AtomicU32,
    /// Whether somebody sleeps on `progress`.
    pub waiting: AtomicU32,
    /// Threads of ours that touch a page of the program's just now: see `Mm::touch_page`.
    pub touching: AtomicU32,
    /// Its priority among the program's threads: `Priority` in evict/priority.rs.
    pub priority: AtomicU32,
    /// Until when that stays normal (CLOCK_MONOTONIC, ns); 0 without a mover.
    pub normal_until_ns: AtomicU64,
    /// The program's nice value.
    pub own_nice: AtomicI32,
    /// What it keeps free below the budget, bytes.
    pub low_watermark: AtomicU64,
    /// See [`Pager::page_out`](crate::Pager::page_out).
    pub page_out: RangeRequest,
    /// A page that comes back after no more than this is back soon, ms. See
    /// [`terrace_policy::victims::refaulted`].
    pub refault_distance_ms: AtomicU64,
    /// Bytes that a thread waits for beyond the low watermark.
    pub demand: AtomicU64,
    /// See [`crate::threads::fork`].
    pub pause: AtomicU32,
    /// Nothing can be evicted at present; waiting for room is pointless.
    pub at_floor: AtomicBool,
    pub running: AtomicBool,
    /// Our threads end, and nothing starts again (see `Pager::retire`).
    pub retired: AtomicBool,
}

/// How a thread of the program has one of ours do something to a range, and waits for it.
#[derive(Default)]
pub(crate) struct RangeRequest {
    /// Held by the one who asks.
    pub asking: Lock<()>,
    pub start: AtomicUsize,
    pub end: AtomicUsize,
    /// [`IDLE`] or what was asked. Both sides sleep on it.
    pub asked: AtomicU32,
}

/// Nothing was asked.
pub(crate) const IDLE: u32 = 0;
/// The one thing the line is for.
pub(crate) const DO: u32 = 1;

impl RangeRequest {
    /// Asks for `what` and waits until it is done, or until nobody is there to do it (`alive`).
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

    /// What is asked, and of which range.
    pub fn asked(&self) -> Option<(u32, usize, usize)> {
        match self.asked.load(Acquire) {
            IDLE => None,
            what => Some((what, self.start.load(Relaxed), self.end.load(Relaxed))),
        }
    }

    /// Tells the asker that it is done.
    pub fn done(&self) {
        self.asked.store(IDLE, Release);
        sys::futex_wake(&self.asked, u32::MAX >> 1);
    }
}
