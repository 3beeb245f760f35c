//! What a live program tells of its regions in a window, for a [`Region`]: samples of accesses,
//! and faults on pages that were out.
//!
//! Faults are exact: each is a page that was idle and is in use now. Of pages in DRAM only samples
//! tell, some hundred a second for all memory. How many pages they were taken from is estimated by
//! Chao's lower bound (Chao 1984), from how many were met once and twice. So a region that nothing
//! is known of seems idle, is moved out, and its faults say what is right. That is remembered when
//! it has come back to DRAM, and forgotten slowly; otherwise it would be evicted again at once.

use super::Region;

/// Pages of a region.
const PAGES: usize = 512;
/// What is left after a window in DRAM of what faults have said: half after 17 windows.
const REMEMBERED: f32 = 0.96;
/// The part of an expected heat that is believed once this weight of samples came.
const PRIOR_WEIGHT: f32 = 16.0;

/// Pages of one region that samples met in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Met {
    once: [u64; PAGES / 64],
    again: [u64; PAGES / 64],
    weight: f32,
}

impl Met {
    fn count(bits: &[u64; PAGES / 64]) -> f32 {
        bits.iter().map(|word| word.count_ones()).sum::<u32>() as f32
    }

    /// Number of pages that the samples were taken from, at least: Chao's estimate.
    fn pages(&self) -> f32 {
        let (all, twice) = (Self::count(&self.once), Self::count(&self.again));
        let once = all - twice;
        all + once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0))
    }
}

/// What is known of one region.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    met: Met,
    /// Pages that faults said are in use, and how many of them anew in a window.
    touched: f32,
    fresh: f32,
}

/// What the program itself said of a region, as a multiple of the mean heat; see
/// [`Heat::expect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected(pub f32);

/// What is known of all regions, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    known: Vec<Known>,
}

/// What was counted of a region at a window's end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Number of pages of 4 KiB, in DRAM and out.
    pub pages: u32,
    /// The tier that the region was given last.
    pub tier: u8,
    /// Pages of the region in DRAM now.
    pub resident: u32,
    /// Pages that refaulted in this window.
    pub faults: u32,
    /// What the program said of the region.
    pub expected: Option<Expected>,
}

impl Heat {
    /// A sample of this weight met page `page` (0 to 511) of a region.
    pub fn sampled(&mut self, region: u32, page: usize, weight: f32) {
        let met = &mut self.of(region).met;
        let (word, bit) = (page % PAGES / 64, 1u64 << (page % 64));
        met.again[word] |= met.once[word] & bit;
        met.once[word] |= bit;
        met.weight += weight;
    }

    fn of(&mut self, region: u32) -> &mut Known {
        let index = region as usize;
        if index >= self.known.len() {
            self.known.resize(index + 1, Known::default());
        }
        &mut self.known[index]
    }

    /// Ends a window for a region: what a model is told of it. `mean` is the mean weight of samples
    /// of a region in this window, for what the program said.
    pub fn end_window(&mut self, region: u32, counted: Counted, mean: f32) -> Region {
        let known = self.of(region);
        let met = std::mem::take(&mut known.met);
        let (sampled, faults) = (met.pages(), counted.faults as f32);
        if counted.tier == 0 {
            known.touched *= REMEMBERED;
            known.fresh *= REMEMBERED;
        } else {
            // What is in DRAM although the region is evicted was touched.
            (known.touched, known.fresh) = ((counted.resident as f32).max(faults), faults);
        }
        let weight = met.weight + faults;
        let accesses = match counted.expected {
            None => weight,
            Some(Expected(times)) => {
                let part = PRIOR_WEIGHT / (PRIOR_WEIGHT + weight);
                part * times * mean + (1.0 - part) * weight
            }
        };
        let pages = counted.pages.max(1);
        let touched = known.touched.max(sampled).min(pages as f32);
        Region {
            pages,
            tier: counted.tier,
            leaked: if counted.tier == 0 { 0 } else { counted.resident },
            accesses,
            touched: touched.round() as u32,
            fresh: known.fresh.min(touched).round() as u32,
        }
    }

    /// The mean weight of samples of `regions` regions in the window that ends.
    pub fn mean(&self, regions: usize) -> f32 {
        self.known.iter().map(|known| known.met.weight).sum::<f32>() / regions.max(1) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(tier: u8, resident: u32, faults: u32) -> Counted {
        Counted { pages: 512, tier, resident, faults, expected: None }
    }

    #[test]
    fn pages_that_samples_did_not_meet_are_estimated() {
        let mut heat = Heat::default();
        // 400 samples of 200 pages: 200 × (1 − e⁻²) = 173 are met.
        let mut random = 1u64;
        for _ in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            heat.sampled(3, (random >> 33) as usize % 200, 1.0);
        }
        let region = heat.end_window(3, counted(0, 512, 0), 0.0);
        assert!((180..225).contains(&region.touched), "{region:?}");
        assert_eq!(region.accesses, 400.0);
        assert_eq!(heat.end_window(3, counted(0, 512, 0), 0.0).touched, 0, "another window");
    }

    #[test]
    fn what_faults_said_is_remembered_in_dram() {
        let mut heat = Heat::default();
        assert_eq!(heat.end_window(0, counted(0, 512, 0), 0.0).touched, 0);
        let out = heat.end_window(0, counted(1, 300, 250), 0.0);
        assert_eq!((out.touched, out.fresh, out.leaked), (300, 250, 300));
        let back = heat.end_window(0, counted(0, 512, 0), 0.0);
        assert_eq!((back.touched, back.fresh, back.leaked), (288, 240, 0));
        let later = (0..100).map(|_| heat.end_window(0, counted(0, 512, 0), 0.0)).last().unwrap();
        assert!(later.touched < 10, "{later:?}");
    }

    #[test]
    fn what_the_program_said_is_outweighed_by_samples() {
        let mut heat = Heat::default();
        let hot = Counted { expected: Some(Expected(4.0)), ..counted(0, 512, 0) };
        assert_eq!(heat.end_window(0, hot, 10.0).accesses, 40.0, "nothing else is known");
        (0..1600).for_each(|_| heat.sampled(0, 0, 1.0));
        let seen = heat.end_window(0, hot, 10.0).accesses;
        assert!((seen - 1600.0).abs() < 20.0, "{seen}");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::with_cases(256)
        })]

        /// Whatever was seen, a region has no more touched pages than pages, nor fresh than
        /// touched.
        #[test]
        fn a_region_is_possible(
            samples in proptest::collection::vec((0usize..512, 0.0f32..9.0), 0..300),
            pages in 0u32..=512, tier in 0u8..4, resident in 0u32..=512, faults in 0u32..2000,
        ) {
            let mut heat = Heat::default();
            samples.iter().for_each(|(page, weight)| heat.sampled(1, *page, *weight));
            let counted =
                Counted { pages, tier, resident: resident.min(pages), faults, expected: None };
            let region = heat.end_window(1, counted, 0.0);
            prop_assert!(region.pages >= 1 && region.touched <= region.pages);
            prop_assert!(region.fresh <= region.touched && region.leaked <= region.pages);
            prop_assert!(region.accesses.is_finite() && region.accesses >= 0.0);
        }
    }
}
