//! Whether a budget was kept: one rule for one process (the mover's measuring) and for all processes of a run (`terrace run`).

/// The budget counts as kept if the floor stood in its way for less than this share of the time.
const FLOOR_TOLERANCE: f64 = 0.02;
/// A program that works right at its budget goes over it by a page or a batch all the time: less than this share is not far.
const TOUCHING: f64 = 0.02;
/// Far above the budget for at most this share of the time, or so many seconds in all, counts as bursts.
const BURST_TOLERANCE: f64 = 0.1;
const BURSTS_S: f64 = 0.5;

/// What was seen so far.
#[derive(Clone, Debug)]
pub struct Kept {
    seconds: f64,
    over_s: f64,
    /// The same by more than [`TOUCHING`].
    far_over_s: f64,
    floor_s: f64,
    /// Physical bytes when last nothing more could be evicted; until then, the least since memory was last within the budget.
    floor_bytes: u64,
    above: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Kept { seconds: 0.0, over_s: 0.0, far_over_s: 0.0, floor_s: 0.0, floor_bytes: 0, above: false }
    }
}

impl Kept {
    /// For so many seconds, memory was `physical`; `at_floor`: and nothing more could be evicted.
    pub fn add(&mut self, physical: u64, budget: u64, at_floor: bool, seconds: f64) {
        self.seconds += seconds;
        if physical > budget {
            self.over_s += seconds;
            if physical - budget > (budget as f64 * TOUCHING) as u64 {
                self.far_over_s += seconds;
            }
            if at_floor {
                self.floor_bytes = physical;
            } else if self.floor_s == 0.0 {
                self.floor_bytes = if self.above { self.floor_bytes.min(physical) } else { physical };
            }
        }
        self.above = physical > budget;
        if at_floor {
            self.floor_s += seconds;
        }
    }

    /// Whether the budget was kept, apart from bursts.
    pub fn is_kept(&self) -> bool {
        let burst = self.far_over_s <= BURSTS_S.max(self.seconds * BURST_TOLERANCE);
        burst && self.floor_s <= self.seconds * FLOOR_TOLERANCE
    }

    /// Time above the budget.
    pub fn over_s(&self) -> f64 {
        self.over_s
    }

    /// The least that could be reached, as far as is known; 0 if memory was never above the budget.
    pub fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_forgiven_and_a_floor_is_not() {
        let mut kept = Kept::default();
        kept.add(150, 100, false, 0.4);
        kept.add(101, 100, false, 5.0);
        assert!(kept.is_kept() && kept.over_s() > 5.0);
        kept.add(110, 100, false, 0.1);
        kept.add(99, 100, false, 1.0);
        assert_eq!(kept.floor_bytes(), 101);
        kept.add(130, 100, true, 0.2);
        assert_eq!(kept.floor_bytes(), 130);
        assert!(!kept.is_kept());
        let mut far = Kept::default();
        far.add(103, 100, false, 0.6);
        assert!(!far.is_kept());
    }
}
