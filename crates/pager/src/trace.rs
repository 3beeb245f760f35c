//! Traces where the time of a fault and of an eviction goes (`TERRACE_TRACE_FAULTS=1`). Without it,
//! this takes one branch a step.

use std::sync::atomic::{AtomicU64, Ordering::*};
use terrace_control::stats::{EVICTION_STEPS, FAULT_STEPS, StatsPage};
use terrace_os::{self as sys, PAGE};
use terrace_tiers::Times;

/// The steps of a fault, in their order; each lasts until it is passed.
#[derive(Clone, Copy)]
pub(crate) enum FaultStep {
    /// Waiting for room.
    Room,
    /// The gate, the store's lock, the claim.
    Claim,
    /// Decompressing.
    Decode,
    /// UFFDIO_COPY, which wakes the waiting threads.
    Copy,
    /// Removing the stored bytes, counting, ending the claim.
    After,
}

/// The steps of an eviction.
#[derive(Clone, Copy)]
pub(crate) enum EvictionStep {
    /// Finding and claiming pages, registering their range.
    Scan,
    /// Moving pages into staging.
    Move,
    /// Encoding.
    Compress,
    /// Putting pages into the region's store.
    Store,
    /// Emptying staging.
    Empty,
}

/// When a fault was read, and when each of its steps was over; CLOCK_MONOTONIC, ns.
pub type FaultTimes = [u64; 1 + FAULT_STEPS];

/// Times of the fault that a thread serves. Not traced until [`StepTimer::begin`].
#[derive(Default)]
pub(crate) struct StepTimer {
    times: FaultTimes,
}

impl StepTimer {
    /// Begins the trace of a fault that was read at `start_ns`.
    pub fn begin(&mut self, start_ns: u64) {
        self.times[0] = start_ns;
    }

    /// Notes that a step is over.
    pub fn mark(&mut self, step: FaultStep) {
        if self.times[0] != 0 {
            self.times[1 + step as usize] = sys::now_ns();
        }
    }

    /// Ends the fault; returns its times, if it was traced.
    fn end(&mut self) -> Option<FaultTimes> {
        let times = std::mem::take(&mut self.times);
        (times[0] != 0).then_some(times)
    }
}

/// Faults that are remembered. Pages this many pages apart share a place: 64 MiB without a gap have
/// one each.
const RECENT: usize = 1 << 14;

#[derive(Default)]
struct Recent {
    address: AtomicU64,
    times: [AtomicU64; 1 + FAULT_STEPS],
}

struct TraceBuffer {
    fault: [Times; FAULT_STEPS],
    eviction_ns: [AtomicU64; EVICTION_STEPS],
    evicted: AtomicU64,
    recent: Box<[Recent]>,
}

/// The trace, if faults are traced.
pub(crate) struct Trace(Option<Box<TraceBuffer>>);

impl Trace {
    pub fn new(on: bool) -> Trace {
        let kept = || {
            Box::new(TraceBuffer {
                fault: Default::default(),
                eviction_ns: Default::default(),
                evicted: AtomicU64::new(0),
                recent: (0..RECENT).map(|_| Recent::default()).collect(),
            })
        };
        Trace(on.then(kept))
    }

    /// Whether faults are traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records a fault that brought a compressed page back and is over.
    pub fn fault(&self, address: usize, timer: &mut StepTimer) {
        let Some(kept) = &self.0 else { return };
        let Some(times) = timer.end() else { return };
        for (step, ends) in kept.fault.iter().zip(times.windows(2)) {
            step.record(ends[1].saturating_sub(ends[0]), 1);
        }
        let recent = &kept.recent[address / PAGE % RECENT];
        // A reader that comes meanwhile finds no fault.
        recent.address.store(0, SeqCst);
        recent.times.iter().zip(times).for_each(|(field, time)| field.store(time, SeqCst));
        recent.address.store(address as u64, SeqCst);
    }

    /// Runs a step of an eviction and adds its time.
    pub fn evicting<R>(&self, step: EvictionStep, act: impl FnOnce() -> R) -> R {
        let Some(kept) = &self.0 else { return act() };
        let start_ns = sys::now_ns();
        let result = act();
        kept.eviction_ns[step as usize].fetch_add(sys::now_ns() - start_ns, Relaxed);
        result
    }

    /// Counts pages that were stored.
    pub fn evicted(&self, pages: u32) {
        if let Some(kept) = &self.0 {
            kept.evicted.fetch_add(u64::from(pages), Relaxed);
        }
    }

    /// Writes what was traced into the statistics page.
    pub fn publish(&self, page: &StatsPage) {
        let Some(kept) = &self.0 else { return };
        for (field, step) in page.fault_step_ns.iter().zip(&kept.fault) {
            field[0].store(step.quantile_ns(0.5), Relaxed);
            field[1].store(step.quantile_ns(0.99), Relaxed);
        }
        let evicted = kept.evicted.load(Relaxed);
        for (field, ns) in page.eviction_step_ns.iter().zip(&kept.eviction_ns) {
            field.store(ns.load(Relaxed) / evicted.max(1), Relaxed);
        }
        page.traced_evictions.store(evicted, Relaxed);
        page.traced_faults.store(kept.fault[0].count(), Relaxed);
    }

    /// The times of the last fault on the page at `address`, if it was traced and no other has
    /// taken its place.
    pub fn times_of(&self, address: usize) -> Option<FaultTimes> {
        let recent = &self.0.as_ref()?.recent[address / PAGE % RECENT];
        let known = recent.address.load(SeqCst) == (address & !(PAGE - 1)) as u64;
        known.then(|| std::array::from_fn(|i| recent.times[i].load(SeqCst)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_was_not_begun_leaves_nothing() {
        let (trace, mut timer) = (Trace::new(true), StepTimer::default());
        timer.mark(FaultStep::Copy);
        trace.fault(PAGE, &mut timer);
        assert_eq!(trace.0.as_ref().map(|kept| kept.fault[0].count()), Some(0));
        timer.begin(sys::now_ns());
        for step in [
            FaultStep::Room,
            FaultStep::Claim,
            FaultStep::Decode,
            FaultStep::Copy,
            FaultStep::After,
        ] {
            timer.mark(step);
        }
        trace.fault(PAGE, &mut timer);
        trace.fault(PAGE, &mut timer);
        assert_eq!(trace.0.as_ref().map(|kept| kept.fault[4].count()), Some(1));
        let off = Trace::new(false);
        off.fault(PAGE, &mut timer);
        assert_eq!(off.evicting(EvictionStep::Move, || 7), 7);
    }
}
