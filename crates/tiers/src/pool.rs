//! The region-extent pool: all compressed pages of one region, packed one after the other into
//! extents of its tiers.
//!
//! ```text
//! extent, 512 KiB   |blob|blob|dead|blob|dead|blob|· · · never written · · ·|
//!                   0        8-byte aligned       ^cursor   ^touched (page)
//!                             ^ a hole, if it is remembered: the next blob that fits goes there
//! blob              |checksum of the page, 16 bytes|its encoded bytes|0 to 7 bytes|
//! ```
//!
//! Invariants:
//! - An extent holds pages of one tier.
//! - Blobs start at multiples of 8 bytes and lie below the cursor.
//! - The cursor moves down only in `compact`, which for an extent in a file is a new extent.
//! - An extent without live pages goes back to its medium at once.
//!
//! The pool does not know which blobs are live, only how many and how large: locations are the
//! caller's. It takes no locks.
//!
//! Pages of tiers with a [pool of slots](crate::slots) are in a table instead, one for each tier.
//! It has a number as an extent has, and a location's offset is a row there.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::encode::{Checksum, Encoded, Encoding};
use crate::file::{FileExtent, ReadBuffer, bytes_of};
use crate::medium::{EXTENT_BYTES, Medium, MediumError};
use crate::page::PAGE_BYTES;
use crate::slot_table::SlotTable;
use crate::slots::SlotError;
use crate::tier::{Backing, Tier};

/// Extents of one region at most: 32 MiB for 2 MiB of pages, reached only by a caller that never
/// compacts.
pub const EXTENTS_MAX: usize = 64;

/// Blobs start at multiples of this, so that 16 bits reach all of an extent.
const UNIT_BYTES: usize = 8;
/// Bytes of the checksum, before a page's bytes.
const CHECKSUM_BYTES: usize = size_of::<Checksum>();

/// Holes of an extent that are remembered, the largest. In files none are: nothing is overwritten
/// there.
const HOLES: usize = 64;

/// An extent is worth compacting when more than one byte in this many is dead …
const COMPACT_DEAD_ONE_IN: usize = 10;
/// … and at least this many bytes, since nothing less than a page can be given back.
const COMPACT_DEAD_BYTES_MIN: usize = PAGE_BYTES;
/// An extent is fragmented when one byte in this many is dead: it is compacted without waiting for
/// another eviction there.
const WASTE_DEAD_ONE_IN: usize = 4;
/// An extent in a file is compacted when one byte in this many is dead, in a file in DRAM and on
/// disk. Compacting reads and writes the whole extent and fills no holes, and space on disk is
/// cheaper.
const COMPACT_DRAM_FILE_DEAD_ONE_IN: usize = 4;
const COMPACT_FILE_DEAD_ONE_IN: usize = 2;

/// Where a page is stored, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Number of the extent in the region, 0..64.
    pub extent: u8,
    /// Where in the extent, in units of 8 bytes.
    pub offset: u16,
    /// Bytes stored, 1..=4096, without the checksum.
    pub len: u16,
    /// How to read the bytes.
    pub encoding: Encoding,
}

const OFFSET_SHIFT: u32 = 6;
const LEN_SHIFT: u32 = OFFSET_SHIFT + 16;
const ENCODING_SHIFT: u32 = LEN_SHIFT + 12;

impl Location {
    /// Bits that [`Location::to_bits`] uses, from the lowest up; those above are free for the
    /// caller.
    pub const BITS: u32 = ENCODING_SHIFT + 2;

    /// Packs a location into the low [`Location::BITS`] bits. Exact for every location that a pool
    /// gave out.
    pub fn to_bits(self) -> u64 {
        let encoding: u64 = match self.encoding {
            Encoding::Same => 0,
            Encoding::Raw => 1,
            Encoding::Coded => 2,
        };
        u64::from(self.extent) & (EXTENTS_MAX as u64 - 1)
            | u64::from(self.offset) << OFFSET_SHIFT
            | (u64::from(self.len).wrapping_sub(1) & (PAGE_BYTES as u64 - 1)) << LEN_SHIFT
            | encoding << ENCODING_SHIFT
    }

    /// The location that [`Location::to_bits`] packed. Higher bits are ignored. Any bits give some
    /// location; a pool refuses it where it cannot be right.
    pub fn from_bits(bits: u64) -> Location {
        Location {
            extent: (bits & (EXTENTS_MAX as u64 - 1)) as u8,
            offset: (bits >> OFFSET_SHIFT) as u16,
            len: (bits >> LEN_SHIFT & (PAGE_BYTES as u64 - 1)) as u16 + 1,
            encoding: match bits >> ENCODING_SHIFT & 3 {
                0 => Encoding::Same,
                1 => Encoding::Raw,
                _ => Encoding::Coded,
            },
        }
    }

    fn start(self) -> usize {
        usize::from(self.offset) * UNIT_BYTES
    }

    /// The first byte behind the room that the blob takes.
    fn end(self) -> usize {
        self.start() + packed(self.len.into())
    }
}

/// The room that `len` encoded bytes and their checksum take.
fn packed(len: usize) -> usize {
    (CHECKSUM_BYTES + len).next_multiple_of(UNIT_BYTES)
}

/// Why the pool refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The medium has no memory.
    #[error("the medium under tier `{tier}` gives no extent: {source}")]
    Medium {
        /// The tier's name.
        tier: String,
        /// Why not.
        source: MediumError,
    },
    /// What is stored cannot be read.
    #[error(transparent)]
    Read(MediumError),
    /// The region has [`EXTENTS_MAX`] extents.
    #[error("a region's pages fill all {EXTENTS_MAX} extents: repack those that want it")]
    Full,
    /// No memory for the list of extents.
    #[error("no memory for the region's list of extents: free some and try again")]
    NoMemory,
    /// No such tier, or one without a pool.
    #[error("tier {tier_index} has no pool: insert into a compressed tier of the list given")]
    NoPool {
        /// The tier asked for.
        tier_index: u8,
    },
    /// Nothing to store, or more than a page.
    #[error("{len} bytes are no encoded page: store 1 to 4096")]
    Length {
        /// How many bytes were given.
        len: usize,
    },
    /// A location that nothing can be stored at.
    #[error(
        "{location:?} is not in this region's pool (internal error): its page was removed, moved or never stored here"
    )]
    NoSuchPage {
        /// The location.
        location: Location,
    },
    /// The locations given to `compact` are not the pages that the extent holds.
    #[error(
        "{0} Nothing was moved (internal error): the caller's locations are not those this pool gave out"
    )]
    Mismatch(CompactionMismatch),
}

/// How the caller's idea of an extent differs from the pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionMismatch {
    /// The extent.
    pub extent: u8,
    /// Pages the extent holds, and pages given.
    pub pages: (usize, usize),
    /// Bytes (with checksums, rounded up to 8 a page) the extent holds, and bytes given.
    pub bytes: (usize, usize),
}

impl std::fmt::Display for CompactionMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CompactionMismatch { extent, pages, bytes } = self;
        if pages.0 == pages.1 && bytes.0 == bytes.1 {
            return write!(f, "pages of extent {extent} overlap or lie outside it.");
        }
        write!(
            f,
            "extent {extent} holds {} pages in {} bytes, but {} pages in {} bytes were given.",
            pages.0, bytes.0, pages.1, bytes.1
        )
    }
}

/// All compressed pages of one region (2 MiB, 512 pages), of any tier. It takes 24 bytes while
/// empty, and 304 more for each extent (4 KiB more in a file).
///
/// Remove every page before dropping it: a drop gives the memory back, but the tiers' statistics
/// keep counting.
#[derive(Default)]
pub struct RegionStore {
    parts: Vec<Option<Part>>,
}

/// Pages of one tier.
#[expect(clippy::large_enum_variant, reason = "a box would be memory that may not be had")]
enum Part {
    Extent(Extent),
    Slots { table: SlotTable, tier: u8 },
}

impl Part {
    fn tier(&self) -> u8 {
        match self {
            Part::Extent(extent) => extent.tier,
            Part::Slots { tier, .. } => *tier,
        }
    }

    fn extent(&self) -> Option<&Extent> {
        match self {
            Part::Extent(extent) => Some(extent),
            Part::Slots { .. } => None,
        }
    }
}

struct Extent {
    data: Data,
    /// First byte never written since the last compaction; a multiple of [`UNIT_BYTES`], at most
    /// [`EXTENT_BYTES`].
    cursor: u32,
    /// Room taken by live pages, in bytes.
    live_bytes: u32,
    live_pages: u16,
    /// Pages of memory written since they were last given back, counted from the start of the
    /// extent.
    touched_pages: u16,
    tier: u8,
    holes: Holes,
}

/// Holes: dead room below an extent's cursor, in units of 8 bytes. An empty one is none. They do
/// not overlap.
struct Holes([Hole; HOLES]);

impl Default for Holes {
    fn default() -> Self {
        Holes([Hole::default(); HOLES])
    }
}

#[derive(Clone, Copy, Default)]
struct Hole {
    offset: u16,
    units: u16,
}

impl Holes {
    /// Whether nothing of `start..end` is known to be dead.
    fn may_be_live(&self, start: usize, end: usize) -> bool {
        self.0.iter().all(|hole| hole.units == 0 || hole.end() <= start || end <= hole.start())
    }

    /// Remembers `start..end` as a hole, one with its neighbours; in place of the smallest if there
    /// are too many.
    fn add(&mut self, mut start: usize, mut end: usize) {
        for hole in self.0.iter_mut().filter(|hole| hole.units > 0) {
            if hole.end() == start || end == hole.start() {
                (start, end) = (start.min(hole.start()), end.max(hole.end()));
                *hole = Hole::default();
            }
        }
        // All of an extent, 65,536 units, is never one hole: an extent without live pages is given
        // back.
        let Ok(units) = u16::try_from((end - start) / UNIT_BYTES) else { return };
        if let Some(smallest) =
            self.0.iter_mut().min_by_key(|hole| hole.units).filter(|hole| hole.units < units)
        {
            *smallest = Hole { offset: (start / UNIT_BYTES) as u16, units };
        }
    }

    fn smallest_for(&self, room: usize) -> Option<usize> {
        let fits = |hole: &(usize, &Hole)| usize::from(hole.1.units) * UNIT_BYTES >= room;
        self.0
            .iter()
            .enumerate()
            .filter(fits)
            .min_by_key(|(_, hole)| hole.units)
            .map(|(index, _)| index)
    }

    /// Takes room out of the smallest hole that has as much, and says where it is.
    fn take(&mut self, room: usize) -> Option<usize> {
        let hole = &mut self.0[self.smallest_for(room)?];
        let start = hole.start();
        let units = (room / UNIT_BYTES) as u16;
        *hole = Hole { offset: hole.offset.wrapping_add(units), units: hole.units - units };
        Some(start)
    }
}

impl Hole {
    fn start(self) -> usize {
        usize::from(self.offset) * UNIT_BYTES
    }

    fn end(self) -> usize {
        self.start() + usize::from(self.units) * UNIT_BYTES
    }
}

/// Where an extent's bytes are.
enum Data {
    Memory {
        /// Keeps the memory at `base` mapped.
        medium: Arc<dyn Medium>,
        base: NonNull<u8>,
    },
    File(Box<FileExtent>),
}

// SAFETY: an extent's memory is its owner's alone (contract of `Medium`), and media are Send and
// Sync. Nothing in a store is tied to a thread.
unsafe impl Send for RegionStore {}

impl Extent {
    fn dead_bytes(&self) -> usize {
        (self.cursor - self.live_bytes) as usize
    }

    fn holds(&self, location: Location) -> bool {
        (1..=PAGE_BYTES).contains(&location.len.into()) && location.end() <= self.cursor as usize
    }

    fn physical_bytes(&self) -> u64 {
        u64::from(self.touched_pages) * PAGE_BYTES as u64
    }

    /// Whether the extent takes more: not where it is in another process's file.
    fn takes_more(&self) -> bool {
        match &self.data {
            Data::Memory { .. } => true,
            Data::File(file) => file.takes_more(),
        }
    }

    /// Whether more than one byte in `one_in` is dead, and enough of them.
    fn has_dead(&self, one_in: usize) -> bool {
        let dead = self.dead_bytes();
        dead >= COMPACT_DEAD_BYTES_MIN && dead * one_in > self.cursor as usize
    }

    fn wants_compaction(&self) -> bool {
        match &self.data {
            Data::Memory { .. } => self.has_dead(COMPACT_DEAD_ONE_IN),
            Data::File(file) => {
                self.has_dead(if file.is_in_dram() {
                    COMPACT_DRAM_FILE_DEAD_ONE_IN
                } else {
                    COMPACT_FILE_DEAD_ONE_IN
                }) && !file.is_frozen()
            }
        }
    }

    fn is_fragmented(&self) -> bool {
        matches!(self.data, Data::Memory { .. }) && self.has_dead(WASTE_DEAD_ONE_IN)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        match self {
            Data::Memory { medium, base } => medium.release(*base),
            // Gives itself up.
            Data::File(_) => {}
        }
    }
}

impl RegionStore {
    /// A store that holds nothing and has allocated nothing.
    pub const fn new() -> Self {
        RegionStore { parts: Vec::new() }
    }

    /// Copies `encoded` into an extent of the tier `tiers[tier_index]`, which must be a compressed
    /// one, and counts it there. The location stays right until `remove`, or until `compact`
    /// changes it.
    ///
    /// # Errors
    /// Nothing has changed after an error:
    /// - [`PoolError::Medium`] without memory;
    /// - [`PoolError::Full`] without room;
    /// - [`PoolError::NoPool`] for a tier that is none or has no pool;
    /// - [`PoolError::Length`] for 0 or more than 4096 bytes.
    pub fn insert(
        &mut self,
        tiers: &[Tier],
        tier_index: u8,
        encoded: Encoded<'_>,
    ) -> Result<Location, PoolError> {
        let tier = tiers.get(usize::from(tier_index)).filter(|tier| tier.is_compressed());
        let tier = tier.ok_or(PoolError::NoPool { tier_index })?;
        let bytes = encoded.bytes;
        if !(1..=PAGE_BYTES).contains(&bytes.len()) {
            return Err(PoolError::Length { len: bytes.len() });
        }
        if tier.slots().is_some() {
            return self.insert_in_slot(tier, tier_index, encoded);
        }
        let room = packed(bytes.len());
        let fits = |extent: &Extent| {
            extent.tier == tier_index
                && (extent.cursor as usize + room <= EXTENT_BYTES
                    || extent.holes.smallest_for(room).is_some())
                && extent.live_pages < u16::MAX
                && extent.takes_more()
        };
        let is_one = |part: &Option<Part>| part.as_ref().and_then(Part::extent).is_some_and(fits);
        let index = match self.parts.iter().position(is_one) {
            Some(index) => index,
            None => self.add_extent(tier, tier_index)?,
        };
        let Some(Some(Part::Extent(extent))) = self.parts.get_mut(index) else {
            return Err(PoolError::Full);
        };
        let hole = extent.holes.take(room);
        let start = hole.unwrap_or(extent.cursor as usize);
        let checksum = encoded.checksum.to_ne_bytes();
        match &mut extent.data {
            // SAFETY: `start + room <= EXTENT_BYTES` (`fits`, or a new extent with its cursor at 0;
            // a hole lies below the cursor). So the destination lies in the extent, which is this
            // store's alone. No `page()` borrow of it can exist beside `&mut self`. `room` has
            // place for both, and bytes need no alignment. Nothing live is there: a hole is room of
            // pages that were removed, and behind the cursor is nothing.
            Data::Memory { base, .. } => unsafe {
                let blob = base.add(start).as_ptr();
                blob.cast::<[u8; CHECKSUM_BYTES]>().write(checksum);
                blob.add(CHECKSUM_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            },
            Data::File(file) => {
                if let Err(source) = file.append(start, [&checksum, bytes], room) {
                    self.remove_if_empty(index);
                    return Err(PoolError::Medium { tier: tier.spec.name.clone(), source });
                }
            }
        }
        if hole.is_none() {
            extent.cursor += room as u32;
        }
        extent.live_bytes += room as u32;
        extent.live_pages += 1;
        let touched_pages =
            extent.touched_pages.max((extent.cursor as usize).div_ceil(PAGE_BYTES) as u16);
        tier.stats
            .physical_grew(u64::from(touched_pages - extent.touched_pages) * PAGE_BYTES as u64);
        extent.touched_pages = touched_pages;
        tier.stats.page_added(bytes.len() as u64);
        Ok(Location {
            extent: index as u8,
            offset: (start / UNIT_BYTES) as u16,
            len: bytes.len() as u16,
            encoding: encoded.encoding,
        })
    }

    fn insert_in_slot(
        &mut self,
        tier: &Tier,
        tier_index: u8,
        encoded: Encoded<'_>,
    ) -> Result<Location, PoolError> {
        let Some(pool) = tier.slots() else { return Err(PoolError::NoPool { tier_index }) };
        let is_its = |part: &Option<Part>| match part {
            Some(Part::Slots { tier, .. }) => *tier == tier_index,
            _ => false,
        };
        let index = match self.parts.iter().position(is_its) {
            Some(index) => index,
            None => self.add(Part::Slots { table: SlotTable::new(pool), tier: tier_index })?,
        };
        let Some(Some(Part::Slots { table, .. })) = self.parts.get_mut(index) else {
            return Err(PoolError::Full);
        };
        match table.insert(encoded.bytes, encoded.checksum, &tier.stats) {
            Ok(row) => {
                tier.stats.page_added(encoded.bytes.len() as u64);
                Ok(Location {
                    extent: index as u8,
                    offset: row,
                    len: encoded.bytes.len() as u16,
                    encoding: encoded.encoding,
                })
            }
            Err(error) => {
                self.remove_if_empty(index);
                Err(match error {
                    SlotError::NoMemory => PoolError::NoMemory,
                    SlotError::Medium(source) => {
                        PoolError::Medium { tier: tier.spec.name.clone(), source }
                    }
                })
            }
        }
    }

    /// The tier whose extent or table `location` is in; `None` if there is none.
    pub fn tier_of(&self, location: Location) -> Option<u8> {
        self.part(location.extent).map(Part::tier)
    }

    /// What is stored at `location`: in place, or read into `buffer`.
    ///
    /// # Errors
    /// [`PoolError::NoSuchPage`] if `location` is outside of what was written. A location that was
    /// removed is not always found out: its bytes stay until they are overwritten.
    /// [`PoolError::Read`] if the medium cannot be read.
    pub fn page<'b>(
        &'b self,
        location: Location,
        buffer: &'b mut ReadBuffer,
    ) -> Result<Encoded<'b>, PoolError> {
        let refused = || PoolError::NoSuchPage { location };
        let extent = match self.part(location.extent).ok_or_else(refused)? {
            Part::Extent(extent) => Some(extent).filter(|extent| extent.holds(location)),
            Part::Slots { table, .. } => {
                if !table.holds(location.offset, location.len) {
                    return Err(refused());
                }
                let found = table.read(location.offset, buffer).ok_or_else(refused)?;
                let (checksum, bytes) = found.map_err(PoolError::Read)?;
                return Ok(Encoded { encoding: location.encoding, checksum, bytes });
            }
        };
        let extent = extent.ok_or_else(refused)?;
        let (start, len) = (location.start(), CHECKSUM_BYTES + usize::from(location.len));
        let blob = match &extent.data {
            // SAFETY: `holds` says that the blob ends at or below the cursor, so it lies in the
            // extent. `&self` keeps the extent from being written, moved or released.
            Data::Memory { base, .. } => unsafe {
                std::slice::from_raw_parts(base.add(start).as_ptr(), len)
            },
            Data::File(file) => {
                file.read(extent.cursor as usize, start, len, buffer).map_err(PoolError::Read)?
            }
        };
        let (checksum, bytes) =
            blob.split_first_chunk().ok_or(PoolError::NoSuchPage { location })?;
        Ok(Encoded {
            encoding: location.encoding,
            checksum: Checksum::from_ne_bytes(*checksum),
            bytes,
        })
    }

    /// Forgets the page at `location`, once for each insert. `tiers` as at the insert. The last
    /// page of an extent takes the extent with it, back to the medium.
    ///
    /// # Errors
    /// [`PoolError::NoSuchPage`] if nothing can be stored there; nothing has changed then.
    pub fn remove(&mut self, tiers: &[Tier], location: Location) -> Result<(), PoolError> {
        let room = packed(location.len.into()) as u32;
        let refused = PoolError::NoSuchPage { location };
        let index = usize::from(location.extent);
        let Some(slot) = self.parts.get_mut(index) else { return Err(refused) };
        let extent = match slot {
            None => return Err(refused),
            Some(Part::Slots { table, tier }) => {
                let Some(tier) = tiers.get(usize::from(*tier)) else { return Err(refused) };
                if !table.holds(location.offset, location.len) {
                    return Err(refused);
                }
                table.remove(location.offset, &tier.stats);
                tier.stats.page_removed(location.len.into());
                self.remove_if_empty(index);
                return Ok(());
            }
            Some(Part::Extent(extent)) => extent,
        };
        if !extent.holds(location) {
            return Err(refused);
        }
        let Some(tier) = tiers.get(usize::from(extent.tier)) else { return Err(refused) };
        // The last page must account for all that is live, any other must leave room for at least
        // one more.
        let last = extent.live_pages == 1;
        let plausible = if last { extent.live_bytes == room } else { extent.live_bytes > room };
        if !plausible || !extent.holes.may_be_live(location.start(), location.end()) {
            return Err(refused);
        }
        tier.stats.page_removed(location.len.into());
        extent.live_bytes -= room;
        extent.live_pages -= 1;
        if matches!(extent.data, Data::Memory { .. }) {
            extent.holes.add(location.start(), location.end());
        }
        if last {
            tier.stats.physical_shrank(extent.physical_bytes());
            self.remove_if_empty(index);
        }
        Ok(())
    }

    /// The first extent that is worth compacting, if any: more than a tenth of its packed bytes is
    /// dead, and at least 4096. In a file it is a quarter, on disk half; an extent in a file that a
    /// forked child shares is none. Or the first table whose pool has more than an eighth of its
    /// slots free.
    pub fn wants_compaction(&self) -> Option<u8> {
        self.first(|part| match part {
            Part::Extent(extent) => extent.wants_compaction(),
            Part::Slots { table, .. } => table.is_loose(),
        })
    }

    /// The first extent in memory of which a quarter, and 4096 bytes at least, are dead, if any.
    /// Extents in files are left out: space is cheap there, and a compaction would write.
    pub fn fragmented_extent(&self) -> Option<u8> {
        self.first(|part| part.extent().is_some_and(Extent::is_fragmented))
    }

    fn first(&self, wanted: fn(&Part) -> bool) -> Option<u8> {
        self.parts
            .iter()
            .position(|part| part.as_ref().is_some_and(wanted))
            .map(|index| index as u8)
    }

    /// Moves the live pages of `extent` together towards its start and gives the memory behind them
    /// back. Pages of a table go into fuller blocks of the pool, which changes no location. `live`
    /// is every live location in that extent, in any order; each is updated where it stands.
    /// `tiers` as at the inserts.
    ///
    /// # Errors
    /// Nothing has moved after an error:
    /// - [`PoolError::Mismatch`] if `live` is not what the extent holds (count, bytes, overlaps);
    /// - [`PoolError::NoSuchPage`] if a location is not in it;
    /// - [`PoolError::NoMemory`] without memory;
    /// - for an extent in a file, [`PoolError::Read`] and [`PoolError::Medium`].
    pub fn compact(
        &mut self,
        tiers: &[Tier],
        extent: u8,
        live: &mut [Location],
    ) -> Result<(), PoolError> {
        let held = match self.parts.get_mut(usize::from(extent)).and_then(Option::as_mut) {
            Some(Part::Slots { table, tier }) => {
                let Some(tier) = tiers.get(usize::from(*tier)) else {
                    return Err(PoolError::NoPool { tier_index: *tier });
                };
                let bytes = live.iter().map(|location| usize::from(location.len)).sum();
                let (pages_held, bytes_held) = table.held();
                if (live.len(), bytes) != (pages_held, bytes_held) {
                    let (pages, bytes) = ((pages_held, live.len()), (bytes_held, bytes));
                    return Err(PoolError::Mismatch(CompactionMismatch { extent, pages, bytes }));
                }
                let its = |at: &Location| at.extent == extent && table.holds(at.offset, at.len);
                if let Some(&location) = live.iter().find(|location| !its(location)) {
                    return Err(PoolError::NoSuchPage { location });
                }
                table.pack(&tier.stats);
                return Ok(());
            }
            Some(Part::Extent(extent)) => Some(extent),
            None => None,
        };
        let bytes_given = live.iter().map(|location| packed(location.len.into())).sum();
        let mismatch = |pages, bytes: u32| {
            let (pages, bytes) = ((pages, live.len()), (bytes as usize, bytes_given));
            PoolError::Mismatch(CompactionMismatch { extent, pages, bytes })
        };
        let Some(held) = held else { return Err(mismatch(0, 0)) };
        let Some(tier) = tiers.get(usize::from(held.tier)) else {
            return Err(PoolError::NoPool { tier_index: held.tier });
        };
        let refused = mismatch(held.live_pages.into(), held.live_bytes);
        if live.len() != usize::from(held.live_pages) || bytes_given != held.live_bytes as usize {
            return Err(refused);
        }
        if let Some(&location) =
            live.iter().find(|location| location.extent != extent || !held.holds(**location))
        {
            return Err(PoolError::NoSuchPage { location });
        }
        // `live` keeps its order, which is the caller's; this one is by address, so that no page
        // overwrites the next.
        let mut order: Vec<u16> = Vec::new();
        order.try_reserve_exact(live.len()).map_err(|_| PoolError::NoMemory)?;
        order.extend(0..held.live_pages);
        order.sort_unstable_by_key(|&index| live[usize::from(index)].offset);
        if order
            .windows(2)
            .any(|pair| live[usize::from(pair[0])].end() > live[usize::from(pair[1])].start())
        {
            return Err(refused);
        }

        let cursor = match &mut held.data {
            // SAFETY: all of the extent is in one piece of memory, this store's alone; `live` was
            // checked above.
            Data::Memory { base, .. } => unsafe { pack(*base, &order, live) },
            // Packed in memory and put into another extent: what is in a file is never overwritten.
            Data::File(file) => {
                let Backing::File(files) = tier.backing() else {
                    return Err(PoolError::NoPool { tier_index: held.tier });
                };
                let medium = |source| PoolError::Medium { tier: tier.spec.name.clone(), source };
                let mut image = file.load(held.cursor as usize).map_err(PoolError::Read)?;
                let mut packed = live.to_vec();
                // SAFETY: the image is the extent up to its cursor; the rest as above.
                let cursor = unsafe {
                    pack(NonNull::from(bytes_of(&mut image)).cast(), &order, &mut packed)
                };
                let mut copy = files.allocate().map_err(medium)?;
                copy.fill(cursor, &mut image).map_err(medium)?;
                **file = copy;
                live.copy_from_slice(&packed);
                cursor
            }
        };
        held.cursor = cursor as u32;
        held.holes = Holes::default();
        let touched_pages = cursor.div_ceil(PAGE_BYTES) as u16;
        let given_back = held.touched_pages - touched_pages;
        if given_back > 0 {
            let (from, to) = (
                usize::from(touched_pages) * PAGE_BYTES,
                usize::from(held.touched_pages) * PAGE_BYTES,
            );
            if let Data::Memory { medium, base } = &held.data {
                medium.release_part(*base, from, to);
            }
            held.touched_pages = touched_pages;
            tier.stats.physical_shrank(u64::from(given_back) * PAGE_BYTES as u64);
        }
        Ok(())
    }

    /// Memory that the region's extents take from their media, in bytes: pages written since they
    /// were last given back. (Memory of pools that regions share is no region's.)
    pub fn physical_bytes(&self) -> u64 {
        self.parts.iter().flatten().filter_map(Part::extent).map(Extent::physical_bytes).sum()
    }

    /// Whether no page is stored.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    /// Removes an extent or a table that has no page.
    fn remove_if_empty(&mut self, index: usize) {
        let is_empty = match &self.parts[index] {
            Some(Part::Extent(extent)) => extent.live_pages == 0,
            Some(Part::Slots { table, .. }) => table.is_empty(),
            None => true,
        };
        if is_empty {
            self.parts[index] = None;
        }
        if self.is_empty() {
            self.parts = Vec::new();
        }
    }

    fn part(&self, index: u8) -> Option<&Part> {
        self.parts.get(usize::from(index))?.as_ref()
    }

    /// Puts a part into the lowest free place.
    fn add(&mut self, part: Part) -> Result<usize, PoolError> {
        let index = self.parts.iter().position(Option::is_none).unwrap_or(self.parts.len());
        if index >= EXTENTS_MAX {
            return Err(PoolError::Full);
        }
        if index < self.parts.len() {
            self.parts[index] = Some(part);
            return Ok(index);
        }
        // Exactly: most regions have one to three.
        self.parts.try_reserve_exact(1).map_err(|_| PoolError::NoMemory)?;
        self.parts.push(Some(part));
        Ok(index)
    }

    /// A new extent for a tier, in the lowest free place.
    fn add_extent(&mut self, tier: &Tier, tier_index: u8) -> Result<usize, PoolError> {
        // Before any memory is taken.
        if self.parts.iter().flatten().count() >= EXTENTS_MAX {
            return Err(PoolError::Full);
        }
        let refused = |source| PoolError::Medium { tier: tier.spec.name.clone(), source };
        let data = match tier.backing() {
            Backing::Memory(medium) => Data::Memory {
                base: medium.allocate().map_err(refused)?,
                medium: Arc::clone(medium),
            },
            Backing::File(files) => Data::File(Box::new(files.allocate().map_err(refused)?)),
            Backing::Node(_) | Backing::Swap(_) => return Err(PoolError::NoPool { tier_index }),
        };
        let extent = Extent {
            data,
            cursor: 0,
            live_bytes: 0,
            live_pages: 0,
            touched_pages: 0,
            tier: tier_index,
            holes: Holes::default(),
        };
        self.add(Part::Extent(extent))
    }
}

/// Moves blobs at `live`, taken in `order` (by address), together towards `base`, and says where.
/// Returns the byte behind them.
///
/// # Safety
/// They lie in one piece of memory at `base` that is the caller's alone, and do not overlap.
unsafe fn pack(base: NonNull<u8>, order: &[u16], live: &mut [Location]) -> usize {
    let mut cursor = 0;
    for &index in order {
        let location = &mut live[usize::from(index)];
        let (from, room) = (location.start(), packed(location.len.into()));
        if from != cursor {
            // SAFETY: `from + room` lies within the memory (the caller's promise), and
            // `cursor <= from`, since the pages before this one do not overlap and lie below it. So
            // both ranges are in it. They may overlap, hence `copy`.
            unsafe { base.add(from).copy_to(base.add(cursor), room) };
            location.offset = (cursor / UNIT_BYTES) as u16;
        }
        cursor += room;
    }
    cursor
}
