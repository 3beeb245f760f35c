//! Where the companion's threads live, and what is known of it.

use crate::pages::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_os::{self as sys, Errno, PAGE};

/// A thread's stack, with a page without access below it.
pub(super) const STACK_BYTES: usize = 512 << 10;

/// Which process or thread of the companion runs on which stack.
pub(crate) mod slot {
    use crate::pages::shards::SHARDS_MAX;

    /// The process between the program and the companion.
    pub const INTERMEDIATE: usize = 0;
    /// The keeper, the companion's first thread.
    pub const KEEPER: usize = 1;
    /// The thread that waits for the program's end.
    pub const WATCHER: usize = 2;
    pub const MOVER: usize = 3;
    /// The first of the fault handlers.
    pub const HANDLERS: usize = 4;
    pub const COUNT: usize = HANDLERS + SHARDS_MAX;
}

/// Where the companion's threads live, and what is known of it.
pub(crate) struct Companion {
    pub(super) stacks: usize,
    /// Thread pointers, by slot; 0 until the first start.
    pub(super) thread_pointers: [AtomicUsize; slot::COUNT],
    /// Thread ids, by slot: the kernel writes 0 when a thread has ended.
    pub(super) tids: [AtomicU32; slot::COUNT],
    /// How far a thread's id, as the C library knows it, is from its thread pointer; 0 where that
    /// is not known.
    pub(super) tid_offset: AtomicUsize,
    /// The address of the id of the program's main thread, which the kernel zeroes when that
    /// thread ends; 0 if unknown.
    pub(super) main_tid: AtomicUsize,
    /// The companion's process id.
    pub(super) pid: AtomicI32,
    pub(super) holds: AtomicBool,
    pub(super) may_hold: AtomicBool,
    /// Handlers that have allocated all that they need.
    pub(super) ready: AtomicU32,
    /// Why the companion could not start.
    pub(super) failure: Lock<String>,
}

impl Companion {
    /// Reserves the stacks. Called on the program's main thread.
    pub fn new() -> Result<Self, Errno> {
        let stacks = sys::reserve_without_access(STACK_BYTES * slot::COUNT)?;
        for slot in 0..slot::COUNT {
            // SAFETY: inside the reservation made here; the lowest page stays without access, for a
            // stack that overflows.
            unsafe { sys::allow_access(stacks + slot * STACK_BYTES + PAGE, STACK_BYTES - PAGE) }?;
        }
        Ok(Companion {
            stacks,
            thread_pointers: [const { AtomicUsize::new(0) }; slot::COUNT],
            tids: [const { AtomicU32::new(0) }; slot::COUNT],
            tid_offset: AtomicUsize::new(0),
            main_tid: AtomicUsize::new(sys::tid_address().unwrap_or(0)),
            pid: AtomicI32::new(0),
            holds: AtomicBool::new(false),
            may_hold: AtomicBool::new(false),
            ready: AtomicU32::new(0),
            failure: Lock::new(String::new()),
        })
    }

    /// The stacks, for whoever counts what Terrace takes.
    pub fn range(&self) -> (usize, usize) {
        (self.stacks, self.stacks + STACK_BYTES * slot::COUNT)
    }

    /// The companion's process id; of no meaning while there is none.
    pub fn pid(&self) -> i32 {
        self.pid.load(Acquire)
    }

    /// In a forked child: opens the lock.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.failure.reset_after_fork() };
    }

    /// In a forked child, which has no companion yet; the calling thread is its main thread.
    pub fn forget(&self) {
        self.tids.iter().for_each(|tid| tid.store(0, Relaxed));
        self.pid.store(0, Relaxed);
        self.holds.store(false, Relaxed);
        self.main_tid.store(sys::tid_address().unwrap_or(0), Relaxed);
    }

    /// Holds descriptors open for as long as this memory lives. If the companion is killed, its
    /// userfaultfds stay open, and who touches an evicted page waits: a closed userfaultfd
    /// would let it read zeros.
    pub fn hold(&self, descriptors: &[i32]) {
        self.holds.store(sys::hold_open(descriptors).is_ok(), Release);
    }

    /// Whether [`Companion::hold`] succeeded.
    pub fn holds(&self) -> bool {
        self.holds.load(Acquire)
    }

    /// Whether a seccomp filter that the program brought along, if any, allows what
    /// [`Companion::hold`] and the companion's own filter need.
    pub fn may_hold(&self) -> bool {
        self.may_hold.load(Relaxed)
    }

    /// See [`Companion::may_hold`].
    pub fn set_may_hold(&self, may: bool) {
        self.may_hold.store(may, Relaxed);
    }

    /// There is no companion, and what it would do is simulated.
    #[cfg(test)]
    pub fn is_simulated(&self) {
        self.tids[slot::KEEPER].store(1, Relaxed);
    }

    /// A handler can serve faults from now on, and allocates nothing for it.
    pub fn handler_is_ready(&self) {
        self.ready.fetch_add(1, Release);
        sys::futex_wake(&self.ready, 1);
    }

    /// Waits until `handlers` handlers are ready; called in the keeper, which starts the mover and
    /// lets the program go on after that. A handler that allocates waits for the allocator's lock,
    /// which a thread of the program may hold whose stack is in managed memory: were that stack's
    /// page evicted meanwhile, each would wait for the other.
    pub(super) fn await_handlers(&self, handlers: usize) {
        loop {
            let ready = self.ready.load(Acquire);
            if ready as usize >= handlers {
                return;
            }
            sys::futex_wait(&self.ready, ready, None);
        }
    }

    /// Whether the keeper has ended, and with it the companion.
    pub fn has_ended(&self) -> bool {
        self.tids[slot::KEEPER].load(Acquire) == 0
    }

    /// Whether all threads have ended.
    pub fn is_gone(&self) -> bool {
        self.tids.iter().all(|tid| tid.load(Acquire) == 0)
    }

    /// Whether all threads but the keeper and the watcher have ended.
    pub(super) fn workers_are_gone(&self) -> bool {
        self.tids[slot::MOVER..].iter().all(|tid| tid.load(Acquire) == 0)
    }

    /// Keeps the reason why nothing starts, for the thread of the program that waits.
    pub fn fails(&self, note: &str) {
        *self.failure.lock() = note.to_string();
    }

    /// What [`Companion::fails`] kept.
    pub fn failure(&self) -> String {
        std::mem::take(&mut self.failure.lock())
    }

    /// Thread-local storage for all threads, once. Until the program's first fork the C library can
    /// make it. It takes memory from the program's allocator for it, so where that is the
    /// program's own, this must be called while none of its locks is held: before `main`.
    pub fn make_thread_storage(&self) -> Result<(), String> {
        for place in &self.thread_pointers {
            if place.load(Relaxed) == 0 {
                let pointer = sys::new_thread_storage()
                    .ok_or("the C library gives no thread-local storage (_dl_allocate_tls): all memory stays in DRAM")?;
                place.store(pointer, Relaxed);
            }
        }
        if let Some(address) = sys::tid_address() {
            self.tid_offset.store(address.wrapping_sub(sys::thread_pointer()), Relaxed);
        }
        Ok(())
    }

    /// In the keeper, when everything is back in DRAM: ends the companion once its other threads
    /// have left, which were told to.
    pub fn end_when_alone(&self) -> ! {
        // A handler stays in `read` if the kernel has no memory to wake it. It holds no lock there.
        for _ in 0..1000 {
            if self.workers_are_gone() {
                break;
            }
            sys::sleep(Duration::from_millis(1));
        }
        sys::end_process()
    }
}
