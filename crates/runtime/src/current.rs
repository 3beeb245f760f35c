//! The process that runs here, and its pager.

use std::sync::atomic::AtomicI32;
use terrace_alloc::zone;
use terrace_pager::Pager;

/// The process that runs here. A vfork child shares our memory, not our process: it must start
/// nothing.
pub(crate) static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The pager, once the library's constructor has run.
pub(crate) fn pager() -> Option<&'static Pager> {
    zone::pager()
}
