//! How large units are, in *base units*: pages of 4 KiB beside huge ones of 512 of them.
//!
//! Most callers have units that are all alike, a live program always has. Then nothing is kept.

use crate::placement::UnitId;

/// Sizes by unit. Takes no memory while all are 1, and 4 bytes a unit otherwise.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    of: Vec<u32>,
}

impl Sizes {
    /// Sets the size of a unit from now on, at least 1.
    pub fn set(&mut self, unit: UnitId, size: u32) {
        debug_assert!(size > 0, "unit {unit} of nothing");
        let index = unit as usize;
        if index >= self.of.len() {
            if size == 1 {
                return;
            }
            self.of.resize(index + 1, 1);
        }
        self.of[index] = size;
    }

    /// Size of a unit, base units; 1 where no size was set.
    #[inline]
    pub fn of(&self, unit: UnitId) -> u32 {
        self.of.get(unit as usize).copied().unwrap_or(1)
    }

    /// Whether none but 1 was ever told.
    pub fn are_all_one(&self) -> bool {
        self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_ones() {
        let mut sizes = Sizes::default();
        (0..100).for_each(|unit| sizes.set(unit, 1));
        assert!(sizes.are_all_one() && sizes.of(7) == 1);
        sizes.set(3, 512);
        sizes.set(50, 1);
        assert_eq!((sizes.of.len(), sizes.of(2), sizes.of(3), sizes.of(50)), (4, 1, 512, 1));
        // A unit that is used again may be another one.
        sizes.set(3, 1);
        assert_eq!(sizes.of(3), 1);
    }
}
