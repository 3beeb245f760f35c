//! Samples where perf events are forbidden (`--sampler timer`): each thread of the program is interrupted by a signal whenever it has run for so long, and the
//! handler writes its registers into a ring behind the statistics page. What they mean is found out by `terrace run`, as of samples by the clock.
//!
//! The signal is SIGURG, whose default is to be ignored: it ends nobody, even if our handler is taken away, and programs that know it expect it to come for
//! nothing. A program with a handler of its own keeps that and is not sampled; nor is a thread that blocks the signal, which somebody may wait for.
//!
//! What it may cost a program is why it must be asked for by name: a thread that is about to wait in the kernel when its time is up comes back with EINTR (of
//! calls that SA_RESTART does not cover, `epoll_wait` for one), and the handler runs on its stack, or on its alternate one: 4 KiB with AVX-512.

use crate::pager::Pager;
use crate::stats::{INTERRUPT_WORDS, InterruptRing};
use crate::sys::{self, PAGE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// How often it is looked at which threads there are, ns.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Threads that are interrupted, at most: each has a timer, which counts against RLIMIT_SIGPENDING.
const THREADS_MAX: usize = 256;
/// How often it is looked at which threads block the signal, ns.
const MASKS_EVERY_NS: u64 = 1_000_000_000;

/// Where handlers write; null while they are not to.
static RING: AtomicPtr<InterruptRing> = AtomicPtr::new(std::ptr::null_mut());

/// The program's threads' timers. Owned by the mover.
#[derive(Default)]
pub(crate) struct Timers {
    /// By thread.
    timers: HashMap<i32, sys::Timer>,
    period_ns: u64,
    looked_ns: u64,
    masks_ns: u64,
    /// Threads that blocked the signal then.
    blocked: Vec<i32>,
    installed: bool,
    given_up: bool,
}

impl Timers {
    /// Does what `terrace run` wants now.
    pub fn tick(&mut self, pager: &Pager, now_ns: u64) {
        if self.given_up || now_ns - self.looked_ns < LOOK_EVERY_NS {
            return;
        }
        let Some(ring) = pager.interrupts() else { return };
        // Nobody reads any more if nobody has said so of late.
        let wanted = now_ns < ring.until_ns.load(Relaxed);
        let period_ns = if wanted { ring.period_ns.load(Relaxed) } else { 0 };
        if period_ns == 0 && self.timers.is_empty() {
            return;
        }
        self.looked_ns = now_ns;
        if period_ns == 0 {
            return self.stop();
        }
        if !self.installed {
            self.install(pager, ring);
        } else if !sys::handles_timers() {
            self.give_up(pager, "the program has come to handle SIGURG itself");
        }
        if self.given_up {
            return;
        }
        if period_ns != self.period_ns {
            self.stop();
            self.period_ns = period_ns;
        }
        let threads = sys::own_threads().unwrap_or_default();
        let masks_due = now_ns - self.masks_ns > MASKS_EVERY_NS;
        if masks_due {
            self.masks_ns = now_ns;
            self.blocked.clear();
        }
        self.timers.retain(|thread, timer| {
            let stays = threads.contains(thread) && (!masks_due || sys::takes_timers(*thread));
            if !stays {
                timer.delete();
            }
            stays
        });
        for thread in threads {
            let new = !self.timers.contains_key(&thread) && !self.blocked.contains(&thread) && !pager.account.is_ours(thread);
            if !new || self.timers.len() >= THREADS_MAX {
                continue;
            }
            if sys::takes_timers(thread) {
                self.timers.extend(sys::Timer::of_thread(thread, period_ns).map(|timer| (thread, timer)));
            } else {
                self.blocked.push(thread);
            }
        }
    }

    fn install(&mut self, pager: &Pager, ring: &InterruptRing) {
        let (start, len) = (std::ptr::from_ref(ring) as usize, size_of::<InterruptRing>());
        let from = start / PAGE * PAGE;
        if sys::populate_for_writing(from, (start + len).next_multiple_of(PAGE) - from).is_err() {
            return self.give_up(pager, "there is no room for samples where Terrace's statistics are");
        }
        if sys::is_filtered() && sys::survives(make_all_calls) != Ok(true) {
            return self.give_up(pager, "a seccomp filter does not allow timer_create, timer_settime and timer_delete");
        }
        RING.store(std::ptr::from_ref(ring).cast_mut(), Release);
        self.installed = sys::handle_timers(note);
        if !self.installed {
            self.give_up(pager, "the program handles SIGURG itself");
        }
    }

    fn give_up(&mut self, pager: &Pager, why: &str) {
        self.stop();
        self.given_up = true;
        pager.say_once(&pager.said.timers, &format!("{why}, so it is not sampled by the timer: what is hot is learned from faults alone"));
    }

    /// Ends all timers.
    fn stop(&mut self) {
        self.timers.drain().for_each(|(_, timer)| timer.delete());
    }

    /// The same, and the handler goes too.
    pub fn end(&mut self) {
        self.stop();
        if self.installed {
            sys::ignore_timers();
        }
    }
}

/// In a fork's child: the ring is its parent's.
pub(crate) fn forget_ring() {
    RING.store(std::ptr::null_mut(), Release);
}

/// In a child that a filter may end.
fn make_all_calls() {
    if let Some(timer) = sys::Timer::of_thread(sys::thread_id(), u64::MAX >> 2) {
        timer.delete();
    }
}

/// A timer's signal came to the calling thread.
fn note(thread: i32, ip: u64, flags: u64, registers: &[u64; 16]) {
    // SAFETY: null, or a part of the statistics file, which stays mapped but in a fork's child, where this is null before.
    let Some(ring) = (unsafe { RING.load(Acquire).as_ref() }) else { return };
    let mut words = [0; INTERRUPT_WORDS];
    (words[0], words[1], words[2]) = (thread as u64, ip, flags);
    words[3..].copy_from_slice(registers);
    ring.ring.write(&words);
}
