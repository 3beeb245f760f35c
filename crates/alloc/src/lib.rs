//! Which objects share pages: the malloc family over zones.
//!
//! `shim/malloc.c` has the entry points, [`arenas`] the jemalloc arenas behind them, and [`zone`]
//! the address ranges behind those. [`unmanaged`] is the allocator for everything that must never
//! be evicted.
//!
//! With [`grouped`] objects below a page are placed by their calling context:
//! - the crate `context` identifies that;
//! - [`sites`] has each context's zone;
//! - [`watch`] tracks what they hold and how hot that is;
//! - [`magazines`] has each thread's free objects;
//! - [`slabs`] has the pages.
//!
//! What the program places itself (`mnalloc`) is [`placement`]'s.

pub mod arenas;
mod calls;
pub mod grouped;
pub mod placement;
pub mod unmanaged;
pub mod zone;

use calls::Memory;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use terrace_os as sys;

unsafe extern "C" {
    fn terrace_enter_internal();
    fn terrace_leave_internal();
    fn terrace_after_mapping();
    static terrace_pending: AtomicU32;
    fn terrace_rseq_area() -> *mut sys::RseqArea;
}

/// Makes this thread allocate unmanaged memory, until as many calls of [`leave_internal`].
pub fn enter_internal() {
    // SAFETY: touches a variable of this thread only.
    unsafe { terrace_enter_internal() }
}

/// Undoes one call of [`enter_internal`].
pub fn leave_internal() {
    // SAFETY: as above.
    unsafe { terrace_leave_internal() }
}

/// Registers rseq areas where the C library does not (before glibc 2.35), so that the kernel tells
/// a thread's CPU. It serves the calling thread, and each that allocates for the first time from
/// now on.
pub fn begin_rseq() {
    // SAFETY: a variable of the shim's of the initial-exec model, which is at one offset from all
    // thread pointers. It has the contents that are asked for.
    unsafe { sys::begin_rseq(terrace_rseq_area()) };
}

/// Bits of `WANTED`: what a thread is asked to do.
const START: u32 = 1;
const PURGE: u32 = 2;
static WANTED: AtomicU32 = AtomicU32::new(0);
static POLL: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

fn words() -> Memory {
    // SAFETY: a word of the shim's, which is never anything but loaded there.
    Memory { wanted: &WANTED, flag: unsafe { &terrace_pending } }
}

/// Does what [`call_soon`] asked for. The interposed `mmap` calls this when it is done.
///
/// Does nothing in a signal handler, which may have interrupted the thread that holds the locks
/// needed for it. What [`purge_soon`] asked for is left to `malloc`, which no handler may call.
pub fn poll() {
    // SAFETY: holds no lock of ours, as `call_soon` promises to its `poll`.
    unsafe { terrace_after_mapping() }
}

/// Has a thread call `poll` soon, at a point where no lock of the allocator is held. That is the
/// allocation under way (unless it is a small one), the next allocation of any thread, or a
/// mapping.
pub fn call_soon(poll: fn()) {
    POLL.store(poll as *mut (), Release);
    calls::ask(&words(), START);
}

/// Has a thread of the program give back what has been free for long enough. jemalloc itself checks
/// only after a number of allocations. No thread of ours may do it, because giving back can need
/// our threads.
pub fn purge_soon() {
    calls::ask(&words(), PURGE);
}

#[unsafe(no_mangle)]
extern "C" fn terrace_poll() {
    let wanted = calls::answer(&words());
    if wanted & START != 0 {
        start();
    }
    if wanted & PURGE != 0 {
        arenas::decay();
    }
}

/// Does what is wanted after a mapping.
#[unsafe(no_mangle)]
extern "C" fn terrace_poll_start() {
    // The flag stays as it is: a thread that finds nothing wanted has lost nothing.
    if WANTED.load(Relaxed) & START != 0
        && !sys::may_be_in_handler()
        && WANTED.fetch_and(!START, AcqRel) & START != 0
    {
        start();
    }
}

fn start() {
    let poll = POLL.load(Acquire);
    if !poll.is_null() {
        // SAFETY: only `call_soon` stores here, and what it stores is a `fn()`.
        let poll: fn() = unsafe { std::mem::transmute(poll) };
        poll();
    }
}
