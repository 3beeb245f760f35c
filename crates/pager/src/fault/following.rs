//! Keeps a handler on the CPU of the thread whose pages it restores, where one thread faults at a
//! time.
//!
//! A thread that faults sleeps until its page is in place. A handler that sleeps on another CPU
//! must be woken there, out of an idle state. In a virtual machine the host takes part. It then
//! wakes the thread in the same way: several times the cost of the page itself. On the thread's own
//! CPU, which is free while the thread sleeps, both are plain switches.
//!
//! A thread's CPU is in its rseq area (Linux, `include/uapi/linux/rseq.h`, `cpu_id`). The C library
//! registers it with the kernel (glibc 2.35), or else the library does (`os::begin_rseq`). It is
//! read in some 0.2 µs, a file of /proc in several. Threads are known from `pthread_create`. The
//! scheduler places the handler in three cases:
//! - several threads fault at a time;
//! - nothing is known of a thread;
//! - the handler may not use the program's CPUs.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::*};
use terrace_os::{self as sys, CpuMask};

/// Threads that are known at a time; further ones take the places of the oldest.
const KNOWN: usize = 256;
/// Consecutive reads with a single fault of the same thread before its CPU is looked up, and before
/// it is looked up again. A look-up is a system call.
const STEADY: u32 = 8;
/// A window of this many look-ups, and how often the thread may be found on another CPU in it. Each
/// move of the handler costs a few µs.
const WINDOW: u32 = 64;
const MOVES_MOST: u32 = 16;
/// Reads for which a handler stays where the scheduler puts it, after its thread moved too often or
/// was not found.
const REST: u32 = 4096;

/// Where the C library keeps its data on the program's threads.
pub(crate) struct Threads {
    /// Thread pointers, or 0. The memory they point to may be gone.
    pointers: [AtomicUsize; KNOWN],
    next: AtomicUsize,
    /// Offset from a thread pointer to the thread's id, and to its rseq area; 0 where that is not
    /// known.
    tid_offset: AtomicIsize,
    rseq_offset: AtomicIsize,
}

impl Default for Threads {
    fn default() -> Self {
        Threads {
            pointers: [const { AtomicUsize::new(0) }; KNOWN],
            next: AtomicUsize::new(0),
            tid_offset: AtomicIsize::new(0),
            rseq_offset: AtomicIsize::new(0),
        }
    }
}

impl Threads {
    /// Finds the offsets with the calling thread of the program, whose id is at `tid_address`.
    /// Adds the main thread too, whose id is at `main_tid`, or 0.
    pub fn find_offsets(&self, tid_address: usize, main_tid: usize) {
        let offset = tid_address.wrapping_sub(sys::thread_pointer());
        // Only once: the loader's tables are in the program's heap, and in a forked child may be
        // evicted at this moment.
        if self.tid_offset.swap(offset as isize, Relaxed) == 0 {
            self.rseq_offset.store(sys::rseq_offset().unwrap_or(0), Relaxed);
        }
        self.add(sys::thread_pointer());
        if main_tid != 0 && main_tid != tid_address {
            self.add(main_tid.wrapping_sub(offset));
        }
    }

    /// Adds a thread of the program's by its thread pointer.
    pub fn add(&self, pointer: usize) {
        if self.pointers.iter().all(|known| known.load(Relaxed) != pointer) {
            self.pointers[self.next.fetch_add(1, Relaxed) % KNOWN].store(pointer, Relaxed);
        }
    }

    fn are_known(&self) -> bool {
        self.tid_offset.load(Relaxed) != 0 && self.rseq_offset.load(Relaxed) != 0
    }

    /// The thread pointer of the thread with this id.
    fn find(&self, tid: i32) -> Option<usize> {
        let offset = self.tid_offset.load(Relaxed);
        let is_it = |pointer: usize| {
            let mut found = [0u8; 4];
            sys::peek(pointer.wrapping_add_signed(offset), &mut found)
                && i32::from_ne_bytes(found) == tid
        };
        self.pointers
            .iter()
            .map(|known| known.load(Relaxed))
            .find(|pointer| *pointer != 0 && is_it(*pointer))
    }

    /// The CPU that the thread with this thread pointer was on last.
    fn cpu(&self, pointer: usize) -> Option<u32> {
        /// Offset of `cpu_id` in the area, bytes: it follows `cpu_id_start`.
        const CPU_ID: usize = 4;
        let mut cpu = [0u8; 4];
        let read = sys::peek(
            pointer.wrapping_add_signed(self.rseq_offset.load(Relaxed)) + CPU_ID,
            &mut cpu,
        );
        // Without rseq it is negative.
        read.then(|| u32::from_ne_bytes(cpu)).filter(|cpu| *cpu < CpuMask::CPUS)
    }
}

/// The state of one handler.
pub(crate) struct CpuFollower {
    /// The CPUs it may run on when it follows no thread; `None` if it may not choose.
    own: Option<CpuMask>,
    /// The CPU that it has moved to.
    at: Option<u32>,
    /// The id of the thread that faulted last, and its thread pointer, or 0 if that is not known.
    tid: i32,
    pointer: usize,
    /// Reads in a row with one fault of that thread, since its CPU was looked up.
    steady: u32,
    /// Look-ups since the window began, and moves in it.
    lookups: u32,
    moves: u32,
    rest: u32,
}

impl CpuFollower {
    /// The state for the calling thread.
    pub fn new() -> CpuFollower {
        CpuFollower {
            own: sys::own_cpus(),
            at: None,
            tid: 0,
            pointer: 0,
            steady: 0,
            lookups: 0,
            moves: 0,
            rest: 0,
        }
    }

    /// Records that the handler has served a read with `faults` faults, the last of the thread
    /// `tid`.
    pub fn served(&mut self, threads: &Threads, faults: usize, tid: i32) {
        let Some(own) = self.own else { return };
        if faults == 0 || !threads.are_known() {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        if faults > 1 || tid != self.tid {
            (self.tid, self.pointer, self.steady) = (tid, 0, 0);
            self.go(None, own);
            return;
        }
        self.steady += 1;
        if self.steady < STEADY {
            return;
        }
        self.steady = 0;
        if self.pointer == 0 {
            match threads.find(tid) {
                Some(pointer) => self.pointer = pointer,
                None => self.rest = REST,
            }
        }
        let Some(cpu) = threads.cpu(self.pointer) else {
            // Its area is not registered, or it has ended.
            (self.pointer, self.rest) = (0, REST);
            self.go(None, own);
            return;
        };
        self.lookups += 1;
        if self.at != Some(cpu) {
            self.moves += 1;
            self.go(Some(cpu), own);
        }
        if self.moves > MOVES_MOST {
            self.rest = REST;
            self.go(None, own);
        }
        if self.lookups >= WINDOW || self.rest > 0 {
            (self.lookups, self.moves) = (0, 0);
        }
    }

    fn go(&mut self, to: Option<u32>, own: CpuMask) {
        if self.at == to {
            return;
        }
        let went = sys::set_own_cpus(&to.map_or(own, CpuMask::of));
        match (went, to) {
            (true, _) => self.at = to,
            // Not a CPU of ours: the scheduler chooses, from now on.
            (false, Some(_)) => {
                sys::set_own_cpus(&own);
                (self.at, self.own) = (None, None);
            }
            (false, None) => self.own = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn of_this_thread() -> Threads {
        let threads = Threads::default();
        threads.find_offsets(sys::tid_address().expect("the kernel says"), 0);
        threads
    }

    /// As [`of_this_thread`]; prints why, where there are no rseq areas.
    fn with_areas() -> Option<Threads> {
        let threads = Some(of_this_thread()).filter(Threads::are_known);
        if threads.is_none() {
            println!("skipped: this C library registers no rseq area");
        }
        threads
    }

    #[test]
    fn follows_one_thread_and_rests_where_there_are_two() {
        let Some(threads) = with_areas() else { return };
        let tid = sys::thread_id();
        let all = sys::own_cpus().expect("the kernel says");
        let mut follower = CpuFollower::new();
        for _ in 0..STEADY {
            assert_eq!(follower.at, None, "not at once");
            follower.served(&threads, 1, tid);
        }
        // The thread follows itself, and so stays.
        assert_eq!(follower.at, None);
        follower.served(&threads, 1, tid);
        let cpu = sys::current_cpu().expect("getcpu");
        assert_eq!((follower.at, sys::own_cpus()), (Some(cpu), Some(CpuMask::of(cpu))));
        follower.served(&threads, 1, tid + 1);
        assert_eq!((follower.at, sys::own_cpus()), (None, Some(all)));
    }

    #[test]
    fn a_handler_whose_thread_has_ended_may_run_anywhere() {
        let Some(threads) = with_areas() else { return };
        let (all, tid) = (sys::own_cpus(), sys::thread_id());
        let mut follower = CpuFollower::new();
        (0..=STEADY).for_each(|_| follower.served(&threads, 1, tid));
        assert!(follower.at.is_some());
        follower.pointer = 0;
        (0..STEADY).for_each(|_| follower.served(&Threads::default(), 1, tid));
        assert!(follower.at.is_some(), "nothing is known of any thread");
        threads.pointers.iter().for_each(|known| known.store(0, Relaxed));
        (0..STEADY).for_each(|_| follower.served(&threads, 1, tid));
        assert_eq!((follower.at, sys::own_cpus()), (None, all));
    }

    #[test]
    fn a_thread_that_has_ended_is_not_found() {
        let threads = of_this_thread();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send((sys::thread_pointer(), sys::thread_id())).expect("somebody listens");
            std::thread::park();
        });
        let (pointer, tid) = told.recv().expect("the thread says");
        threads.add(pointer);
        assert_eq!(threads.find(tid), Some(pointer));
        thread.thread().unpark();
        thread.join().expect("the thread ends");
        assert_eq!(threads.find(tid), None);
    }
}
