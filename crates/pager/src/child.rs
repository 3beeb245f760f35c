//! The first threads of a forked child.
//!
//! The C library cannot make a thread without reading and writing memory of its own: what it knows of loaded libraries, stacks and
//! thread-locals of threads that the fork left behind, the locale. That may lie on evicted pages, which read as zeros until they are
//! registered and somebody answers for them. So two *bare* threads come first, of which the C library knows nothing: the first keeper
//! registers, the first handler answers, and while it does so the first keeper makes our threads as everywhere else.
//!
//! A child made by `_Fork`, by `clone` or by system call may not even make threads: the C library's locks are as the parent's other threads left
//! them (its own `fork` opens them in the child). There the bare threads stay: pages come back, and nothing is evicted.
//!
//! Bare threads have stacks of ours and the thread-locals of the forking thread. The first keeper uses those while the forking thread waits for
//! it; later neither uses any. Above all they must not call the C allocator, which asks them whom it serves.

use crate::handler::Tools;
use crate::pager::{Mode, NO_THREAD, Pager, SHARES_DESCRIPTORS, keeper_main, spawn};
use crate::sys::{self, Errno, Message, PAGE};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::Duration;

const STACK_BYTES: usize = 256 << 10;
/// How often the first handler looks whether it is still needed, where it is not to stay. Nobody waits for its end but handlers, while it does their work.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const NEVER: Duration = Duration::from_secs(1 << 32);

/// Of a child's first two threads. Made before any fork; each child uses its copy once.
pub(crate) struct FirstThreads {
    stacks: [usize; 2],
    /// The first keeper is at work, and uses the thread-locals of the forking thread.
    keeping: AtomicU32,
    /// The first handler is at work: others wait, for two readers of one message would get in each other's way.
    handling: AtomicU32,
    /// Both are all that this child gets.
    stay: AtomicBool,
    /// Handlers that run.
    running: AtomicU32,
}

impl FirstThreads {
    pub fn new() -> Result<Self, Errno> {
        let stack = || {
            let start = sys::reserve_without_access(STACK_BYTES)?;
            // SAFETY: inside the reservation made here; its lowest page stays without access, for a stack that overflows.
            unsafe { sys::allow_access(start + PAGE, STACK_BYTES - PAGE) }?;
            Ok(start)
        };
        Ok(FirstThreads {
            stacks: [stack()?, stack()?],
            keeping: AtomicU32::new(0),
            handling: AtomicU32::new(0),
            stay: AtomicBool::new(false),
            running: AtomicU32::new(0),
        })
    }
}

impl Pager {
    /// [`Pager::start`] for the child of a process that evicts. `threads`: whether the C library can make them there.
    pub(crate) fn start_in_child(&'static self, threads: bool) {
        self.first.handling.store(0, Relaxed);
        self.first.running.store(0, Relaxed);
        self.first.stay.store(!threads, Relaxed);
        self.start_by(|| {
            self.first.keeping.store(1, Release);
            let made = self.bare_thread(0, first_keeper, std::ptr::from_ref(self).cast_mut().cast());
            while made && self.first.keeping.load(Acquire) != 0 {
                sys::futex_wait(&self.first.keeping, 1, None);
            }
            made
        });
    }

    fn bare_thread(&'static self, stack: usize, main: extern "C" fn(*mut c_void) -> i32, argument: *mut c_void) -> bool {
        const FLAGS: i32 =
            libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
        let top = self.first.stacks[stack] + STACK_BYTES;
        // SAFETY: the stack is ours and nobody else's; the callers pass what `main` takes.
        unsafe { libc::clone(main, top as *mut c_void, FLAGS, argument) > 0 }
    }

    /// True if this thread is to be the keeper itself.
    fn make_keeper_in_child(&'static self) -> bool {
        if let Err(note) = self.open_descriptors().and_then(|()| self.register_inherited()) {
            self.fail(&note);
            return false;
        }
        self.first.handling.store(1, Release);
        let handler = Box::into_raw(Box::new(FirstHandler { pager: self, tools: Tools::new() }));
        let stay = self.first.stay.load(Relaxed);
        if !self.bare_thread(1, first_handler, handler.cast()) || !(stay || spawn(self, keeper_main, SHARES_DESCRIPTORS)) {
            self.fail(NO_THREAD);
            return false;
        }
        stay
    }

    /// In the keeper: waits until all handlers are past the C library's part of a new thread, which may touch what can be evicted (the locale), and
    /// would wait for a handler. Nothing may be evicted before, nor the first handler end.
    pub(crate) fn await_handlers(&self, count: usize) {
        loop {
            match self.first.running.load(Acquire) {
                running if running as usize >= count => return,
                running => sys::futex_wait(&self.first.running, running, None),
            }
        }
    }

    /// In a handler: see [`Pager::await_handlers`].
    pub(crate) fn handler_runs(&self) {
        self.first.running.fetch_add(1, AcqRel);
        sys::futex_wake(&self.first.running, 1);
    }

    /// How many handlers there are.
    pub(crate) fn handlers(&self) -> usize {
        let shards = self.descriptors.shards.load(Acquire);
        if self.first.stay.load(Relaxed) { shards.min(1) } else { shards }
    }

    /// In a handler that was just made: the first one does its work until it ends.
    pub(crate) fn await_first_handler(&self) {
        while self.first.handling.load(Acquire) != 0 {
            sys::futex_wait(&self.first.handling, 1, Some(LOOK_EVERY));
        }
    }

    fn handle_first_faults(&self, tools: &mut Tools) {
        let uffds = &self.descriptors.uffds[..self.descriptors.shards.load(Acquire)];
        let mut polled: Vec<libc::pollfd> =
            uffds.iter().map(|uffd| libc::pollfd { fd: uffd.load(Acquire), events: libc::POLLIN, revents: 0 }).collect();
        polled.iter().for_each(|polled| sys::set_waiting(polled.fd, false));
        let stays = self.first.stay.load(Relaxed);
        let mut dismissed = false;
        while stays && !dismissed || self.mode() == Mode::Starting {
            sys::wait_readable(&mut polled, if stays { NEVER } else { LOOK_EVERY });
            for ready in polled.iter().filter(|polled| polled.revents != 0) {
                // One at a time: what is read must be served, and more may not be there.
                dismissed |= !self.handle_some(ready.fd, &mut [Message::default()], tools, None);
            }
        }
        polled.iter().for_each(|polled| sys::set_waiting(polled.fd, true));
    }
}

struct FirstHandler {
    pager: &'static Pager,
    tools: Tools,
}

extern "C" fn first_keeper(argument: *mut c_void) -> i32 {
    // SAFETY: `start_in_child` passes the pager, which lives for ever.
    let pager = unsafe { &*argument.cast::<Pager>() };
    let tools = pager.make_keeper_in_child().then(|| {
        let tools = Tools::new();
        pager.become_keeper("a child made without fork handlers (_Fork, clone): it brings pages back and evicts nothing");
        tools
    });
    pager.first.keeping.store(0, Release);
    sys::futex_wake(&pager.first.keeping, 1);
    if let Some(tools) = tools {
        pager.serve(tools);
    }
    0
}

extern "C" fn first_handler(argument: *mut c_void) -> i32 {
    // SAFETY: the argument is the box made in `make_keeper_in_child`, used once.
    let FirstHandler { pager, mut tools } = *unsafe { Box::from_raw(argument.cast()) };
    if pager.first.stay.load(Relaxed) {
        pager.account.watch_thread(sys::thread_id());
    }
    pager.handle_first_faults(&mut tools);
    pager.first.handling.store(0, Release);
    sys::futex_wake(&pager.first.handling, u32::MAX >> 1);
    0
}
