//! The buffers of a thread that restores pages.

use crate::fault::fault_cost::Timing;
use crate::trace::StepTimer;
use terrace_tiers::{PAGE_BYTES, Page, ReadBuffer, Scratch};

/// A page-sized buffer at a page's alignment.
#[repr(C, align(4096))]
pub(crate) struct PageBuffer(pub Page);

/// The buffers that a thread that restores pages owns.
pub(crate) struct Tools {
    pub scratch: Scratch,
    pub page: Box<PageBuffer>,
    pub stored: ReadBuffer,
    pub timer: StepTimer,
    /// Pages served since the last poll for messages.
    pub(super) served: Vec<usize>,
    pub(crate) timing: Timing,
}

impl Tools {
    pub fn new() -> Self {
        let mut scratch = Scratch::new();
        // So that a restore allocates nothing. Without memory for it now, the first restore tries
        // again.
        let _ = scratch.prepare();
        Tools {
            scratch,
            page: Box::new(PageBuffer([0; PAGE_BYTES])),
            stored: ReadBuffer::new(),
            timer: StepTimer::default(),
            served: Vec::with_capacity(MESSAGES),
            timing: Timing::new(),
        }
    }
}

/// The largest number of faults taken at a time.
pub(crate) const MESSAGES: usize = 32;
