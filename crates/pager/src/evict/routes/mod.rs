//! The routes by which pages are evicted from DRAM: into compressed pools of our own, to the
//! kernel's swap, to the memory of another node.

mod compressed;
mod node;
pub(crate) mod route;
mod swap;

use crate::evict::evictor::{EvictOutcome, EvictRequest, Evictor};
use crate::evict::routes::route::Route;
use crate::pages::mm::Mm;
use crate::pages::table::Entry;
use terrace_tiers::{Backing, Tier};

/// The route to a tier.
pub(crate) fn route_of(tier: &Tier) -> &'static dyn Route {
    match tier.backing() {
        Backing::Memory(_) | Backing::File(_) => &compressed::Compressed,
        Backing::Swap(_) => &swap::ToSwap,
        Backing::Node(_) => &node::ToNode,
    }
}

/// The tier for pages meant for `tier`. It is `tier` itself if it accepts pages, or the next of
/// ours that does, or else the one before.
fn accepting(mm: &Mm, tier: usize) -> usize {
    if route_of(&mm.tiers[tier]).accepts(&mm.tiers[tier]) { tier } else { mm.own_tier(tier) }
}

impl Evictor {
    /// Evicts pages of a region.
    pub fn evict(&mut self, mm: &Mm, entry: Entry, mut request: EvictRequest) -> EvictOutcome {
        request.tier = accepting(mm, request.tier);
        route_of(&mm.tiers[request.tier]).evict(self, mm, entry, request)
    }

    /// Evicts pages whose probation is over, by their numbers; `report` gets the region of each
    /// evicted page.
    pub fn end_probation(
        &mut self,
        mm: &Mm,
        pages: &[u32],
        tier: usize,
        mut report: impl FnMut(u32),
    ) {
        let tier = accepting(mm, tier);
        route_of(&mm.tiers[tier]).end_probation(self, mm, pages, tier, &mut report);
    }
}
