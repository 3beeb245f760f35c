//! The protocol between a reader, a writer in place and the relocator, with every order of their
//! steps (loom): `RUSTFLAGS="--cfg loom" cargo test -p terrace-objects --test protocol`, as `make
//! test` runs it.
//!
//! It runs the library's own epochs and locks. An object is a cell of loom's, which fails the test
//! where one thread reads what another writes. That finds memory that is given back while a thread
//! reads it, and an update that falls between copy and reference.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use terrace_objects::epoch::Epochs;
use terrace_objects::structures::Latch;
use terrace_objects::sync::{Arc, AtomicU64, Ordering};

struct Shared {
    epochs: Arc<Epochs>,
    /// The place, 0 or 1, that the object is in.
    reference: AtomicU64,
    lock: AtomicU64,
    /// Value, and a counter that is changed in place.
    places: [(UnsafeCell<u64>, AtomicU64); 2],
}

// SAFETY: loom's cells tell of every access that is not ordered.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

const VALUE: u64 = 7;
const GIVEN_BACK: u64 = 99;

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        epochs: Arc::new(Epochs::default()),
        reference: AtomicU64::new(0),
        lock: AtomicU64::new(0),
        places: [VALUE, 0].map(|value| (UnsafeCell::new(value), AtomicU64::new(0))),
    })
}

/// Moves the object from place 0 to place 1 if it gets the lock; true if it did.
fn relocate(shared: &Shared) -> bool {
    let Some(_locked) = Latch::try_lock(&shared.lock) else { return false };
    let [(from, count), (to, copied)] = &shared.places;
    // SAFETY: loom checks it.
    from.with(|from| to.with_mut(|to| unsafe { *to = *from }));
    copied.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
    shared.reference.store(1, Ordering::Release);
    true
}

/// Retires place 0, and gives it back if no reader is left.
fn give_back(shared: &Shared) {
    let stamp = shared.epochs.retire();
    if shared.epochs.is_over(stamp) {
        // SAFETY: loom checks it.
        shared.places[0].0.with_mut(|place| unsafe { *place = GIVEN_BACK });
    }
}

#[test]
fn readers_never_see_memory_that_was_given_back() {
    loom::model(|| {
        let shared = shared();
        let reader = Epochs::reader(&shared.epochs);
        let reading = {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let _inside = reader.enter();
                    let place = shared.reference.load(Ordering::Acquire) as usize;
                    // SAFETY: loom checks it.
                    let value = shared.places[place].0.with(|place| unsafe { *place });
                    assert_eq!(value, VALUE);
                }
            })
        };
        assert!(relocate(&shared), "nobody else takes the lock");
        give_back(&shared);
        reading.join().unwrap();
    });
}

#[test]
fn no_update_in_place_is_lost() {
    loom::model(|| {
        let shared = shared();
        let writing = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _locked = Latch::lock(&shared.lock);
                let place = shared.reference.load(Ordering::Relaxed) as usize;
                let count = &shared.places[place].1;
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            })
        };
        relocate(&shared);
        writing.join().unwrap();
        let place = shared.reference.load(Ordering::Acquire) as usize;
        assert_eq!(shared.places[place].1.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_reader_a_writer_and_the_relocator_at_once() {
    let mut model = loom::model::Builder::new();
    // All three have more orders than there is time for.
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared();
        let reader = Epochs::reader(&shared.epochs);
        let reading = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _inside = reader.enter();
                let place = shared.reference.load(Ordering::Acquire) as usize;
                // SAFETY: loom checks it.
                assert_eq!(shared.places[place].0.with(|place| unsafe { *place }), VALUE);
            })
        };
        let writing = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _locked = Latch::lock(&shared.lock);
                let place = shared.reference.load(Ordering::Relaxed) as usize;
                shared.places[place].1.fetch_add(1, Ordering::Relaxed);
            })
        };
        if relocate(&shared) {
            give_back(&shared);
        }
        reading.join().unwrap();
        writing.join().unwrap();
        let place = shared.reference.load(Ordering::Acquire) as usize;
        assert_eq!(shared.places[place].1.load(Ordering::Relaxed), 1);
    });
}
