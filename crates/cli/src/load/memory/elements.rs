//! An array of elements of 256 bytes, touched in one of the [`patterns`](terrace_sim::patterns).

use super::program::{Batch, Program, addresses};
use super::truth::Watch;
use crate::load::args::MemoryArguments;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use terrace_sim::patterns::{Kind, Pattern, chain};
use terrace_sim::scattered::mixed;

/// Bytes of an element, and its words: what it is, the next of its chain, how often it was written,
/// and contents.
pub const ELEMENT: usize = 256;
const WORDS: usize = ELEMENT / 8;
const STAMP: usize = 0;
const LINK: usize = 1;
const WRITES: usize = 2;
/// Accesses of a batch.
const BATCH: u64 = 256;

/// An element, in whole lines of the cache.
#[derive(Debug)]
#[repr(align(256))]
struct Element([AtomicU64; WORDS]);

/// The elements, and what is done with them.
#[derive(Debug)]
pub struct Elements {
    all: Vec<Element>,
    seed: u64,
    kind: Kind,
    theta: f64,
    change_every_s: f64,
    /// Number of writes among the 256 accesses of a batch, on average.
    writes: u64,
}

/// A thread's way through the elements.
#[derive(Debug)]
pub struct Way {
    pattern: Pattern,
    link: u64,
    /// Says whether an access writes.
    number: u64,
}

impl Elements {
    /// As many elements as there is room for.
    pub fn fill(kind: Kind, arguments: &MemoryArguments) -> Elements {
        let elements = arguments.size / ELEMENT as u64;
        let seed = arguments.seed;
        let links = chain(Pattern::hot(Kind::Chase, elements), seed);
        let word = |element: usize, part: usize| {
            AtomicU64::new(match part {
                LINK => links.get(element).map_or(0, |link| u64::from(*link)),
                _ => Self::word(seed, element, part),
            })
        };
        Elements {
            all: (0..elements as usize)
                .map(|element| Element(std::array::from_fn(|part| word(element, part))))
                .collect(),
            seed,
            kind,
            theta: arguments.theta,
            change_every_s: arguments.change_every,
            writes: (arguments.write_share * BATCH as f64) as u64,
        }
    }

    /// What a word is at first, but for links.
    fn word(seed: u64, element: usize, part: usize) -> u64 {
        match part {
            STAMP => mixed(seed ^ element as u64),
            WRITES => 0,
            // Compresses two to three times, as records of programs do.
            _ if part % 4 == 3 => mixed(seed.wrapping_add((element * WORDS + part) as u64)),
            _ => 0x2020_2020_0000_0000 | (element as u64 / 16) << 8 | part as u64,
        }
    }

    /// Touches an element; its link, or `None` if it is not what it should be.
    fn touch(&self, element: u64, write: bool, watch: &mut impl Watch) -> Option<u64> {
        let words = &self.all[element as usize].0;
        // All that is touched is in its first line.
        watch.touches(&words[STAMP]);
        if write {
            words[WRITES].fetch_add(1, Relaxed);
        }
        (words[STAMP].load(Relaxed) == mixed(self.seed ^ element))
            .then(|| words[LINK].load(Relaxed))
    }
}

impl Program for Elements {
    type Way = Way;

    fn way(&self, thread: usize, _threads: usize) -> Way {
        let thread = thread as u64;
        let pattern = Pattern::new(self.kind, self.all.len() as u64, self.theta, self.seed, thread);
        Way { pattern, link: 0, number: mixed(thread) }
    }

    fn at(&self, way: &mut Way, seconds: f64) -> bool {
        way.pattern.at(seconds / self.change_every_s)
    }

    fn batch(&self, way: &mut Way, watch: &mut impl Watch) -> Batch {
        let mut done = Batch { accesses: BATCH, ..Batch::default() };
        for _ in 0..BATCH {
            let element = way.pattern.next(way.link);
            way.number = way
                .number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let write = way.number >> 56 < self.writes;
            done.writes += u64::from(write);
            match self.touch(element, write, watch) {
                // Only a thread that followed the chain goes on with it; and a link that leads out
                // of it was damaged.
                Some(next) if next < self.all.len() as u64 => {
                    way.link = if element == way.link { next } else { way.link }
                }
                _ => done.wrong += 1,
            }
        }
        done
    }

    fn check(&self, writes: u64) -> u64 {
        let (mut wrong, mut found) = (0, 0);
        for (element, Element(words)) in self.all.iter().enumerate() {
            // Of links only the chain knows; its way goes through them.
            let right = |(part, word): (usize, &AtomicU64)| {
                matches!(part, LINK | WRITES)
                    || word.load(Relaxed) == Self::word(self.seed, element, part)
            };
            wrong += u64::from(!words.iter().enumerate().all(right));
            found += words[WRITES].load(Relaxed);
        }
        wrong + u64::from(found != writes)
    }

    fn place(&self) -> Range<usize> {
        addresses(&self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::tests::arguments;

    const FEW: u64 = terrace_sim::patterns::ELEMENTS_LEAST;

    fn few() -> Elements {
        Elements::fill(Kind::Chase, &arguments("chase", FEW * ELEMENT as u64))
    }

    #[test]
    fn elements_are_told_apart_and_damage_is_seen() {
        let memory = few();
        for element in 0..FEW {
            assert!(memory.touch(element, element % 2 == 0, &mut ()).is_some());
        }
        assert_eq!((memory.check(FEW / 2), memory.check(7)), (0, 1));
        memory.all[20].0[9].fetch_xor(1, Relaxed);
        assert_eq!(memory.check(FEW / 2), 1);
        memory.all[9].0[STAMP].fetch_xor(1, Relaxed);
        assert_eq!(memory.touch(9, false, &mut ()), None);
        assert!(memory.touch(8, false, &mut ()).is_some());
    }

    #[test]
    fn one_chain_goes_through_all_hot_elements() {
        let memory = few();
        let hot = Pattern::hot(Kind::Chase, FEW);
        let (mut at, mut steps) = (0, 0);
        loop {
            at = memory.touch(at, false, &mut ()).unwrap();
            steps += 1;
            assert!(at < hot && steps <= hot, "{at} after {steps} steps");
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, hot);
    }
}
