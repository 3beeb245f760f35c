//! The allocation sites of objects that are too large to be grouped, for reports. They are kept
//! only where sites are tracked.
//!
//! Objects are in one of a few maps by where they begin. Each map is behind a lock: jemalloc's own
//! caches serve up to 32 KiB without one.

use crate::grouped::sites::Site;
use std::collections::BTreeMap;
use terrace_pager::lock::{Lock, LockGuard};

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Length of the object, bytes.
    pub bytes: usize,
    /// The site that allocated the object.
    pub site: Site,
}

const MAPS: usize = 16;
/// Objects that begin within this many bytes (as an exponent of two) are in the same map.
const TOGETHER_SHIFT: u32 = 16;
/// Maximum number of objects of a map; more are not tracked. One takes some 50 bytes that are never
/// evicted.
const OBJECTS_MAX: usize = 1 << 16;
/// Number of objects that a walk looks at under a lock at a time.
const TOGETHER: usize = 64;

/// The tracked objects, by where they begin.
static LARGE: [Lock<BTreeMap<usize, Large>>; MAPS] = [const { Lock::new(BTreeMap::new()) }; MAPS];

fn map_of(address: usize) -> &'static Lock<BTreeMap<usize, Large>> {
    &LARGE[(address >> TOGETHER_SHIFT) % MAPS]
}

/// The lock, or `None` if it stays taken for longer than a moment. The mover must not wait for a
/// lock that a fork holds.
fn tried(
    map: &'static Lock<BTreeMap<usize, Large>>,
) -> Option<LockGuard<'static, BTreeMap<usize, Large>>> {
    const TRIES: usize = 1000;
    (0..TRIES).find_map(|_| {
        std::hint::spin_loop();
        map.try_lock()
    })
}

/// Another thread holds the lock of a map.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

/// Records that an object was allocated, or has another length now.
pub fn born(address: usize, large: Large) {
    let mut map = map_of(address).lock();
    if map.len() < OBJECTS_MAX {
        map.insert(address, large);
    }
}

/// Forgets an object that is about to be freed: afterwards another one may have its address. Does
/// nothing if the object is not known.
pub fn dies(address: usize) -> Option<Large> {
    map_of(address).lock().remove(&address)
}

/// The site that allocated the large object at an address, if it is known. The mover calls this, so
/// it fails with `Busy` rather than wait for a lock.
pub fn site_at(address: usize) -> Result<Option<Site>, Busy> {
    // It begins in any of the maps.
    let mut last: Option<(usize, Large)> = None;
    for map in &LARGE {
        let map = tried(map).ok_or(Busy)?;
        let before = map.range(..=address).next_back().map(|(start, large)| (*start, *large));
        if last.map(|(start, _)| start) < before.map(|(start, _)| start) {
            last = before;
        }
    }
    Ok(last.filter(|(start, large)| address - start < large.bytes).map(|(_, large)| large.site))
}

/// Where a walk goes on: the map, and the address in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    map: usize,
    address: usize,
}

/// Calls `each` for objects until `more` returns false; returns where to go on. Maps whose lock is
/// taken are skipped. `each` is called without a lock.
pub fn walk(
    from: At,
    mut each: impl FnMut(usize, Large),
    mut more: impl FnMut() -> bool,
) -> Option<At> {
    let At { map: mut number, mut address } = from;
    while let Some(map) = LARGE.get(number) {
        let mut seen = [None; TOGETHER];
        if let Some(map) = tried(map) {
            seen.iter_mut()
                .zip(map.range(address..))
                .for_each(|(to, (address, large))| *to = Some((*address, *large)));
        }
        seen.iter().flatten().for_each(|(address, large)| each(*address, *large));
        match seen[TOGETHER - 1] {
            Some((last, _)) => address = last + 1,
            None => (number, address) = (number + 1, 0),
        }
        if !more() {
            return Some(At { map: number, address });
        }
    }
    None
}

/// Takes the locks for a fork.
pub fn lock_for_fork() {
    LARGE.iter().for_each(|map| std::mem::forget(map.lock()));
}

/// Opens the locks again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    for map in &LARGE {
        // SAFETY: the caller's promise.
        drop(unsafe { map.held() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_any_address_until_they_die() {
        let at = |n: usize| 0x7000_0000_0000 + n * 0x4000;
        (0..2000).for_each(|n| born(at(n), Large { bytes: 5000, site: n as Site + 1 }));
        // One that spans what is in other maps.
        born(at(3000), Large { bytes: 64 << 20, site: 9999 });
        assert_eq!(site_at(at(3000) + (48 << 20)), Ok(Some(9999)));
        assert_eq!(dies(at(3000)), Some(Large { bytes: 64 << 20, site: 9999 }));
        assert_eq!(site_at(at(7) + 4999), Ok(Some(8)));
        assert_eq!(site_at(at(7) + 5000), Ok(None));
        assert_eq!(site_at(at(0) - 1), Ok(None));
        assert_eq!(dies(at(7)), Some(Large { bytes: 5000, site: 8 }));
        assert_eq!(dies(at(7)), None);
        assert_eq!(site_at(at(7)), Ok(None));
        // In slices, each once.
        let (mut from, mut seen) = (At::default(), Vec::new());
        while let Some(next) = walk(from, |_, large| seen.push(large.site), || false) {
            assert_ne!(next, from);
            from = next;
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=2000).filter(|site| *site != 8).collect::<Vec<Site>>());
    }
}
