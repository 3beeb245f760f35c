//! Metadata of objects, beside them and never in them: to read it there could bring their pages
//! back.
//!
//! Memory is divided into granules of 16 bytes:
//! - One bit marks a granule with which a live object begins.
//! - One bit marks a granule with which an object ends.
//! - Two bits count how often the object that begins there was touched. The first touch counts,
//!   then one in two, then one in four (Morris, "Counting large numbers of events in small
//!   registers", 1978). So three stands for some seven touches, and one less for half of them.
//! - One bit marks room that is not ready yet.
//!
//! Together they take 3.9 % of the memory. Where a program ranks objects itself, a further bit
//! marks these: 4.7 %.

use crate::area::Area;
use crate::seen::is_sampled;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Bytes of a granule.
pub const GRANULE: usize = 16;
/// Number of values that a heat has, from 0, not touched, to 3, touched some seven times or more.
pub const HEATS: usize = 4;

/// A bit for each granule.
pub struct Bits(Area);

impl Bits {
    /// Makes bits that are all clear.
    pub fn new(granules: usize) -> io::Result<Bits> {
        Area::words(granules.div_ceil(64)).map(Bits)
    }

    /// Sets the bit of a granule. Earlier writes are ordered before it.
    pub fn set(&self, granule: usize) {
        self.0.as_words()[granule / 64].fetch_or(1 << (granule % 64), Release);
    }

    /// Clears the bit of a granule; false if it was clear.
    pub fn clear(&self, granule: usize) -> bool {
        let bit = 1 << (granule % 64);
        self.0.as_words()[granule / 64].fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Whether the bit of a granule is set.
    pub fn get(&self, granule: usize) -> bool {
        self.0.as_words()[granule / 64].load(Acquire) >> (granule % 64) & 1 != 0
    }

    /// The bits of 32 granules, from granule `number` × 32 on.
    fn half_word(&self, number: usize) -> u32 {
        (self.0.as_words()[number / 2].load(Acquire) >> (number % 2 * 32)) as u32
    }

    /// The first granule of the range whose bit is set.
    pub fn next(&self, granules: Range<usize>) -> Option<usize> {
        let words = self.0.as_words();
        let mut at = granules.start;
        while at < granules.end {
            let rest = words[at / 64].load(Acquire) >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros() as usize;
                return (found < granules.end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Clears a range of whole words.
    pub fn clear_all(&self, granules: Range<usize>) {
        for word in &self.0.as_words()[granules.start / 64..granules.end / 64] {
            word.store(0, Release);
        }
    }
}

/// Two bits for each granule: a count of touches.
pub struct Clock(Area);

const LOW: u64 = 0x5555_5555_5555_5555;

impl Clock {
    /// Makes counts that are all zero.
    pub fn new(granules: usize) -> io::Result<Clock> {
        Area::words(granules.div_ceil(32)).map(Clock)
    }

    /// Counts a touch, by chance where the count is above zero; returns the new count. Of two
    /// touches at the same time one may be lost.
    pub fn touch(&self, granule: usize) -> u8 {
        let (word, shift) = (&self.0.as_words()[granule / 32], granule % 32 * 2);
        let before = word.load(Relaxed);
        let heat = (before >> shift & 3) as u8;
        if heat == 3 || !is_sampled(u32::from(heat)) {
            return heat;
        }
        let _ = word.compare_exchange(before, before + (1 << shift), Relaxed, Relaxed);
        heat + 1
    }

    /// The count of a granule, 0 to 3.
    pub fn heat(&self, granule: usize) -> u8 {
        (self.0.as_words()[granule / 32].load(Relaxed) >> (granule % 32 * 2) & 3) as u8
    }

    /// Sets the count, 0 to 3, of a granule.
    pub fn set(&self, granule: usize, heat: u8) {
        let (word, shift) = (&self.0.as_words()[granule / 32], granule % 32 * 2);
        let _ = word.fetch_update(Relaxed, Relaxed, |before| {
            Some(before & !(3 << shift) | u64::from(heat & 3) << shift)
        });
    }

    /// Subtracts one from the counts of a range of whole words, down to zero, except for granules
    /// of `but`.
    pub fn decay(&self, granules: Range<usize>, but: Option<&Bits>) {
        let numbers = granules.start / 32..granules.end / 32;
        for (number, word) in numbers.clone().zip(&self.0.as_words()[numbers]) {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let _ = word.fetch_update(Relaxed, Relaxed, |before| {
                let kept = but.map_or(0, |but| doubled(but.half_word(number)));
                let (high, low) = (before >> 1 & LOW, before & LOW);
                let less = (high & low) << 1 | high & !low;
                Some(before & kept | less & !kept)
            });
        }
    }

    /// Clears the counts of a range of whole words.
    pub fn clear_all(&self, granules: Range<usize>) {
        for word in &self.0.as_words()[granules.start / 32..granules.end / 32] {
            word.store(0, Relaxed);
        }
    }
}

/// The number with each bit twice.
fn doubled(bits: u32) -> u64 {
    let masks: [u64; 5] =
        [0xFFFF_0000_FFFF, 0xFF_00FF_00FF_00FF, 0xF0F_0F0F_0F0F_0F0F, 0x3333_3333_3333_3333, LOW];
    let spread = masks.iter().zip([16, 8, 4, 2, 1]).fold(u64::from(bits), |spread, (mask, by)| {
        // What was shifted fills the gaps that the mask leaves.
        (spread | spread << by) & mask
    });
    spread | spread << 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_in_order_and_within_the_range() {
        let bits = Bits::new(1024).unwrap();
        for granule in [3, 64, 700] {
            bits.set(granule);
        }
        assert_eq!(bits.next(0..1024), Some(3));
        assert_eq!(bits.next(4..1024), Some(64));
        assert_eq!(bits.next(65..700), None);
        assert!(bits.clear(64) && !bits.clear(64));
        assert_eq!(bits.next(4..1024), Some(700));
    }

    #[test]
    fn heats_stop_at_three_and_decay_by_one_without_touching_neighbours() {
        let clock = Clock::new(64).unwrap();
        for (granule, touches) in [(4, 1), (5, 500)] {
            for _ in 0..touches {
                clock.touch(granule);
            }
        }
        clock.set(6, 2);
        let heats = |clock: &Clock| [3, 4, 5, 6, 7].map(|granule| clock.heat(granule));
        assert_eq!(heats(&clock), [0, 1, 3, 2, 0]);
        clock.decay(0..64, None);
        assert_eq!(heats(&clock), [0, 0, 2, 1, 0]);
        clock.set(6, 3);
        clock.decay(0..64, None);
        assert_eq!(heats(&clock), [0, 0, 1, 2, 0]);
    }

    #[test]
    fn what_is_excepted_does_not_decay() {
        let (clock, but) = (Clock::new(128).unwrap(), Bits::new(128).unwrap());
        let excepted = [0, 31, 32, 63, 64, 101];
        (0..128).for_each(|granule| clock.set(granule, 3));
        excepted.into_iter().for_each(|granule| but.set(granule));
        clock.decay(0..128, Some(&but));
        for granule in 0..128 {
            let heat = if excepted.contains(&granule) { 3 } else { 2 };
            assert_eq!(clock.heat(granule), heat, "granule {granule}");
        }
    }

    #[test]
    fn three_stands_for_seven_touches_on_the_average() {
        let clock = Clock::new(4096).unwrap();
        let touches = |granule| (1..).find(|_| clock.touch(granule) == 3).unwrap();
        let mean = (0..4096).map(touches).sum::<u64>() as f64 / 4096.0;
        assert!((6.5..7.5).contains(&mean), "{mean}");
    }
}
