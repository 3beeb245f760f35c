//! A row store: rows that move, one B+-tree over them, and transactions. These use optimistic
//! versions as Silo's (Tu et al., "Speedy transactions in multicore in-memory databases", SOSP
//! 2013, §4.4).
//!
//! Each row begins with a word that has its version and a lock. A transaction copies what it reads
//! and remembers the versions. At its end it locks what it writes, in the order of keys. It checks
//! whether the versions that it read are still valid, and writes.
//!
//! A thread that moves a row locks it too, and leaves the old copy locked for ever. A thread that
//! holds a reference to that looks the key up again. A move keeps the version, so that only a
//! transaction that ends just then is tried again.

use crate::epoch::{Guard, Reader};
use crate::heap::Heap;
use crate::relocate::{Object, Outcome, Relocate};
use crate::slice::Slice;
use crate::structures::{Change, EntryAt, Full, Index, OTHER_HEAP, Tree};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bit of a row's version: a thread writes or moves it; or it was moved or deleted.
const LOCKED: u64 = 1;
/// Bit of a row's version: it was inserted by a transaction that has not ended yet.
const ABSENT: u64 = 2;
/// Difference of one version to the next.
const STEP: u64 = 4;

/// A row of `WORDS` words.
#[repr(C, align(16))]
struct Row<const WORDS: usize> {
    version: AtomicU64,
    key: u64,
    words: [AtomicU64; WORDS],
}

/// Rows of `WORDS` words each, by their keys.
pub struct Rows<const WORDS: usize> {
    heap: Arc<Heap>,
    tree: Tree,
    /// The highest version of a row that was removed. A later row of the same key has a higher one;
    /// otherwise a transaction could take it for the first.
    removed: AtomicU64,
}

/// Why a transaction did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Aborted {
    /// Another transaction changed what this one had read: it may be tried again.
    #[error("another transaction changed a row that this one had read")]
    Conflict,
    /// No room is left for another row.
    #[error("no room for another row: the heap is full")]
    Full,
}

/// What a transaction has read and will write. Other threads see nothing of it before
/// [`Transaction::commit`].
pub struct Transaction<'a, const WORDS: usize> {
    rows: &'a Rows<WORDS>,
    reader: &'a Reader,
    /// The version at which each key was read; `None` where there was no row.
    read: BTreeMap<u64, Option<u64>>,
    /// The new words of each key; `None` where its row is to be removed.
    writes: BTreeMap<u64, Option<[u64; WORDS]>>,
}

impl<const WORDS: usize> Rows<WORDS> {
    /// Makes an empty store with rows in a heap. Panics if the heap has a structure already:
    /// neither could tell the other's objects from its own.
    pub fn new(heap: Arc<Heap>) -> Rows<WORDS> {
        heap.claim();
        Rows { heap, tree: Tree::default(), removed: AtomicU64::new(0) }
    }

    /// The heap that holds the rows.
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// Begins a transaction. Panics if the reader is another heap's.
    pub fn begin<'a>(&'a self, reader: &'a Reader) -> Transaction<'a, WORDS> {
        drop(self.heap.enter(reader));
        Transaction { rows: self, reader, read: BTreeMap::new(), writes: BTreeMap::new() }
    }

    /// Runs a transaction until no other one is in its way.
    pub fn run<R>(
        &self,
        reader: &Reader,
        mut work: impl FnMut(&mut Transaction<'_, WORDS>) -> R,
    ) -> Result<R, Full> {
        loop {
            let mut transaction = self.begin(reader);
            let result = work(&mut transaction);
            match transaction.commit() {
                Ok(()) => return Ok(result),
                Err(Aborted::Full) => return Err(Full),
                Err(Aborted::Conflict) => std::thread::yield_now(),
            }
        }
    }

    /// The row of a key. It stays readable while the guard lives.
    fn find<'g>(&self, key: u64, _inside: &'g Guard<'_>) -> Option<&'g Row<WORDS>> {
        // SAFETY: the tree has rows of this type that were written before they came there, and a
        // thread that is inside keeps their memory.
        unsafe { self.tree.find(key).map(|row| row.cast::<Row<WORDS>>().as_ref()) }
    }

    /// A row and its version, once no thread writes it.
    fn read(&self, key: u64, inside: &Guard<'_>) -> Option<(u64, [u64; WORDS])> {
        loop {
            let row = self.find(key, inside)?;
            let version = row.version.load(Ordering::Acquire);
            if version & LOCKED == 0 {
                let words = std::array::from_fn(|at| row.words[at].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if row.version.load(Ordering::Relaxed) == version {
                    return Some((version, words)).filter(|_| version & ABSENT == 0);
                }
            }
            std::thread::yield_now();
        }
    }

    /// Locks the row of a key, which is made if there is none. Returns it, and its version before.
    fn lock<'g>(&self, key: u64, inside: &'g Guard<'_>) -> Result<(&'g Row<WORDS>, u64), Full> {
        loop {
            let Some(row) = self.find(key, inside) else {
                if let Some(row) = self.insert_absent(key)? {
                    // SAFETY: just made and locked, so that no other thread moves or frees it.
                    return Ok((unsafe { row.as_ref() }, ABSENT));
                }
                continue;
            };
            let version = row.version.load(Ordering::Relaxed);
            if version & LOCKED == 0
                && row
                    .version
                    .compare_exchange(
                        version,
                        version | LOCKED,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                return Ok((row, version));
            }
            std::thread::yield_now();
        }
    }

    /// Puts a locked row of no contents into the tree, unless the key has one by now.
    fn insert_absent(&self, key: u64) -> Result<Option<NonNull<Row<WORDS>>>, Full> {
        let room = self.heap.allocate(size_of::<Row<WORDS>>()).ok_or(Full)?;
        let row = room.cast::<Row<WORDS>>();
        let version = AtomicU64::new(ABSENT | LOCKED);
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        // SAFETY: ours alone, aligned to 16 bytes, and large enough.
        unsafe {
            row.write(Row { version, key, words });
            self.heap.ready(room);
        }
        // SAFETY: called inside; the row was written above, and `Heap::free` ends it, which keeps
        // its bytes for threads that are inside.
        if unsafe { self.tree.insert_new(key, room.cast()) } {
            return Ok(Some(row));
        }
        // SAFETY: no reference to it was ever there.
        unsafe { self.heap.free(room) };
        Ok(None)
    }

    /// Removes a row that is locked, and stays so: a thread that holds it looks the key up again.
    fn remove(&self, row: &Row<WORDS>, version: u64) {
        self.removed.fetch_max(version, Ordering::Relaxed);
        // SAFETY: called inside, and no row is put there; then the tree has no reference to it.
        unsafe {
            self.tree.replace(row.key, None).expect("nothing is added");
            self.heap.free(NonNull::from(row).cast());
        }
    }
}

impl<const WORDS: usize> Transaction<'_, WORDS> {
    /// The words of a key, as this transaction sees them.
    pub fn get(&mut self, key: u64) -> Option<[u64; WORDS]> {
        if let Some(written) = self.writes.get(&key) {
            return *written;
        }
        let inside = self.reader.enter();
        let found = self.rows.read(key, &inside);
        // A key that is read twice must be the same both times: the commit checks it.
        self.read.entry(key).or_insert(found.map(|(version, _)| version));
        let row = self.rows.find(key, &inside);
        if let Some(row) = row {
            self.rows.heap.touch(NonNull::from(row).cast());
        }
        found.map(|(_, words)| words)
    }

    /// Gives a key these words.
    pub fn put(&mut self, key: u64, words: [u64; WORDS]) {
        self.writes.insert(key, Some(words));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: u64) {
        self.writes.insert(key, None);
    }

    /// Ends the transaction: other threads see all its writes at once, or none.
    pub fn commit(self) -> Result<(), Aborted> {
        let inside = self.reader.enter();
        let mut locked = BTreeMap::new();
        for &key in self.writes.keys() {
            match self.rows.lock(key, &inside) {
                Ok(row) => drop(locked.insert(key, row)),
                Err(Full) => {
                    self.unlock(&locked);
                    return Err(Aborted::Full);
                }
            }
        }
        fence(Ordering::SeqCst);
        if !self.is_valid(&locked, &inside) {
            self.unlock(&locked);
            return Err(Aborted::Conflict);
        }
        let read = self.read.values().flatten().copied();
        let removed = self.rows.removed.load(Ordering::Relaxed);
        let written = locked.values().map(|(_, version)| *version);
        let newest = read.chain(written).fold(removed, u64::max);
        let version = (newest & !(LOCKED | ABSENT)) + STEP;
        for (key, (row, _)) in &locked {
            match self.writes[key] {
                Some(words) => {
                    // No thread sees the writes before the lock.
                    fence(Ordering::Release);
                    for (word, new) in row.words.iter().zip(words) {
                        word.store(new, Ordering::Relaxed);
                    }
                    row.version.store(version, Ordering::Release);
                }
                None => self.rows.remove(row, version),
            }
        }
        Ok(())
    }

    /// Whether all versions read are still valid, and no other thread is about to write them.
    fn is_valid(&self, locked: &Locked<'_, WORDS>, inside: &Guard<'_>) -> bool {
        self.read.iter().all(|(key, seen)| {
            let now = match locked.get(key) {
                Some((_, version)) => Some(*version),
                None => self.rows.find(*key, inside).map(|row| row.version.load(Ordering::Acquire)),
            };
            let absent = now.is_none_or(|version| version & (ABSENT | LOCKED) == ABSENT);
            now == *seen || seen.is_none() && absent
        })
    }

    /// Opens all locks, and removes rows that were made for this transaction.
    fn unlock(&self, locked: &Locked<'_, WORDS>) {
        for (row, version) in locked.values() {
            match version & ABSENT {
                0 => row.version.store(*version, Ordering::Release),
                _ => self.rows.remove(row, 0),
            }
        }
    }
}

/// Rows that a transaction has locked, with their versions before.
type Locked<'g, const WORDS: usize> = BTreeMap<u64, (&'g Row<WORDS>, u64)>;

// SAFETY: the reference in the tree is changed under the row's lock and the tree's. The copy is
// made before, and the old copy stays as it is except for its lock.
unsafe impl<const WORDS: usize> Relocate for &Rows<WORDS> {
    unsafe fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        assert!(self.heap.contains(object.start.as_ptr()), "{OTHER_HEAP}");
        let bytes = size_of::<Row<WORDS>>();
        if bytes > room.bytes {
            return Outcome::NoSpace { need: bytes };
        }
        let from = object.start.cast::<Row<WORDS>>();
        // SAFETY: the heap is this store's alone, so that its objects that are ready are rows of
        // this store; the library keeps their memory.
        let row = unsafe { from.as_ref() };
        let change = |entry: EntryAt| {
            if entry != from.cast() {
                return (Outcome::Dead, None);
            }
            let version = row.version.load(Ordering::Relaxed);
            let lock = || {
                let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
                row.version.compare_exchange(version, version | LOCKED, acquire, relaxed)
            };
            if version & LOCKED != 0 || lock().is_err() {
                return (Outcome::Busy, None);
            }
            let copy = |at: usize| AtomicU64::new(row.words[at].load(Ordering::Relaxed));
            let (version, key) = (AtomicU64::new(version), row.key);
            let words = std::array::from_fn(copy);
            // SAFETY: the room is ours alone, aligned to 16 bytes, and large enough.
            unsafe { room.start.cast::<Row<WORDS>>().write(Row { version, key, words }) };
            (Outcome::Moved { used: bytes }, Some(room.start.cast()))
        };
        // SAFETY: this is the relocator. The row that it puts there is a copy with this key, whose
        // memory is freed as that of any other row.
        let changed = unsafe { self.tree.change(row.key, false, change) };
        match changed {
            Change::Done(outcome) => outcome,
            Change::Missing => Outcome::Dead,
            Change::Busy => Outcome::Busy,
        }
    }

    unsafe fn reference(&mut self, copy: Object) -> Option<NonNull<u8>> {
        // SAFETY: the copy was just written by `relocate`, and this is the relocator.
        unsafe {
            let key = copy.start.cast::<Row<WORDS>>().as_ref().key;
            self.tree.find(key).map(|entry: EntryAt| entry.cast())
        }
    }
}
