//! How `terrace detach` and `terrace status` speak to a keeper: a socket with a name that no file
//! system has, of which nothing is left when the keeper ends.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

const PREFIX: &str = "terrace-attach-";

fn address(pid: i32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))
}

/// The keeper's end.
pub struct Channel {
    listener: UnixListener,
}

/// A request, and the way to answer it.
pub struct Request {
    pub text: String,
    stream: UnixStream,
}

impl Request {
    /// Answers. Whoever asked may have gone.
    pub fn answer(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes());
    }
}

impl Channel {
    /// # Errors
    /// If the process is attached to already.
    pub fn open(pid: i32) -> Result<Self> {
        let listener = UnixListener::bind_addr(&address(pid)?).with_context(|| {
            format!("{pid} is attached to already: `terrace detach {pid}` first")
        })?;
        listener.set_nonblocking(true)?;
        Ok(Channel { listener })
    }

    pub fn descriptor(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// A request of root, or of the keeper's own user.
    pub fn next(&self) -> Option<Request> {
        let (mut stream, _) = self.listener.accept().ok()?;
        if !is_trusted(&stream) {
            return None;
        }
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(50))).ok()?;
        let mut text = [0; 64];
        let got = stream.read(&mut text).ok()?;
        Some(Request { text: String::from_utf8_lossy(&text[..got]).trim().to_string(), stream })
    }
}

/// Whether the other end is root's or this user's.
fn is_trusted(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of_val(&peer) as u32;
    // SAFETY: the structure is writable, and the length is its own.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut len,
        )
    };
    // SAFETY: geteuid has no arguments and cannot fail.
    got == 0 && (peer.uid == 0 || peer.uid == unsafe { libc::geteuid() })
}

/// Asks a process's keeper; its answer.
///
/// # Errors
/// If there is none, or it answers with an error.
pub fn ask(pid: i32, text: &str) -> Result<String> {
    let mut stream = UnixStream::connect_addr(&address(pid)?)
        .with_context(|| format!("{pid} is not attached to"))?;
    if !is_trusted(&stream) {
        bail!("another user answers for {pid}: it is not asked");
    }
    stream.write_all(text.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.strip_prefix("error ") {
        Some(error) => bail!("{error}"),
        None if answer.is_empty() => bail!("the keeper of {pid} ended before it answered"),
        None => Ok(answer),
    }
}

/// The processes that are attached to, as far as this network namespace knows.
pub fn attached() -> Vec<i32> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut pids: Vec<i32> = text
        .lines()
        .filter_map(|line| {
            line.rsplit_once(' ')?.1.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
