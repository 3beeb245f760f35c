//! Evicted pages that are collected for a tier's codec to learn from
//! ([`terrace_tiers::Codec::train`]).

use terrace_tiers::{Page, Tier};

/// Number of evicted pages of which one is collected, because neighbouring pages are alike.
const ONE_IN: u32 = 8;
/// Pages after which the next training begins, four times as many each time, up to `AFTER_MAX`.
/// Data changes, and the first evicted pages may be like no others. Training takes 5 to 10 ms for
/// some seconds of evictions.
const FIRST_AFTER: u32 = 1 << 12;
const AFTER_MAX: u32 = 1 << 18;

/// The pages collected for the codec of one tier, and when its next training is due.
pub(crate) struct TrainingSet {
    pages: Vec<Page>,
    /// Pages evicted since the last training.
    seen: u32,
    /// The value of `seen` at which collecting begins.
    from: u32,
    /// The next [`TrainingSet::from`].
    after: u32,
}

impl TrainingSet {
    pub fn new() -> Self {
        TrainingSet { pages: Vec::new(), seen: 0, from: 0, after: FIRST_AFTER }
    }

    /// Whether no training has taken place so far.
    pub fn is_first(&self) -> bool {
        self.after == FIRST_AFTER
    }

    /// Offers a page that is about to be stored in the tier, which compresses it. Before the first
    /// training it may be stored in another tier.
    pub fn offer(&mut self, tier: &Tier, page: &Page) {
        self.seen = self.seen.saturating_add(1);
        if self.seen < self.from || !self.seen.is_multiple_of(ONE_IN) {
            return;
        }
        let wanted = tier.training_pages();
        if self.pages.len() < wanted
            && self.pages.try_reserve_exact(wanted - self.pages.len()).is_ok()
        {
            self.pages.push(*page);
        }
    }

    /// The pages, once there are enough; another training begins later.
    pub fn due(&mut self, tier: &Tier) -> Option<Vec<Page>> {
        if self.pages.is_empty() || self.pages.len() < tier.training_pages() {
            return None;
        }
        (self.seen, self.from) = (0, self.after);
        self.after = (self.after * 4).min(AFTER_MAX);
        Some(std::mem::take(&mut self.pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_tiers::{DramMedium, EXTENT_BYTES, PAGE_BYTES, parse_tiers};

    #[test]
    fn training_becomes_rare() {
        let medium = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
        let tier = Tier::new(parse_tiers("dram,zstd").unwrap().remove(1), medium);
        let mut training = TrainingSet::new();
        let mut gaps = Vec::new();
        let mut since = 0;
        while gaps.len() < 6 {
            training.offer(&tier, &[1; PAGE_BYTES]);
            since += 1;
            if let Some(pages) = training.due(&tier) {
                assert_eq!(pages.len(), tier.training_pages());
                gaps.push(std::mem::take(&mut since));
            }
        }
        let collecting = tier.training_pages() as u32 * ONE_IN;
        assert_eq!(gaps[0], collecting);
        for (gap, after) in gaps[1..].iter().zip([1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 18]) {
            assert!(gap.abs_diff(after + collecting) < 2 * ONE_IN, "{gap} after {after}");
        }
    }

    #[test]
    fn who_does_not_learn_is_not_taught() {
        let medium = Arc::new(DramMedium::new(EXTENT_BYTES).unwrap());
        let tier = Tier::new(parse_tiers("dram,lz4").unwrap().remove(1), medium);
        let mut training = TrainingSet::new();
        (0..10_000).for_each(|_| training.offer(&tier, &[1; PAGE_BYTES]));
        assert!(training.pages.capacity() == 0 && training.due(&tier).is_none());
    }
}
