//! The managed address ranges and their attributes: a mirror of the kernel's mappings, kept by the
//! `mmap` family.
//!
//! Intervals never overlap; neighbours that are alike are one, so that the map stays as small as
//! the kernel's.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use terrace_policy::eviction::victims::Expectation;

/// Attributes of a managed range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Private, anonymous, readable and writable, not locked: the mover could take pages.
    pub evictable: bool,
    /// The program wants it to stay in DRAM (`terrace_advise`).
    pub pinned: bool,
    /// Registered with a userfaultfd.
    pub registered: bool,
    /// How the program said that it will use the range.
    pub expected: Option<Expectation>,
    /// A forked child does not get this memory (MADV_DONTFORK).
    pub absent_in_child: bool,
}

impl Attributes {
    /// Whether the mover may take pages.
    pub fn may_leave(&self) -> bool {
        self.evictable && !self.pinned
    }
}

/// A managed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte, page-aligned.
    pub start: usize,
    /// End of the range (exclusive), page-aligned.
    pub end: usize,
    /// The range's [`Attributes`].
    pub attributes: Attributes,
}

/// The managed ranges, by address. Not synchronised.
#[derive(Default, Debug)]
pub struct Ranges {
    map: BTreeMap<usize, (usize, Attributes)>,
}

impl Ranges {
    /// Sets `start..end`, whatever was there.
    pub fn insert(&mut self, start: usize, end: usize, attributes: Attributes) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut start, mut end) = (start, end);
        if let Some((&before, &(before_end, same))) = self.map.range(..start).next_back()
            && before_end == start
            && same == attributes
        {
            self.map.remove(&before);
            start = before;
        }
        if let Some(&(after_end, same)) = self.map.get(&end)
            && same == attributes
        {
            self.map.remove(&end);
            end = after_end;
        }
        self.map.insert(start, (end, attributes));
    }

    /// Takes `start..end` out; returns the pieces that were there.
    pub fn remove(&mut self, start: usize, end: usize) -> Vec<Range> {
        let pieces = self.overlapping(start, end);
        for piece in &pieces {
            let (&from, &(to, attributes)) =
                self.map.range(..=piece.start).next_back().expect("the piece is in the map");
            self.map.remove(&from);
            if from < piece.start {
                self.map.insert(from, (piece.start, attributes));
            }
            if piece.end < to {
                self.map.insert(piece.end, (to, attributes));
            }
        }
        pieces
    }

    /// Changes the attributes of whatever is managed in `start..end`.
    pub fn update(&mut self, start: usize, end: usize, change: impl Fn(&mut Attributes)) {
        for mut piece in self.overlapping(start, end) {
            let before = piece.attributes;
            change(&mut piece.attributes);
            if piece.attributes != before {
                self.insert(piece.start, piece.end, piece.attributes);
            }
        }
    }

    /// The managed pieces of `start..end`, clipped to it, in address order.
    pub fn overlapping(&self, start: usize, end: usize) -> Vec<Range> {
        let mut pieces = Vec::new();
        if start >= end {
            return pieces;
        }
        if let Some((_, &(to, attributes))) = self.map.range(..=start).next_back()
            && to > start
        {
            pieces.push(Range { start, end: to.min(end), attributes });
        }
        for (&from, &(to, attributes)) in self.map.range((Excluded(start), Unbounded)) {
            if from >= end {
                break;
            }
            pieces.push(Range { start: from, end: to.min(end), attributes });
        }
        pieces
    }

    /// The attributes of the page at `address`, if it is managed.
    pub fn at(&self, address: usize) -> Option<Attributes> {
        self.map
            .range(..=address)
            .next_back()
            .filter(|(_, (end, _))| *end > address)
            .map(|(_, (_, attributes))| *attributes)
    }

    /// Whether anything in `start..end` is managed.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        start < end && self.map.range(..end).next_back().is_some_and(|(_, &(to, _))| to > start)
    }

    /// All ranges, in address order.
    pub fn all(&self) -> Vec<Range> {
        self.map
            .iter()
            .map(|(&start, &(end, attributes))| Range { start, end, attributes })
            .collect()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing is managed.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// Bytes of the evictable pieces, the pinned ones among them included.
pub(crate) fn evictable_bytes(pieces: &[Range]) -> usize {
    pieces
        .iter()
        .filter(|piece| piece.attributes.evictable)
        .map(|piece| piece.end - piece.start)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Attributes = Attributes {
        evictable: true,
        pinned: false,
        registered: false,
        expected: None,
        absent_in_child: false,
    };
    const B: Attributes = Attributes { registered: true, ..A };

    #[test]
    fn neighbours_that_are_alike_become_one() {
        let mut ranges = Ranges::default();
        ranges.insert(0, 10, A);
        ranges.insert(20, 30, A);
        ranges.insert(10, 20, A);
        assert_eq!(ranges.all(), [Range { start: 0, end: 30, attributes: A }]);
        ranges.update(5, 6, |a| a.registered = true);
        assert_eq!(ranges.len(), 3);
        ranges.update(0, 30, |a| a.registered = true);
        assert_eq!(ranges.all(), [Range { start: 0, end: 30, attributes: B }]);
    }

    proptest! {
        /// Against the plainest model: an attribute for each address.
        #[test]
        fn behaves_like_an_array(
            ops in prop::collection::vec((0u8..3, 0usize..64, 0usize..64, any::<bool>()), 1..60)
        ) {
            let mut ranges = Ranges::default();
            let mut model = [None; 64];
            for (op, a, b, flag) in ops {
                let (start, end) = (a.min(b), a.max(b));
                let attributes = Attributes { evictable: flag, ..Attributes::default() };
                match op {
                    0 => {
                        ranges.insert(start, end, attributes);
                        model[start..end].fill(Some(attributes));
                    }
                    1 => { ranges.remove(start, end); model[start..end].fill(None); }
                    _ => {
                        ranges.update(start, end, |a| a.registered = flag);
                        model[start..end].iter_mut().flatten().for_each(|a| a.registered = flag);
                    }
                }
                let mut seen = [None; 64];
                let all = ranges.all();
                for range in &all {
                    seen[range.start..range.end].fill(Some(range.attributes));
                }
                prop_assert_eq!(seen, model);
                for pair in all.windows(2) {
                    prop_assert!(
                        pair[0].end < pair[1].start || pair[0].attributes != pair[1].attributes,
                        "not merged: {:?}",
                        pair,
                    );
                }
            }
        }
    }
}
