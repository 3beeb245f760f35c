//! What the mover asks when it needs room, and what it tells about the outcome.

/// A region, by the number its pager gave it. Dense from 0, so that a policy can keep its state in a vector.
pub type RegionId = u32;

/// What is known of one region at the time of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// Which region.
    pub region: RegionId,
    /// Pages in DRAM that could be evicted (0–512).
    pub resident_pages: u32,
    /// Pages in compressed tiers (0–512).
    pub evicted_pages: u32,
}

/// What to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Move its cold pages out.
    Evict,
    /// Take a few pages out of the page table without compressing them, and see which are touched: a look at coldness
    /// that costs a few microseconds a page.
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

/// How urgently room is needed: 0 (keeping the headroom) to [`PRESSURE_MAX`] (over budget, and a look at everything
/// did not help). Each step halves every protection.
pub type Pressure = u32;

/// See [`Pressure`]. 2^10 takes the longest protection of a page (32 s) below the floor's 20 ms with room to spare.
pub const PRESSURE_MAX: Pressure = 12;

/// Chooses victims. Times are milliseconds of any monotonic clock.
///
/// A source of samples (hardware or clock) will report through one more method; everything here is what faults tell.
pub trait VictimPolicy: Send {
    /// The name that `--policy` and reports use.
    fn name(&self) -> &'static str;
    /// `pages` of the region came back by faults since the last call.
    fn restored(&mut self, region: RegionId, pages: u32, now_ms: u64);
    /// `pages` of the region were moved out.
    fn evicted(&mut self, region: RegionId, pages: u32, now_ms: u64);
    /// A probe ended: of `staged` pages, `touched` were wanted back while it lasted.
    fn probed(&mut self, region: RegionId, staged: u32, touched: u32, now_ms: u64);
    /// Clears `order` and fills it with the regions to take victims from, best victim first. Regions to be left alone for now
    /// are not in it. Regions without resident pages never are.
    fn rank(&mut self, now_ms: u64, pressure: Pressure, regions: &[RegionView], order: &mut Vec<Choice>);
}

/// For how long a page that came back by a fault stays in DRAM at least, in ms.
///
/// `returns` counts how often in a row it came back soon after it left (0–7; 0 = never evicted, or long ago). Doubling the
/// stay at each return is what keeps a hot page in although nothing but faults is seen of it: a page touched every 10 s
/// leaves a few times, then stays. Under pressure all stays are halved alike, down to [`FLOOR_MS`], which is never given up:
/// evicting what was touched in the last moments would stop the program (`facts/traps.md`, Scale: livelock).
pub fn stay_ms(returns: u32, pressure: Pressure) -> u64 {
    if returns == 0 {
        return 0;
    }
    ((STAY_BASE_MS << returns) >> pressure.min(PRESSURE_MAX)).max(FLOOR_MS)
}

/// Half the stay of a page that came back once; see [`stay_ms`].
pub const STAY_BASE_MS: u64 = 250;
/// What was touched within this time is never evicted.
pub const FLOOR_MS: u64 = 20;

/// The new count of returns for a page that was out for `out_ms`: one more if it was missed soon (within four times its
/// last stay), one less otherwise. Never below 1: it did just come back.
pub fn returns_after(returns: u32, out_ms: u64) -> u32 {
    if out_ms <= 4 * (STAY_BASE_MS << returns) { (returns + 1).min(7) } else { returns.saturating_sub(1).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_double_with_returns_and_halve_with_pressure_down_to_the_floor() {
        assert_eq!(stay_ms(0, 0), 0);
        assert_eq!(stay_ms(1, 0), 500);
        assert_eq!(stay_ms(7, 0), 32_000);
        assert_eq!(stay_ms(7, 3), 4_000);
        for returns in 1..=7 {
            assert_eq!(stay_ms(returns, PRESSURE_MAX), FLOOR_MS);
        }
    }

    #[test]
    fn a_page_missed_soon_counts_up_and_one_missed_late_counts_down() {
        assert_eq!(returns_after(0, 100), 1);
        assert_eq!(returns_after(3, 100), 4);
        assert_eq!(returns_after(7, 100), 7);
        assert_eq!(returns_after(3, 1_000_000), 2);
        assert_eq!(returns_after(0, 1_000_000), 1);
    }
}
