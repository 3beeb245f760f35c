//! Stopping one thread of a process.

use crate::filters::Purpose;
use crate::inject::{Injection, Traced};
use crate::process;
use anyhow::{Result, anyhow};

/// Stops a thread of a process: the main thread, or another where the main thread has ended or
/// hangs.
///
/// # Errors
/// If none can be stopped, or a thread was asked to stop and did not. That thread is let go when
/// this process ends, and not before.
pub fn stop_any_thread(
    pid: i32,
    injection: &'static Injection,
    purpose: Purpose,
) -> Result<Traced> {
    let mut tids = process::threads(pid);
    // In uninterruptible sleep, state D, a thread does not stop.
    let hangs = |tid: &i32| process::stat_field(*tid, 3).is_none_or(|state| state == "D");
    tids.sort_by_cached_key(|tid| (hangs(tid), *tid != pid));
    let mut first = None;
    for tid in tids {
        match Traced::stop(pid, tid, injection, purpose) {
            Ok(traced) => return Ok(traced),
            Err(error) if process::status_line(tid, "TracerPid").is_some_and(|pid| pid != "0") => {
                return Err(error);
            }
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.unwrap_or_else(|| anyhow!("the process has ended")))
}
