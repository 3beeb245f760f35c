//! Where an allocator puts objects. Models of what decides which objects share pages, not of
//! allocators' speed or headers' contents.

use super::consolidation::Consolidated;
use super::events::{Event, MakeSource, ObjectId, Request, for_each};
use crate::machine::PAGE;
use crate::source::SourceError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use terrace_trace::cache::LINE;

/// Gives objects their addresses, from 0 on.
pub trait Layout: Send {
    /// Gives an address to the next object, or to one that has just gone once more with another
    /// size.
    fn allocate(&mut self, object: ObjectId, request: Request) -> u64;
    /// An object goes.
    fn free(&mut self, object: ObjectId, request: Request, address: u64);
    /// An object was touched. True if it is time to move some objects.
    fn touched(&mut self, _object: ObjectId) -> bool {
        false
    }
    /// Clears `moved` and fills it with objects and their new addresses.
    fn relocate(&mut self, _moved: &mut Vec<(ObjectId, u64)>) {}
}

/// The layouts that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Objects lie in the order of time, as with glibc's malloc.
    Time,
    /// Objects lie by size, as with jemalloc.
    Size,
    /// Objects lie by calling context, then by size, as with Jenga (§4).
    Context,
    /// An object lies beside that which the program names, as with M2T.
    Near,
    /// Objects lie by size at first, as with ObjecTier. Later, objects that are touched come
    /// together, and objects that are not.
    Consolidated,
    /// Sorted by how often objects will be touched for their size, which only an oracle knows
    /// (Jenga's Figure 2).
    Oracle,
}

impl Kind {
    /// All layouts.
    pub const ALL: [Kind; 6] =
        [Kind::Time, Kind::Size, Kind::Context, Kind::Near, Kind::Consolidated, Kind::Oracle];

    /// Name of the layout.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Time => "time",
            Kind::Size => "size",
            Kind::Context => "context",
            Kind::Near => "near",
            Kind::Consolidated => "consolidated",
            Kind::Oracle => "oracle",
        }
    }

    /// Line of text about the layout.
    pub fn about(self) -> &'static str {
        match self {
            Kind::Time => "One after the other, as glibc's malloc",
            Kind::Size => "By size, as jemalloc",
            Kind::Context => "By calling context, then by size (Jenga)",
            Kind::Near => "Beside the object that the program names (M2T)",
            Kind::Consolidated => "By size, then hot ones moved together (ObjecTier)",
            Kind::Oracle => "Sorted by how often they will be touched, which nobody knows",
        }
    }
}

/// The layout for a program.
pub fn layout(kind: Kind, make: &MakeSource<'_>) -> Result<Box<dyn Layout>, SourceError> {
    Ok(match kind {
        Kind::Time => Box::new(TimeOrder::default()),
        Kind::Size => Box::new(SizeClasses::default()),
        Kind::Context => Box::new(Contexts::default()),
        Kind::Near => Box::new(Near::default()),
        Kind::Consolidated => Box::new(Consolidated::default()),
        Kind::Oracle => Box::new(Oracle::of(make)?),
    })
}

/// Layout by time: each object behind the last, with a header of 8 bytes, in sizes of 16. What was
/// freed is used again by the next object of its size. Else the smallest free piece that is large
/// enough is cut. Free pieces are not joined, which glibc does for larger ones.
#[derive(Debug, Default)]
pub struct TimeOrder {
    end: u64,
    free: BTreeMap<u64, Vec<u64>>,
}

impl TimeOrder {
    const HEADER: u64 = 8;

    fn chunk(bytes: u64) -> u64 {
        (bytes + Self::HEADER).next_multiple_of(16).max(32)
    }

    fn give(&mut self, size: u64, address: u64) {
        self.free.entry(size).or_default().push(address);
    }
}

impl Layout for TimeOrder {
    fn allocate(&mut self, _object: ObjectId, request: Request) -> u64 {
        let size = Self::chunk(request.bytes);
        let fitting = self
            .free
            .range(size..)
            .find(|(free, _)| **free == size || **free >= size + 32)
            .map(|(free, _)| *free);
        if let Some(free) = fitting {
            let pieces = self.free.get_mut(&free).expect("it was found there");
            let address = pieces.pop().expect("no list is empty");
            if pieces.is_empty() {
                self.free.remove(&free);
            }
            if free > size {
                self.give(free - size, address + size);
            }
            return address;
        }
        self.end += size;
        self.end - size + Self::HEADER
    }

    fn free(&mut self, _object: ObjectId, request: Request, address: u64) {
        self.give(Self::chunk(request.bytes), address);
    }
}

/// jemalloc's classes: multiples of 16 to 128, then four to each doubling.
pub fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(1);
    match bytes {
        ..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2)),
    }
}

/// Larger classes have no slabs (jemalloc's `SC_SMALL_MAXCLASS`).
const SMALL_MOST: u64 = 14 << 10;

/// Objects of one class side by side.
#[derive(Debug)]
struct Slab {
    class: u64,
    free: Vec<u64>,
    left: u32,
}

/// Slabs for classes of sizes: as few pages as hold a whole number of objects. An object comes into
/// the lowest slab of its class that has room.
#[derive(Debug, Default)]
pub struct SizeClasses {
    /// Address at which used memory ends, where these classes have all of it.
    end: u64,
    /// Pages are taken this many bytes at a time; 0: as they are needed.
    chunk: u64,
    /// The end of what was taken last, and what is left of it.
    chunk_end: u64,
    chunk_left: u64,
    slabs: BTreeMap<u64, Slab>,
    /// Slabs with room, by class.
    open: BTreeMap<u64, BTreeSet<u64>>,
}

impl SizeClasses {
    /// Makes classes that take pages `bytes` bytes at a time.
    pub(super) fn in_chunks(bytes: u64) -> SizeClasses {
        SizeClasses { chunk: bytes, ..SizeClasses::default() }
    }

    /// Takes pages at `end`, the end of memory.
    fn take(&mut self, bytes: u64, end: &mut u64) -> u64 {
        if bytes > self.chunk {
            let bytes = bytes.next_multiple_of(self.chunk.max(1));
            *end += bytes;
            return *end - bytes;
        }
        if self.chunk_left < bytes {
            *end += self.chunk;
            (self.chunk_end, self.chunk_left) = (*end, self.chunk);
        }
        self.chunk_left -= bytes;
        self.chunk_end - self.chunk_left - bytes
    }

    /// An object's address, where memory ends at `end`.
    pub(super) fn allocate_from(&mut self, bytes: u64, end: &mut u64) -> u64 {
        let class = class(bytes);
        if class > SMALL_MOST {
            return self.take(class.next_multiple_of(PAGE), end);
        }
        let lowest = self.open.get(&class).and_then(|open| open.first().copied());
        let at = lowest.unwrap_or_else(|| {
            let bytes = (1..)
                .map(|count| count * PAGE)
                .find(|bytes| bytes % class == 0)
                .expect("4096 times a class is one");
            let at = self.take(bytes, end);
            let objects = (bytes / class) as u32;
            let mut free = vec![u64::MAX; objects.div_ceil(64) as usize];
            if !objects.is_multiple_of(64) {
                free[objects as usize / 64] = (1 << (objects % 64)) - 1;
            }
            self.slabs.insert(at, Slab { class, free, left: objects });
            self.open.entry(class).or_default().insert(at);
            at
        });
        let slab = self.slabs.get_mut(&at).expect("open ones are there");
        let (word, bits) = slab
            .free
            .iter_mut()
            .enumerate()
            .find(|(_, bits)| **bits != 0)
            .expect("open ones have room");
        let bit = bits.trailing_zeros();
        *bits &= *bits - 1;
        slab.left -= 1;
        if slab.left == 0 {
            self.open.get_mut(&class).expect("it is there").remove(&at);
        }
        at + (word as u64 * 64 + u64::from(bit)) * class
    }

    /// Gives up a chunk in which nothing is live; false if it is still being filled.
    pub(super) fn release(&mut self, chunk: u64) -> bool {
        if self.chunk_left > 0 && self.chunk_end == chunk + self.chunk {
            return false;
        }
        let slabs: Vec<u64> =
            self.slabs.range(chunk..chunk + self.chunk).map(|(at, _)| *at).collect();
        for at in slabs {
            if let Some(slab) = self.slabs.remove(&at) {
                self.open.entry(slab.class).or_default().remove(&at);
            }
        }
        true
    }

    /// Frees an object of the given size.
    pub(super) fn free_at(&mut self, bytes: u64, address: u64) {
        if class(bytes) > SMALL_MOST {
            // Its pages go back to the system.
            return;
        }
        let (at, slab) = self.slabs.range_mut(..=address).next_back().expect("it came from a slab");
        let number = (address - at) / slab.class;
        slab.free[number as usize / 64] |= 1 << (number % 64);
        slab.left += 1;
        self.open.entry(slab.class).or_default().insert(*at);
    }
}

impl Layout for SizeClasses {
    fn allocate(&mut self, _object: ObjectId, request: Request) -> u64 {
        let mut end = self.end;
        let address = self.allocate_from(request.bytes, &mut end);
        self.end = end;
        address
    }

    fn free(&mut self, _object: ObjectId, request: Request, address: u64) {
        self.free_at(request.bytes, address);
    }
}

/// A zone for each calling context, which takes memory in regions; in it classes of sizes.
#[derive(Debug, Default)]
pub struct Contexts {
    end: u64,
    zones: HashMap<u32, SizeClasses>,
}

impl Layout for Contexts {
    fn allocate(&mut self, _object: ObjectId, request: Request) -> u64 {
        let zone = self
            .zones
            .entry(request.context)
            .or_insert_with(|| SizeClasses::in_chunks(crate::machine::REGION));
        zone.allocate_from(request.bytes, &mut self.end)
    }

    fn free(&mut self, _object: ObjectId, request: Request, address: u64) {
        self.zones
            .get_mut(&request.context)
            .expect("it came from there")
            .free_at(request.bytes, address);
    }
}

/// Layout by what lies beside what. An object comes on the page of the one that it should lie
/// beside, if that has room, else on one that continues it. That page is shared with others. Once
/// all that lies beside one another is more than a page, it gets pages of its own (M2T has an arena
/// for each bucket). Objects that lie beside no other leave on each page the share free that others
/// have needed so far. Freed room is not used again.
#[derive(Debug, Default)]
pub struct Near {
    end: u64,
    addresses: Vec<u64>,
    /// Page where objects go that lie beside no other.
    open: Option<u64>,
    pages: HashMap<u64, Page>,
    /// The group of each object: all objects that lie beside one another.
    group_of: Vec<u32>,
    groups: Vec<Group>,
    /// Bytes of objects that lie beside no other, and of all others.
    alone: u64,
    beside: u64,
}

/// What is used of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    used: u64,
    /// Bytes used by objects that lie beside no other.
    alone: u64,
    /// The page that continues this one.
    next: Option<u64>,
}

/// Objects that lie beside one another.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    bytes: u64,
    /// The last page of the group's own.
    own: Option<u64>,
}

impl Near {
    /// Largest share of a page that is left free.
    const LEFT_MOST: f64 = 0.75;

    fn new_page(&mut self) -> u64 {
        let page = self.end / PAGE;
        self.end += PAGE;
        self.pages.insert(page, Page::default());
        page
    }

    /// The page for an object of this group that lies beside one on this page.
    fn page_beside(&mut self, mut page: u64, bytes: u64, group: u32) -> u64 {
        self.beside += bytes;
        let Group { bytes: together, own } = self.groups[group as usize];
        if together > PAGE && self.pages[&page].used + bytes > PAGE {
            let page = own
                .filter(|page| self.pages[page].used + bytes <= PAGE)
                .unwrap_or_else(|| self.new_page());
            self.groups[group as usize].own = Some(page);
            return page;
        }
        while self.pages[&page].used + bytes > PAGE {
            page = match self.pages[&page].next {
                Some(next) => next,
                None => {
                    let new = self.new_page();
                    self.pages.entry(page).or_default().next = Some(new);
                    new
                }
            };
        }
        page
    }

    fn page_alone(&mut self, bytes: u64) -> u64 {
        self.alone += bytes;
        let left = (self.beside as f64 / (self.beside + self.alone) as f64).min(Self::LEFT_MOST);
        let most = ((1.0 - left) * PAGE as f64) as u64;
        let open = self.open.filter(|page| {
            let Page { used, alone, .. } = self.pages[page];
            used + bytes <= PAGE && alone + bytes <= most.max(bytes)
        });
        let page = open.unwrap_or_else(|| self.new_page());
        self.open = Some(page);
        self.pages.entry(page).or_default().alone += bytes;
        page
    }
}

impl Layout for Near {
    fn allocate(&mut self, object: ObjectId, request: Request) -> u64 {
        let bytes = request.bytes.max(1).next_multiple_of(16);
        let group = match request.near {
            Some(near) => self.group_of[near as usize],
            None => {
                self.groups.push(Group::default());
                self.groups.len() as u32 - 1
            }
        };
        self.groups[group as usize].bytes += bytes;
        let address = if bytes > PAGE {
            self.end += bytes.next_multiple_of(PAGE);
            self.end - bytes.next_multiple_of(PAGE)
        } else {
            let beside = request
                .near
                .map(|near| self.addresses[near as usize] / PAGE)
                .filter(|page| self.pages.contains_key(page));
            let page = match beside {
                Some(page) => self.page_beside(page, bytes, group),
                None => self.page_alone(bytes),
            };
            let used = &mut self.pages.entry(page).or_default().used;
            *used += bytes;
            page * PAGE + *used - bytes
        };
        match self.addresses.get_mut(object as usize) {
            Some(before) => *before = address,
            None => {
                self.addresses.push(address);
                self.group_of.push(group);
            }
        }
        address
    }

    fn free(&mut self, _object: ObjectId, _request: Request, _address: u64) {}
}

/// Layout of objects in the order of touches for each byte, without gaps; as if none was ever
/// freed.
#[derive(Debug)]
pub struct Oracle {
    addresses: Vec<u64>,
}

impl Oracle {
    /// Counts what the program will touch. All touches, not misses of a cache: which those are
    /// depends on where objects lie.
    pub fn of(make: &MakeSource<'_>) -> Result<Oracle, SourceError> {
        // Bytes, and lines that are touched.
        let mut objects: Vec<(u64, u64)> = Vec::new();
        for_each(make().as_mut(), |event| match event {
            Event::Allocated(request) => objects.push((request.bytes, 0)),
            Event::Touched { object, bytes, .. } => {
                objects[object as usize].1 += u64::from(bytes).div_ceil(LINE)
            }
            Event::Resized { object, bytes } => {
                objects[object as usize].0 = bytes.max(objects[object as usize].0)
            }
            Event::Freed(_) => {}
        })?;
        let mut order: Vec<ObjectId> = (0..objects.len() as ObjectId).collect();
        order.sort_by(|a, b| {
            let ((bytes, touches), (other_bytes, others)) =
                (objects[*a as usize], objects[*b as usize]);
            (u128::from(others) * u128::from(bytes))
                .cmp(&(u128::from(touches) * u128::from(other_bytes)))
        });
        let mut addresses = vec![0; objects.len()];
        let mut end = 0;
        for object in order {
            let bytes = objects[object as usize].0.max(1).next_multiple_of(8);
            // One that fits into a page does not lie in two.
            if bytes <= PAGE && end % PAGE + bytes > PAGE {
                end = u64::next_multiple_of(end, PAGE);
            }
            addresses[object as usize] = end;
            end += bytes;
        }
        Ok(Oracle { addresses })
    }
}

impl Layout for Oracle {
    fn allocate(&mut self, object: ObjectId, _request: Request) -> u64 {
        self.addresses[object as usize]
    }

    fn free(&mut self, _object: ObjectId, _request: Request, _address: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::store::{Config, Store};
    use proptest::prelude::*;

    fn request(bytes: u64) -> Request {
        Request { bytes, context: 0, near: None }
    }

    fn addresses(layout: &mut dyn Layout, requests: &[Request]) -> Vec<u64> {
        (0..).zip(requests).map(|(object, request)| layout.allocate(object, *request)).collect()
    }

    #[test]
    fn classes_are_jemallocs() {
        assert_eq!(
            [1, 8, 9, 16, 17, 128, 129, 160, 161, 1024, 1025, 14336].map(class),
            [8, 8, 16, 16, 32, 128, 160, 160, 192, 1024, 1280, 14336]
        );
    }

    #[test]
    fn in_the_order_of_time_with_headers_and_reuse() {
        let mut time = TimeOrder::default();
        // 24 bytes and a header are 32; 25 take 48.
        assert_eq!(addresses(&mut time, &[24, 25, 24, 200].map(request)), [8, 40, 88, 120]);
        time.free(1, request(25), 40);
        time.free(3, request(200), 120);
        // Its own size first, then the large one is cut.
        assert_eq!(addresses(&mut time, &[40, 24, 24].map(request)), [40, 120, 152]);
    }

    #[test]
    fn by_size_in_slabs_and_the_lowest_first() {
        let mut size = SizeClasses::default();
        // A slab of 16 is one page, of 48 three pages.
        assert_eq!(
            addresses(&mut size, &[16, 48, 10, 33, 20_000, 16].map(request)),
            [0, 4096, 16, 4096 + 48, 4 * 4096, 32]
        );
        size.free(2, request(10), 16);
        assert_eq!(addresses(&mut size, &[9, 9].map(request)), [16, 48]);
        // 252 more fill the page; the next one opens a slab.
        let more = addresses(&mut size, &vec![request(16); 253]);
        assert_eq!((more[251], more[252]), (4096 - 16, 4 * 4096 + 20_480));
    }

    #[test]
    fn contexts_have_regions_of_their_own() {
        let mut contexts = Contexts::default();
        let of = |context, bytes| Request { bytes, context, near: None };
        let region = crate::machine::REGION;
        assert_eq!(
            addresses(&mut contexts, &[of(1, 16), of(2, 16), of(1, 16), of(1, 32), of(2, 3 << 20)]),
            [0, region, 16, 4096, 2 * region]
        );
        // Which is rounded to whole regions.
        assert_eq!(contexts.allocate(5, of(3, 16)), 4 * region);
    }

    #[test]
    fn near_ones_share_a_page_while_there_is_room() {
        let mut near = Near::default();
        let of = |bytes, near| Request { bytes, context: 0, near };
        let placed = addresses(
            &mut near,
            &[
                of(1000, None),
                of(1000, Some(0)),
                of(1000, None),
                of(1000, Some(0)),
                of(1000, Some(2)),
                of(1000, Some(0)),
            ],
        );
        let pages: Vec<u64> = placed.iter().map(|address| address / PAGE).collect();
        // The third would leave too little for those that come beside the first; what finds no room
        // goes where the others went that did not.
        assert_eq!(pages, [0, 0, 0, 0, 1, 1]);
    }

    /// Two chains that begin on one page: once they are more than a page, they have pages of their
    /// own.
    #[test]
    fn long_chains_do_not_mix() {
        let mut near = Near::default();
        let of = |near: Option<ObjectId>| Request { bytes: 1000, context: 0, near };
        let placed = addresses(
            &mut near,
            &(0..40).map(|object| of((object as u32).checked_sub(2))).collect::<Vec<_>>(),
        );
        let pages = |chain: usize| {
            placed
                .iter()
                .skip(chain)
                .step_by(2)
                .skip(5)
                .map(|address| address / PAGE)
                .collect::<BTreeSet<_>>()
        };
        assert!(pages(0).is_disjoint(&pages(1)), "{placed:?}");
        // Four on a page.
        assert_eq!((pages(0).len(), pages(1).len()), (4, 4));
    }

    #[test]
    fn the_oracle_has_the_most_touched_first() {
        let make = || -> Box<dyn crate::objects::ObjectSource> {
            Box::new(Store::new(Config { theta: 1.2, seed: 1, ..Config::new(500, 5000) }))
        };
        let mut heap = Heap::new(layout(Kind::Oracle, &make).unwrap());
        let mut pages = vec![0u64; 100];
        for_each(make().as_mut(), |event| {
            heap.follow(event, &mut |address, _| pages[(address / PAGE) as usize] += 1)
        })
        .unwrap();
        pages.truncate(heap.end().div_ceil(PAGE) as usize);
        // But for the table of buckets, of which some are touched more than others.
        assert!(pages.windows(2).all(|pair| pair[0] as f64 >= pair[1] as f64 * 0.85), "{pages:?}");
    }

    use crate::objects::Heap;

    proptest! {
        /// Whatever comes and goes, and is touched: live objects never share a byte.
        #[test]
        fn objects_do_not_overlap(
            steps in prop::collection::vec((1u64..40_000, 0u32..3, 0usize..400, 0u8..5), 1..400),
            which in 0usize..5,
        ) {
            let kind = Kind::ALL[which];
            let nothing = || -> Box<dyn crate::objects::ObjectSource> {unreachable!(
                "the program is not run"
            )};
            let mut heap = Heap::new(layout(kind, &nothing).unwrap());
            let mut live: Vec<u32> = Vec::new();
            let mut made = 0;
            for (bytes, context, which, what) in steps {
                match what {
                    0 if !live.is_empty() => heap.follow(
                        Event::Freed(live.swap_remove(which % live.len())), &mut |_, _| ()
                    ),
                    4 if !live.is_empty() => heap.follow(
                        Event::Resized { object: live[which % live.len()], bytes }, &mut |_, _| ()
                    ),
                    1 if !live.is_empty() => {
                        // Enough for some steps of consolidation.
                        let object = live[which % live.len()];
                        (0..made).for_each(|_| heap.follow(Event::read(object, 1), &mut |_, _| ()));
                    }
                    _ => {
                        let near = live.get(which).copied();
                        let bytes = if what == 2 { bytes } else { bytes % 300 + 1 };
                        let request = Request { bytes, context, near };
                        heap.follow(Event::Allocated(request), &mut |_, _| ());
                        live.push(made);
                        made += 1;
                    }
                }
                let mut ranges: Vec<(u64, u64)> =
                    live.iter().map(|object| heap.range(*object)).collect();
                ranges.sort_unstable();
                prop_assert!(
                    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{kind:?}: {ranges:?}"
                );
                prop_assert!(ranges.last().is_none_or(|last| last.1 <= heap.end()));
            }
        }
    }
}
