//! Brings evicted pages back ahead of a fault: a thread of the program does it itself
//! ([`Pager::touch`]), or has the mover do it ([`Pager::prefetch`]).
//!
//! Half of what a fault costs is not restoring but exception, wake-ups and switches. A thread that
//! says what it is about to touch does not pay for those. It claims, decompresses and copies into
//! place as a handler does, and what follows in memory comes with one call. Everything here is a
//! hint: where anything is in the way, the page is left to a handler.
//!
//! What makes that safe on a thread of the program:
//!
//! - *Waiting.* It enters the gate as a worker, and only if no fork is pending or under way. So
//!   handlers go on serving whatever it waits for. It holds no region lock, waits for no claim of
//!   another thread, and blocks signals. A thread that runs on managed memory could be kept waiting
//!   for its own stack by a lock that it holds itself. It does not come here.
//! - *Its descriptors.* Our userfaultfds are not in the program's table. Copies of them are fetched
//!   into it when first needed, with high numbers. The program may close them, and put others in
//!   their place. So each is compared with what it was before it is used, and nothing but a copied
//!   page is believed. On any other answer the claim is given back with the stored bytes untouched.
//! - *A forked child* has its parent's copies, which lead into its parent's memory.
//!   [`Pager::fork_child`] closes them. Where a child was made past the C library, a page that the
//!   kernel wipes in every child says that they are not its own.

use crate::fault::inline::Cause;
use crate::pager::Pager;
use crate::pages::table::REGION;
use crate::pages::word::PageWord;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, Errno, ErrnoKept, Fd, PAGE, SignalsBlocked};
use terrace_tiers::{Identity, identity};

/// First number for copies of our userfaultfds: below the limit of `select` (1024) and above what
/// programs count on.
const FIRST_NUMBER: Fd = 960;
/// A program that closes copies this often does it on purpose.
const LOST_MAX: u32 = 16;
/// How long copies are not fetched again after a failure, ns.
const FETCH_AGAIN_NS: u64 = 1_000_000_000;
/// Longest wait for room, as for a fault.
const ROOM_WAIT: Duration = Duration::from_millis(5);
/// Most bytes of a stack that are used here.
const STACK_BYTES: usize = 64 << 10;

impl Pager {
    /// Brings every page of `start..start + len` that is out back now, without faults where that is
    /// possible. Any address will do: what is not managed, or not mapped, is left alone.
    pub fn touch(&self, start: usize, len: usize) {
        let end = start.saturating_add(len);
        let address = start & !(PAGE - 1);
        if len == 0 {
            return;
        }
        // At most two pages of one region: this is what is called most often.
        let last = end - 1;
        if last - address < 2 * PAGE && last / REGION == address / REGION {
            match self.table.get(address) {
                Some(entry)
                    if entry.word(address).seems_evicted() || entry.word(last).seems_evicted() => {}
                _ => return,
            }
        }
        if let Some(first) = self.first_evicted(address, end) {
            self.touch_from(first, end);
        }
    }

    /// Has another thread bring back the pages of `start..start + len` that are out, soon and as
    /// far as there is room. Never waits.
    pub fn prefetch(&self, start: usize, len: usize) {
        let end = start.saturating_add(len);
        let Some(first) = self
            .first_evicted(start & !(PAGE - 1), end)
            .filter(|_| len > 0 && !self.faults.run_tools.is_foreign())
        else {
            return;
        };
        let _signals = SignalsBlocked::new();
        let _errno = ErrnoKept::new();
        let Some(inside) = self.gate.try_worker() else { return };
        let mut prefetches = self.faults.run_tools.prefetches.lock();
        let count = prefetches.count;
        if let Some(place) = prefetches.ranges.get_mut(count) {
            *place = (first, end);
            prefetches.count += 1;
        }
        drop(prefetches);
        drop(inside);
        self.wake_mover();
    }

    /// How many pages of `start..start + len` are evicted or paged out, as far as is known. No page
    /// is touched, and each may come or go meanwhile.
    pub fn evicted_pages(&self, start: usize, len: usize) -> usize {
        let end = start.saturating_add(len);
        let mut address = start & !(PAGE - 1);
        let mut count = 0;
        while address < end {
            let until = end.min((address / REGION + 1) * REGION);
            if let Some(entry) = self.table.get(address) {
                let base = entry.region.address();
                let pages = &entry.words[(address - base) / PAGE..(until - base).div_ceil(PAGE)];
                let is_out = |word: &&PageWord| word.seems_evicted() || word.load().is_swapped();
                count += pages.iter().filter(is_out).count();
            }
            address = until;
        }
        count
    }

    #[cold]
    fn touch_from(&self, first: usize, end: usize) {
        // Nothing is out, or locks of this process are not usable, or only a handler may restore.
        if self.is_shut_down()
            || self.faults.run_tools.is_foreign()
            || self.faults.events.bypasses_libc()
        {
            return;
        }
        let mut signals = SignalsBlocked::new();
        let _errno = ErrnoKept::new();
        let by_itself = self.is_stack_unmanaged();
        let mut address = first;
        loop {
            let start_ns = sys::now_ns();
            let Some(entry) = self.table.get(address) else { return };
            let pages = self.evicted_run_len(&entry, address, end);
            self.wait_for_room((pages * PAGE) as u64, ROOM_WAIT);
            let mut back = 0;
            if by_itself {
                back = self.readahead_run(&entry, address, pages, Cause::Asked, |_, shard| {
                    self.copy_of(shard)
                });
            }
            if back == 0 {
                // By a handler, as if the program had touched it: one page is not more than the
                // caller asked for.
                sys::peek(address, &mut [0]);
                back = 1;
            } else {
                // In this thread. What a handler does it counts itself.
                self.account.add_stall(0, sys::now_ns() - start_ns);
            }
            let Some(next) = self.first_evicted(address + back * PAGE, end) else { return };
            address = next;
            // Signals that came meanwhile have their turn.
            drop(signals);
            signals = SignalsBlocked::new();
        }
    }

    /// Whether the calling thread's stack cannot be evicted from under it. Signals are blocked.
    fn is_stack_unmanaged(&self) -> bool {
        let here = 0u8;
        let here = &raw const here as usize;
        let inside = self.gate.try_worker();
        inside.is_some_and(|_inside| {
            !self.ranges.lock().overlaps(here.saturating_sub(STACK_BYTES), here + PAGE)
        })
    }

    /// Fetches copies of all our userfaultfds into the program's table, so that they stay open if
    /// the companion is killed.
    pub(crate) fn keep_copies(&self) {
        for shard in 0..self.descriptors.shards.load(Acquire) {
            self.copy_of(shard);
        }
    }

    /// A copy of a shard's userfaultfd in the program's table, if it is there or can be had.
    fn copy_of(&self, shard: usize) -> Option<Fd> {
        let tools = &self.faults.run_tools;
        if tools.own()?.load(Acquire) != 1 || self.is_shut_down() {
            return None;
        }
        let mut copies = tools.copies.lock();
        let copy = &mut copies[shard];
        if let Some((fd, known)) = *copy {
            if identity(fd) == Ok(known) {
                return Some(fd);
            }
            *copy = None;
            tools.lost.fetch_add(1, Relaxed);
        }
        let now_ns = sys::now_ns();
        if tools.lost.load(Relaxed) >= LOST_MAX || now_ns < tools.fetch_at_ns.load(Relaxed) {
            return None;
        }
        match fetch(self, shard) {
            Ok((fd, identity)) => {
                *copy = Some((fd, identity));
                Some(fd)
            }
            Err(e) => {
                tools.fetch_at_ns.store(now_ns + FETCH_AGAIN_NS, Relaxed);
                drop(copies);
                self.warn_once(
                    &tools.warned,
                    &format!("terrace_touch cannot restore by itself yet ({e}; it needs a free descriptor, and the right to fetch one of Terrace's): faults do it"),
                );
                None
            }
        }
    }
}

/// Fetches a copy of a shard's userfaultfd into the calling thread's table.
fn fetch(pager: &Pager, shard: usize) -> Result<(Fd, Identity), Errno> {
    let descriptors = &pager.descriptors;
    let low = sys::descriptor_of(pager.companion.pid(), descriptors.uffds[shard].load(Acquire))?;
    let fd = sys::duplicate_from(low, FIRST_NUMBER).or_else(|_| sys::duplicate_from(low, 3));
    sys::close(low);
    let fd = fd?;
    identity(fd).map(|identity| (fd, identity)).inspect_err(|_| sys::close(fd))
}
