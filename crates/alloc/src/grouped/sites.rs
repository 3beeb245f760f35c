//! Allocation sites: which zone each calling context's objects go to, and which frames it has.
//!
//! At first a context's zone follows from its number. Once samples say how hot its objects are, it
//! follows from that: see [`terrace_policy::grouping`] and [`crate::grouped::watch`]. Looking a
//! zone up reads one word of a table that all threads share.

use crate::grouped::slabs;
use crate::zone::ZoneId;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use terrace_context::{Caller, ContextId, DEPTH_MAX, Stack, unwind};
use terrace_pager::lock::Lock;
use terrace_policy::grouping;

/// Places of the table. Contexts beyond half of that keep the zone of their number, and share a
/// site in reports.
const PLACES: usize = 1 << 15;
const SITES_MAX: usize = PLACES / 2;
/// Places looked at for one context.
const PROBES: usize = 16;

/// Number of an allocation site; 0 for those that found no place.
pub type Site = u16;

/// A word of the table: the context's upper 40 bits, its zone in 8, its site in 16. A used word is
/// never 0, as no site in it is.
static TABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
const ZONE_SHIFT: u32 = 16;
const TAG_MASK: u64 = !((1 << 24) - 1);

static ZONES: AtomicU32 = AtomicU32::new(1);

/// A site in the table.
struct Known {
    /// Index of the site's word in the table.
    place: u32,
    /// Where the site's frames begin.
    frames: u32,
}

/// A return address, and the object that it lies in: by number in the list, or none.
#[derive(Clone, Copy)]
struct Frame {
    address: usize,
    object: Option<u16>,
}

/// A loaded file.
struct Object {
    base: usize,
    name: String,
}

/// All sites in the table, by number less one, and their frames one after the other, innermost
/// first. Loaded objects are looked up by the thread that finds a site: its code cannot be unloaded
/// then. The mover must not: the loader's data may lie in managed memory.
struct Sites {
    known: Vec<Known>,
    frames: Vec<Frame>,
    objects: Vec<Object>,
}

static SITES: Lock<Sites> =
    Lock::new(Sites { known: Vec::new(), frames: Vec::new(), objects: Vec::new() });

impl Sites {
    fn object(&mut self, base: usize, name: String) -> Option<u16> {
        let known =
            self.objects.iter().position(|object| object.base == base && object.name == name);
        let index = known.unwrap_or_else(|| {
            self.objects.push(Object { base, name });
            self.objects.len() - 1
        });
        u16::try_from(index).ok()
    }
}

/// Sets how many zones there are.
pub fn set_zones(count: usize) {
    ZONES.store(count as u32, Relaxed);
}

fn zone_by_number(id: ContextId) -> ZoneId {
    1 + (((id & 0xffff_ffff) * u64::from(ZONES.load(Relaxed))) >> 32) as ZoneId
}

#[inline]
fn first_place(id: ContextId) -> usize {
    id as usize % PLACES
}

/// Zone and site of a call.
#[inline]
pub fn of(stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let id = terrace_context::id(stack, caller);
    let word = TABLE[first_place(id)].load(Relaxed);
    if word & TAG_MASK == id & TAG_MASK && word != 0 {
        parts(word)
    } else {
        search(id, stack, caller)
    }
}

#[inline]
fn parts(word: u64) -> (ZoneId, Site) {
    (ZoneId::from((word >> ZONE_SHIFT) as u8), word as Site)
}

#[inline(never)]
fn search(id: ContextId, stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let find = || {
        for offset in 0..PROBES {
            let place = (first_place(id) + offset) % PLACES;
            let word = TABLE[place].load(Acquire);
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
    let len = terrace_context::frames(stack, caller, &mut frames);
    // Where sites are tracked, and before the lock: the loader's memory may be evicted.
    let mut objects: [Option<(usize, String)>; DEPTH_MAX] = Default::default();
    if slabs::are_tagged() {
        objects
            .iter_mut()
            .zip(&frames[..len])
            .for_each(|(object, address)| *object = unwind::object_of(*address));
    }
    let mut sites = SITES.lock();
    // Another thread may have been first.
    match find() {
        Ok(word) => parts(word),
        Err(Some(place)) if sites.known.len() < SITES_MAX => {
            let begin = sites.frames.len() as u32;
            sites.known.push(Known { place: place as u32, frames: begin });
            for (address, object) in frames[..len].iter().zip(objects) {
                let object = object.and_then(|(base, name)| sites.object(base, name));
                sites.frames.push(Frame { address: *address, object });
            }
            let (zone, site) = (zone_by_number(id), sites.known.len() as Site);
            TABLE[place]
                .store(id & TAG_MASK | u64::from(zone) << ZONE_SHIFT | u64::from(site), Release);
            (zone, site)
        }
        Err(_) => (zone_by_number(id), 0),
    }
}

/// Sorts sites into zones, by the bytes of grouped objects that each holds and how hot these are.
/// Does nothing if another thread holds the lock: it may wait for the mover, or for a lock of the
/// mover's.
pub fn regroup(figures: impl Fn(Site) -> (u64, f32)) {
    let Some(sites) = SITES.try_lock() else { return };
    let figures: Vec<grouping::Site> = (1..)
        .zip(&sites.known)
        .map(|(site, known)| {
            let (bytes, samples) = figures(site);
            let (zone, _) = parts(TABLE[known.place as usize].load(Relaxed));
            grouping::Site { bytes, samples, zone: zone - 1 }
        })
        .collect();
    for (known, zone) in sites.known.iter().zip(grouping::zones(&figures, ZONES.load(Relaxed))) {
        let word = &TABLE[known.place as usize];
        let old = word.load(Relaxed);
        word.store(old & !(0xff << ZONE_SHIFT) | u64::from(zone + 1) << ZONE_SHIFT, Relaxed);
    }
}

/// Calls `each` for all sites with number, zone, and a function that appends the frames. For each
/// frame that is a tab, its offset in the file, a tab, and the file. Returns false if another
/// thread holds the lock.
pub fn each(mut each: impl FnMut(Site, ZoneId, &dyn Fn(&mut String))) -> bool {
    let program = std::fs::read_link("/proc/self/exe")
        .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned());
    let Some(sites) = SITES.try_lock() else { return false };
    for (index, known) in sites.known.iter().enumerate() {
        let (zone, _) = parts(TABLE[known.place as usize].load(Relaxed));
        let end =
            sites.known.get(index + 1).map_or(sites.frames.len(), |next| next.frames as usize);
        each(index as Site + 1, zone, &|text| {
            for Frame { address, object } in &sites.frames[known.frames as usize..end] {
                let _ = match object.map(|index| &sites.objects[index as usize]) {
                    Some(Object { base, name }) => {
                        let name = if name.is_empty() { &program } else { name };
                        write!(
                            text,
                            "\t{:x}\t{}",
                            address.wrapping_sub(*base),
                            name.replace(char::is_control, "?")
                        )
                    }
                    None => write!(text, "\t{address:x}\t"),
                };
            }
        });
    }
    true
}

/// Takes the lock of the sites, after that of what is tracked of them. The mover only tries it.
pub fn lock_for_fork() {
    std::mem::forget(SITES.lock());
}

/// Opens the lock again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { SITES.held() });
}
