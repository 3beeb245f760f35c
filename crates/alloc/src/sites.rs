//! Allocation sites: which zone each calling context's objects go to, and which frames it has.
//!
//! At first a context's zone follows from its number. Looking a zone up reads one word of a table that all threads share.

use crate::context::{self, Caller, ContextId, DEPTH_MAX, Stack};
use crate::zone::ZoneId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use terrace_pager::lock::Lock;

/// Places of the table; contexts beyond half of that keep the zone of their number, and are not told apart in reports.
const PLACES: usize = 1 << 15;
const SITES_MAX: usize = PLACES / 2;
/// Places looked at for one context.
const PROBES: usize = 16;

/// Number of an allocation site; 0 for those that found no place.
pub type Site = u16;

/// A word of the table: the context's upper 40 bits, its zone in 8, its site in 16. A used word is never 0, as no site in it is.
static TABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
const ZONE_SHIFT: u32 = 16;
const TAG_MASK: u64 = !((1 << 24) - 1);

static ZONES: AtomicU32 = AtomicU32::new(1);

/// Frames of the sites in the table, by number less one: one after the other, and where each begins.
struct Frames {
    addresses: Vec<usize>,
    starts: Vec<u32>,
}

static FRAMES: Lock<Frames> = Lock::new(Frames { addresses: Vec::new(), starts: Vec::new() });

/// Sets how many zones there are.
pub fn set_zones(count: usize) {
    ZONES.store(count as u32, Relaxed);
}

fn zone_by_number(id: ContextId) -> ZoneId {
    1 + ((id & 0xffff_ffff) * u64::from(ZONES.load(Relaxed)) >> 32) as ZoneId
}

#[inline]
fn first_place(id: ContextId) -> usize {
    id as usize % PLACES
}

/// Zone and site of a call.
#[inline]
pub fn of(stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let id = context::id(stack, caller);
    let word = TABLE[first_place(id)].load(Relaxed);
    if word & TAG_MASK == id & TAG_MASK && word != 0 { parts(word) } else { search(id, stack, caller) }
}

#[inline]
fn parts(word: u64) -> (ZoneId, Site) {
    (ZoneId::from((word >> ZONE_SHIFT) as u8), word as Site)
}

#[inline(never)]
fn search(id: ContextId, stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let find = || {
        for offset in 0..PROBES {
            let place = &TABLE[(first_place(id) + offset) % PLACES];
            let word = place.load(Acquire);
            if word == 0 {
                return Err(Some(place));
            }
            if word & TAG_MASK == id & TAG_MASK {
                return Ok(word);
            }
        }
        Err(None)
    };
    match find() {
        Ok(word) => return parts(word),
        Err(None) => return (zone_by_number(id), 0),
        Err(Some(_)) => {}
    }
    let mut frames = [0; DEPTH_MAX];
    let len = context::frames(stack, caller, &mut frames);
    let mut known = FRAMES.lock();
    // Another thread may have been first.
    match find() {
        Ok(word) => parts(word),
        Err(Some(place)) if known.starts.len() < SITES_MAX => {
            let start = known.addresses.len() as u32;
            known.starts.push(start);
            known.addresses.extend_from_slice(&frames[..len]);
            let (zone, site) = (zone_by_number(id), known.starts.len() as Site);
            place.store(id & TAG_MASK | u64::from(zone) << ZONE_SHIFT | u64::from(site), Release);
            (zone, site)
        }
        Err(_) => (zone_by_number(id), 0),
    }
}

/// The return addresses of a site, innermost first.
pub fn frames(site: Site) -> Vec<usize> {
    let known = FRAMES.lock();
    let Some(index) = usize::from(site).checked_sub(1).filter(|index| *index < known.starts.len()) else { return Vec::new() };
    let end = known.starts.get(index + 1).map_or(known.addresses.len(), |end| *end as usize);
    known.addresses[known.starts[index] as usize..end].to_vec()
}

/// Sites so far.
pub fn count() -> usize {
    FRAMES.lock().starts.len()
}

/// Takes the lock for a fork.
pub fn lock_for_fork() {
    std::mem::forget(FRAMES.lock());
}

/// Opens it again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { FRAMES.held() });
}
