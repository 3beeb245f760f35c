//! Which versions of an item may come back: none that was overwritten before it was asked for, none
//! that was never written.
//!
//! Writes of one item over several connections may be carried out in any order while they overlap,
//! so any of the overlapping ones may be the last.

/// One item's.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    /// No older one may come back. Relative to `base`, as are the others.
    oldest: u32,
    newest: u32,
    /// Writes on their way, and the first of those that overlap.
    on_the_way: u32,
    first: u32,
}

/// All items'.
#[derive(Debug)]
pub struct Ledger {
    /// What was there before has this version or an older one.
    base: u64,
    /// Items from here on are written for the first time by this load.
    filled: u64,
    items: Vec<Versions>,
}

impl Ledger {
    /// Ledger of `items` items, none of which holds a version above `base`.
    pub fn new(items: u64, base: u64) -> Self {
        Ledger { base, filled: items, items: vec![Versions::default(); items as usize] }
    }

    /// A write of `item` sets out; the result is its version.
    pub fn begin_write(&mut self, item: u64) -> u64 {
        if item >= self.items.len() as u64 {
            self.items.resize(item as usize + 1, Versions::default());
        }
        let versions = &mut self.items[item as usize];
        versions.newest += 1;
        if versions.on_the_way == 0 {
            versions.first = versions.newest;
        }
        versions.on_the_way += 1;
        self.base + u64::from(versions.newest)
    }

    /// A write of `item` was acknowledged, or refused (then the server keeps what it had, or drops
    /// it).
    pub fn end_write(&mut self, item: u64, stored: bool) {
        let versions = &mut self.items[item as usize];
        assert!(versions.on_the_way > 0, "every write begins before it ends");
        versions.on_the_way -= 1;
        if !stored {
            // Whichever of the others was last is not known any more.
            versions.first = versions.oldest;
        }
        if versions.on_the_way == 0 {
            versions.oldest = versions.first;
        }
    }

    /// The oldest version that may answer a read of `item` that sets out now.
    pub fn begin_read(&self, item: u64) -> u64 {
        match self.items[item as usize].oldest {
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
        (oldest..=self.base + u64::from(self.items[item as usize].newest)).contains(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_may_not_come_back() {
        let mut ledger = Ledger::new(1, 100);
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
        let mut ledger = Ledger::new(1, 0);
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
        let mut ledger = Ledger::new(1, 0);
        assert!(!ledger.may_be_missing(0, ledger.begin_read(0)));
        ledger.begin_write(1);
        assert!(ledger.may_be_missing(1, ledger.begin_read(1)));
        ledger.end_write(1, true);
        assert!(!ledger.may_be_missing(1, ledger.begin_read(1)));
    }

    #[test]
    fn a_refused_write_settles_nothing() {
        let mut ledger = Ledger::new(1, 0);
        ledger.begin_write(0);
        ledger.end_write(0, false);
        assert_eq!(ledger.begin_read(0), 0);
    }

    #[test]
    fn of_what_was_there_before_any_version_may_come() {
        let mut ledger = Ledger::new(1, 100);
        assert!(ledger.may_be(0, ledger.begin_read(0), 7) && !ledger.may_be(0, 0, 101));
        ledger.begin_write(0);
        ledger.end_write(0, true);
        assert!(
            !ledger.may_be(0, ledger.begin_read(0), 100)
                && ledger.may_be(0, ledger.begin_read(0), 101)
        );
    }
}
