//! The mover is one thread. It keeps memory below the budget by its low watermark, and measures
//! what the program touches.
//!
//! Eviction starts when less than half of the watermark is free (kswapd's low watermark), and stops
//! when all of it is (its high watermark).
//!
//! It holds at most one region's lock, and can be paused between any two batches. It waits for
//! program threads only at that lock, at the short locks of ranges and stores, and during a fork.
//! *Pressure* (like scan priority) rises by one after each full walk that was not enough. It falls
//! again while memory is within the budget.
//!
//! The *floor* is what memory cannot be brought below: full walks at the highest pressure found
//! next to nothing to evict.
//!
//! Its loop is in this file. [`state`] is what it keeps, [`walk`] finds victims, and
//! [`tier_choice`] chooses their tier. [`watermark`] computes how much is kept free,
//! [`crate::evict::priority`] sets the thread's priority, and [`upkeep`] is periodic work.

mod every;
mod far;
pub(crate) mod huge;
mod idle_restore;
mod measure;
mod page_out;
mod placing;
mod state;
mod stress;
mod tier_choice;
mod upkeep;
mod walk;
mod watermark;

use crate::evict::priority::{BACKGROUND_AFTER_NS, Priority};
use crate::fault::inline::RUN_PAGES;
use crate::mover::state::{IDLE_TICK, Mover, SLICE_NS, list};
use crate::mover::watermark::{REACTION_S, WATERMARK_MIN};
use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::threads::fork_notes::{PAUSE, PAUSED};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::Reason;

/// Sleep between iterations while the budget is near.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// Rest between slices of a plan's moves: half of a CPU at most is taken for them.
const PLACE_TICK: Duration = Duration::from_millis(10);
/// First delay, ns, before Terrace drops its own startup code from the page table; then eight times
/// longer each time.
const FORGET_AFTER_NS: u64 = 1_000_000_000;

impl Mover {
    /// Gives the mover precedence over the program's threads, where it may, while memory is over
    /// the budget. A thread that swaps a page in waits for no room, so the mover would otherwise
    /// fall behind where processors are scarce.
    pub(super) fn boost(&self, boosts: bool) {
        if boosts {
            self.pager.set_priority(Priority::Boosted);
        } else if self.pager.has_priority(Priority::Boosted) {
            self.pager.set_priority(Priority::Normal);
        }
    }
}

/// Runs the mover thread.
pub(crate) fn run(pager: &'static Pager) {
    sys::set_thread_background();
    let now_ns = sys::now_ns();
    pager.fetch_share();
    let mut mover = Mover::new(pager, now_ns);
    pager.prepare_move_ring();
    pager.mover.own_nice.store(sys::nice_of_thread().min(sys::nice_of_program()), Relaxed);
    pager.mover.priority.store(Priority::Normal as u32, Relaxed);
    pager.mover.normal_until_ns.store(now_ns + BACKGROUND_AFTER_NS, Relaxed);
    pager.confine_thread();
    pager.mover.running.store(true, Release);
    let mut forget_after_ns = FORGET_AFTER_NS;
    loop {
        let calls = pager.mover.calls.load(Acquire);
        pager.set_priority_by_room();
        mover.pause_if_asked();
        if pager.is_shut_down() {
            return;
        }
        pager.forget_unmapped();
        mover.page_out();
        mover.serve_prefetches();
        let sleep = mover.tick();
        if sys::now_ns() - now_ns > forget_after_ns {
            forget_after_ns = forget_after_ns.saturating_mul(8);
            sys::forget_own_code(pager.descriptors.pagemap.load(Relaxed));
        }
        if !sleep.is_zero() {
            sys::futex_wait(&pager.mover.calls, calls, Some(sleep));
        }
    }
}

impl Mover {
    fn pause_if_asked(&mut self) {
        let pause = &self.pager.mover.pause;
        if pause.load(SeqCst) != PAUSE {
            return;
        }
        self.evictor.cancel_probes(self.pager);
        if self.pager.descriptors.tracks_writes.load(Relaxed) {
            // A forked child registers what is believed to be registered: not what is something
            // else.
            self.pager.unmanage_unregistered(0, usize::MAX / PAGE * PAGE);
        }
        if pause.compare_exchange(PAUSE, PAUSED, SeqCst, SeqCst).is_ok() {
            sys::futex_wake(pause, u32::MAX >> 1);
        }
        while pause.load(SeqCst) == PAUSED {
            sys::futex_wait(pause, PAUSED, None);
        }
    }

    /// Serves [`Pager::prefetch`] while no eviction would follow from it.
    fn serve_prefetches(&mut self) {
        let pager = self.pager;
        pager.drain_prefetches(|pager| {
            let budget = pager.account.budget_bytes.load(Relaxed);
            let room = budget.saturating_sub(self.low_watermark(budget, sys::now_ns()) / 2);
            let may = !pager.pause_asked()
                && !pager.is_shut_down()
                && !pager.faults.events.bypasses_libc();
            may && pager.physical_bytes() + ((RUN_PAGES * PAGE) as u64) < room
        });
    }

    /// Runs an iteration; returns the sleep that follows.
    fn tick(&mut self) -> Duration {
        let pager = self.pager;
        let now_ns = sys::now_ns();
        let budget = pager.account.budget_bytes.load(Relaxed);
        let tight = pager.physical_bytes() + budget / 8 > budget;
        let due = if tight || self.measure.has_shrunk(pager) {
            self.measure.scan_due(now_ns)
        } else {
            self.measure.idle_scan_due(now_ns)
        };
        if due {
            self.scan();
        }
        if self.sync_stats_page.take_due(now_ns) {
            pager.sync_stats_page();
        }
        self.measure.tick(pager, now_ns);
        self.measure_refault_distance(now_ns);
        if self.purge_allocator.take_due(now_ns) {
            (pager.host.purge_soon)();
        }
        if pager.table.has_refused() {
            pager.warn_once(&pager.warned.no_room, "pages stay in DRAM: there is no memory for their table (ulimit -d, vm.max_map_count)");
        }
        if pager.settings.sites && self.report_samples.is_due(now_ns) {
            self.report_samples(now_ns);
            (pager.host.scan_sites)(now_ns);
        }
        if pager.mode() != Mode::Active {
            return self.idle_tick(u64::MAX);
        }
        self.tidy_files(now_ns);
        self.poll_swap(now_ns);
        if pager.is_frozen() {
            self.evictor.cancel_probes(pager);
            return IDLE_TICK;
        }
        if !pager.pause_asked() {
            self.evictor.train(pager);
        }
        let before = self.demoted();
        let (policy, pressure) = (&mut self.policy, self.pressure);
        self.evictor.end_probes(pager, now_ns, |region, staged, touched, evicted| {
            list(
                pager,
                Reason::Probed,
                (region, policy.heat(region)),
                pressure,
                evicted.into(),
                pager.own_tier(1),
            );
            policy.probed(region, staged, touched, now_ns / 1_000_000);
        });
        self.count(Reason::Probed, before);
        if tight {
            self.compact_pools(now_ns);
        }
        self.follow_list_of_tiers(now_ns);
        let stressed = self.stress(now_ns);
        let budget = pager.account.budget_bytes.load(Relaxed);
        if budget == u64::MAX && self.placer.is_none() {
            return if self.empty_disabled(budget, 0, now_ns) {
                PLACE_TICK
            } else if stressed {
                Duration::from_millis(1)
            } else {
                self.idle_tick(u64::MAX)
            };
        }
        if self.report_refaults.is_due(now_ns) {
            self.report_refaults(now_ns);
        }
        if self.report_samples.is_due(now_ns) {
            self.report_samples(now_ns);
        }
        let watermark = self.low_watermark(budget, now_ns);
        pager.mover.low_watermark.store(watermark, Relaxed);
        if let Some(far) = &mut self.far {
            far.refresh_locations(pager, now_ns);
            let pools_and_overhead =
                pager.physical_bytes().saturating_sub(pager.account.resident() * PAGE as u64);
            let room = budget.saturating_sub(watermark + pools_and_overhead);
            far.decide(pager, room, now_ns);
        }
        if let Some(huge) = &mut self.huge {
            huge.poll(pager, &mut *self.policy, &self.measure.views, self.measure.scanned_ns);
        }
        let empties = self.empty_disabled(budget, watermark, now_ns);
        let moves_on = self.place(budget, watermark, now_ns) || empties;
        let physical = pager.physical_bytes();
        if physical <= budget {
            self.lower_pressure(now_ns);
        }
        let swaps = pager.swap().is_some_and(|(tier, _)| tier.stats.pages() > 0);
        self.boost(swaps && physical > budget);
        // Beyond half of the budget no single demand is worth it.
        let demand = pager.mover.demand.load(Relaxed).min(budget / 2);
        if physical + demand > budget - watermark / 2 {
            if self.make_room(budget - watermark.max(demand), now_ns) {
                return Duration::ZERO;
            }
            return BUSY_TICK;
        }
        self.note_within_budget();
        // Not while memory grows: what comes back then would leave again at once. Nor in a fork's
        // child, whose parent has the pages.
        let grows = self.growth * REACTION_S > WATERMARK_MIN as f64;
        if self.far.is_none() && self.placer.is_none() && !stressed && !grows && !pager.is_forked()
        {
            self.idle_restore.tick(pager, budget.saturating_sub(watermark * 3 / 2), budget, now_ns);
        }
        if moves_on {
            PLACE_TICK
        } else if stressed {
            Duration::from_millis(1)
        } else if self.evictor.probing() || physical + budget / 8 > budget {
            BUSY_TICK
        } else {
            self.idle_tick(budget - physical)
        }
    }

    /// `--placement`: plans at a window's end, and moves pages for a slice of time where there is
    /// something to move. True while there is more.
    fn place(&mut self, budget: u64, watermark: u64, now_ns: u64) -> bool {
        let Some(placer) = &mut self.placer else { return false };
        placer.note_pressure(self.pressure);
        let pager = self.pager;
        if self.placer.as_ref().is_some_and(|placer| placer.is_due(pager, now_ns)) {
            self.scan();
            self.report_refaults(now_ns);
            self.report_samples(now_ns);
            if let Some(placer) = &mut self.placer {
                placer.end_window(pager, &mut self.evictor, &self.measure.views, now_ns);
            }
        }
        let before = self.demoted();
        let until = budget.saturating_sub(watermark * 3 / 2);
        let mut room = || {
            let goes_on = !pager.pause_asked() && !pager.is_shut_down();
            goes_on && pager.physical_bytes() + ((RUN_PAGES * PAGE) as u64) < until
        };
        let policy = &mut self.policy;
        let evicted = |region, pages| {
            if pages > 0 {
                policy.evicted(region, pages, now_ns / 1_000_000);
            }
        };
        let deadline = sys::now_ns() + SLICE_NS;
        let more = self.placer.as_mut().is_some_and(|placer| {
            placer.run_moves(pager, &mut self.evictor, deadline, &mut room, evicted)
        });
        self.count(Reason::Planned, before);
        more
    }

    /// Sleep with `room` bytes free; longer while nothing changes.
    fn idle_tick(&mut self, room: u64) -> Duration {
        self.backoff.sleep(self.pager.physical_bytes(), room, false)
    }
}
