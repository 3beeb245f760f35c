//! What a thread that allocates is to do soon, at a point where it holds no lock.
//!
//! A thread that asks sets a bit of `wanted`, then the flag that every allocation looks at. A
//! thread that finds the flag clears it, then takes the bits. The order holds on any machine,
//! because both go through `wanted` by changes that acquire and release. A thread that sets a bit
//! after all were taken has seen the flag cleared, and sets it after that. (If setting a bit did
//! not acquire, the flag could be set and cleared again before that bit counts.)

use std::sync::atomic::{AtomicU32, Ordering, Ordering::*};

/// The two words, or what stands for them in a test.
pub trait Words {
    /// Sets bits of `wanted`.
    fn want(&self, bits: u32, order: Ordering);
    /// Takes all bits of `wanted`.
    fn take(&self, order: Ordering) -> u32;
    /// Sets the flag.
    fn flag(&self, order: Ordering);
    /// Clears the flag, by an exchange.
    fn clear(&self, order: Ordering);
}

/// Asks for something.
pub fn ask(words: &impl Words, bits: u32) {
    words.want(bits, AcqRel);
    words.flag(Release);
}

/// Takes what was asked for, in a thread that found the flag set.
pub fn answer(words: &impl Words) -> u32 {
    words.clear(AcqRel);
    words.take(AcqRel)
}

/// The words in memory.
pub struct Memory {
    /// What is asked for.
    pub wanted: &'static AtomicU32,
    /// Whether anything is asked for.
    pub flag: &'static AtomicU32,
}

impl Words for Memory {
    fn want(&self, bits: u32, order: Ordering) {
        self.wanted.fetch_or(bits, order);
    }
    fn take(&self, order: Ordering) -> u32 {
        self.wanted.swap(0, order)
    }
    fn flag(&self, order: Ordering) {
        self.flag.store(1, order);
    }
    fn clear(&self, order: Ordering) {
        self.flag.swap(0, order);
    }
}

/// Tried in all orders that the memory model of C++ and Rust allows for stores, loads and exchanges
/// that are relaxed, acquire or release.
#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const WANTED: usize = 0;
    const FLAG: usize = 1;

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Or(u32),
        Exchange(u32),
        Store(u32),
        /// The rest of the thread's steps happen only if this loads a value other than 0.
        IfSet,
    }

    #[derive(Clone, Copy, Debug)]
    struct Step {
        word: usize,
        change: Change,
        order: Ordering,
    }

    /// Records what the code under test does.
    #[derive(Default)]
    struct Recorder(RefCell<Vec<Step>>);

    impl Recorder {
        fn add(&self, word: usize, change: Change, order: Ordering) {
            self.0.borrow_mut().push(Step { word, change, order });
        }
    }

    impl Words for Recorder {
        fn want(&self, bits: u32, order: Ordering) {
            self.add(WANTED, Change::Or(bits), order);
        }
        fn take(&self, order: Ordering) -> u32 {
            self.add(WANTED, Change::Exchange(0), order);
            0
        }
        fn flag(&self, order: Ordering) {
            self.add(FLAG, Change::Store(1), order);
        }
        fn clear(&self, order: Ordering) {
            self.add(FLAG, Change::Exchange(0), order);
        }
    }

    /// The number of the latest message that is known of, by word.
    type View = [usize; 2];

    #[derive(Clone)]
    struct Message {
        value: u32,
        /// What a thread knows once it reads the message with acquire.
        released: View,
        /// An exchange has read the message: the exchange's own message comes next, and none
        /// between.
        followed: bool,
    }

    #[derive(Clone)]
    struct Machine {
        messages: Vec<Message>,
        /// For each of the two words, its messages (as indices) in the order in which they take
        /// effect.
        order: [Vec<usize>; 2],
        views: Vec<View>,
        done: Vec<usize>,
    }

    impl Machine {
        fn new(threads: usize) -> Machine {
            let first = |_| Message { value: 0, released: [0, 1], followed: false };
            Machine {
                messages: (0..2).map(first).collect(),
                order: [vec![0], vec![1]],
                views: vec![[0, 1]; threads],
                done: vec![0; threads],
            }
        }

        fn place(&self, word: usize, message: usize) -> usize {
            self.order[word].iter().position(|one| *one == message).unwrap()
        }

        fn join(&self, a: View, b: View) -> View {
            std::array::from_fn(|word| {
                if self.place(word, a[word]) >= self.place(word, b[word]) {
                    a[word]
                } else {
                    b[word]
                }
            })
        }

        fn read(&mut self, thread: usize, step: Step, message: usize) {
            self.views[thread][step.word] = message;
            if matches!(step.order, Acquire | AcqRel) {
                self.views[thread] = self.join(self.views[thread], self.messages[message].released);
            }
        }

        fn write(
            &mut self,
            thread: usize,
            step: Step,
            place: usize,
            value: u32,
            carried: Option<View>,
        ) {
            let message = self.messages.len();
            self.order[step.word].insert(place, message);
            // Before any thread knows of it, so that views can be compared.
            self.messages.push(Message { value, released: [0, 1], followed: false });
            self.views[thread][step.word] = message;
            let mut released = [0, 1];
            released[step.word] = message;
            if matches!(step.order, Release | AcqRel) {
                released = self.join(released, self.views[thread]);
            }
            if let Some(carried) = carried {
                released = self.join(released, carried);
            }
            self.messages[message].released = released;
        }

        /// All machines that a step may lead to.
        fn outcomes(&self, thread: usize, step: Step, steps: usize) -> Vec<Machine> {
            let order = &self.order[step.word];
            let known = self.place(step.word, self.views[thread][step.word]);
            let mut outcomes = Vec::new();
            let mut next = |change: &dyn Fn(&mut Machine)| {
                let mut machine = self.clone();
                machine.done[thread] += 1;
                change(&mut machine);
                outcomes.push(machine);
            };
            match step.change {
                Change::IfSet => order[known..].iter().for_each(|message| {
                    next(&|machine| {
                        machine.read(thread, step, *message);
                        if machine.messages[*message].value == 0 {
                            machine.done[thread] = steps;
                        }
                    });
                }),
                Change::Store(value) => (known..order.len())
                    .filter(|place| !self.messages[order[*place]].followed)
                    .for_each(|place| {
                        next(&|machine| machine.write(thread, step, place + 1, value, None));
                    }),
                Change::Or(_) | Change::Exchange(_) => {
                    for place in
                        (known..order.len()).filter(|place| !self.messages[order[*place]].followed)
                    {
                        let message = order[place];
                        next(&|machine| {
                            let old = machine.messages[message].clone();
                            machine.messages[message].followed = true;
                            machine.read(thread, step, message);
                            let value = match step.change {
                                Change::Or(bits) => old.value | bits,
                                Change::Exchange(value) | Change::Store(value) => value,
                                Change::IfSet => unreachable!(),
                            };
                            machine.write(thread, step, place + 1, value, Some(old.released));
                        });
                    }
                }
            }
            outcomes
        }

        fn last(&self, word: usize) -> u32 {
            self.messages[*self.order[word].last().unwrap()].value
        }
    }

    /// Counts the orders in which all steps can happen, and those after which something is wanted
    /// but the flag is clear.
    fn explore(machine: Machine, threads: &[Vec<Step>], ways: &mut (u64, u64)) {
        let mut ended = true;
        for (thread, steps) in threads.iter().enumerate() {
            let Some(step) = steps.get(machine.done[thread]) else { continue };
            ended = false;
            for next in machine.outcomes(thread, *step, steps.len()) {
                explore(next, threads, ways);
            }
        }
        if ended {
            ways.0 += 1;
            ways.1 += u64::from(machine.last(WANTED) != 0 && machine.last(FLAG) == 0);
        }
    }

    fn steps_of(code: impl Fn(&Recorder)) -> Vec<Step> {
        let recorder = Recorder::default();
        code(&recorder);
        recorder.0.into_inner()
    }

    /// A thread that allocates: it loads the flag with relaxed order.
    fn allocating(mut answer: Vec<Step>) -> Vec<Step> {
        answer.insert(0, Step { word: FLAG, change: Change::IfSet, order: Relaxed });
        answer
    }

    fn ways(asking: &[Vec<Step>], answering: &[Step]) -> (u64, u64) {
        let threads: Vec<_> = asking
            .iter()
            .cloned()
            .chain([allocating(answering.to_vec()), allocating(answering.to_vec())])
            .collect();
        let mut ways = (0, 0);
        explore(Machine::new(threads.len()), &threads, &mut ways);
        ways
    }

    #[test]
    fn what_is_asked_for_is_never_forgotten() {
        let answering = steps_of(|words| {
            answer(words);
        });
        for bits in [&[1, 1][..], &[1, 2]] {
            let asking: Vec<_> =
                bits.iter().map(|bits| steps_of(|words| ask(words, *bits))).collect();
            let (all, lost) = ways(&asking, &answering);
            assert!(all > 1_000, "{all}");
            assert_eq!(lost, 0, "of {all}");
        }
    }

    #[test]
    fn the_model_sees_what_weaker_orders_lose() {
        let plain = |word, change| Step { word, change, order: Relaxed };
        let taken = Step { word: WANTED, change: Change::Exchange(0), order: AcqRel };
        let stored = vec![
            Step { word: WANTED, change: Change::Store(1), order: Release },
            plain(FLAG, Change::Store(1)),
        ];
        assert!(ways(&[stored], &[plain(FLAG, Change::Store(0)), taken]).1 > 0);
        let set = vec![
            Step { word: WANTED, change: Change::Or(1), order: Release },
            Step { word: FLAG, change: Change::Store(1), order: Release },
        ];
        let answering = steps_of(|words| {
            answer(words);
        });
        assert!(ways(&[set.clone(), set], &answering).1 > 0, "bits that are set without acquiring");
    }
}
