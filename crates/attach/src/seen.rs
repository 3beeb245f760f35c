//! Children of a process that have stayed for long enough to be attached to.

use crate::process::{self, Program};
use std::collections::HashMap;
use std::process::Child;

/// How long a child must have run its program, ms.
const STAYS_MS: u64 = 1000;

/// What is known of the children of one process.
#[derive(Default)]
pub struct Children {
    /// Children that live. A process that was there before the keeper has no record, and the
    /// operator names it if it is to be attached to.
    seen: HashMap<i32, Option<Seen>>,
    /// Commands that attach.
    pub attaching: Vec<Child>,
    /// Whether children that were there before are known.
    has_looked: bool,
}

/// A child that runs a program.
struct Seen {
    program: Program,
    since_ms: u64,
    /// Whether it was attached to, or could not be.
    is_done: bool,
}

impl Children {
    /// Notes the children that there are, and returns those that have stayed for long enough now.
    pub fn that_stay(&mut self, there: &[i32], now_ms: u64) -> Vec<i32> {
        self.seen.retain(|pid, _| there.contains(pid));
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let mut stay = Vec::new();
        for pid in there {
            // The child may be ending, or about to execute a program.
            let Some(program) = process::program(*pid) else { continue };
            let new = || Seen { program, since_ms: now_ms, is_done: false };
            let Some(seen) = self.seen.entry(*pid).or_insert_with(|| (!is_first).then(new)) else {
                continue;
            };
            if seen.program != program {
                *seen = new();
            }
            if !seen.is_done && now_ms - seen.since_ms >= STAYS_MS {
                seen.is_done = true;
                stay.push(*pid);
            }
        }
        stay
    }
}
