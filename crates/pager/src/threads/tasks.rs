//! Limits on tasks (`pids.max`, RLIMIT_NPROC): where they are small, the program lacks the tasks
//! that a companion has. So none is made where that would leave the program too few. Where the
//! kernel refuses the program a task all the same, the companion's are given back to it.

use crate::pager::Pager;
use crate::pages::mm::Mode;
use crate::pages::shards::SHARDS_MAX;
use crate::proc_files::first_number;
use std::time::Duration;
use terrace_os::{self as sys, SignalsBlocked};

/// A companion's tasks beside the handlers: the keeper, the watcher and the mover.
const BESIDE_HANDLERS: usize = 3;
/// A program that may have this many tasks more has enough, however small a part of the limit it
/// is.
const ENOUGH: u64 = 32;
/// How many tasks RLIMIT_NPROC must allow for each of a companion's. All tasks of a user count, and
/// their number is not read.
const USER_LIMIT_FACTOR: u64 = 8;
/// Most milliseconds for which an ended task still counts, until its parent was told.
const REAP_WAIT_MS: u32 = 100;

/// The tasks of a companion that moves pages.
fn companions_tasks() -> u64 {
    (sys::cpu_count().min(SHARDS_MAX) + BESIDE_HANDLERS) as u64
}

/// Whether a group that has `used` of the `limit` tasks would leave the program too few if it had
/// `needed` more. Too few are at most half of the limit and fewer than [`ENOUGH`].
fn leaves_too_few(limit: u64, used: u64, needed: u64) -> bool {
    let left = limit.saturating_sub(used + needed);
    left * 2 <= limit && left < ENOUGH
}

/// Whether a companion would leave the program enough tasks. `Err` is a sentence for the user.
pub(crate) fn leaves_tasks_for_the_program() -> Result<(), String> {
    let needed = companions_tasks();
    let groups = || {
        sys::task_groups().into_iter().filter_map(|group| {
            let limit = first_number(&format!("{group}/pids.max\0"))?;
            Some((limit, first_number(&format!("{group}/pids.current\0"))?))
        })
    };
    let too_small = groups().find(|(limit, used)| leaves_too_few(*limit, *used, needed));
    let limit = match (too_small, sys::user_task_limit()) {
        (Some((limit, _)), _) => limit,
        (None, Some(limit)) if limit < needed * USER_LIMIT_FACTOR => limit,
        _ => return Ok(()),
    };
    Err(format!(
        "the limit on tasks (pids.max, ulimit -u) is {limit}, which leaves the program too few beside {needed} of Terrace's: \
         all memory stays in DRAM. To change that: a higher limit"
    ))
}

impl Pager {
    /// Gives the companion's tasks back, after the kernel refused the program a process or a thread
    /// (EAGAIN). Where it refuses every task, the companion ends, and all memory stays in DRAM. To
    /// be called outside of the fork's handlers. True if the program's call is worth making once
    /// more.
    pub fn release_tasks(&'static self) -> bool {
        // A process that shares the memory (a child of vfork) may be killed while it holds our
        // locks.
        if !sys::is_program() || self.mode() == Mode::Off {
            return false;
        }
        let _errno = sys::ErrnoKept::new();
        let Some(refused) = self.refuses_every_task() else { return false };
        if refused {
            let tasks = companions_tasks();
            self.shut_down(&format!(
                "the limit on tasks (pids.max, ulimit -u) left none for the program, so Terrace gave its own back. All memory stays \
                 in DRAM. To change that: allow {tasks} tasks more for each process"
            ));
            let _signals = SignalsBlocked::new();
            let _forking = self.fork.forking.lock();
            for _ in 0..REAP_WAIT_MS {
                if self.companion.can_make_task(self) {
                    break;
                }
                sys::sleep(Duration::from_millis(1));
            }
        }
        true
    }

    /// Whether there is a companion, and the kernel refuses even a task that ends at once. `None`
    /// where that may not be tried.
    fn refuses_every_task(&'static self) -> Option<bool> {
        let _signals = SignalsBlocked::new();
        // Waits for a companion that is being made, and may not come to be.
        let _forking = self.fork.forking.lock();
        if !matches!(self.mode(), Mode::Active | Mode::Observing) || self.companion.has_ended() {
            return Some(false);
        }
        if sys::children_enter_another_pid_namespace() {
            return None;
        }
        Some(!self.companion.can_make_task(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_group_is_left_to_the_program_and_a_busy_one_is_not() {
        assert!(leaves_too_few(16, 3, 5) && leaves_too_few(16, 15, 5) && leaves_too_few(8, 0, 5));
        assert!(!leaves_too_few(16, 2, 5) && !leaves_too_few(100, 60, 5));
        assert!(!leaves_too_few(4000, 3900, 5) && leaves_too_few(4000, 3980, 5));
    }
}
