//! Tests of many threads.

use super::object::{Object, Random};
use super::tests::scaled;
use std::collections::VecDeque;
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::thread;

/// Number of threads: one for each CPU that they may run on, but enough to hand objects on.
fn threads() -> usize {
    thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2))
}

/// The pattern of `larson` (Larson and Krishnan, 1998): each thread of a server replaces objects of
/// an array at random. Then it dies and leaves the array to a successor, which so frees what
/// another thread allocated.
pub fn larson(scale: f64) {
    const OBJECTS: usize = 5000;
    const GENERATIONS: u64 = 20;
    let threads = 2 * threads();
    let mut random = Random::new(3);
    let mut some = || {
        let mut object = Object::new(random.between(8, 1000));
        object.mark(0);
        object
    };
    let mut arrays: Vec<Vec<Object>> =
        (0..threads).map(|_| (0..OBJECTS).map(|_| some()).collect()).collect();
    let replacements = scaled(24_000_000, scale) / GENERATIONS / threads as u64;
    for generation in 0..GENERATIONS {
        thread::scope(|scope| {
            for (number, array) in arrays.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut random = Random::new(generation << 8 | number as u64);
                    for _ in 0..replacements {
                        let at = random.below(OBJECTS);
                        let mut object = Object::new(random.between(8, 1000));
                        object.mark(1);
                        array[at] = object;
                    }
                });
            }
        });
        arrays.rotate_left(1);
    }
}

/// What waits between producers and consumers.
struct Queue {
    batches: Mutex<(VecDeque<Vec<Object>>, usize)>,
    changed: Condvar,
}

impl Queue {
    const LONGEST: usize = 32;

    fn put(&self, batch: Vec<Object>) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        while batches.0.len() >= Queue::LONGEST {
            batches = self.changed.wait(batches).unwrap_or_else(PoisonError::into_inner);
        }
        batches.0.push_back(batch);
        self.changed.notify_all();
    }

    fn close_one(&self) {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
        self.changed.notify_all();
    }

    /// Takes a batch; `None` when all producers are gone.
    fn take(&self) -> Option<Vec<Object>> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(batch) = batches.0.pop_front() {
                self.changed.notify_all();
                return Some(batch);
            }
            if batches.1 == 0 {
                return None;
            }
            batches = self.changed.wait(batches).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The pattern of `xmalloc-test` (Lever and Boreham, 2000): some threads only allocate, others only
/// free what those allocated.
pub fn xmalloc(scale: f64) {
    const BATCH: usize = 512;
    let pairs = threads();
    let queue = Queue {
        batches: Mutex::new((VecDeque::with_capacity(Queue::LONGEST), pairs)),
        changed: Condvar::new(),
    };
    let batches = (scaled(20_000_000, scale) as usize / BATCH / pairs).max(1);
    thread::scope(|scope| {
        for number in 0..pairs {
            let queue = &queue;
            scope.spawn(move || {
                let mut random = Random::new(number as u64);
                for _ in 0..batches {
                    let batch = (0..BATCH)
                        .map(|_| {
                            // Sizes of 16 to 512 bytes, small ones more often.
                            let mut object =
                                Object::new(16 << random.below(6).min(random.below(6)));
                            object.mark(7);
                            object
                        })
                        .collect();
                    queue.put(batch);
                }
                queue.close_one();
            });
            scope.spawn(move || {
                while let Some(batch) = queue.take() {
                    assert!(
                        batch.iter().all(|object| object.is_marked(7)),
                        "somebody else wrote to an object"
                    );
                }
            });
        }
    });
}

/// A part of the graph of [`mstress`]: an object, and what hangs on it.
struct Node {
    object: Object,
    below: Option<Box<Node>>,
    depth: usize,
}

impl Node {
    const DEEPEST: usize = 20;

    fn new(random: &mut Random) -> Box<Node> {
        let bytes = match random.below(1000) {
            0 => 4096 + random.below(200_000),
            1..30 => 512 + random.below(8192),
            _ => 8 << random.below(6),
        };
        let mut object = Object::new(bytes);
        object.fill(0, 5);
        Box::new(Node { object, below: None, depth: 0 })
    }
}

/// The pattern of mimalloc's `mstress` (Leijen): threads build graphs of objects of random sizes
/// and swap parts of them by way of a table. It goes phase by phase: threads die and others come,
/// while the table and half of the objects stay.
pub fn mstress(scale: f64) {
    const SLOTS: usize = 1000;
    let threads = 2 * threads();
    let table: Vec<Mutex<Option<Box<Node>>>> = (0..SLOTS).map(|_| Mutex::new(None)).collect();
    let steps = scaled(40_000, scale.sqrt());
    for phase in 0..scaled(75, scale.sqrt()) {
        thread::scope(|scope| {
            for number in 0..threads {
                let table = &table;
                scope.spawn(move || {
                    let mut random = Random::new(phase << 8 | number as u64);
                    let (mut passing, mut kept): (Vec<Box<Node>>, Vec<Box<Node>>) =
                        (Vec::new(), Vec::new());
                    for _ in 0..steps {
                        let mut node = Node::new(&mut random);
                        if random.below(4) == 0
                            && let Some(below) = passing.pop_if(|below| below.depth < Node::DEEPEST)
                        {
                            (node.depth, node.below) = (below.depth + 1, Some(below));
                        }
                        if random.below(16) == 0 {
                            kept.push(node)
                        } else {
                            passing.push(node)
                        }
                        if random.below(3) < 2 && !passing.is_empty() {
                            let gone = passing.swap_remove(random.below(passing.len()));
                            assert!(gone.object.is_marked(5), "somebody else wrote to an object");
                        }
                        if random.below(4) == 0 && !passing.is_empty() {
                            let at = random.below(passing.len());
                            let mut slot = table[random.below(SLOTS)]
                                .lock()
                                .unwrap_or_else(PoisonError::into_inner);
                            match &mut *slot {
                                Some(there) => std::mem::swap(there, &mut passing[at]),
                                empty => *empty = Some(passing.swap_remove(at)),
                            }
                        }
                    }
                });
            }
        });
        // Now and then all of the table goes at once, freed by one thread.
        if phase % 10 == 9 {
            table
                .iter()
                .for_each(|slot| drop(slot.lock().unwrap_or_else(PoisonError::into_inner).take()));
        }
    }
}

/// Threads that live for 2,000 objects each, four at a time; of these every tenth outlives its
/// thread.
pub fn thread_churn(scale: f64) {
    const AT_ONCE: usize = 4;
    let mut left: VecDeque<Vec<Object>> = VecDeque::new();
    for round in 0..scaled(2000, scale) {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_ONCE)
                .map(|number| {
                    scope.spawn(move || {
                        let mut random = Random::new(round << 8 | number as u64);
                        let mut objects: Vec<Object> = Vec::new();
                        for step in 0..2000 {
                            let mut object = Object::new(random.between(16, 1000));
                            object.mark(3);
                            if step % 10 == 0 || objects.len() < 100 {
                                objects.push(object);
                            } else {
                                let at = random.below(objects.len());
                                objects[at] = object;
                            }
                        }
                        objects.truncate(200);
                        objects
                    })
                })
                .collect();
            for worker in workers {
                left.push_back(worker.join().expect("a thread does not panic"));
            }
        });
        while left.len() > 50 {
            left.pop_front();
        }
    }
}

/// 1,000 threads at once, of which each allocates 64 objects of up to 4 KiB and frees half of them:
/// for their memory.
pub fn many_threads(scale: f64) {
    let count = scaled(1000, scale) as usize;
    let all = Barrier::new(count);
    thread::scope(|scope| {
        for number in 0..count {
            let all = &all;
            let work = move || {
                let mut random = Random::new(number as u64);
                let mut objects: Vec<Object> = (0..64)
                    .map(|_| {
                        // Most of up to 512 bytes.
                        let bytes = if random.below(8) == 0 {
                            random.between(512, 4096)
                        } else {
                            random.between(16, 512)
                        };
                        let mut object = Object::new(bytes);
                        object.fill(0, 9);
                        object
                    })
                    .collect();
                let mut keep = false;
                objects.retain(|_| {
                    keep = !keep;
                    keep
                });
                all.wait();
                assert!(
                    objects.iter().all(|object| object.is_marked(9)),
                    "somebody else wrote to an object"
                );
            };
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, work)
                .expect("a thread can be made");
        }
    });
}
