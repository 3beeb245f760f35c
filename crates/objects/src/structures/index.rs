//! What a structure of movable entries must be able to do, and how its words name entries.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// The header of an entry; its bytes follow.
#[repr(C, align(16))]
pub struct Entry {
    pub(super) key: u64,
    pub(super) len: u32,
    pub(super) count: AtomicU32,
}

/// Where an entry lies.
pub type EntryAt = NonNull<Entry>;

/// Key of an entry.
///
/// # Safety
/// The entry was written, and its memory was not given back.
pub(super) unsafe fn key_of(entry: EntryAt) -> u64 {
    // SAFETY: as above; keys never change.
    unsafe { (*entry.as_ptr()).key }
}

/// Result of a change to the reference of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<R> {
    /// The change was made, or found not to be wanted.
    Done(R),
    /// The key is not there.
    Missing,
    /// Another thread has the lock, and the call was not to wait.
    Busy,
}

/// An index: finds the entry of a key.
///
/// Safe code cannot insert a pointer that is no entry:
/// ```compile_fail,E0133
/// use terrace_objects::structures::{Chained, Index as _};
/// let _ = Chained::for_keys(16).replace(1, Some(std::ptr::NonNull::dangling()));
/// ```
///
/// # Safety
/// `find` and `change` return the entry that `replace` or `change` set last for that key, and none
/// that was replaced. What `change` is told to set is in place when it returns.
pub unsafe trait Index: Send + Sync {
    /// The entry of a key.
    ///
    /// # Safety
    /// The caller is inside ([`Reader::enter`] of the heap with the entries), or is its relocator.
    unsafe fn find(&self, key: u64) -> Option<EntryAt>;

    /// Gives the key another entry, or none. Returns the one that it had; `Err` if the index is
    /// full.
    ///
    /// # Safety
    /// As for [`Index::find`]. The entry was written with that key. Its memory stays until it was
    /// replaced and all threads have left that were inside by then.
    unsafe fn replace(&self, key: u64, entry: Option<EntryAt>) -> Result<Option<EntryAt>, Full>;

    /// Calls `change` with the entry of the key, under the key's lock; it returns the new entry, if
    /// any.
    ///
    /// # Safety
    /// As for [`Index::replace`], for the entry that `change` returns.
    unsafe fn change<R>(
        &self,
        key: u64,
        wait: bool,
        change: impl FnOnce(EntryAt) -> (R, Option<EntryAt>),
    ) -> Change<R>;
}

/// Error: no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another entry: the heap or the index is full, or the value too large")]
pub struct Full;

/// Mask of the bits of an address.
const ADDRESS: u64 = (1 << 48) - 1;

/// A number whose bits are spread over all (Steele et al., "Fast splittable pseudorandom number
/// generators", 2014).
pub(super) fn hash(key: u64) -> u64 {
    let mixed = (key ^ (key >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// An entry's address, and above it 16 bits of its key's hash, so that few other entries are read.
pub(super) fn tagged(entry: EntryAt, hash: u64) -> u64 {
    let address = entry.as_ptr().expose_provenance() as u64;
    debug_assert_eq!(address & !ADDRESS, 0, "user addresses have 47 bits");
    address | hash & !ADDRESS
}

/// The entry of a tagged word, if the hash may be its key's.
pub(super) fn untagged(word: u64, hash: u64) -> Option<EntryAt> {
    let is_like = (word ^ hash) & !ADDRESS == 0;
    let address = (word & ADDRESS) as usize;
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).filter(|_| is_like)
}

/// Bytes of an entry.
///
/// # Safety
/// The entry was written, and its memory is not given back while the bytes are used.
pub(super) unsafe fn bytes_of<'a>(entry: EntryAt) -> &'a [u8] {
    // SAFETY: `set` wrote `len` bytes after the header; they never change.
    unsafe {
        let len = (*entry.as_ptr()).len as usize;
        std::slice::from_raw_parts(entry.as_ptr().add(1).cast(), len)
    }
}
