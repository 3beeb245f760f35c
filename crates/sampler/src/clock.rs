//! Samples by the clock: each thread is interrupted for every so much that it ran, and what it waited for is computed from its code and registers.
//!
//! What is sampled is *stalls*, not accesses: who waits longer is met more often, which is what placement should look at (`facts/sampling.md` §A).

use crate::code::Code;
use crate::events::{Events, OpenError, Request, Whose};
use crate::operand::Finder;
use crate::ring::{Layout, Record, fields};
use crate::{Sample, Tally};
use perf_event_open_sys::bindings::{PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE};
use std::collections::HashMap;

/// Processes whose code is kept: at most 18 MiB each. Where there are more, all is read again.
const PROCESSES_MAX: usize = 8;

/// The clock.
pub struct Clock {
    events: Events,
    code: HashMap<u32, Code>,
    finder: Finder,
}

impl Clock {
    /// Samples each thread `hz` times a second of its running (1 to 100,000).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(whose: Whose, hz: u32) -> Result<Clock, OpenError> {
        let layout = Layout { sample_type: fields::IP | fields::TID | fields::TIME | fields::REGS_USER };
        let request =
            Request { kind: PERF_TYPE_SOFTWARE, config: u64::from(PERF_COUNT_SW_CPU_CLOCK), period: period_ns(hz), precise_ip: 0, layout };
        Ok(Clock { events: Events::open(whose, &request)?, code: HashMap::new(), finder: Finder::default() })
    }

    /// From now on so many a second.
    ///
    /// # Errors
    /// The kernel's, if it does not take it.
    pub fn set_rate(&self, hz: u32) -> std::io::Result<()> {
        self.events.set_period(period_ns(hz))
    }

    /// Takes out what was sampled, and tells `each` of the accesses at addresses that are `wanted` of a process.
    pub fn drain(&mut self, wanted: impl Fn(u32, u64) -> bool, mut each: impl FnMut(Sample)) -> Tally {
        let Clock { events, code, finder } = self;
        let mut tally = Tally::default();
        let drained = events.drain(|record| match record {
            Record::Sample(sample) => {
                tally.samples += 1;
                let Some((ip, registers)) = sample.user else { return };
                if code.len() >= PROCESSES_MAX && !code.contains_key(&sample.pid) {
                    code.clear();
                }
                let code = code.entry(sample.pid).or_insert_with(|| Code::of(sample.pid as i32));
                let Some(text) = code.around(ip) else { return };
                let addresses = finder.addresses(text, ip, &registers, |address| wanted(sample.pid, address));
                tally.located += u64::from(!addresses.is_empty());
                // One sample, however many it may have been.
                let weight = 1.0 / addresses.len().max(1) as f32;
                for address in addresses {
                    each(Sample { address: *address, weight, time_ns: sample.time_ns, process: sample.pid, thread: sample.tid });
                }
            }
            Record::Lost(lost) => tally.lost += lost,
            Record::Throttled => tally.throttled += 1,
            _ => {}
        });
        tally.damaged += u64::from(drained.damaged);
        tally
    }
}

fn period_ns(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz.clamp(1, 100_000))
}
