//! The state that the mover keeps between its ticks, and what all of its parts use.

use super::measure::Measure;
use crate::evict::Evictor;
use crate::mover::every::Every;
use crate::mover::far::Far;
use crate::mover::huge::Huge;
use crate::mover::idle_restore::IdleRestore;
use crate::mover::placing::Placer;
use crate::mover::upkeep::Drain;
use crate::pager::Pager;
use crate::pages::table::REGION;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use terrace_control::backoff::Backoff;
use terrace_control::moves::MoveReason;
use terrace_os::PAGE;
use terrace_policy::eviction::faults::Faults;
use terrace_policy::eviction::victims::{Choice, Reason, RegionId, VictimPolicy};
use terrace_policy::registry::live;

/// Longest stretch of evicting before measuring again.
pub(super) const SLICE_NS: u64 = 10_000_000;
/// Sleep between ticks while there is plenty of room.
pub(super) const IDLE_TICK: Duration = Duration::from_millis(50);
/// Longest sleep while nothing new is found.
const IDLE_TICK_MAX: Duration = Duration::from_millis(250);
/// How often refaults are reported to the policy, ns.
const REFAULTS_EVERY_NS: u64 = 200_000_000;
/// How often samples are reported to the policy, ns.
const SAMPLES_EVERY_NS: u64 = 100_000_000;
const SAMPLES_WITH_ROOM: f32 = 0.1;
/// How often what `terrace run` reads and writes behind the statistics page is copied, ns.
const SYNC_STATS_PAGE_EVERY_NS: u64 = 20_000_000;
/// How often the program is asked to free unused memory, ns.
const PURGE_ALLOCATOR_EVERY_NS: u64 = 1_000_000_000;
/// How often the device under the kernel's swap is checked, ns.
const SWAP_POLL_INTERVAL_NS: u64 = 200_000_000;
/// How often files free their unused space, and a refusing one is tried again, ns.
const TIDY_EVERY_NS: u64 = 50_000_000;
const TRY_AGAIN_EVERY_NS: u64 = 1_000_000_000;
/// How many pools are checked at a time, and how often, ns: 0.2 % of a CPU, and a second for 12
/// GiB. One is compacted at a time.
pub(super) const POOLS_AT_ONCE: u32 = 32;
const POOLS_EVERY_NS: u64 = 5_000_000;
/// How often the list of tiers in use is read, ns.
const FOLLOW_TIERS_EVERY_NS: u64 = 100_000_000;
/// How long a fork's child leaves pages in disabled tiers, ns.
const FORKED_RESTS_NS: u64 = 10_000_000_000;
/// Pages that are taken at a time: twice as many of a region, if that much room is needed. While a
/// thread waits for room it is `AT_ONCE_WAITED_FOR`: 0.2 ms with lz4.
pub(super) const AT_ONCE: usize = 32;
pub(super) const AT_ONCE_WAITED_FOR: usize = 24;
/// Shortest and longest rest after a walk that found next to nothing, ns. It doubles each time.
pub(super) const REST_MIN_NS: u64 = 20_000_000;
pub(super) const REST_MAX_NS: u64 = 1_000_000_000;

/// The state that the mover's thread keeps from one tick to the next.
pub(super) struct Mover {
    pub pager: &'static Pager,
    pub evictor: Evictor,
    pub measure: Measure,
    pub policy: Box<dyn VictimPolicy>,
    /// Present where there is a tier `node:N`.
    pub far: Option<Far>,
    /// Present where hot regions get huge pages.
    pub huge: Option<Huge>,
    /// Samples that have been reported to the policy.
    pub samples_taken: u64,
    pub report_samples: Every,
    pub sync_stats_page: Every,
    pub pressure: u32,
    pub eased_ns: u64,
    pub order: Vec<Choice>,
    pub cursor: usize,
    /// The page to go on with, in the region at the cursor.
    pub from: usize,
    pub ranked_ns: u64,
    /// Recent peak rate of first touches, bytes per second: see `low_watermark`.
    pub growth: f64,
    pub grew_ns: u64,
    pub decayed_ns: u64,
    pub backoff: Backoff,
    /// How often a tier has been chosen, wrapping around.
    pub choices: u32,
    /// Pages whose probation is over.
    pub leaving: Vec<u32>,
    /// When the number of evicted pages was `paced_pages`.
    pub paced_ns: u64,
    pub paced_pages: u64,
    /// Bytes of pages that the present walk through the order evicted.
    pub walk_moved_bytes: u64,
    /// The CLOCK hand took refaults off: the next walk may find more.
    pub walk_changed: bool,
    pub report_refaults: Every,
    /// No walk before this time: the last one found next to nothing.
    pub backoff_until_ns: u64,
    pub rest_ns: u64,
    pub random: u64,
    pub stress_due: f64,
    pub stress_ns: u64,
    pub tidy_files: Every,
    pub try_files_again: Every,
    pub purge_allocator: Every,
    pub poll_swap: Every,
    pub try_swap_again: Every,
    pub idle_restore: IdleRestore,
    /// Present with `--placement`.
    pub placer: Option<Placer>,
    /// The region whose pool was checked last.
    pub tidied_region: RegionId,
    pub compact_pools: Every,
    /// When the list of tiers is read again, which may have changed.
    pub follow_tiers: Every,
    pub drain: Drain,
}

impl Mover {
    /// The state of a mover that begins at `now_ns`.
    pub fn new(pager: &'static Pager, now_ns: u64) -> Mover {
        Mover {
            pager,
            evictor: Evictor::new(pager),
            measure: Measure::new(pager),
            policy: live::victims(pager.settings.policy.name())
                .unwrap_or_else(|| Box::new(Faults::default())),
            far: Far::new(pager),
            huge: Huge::new(pager),
            samples_taken: 0,
            report_samples: Every::new(SAMPLES_EVERY_NS, now_ns),
            sync_stats_page: Every::new(SYNC_STATS_PAGE_EVERY_NS, 0),
            pressure: 0,
            eased_ns: now_ns,
            order: Vec::new(),
            cursor: 0,
            from: 0,
            ranked_ns: 0,
            growth: 0.0,
            grew_ns: now_ns,
            decayed_ns: now_ns,
            backoff: Backoff::new(IDLE_TICK, IDLE_TICK_MAX),
            choices: 0,
            leaving: Vec::with_capacity(AT_ONCE),
            paced_ns: now_ns,
            paced_pages: 0,
            walk_moved_bytes: 0,
            walk_changed: false,
            report_refaults: Every::new(REFAULTS_EVERY_NS, now_ns),
            backoff_until_ns: 0,
            rest_ns: REST_MIN_NS,
            random: now_ns | 1,
            stress_due: 0.0,
            stress_ns: now_ns,
            tidy_files: Every::new(TIDY_EVERY_NS, now_ns),
            try_files_again: Every::new(TRY_AGAIN_EVERY_NS, now_ns),
            purge_allocator: Every::new(PURGE_ALLOCATOR_EVERY_NS, now_ns),
            poll_swap: Every::new(SWAP_POLL_INTERVAL_NS, 0),
            try_swap_again: Every::new(TRY_AGAIN_EVERY_NS, 0),
            idle_restore: IdleRestore::new(now_ns),
            placer: Placer::new(pager, now_ns),
            tidied_region: 0,
            compact_pools: Every::new(POOLS_EVERY_NS, 0),
            follow_tiers: Every::new(FOLLOW_TIERS_EVERY_NS, 0),
            // A fork's parent has the same pages, and the same to do.
            drain: Drain::new(if pager.is_forked() { now_ns + FORKED_RESTS_NS } else { 0 }),
        }
    }

    /// Pages demoted so far: evicted, moved to the node, or recompressed into a colder tier. Only
    /// this thread demotes pages.
    pub fn demoted(&self) -> u64 {
        self.pager.account.demoted_pages.load(Relaxed)
    }

    /// Counts the pages demoted since there were `before` as demoted for this reason.
    pub fn count(&self, reason: Reason, before: u64) {
        self.pager.account.demoted_for[reason as usize].fetch_add(self.demoted() - before, Relaxed);
    }

    /// Lists pages moved out of a region. They may come from any tier if the reason is that they
    /// take less room in a denser one.
    pub fn list(&self, reason: Reason, region: RegionId, pages: u64, to: usize) {
        list(self.pager, reason, (region, self.policy.heat(region)), self.pressure, pages, to);
    }

    /// Scans all memory.
    pub fn scan(&mut self) {
        self.measure.scan(self.pager);
        if let Some(far) = &mut self.far {
            far.after_scan(self.pager, &mut self.measure.views);
        }
    }

    /// Reports refaults to the policy.
    pub fn report_refaults(&mut self, now_ns: u64) {
        self.report_refaults.done(now_ns);
        let table = &self.pager.table;
        for number in 0..table.len() {
            let region = table.by_number(number).region;
            let refaults = region.refaults.swap(0, Relaxed);
            if refaults > 0 {
                self.pager.list_move(
                    region.address(),
                    refaults.into(),
                    None,
                    0,
                    MoveReason::Touched,
                );
            }
            let restores = region.restores.swap(0, Relaxed);
            if restores > 0 {
                if let Some(placer) = &mut self.placer {
                    placer.refaulted(number, restores);
                }
                self.policy.restored(number, restores, now_ns / 1_000_000);
            }
            let freed = region.freed.swap(0, Relaxed);
            if freed > 0 {
                self.policy.freed(number, freed, now_ns / 1_000_000);
            }
        }
    }

    /// Reports to the policy where the program waited for memory.
    pub fn report_samples(&mut self, now_ns: u64) {
        self.report_samples.done(now_ns);
        let pager = self.pager;
        let (Some(samples), Some(page)) = (pager.samples(), pager.stats()) else { return };
        // While there is plenty of room, what is hot makes no difference yet.
        let budget = self.pager.account.budget_bytes.load(Relaxed);
        let tight = self.pager.physical_bytes() + budget / 8 > budget;
        let wanted = match &self.far {
            // Only samples show what is used there.
            Some(_) if pager.far_pages() > 0 => 1.0,
            _ if self.huge.is_some() || pager.settings.sites || self.placer.is_some() => 1.0,
            _ if tight => self.policy.samples_wanted(),
            _ => SAMPLES_WITH_ROOM,
        };
        page.samples_percent.store((wanted * 100.0) as u64, Relaxed);
        let (table, policy, far) = (&pager.table, &mut self.policy, &mut self.far);
        let placer = &mut self.placer;
        let sampled = pager.host.sampled;
        samples.take(&mut self.samples_taken, |address, weight| {
            sampled(address, weight);
            // Memory that is not managed has no region.
            if let Some(entry) = table.get(address) {
                policy.sampled(entry.number, weight);
                if let Some(placer) = placer {
                    placer.sampled(entry.number, address % REGION / PAGE, weight);
                }
                if let Some(far) = far {
                    far.sampled(entry.number, weight);
                }
            }
        });
    }
}

/// Lists what a victim policy evicted from a region: see [`crate::Mm::list_move`].
pub(super) fn list(
    pager: &Pager,
    reason: Reason,
    (region, heat): (RegionId, Option<f32>),
    pressure: u32,
    pages: u64,
    to: usize,
) {
    // Stress moves anything, and what is recompressed may be from any tier.
    let from = (!matches!(reason, Reason::Recompressed | Reason::Stress)).then_some(0);
    pager.list_move(
        pager.table.by_number(region).region.address(),
        pages,
        from,
        to,
        MoveReason::Victim { reason, heat, pressure },
    );
}
