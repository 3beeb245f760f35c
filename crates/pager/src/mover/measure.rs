//! Measures where memory is: estimates for control, exact scans, time averages for reports.
//!
//! A cgroup's usage is not used, because it includes page cache. A program that writes files would
//! lose memory by it. Between scans, resident pages are estimated from the process's anonymous
//! memory (/proc/self/statm). A change since the last scan that is neither pools nor overhead is
//! taken for managed memory.

use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::pages::table::REGION;
use crate::time_lost::LostTime;
use std::sync::atomic::Ordering::*;
use terrace_control::budget_status::BudgetStatus;
use terrace_control::stats::TierPage;
use terrace_os::{self as sys, Fd, PAGE, Run};
use terrace_policy::eviction::victims::{Expectation, RegionView};
use terrace_tiers::Tier;

/// A quantity's average over time.
#[derive(Default)]
struct Mean {
    integral: f64,
}

impl Mean {
    fn add(&mut self, value: u64, seconds: f64) {
        self.integral += value as f64 * seconds;
    }
    fn over(&self, seconds: f64) -> u64 {
        if seconds > 0.0 { (self.integral / seconds) as u64 } else { 0 }
    }
}

/// The largest value of the last one to two [`RECENT_NS`].
#[derive(Default)]
struct RecentMax {
    since_ns: u64,
    before: u64,
    now: u64,
}

impl RecentMax {
    fn max(&mut self, now_ns: u64) -> u64 {
        if now_ns - self.since_ns > RECENT_NS {
            (self.before, self.now, self.since_ns) = (self.now, 0, now_ns);
        }
        self.before.max(self.now)
    }

    fn add(&mut self, bytes: u64) {
        self.now = self.now.max(bytes);
    }
}

/// The mover's measuring. Owned by its thread.
pub(crate) struct Measure {
    /// Regions with evictable resident pages at the last scan.
    pub views: Vec<RegionView>,
    pub scanned_ns: u64,
    /// Rate of first touches before the last scan, bytes/s: since the scan before it, or in the
    /// last second. Re-touching up to [`CHURN_BYTES`] freed recently is not growth.
    pub growth: f64,
    recently_touched: RecentMax,
    /// The time from which on `growth` is measured, and the bytes touched then.
    grown_from: (u64, u64),
    /// Rate of swap-ins by the kernel in that time, bytes/s.
    pub swap_in_rate: f64,
    /// /proc/self/status, if there is a tier `swap`; otherwise -1.
    status: Fd,
    /// Pages of the process in the kernel's swap that are not managed, at the last scan.
    swapped_unmanaged: u64,
    swapped_ns: u64,
    scan_cost_ns: u64,
    /// Where there is far memory: anonymous bytes at the last scan, and the least since.
    anonymous_then: u64,
    anonymous_least: u64,
    shared_pages: u64,
    /// Anonymous bytes that are neither managed nor ours, at the last scan.
    unmanaged_bytes: u64,
    touched_max_bytes: u64,
    last_ns: u64,
    seconds: f64,
    logical: Mean,
    physical: Mean,
    overhead: Mean,
    unmanaged: Mean,
    tiers: Vec<(Mean, Mean)>,
    budget_status: BudgetStatus,
    peak_physical_bytes: u64,
    published_ns: u64,
    lost_time: LostTime,
    /// The last result of [`LostTime::add_lost`].
    last_minute: (u64, u64),
    /// The scan after which that was measured.
    judged_scan_ns: u64,
    runs: Box<[Run]>,
}

/// How often the statistics page is written, ns.
const PUBLISH_EVERY_NS: u64 = 100_000_000;
/// A scan may cost this share of the time between scans (1/64: 1.6 % of a core while memory is
/// tight).
const SCAN_SHARE: u64 = 64;
/// Pages scanned before the mover yields: an eighth of a millisecond.
const PAUSE_PAGES: usize = 16 << 10;
/// Shortest time between scans, ns.
const SCAN_EVERY_NS: u64 = 200_000_000;
/// The scan share and the shortest time between scans (ns) while memory is far below the budget.
/// Scans then only correct what is estimated between them.
const IDLE_SCAN_SHARE: u64 = 1024;
const IDLE_SCAN_EVERY_NS: u64 = 1_000_000_000;
/// See [`RecentMax`].
const RECENT_NS: u64 = 2_000_000_000;
/// Bytes that may be freed and touched again without counting as growth.
const CHURN_BYTES: u64 = 8 << 20;
/// See [`Measure::has_shrunk`].
const SHRUNK_BYTES: u64 = 16 << 20;
/// Shortest time between readings of how much is swapped, ns.
const SWAPPED_EVERY_NS: u64 = 4_000_000;

impl Measure {
    pub fn new(pager: &Pager) -> Self {
        Measure {
            views: Vec::new(),
            scanned_ns: 0,
            growth: 0.0,
            recently_touched: RecentMax::default(),
            grown_from: (0, 0),
            swap_in_rate: 0.0,
            status: pager
                .swap()
                .and_then(|_| sys::open("/proc/self/status\0", libc::O_RDONLY, 0).ok())
                .unwrap_or(-1),
            swapped_unmanaged: 0,
            swapped_ns: 0,
            scan_cost_ns: 0,
            anonymous_then: 0,
            anonymous_least: 0,
            shared_pages: 0,
            unmanaged_bytes: 0,
            touched_max_bytes: 0,
            last_ns: sys::now_ns(),
            seconds: 0.0,
            logical: Mean::default(),
            physical: Mean::default(),
            overhead: Mean::default(),
            unmanaged: Mean::default(),
            tiers: pager.tiers.iter().map(|_| Default::default()).collect(),
            budget_status: BudgetStatus::default(),
            peak_physical_bytes: 0,
            published_ns: 0,
            lost_time: LostTime::new(&pager.faults.cost),
            last_minute: (0, 0),
            judged_scan_ns: 0,
            runs: vec![Run::default(); 1024].into(),
        }
    }

    /// Whether the last scan is old enough for another.
    pub fn scan_due(&self, now_ns: u64) -> bool {
        now_ns - self.scanned_ns >= SCAN_EVERY_NS.max(self.scan_cost_ns * SCAN_SHARE)
    }

    /// Whether a scan is due while memory is far below the budget, or the first scan has yet to be
    /// made.
    pub fn idle_scan_due(&self, now_ns: u64) -> bool {
        self.scanned_ns == 0
            || now_ns - self.scanned_ns
                >= IDLE_SCAN_EVERY_NS.max(self.scan_cost_ns * IDLE_SCAN_SHARE)
    }

    /// Whether anonymous memory shrank much since the last scan, so that far pages may be
    /// overcounted.
    pub fn has_shrunk(&self, pager: &Pager) -> bool {
        pager.far_pages() > 0
            && self.anonymous_then - self.anonymous_least.min(self.anonymous_then)
                > SHRUNK_BYTES.max(self.anonymous_then / 16)
    }

    /// Counts present pages of every managed range exactly, and our own.
    pub fn scan(&mut self, pager: &Pager) {
        let (start_ns, begun_cpu_ns) = (sys::now_ns(), sys::thread_cpu_ns());
        let pagemap = pager.descriptors.pagemap.load(Relaxed);
        let returned_before = pager.account.promoted_pages.load(Relaxed);
        let ranges = pager.ranges.lock().all();
        self.views.clear();
        self.shared_pages = pager.account.shared_tries.swap(0, Relaxed);
        let (mut resident_pages, mut swapped_pages, mut returned) = (0, 0, 0);
        let scan = if pager.swap().is_some() { sys::scan_held } else { sys::scan_present };
        let mut runs = std::mem::take(&mut self.runs);
        let mut since_pause = 0;
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let Ok((count, walked)) = scan(pagemap, start, range.end, &mut runs) else { break };
                for run in &runs[..count] {
                    let pages = run.bytes() / PAGE;
                    if run.is_swapped() {
                        swapped_pages += pages;
                        continue;
                    }
                    resident_pages += pages;
                    since_pause += pages;
                    if range.attributes.may_leave() {
                        returned += self.view_run(
                            pager,
                            run.start as usize,
                            run.end as usize,
                            range.attributes.expected,
                        );
                    }
                }
                start = walked.max(start + PAGE);
                // Half a gigabyte takes a millisecond. What is touched meanwhile seems unmanaged:
                // so not after each of many small ranges.
                if since_pause >= PAUSE_PAGES {
                    since_pause = 0;
                    pager.yield_if_due();
                }
            }
        }
        self.runs = runs;
        // About half of the pages restored during the scan were missed by it.
        resident_pages +=
            (pager.account.promoted_pages.load(Relaxed) - returned_before) as usize / 2;
        let own = |(start, end): (usize, usize)| self.count(pagemap, start, end);
        let ranges = pager.table.footprint().into_iter().chain([
            pager.staging.range(),
            pager.companion.range(),
            (pager.host.unmanaged_range)(),
        ]);
        let overhead = ranges.map(own).sum::<u64>() + (pager.host.map_bytes)();
        pager.account.overhead_bytes.store(overhead, Relaxed);
        pager
            .account
            .resident_pages
            .store(resident_pages as i64 - pager.far_pages() as i64, Relaxed);
        pager.set_swapped(swapped_pages as u64);
        self.swapped_unmanaged = (sys::swapped_bytes(self.status).unwrap_or(0) / PAGE as u64)
            .saturating_sub(swapped_pages as u64);
        let anonymous = near_anonymous_bytes(pager);
        (self.anonymous_then, self.anonymous_least) = (anonymous, anonymous);
        self.unmanaged_bytes =
            anonymous.saturating_sub(pager.physical_bytes().saturating_sub(in_files(pager)));
        let touched_bytes = pager.touched_bytes();
        let (from_ns, from_bytes) =
            std::mem::replace(&mut self.grown_from, (start_ns, touched_bytes));
        let seconds = (start_ns - from_ns) as f64 / 1e9;
        let known =
            from_bytes.max(self.recently_touched.max(start_ns).min(from_bytes + CHURN_BYTES));
        self.recently_touched.add(touched_bytes);
        self.growth = if self.scanned_ns == 0 {
            0.0
        } else {
            touched_bytes.saturating_sub(known) as f64 / seconds.max(1e-3)
        };
        self.swap_in_rate = if self.scanned_ns == 0 {
            0.0
        } else {
            (returned * PAGE as u64) as f64 / seconds.max(1e-3)
        };
        self.scanned_ns = sys::now_ns();
        pager.account.scanned_ms.store(self.scanned_ns / 1_000_000, Relaxed);
        self.scan_cost_ns = sys::thread_cpu_ns() - begun_cpu_ns;
    }

    /// Adds a run of present pages to `views`. Returns how many of them were swapped in.
    fn view_run(
        &mut self,
        pager: &Pager,
        start: usize,
        end: usize,
        expected: Option<Expectation>,
    ) -> u64 {
        let mut returned = 0;
        let mut address = start;
        while address < end {
            let next = end.min((address / REGION + 1) * REGION);
            if let Some(entry) = pager.table.get_or_create(address) {
                returned += pager.note_swap_ins(&entry, address, next);
                let pages = ((next - address) / PAGE) as u32;
                match self.views.last_mut() {
                    Some(view) if view.region == entry.number => view.resident_pages += pages,
                    _ => self.views.push(RegionView {
                        region: entry.number,
                        resident_pages: pages,
                        evicted_pages: entry.region.evicted.load(Relaxed)
                            + entry.region.swapped.load(Relaxed),
                        expected,
                    }),
                }
            }
            address = next;
        }
        returned
    }

    /// Estimates swapped pages between scans from VmSwap, because swap-ins cause no fault here.
    fn count_swapped(&mut self, pager: &Pager, now_ns: u64) {
        if self.status < 0 || self.scanned_ns == 0 || now_ns - self.swapped_ns < SWAPPED_EVERY_NS {
            return;
        }
        self.swapped_ns = now_ns;
        if let Some(bytes) = sys::swapped_bytes(self.status) {
            pager.set_swapped((bytes / PAGE as u64).saturating_sub(self.swapped_unmanaged));
        }
    }

    fn count(&self, pagemap: Fd, start: usize, end: usize) -> u64 {
        let mut runs = [Run::default(); 64];
        let mut bytes = 0;
        let mut from = start;
        while from < end {
            let Ok((count, walked)) = sys::scan_present(pagemap, from, end, &mut runs) else {
                break;
            };
            bytes += runs[..count].iter().map(Run::bytes).sum::<usize>() as u64;
            from = walked.max(from + PAGE);
        }
        bytes
    }

    /// Brings the estimates and averages up to `now_ns`.
    pub fn tick(&mut self, pager: &Pager, now_ns: u64) {
        let account = &pager.account;
        self.count_swapped(pager, now_ns);
        let pools_total: u64 = pager.tiers.iter().map(Tier::dram_bytes).sum();
        let overhead = account.overhead_bytes.load(Relaxed);
        let anonymous = near_anonymous_bytes(pager);
        self.anonymous_least = self.anonymous_least.min(anonymous);
        if anonymous > 0 && self.scanned_ns > 0 {
            let anonymous_pools: u64 = pager.tiers.iter().map(Tier::anonymous_bytes).sum();
            let resident =
                anonymous.saturating_sub(self.unmanaged_bytes + anonymous_pools + overhead);
            account.resident_pages.store((resident / PAGE as u64) as i64, Relaxed);
        }
        // A page in transit is counted twice for a moment, and pools count what they may touch. So
        // anonymous memory, with files in DRAM, is the upper bound.
        let most = if anonymous > 0 { anonymous + in_files(pager) } else { u64::MAX };
        let physical = pager.physical_bytes().min(most);
        let resident = physical - pools_total.min(physical) - overhead.min(physical);
        let logical = pager.touched_bytes();
        if now_ns.saturating_sub(self.grown_from.0) > IDLE_SCAN_EVERY_NS {
            self.grown_from = (now_ns, logical);
        }
        self.touched_max_bytes = self.touched_max_bytes.max(logical);
        let budget = pager.share_of_budget(self.touched_max_bytes);
        account.budget_bytes.store(budget, Relaxed);

        let seconds = (now_ns - self.last_ns) as f64 / 1e9;
        self.last_ns = now_ns;
        self.seconds += seconds;
        self.logical.add(logical, seconds);
        self.physical.add(physical, seconds);
        self.overhead.add(overhead, seconds);
        self.unmanaged
            .add(anonymous.saturating_sub(physical.saturating_sub(in_files(pager))), seconds);
        for (index, (logical, physical)) in self.tiers.iter_mut().enumerate() {
            let dram = index == 0;
            logical.add(
                if dram { resident } else { pager.tiers[index].stats.logical_bytes() },
                seconds,
            );
            physical.add(if dram { resident } else { pager.tiers[index].memory_bytes() }, seconds);
        }
        self.peak_physical_bytes = self.peak_physical_bytes.max(physical);
        self.budget_status.add(physical, budget, pager.mover.at_floor.load(Relaxed), seconds);
        if now_ns - self.published_ns >= PUBLISH_EVERY_NS {
            self.published_ns = now_ns;
            account.cpu_ns.store(account.cpu_ns(), Relaxed);
            // With a swap tier, lost time is updated once per scan.
            if pager.swap().is_none() || self.judged_scan_ns != self.scanned_ns {
                self.judged_scan_ns = self.scanned_ns;
                self.last_minute = self.lost_time.add_lost(account, &pager.faults.cost, now_ns);
            }
            self.publish(pager, now_ns, logical, physical, budget);
        }
    }

    fn publish(&mut self, pager: &Pager, now_ns: u64, logical: u64, physical: u64, budget: u64) {
        let Some(page) = pager.stats() else { return };
        let account = &pager.account;
        let seconds = self.seconds;
        let missed = pager.mode() == Mode::Active && !self.budget_status.is_kept();
        page.budget_bytes.store(budget, Relaxed);
        page.budget_met.store(u32::from(!missed), Relaxed);
        page.floor_bytes.store(if missed { self.budget_status.floor_bytes() } else { 0 }, Relaxed);
        page.at_floor.store(u32::from(pager.mover.at_floor.load(Relaxed)), Relaxed);
        page.mean_window_ms.store((seconds * 1000.0) as u64, Relaxed);
        page.mean_logical_bytes.store(self.logical.over(seconds), Relaxed);
        page.mean_physical_bytes.store(self.physical.over(seconds), Relaxed);
        page.mean_overhead_bytes.store(self.overhead.over(seconds), Relaxed);
        page.mean_unmanaged_bytes.store(self.unmanaged.over(seconds), Relaxed);
        page.logical_bytes.store(logical, Relaxed);
        page.physical_bytes.store(physical, Relaxed);
        page.peak_overhead_bytes.fetch_max(account.overhead_bytes.load(Relaxed), Relaxed);
        page.peak_physical_bytes.store(self.peak_physical_bytes, Relaxed);
        page.peak_logical_bytes.store(self.touched_max_bytes, Relaxed);
        page.over_budget_ms.store((self.budget_status.over_s() * 1000.0) as u64, Relaxed);
        page.far_over_budget_ms.store((self.budget_status.far_over_s() * 1000.0) as u64, Relaxed);
        page.floor_ms.store((self.budget_status.floor_s() * 1000.0) as u64, Relaxed);
        page.last_minute_ns.store(self.last_minute.0, Relaxed);
        page.last_minute_lost_ns.store(self.last_minute.1, Relaxed);
        account.shared_pages.store(self.shared_pages, Relaxed);
        for (index, (tier, field)) in pager.tiers.iter().zip(&page.tiers).enumerate() {
            let (logical, physical) = &self.tiers[index];
            publish_tier(field, tier, logical.over(seconds), physical.over(seconds));
        }
        pager.publish_counts();
        pager.trace.publish(page);
        page.updated_ns.store(now_ns, Release);
        pager.publish_stats();
    }
}

/// Anonymous memory of this process, but for managed pages and pools in far memory; 0 if that
/// cannot be read.
fn near_anonymous_bytes(pager: &Pager) -> u64 {
    let all = sys::anonymous_bytes(pager.descriptors.statm.load(Relaxed)).unwrap_or(0);
    let pools: u64 = pager.tiers.iter().map(Tier::far_pool_bytes).sum();
    all.saturating_sub(pager.far_pages() * PAGE as u64 + pools)
}

/// DRAM in which files of tiers are: physical, but no anonymous memory of this process.
fn in_files(pager: &Pager) -> u64 {
    pager
        .tiers
        .iter()
        .map(|tier| tier.dram_bytes() - tier.anonymous_bytes().min(tier.dram_bytes()))
        .sum()
}

fn publish_tier(field: &TierPage, tier: &Tier, logical: u64, physical: u64) {
    let stats = &tier.stats;
    if let Some(files) = tier.files() {
        field.file_bytes.store(stats.physical_bytes() + files.held_bytes(), Relaxed);
        field.held_bytes.store(files.held_bytes(), Relaxed);
    }
    field.mean_logical_bytes.store(logical, Relaxed);
    field.mean_physical_bytes.store(physical, Relaxed);
    field.fault_p50_ns.store(stats.restore_quantile_ns(0.5), Relaxed);
    field.fault_p99_ns.store(stats.restore_quantile_ns(0.99), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_of_late_is_forgotten_after_a_while() {
        let mut lately = RecentMax::default();
        lately.add(10);
        assert_eq!(lately.max(RECENT_NS / 2), 10);
        assert_eq!(lately.max(2 * RECENT_NS), 10, "it is from the stretch before");
        lately.add(3);
        assert_eq!(lately.max(4 * RECENT_NS), 3);
        assert_eq!(lately.max(6 * RECENT_NS), 0);
    }
}
