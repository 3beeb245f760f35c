//! userfaultfd: registration, faults, and pages moved, copied and protected.

use crate::access::peek;
use crate::answers::Message;
use crate::injection;
use crate::injection::Call;
use crate::pagemap::is_mapped;
use crate::simulated::simulated;
use crate::time::yield_now;
use crate::types::{Errno, Fd, PAGE, Result};
use syscalls::{Sysno, syscall};

/// Faults say whether they are writes to write-protected pages, which can be had (Linux 5.7). Asked
/// for together with the id of the thread that faults.
pub const FEATURE_WRITE_PROTECT: u64 = 1 | FEATURE_THREAD_ID;
/// Fault messages carry the id of the faulting thread (Linux 4.14).
const FEATURE_THREAD_ID: u64 = 1 << 8;
/// UFFDIO_MOVE is there (Linux 6.8). Asked for together with the id of the thread that faults.
pub const FEATURE_MOVE: u64 = 1 << 16 | FEATURE_THREAD_ID;
/// A thread that writes to a write-protected page does not wait: the kernel takes the protection
/// off by itself (Linux 6.7).
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// The kernel tells of ranges that are moved, discarded and unmapped, and has the caller wait until
/// that was read (Linux 4.11).
pub const FEATURE_EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const UFFD_API: u64 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const fn ioc(dir: u64, number: u64, size: u64) -> u64 {
    dir << 30 | size << 16 | 0xAA << 8 | number
}

/// Agrees on the interface with the kernel.
pub const UFFDIO_API: u64 = ioc(3, 0x3F, 24);
/// Registers a range with a userfaultfd.
pub const UFFDIO_REGISTER: u64 = ioc(3, 0x00, 32);
/// Ends the registration of a range.
pub const UFFDIO_UNREGISTER: u64 = ioc(2, 0x01, 16);
/// Wakes threads that wait for pages of a range.
pub const UFFDIO_WAKE: u64 = ioc(2, 0x02, 16);
/// Copies pages to where none are.
pub const UFFDIO_COPY: u64 = ioc(3, 0x03, 40);
/// Puts pages of zeros where none are.
pub const UFFDIO_ZEROPAGE: u64 = ioc(3, 0x04, 32);
/// Moves pages to another place (Linux 6.8).
pub const UFFDIO_MOVE: u64 = ioc(3, 0x05, 40);
/// Has writers of a range wait, or no longer.
pub const UFFDIO_WRITEPROTECT: u64 = ioc(3, 0x06, 24);
/// Makes a userfaultfd: an ioctl of /dev/userfaultfd.
pub const USERFAULTFD_IOC_NEW: u64 = 0xAA00;

/// The range that an ioctl of the program is about to register with its own userfaultfd,
/// unregister, or move pages out of. `None` for any other ioctl.
pub fn range_of_uffd_call(request: u64, argument: usize) -> Option<(usize, usize)> {
    let mut words = [[0u8; 8]; 3];
    let (UFFDIO_REGISTER | UFFDIO_UNREGISTER | UFFDIO_MOVE) = request else { return None };
    let len = if request == UFFDIO_MOVE { 24 } else { 16 };
    if !peek(argument, &mut words.as_flattened_mut()[..len]) {
        return None;
    }
    let [first, second, third] = words.map(usize::from_ne_bytes);
    Some(if request == UFFDIO_MOVE { (second, third) } else { (first, second) })
}

/// Opens a userfaultfd that also sees faults in the kernel. Tries `device` (an open
/// /dev/userfaultfd) first, then the system call. Never user-mode only: with that, `read(2)` into
/// an evicted page would fail.
pub fn userfaultfd(device: Option<Fd>) -> Result<Fd> {
    simulated!(kernel => Ok(kernel.userfaultfd()));
    if let Some(device) = device
        && let Ok(fd) = new_userfaultfd(Some(device), libc::O_CLOEXEC)
    {
        return Ok(fd);
    }
    new_userfaultfd(None, libc::O_CLOEXEC)
}

/// A new userfaultfd: of `device` (an open /dev/userfaultfd), or else by the system call. Flags are
/// O_CLOEXEC, O_NONBLOCK and UFFD_USER_MODE_ONLY (1). EPERM: not allowed to this process.
pub fn new_userfaultfd(device: Option<Fd>, flags: i32) -> Result<Fd> {
    // SAFETY: both calls take the flags by value; no memory is involved.
    let made = unsafe {
        match device {
            Some(device) => syscall!(Sysno::ioctl, device, USERFAULTFD_IOC_NEW, flags),
            None => syscall!(Sysno::userfaultfd, flags),
        }
    };
    made.map(|fd| fd as Fd)
}

/// Agrees on the interface; returns the kernel's features. A descriptor can be asked once only.
pub fn uffd_api(fd: Fd, features: u64) -> Result<u64> {
    let mut args = [UFFD_API, features, 0];
    // SAFETY: struct uffdio_api, 24 bytes, written back.
    unsafe { uffd_ioctl(None, fd, UFFDIO_API, &mut args) }?;
    Ok(args[1])
}

/// From now on, missing pages in the range are `fd`'s to fill; and present ones may be
/// write-protected.
pub fn uffd_register(fd: Fd, start: usize, len: usize, write_protect: bool) -> Result<()> {
    let mode = REGISTER_MODE_MISSING | if write_protect { REGISTER_MODE_WP } else { 0 };
    let mut args = [start as u64, len as u64, mode, 0];
    // SAFETY: struct uffdio_register, 32 bytes; registration changes no contents.
    unsafe { uffd_ioctl(Some(Call::Register), fd, UFFDIO_REGISTER, &mut args) }
}

/// From now on the kernel fills missing pages in the range itself again. Fails where `fd` has
/// nothing registered.
pub fn uffd_unregister(fd: Fd, start: usize, len: usize) -> Result<()> {
    let mut args = [start as u64, len as u64];
    // SAFETY: struct uffdio_range, 16 bytes; callers have nothing evicted in the range.
    unsafe { uffd_ioctl(Some(Call::Unregister), fd, UFFDIO_UNREGISTER, &mut args) }
}

/// Wakes threads that wait for the range.
pub fn uffd_wake(fd: Fd, start: usize, len: usize) {
    let mut args = [start as u64, len as u64];
    // SAFETY: struct uffdio_range, 16 bytes.
    let _ = unsafe { uffd_ioctl(None, fd, UFFDIO_WAKE, &mut args) };
}

/// Makes an ioctl of a userfaultfd. `call` is the kind of injected failure that it may meet.
///
/// # Safety
/// `args` is the request's structure; what the request does to memory is the caller's to answer
/// for.
unsafe fn uffd_ioctl(call: Option<Call>, fd: Fd, request: u64, args: &mut [u64]) -> Result<()> {
    if let Some(errno) = call.and_then(injection::strike) {
        return Err(errno);
    }
    simulated!(kernel => kernel.uffd_ioctl(fd, request, args));
    // SAFETY: the caller's promise; the kernel writes within the structure.
    unsafe { syscall!(Sysno::ioctl, fd, request, args.as_mut_ptr()) }.map(drop)
}

/// Has writes to the range's pages wait (`on`), or lets them go on; with [`FEATURE_WP_ASYNC`]
/// none waits, and [`scan_writes`] tells which pages were written. Pages that are missing are
/// passed over.
pub fn uffd_write_protect(fd: Fd, start: usize, len: usize, on: bool) -> Result<()> {
    loop {
        let mut args = [start as u64, len as u64, u64::from(on)];
        // SAFETY: struct uffdio_writeprotect, 24 bytes; no contents change.
        match unsafe { uffd_ioctl(Some(Call::Protect), fd, UFFDIO_WRITEPROTECT, &mut args) } {
            Err(Errno::EAGAIN) => yield_now(),
            result => return result,
        }
    }
}

/// Fills the missing page at `dst` with a copy of `src` and wakes the waiting. EAGAIN while an
/// event of `fd` is pending.
///
/// # Safety
/// `src` must be readable memory of ours. `dst` must be claimed (or a fork keeps its state from
/// changing).
pub unsafe fn uffd_copy(fd: Fd, dst: usize, src: usize) -> Result<()> {
    let mut args = [dst as u64, src as u64, PAGE as u64, 0, 0];
    // SAFETY: struct uffdio_copy, 40 bytes; the rest is the caller's promise.
    unsafe { uffd_ioctl(Some(Call::Copy), fd, UFFDIO_COPY, &mut args) }
}

/// Fills missing pages from `dst` on with copies of those at `src`, as far as that goes; returns
/// how many bytes. Only what a userfaultfd counted as copied counts: `fd` may have become anything.
///
/// # Safety
/// As for [`uffd_copy`], for every page.
pub unsafe fn uffd_copy_run(fd: Fd, dst: usize, src: usize, len: usize) -> usize {
    const TRIES: u32 = 100;
    let mut done = 0;
    for _ in 0..TRIES {
        let part = injection::shorten(len - done);
        let mut args = [(dst + done) as u64, (src + done) as u64, part as u64, 0, 0];
        // SAFETY: struct uffdio_copy, 40 bytes; the rest is the caller's promise.
        let result = unsafe { uffd_ioctl(Some(Call::Copy), fd, UFFDIO_COPY, &mut args) };
        let copied = args[4] as i64;
        if copied > 0 {
            done += (copied as usize).min(len - done) / PAGE * PAGE;
        }
        match result {
            // A part of it, or busy.
            Err(Errno::EAGAIN) => yield_now(),
            Ok(()) if copied > 0 => {}
            _ => break,
        }
        if done == len {
            break;
        }
    }
    done
}

/// Fills a missing page with the kernel's zero page and wakes the waiting.
///
/// # Safety
/// As for [`uffd_copy`].
pub unsafe fn uffd_zero(fd: Fd, dst: usize) -> Result<()> {
    let mut args = [dst as u64, PAGE as u64, 0, 0];
    // SAFETY: struct uffdio_zeropage, 32 bytes; the rest is the caller's promise.
    unsafe { uffd_ioctl(Some(Call::Zero), fd, UFFDIO_ZEROPAGE, &mut args) }
}

/// Whether a range, whose first page is there, lies in one mapping that is registered with a
/// userfaultfd. Filling a page that is there with zeros tells, and does nothing. The kernel does
/// not say with which userfaultfd it is registered.
pub fn uffd_has(fd: Fd, start: usize, len: usize) -> Result<bool> {
    loop {
        let mut args = [start as u64, len as u64, 0, 0];
        // SAFETY: struct uffdio_zeropage, 32 bytes. The pages are claimed: one that is missing
        // after all was given up past us, and is zeros.
        match unsafe { uffd_ioctl(Some(Call::Zero), fd, UFFDIO_ZEROPAGE, &mut args) } {
            Err(Errno::EAGAIN) => yield_now(),
            Ok(()) | Err(Errno::EEXIST) => return Ok(true),
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

/// Moves present pages from `src` to missing ones at `dst`, which must be registered with `fd`.
/// Returns how many bytes went, and what stopped it before `len`.
///
/// Linux 6.18 counts wrongly where a page had to be retried inside the kernel, since its accessed
/// or dirty bit changed under the call. What is moved next is not counted (`move_pages` keeps its
/// −EAGAIN) but tried again. That fails, mostly with EEXIST. A caller that believed the count would
/// empty slots with live data in them. So every failure is looked into: what is at `dst`, and no
/// longer at `src`, has been moved.
///
/// # Safety
/// Both ranges must be ours to change, and nothing else may change them meanwhile: claimed pages of
/// the program and free staging slots.
pub unsafe fn uffd_move(
    fd: Fd,
    pagemap: Fd,
    dst: usize,
    src: usize,
    len: usize,
) -> (usize, Option<Errno>) {
    const TRIES: u32 = 1000;
    let (mut moved, mut tries) = (0, 0);
    while moved < len {
        let part = injection::shorten(len - moved);
        let mut args = [(dst + moved) as u64, (src + moved) as u64, part as u64, 0, 0];
        // SAFETY: struct uffdio_move, 40 bytes; the rest is the caller's promise.
        let result = unsafe { uffd_ioctl(Some(Call::Move), fd, UFFDIO_MOVE, &mut args) };
        let part = args[4] as i64;
        if part > 0 {
            moved += part as usize;
        }
        match result {
            Ok(_) => {}
            Err(Errno::EAGAIN) if tries < TRIES => tries += 1,
            Err(errno) => {
                let counted = moved;
                while moved < len
                    && !is_mapped(pagemap, src + moved)
                    && is_mapped(pagemap, dst + moved)
                {
                    moved += PAGE;
                }
                if moved == counted {
                    return (moved, Some(errno));
                }
            }
        }
    }
    (moved, None)
}

/// Waits for messages; returns how many came.
pub fn uffd_read(fd: Fd, messages: &mut [Message]) -> Result<usize> {
    let bytes = std::mem::size_of_val(messages);
    // SAFETY: the buffer is ours for the call, and any bytes make valid messages.
    unsafe { syscall!(Sysno::read, fd, messages.as_mut_ptr(), bytes) }
        .map(|n| n / size_of::<Message>())
}

/// Messages that are there now: EAGAIN if there are none. Fails in other ways where the kernel
/// cannot read this without waiting (before Linux 6.10).
pub fn uffd_read_now(fd: Fd, messages: &mut [Message]) -> Result<usize> {
    simulated!(kernel => kernel.read_now(messages));
    const RWF_NOWAIT: i32 = 8;
    let buffer =
        libc::iovec { iov_base: messages.as_mut_ptr().cast(), iov_len: size_of_val(messages) };
    // SAFETY: as for `uffd_read`; the offset of −1 is that of `read`.
    unsafe { syscall!(Sysno::preadv2, fd, &raw const buffer, 1, -1isize, -1isize, RWF_NOWAIT) }
        .map(|n| n / size_of::<Message>())
}
