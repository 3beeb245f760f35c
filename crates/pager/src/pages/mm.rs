//! The memory of a process, as the pager knows it. Like Linux's `mm_struct`, it holds the page
//! table (of page states), the locks and the counters. That is all that Terrace's threads need to
//! move a page.
//!
//! Eviction ([`crate::evict`]) and faults ([`crate::fault`]) are given this and nothing else. How
//! threads and processes begin and end is the [`Pager`](crate::Pager)'s.

use crate::counters::Account;
use crate::fault::event_queue::Events;
use crate::fault::fault_cost::FaultCost;
use crate::fault::following::Threads;
use crate::fault::run_tools::RestoreTools;
use crate::pages::control::{Descriptors, MoverControl};
use crate::pages::lock::{Gate, Lock};
use crate::pages::probation::Probation;
use crate::pages::ranges::{Range, Ranges, evictable_bytes};
use crate::pages::shards::SHARD_SHIFT;
use crate::pages::staging::Staging;
use crate::pages::table::Table;
use crate::stats_line::StatsMappings;
use crate::threads::fork_notes::ForkState;
use crate::trace::Trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use terrace_control::START_MIN_BYTES;
use terrace_control::settings::{Dram, Eviction, Settings, Stress};
use terrace_os::{Fd, PAGE};
use terrace_tiers::{Node, Swap, Tier};

/// Functions of the library around the pager that the pager calls.
#[derive(Clone, Copy)]
pub struct Host {
    /// Begins a section, up to `leave_internal`, in which this thread must not allocate from
    /// managed memory. Nests.
    pub enter_internal: fn(),
    /// Ends `enter_internal`.
    pub leave_internal: fn(),
    /// Has [`Pager::start`](crate::Pager::start) called soon, from a place where making threads is
    /// safe. May be called under any lock.
    pub start_soon: fn(),
    /// Has a thread of the program give unused memory back, when it allocates next.
    pub purge_soon: fn(),
    /// The address range of the unmanaged allocator, whose pages count as overhead.
    pub unmanaged_range: fn() -> (usize, usize),
    /// Bytes of the allocator's own tables beside that range.
    pub map_bytes: fn() -> u64,
    /// Reports a sampled access to `address` and its weight. Called by the mover, so it must not
    /// wait for what a fork holds.
    pub sampled: fn(address: usize, weight: f32),
    /// Scans allocation sites at `now_ns` (CLOCK_MONOTONIC). Called by the mover, a few times a
    /// second where sites are watched ([`Settings::sites`]). Must not wait for what a fork holds.
    pub scan_sites: fn(now_ns: u64),
}

/// How much of the pager runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Nothing runs yet.
    Off = 0,
    /// The keeper is being made.
    Starting = 1,
    /// The mover only measures.
    Observing = 2,
    /// All threads run, and pages are moved.
    Active = 3,
    /// The start failed or the pager was shut down: all memory stays in DRAM.
    Failed = 4,
}

/// The memory of a process: page states, managed ranges, locks and counters.
pub struct Mm {
    pub(crate) settings: Settings,
    pub(crate) host: Host,
    /// All tiers, DRAM first.
    pub(crate) tiers: Vec<Tier>,
    /// Page states, by region.
    pub(crate) table: Table,
    /// The managed address ranges.
    pub(crate) ranges: Lock<Ranges>,
    /// Keeps page states as they are while the process forks.
    pub(crate) gate: Gate,
    pub(crate) staging: Staging,
    pub(crate) probation: Probation,
    pub(crate) account: Account,
    pub(crate) descriptors: Descriptors,
    pub(crate) mover: MoverControl,
    pub(crate) faults: Faults,
    pub(crate) fork: ForkState,
    pub(crate) trace: Trace,
    pub(crate) stats: StatsMappings,
    pub(crate) warned: Warned,
    /// Whether eviction has stopped for good: see [`Mm::freeze`].
    pub(crate) frozen: AtomicBool,
    pub(crate) mode: AtomicU32,
    /// Bytes under management, touched or not.
    pub(crate) committed: AtomicUsize,
    /// Committed bytes from which the pager is worth starting; fewer where the process's share is
    /// small.
    pub(crate) start_at: usize,
    /// Whether a seccomp filter, if any, is known to let the pager work: see
    /// [`terrace_control::seccomp_probe`].
    pub(crate) probed: AtomicBool,
    /// Set in a forked child under `--no-children`: what was evicted when it was forked still comes
    /// back, and nothing more is evicted.
    pub(crate) restores_only: AtomicBool,
}

/// State with which faults are served.
pub(crate) struct Faults {
    /// Memory calls that the kernel reports.
    pub events: Events,
    /// The program's threads, where it is known on which CPU they run.
    pub threads: Threads,
    pub cost: FaultCost,
    /// Tools with which threads of the program restore pages.
    pub run_tools: RestoreTools,
}

/// Warnings that were given already: each is given once only.
#[derive(Default)]
pub(crate) struct Warned {
    /// Memory for restored pages is out, for now.
    pub restore_waits: AtomicBool,
    /// Memory for compressed pages is out.
    pub no_room: AtomicBool,
    /// The kernel takes no pages into its swap.
    pub swap_refuses: AtomicBool,
    /// The node of the tier `node:N` cannot be used.
    pub node: AtomicBool,
    /// The node of the tier `node:N` is full.
    pub node_full: AtomicBool,
    /// The kernel moves nothing to the node of the tier `node:N`.
    pub node_refused: AtomicBool,
    /// Threads cannot be interrupted by timers.
    pub timers: AtomicBool,
    /// Moves cannot be listed.
    pub no_moves: AtomicBool,
}

impl Mm {
    /// How much of the pager runs now.
    pub fn mode(&self) -> Mode {
        match self.mode.load(Acquire) {
            0 => Mode::Off,
            1 => Mode::Starting,
            2 => Mode::Observing,
            3 => Mode::Active,
            _ => Mode::Failed,
        }
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u32, Release);
    }

    pub(crate) fn count_committed(&self, bytes: isize) {
        let committed =
            self.committed.fetch_add(bytes as usize, Relaxed).wrapping_add(bytes as usize);
        if self.mode() != Mode::Off {
            return;
        }
        let mut start_at = self.start_at;
        if let Some(page) = self.stats() {
            self.publish_committed(page, (committed as isize).max(0) as u64);
            // Where memory is tight, a process is worth managing sooner.
            let share = page.share_bytes.load(Relaxed) as usize;
            if share > 0 {
                start_at = start_at.min((share / 2).max(START_MIN_BYTES));
            }
        }
        if committed as isize >= start_at as isize
            && self.has_purpose()
            && !self.restores_only.load(Relaxed)
        {
            (self.host.start_soon)();
        }
    }

    /// Bytes under management, touched or not.
    pub(crate) fn committed_bytes(&self) -> u64 {
        (self.committed.load(Relaxed) as isize).max(0) as u64
    }

    /// Whether it is known that a seccomp filter, if any, lets the pager work.
    pub(crate) fn is_probed(&self) -> bool {
        self.probed.load(Acquire)
    }

    pub(crate) fn has_purpose(&self) -> bool {
        self.settings.dram != Dram::Unlimited
            || self.settings.observe
            || self.settings.placement.model().is_some()
            || self.settings.stress != Stress::Off
            || self.settings.run_dir.is_some()
    }

    /// Whether pages are ever to be moved by these settings.
    pub(crate) fn moves(&self) -> bool {
        !self.settings.observe
            && self.tiers.len() > 1
            && (self.settings.dram != Dram::Unlimited
                || self.settings.placement.model().is_some()
                || self.settings.stress != Stress::Off)
    }

    /// The userfaultfd that serves an address.
    pub(crate) fn uffd_of(&self, address: usize) -> Fd {
        let shards = self.descriptors.shards.load(Acquire).max(1);
        self.uffd_of_shard((address >> SHARD_SHIFT) % shards)
    }

    /// The userfaultfd of a shard, in the companion's descriptor table.
    pub(crate) fn uffd_of_shard(&self, shard: usize) -> Fd {
        self.descriptors.uffds[shard].load(Relaxed)
    }

    /// Bytes of DRAM under the budget now: resident managed pages + pools + overhead. An estimate
    /// between scans.
    pub fn physical_bytes(&self) -> u64 {
        let pools: u64 = self.tiers.iter().map(Tier::dram_bytes).sum();
        self.account.resident() * PAGE as u64 + pools + self.account.overhead_bytes.load(Relaxed)
    }

    /// Bytes of managed memory that the program has touched, resident, far or evicted. An estimate
    /// between scans.
    pub(crate) fn touched_bytes(&self) -> u64 {
        (self.evicted_pages_total() + self.far_pages() + self.account.resident()) * PAGE as u64
    }

    /// Pages in all tiers below DRAM that are not in the page table.
    pub(crate) fn evicted_pages_total(&self) -> u64 {
        self.tiers.iter().filter(|tier| tier.node().is_none()).map(|tier| tier.stats.pages()).sum()
    }

    /// Whether the pager was shut down ([`Pager::shut_down`](crate::Pager::shut_down)): no thread
    /// of ours serves memory any more. A seccomp filter may be loaded, so no system call may be
    /// made that the program would not make without us.
    pub fn is_shut_down(&self) -> bool {
        self.mover.shut_down.load(Acquire)
    }

    /// Whether `address` is in the page whose fault tells a handler to end.
    pub(crate) fn is_shutdown_page(&self, address: usize) -> bool {
        address == self.descriptors.shutdown_page.load(Acquire)
    }

    /// Whether memory is registered for write-protection too.
    pub(crate) fn write_protects(&self) -> bool {
        self.settings.evict == Eviction::WriteProtect
            || self.descriptors.tracks_writes.load(Relaxed)
    }

    /// Limits the budget of a program that links the pager to `bytes`, until the next call. The
    /// budget never exceeds what the settings allow; with `u64::MAX` they alone count.
    pub fn limit(&self, bytes: u64) {
        self.account.assigned_bytes.store(bytes.max(1), Relaxed);
    }

    pub(crate) fn uncount(&self, pieces: &[Range]) {
        self.count_committed(-(evictable_bytes(pieces) as isize));
    }

    /// The tier `swap`, if it is in the list.
    pub(crate) fn swap(&self) -> Option<(&Tier, &Swap)> {
        let tier = &self.tiers[self.swap_tier_index()?];
        Some((tier, &**tier.swap()?))
    }

    /// The index of the tier `swap` in the list of tiers.
    pub(crate) fn swap_tier_index(&self) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.swap().is_some())
    }

    /// The tier `node:N`, if it is in the list.
    pub(crate) fn far(&self) -> Option<(&Tier, &Arc<Node>)> {
        self.tiers.iter().find_map(|tier| Some((tier, tier.node()?)))
    }

    /// Managed pages in far memory, as far as is known.
    pub(crate) fn far_pages(&self) -> u64 {
        self.far().map_or(0, |(tier, _)| tier.stats.pages())
    }

    pub(crate) fn table_has_evicted(&self) -> bool {
        (0..self.table.len()).any(|n| self.table.by_number(n).region.evicted.load(Relaxed) > 0)
    }

    /// The index of the page's tier in the list of tiers. 0 is DRAM, and so is what is not managed.
    /// Pages in another node count as in DRAM.
    pub fn tier_of(&self, address: usize) -> usize {
        let Some(entry) = self.table.get(address) else { return 0 };
        let word = entry.word(address).load();
        if word.is_swapped() {
            return self.swap_tier_index().unwrap_or(0);
        }
        match word.stored() {
            Some(location) if !word.is_present() => {
                entry.region.store.lock().tier_of(location).map_or(0, usize::from)
            }
            _ => 0,
        }
    }

    /// The index of the densest of our own tiers that take pages.
    pub(crate) fn densest_own_tier(&self) -> Option<usize> {
        (1..self.tiers.len()).rev().find(|tier| is_own(&self.tiers[*tier]))
    }

    /// The tier for pages that are meant for `tier`: this one, or [`Mm::own_tier`] where it is
    /// disabled.
    pub(crate) fn enabled_tier(&self, tier: usize) -> usize {
        if self.tiers[tier].is_disabled() { self.own_tier(tier) } else { tier }
    }

    /// The first of our own tiers from `tier` on that takes pages, else the nearest before it.
    /// `tier` itself where there is none.
    pub(crate) fn own_tier(&self, tier: usize) -> usize {
        let own = |tier: &usize| is_own(&self.tiers[*tier]);
        (tier..self.tiers.len()).chain((1..tier).rev()).find(own).unwrap_or(tier)
    }
}

/// Whether a tier is our own (neither swap nor a node) and takes pages.
pub(crate) fn is_own(tier: &Tier) -> bool {
    tier.is_ours() && !tier.is_disabled()
}
