//! The program's objects: which one lies at an address, which calling context made it, and how
//! often each, and each page, was missed.
//!
//! Addresses lead through two tables to a region (2 MiB), and there to the object at each eight
//! bytes: three loads, for every miss.

use crate::settings::DEPTH_MAX;
use std::collections::HashMap;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
const REGION_SHIFT: u32 = 21;
const REGION: u64 = 1 << REGION_SHIFT;
/// Bytes that belong to at most one object.
const GRANULE: u64 = 8;
const GRANULES: usize = (REGION / GRANULE) as usize;
const PAGES: usize = (REGION / PAGE) as usize;
/// Address bits of user space on AArch64. x86-64 (without five-level tables) has one less.
const ADDRESS_BITS: u32 = 48;
/// Two to the power of this: regions of one table.
const TABLE_BITS: u32 = 13;
const TABLE: usize = 1 << TABLE_BITS;
const TABLES: usize = 1 << (ADDRESS_BITS - REGION_SHIFT - TABLE_BITS);

/// An object's number while it lives; those of the dead are used again. 0: none.
pub type ObjectId = u32;
/// A context's number: its place in [`Heap::contexts`].
pub type ContextId = u32;

/// A live object.
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// Address of the object; 0 where there is none of this number.
    pub address: u64,
    /// Bytes as they were asked for.
    pub bytes: u64,
    /// Bytes that the allocator gave: the program may use all of them.
    pub usable: u64,
    /// The calling context that allocated the object.
    pub context: ContextId,
    /// Number of the object in a trace of objects.
    pub traced: u32,
    /// Misses in the object that counted.
    pub misses: u64,
    /// Misses in each 4 KiB from the beginning of an object that is larger than a page.
    pub parts: Vec<u32>,
}

/// Allocations of the same call stack.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Return addresses, innermost first.
    pub frames: Vec<usize>,
    /// Objects that the context ever made.
    pub made: u64,
    /// Bytes of the context's live objects.
    pub live_bytes: u64,
    /// The most bytes of the context that ever lived.
    pub peak_bytes: u64,
    /// Misses in the context's dead objects.
    pub dead_misses: u64,
    /// Bytes of the largest dead object that was missed.
    pub dead_bytes_max: u64,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// Misses that counted.
    pub misses: u64,
    /// Whether an object ever lay on the page.
    pub heap: bool,
}

struct Region {
    /// The object that the whole region belongs to.
    whole: ObjectId,
    /// The object of each granule, where there are several objects.
    objects: Option<Box<[ObjectId]>>,
    pages: [Page; PAGES],
}

type Table = Box<[Option<Box<Region>>]>;

/// All objects, contexts and pages.
pub struct Heap {
    /// Tables of regions in the order of addresses, `None` where there are no regions.
    tables: Vec<Option<Table>>,
    objects: Vec<Object>,
    free: Vec<ObjectId>,
    by_hash: HashMap<u64, ContextId>,
    contexts: Vec<Context>,
}

impl Default for Heap {
    fn default() -> Heap {
        Heap {
            tables: (0..TABLES).map(|_| None).collect(),
            objects: vec![Object::default()],
            free: Vec::new(),
            by_hash: HashMap::new(),
            contexts: Vec::new(),
        }
    }
}

/// The table of an address, and the number of its region there.
#[inline]
fn place(address: u64) -> (usize, usize) {
    let region = (address >> REGION_SHIFT) as usize;
    (region >> TABLE_BITS, region % TABLE)
}

impl Heap {
    #[inline]
    fn region(&self, address: u64) -> Option<&Region> {
        let (table, region) = place(address);
        self.tables.get(table)?.as_ref()?[region].as_deref()
    }

    fn region_mut(&mut self, address: u64) -> Option<&mut Region> {
        let (table, region) = place(address);
        self.tables.get_mut(table)?.as_mut()?[region].as_deref_mut()
    }

    /// The region of an address, made if need be. The address is one that user space has.
    fn make_region(&mut self, address: u64) -> &mut Region {
        let (table, region) = place(address);
        let table = self.tables[table].get_or_insert_with(|| (0..TABLE).map(|_| None).collect());
        table[region].get_or_insert_with(|| {
            Box::new(Region { whole: 0, objects: None, pages: [Page::default(); PAGES] })
        })
    }

    /// The number of the context with these return addresses.
    pub fn context(&mut self, frames: &[usize]) -> ContextId {
        debug_assert!(frames.len() <= DEPTH_MAX);
        // FNV-1a, word by word.
        let hash = frames.iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, frame| {
            (hash ^ *frame as u64).wrapping_mul(0x100_0000_01B3)
        });
        let contexts = &mut self.contexts;
        *self.by_hash.entry(hash).or_insert_with(|| {
            contexts.push(Context { frames: frames.to_vec(), ..Context::default() });
            contexts.len() as ContextId - 1
        })
    }

    /// Notes that an object came into being. Returns its number, or 0 where no program's memory is.
    pub fn born(&mut self, address: u64, bytes: u64, usable: u64, context: ContextId) -> ObjectId {
        if address == 0 || address.saturating_add(usable) >> ADDRESS_BITS != 0 {
            return 0;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.objects.push(Object::default());
            self.objects.len() as ObjectId - 1
        });
        self.objects[id as usize] = Object { address, bytes, usable, context, ..Object::default() };
        let made = &mut self.contexts[context as usize];
        made.made += 1;
        made.live_bytes += bytes;
        made.peak_bytes = made.peak_bytes.max(made.live_bytes);
        self.fill(address, usable, id);
        id
    }

    /// Takes the object that begins at `address` from its place: it is about to be resized, or
    /// freed. Returns its number, or 0 if there is none.
    pub fn lift(&mut self, address: u64) -> ObjectId {
        let id = self.find(address);
        if id == 0 || self.objects[id as usize].address != address {
            return 0;
        }
        self.fill(address, self.objects[id as usize].usable, 0);
        id
    }

    /// Puts a lifted object back where it was, with another size.
    pub fn put(&mut self, id: ObjectId, bytes: u64, usable: u64) {
        let object = &mut self.objects[id as usize];
        let before = std::mem::replace(&mut object.bytes, bytes);
        object.usable = usable;
        let address = object.address;
        let context = &mut self.contexts[object.context as usize];
        context.live_bytes = context.live_bytes - before + bytes;
        context.peak_bytes = context.peak_bytes.max(context.live_bytes);
        self.fill(address, usable, id);
    }

    /// Forgets a lifted object for good.
    pub fn bury(&mut self, id: ObjectId) {
        let object = std::mem::take(&mut self.objects[id as usize]);
        self.free.push(id);
        let context = &mut self.contexts[object.context as usize];
        context.live_bytes -= object.bytes;
        if object.misses > 0 {
            context.dead_misses += object.misses;
            context.dead_bytes_max = context.dead_bytes_max.max(object.bytes);
        }
    }

    /// Forgets the object that begins at `address`. Returns its number, or 0 if there was none.
    pub fn dies(&mut self, address: u64) -> ObjectId {
        let id = self.lift(address);
        if id != 0 {
            self.bury(id);
        }
        id
    }

    /// Gives these bytes to an object, or to none.
    fn fill(&mut self, address: u64, bytes: u64, id: ObjectId) {
        let (mut at, end) = (address & !(GRANULE - 1), (address + bytes).next_multiple_of(GRANULE));
        while at < end {
            let next = ((at >> REGION_SHIFT) + 1) << REGION_SHIFT;
            let to = next.min(end);
            let region = self.make_region(at);
            if id != 0 {
                for page in &mut region.pages
                    [(at % REGION / PAGE) as usize..=((to - 1) % REGION / PAGE) as usize]
                {
                    page.heap = true;
                }
            }
            if to - at == REGION {
                region.whole = id;
                region.objects = None;
            } else {
                let whole = std::mem::take(&mut region.whole);
                let objects = region.objects.get_or_insert_with(|| vec![whole; GRANULES].into());
                objects[(at % REGION / GRANULE) as usize..][..((to - at) / GRANULE) as usize]
                    .fill(id);
            }
            at = to;
        }
    }

    /// The object at this address, or 0.
    #[inline]
    pub fn find(&self, address: u64) -> ObjectId {
        match self.region(address) {
            None => 0,
            Some(region) => match &region.objects {
                None => region.whole,
                Some(objects) => objects[(address % REGION / GRANULE) as usize],
            },
        }
    }

    /// What is known of a live object.
    pub fn object(&self, id: ObjectId) -> &Object {
        &self.objects[id as usize]
    }

    /// Gives an object a number in a trace.
    pub fn trace_as(&mut self, id: ObjectId, number: u32) {
        self.objects[id as usize].traced = number;
    }

    /// Counts a miss.
    pub fn missed(&mut self, address: u64) -> Missed {
        let id = self.find(address);
        let Some(region) = self.region_mut(address) else { return Missed::Elsewhere };
        let page = &mut region.pages[(address % REGION / PAGE) as usize];
        if !page.heap {
            return Missed::Elsewhere;
        }
        page.misses += 1;
        if id == 0 {
            return Missed::Between;
        }
        let object = &mut self.objects[id as usize];
        let offset = address.saturating_sub(object.address);
        object.misses += 1;
        if object.bytes > PAGE {
            let part = (offset / PAGE) as usize;
            if part >= object.parts.len() {
                object.parts.resize(part.max(object.bytes.div_ceil(PAGE) as usize - 1) + 1, 0);
            }
            object.parts[part] += 1;
        }
        Missed::Object { id, offset }
    }

    /// The live objects.
    pub fn live(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().filter(|object| object.address != 0)
    }

    /// All contexts.
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// Pages on which an object ever lay: their addresses and what is known of them.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        let regions = self.tables.iter().enumerate().flat_map(|(table, regions)| {
            let regions = regions.iter().flatten().enumerate();
            regions.filter_map(move |(number, region)| {
                Some((((table << TABLE_BITS) + number) as u64, region.as_ref()?))
            })
        });
        regions.flat_map(|(number, region)| {
            let pages = region.pages.iter().enumerate().filter(|(_, page)| page.heap);
            pages.map(move |(at, page)| ((number << REGION_SHIFT) + at as u64 * PAGE, page))
        })
    }
}

/// Where a miss was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The miss was in a live object.
    Object {
        /// Number of the object.
        id: ObjectId,
        /// Bytes from the object's beginning.
        offset: u64,
    },
    /// The miss was on a page of the heap, but in no object.
    Between,
    /// The miss was on a stack, in a variable of the program's, or in memory that it mapped itself.
    Elsewhere,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_miss_is_its_objects_and_its_pages() {
        let mut heap = Heap::default();
        let context = heap.context(&[1, 2]);
        assert_eq!((heap.context(&[1, 3]), heap.context(&[1, 2])), (1, context));
        heap.born(0x10000, 100, 104, context);
        heap.born(0x10068, 8, 8, context);
        // Over two pages.
        let large = heap.born(0x10ff0, 5000, 5000, 1);
        let in_object =
            |missed, offset| matches!(missed, Missed::Object { offset: at, .. } if at == offset);
        assert!(in_object(heap.missed(0x10064), 100) && in_object(heap.missed(0x10069), 1));
        assert_eq!(heap.missed(0x10070), Missed::Between);
        assert_eq!(
            (heap.missed(0x9000), heap.missed(u64::MAX)),
            (Missed::Elsewhere, Missed::Elsewhere)
        );
        (0..3).for_each(|_| {
            assert_eq!(heap.missed(0x10ff0 + 4096), Missed::Object { id: large, offset: 4096 })
        });
        assert_eq!((heap.object(large).misses, &heap.object(large).parts[..]), (3, &[0, 3][..]));
        let pages: Vec<(u64, u64)> = heap.pages().map(|(at, page)| (at, page.misses)).collect();
        assert_eq!(pages, [(0x10000, 3), (0x11000, 3), (0x12000, 0)]);
        assert_eq!(heap.live().count(), 3);
        // The dead one's misses are its context's.
        assert_ne!(heap.dies(0x10000), 0);
        assert_eq!((heap.dies(0x10000), heap.dies(0x10069)), (0, 0));
        let first = &heap.contexts()[0];
        assert_eq!(
            (
                first.made,
                first.live_bytes,
                first.peak_bytes,
                first.dead_misses,
                first.dead_bytes_max
            ),
            (2, 8, 108, 1, 100)
        );
        assert_eq!(heap.missed(0x10000), Missed::Between);
    }

    #[test]
    fn what_covers_regions_is_found_everywhere_in_them() {
        let mut heap = Heap::default();
        let context = heap.context(&[]);
        let start = (7 << 21) - 64;
        let huge = heap.born(start, 3 << 21, 3 << 21, context);
        let found = |heap: &Heap| {
            [start - 8, start, 7 << 21, (9 << 21) + 5, start + (3 << 21) - 1, start + (3 << 21)]
                .map(|at| heap.find(at))
        };
        assert_eq!(found(&heap), [0, huge, huge, huge, huge, 0]);
        // Smaller at the same place, and gone.
        assert_eq!(heap.lift(start), huge);
        assert_eq!(found(&heap), [0; 6]);
        heap.put(huge, 1 << 21, 1 << 21);
        assert_eq!(found(&heap), [0, huge, huge, 0, 0, 0]);
        heap.dies(start);
        assert_eq!(found(&heap), [0; 6]);
    }

    proptest! {
        /// Objects are found as in a plain map of intervals.
        #[test]
        fn objects_are_found_as_in_a_map(
            steps in prop::collection::vec((0u64..600, 1u64..700, any::<bool>()), 1..200)
        ) {
            let mut heap = Heap::default();
            let context = heap.context(&[]);
            let mut map: BTreeMap<u64, u64> = BTreeMap::new();
            // Around the end of a region.
            let base = (5u64 << 21) - 4096;
            for (place, bytes, birth) in steps {
                let at = base + place * 16;
                let free = map.range(..at + bytes)
                    .next_back()
                    .is_none_or(|(start, len)| start + len.next_multiple_of(8) <= at);
                if birth && free {
                    heap.born(at, bytes, bytes, context);
                    map.insert(at, bytes);
                } else if !birth {
                    prop_assert_eq!(heap.dies(at) != 0, map.remove(&at).is_some());
                }
            }
            for at in (base..base + 600 * 16 + 700).step_by(8) {
                let expected = map.range(..=at)
                    .next_back()
                    .filter(|(start, len)| at < *start + len.next_multiple_of(8))
                    .map_or(0, |(start, _)| *start);
                let found = heap.find(at);
                prop_assert_eq!(if found == 0 { 0 } else { heap.object(found).address }, expected);
            }
        }
    }
}
