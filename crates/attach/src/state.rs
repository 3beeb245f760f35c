//! What a keeper knows of its target, and what it shares with its guard.

use crate::channel::Channel;
use crate::family::Family;
use crate::inject::Injection;
use crate::limit::Limit;
use crate::paging::InSwap;
use crate::process::Mapping;
use crate::seen::Children;
use crate::stats::AttachedStats;
use crate::store::Store;
use crate::stub::{BATCH, Stub};
use crate::sys::{self, Message};
use crate::table::Table;
use anyhow::Result;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Most address spaces at a time: the target's, and those of forked children with pages out.
pub const SPACES: usize = 512;

/// What keeper and guard both need to know.
#[repr(C)]
pub struct Shared {
    /// 1 when the keeper has left as it should.
    pub done: AtomicU32,
    /// 1 once a process has begun to do what is left to do after the keeper's death.
    pub rescued: AtomicU32,
    /// What is needed to let a stopped thread go.
    pub injection: Injection,
    /// How many pages of the journal count.
    pub journaled: AtomicU32,
    /// Addresses of the pages that are asked to land: the first lands first.
    pub journal: [AtomicU64; BATCH],
    /// The address spaces in use.
    pub spaces: [SharedSpace; SPACES],
    /// The address space whose messages are in the buffer, and how many of them were applied.
    pub reading: AtomicU32,
    pub applied: AtomicU32,
    /// The kernel writes messages here, so that none is lost with the process that read it.
    pub messages: std::cell::UnsafeCell<[Message; MESSAGES]>,
}
/// Messages that are read at a time.
pub const MESSAGES: usize = 64;

// SAFETY: the messages are used by one process at a time: the keeper, and after its end the guard.
unsafe impl Sync for Shared {}

/// Descriptors of an address space.
#[repr(C)]
pub struct SharedSpace {
    /// 1 while in use: written last.
    pub used: AtomicU32,
    pub uffd: AtomicI32,
    pub table: AtomicI32,
}

impl Shared {
    /// Makes this record in memory that keeper and guard share.
    pub fn new() -> Result<&'static Shared> {
        let file = sys::memory_file(c"terrace-shared", size_of::<Shared>() as u64)?;
        let at = sys::map_shared(file.as_raw_fd(), size_of::<Shared>() as u64)?;
        // SAFETY: mapped for ever, zeroed, aligned to a page; all zero is a valid value.
        Ok(unsafe { &*at.cast() })
    }
}

/// An address space: its userfaultfd and its pages.
pub struct Space {
    pub uffd: OwnedFd,
    pub table: Table,
    /// Pages in the store.
    pub out: u64,
    /// The userfaultfd's number in the stub, for the address space of a child.
    pub there: i32,
}

impl Space {
    /// Whether no process has the memory any more.
    pub fn is_gone(&self) -> bool {
        sys::memory_is_gone(self.uffd.as_raw_fd())
    }
}

/// Since when the target's physical memory is what it is now.
pub struct Steady {
    physical_bytes: u64,
    pub since_ms: u64,
}

impl Steady {
    pub fn from(now_ms: u64) -> Self {
        Steady { physical_bytes: 0, since_ms: now_ms }
    }

    pub fn note(&mut self, physical_bytes: u64, now_ms: u64) {
        if physical_bytes != self.physical_bytes {
            *self = Steady { physical_bytes, since_ms: now_ms };
        }
    }
}

/// When the budget was checked.
#[derive(Default)]
pub struct BudgetCheck {
    pub at_ms: u64,
    /// The pages that had been put in place by then ([`Keeper::placed_pages`]).
    pub placed: u64,
}

/// Everything about a process that is attached to.
pub struct Keeper {
    pub target: i32,
    pub stub: Stub,
    pub spaces: Vec<Option<Space>>,
    pub store: Store,
    pub shared: &'static Shared,
    pub pagemap: File,
    pub memory: File,
    pub queue: VecDeque<(usize, u64)>,
    /// Discards that may be under way, of pages that are in the store.
    pub discards: VecDeque<Discard>,
    /// Faults that wait until a discard is over.
    pub later: Vec<(usize, u64)>,
    pub hand: Hand,
    pub in_swap: InSwap,
    pub figures: AttachedStats,
    pub limit: Limit,
    /// The processes with which the limit of memory is shared.
    pub family: Family,
    pub children: Children,
    /// Forked children that are too many at once: they get everything back.
    pub crowd: Vec<usize>,
    /// Time at which the limit was asked for, ms.
    pub limited_ms: u64,
    pub steady: Steady,
    pub budget_check: BudgetCheck,
    /// Whether nothing more is evicted.
    pub frozen: bool,
    pub pidfd: OwnedFd,
    pub guard: Option<(i32, OwnedFd)>,
    pub channel: Channel,
    /// Readable once this process was asked to end by a signal.
    pub termination: OwnedFd,
    pub polled_ms: u64,
    /// Whether the target has ended, if not its memory.
    pub has_ended: bool,
    /// Whether the target has ended or executes another program: then only its children are served.
    pub over: bool,
}

/// The CLOCK hand of private memory.
#[derive(Default)]
pub struct Hand {
    pub mappings: Vec<Mapping>,
    pub at: u64,
    pub round_ms: u64,
    pub crowded: bool,
}

/// A discard of pages of which some are in the store.
pub struct Discard {
    pub space: usize,
    pub start: u64,
    pub end: u64,
    pub since_ms: u64,
}
