//! Emptying one segment, object by object.

use crate::consolidator::Consolidator;
use crate::marks::GRANULE;
use crate::policy::Plan;
use crate::relocate::{Misuse, Object, Outcome, Relocate};
use crate::segment::{Kind, State};
use crate::slice::Slice;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Number of visits to a busy object, before its segment is left for a while.
const PASSES: u32 = 3;
/// First time that a segment rests, ms.
const REST_MS: u64 = 1000;
/// Number of visits on which an object may be busy before the callback counts as wrong.
const BUSY_FOR_EVER: u32 = 64;
/// Bytes written after a room while callbacks are checked.
const GUARD: [u8; GRANULE] = [0xA5; GRANULE];

/// The state of the evacuation of a segment.
pub struct Evacuation {
    index: u32,
    plan: Plan,
    hot_from: u8,
    /// The next granule of the segment.
    next: usize,
    pass: u32,
    /// Objects of this pass that were busy.
    busy: u32,
    /// Objects that will not move at another pass either.
    stuck: u32,
    moved: u32,
}

/// Result of a visit to an object.
enum Visit {
    Left,
    Stays,
    Immovable,
    Busy,
    /// No segment for the object is left.
    Full,
}

impl Evacuation {
    /// The segment.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Begins an evacuation, where objects of a heat of `hot_from` or more are hot.
    pub fn begin(index: u32, plan: Plan, hot_from: u8) -> Evacuation {
        Evacuation { index, plan, hot_from, next: 0, pass: 0, busy: 0, stuck: 0, moved: 0 }
    }
}

impl Consolidator {
    /// Goes on with an evacuation until the slice is over; `None` when it has ended.
    pub(crate) fn evacuate(
        &mut self,
        at: Evacuation,
        relocate: &mut dyn Relocate,
        slice: &Slice,
    ) -> Option<Evacuation> {
        self.evacuating = Some(at.index);
        let left = self.evacuate_some(at, relocate, slice);
        self.evacuating = None;
        left
    }

    /// Seals the segment of an evacuation again that a panic ended.
    pub(crate) fn leave_panicked(&mut self) {
        if let Some(index) = self.evacuating.take() {
            let segment = self.heap.segment(index);
            segment.rest(self.heap.now_ms(), REST_MS);
            if segment.state() == State::Evacuating {
                segment.change(State::Evacuating, State::Sealed);
            }
        }
    }

    fn evacuate_some(
        &mut self,
        mut at: Evacuation,
        relocate: &mut dyn Relocate,
        slice: &Slice,
    ) -> Option<Evacuation> {
        // Pages may have left memory since the last slice.
        self.missing_pages(at.index);
        loop {
            let mut found = None;
            let heap = self.heap.clone();
            heap.each_live(at.index, at.next, |granule, bytes| {
                found = Some((granule, bytes));
                false
            });
            let Some((granule, bytes)) = found else {
                if at.busy > 0 && at.pass + 1 < PASSES {
                    (at.pass, at.busy, at.next) = (at.pass + 1, 0, 0);
                    return Some(at);
                }
                self.finish(&at);
                return None;
            };
            if slice.should_stop() {
                return Some(at);
            }
            at.next = granule % heap.granules(0).len() + bytes / GRANULE;
            match self.visit(&at, granule, bytes, relocate, slice) {
                Visit::Left => at.moved += 1,
                Visit::Stays | Visit::Immovable => {}
                Visit::Busy => at.busy += 1,
                Visit::Full => {
                    at.stuck += 1;
                    self.finish(&at);
                    return None;
                }
            }
        }
    }

    /// Moves objects that were hot when last touched to the hot segment. That may be long ago: an
    /// object that is hot no more, or whose page has left memory since, stays.
    pub(crate) fn move_seen(&mut self, relocate: &mut dyn Relocate, slice: &Slice) {
        while !slice.should_stop()
            && let Some(object) = self.heap.next_seen()
        {
            let granule = self.heap.granule(object.start);
            let heat = self.heap.clock().heat(granule);
            if heat < self.heap.noted_from() || self.immovable.contains(&granule) {
                continue;
            }
            if !self.heap.is_resident(object) {
                self.counters.not_resident += 1;
                continue;
            }
            if let Visit::Immovable = self.move_one(object, heat, 0, relocate, slice) {
                self.immovable.insert(granule);
            }
        }
    }

    fn visit(
        &mut self,
        at: &Evacuation,
        granule: usize,
        bytes: usize,
        relocate: &mut dyn Relocate,
        slice: &Slice,
    ) -> Visit {
        let heat = self.heap.clock().heat(granule);
        let is_hot = heat >= at.hot_from;
        let leaves = match at.plan {
            Plan::Rewrite => true,
            Plan::TakeHot => is_hot,
            Plan::TakeCold => !is_hot,
        };
        if !leaves {
            return Visit::Stays;
        }
        if at.plan != Plan::Rewrite && !self.is_resident(granule, bytes) {
            self.counters.not_resident += 1;
            return Visit::Stays;
        }
        let object = self.heap.object(granule, bytes);
        self.move_one(object, heat, usize::from(!is_hot), relocate, slice)
    }

    /// Moves an object to the open segment of a kind.
    fn move_one(
        &mut self,
        object: Object,
        heat: u8,
        open: usize,
        relocate: &mut dyn Relocate,
        slice: &Slice,
    ) -> Visit {
        let mut bytes = object.bytes;
        for attempt in 0..2 {
            let Some(room) = self.reserve(open, bytes) else {
                self.counters.no_segment += 1;
                return Visit::Full;
            };
            self.heap.copy_heat(self.heap.granule(object.start), heat, room);
            self.heap.begin(room);
            let asked = || self.ask(object, room, open, relocate, slice);
            let outcome = match catch_unwind(AssertUnwindSafe(asked)) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    // It is not known what is in the room, or whether a reference names it.
                    self.heap.abandon(room);
                    self.take(open, room.bytes);
                    self.heap.segment_at(object).rest(self.heap.now_ms(), REST_MS);
                    resume_unwind(panic);
                }
            };
            if let Outcome::Moved { used } = outcome {
                self.take(open, room.bytes);
                self.moved(object, room, used, heat, relocate);
                return Visit::Left;
            }
            self.heap.forget(room);
            match outcome {
                Outcome::NoSpace { need } if need <= room.bytes => {
                    self.breach(Misuse::RefusedItsOwnSize);
                    self.counters.no_space += 1;
                    return Visit::Busy;
                }
                Outcome::NoSpace { need } => {
                    self.counters.no_space += 1;
                    if attempt > 0 || need > self.heap.largest() {
                        return self.immovable(object);
                    }
                    bytes = need.next_multiple_of(GRANULE);
                }
                Outcome::Busy => return self.busy(object),
                Outcome::Dead => {
                    self.counters.dead += 1;
                    // Another object may have the granule next.
                    self.busy.remove(&self.heap.granule(object.start));
                    return Visit::Stays;
                }
                Outcome::Immovable | Outcome::Moved { .. } => return self.immovable(object),
            }
        }
        Visit::Stays
    }

    /// Calls the callback. Looks whether it wrote past the room while callbacks are checked.
    fn ask(
        &mut self,
        object: Object,
        room: Object,
        open: usize,
        relocate: &mut dyn Relocate,
        slice: &Slice,
    ) -> Outcome {
        let guard = self.guard(room, open);
        // SAFETY: the object is live and is freed by `moved` at the soonest, and its segment stays
        // till then. `reserve` gave the room to this consolidator alone.
        let outcome = unsafe { relocate.relocate(object, room, slice) };
        if guard.is_some_and(|guard| {
            // SAFETY: the granule after the room, written by `guard`, within the segment that only
            // this consolidator fills.
            unsafe { guard.cast::<[u8; GRANULE]>().read() != GUARD }
        }) {
            self.breach(Misuse::WrotePastRoom);
        }
        outcome
    }

    /// Counts bytes of an open segment as taken: they are not offered again.
    fn take(&mut self, open: usize, bytes: usize) {
        if let Some((_, taken)) = &mut self.open[open] {
            *taken += bytes;
        }
    }

    /// Handles a move: the old copy is dead, the new one is valid.
    fn moved(
        &mut self,
        object: Object,
        room: Object,
        used: usize,
        heat: u8,
        relocate: &mut dyn Relocate,
    ) {
        if used > room.bytes {
            self.breach(Misuse::LargerThanRoom);
        }
        // The object may have been ranked anew by its old place while the callback had it.
        let granule = self.heap.granule(object.start);
        let now = self.heap.clock().heat(granule);
        if self.heap.is_ranked(granule) && now != heat {
            self.heap.rank(room.start, now);
        }
        if !self.heap.end(object) {
            self.breach(Misuse::FreedOldCopy);
        }
        if self.heap.settings().check_callbacks
            // SAFETY: `relocate` said that it wrote the copy.
            && unsafe { relocate.reference(room) }.is_some_and(|leads| leads == object.start)
        {
            self.breach(Misuse::KeptReference);
        }
        self.busy.remove(&self.heap.granule(object.start));
        self.counters.moved += 1;
        self.counters.moved_bytes += room.bytes as u64;
    }

    fn busy(&mut self, object: Object) -> Visit {
        self.counters.busy += 1;
        if self.heap.settings().check_callbacks {
            let visits = self.busy.entry(self.heap.granule(object.start)).or_default();
            *visits += 1;
            if *visits >= BUSY_FOR_EVER {
                self.breach(Misuse::BusyForEver(BUSY_FOR_EVER));
            }
        }
        Visit::Busy
    }

    fn immovable(&mut self, object: Object) -> Visit {
        self.counters.immovable += 1;
        // An object that cannot move makes its segment rest for long.
        self.heap.segment_at(object).rest(self.heap.now_ms(), REST_MS);
        Visit::Immovable
    }

    /// Reserves room in the open segment of a kind. The room is made live before the callback is
    /// called: a writer may free it as soon as the callback has released its lock.
    fn reserve(&mut self, open: usize, bytes: usize) -> Option<Object> {
        let segment_bytes = self.heap.settings().segment_bytes;
        let (index, used) = match self.open[open] {
            Some((index, used)) if used + bytes <= segment_bytes => (index, used),
            full => {
                let next = self.heap.open(Consolidator::kind_of(open))?;
                if let Some((index, used)) = full {
                    self.heap.segment(index).seal(used, self.heap.now_ms());
                    self.heap.advise(index, false);
                }
                self.open[open] = Some((next, 0));
                (next, 0)
            }
        };
        Some(self.heap.object_at(index, used, bytes))
    }

    /// Marks what follows a room, while callbacks are checked, if the segment goes on there.
    fn guard(&self, room: Object, open: usize) -> Option<*mut u8> {
        let (_, used) = self.open[open]?;
        if !self.heap.settings().check_callbacks
            || used + room.bytes + GRANULE > self.heap.settings().segment_bytes
        {
            return None;
        }
        // SAFETY: within the segment, as checked; its rest after the room is not used yet.
        unsafe {
            let guard = room.start.as_ptr().add(room.bytes);
            guard.cast::<[u8; GRANULE]>().write(GUARD);
            Some(guard)
        }
    }

    fn finish(&mut self, at: &Evacuation) {
        let now = self.heap.now_ms();
        let heap = self.heap.clone();
        let segment = heap.segment(at.index);
        if at.plan == Plan::Rewrite && segment.live() == 0 {
            self.retire(at.index);
            return;
        }
        if at.plan != Plan::Rewrite {
            segment.set_kind(if at.plan == Plan::TakeHot { Kind::Cold } else { Kind::Hot });
            self.counters.sorted_segments += u64::from(at.moved > 0);
        }
        if at.busy + at.stuck > 0 || at.moved == 0 {
            segment.rest(now, REST_MS);
        }
        segment.change(State::Evacuating, State::Sealed);
        heap.advise(at.index, false);
    }

    pub(crate) fn breach(&mut self, misuse: Misuse) {
        self.counters.misused += 1;
        if self.heap.settings().check_callbacks {
            panic!("terrace-objects: {misuse}; see docs/moving-objects.md");
        }
    }
}
