//! What the mover asks when it needs room, and what it tells about the outcome.

/// A region, by the number its pager gave it. Dense from 0, so that a policy can keep its state in
/// a vector.
pub type RegionId = u32;

/// What the program expects of memory (`mnalloc`, `terrace_advise`). Where faults or samples say
/// otherwise, they are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It will be used often.
    Hot,
    /// It will be used seldom.
    Cold,
}

/// What is known of one region at the time of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// Which region.
    pub region: RegionId,
    /// Pages in DRAM that could be evicted (0–512).
    pub resident_pages: u32,
    /// Pages in compressed tiers (0–512).
    pub evicted_pages: u32,
    /// What the program expects of it.
    pub expected: Option<Expectation>,
}

/// What to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Move its cold pages out.
    Evict,
    /// Take a few pages out of the page table without compressing them, and see which are touched:
    /// a look at coldness that costs a few microseconds a page.
    Probe,
}

/// One step of the order in which to look for victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where.
    pub region: RegionId,
    /// What.
    pub action: Action,
}

/// Why a page left DRAM, or its tier for a denser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The hand found it unused, in one of the coldest regions.
    Cold,
    /// The hand found it unused while there was pressure: the coldest regions were not enough.
    Pressed,
    /// It had come back after a long time, and was not wanted again soon.
    Probation,
    /// It was not touched while it was probed.
    Probed,
    /// The program said that it does not need it (MADV_PAGEOUT).
    Asked,
    /// It was out already, and takes less room in a denser tier.
    Recompressed,
    /// A test evicts whatever there is.
    Stress,
    /// The placement model wants its region in that tier.
    Planned,
}

impl Reason {
    /// All of them, in the order of their numbers.
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

    /// As reports name it.
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

/// How urgently room is needed: 0 (keeping the headroom) to [`PRESSURE_MAX`] (over budget, and a
/// look at everything did not help). Each step halves the rests of regions and takes pages with one
/// more return.
pub type Pressure = u32;

/// See [`Pressure`].
pub const PRESSURE_MAX: Pressure = 12;

/// Chooses victims. Times are milliseconds of any monotonic clock.
pub trait VictimPolicy: Send {
    /// The name that `--policy` and reports use.
    fn name(&self) -> &'static str;
    /// Samples that count as `weight` met the region (a part of one where any of several addresses
    /// may have been touched).
    fn sampled(&mut self, region: RegionId, weight: f32);
    /// How hot samples say that the region is, as a multiple of the average; `None` where there are
    /// too few of them, or none are taken.
    fn heat(&self, _region: RegionId) -> Option<f32> {
        None
    }
    /// How much sampling would be worth while, since this was last asked: 1 as much as is usual,
    /// less where samples change nothing, more after a change.
    fn samples_wanted(&mut self) -> f32;
    /// `pages` of the region came back by faults since the last call.
    fn restored(&mut self, region: RegionId, pages: u32, now_ms: u64);
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

/// What was touched within this time is never evicted, ms: under a budget that
/// cannot be met, every page would leave again before the program had used it.
pub const FLOOR_MS: u64 = 20;

/// Most returns of a page that are counted.
pub const RETURNS_MAX: u32 = 7;

/// How many pages may be on probation: 3 % of the resident ones, and 5 % of those that are out.
/// Where few are out, what is kept of those on probation is a large part of what compression takes.
pub fn probation_room(resident_pages: u64, pages_out: u64) -> usize {
    (resident_pages as f64 * 0.03).min(pages_out as f64 * 0.05) as usize
}

/// A page is back soon if no more pages left while it was out than these: 15 % of the resident
/// ones, and 20 % of those that are out. Where few are out, whoever is there comes back before many
/// others have left, and that tells nothing of him: by the resident pages alone (half of them, as
/// it was once) next to none was on probation at 80 %, and there were more faults than the kernel's
/// lists make.
pub fn soon_pages(resident_pages: u64, pages_out: u64) -> f64 {
    (resident_pages as f64 * 0.15).min(pages_out as f64 * 0.2)
}

/// What becomes of a page that came back by a fault: see [`returned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Its count of returns from now on.
    pub returns: u32,
    /// It leaves again after a short time, whatever is known of other pages.
    pub probation: bool,
}

/// A page came back by a fault after `out_ms`.
///
/// This is 2Q (Johnson and Shasha, VLDB 1994): one that is back soon was worth keeping, and joins
/// the others for as many rounds of the [hand](passed) as it has returns, a round more each time
/// (what it had left does not count: it leaves with all); any other goes through a short queue
/// first, from which it leaves if it does not come back soon. Scattered Zipf accesses, nothing but
/// faults known: 0.147 faults a GET with half of the pages resident, where random victims make
/// 0.187 and the kernel's lists, which see accesses, 0.158; 0.237, 0.300 and 0.259 with 30 %
/// (`terrace-bench victims`).
pub fn returned(returns: u32, out_ms: u64, soon_ms: u64) -> Return {
    if out_ms <= soon_ms {
        Return { returns: (returns + 1).min(RETURNS_MAX), probation: false }
    } else {
        Return { returns: returns / 2, probation: true }
    }
}

/// What is known of writes to a page since it was last watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Nothing, nor can it be.
    Unknowable,
    /// Nothing: it was not watched.
    Unwatched,
    /// There was none.
    None,
    /// There was one.
    Some,
}

/// What the hand does with a page that it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Takes it.
    Take,
    /// Leaves it as it is.
    Leave,
    /// Leaves it with so many returns.
    Returns(u32),
    /// Leaves it without returns, and watches it until it comes by again.
    Watch,
}

/// Rounds for which the hand leaves a page that was written while it was watched. Being watched
/// costs its next writer a fault (1 µs), so hot pages should seldom be.
pub const WRITTEN_RETURNS: u32 = RETURNS_MAX;

/// The hand comes by. A page whose returns are used up is watched for a round, and leaves if nobody
/// wrote to it (servers write to what they read: counters, times, lists): 0.135 faults a GET
/// instead of 0.147 with half of the pages resident, 0.220 instead of 0.237 with 30 %. The same
/// look at pages on probation gains nothing there.
///
/// A page on probation is not the hand's, but for some pressure.
pub fn passed(returns: u32, probation: bool, writes: Writes, pressure: Pressure) -> Passed {
    if probation {
        return if returns.max(2) <= pressure { Passed::Take } else { Passed::Leave };
    }
    match (returns, writes) {
        (0, Writes::Some) if pressure == 0 => Passed::Returns(WRITTEN_RETURNS),
        (0, Writes::Unwatched) if pressure == 0 => Passed::Watch,
        (returns, _) if returns <= pressure => Passed::Take,
        (1, Writes::Unwatched) => Passed::Watch,
        (returns, _) => Passed::Returns(returns - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_back_soon_stays_for_a_round_more_each_time() {
        let mut page = Return { returns: 0, probation: true };
        for n in 1..=3 {
            page = returned(page.returns, 10, 100);
            assert_eq!(page, Return { returns: n, probation: false });
        }
        for left in [2, 1, 0] {
            assert_eq!(passed(page.returns, false, Writes::Unknowable, 0), Passed::Returns(left));
            page.returns = left;
        }
        assert_eq!(passed(page.returns, false, Writes::Unknowable, 0), Passed::Take);
        assert_eq!(returned(RETURNS_MAX, 10, 100).returns, RETURNS_MAX);
    }

    #[test]
    fn who_was_out_for_long_is_on_probation_and_half_forgotten() {
        assert_eq!(returned(5, 101, 100), Return { returns: 2, probation: true });
        assert_eq!(passed(0, true, Writes::Unknowable, 0), Passed::Leave);
    }

    #[test]
    fn who_is_written_while_watched_stays() {
        assert_eq!(passed(2, false, Writes::Unwatched, 0), Passed::Returns(1));
        assert_eq!(passed(1, false, Writes::Unwatched, 0), Passed::Watch);
        assert_eq!(passed(0, false, Writes::Unwatched, 0), Passed::Watch);
        assert_eq!(passed(0, false, Writes::None, 0), Passed::Take);
        assert_eq!(passed(0, false, Writes::Some, 0), Passed::Returns(WRITTEN_RETURNS));
        assert_eq!(
            passed(0, false, Writes::Some, 1),
            Passed::Take,
            "nobody asks when room is needed now"
        );
    }

    #[test]
    fn pressure_takes_everything() {
        for returns in 0..=RETURNS_MAX {
            assert_eq!(passed(returns, false, Writes::Some, PRESSURE_MAX), Passed::Take);
            assert_eq!(passed(returns, true, Writes::Some, PRESSURE_MAX), Passed::Take);
        }
    }
}
