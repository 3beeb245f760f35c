//! Zones of allocation sites: objects of like hotness share one.
//!
//! Jenga (§4.2) leaves the zone to a hash of the calling context. With thousands of contexts and 32
//! zones, hot ones and cold ones meet. Here sites go by their hotness, samples per byte, in steps
//! of four. The steps are no finer, because objects that are used together are often allocated
//! together, by several callers in turn. Parting them costs more pages than it saves
//! (`docs/notes/2026-11-27-benchmarks.md`, "Objects by context"). Only objects to come are
//! concerned: existing ones stay where they are.

/// What is known of a site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Bytes of its live objects.
    pub bytes: u64,
    /// Samples that met them, decayed.
    pub samples: f32,
    /// Zone of the site now, from 0.
    pub zone: u32,
}

/// Least number of samples in all; fewer say nothing.
const SAMPLES_MIN: f32 = 100.0;
/// Number of a site's samples at which they weigh as much as the mean of all. Thin evidence is
/// drawn to the mean.
const PRIOR_SAMPLES: f32 = 3.0;

/// Steps of hotness: the mean's in the middle. What is hotter or colder than the outermost counts
/// as those.
const STEPS: i32 = 9;
/// Hotness of a step, as a multiple of that of the next.
const STEP: f32 = 4.0;

/// The zone, of `zones`, that each site's next objects go to: the hotter, the lower its number. A
/// site stays where it is if that is next to it, as samples change a little all the time. It does
/// not stay where there are so few zones that another step's may be as near. Sites without live
/// objects stay, too.
pub fn zones(sites: &[Site], zones: u32) -> Vec<u32> {
    let bytes: u64 = sites.iter().map(|site| site.bytes).sum();
    let samples: f32 = sites.iter().map(|site| site.samples).sum();
    if samples < SAMPLES_MIN || bytes == 0 {
        return sites.iter().map(|site| site.zone).collect();
    }
    let mean = samples / bytes as f32;
    let near = u32::from(zones >= 3 * STEPS as u32);
    let chosen = |site: &Site| {
        let density = (site.samples + PRIOR_SAMPLES) / (site.bytes as f32 + PRIOR_SAMPLES / mean);
        let above = (density / mean).log(STEP).round() as i32;
        let step = (STEPS / 2 - above).clamp(0, STEPS - 1) as u32;
        let zone = step * zones / STEPS as u32;
        if site.bytes == 0 || zone.abs_diff(site.zone) <= near { site.zone } else { zone }
    };
    sites.iter().map(chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn site(bytes: u64, samples: f32, zone: u32) -> Site {
        Site { bytes, samples, zone }
    }

    #[test]
    fn hot_and_cold_part_and_like_ones_meet() {
        // A hot one and a cold one that met by chance, and two that are about as hot as the mean.
        let sites = [
            site(1 << 20, 900.0, 5),
            site(64 << 20, 2.0, 5),
            site(10 << 20, 60.0, 31),
            site(14 << 20, 100.0, 2),
        ];
        let chosen = zones(&sites, 32);
        assert!(
            chosen[0] < chosen[2] && chosen[2] < chosen[1] && chosen[2] == chosen[3],
            "{chosen:?}"
        );
    }

    #[test]
    fn they_part_where_there_are_few_zones_too() {
        for count in [2, 3, 4, 9, 26, 27, 255] {
            for met in 0..count {
                let sites = [site(1 << 20, 4000.0, met), site(64 << 20, 2.0, met)];
                let chosen = zones(&sites, count);
                assert!(chosen[0] < chosen[1], "of {count}, in {met}: {chosen:?}");
            }
        }
    }

    #[test]
    fn without_samples_nothing_changes() {
        let sites = [site(1 << 20, 20.0, 3), site(1 << 20, 0.0, 7)];
        assert_eq!(zones(&sites, 32), [3, 7]);
        assert_eq!(zones(&[], 32), []);
    }

    #[test]
    fn what_was_sampled_once_is_not_called_hot() {
        // A hundred times as dense as the mean, by one sample.
        let sites = [site(100 << 20, 999.0, 20), site(1 << 10, 1.0, 30)];
        let chosen = zones(&sites, 9);
        assert_eq!(chosen[1], 4, "{chosen:?}");
    }

    proptest! {
        #[test]
        fn zones_are_ordered_by_hotness(
            figures in vec((1u64..1 << 30, 0.0f32..1e6), 2..40),
            count in 2u32..255,
        ) {
            // From as far away as can be, so that no site stays in its zone for being near.
            let sites: Vec<Site> = figures
                .iter()
                .map(|(bytes, samples)| site(*bytes, *samples, u32::MAX - 1))
                .collect();
            let samples: f32 = figures.iter().map(|figure| figure.1).sum();
            prop_assume!(samples > SAMPLES_MIN);
            let chosen = zones(&sites, count);
            prop_assert!(chosen.iter().all(|zone| *zone < count));
            let again: Vec<Site> = sites
                .iter()
                .zip(&chosen)
                .map(|(site, zone)| Site { zone: *zone, ..*site })
                .collect();
            prop_assert_eq!(zones(&again, count), chosen.clone(), "what is in its place stays");
            for (a, b) in sites.iter().zip(&chosen) {
                for (c, d) in sites.iter().zip(&chosen) {
                    // With the same bytes the one with more samples is in the same zone or in an
                    // earlier one.
                    prop_assert!(a.bytes != c.bytes || a.samples <= c.samples || b <= d);
                }
            }
        }
    }
}
