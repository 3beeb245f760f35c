//! madvise and its kin: what the kernel is to do with pages.

use crate::injection;
use crate::injection::Call;
use crate::simulated::simulated;
use crate::time::sleep;
use crate::types::{Fd, Result};
use std::time::Duration;
use syscalls::{Sysno, syscall};

/// Lets go of the contents of an own reservation, locked in memory or not. They read as zeros
/// afterwards.
///
/// # Safety
/// The contents are not needed any more.
pub unsafe fn empty(start: usize, len: usize) {
    const MADV_DONTNEED_LOCKED: i32 = 24;
    for attempt in 0u32.. {
        let advice = if attempt % 2 == 0 { libc::MADV_DONTNEED } else { MADV_DONTNEED_LOCKED };
        // SAFETY: the caller's promise.
        if unsafe { advise_or_strike(Call::Empty, start, len, advice) }.is_ok() {
            return;
        }
        // Short of memory for the kernel's bookkeeping: nothing may go on as if the slots were
        // empty.
        if attempt > 2 {
            sleep(Duration::from_millis(1));
        }
    }
}

/// `madvise`.
///
/// # Safety
/// The advice may destroy contents (MADV_DONTNEED): the caller must own them or act for the
/// program.
pub unsafe fn advise(start: usize, len: usize, advice: i32) -> Result<()> {
    simulated!(kernel => kernel.advise(start, len, advice));
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::madvise, start, len, advice) }.map(drop)
}

/// A forked child does not get these pages from now on (MADV_DONTFORK). A fork made past the C
/// library, which Terrace does not see, must not read zeros where pages are evicted. It is ended by
/// SIGSEGV there. An error is no reason to do otherwise: where parts are not mapped, the kernel
/// says so when the others are done.
pub fn keep_from_children(start: usize, len: usize) {
    // SAFETY: changes no contents.
    let _ = unsafe { advise(start, len, libc::MADV_DONTFORK) };
}

/// Undoes [`keep_from_children`].
pub fn give_to_children(start: usize, len: usize) {
    // SAFETY: changes no contents.
    let _ = unsafe { advise(start, len, libc::MADV_DOFORK) };
}

/// `madvise` for a purpose of ours.
///
/// # Safety
/// As for [`advise`].
unsafe fn advise_or_strike(call: Call, start: usize, len: usize, advice: i32) -> Result<()> {
    match injection::strike(call) {
        Some(errno) => Err(errno),
        // SAFETY: the caller's promise.
        None => unsafe { advise(start, len, advice) },
    }
}

/// Takes pages out of the page table whose contents have been copied. An error may come when part
/// of them is gone.
///
/// # Safety
/// The pages are claimed and write-protected, and their contents are ours.
pub unsafe fn drop_copied(start: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { advise_or_strike(Call::Drop, start, len, libc::MADV_DONTNEED) }
}

/// Faults pages in for writing (Linux 5.14): what a fork left shared becomes our own. `Err` where a
/// write would end in SIGBUS, too.
pub fn populate_for_writing(start: usize, len: usize) -> Result<()> {
    // SAFETY: contents stay.
    unsafe { advise_or_strike(Call::Populate, start, len, libc::MADV_POPULATE_WRITE) }
}

/// Has the kernel put runs of pages (start and length) into its swap (Linux 5.4). That is one call
/// if it takes that of `own_process`, which may be −1. What it does not take stays, mostly without
/// an error; false if there was one.
pub fn page_out(own_process: Fd, runs: &[(usize, usize)]) -> bool {
    let parts: Vec<libc::iovec> = runs
        .iter()
        .map(|(start, len)| libc::iovec { iov_base: *start as *mut _, iov_len: *len })
        .collect();
    let (mut rest, mut answered) = (&parts[..], true);
    while !rest.is_empty() {
        let all = match injection::strike(Call::PageOut) {
            Some(errno) => Err(errno),
            // SAFETY: contents stay, and the kernel reads the parts.
            None => unsafe {
                syscall!(
                    Sysno::process_madvise,
                    own_process,
                    rest.as_ptr(),
                    rest.len(),
                    libc::MADV_PAGEOUT,
                    0
                )
            },
        };
        let mut done = match all {
            Ok(bytes) => bytes,
            Err(_) => {
                // Not even the first: perhaps the call is forbidden (before Linux 6.13 without
                // privilege), perhaps this part is.
                let (start, len) = (rest[0].iov_base as usize, rest[0].iov_len);
                // SAFETY: contents stay.
                answered &=
                    unsafe { advise_or_strike(Call::PageOut, start, len, libc::MADV_PAGEOUT) }
                        .is_ok();
                len
            }
        };
        let whole = rest
            .iter()
            .take_while(|part| {
                done >= part.iov_len && {
                    done -= part.iov_len;
                    true
                }
            })
            .count();
        rest = &rest[whole..];
        if done > 0 {
            // It stopped within a part.
            answered = false;
            rest = &rest[1..];
        }
    }
    answered
}

/// Advice to make huge pages now (Linux 6.1).
pub const MADV_COLLAPSE: i32 = 25;
