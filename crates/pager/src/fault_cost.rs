//! What a fault costs the program besides its service: the way to the handler and back, with the
//! wake-up of both.
//!
//! No clock of ours sees it, because it passes while nobody of ours runs. But between two faults of
//! a program's only thread all time that the thread does not run is that: from the end of one
//! fault's service to the beginning of the next one's, less the CPU time that the process took
//! meanwhile. A program also sleeps by itself, which makes some of these times longer; so a low
//! quantile of them is what is believed.

use crate::sys;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Until it has been measured, ns: exception, wake-up and two switches on one CPU. Across CPUs it
/// is more.
pub(crate) const FAULT_OVERHEAD_NS: u64 = 5_000;
/// One fault in so many is measured.
const EACH: u32 = 8;
/// What is longer was sleep of the program's own, ns.
const LONGEST_NS: u64 = 1_000_000;
/// The quantile that is believed, as a share of [`QUANTILE_OF`].
const QUANTILE: u64 = 1;
const QUANTILE_OF: u64 = 4;
/// One sample moves what is believed by this share of it, times the above.
const STEP: u64 = 32;
/// The exception and the way into the kernel, which are CPU time of the program's own, ns.
const OWN_CPU_NS: u64 = 1_000;

/// What is believed, of all handlers.
pub(crate) struct FaultCost {
    overhead_ns: AtomicU64,
}

impl Default for FaultCost {
    fn default() -> Self {
        FaultCost { overhead_ns: AtomicU64::new(FAULT_OVERHEAD_NS) }
    }
}

impl FaultCost {
    /// Of one fault, ns.
    pub fn overhead_ns(&self) -> u64 {
        self.overhead_ns.load(Relaxed)
    }

    /// Two handlers may lose each other's steps, which are small.
    fn learn(&self, sample_ns: u64) {
        let believed = self.overhead_ns();
        let step = believed / STEP / QUANTILE_OF + 1;
        let next = match sample_ns + OWN_CPU_NS > believed {
            true => believed + step * QUANTILE,
            false => believed - (step * (QUANTILE_OF - QUANTILE)).min(believed),
        };
        self.overhead_ns.store(next, Relaxed);
    }
}

/// One handler's.
pub(crate) struct Timing {
    faults: u32,
    /// Of the last fault, if it is measured: whose it was, when its service ended, and the CPU
    /// time of the process then.
    ended: Option<(i32, u64, u64)>,
    cpu_ns: Option<u64>,
}

impl Timing {
    /// Nothing measured yet.
    pub fn new() -> Timing {
        Timing { faults: 0, ended: None, cpu_ns: None }
    }

    /// The service of a fault begins; the thread that faulted does not run. `alone`: it is the
    /// process's only one.
    pub fn begin(&mut self, cost: &FaultCost, thread: i32, start_ns: u64, alone: bool) {
        self.faults = self.faults.wrapping_add(1);
        let last = self.ended.take();
        let wanted = alone && (self.faults.is_multiple_of(EACH) || last.is_some());
        self.cpu_ns = if wanted { sys::program_cpu_ns() } else { None };
        if let (Some((of, ended_ns, cpu_then_ns)), Some(cpu_ns)) = (last, self.cpu_ns)
            && of == thread
        {
            let sample_ns = start_ns
                .saturating_sub(ended_ns)
                .saturating_sub(cpu_ns.saturating_sub(cpu_then_ns));
            if sample_ns < LONGEST_NS {
                cost.learn(sample_ns);
            }
            self.cpu_ns = None;
        }
    }

    /// It ends.
    pub fn end(&mut self, thread: i32, end_ns: u64) {
        self.ended = self.cpu_ns.take().map(|cpu_ns| (thread, end_ns, cpu_ns));
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
            cost.learn(if n % 4 == 0 { 900_000 } else { 80_000 + n % 7 * 1_000 });
        }
        assert!((79_000..90_000).contains(&cost.overhead_ns()), "{}", cost.overhead_ns());
        for _ in 0..4_000 {
            cost.learn(6_000);
        }
        assert!((6_000..8_000).contains(&cost.overhead_ns()), "{}", cost.overhead_ns());
    }
}
