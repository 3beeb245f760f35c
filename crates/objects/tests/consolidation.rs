//! What consolidation does to pages, on objects of known heat. No clock decides anything here.
#![cfg(not(loom))]

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use terrace_objects::{
    Choice, Consolidator, Heap, Object, Outcome, Paper, Progress, Relocate, Rules, Settings, Slice,
};

const OBJECTS: usize = 40_000;
const BYTES: usize = 128;

/// A table of references; each object holds its number in it.
struct Table {
    references: Vec<NonNull<u8>>,
    asked: usize,
}

// SAFETY: copies whole objects, and changes the one reference.
unsafe impl Relocate for Table {
    unsafe fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        self.asked += 1;
        // SAFETY: objects of this test begin with a number; the room is as large.
        let number = unsafe {
            room.start.copy_from_nonoverlapping(object.start, object.bytes);
            object.start.cast::<u64>().read() as usize
        };
        if self.references[number] != object.start {
            return Outcome::Dead;
        }
        self.references[number] = room.start;
        Outcome::Moved { used: object.bytes }
    }
}

fn rules(choice: Choice) -> Rules {
    Rules {
        choice,
        bytes_per_s: u64::MAX,
        cpu_share: 1.0,
        // Objects are young here: what is saved counts for long instead.
        horizon: Duration::from_secs(1 << 30),
        hot_bytes: Some((OBJECTS * BYTES / 5) as u64),
        pause: Duration::ZERO,
        longest_pause: Duration::from_secs(3600),
        ..Rules::default()
    }
}

struct Case {
    heap: Arc<Heap>,
    table: Table,
    consolidator: Consolidator,
    order: Vec<usize>,
}

fn case(choice: Choice, written: bool) -> Case {
    case_by(rules(choice), written)
}

fn case_by(rules: Rules, written: bool) -> Case {
    let settings = Settings { capacity: 64 << 20, check_callbacks: true, ..Settings::default() };
    let heap = Arc::new(Heap::new(settings).unwrap());
    let new = |number: usize| {
        let object = heap.allocate(BYTES).unwrap();
        if written {
            // SAFETY: ours alone, and large enough.
            unsafe { object.cast::<u64>().write(number as u64) };
        }
        // SAFETY: of this heap; what is not written is never read.
        unsafe { heap.ready(object) };
        object
    };
    let table = Table { references: (0..OBJECTS).map(new).collect(), asked: 0 };
    let mut order: Vec<usize> = (0..OBJECTS).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(1));
    let consolidator = Consolidator::new(heap.clone(), rules);
    Case { heap, table, consolidator, order }
}

impl Case {
    /// Makes the objects from `first` on, a share of all, hot, and no others.
    fn heat(&self, first: usize, share: f64) {
        for (number, object) in self.order.iter().enumerate() {
            let hot = (first..first + (OBJECTS as f64 * share) as usize).contains(&number);
            self.heap.rank(self.table.references[*object], if hot { 3 } else { 0 });
        }
    }

    fn settle(&mut self) {
        self.consolidator.wake();
        let slice = Duration::from_millis(5);
        while self.consolidator.step(&mut self.table, slice) != Progress::Resting {}
    }

    fn use_of_pages(&self) -> f64 {
        self.heap.utilisation(3).share()
    }

    /// Checks that every object is where its reference says.
    fn check(&self) {
        for (number, object) in self.table.references.iter().enumerate() {
            // SAFETY: live objects of this test, each with its number.
            assert_eq!(unsafe { object.cast::<u64>().read() }, number as u64);
        }
        assert_eq!(self.heap.usage().live_bytes, (OBJECTS * BYTES) as u64);
        assert_eq!(self.heap.double_frees(), 0);
    }
}

#[test]
fn pages_are_used_three_times_as_well_and_it_ends() {
    for choice in [Choice::CostBenefit, Choice::RandomMixed, Choice::Greedy] {
        for share in [0.1, 0.2] {
            let mut case = case(choice, true);
            case.heat(0, share);
            let before = case.use_of_pages();
            case.settle();
            let after = case.use_of_pages();
            assert!(after >= 3.0 * before, "{choice:?}, {share}: {before} to {after}");
            case.check();
            let moved = case.consolidator.counters().moved;
            case.settle();
            assert_eq!(case.consolidator.counters().moved, moved, "it goes on for ever");
        }
    }
}

#[test]
fn it_begins_again_where_heat_moves() {
    let mut case = case(Choice::CostBenefit, true);
    case.heat(0, 0.15);
    case.settle();
    case.heat(OBJECTS / 2, 0.15);
    let before = case.use_of_pages();
    case.settle();
    case.settle();
    let after = case.use_of_pages();
    assert!(after >= 3.0 * before, "{before} to {after}");
    case.check();
    // Memory is given back: what is wasted stays below what lives.
    assert!(case.heap.usage().segment_bytes < 2 * case.heap.usage().live_bytes);
}

/// Nothing was ever written, so no page is in memory: reading one would bring it in.
#[test]
fn objects_whose_pages_are_out_are_not_looked_at() {
    let mut case = case(Choice::CostBenefit, false);
    case.heat(0, 0.15);
    case.settle();
    assert_eq!((case.table.asked, case.consolidator.counters().moved), (0, 0));
    assert!(case.consolidator.counters().not_resident > 0);
}

/// Between a touch and the step that acts on it an object may cool down, or leave memory.
#[test]
fn what_was_seen_hot_is_looked_at_again_before_it_moves() {
    const SEEN: usize = 200;
    let moved = |written: bool, cools: bool| {
        let mut case = case(Choice::CostBenefit, written);
        case.heat(0, 0.15);
        case.settle();
        for object in &case.order[OBJECTS - SEEN..] {
            let object = case.table.references[*object];
            case.heap.rank(object, 3);
            case.heap.touch(object);
            case.heap.rank(object, if cools { 0 } else { 3 });
        }
        let (asked, before) = (case.table.asked, *case.consolidator.counters());
        case.consolidator.step(&mut case.table, Duration::from_millis(5));
        let after = case.consolidator.counters();
        assert!(after.not_resident > before.not_resident || written || cools);
        assert_eq!((case.table.asked - asked) as u64, after.moved - before.moved);
        after.moved - before.moved
    };
    assert!(moved(true, false) > SEEN as u64 / 2, "they lie among cold ones");
    assert_eq!(moved(true, true), 0, "they are hot no more");
    assert_eq!(moved(false, false), 0, "their pages are out");
}

#[test]
fn where_all_is_in_memory_only_what_is_dead_is_gathered() {
    for hot_bytes in [None, Some(1 << 30)] {
        let mut case = case_by(Rules { hot_bytes, ..rules(Choice::CostBenefit) }, true);
        case.heat(0, 0.15);
        case.settle();
        assert_eq!(case.consolidator.counters().moved, 0, "nothing is gained");
        for number in (0..OBJECTS).filter(|number| number % 4 != 0) {
            // SAFETY: no thread looks at it any more.
            unsafe { case.heap.free(case.table.references[number]) };
        }
        case.settle();
        case.settle();
        let used = case.heap.usage();
        assert!(used.segment_bytes < 2 * used.live_bytes, "{hot_bytes:?}: {used:?}");
    }
}

/// Three-page objects leave the last page of each segment unused: it does not count as out.
#[test]
fn pages_that_were_never_used_are_not_taken_for_out() {
    const LARGE: usize = 12 << 10;
    let settings = Settings { capacity: 64 << 20, check_callbacks: true, ..Settings::default() };
    let heap = Arc::new(Heap::new(settings).unwrap());
    let new = |number: usize| {
        let object = heap.allocate(LARGE).unwrap();
        // SAFETY: ours alone, and as large.
        unsafe {
            object.write_bytes(1, LARGE);
            object.cast::<u64>().write(number as u64);
            heap.ready(object);
        }
        heap.rank(object, if number.is_multiple_of(7) { 3 } else { 0 });
        object
    };
    let mut table = Table { references: (0..400).map(new).collect(), asked: 0 };
    // The age of a new segment counts against moving it.
    std::thread::sleep(Duration::from_millis(5));
    let rules = Rules { hot_bytes: None, ..rules(Choice::CostBenefit) };
    let mut consolidator = Consolidator::new(heap, rules);
    while consolidator.step(&mut table, Duration::from_millis(5)) != Progress::Resting {}
    assert_eq!(consolidator.counters().moved, 0);
}

#[test]
fn ranks_stand_where_more_is_ranked_hot_than_there_is_room() {
    let mut case = case(Choice::CostBenefit, true);
    case.heat(0, 0.5);
    let before = case.use_of_pages();
    case.settle();
    case.settle();
    assert_eq!(case.heap.utilisation(3).hot_bytes, (OBJECTS / 2 * BYTES) as u64);
    let after = case.use_of_pages();
    assert!(after >= 1.8 * before, "{before} to {after}");
    case.check();
}

#[test]
fn room_that_never_became_an_object_is_given_back() {
    let heap = Arc::new(Heap::new(Settings { capacity: 1 << 20, ..Settings::default() }).unwrap());
    let rooms: Vec<_> = std::iter::from_fn(|| heap.allocate(heap.largest())).collect();
    let held = heap.usage();
    assert_eq!(held.live_bytes, held.segment_bytes);
    let mut table = Table { references: Vec::new(), asked: 0 };
    let rules = Rules { pause: Duration::from_secs(3600), ..rules(Choice::CostBenefit) };
    let mut consolidator = Consolidator::new(heap.clone(), rules);
    // SAFETY: no thread looks at any of them.
    rooms.into_iter().for_each(|room| unsafe { heap.free(room) });
    while consolidator.step(&mut table, Duration::from_millis(5)) != Progress::Resting {}
    // Once more, for what had to wait for readers.
    consolidator.step(&mut table, Duration::from_millis(5));
    let left = heap.usage();
    assert_eq!((left.live_bytes, left.segment_bytes), (0, 64 << 10), "the open one stays");
    assert_eq!((table.asked, heap.double_frees()), (0, 0));
}

#[test]
fn uniform_heat_is_left_alone() {
    let mut case = case(Choice::CostBenefit, true);
    case.heat(0, 1.0);
    case.settle();
    assert_eq!(case.consolidator.counters().moved, 0);
}

#[test]
fn the_papers_callback_works_as_it_is() {
    let Case { heap, mut table, mut consolidator, order } = case(Choice::Greedy, true);
    order.iter().take(OBJECTS / 8).for_each(|object| heap.rank(table.references[*object], 3));
    let references = &mut table.references;
    let relocate = |object: NonNull<u8>, room: NonNull<u8>, bytes: usize| {
        // SAFETY: as in `Table`.
        let number = unsafe {
            room.copy_from_nonoverlapping(object, bytes);
            object.cast::<u64>().read() as usize
        };
        // Some are always in use.
        if number.is_multiple_of(97) {
            return false;
        }
        references[number] = room;
        true
    };
    // SAFETY: it says true only where the reference names a whole copy.
    let mut relocate = unsafe { Paper::new(relocate) };
    while consolidator.step(&mut relocate, Duration::from_millis(5)) != Progress::Resting {}
    assert!(consolidator.counters().moved > 1000 && consolidator.counters().busy > 0);
    assert_eq!(heap.usage().live_bytes, (OBJECTS * BYTES) as u64);
}

#[test]
fn memory_waits_for_readers_and_pins() {
    let mut case = case(Choice::CostBenefit, true);
    let reader = case.heap.reader();
    let old = case.table.references[case.order[0]];
    // Most of each segment dies, so that what is left is rewritten.
    for number in (0..OBJECTS).filter(|number| number % 4 != 0 && *number != case.order[0]) {
        // SAFETY: no thread looks at it any more.
        unsafe { case.heap.free(case.table.references[number]) };
    }
    let guard = reader.enter();
    case.heap.pin(old, &guard);
    case.settle();
    let held = case.heap.usage().segment_bytes;
    drop(guard);
    case.settle();
    assert!(case.heap.usage().segment_bytes < held / 2, "readers are gone");
    // SAFETY: pinned, so still as it was; then it is not looked at any more.
    unsafe {
        assert_eq!(old.cast::<u64>().read(), case.order[0] as u64);
        case.heap.unpin(old);
    }
    case.settle();
}

#[test]
fn what_one_consolidator_emptied_the_next_one_gives_back() {
    let case = case(Choice::CostBenefit, true);
    let Case { heap, mut table, mut consolidator, order } = case;
    let reader = heap.reader();
    for number in order.iter().filter(|number| **number % 4 != 0) {
        // SAFETY: no thread looks at it any more.
        unsafe { heap.free(table.references[*number]) };
    }
    let guard = reader.enter();
    consolidator.wake();
    while consolidator.step(&mut table, Duration::from_millis(5)) != Progress::Resting {}
    let held = heap.usage().segment_bytes;
    drop(consolidator);
    assert_eq!(heap.usage().segment_bytes, held, "a reader is there");
    drop(guard);
    let mut next = Consolidator::new(heap.clone(), rules(Choice::CostBenefit));
    next.step(&mut table, Duration::from_millis(5));
    assert!(heap.usage().segment_bytes < held / 2, "the reader is gone");
}
