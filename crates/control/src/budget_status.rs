//! Whether a budget was kept: one rule for one process (the mover's measuring) and for all
//! processes of a run (`terrace run`).
//!
//! Memory is sampled now and then. Half of the time between two samples is taken to have been as at
//! the first of them, half as at the second. So a sample weighs as much as the time for which it
//! stands.

/// A program that works right at its budget goes over it by a page or a batch all the time. Less
/// than this share is not far.
const TOUCHING: f64 = 0.02;
/// The budget counts as kept if memory was far above it for at most this share of the time.
const TOLERANCE: f64 = 0.01;

/// What was measured at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Whether memory was above the budget.
    over: bool,
    /// Whether memory was above the budget by more than [`TOUCHING`].
    far: bool,
    /// Whether, far above the budget, nothing more could be evicted.
    at_floor: bool,
    physical: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub struct BudgetStatus {
    seconds: f64,
    over_s: f64,
    far_over_s: f64,
    floor_s: f64,
    /// Physical bytes times seconds, over the time in `floor_s`.
    floor_byte_s: f64,
    last: Option<Sample>,
}

impl BudgetStatus {
    /// Adds a sample, `seconds` after the last one, at which memory is `physical` bytes.
    /// `at_floor`: nothing more could be evicted.
    pub fn add(&mut self, physical: u64, budget: u64, at_floor: bool, seconds: f64) {
        let far = physical.saturating_sub(budget) > (budget as f64 * TOUCHING) as u64;
        let now = Sample { over: physical > budget, far, at_floor: far && at_floor, physical };
        let before = self.last.replace(now).unwrap_or(now);
        self.seconds += seconds;
        for sample in [before, now] {
            let half = |counts: bool| if counts { seconds / 2.0 } else { 0.0 };
            self.over_s += half(sample.over);
            self.far_over_s += half(sample.far);
            self.floor_s += half(sample.at_floor);
            self.floor_byte_s += half(sample.at_floor) * sample.physical as f64;
        }
    }

    /// Whether the budget was kept: exceeded by more than 2 % for at most 1 % of the time.
    pub fn is_kept(&self) -> bool {
        self.far_over_s <= self.seconds * TOLERANCE
    }

    /// The share of the time in which memory was not above the budget by more than 2 %.
    pub fn kept_fraction(&self) -> f64 {
        if self.seconds > 0.0 {
            (1.0 - self.far_over_s / self.seconds).clamp(0.0, 1.0)
        } else {
            1.0
        }
    }

    /// Seconds above the budget.
    pub fn over_s(&self) -> f64 {
        self.over_s
    }

    /// Seconds above the budget by more than 2 %.
    pub fn far_over_s(&self) -> f64 {
        self.far_over_s
    }

    /// Seconds of `far_over_s` in which nothing more could be evicted.
    pub fn floor_s(&self) -> f64 {
        self.floor_s
    }

    /// Mean physical bytes over the time `floor_s`; 0 if that is 0.
    pub fn floor_bytes(&self) -> u64 {
        if self.floor_s > 0.0 { (self.floor_byte_s / self.floor_s) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[(u64, bool, f64)]) -> BudgetStatus {
        let mut kept = BudgetStatus::default();
        samples.iter().for_each(|(physical, at_floor, seconds)| {
            kept.add(*physical, 100, *at_floor, *seconds)
        });
        kept
    }

    #[test]
    fn one_per_cent_of_the_time_far_above_is_forgiven() {
        let met = of(&[(101, false, 5.0), (50, false, 94.0), (150, false, 1.0), (50, false, 1.0)]);
        assert!(met.is_kept() && met.over_s() > 5.0, "{met:?}");
        assert!(
            (met.far_over_s() - 1.0).abs() < 1e-9
                && (met.kept_fraction() - 100.0 / 101.0).abs() < 1e-9
        );
        let missed = of(&[(50, false, 90.0), (150, false, 1.0), (50, false, 2.0)]);
        assert!(!missed.is_kept() && missed.kept_fraction() > 0.98, "{missed:?}");
        // Right at the budget all the time, and never sampled.
        assert!(of(&[(102, true, 50.0)]).is_kept() && BudgetStatus::default().is_kept());
        assert_eq!(
            (BudgetStatus::default().kept_fraction(), of(&[(103, false, 0.1)]).kept_fraction()),
            (1.0, 0.0)
        );
        // A long run does not forgive more of a short burst than a share, nor a short run less.
        assert!(!of(&[(103, false, 0.4), (50, false, 0.0), (50, false, 3.0)]).is_kept());
    }

    /// A mean of a third of "the least that can be reached" was told beside it once: the last
    /// moment's counted alone.
    #[test]
    fn the_floor_is_what_there_was_while_nothing_left() {
        let kept = of(&[
            (130, true, 2.0),
            (130, true, 2.0),
            (50, false, 0.0),
            (50, false, 90.0),
            (290, true, 0.0),
            (290, true, 0.1),
        ]);
        assert!((kept.floor_s() - 4.1).abs() < 1e-9, "{kept:?}");
        assert!((130..135).contains(&kept.floor_bytes()), "{kept:?}");
        assert_eq!(
            of(&[(150, false, 9.0), (101, true, 9.0)]).floor_bytes(),
            0,
            "memory was just at the budget then"
        );
    }

    /// A sample after a long rest does not stand for the whole rest.
    #[test]
    fn samples_weigh_as_the_time_between_them() {
        let kept = of(&[(50, false, 1.0), (150, false, 8.0), (50, false, 2.0)]);
        assert!((kept.far_over_s() - 5.0).abs() < 1e-9, "{kept:?}");
    }
}
