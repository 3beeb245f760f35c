//! Zones, slabs and magazines against a map of what is alive.

use super::*;
use crate::grouped::classes::{CLASSES, Class, slab_objects};
use crate::zone::ZoneId;
use std::collections::BTreeMap;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

const ZONES: usize = 5;

fn opened() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| assert!(slabs::open(ZONES, true)));
}

/// Deterministic, and good enough.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % end as u64) as usize
    }
}

struct Own(*mut Cache);

// SAFETY: one thread uses it at a time.
unsafe impl Send for Own {}

impl Own {
    fn new() -> Self {
        Own(Cache::create())
    }

    fn cache(&mut self) -> &mut Cache {
        // SAFETY: made by `new`, ended by `drop`.
        unsafe { &mut *self.0 }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { Cache::end(self.0) }
    }
}

/// An object that a thread owns, filled with a byte.
struct Object {
    address: usize,
    zone: ZoneId,
    class: Class,
    fill: u8,
}

impl Object {
    fn new(cache: &mut Cache, zone: ZoneId, class: Class, fill: u8) -> Self {
        let object = cache.take(zone, class);
        assert!(!object.is_null());
        // SAFETY: an object of that many bytes, ours alone.
        unsafe { object.write_bytes(fill, size_of_class(class)) };
        Object { address: object as usize, zone, class, fill }
    }

    fn free(self, cache: Option<&mut Cache>) {
        let object = self.address as *mut u8;
        let place = slabs::find(self.address).expect("it lies in a slab");
        assert_eq!((place.zone(), place.class()), (self.zone, self.class));
        // SAFETY: no other thread writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(object, size_of_class(self.class)) };
        assert!(
            bytes.iter().all(|byte| *byte == self.fill),
            "somebody else wrote to {:#x}",
            self.address
        );
        match cache {
            Some(cache) => cache.put(self.zone, self.class, object),
            None => slabs::put(self.zone, &[object]),
        }
    }
}

/// Threads start and end, objects change hands, and some are freed without a cache. Empty slabs are
/// given back meanwhile. `alive` has all objects by address: no two may overlap.
fn soak(seconds: f64, threads: usize) {
    opened();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let shared: Mutex<Vec<Object>> = Mutex::new(Vec::new());
    let alive: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
    let born = |object: &Object| {
        let mut alive = alive.lock().expect("no thread failed");
        let end = object.address + size_of_class(object.class);
        let before = alive.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, before)| *before <= object.address),
            "{:#x} overlaps another object",
            object.address
        );
        alive.insert(object.address, end);
    };
    let dies = |object: &Object| {
        assert!(alive.lock().expect("no thread failed").remove(&object.address).is_some())
    };
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (shared, born, dies) = (&shared, &born, &dies);
            scope.spawn(move || {
                let mut random = Random(number as u64 * 7919 + 1);
                while Instant::now() < until {
                    let mut own = Own::new();
                    let mut mine: Vec<Object> = Vec::new();
                    // Phases of growth and of decline, of few classes and of many.
                    let (growth, classes) = (20 + random.below(60), 1 + random.below(CLASSES));
                    for _ in 0..20_000 {
                        match random.below(100) {
                            0 => slabs::tidy(),
                            1..10 if !mine.is_empty() => {
                                let given = mine.swap_remove(random.below(mine.len()));
                                shared.lock().expect("no thread failed").push(given);
                            }
                            10..19 => {
                                if let Some(object) = shared.lock().expect("no thread failed").pop()
                                {
                                    dies(&object);
                                    object.free(Some(own.cache()));
                                }
                            }
                            19 if !mine.is_empty() => {
                                let object = mine.swap_remove(random.below(mine.len()));
                                dies(&object);
                                object.free(None);
                            }
                            roll if roll < 20 + growth || mine.is_empty() => {
                                let (zone, class) = (
                                    1 + random.below(ZONES) as ZoneId,
                                    random.below(classes) as Class,
                                );
                                let object =
                                    Object::new(own.cache(), zone, class, random.below(256) as u8);
                                born(&object);
                                mine.push(object);
                            }
                            _ => {
                                let object = mine.swap_remove(random.below(mine.len()));
                                dies(&object);
                                object.free(Some(own.cache()));
                            }
                        }
                    }
                    for object in mine {
                        dies(&object);
                        object.free(Some(own.cache()));
                    }
                }
            });
        }
    });
    for object in shared.into_inner().expect("no thread failed") {
        dies(&object);
        object.free(None);
    }
    assert!(alive.into_inner().expect("no thread failed").is_empty());
    let [mapped, in_slabs, _] = slabs::usage();
    assert!(in_slabs <= mapped);
}

#[test]
fn objects_do_not_overlap_and_keep_what_is_written() {
    let seconds = std::env::var("TERRACE_SOAK_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3.0);
    soak(seconds, 4);
}

/// What one thread frees, another gets: memory does not grow with the number of objects ever made.
#[test]
fn empty_slabs_serve_other_classes_of_their_kind() {
    opened();
    let mut own = Own::new();
    let mut starts = Vec::new();
    for round in 0..4 {
        // 16, 32, 64 and 128 bytes: of one kind.
        let class = crate::grouped::classes::class_of(16 << round);
        let count = 64 * slab_objects(class);
        let objects: Vec<Object> =
            (0..count).map(|_| Object::new(own.cache(), 5, class, 1)).collect();
        starts.push(objects.iter().map(|object| object.address).max().expect("there are some"));
        for object in objects {
            object.free(Some(own.cache()));
        }
        slabs::tidy();
    }
    let (least, most) = (starts.iter().min().expect("four"), starts.iter().max().expect("four"));
    assert!(most - least < 4 << 20, "{starts:x?}");
}

#[test]
fn what_was_freed_without_a_cache_is_found_again() {
    opened();
    let mut own = Own::new();
    let class = crate::grouped::classes::class_of(3000);
    let objects: Vec<Object> =
        (0..100).map(|fill| Object::new(own.cache(), 1, class, fill)).collect();
    for object in objects {
        object.free(None);
    }
    assert!(slabs::find(0).is_none() && slabs::find(usize::MAX).is_none());
}
