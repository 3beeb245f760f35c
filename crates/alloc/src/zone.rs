//! Zones: large address ranges that hold the objects of one group of calling contexts (Jenga §4:
//! "allocation regions").
//!
//! Zone 0 holds what is not grouped: everything, or what is large. The zones of groups lie side by
//! side, and so do those of placed objects. So an address tells whether it is in one of them. A
//! zone hands out extents front to back and never takes address space back. The allocator that got
//! them keeps what is freed and reuses it. A zone's memory becomes accessible in one growing
//! prefix. That stays one mapping, except where zone 0 skips a mapping of the program's.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use terrace_os as sys;
use terrace_os::REGION;
use terrace_os::space::Span;
use terrace_pager::lock::Lock;
use terrace_pager::ranges::Attributes;
use terrace_pager::{Expectation, Pager, locking};

/// A zone's number.
pub type ZoneId = u32;

/// Maximum number of zones of groups; their numbers begin at 1.
pub const GROUPS_MAX: usize = 255;
/// Zones of placed objects ([`crate::placement`]).
pub const PLACED: [ZoneId; 3] =
    [GROUPS_MAX as ZoneId + 1, GROUPS_MAX as ZoneId + 2, GROUPS_MAX as ZoneId + 3];
/// Expected use of the zones of placed objects, in the order of [`PLACED`].
const EXPECTATIONS: [Option<Expectation>; PLACED.len()] =
    [None, Some(Expectation::Hot), Some(Expectation::Cold)];
const ZONES: usize = 1 + GROUPS_MAX + PLACED.len();
/// Sizes of zone 0's address range, bytes, tried in this order.
const RANGES: [usize; 4] = [4 << 40, 256 << 30, 16 << 30, 1 << 30];
/// Bytes of zone 0 that are reserved from the start: see `terrace_os::space`. The rest is mapped as
/// it is handed out.
const RESERVED: usize = 256 << 20;
/// Sizes of each other zone's address range, bytes, tried in this order; none is reserved. When a
/// zone is full, zone 0 serves what comes then.
const GROUP_RANGES: [usize; 5] = [256 << 30, 64 << 30, 32 << 30, 4 << 30, 256 << 20];
/// Bytes of address space that all zones but zone 0 take together, at most.
const GROUPS_RANGE: usize = 16 << 40;
/// Where the program has mapped something in zone 0's range, it goes on this many bytes further.
const SKIP: usize = 1 << 30;
/// The accessible prefix grows in steps of this size, in zone 0 and in the others.
const STEP: usize = 4 << 20;
const GROUP_STEP: usize = 1 << 20;

/// A zone. Valid when zeroed (and then empty).
pub struct Zone {
    start: AtomicUsize,
    len: AtomicUsize,
    reserved: AtomicUsize,
    used: Lock<Used>,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    accessible: usize,
    /// Whether no address space was to be had.
    refused: bool,
}

static ZONE: [Zone; ZONES] = [const {
    Zone {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        reserved: AtomicUsize::new(0),
        used: Lock::new(Used { bytes: 0, accessible: 0, refused: false }),
    }
}; ZONES];
/// Number of zones of groups. Their locks lie on many pages, which a fork that took them all would
/// copy.
static GROUPS: AtomicUsize = AtomicUsize::new(0);
/// Value of [`GROUPS`] when the fork under way took the locks; zone 0's lock guards it.
static LOCKED: AtomicUsize = AtomicUsize::new(0);
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// The pager, once there is one.
#[inline]
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null or a pager, which lives for ever.
    unsafe { PAGER.load(Acquire).as_ref() }
}

unsafe extern "C" {
    static mut terrace_heap_start: usize;
    static mut terrace_heap_len: usize;
}

/// All zones, with their numbers, except those of groups beyond `groups`.
fn all(groups: usize) -> impl DoubleEndedIterator<Item = (ZoneId, &'static Zone)> {
    ZONE.iter()
        .enumerate()
        .map(|(id, zone)| (id as ZoneId, zone))
        .filter(move |(id, _)| *id <= groups as ZoneId || PLACED.contains(id))
}

/// How a zone's memory is managed: placed objects may have an expected use.
fn attributes(zone: ZoneId) -> Attributes {
    let placed = PLACED.iter().position(|placed| *placed == zone);
    Attributes {
        evictable: true,
        expected: placed.and_then(|number| EXPECTATIONS[number]),
        ..Attributes::default()
    }
}

/// Tells the pager of memory that a zone hands out. Objects placed as cold go to the first tier
/// below DRAM, if that is possible.
fn manage(pager: &Pager, zone: ZoneId, start: usize, len: usize) {
    let attributes = attributes(zone);
    if attributes.expected == Some(Expectation::Cold) {
        pager.begin_far(start, len);
    }
    pager.manage_as(start, len, attributes);
}

/// Puts all zones under the pager's management, with what they already hold.
pub fn attach(pager: &'static Pager) {
    let guards: Vec<_> = all(groups()).map(|(id, zone)| (id, zone, zone.used.lock())).collect();
    for (id, zone, used) in guards.iter().filter(|(_, _, used)| used.bytes > 0) {
        manage(pager, *id, zone.start.load(Relaxed), used.bytes);
    }
    // Under the locks: an extent is managed either here or by the thread that hands it out.
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Release);
}

/// Makes sure that zone 0 has address space. False if there is none, which is reported once.
pub fn open() -> bool {
    let zone = &ZONE[0];
    if zone.len.load(Acquire) > 0 {
        return true;
    }
    let mut used = zone.used.lock();
    if used.refused || zone.len.load(Acquire) > 0 {
        return !used.refused;
    }
    for len in RANGES {
        if let Ok(Span { start, reserved }) = Span::new(len, RESERVED) {
            // Aligned, so that regions and extents of the zone coincide.
            zone.start.store(start.next_multiple_of(REGION), Relaxed);
            zone.reserved
                .store((start + reserved).saturating_sub(start.next_multiple_of(REGION)), Relaxed);
            // SAFETY: written once, before any pointer into the zone exists; readers compare
            // addresses only.
            unsafe {
                terrace_heap_start = start.next_multiple_of(REGION);
                terrace_heap_len = len - REGION;
            }
            zone.len.store(len - REGION, Release);
            return true;
        }
    }
    used.refused = true;
    sys::warn("no address space for a heap zone (ulimit -v): this program's heap stays unmanaged");
    false
}

/// Number of zones of groups.
pub fn groups() -> usize {
    GROUPS.load(Acquire)
}

/// Gives zones 1 to `count` address space side by side, once and for all. Returns where that begins
/// and the length of each; `None` if there is none.
pub fn open_groups(count: usize) -> Option<(usize, usize)> {
    debug_assert!(count <= GROUPS_MAX && groups() == 0, "once");
    let opened = open_side_by_side(&ZONE[1..=count])?;
    GROUPS.store(count, Release);
    Some(opened)
}

/// Gives the zones of placed objects address space side by side. Returns where it begins and the
/// length of each; `None` if there is none.
pub fn open_placed() -> Option<(usize, usize)> {
    open_side_by_side(&ZONE[PLACED[0] as usize..])
}

/// Whether address space is limited (ulimit -v): then it is left to the program.
pub fn is_limited() -> bool {
    sys::limit_of(libc::RLIMIT_AS).is_ok_and(|(soft, _)| soft != libc::RLIM_INFINITY)
}

fn open_side_by_side(zones: &[Zone]) -> Option<(usize, usize)> {
    let span = |len| Some((len, Span::new(len * zones.len() + REGION, 0).ok()?));
    let (len, span) =
        GROUP_RANGES.into_iter().filter(|len| len * zones.len() <= GROUPS_RANGE).find_map(span)?;
    let start = span.start.next_multiple_of(REGION);
    for (index, zone) in zones.iter().enumerate() {
        zone.start.store(start + index * len, Relaxed);
        // All or nothing.
        zone.reserved.store(if span.reserved == 0 { 0 } else { len }, Relaxed);
        zone.len.store(len, Release);
    }
    Some((start, len))
}

/// Hands out zeroed memory; null when the zone is full or the kernel refuses.
pub fn extend(id: ZoneId, size: usize, align: usize) -> *mut u8 {
    let step = if id == 0 { STEP } else { GROUP_STEP };
    let zone = &ZONE[id as usize];
    let base = zone.start.load(Relaxed);
    if let Some(pager) = pager() {
        pager.make_room(size);
    }
    let _signals = sys::SignalsBlocked::new();
    let mut used = zone.used.lock();
    let limit = base + zone.len.load(Relaxed);
    let span = Span { start: base, reserved: zone.reserved.load(Relaxed) };
    let (start, end) = loop {
        let start = (base + used.bytes).next_multiple_of(align);
        let Some(end) = start.checked_add(size).filter(|end| *end <= limit) else {
            return std::ptr::null_mut();
        };
        if end <= base + used.accessible {
            break (start, end);
        }
        let from = base + used.accessible;
        // SAFETY: a part of the zone's range, not opened yet.
        let open = |to: usize| unsafe { span.open(from, to - from) }.map(|()| to);
        // Near a limit, only what is needed.
        match open(end.next_multiple_of(step).min(limit))
            .or_else(|_| open(end.next_multiple_of(sys::PAGE)))
        {
            Ok(to) => {
                used.accessible = to - base;
                break (start, end);
            }
            Err(sys::Errno::EEXIST) if id == 0 => {
                let next = (from - base).next_multiple_of(SKIP) + SKIP;
                (used.bytes, used.accessible) = (next, next);
            }
            Err(_) => return std::ptr::null_mut(),
        }
    };
    let before = base + used.bytes;
    if locking::lock_new_heap(before, end).is_err() {
        return std::ptr::null_mut();
    }
    used.bytes = end - base;
    if let Some(pager) = pager() {
        // With the gap that alignment left: no thread touches it, and the range stays one.
        manage(pager, id, before, end - before);
    }
    start as *mut u8
}

/// Gives up the contents of a range that this zone handed out, which then reads as zeros.
pub(crate) fn discard(start: usize, len: usize) -> Result<(), sys::Errno> {
    // SAFETY: the caller owns the range and gives its contents up.
    let act = |start, len| unsafe { sys::advise(start, len, libc::MADV_DONTNEED) };
    match pager() {
        Some(pager) => pager.discard(start, len, act),
        None => act(start, len),
    }
}

/// Takes the zones' locks for a fork.
pub fn lock_for_fork() {
    std::mem::forget(ZONE[0].used.lock());
    let groups = groups();
    LOCKED.store(groups, Relaxed);
    all(groups).skip(1).for_each(|(_, zone)| std::mem::forget(zone.used.lock()));
}

/// Opens the locks again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // Zone 0's last, as it guards the number.
    for (_, zone) in all(LOCKED.load(Relaxed)).rev() {
        // SAFETY: the caller's promise.
        drop(unsafe { zone.used.held() });
    }
}
