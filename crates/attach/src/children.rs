//! Forked children that stay: each is attached to by itself, with its parent's limit.
//!
//! A child is served by its parent's keeper from the fork on, so everything is brought back to it
//! first, and its userfaultfd is closed. A child that ends or executes another program soon is left
//! as it is.

use crate::process;
use crate::state::Keeper;
use crate::sys;
use std::process::{Command, Stdio};

/// How long a child must have been there, ms.
const STAYS_MS: u64 = 1000;

impl Keeper {
    /// Attaches to children that stay.
    pub fn look_at_children(&mut self) {
        self.children.attaching.retain_mut(|command| matches!(command.try_wait(), Ok(None)));
        if self.over || self.frozen {
            return;
        }
        let now_ms = sys::now_ns() / 1_000_000;
        let there = process::children(self.target);
        self.children.seen.retain(|pid, _| there.contains(pid));
        let first_look = !std::mem::replace(&mut self.has_looked, true);
        for pid in there {
            // Who was there before is not ours, and the operator names it if it is to be.
            let seen = *self.children.seen.entry(pid).or_insert((!first_look).then_some(now_ms));
            if seen.is_some_and(|seen| now_ms - seen >= STAYS_MS) {
                self.children.seen.insert(pid, None);
                if process::is_same_program(pid, self.target)
                    && process::has_other_memory(pid, process::with_memory(self.target))
                {
                    self.attach_to_child(pid);
                }
            }
        }
    }

    fn attach_to_child(&mut self, pid: i32) {
        if self.stub.dead {
            // The child's memory stays registered, so nobody else can register it.
            return;
        }
        // Which of the spaces is its own nobody tells.
        for number in 1..self.spaces.len() {
            self.restore_space(number);
            self.drop_space(number);
        }
        let Ok(program) = std::env::current_exe() else { return };
        let mut command = Command::new(program);
        command.arg("attach").arg(pid.to_string()).args(&self.limit.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.attaching.extend(command.spawn());
    }
}
