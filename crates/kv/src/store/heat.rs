//! How hot items are, by the two bits in their slots of the index.
//!
//! While hot items are brought together, touches count by chance, so that a clock of 3 stands for
//! some seven of them. Otherwise every touch counts.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use terrace_objects::manager::{Kind, Seen, is_sampled};

use super::index::Slot;

/// The highest clock.
const MOST: u64 = 3;
/// A clock that no item has.
const NEVER: u8 = u8::MAX;

/// The parameters of counting a touch, for all threads: four numbers that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    /// Whether hot items are brought together.
    pub(super) on: bool,
    /// One touch in 2^`sampling` is counted.
    pub(super) sampling: u8,
    /// Clock from which on an item is hot.
    pub(super) hot_from: u8,
    /// Clock from which on a touched item is moved by itself, if any is.
    pub(super) noted_from: Option<u8>,
}

impl Counting {
    /// Makes the parameters before anything was counted.
    pub(super) fn new(on: bool) -> Counting {
        Counting { on, sampling: 0, hot_from: MOST as u8, noted_from: None }
    }

    fn pack(self) -> u32 {
        let noted_from = self.noted_from.unwrap_or(NEVER);
        u32::from_le_bytes([u8::from(self.on), self.sampling, self.hot_from, noted_from])
    }

    fn unpack(word: u32) -> Counting {
        let [on, sampling, hot_from, noted_from] = word.to_le_bytes();
        let noted_from = (noted_from != NEVER).then_some(noted_from);
        Counting { on: on != 0, sampling, hot_from, noted_from }
    }
}

/// The heat of all items. Fields read with every touch share no cache line with written ones.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Heat {
    counting: AtomicU32,
    /// Hashes of hot items that were touched among cold ones.
    pub(super) seen: Noted,
}

/// A ring on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Noted(pub(super) Seen);

impl Heat {
    /// Makes the heat of items before any was touched.
    pub(super) fn new(on: bool) -> Heat {
        Heat { counting: AtomicU32::new(Counting::new(on).pack()), seen: Noted::default() }
    }

    /// The parameters of counting touches.
    pub(super) fn counting(&self) -> Counting {
        Counting::unpack(self.counting.load(Relaxed))
    }

    /// Whether hot items are brought together.
    pub(super) fn is_on(&self) -> bool {
        self.counting().on
    }

    /// Switches bringing hot items together on or off. Touches count anew from then on.
    pub(super) fn switch(&self, on: bool) {
        let switched = |word| (Counting::unpack(word).on != on).then(|| Counting::new(on).pack());
        let _ = self.counting.fetch_update(Relaxed, Relaxed, switched);
    }

    /// Sets the parameters of counting touches, unless it was switched off.
    pub(super) fn count_by(&self, counting: Counting) {
        let changed = |word| Counting::unpack(word).on.then(|| counting.pack());
        let _ = self.counting.fetch_update(Relaxed, Relaxed, changed);
    }

    /// The kind of segment for an item that survives an eviction.
    pub(super) fn kind_of(&self, slot: &Slot<'_>) -> Kind {
        let counting = self.counting();
        let is_hot = counting.on && slot.clock() >= u64::from(counting.hot_from);
        if is_hot { Kind::Hot } else { Kind::Fresh }
    }

    /// Counts a touch of an item; returns its slot. `is_placed` says whether it lies where a hot
    /// item may lie.
    #[inline]
    pub(super) fn touched<'a>(
        &self,
        slot: Slot<'a>,
        hash: u64,
        is_placed: impl FnOnce() -> bool,
    ) -> Slot<'a> {
        let counting = self.counting();
        if !counting.on {
            return slot.used();
        }
        if !is_sampled(counting.sampling.into()) {
            return slot;
        }
        let counts = slot.clock() < MOST && is_sampled(slot.clock() as u32);
        let slot = if counts { slot.used() } else { slot };
        if counting.noted_from.is_some_and(|from| slot.clock() >= from.into()) && !is_placed() {
            self.seen.0.push(hash);
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_by_stays_as_it_was_said_until_it_is_switched() {
        let heat = Heat::new(true);
        let said = Counting { on: true, sampling: 3, hot_from: 2, noted_from: Some(3) };
        heat.count_by(said);
        heat.switch(true);
        assert_eq!(heat.counting(), said);
        heat.switch(false);
        heat.count_by(said);
        assert_eq!(heat.counting(), Counting::new(false), "a step that ends late changes nothing");
    }

    #[test]
    fn a_hot_item_among_cold_ones_is_noted_once_it_is_touched() {
        let heat = Heat::new(true);
        heat.count_by(Counting { noted_from: Some(3), ..Counting::new(true) });
        let mut slot = Slot::new(7, std::ptr::without_provenance_mut(64));
        let touches = (1..).find(|_| {
            slot = heat.touched(slot, 7, || false);
            slot.clock() == MOST
        });
        assert!(touches.is_some_and(|touches| touches >= 3));
        assert_eq!((heat.seen.0.pop(), heat.seen.0.pop()), (Some(7), None));
        heat.touched(slot, 7, || true);
        assert!(heat.seen.0.is_empty());
    }
}
