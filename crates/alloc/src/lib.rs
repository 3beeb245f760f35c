//! Which objects share pages: the malloc family over zones.
//!
//! `shim/malloc.c` has the entry points; [`arenas`] the jemalloc arenas behind them; [`zone`] the address ranges behind those;
//! [`unmanaged`] the allocator for everything that must never be evicted.
//!
//! With [`grouped`] objects below a page go by who allocates them: the crate `context` tells that, [`sites`] has each
//! context's zone, [`watch`] what they hold and how hot that is, [`magazines`] each thread's free objects, [`slabs`] the pages.
//!
//! What the program places itself (`mnalloc`) is [`placement`]'s.

pub mod arenas;
mod classes;
pub mod grouped;
mod large;
mod magazines;
pub mod placement;
mod sites;
mod slabs;
pub mod unmanaged;
mod watch;
pub mod zone;

use std::sync::atomic::{AtomicPtr, Ordering::*};

unsafe extern "C" {
    fn terrace_enter_internal();
    fn terrace_leave_internal();
    fn terrace_after_mapping();
    static mut terrace_pending: i32;
}

/// From now on this thread allocates unmanaged memory, until as many calls of [`leave_internal`].
pub fn enter_internal() {
    // SAFETY: touches a variable of this thread only.
    unsafe { terrace_enter_internal() }
}

/// See [`enter_internal`].
pub fn leave_internal() {
    // SAFETY: as above.
    unsafe { terrace_leave_internal() }
}

static POLL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// What [`call_soon`] asked for, if anything. For the interposed `mmap`, when it is done.
pub fn poll() {
    // SAFETY: holds no lock of ours, as `call_soon` promises to its `poll`.
    unsafe { terrace_after_mapping() }
}

/// Has the allocation under way (unless it is a small one), or the next of any thread, call `poll`, at a point where no lock of the allocator
/// is held.
pub fn call_soon(poll: fn()) {
    POLL.store(poll as *mut (), Release);
    set_pending();
}

/// Has a thread of the program give back what has been free for long enough: jemalloc itself looks only after so many allocations. None of
/// ours may, because giving back can need them.
pub fn tidy_soon() {
    // What waits already is more important.
    if POLL.compare_exchange(std::ptr::null_mut(), arenas::decay as fn() as *mut (), AcqRel, Relaxed).is_ok() {
        set_pending();
    }
}

fn set_pending() {
    // SAFETY: a flag that is read without order; a late reader polls later.
    unsafe { (&raw mut terrace_pending).write_volatile(1) };
}

#[unsafe(no_mangle)]
extern "C" fn terrace_poll() {
    // SAFETY: as above.
    unsafe { (&raw mut terrace_pending).write_volatile(0) };
    let poll = POLL.swap(std::ptr::null_mut(), AcqRel);
    if !poll.is_null() {
        // SAFETY: only `call_soon` stores here, and what it stores is a `fn()`.
        let poll: fn() = unsafe { std::mem::transmute(poll) };
        poll();
    }
}
