//! A simulated kernel in the place of the real one, for tests of what a thread does.
//!
//! A test names a function that has the calling thread's kernel ([`simulate`]). From then on the
//! calls of threads that have one are answered by it. Without such a function a call costs one load
//! more.

use crate::answers::{Message, Run};
use crate::types::{Fd, Result};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

/// Answers the calls that the pager's state machine makes. Each method is as the function of the
/// same name in this crate, or as the system call.
pub trait Kernel {
    /// CLOCK_MONOTONIC in ns.
    fn now_ns(&self) -> u64;
    /// A wait, at most this long: time for others to run.
    fn wait(&self, time: Option<Duration>);
    /// A line for the user.
    fn warn(&self, line: &str);
    /// close(2).
    fn close(&self, fd: Fd);
    /// A new userfaultfd.
    fn userfaultfd(&self) -> Fd;
    /// An ioctl of a userfaultfd; answers are written into its arguments.
    fn uffd_ioctl(&self, fd: Fd, request: u64, args: &mut [u64]) -> Result<()>;
    /// Messages that a userfaultfd has now.
    fn read_now(&self, messages: &mut [Message]) -> Result<usize>;
    /// madvise(2).
    fn advise(&self, start: usize, len: usize, advice: i32) -> Result<()>;
    /// Copies pages of the program; returns how many.
    fn copy_pages(&self, from: usize, to: usize, pages: usize) -> usize;
    /// Write-protects pages without having writers wait.
    fn track_writes(&self, start: usize, end: usize) -> Result<()>;
    /// Lists runs of present pages, with `tell` also whether they were written. Returns how many
    /// runs there are, and where the walk ended.
    fn scan_present(
        &self,
        start: usize,
        end: usize,
        runs: &mut [Run],
        tell: bool,
    ) -> Result<(usize, usize)>;
    /// A page's entry in /proc/self/pagemap.
    fn pagemap_entry(&self, address: usize) -> Result<u64>;
}

/// The kernel of the calling thread, if it has one of its own.
pub type OfThread = fn() -> Option<Rc<dyn Kernel>>;

static OF_THREAD: OnceLock<OfThread> = OnceLock::new();

/// From now on the calls of threads for which `of_thread` has a kernel go there. The first call
/// decides.
pub fn simulate(of_thread: OfThread) {
    OF_THREAD.get_or_init(|| of_thread);
}

/// The simulated kernel of the calling thread.
#[inline]
pub fn kernel() -> Option<Rc<dyn Kernel>> {
    OF_THREAD.get().and_then(|of_thread| of_thread())
}

/// Asks the simulation's kernel instead, on a thread that runs one.
macro_rules! simulated {
    ($kernel:ident => $answer:expr) => {
        #[allow(clippy::unused_unit)] // Reason: some calls have no answer.
        if let Some($kernel) = crate::simulated::kernel() {
            return $answer;
        }
    };
}
pub(crate) use simulated;
