//! Structures without concurrency of their own, under a lock: writers hold it exclusively, readers
//! share it. The relocator shares it too: it keeps writers out, and readers find the old copy or
//! the new one.

use super::index::{Change, Entry, EntryAt, Full, Index};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{RwLock, RwLockWriteGuard, TryLockError};

/// A reference to an entry.
pub struct Reference(AtomicPtr<Entry>);

impl Reference {
    /// Makes a reference that leads to an entry.
    pub fn new(entry: EntryAt) -> Reference {
        Reference(AtomicPtr::new(entry.as_ptr()))
    }

    fn get(&self) -> EntryAt {
        NonNull::new(self.0.load(Ordering::Acquire)).expect("references lead to entries")
    }

    fn set(&self, entry: EntryAt) {
        self.0.store(entry.as_ptr(), Ordering::Release);
    }
}

/// What a structure does with its references. It never reads an entry.
pub trait Ordered: Default + Send + Sync {
    /// The reference of a key.
    fn get(&self, key: u64) -> Option<&Reference>;
    /// Adds a key that is not there.
    fn insert(&mut self, key: u64, reference: Reference);
    /// Removes a key.
    fn remove(&mut self, key: u64) -> Option<Reference>;
}

/// A structure under its lock.
#[derive(Default)]
pub struct Guarded<T>(RwLock<T>);

impl<T: Ordered> Guarded<T> {
    /// Gives a key an entry, unless it has one. Returns whether it had none.
    ///
    /// # Safety
    /// As for [`Index::replace`].
    pub unsafe fn insert_new(&self, key: u64, entry: EntryAt) -> bool {
        let mut inside = self.write();
        let is_new = inside.get(key).is_none();
        if is_new {
            inside.insert(key, Reference::new(entry));
        }
        is_new
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect("no panic under this lock")
    }
}

/// Calls `change` with the entry of a key, and changes its reference.
fn changed<T: Ordered, R>(
    inside: &T,
    key: u64,
    change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
) -> Change<R> {
    let Some(reference) = inside.get(key) else { return Change::Missing };
    let (result, new) = change(reference.get());
    if let Some(new) = new {
        reference.set(new);
    }
    Change::Done(result)
}

// SAFETY: references are changed under the lock alone, and hold what was put there.
unsafe impl<T: Ordered> Index for Guarded<T> {
    unsafe fn find(&self, key: u64) -> Option<EntryAt> {
        let inside = self.0.read().expect("no panic under this lock");
        inside.get(key).map(Reference::get)
    }

    unsafe fn replace(&self, key: u64, entry: Option<EntryAt>) -> Result<Option<EntryAt>, Full> {
        let mut inside = self.write();
        let Some(entry) = entry else {
            return Ok(inside.remove(key).map(|reference| reference.get()));
        };
        if let Some(reference) = inside.get(key) {
            let old = reference.get();
            reference.set(entry);
            return Ok(Some(old));
        }
        inside.insert(key, Reference::new(entry));
        Ok(None)
    }

    unsafe fn change<R>(
        &self,
        key: u64,
        wait: bool,
        change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
    ) -> Change<R> {
        if wait {
            return changed(&*self.write(), key, change);
        }
        // There is one relocator, so a share keeps all out that change entries or references.
        match self.0.try_read() {
            Ok(inside) => changed(&*inside, key, change),
            Err(TryLockError::WouldBlock) => Change::Busy,
            Err(TryLockError::Poisoned(_)) => panic!("no panic under this lock"),
        }
    }
}
