//! Metadata of one page of placed objects: which of its 16-byte granules are used, where objects
//! begin, and whose they are. It lies outside of the page, so that freeing does not restore an
//! evicted page.

use smallvec::{SmallVec, smallvec};
use terrace_os::PAGE;

/// Objects begin at multiples of this and take multiples of it, bytes.
pub const GRANULE: usize = 16;
/// Granules of a page.
pub const GRANULES: usize = PAGE / GRANULE;

/// A bit for each granule of a page.
#[derive(Clone, Copy, Default)]
struct Bits([u64; GRANULES / 64]);

impl Bits {
    fn get(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    /// The first bit from `from` on that is `set` or not; [`GRANULES`] if there is none.
    fn next(&self, from: usize, set: bool) -> usize {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < self.0.len() {
            let bits = if set { self.0[word] } else { !self.0[word] } & mask;
            if bits != 0 {
                return word * 64 + bits.trailing_zeros() as usize;
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        GRANULES
    }

    /// How many bits below `at` are set.
    fn below(&self, at: usize) -> usize {
        let whole = self.0[..at / 64].iter().map(|word| word.count_ones() as usize).sum::<usize>();
        whole
            + self
                .0
                .get(at / 64)
                .map_or(0, |word| (word & ((1 << (at % 64)) - 1)).count_ones() as usize)
    }

    /// The greatest power of two of bits in a row that are clear, by its exponent; `None` if all
    /// are set.
    fn room(&self) -> Option<u32> {
        // A bit for each place from which as many are clear as were asked for so far. Twice as many
        // are clear where that holds at once and again after as many.
        let mut clear = self.0.map(|word| !word);
        let mut exponent = None;
        for next in 0..GRANULES.ilog2() {
            if clear == [0; GRANULES / 64] {
                return exponent;
            }
            exponent = Some(next);
            let (words, bits) = ((1usize << next) / 64, (1u32 << next) % 64);
            let at = |index: usize| clear.get(index).copied().unwrap_or(0);
            clear = std::array::from_fn(|index| {
                let low = at(index + words) >> bits;
                let high = if bits == 0 { 0 } else { at(index + words + 1) << (64 - bits) };
                clear[index] & (low | high)
            });
        }
        if clear == [0; GRANULES / 64] { exponent } else { Some(GRANULES.ilog2()) }
    }

    fn set(&mut self, from: usize, len: usize, to: bool) {
        let mut at = from;
        while at < from + len {
            let bits = (from + len - at).min(64 - at % 64);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            if to {
                self.0[at / 64] |= mask;
            } else {
                self.0[at / 64] &= !mask;
            }
            at += bits;
        }
    }
}

/// The owner of an object: the number of its arena in its shard, from 1; 0 if it has no arena.
pub type Owner = u32;
/// Number of owners that most shared pages do not exceed: then the record is one allocation, each
/// of which takes system calls.
const TENANTS: usize = 16;
const OBJECTS: usize = 64;
/// A place in [`Shared::tenants`] that no owner has.
const VACANT: Owner = Owner::MAX;

/// The owners of the objects on a page that several arenas share.
struct Shared {
    /// The owners, each once.
    tenants: SmallVec<[Owner; TENANTS]>,
    /// The index of each object's owner in `tenants`, in the order of the objects' addresses.
    of: SmallVec<[u8; OBJECTS]>,
}

impl Shared {
    fn of(owner: Owner, objects: usize) -> Box<Shared> {
        Box::new(Shared { tenants: smallvec![owner], of: smallvec![0; objects] })
    }
}

/// What a page is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// No use.
    Free = 0,
    /// Objects of up to a page.
    Objects,
    /// The first of the pages of one large object, and the others.
    Large,
    LargeTail,
}

/// The value of [`Page::list`] for a page that is in no list, because it is for one growing arena
/// alone.
pub const PRIVATE: u8 = u8::MAX;

/// Metadata of a page: see the module. Valid when zeroed.
#[repr(C)]
pub struct Page {
    used: Bits,
    starts: Bits,
    shared: Option<Box<Shared>>,
    /// The owner of all objects on the page, where the page is not shared.
    sole: Owner,
    /// Neighbours in a list: page numbers plus one.
    pub next: u32,
    pub previous: u32,
    /// Number of granules used.
    pub filled: u16,
    pub kind: Kind,
    /// The list that the page is in, by number plus one; 0: none; or [`PRIVATE`].
    pub list: u8,
}

/// What was taken off a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Removed {
    /// Number of granules.
    pub granules: usize,
    pub owner: Owner,
    /// Whether the owner has no more objects on this page.
    pub last: bool,
}

impl Page {
    /// Makes the page one of objects, without any.
    pub fn clear(&mut self) {
        (self.used, self.starts) = (Bits::default(), Bits::default());
        (self.shared, self.sole, self.filled, self.list) = (None, 0, 0, 0);
    }

    /// The greatest power of two of free granules in a row, by its exponent; `None` if the page is
    /// full.
    pub fn room(&self) -> Option<usize> {
        self.used.room().map(|exponent| exponent as usize)
    }

    fn objects(&self) -> usize {
        self.starts.below(GRANULES)
    }

    /// Number of objects that begin on the page, and the bytes of objects on it.
    pub fn holds(&self) -> (usize, usize) {
        match self.kind {
            Kind::Free => (0, 0),
            Kind::Objects => (self.objects(), self.filled as usize * GRANULE),
            Kind::Large => (1, PAGE),
            Kind::LargeTail => (0, PAGE),
        }
    }

    /// Places an object of `len` granules at a multiple of `step`. The place is as near as can be
    /// to granule `near`, or the first that fits. Returns where, and whether its owner is new on
    /// this page.
    pub fn place(
        &mut self,
        len: usize,
        step: usize,
        near: Option<usize>,
        owner: Owner,
    ) -> Option<(usize, bool)> {
        if GRANULES - (self.filled as usize) < len {
            return None;
        }
        let at = self.find(len, step, near)?;
        let ordinal = self.starts.below(at);
        let objects = self.objects();
        let mut is_new = objects == 0;
        if is_new {
            (self.sole, self.shared) = (owner, None);
        } else if self.shared.is_some() || self.sole != owner {
            let sole = self.sole;
            let shared = self.shared.get_or_insert_with(|| Shared::of(sole, objects));
            let known = shared.tenants.iter().position(|tenant| *tenant == owner);
            is_new = known.is_none();
            let index = known
                .or_else(|| shared.tenants.iter().position(|tenant| *tenant == VACANT))
                .unwrap_or_else(|| {
                    shared.tenants.push(VACANT);
                    shared.tenants.len() - 1
                });
            shared.tenants[index] = owner;
            // There are no more tenants than objects, of which a page has 256.
            shared.of.insert(ordinal, index as u8);
        }
        self.used.set(at, len, true);
        self.starts.set(at, 1, true);
        self.filled += len as u16;
        Some((at, is_new))
    }

    fn find(&self, len: usize, step: usize, near: Option<usize>) -> Option<usize> {
        let mut best: Option<usize> = None;
        let mut from = 0;
        loop {
            let begin = self.used.next(from, false);
            if begin == GRANULES {
                return best;
            }
            let end = self.used.next(begin, true);
            let first = begin.next_multiple_of(step);
            if first + len <= end {
                let Some(near) = near else { return Some(first) };
                let last = (end - len) / step * step;
                let candidate = if near < begin { first } else { last };
                if best.is_none_or(|best| candidate.abs_diff(near) < best.abs_diff(near)) {
                    best = Some(candidate);
                }
            }
            if end == GRANULES {
                return best;
            }
            from = end;
        }
    }

    /// Granules of the object that begins at this one, if any does.
    pub fn len_at(&self, at: usize) -> Option<usize> {
        self.starts
            .get(at)
            .then(|| self.used.next(at, false).min(self.starts.next(at + 1, true)) - at)
    }

    /// Owner of the object that begins at a granule, or has it inside.
    pub fn owner_at(&self, at: usize) -> Option<Owner> {
        // The object that begins last up to there: whatever is used behind it belongs to it.
        let ordinal =
            self.used.get(at).then(|| self.starts.below(at + 1).checked_sub(1)).flatten()?;
        Some(self.owner_of(ordinal))
    }

    fn owner_of(&self, ordinal: usize) -> Owner {
        self.shared.as_ref().map_or(self.sole, |shared| shared.tenants[shared.of[ordinal] as usize])
    }

    /// Makes the page the first of a large object.
    pub fn make_large(&mut self, pages: u32, owner: Owner) {
        self.clear();
        // In no list.
        (self.kind, self.next, self.sole) = (Kind::Large, pages, owner);
    }

    /// Makes the page another one of a large object.
    pub fn make_tail(&mut self, first: u32) {
        self.clear();
        (self.kind, self.next) = (Kind::LargeTail, first);
    }

    /// Pages and owner of a large object, of which this is the first.
    pub fn large(&self) -> (u32, Owner) {
        (self.next, self.sole)
    }

    /// The first page of a large object, of which this is another.
    pub fn first(&self) -> u32 {
        self.next
    }

    /// Whether this owner has objects here.
    pub fn is_tenant(&self, owner: Owner) -> bool {
        match (self.kind, &self.shared) {
            (Kind::Objects, Some(shared)) => shared.tenants.contains(&owner),
            (Kind::Objects, None) => self.filled > 0 && self.sole == owner,
            (Kind::Large, _) => self.sole == owner,
            _ => false,
        }
    }

    /// Removes the object that begins at a granule; `None` if none does.
    pub fn remove(&mut self, at: usize) -> Option<Removed> {
        let granules = self.len_at(at)?;
        let ordinal = self.starts.below(at);
        let owner = self.owner_of(ordinal);
        self.used.set(at, granules, false);
        self.starts.set(at, 1, false);
        self.filled -= granules as u16;
        let last = match &mut self.shared {
            Some(shared) => {
                let index = shared.of.remove(ordinal);
                let last = !shared.of.contains(&index);
                if last {
                    shared.tenants[index as usize] = VACANT;
                }
                last
            }
            None => self.filled == 0,
        };
        Some(Removed { granules, owner, last })
    }

    /// Removes all objects of an owner; returns the number of granules that they had.
    pub fn remove_all(&mut self, owner: Owner) -> usize {
        let mut granules = 0;
        let mut at = self.starts.next(0, true);
        while at < GRANULES {
            if self.owner_of(self.starts.below(at)) == owner
                && let Some(removed) = self.remove(at)
            {
                granules += removed.granules;
            }
            at = self.starts.next(at + 1, true);
        }
        granules
    }

    /// Makes the object that begins at a granule `len` granules long, if there is room behind it.
    /// Returns its previous length.
    pub fn resize(&mut self, at: usize, len: usize) -> Option<usize> {
        let old = self.len_at(at)?;
        if len > old && (at + len > GRANULES || self.used.next(at + old, true) < at + len) {
            return None;
        }
        if len > old {
            self.used.set(at + old, len - old, true);
        } else {
            self.used.set(at + len, old - len, false);
        }
        self.filled = self.filled + len as u16 - old as u16;
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn room_is_the_longest_run(
            runs in prop::collection::vec((0usize..256, 1usize..256, any::<bool>()), 0..12)
        ) {
            let mut bits = Bits::default();
            let mut model = [false; GRANULES];
            for (from, len, to) in runs {
                let len = len.min(GRANULES - from);
                bits.set(from, len, to);
                model[from..from + len].fill(to);
            }
            let longest = model.split(|used| *used).map(<[bool]>::len).max().filter(|len| *len > 0);
            prop_assert_eq!(bits.room(), longest.map(usize::ilog2));
            for at in 0..GRANULES {
                prop_assert_eq!(bits.get(at), model[at]);
                prop_assert_eq!(bits.below(at), model[..at].iter().filter(|used| **used).count());
                prop_assert_eq!(
                    bits.next(at, true), (at..GRANULES).find(|at| model[*at]).unwrap_or(GRANULES)
                );
            }
        }
    }
}
