//! Time that the program's first thread loses while none of our threads serves it. It waits for a
//! CPU that Terrace's threads have, or for locks of its memory while pages are moved.
//!
//! The kernel tells how long a thread ran and waited for a CPU (schedstat). For other threads it
//! does so too, but in files that a confined thread cannot open; theirs are not counted.

use crate::fault::fault_cost::FaultCost;
use terrace_os::{self as sys, Fd};

/// How often it is judged whether the thread sleeps by itself, ns.
const JUDGED_EVERY_NS: u64 = 1_000_000_000;
/// Waits for a CPU count if they take more than one part in this many of the time.
const CONTENDED: u64 = 50;

/// Times of the program's first thread. Owned by the mover's thread.
pub(crate) struct FirstThread {
    /// /proc/PID/schedstat and /proc/PID/status of the program, and /proc/stat; -1: there is none.
    times: Fd,
    status: Fd,
    machine: Fd,
    last: Times,
    /// When it was last judged whether the thread sleeps by itself, ns.
    judged_ns: u64,
    /// How often the thread had given up the CPU then, and its faults.
    judged: (u64, u64),
    /// Time by which the thread's reported wait exceeds its sleep, ns. Times of a thread that runs
    /// are some milliseconds old.
    owed_ns: u64,
}

/// Times so far, ns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    pub at_ns: u64,
    /// CPU time of the program.
    pub of_program_ns: u64,
    /// CPU time of Terrace's threads for the program.
    pub of_terrace_ns: u64,
    /// How long the first thread had a CPU.
    pub ran_ns: u64,
    /// How long the first thread was ready without a CPU.
    pub ready_ns: u64,
    /// CPU time of the machine; `None` if it was not read, as there was nothing to share out.
    pub of_all_ns: Option<u64>,
    /// How often the thread gave up the CPU by itself.
    pub given_up: u64,
}

impl FirstThread {
    /// Opens the files of the program's first thread, so the calling thread must not be confined
    /// yet.
    pub fn new(cost: &FaultCost) -> FirstThread {
        let mut first = FirstThread {
            times: sys::open_of_program("schedstat").unwrap_or(-1),
            status: sys::open_of_program("status").unwrap_or(-1),
            machine: sys::open("/proc/stat\0", libc::O_RDONLY, 0).unwrap_or(-1),
            ..FirstThread::unknown()
        };
        let (ran_ns, ready_ns) = sys::ran_and_waited_ns(first.times).unwrap_or_default();
        let given_up = sys::times_given_up(first.status).unwrap_or(0);
        let of_program_ns = sys::program_cpu_ns().unwrap_or(0);
        let at_ns = sys::now_ns();
        first.judged = (given_up, cost.faults());
        first.last = Times { at_ns, of_program_ns, ran_ns, ready_ns, given_up, ..first.last };
        first
    }

    /// A first thread of which nothing can be known.
    pub fn unknown() -> FirstThread {
        FirstThread {
            times: -1,
            status: -1,
            machine: -1,
            last: Times::default(),
            judged_ns: 0,
            judged: (0, 0),
            owed_ns: 0,
        }
    }

    /// How long the thread was held up since the last reading, ns. `waited_ns`, which the program's
    /// threads waited for service, is not part of it. `now` has the first three times.
    pub fn held_up_ns(&mut self, cost: &FaultCost, waited_ns: u64, now: Times) -> u64 {
        let Some((ran_ns, ready_ns)) = sys::ran_and_waited_ns(self.times) else { return 0 };
        let elapsed_ns = now.at_ns.saturating_sub(self.last.at_ns);
        // Reading what the machine did costs more the more CPUs it has.
        let is_contended = ready_ns.saturating_sub(self.last.ready_ns) > elapsed_ns / CONTENDED;
        let of_all_ns = if is_contended { sys::busy_ns(self.machine) } else { None };
        // Other readings do not need it, and the file is a long one.
        let is_judged = now.at_ns.saturating_sub(self.judged_ns) >= JUDGED_EVERY_NS;
        let sleeps = cost.sleeps();
        let told = if is_judged || !sleeps { sys::times_given_up(self.status) } else { None };
        let given_up = told.unwrap_or(self.last.given_up);
        let now = Times { ran_ns, ready_ns, of_all_ns, given_up, ..now };
        if is_judged {
            self.judged_ns = now.at_ns;
            cost.judge_sleep(given_up, &mut self.judged);
        }
        let then = std::mem::replace(&mut self.last, now);
        let mut held_up_ns = now.kept_from_cpu_ns(&then);
        if !sleeps {
            let longest_ns = (given_up - then.given_up.min(given_up)) * cost.longest_wait_ns();
            held_up_ns += self.unaccounted_sleep_ns(now.slept_ns(&then), waited_ns).min(longest_ns);
        }
        held_up_ns
    }

    /// How long all CPUs of the machine together had been busy at this reading, ns. It is read
    /// once.
    pub fn machine_busy_ns(&self) -> Option<u64> {
        self.last.of_all_ns.or_else(|| sys::busy_ns(self.machine))
    }

    /// How much longer the thread slept than it waited for service, ns.
    fn unaccounted_sleep_ns(&mut self, slept_ns: u64, waited_ns: u64) -> u64 {
        let owed_ns = self.owed_ns + waited_ns;
        self.owed_ns = owed_ns.saturating_sub(slept_ns);
        slept_ns.saturating_sub(owed_ns)
    }
}

impl Times {
    /// Time that the thread neither ran nor waited for a CPU since `then`, ns.
    fn slept_ns(&self, then: &Times) -> u64 {
        let since = |of: fn(&Times) -> u64| of(self).saturating_sub(of(then));
        since(|all| all.at_ns).saturating_sub(since(|all| all.ran_ns) + since(|all| all.ready_ns))
    }

    /// Terrace's part of the thread's wait for a CPU since `then`, ns. The part is Terrace's share
    /// of all CPU time other than this thread's.
    fn kept_from_cpu_ns(&self, then: &Times) -> u64 {
        let since = |of: fn(&Times) -> u64| of(self).saturating_sub(of(then));
        let of_terrace_ns = since(|all| all.of_terrace_ns);
        let known_ns = since(|all| all.of_program_ns) + of_terrace_ns;
        let of_all_ns =
            self.of_all_ns.zip(then.of_all_ns).map_or(0, |(now, then)| now.saturating_sub(then));
        let of_others_ns = of_all_ns.max(known_ns).saturating_sub(since(|all| all.ran_ns));
        if of_others_ns == 0 {
            return 0;
        }
        let ready_ns = since(|all| all.ready_ns);
        let part = u128::from(ready_ns) * u128::from(of_terrace_ns) / u128::from(of_others_ns);
        // It was not kept waiting for longer than Terrace ran.
        (part as u64).min(of_terrace_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_cpu_is_shared_out_among_those_that_had_it() {
        let kept = |ready_ns, of_terrace_ns, of_all_ns: Option<u64>| {
            let (at_ns, ran_ns, of_program_ns) = (1_000, 600, 700);
            let now = Times {
                at_ns,
                of_program_ns,
                of_terrace_ns,
                ran_ns,
                ready_ns,
                of_all_ns,
                ..Times::default()
            };
            now.kept_from_cpu_ns(&Times { of_all_ns: of_all_ns.map(|_| 0), ..Times::default() })
        };
        // Terrace had 300, other programs 600, and another thread of this one 100.
        assert_eq!(kept(400, 300, Some(1_600)), 120);
        // The others were not measured, or what is told of them is too coarse.
        assert_eq!(kept(400, 300, None), 300);
        assert_eq!(kept(400, 300, Some(900)), 300);
        assert_eq!((kept(400, 0, Some(1_600)), kept(0, 300, Some(1_600))), (0, 0));
        assert_eq!(Times::default().kept_from_cpu_ns(&Times::default()), 0);
    }

    #[test]
    fn what_was_told_to_be_waited_too_early_is_not_told_twice() {
        let mut first = FirstThread::unknown();
        assert_eq!(first.unaccounted_sleep_ns(1_000, 700), 300);
        // A thread that runs was last seen to run a while ago.
        assert_eq!(first.unaccounted_sleep_ns(100, 500), 0);
        assert_eq!(first.unaccounted_sleep_ns(500, 50), 50);
    }
}
