//! Which allocation sites' objects share a zone: those of like temperature.
//!
//! Jenga (§4.2) leaves that to a hash of the calling context; with thousands of contexts and 32 zones, hot ones and cold ones meet. Here sites are ranked by their
//! hotness, and the ranking is cut into zones of about equal size, so that what shares a zone is about equally hot. Only objects to come are
//! concerned: existing ones stay where they are.

/// What is known of a site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Bytes of its live objects.
    pub bytes: u64,
    /// Samples that met them, decayed.
    pub samples: f32,
    /// Its zone now, from 0.
    pub zone: u32,
}

/// Fewer samples than this in all say nothing.
const SAMPLES_MIN: f32 = 100.0;
/// A site's own samples weigh as much as the mean of all after so many of them: thin evidence is drawn to the mean.
const PRIOR_SAMPLES: f32 = 3.0;

/// The zone that each site's next objects go to, of `zones`. A site stays where it is unless it is more than one zone off, as a ranking by samples
/// changes a little all the time. Sites without live objects stay, too.
pub fn zones(sites: &[Site], zones: u32) -> Vec<u32> {
    let bytes: u64 = sites.iter().map(|site| site.bytes).sum();
    let samples: f32 = sites.iter().map(|site| site.samples).sum();
    let mut chosen: Vec<u32> = sites.iter().map(|site| site.zone).collect();
    if samples < SAMPLES_MIN || bytes == 0 || zones < 2 {
        return chosen;
    }
    let mean = samples / bytes as f32;
    let density = |site: &Site| (site.samples + PRIOR_SAMPLES) / (site.bytes as f32 + PRIOR_SAMPLES / mean);
    let mut ranking: Vec<usize> = (0..sites.len()).filter(|index| sites[*index].bytes > 0).collect();
    // Ties by number: the same sites give the same zones.
    ranking.sort_by(|a, b| density(&sites[*b]).total_cmp(&density(&sites[*a])).then(a.cmp(b)));
    let mut before = 0;
    for index in ranking {
        let site = &sites[index];
        // By the middle of its bytes: a site that holds most of memory does not push the next ones on by a zone of its own.
        let middle = before + site.bytes / 2;
        let zone = (u128::from(middle) * u128::from(zones) / u128::from(bytes)).min(u128::from(zones - 1)) as u32;
        if zone.abs_diff(site.zone) > 1 {
            chosen[index] = zone;
        }
        before += site.bytes;
    }
    chosen
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
    fn hot_and_cold_part() {
        // Two that met by chance, and one far larger and colder.
        let sites = [site(1 << 20, 900.0, 5), site(1 << 20, 2.0, 5), site(30 << 20, 10.0, 5)];
        let chosen = zones(&sites, 32);
        assert_eq!(chosen[0], 0);
        assert!(chosen[1] > 0 && chosen[2] > chosen[1], "{chosen:?}");
    }

    #[test]
    fn without_samples_nothing_changes() {
        let sites = [site(1 << 20, 20.0, 3), site(1 << 20, 0.0, 7)];
        assert_eq!(zones(&sites, 32), [3, 7]);
        assert_eq!(zones(&[], 32), []);
    }

    #[test]
    fn what_was_sampled_once_is_not_called_hot() {
        // A thousandth of the bytes and one sample of a thousand: as dense as the mean.
        let mut sites = vec![site(100 << 20, 999.0, 20), site(100 << 10, 1.0, 30)];
        sites.push(site(10 << 20, 0.0, 0));
        let chosen = zones(&sites, 32);
        assert!(chosen[1] > 0 && chosen[2] > 20, "{chosen:?}");
    }

    proptest! {
        #[test]
        fn zones_are_ordered_by_hotness(
            figures in vec((1u64..1 << 30, 0.0f32..1e6), 2..40),
            count in 2u32..255,
        ) {
            // From as far away as can be, so that nobody stays for being near.
            let sites: Vec<Site> = figures.iter().map(|(bytes, samples)| site(*bytes, *samples, u32::MAX - 1)).collect();
            let samples: f32 = figures.iter().map(|figure| figure.1).sum();
            prop_assume!(samples > SAMPLES_MIN);
            let chosen = zones(&sites, count);
            prop_assert!(chosen.iter().all(|zone| *zone < count));
            let again: Vec<Site> = sites.iter().zip(&chosen).map(|(site, zone)| Site { zone: *zone, ..*site }).collect();
            prop_assert_eq!(zones(&again, count), chosen.clone(), "what is in its place stays");
            for (a, b) in sites.iter().zip(&chosen) {
                for (c, d) in sites.iter().zip(&chosen) {
                    // With the same bytes the one with more samples is in the same zone or in an earlier one.
                    prop_assert!(a.bytes != c.bytes || a.samples <= c.samples || b <= d);
                }
            }
        }
    }
}
