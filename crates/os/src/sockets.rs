//! Sockets.

use crate::types::{Fd, Result};
use syscalls::{Sysno, syscall};

/// Sets how many connections may wait until they are accepted. The kernel allows at most
/// net.core.somaxconn. A socket that did not listen listens from now on (listen(2)).
pub fn listen(socket: Fd, backlog: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    unsafe { syscall!(Sysno::listen, socket, backlog) }.map(drop)
}

/// A number that is an option of a socket at the level SOL_SOCKET (socket(7)), such as SO_TYPE.
/// EBADF or ENOTSOCK: the descriptor is no socket.
pub fn socket_option(socket: Fd, name: i32) -> Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: the kernel writes at most `len` bytes of the number, and into `len`.
    unsafe {
        syscall!(Sysno::getsockopt, socket, libc::SOL_SOCKET, name, &raw mut value, &raw mut len)
    }?;
    Ok(value)
}

/// The effective user id that the process at the other end of a Unix socket had when it connected
/// or listened (SO_PEERCRED). `u32::MAX` without another end.
pub fn peer_user(socket: Fd) -> Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of::<libc::ucred>() as u32;
    // SAFETY: the kernel writes at most `len` bytes of the structure, and into `len`.
    unsafe {
        syscall!(
            Sysno::getsockopt,
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut peer,
            &raw mut len
        )
    }?;
    Ok(peer.uid)
}

/// Sends bytes by a connected socket, and returns how many were taken (send(2)). EPIPE: the other
/// end is closed; there is no SIGPIPE.
pub fn send(socket: Fd, bytes: &[u8]) -> Result<usize> {
    let (flags, none) = (libc::MSG_NOSIGNAL, 0);
    let (start, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: the kernel reads `len` bytes, which outlive the call; there is no address.
    unsafe { syscall!(Sysno::sendto, socket, start, len, flags, none, none) }
}

/// Receives bytes or one message by a connected socket, and returns how many bytes (recv(2)). What
/// of a message does not fit is lost. 0: the other end is closed.
pub fn receive(socket: Fd, into: &mut [u8]) -> Result<usize> {
    let (start, len, none) = (into.as_mut_ptr(), into.len(), 0);
    // SAFETY: the kernel writes at most `len` bytes of the slice; no address is asked for.
    unsafe { syscall!(Sysno::recvfrom, socket, start, len, none, none, none) }
}

/// Sends a descriptor by a Unix socket, with one byte that is 0 (SCM_RIGHTS, unix(7)). EPIPE: the
/// other end is closed; there is no SIGPIPE.
pub fn send_descriptor(socket: Fd, fd: Fd) -> Result<()> {
    let mut byte = [0u8; 1];
    let mut data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // A header of 16 bytes, and the descriptor.
    let mut control = [0u64; 3];
    // SAFETY: zeros are a value of it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the control buffer has room for a header and one descriptor, and all structures live
    // until the call is over.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<Fd>() as u32) as usize;
        libc::CMSG_DATA(header).cast::<Fd>().write_unaligned(fd);
        syscall!(Sysno::sendmsg, socket, &raw const message, libc::MSG_NOSIGNAL)
    }
    .map(drop)
}
