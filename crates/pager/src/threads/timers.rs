//! Samples where perf events are forbidden (`--sampler timer`). A signal interrupts each thread of
//! the program whenever it has run for one period. The handler writes the thread's registers into a
//! ring behind the statistics page. `terrace run` finds out what they mean, as with samples by the
//! clock.
//!
//! The signal is SIGURG, whose default is to be ignored. It ends no process, even if our handler is
//! taken away, and programs that know it expect it to come for nothing. A program with a handler of
//! its own keeps that and is not sampled. Nor is a thread that blocks the signal, which another
//! thread may wait for.
//!
//! Only a thread of the program itself may make such timers, so this is the one thread of ours that
//! is the program's. While it runs the program cannot enter a user namespace.
//!
//! It must be asked for by name, because of what it may cost a program. A thread that is about to
//! wait in the kernel when its time is up comes back with EINTR. That concerns calls that
//! SA_RESTART does not cover, such as `epoll_wait`. And the handler runs on the thread's stack, or
//! on its alternate one: 4 KiB with AVX-512.

use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::threads::timer_thread::TimerThread;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::time::Duration;
use terrace_control::stats::{INTERRUPT_WORDS, InterruptRing};
use terrace_os::{self as sys, PAGE};

/// How often the program's threads are listed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Most threads that are interrupted: each has a timer, which counts against RLIMIT_SIGPENDING.
const THREADS_MAX: usize = 256;
/// How often the signal masks of threads are read, ns.
const MASKS_EVERY_NS: u64 = 1_000_000_000;

/// The ring that handlers write into; null while they are not to.
static RING: AtomicPtr<InterruptRing> = AtomicPtr::new(std::ptr::null_mut());

impl Pager {
    /// The period at which timers are to interrupt, ns; 0 if none are wanted.
    fn wanted_period_ns(&self, now_ns: u64) -> u64 {
        // The ring has no reader any more if none has said so of late.
        let wanted = self.interrupts().filter(|ring| now_ns < ring.until_ns.load(Relaxed));
        wanted.map_or(0, |ring| ring.period_ns.load(Relaxed))
    }

    /// Makes the thread that makes timers, where `terrace run` may want some and the companion
    /// runs. On a thread of the program, where the C library can make threads.
    pub fn start_timers(&'static self) {
        let TimerThread { running, over } = &self.timers;
        let runs = matches!(self.mode(), Mode::Active | Mode::Observing);
        if !self.settings.timers || !runs || over.load(Relaxed) || running.swap(true, AcqRel) {
            return;
        }
        (self.host.enter_internal)();
        let signals = sys::block_signals();
        // SAFETY: the pager lives for ever, and is shared by threads.
        let made = unsafe {
            sys::detached_thread(timers_main, std::ptr::from_ref(self).cast_mut().cast())
        };
        if !made {
            over.store(true, Relaxed);
            running.store(false, Release);
        }
        sys::restore_signals(signals);
        (self.host.leave_internal)();
    }
}

/// Whether `main` is that of the thread that makes timers, our only thread in the program's
/// process.
pub fn is_own_thread(main: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    std::ptr::fn_addr_eq(main, timers_main as extern "C" fn(*mut c_void) -> *mut c_void)
}

extern "C" fn timers_main(pager: *mut c_void) -> *mut c_void {
    // SAFETY: `start_timers` passes the pager, which lives for ever.
    let pager = unsafe { &*pager.cast::<Pager>() };
    (pager.host.enter_internal)();
    sys::name_thread(c"terrace-timer");
    let mut timers = Timers::default();
    // Ends with the program's main thread: this one must not keep the process alive once all others
    // have ended.
    while !timers.given_up
        && !pager.is_shut_down()
        && sys::thread_state(sys::program_id()) != Some('Z')
    {
        let now_ns = sys::now_ns();
        if pager.wanted_period_ns(now_ns) > 0 {
            timers.tick(pager, now_ns);
        } else {
            timers.stop();
        }
        sys::sleep(POLL_INTERVAL);
    }
    timers.end();
    pager.timers.over.store(timers.given_up, Relaxed);
    pager.timers.running.store(false, Release);
    (pager.host.leave_internal)();
    std::ptr::null_mut()
}

/// Timers of the program's threads. Owned by the thread that makes them.
#[derive(Default)]
struct Timers {
    /// The timers, by thread id.
    timers: HashMap<i32, sys::Timer>,
    period_ns: u64,
    masks_ns: u64,
    /// Threads that blocked the signal at `masks_ns`.
    blocked: Vec<i32>,
    installed: bool,
    given_up: bool,
}

impl Timers {
    /// Does what `terrace run` wants now.
    fn tick(&mut self, pager: &Pager, now_ns: u64) {
        let Some(ring) = pager.interrupts() else { return };
        let period_ns = pager.wanted_period_ns(now_ns);
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
            let new = !self.timers.contains_key(&thread)
                && !self.blocked.contains(&thread)
                && thread != sys::thread_id();
            if !new || self.timers.len() >= THREADS_MAX {
                continue;
            }
            if sys::takes_timers(thread) {
                self.timers
                    .extend(sys::Timer::of_thread(thread, period_ns).map(|timer| (thread, timer)));
            } else {
                self.blocked.push(thread);
            }
        }
    }

    fn install(&mut self, pager: &Pager, ring: &InterruptRing) {
        let (start, len) = (std::ptr::from_ref(ring) as usize, size_of::<InterruptRing>());
        let from = start / PAGE * PAGE;
        if sys::populate_for_writing(from, (start + len).next_multiple_of(PAGE) - from).is_err() {
            return self.give_up(pager, "there is no memory for samples");
        }
        if sys::is_filtered() && sys::survives(make_all_calls) != Ok(true) {
            return self.give_up(
                pager,
                "a seccomp filter does not allow timer_create, timer_settime and timer_delete",
            );
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
        pager.warn_once(
            &pager.warned.timers,
            &format!(
                "{why}, so it is not sampled by the timer: what is hot is learned from faults alone"
            ),
        );
    }

    /// Ends all timers.
    fn stop(&mut self) {
        self.timers.drain().for_each(|(_, timer)| timer.delete());
    }

    /// Ends all timers and gives the signal its default action again, if the handler was installed.
    fn end(&mut self) {
        self.stop();
        if self.installed {
            sys::ignore_timers();
        }
    }
}

/// Takes the ring away from handlers, in a fork's child: it is the parent's.
pub(crate) fn forget_ring() {
    RING.store(std::ptr::null_mut(), Release);
}

/// Makes all calls for timers once, in a child that a filter may end.
fn make_all_calls() {
    if let Some(timer) = sys::Timer::of_thread(sys::thread_id(), u64::MAX >> 2) {
        timer.delete();
    }
}

/// Notes the registers of the calling thread, which a timer's signal has interrupted.
fn note(thread: i32, ip: u64, flags: u64, registers: &[u64; 16]) {
    // SAFETY: null, or a part of the statistics page's private side. That is unmapped in a fork's
    // child only, after this was set to null.
    let Some(ring) = (unsafe { RING.load(Acquire).as_ref() }) else { return };
    let mut words = [0; INTERRUPT_WORDS];
    (words[0], words[1], words[2]) = (thread as u64, ip, flags);
    words[3..].copy_from_slice(registers);
    ring.ring.write(&words);
}
