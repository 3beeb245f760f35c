//! What a fault costs the program besides its service: reaching the handler and returning, with
//! both wake-ups.
//!
//! No clock of ours measures it, because it passes while no pager thread runs. But between two
//! faults of the program's first thread, all time that the thread neither runs nor waits for a CPU
//! is that cost. It is the time from the end of one fault's service to the beginning of the next
//! one's. The kernel reports how long the thread ran and waited for a CPU. A program may also sleep
//! by itself, which makes some of these times longer. So a low quantile of them is used, or their
//! mean where the thread is seen not to sleep. Then it gives up the CPU once for each fault. Other
//! threads' faults are taken to cost the same. [`crate::first_thread`] counts how long the thread
//! waits for a CPU that Terrace uses.
//!
//! The thread also takes CPU time for a fault: the exception, two switches, and cold caches. That
//! is no more than what it takes between two faults that follow each other closely, of which the
//! median is used.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use terrace_os::{self as sys, Fd};

/// What a fault costs on one CPU until it has been measured, besides CPU time, ns: wake-up and two
/// switches. Across CPUs it is more.
const WAITS_NS: u64 = 4_000;
/// The CPU time that a fault takes from a thread, ns, unless less is measured. Perl, python3,
/// sqlite and sort at three fifths of their memory took 8 to 22 µs a fault more than alone. That
/// was on an AMD EPYC in a virtual machine; this is the least of them.
const OWN_CPU_NS: u64 = 8_000;
/// Number of faults of which one is measured.
const EACH: u32 = 8;
/// Longer times are sleep of the program's own, ns.
const LONGEST_NS: u64 = 1_000_000;
/// Inverse of the largest step of the estimate for a sample, as a share of the estimate.
const STEP: u64 = 32;
/// Waits longer than this many times the low quantile count as that in the mean.
const TAIL: u64 = 16;
/// Inverse weight of a sample in the mean.
const WEIGHT: u64 = 64;
/// The unit of faults found by a read.
const READ_PARTS: u64 = 1 << 12;
/// Faults from which on it is judged whether the program sleeps by itself. It does if it gives up
/// the CPU more than `SLEEPS_FROM` percent as often as it faults.
const JUDGED_FROM: u64 = 64;
const SLEEPS_FROM: u64 = 125;

/// Time that the program loses by a call that takes `pages` out of page tables, ns. The call took
/// `call_ns`.
///
/// Each CPU that runs the program must flush the pages from its TLB: it is interrupted, and the
/// call waits for it. The call's time without interrupts is known; of the rest the interrupted CPU
/// loses two thirds. (A loop on the other CPU lost 7.5 to 10 us to each of 50,000 calls of 12.5 us.
/// Of those, 2 us are the call's own: AMD EPYC in a virtual machine, Linux 6.18.)
pub(crate) fn interruption_ns(call_ns: u64, pages: u64) -> u64 {
    const CALL_NS: u64 = 1_500;
    const PAGE_NS: u64 = 500;
    /// The excess of a caller that was preempted meanwhile is no interruption.
    const LONGEST_NS: u64 = 30_000;
    call_ns.saturating_sub(CALL_NS + PAGE_NS * pages).min(LONGEST_NS) * 2 / 3
}

/// A quantile of samples, ns, as a share of [`Quantile::OF`].
struct Quantile {
    believed_ns: AtomicU64,
    share: u64,
}

impl Quantile {
    const OF: u64 = 16;

    const fn new(share: u64, begins_ns: u64) -> Quantile {
        Quantile { believed_ns: AtomicU64::new(begins_ns), share }
    }

    fn ns(&self) -> u64 {
        self.believed_ns.load(Relaxed)
    }

    /// Two handlers may lose each other's steps, which are small.
    fn add_sample(&self, sample_ns: u64) {
        let believed = self.ns();
        let step = believed / STEP / Self::OF + 1;
        let next = match sample_ns > believed {
            true => believed + step * self.share,
            false => believed - (step * (Self::OF - self.share)).min(believed),
        };
        self.believed_ns.store(next, Relaxed);
    }
}

/// The estimates, shared by all handlers.
pub(crate) struct FaultCost {
    waits: Quantile,
    mean_waits_ns: AtomicU64,
    own_cpu: Quantile,
    sleeps: AtomicBool,
    /// Faults of the program's first thread.
    faults: AtomicU64,
    /// Recent average of faults that a read finds, times [`READ_PARTS`].
    found: AtomicU64,
    /// Time to swap in a page from the kernel's swap; 0 if not measured yet.
    swap_ns: AtomicU64,
}

impl Default for FaultCost {
    fn default() -> Self {
        FaultCost {
            waits: Quantile::new(4, WAITS_NS),
            mean_waits_ns: AtomicU64::new(WAITS_NS),
            own_cpu: Quantile::new(8, OWN_CPU_NS),
            sleeps: AtomicBool::new(true),
            faults: AtomicU64::new(0),
            found: AtomicU64::new(READ_PARTS),
            swap_ns: AtomicU64::new(0),
        }
    }
}

impl FaultCost {
    /// The cost of a refault that the kernel serves from its swap, ns. It is the swap-in in memory
    /// that no other process uses, and the overhead of any fault. Before a swap-in is measured, the
    /// least that it may take is assumed.
    pub fn of_swap_ns(&self) -> u64 {
        const LEAST_NS: u64 = 5_000;
        self.swap_ns.load(Relaxed).max(LEAST_NS) + OWN_CPU_NS
    }

    /// Records the measured time to swap in a page.
    pub fn measured_swap(&self, ns: u64) {
        self.swap_ns.store(ns, Relaxed);
    }

    /// Records that a read found `faults` faults, at least one.
    pub fn read(&self, faults: u64) {
        let found = self.found.load(Relaxed);
        self.found.store(found - found / WEIGHT + faults * READ_PARTS / WEIGHT, Relaxed);
    }

    /// The time until a fault is served if each takes `service_ns`, ns: it waits for half of those
    /// that are found with it.
    pub fn waiting_ns(&self, service_ns: u64) -> u64 {
        service_ns * (self.found.load(Relaxed) + READ_PARTS) / (2 * READ_PARTS)
    }

    /// The overhead of one fault besides its service, ns.
    pub fn overhead_ns(&self) -> u64 {
        let (waited_ns, ran_ns) = self.overhead_parts_ns();
        waited_ns + ran_ns
    }

    /// The parts of the overhead, ns: waiting, and the thread's own CPU time.
    pub fn overhead_parts_ns(&self) -> (u64, u64) {
        let waits = match self.sleeps() {
            true => self.waits.ns(),
            false => self.mean_waits_ns.load(Relaxed),
        };
        (waits, self.own_cpu.ns().min(OWN_CPU_NS))
    }

    /// Adds a sample: the time between two faults of one thread, asleep and with a CPU.
    fn add_sample(&self, waited_ns: u64, ran_ns: u64) {
        self.own_cpu.add_sample(ran_ns);
        if waited_ns >= LONGEST_NS {
            return;
        }
        self.waits.add_sample(waited_ns);
        // A pause of the program's own among many waits must not count as all of them.
        let capped_ns = waited_ns.min(self.longest_wait_ns());
        let mean = self.mean_waits_ns.load(Relaxed);
        self.mean_waits_ns.store((mean * (WEIGHT - 1) + capped_ns) / WEIGHT, Relaxed);
    }

    /// Whether the program sleeps by itself, as far as is known.
    pub fn sleeps(&self) -> bool {
        self.sleeps.load(Relaxed)
    }

    /// The longest wait that counts in full, ns.
    pub fn longest_wait_ns(&self) -> u64 {
        self.waits.ns() * TAIL
    }

    /// How many faults of the program's first thread there were.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Judges whether the program sleeps by itself, by how often its first thread has given up the
    /// CPU so far. `then` holds that count and the faults when it was judged last.
    pub fn judge_sleep(&self, given_up: u64, then: &mut (u64, u64)) {
        let faults = self.faults();
        let faulted = faults - then.1;
        if faulted >= JUDGED_FROM {
            let gave_up = given_up.saturating_sub(then.0);
            self.sleeps.store(gave_up > faulted * SLEEPS_FROM / 100, Relaxed);
            *then = (given_up, faults);
        }
    }
}

/// The timing of one handler. Only faults of the program's first thread are measured.
pub(crate) struct Timing {
    /// /proc/PID/schedstat of the program: of its first thread. -1 if there is none.
    times: Fd,
    faults: u32,
    /// The last fault served here, if it is measured.
    ended: Option<Ended>,
    /// The fault in service, if it is measured.
    begun: Option<Begun>,
}

/// A fault whose service has begun: its number among the thread's, and how long the thread had run
/// and waited for a CPU then.
struct Begun {
    number: u64,
    ran_ns: u64,
    ready_ns: u64,
}

/// A fault whose service has ended.
struct Ended {
    begun: Begun,
    at_ns: u64,
}

impl Timing {
    /// A timing that measures nothing.
    pub fn new() -> Timing {
        Timing { times: -1, faults: 0, ended: None, begun: None }
    }

    /// The timing for a handler that is not confined yet, because it opens a file.
    pub fn of_program() -> Timing {
        Timing { times: sys::open_of_program("schedstat").unwrap_or(-1), ..Timing::new() }
    }

    /// Records that the service of a fault begins; the thread that faulted does not run.
    pub fn begin(&mut self, cost: &FaultCost, thread: i32, start_ns: u64) {
        if thread != sys::program_id() {
            return;
        }
        self.faults = self.faults.wrapping_add(1);
        let number = cost.faults.fetch_add(1, Relaxed);
        // Another handler may have had one since.
        let last = self.ended.take().filter(|last| last.begun.number + 1 == number);
        if last.is_none() && !self.faults.is_multiple_of(EACH) {
            return;
        }
        let Some((ran_ns, ready_ns)) = sys::ran_and_waited_ns(self.times) else { return };
        match last {
            Some(Ended { begun, at_ns }) => {
                let ran_ns = ran_ns.saturating_sub(begun.ran_ns);
                let ready_ns = ready_ns.saturating_sub(begun.ready_ns);
                cost.add_sample(start_ns.saturating_sub(at_ns + ran_ns + ready_ns), ran_ns);
            }
            None => self.begun = Some(Begun { number, ran_ns, ready_ns }),
        }
    }

    /// Records that the service of the fault ends.
    pub fn end(&mut self, end_ns: u64) {
        if let Some(begun) = self.begun.take() {
            self.ended = Some(Ended { begun, at_ns: end_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_most_samples_exceed_is_believed() {
        let cost = FaultCost::default();
        // A quarter of them are of a program that sleeps, and are worth nothing.
        for n in 0..4_000 {
            cost.add_sample(if n % 4 == 0 { 900_000 } else { 80_000 + n % 7 * 1_000 }, 50_000);
        }
        let believed = |cost: &FaultCost| cost.overhead_ns() - OWN_CPU_NS;
        assert!((79_000..90_000).contains(&believed(&cost)), "{}", believed(&cost));
        for _ in 0..4_000 {
            cost.add_sample(6_000, 50_000);
        }
        assert!((5_500..8_000).contains(&believed(&cost)), "{}", believed(&cost));
    }

    #[test]
    fn only_what_a_move_takes_longer_than_alone_interrupts() {
        assert_eq!(interruption_ns(1_900, 1), 0);
        assert_eq!(interruption_ns(14_000, 1), 8_000);
        assert_eq!(interruption_ns(14_000, 25), 0, "a run of pages is flushed at once");
        assert_eq!(interruption_ns(5_000_000, 1), 20_000, "it was preempted");
    }

    #[test]
    fn of_a_program_that_does_not_sleep_all_counts() {
        let cost = FaultCost::default();
        for n in 0..4_000 {
            cost.add_sample(if n % 2 == 0 { 10_000 } else { 50_000 }, 50_000);
        }
        let mut then = (0, 0);
        cost.faults.store(4_000, Relaxed);
        cost.judge_sleep(4_100, &mut then);
        let believed = cost.overhead_ns() - OWN_CPU_NS;
        assert!((28_000..32_000).contains(&believed), "{believed}");
        cost.faults.store(8_000, Relaxed);
        cost.judge_sleep(9_600, &mut then);
        assert!(cost.overhead_ns() - OWN_CPU_NS < 15_000, "{}", cost.overhead_ns());
    }

    #[test]
    fn a_fault_waits_for_half_of_those_found_with_it() {
        let cost = FaultCost::default();
        assert_eq!(cost.waiting_ns(4_000), 4_000);
        (0..1_000).for_each(|_| cost.read(9));
        let waits_ns = cost.waiting_ns(4_000);
        assert!((19_000..20_001).contains(&waits_ns), "{waits_ns}");
        (0..1_000).for_each(|_| cost.read(1));
        assert!((4_000..4_200).contains(&cost.waiting_ns(4_000)));
    }

    #[test]
    fn its_own_cpu_time_is_never_more_than_between_close_faults() {
        let cost = FaultCost::default();
        let before = cost.overhead_ns();
        for n in 0..4_000 {
            cost.add_sample(WAITS_NS, if n % 4 > 0 { 3_000 } else { 40_000 });
        }
        let less = before - cost.overhead_ns();
        assert!((4_000..6_000).contains(&less), "{less}");
    }
}
