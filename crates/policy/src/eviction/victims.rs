//! What the mover asks when it needs room, and what it tells about the outcome.

/// A region, by the number its pager gave it. Dense from 0, so that a policy can keep its state in
/// a vector.
pub type RegionId = u32;

/// What the program expects of memory (`mnalloc`, `terrace_advise`). Where faults or samples say
/// otherwise, they are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The memory will be used often.
    Hot,
    /// The memory will be used seldom.
    Cold,
}

/// What is known of one region at the time of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// Number of the region.
    pub region: RegionId,
    /// Pages in DRAM that could be evicted (0–512).
    pub resident_pages: u32,
    /// Pages in compressed tiers (0–512).
    pub evicted_pages: u32,
    /// What the program expects of the region.
    pub expected: Option<Expectation>,
}

/// What to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Evict its cold pages.
    Evict,
    /// Take a few pages out of the page table without compressing them, and see which are touched.
    /// It costs a few microseconds a page.
    Probe,
}

/// Step of the order in which to look for victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Region to look at.
    pub region: RegionId,
    /// What to do with the region.
    pub action: Action,
}

/// Why a page was evicted, or moved to a denser tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The CLOCK hand found it unused, in one of the coldest regions.
    Cold,
    /// The CLOCK hand found it unused while there was pressure: the coldest regions were not
    /// enough.
    Pressed,
    /// The page had refaulted after a long time, and was not accessed again soon.
    Probation,
    /// The page was not touched while it was probed.
    Probed,
    /// The program said that it does not need it (MADV_PAGEOUT).
    Asked,
    /// The page was evicted already, and takes less room in a denser tier.
    Recompressed,
    /// A test evicts whatever there is.
    Stress,
    /// The placement model wants the page's region in that tier.
    Planned,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 8] = [
        Reason::Cold,
        Reason::Pressed,
        Reason::Probation,
        Reason::Probed,
        Reason::Asked,
        Reason::Recompressed,
        Reason::Stress,
        Reason::Planned,
    ];

    /// Name of the reason, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Cold => "cold",
            Reason::Pressed => "pressed",
            Reason::Probation => "probation",
            Reason::Probed => "probed",
            Reason::Asked => "asked",
            Reason::Recompressed => "denser",
            Reason::Stress => "stress",
            Reason::Planned => "planned",
        }
    }
}

/// How urgently room is needed: 0 (keeping the low watermark) to [`PRESSURE_MAX`] (over budget, and
/// a look at everything did not help). Each step halves the rests of regions and takes pages with
/// one more return.
pub type Pressure = u32;

/// Greatest pressure, see [`Pressure`].
pub const PRESSURE_MAX: Pressure = 12;

/// Hot regions are kept resident, and walks may be through cold ones alone, below this pressure
/// only.
pub const KEPT_PRESSURE: Pressure = 2;

/// Chooses victims. Times are milliseconds of any monotonic clock.
pub trait VictimPolicy: Send {
    /// The name that `--policy` and reports use.
    fn name(&self) -> &'static str;
    /// Samples that count as `weight` met the region. A weight is a part of one where any of
    /// several addresses may have been touched.
    fn sampled(&mut self, region: RegionId, weight: f32);
    /// How hot samples say that the region is, as a multiple of the average; `None` where there are
    /// too few of them, or none are taken.
    fn heat(&self, _region: RegionId) -> Option<f32> {
        None
    }
    /// How much sampling would be worth while, since this was last asked. 1 is as much as is usual.
    /// It is less where samples change nothing, more after a change.
    fn samples_wanted(&mut self) -> f32;
    /// `pages` of the region refaulted since the last call.
    fn restored(&mut self, region: RegionId, pages: u32, now_ms: u64);
    /// The program freed `pages` of the region while they were out: to move them was no use.
    fn freed(&mut self, region: RegionId, pages: u32, now_ms: u64);
    /// `pages` of the region were moved out.
    fn evicted(&mut self, region: RegionId, pages: u32, now_ms: u64);
    /// A probe ended: of `staged` pages, `touched` were wanted back while it lasted.
    fn probed(&mut self, region: RegionId, staged: u32, touched: u32, now_ms: u64);
    /// Clears `order` and fills it with the regions to take victims from, best victim first.
    /// Regions to be left alone for now are not in it. Regions without resident pages never
    /// are.
    fn rank(
        &mut self,
        now_ms: u64,
        pressure: Pressure,
        regions: &[RegionView],
        order: &mut Vec<Choice>,
    );
}

/// Time within which a touched page is never evicted, ms (as by MGLRU's `min_ttl_ms`). Under a
/// budget that cannot be met, every page would be evicted again before the program had used it.
pub const MIN_TTL_MS: u64 = 20;

/// Most refaults of a page that are counted.
pub const REFAULTS_MAX: u32 = 7;

/// Number of pages that may be on probation: 3 % of the resident ones, and 5 % of the evicted ones.
/// Where few are evicted, what is kept of those on probation is a large part of what compression
/// takes.
pub fn probation_room(resident_pages: u64, pages_out: u64) -> usize {
    (resident_pages as f64 * 0.03).min(pages_out as f64 * 0.05) as usize
}

/// Refault distance up to which a page was worth keeping, as the number of pages evicted meanwhile.
/// It is 15 % of the resident pages, and 20 % of the evicted ones.
///
/// Where few pages are evicted, any page refaults before many others have left, and that tells
/// nothing of it. By half of the resident pages alone, as it was once, next to none was on
/// probation at 80 %. There were more faults than with the kernel's lists.
pub fn refault_distance_pages(resident_pages: u64, pages_out: u64) -> f64 {
    (resident_pages as f64 * 0.15).min(pages_out as f64 * 0.2)
}

/// What becomes of a page that refaulted: see [`refaulted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refault {
    /// Number of refaults of the page that count from now on.
    pub refaults: u32,
    /// Whether the page is evicted again after a short time, whatever is known of other pages.
    pub probation: bool,
}

/// What becomes of a page that refaulted after `out_ms`; `refault_distance_ms` is the time in which
/// as many pages left as [`refault_distance_pages`] says.
///
/// This is 2Q (Johnson and Shasha, VLDB 1994):
///
/// - A page that is back soon was worth keeping. It joins the others for as many rounds of the
///   [hand](passed) as it has refaults, a round more each time. Rounds left at its eviction do not
///   count: it returns with all.
/// - Any other page goes through a short queue first, from which it is evicted if it does not
///   refault soon.
///
/// Scattered Zipf accesses, nothing but faults known: 0.147 faults a GET with half of the pages
/// resident. Random victims make 0.187 and the kernel's lists, which see accesses, 0.158. With 30 %
/// resident these are 0.237, 0.300 and 0.259 (`terrace-bench victims`).
pub fn refaulted(refaults: u32, out_ms: u64, refault_distance_ms: u64) -> Refault {
    if out_ms <= refault_distance_ms {
        Refault { refaults: (refaults + 1).min(REFAULTS_MAX), probation: false }
    } else {
        Refault { refaults: refaults / 2, probation: true }
    }
}

/// What is known of writes to a page since its writes were last tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Nothing is known, nor can it be.
    Unknowable,
    /// Nothing is known: writes were not tracked.
    Untracked,
    /// The page was not written.
    None,
    /// The page was written.
    Some,
}

/// What the CLOCK hand does with a page that it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The hand takes the page.
    Take,
    /// The hand leaves the page as it is.
    Leave,
    /// The hand leaves the page with this number of refaults.
    Refaults(u32),
    /// The hand leaves the page without refaults, and its writes are tracked until the next round.
    Track,
}

/// Rounds for which the CLOCK hand spares a page that was written while its writes were tracked.
/// That costs the next writer a fault (1 µs), so it should seldom happen to hot pages.
pub const WRITTEN_REFAULTS: u32 = REFAULTS_MAX;

/// What happens to a page when the CLOCK hand comes by. The writes of a page whose refaults are
/// used up are tracked for a round. The page is evicted if there was none, as servers write to what
/// they read: counters, times, lists. That makes 0.135 faults a GET instead of 0.147 with half of
/// the pages resident, 0.220 instead of 0.237 with 30 %. The same look at pages on probation gains
/// nothing there.
///
/// Pages on probation are evicted by their queue, and by the CLOCK hand only under pressure.
pub fn passed(refaults: u32, probation: bool, writes: Writes, pressure: Pressure) -> Passed {
    if probation {
        return if refaults.max(2) <= pressure { Passed::Take } else { Passed::Leave };
    }
    match (refaults, writes) {
        (0, Writes::Some) if pressure == 0 => Passed::Refaults(WRITTEN_REFAULTS),
        (0, Writes::Untracked) if pressure == 0 => Passed::Track,
        (refaults, _) if refaults <= pressure => Passed::Take,
        (1, Writes::Untracked) => Passed::Track,
        (refaults, _) => Passed::Refaults(refaults - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_back_soon_stays_for_a_round_more_each_time() {
        let mut page = Refault { refaults: 0, probation: true };
        for n in 1..=3 {
            page = refaulted(page.refaults, 10, 100);
            assert_eq!(page, Refault { refaults: n, probation: false });
        }
        for left in [2, 1, 0] {
            assert_eq!(passed(page.refaults, false, Writes::Unknowable, 0), Passed::Refaults(left));
            page.refaults = left;
        }
        assert_eq!(passed(page.refaults, false, Writes::Unknowable, 0), Passed::Take);
        assert_eq!(refaulted(REFAULTS_MAX, 10, 100).refaults, REFAULTS_MAX);
    }

    #[test]
    fn who_was_out_for_long_is_on_probation_and_half_forgotten() {
        assert_eq!(refaulted(5, 101, 100), Refault { refaults: 2, probation: true });
        assert_eq!(passed(0, true, Writes::Unknowable, 0), Passed::Leave);
    }

    #[test]
    fn a_page_that_is_written_while_tracked_stays() {
        assert_eq!(passed(2, false, Writes::Untracked, 0), Passed::Refaults(1));
        assert_eq!(passed(1, false, Writes::Untracked, 0), Passed::Track);
        assert_eq!(passed(0, false, Writes::Untracked, 0), Passed::Track);
        assert_eq!(passed(0, false, Writes::None, 0), Passed::Take);
        assert_eq!(passed(0, false, Writes::Some, 0), Passed::Refaults(WRITTEN_REFAULTS));
        assert_eq!(
            passed(0, false, Writes::Some, 1),
            Passed::Take,
            "nobody asks when room is needed now"
        );
    }

    #[test]
    fn pressure_takes_everything() {
        for refaults in 0..=REFAULTS_MAX {
            assert_eq!(passed(refaults, false, Writes::Some, PRESSURE_MAX), Passed::Take);
            assert_eq!(passed(refaults, true, Writes::Some, PRESSURE_MAX), Passed::Take);
        }
    }
}
