//! Waiting for descriptors.

use crate::types::Fd;
use syscalls::{Sysno, syscall};

/// Waits until a descriptor can be read or `milliseconds` are over; without end if they are
/// negative. Whether it can be, or is at its end or in error. False where a signal interrupts.
pub fn wait_readable(fd: Fd, milliseconds: i32) -> bool {
    poll(&mut [readable(fd)], milliseconds) > 0
}

/// Waits until a descriptor takes bytes or `milliseconds` are over; without end if they are
/// negative. Whether it does, or is in error. False where a signal interrupts.
pub fn wait_writable(fd: Fd, milliseconds: i32) -> bool {
    poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], milliseconds) > 0
}

/// Waits until one of some descriptors can be read or `milliseconds` are over; without end if they
/// are negative. A signal that is handled ends it, too.
pub fn wait_for_any(fds: impl Iterator<Item = Fd>, milliseconds: i32) {
    poll(&mut fds.map(readable).collect::<Vec<_>>(), milliseconds);
}

fn readable(fd: Fd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// How many of the descriptors are ready; 0 where the kernel reports an error.
fn poll(polls: &mut [libc::pollfd], milliseconds: i32) -> usize {
    let mut time = libc::timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    let limit = if milliseconds < 0 { std::ptr::null_mut() } else { &raw mut time };
    // SAFETY: the kernel reads and writes as many structures as is said, and the time, which may
    // be null. A null mask changes no signals.
    unsafe { syscall!(Sysno::ppoll, polls.as_mut_ptr(), polls.len(), limit, 0, 8) }.unwrap_or(0)
}
