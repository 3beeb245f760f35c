//! Children that stay: each is attached to by itself. A limit of memory is for all of them together
//! ([`crate::family`]); a limit that follows the time lost is for each.
//!
//! A forked child is served by its parent's keeper from the fork on, so everything is restored to
//! it first, and its userfaultfd is closed. A child that executes another program has new memory,
//! of which nothing is evicted, and is attached to as any process is. A child that ends or executes
//! another program soon is left as it is.

use crate::process;
use crate::state::Keeper;
use crate::sys;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

impl Keeper {
    /// Attaches to children that stay.
    pub fn poll_children(&mut self) {
        self.children.attaching.retain_mut(|command| matches!(command.try_wait(), Ok(None)));
        if self.over || self.frozen {
            return;
        }
        let there = process::children(self.target);
        for pid in self.children.that_stay(&there, sys::now_ms()) {
            // Otherwise it has the target's memory still, between vfork and exec.
            if process::has_other_memory(pid, process::with_memory(self.target)) {
                self.attach_to_child(pid);
            }
        }
    }

    fn attach_to_child(&mut self, pid: i32) {
        if process::program(pid) == process::program(self.target) {
            if self.stub.dead {
                // The child's memory stays registered, so no other process can register it.
                return;
            }
            // Nothing tells which of the spaces is its own.
            for number in 1..self.spaces.len() {
                self.restore_space(number);
                self.drop_space(number);
            }
        }
        let Ok(mut command) = self.command_for(pid, self.family.descriptor()) else { return };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: only system calls, which a child of a fork may make.
        unsafe {
            command.pre_exec(|| {
                sys::unblock_signals();
                Ok(())
            });
        }
        self.children.attaching.extend(command.spawn());
    }

    /// The command that attaches to a process with the limit that holds now, as one of the family
    /// whose descriptor it inherits.
    pub fn command_for(&self, pid: i32, family: RawFd) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("attach").arg(pid.to_string()).args(self.limit.arguments());
        command.arg("--family").arg(family.to_string());
        Ok(command)
    }
}
