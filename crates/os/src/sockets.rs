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
