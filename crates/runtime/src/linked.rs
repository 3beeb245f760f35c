//! What `include/terrace.h` declares, for programs that know what they are about to touch, and
//! which objects belong together. `mnalloc` itself is in [`crate::entry`].

use crate::current::pager;
use terrace_alloc::placement::{self, ArenaFigures, ArenaId};
use terrace_os::{Errno, set_thread_errno, untagged};
use terrace_pager::{Expectation, Mode};

/// Restores the evicted pages of a range now. Safe with any address, also from signal handlers;
/// keeps `errno`.
#[unsafe(no_mangle)]
extern "C" fn terrace_touch(pointer: usize, len: usize) {
    if let Some(pager) = pager() {
        pager.touch(untagged(pointer), len);
    }
}

/// Begins to restore the evicted pages of a range, while the caller goes on.
#[unsafe(no_mangle)]
extern "C" fn terrace_prefetch(pointer: usize, len: usize) {
    if let Some(pager) = pager() {
        pager.prefetch(untagged(pointer), len);
    }
}

fn fail(error: i32) -> i32 {
    set_thread_errno(Errno::new(error));
    -1
}

/// Sets how a range will be used: normally, often, seldom, or soon; or that it stays in DRAM.
#[unsafe(no_mangle)]
extern "C" fn terrace_advise(pointer: usize, len: usize, advice: i32) -> i32 {
    let Some(pager) = pager().filter(|pager| pager.mode() != Mode::Failed && len > 0) else {
        return if (0..=4).contains(&advice) { 0 } else { fail(libc::EINVAL) };
    };
    let pointer = untagged(pointer);
    match advice {
        0 => {
            pager.pin(pointer, len, false);
            pager.advise(pointer, len, None);
        }
        1 => {
            pager.prefetch(pointer, len);
            pager.advise(pointer, len, Some(Expectation::Hot));
        }
        2 => pager.advise(pointer, len, Some(Expectation::Cold)),
        3 => pager.prefetch(pointer, len),
        4 => pager.pin(pointer, len, true),
        _ => return fail(libc::EINVAL),
    }
    0
}

/// Makes an arena. Returns 0 without memory.
#[unsafe(no_mangle)]
extern "C" fn terrace_arena_create(kind: usize, what: usize) -> ArenaId {
    placement::create(kind, what)
}

/// Frees all objects of an arena, and ends it. Returns −1 with EINVAL if there is none.
#[unsafe(no_mangle)]
extern "C" fn terrace_arena_destroy(arena: ArenaId) -> i32 {
    if placement::destroy(arena) { 0 } else { fail(libc::EINVAL) }
}

/// Tells how much an arena holds. Returns −1 with EINVAL if there is none.
///
/// # Safety
/// `figures` points to writable memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn terrace_arena_query(arena: ArenaId, figures: *mut ArenaFigures) -> i32 {
    match placement::query(arena) {
        Some(found) => {
            // SAFETY: the caller's promise.
            unsafe { figures.write(found) };
            0
        }
        None => fail(libc::EINVAL),
    }
}

/// The arena in which an object lies; 0 if it lies in none.
#[unsafe(no_mangle)]
extern "C" fn terrace_arena_of(object: usize) -> ArenaId {
    placement::arena_at(object)
}

/// Switches the reports of misuse on standard error on or off.
#[unsafe(no_mangle)]
extern "C" fn terrace_check(on: i32) {
    placement::check(on != 0);
}
