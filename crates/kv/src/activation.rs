//! Sockets that a service manager has opened (`LISTEN_FDS`, sd_listen_fds(3)).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The number of the first passed socket, by convention.
const FIRST: RawFd = 3;

/// The sockets that were passed to this process; none where it was started in another way. The
/// environment variables do not apply to a child: they name this process.
///
/// # Errors
/// If the variables are not numbers, or a descriptor that they name is not open.
pub fn sockets(pid: u32) -> io::Result<Vec<OwnedFd>> {
    let number = |name: &str| -> io::Result<Option<u32>> {
        let Ok(text) = std::env::var(name) else { return Ok(None) };
        let wrong = |_| io::Error::other(format!("{name}={text} is not a number"));
        text.parse().map(Some).map_err(wrong)
    };
    if number("LISTEN_PID")? != Some(pid) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS")?.unwrap_or(0) as RawFd;
    (FIRST..FIRST.saturating_add(count)).map(take).collect()
}

fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    // The program that is executed by a child does not get it.
    if terrace_os::set_close_on_exec(descriptor).is_err() {
        return Err(io::Error::other(format!("LISTEN_FDS names {descriptor}, which is not open")));
    }
    // SAFETY: it is open, and the service manager passed it to this process for it to own.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Whether the descriptor is a listening stream socket, and if so whether of the internet's.
pub fn is_internet(socket: RawFd) -> io::Result<bool> {
    let option = |name| terrace_os::socket_option(socket, name).map_err(terrace_os::io_error);
    let listens = option(libc::SO_TYPE)? == libc::SOCK_STREAM && option(libc::SO_ACCEPTCONN)? != 0;
    let domain = option(libc::SO_DOMAIN)?;
    match domain {
        libc::AF_INET | libc::AF_INET6 if listens => Ok(true),
        libc::AF_UNIX if listens => Ok(false),
        _ => Err(io::Error::other(format!(
            "descriptor {socket} of LISTEN_FDS is no listening stream socket; take ListenStream="
        ))),
    }
}
