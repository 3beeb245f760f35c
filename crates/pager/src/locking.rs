//! `mlockall`: the program's memory is locked, and counts against its limit (RLIMIT_MEMLOCK). The
//! library's own memory is not locked and does not count.
//!
//! The kernel compares all that is mapped with the limit, and then locks all of it. Where it
//! refuses although the program's own memory is within the limit, the program's mappings are locked
//! one by one. Where it agrees, the library's memory is unlocked again. The program's own memory is
//! its mappings outside of the library's ranges ([`terrace_os::space`]), and what the allocator has
//! handed out to it, which is managed.
//!
//! With MCL_FUTURE the kernel locks what the program maps from then on, and counts it, as ever. The
//! heap is made accessible rather than mapped, so what it hands out is locked here.

use crate::pager::Pager;
use std::sync::atomic::{AtomicBool, Ordering::*};
use terrace_os::space::{self, LOCKS_NEW_MAPPINGS};
use terrace_os::{self as sys, Errno, PAGE};

/// Whether the program asked for MCL_ONFAULT with its last `mlockall`.
static ONLY_ON_FAULT: AtomicBool = AtomicBool::new(false);

fn set_future(flags: i32) {
    ONLY_ON_FAULT.store(flags & libc::MCL_ONFAULT != 0, Relaxed);
    LOCKS_NEW_MAPPINGS.store(flags & libc::MCL_FUTURE != 0, Relaxed);
}

/// Ends the locking of new memory; what is locked stays so. Called after `munlockall`, in a forked
/// child, and before a filter of the program's, which may not allow to lock. From then on the
/// kernel's way must do, and the part of the heap that was reserved before stays unlocked.
pub fn forget_future() {
    set_future(0);
}

/// Locks memory that the heap is about to hand out for the first time, if the program wants that.
/// Fails where that is beyond the program's limit.
pub fn lock_new_heap(start: usize, end: usize) -> Result<(), Errno> {
    if !LOCKS_NEW_MAPPINGS.load(Relaxed) {
        return Ok(());
    }
    let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
    sys::lock_memory(start, end - start, ONLY_ON_FAULT.load(Relaxed))
}

impl Pager {
    /// Carries out the program's `mlockall`; `act` makes the kernel's call with the flags that it
    /// is given.
    pub fn lock_all(
        &self,
        flags: i32,
        act: impl Fn(i32) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        if self.is_shut_down() {
            // A filter may end the program for any other call.
            return act(flags);
        }
        self.with_staging_lent(|| {
            let before = LOCKS_NEW_MAPPINGS.load(Relaxed);
            let result = match act(flags) {
                Err(Errno::ENOMEM) if flags & libc::MCL_CURRENT != 0 => {
                    self.lock_program_mappings(flags, before, act)
                }
                result => result,
            };
            if result.is_ok() {
                set_future(flags);
                let ours = space::ours();
                for (start, end) in sys::own_mappings() {
                    if is_within(&ours, start) {
                        self.unlock_unmanaged(start, end);
                    }
                }
            }
            result
        })
    }

    /// Unlocks a part of the library's ranges, except what the allocator has handed out of it.
    fn unlock_unmanaged(&self, start: usize, end: usize) {
        let mut from = start;
        for managed in self.ranges.lock().overlapping(start, end) {
            if from < managed.start {
                sys::unlock_memory(from, managed.start - from);
            }
            from = from.max(managed.end);
        }
        if from < end {
            sys::unlock_memory(from, end - from);
        }
    }

    fn lock_program_mappings(
        &self,
        flags: i32,
        locked_future: bool,
        act: impl Fn(i32) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let own = self.programs_mappings();
        let bytes: usize = own.iter().map(|(start, end)| end - start).sum();
        if bytes as u64 > sys::lock_limit() {
            return Err(Errno::ENOMEM);
        }
        if flags & libc::MCL_FUTURE != 0 {
            act(flags & !libc::MCL_CURRENT)?;
        } else if locked_future {
            // No other call ends MCL_FUTURE; what this one unlocks is locked again below.
            sys::unlock_all_memory();
        }
        // First without populating pages, so that an error means the limit, or a mapping that has
        // gone.
        for (start, end) in &own {
            if sys::lock_memory(*start, end - start, true).is_err()
                && sys::is_mapping(*start, end - start)
            {
                return Err(Errno::ENOMEM);
            }
        }
        if flags & libc::MCL_ONFAULT == 0 {
            for (start, end) in &own {
                // A mapping that may not be read is not populated, as with mlockall.
                let _ = sys::lock_memory(*start, end - start, false);
            }
        }
        Ok(0)
    }

    /// All mappings that are not the library's.
    fn programs_mappings(&self) -> Vec<(usize, usize)> {
        let mut ours = space::ours();
        ours.push(sys::own_image());
        let mut mappings: Vec<_> = sys::own_mappings()
            .into_iter()
            .filter(|(start, _)| !is_within(&ours, *start))
            .collect();
        // What is managed elsewhere is among them already.
        let handed_out =
            self.ranges.lock().all().into_iter().filter(|range| is_within(&ours, range.start));
        mappings.extend(handed_out.map(|range| (range.start, range.end)));
        mappings
    }
}

fn is_within(ranges: &[(usize, usize)], address: usize) -> bool {
    ranges.iter().any(|(start, end)| (*start..*end).contains(&address))
}
