//! Maps from numbers to bytes whose entries move. They show what five common structures must tell
//! the library; its tests and benchmarks run on them.
//!
//! [`Map`] holds entries, and changes references through an [`Index`]: [`Chained`] and [`Open`]
//! hash, [`Tree`], [`SkipList`], [`Radix`]. Entries are replaced whole, so that readers without a
//! lock see the old or the new one. A counter in each is changed in place, under the lock that the
//! relocator takes too.

mod chained;
mod guarded;
mod index;
mod latch;
mod open;
mod radix;
mod skip_list;
mod tree;

pub use chained::Chained;
pub use index::{Change, Entry, EntryAt, Full, Index};
pub use latch::Latch;
pub use open::Open;
pub use radix::Radix;
pub use skip_list::SkipList;
pub use tree::Tree;

use crate::epoch::Reader;
use crate::heap::Heap;
use crate::relocate::{Object, Outcome, Relocate};
use crate::slice::Slice;
use index::{bytes_of, key_of};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Message of a panic about a consolidator of another heap.
pub(crate) const OTHER_HEAP: &str = "the consolidator is of another heap than the structure";

/// A map from numbers to bytes.
pub struct Map<I> {
    heap: Arc<Heap>,
    index: I,
}

impl<I: Index> Map<I> {
    /// Makes an empty map. Panics if the heap has a structure already: neither could tell the
    /// other's entries from its own.
    pub fn new(heap: Arc<Heap>, index: I) -> Map<I> {
        heap.claim();
        Map { heap, index }
    }

    /// The heap that holds the entries.
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// The index, for tests of what it keeps.
    #[cfg(all(test, not(loom)))]
    pub(super) fn index(&self) -> &I {
        &self.index
    }

    /// Copies the bytes of a key into `value`; false if the key is not there.
    pub fn get(&self, reader: &Reader, key: u64, value: &mut Vec<u8>) -> bool {
        self.read(reader, key, |bytes| {
            value.clear();
            value.extend_from_slice(bytes);
        })
        .is_some()
    }

    /// Calls `read` with the bytes of a key.
    pub fn read<R>(&self, reader: &Reader, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let _inside = self.heap.enter(reader);
        // SAFETY: inside of this heap, which has the entries.
        let entry = unsafe { self.index.find(key) }?;
        self.heap.touch(entry.cast());
        // SAFETY: found while inside, so its memory stays; entries' bytes never change.
        Some(read(unsafe { bytes_of(entry) }))
    }

    /// Where the entry of a key lies now, for measurements.
    pub fn locate(&self, reader: &Reader, key: u64) -> Option<Object> {
        let _inside = self.heap.enter(reader);
        // SAFETY: inside of this heap, which has the entries.
        let entry = unsafe { self.index.find(key) }?;
        // SAFETY: as in `read`.
        let len = unsafe { bytes_of(entry) }.len();
        Some(Object { start: entry.cast(), bytes: size_of::<Entry>() + len })
    }

    /// Gives a key these bytes.
    pub fn set(&self, reader: &Reader, key: u64, value: &[u8]) -> Result<(), Full> {
        let _inside = self.heap.enter(reader);
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
        // SAFETY: of this heap, and written.
        unsafe { self.heap.ready(room) };
        self.heap.touch(room);
        // SAFETY: inside; the entry was written above with this key. What is replaced is freed by
        // `Heap::free`, which keeps its bytes for threads that are inside.
        match unsafe { self.index.replace(key, Some(entry)) } {
            Ok(None) => Ok(()),
            Ok(Some(old)) => {
                // SAFETY: the index has it no more.
                unsafe { self.heap.free(old.cast()) };
                Ok(())
            }
            Err(full) => {
                // SAFETY: the index never had it.
                unsafe { self.heap.free(room) };
                Err(full)
            }
        }
    }

    /// Removes a key; false if it was not there.
    pub fn delete(&self, reader: &Reader, key: u64) -> bool {
        let _inside = self.heap.enter(reader);
        // SAFETY: inside; no entry is put there.
        let Ok(Some(old)) = (unsafe { self.index.replace(key, None) }) else { return false };
        // SAFETY: the index has it no more.
        unsafe { self.heap.free(old.cast()) };
        true
    }

    /// Adds to the counter of a key's entry, in place. Returns the sum, `None` if the key is not
    /// there. A [`Map::set`] resets it.
    pub fn add(&self, reader: &Reader, key: u64, more: u32) -> Option<u32> {
        let _inside = self.heap.enter(reader);
        let add = |entry: EntryAt| {
            // SAFETY: the entry of a key whose lock is held.
            let count = unsafe { &(*entry.as_ptr()).count };
            // A plain sum: every thread that changes it has the lock.
            let sum = count.load(Ordering::Relaxed).wrapping_add(more);
            count.store(sum, Ordering::Relaxed);
            (sum, None)
        };
        // SAFETY: inside; no entry is put there.
        let changed = unsafe { self.index.change(key, true, add) };
        match changed {
            Change::Done(sum) => Some(sum),
            _ => None,
        }
    }
}

// SAFETY: the reference is changed under the key's lock, to a whole copy. Threads write the old one
// only under that lock.
unsafe impl<I: Index> Relocate for &Map<I> {
    unsafe fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        assert!(self.heap.contains(object.start.as_ptr()), "{OTHER_HEAP}");
        let (from, to) = (object.start.cast::<Entry>(), room.start.cast::<Entry>());
        // SAFETY: the heap is this map's alone, so that its objects that are ready are entries of
        // this map; the library keeps their memory.
        let (key, bytes) = unsafe { (key_of(from), size_of::<Entry>() + bytes_of(from).len()) };
        if bytes > room.bytes {
            return Outcome::NoSpace { need: bytes };
        }
        let change = |entry: EntryAt| {
            if entry != from {
                return (false, None);
            }
            // SAFETY: the room is ours alone and has `bytes`; a thread that changes the entry in
            // place has the lock that is held here.
            unsafe { room.start.copy_from_nonoverlapping(object.start, bytes) };
            (true, Some(to))
        };
        // SAFETY: this is the relocator. The entry that it puts there is a copy with this key,
        // whose memory is freed as that of any other entry.
        let changed = unsafe { self.index.change(key, false, change) };
        match changed {
            Change::Done(true) => Outcome::Moved { used: bytes },
            Change::Done(false) | Change::Missing => Outcome::Dead,
            Change::Busy => Outcome::Busy,
        }
    }

    unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        // SAFETY: the copy was just written by `relocate`, and this is the relocator.
        unsafe { self.index.find(key_of(copy.start.cast())).map(NonNull::cast) }
    }
}
