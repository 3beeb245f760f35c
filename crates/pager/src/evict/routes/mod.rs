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

/// The route where no tier accepts pages: all of them stay.
struct Nowhere;

impl Route for Nowhere {
    fn accepts(&self, _tier: &Tier) -> bool {
        false
    }

    fn ratio(&self, _evictor: &Evictor, _mm: &Mm, _tier: usize) -> Option<f64> {
        None
    }
}

/// The tier for pages meant for `tier`, and the route to it. It is `tier` itself if it accepts
/// pages, or the next of ours that does, or else the one before.
fn accepting(mm: &Mm, tier: usize) -> (usize, &'static dyn Route) {
    let accepts = |tier: &usize| route_of(&mm.tiers[*tier]).accepts(&mm.tiers[*tier]);
    let found = [tier, mm.own_tier(tier)].into_iter().find(accepts);
    found.map_or((tier, &Nowhere), |tier| (tier, route_of(&mm.tiers[tier])))
}

impl Evictor {
    /// Evicts pages of a region.
    pub fn evict(&mut self, mm: &Mm, entry: Entry, mut request: EvictRequest) -> EvictOutcome {
        let (tier, route) = accepting(mm, request.tier);
        request.tier = tier;
        route.evict(self, mm, entry, request)
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
        let (tier, route) = accepting(mm, tier);
        route.end_probation(self, mm, pages, tier, &mut report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_test::without_forks;
    use crate::pages::word::{Snapshot, tick_of};
    use crate::verify_test::{filled, pager};
    use std::sync::atomic::Ordering::Relaxed;
    use terrace_os as sys;
    use terrace_policy::eviction::victims::Refault;

    #[test]
    fn a_page_goes_off_probation_where_the_only_tier_takes_none() {
        let _alone = without_forks();
        let Some(pager) = pager("dram,swap", false, |_| Ok(())) else { return };
        // As `terrace set --tiers` does it; nor is there any swap on most machines of tests.
        pager.tiers[1].set_disabled(true);
        let (base, _) = filled(pager, |page| page as u64);
        let entry = pager.table.get_or_create(base).unwrap();
        let (word, old) = (entry.word(base), sys::now_ns() / 1_000_000 - 60_000);
        let back = Snapshot::restored(Refault { refaults: 0, probation: true }, tick_of(old));
        word.transition(word.load(), back).unwrap();
        let pages = [entry.page_number(base)];
        let mut evictor = Evictor::new(pager);
        evictor.end_probation(pager, &pages, 1, |_| panic!("nothing can be evicted"));
        assert!(word.load().is_present() && !word.load().is_on_probation());
        assert_eq!(pager.account.failed_moves.load(Relaxed), 0, "the kernel was not asked");
    }
}
