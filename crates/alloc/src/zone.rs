//! Zones: large address ranges that hold the objects of one group of calling contexts (Jenga §4: "allocation regions").
//!
//! This version has one zone; grouping by context comes with more. A zone hands out extents front to back and never takes
//! address space back: jemalloc keeps what is freed and reuses it. Its memory becomes accessible in one growing prefix, which stays
//! one mapping.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use terrace_pager::lock::Lock;
use terrace_pager::{Pager, sys};

/// A zone's number.
pub type ZoneId = u32;

/// Zones in this version.
pub const ZONES: usize = 1;
/// Address space of a zone, tried in this order.
const RESERVES: [usize; 4] = [4 << 40, 256 << 30, 16 << 30, 1 << 30];
/// The accessible prefix grows in steps of this size.
const STEP: usize = 4 << 20;

/// One zone. Valid when zeroed (and then empty).
pub struct Zone {
    start: AtomicUsize,
    len: AtomicUsize,
    used: Lock<Used>,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    accessible: usize,
    /// No address space was to be had.
    refused: bool,
}

static ZONE: [Zone; ZONES] = [const {
    Zone { start: AtomicUsize::new(0), len: AtomicUsize::new(0), used: Lock::new(Used { bytes: 0, accessible: 0, refused: false }) }
}; ZONES];
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// The pager, once there is one.
#[inline]
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null or a pager, which lives for ever.
    unsafe { PAGER.load(Acquire).as_ref() }
}

/// Puts all zones under the pager's management, with what they already hold.
pub fn attach(pager: &'static Pager) {
    let guards: Vec<_> = ZONE.iter().map(|zone| zone.used.lock()).collect();
    for (zone, used) in ZONE.iter().zip(&guards) {
        if used.bytes > 0 {
            pager.manage(zone.start.load(Relaxed), used.bytes, true);
        }
    }
    // Under the locks: an extent is managed either here or by whoever hands it out.
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Release);
}

/// The zone of a pointer; `None` for memory that is not from a zone.
pub fn zone_of(pointer: *const u8) -> Option<ZoneId> {
    let address = pointer as usize;
    ZONE.iter().position(|zone| address.wrapping_sub(zone.start.load(Relaxed)) < zone.len.load(Relaxed)).map(|index| index as ZoneId)
}

/// Makes sure that a zone has address space; false if there is none to be had, which is said once.
pub fn open(zone: ZoneId) -> bool {
    let zone = &ZONE[zone as usize];
    if zone.len.load(Acquire) > 0 {
        return true;
    }
    let mut used = zone.used.lock();
    if used.refused || zone.len.load(Acquire) > 0 {
        return !used.refused;
    }
    for len in RESERVES {
        if let Ok(start) = sys::reserve_without_access(len) {
            // 2 MiB-aligned, so that regions and extents of the zone coincide.
            zone.start.store(start.next_multiple_of(2 << 20), Relaxed);
            zone.len.store(len - (2 << 20), Release);
            return true;
        }
    }
    used.refused = true;
    sys::complain("no address space for a heap zone (ulimit -v): this program's heap stays unmanaged");
    false
}

/// Hands out zeroed memory; null when the zone is full or the kernel refuses.
pub fn extend(zone: ZoneId, size: usize, align: usize) -> *mut u8 {
    let zone = &ZONE[zone as usize];
    let base = zone.start.load(Relaxed);
    if let Some(pager) = pager() {
        pager.make_room(size);
    }
    let _signals = sys::SignalsBlocked::new();
    let mut used = zone.used.lock();
    let start = (base + used.bytes).next_multiple_of(align);
    let Some(end) = start.checked_add(size).filter(|end| *end <= base + zone.len.load(Relaxed)) else {
        return std::ptr::null_mut();
    };
    if end > base + used.accessible {
        let from = base + used.accessible;
        let to = end.next_multiple_of(STEP).min(base + zone.len.load(Relaxed));
        // SAFETY: inside the zone's reservation.
        if unsafe { sys::allow_access(from, to - from) }.is_err() {
            return std::ptr::null_mut();
        }
        used.accessible = to - base;
    }
    let before = base + used.bytes;
    used.bytes = end - base;
    if let Some(pager) = pager() {
        // With the gap that alignment left: nobody touches it, and the range stays one.
        pager.manage(before, end - before, true);
    }
    start as *mut u8
}

/// Takes the zones' locks for a fork.
pub fn lock_for_fork() {
    for zone in &ZONE {
        std::mem::forget(zone.used.lock());
    }
}

/// Opens them again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    for zone in &ZONE {
        // SAFETY: the caller's promise.
        drop(unsafe { zone.used.held() });
    }
}
