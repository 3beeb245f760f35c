//! The companion: the process in which the pager's threads run.
//!
//! It shares the program's memory and nothing else (clone with CLONE_VM, without CLONE_THREAD):
//! descriptors, credentials, signal handlers, working directory and namespaces are its own. So the
//! program has no thread more than its own, as namespaces, `wait`, `exec` and tracers that stop all
//! threads see it. What it gives up (capabilities, user ids, descriptors) is not kept by a thread
//! of ours inside it.
//!
//! *Birth.* An intermediate process clones the companion and ends at once, so that the program is
//! not its parent. The program gets no SIGCHLD and finds no child in `wait4(-1)`, and a program
//! that it executes inherits no zombie. `terrace run` adopts and reaps companions. Where the
//! program itself would adopt it (process 1 of a PID namespace, a subreaper), the companion is its
//! child with exit signal 0 instead. An ordinary `wait` does not see such a child.
//!
//! *Threads.* Their stacks and thread-local storage are made before the first fork and inherited by
//! children. Making a thread is then one system call and touches nothing of the C library's. Its
//! locks and memory may be unusable in a forked child: another thread may have held the lock, and
//! the memory may be evicted.
//!
//! *End.* The companion leaves as soon as no other process uses the memory. Then the program has
//! ended or executed another one. No child of `vfork`, or of clone with CLONE_VM, shares the memory
//! any more.

use crate::fault::buffers::{MESSAGES, Tools};
use crate::fault::coalesce::Coalescer;
use crate::fault::fault_cost::Timing;
use crate::fault::following::CpuFollower;
use crate::fault::readahead::ReadAhead;
use crate::pager::Pager;
use crate::threads::stacks::{Companion, STACK_BYTES, slot};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;
use terrace_os::{self as sys, Errno, Message};
use terrace_tiers::Tier;

/// How often the watcher checks whether the program has ended, where nothing wakes it.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often the watcher checks whether the program has ended, while the main thread has exited or
/// other processes share the memory.
const WATCH_CLOSELY: Duration = Duration::from_millis(15);

/// How many checks in a row must find another program where this one was before that is believed.
const EXEC_CONFIRMATIONS: u32 = 3;

/// The function of a thread of the companion, given its slot. It never returns.
type Main = fn(&'static Pager, usize) -> !;

struct Start {
    pager: &'static Pager,
    slot: usize,
    main: Main,
}

impl Companion {
    /// Makes a thread of the companion; called in the companion. False if the kernel refuses.
    pub fn thread(&self, pager: &'static Pager, slot: usize, main: Main) -> bool {
        const FLAGS: i32 = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        self.task(FLAGS, pager, slot, main).is_ok()
    }

    /// Clones a task onto the stack of `slot`. Returns its id.
    fn task(
        &self,
        flags: i32,
        pager: &'static Pager,
        slot: usize,
        main: Main,
    ) -> Result<i32, Errno> {
        const TELLS_ITS_END: i32 =
            libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID | libc::CLONE_SETTLS;
        let top = self.stacks + (slot + 1) * STACK_BYTES;
        let start = (top - size_of::<Start>()) & !63;
        let tid = &self.tids[slot];
        // SAFETY: the stack, the thread-local storage and the word are this slot's, which no other
        // task uses. `Start` lies above what the task uses of its stack.
        unsafe {
            (start as *mut Start).write(Start { pager, slot, main });
            sys::clone_onto(
                flags | TELLS_ITS_END,
                start,
                tid,
                self.thread_pointers[slot].load(Relaxed),
                begin,
                start,
            )
        }
    }

    /// Makes the companion; called on a thread of the program, with signals blocked. `Err` says
    /// what is missing.
    pub fn make(&self, pager: &'static Pager) -> Result<(), String> {
        const NO_TASK: &str = "cannot make a process beside the program: is there a limit on processes (ulimit -u, pids.max)? \
             All memory stays in DRAM";
        if sys::children_enter_another_pid_namespace() {
            return Err("the program's next child is to be process 1 of a PID namespace, which no process of Terrace's may \
                become: all memory stays in DRAM"
                .into());
        }
        crate::threads::tasks::leaves_tasks_for_the_program()?;
        self.make_thread_storage()?;
        if let Some(address) = sys::tid_address() {
            pager.faults.threads.find_offsets(address, self.main_tid.load(Relaxed));
        }
        let adopts = sys::process_id() == 1 || sys::is_subreaper();
        if adopts {
            return self
                .task(COMPANION, pager, slot::KEEPER, keeper)
                .map(drop)
                .map_err(|_| NO_TASK.into());
        }
        let between =
            self.task(COMPANION | libc::CLONE_VFORK, pager, slot::INTERMEDIATE, intermediate);
        if let Ok(between) = between {
            sys::reap(between);
        }
        match self.has_ended() && self.failure.lock().is_empty() {
            true => Err(NO_TASK.into()),
            false => Ok(()),
        }
    }

    /// Whether the kernel makes a process now, by making one that ends at once. Called on a thread
    /// of the program that holds `fork.forking`, with signals blocked.
    pub fn can_make_task(&self, pager: &'static Pager) -> bool {
        let made = self.task(COMPANION | libc::CLONE_VFORK, pager, slot::INTERMEDIATE, |_, _| {
            sys::end_process()
        });
        if let Ok(process) = made {
            sys::reap(process);
        }
        made.is_ok()
    }
}

/// Clone flags of a process that shares memory only, is not traced along with its maker, and sends
/// no signal at its end.
const COMPANION: i32 = libc::CLONE_VM | libc::CLONE_UNTRACED;

/// Where a task begins: writes its id where the C library keeps it, and runs its function.
extern "C" fn begin(start: usize) -> ! {
    // SAFETY: `Companion::task` wrote it there for this task.
    let Start { pager, slot, main } = unsafe { (start as *const Start).read() };
    let offset = pager.companion.tid_offset.load(Relaxed);
    if offset != 0 {
        let known = pager.companion.thread_pointers[slot].load(Relaxed).wrapping_add(offset);
        // SAFETY: the id in the C library's description of this thread. The C library compares the
        // owners of its locks with it.
        unsafe { (known as *mut i32).write(sys::thread_id()) };
    }
    main(pager, slot)
}

/// The process between program and companion: makes the companion and ends.
fn intermediate(pager: &'static Pager, _slot: usize) -> ! {
    let companion = &pager.companion;
    // The kernel has written the keeper's id, or there is none.
    let _ = companion.task(COMPANION, pager, slot::KEEPER, keeper);
    sys::end_process()
}

/// Runs the keeper, the companion's first thread.
fn keeper(pager: &'static Pager, _slot: usize) -> ! {
    thread_begins(pager, c"terrace-pager");
    pager.companion.pid.store(sys::process_id(), Release);
    sys::detach_from_program();
    if pager.tiers.iter().filter_map(Tier::files).all(|files| files.directory().starts_with('/')) {
        // The directory that the program was started in may have to be unmounted.
        sys::leave_working_directory();
    }
    if let Err(note) = pager.open_descriptors().and_then(|()| pager.register_inherited()) {
        pager.fail(&note);
        sys::end_process();
    }
    let tools = Tools::new();
    let handlers = if pager.moves() { pager.descriptors.shards.load(Acquire) } else { 0 };
    let companion = &pager.companion;
    companion.ready.store(0, Relaxed);
    let serves = companion.thread(pager, slot::WATCHER, watcher)
        && (0..handlers).all(|shard| companion.thread(pager, slot::HANDLERS + shard, handler_main));
    if serves {
        companion.await_handlers(handlers);
    }
    let made = serves
        && (pager.restores_only.load(Acquire) || companion.thread(pager, slot::MOVER, mover_main));
    if !made {
        let note = "cannot make threads: is there a limit on threads (ulimit -u, pids.max)? All memory stays in DRAM";
        pager.fail(note);
        sys::end_process();
    }
    if companion.may_hold() {
        companion.hold(&pager.descriptors.all_userfaultfds());
    }
    pager.become_keeper("");
    pager.confine_thread();
    pager.serve(tools);
    companion.end_when_alone()
}

/// Ends the companion when no other process uses the memory. Allocates nothing and waits for no
/// lock.
fn watcher(pager: &'static Pager, _slot: usize) -> ! {
    thread_begins(pager, c"terrace-watch");
    let main_tid = pager.companion.main_tid.load(Relaxed);
    // SAFETY: the C library's description of the program's main thread, which is never unmapped.
    let main_tid = unsafe { (main_tid as *const AtomicU32).as_ref() };
    let program = pager.descriptors.program.load(Acquire);
    pager.confine_thread();
    let mut unlike = 0;
    loop {
        let tid = main_tid.map_or(0, |tid| tid.load(Acquire));
        let wait = match main_tid {
            // Zeroed and woken by the kernel at the thread's end, which may be the program's.
            Some(word) if tid != 0 => {
                sys::futex_wait_shared(word, tid, WATCH_EVERY);
                sys::futex_wake_shared(word);
                Duration::ZERO
            }
            Some(_) => WATCH_CLOSELY,
            None => WATCH_EVERY,
        };
        let ended = sys::wait_for_end(program, wait);
        // The main thread may have left while others go on. Then it has no memory; a program that
        // was executed in its place has other memory than this.
        unlike = if !ended && tid == 0 && sys::program_has_other_memory() { unlike + 1 } else { 0 };
        if ended || unlike >= EXEC_CONFIRMATIONS {
            while sys::others_share_memory() {
                sys::sleep_raw(WATCH_CLOSELY);
            }
            pager.publish_last();
            sys::end_process();
        }
    }
}

/// The first steps of every thread of the companion.
fn thread_begins(pager: &Pager, name: &std::ffi::CStr) {
    (pager.host.enter_internal)();
    sys::block_all_signals();
    sys::name_thread(name);
}

/// Runs a fault handler.
fn handler_main(pager: &'static Pager, slot: usize) -> ! {
    thread_begins(pager, c"terrace-fault");
    pager.account.count_this_thread();
    handle_faults(pager, slot - slot::HANDLERS);
    sys::end_thread()
}

/// Serves the faults of one shard until the handler is told to end.
fn handle_faults(pager: &Pager, shard: usize) {
    let mut coalescer = Coalescer::new();
    let uffd = pager.descriptors.uffds[shard].load(Acquire);
    let mut tools = Tools::new();
    tools.timing = Timing::of_program();
    let mut messages = [Message::default(); MESSAGES];
    let mut ahead = ReadAhead::new();
    let mut follower = CpuFollower::new();
    pager.become_reader(shard);
    pager.confine_thread();
    pager.companion.handler_is_ready();
    while pager.handle_some(
        uffd,
        &mut messages,
        &mut tools,
        Some((&mut ahead, &mut coalescer, &mut follower)),
    ) {}
}

/// Runs the mover.
fn mover_main(pager: &'static Pager, _slot: usize) -> ! {
    thread_begins(pager, c"terrace-mover");
    pager.account.count_this_thread();
    crate::mover::run(pager);
    sys::end_thread()
}
