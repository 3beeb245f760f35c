//! Where the measured programs' objects are to lie, if this run is one with placements.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use terrace_api::{Placement, within};

static PLACES: AtomicBool = AtomicBool::new(false);

/// Whether this run is.
pub fn set(places: bool) {
    PLACES.store(places, Relaxed);
}

/// See there.
pub fn is_on() -> bool {
    PLACES.load(Relaxed)
}

/// Has what `f` allocates lie there.
pub fn place<R>(placement: Placement, f: impl FnOnce() -> R) -> R {
    if is_on() {
        // SAFETY: what is in an arena here goes before it.
        unsafe { within(placement, f) }
    } else {
        f()
    }
}

/// Beside an object.
pub fn next_to<T: ?Sized>(object: &T) -> Placement {
    Placement::NextTo(std::ptr::from_ref(object).cast())
}
