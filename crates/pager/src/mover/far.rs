//! The tier `node:N`: memory of another NUMA node, which the program reads without a fault, only
//! slower: the setting of Jenga (§2.1, §5).
//!
//! Whole regions are migrated with `move_pages`, huge pages unsplit. They return to DRAM by
//! samples; they leave it by samples or for lack of room. The page word stays Resident, so no
//! region lock is held.
//!
//! Only the kernel knows which node a page is on: it places first touches, and a write after a fork
//! makes a new page. [`Far`] queries a region again after moving it or when its page count changed;
//! all others in turn. Until then it assumes that pages are where they were. A page that is not
//! evictable counts as DRAM wherever it is.

use crate::evict::{EvictOutcome, is_refused, note_refusals};
use crate::pager::Pager;
use crate::pages::table::{Entry, REGION, REGION_PAGES};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use terrace_control::moves::{MoveReason, unit_of};
use terrace_os::{self as sys, Errno, PAGE};
use terrace_policy::eviction::victims::{Reason, RegionId, RegionView};
use terrace_policy::placement::{self, FirstTouch, Move, Place, PlacementPolicy, Room};
use terrace_policy::registry::live;
use terrace_tiers::Node;

/// Pages per call when the pages that did not move are retried. One that cannot move ends its call.
/// Each call costs the machine more than the pages.
const RETRY_PAGES: usize = 64;
/// Time for one round of queries, ns. Unchanged regions get one part in `IN_TURN_SHARE` of the
/// time.
const QUERY_NS: u64 = 500_000;
const IN_TURN_SHARE: u64 = 100;
/// Interval, ns, at which the policy is asked what should move; and (next) time for its moves,
/// before others have their turn.
const DECIDE_EVERY_NS: u64 = 100_000_000;
const DECIDE_SLICE_NS: u64 = 20_000_000;
/// Moves asked for at a time.
const MOVES_MAX: u32 = 32;
/// Longest age of the coldest-first list, ns: of regions in DRAM, and of far ones. An exhausted
/// list is rebuilt after `ORDER_AGAIN_NS`.
const NEAR_ORDER_FOR_NS: u64 = 1_000_000_000;
const FAR_ORDER_FOR_NS: u64 = 60_000_000_000;
const ORDER_AGAIN_NS: u64 = 20_000_000;
/// Rest after all of a full node was tried, and nothing could be compressed, ns.
const REST_NS: u64 = 1_000_000_000;
/// How often the room in the node is read, ns.
const POLL_INTERVAL_NS: u64 = 1_000_000_000;
/// A region counts as far if more than one page in this many is on the node.
const FAR_SHARE: u16 = 4;

/// State of a region.
#[derive(Clone, Copy, Default)]
struct RegionState {
    /// Evictable pages at the last scan, and of those the far ones, as far as is known.
    present: u16,
    far: u16,
    /// `present` at the last query; another number now is a reason for a new query.
    present_at_query: u16,
    /// Node that the pages left, plus one; 0 if unknown.
    origin_node: u16,
    /// Number of the last scan that found the region; 0 if none.
    seen: u32,
    stale: bool,
    /// Place last reported to the policy.
    place: Option<Place>,
}

impl RegionState {
    fn near(&self) -> u16 {
        self.present.saturating_sub(self.far)
    }
}

/// Regions with pages in one place, coldest first, and how far one has come.
#[derive(Default)]
struct ColdestFirst {
    regions: Vec<(f32, RegionId)>,
    next: usize,
    since_ns: u64,
}

/// What the mover knows of far memory. Owned by its thread.
pub(crate) struct Far {
    node: Arc<Node>,
    placement: Box<dyn PlacementPolicy>,
    /// The node's slowness for which `placement` was made.
    slowness: f64,
    regions: Vec<RegionState>,
    scans: u32,
    /// Regions to be queried.
    stale: VecDeque<RegionId>,
    /// The region queried last in turn, and when a round ended.
    scan_cursor: usize,
    scan_cursor_ns: u64,
    /// Far pages that a forked child's parent knew of, and that have not been queried yet.
    inherited: u64,
    moves: Vec<Move>,
    near: ColdestFirst,
    far: ColdestFirst,
    /// No more of the node is compressed before this time.
    rest_until_ns: u64,
    /// The fraction of a sample, below 1, that is carried over until it makes a whole one.
    carry: f32,
    decided_ns: u64,
    polled_ns: u64,
    /// Scratch: pages, where they are, and where to.
    pages: Vec<usize>,
    status: Vec<i32>,
    migrating: Vec<usize>,
    targets: Vec<i32>,
}

impl Pager {
    /// Adds `more` pages to those on the node, and subtracts them from DRAM's.
    fn count_far(&self, more: i64) {
        if let Some((tier, _)) = self.far() {
            let pages = (tier.stats.pages() as i64 + more).max(0) as u64;
            tier.stats.set_held(pages, pages * PAGE as u64);
            self.account.resident_pages.fetch_sub(more, Relaxed);
        }
    }
}

impl Far {
    /// Makes the state, for a pager that has such a tier.
    pub fn new(pager: &Pager) -> Option<Far> {
        let mut far = Far {
            node: Arc::clone(pager.far()?.1),
            placement: Box::new(FirstTouch::live("faults")),
            slowness: 0.0,
            regions: Vec::new(),
            scans: 0,
            stale: VecDeque::new(),
            scan_cursor: 0,
            scan_cursor_ns: sys::now_ns(),
            inherited: pager.far_pages(),
            moves: Vec::new(),
            near: ColdestFirst::default(),
            far: ColdestFirst::default(),
            rest_until_ns: 0,
            carry: 0.0,
            decided_ns: 0,
            polled_ns: sys::now_ns(),
            pages: Vec::with_capacity(REGION_PAGES),
            status: Vec::with_capacity(REGION_PAGES),
            migrating: Vec::with_capacity(REGION_PAGES),
            targets: Vec::with_capacity(REGION_PAGES),
        };
        far.poll_node(pager);
        Some(far)
    }

    /// After a scan: subtracts far pages from `views`, which then count DRAM only.
    pub fn after_scan(&mut self, pager: &Pager, views: &mut Vec<RegionView>) {
        self.scans += 1;
        for view in views.iter_mut() {
            let number = view.region as usize;
            if number >= self.regions.len() {
                self.regions.resize(number + 1, RegionState::default());
            }
            let before = std::mem::replace(&mut self.regions[number].seen, self.scans);
            let state = &mut self.regions[number];
            state.present = view.resident_pages as u16;
            if (before == 0 || state.present != state.present_at_query)
                && !std::mem::replace(&mut state.stale, true)
            {
                self.stale.push_back(view.region);
            }
            // Nothing that is there no more is far.
            let far = state.far.min(state.present);
            self.set(pager, view.region, far);
            view.resident_pages -= u32::from(far);
        }
        for number in 0..self.regions.len() {
            if self.regions[number].seen != self.scans && self.regions[number].seen != 0 {
                self.regions[number].present = 0;
                self.set(pager, number as RegionId, 0);
                self.regions[number] =
                    RegionState { stale: self.regions[number].stale, ..RegionState::default() };
            }
        }
        views.retain(|view| view.resident_pages > 0);
    }

    /// Sets how many present pages of a region are on the node.
    fn set(&mut self, pager: &Pager, region: RegionId, far: u16) {
        let state = &mut self.regions[region as usize];
        let more = i64::from(far) - i64::from(state.far);
        state.far = far;
        let slow = u32::from(far) * u32::from(FAR_SHARE) > u32::from(state.present);
        let place = (state.present > 0).then_some(if slow { Place::Slow } else { Place::Fast });
        match (std::mem::replace(&mut state.place, place), place) {
            (before, now) if before == now => {}
            (None, Some(now)) => self.placement.arrived(region, now, 1),
            (Some(_), Some(now)) => self.placement.moved(region, now),
            (_, None) => self.placement.gone(region),
        }
        if more != 0 {
            pager.count_far(more);
        }
    }

    /// Queries where pages are, of regions where that may have changed, and of others in turn.
    pub fn refresh_locations(&mut self, pager: &Pager, now_ns: u64) {
        // From now on: a scan may have come before.
        let deadline = sys::now_ns() + QUERY_NS;
        while sys::now_ns() < deadline {
            if let Some(region) = self.stale.pop_front() {
                self.regions[region as usize].stale = false;
                self.recount(pager, &pager.table.by_number(region));
            } else if self.inherited > 0 {
                // All has been queried: the rest of what the parent knew of is not there.
                pager.count_far(-(std::mem::take(&mut self.inherited) as i64));
            } else if now_ns - self.scan_cursor_ns < QUERY_NS * IN_TURN_SHARE
                || self.regions.is_empty()
            {
                return;
            } else {
                self.scan_cursor = (self.scan_cursor + 1) % self.regions.len();
                if self.regions[self.scan_cursor].seen != 0 {
                    self.recount(pager, &pager.table.by_number(self.scan_cursor as RegionId));
                }
            }
        }
        if self.stale.is_empty() {
            self.scan_cursor_ns = now_ns;
        }
    }

    /// Finds out where the pages of a region are: how many are present, and of those far. `None` if
    /// the kernel does not say.
    fn locate(&mut self, pager: &Pager, entry: &Entry) -> Option<(u16, u16)> {
        let base = entry.region.address();
        let pieces = pager.ranges.lock().overlapping(base, base + REGION);
        let evictable = pieces.iter().filter(|piece| piece.attributes.may_leave());
        self.pages.clear();
        self.pages.extend(evictable.flat_map(|piece| (piece.start..piece.end).step_by(PAGE)));
        self.status.clear();
        self.status.resize(self.pages.len(), -libc::ENOENT);
        if !self.pages.is_empty()
            && let Err(error) = sys::locate_pages(&self.pages, &mut self.status)
        {
            self.refused(pager, error);
            return None;
        }
        let far = self.node.number() as i32;
        let count = |here: &dyn Fn(i32) -> bool| {
            self.status.iter().filter(|status| here(**status)).count() as u16
        };
        Some((count(&|status| status >= 0), count(&|status| status == far)))
    }

    fn recount(&mut self, pager: &Pager, entry: &Entry) {
        if let Some((present, far)) = self.locate(pager, entry) {
            self.note(pager, entry.number, present, far);
        }
    }

    /// Records a query's result: pages present, and pages on the node.
    fn note(&mut self, pager: &Pager, region: RegionId, present: u16, far: u16) {
        let index = region as usize;
        if index >= self.regions.len() {
            self.regions.resize(index + 1, RegionState::default());
        }
        let state = &mut self.regions[index];
        if state.seen == 0 {
            // It came after the last scan.
            state.seen = self.scans.max(1);
            state.present = present;
        }
        state.present_at_query = state.present;
        state.present = state.present.max(present);
        // What the parent knew of is found here: it has been counted.
        let known = self.inherited.min(u64::from(far.saturating_sub(state.far)));
        self.inherited -= known;
        pager.count_far(-(known as i64));
        self.set(pager, region, far);
    }

    /// Migrates a region's pages to this place. Returns how many moved.
    fn migrate(&mut self, pager: &Pager, entry: &Entry, to: Place, why: MoveReason) -> u32 {
        let far = self.node.number() as i32;
        let Some((mut present, before)) = self.locate(pager, entry) else { return 0 };
        self.note(pager, entry.number, present, before);
        let number = entry.number as usize;
        let origin_node = &mut self.regions[number].origin_node;
        if to == Place::Slow
            && let Some(node) = self.status.iter().find(|status| **status >= 0 && **status != far)
        {
            *origin_node = *node as u16 + 1;
        }
        let origin_node = origin_node.checked_sub(1).map_or(self.node.near() as i32, i32::from);
        self.targets.clear();
        self.targets.resize(REGION_PAGES, if to == Place::Slow { far } else { origin_node });
        let (mut after, mut wanted, mut ended) = (before, 0, None);
        for at_once in [REGION_PAGES, RETRY_PAGES] {
            let elsewhere = |status: i32| status >= 0 && (status == far) != (to == Place::Slow);
            self.migrating.clear();
            self.migrating.extend(
                self.pages
                    .iter()
                    .zip(&self.status)
                    .filter(|(_, status)| elsewhere(**status))
                    .map(|(page, _)| *page),
            );
            wanted = wanted.max(self.migrating.len());
            if self.migrating.is_empty() || ended.is_some() {
                break;
            }
            self.status.resize(REGION_PAGES, 0);
            for pages in self.migrating.chunks(at_once) {
                ended = sys::move_pages(
                    pages,
                    &self.targets[..pages.len()],
                    &mut self.status[..pages.len()],
                )
                .err();
                if ended.is_some() {
                    break;
                }
            }
            let Some(now) = self.locate(pager, entry) else { break };
            (present, after) = now;
        }
        self.note(pager, entry.number, present, after);
        let moved = u32::from(if to == Place::Slow {
            after.saturating_sub(before)
        } else {
            before.saturating_sub(after)
        });
        let refused = (wanted as u32).saturating_sub(moved);
        pager.account.failed_moves.fetch_add(u64::from(refused), Relaxed);
        match ended {
            None => note_refusals(
                entry,
                &EvictOutcome {
                    evicted: moved,
                    refused,
                    eligible: wanted as u32,
                    ..EvictOutcome::default()
                },
            ),
            Some(Errno::ENOMEM) if to == Place::Slow => self.node.is_full(),
            // The node that they came from has no room just now, or is not to be used any more:
            // another, another time.
            Some(_) if to == Place::Fast && self.regions[number].origin_node != 0 => {
                self.regions[number].origin_node = 0;
                note_refusals(
                    entry,
                    &EvictOutcome { refused: 1, eligible: 1, ..EvictOutcome::default() },
                );
            }
            Some(Errno::ENOMEM) => note_refusals(
                entry,
                &EvictOutcome { refused: 1, eligible: 1, ..EvictOutcome::default() },
            ),
            Some(error) => self.refused(pager, error),
        }
        if let Some(far) = pager.tiers.iter().position(|tier| tier.node().is_some()) {
            let (from, to) = if to == Place::Slow { (0, far) } else { (far, 0) };
            pager.list_move(entry.region.address(), moved.into(), Some(from), to, why);
        }
        if to == Place::Slow {
            self.node.took(u64::from(moved));
            pager.account.demoted_pages.fetch_add(u64::from(moved), Relaxed);
        } else {
            self.node.gave(u64::from(moved));
            pager.account.promoted_pages.fetch_add(u64::from(moved), Relaxed);
            pager.account.hot_pages.fetch_add(u64::from(moved), Relaxed);
        }
        moved
    }

    /// Handles an error of `move_pages`: stops using the node for a while.
    fn refused(&mut self, pager: &Pager, error: Errno) {
        self.node.is_full();
        self.stale.drain(..).for_each(|region| self.regions[region as usize].stale = false);
        if self.node.is_usable() {
            let why = format!(
                "move_pages between node {} and DRAM is refused ({error}; by a seccomp filter?)",
                self.node.number()
            );
            pager.warn_once(
                &pager.warned.node_refused,
                &format!("{why}. Until that works again, pages stay in DRAM or go to other tiers"),
            );
        }
    }

    /// Reads how much room there is in the node.
    fn poll_node(&mut self, pager: &Pager) {
        if let Err(problem) = self.node.poll() {
            pager.warn_once(
                &pager.warned.node,
                &format!("{problem}. Until then pages stay in DRAM or go to other tiers"),
            );
        } else if self.slowness != self.node.slowness() {
            // That is known from the first poll on, of a node that is there from the beginning.
            self.slowness = self.node.slowness();
            if let Some(placement) = live::placement(pager.settings.policy.name(), self.slowness) {
                self.placement = placement;
                for (number, state) in self.regions.iter().enumerate() {
                    if let Some(place) = state.place {
                        self.placement.arrived(number as RegionId, place, 1);
                    }
                }
            }
        }
    }

    /// Warns that the node is full, where nothing else takes what should go there.
    pub fn warn_full(&self, pager: &Pager) {
        if self.node.is_usable() {
            let number = self.node.number();
            let note = format!(
                "node {number} is full: pages stay in DRAM, because no tier behind it takes any (--tiers dram,node:{number},zstd)"
            );
            pager.warn_once(&pager.warned.node_full, &note);
        }
    }

    /// Whether the node takes pages at present.
    pub fn accepts(&self) -> bool {
        self.node.room_pages() >= REGION_PAGES as u64
    }

    /// Whether it would if there were room.
    pub fn is_usable(&self) -> bool {
        self.node.is_usable()
    }

    /// Moves the whole regions in `start..end` to the node, as far as it takes them: what the
    /// program does not need soon.
    pub fn page_out(&mut self, pager: &Pager, start: usize, end: usize) {
        for region in start.div_ceil(REGION)..end / REGION {
            if pager.pause_asked() || !self.accepts() {
                return;
            }
            if let Some(entry) = pager.table.get(region * REGION) {
                self.migrate(pager, &entry, Place::Slow, victim(Reason::Asked));
            }
        }
    }

    /// Moves the coldest region that has pages in DRAM to the node. False if there is none, or the
    /// node takes no more.
    pub fn demote_coldest(&mut self, pager: &Pager, now_ns: u64) -> bool {
        if !self.accepts() {
            return false;
        }
        let Some(entry) = self.coldest(pager, Place::Fast, now_ns) else { return false };
        self.migrate(pager, &entry, Place::Slow, MoveReason::Placed(placement::Reason::Coldest));
        true
    }

    /// The coldest far region that was not asked for in this order yet; `None` also for a while
    /// after [`Far::compressed_none`].
    pub fn coldest_far<'p>(&mut self, pager: &'p Pager, now_ns: u64) -> Option<Entry<'p>> {
        if now_ns < self.rest_until_ns {
            return None;
        }
        self.coldest(pager, Place::Slow, now_ns)
    }

    /// Records that nothing on the node can be compressed now.
    pub fn compressed_none(&mut self, now_ns: u64) {
        self.rest_until_ns = now_ns + REST_NS;
    }

    fn coldest<'p>(&mut self, pager: &'p Pager, place: Place, now_ns: u64) -> Option<Entry<'p>> {
        let order = if place == Place::Fast { &mut self.near } else { &mut self.far };
        let pages_there =
            |state: &RegionState| if place == Place::Fast { state.near() } else { state.far };
        let age_ns = now_ns - order.since_ns;
        let old_ns = if place == Place::Fast { NEAR_ORDER_FOR_NS } else { FAR_ORDER_FOR_NS };
        if age_ns > old_ns || age_ns > ORDER_AGAIN_NS && order.next >= order.regions.len() {
            let placement = &self.placement;
            let there = self.regions.iter().enumerate().filter(|(_, state)| pages_there(state) > 0);
            order.regions.clear();
            order.regions.extend(
                there.map(|(number, _)| (placement.heat(number as RegionId), number as RegionId)),
            );
            order.regions.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            (order.next, order.since_ns) = (0, now_ns);
        }
        while let Some((_, region)) = order.regions.get(order.next) {
            order.next += 1;
            let entry = pager.table.by_number(*region);
            if pages_there(&self.regions[*region as usize]) > 0
                && !is_refused(&entry, now_ns / 1_000_000)
            {
                return Some(entry);
            }
        }
        None
    }

    /// Records that `pages` of a far region were compressed.
    pub fn compressed(&mut self, pager: &Pager, entry: &Entry, pages: u32) {
        self.node.gave(u64::from(pages));
        self.recount(pager, entry);
    }

    /// Reports a sample. Its weight is divided by the region's latency relative to DRAM.
    pub fn sampled(&mut self, region: RegionId, weight: f32) {
        let Some(state) = self.regions.get(region as usize).filter(|state| state.place.is_some())
        else {
            return;
        };
        let far = f32::from(state.far) / f32::from(state.present.max(1));
        self.carry += weight / (1.0 + far * (self.slowness as f32 - 1.0).max(0.0));
        if self.carry >= 1.0 {
            let whole = self.carry as u32;
            self.carry -= whole as f32;
            self.placement.sampled(region, whole);
        }
    }

    /// Makes the moves that the policy wants; `room_bytes` are for pages in DRAM in all.
    pub fn decide(&mut self, pager: &Pager, room_bytes: u64, now_ns: u64) {
        if now_ns - self.polled_ns > POLL_INTERVAL_NS {
            self.polled_ns = now_ns;
            self.poll_node(pager);
        }
        if now_ns - self.decided_ns < DECIDE_EVERY_NS || !self.is_usable() {
            return;
        }
        self.decided_ns = now_ns;
        let (mut regions, mut used, mut pages) = (0u64, 0u32, 0u64);
        for state in self.regions.iter().filter(|state| state.place.is_some()) {
            regions += 1;
            pages += u64::from(state.present);
            used += u32::from(state.place == Some(Place::Fast));
        }
        if regions == 0 {
            return;
        }
        // Capacity is the regions now in DRAM plus the free room in regions of average size.
        let region_bytes = (pages * PAGE as u64 / regions).max(PAGE as u64) as i64;
        let free = (room_bytes as i64 - (pager.account.resident() * PAGE as u64) as i64)
            .div_euclid(region_bytes);
        let capacity = (i64::from(used) + free).clamp(0, i64::from(u32::MAX)) as u32;
        let mut moves = std::mem::take(&mut self.moves);
        self.placement.decide(Room { capacity, used, moves_max: MOVES_MAX }, &mut moves);
        let mut come = moves.iter().filter(|step| step.to == Place::Fast).count();
        for step in &moves {
            if pager.is_frozen() || pager.pause_asked() || sys::now_ns() - now_ns > DECIDE_SLICE_NS
            {
                break;
            }
            let entry = pager.table.by_number(step.unit);
            let state = self.regions[step.unit as usize];
            let fits = match step.to {
                // Something comes back for it.
                Place::Slow if come > 0 => self.node.buffer_pages() >= u64::from(state.near()),
                Place::Slow => self.accepts(),
                Place::Fast => {
                    (pager.account.resident() + u64::from(state.far)) * PAGE as u64 <= room_bytes
                }
            };
            come -= usize::from(step.to == Place::Fast);
            if fits && !is_refused(&entry, now_ns / 1_000_000) {
                let reason = match step.reason {
                    placement::Reason::SwappedFor { unit } => placement::Reason::SwappedFor {
                        unit: unit_of(pager.table.by_number(unit).region.address()),
                    },
                    other => other,
                };
                let moved = self.migrate(pager, &entry, step.to, MoveReason::Placed(reason));
                if step.to == Place::Slow {
                    pager.account.demoted_for[Reason::Cold as usize]
                        .fetch_add(u64::from(moved), Relaxed);
                }
            }
        }
        self.moves = moves;
    }

    /// For stress tests: moves a region to the node if `far`, else back to DRAM.
    pub fn stress_migrate(&mut self, pager: &Pager, entry: &Entry, far: bool) {
        if !far || self.accepts() {
            self.migrate(
                pager,
                entry,
                if far { Place::Slow } else { Place::Fast },
                victim(Reason::Stress),
            );
        }
    }
}

/// A reason that has nothing to do with heat.
fn victim(reason: Reason) -> MoveReason {
    MoveReason::Victim { reason, heat: None, pressure: 0 }
}
