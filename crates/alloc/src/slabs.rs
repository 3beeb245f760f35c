//! Slabs: runs of pages in the zones of groups, each cut into objects of one class. All that is known of them lies outside their pages.
//!
//! A slab that is empty serves the next class of its kind; what has been empty for a while is given back to the system ([`tidy`]). Which slab
//! an address belongs to tells the *page map*, one word for each page of the zones.

use crate::classes::{CLASSES, Class, KINDS, kind_of, size_of_class, slab_bytes, slab_objects};
use crate::zone::{self, GROUPS_MAX, ZoneId};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use terrace_pager::lock::Lock;
use terrace_pager::sys;

const PAGE: usize = 4096;
/// A zone is extended by this much.
const CHUNK: usize = 512 << 10;
/// The page map becomes accessible in steps of this size: of 32 MiB of a zone.
const MAP_STEP: usize = 64 << 10;
unsafe extern "C" {
    static mut terrace_grouped_start: usize;
    static mut terrace_grouped_len: usize;
}

/// A run of pages cut into objects. Guarded by the lock of its zone. Behind it lies its map: a bit for each object, set while that is free.
struct Slab {
    start: usize,
    /// Neighbours in the list of slabs with free objects.
    next: *mut Slab,
    previous: *mut Slab,
    class: Class,
    /// Objects that are not handed out.
    free: u16,
}

fn map_words(class: Class) -> usize {
    slab_objects(class).div_ceil(64)
}

fn slab_layout(class: Class) -> Layout {
    Layout::from_size_align(size_of::<Slab>() + map_words(class) * size_of::<u64>(), align_of::<Slab>()).expect("a small size")
}

/// The map behind a slab.
///
/// # Safety
/// The slab is alive, its class set, its zone's lock held, and no other reference to the map about.
unsafe fn map_of<'a>(slab: *mut Slab) -> &'a mut [u64] {
    // SAFETY: the caller's promise; it was allocated with room for that many words.
    unsafe { std::slice::from_raw_parts_mut(slab.add(1).cast(), map_words((*slab).class)) }
}

/// The slabs of one class in a zone that have free objects.
#[derive(Clone, Copy)]
struct Bin {
    first: *mut Slab,
    last: *mut Slab,
}

/// What is empty, by its start.
#[derive(Default)]
struct Empty {
    /// Since the last call of [`tidy`], and since the one before: their pages are still there.
    fresh: Vec<usize>,
    stale: Vec<usize>,
    /// Their pages were given back.
    clean: Vec<usize>,
}

impl Empty {
    const fn new() -> Self {
        Empty { fresh: Vec::new(), stale: Vec::new(), clean: Vec::new() }
    }

    fn pop(&mut self) -> Option<usize> {
        self.fresh.pop().or_else(|| self.stale.pop()).or_else(|| self.clean.pop())
    }
}

struct Slabs {
    bins: [Bin; CLASSES],
    empty: [Empty; KINDS],
    /// What was never in a slab, to the end of what the zone handed out.
    top: usize,
    end: usize,
}

// SAFETY: the slabs that its pointers lead to are reached under the zone's lock only.
unsafe impl Send for Slabs {}

static SLABS: [Lock<Slabs>; GROUPS_MAX] = [const {
    Lock::new(Slabs {
        bins: [Bin { first: std::ptr::null_mut(), last: std::ptr::null_mut() }; CLASSES],
        empty: [const { Empty::new() }; KINDS],
        top: 0,
        end: 0,
    })
}; GROUPS_MAX];

/// Where the page map begins, and what of it may be read, in bytes for each zone.
static MAP: AtomicUsize = AtomicUsize::new(0);
static MAP_USABLE: [AtomicUsize; GROUPS_MAX] = [const { AtomicUsize::new(0) }; GROUPS_MAX];
/// Bytes that each zone has handed out.
static ZONE_USED: [AtomicUsize; GROUPS_MAX] = [const { AtomicUsize::new(0) }; GROUPS_MAX];
static START: AtomicUsize = AtomicUsize::new(0);
static ZONE_LEN: AtomicUsize = AtomicUsize::new(0);

/// In a word of the page map, above the slab's address: its class and its zone.
const CLASS_SHIFT: u32 = 48;
const ZONE_SHIFT: u32 = 56;

/// Makes zones 1 to `count`. False if there is no address space for them.
pub fn open(count: usize) -> bool {
    let Some((start, zone_len)) = zone::open_groups(count) else { return false };
    let len = count * zone_len;
    let map_len = len / PAGE * size_of::<u64>();
    let Ok(map) = sys::reserve_without_access(map_len) else { return false };
    START.store(start, Relaxed);
    ZONE_LEN.store(zone_len, Relaxed);
    MAP.store(map, Release);
    // SAFETY: written once, before any pointer into the zones exists; readers compare addresses only.
    unsafe {
        terrace_grouped_start = start;
        terrace_grouped_len = len;
    }
    true
}

/// Memory that the page map takes: a page of it for 2 MiB of a zone. Takes no lock, as the mover asks: a fork that holds the locks waits for it.
pub fn map_bytes() -> u64 {
    ZONE_USED.iter().map(|used| used.load(Relaxed).div_ceil(PAGE / size_of::<u64>() * PAGE) as u64).sum::<u64>() * PAGE as u64
}

/// What the page map says of an address in a zone of groups.
#[derive(Clone, Copy)]
pub struct Place(u64);

impl Place {
    /// The object's class.
    #[inline]
    pub fn class(self) -> Class {
        (self.0 >> CLASS_SHIFT) as Class
    }

    /// The object's zone.
    #[inline]
    pub fn zone(self) -> ZoneId {
        (self.0 >> ZONE_SHIFT) as ZoneId
    }

    fn slab(self) -> *mut Slab {
        (self.0 & ((1 << CLASS_SHIFT) - 1)) as *mut Slab
    }
}

/// The slab in which an address lies; `None` if it was never in one, or that is gone.
///
/// # Safety
/// `address` is in the range of the zones that were opened, and what its zone handed out reaches beyond it.
#[inline]
pub unsafe fn place_of(address: usize) -> Option<Place> {
    // SAFETY: the caller's promise.
    let word = unsafe { &*map_word(address) }.load(Relaxed);
    (word != 0).then_some(Place(word))
}

/// The same for any address of the zones.
pub fn find(address: usize) -> Option<Place> {
    let offset = address.wrapping_sub(START.load(Relaxed));
    let zone_len = ZONE_LEN.load(Relaxed);
    let (zone, within) = (offset.checked_div(zone_len)?, offset % zone_len);
    if within / PAGE * size_of::<u64>() >= MAP_USABLE.get(zone)?.load(Acquire) {
        return None;
    }
    // SAFETY: inside what is accessible of the map.
    unsafe { place_of(address) }
}

#[inline]
fn map_word(address: usize) -> *const AtomicU64 {
    (MAP.load(Relaxed) + (address - START.load(Relaxed)) / PAGE * size_of::<u64>()) as *const AtomicU64
}

/// Takes up to `wanted.len()` free objects; says how many there were. Fewer than one: there is no memory, or no address space left in the zone.
pub fn take(zone: ZoneId, class: Class, wanted: &mut [*mut u8]) -> usize {
    let slabs = &SLABS[zone as usize - 1];
    let mut taken = 0;
    while taken < wanted.len() {
        let mut inside = slabs.lock();
        taken += inside.take(class, &mut wanted[taken..]);
        if taken > 0 {
            // What there is will do: a new slab is for who gets nothing.
            break;
        }
        if !inside.add_slab(zone, class) {
            drop(inside);
            if !extend(zone) {
                break;
            }
        }
    }
    taken
}

/// Puts objects back. What is none is left alone: freed twice, or never handed out.
pub fn put(zone: ZoneId, objects: &[*mut u8]) {
    let mut inside = SLABS[zone as usize - 1].lock();
    for object in objects {
        // SAFETY: only what lies in a slab of this zone gets here.
        match unsafe { place_of(*object as usize) } {
            Some(place) if place.zone() == zone => inside.put(*object as usize, place.slab()),
            _ => debug_assert!(false, "{object:?} is in no slab of zone {zone}"),
        }
    }
}

impl Slabs {
    fn take(&mut self, class: Class, wanted: &mut [*mut u8]) -> usize {
        let size = size_of_class(class);
        let mut taken = 0;
        while taken < wanted.len() {
            let slab = self.bins[class as usize].first;
            if slab.is_null() {
                break;
            }
            // SAFETY: slabs in a list are alive, and the lock is held.
            let (head, map) = unsafe { (&mut *slab, map_of(slab)) };
            for (word, bits) in map.iter_mut().enumerate() {
                while *bits != 0 && taken < wanted.len() {
                    let index = word * 64 + bits.trailing_zeros() as usize;
                    *bits &= *bits - 1;
                    head.free -= 1;
                    wanted[taken] = (head.start + index * size) as *mut u8;
                    taken += 1;
                }
            }
            if head.free == 0 {
                self.unlink(slab);
            }
        }
        taken
    }

    fn put(&mut self, object: usize, slab: *mut Slab) {
        // SAFETY: the page map led here, so the slab is alive; the lock is held.
        let (head, map) = unsafe { (&mut *slab, map_of(slab)) };
        let (class, offset) = (head.class, object - head.start);
        let (index, rest) = (offset / size_of_class(class), offset % size_of_class(class));
        let bit = 1 << (index % 64);
        if rest != 0 || map[index / 64] & bit != 0 {
            debug_assert!(false, "{object:#x} is no object, or free already");
            return;
        }
        map[index / 64] |= bit;
        head.free += 1;
        let free = head.free as usize;
        if free == 1 {
            self.link(slab);
        }
        let bin = &self.bins[class as usize];
        // One that is the only one with room stays: the next objects will want it.
        if free == slab_objects(class) && bin.first != bin.last {
            self.unlink(slab);
            self.remove_slab(slab);
        }
    }

    /// To the end: older ones are to fill up first.
    fn link(&mut self, slab: *mut Slab) {
        // SAFETY: slabs in lists are alive, and the lock is held.
        unsafe {
            let bin = &mut self.bins[(*slab).class as usize];
            (*slab).next = std::ptr::null_mut();
            (*slab).previous = bin.last;
            match bin.last.as_mut() {
                Some(last) => last.next = slab,
                None => bin.first = slab,
            }
            bin.last = slab;
        }
    }

    fn unlink(&mut self, slab: *mut Slab) {
        // SAFETY: as above.
        unsafe {
            let bin = &mut self.bins[(*slab).class as usize];
            let (previous, next) = ((*slab).previous, (*slab).next);
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => bin.first = next,
            }
            match next.as_mut() {
                Some(next) => next.previous = previous,
                None => bin.last = previous,
            }
        }
    }

    /// Cuts an empty run of pages into objects; false if there is none.
    fn add_slab(&mut self, zone: ZoneId, class: Class) -> bool {
        let kind = kind_of(class);
        let bytes = slab_bytes(kind);
        let start = match self.empty[kind].pop() {
            Some(start) => start,
            None if self.end - self.top >= bytes => {
                self.top += bytes;
                self.top - bytes
            }
            None => return false,
        };
        // SAFETY: a layout of more than no bytes.
        let slab = unsafe { std::alloc::alloc(slab_layout(class)) }.cast::<Slab>();
        if slab.is_null() {
            self.empty[kind].fresh.push(start);
            return false;
        }
        let objects = slab_objects(class);
        // SAFETY: fresh and ours, and large enough.
        unsafe {
            slab.write(Slab { start, next: std::ptr::null_mut(), previous: std::ptr::null_mut(), class, free: objects as u16 });
            let map = slab.add(1).cast::<u64>();
            for word in 0..map_words(class) {
                let rest = objects - word * 64;
                map.add(word).write(if rest >= 64 { u64::MAX } else { (1 << rest) - 1 });
            }
        }
        let word = slab as u64 | u64::from(class) << CLASS_SHIFT | u64::from(zone) << ZONE_SHIFT;
        for page in (start..start + bytes).step_by(PAGE) {
            // SAFETY: the zone's pages have their part of the map, see `extend`.
            unsafe { &*map_word(page) }.store(word, Relaxed);
        }
        self.link(slab);
        true
    }

    fn remove_slab(&mut self, slab: *mut Slab) {
        // SAFETY: it is alive, and the lock held.
        let (start, class) = unsafe { ((*slab).start, (*slab).class) };
        let kind = kind_of(class);
        for page in (start..start + slab_bytes(kind)).step_by(PAGE) {
            // SAFETY: as in `add_slab`.
            unsafe { &*map_word(page) }.store(0, Relaxed);
        }
        self.empty[kind].fresh.push(start);
        // SAFETY: allocated with this layout; nothing leads to it any more.
        unsafe { std::alloc::dealloc(slab.cast(), slab_layout(class)) };
    }
}

/// Gets the zone more memory, and its part of the page map. Waits for room if the pager has none, so no lock may be held.
fn extend(zone: ZoneId) -> bool {
    let chunk = zone::extend(zone, CHUNK, PAGE) as usize;
    if chunk == 0 {
        return false;
    }
    let index = zone as usize - 1;
    let (zone_start, zone_len) = (START.load(Relaxed) + index * ZONE_LEN.load(Relaxed), ZONE_LEN.load(Relaxed));
    let mut inside = SLABS[index].lock();
    ZONE_USED[index].fetch_max(chunk + CHUNK - zone_start, Relaxed);
    let wanted =
        ((chunk + CHUNK - zone_start) / PAGE * size_of::<u64>()).next_multiple_of(MAP_STEP).min(zone_len / PAGE * size_of::<u64>());
    let usable = MAP_USABLE[index].load(Relaxed);
    if wanted > usable {
        // SAFETY: this zone's part of our reservation.
        if unsafe { sys::allow_access(map_word(zone_start) as usize + usable, wanted - usable) }.is_err() {
            return false;
        }
        MAP_USABLE[index].store(wanted, Release);
    }
    // Too short a rest, or what another thread got at the same time, is address space and no memory.
    if inside.end != chunk {
        inside.top = chunk;
    }
    inside.end = chunk + CHUNK;
    true
}

/// Gives back to the system what has been empty since the call before the last.
pub fn tidy() {
    for (index, slabs) in SLABS.iter().enumerate().filter(|(index, _)| MAP_USABLE[*index].load(Relaxed) > 0) {
        for kind in 0..KINDS {
            let mut inside = slabs.lock();
            let empty = &mut inside.empty[kind];
            let going = std::mem::take(&mut empty.stale);
            empty.stale = std::mem::take(&mut empty.fresh);
            drop(inside);
            if going.is_empty() {
                continue;
            }
            for start in &going {
                // Nobody else knows of it. Where the kernel refuses, it is no worse than not having tried.
                let _ = zone::discard(*start, slab_bytes(kind));
            }
            SLABS[index].lock().empty[kind].clean.extend(going);
        }
    }
}

/// Takes the locks of all zones for a fork.
pub fn lock_for_fork() {
    for slabs in &SLABS {
        std::mem::forget(slabs.lock());
    }
}

/// Opens them again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    for slabs in &SLABS {
        // SAFETY: the caller's promise.
        drop(unsafe { slabs.held() });
    }
}
