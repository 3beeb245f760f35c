//! Lists of units in the order in which they came, from which any may be taken. HeMem and the
//! kernel's reclaim keep their pages in them.
//!
//! A unit is in one list at most, so all lists share one pair of links a unit: 9 bytes.

use crate::placement::UnitId;

const NONE: u32 = u32::MAX;
const NO_LIST: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
    len: u32,
}

/// `N` lists, named 0 to `N` − 1.
#[derive(Clone, Debug)]
pub struct Lists<const N: usize> {
    links: Vec<Link>,
    of: Vec<u8>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Lists<N> {
        const { assert!(N < NO_LIST as usize) };
        Lists {
            links: Vec::new(),
            of: Vec::new(),
            ends: [Ends { first: NONE, last: NONE, len: 0 }; N],
        }
    }
}

impl<const N: usize> Lists<N> {
    /// The list that a unit is in.
    pub fn list_of(&self, unit: UnitId) -> Option<usize> {
        self.of.get(unit as usize).filter(|list| **list != NO_LIST).map(|list| usize::from(*list))
    }

    /// Units in a list.
    pub fn len(&self, list: usize) -> u32 {
        self.ends[list].len
    }

    /// The unit that has been in a list longest.
    pub fn first(&self, list: usize) -> Option<UnitId> {
        some(self.ends[list].first)
    }

    /// The unit that came into a list last.
    pub fn last(&self, list: usize) -> Option<UnitId> {
        some(self.ends[list].last)
    }

    /// The unit that came after `unit`, in the same list.
    pub fn after(&self, unit: UnitId) -> Option<UnitId> {
        self.links
            .get(unit as usize)
            .filter(|_| self.list_of(unit).is_some())
            .and_then(|link| some(link.after))
    }

    /// Puts a unit at a list's end, from wherever it is.
    pub fn push(&mut self, list: usize, unit: UnitId) {
        let last = self.make_room(list, unit).last;
        self.link(list, unit, last, NONE);
    }

    /// Puts a unit at a list's beginning, from wherever it is.
    pub fn push_first(&mut self, list: usize, unit: UnitId) {
        let first = self.make_room(list, unit).first;
        self.link(list, unit, NONE, first);
    }

    /// Takes a unit out of its list, if it is in one.
    pub fn remove(&mut self, unit: UnitId) {
        let Some(list) = self.list_of(unit) else { return };
        let Link { before, after } = self.links[unit as usize];
        match some(before) {
            Some(before) => self.links[before as usize].after = after,
            None => self.ends[list].first = after,
        }
        match some(after) {
            Some(after) => self.links[after as usize].before = before,
            None => self.ends[list].last = before,
        }
        self.ends[list].len -= 1;
        self.of[unit as usize] = NO_LIST;
    }

    fn make_room(&mut self, list: usize, unit: UnitId) -> Ends {
        self.remove(unit);
        let index = unit as usize;
        if index >= self.of.len() {
            self.of.resize(index + 1, NO_LIST);
            self.links.resize(index + 1, Link { before: NONE, after: NONE });
        }
        self.ends[list]
    }

    fn link(&mut self, list: usize, unit: UnitId, before: u32, after: u32) {
        self.links[unit as usize] = Link { before, after };
        self.of[unit as usize] = list as u8;
        match some(before) {
            Some(before) => self.links[before as usize].after = unit,
            None => self.ends[list].first = unit,
        }
        match some(after) {
            Some(after) => self.links[after as usize].before = unit,
            None => self.ends[list].last = unit,
        }
        self.ends[list].len += 1;
    }
}

fn some(unit: u32) -> Option<UnitId> {
    (unit != NONE).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents<const N: usize>(lists: &Lists<N>, list: usize) -> Vec<UnitId> {
        std::iter::successors(lists.first(list), |unit| lists.after(*unit)).collect()
    }

    proptest! {
        #[test]
        fn they_are_what_vectors_would_be(
            steps in prop::collection::vec((0u32..12, 0usize..3, 0u8..3), 0..200)
        ) {
            let mut lists = Lists::<3>::default();
            let mut model: [Vec<UnitId>; 3] = Default::default();
            for (unit, list, what) in steps {
                model.iter_mut().for_each(|units| units.retain(|other| *other != unit));
                match what {
                    0 => lists.remove(unit),
                    1 => {
                        lists.push(list, unit);
                        model[list].push(unit);
                    }
                    _ => {
                        lists.push_first(list, unit);
                        model[list].insert(0, unit);
                    }
                }
                for (list, expected) in model.iter().enumerate() {
                    prop_assert_eq!(&contents(&lists, list), expected);
                    prop_assert_eq!(lists.len(list) as usize, expected.len());
                    prop_assert_eq!(lists.last(list), expected.last().copied());
                }
                prop_assert_eq!(
                    lists.list_of(unit), model.iter().position(|units| units.contains(&unit))
                );
            }
        }
    }
}
