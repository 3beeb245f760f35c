//! The pager's threads and processes: the companion, what a fork does, timers in threads.

pub(crate) mod companion;
pub mod fork;
pub(crate) mod fork_notes;
pub(crate) mod stacks;
pub(crate) mod tasks;
pub(crate) mod timer_thread;
pub(crate) mod timers;
