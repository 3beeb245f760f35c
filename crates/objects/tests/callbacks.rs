//! Callbacks that break the contract are reported by name while they are checked. Otherwise, what
//! can be seen is counted, and no object is lost.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;
use terrace_objects::{
    Choice, Consolidator, Heap, Object, Outcome, Progress, Relocate, Rules, Settings, Slice,
};

const OBJECTS: usize = 4000;

/// What a callback does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    LargerThanRoom,
    WritesPastRoom,
    FreesOldCopy,
    KeepsReference,
    RefusesItsOwnSize,
    BusyForEver,
    Immovable,
    GrowsOnce,
}

struct Table {
    heap: Arc<Heap>,
    references: Vec<NonNull<u8>>,
    wrong: Wrong,
}

// SAFETY: most of these break the contract, in ways that lose no object of the tests.
unsafe impl Relocate for Table {
    unsafe fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        match self.wrong {
            Wrong::RefusesItsOwnSize => return Outcome::NoSpace { need: room.bytes },
            Wrong::GrowsOnce if room.bytes == object.bytes => {
                return Outcome::NoSpace { need: object.bytes + 32 };
            }
            Wrong::BusyForEver => return Outcome::Busy,
            Wrong::Immovable => return Outcome::Immovable,
            _ => {}
        }
        // SAFETY: objects of this test begin with a number, and the room has their bytes. The bytes
        // written past it belong to no object, which is the breach.
        let number = unsafe {
            room.start.copy_from_nonoverlapping(object.start, object.bytes);
            if self.wrong == Wrong::WritesPastRoom {
                room.start.add(room.bytes).write(0);
            }
            object.start.cast::<u64>().read() as usize
        };
        if self.references[number] != object.start {
            return Outcome::Dead;
        }
        if self.wrong != Wrong::KeepsReference {
            self.references[number] = room.start;
        }
        if self.wrong == Wrong::FreesOldCopy {
            // SAFETY: no thread looks at the old copy.
            unsafe { self.heap.free(object.start) };
        }
        let more = if self.wrong == Wrong::LargerThanRoom { 8 } else { 0 };
        Outcome::Moved { used: room.bytes + more }
    }

    unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        // SAFETY: `relocate` wrote it.
        let number = unsafe { copy.start.cast::<u64>().read() as usize };
        Some(self.references[number])
    }
}

fn run(wrong: Wrong, check_callbacks: bool, rounds: u32) -> (Table, Consolidator) {
    let settings = Settings { capacity: 8 << 20, check_callbacks, ..Settings::default() };
    let heap = Arc::new(Heap::new(settings).unwrap());
    let references = (0..OBJECTS).map(|number| {
        let object = heap.allocate(96).unwrap();
        // SAFETY: ours alone, and large enough.
        unsafe {
            object.cast::<u64>().write(number as u64);
            heap.ready(object);
        }
        heap.rank(object, if number % 3 == 0 { 3 } else { 0 });
        object
    });
    let mut table = Table { references: references.collect(), wrong, heap: heap.clone() };
    let rules = Rules {
        choice: Choice::Greedy,
        cpu_share: 1.0,
        bytes_per_s: u64::MAX,
        hot_bytes: Some(OBJECTS as u64 * 96 / 2),
        pause: Duration::from_secs(3600),
        ..Rules::default()
    };
    let mut consolidator = Consolidator::new(heap, rules);
    // Three visits a round: enough for a breach that is reported after 64.
    for _ in 0..if wrong == Wrong::BusyForEver { rounds } else { 1 } {
        consolidator.wake();
        while consolidator.step(&mut table, Duration::from_millis(5)) != Progress::Resting {}
    }
    (table, consolidator)
}

#[test]
fn each_breach_is_told_by_name() {
    let breaches = [
        (Wrong::LargerThanRoom, "more bytes than the room has"),
        (Wrong::WritesPastRoom, "past the end of the room"),
        (Wrong::FreesOldCopy, "freed the old copy"),
        (Wrong::KeepsReference, "does not name the copy"),
        (Wrong::RefusesItsOwnSize, "as large as it had asked for"),
        (Wrong::BusyForEver, "Busy of the same object on 64 visits"),
    ];
    for (wrong, told) in breaches {
        let panic = catch_unwind(AssertUnwindSafe(|| run(wrong, true, 30))).err();
        let panic = panic.unwrap_or_else(|| panic!("{wrong:?} was not seen"));
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains(told), "{wrong:?}: {message}");
    }
}

#[test]
fn unchecked_breaches_are_counted_where_they_show() {
    for wrong in [Wrong::LargerThanRoom, Wrong::FreesOldCopy, Wrong::RefusesItsOwnSize] {
        let (table, consolidator) = run(wrong, false, 1);
        assert!(consolidator.counters().misused > 0, "{wrong:?}");
        for (number, object) in table.references.iter().enumerate() {
            // SAFETY: objects of this test, never freed.
            assert_eq!(unsafe { object.cast::<u64>().read() }, number as u64, "{wrong:?}");
        }
    }
}

#[test]
fn results_that_are_no_breach_are_counted_and_end() {
    let (_, right) = run(Wrong::Nothing, true, 1);
    assert!(right.counters().moved > 1000 && right.counters().misused == 0);
    let (_, busy) = run(Wrong::BusyForEver, true, 1);
    assert!(busy.counters().busy > 0 && busy.counters().moved == 0);
    let (_, immovable) = run(Wrong::Immovable, true, 1);
    assert!(immovable.counters().immovable > 0 && immovable.counters().moved == 0);
    let (_, grown) = run(Wrong::GrowsOnce, true, 1);
    assert!(grown.counters().no_space > 1000 && grown.counters().moved > 1000);
}
