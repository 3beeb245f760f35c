//! The route to the memory of another NUMA node. Whole regions are moved there, by samples of what
//! is hot (`mover/far.rs`), and single pages never are. Single pages meant for a node are evicted
//! to the next compressed tier.

use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor};
use crate::evict::routes::route::Route;
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION_PAGES};
use terrace_tiers::Tier;

pub(super) struct ToNode;

impl Route for ToNode {
    fn accepts(&self, _tier: &Tier) -> bool {
        false
    }

    fn ratio(&self, _evictor: &Evictor, _mm: &Mm, _tier: usize) -> Option<f64> {
        Some(0.0)
    }

    fn evict(
        &self,
        _evictor: &mut Evictor,
        _mm: &Mm,
        _entry: Entry,
        _request: EvictRequest,
    ) -> EvictOutcome {
        EvictOutcome { next: REGION_PAGES, ..EvictOutcome::default() }
    }

    fn end_probation(
        &self,
        _evictor: &mut Evictor,
        mm: &Mm,
        pages: &[u32],
        _tier: usize,
        _report: &mut dyn FnMut(u32),
    ) {
        let _inside = mm.gate.worker();
        for (entry, address) in pages.iter().map(|number| mm.table.page(*number)) {
            let _region = mm.table.lock(&entry);
            mm.end_probation(&entry, address);
        }
    }
}
