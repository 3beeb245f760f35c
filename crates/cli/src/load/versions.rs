//! Which versions of an item may come back: none that was overwritten before it was asked for, none
//! that was never written.
//!
//! Writes of one item over several connections may be carried out in any order while they overlap.
//! So any of the overlapping ones may be the last.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What is read of an item with each operation, without a lock.
#[derive(Debug, Default)]
struct Versions {
    /// Oldest version that may come back. It is relative to `base`, as are the others.
    oldest: AtomicU32,
    newest: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    /// Writes on their way, and the first of those that overlap.
    on_the_way: u32,
    first: u32,
}

/// Versions of some items in a row. What only writes touch lies apart, so that reads miss the cache
/// less often.
#[derive(Debug)]
struct Part {
    versions: Box<[Versions]>,
    writes: Box<[Mutex<Writes>]>,
}

impl Part {
    fn new(items: u64) -> Part {
        Part {
            versions: (0..items).map(|_| Versions::default()).collect(),
            writes: (0..items).map(|_| Mutex::default()).collect(),
        }
    }
}

/// New items have parts of their own: each is as large as all that precede it.
const PARTS: usize = 32;

/// Versions of all items, for all threads.
#[derive(Debug)]
pub struct Ledger {
    /// Highest version that an item may have from before.
    base: u64,
    /// Items from here on are written for the first time by this load.
    filled: u64,
    first: Part,
    others: [OnceLock<Part>; PARTS],
}

impl Ledger {
    /// Ledger of `items` items, none of which holds a version above `base`.
    pub fn new(items: u64, base: u64) -> Self {
        let others = [const { OnceLock::new() }; PARTS];
        Ledger { base, filled: items, first: Part::new(items), others }
    }

    /// The part of an item, and its place there.
    #[inline]
    fn part(&self, item: u64) -> (&Part, usize) {
        if item < self.filled { (&self.first, item as usize) } else { self.new_part(item) }
    }

    fn new_part(&self, item: u64) -> (&Part, usize) {
        let number = (item / self.filled).ilog2();
        let first = self.filled << number;
        let part = self.others[number as usize].get_or_init(|| Part::new(first));
        (part, (item - first) as usize)
    }

    #[inline]
    fn of(&self, item: u64) -> &Versions {
        let (part, place) = self.part(item);
        &part.versions[place]
    }

    fn writes(&self, item: u64) -> MutexGuard<'_, Writes> {
        let (part, place) = self.part(item);
        part.writes[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write of `item` sets out; the result is its version.
    pub fn begin_write(&self, item: u64) -> u64 {
        let versions = self.of(item);
        let mut writes = self.writes(item);
        let newest = versions.newest.load(Acquire) + 1;
        versions.newest.store(newest, Release);
        if writes.on_the_way == 0 {
            writes.first = newest;
        }
        writes.on_the_way += 1;
        self.base + u64::from(newest)
    }

    /// A write of `item` was acknowledged, or refused (then the server keeps what it had, or drops
    /// it).
    pub fn end_write(&self, item: u64, stored: bool) {
        let versions = self.of(item);
        let mut writes = self.writes(item);
        assert!(writes.on_the_way > 0, "every write begins before it ends");
        writes.on_the_way -= 1;
        if !stored {
            // Whichever of the others was last is not known any more.
            writes.first = versions.oldest.load(Acquire);
        }
        if writes.on_the_way == 0 {
            versions.oldest.store(writes.first, Release);
        }
    }

    /// The oldest version that may answer a read of `item` that sets out now.
    pub fn begin_read(&self, item: u64) -> u64 {
        match self.of(item).oldest.load(Acquire) {
            0 => 0,
            oldest => self.base + u64::from(oldest),
        }
    }

    /// Whether nothing may have come back for `item`, where `oldest` is what [`Ledger::begin_read`]
    /// said: it is a new one, and its write was still on the way.
    pub fn may_be_missing(&self, item: u64, oldest: u64) -> bool {
        item >= self.filled && oldest == 0
    }

    /// Whether `version` may have come back for `item` now, where `oldest` is what
    /// [`Ledger::begin_read`] said.
    pub fn may_be(&self, item: u64, oldest: u64, version: u64) -> bool {
        let newest = self.base + u64::from(self.of(item).newest.load(Acquire));
        (oldest..=newest).contains(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_may_not_come_back() {
        let ledger = Ledger::new(1, 100);
        assert_eq!(ledger.begin_write(0), 101);
        ledger.end_write(0, true);
        let read = ledger.begin_read(0);
        assert_eq!(read, 101);
        assert!(
            !ledger.may_be(0, read, 100)
                && ledger.may_be(0, read, 101)
                && !ledger.may_be(0, read, 102)
        );
        assert_eq!(ledger.begin_write(0), 102);
        assert!(ledger.may_be(0, read, 102), "the read may be later than the write");
        assert_eq!(ledger.begin_read(0), 101, "or earlier");
        ledger.end_write(0, true);
        assert_eq!(ledger.begin_read(0), 102);
        assert!(ledger.may_be(0, read, 101), "it set out before");
    }

    #[test]
    fn of_overlapping_writes_any_may_be_the_last() {
        let ledger = Ledger::new(1, 0);
        assert_eq!((ledger.begin_write(0), ledger.begin_write(0)), (1, 2));
        ledger.end_write(0, true);
        assert_eq!(ledger.begin_write(0), 3);
        ledger.end_write(0, true);
        assert_eq!(ledger.begin_read(0), 0);
        ledger.end_write(0, true);
        assert_eq!(ledger.begin_read(0), 1);
    }

    #[test]
    fn a_new_item_may_be_missing_until_it_was_acknowledged() {
        let ledger = Ledger::new(1, 0);
        assert!(!ledger.may_be_missing(0, ledger.begin_read(0)));
        ledger.begin_write(1);
        assert!(ledger.may_be_missing(1, ledger.begin_read(1)));
        ledger.end_write(1, true);
        assert!(!ledger.may_be_missing(1, ledger.begin_read(1)));
    }

    #[test]
    fn a_refused_write_settles_nothing() {
        let ledger = Ledger::new(1, 0);
        ledger.begin_write(0);
        ledger.end_write(0, false);
        assert_eq!(ledger.begin_read(0), 0);
    }

    #[test]
    fn of_what_was_there_before_any_version_may_come() {
        let ledger = Ledger::new(1, 100);
        assert!(ledger.may_be(0, ledger.begin_read(0), 7) && !ledger.may_be(0, 0, 101));
        ledger.begin_write(0);
        ledger.end_write(0, true);
        assert!(
            !ledger.may_be(0, ledger.begin_read(0), 100)
                && ledger.may_be(0, ledger.begin_read(0), 101)
        );
    }

    #[test]
    fn new_items_have_a_place_each() {
        let ledger = Ledger::new(3, 0);
        for item in 0..1000 {
            assert_eq!((ledger.begin_read(item), ledger.begin_write(item)), (0, 1), "{item}");
        }
        assert!((0..1000).all(|item| ledger.begin_write(item) == 2));
    }

    #[test]
    fn writes_of_several_threads_all_have_versions_of_their_own() {
        let ledger = Ledger::new(2, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let oldest = ledger.begin_read(1);
                        let version = ledger.begin_write(1);
                        assert!(version > oldest && ledger.may_be(1, oldest, version));
                        ledger.end_write(1, true);
                    }
                });
            }
        });
        assert_eq!(ledger.begin_write(1), 4001);
    }
}
