//! Where entries lie, followed as they move: to look them up would touch them.

use std::ptr::NonNull;
use terrace_objects::structures::{Index, Map};
use terrace_objects::{Object, Outcome, Relocate, Slice};

const PAGE: usize = 4096;

/// Where the entry of each key lies.
pub struct Followed {
    start: Vec<usize>,
    bytes: usize,
}

/// Moves a map's entries, and notes where to.
pub struct Moves<'a, I> {
    at: &'a mut Followed,
    map: &'a Map<I>,
}

impl Followed {
    /// Makes a record for keys from 0 on, whose entries are all of the same size.
    pub fn of(keys: u64) -> Followed {
        Followed { start: vec![0; keys as usize], bytes: 0 }
    }

    /// Notes where a key's entry lies.
    pub fn note(&mut self, key: u64, object: Option<Object>) {
        if let Some(Object { start, bytes }) = object {
            self.start[key as usize] = start.as_ptr() as usize;
            self.bytes = bytes.next_multiple_of(16);
        }
    }

    /// Gives a relocator for the map that notes from now on where entries are moved.
    pub fn follow<'a, I>(&'a mut self, map: &'a Map<I>) -> Moves<'a, I> {
        Moves { at: self, map }
    }

    /// Hot bytes ÷ bytes of hot pages, where these keys are hot.
    pub fn utilisation(&self, hot: impl Iterator<Item = u64>) -> f64 {
        let (mut pages, mut bytes) = (Vec::new(), 0);
        for key in hot {
            let start = self.start[key as usize];
            pages.extend(start / PAGE..=(start + self.bytes - 1) / PAGE);
            bytes += self.bytes;
        }
        pages.sort_unstable();
        pages.dedup();
        bytes as f64 / (pages.len() * PAGE) as f64
    }
}

// SAFETY: does what the map does, which keeps the contract, and writes only what is its own.
unsafe impl<I: Index> Relocate for Moves<'_, I> {
    unsafe fn relocate(&mut self, object: Object, room: Object, slice: &Slice) -> Outcome {
        let mut map = self.map;
        // SAFETY: as this was called.
        let outcome = unsafe { map.relocate(object, room, slice) };
        if let Outcome::Moved { .. } = outcome {
            // SAFETY: an entry begins with its key (`structures::Entry`), and this one was just
            // copied into the room, which no other thread writes.
            let key = unsafe { room.start.cast::<u64>().read() };
            self.at.note(key, Some(room));
        }
        outcome
    }

    unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        let mut map = self.map;
        // SAFETY: as this was called.
        unsafe { map.reference(copy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_hot_entries_count_once() {
        let mut at = Followed::of(4);
        let object = |start: usize| {
            Some(Object {
                start: NonNull::new(std::ptr::without_provenance_mut(start)).unwrap(),
                bytes: 120,
            })
        };
        for (key, start) in [(0, 4096), (1, 4096 + 128), (2, 3 * 4096 - 64), (3, 9 * 4096)] {
            at.note(key, object(start));
        }
        assert_eq!(at.utilisation(0..2), 256.0 / 4096.0);
        assert_eq!(at.utilisation(2..3), 128.0 / 8192.0, "across the end of a page");
        assert_eq!(at.utilisation(0..4), 512.0 / (4.0 * 4096.0));
    }
}
