//! Who allocated what is not grouped because it is too large for it, for reports. Kept only where sites are watched.
//!
//! One lock for all: an allocation of a page and more costs more than waiting for it does.

use crate::sites::Site;
use std::collections::BTreeMap;
use terrace_pager::lock::Lock;

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// Its length.
    pub bytes: usize,
    /// Who allocated it.
    pub site: Site,
}

/// By where they begin.
static LARGE: Lock<BTreeMap<usize, Large>> = Lock::new(BTreeMap::new());
/// So many objects are looked at under the lock at a time.
const TOGETHER: usize = 64;

/// The lock is somebody's.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

/// An object was allocated, or has another length now.
pub fn born(address: usize, large: Large) {
    LARGE.lock().insert(address, large);
}

/// An object is about to be freed: afterwards its place may be another's. Nothing happens if it is not known.
pub fn dies(address: usize) -> Option<Large> {
    LARGE.lock().remove(&address)
}

/// Who allocated what is at an address, if that is known. Waits for no lock: it is the mover's.
pub fn site_at(address: usize) -> Result<Option<Site>, Busy> {
    let large = LARGE.try_lock().ok_or(Busy)?;
    let before = large.range(..=address).next_back();
    Ok(before.filter(|(start, large)| address - *start < large.bytes).map(|(_, large)| large.site))
}

/// Tells of objects from an address on, until `more` says false; then where to go on. Waits for no lock: while it is somebody's, it is as if that had said so.
pub fn walk(mut from: usize, mut each: impl FnMut(usize, Large), mut more: impl FnMut() -> bool) -> Option<usize> {
    loop {
        let Some(large) = LARGE.try_lock() else { return Some(from) };
        let mut seen = 0;
        for (address, large) in large.range(from..).take(TOGETHER) {
            each(*address, *large);
            (seen, from) = (seen + 1, address + 1);
        }
        drop(large);
        if seen < TOGETHER {
            return None;
        }
        if !more() {
            return Some(from);
        }
    }
}

/// Takes the lock for a fork.
pub fn lock_for_fork() {
    std::mem::forget(LARGE.lock());
}

/// Opens it again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { LARGE.held() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_any_address_until_they_die() {
        let at = |n: usize| 0x7000_0000_0000 + n * 0x10000;
        (0..200).for_each(|n| born(at(n), Large { bytes: 5000, site: n as Site + 1 }));
        assert_eq!(site_at(at(7) + 4999), Ok(Some(8)));
        assert_eq!(site_at(at(7) + 5000), Ok(None));
        assert_eq!(site_at(at(0) - 1), Ok(None));
        assert_eq!(dies(at(7)), Some(Large { bytes: 5000, site: 8 }));
        assert_eq!(dies(at(7)), None);
        assert_eq!(site_at(at(7)), Ok(None));
        // In slices, each once.
        let (mut from, mut seen, mut slices) = (0, Vec::new(), 0);
        while let Some(next) = walk(from, |_, large| seen.push(large.site), || false) {
            (from, slices) = (next, slices + 1);
        }
        assert_eq!(seen, (1..=200).filter(|site| *site != 8).collect::<Vec<Site>>());
        assert_eq!(slices, 3);
    }
}
