//! What the library asks of a program: to move one object ([`Relocate`]).

use crate::slice::Slice;
use std::ptr::NonNull;

/// An object of the heap: its address, and the bytes that it may take, its size rounded up to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Address of the first byte.
    pub start: NonNull<u8>,
    /// Bytes reserved for the object.
    pub bytes: usize,
}

/// Result of moving an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object was copied, and every reference names the copy.
    Moved {
        /// Bytes of the room that the copy takes.
        used: usize,
    },
    /// The room is too small: nothing changed. The library offers more, once.
    NoSpace {
        /// Bytes that the copy would take.
        need: usize,
    },
    /// A thread holds the object or its lock now: nothing changed. The library comes again, twice.
    Busy,
    /// No reference names the object: it was freed or replaced meanwhile.
    Dead,
    /// The object cannot move. The library leaves its segment alone for a while.
    Immovable,
}

/// Moves objects: a program's part of consolidation.
///
/// # Safety
/// `relocate` and `reference` keep the contract of `docs/moving-objects.md`. Above all, Moved is
/// returned only when every reference names a whole copy in the room, and the old copy stays as it
/// is.
pub unsafe trait Relocate {
    /// Copies the object into the room and makes every reference name the copy, or says why not.
    ///
    /// It is called inside [`Consolidator::step`](crate::Consolidator::step), on that thread. It
    /// must not free, allocate or wait; it takes locks by trying. The old copy stays as it is:
    /// readers may hold it, and the library frees it.
    ///
    /// # Safety
    /// The object is ready, one of the heap's, and its memory stays meanwhile. The room is the
    /// callee's alone, aligned to 16 bytes, and as long as it says.
    unsafe fn relocate(&mut self, object: Object, room: Object, slice: &Slice) -> Outcome;

    /// Where the reference leads that `relocate` changed, found by the copy's key. Called only
    /// while callbacks are checked, to find references that still name the old copy. `None` if it
    /// is not known.
    ///
    /// # Safety
    /// [`Relocate::relocate`] just wrote the copy.
    unsafe fn reference(&mut self, _copy: Object) -> Option<NonNull<u8>> {
        None
    }
}

/// The callback of the paper (ObjecTier §5), `bool (*relocate)(void*, char*, size_t)`, as
/// [`Relocate`]. It gets the object, the address for the copy, and the bytes of the room.
///
/// The room is always as large as the object's, so false means that it cannot move now: Busy.
pub struct Paper<F>(F);

impl<F: FnMut(NonNull<u8>, NonNull<u8>, usize) -> bool> Paper<F> {
    /// Makes a relocator of a callback.
    ///
    /// # Safety
    /// The callback returns true only when every reference names a whole copy in the room, as
    /// [`Relocate`] demands.
    pub unsafe fn new(relocate: F) -> Paper<F> {
        Paper(relocate)
    }
}

// SAFETY: the caller of `Paper::new` promises it.
unsafe impl<F: FnMut(NonNull<u8>, NonNull<u8>, usize) -> bool> Relocate for Paper<F> {
    unsafe fn relocate(&mut self, object: Object, room: Object, _slice: &Slice) -> Outcome {
        match (self.0)(object.start, room.start, room.bytes) {
            true => Outcome::Moved { used: object.bytes },
            false => Outcome::Busy,
        }
    }
}

/// How a callback broke the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// `used` is larger than the room.
    #[error("the callback said Moved with more bytes than the room has")]
    LargerThanRoom,
    /// Bytes after the room were written.
    #[error("the callback wrote past the end of the room")]
    WrotePastRoom,
    /// The old copy was freed.
    #[error("the callback freed the old copy, which is the library's to free")]
    FreedOldCopy,
    /// The reference does not lead to the copy.
    #[error("the callback said Moved, but the reference does not name the copy")]
    KeptReference,
    /// NoSpace for a room of the size that the callback asked for.
    #[error("the callback said NoSpace of a room as large as it had asked for")]
    RefusedItsOwnSize,
    /// An object that is Busy on every visit.
    #[error("the callback said Busy of the same object on {0} visits")]
    BusyForEver(u32),
    /// A value that is none of the five results (C).
    #[error("the callback returned a result that is none of the five")]
    NoResult,
}
