//! From interrupts of any process's threads to the addresses that they waited for.

use crate::Sample;
use crate::code::Code;
use crate::operand::{Finder, Registers};
use std::collections::HashMap;

/// Processes whose code is kept: at most 18 MiB each. Where there are more, one of them is read
/// again.
const PROCESSES_MAX: usize = 16;

/// Where a thread was when it was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Id of the process that was interrupted.
    pub process: u32,
    /// Id of the thread that was interrupted.
    pub thread: u32,
    /// Time of the interrupt, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Address of the instruction that the thread was to execute next.
    pub ip: u64,
    /// Registers at the interrupt.
    pub registers: Registers,
}

/// Finds addresses; keeps the code that it has read.
#[derive(Default)]
pub struct Decoder {
    code: HashMap<u32, Code>,
    finder: Finder,
}

impl Decoder {
    /// Tells `each` of the accesses that the interrupted thread may have waited for, as far as
    /// their addresses are `wanted`. False if there was none.
    pub fn decode(
        &mut self,
        at: &Interrupt,
        wanted: impl Fn(u32, u64) -> bool,
        mut each: impl FnMut(Sample),
    ) -> bool {
        let Decoder { code, finder } = self;
        let process = at.process;
        if code.len() >= PROCESSES_MAX
            && !code.contains_key(&process)
            && let Some(other) = code.keys().next().copied()
        {
            code.remove(&other);
        }
        let code = code.entry(process).or_insert_with(|| Code::of(process as i32));
        let Some(text) = code.around(at.ip) else { return false };
        let accesses =
            finder.accesses(text, at.ip, &at.registers, |address| wanted(process, address));
        // One sample, however many it may have been.
        let weight = 1.0 / accesses.len().max(1) as f32;
        for (address, kind) in accesses {
            each(Sample {
                address: *address,
                weight,
                time_ns: at.time_ns,
                process,
                thread: at.thread,
                kind: *kind,
            });
        }
        !accesses.is_empty()
    }
}
