//! How much each region is expected to be used in the next window, by all windows before it.
//!
//! The first step is a region's own past: an autoregression of order 1. What a window was beyond
//! the long average lasts as far as it did in all regions before.
//!
//! The second step is for regions that were idle. Their own past says that they stay so, but a scan
//! or a phase that comes round again touches just these. So regions are classed by how long they
//! were idle. What is expected of a class is multiplied by what came of it lately, beside what had
//! been expected. That is the hazard of idle pages (TMO and GSwap measure it as cold age), for
//! three numbers. Regions in use are not corrected: a change of phase would be learnt too late.

use super::Region;

/// Weight of a window in the long average, at least.
const LONG: f32 = 0.08;
/// What is left after a window of how far the unusual lasted.
const LASTING_KEPT: f64 = 0.9;
/// What is left after a window of what came of idle regions: little, as phases end.
const CAME_KEPT: f64 = 0.3;
/// Part of the mean over all regions that is added to what is expected of each, so that there is
/// something to multiply where a region was never touched.
const UNSEEN: f64 = 0.03;
/// Weight of what came of all idle regions in what came of one class, as a part of all that was
/// expected.
const POOLED: f64 = 0.001;

/// Windows that a region of each class was idle for, at least. The last is of regions that were
/// never touched.
const IDLE_FROM: [u16; 17] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 23, 31, 41, 55, 73, NEVER];
const NEVER: u16 = u16::MAX;

/// The class of regions that were idle for a number of windows. 0: they are in use.
fn class(idle: u16) -> usize {
    IDLE_FROM.partition_point(|from| *from <= idle) - 1
}

/// What a region is expected to do in the next window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Accesses, in the unit of [`Region::accesses`].
    pub accesses: f64,
    /// Different pages that are touched.
    pub touched: f64,
    /// Number of touched pages that are not touched in the window before.
    pub fresh: f64,
    /// Pages that were touched in the window that has ended. This is not an expectation.
    pub in_use: f64,
}

/// A number of one region in each window, and its average over a long time.
#[derive(Clone, Copy, Debug, Default)]
struct Series {
    last: f32,
    mean: f32,
    windows: u16,
}

/// How far what is unusual in one window lasts in the next, from -1 to 1:
///
/// - 1: heat stays where it is;
/// - 0: it is noise, or comes round again;
/// - below 0: what was touched is not touched next.
#[derive(Clone, Copy, Debug, Default)]
struct Lasting {
    products: f64,
    squares: f64,
    /// Squares of the last window, of which nothing is known yet. They count as lasting. So a hot
    /// set that jumps is followed at once, and noise is so many old squares more.
    open: f64,
}

impl Lasting {
    fn of_one(&self) -> f64 {
        let (products, squares) = (self.products + self.open, self.squares + self.open);
        if squares > 0.0 { (products / squares).clamp(-1.0, 1.0) } else { 1.0 }
    }
}

impl Series {
    fn take(&mut self, new: f32, lasting: &mut Lasting) {
        self.windows = self.windows.saturating_add(1);
        if self.windows > 1 {
            let (before, now) = (f64::from(self.last - self.mean), f64::from(new - self.mean));
            lasting.products += before * now;
            lasting.squares += before * before;
        }
        // An average of few is of all of them.
        self.mean += LONG.max(1.0 / f32::from(self.windows)) * (new - self.mean);
        self.last = new;
        lasting.open += f64::from(new - self.mean).powi(2);
    }

    /// What is expected next. Cost and time are linear in these numbers, so it is their expectation
    /// that counts. A region that is touched in one window of ten must not be taken for one that
    /// never is.
    fn next(&self, lasting: Lasting) -> f64 {
        let (last, mean) = (f64::from(self.last), f64::from(self.mean));
        (mean + lasting.of_one() * (last - mean)).max(0.0)
    }
}

/// Sums over regions of what was expected, and of what came.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    expected: f64,
    came: f64,
}

/// One of the three numbers, for all regions.
#[derive(Clone, Debug, Default)]
struct Number {
    series: Vec<Series>,
    lasting: Lasting,
    classes: [Came; IDLE_FROM.len()],
    /// What is expected of a region of each class is multiplied by this.
    factors: [f64; IDLE_FROM.len()],
    /// The mean over all regions in the last window.
    mean: f64,
}

impl Number {
    /// Takes a window in. `idle`: how long each region was idle before it.
    fn learn(&mut self, values: impl Iterator<Item = f32>, idle: &[u16]) {
        for of in &mut self.classes {
            *of = Came { expected: of.expected * CAME_KEPT, came: of.came * CAME_KEPT };
        }
        let known = self.series.len();
        self.series.resize(idle.len(), Series::default());
        let before = self.lasting;
        let mut lasting = Lasting {
            products: before.products * LASTING_KEPT,
            squares: before.squares * LASTING_KEPT,
            open: 0.0,
        };
        let mut sum = 0.0;
        for (region, value) in values.enumerate() {
            if region < known {
                let expected = self.by_itself(region);
                let of = &mut self.classes[class(idle[region])];
                of.expected += expected;
                of.came += f64::from(value);
            }
            self.series[region].take(value, &mut lasting);
            sum += f64::from(value);
        }
        self.lasting = lasting;
        self.mean = sum / idle.len().max(1) as f64;
        self.factors = self.factors();
    }

    /// What a region's own past lets expect.
    fn by_itself(&self, region: usize) -> f64 {
        self.series[region].next(self.lasting) + UNSEEN * self.mean
    }

    fn next(&self, region: usize, idle: u16) -> f64 {
        self.by_itself(region) * self.factors[class(idle)]
    }

    /// What came of each class for each that was expected, and what of all idle regions. Regions in
    /// use are left as they are.
    fn factors(&self) -> [f64; IDLE_FROM.len()] {
        let sum = |of: fn(&Came) -> f64| self.classes[1..].iter().map(of).sum::<f64>();
        let (expected, came) = (sum(|of| of.expected), sum(|of| of.came));
        let mut factors = [1.0; IDLE_FROM.len()];
        let weight = POOLED * (expected + self.classes[0].expected);
        if expected > 0.0 {
            for (factor, of) in factors.iter_mut().zip(&self.classes).skip(1) {
                *factor = (of.came + weight * came / expected) / (of.expected + weight);
            }
        }
        factors
    }
}

/// What is known of all regions, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Predictor {
    accesses: Number,
    touched: Number,
    fresh: Number,
    /// Windows for which each region was idle, or [`NEVER`].
    idle: Vec<u16>,
}

impl Predictor {
    /// Takes a window in. The same index is the same region in each window.
    pub fn learn(&mut self, regions: &[Region]) {
        self.idle.resize(regions.len(), NEVER);
        self.accesses.learn(regions.iter().map(|of| of.accesses), &self.idle);
        self.touched.learn(regions.iter().map(|of| of.touched as f32), &self.idle);
        self.fresh.learn(regions.iter().map(|of| of.fresh as f32), &self.idle);
        for (idle, region) in self.idle.iter_mut().zip(regions) {
            *idle = match *idle {
                _ if region.touched > 0 || region.accesses > 0.0 => 0,
                NEVER => NEVER,
                windows => (windows + 1).min(NEVER - 1),
            };
        }
    }

    /// What a region of `pages` pages is expected to do in the next window. The region was in the
    /// last window that [`learn`](Self::learn) was told.
    pub fn next(&self, region: usize, pages: f64) -> Use {
        let idle = self.idle[region];
        let touched = self.touched.next(region, idle).min(pages);
        Use {
            accesses: self.accesses.next(region, idle),
            touched,
            fresh: self.fresh.next(region, idle).min(touched),
            in_use: f64::from(self.touched.series[region].last).min(pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touched(pages: u32) -> Region {
        let accesses = pages as f32 * 8.0;
        Region { pages: 512, touched: pages, fresh: pages, accesses, ..Region::default() }
    }

    fn after(windows: usize, of: impl Fn(usize, usize) -> u32) -> Predictor {
        let mut predictor = Predictor::default();
        for window in 0..windows {
            let regions: Vec<Region> = (0..64).map(|region| touched(of(window, region))).collect();
            predictor.learn(&regions);
        }
        predictor
    }

    #[test]
    fn what_stays_is_expected_again() {
        let predictor = after(20, |_, region| region as u32 * 4);
        for region in [0, 10, 63] {
            let next = predictor.next(region, 512.0);
            assert!((next.touched - region as f64 * 4.0).abs() < 5.0, "{region}: {next:?}");
            assert_eq!(next.in_use, region as f64 * 4.0);
        }
    }

    #[test]
    fn a_jump_is_followed_after_one_window() {
        let hot = |window: usize, region: usize| match (window, region) {
            (0..20, 0..12) | (20.., 40..52) => 500,
            _ => 5,
        };
        let predictor = after(21, hot);
        let (then, now) = (predictor.next(3, 512.0).touched, predictor.next(45, 512.0).touched);
        assert!(now > 450.0 && then < 60.0, "{now} where it is, {then} where it was");
    }

    /// Two regions in each window, one after the other, and each only once.
    #[test]
    fn a_scan_is_expected_where_it_was_not_yet() {
        let predictor = after(16, |window, region| if region / 2 == window { 512 } else { 0 });
        let (done, ahead) = (predictor.next(6, 512.0).fresh, predictor.next(50, 512.0).fresh);
        // 1,024 pages in the next window, of 32 regions that are left.
        assert!((15.0..60.0).contains(&ahead) && done < 1.0, "{ahead} ahead, {done} behind");
    }

    /// A quarter after the other, for two windows each.
    #[test]
    fn a_phase_that_comes_round_is_expected_when_it_is_due() {
        let predictor =
            after(32, |window, region| if region / 16 == window / 2 % 4 { 512 } else { 0 });
        let fresh = |quarter: usize| predictor.next(quarter * 16, 512.0).fresh;
        assert!(fresh(0) > 400.0, "it is due: {}", fresh(0));
        assert!(fresh(1) < 100.0 && fresh(2) < 100.0, "{} and {}", fresh(1), fresh(2));
    }

    #[test]
    fn classes_hold_every_idle_time() {
        assert_eq!([0, 1, 6, 7, 8, 100, NEVER].map(class), [0, 1, 6, 6, 7, 15, 16]);
        assert!(IDLE_FROM.is_sorted());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(64)
        })]

        /// Whatever was seen, what is expected is possible.
        #[test]
        fn what_is_expected_is_possible(
            windows in proptest::collection::vec(
                proptest::collection::vec((0u32..=512, 0u32..=512, 0.0f32..1e9), 4), 1..30),
        ) {
            let mut predictor = Predictor::default();
            for window in &windows {
                let region = |(touched, fresh, accesses): &(u32, u32, f32)| Region {
                    pages: 512, touched: *touched, fresh: *fresh.min(touched),
                    accesses: *accesses, ..Region::default()
                };
                predictor.learn(&window.iter().map(region).collect::<Vec<_>>());
                for region in 0..4 {
                    let next = predictor.next(region, 512.0);
                    prop_assert!(next.accesses.is_finite() && next.accesses >= 0.0);
                    prop_assert!(next.touched <= 512.0 && next.fresh <= next.touched);
                    prop_assert!(next.fresh >= 0.0 && next.in_use <= 512.0);
                }
            }
        }
    }
}
