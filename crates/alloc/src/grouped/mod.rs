//! malloc and free of grouped objects, as `shim/malloc.c` calls them: context → zone → magazine.

mod classes;
mod large;
mod magazines;
mod sites;
pub(crate) mod slabs;
mod watch;

use crate::grouped::classes::{GROUPED_MAX, class_of, class_of_aligned, size_of_class};
use crate::grouped::large::Large;
use crate::grouped::magazines::Cache;
use terrace_context::{self as context, Caller, unwind};
use terrace_os as sys;

pub use crate::grouped::slabs::map_bytes;
pub use crate::grouped::watch::{
    forget_samples, lock_watch_for_fork, sampled, scan as scan_sites, tell as tell_sites,
    unlock_watch_after_fork,
};
pub use terrace_context::unwind::forget as library_unloaded;
pub use terrace_context::will_have_stack;

unsafe extern "C" {
    fn terrace_group_threads();
    static mut terrace_watching: i32;
}

/// How objects are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// Zones, 1 to 255.
    pub zones: usize,
    /// Frames that make a context, 1 to 16; 0: the return address and the height of the stack.
    pub depth: usize,
    /// Whether each site's objects are tracked: where they are and how hot.
    pub watched: bool,
}

/// Threads that allocate for the first time, and this one, group their objects by context from now
/// on. Without address space for the zones nothing changes, which is reported.
pub fn start(grouping: Grouping) {
    if !slabs::open(grouping.zones, grouping.watched) {
        sys::warn(
            "no address space for zones (ulimit -v): objects are ordered by size, not by context",
        );
        return;
    }
    if !unwind::find_objects() && grouping.depth > 0 {
        sys::warn(
            "this C library cannot find unwind information (glibc 2.35 can): contexts are told apart by return address and stack height only",
        );
    }
    context::learn_stacks();
    context::set_depth(grouping.depth);
    sites::set_zones(grouping.zones);
    // SAFETY: a flag that is read without order; a thread that reads it late is not tracked yet.
    unsafe { (&raw mut terrace_watching).write_volatile(i32::from(grouping.watched)) };
    // SAFETY: everything is ready.
    unsafe { terrace_group_threads() };
}

/// A cache for the calling thread; null without memory.
#[unsafe(no_mangle)]
extern "C" fn terrace_cache_create() -> *mut Cache {
    Cache::create()
}

/// Ends a thread's cache.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_cache_end(cache: *mut Cache) {
    // SAFETY: the shim made it with the function above, and has forgotten it.
    unsafe { Cache::end(cache) }
}

/// Allocates a grouped object of at least `size` bytes, which are at most GROUPED_MAX. Null if
/// there is none here.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_grouped_malloc(
    size: usize,
    return_address: usize,
    frame: usize,
    frame_pointer: usize,
    cache: *mut Cache,
) -> *mut u8 {
    debug_assert!(size <= GROUPED_MAX);
    // SAFETY: the calling thread's own, as only the shim knows it.
    let cache = unsafe { &mut *cache };
    let (zone, site) = sites::of(&cache.stack, Caller { return_address, frame, frame_pointer });
    let object = cache.take(zone, class_of(size));
    if slabs::are_tagged() && !object.is_null() {
        // SAFETY: an object that was just handed out.
        unsafe { slabs::set_tag(object, site) };
    }
    object
}

/// Bytes of the smallest grouped object that holds `size` bytes at a multiple of `align`. 0 if no
/// class does.
#[unsafe(no_mangle)]
extern "C" fn terrace_grouped_size(size: usize, align: usize) -> usize {
    class_of_aligned(size, align).map_or(0, size_of_class)
}

/// Frees an object of a zone of groups; `cache` may be null.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_grouped_free(object: *mut u8, cache: *mut Cache) {
    // SAFETY: the program's word that it was allocated: then it lies in a slab.
    let Some(place) = (unsafe { slabs::place_of(object as usize) }) else {
        debug_assert!(false, "{object:?} was not allocated");
        return;
    };
    // SAFETY: null, or the calling thread's own.
    match unsafe { cache.as_mut() } {
        Some(cache) => cache.put(place.zone(), place.class(), object),
        None => slabs::put(place.zone(), &[object]),
    }
}

/// Bytes of an object of a zone of groups.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_grouped_usable(object: *const u8) -> usize {
    // SAFETY: as above.
    unsafe { slabs::place_of(object as usize) }.map_or(0, |place| size_of_class(place.class()))
}

/// Records an object that is too large to be grouped. Only called where objects are tracked.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_large_born(
    object: *mut u8,
    bytes: usize,
    return_address: usize,
    frame: usize,
    frame_pointer: usize,
    cache: *mut Cache,
) {
    // SAFETY: the calling thread's own, as only the shim knows it.
    let stack = unsafe { &(*cache).stack };
    let (_, site) = sites::of(stack, Caller { return_address, frame, frame_pointer });
    terrace_large_lives(object, bytes, site);
}

/// Records that an object of this site has this length now. Only called where objects are tracked.
#[unsafe(no_mangle)]
extern "C" fn terrace_large_lives(object: *mut u8, bytes: usize, site: u16) {
    if site != 0 {
        large::born(object as usize, Large { bytes, site });
    }
}

/// Forgets an object that is about to be freed or moved. Returns its site, 0 if that is not known.
/// Only called where objects are tracked.
#[unsafe(no_mangle)]
extern "C" fn terrace_large_dies(object: *mut u8) -> u16 {
    large::dies(object as usize).map_or(0, |large| large.site)
}

/// Takes the locks of grouped objects that not every fork takes, after [`lock_watch_for_fork`].
/// They come after jemalloc's, which is never called under them, and before those of
/// [`crate::zone`].
pub fn lock_for_fork() {
    sites::lock_for_fork();
    large::lock_for_fork();
    slabs::lock_for_fork();
}

/// Opens the locks again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    unsafe {
        slabs::unlock_after_fork();
        large::unlock_after_fork();
        sites::unlock_after_fork();
    }
}

#[cfg(test)]
mod tests;
