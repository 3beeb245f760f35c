//! Tasks that the program lacks under a limit on them (`pids.max`, RLIMIT_NPROC): the companion's
//! are given back to it.

use crate::pager::{Mode, Pager};
use crate::sys::{self, SignalsBlocked};
use std::sync::atomic::Ordering::*;

impl Pager {
    /// To be called when the kernel refused the program a process or a thread (EAGAIN), outside of
    /// the fork's handlers. Where it refuses every task, the companion ends, and all memory stays
    /// in DRAM. True if the program's call is worth making once more.
    pub fn gives_tasks_back(&'static self) -> bool {
        if !matches!(self.mode(), Mode::Active | Mode::Observing) || self.companion.has_ended() {
            return self.is_retired();
        }
        let _errno = sys::ErrnoKept::new();
        let Some(refused) = self.refuses_every_task() else { return false };
        if refused {
            // The keeper, the watcher, the mover and the handlers.
            let tasks = self.descriptors.shards.load(Relaxed) + 3;
            self.retire(&format!(
                "the limit on tasks (pids.max, ulimit -u) left none for the program, so Terrace gave its own back. All memory stays \
                 in DRAM. To change that: allow {tasks} tasks more for each process"
            ));
        }
        true
    }

    /// Whether the kernel refuses a task that ends at once. `None` where that may not be tried.
    fn refuses_every_task(&'static self) -> Option<bool> {
        let _signals = SignalsBlocked::new();
        let _forking = self.fork.forking.lock();
        if self.companion.has_ended() {
            return Some(false);
        }
        if sys::children_enter_another_pid_namespace() {
            return None;
        }
        Some(!self.companion.can_make_task(self))
    }
}
