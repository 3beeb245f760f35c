//! Slabs: runs of pages in the zones of groups, each cut into objects of one class. Their metadata
//! lies outside their pages.
//!
//! Where sites are tracked, each object has a *tag* behind its slab's map: the number of the site
//! that allocated it. Objects below 128 bytes share a tag with their neighbours, that of the last
//! allocated.
//!
//! An empty slab serves the next class of its kind. What has been empty for a while is given back
//! to the system ([`tidy`]). The *page map*, one word for each page of the zones, tells which slab
//! an address belongs to.

use crate::grouped::classes::{
    CLASSES, Class, KINDS, SIZES, kind_of, size_of_class, slab_bytes, slab_objects,
};
use crate::zone::{self, GROUPS_MAX, ZoneId};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::*};
use terrace_os::PAGE;
use terrace_os::space::Span;
use terrace_pager::lock::Lock;

/// A zone is extended by this much: enough for the pager to have the allocating thread wait for
/// room.
const CHUNK: usize = 1 << 20;
/// The page map becomes accessible in steps of this size: of 32 MiB of a zone.
const MAP_STEP: usize = 64 << 10;

unsafe extern "C" {
    static mut terrace_grouped_start: usize;
    static mut terrace_grouped_len: usize;
}

/// A run of pages cut into objects. Its map lies behind it: a bit for each object, set while that
/// is free. The tags follow, if there are any.
struct Slab {
    start: usize,
    class: Class,
    /// Guarded by the lock of its zone, as is the map.
    inside: UnsafeCell<Inside>,
}

struct Inside {
    /// Neighbours in the list of slabs with free objects.
    next: *const Slab,
    previous: *const Slab,
    /// Number of objects that are not handed out.
    free: u16,
}

/// Whether objects have tags, that is, whether sites are tracked: decided before there are any.
static TAGGED: AtomicBool = AtomicBool::new(false);

/// Whether objects have tags, that is, whether sites are tracked.
#[inline]
pub fn are_tagged() -> bool {
    TAGGED.load(Relaxed)
}

/// Objects smaller than this, bytes, share tags: for 16 bytes a tag of 2 would be an eighth more.
const TAG_BYTES: usize = 128;

/// Number of tags of a slab.
fn tags_of(class: Class) -> usize {
    slab_bytes(kind_of(class)) / size_of_class(class).max(TAG_BYTES)
}

fn map_words(class: Class) -> usize {
    slab_objects(class).div_ceil(64)
}

fn slab_layout(class: Class) -> Layout {
    let tags = if are_tagged() { tags_of(class) * size_of::<AtomicU16>() } else { 0 };
    Layout::from_size_align(
        size_of::<Slab>() + map_words(class) * size_of::<u64>() + tags,
        align_of::<Slab>(),
    )
    .expect("a small size")
}

impl Slab {
    /// The map of free objects, a bit each.
    ///
    /// # Safety
    /// The zone's lock is held, and no other reference to the map exists.
    #[allow(clippy::mut_from_ref)] // Reason: the lock that the caller holds makes it exclusive.
    unsafe fn map(&self) -> &mut [u64] {
        // SAFETY: the caller's promise; it was allocated with room for that many words behind it.
        unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::from_ref(self).add(1).cast_mut().cast(),
                map_words(self.class),
            )
        }
    }

    /// The rest of the guarded state.
    ///
    /// # Safety
    /// As for [`Slab::map`].
    #[allow(clippy::mut_from_ref)] // Reason: the lock that the caller holds makes it exclusive.
    unsafe fn inside(&self) -> &mut Inside {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.inside.get() }
    }

    /// The tag of the object in which `address` lies. To be called only where there are tags.
    fn tag(&self, address: usize) -> &AtomicU16 {
        debug_assert!(are_tagged());
        let index = match size_of_class(self.class) {
            ..TAG_BYTES => (address - self.start) / TAG_BYTES,
            _ => index_of(address - self.start, self.class),
        };
        let behind_map = std::ptr::from_ref(self)
            .wrapping_add(1)
            .cast::<u64>()
            .wrapping_add(map_words(self.class));
        // SAFETY: the slab was allocated with room for that many tags there.
        unsafe { &*behind_map.cast::<AtomicU16>().add(index) }
    }
}

/// The number of the object at `offset` bytes from its slab's start.
#[inline]
fn index_of(offset: usize, class: Class) -> usize {
    // 2^32 divided by each size, rounded up: exact for offsets below 2^16.
    static RECIPROCALS: [u32; CLASSES] = {
        let mut table = [0; CLASSES];
        let mut class = 0;
        while class < CLASSES {
            table[class] = (1u64 << 32).div_ceil(SIZES[class] as u64) as u32;
            class += 1;
        }
        table
    };
    ((offset as u64 * u64::from(RECIPROCALS[class as usize])) >> 32) as usize
}

/// The slabs of one class in a zone that have free objects.
#[derive(Clone, Copy)]
struct Bin {
    first: *const Slab,
    last: *const Slab,
}

/// Empty runs of pages of one kind, by their start.
struct Empty {
    /// Runs emptied since the last call of [`tidy`], and since the one before: their pages are
    /// still there.
    fresh: Vec<usize>,
    stale: Vec<usize>,
    /// Runs whose pages were given back.
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
    /// Start of what was never in a slab; it ends where the zone's memory ends.
    top: usize,
    end: usize,
    /// Bytes of objects that are handed out, in magazines included.
    taken: usize,
}

// SAFETY: the slabs that its pointers lead to are reached under the zone's lock only.
unsafe impl Send for Slabs {}

static SLABS: [Lock<Slabs>; GROUPS_MAX] = [const {
    Lock::new(Slabs {
        bins: [Bin { first: std::ptr::null(), last: std::ptr::null() }; CLASSES],
        empty: [const { Empty::new() }; KINDS],
        top: 0,
        end: 0,
        taken: 0,
    })
}; GROUPS_MAX];

/// Where the page map begins.
static MAP: AtomicUsize = AtomicUsize::new(0);
static MAP_RESERVED: AtomicUsize = AtomicUsize::new(0);
/// Bytes of each zone that have their part of the page map: what it has handed out.
static ZONE_USED: [AtomicUsize; GROUPS_MAX] = [const { AtomicUsize::new(0) }; GROUPS_MAX];
static START: AtomicUsize = AtomicUsize::new(0);
static ZONE_LEN: AtomicUsize = AtomicUsize::new(0);

/// Shift of class and zone in a word of the page map, above the slab's address.
const CLASS_SHIFT: u32 = 48;
const ZONE_SHIFT: u32 = 56;

/// Makes zones 1 to `count`, with tagged objects or not. False if there is no address space for
/// them: where that is limited (ulimit -v), it is left to the program.
pub fn open(count: usize, tagged: bool) -> bool {
    if zone::is_limited() {
        return false;
    }
    let Some((start, zone_len)) = zone::open_groups(count) else { return false };
    let len = count * zone_len;
    let map_len = len / PAGE * size_of::<u64>();
    let Ok(map) = Span::new(map_len, 0) else { return false };
    START.store(start, Relaxed);
    ZONE_LEN.store(zone_len, Relaxed);
    MAP_RESERVED.store(map.reserved, Relaxed);
    MAP.store(map.start, Release);
    TAGGED.store(tagged, Relaxed);
    // SAFETY: written once, before any pointer into the zones exists; readers compare addresses
    // only.
    unsafe {
        terrace_grouped_start = start;
        terrace_grouped_len = len;
    }
    true
}

/// Where the zone of this index begins: its number less one.
fn zone_start(index: usize) -> usize {
    START.load(Relaxed) + index * ZONE_LEN.load(Relaxed)
}

/// The zones that hold something: index, bytes and slabs of each.
fn zones_in_use() -> impl Iterator<Item = (usize, usize, &'static Lock<Slabs>)> {
    let used = ZONE_USED[..zone::groups()].iter().map(|used| used.load(Acquire));
    used.zip(&SLABS)
        .enumerate()
        .filter(|(_, (used, _))| *used > 0)
        .map(|(index, (used, slabs))| (index, used, slabs))
}

/// Memory that the page map takes, bytes: a page of it for 2 MiB of a zone. Takes no lock, because
/// the mover calls this: a fork that holds the locks waits for the mover.
pub fn map_bytes() -> u64 {
    zones_in_use()
        .map(|(_, used, _)| used.div_ceil(PAGE / size_of::<u64>() * PAGE) as u64)
        .sum::<u64>()
        * PAGE as u64
}

/// Bytes that the zones have handed out, bytes of that in slabs, and in objects (those in magazines
/// included).
pub fn usage() -> [usize; 3] {
    let mut sums = [0; 3];
    for (index, _, slabs) in zones_in_use() {
        let inside = slabs.lock();
        let empty = |kind: usize| {
            let Empty { fresh, stale, clean } = &inside.empty[kind];
            (fresh.len() + stale.len() + clean.len()) * slab_bytes(kind)
        };
        let used = ZONE_USED[index].load(Relaxed);
        let never = inside.end - inside.top;
        sums[0] += used;
        sums[1] += used - never - (0..KINDS).map(empty).sum::<usize>();
        sums[2] += inside.taken;
    }
    sums
}

/// An entry of the page map, for an address in a zone of groups.
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

    fn slab(self) -> *const Slab {
        (self.0 & ((1 << CLASS_SHIFT) - 1)) as *const Slab
    }
}

/// The slab in which an address lies; `None` if it was never in one, or the slab is gone.
///
/// # Safety
/// `address` lies in the range of the opened zones, below the end of what its zone has handed out.
#[inline]
pub unsafe fn place_of(address: usize) -> Option<Place> {
    // SAFETY: the caller's promise.
    let word = unsafe { &*map_word(address) }.load(Relaxed);
    (word != 0).then_some(Place(word))
}

/// Where an object is, for any address. `None` if the address is not in memory that the zones have
/// handed out.
pub fn find(address: usize) -> Option<Place> {
    let offset = address.wrapping_sub(START.load(Relaxed));
    let zone_len = ZONE_LEN.load(Relaxed);
    let (zone, within) = (offset.checked_div(zone_len)?, offset % zone_len);
    if within >= ZONE_USED.get(zone)?.load(Acquire) {
        return None;
    }
    // SAFETY: inside what is accessible of the map.
    unsafe { place_of(address) }
}

/// The slab in which an address lies.
///
/// # Safety
/// As for [`place_of`]. And the slab cannot go: its zone's lock is held, or the caller owns an
/// object of it.
#[inline]
unsafe fn slab_at<'a>(address: usize) -> Option<&'a Slab> {
    // SAFETY: the caller's promise: what the page map leads to is alive.
    unsafe { place_of(address).and_then(|place| place.slab().as_ref()) }
}

/// Sets the page map's word for a run of pages.
///
/// # Safety
/// As for [`place_of`], for all pages of the run.
unsafe fn set_places(start: usize, bytes: usize, word: u64) {
    for page in (start..start + bytes).step_by(PAGE) {
        // SAFETY: the caller's promise.
        unsafe { &*map_word(page) }.store(word, Relaxed);
    }
}

#[inline]
fn map_word(address: usize) -> *const AtomicU64 {
    (MAP.load(Relaxed) + (address - START.load(Relaxed)) / PAGE * size_of::<u64>())
        as *const AtomicU64
}

/// Takes up to `wanted.len()` free objects; returns how many there were. 0 if there is no memory,
/// or no address space left in the zone.
pub fn take(zone: ZoneId, class: Class, wanted: &mut [*mut u8]) -> usize {
    let slabs = &SLABS[zone as usize - 1];
    let (mut taken, mut extended) = (0, false);
    while taken < wanted.len() {
        let mut inside = slabs.lock();
        taken += inside.take(class, &mut wanted[taken..]);
        if taken > 0 {
            // What there is will do: a new slab is for a caller that gets nothing.
            break;
        }
        if !inside.add_slab(zone, class) {
            drop(inside);
            // Once. After that either memory for a slab's description is missing, or other threads
            // were faster.
            if extended || !extend(zone) {
                break;
            }
            extended = true;
        }
    }
    taken
}

/// Puts objects back. A pointer that is no object is left alone: freed twice, or never handed out.
pub fn put(zone: ZoneId, objects: &[*mut u8]) {
    let mut inside = SLABS[zone as usize - 1].lock();
    for object in objects {
        // SAFETY: only what lies in a slab of this zone gets here.
        match unsafe { place_of(*object as usize) } {
            Some(place) if place.zone() == zone => {
                // SAFETY: what the page map leads to is alive.
                inside.put(*object as usize, unsafe { &*place.slab() })
            }
            _ => debug_assert!(false, "{object:?} is in no slab of zone {zone}"),
        }
    }
}

/// Records the site of an object that was just handed out. To be called only where there are tags.
///
/// # Safety
/// As for [`place_of`]; and the caller owns the object.
#[inline]
pub unsafe fn set_tag(object: *mut u8, site: u16) {
    // SAFETY: the caller's promise: so its slab is alive.
    if let Some(slab) = unsafe { slab_at(object as usize) } {
        slab.tag(object as usize).store(site, Relaxed);
    }
}

/// Another thread holds the lock of a zone.
pub struct Busy;

/// The tag of the object at an address; 0 where there is none. Fails with `Busy` rather than wait
/// for a lock.
pub fn tag_at(address: usize) -> Result<u16, Busy> {
    let Some(place) = find(address) else { return Ok(0) };
    let _inside = SLABS[place.zone() as usize - 1].try_lock().ok_or(Busy)?;
    // Looked up again: under the lock it cannot go. SAFETY: `find` has seen that the page map
    // reaches this far; slabs in it are alive.
    let slab = unsafe { slab_at(address) };
    Ok(slab.filter(|_| are_tagged()).map_or(0, |slab| slab.tag(address).load(Relaxed)))
}

/// What a walk reports of an object, or of the objects that share a tag.
pub struct Seen {
    /// Address of the first byte.
    pub address: usize,
    /// Bytes of live objects; of small ones, the average in their slab.
    pub bytes: f32,
    /// How many live objects there are: of small ones, the average in their slab.
    pub objects: f32,
    /// The tag of the objects: the number of the site that allocated them.
    pub tag: u16,
}

/// Calls a function for all objects that have a tag, zone by zone from an address on, until `more`
/// returns false. Returns where to go on. Slabs of zones whose lock is taken may be missing.
pub fn walk(
    from: usize,
    mut each: impl FnMut(Seen),
    mut more: impl FnMut() -> bool,
) -> Option<usize> {
    for (index, used, slabs) in zones_in_use() {
        let end = zone_start(index) + used;
        let mut address = zone_start(index).max(from);
        while address < end {
            if !more() {
                return Some(address);
            }
            let lock = find(address).and_then(|_| slabs.try_lock());
            // SAFETY: as in `tag_at`.
            let Some(slab) = lock.as_ref().and_then(|_| unsafe { slab_at(address) }) else {
                address += PAGE;
                continue;
            };
            let size = size_of_class(slab.class);
            let shared = size < TAG_BYTES;
            // SAFETY: the lock is held.
            let (inside, map) = unsafe { (slab.inside(), slab.map()) };
            let live = 1.0 - f32::from(inside.free) / slab_objects(slab.class) as f32;
            for index in 0..tags_of(slab.class) {
                let address = slab.start + index * size.max(TAG_BYTES);
                let tag = slab.tag(address).load(Relaxed);
                if tag != 0 && (shared || map[index / 64] & 1 << (index % 64) == 0) {
                    let bytes = if shared { TAG_BYTES as f32 * live } else { size as f32 };
                    each(Seen { address, bytes, objects: bytes / size as f32, tag });
                }
            }
            address = slab.start + slab_bytes(kind_of(slab.class));
        }
    }
    None
}

impl Slabs {
    fn take(&mut self, class: Class, wanted: &mut [*mut u8]) -> usize {
        let size = size_of_class(class);
        let mut taken = 0;
        while taken < wanted.len() {
            // SAFETY: null, or alive: it is in a list.
            let Some(slab) = (unsafe { self.bins[class as usize].first.as_ref() }) else { break };
            // SAFETY: the lock is held.
            let (inside, map) = unsafe { (slab.inside(), slab.map()) };
            for (word, bits) in map.iter_mut().enumerate() {
                while *bits != 0 && taken < wanted.len() {
                    let index = word * 64 + bits.trailing_zeros() as usize;
                    *bits &= *bits - 1;
                    inside.free -= 1;
                    wanted[taken] = (slab.start + index * size) as *mut u8;
                    taken += 1;
                }
            }
            if inside.free == 0 {
                self.unlink(slab);
            }
        }
        self.taken += taken * size;
        taken
    }

    fn put(&mut self, object: usize, slab: &Slab) {
        let class = slab.class;
        let offset = object - slab.start;
        let index = index_of(offset, class);
        // SAFETY: the lock is held.
        let (inside, map) = unsafe { (slab.inside(), slab.map()) };
        let bit = 1 << (index % 64);
        if index * size_of_class(class) != offset || map[index / 64] & bit != 0 {
            debug_assert!(false, "{object:#x} is no object, or free already");
            return;
        }
        map[index / 64] |= bit;
        self.taken -= size_of_class(class);
        inside.free += 1;
        let free = inside.free as usize;
        if free == 1 {
            self.link(slab);
        }
        let bin = &self.bins[class as usize];
        // The only slab with room stays: the next objects will need it.
        if free == slab_objects(class) && bin.first != bin.last {
            self.unlink(slab);
            self.remove_slab(slab);
        }
    }

    /// Appends a slab to its list: older ones are to fill up first.
    fn link(&mut self, slab: &Slab) {
        let bin = &mut self.bins[slab.class as usize];
        // SAFETY: slabs in lists are alive, and the lock is held.
        unsafe {
            let inside = slab.inside();
            (inside.next, inside.previous) = (std::ptr::null(), bin.last);
            match bin.last.as_ref() {
                Some(last) => last.inside().next = slab,
                None => bin.first = slab,
            }
        }
        bin.last = slab;
    }

    fn unlink(&mut self, slab: &Slab) {
        let bin = &mut self.bins[slab.class as usize];
        // SAFETY: as above.
        unsafe {
            let Inside { next, previous, .. } = *slab.inside();
            match previous.as_ref() {
                Some(previous) => previous.inside().next = next,
                None => bin.first = next,
            }
            match next.as_ref() {
                Some(next) => next.inside().previous = previous,
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
        // SAFETY: a layout of more than no bytes. Zeros are tags of free objects.
        let slab = unsafe { std::alloc::alloc_zeroed(slab_layout(class)) }.cast::<Slab>();
        if slab.is_null() {
            self.empty[kind].fresh.push(start);
            return false;
        }
        let objects = slab_objects(class);
        let inside = UnsafeCell::new(Inside {
            next: std::ptr::null(),
            previous: std::ptr::null(),
            free: objects as u16,
        });
        // SAFETY: fresh, ours, and large enough.
        let slab = unsafe {
            slab.write(Slab { start, class, inside });
            &*slab
        };
        // SAFETY: no other thread knows of it.
        for (word, bits) in unsafe { slab.map() }.iter_mut().enumerate() {
            let rest = objects - word * 64;
            *bits = if rest >= 64 { u64::MAX } else { (1 << rest) - 1 };
        }
        let word = std::ptr::from_ref(slab) as u64
            | u64::from(class) << CLASS_SHIFT
            | u64::from(zone) << ZONE_SHIFT;
        // SAFETY: the zone's pages have their part of the map, see `extend`.
        unsafe { set_places(start, bytes, word) };
        self.link(slab);
        true
    }

    fn remove_slab(&mut self, slab: &Slab) {
        let (start, class) = (slab.start, slab.class);
        let kind = kind_of(class);
        // SAFETY: as in `add_slab`.
        unsafe { set_places(start, slab_bytes(kind), 0) };
        self.empty[kind].fresh.push(start);
        // SAFETY: allocated with this layout; nothing leads to it any more.
        unsafe {
            std::alloc::dealloc(std::ptr::from_ref(slab).cast_mut().cast(), slab_layout(class))
        };
    }
}

/// Gets the zone more memory, and its part of the page map. Waits for room if the pager has none,
/// so no lock may be held.
fn extend(zone: ZoneId) -> bool {
    let chunk = zone::extend(zone, CHUNK, PAGE) as usize;
    if chunk == 0 {
        return false;
    }
    let index = zone as usize - 1;
    let first = zone_start(index);
    let mut inside = SLABS[index].lock();
    let used = ZONE_USED[index].load(Relaxed);
    let to = used.max(chunk + CHUNK - first);
    let map_len = |bytes: usize| {
        (bytes / PAGE * size_of::<u64>())
            .next_multiple_of(MAP_STEP)
            .min(ZONE_LEN.load(Relaxed) / PAGE * size_of::<u64>())
    };
    let (usable, wanted) = (map_len(used), map_len(to));
    let span = Span { start: MAP.load(Relaxed), reserved: MAP_RESERVED.load(Relaxed) };
    let opens = || {
        // SAFETY: this zone's part of our range; so far it was not opened.
        unsafe { span.open(map_word(first) as usize + usable, wanted - usable) }.is_ok()
    };
    if wanted > usable && !opens() {
        return false;
    }
    ZONE_USED[index].store(to, Release);
    // A gap that is too short, or what another thread got at the same time, is lost: address space,
    // but no memory.
    if inside.end != chunk {
        inside.top = chunk;
    }
    inside.end = chunk + CHUNK;
    true
}

/// Gives back to the system what has been empty since the call before the last.
pub fn tidy() {
    for (_, _, slabs) in zones_in_use() {
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
                // No other thread knows of it. If the kernel refuses, nothing is lost.
                let _ = zone::discard(*start, slab_bytes(kind));
            }
            slabs.lock().empty[kind].clean.extend(going);
        }
    }
}

/// Number of zones whose locks the fork under way took. The sites' lock guards it: a fork takes
/// that before these, and opens it after them.
static LOCKED: AtomicUsize = AtomicUsize::new(0);

/// Takes the locks of all zones for a fork.
pub fn lock_for_fork() {
    LOCKED.store(zone::groups(), Relaxed);
    SLABS[..LOCKED.load(Relaxed)].iter().for_each(|slabs| std::mem::forget(slabs.lock()));
}

/// Opens the locks again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    for slabs in &SLABS[..LOCKED.load(Relaxed)] {
        // SAFETY: the caller's promise.
        drop(unsafe { slabs.held() });
    }
}
