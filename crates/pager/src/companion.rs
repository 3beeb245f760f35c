//! The companion: the process in which the pager's threads run.
//!
//! It shares the program's memory and nothing else (clone with CLONE_VM, without CLONE_THREAD):
//! descriptors, credentials, signal handlers, working directory and namespaces are its own. So the
//! program stays a process of one thread for whoever asks (namespaces, `wait`, `exec`, tracers that
//! stop all threads), and what it gives up (capabilities, user ids, descriptors) is not kept by a
//! thread of ours inside it.
//!
//! *Birth.* An intermediate process clones the companion and ends at once, so that the program is
//! not its parent: it gets no SIGCHLD, finds no child in `wait4(-1)`, and a program that it
//! executes inherits no zombie. `terrace run` adopts and reaps companions. Where the program itself
//! would adopt it (process 1 of a PID namespace, a subreaper), the companion is its child with exit
//! signal 0 instead, which an ordinary `wait` does not see.
//!
//! *Threads.* Their stacks and thread-local storage are made before the first fork and inherited by
//! children. Making a thread is then one system call and touches nothing of the C library's, whose
//! locks and memory may be unusable in a forked child: another thread may have held the lock, and
//! the memory may be evicted.
//!
//! *End.* The companion leaves as soon as nobody else uses the memory: when the program has ended
//! or executed another one, and no process that shares the memory (a child of `vfork` or of clone
//! with CLONE_VM) is left.

use crate::handler::Tools;
use crate::lock::Lock;
use crate::pager::{Pager, handler_main, mover_main};
use crate::sys::{self, Errno, PAGE};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;
use terrace_tiers::Tier;

/// A thread's stack, with a page without access below it.
const STACK_BYTES: usize = 512 << 10;
/// How often the watcher looks whether the program has ended, where nothing wakes it.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often the watcher looks whether the program has ended, while the main thread has exited or
/// other processes share the memory.
const WATCH_CLOSELY: Duration = Duration::from_millis(15);

/// So many looks in a row find another program where this one was before that is believed.
const LOOKS: u32 = 3;

/// Which process or thread of the companion runs on which stack.
pub(crate) mod slot {
    use crate::pager::SHARDS_MAX;

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
    stacks: usize,
    /// Thread pointers, by slot; 0 until the first start.
    thread_pointers: [AtomicUsize; slot::COUNT],
    /// Thread ids, by slot: the kernel writes 0 when a thread has ended.
    tids: [AtomicU32; slot::COUNT],
    /// How far a thread's id, as the C library knows it, is from its thread pointer; 0 where that
    /// is not known.
    tid_offset: AtomicUsize,
    /// The address of the id of the program's main thread, which the kernel zeroes when that
    /// thread ends; 0 if unknown.
    main_tid: AtomicUsize,
    /// The companion's process id.
    pid: AtomicI32,
    holds: AtomicBool,
    may_hold: AtomicBool,
    /// Why the companion could not start.
    failure: Lock<String>,
}

/// A thread's function. It never returns.
type Main = fn(&'static Pager, usize) -> !;

struct Start {
    pager: &'static Pager,
    slot: usize,
    main: Main,
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

    /// Whether the keeper has ended, and with it the companion.
    pub fn has_ended(&self) -> bool {
        self.tids[slot::KEEPER].load(Acquire) == 0
    }

    /// Whether all threads have ended.
    pub fn is_gone(&self) -> bool {
        self.tids.iter().all(|tid| tid.load(Acquire) == 0)
    }

    /// Whether all threads but the keeper and the watcher have ended.
    fn workers_are_gone(&self) -> bool {
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

    /// Makes a thread of the companion; called in the companion.
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
        // task uses; `Start` lies above what the task uses of its stack.
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
        crate::tasks::leaves_tasks_for_the_program()?;
        self.make_thread_storage()?;
        if let Some(address) = sys::tid_address() {
            pager.threads.learn(address, self.main_tid.load(Relaxed));
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

    /// Whether the kernel makes a process for us now: one that ends at once. Called on a thread of
    /// the program, with signals blocked, while nothing else is made (`fork.forking`).
    pub fn can_make_task(&self, pager: &'static Pager) -> bool {
        let made = self.task(COMPANION | libc::CLONE_VFORK, pager, slot::INTERMEDIATE, |_, _| {
            sys::end_process()
        });
        if let Ok(process) = made {
            sys::reap(process);
        }
        made.is_ok()
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

/// A process that shares memory only, is not traced along with its maker, and sends no signal at
/// its end.
const COMPANION: i32 = libc::CLONE_VM | libc::CLONE_UNTRACED;

/// Where a task begins.
extern "C" fn begin(start: usize) -> ! {
    // SAFETY: `Companion::task` wrote it there for this task.
    let Start { pager, slot, main } = unsafe { (start as *const Start).read() };
    let offset = pager.companion.tid_offset.load(Relaxed);
    if offset != 0 {
        let known = pager.companion.thread_pointers[slot].load(Relaxed).wrapping_add(offset);
        // SAFETY: the C library's description of this thread, whose locks it compares with the
        // thread's id.
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

/// The companion's first thread.
fn keeper(pager: &'static Pager, _slot: usize) -> ! {
    crate::pager::thread_begins(pager, c"terrace-pager");
    pager.companion.pid.store(sys::process_id(), Release);
    sys::detach_from_program();
    if pager.tiers.iter().filter_map(Tier::files).all(|files| files.directory().starts_with('/')) {
        // What the program was started in may be unmounted.
        sys::leave_working_directory();
    }
    if let Err(note) = pager.open_descriptors().and_then(|()| pager.register_inherited()) {
        pager.fail(&note);
        sys::end_process();
    }
    let tools = Tools::new();
    let handlers = if pager.moves() { pager.descriptors.shards.load(Acquire) } else { 0 };
    let companion = &pager.companion;
    let made = companion.thread(pager, slot::WATCHER, watcher)
        && (0..handlers).all(|shard| companion.thread(pager, slot::HANDLERS + shard, handler_main))
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

/// Ends the companion when nobody else uses the memory. Allocates nothing and waits for no lock.
fn watcher(pager: &'static Pager, _slot: usize) -> ! {
    crate::pager::thread_begins(pager, c"terrace-watch");
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
        if ended || unlike >= LOOKS {
            while sys::others_share_memory() {
                sys::sleep_raw(WATCH_CLOSELY);
            }
            pager.publish_last();
            sys::end_process();
        }
    }
}
