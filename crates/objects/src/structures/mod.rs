//! Maps from numbers to bytes whose entries move: what five common structures need to say to the
//! library, and what its tests and benchmarks run on.
//!
//! [`Map`] holds entries, and changes references through an [`Index`]: [`Chained`] and [`Open`]
//! hash, [`Tree`], [`SkipList`], [`Radix`]. Entries are replaced whole, so that readers without a
//! lock see the old or the new one. A counter in each is changed in place, under the lock that the
//! relocator takes too.

mod chained;
mod guarded;
mod latch;
mod open;
mod radix;
mod skip_list;
mod tree;

pub use chained::Chained;
pub use latch::Latch;
pub use open::Open;
pub use radix::Radix;
pub use skip_list::SkipList;
pub use tree::Tree;

use crate::epoch::Reader;
use crate::heap::Heap;
use crate::relocate::{Object, Outcome, Relocate};
use crate::slice::Slice;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What precedes the bytes of an entry.
#[repr(C, align(16))]
pub struct Entry {
    key: u64,
    len: u32,
    count: AtomicU32,
}

/// Where an entry lies.
pub type EntryAt = NonNull<Entry>;

/// Key of an entry.
///
/// # Safety
/// The entry was written, and its memory was not given back.
unsafe fn key_of(entry: EntryAt) -> u64 {
    // SAFETY: as above; keys never change.
    unsafe { (*entry.as_ptr()).key }
}

/// What became of a change to the reference of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<R> {
    /// It was made, or found not to be wanted.
    Done(R),
    /// The key is not there.
    Missing,
    /// Somebody has the lock, for which it was not to wait.
    Busy,
}

/// Which entry a key has. All are called by threads that are inside ([`Reader::enter`]), or by the
/// relocator.
pub trait Index: Send + Sync {
    /// The entry of a key.
    fn find(&self, key: u64) -> Option<EntryAt>;

    /// Makes the key's entry another one, or none; the one that it had. `Err` if the index is full.
    fn replace(&self, key: u64, entry: Option<EntryAt>) -> Result<Option<EntryAt>, Full>;

    /// Under the lock of the key, has `change` look at its entry, and say which other one it is to
    /// have, if any.
    fn change<R>(
        &self,
        key: u64,
        wait: bool,
        change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
    ) -> Change<R>;
}

/// No room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another entry: the heap or the index is full, or the value too large")]
pub struct Full;

/// A map from numbers to bytes.
pub struct Map<I> {
    heap: Arc<Heap>,
    index: I,
}

impl<I: Index> Map<I> {
    /// An empty one.
    pub fn new(heap: Arc<Heap>, index: I) -> Map<I> {
        Map { heap, index }
    }

    /// The heap of its entries.
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// The bytes of a key, into `value`; false if it is not there.
    pub fn get(&self, reader: &Reader, key: u64, value: &mut Vec<u8>) -> bool {
        self.read(reader, key, |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })
        .is_some()
    }

    /// Has `read` look at the bytes of a key.
    pub fn read<R>(&self, reader: &Reader, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let _inside = reader.enter();
        let entry = self.index.find(key)?;
        self.heap.touch(entry.cast());
        // SAFETY: found while inside, so its memory stays; entries' bytes never change.
        Some(read(unsafe { bytes_of(entry) }))
    }

    /// Where the entry of a key lies now, for measurements.
    pub fn locate(&self, reader: &Reader, key: u64) -> Option<Object> {
        let _inside = reader.enter();
        let entry = self.index.find(key)?;
        // SAFETY: as in `read`.
        let len = unsafe { bytes_of(entry) }.len();
        Some(Object { start: entry.cast(), bytes: size_of::<Entry>() + len })
    }

    /// Gives a key those bytes.
    pub fn set(&self, reader: &Reader, key: u64, value: &[u8]) -> Result<(), Full> {
        let _inside = reader.enter();
        let room = self.heap.allocate(size_of::<Entry>() + value.len()).ok_or(Full)?;
        let entry = room.cast::<Entry>();
        // SAFETY: the room is ours alone, aligned to 16 bytes, and large enough.
        unsafe {
            let len = value.len() as u32;
            entry.write(Entry { key, len, count: AtomicU32::new(0) });
            entry
                .add(1)
                .cast::<u8>()
                .copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
        }
        self.heap.ready(room);
        self.heap.touch(room);
        match self.index.replace(key, Some(entry)) {
            Ok(None) => Ok(()),
            Ok(Some(old)) => {
                self.heap.free(old.cast());
                Ok(())
            }
            Err(full) => {
                self.heap.free(room);
                Err(full)
            }
        }
    }

    /// Removes a key; false if it was not there.
    pub fn delete(&self, reader: &Reader, key: u64) -> bool {
        let _inside = reader.enter();
        let Ok(Some(old)) = self.index.replace(key, None) else { return false };
        self.heap.free(old.cast());
        true
    }

    /// Adds to the counter of a key's entry, in place; the sum, `None` if it is not there. A
    /// [`Map::set`] begins anew.
    pub fn add(&self, reader: &Reader, key: u64, more: u32) -> Option<u32> {
        let _inside = reader.enter();
        let changed = self.index.change(key, true, |entry| {
            // SAFETY: the entry of a key whose lock is held.
            let count = unsafe { &(*entry.as_ptr()).count };
            // A plain sum: all who change it have the lock.
            let sum = count.load(Ordering::Relaxed).wrapping_add(more);
            count.store(sum, Ordering::Relaxed);
            (sum, None)
        });
        match changed {
            Change::Done(sum) => Some(sum),
            _ => None,
        }
    }
}

/// Bytes of an entry.
///
/// # Safety
/// The entry was written, and its memory is not given back while the bytes are used.
unsafe fn bytes_of<'a>(entry: EntryAt) -> &'a [u8] {
    // SAFETY: `set` wrote `len` bytes after the header; they never change.
    unsafe {
        let len = (*entry.as_ptr()).len as usize;
        std::slice::from_raw_parts(entry.as_ptr().add(1).cast(), len)
    }
}

impl<I: Index> Relocate for &Map<I> {
    fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        let (from, to) = (object.start.cast::<Entry>(), room.start.cast::<Entry>());
        // SAFETY: objects that are ready hold an entry; the library keeps its memory.
        let (key, bytes) = unsafe { (key_of(from), size_of::<Entry>() + bytes_of(from).len()) };
        if bytes > room.bytes {
            return Outcome::NoSpace { need: bytes };
        }
        let changed = self.index.change(key, false, |entry| {
            if entry != from {
                return (false, None);
            }
            // SAFETY: the room is ours alone and has `bytes`; who changes the entry in place has
            // the lock that is held here.
            unsafe { room.start.copy_from_nonoverlapping(object.start, bytes) };
            (true, Some(to))
        });
        match changed {
            Change::Done(true) => Outcome::Moved { used: bytes },
            Change::Done(false) | Change::Missing => Outcome::Dead,
            Change::Busy => Outcome::Busy,
        }
    }

    fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        // SAFETY: the copy was just written by `relocate`.
        let key = unsafe { key_of(copy.start.cast()) };
        self.index.find(key).map(NonNull::cast)
    }
}

/// A number whose bits are spread over all (Steele et al., "Fast splittable pseudorandom number
/// generators", 2014).
fn hash(key: u64) -> u64 {
    let mixed = (key ^ (key >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Bits of an address.
const ADDRESS: u64 = (1 << 48) - 1;

/// An entry's address, and above it 16 bits of its key's hash, so that few others are looked at.
fn tagged(entry: EntryAt, hash: u64) -> u64 {
    let address = entry.as_ptr().expose_provenance() as u64;
    debug_assert_eq!(address & !ADDRESS, 0, "user addresses have 47 bits");
    address | hash & !ADDRESS
}

/// The entry of a tagged word, if the hash may be its key's.
fn untagged(word: u64, hash: u64) -> Option<EntryAt> {
    let is_like = (word ^ hash) & !ADDRESS == 0;
    let address = (word & ADDRESS) as usize;
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).filter(|_| is_like)
}
