//! What differs between the routes by which pages are evicted from DRAM.

use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor};
use crate::pages::mm::Mm;
use crate::pages::table::{Entry, REGION_PAGES};
use terrace_tiers::Tier;

/// A route by which pages are evicted from DRAM, one for each kind of tier. A further kind is a
/// file with an implementation of this trait and a row in [`route_of`](super::route_of).
pub(crate) trait Route: Sync {
    /// Whether single pages may be evicted by this route at present.
    fn accepts(&self, tier: &Tier) -> bool;

    /// Bytes of DRAM that a byte of the program's takes in the tier `tier`, once that is known.
    fn ratio(&self, evictor: &Evictor, mm: &Mm, tier: usize) -> Option<f64>;

    /// Evicts pages of a region into `request`'s tier, which accepts pages. By default evicts
    /// nothing.
    fn evict(
        &self,
        _evictor: &mut Evictor,
        _mm: &Mm,
        _entry: Entry,
        _request: EvictRequest,
    ) -> EvictOutcome {
        EvictOutcome { next: REGION_PAGES, ..EvictOutcome::default() }
    }

    /// Evicts pages whose probation is over, by their numbers, into the tier `tier`. `report` gets
    /// the region of each evicted page. A page that cannot be evicted stays, off probation.
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
