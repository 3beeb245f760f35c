//! The route to the memory of another NUMA node. Whole regions are moved there, by samples of what
//! is hot (`mover/far.rs`), and single pages never are. Single pages meant for a node are evicted
//! to the next compressed tier.

use crate::evict::evictor::Evictor;
use crate::evict::routes::route::Route;
use crate::pages::mm::Mm;
use terrace_tiers::Tier;

pub(super) struct ToNode;

impl Route for ToNode {
    fn accepts(&self, _tier: &Tier) -> bool {
        false
    }

    fn ratio(&self, _evictor: &Evictor, _mm: &Mm, _tier: usize) -> Option<f64> {
        Some(0.0)
    }
}
