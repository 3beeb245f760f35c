//! Safe code cannot have the library read memory that was given back: what would lead there is
//! refused.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use terrace_objects::rows::Rows;
use terrace_objects::structures::{Chained, Map};
use terrace_objects::{Choice, Consolidator, Heap, Progress, Rules, Settings};

fn heap() -> Arc<Heap> {
    Arc::new(Heap::new(Settings { capacity: 1 << 20, ..Settings::default() }).unwrap())
}

fn refused<R>(misuse: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(misuse)).err().expect("it is refused");
    match panic.downcast_ref::<String>() {
        Some(told) => told.clone(),
        None => (*panic.downcast_ref::<&str>().expect("a text")).to_owned(),
    }
}

#[test]
fn a_reader_of_another_heap_is_refused() {
    let map = Map::new(heap(), Chained::for_keys(16));
    let (own, other) = (map.heap().reader(), heap());
    let stranger = other.reader();
    map.set(&own, 1, b"one").unwrap();
    let told = "a reader of another heap";
    assert!(refused(|| map.read(&stranger, 1, <[u8]>::to_vec)).contains(told));
    assert!(refused(|| map.set(&stranger, 1, b"two")).contains(told));
    assert!(refused(|| map.delete(&stranger, 1)).contains(told));
    assert!(refused(|| map.add(&stranger, 1, 1)).contains(told));
    assert!(refused(|| map.locate(&stranger, 1)).contains(told));
    let object = map.locate(&own, 1).unwrap();
    assert!(refused(|| map.heap().pin(object.start, &stranger.enter())).contains(told));
    assert_eq!(map.read(&own, 1, <[u8]>::to_vec).as_deref(), Some(b"one".as_slice()));
    let rows = Rows::<2>::new(heap());
    assert!(refused(|| drop(rows.begin(&stranger))).contains(told));
}

#[test]
fn a_heap_has_one_consolidator_at_a_time() {
    let heap = heap();
    let first = Consolidator::new(heap.clone(), Rules::default());
    let told = refused(|| Consolidator::new(heap.clone(), Rules::default()));
    assert!(told.contains("has a consolidator already"), "{told}");
    drop(first);
    drop(Consolidator::new(heap, Rules::default()));
}

#[test]
fn a_heap_has_the_objects_of_one_structure() {
    let map = Map::new(heap(), Chained::for_keys(16));
    let told = refused(|| Rows::<2>::new(map.heap().clone()));
    assert!(told.contains("has a structure already"), "{told}");
    let rows = Rows::<2>::new(heap());
    let told = refused(|| Map::new(rows.heap().clone(), Chained::for_keys(16)));
    assert!(told.contains("has a structure already"), "{told}");
}

/// A structure would take entries that it does not know for dead ones.
#[test]
fn a_structure_does_not_move_the_objects_of_another_heap() {
    let (map, stranger) =
        (Map::new(heap(), Chained::for_keys(16)), Map::new(heap(), Chained::for_keys(16)));
    let reader = map.heap().reader();
    // Segments are sealed when they are full, and worth emptying when most of them is free.
    for key in 0..4000 {
        map.set(&reader, key, &[1; 100]).unwrap();
    }
    (0..4000).filter(|key| key % 8 != 0).for_each(|key| assert!(map.delete(&reader, key)));
    let rules = Rules { choice: Choice::Greedy, cpu_share: 1.0, ..Rules::default() };
    let mut consolidator = Consolidator::new(map.heap().clone(), rules);
    let mut settle = |mut relocate: &Map<Chained>| {
        consolidator.wake();
        while consolidator.step(&mut relocate, Duration::from_millis(5)) != Progress::Resting {}
        consolidator.counters().moved
    };
    let told = refused(|| settle(&stranger));
    assert!(told.contains("of another heap"), "{told}");
    assert!(settle(&map) > 100);
    for key in (0..4000).step_by(8) {
        assert_eq!(map.read(&reader, key, <[u8]>::to_vec).as_deref(), Some(&[1; 100][..]));
    }
}
