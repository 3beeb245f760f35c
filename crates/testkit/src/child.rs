//! Child processes that do not outlive the test or benchmark that started them.

use crate::process::signal;
use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// A child process that is ended, and waited for, when this is dropped.
///
/// If it leads a process group, all of the group is killed with it, unless the child has ended by
/// itself: its number may be another's then.
#[derive(Debug)]
pub struct Ended {
    child: Child,
    asked: Option<Duration>,
}

impl Ended {
    /// The child is killed when this is dropped.
    pub fn by_kill(child: Child) -> Ended {
        Ended { child, asked: None }
    }

    /// The child gets SIGTERM when this is dropped, and is killed if it runs on for longer than
    /// `within`.
    pub fn by_request(child: Child, within: Duration) -> Ended {
        Ended { child, asked: Some(within) }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Deref for Ended {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Ended {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let pid = self.child.id() as i32;
        if let Some(within) = self.asked {
            // The child was not waited for, so that its number is its own.
            signal(pid, libc::SIGTERM);
            let begun = Instant::now();
            while begun.elapsed() < within {
                if self.has_ended() {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        if terrace_os::process_group_of(pid) == Ok(pid) {
            signal(-pid, libc::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
