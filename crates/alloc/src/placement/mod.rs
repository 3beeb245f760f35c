//! Objects where the program wants them: `mnalloc(size, placement)` (M2T §III-A).
//!
//! Three zones hold them: for what was said to be hot, cold, or neither. An object takes 16-byte
//! granules of a [`page`] and may lie beside others of any size. So an [`arena`] needs no page of
//! its own: a new one shares a page that has room for it to grow. One that has grown has pages to
//! itself.
//!
//! Each page, with its objects, belongs to one of a few *shards*, and so does each arena. Each
//! shard has a lock. The metadata of a page lies outside of it.

mod arena;
mod page;
mod spans;

use crate::zone;
use arena::Arenas;
use page::{GRANULE, GRANULES, Kind, Owner, PRIVATE, Page};
use spans::Spans;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};
use terrace_os as sys;
use terrace_os::PAGE;
use terrace_os::space::Span;
use terrace_pager::lock::{Lock, LockGuard};

const SHARDS: usize = 16;
/// Zones of placed objects.
pub(crate) const PLACEMENT_CLASSES: usize = zone::PLACED.len();
/// Names of the zones in reports.
pub(crate) const NAMES: [&str; PLACEMENT_CLASSES] =
    ["(placed by mnalloc, or in arenas)", "(placed hot by mnalloc)", "(placed cold by mnalloc)"];
/// Bytes by which a zone is extended, as much as slabs take: see [`zone::extend`].
const CHUNK: usize = 1 << 20;
/// Records of pages become accessible in steps of this size, bytes: of 2.7 MiB of a zone.
const RECORDS_STEP: usize = 64 << 10;
/// Lists of pages with room: by the exponent of the greatest power of two of free granules in a
/// row.
const LISTS: usize = GRANULES.ilog2() as usize + 1;
/// Maximum number of an arena's pages that are tried before it gets another, and of pages that may
/// be too full. Each may be a cache miss or two.
const TRIES: usize = 4;
/// An arena that may grow begins on a page with this many granules (a quarter) free in one piece.
const ROOM_TO_GROW: usize = GRANULES / 4;
/// When a page of an arena of many pages falls to this many used granules, the arena uses it again.
const REFILLED: usize = GRANULES * 3 / 4;
/// Size, bytes, from which on an arena gets pages of its own.
const PRIVATE_FROM: u64 = 8 << 10;
/// Number of arenas made in one shard, before the next shard is used.
const ARENAS_TOGETHER: usize = 64;
/// Largest placed object, bytes. The records of its pages take 24 MiB, whether they are touched or
/// not, and memory of one shard goes to no other.
const OBJECT_MAX: usize = 1 << 30;
/// Maximum number of attempts to extend a zone for one object.
const EXTENDED_MAX: usize = 8;
/// Maximum number of misuses that are reported.
const TOLD_MAX: u32 = 20;

/// What `terrace.h` calls an arena: number, shard and generation; 0 is none.
pub type ArenaId = u64;
const SHARD_SHIFT: u32 = 28;
const GENERATION_SHIFT: u32 = 36;
const OWNER_MASK: u64 = (1 << SHARD_SHIFT) - 1;

unsafe extern "C" {
    static mut terrace_placed_start: usize;
    static mut terrace_placed_len: usize;
    fn terrace_brings_malloc() -> i32;
}

/// Where an object is to lie, as `terrace.h` numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The object lies wherever `malloc` puts it.
    Default,
    /// The new object lies on the page of this one, or else on another of the same arena. If this
    /// is null, it lies wherever a new arena would begin.
    NextTo(usize),
    /// The object lies with objects that are often used.
    Hot,
    /// The object lies with objects that are seldom used.
    Cold,
    /// The object lies in this arena.
    Arena(ArenaId),
}

impl Placement {
    fn of(kind: usize, what: usize) -> Option<Placement> {
        Some(match kind {
            0 => Placement::Default,
            1 => Placement::NextTo(what),
            2 => Placement::Hot,
            3 => Placement::Cold,
            4 => Placement::Arena(what as ArenaId),
            _ => return None,
        })
    }
}

/// Indices of the zones, in their order.
const NEUTRAL: usize = 0;
const HOT: usize = 1;
const COLD: usize = 2;

struct Shard {
    spans: [Spans; PLACEMENT_CLASSES],
    /// Pages that have room: number plus one of the first of each list.
    lists: [[u32; LISTS]; PLACEMENT_CLASSES],
    arenas: Arenas,
    /// Bytes of objects, and of the pages that they lie on.
    bytes: usize,
    page_bytes: usize,
}

static SHARD: [Lock<Shard>; SHARDS] = [const {
    Lock::new(Shard {
        spans: [const { Spans::new() }; PLACEMENT_CLASSES],
        lists: [[0; LISTS]; PLACEMENT_CLASSES],
        arenas: Arenas::new(),
        bytes: 0,
        page_bytes: 0,
    })
}; SHARDS];

/// Where the zones begin; and (next) pages of each, 0 if not open.
static START: AtomicUsize = AtomicUsize::new(0);
static ZONE_PAGES: AtomicUsize = AtomicUsize::new(0);
/// Where the records of pages begin; and (next) of how many pages of each zone they are accessible.
static RECORDS: AtomicUsize = AtomicUsize::new(0);
static RECORDS_RESERVED: AtomicUsize = AtomicUsize::new(0);
static KNOWN: [AtomicUsize; PLACEMENT_CLASSES] = [const { AtomicUsize::new(0) }; PLACEMENT_CLASSES];
/// Held while the zones are being opened or [`KNOWN`] changes. True if there is no address space.
static OPENING: Lock<bool> = Lock::new(false);
/// Arenas made so far.
static MADE: AtomicUsize = AtomicUsize::new(0);
/// Whether misuse is reported; and (next) how often it was.
static CHECKS: AtomicBool = AtomicBool::new(cfg!(debug_assertions));
static TOLD: AtomicU32 = AtomicU32::new(0);

fn misuse(what: impl FnOnce() -> String) {
    if CHECKS.load(Relaxed) && TOLD.fetch_add(1, Relaxed) < TOLD_MAX {
        sys::warn(&format!("misuse: {}", what()));
    }
}

/// Switches the reports of misuse on or off.
pub fn check(on: bool) {
    CHECKS.store(on, Relaxed);
}

/// Opens the zones if need be; returns whether there are any.
fn open() -> bool {
    if ZONE_PAGES.load(Acquire) > 0 {
        return true;
    }
    // Nothing here is exported from a unit test. SAFETY: asks the loader; no lock is held.
    let is_theirs = !cfg!(test) && unsafe { terrace_brings_malloc() } != 0;
    let mut refused = OPENING.lock();
    if *refused || ZONE_PAGES.load(Acquire) > 0 {
        return !*refused;
    }
    let opened = || {
        let (start, len) = (!is_theirs && !zone::is_limited()).then(zone::open_placed)??;
        let known = Span::new(PLACEMENT_CLASSES * (len / PAGE) * size_of::<Record>(), 0).ok()?;
        Some((start, len, known))
    };
    let Some((start, len, known)) = opened() else {
        *refused = true;
        drop(refused);
        sys::warn(match is_theirs {
            true => "the program brings a malloc of its own: placements mean nothing",
            false => "no address space for zones (ulimit -v): placements mean nothing",
        });
        return false;
    };
    START.store(start, Relaxed);
    RECORDS.store(known.start, Relaxed);
    RECORDS_RESERVED.store(known.reserved, Relaxed);
    // SAFETY: written once, before any pointer into the zones exists; readers compare addresses
    // only.
    unsafe {
        terrace_placed_start = start;
        terrace_placed_len = PLACEMENT_CLASSES * len;
    }
    ZONE_PAGES.store(len / PAGE, Release);
    true
}

/// Memory used for the records of pages, bytes. Takes no lock.
pub fn map_bytes() -> u64 {
    KNOWN
        .iter()
        .map(|known| (known.load(Relaxed) * size_of::<Record>()).next_multiple_of(PAGE) as u64)
        .sum()
}

/// The page in which an address lies, by number.
fn number_of(address: usize) -> u32 {
    ((address - START.load(Relaxed)) / PAGE) as u32
}

fn address_of(number: u32) -> usize {
    START.load(Relaxed) + number as usize * PAGE
}

fn class_of_page(number: u32) -> usize {
    number as usize / ZONE_PAGES.load(Relaxed)
}

/// The record of a page. It may be read if it is among the number in [`KNOWN`].
fn record(number: u32) -> *const Record {
    (RECORDS.load(Relaxed) as *const Record).wrapping_add(number as usize)
}

/// A page's record. All zeros at first.
struct Record {
    page: UnsafeCell<Page>,
    /// The shard that the page belongs to, by number plus one; 0: none yet. Set once.
    shard: AtomicU8,
}

const _: () = assert!(size_of::<Record>() == 96);

/// The metadata of a page of a shard.
///
/// # Safety
/// The lock of the page's shard is held, and no other reference to the metadata exists.
unsafe fn page<'a>(number: u32) -> &'a mut Page {
    // SAFETY: the caller's promise; what belongs to a shard has a record.
    unsafe { &mut *(*record(number)).page.get() }
}

/// The shard of the page in which an address lies, locked; with its number, and the page's.
fn shard_of(address: usize) -> Option<(LockGuard<'static, Shard>, usize, u32)> {
    let zone_pages = ZONE_PAGES.load(Acquire);
    let offset = address.wrapping_sub(START.load(Relaxed));
    if offset >= PLACEMENT_CLASSES * zone_pages * PAGE {
        return None;
    }
    let number = number_of(address);
    if number as usize % zone_pages >= KNOWN[class_of_page(number)].load(Acquire) {
        return None;
    }
    // SAFETY: it has a record, which is accessible.
    let shard = unsafe { &(*record(number)).shard }.load(Acquire).checked_sub(1)?;
    Some((SHARD.get(usize::from(shard))?.lock(), usize::from(shard), number))
}

/// The zone of placed objects in which an address lies, if in any.
pub(crate) fn class_at(address: usize) -> Option<usize> {
    let pages = PLACEMENT_CLASSES * ZONE_PAGES.load(Acquire);
    let offset = address.wrapping_sub(START.load(Relaxed));
    (offset < pages * PAGE).then(|| class_of_page(number_of(address)))
}

/// What a walk reports of a page.
pub(crate) struct Seen {
    pub class: usize,
    pub address: usize,
    /// How many objects are on the page. A large object counts once, on its first page, but its
    /// bytes count on each of its pages.
    pub objects: usize,
    pub bytes: usize,
}

/// Calls a function for all pages with objects, by number, from one on, until `more` returns false.
/// Returns where to go on. Pages of shards whose lock is taken are skipped: it waits for no lock.
pub(crate) fn walk(
    from: u32,
    mut each: impl FnMut(Seen),
    mut more: impl FnMut() -> bool,
) -> Option<u32> {
    let zone_pages = ZONE_PAGES.load(Acquire) as u32;
    for (class, known) in (0..).zip(&KNOWN) {
        let begin = class as u32 * zone_pages;
        for number in begin.max(from)..begin + (known.load(Acquire) as u32).min(zone_pages) {
            if !more() {
                return Some(number);
            }
            // SAFETY: it has a record, which is accessible.
            let shard = unsafe { &(*record(number)).shard }.load(Acquire).checked_sub(1);
            let Some(_shard) = shard.and_then(|shard| SHARD.get(usize::from(shard))?.try_lock())
            else {
                continue;
            };
            // SAFETY: its shard is locked.
            let (objects, bytes) = unsafe { page(number) }.holds();
            if bytes > 0 {
                each(Seen { class, address: address_of(number), objects, bytes });
            }
        }
    }
    None
}

/// Kind and owner of the object in which an address lies; `None` if there is none.
///
/// # Safety
/// The lock of the shard of the address's page, by number, is held.
unsafe fn object_at(address: usize, number: u32) -> Option<(Kind, Owner)> {
    // SAFETY: the caller's promise; all pages of an object are one shard's.
    let found = unsafe {
        if page(number).kind == Kind::LargeTail { page(page(number).first()) } else { page(number) }
    };
    let owner = match found.kind {
        Kind::Objects => found.owner_at(address % PAGE / GRANULE)?,
        Kind::Large => found.large().1,
        Kind::LargeTail | Kind::Free => return None,
    };
    Some((found.kind, owner))
}

/// What an allocation asks for.
#[derive(Clone, Copy)]
struct Request {
    bytes: usize,
    align: usize,
    class: usize,
    owner: Owner,
    /// The generation of the owner's arena, as in `Arena::generation`.
    generation: u32,
    /// Address of a neighbour, in the same shard, beside which the object is to lie.
    near: Option<usize>,
}

impl Request {
    fn granules(&self) -> usize {
        self.bytes.div_ceil(GRANULE).max(1)
    }
}

impl Shard {
    /// Allocates an object; `None` if there is no page for it.
    fn allocate(&mut self, request: Request) -> Option<usize> {
        if request.bytes > PAGE || request.align > PAGE {
            return self.allocate_large(request);
        }
        if let Some(address) = request.near
            && let Some(object) =
                self.place(number_of(address), request, Some(address % PAGE / GRANULE))
        {
            return Some(object);
        }
        if request.owner > 0 {
            let (pages, private, is_big) = {
                let arena = self.arenas.at(request.owner)?;
                let mut pages = [None; TRIES];
                pages.iter_mut().zip(arena.pages()).for_each(|(to, page)| *to = Some(page));
                (pages, arena.private, arena.bytes >= PRIVATE_FROM)
            };
            // Pages that the arena has left are as good, unless they are private to another arena.
            let is_good = |number: &u32| {
                // SAFETY: its pages are in this shard.
                unsafe { page(*number) }.list != PRIVATE || private == number + 1
            };
            for number in pages.into_iter().flatten().filter(is_good) {
                if let Some(object) = self.place(number, request, None) {
                    return Some(object);
                }
            }
            if is_big {
                return self.begin_private(request);
            }
        }
        // An object that is only hot gets no neighbours that belong beside it.
        let grows = request.owner > 0 || request.near.is_some() || request.class == NEUTRAL;
        self.move_in(request, if grows { ROOM_TO_GROW } else { 1 }).or_else(|| {
            let number = self.begin(request.class)?;
            self.place(number, request, None)
        })
    }

    /// Places an object on this page of the shard, if there is room.
    fn place(&mut self, number: u32, request: Request, near: Option<usize>) -> Option<usize> {
        // SAFETY: the shard is locked, as its reference is exclusive.
        let found = unsafe { page(number) };
        if found.kind != Kind::Objects || class_of_page(number) != request.class {
            return None;
        }
        let granules = request.granules();
        let (at, is_new) =
            found.place(granules, (request.align / GRANULE).max(1), near, request.owner)?;
        self.relist(number);
        self.bytes += granules * GRANULE;
        self.count(request.owner, 1, (granules * GRANULE) as i64);
        if is_new && request.owner > 0 {
            self.arenas.at(request.owner)?.came(number);
        }
        Some(address_of(number) + at * GRANULE)
    }

    fn count(&mut self, owner: Owner, objects: i32, bytes: i64) {
        if let Some(arena) = self.arenas.at(owner) {
            arena.objects = arena.objects.wrapping_add_signed(objects);
            arena.bytes = arena.bytes.wrapping_add_signed(bytes);
        }
    }

    /// Places an object on one of the fullest pages that have `room` granules free in a row, and
    /// space for it.
    fn move_in(&mut self, request: Request, room: usize) -> Option<usize> {
        let needed = request.granules().max(room);
        // Pages of the first list may have too little.
        for list in needed.ilog2() as usize..LISTS {
            let mut next = self.lists[request.class][list];
            for _ in 0..TRIES {
                let Some(number) = next.checked_sub(1) else { break };
                if let Some(object) = self.place(number, request, None) {
                    return Some(object);
                }
                // SAFETY: what is in the lists is the shard's.
                next = unsafe { page(number) }.next;
            }
        }
        None
    }

    /// Begins a page.
    fn begin(&mut self, class: usize) -> Option<u32> {
        let number = self.spans[class].take(1, 1)?;
        // SAFETY: a free page of the shard.
        let found = unsafe { page(number) };
        debug_assert_eq!((found.kind, found.filled), (Kind::Free, 0));
        found.clear();
        found.kind = Kind::Objects;
        self.page_bytes += PAGE;
        Some(number)
    }

    /// Begins a page for one arena alone and places the object there. The arena's private page so
    /// far is opened to other arenas.
    fn begin_private(&mut self, request: Request) -> Option<usize> {
        let number = self.begin(request.class)?;
        // SAFETY: the shard's page.
        unsafe { page(number) }.list = PRIVATE;
        let before = std::mem::replace(&mut self.arenas.at(request.owner)?.private, number + 1);
        self.make_public(before);
        self.place(number, request, None)
    }

    /// Opens a page (number plus one, or 0) that was private to one arena to others.
    fn make_public(&mut self, before: u32) {
        let Some(before) = before.checked_sub(1) else { return };
        // SAFETY: the shard's page.
        let found = unsafe { page(before) };
        if found.list == PRIVATE {
            found.list = 0;
            self.relist(before);
        }
    }

    fn allocate_large(&mut self, request: Request) -> Option<usize> {
        let len = request.bytes.div_ceil(PAGE).max(1) as u32;
        let first = self.spans[request.class].take(len, (request.align / PAGE).max(1) as u32)?;
        for number in first..first + len {
            // SAFETY: free pages of the shard.
            let found = unsafe { page(number) };
            if number == first {
                found.make_large(len, request.owner);
            } else {
                found.make_tail(first);
            }
        }
        let bytes = len as usize * PAGE;
        self.bytes += bytes;
        self.page_bytes += bytes;
        self.count(request.owner, 1, bytes as i64);
        if let Some(arena) = self.arenas.at(request.owner) {
            arena.came(first);
        }
        Some(address_of(first))
    }

    /// Frees the object at an address on a page of the shard; false if there is none.
    fn free(&mut self, address: usize, number: u32) -> bool {
        // SAFETY: the shard's page.
        let found = unsafe { page(number) };
        let (owner, bytes, is_last) = match found.kind {
            Kind::Objects if address.is_multiple_of(GRANULE) => {
                let is_private = found.list == PRIVATE;
                let Some(removed) = found.remove(address % PAGE / GRANULE) else { return false };
                let left = usize::from(found.filled);
                self.has_less(number);
                if !is_private && left > 0 && left <= REFILLED && left + removed.granules > REFILLED
                {
                    self.arenas
                        .at(removed.owner)
                        .into_iter()
                        .for_each(|arena| arena.can_return(number));
                }
                (removed.owner, removed.granules * GRANULE, removed.last)
            }
            Kind::Large if address.is_multiple_of(PAGE) => {
                let (len, owner) = found.large();
                self.end_large(number, len);
                (owner, len as usize * PAGE, true)
            }
            _ => return false,
        };
        self.bytes -= bytes;
        self.count(owner, -1, -(bytes as i64));
        if is_last && let Some(arena) = self.arenas.at(owner) {
            if arena.private == number + 1 {
                arena.private = 0;
            }
            // SAFETY: its pages are the shard's.
            arena.left(|number| unsafe { page(number) }.is_tenant(owner));
        }
        true
    }

    /// Updates lists after objects of a page are gone, perhaps all.
    fn has_less(&mut self, number: u32) {
        // SAFETY: the shard's page.
        if unsafe { page(number) }.filled > 0 {
            return self.relist(number);
        }
        self.unlink(number);
        // SAFETY: as above.
        let found = unsafe { page(number) };
        found.clear();
        found.kind = Kind::Free;
        self.page_bytes -= PAGE;
        self.spans[class_of_page(number)].put((number, 1));
    }

    fn end_large(&mut self, first: u32, len: u32) {
        for number in first..first + len {
            // SAFETY: pages of one object are one shard's.
            let found = unsafe { page(number) };
            found.clear();
            found.kind = Kind::Free;
        }
        self.page_bytes -= len as usize * PAGE;
        self.spans[class_of_page(first)].put((first, len));
    }

    /// Frees all objects of an arena.
    fn destroy(&mut self, owner: Owner) {
        let Some(arena) = self.arenas.at(owner) else { return };
        let private = arena.private;
        let of_pages = arena.take_pages();
        for number in of_pages.pages() {
            // SAFETY: the shard's page.
            let found = unsafe { page(number) };
            if !found.is_tenant(owner) {
                continue;
            }
            if found.kind == Kind::Large {
                let (len, _) = found.large();
                self.bytes -= len as usize * PAGE;
                self.end_large(number, len);
                continue;
            }
            self.bytes -= found.remove_all(owner) * GRANULE;
            self.has_less(number);
        }
        self.make_public(private);
        self.arenas.end(owner);
    }

    /// Moves a page that has changed into the list that it belongs into.
    fn relist(&mut self, number: u32) {
        // SAFETY: the shard's page.
        let found = unsafe { page(number) };
        if found.list == PRIVATE {
            return;
        }
        let list = found.room().map_or(0, |room| room as u8 + 1);
        if list == found.list {
            return;
        }
        self.unlink(number);
        let Some(to) = list.checked_sub(1) else { return };
        let first = &mut self.lists[class_of_page(number)][usize::from(to)];
        let next = std::mem::replace(first, number + 1);
        // SAFETY: as above.
        let found = unsafe { page(number) };
        (found.next, found.previous, found.list) = (next, 0, list);
        if let Some(next) = next.checked_sub(1) {
            // SAFETY: the shard's page, and another.
            unsafe { page(next) }.previous = number + 1;
        }
    }

    fn unlink(&mut self, number: u32) {
        // SAFETY: the shard's page; so are its neighbours.
        unsafe {
            let found = page(number);
            let Some(list) = std::mem::replace(&mut found.list, 0)
                .checked_sub(1)
                .filter(|list| *list < LISTS as u8)
            else {
                return;
            };
            let (next, previous) = (found.next, found.previous);
            match previous.checked_sub(1) {
                Some(previous) => page(previous).next = next,
                None => self.lists[class_of_page(number)][usize::from(list)] = next,
            }
            if let Some(next) = next.checked_sub(1) {
                page(next).previous = previous;
            }
        }
    }
}

/// Extends a zone by at least `bytes` bytes at a multiple of `align`, for this shard.
fn extend(class: usize, shard: usize, bytes: usize, align: usize) -> bool {
    let align = align.max(PAGE);
    let Some(size) =
        bytes.checked_add(align - PAGE).and_then(|size| size.checked_next_multiple_of(PAGE))
    else {
        return false;
    };
    let size = size.max(CHUNK);
    let zone_pages = ZONE_PAGES.load(Relaxed);
    // First, as far as can be told: a zone does not take back what it hands out.
    if !know(class, (KNOWN[class].load(Relaxed) + size / PAGE).min(zone_pages)) {
        return false;
    }
    let chunk = zone::extend(zone::PLACED[class], size, PAGE) as usize;
    if chunk == 0 {
        return false;
    }
    let (first, end) = (number_of(chunk), number_of(chunk + size - PAGE) + 1);
    if !know(class, end as usize - class * zone_pages) {
        return false;
    }
    for number in first..end {
        // SAFETY: no other thread uses it yet; zeros are valid.
        unsafe { &(*record(number)).shard }.store(shard as u8 + 1, Release);
    }
    SHARD[shard].lock().spans[class].add((first, end - first));
    true
}

/// Makes the records of the first `pages` pages of a zone accessible.
fn know(class: usize, pages: usize) -> bool {
    let _growing = OPENING.lock();
    let zone_pages = ZONE_PAGES.load(Relaxed);
    let from = record((class * zone_pages) as u32) as usize;
    let known = KNOWN[class].load(Relaxed);
    let accessible = |pages: usize| {
        (pages * size_of::<Record>())
            .next_multiple_of(RECORDS_STEP)
            .min(zone_pages * size_of::<Record>())
    };
    let (is, to) = (accessible(known), accessible(known.max(pages)));
    let span = Span { start: RECORDS.load(Relaxed), reserved: RECORDS_RESERVED.load(Relaxed) };
    // SAFETY: this zone's part of our range; so far it was not opened.
    if to > is && unsafe { span.open(from + is, to - is) }.is_err() {
        return false;
    }
    KNOWN[class].store(known.max(pages), Release);
    true
}

/// The shard for what a thread allocates next to nothing.
fn own_shard() -> usize {
    // An address that each thread has of its own, and which never changes.
    let thread = sys::thread_pointer();
    (thread >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SHARDS.ilog2())
}

fn arena_id(shard: usize, owner: Owner, generation: u32) -> ArenaId {
    u64::from(generation) << GENERATION_SHIFT | (shard as u64) << SHARD_SHIFT | u64::from(owner)
}

/// The shard of an arena, locked, with its number and the arena's. `None` if there is no such
/// arena, or no longer.
fn alive(id: ArenaId) -> Option<(LockGuard<'static, Shard>, usize, Owner)> {
    // Without zones a fork does not take the shards' locks.
    if ZONE_PAGES.load(Acquire) == 0 {
        return None;
    }
    let (shard, owner) = ((id >> SHARD_SHIFT) as usize & 0xff, (id & OWNER_MASK) as Owner);
    let mut inside = SHARD.get(shard)?.lock();
    let arena = inside.arenas.at(owner)?;
    let generation = arena.generation;
    (arena_id(shard, owner, generation) == id && inside.arenas.alive(owner, generation).is_some())
        .then_some((inside, shard, owner))
}

/// Where an object is to go: the shard, and what it asks for there. `None`: where `malloc` puts it.
fn resolve(placement: Placement, bytes: usize, align: usize) -> Option<(usize, Request)> {
    let request =
        |class, (owner, generation), near| Request { bytes, align, class, owner, generation, near };
    match placement {
        Placement::Default => None,
        Placement::Hot => Some((own_shard(), request(HOT, (0, 0), None))),
        Placement::Cold => Some((own_shard(), request(COLD, (0, 0), None))),
        Placement::NextTo(0) => Some((own_shard(), request(NEUTRAL, (0, 0), None))),
        Placement::NextTo(near) => {
            let Some((mut inside, shard, number)) = shard_of(near) else {
                misuse(|| format!("mnalloc next to {near:#x}, which was not placed"));
                return None;
            };
            // SAFETY: the shard is locked.
            let Some((kind, owner)) = (unsafe { object_at(near, number) }) else {
                drop(inside);
                misuse(|| format!("mnalloc next to {near:#x}, where nothing is allocated"));
                return None;
            };
            let generation = inside.arenas.at(owner).map_or(0, |arena| arena.generation);
            // What belongs to a large object comes wherever there is room.
            Some((
                shard,
                request(
                    class_of_page(number),
                    (owner, generation),
                    (kind == Kind::Objects).then_some(near),
                ),
            ))
        }
        Placement::Arena(id) => {
            let Some((mut inside, shard, owner)) = alive(id) else {
                misuse(|| {
                    format!("mnalloc in arena {id:#x}, which was never made or is destroyed")
                });
                return None;
            };
            let arena = inside.arenas.at(owner)?;
            Some((shard, request(usize::from(arena.class), (owner, arena.generation), None)))
        }
    }
}

/// Allocates an object; 0 if there is no memory, or the request is not for a placement.
fn allocate(placement: Placement, bytes: usize, align: usize) -> usize {
    if !align.is_power_of_two()
        || align > terrace_os::REGION
        || bytes > OBJECT_MAX
        || !open()
        || bytes > ZONE_PAGES.load(Relaxed) * PAGE
    {
        return 0;
    }
    let Some((shard, request)) = resolve(placement, bytes, align) else { return 0 };
    // Other threads may take the new memory, so more than one attempt.
    for _ in 0..EXTENDED_MAX {
        let mut inside = SHARD[shard].lock();
        // What it was resolved to may be gone meanwhile. Only misuse does that, but even then
        // nothing may break.
        if request.owner > 0 && inside.arenas.alive(request.owner, request.generation).is_none() {
            return 0;
        }
        if let Some(object) = inside.allocate(request) {
            return object;
        }
        let can_age = inside.spans[request.class].can_age();
        drop(inside);
        if can_age {
            // The free pages may be in pieces that are too short.
            (0..2).for_each(|_| tidy_one(&SHARD[shard], request.class));
        } else if !extend(request.class, shard, bytes, align) {
            return 0;
        }
    }
    0
}

/// `mnalloc`: allocates at least `size` bytes at a multiple of `align`, a power of two. Null where
/// `malloc` is to decide.
#[unsafe(no_mangle)]
extern "C" fn terrace_placed_malloc(
    size: usize,
    align: usize,
    kind: usize,
    what: usize,
) -> *mut u8 {
    let Some(placement) = Placement::of(kind, what) else {
        misuse(|| format!("mnalloc with placement {kind}, which there is not"));
        return std::ptr::null_mut();
    };
    allocate(placement, size, align) as *mut u8
}

/// Reports an alignment that is not a power of two.
#[unsafe(no_mangle)]
extern "C" fn terrace_placed_misaligned(align: usize) {
    misuse(|| format!("mnalloc_aligned with alignment {align}, which is no power of two"));
}

/// Reports a free or resize of an address that was never allocated.
#[unsafe(no_mangle)]
extern "C" fn terrace_not_allocated(object: usize) {
    misuse(|| format!("free or realloc of {object:#x}, which was not allocated"));
}

/// Frees an object of the placed zones.
#[unsafe(no_mangle)]
extern "C" fn terrace_placed_free(object: usize) {
    if !shard_of(object).is_some_and(|(mut inside, _, number)| inside.free(object, number)) {
        misuse(|| {
            format!("free of {object:#x}, where no object begins: freed twice, or with its arena")
        });
    }
}

/// Bytes of the object that begins at an address.
fn bytes_of(object: usize, number: u32) -> Option<usize> {
    // SAFETY: the caller holds the lock of the page's shard.
    let found = unsafe { page(number) };
    match found.kind {
        Kind::Objects if object.is_multiple_of(GRANULE) => {
            found.len_at(object % PAGE / GRANULE).map(|granules| granules * GRANULE)
        }
        Kind::Large if object.is_multiple_of(PAGE) => Some(found.large().0 as usize * PAGE),
        _ => None,
    }
}

/// Bytes that the program may use of an object.
#[unsafe(no_mangle)]
extern "C" fn terrace_placed_usable(object: usize) -> usize {
    shard_of(object).and_then(|(_inside, _, number)| bytes_of(object, number)).unwrap_or(0)
}

/// Resizes an object in place; false if that is impossible.
#[unsafe(no_mangle)]
extern "C" fn terrace_placed_resize(object: usize, size: usize) -> bool {
    let Some((mut inside, _, number)) = shard_of(object) else { return false };
    let Some(old) = bytes_of(object, number) else { return false };
    // SAFETY: the shard is locked.
    let found = unsafe { page(number) };
    if found.kind == Kind::Large {
        return size <= old && size > old / 2;
    }
    if size > PAGE {
        return false;
    }
    let at = object % PAGE / GRANULE;
    let granules = size.div_ceil(GRANULE).max(1);
    let Some(before) = found.resize(at, granules) else { return false };
    let owner = found.owner_at(at).unwrap_or(0);
    inside.relist(number);
    inside.bytes = inside.bytes + granules * GRANULE - before * GRANULE;
    inside.count(owner, 0, (granules as i64 - before as i64) * GRANULE as i64);
    true
}

/// Makes an arena in the zone that a placement, given by its number, means. 0 without memory.
pub fn create(kind: usize, what: usize) -> ArenaId {
    let placement = Placement::of(kind, what);
    let (shard, class) = match placement {
        Some(Placement::Hot) => (None, HOT),
        Some(Placement::Cold) => (None, COLD),
        Some(placement @ (Placement::NextTo(1..) | Placement::Arena(_))) if open() => {
            match resolve(placement, 0, GRANULE) {
                Some((shard, request)) => (Some(shard), request.class),
                None => (None, NEUTRAL),
            }
        }
        _ => (None, NEUTRAL),
    };
    if placement.is_none() {
        misuse(|| format!("an arena with placement {kind}, which there is not"));
    }
    if !open() {
        return 0;
    }
    // Arenas made one after the other lie together; but one thread's arenas must not all be behind
    // one lock.
    let shard = shard.unwrap_or_else(|| MADE.fetch_add(1, Relaxed) / ARENAS_TOGETHER % SHARDS);
    let made = SHARD[shard].lock().arenas.create(class as u8);
    made.map_or(0, |(owner, generation)| arena_id(shard, owner, generation))
}

/// Frees all objects of an arena, and ends it. False if there is no such arena.
pub fn destroy(id: ArenaId) -> bool {
    let Some((mut inside, _, owner)) = alive(id) else {
        misuse(|| {
            format!("destroying arena {id:#x}, which was never made or is destroyed already")
        });
        return false;
    };
    inside.destroy(owner);
    true
}

/// How much an arena holds.
#[repr(C)]
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Objects.
    pub objects: usize,
    /// Bytes of the objects, rounded up to granules.
    pub bytes: usize,
    /// Pages that the objects lie on.
    pub pages: usize,
}

/// What an arena holds; `None` if there is no such arena.
pub fn query(id: ArenaId) -> Option<ArenaFigures> {
    let Some((mut inside, _, owner)) = alive(id) else {
        misuse(|| format!("asking about arena {id:#x}, which was never made or is destroyed"));
        return None;
    };
    let arena = inside.arenas.at(owner)?;
    let mut pages: Vec<u32> = arena.pages().collect();
    pages.sort_unstable();
    pages.dedup();
    // SAFETY: the shard is locked, and the pages are its own.
    let found =
        pages.iter().map(|number| unsafe { page(*number) }).filter(|found| found.is_tenant(owner));
    let pages = found
        .map(|found| if found.kind == Kind::Large { found.large().0 as usize } else { 1 })
        .sum();
    Some(ArenaFigures { objects: arena.objects as usize, bytes: arena.bytes as usize, pages })
}

/// The arena in which an address lies; 0 if it lies in none.
pub fn arena_at(address: usize) -> ArenaId {
    let find = || {
        let (mut inside, shard, number) = shard_of(address)?;
        // SAFETY: the shard is locked.
        let (_, owner) = unsafe { object_at(address, number) }?;
        let generation = inside.arenas.at(owner)?.generation;
        Some(arena_id(shard, owner, generation))
    };
    find().unwrap_or(0)
}

/// Bytes that the zones have handed out, bytes of pages with objects, and bytes of objects.
pub fn usage() -> [usize; 3] {
    let mut sums = [KNOWN.iter().map(|known| known.load(Relaxed) * PAGE).sum(), 0, 0];
    for shard in shards_in_use() {
        let inside = shard.lock();
        sums[1] += inside.page_bytes;
        sums[2] += inside.bytes;
    }
    sums
}

/// Gives back to the system what has been empty since the call before the last.
pub fn tidy() {
    for shard in shards_in_use() {
        (0..PLACEMENT_CLASSES).for_each(|class| tidy_one(shard, class));
    }
}

fn tidy_one(shard: &Lock<Shard>, class: usize) {
    let going = shard.lock().spans[class].age();
    for (first, len) in &going {
        // No other thread knows of it. If the kernel refuses, nothing is lost.
        let _ = zone::discard(address_of(*first), *len as usize * PAGE);
    }
    let mut inside = shard.lock();
    going.into_iter().for_each(|span| inside.spans[class].add(span));
}

/// Takes the locks for a fork: before those of [`crate::zone`].
pub fn lock_for_fork() {
    // No thread waits for it while it holds a shard's lock. Where there are no zones, none are made
    // now.
    std::mem::forget(OPENING.lock());
    shards_in_use().for_each(|shard| std::mem::forget(shard.lock()));
}

/// The shards, if zones are open. Their locks lie on several pages, which a fork that took them
/// would copy.
fn shards_in_use() -> impl Iterator<Item = &'static Lock<Shard>> {
    SHARD.iter().filter(|_| ZONE_PAGES.load(Acquire) > 0)
}

/// Opens the locks again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    unsafe {
        shards_in_use().for_each(|shard| drop(shard.held()));
        drop(OPENING.held());
    }
}

#[cfg(test)]
mod tests;
