//! Messages of userfaultfds that wait to be served, and memory calls that are announced.

use crate::fault::buffers::MESSAGES;
use crate::pages::lock::Lock;
use crate::pages::shards::SHARDS_MAX;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::*};
use terrace_os::Message;

/// The most messages of one userfaultfd that wait to be served; further ones stay in the kernel. A
/// reader must not allocate: while the program forks, the allocator's lock is held.
pub(super) const QUEUED: usize = 2048 + MESSAGES;

/// The most ranges to be forgotten. The stored pages of further ones stay until something is mapped
/// there.
pub(super) const UNMAPPED: usize = 1024;

/// The most memory calls of the program's that are in progress at a time; further ones wait.
pub(super) const ANNOUNCED: usize = 64;

/// Messages, announced memory calls and ranges to be forgotten.
#[derive(Default)]
pub(crate) struct Events {
    pub(super) queues: [Queue; SHARDS_MAX],
    pub(super) announced: Announced,
    /// Userfaultfd events for MADV_DONTNEED, munmap and mremap are enabled.
    pub(super) events_enabled: AtomicBool,
    /// The program makes mmap-family calls without the C library.
    pub(super) bypasses_libc: AtomicBool,
    /// Ranges that were unmapped so, and are to be forgotten.
    pub(crate) unmapped: Lock<Vec<(usize, usize)>>,
}

/// Messages of one userfaultfd that its reader has read and not served.
#[derive(Default)]
pub(super) struct Queue {
    /// The reader's thread.
    pub(super) reader: AtomicI32,
    pub(super) messages: Lock<VecDeque<Message>>,
}

/// Ranges on which threads of the program make memory calls that keep page states themselves.
pub(super) struct Announced(pub(super) [Slot; ANNOUNCED]);

/// An announced range. The previous range of the slot stays readable until the slot is used again.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) busy: AtomicBool,
    pub(super) start: AtomicUsize,
    pub(super) end: AtomicUsize,
}

impl Default for Announced {
    fn default() -> Self {
        Announced(std::array::from_fn(|_| Slot::default()))
    }
}

/// A range is announced while this lives.
pub(crate) struct Announcement<'a>(pub(super) &'a Slot);

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Release);
    }
}

impl Slot {
    pub(super) fn holds(&self, start: usize, end: usize) -> bool {
        self.start.load(Acquire) <= start && end <= self.end.load(Acquire)
    }
}

impl Events {
    /// Resets everything in a forked child, which has no other threads.
    ///
    /// # Safety
    ///
    /// As for [`Lock::reset_after_fork`].
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.queues.iter().for_each(|queue| queue.messages.reset_after_fork());
            self.unmapped.reset_after_fork();
        }
        self.queues.iter().for_each(|queue| queue.messages.lock().clear());
        self.announced.0.iter().for_each(|slot| slot.busy.store(false, Relaxed));
    }

    /// Records whether userfaultfd events for MADV_DONTNEED, munmap and mremap are enabled.
    pub fn set_events_enabled(&self, enabled: bool) {
        self.events_enabled.store(enabled, Release);
    }

    /// Whether the program makes mmap-family calls without the C library.
    pub fn bypasses_libc(&self) -> bool {
        self.bypasses_libc.load(Relaxed)
    }

    /// Whether a call on a range that holds `start..end` is under way and was announced.
    pub(super) fn is_announced(&self, start: usize, end: usize) -> bool {
        self.announced.0.iter().any(|slot| slot.busy.load(Acquire) && slot.holds(start, end))
    }

    /// Whether a range was announced recently. A call may be over, and no longer announced, before
    /// its event is served. That does no harm: a page that has been mapped in the range since came
    /// by a fault, which is served after the event.
    pub(super) fn was_announced(&self, start: usize, end: usize) -> bool {
        self.announced.0.iter().any(|slot| slot.holds(start, end))
    }
}
