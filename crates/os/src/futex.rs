//! Sleeping on a word of memory, and waking threads that sleep there.

use crate::simulated::simulated;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// Sleeps on `word` while it holds `expected`, at most for `timeout`. Wakes spuriously.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    simulated!(kernel => kernel.wait(timeout));
    let time = timeout
        .map(|t| libc::timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos() as _ });
    let pointer = time.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives through the call; the timespec too.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), op, expected, pointer) };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    simulated!(_kernel => ());
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address is used.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), op, count) };
}
