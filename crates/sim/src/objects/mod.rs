//! Objects, and which pages they share: what an allocator makes of a program's objects, before any
//! page is placed.
//!
//! An [`ObjectSource`] says which objects a program allocates, frees and touches. A
//! [`Layout`](layouts::Layout) gives them addresses as an allocator would. A [`Heap`] follows the
//! one with the other and turns touches of objects into accesses to memory. A model of a cache may
//! filter out those that hit it. So the same program can be had with its objects by time, by size,
//! by context, sorted by how hot they are, …
//!
//! - [`layouts`]: the allocators; [`consolidation`]: ObjecTier's, which moves objects;
//! - [`tree`], [`store`]: programs of many small objects; [`programs`]: by their names;
//! - [`figures`]: Jenga's Figure 2, M2T's Figure 3.

pub mod consolidation;
pub mod events;
pub mod figures;
pub mod layouts;
pub mod programs;
pub mod store;
pub mod tree;

pub use events::{Event, MakeSource, ObjectId, ObjectSource, Request, for_each};

use crate::machine::PAGE;
use crate::source::{Access, BLOCK, Source, SourceError};
use layouts::Layout;
use rand::Rng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};
use terrace_trace::cache::{Cache, LINE};

/// A live object.
#[derive(Clone, Copy, Debug)]
struct Placed {
    address: u64,
    request: Request,
}

/// Objects at their addresses.
pub struct Heap {
    layout: Box<dyn Layout>,
    objects: Vec<Placed>,
    moved: Vec<(ObjectId, u64)>,
    moved_bytes: u64,
    end: u64,
}

impl Heap {
    /// Makes a heap without objects.
    pub fn new(layout: Box<dyn Layout>) -> Heap {
        Heap { layout, objects: Vec::new(), moved: Vec::new(), moved_bytes: 0, end: 0 }
    }

    /// Follows an event; `line` is told the address of each line of the cache that it touches, and
    /// whether it is written.
    pub fn follow(&mut self, event: Event, line: &mut impl FnMut(u64, bool)) {
        match event {
            Event::Allocated(request) => {
                let object = self.objects.len() as ObjectId;
                let address = self.layout.allocate(object, request);
                self.objects.push(Placed { address, request });
                self.end = self.end.max(address + request.bytes);
            }
            Event::Freed(object) => {
                let Placed { address, request } = self.objects[object as usize];
                self.layout.free(object, request, address);
            }
            Event::Resized { object, bytes } => {
                let Placed { address, request } = self.objects[object as usize];
                let resized = Request { bytes, ..request };
                self.layout.free(object, request, address);
                let address = self.layout.allocate(object, resized);
                self.objects[object as usize] = Placed { address, request: resized };
                self.end = self.end.max(address + bytes);
            }
            Event::Touched { object, offset, bytes, write } => {
                let first = self.objects[object as usize].address + offset;
                for number in first / LINE..=(first + u64::from(bytes) - 1) / LINE {
                    line(number * LINE, write);
                }
                if self.layout.touched(object) {
                    self.layout.relocate(&mut self.moved);
                    for (object, address) in self.moved.drain(..) {
                        let placed = &mut self.objects[object as usize];
                        placed.address = address;
                        self.moved_bytes += placed.request.bytes;
                        self.end = self.end.max(address + placed.request.bytes);
                    }
                }
            }
        }
    }

    /// An object's first address, and the one behind it.
    pub fn range(&self, object: ObjectId) -> (u64, u64) {
        let Placed { address, request } = self.objects[object as usize];
        (address, address + request.bytes)
    }

    /// End of the addresses: all are below this.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of objects that the layout moved.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Each page of 4 KiB that has an object on it, in the order of addresses.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        let mut pages: Vec<u64> = self
            .objects
            .iter()
            .flat_map(|placed| {
                placed.address / PAGE..=(placed.address + placed.request.bytes.max(1) - 1) / PAGE
            })
            .collect();
        pages.sort_unstable();
        pages.dedup();
        pages.into_iter()
    }
}

/// What of a program's accesses goes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All lines that are touched.
    All,
    /// Lines that a cache of this many bytes does not have (`terrace_trace::cache`).
    Misses(usize),
}

impl Filter {
    fn cache(self) -> Option<Cache> {
        match self {
            Filter::All => None,
            Filter::Misses(bytes) => Some(Cache::of(bytes)),
        }
    }
}

/// A program's accesses to units of placement.
pub struct HeapSource {
    source: Box<dyn ObjectSource>,
    heap: Heap,
    cache: Option<Cache>,
    unit_bytes: u64,
    units: u32,
    accesses: u64,
    events: Vec<Event>,
    next: usize,
}

impl HeapSource {
    /// Makes the source of a program with its objects in this layout, in units of `unit_bytes`.
    /// Runs the program once before, to know how much memory it will have and how many accesses.
    pub fn new(
        make: &MakeSource<'_>,
        layout: layouts::Kind,
        filter: Filter,
        unit_bytes: u64,
    ) -> Result<HeapSource, SourceError> {
        let mut heap = Heap::new(layouts::layout(layout, make)?);
        let (mut cache, mut accesses) = (filter.cache(), 0);
        for_each(make().as_mut(), |event| {
            heap.follow(event, &mut |address, _| {
                accesses += u64::from(!cache.as_mut().is_some_and(|cache| cache.touch(address)))
            });
        })?;
        let units = heap.end().div_ceil(unit_bytes).max(1);
        if units >= u64::from(Access::UNITS_MOST) {
            return Err(SourceError(
                format!("{units} units of {unit_bytes} bytes are too many: take larger ones")
                    .into(),
            ));
        }
        Ok(HeapSource {
            source: make(),
            heap: Heap::new(layouts::layout(layout, make)?),
            cache: filter.cache(),
            unit_bytes,
            units: units as u32,
            accesses,
            events: Vec::new(),
            next: 0,
        })
    }
}

impl Source for HeapSource {
    fn units(&self) -> u32 {
        self.units
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.accesses)
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        block.clear();
        while block.len() < BLOCK {
            if self.next == self.events.len() {
                self.source.next_block(&mut self.events)?;
                self.next = 0;
                if self.events.is_empty() {
                    break;
                }
            }
            let event = self.events[self.next];
            self.next += 1;
            let (cache, unit_bytes) = (&mut self.cache, self.unit_bytes);
            self.heap.follow(event, &mut |address, write| {
                if !cache.as_mut().is_some_and(|cache| cache.touch(address)) {
                    block.push(Access::new((address / unit_bytes) as u32, write));
                }
            });
        }
        Ok(())
    }
}

/// Draws which of a program's keys is looked up next: Zipf over ranks, or uniform where `theta` is
/// 0. Ranks are scattered over keys.
#[derive(Clone, Debug)]
pub struct Keys {
    keys: u64,
    zipf: Zipf<f64>,
    random: SmallRng,
}

impl Keys {
    /// Draws from the given number of keys, at least 1.
    pub fn new(keys: u64, theta: f64, random: SmallRng) -> Keys {
        Keys {
            keys,
            zipf: Zipf::new(keys as f64, theta)
                .expect("there are keys, and theta is a number not below 0"),
            random,
        }
    }

    /// The next key.
    pub fn next_key(&mut self) -> u64 {
        // A prime: neighbouring ranks are no neighbouring keys. As `terrace-bench objects` has it.
        (self.zipf.sample(&mut self.random) as u64 - 1) * 48_611 % self.keys
    }

    /// All keys in an order of chance (Fisher, Yates).
    pub fn shuffled(&mut self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.keys as u32).collect();
        for last in (1..order.len()).rev() {
            let other = ((u128::from(self.random.next_u64()) * (last as u128 + 1)) >> 64) as usize;
            order.swap(last, other);
        }
        order
    }
}
