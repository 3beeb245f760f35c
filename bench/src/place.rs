//! Places for the measured programs' objects, if this run is one with placements.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terrace_api::{Arena, Placement, within};

static PLACES: AtomicBool = AtomicBool::new(false);

/// Says whether this run is one with placements.
pub fn set(places: bool) {
    PLACES.store(places, Relaxed);
}

/// Whether this run is one with placements.
pub fn is_on() -> bool {
    PLACES.load(Relaxed)
}

/// Has what `f` allocates lie at a placement.
pub fn place<R>(placement: Placement, f: impl FnOnce() -> R) -> R {
    if is_on() {
        // SAFETY: what is in an arena here goes before it.
        unsafe { within(placement, f) }
    } else {
        f()
    }
}

/// Kinds of objects that are told apart.
const KINDS: usize = 32;

/// Placement in an arena for objects of this kind, which is among those `like` it.
pub fn with_kind(kind: usize, like: Placement) -> Placement {
    static ARENAS: [OnceLock<Arena>; KINDS] = [const { OnceLock::new() }; KINDS];
    if !is_on() {
        return Placement::Default;
    }
    Placement::Arena(ARENAS[kind.min(KINDS - 1)].get_or_init(|| Arena::new(like)).id())
}

/// Placement beside an object.
pub fn next_to<T: ?Sized>(object: &T) -> Placement {
    Placement::NextTo(std::ptr::from_ref(object).cast())
}
