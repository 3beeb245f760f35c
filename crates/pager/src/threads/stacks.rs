//! The companion as the program knows it: its threads' stacks, storage and ids.

use crate::pages::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_os::{self as sys, Errno, PAGE};

/// Bytes of a thread's stack, of which the lowest page has no access.
pub(super) const STACK_BYTES: usize = 512 << 10;

/// Slots: which process or thread of the companion runs on which stack.
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

/// The companion as the program knows it: its threads' stacks, storage and ids.
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

    /// The address range of all stacks, which counts as memory that Terrace takes.
    pub fn range(&self) -> (usize, usize) {
        (self.stacks, self.stacks + STACK_BYTES * slot::COUNT)
    }

    /// The companion's process id; of no meaning while there is none.
    pub fn pid(&self) -> i32 {
        self.pid.load(Acquire)
    }

    /// Opens the lock in a forked child.
    ///
    /// # Safety
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.failure.reset_after_fork() };
    }

    /// Forgets the companion of the parent, in a forked child, which has none yet. The calling
    /// thread is the child's main thread.
    pub fn forget(&self) {
        self.tids.iter().for_each(|tid| tid.store(0, Relaxed));
        self.pid.store(0, Relaxed);
        self.holds.store(false, Relaxed);
        self.main_tid.store(sys::tid_address().unwrap_or(0), Relaxed);
    }

    /// Holds descriptors open for as long as this memory lives. If the companion is killed, its
    /// userfaultfds stay open, and a thread that touches an evicted page waits. A closed
    /// userfaultfd would let it read zeros.
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

    /// Sets what [`Companion::may_hold`] returns.
    pub fn set_may_hold(&self, may: bool) {
        self.may_hold.store(may, Relaxed);
    }

    /// Pretends that there is a companion: a test simulates what it would do.
    #[cfg(test)]
    pub fn simulate(&self) {
        self.tids[slot::KEEPER].store(1, Relaxed);
    }

    /// Counts the calling handler as ready: it can serve faults from now on, and allocates nothing
    /// for it.
    pub fn handler_is_ready(&self) {
        self.ready.fetch_add(1, Release);
        sys::futex_wake(&self.ready, 1);
    }

    /// Waits until `handlers` handlers are ready. Called in the keeper, which starts the mover and
    /// lets the program go on after that. A handler that allocates waits for the allocator's lock.
    /// A thread of the program may hold it whose stack is in managed memory. Were that stack's page
    /// evicted meanwhile, each would wait for the other.
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
    pub fn set_failure(&self, note: &str) {
        *self.failure.lock() = note.to_string();
    }

    /// Takes the reason that [`Companion::set_failure`] kept; empty if there is none.
    pub fn take_failure(&self) -> String {
        std::mem::take(&mut self.failure.lock())
    }

    /// Makes thread-local storage for all threads, once. Until the program's first fork the C
    /// library can make it. It takes memory from the program's allocator for that. Where the
    /// allocator is the program's own, this must be called while none of its locks is held: before
    /// `main`.
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

    /// Ends the companion once its other threads, which were told to, have left: a second later at
    /// most. Called in the keeper, when everything is back in DRAM.
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
