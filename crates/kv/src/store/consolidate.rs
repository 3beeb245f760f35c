//! Brings hot items together, and cold ones, in slices of time between requests.
//!
//! Hot items are determined as in `terrace-objects`. The reference to an item is its slot in the
//! index, which has the item's clock, too. So a round consists of four steps:
//! - a walk through the index that counts;
//! - a choice of segments;
//! - a walk through the index that moves;
//! - a check of the emptied segments.
//!
//! - No item is read to find out how hot it is, or where it lies.
//! - An item moves under the lock of its bucket, as it is read and changed. So no reader sees a
//!   copy that is not whole, none holds an old one, and no change is lost.
//! - All locks are tried only. Room for the copy is had while no bucket is locked.
//! - An item whose page is not in DRAM stays, by what the pager knows of the page. A segment is
//!   emptied to be given back only where all of its pages are in DRAM.
//! - Eviction may merge the same segments meanwhile: it locks the same bucket and finds the item
//!   where it is by then, or not.

use std::fmt;
use std::ptr;
use std::time::Duration;

use terrace_objects::manager::{
    Classifier, Contents, HEATS, Kind, Pauses, Plan, Situation, Throttle, hot_from, judge,
};
use terrace_objects::{Choice, Progress, Rules, Slice, Utilisation};

use super::heat::{Counting, Heat};
use super::index::{Guard, Slot};
use super::item::{self, Header, Item};
use super::segments::{Context, MOVED, Open, SEGMENT, SMALL_MAX, Segments};
use crate::tiering::Tiering;

/// Share of the bytes that counts as hot where all memory is fast, or nothing is known of it.
const HOT_SHARE: f64 = 0.2;
/// Share of the items' pages in DRAM above which nothing is gained.
const ALL_RESIDENT: f64 = 0.95;
/// Number of chains counted, and segments judged, between two readings of the clock.
const AT_ONCE: usize = 8;
/// Maximum number of segments emptied in a round: their items are there twice until its end.
const EMPTIED: usize = 256;
/// Number of spare segments below which memory is short: what moves must leave no garbage.
const FEW_SPARE: usize = 4;
/// Number of segments emptied in a round where memory is short.
const EMPTIED_SHORT: usize = 2;
/// Number of times that a chain is locked again after room was made for its items.
const LOCKED_MOST: usize = 4;
const PAGE: usize = 4096;
const HEADER: usize = size_of::<Header>();

/// The context of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) segments: &'a Segments,
    pub(super) heat: &'a Heat,
    pub(super) tiering: Option<Tiering>,
    pub(super) context: Context<'a>,
}

impl Around<'_> {
    /// Whether a part of the items' memory is not in DRAM.
    fn is_out(&self, start: *const u8, bytes: usize) -> bool {
        self.tiering.is_some_and(|tiering| tiering.pages_out(start, bytes) > 0)
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    slices: u64,
    rounds: u64,
    moved_items: u64,
    moved_bytes: u64,
    dead_items: u64,
    not_resident: u64,
    busy: u64,
    no_segment: u64,
    sorted_segments: u64,
    emptied_segments: u64,
}

/// Items of a segment by heat, and a bit for each of its pages on which an item begins.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    items: [u16; HEATS],
    pages: [u16; HEATS],
}

const _: () = assert!(SEGMENT / PAGE <= u16::BITS as usize, "a bit for each page");

/// A segment of which items are to leave.
#[derive(Clone, Copy, Debug)]
struct Victim {
    segment: usize,
    number: u64,
    plan: Plan,
    hot_from: u8,
    moved: u32,
}

impl Victim {
    /// The open segment, by index, that an item moves to; `None` if it stays.
    fn sends(&self, slot: &Slot<'_>) -> Option<usize> {
        let is_hot = slot.clock() >= u64::from(self.hot_from);
        let leaves = match self.plan {
            Plan::Rewrite => true,
            Plan::TakeHot => is_hot,
            Plan::TakeCold => !is_hot,
        };
        leaves.then_some(usize::from(!is_hot))
    }
}

/// Where a round is. Chains, segments and victims count from 0.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Resting { until_ms: u64 },
    Counting { chain: usize },
    Choosing { segment: usize, short: bool, most: usize },
    Moving { chain: usize },
    Closing { victim: usize },
}

/// Result of a visit to an item.
enum Visit {
    Left,
    Stays,
    /// The item leaves once the open segment of this index has room.
    NeedsRoom(usize),
}

/// Result of a visit to a chain.
enum Chain {
    Done,
    /// No segment is left for items that move.
    Full,
}

/// Brings hot items together. One thread at a time uses it.
pub(super) struct Consolidator {
    rules: Rules,
    counters: Counters,
    throttle: Throttle,
    pauses: Pauses,
    classifier: Classifier,
    phase: Phase,
    /// The segments that are filled with hot and with cold items, while a step has them.
    open: [Option<Open>; 2],
    counted: Vec<Counted>,
    /// All items in segments, by heat.
    items: [u64; HEATS],
    /// Average bytes of an item, updated as a walk goes on.
    item_bytes: usize,
    victims: Vec<Victim>,
    /// Segments that may be emptied, with what emptying is worth.
    rewrites: Vec<(f64, Victim)>,
    /// For each segment one more than the place of its victim, or 0.
    places: Vec<u32>,
    live_bytes: u64,
    moved_before: u64,
    /// How well pages were used before the first item moved, and how well they are now.
    before: Utilisation,
    now: Utilisation,
    stopped: bool,
}

impl fmt::Debug for Consolidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consolidator").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Consolidator {
    /// Makes a consolidator that knows nothing of any item yet.
    pub(super) fn new(rules: Rules) -> Consolidator {
        Consolidator {
            counters: Counters::default(),
            throttle: Throttle::new(rules.cpu_share, rules.bytes_per_s),
            pauses: Pauses::new(rules.pause, rules.longest_pause),
            classifier: Classifier::new(rules.fault_ns, rules.horizon, 0, 0),
            phase: Phase::Resting { until_ms: 0 },
            open: [None; 2],
            counted: Vec::new(),
            items: [0; HEATS],
            item_bytes: 0,
            victims: Vec::new(),
            rewrites: Vec::new(),
            places: Vec::new(),
            live_bytes: 0,
            moved_before: 0,
            before: Utilisation::default(),
            now: Utilisation::default(),
            stopped: true,
            rules,
        }
    }

    /// Names and values of the counters.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = &self.counters;
        let percent = |of: Utilisation| (of.share() * 100.0).round() as u64;
        [
            ("consolidate:moved_items", counters.moved_items),
            ("consolidate:moved_bytes", counters.moved_bytes),
            ("consolidate:slices", counters.slices),
            ("consolidate:rounds", counters.rounds),
            ("consolidate:sorted_segments", counters.sorted_segments),
            ("consolidate:emptied_segments", counters.emptied_segments),
            ("consolidate:dead_items", counters.dead_items),
            ("consolidate:not_resident", counters.not_resident),
            ("consolidate:busy", counters.busy),
            ("consolidate:no_segment", counters.no_segment),
            ("consolidate:hot_bytes", self.now.hot_bytes),
            ("consolidate:hot_page_bytes", self.now.page_bytes),
            ("consolidate:utilisation_percent", percent(self.now)),
            ("consolidate:utilisation_percent_before", percent(self.before)),
        ]
        .into_iter()
    }

    /// Works for about `budget`.
    pub(super) fn step(&mut self, around: Around<'_>, budget: Duration) -> Progress {
        if !around.heat.is_on() {
            return self.stop(around);
        }
        if self.stopped {
            // Heats from before are of touches that were all counted: they soon decay.
            let now_ms = around.segments.now_ms();
            let (fault_ns, horizon) = (self.rules.fault_ns, self.rules.horizon);
            self.classifier = Classifier::new(fault_ns, horizon, 0, now_ms);
            self.stopped = false;
            self.before = Utilisation::default();
        }
        if let Phase::Resting { until_ms } = self.phase
            && (around.heat.seen.0.is_empty() || around.heat.counting().noted_from.is_none())
            && around.segments.now_ms() < until_ms
        {
            return Progress::Resting;
        }
        if !self.throttle.has_room() || !around.segments.take_open(&mut self.open) {
            return Progress::Waiting;
        }
        let slice = Slice::begin(budget);
        let moved = self.counters.moved_bytes;
        self.counters.slices += 1;
        self.move_noted(around, &slice);
        let mut progress = Progress::Working;
        while progress == Progress::Working && !slice.should_stop() {
            progress = self.advance(around);
        }
        around.segments.return_open(&mut self.open);
        self.throttle.charge(slice.spent(), self.counters.moved_bytes - moved);
        progress
    }

    /// Resets everything to the beginning, except that moved items stay moved.
    fn stop(&mut self, around: Around<'_>) -> Progress {
        if self.stopped {
            return Progress::Resting;
        }
        around.segments.return_open(&mut self.open);
        if self.open.iter().any(Option::is_some) || around.segments.seal_moved().is_none() {
            return Progress::Waiting;
        }
        let Consolidator { counters, before, now, .. } = *self;
        let new = Consolidator { counters, before, now, ..Consolidator::new(self.rules.clone()) };
        let throttle = std::mem::replace(self, new).throttle;
        // Switching off and on gives it no more of the time.
        self.throttle = throttle;
        Progress::Resting
    }

    fn advance(&mut self, around: Around<'_>) -> Progress {
        let index = around.context.index;
        match self.phase {
            Phase::Resting { until_ms } if around.segments.now_ms() < until_ms => {
                return Progress::Resting;
            }
            Phase::Resting { .. } => return self.begin(around),
            Phase::Counting { chain } if chain < index.chains() => {
                let end = (chain + AT_ONCE).min(index.chains());
                (chain..end).for_each(|chain| self.count(around, chain));
                self.phase = Phase::Counting { chain: end };
            }
            Phase::Counting { .. } => return self.classify(around),
            Phase::Choosing { segment, short, most } if segment < self.counted.len() => {
                let end = (segment + AT_ONCE).min(self.counted.len());
                (segment..end).for_each(|segment| self.judge(around, segment, short, most));
                self.phase = Phase::Choosing { segment: end, short, most };
            }
            Phase::Choosing { most, .. } => self.choose(most),
            Phase::Moving { chain } if chain < index.chains() => {
                self.phase = match self.empty(around, chain) {
                    Chain::Done => Phase::Moving { chain: chain + 1 },
                    Chain::Full => Phase::Closing { victim: 0 },
                };
            }
            Phase::Moving { .. } => self.phase = Phase::Closing { victim: 0 },
            Phase::Closing { victim } => match self.victims.get(victim).copied() {
                Some(one) if !self.close(around, one) => return Progress::Waiting,
                Some(_) => self.phase = Phase::Closing { victim: victim + 1 },
                None => self.rest(around),
            },
        }
        Progress::Working
    }

    /// Begins to count.
    fn begin(&mut self, around: Around<'_>) -> Progress {
        let Some(count) = around.segments.count() else { return Progress::Waiting };
        self.counted.clear();
        self.counted.resize(count, Counted::default());
        self.items = [0; HEATS];
        self.item_bytes = around.context.stats.mean_item_bytes().clamp(HEADER, SMALL_MAX);
        self.phase = Phase::Counting { chain: 0 };
        Progress::Working
    }

    /// Counts the items of a chain, without its lock: none of them is read.
    fn count(&mut self, around: Around<'_>, chain: usize) {
        for mut slot in around.context.index.peek(chain) {
            if self.classifier.decays() {
                slot = slot.cool();
            }
            let Some(segment) = around.segments.segment_of(slot.pointer()) else { continue };
            // A segment opened since the count began is new.
            let Some(counted) = self.counted.get_mut(segment) else { continue };
            let heat = slot.clock() as usize;
            let start = slot.pointer() as usize - around.segments.address(segment) as usize;
            let end = (start + self.item_bytes).min(SEGMENT);
            counted.items[heat] = counted.items[heat].saturating_add(1);
            self.items[heat] += 1;
            for page in start / PAGE..end.div_ceil(PAGE) {
                counted.pages[heat] |= 1 << page;
            }
        }
    }

    /// Ends a count: decides what is hot.
    fn classify(&mut self, around: Around<'_>) -> Progress {
        let Some((spare, sealed)) = around.segments.spare() else { return Progress::Waiting };
        let bytes = self.items.map(|items| items * self.item_bytes as u64);
        self.live_bytes = bytes.iter().sum();
        let resident = around.tiering.map(Tiering::resident_share);
        let some_out = resident.is_some_and(|share| share < ALL_RESIDENT);
        let fitting = match resident {
            Some(share) if some_out => (sealed * SEGMENT) as f64 * share,
            _ => self.live_bytes as f64 * HOT_SHARE,
        };
        let hot_bytes = self.rules.hot_bytes.unwrap_or(fitting as u64);
        let (items, now_ms) = (self.items.iter().sum(), around.segments.now_ms());
        if !self.classifier.scanned(&bytes, items, hot_bytes, now_ms) {
            // The items are counted again at once, one less each.
            self.phase = Phase::Resting { until_ms: 0 };
            return Progress::Working;
        }
        self.counters.rounds += 1;
        let short = spare < FEW_SPARE;
        // Where the pager has all items in DRAM, nothing is gained. Without a pager the kernel may
        // swap, which is not seen here.
        let pays = around.tiering.is_none() || some_out || self.rules.hot_bytes.is_some();
        around.heat.count_by(Counting {
            on: true,
            sampling: self.classifier.sampling() as u8,
            hot_from: self.classifier.scale().hot_from,
            noted_from: self.classifier.pays_from().filter(|_| pays && !short),
        });
        self.now = Utilisation::default();
        self.victims.clear();
        self.rewrites.clear();
        self.places.clear();
        self.places.resize(self.counted.len(), 0);
        self.moved_before = self.counters.moved_bytes;
        let most = match (pays, short) {
            (false, _) => 0,
            (true, true) => EMPTIED_SHORT,
            (true, false) => EMPTIED.min(spare / 2),
        };
        self.phase = Phase::Choosing { segment: 0, short, most };
        Progress::Working
    }

    /// Decides whether and how items of a segment leave. At most `most` segments are emptied.
    fn judge(&mut self, around: Around<'_>, segment: usize, short: bool, most: usize) {
        let counted = &self.counted[segment];
        let items: usize = counted.items.iter().map(|n| usize::from(*n)).sum();
        let sealed = around.segments.sealed(segment);
        let mean = sealed.map_or(self.item_bytes, |sealed| sealed.live / items.max(1));
        let contents = Contents {
            bytes: counted.items.map(|n| u32::from(n) * mean as u32),
            objects: counted.items.map(u32::from),
        };
        let scale = self.classifier.scale();
        // Hot items stay hot until they have cooled down for longer.
        let hot_from = hot_from(sealed.map_or(Kind::Fresh, |sealed| sealed.kind), scale);
        let hot_pages = counted.pages[usize::from(hot_from)..].iter().fold(0, |a, b| a | b);
        self.now.hot_bytes += contents.from(hot_from);
        self.now.page_bytes += u64::from(hot_pages.count_ones()) * PAGE as u64;
        let Some(sealed) = sealed.filter(|_| most > 0) else { return };
        if items == 0 && sealed.live > 0 {
            // Filled and sealed since its items were counted.
            return;
        }
        let missing_pages = around.tiering.map_or(0, |tiering| {
            tiering.pages_out(around.segments.address(segment), SEGMENT) as u32
        });
        let situation = Situation {
            segment: segment as u32,
            kind: sealed.kind,
            used: sealed.length,
            age_s: sealed.age_s,
            missing_pages,
        };
        let Some(found) = judge(Choice::CostBenefit, &situation, &contents, scale, 0.0) else {
            return;
        };
        let plan = match found.plan {
            _ if short => Plan::Rewrite,
            Plan::Rewrite if missing_pages > 0 && items > 0 => Plan::TakeHot,
            plan => plan,
        };
        let victim = Victim { segment, number: sealed.number, plan, hot_from, moved: 0 };
        if plan != Plan::Rewrite || sealed.live == 0 {
            self.victims.push(victim);
        } else if missing_pages == 0 {
            self.rewrites.push((found.order, victim));
            if self.rewrites.len() > 2 * most {
                self.keep_best(most);
            }
        }
    }

    fn keep_best(&mut self, most: usize) {
        self.rewrites.sort_unstable_by(|(a, _), (b, _)| b.total_cmp(a));
        self.rewrites.truncate(most);
    }

    /// Chooses the victims, once all segments are judged.
    fn choose(&mut self, most: usize) {
        if self.before.page_bytes == 0 {
            self.before = self.now;
        }
        self.keep_best(most);
        self.victims.extend(self.rewrites.drain(..).map(|(_, victim)| victim));
        for (place, victim) in (1..).zip(&self.victims) {
            self.places[victim.segment] = place;
        }
        self.phase = match self.victims.is_empty() {
            true => Phase::Closing { victim: 0 },
            false => Phase::Moving { chain: 0 },
        };
    }

    /// Index of the victim that an item lies in.
    fn victim(&self, segments: &Segments, slot: &Slot<'_>) -> Option<usize> {
        let segment = segments.segment_of(slot.pointer())?;
        let place = self.places.get(segment)?.checked_sub(1)? as usize;
        segments.is_sealed(segment, self.victims[place].number).then_some(place)
    }

    /// Moves items of a chain that are to leave.
    fn empty(&mut self, around: Around<'_>, chain: usize) -> Chain {
        let index = around.context.index;
        let leaves = |slot: &Slot<'_>| {
            self.victim(around.segments, slot)
                .is_some_and(|place| self.victims[place].sends(slot).is_some())
        };
        if !index.peek(chain).any(|slot| leaves(&slot)) {
            return Chain::Done;
        }
        for _ in 0..LOCKED_MOST {
            let Some(guard) = index.try_lock(chain) else { break };
            let mut needed = None;
            for slot in guard.slots() {
                let Some(place) = self.victim(around.segments, &slot) else { continue };
                let Some(open) = self.victims[place].sends(&slot) else { continue };
                let wipes = self.victims[place].plan != Plan::Rewrite;
                match self.visit(around, &guard, slot, open, wipes) {
                    Visit::Left => self.victims[place].moved += 1,
                    Visit::Stays => {}
                    Visit::NeedsRoom(open) => {
                        needed = Some((open, wipes));
                        break;
                    }
                }
            }
            drop(guard);
            match needed {
                None => return Chain::Done,
                Some((open, wipes)) if !self.make_room(around, open, wipes) => return Chain::Full,
                Some(_) => {}
            }
        }
        self.counters.busy += 1;
        Chain::Done
    }

    /// Moves items that were hot when last touched, but lie among cold ones: their pages are in
    /// DRAM now.
    fn move_noted(&mut self, around: Around<'_>, slice: &Slice) {
        let Some(from) = around.heat.counting().noted_from else { return };
        if self.before.page_bytes == 0 {
            // The use of pages is measured as it is before anything moves.
            self.measure_soon(around);
            return;
        }
        while !slice.should_stop()
            && let Some(hash) = around.heat.seen.0.pop()
        {
            // A second time if there was no room at first.
            for _ in 0..2 {
                let index = around.context.index;
                let Some(guard) = index.try_lock(index.chain_of(hash)) else {
                    self.counters.busy += 1;
                    break;
                };
                let slot = guard.slots().find(|slot| {
                    slot.is_of(hash)
                        && slot.clock() >= from.into()
                        && !around.segments.is_placed(slot.pointer())
                });
                let visit = slot.map(|slot| self.visit(around, &guard, slot, 0, true));
                drop(guard);
                match visit {
                    Some(Visit::NeedsRoom(open)) if self.make_room(around, open, true) => {}
                    _ => break,
                }
            }
        }
    }

    /// Has the use of pages measured, once something is hot.
    fn measure_soon(&mut self, around: Around<'_>) {
        let mut some = false;
        while around.heat.seen.0.pop().is_some() {
            some = true;
        }
        if let Phase::Resting { until_ms } = &mut self.phase
            && some
        {
            let pause_ms = self.rules.pause.as_millis() as u64;
            *until_ms = (*until_ms).min(around.segments.now_ms() + pause_ms);
        }
    }

    /// Moves an item to an open segment. Its chain is locked.
    fn visit<'a>(
        &mut self,
        around: Around<'_>,
        guard: &Guard<'a>,
        slot: Slot<'a>,
        open: usize,
        wipes: bool,
    ) -> Visit {
        let Around { segments, context, .. } = around;
        let at = slot.pointer();
        // The header says how long the whole item is.
        if around.is_out(at, HEADER) || around.is_out(at, item::size(at)) {
            self.counters.not_resident += 1;
            return Visit::Stays;
        }
        let size = item::size(at);
        // SAFETY: the index has the item, and its bucket is locked.
        let item = unsafe { Item::from_pointer(at) };
        if context.is_dead(&item) {
            context.stats.item_dropped(item.header, true);
            segments.forget(at, item.header);
            guard.clear(slot);
            self.counters.dead_items += 1;
            return Visit::Left;
        }
        let Some(room) = self.open[open].as_mut().filter(|open| open.fits(size)) else {
            return Visit::NeedsRoom(open);
        };
        let (_, to) = segments.take(room, size);
        // SAFETY: there is room for it that no other thread has, and it lies elsewhere.
        unsafe { ptr::copy_nonoverlapping(at, to, size) };
        guard.set(slot, slot.at(to));
        if wipes && around.tiering.is_some() {
            // SAFETY: the item was there, and the index leads to its copy.
            unsafe { item::wipe(at, size) };
        }
        segments.forget(at, item.header);
        self.counters.moved_items += 1;
        self.counters.moved_bytes += size as u64;
        Visit::Left
    }

    /// Replaces a full open segment. Returns whether that succeeded.
    fn make_room(&mut self, around: Around<'_>, open: usize, wipes: bool) -> bool {
        match around.segments.replace_open(self.open[open], MOVED[open], !wipes) {
            Some(new) => self.open[open] = Some(new),
            None => {
                self.counters.no_segment += 1;
                return false;
            }
        }
        true
    }

    /// Finishes a victim. Returns false where that has to wait.
    fn close(&mut self, around: Around<'_>, victim: Victim) -> bool {
        let kind = match victim.plan {
            Plan::Rewrite => {
                let closed = around.segments.close_if_empty(victim.segment, victim.number);
                self.counters.emptied_segments += u64::from(closed == Some(true));
                return closed.is_some();
            }
            Plan::TakeHot => Kind::Cold,
            Plan::TakeCold => Kind::Hot,
        };
        if around.segments.sort(victim.segment, victim.number, kind).is_none() {
            return false;
        }
        self.counters.sorted_segments += u64::from(victim.moved > 0);
        true
    }

    /// Ends a round.
    fn rest(&mut self, around: Around<'_>) {
        let moved = self.counters.moved_bytes - self.moved_before;
        let pause_ms = self.pauses.after(moved, self.live_bytes);
        self.phase = Phase::Resting { until_ms: around.segments.now_ms() + pause_ms };
    }
}
