//! What the library asks of a program: to move one object ([`Relocate`]).

use crate::slice::Slice;
use std::ptr::NonNull;

/// An object of the heap: where it lies, and the bytes that it may take, its size rounded up to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its first byte.
    pub start: NonNull<u8>,
    /// Bytes reserved for it.
    pub bytes: usize,
}

/// What became of an object that was to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was copied and every reference names the copy.
    Moved {
        /// Bytes of the room that the copy takes.
        used: usize,
    },
    /// The room is too small: nothing changed. The library offers more, once.
    NoSpace {
        /// Bytes that the copy would take.
        need: usize,
    },
    /// A thread holds it or its lock now: nothing changed. The library comes again, twice.
    Busy,
    /// No reference names it: it was freed or replaced meanwhile.
    Dead,
    /// It cannot move. The library leaves its segment alone for a while.
    Immovable,
}

/// Moves objects: a program's part of consolidation.
///
/// # Safety
/// `relocate` and `reference` keep the contract of `docs/moving-objects.md`: above all, Moved is
/// said only when every reference names a whole copy in the room, and the old copy stays as it is.
pub unsafe trait Relocate {
    /// Copies the object into the room and makes every reference name the copy, or says why not.
    ///
    /// It is called inside [`Consolidator::step`](crate::Consolidator::step), on that thread. It
    /// must not free, allocate or wait; it takes locks by trying. The old copy stays as it is:
    /// readers may hold it, and the library frees it.
    ///
    /// # Safety
    /// The object is one of the heap that is ready, and its memory stays meanwhile. The room is the
    /// callee's alone, is aligned to 16 bytes, and has its bytes.
    unsafe fn relocate(&mut self, object: Object, room: Object, slice: &Slice) -> Outcome;

    /// Where the reference leads that `relocate` changed, found by the copy's key. Asked only while
    /// callbacks are checked, to tell of references that still name the old copy; `None` if it
    /// cannot be told.
    ///
    /// # Safety
    /// [`Relocate::relocate`] just wrote the copy.
    unsafe fn reference(&mut self, _copy: Object) -> Option<NonNull<u8>> {
        None
    }
}

/// The callback of the paper (ObjecTier §5), `bool (*relocate)(void*, char*, size_t)`, as
/// [`Relocate`]: gets the object, where to copy it, and the bytes that are there.
///
/// The room always has what the object had, so false says that it cannot move now: Busy.
pub struct Paper<F>(F);

impl<F: FnMut(NonNull<u8>, NonNull<u8>, usize) -> bool> Paper<F> {
    /// With this callback.
    ///
    /// # Safety
    /// It says true only when every reference names a whole copy in the room, as [`Relocate`] asks.
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
    /// The reference leads elsewhere than to the copy.
    #[error("the callback said Moved, but the reference does not name the copy")]
    KeptReference,
    /// NoSpace for a room as large as it asked for.
    #[error("the callback said NoSpace of a room as large as it had asked for")]
    RefusedItsOwnSize,
    /// An object that is Busy on every visit.
    #[error("the callback said Busy of the same object on {0} visits")]
    BusyForEver(u32),
    /// None of the five results (C).
    #[error("the callback returned a result that is none of the five")]
    NoResult,
}
