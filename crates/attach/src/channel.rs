//! How `terrace detach` and `terrace status` speak to a keeper. It is a socket with a name that no
//! file system has, of which nothing is left when the keeper ends.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

const PREFIX: &str = "terrace-attach-";

fn address(pid: i32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{pid}"))
}

/// How long a client that connects may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// The keeper's end of the channel.
pub struct Channel {
    listener: UnixListener,
    /// Clients that have connected and not yet asked, each with the time of that.
    silent: Vec<(UnixStream, Instant)>,
}

/// A request, and the way to answer it.
pub struct Request {
    pub text: String,
    stream: UnixStream,
}

impl Request {
    /// Answers the request. The client may have gone.
    pub fn answer(&mut self, text: &str) {
        let _ = self.stream.write_all(text.as_bytes());
    }
}

impl Channel {
    /// Opens the channel of a process's keeper.
    ///
    /// # Errors
    /// If the process is attached to already.
    pub fn open(pid: i32) -> Result<Self> {
        let listener = UnixListener::bind_addr(&address(pid)?).with_context(|| {
            format!("{pid} is attached to already: `terrace detach {pid}` first")
        })?;
        listener.set_nonblocking(true)?;
        Ok(Channel { listener, silent: Vec::new() })
    }

    /// Takes the channel over from a process that was killed, whose descriptors this process has
    /// too. A client that the killed process had accepted is told by the connection's end that no
    /// answer follows.
    pub fn take_over(&mut self) {
        // Noted when this process was made: they may be other files by now, and are not closed.
        std::mem::forget(std::mem::take(&mut self.silent));
        let Ok(own) = self.listener.local_addr() else { return };
        let listener = self.listener.as_raw_fd();
        for fd in descriptors_of_this_process().into_iter().filter(|fd| *fd != listener) {
            // SAFETY: it is only asked for its name, and closed where it is this channel's own.
            let stream = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(fd) });
            // What was accepted has the listener's name.
            let is_accepted = |address: SocketAddr| {
                address.as_abstract_name().is_some_and(|name| own.as_abstract_name() == Some(name))
            };
            if stream.local_addr().is_ok_and(is_accepted) {
                drop(ManuallyDrop::into_inner(stream));
            }
        }
    }

    /// Descriptors to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let silent = self.silent.iter().map(|(stream, _)| stream.as_raw_fd());
        silent.chain([self.listener.as_raw_fd()])
    }

    /// Takes a request of root, or of the keeper's own user. Does not wait.
    pub fn next(&mut self) -> Option<Request> {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_trusted(&stream) && stream.set_nonblocking(true).is_ok() {
                self.silent.push((stream, Instant::now()));
            }
        }
        self.silent.retain(|(_, since)| since.elapsed() < PATIENCE);
        let mut asked = None;
        self.silent.retain_mut(|(stream, _)| {
            if asked.is_some() {
                // Its turn comes with the next call.
                return true;
            }
            let mut text = [0; 64];
            match stream.read(&mut text) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => true,
                Ok(got) if got > 0 => {
                    let text = String::from_utf8_lossy(&text[..got]).trim().to_string();
                    asked = stream.try_clone().ok().map(|stream| Request { text, stream });
                    false
                }
                _ => false,
            }
        });
        asked.filter(|request| request.stream.set_nonblocking(false).is_ok())
    }
}

fn descriptors_of_this_process() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the other end is root's or this user's.
fn is_trusted(stream: &UnixStream) -> bool {
    let peer = terrace_os::peer_user(stream.as_raw_fd());
    peer.is_ok_and(|user| user == 0 || user == terrace_os::effective_user_id())
}

/// Asks a process's keeper, and returns the answer. `None` if that takes longer than the caller
/// waits.
///
/// # Errors
/// If there is no keeper, or it answers with an error.
pub fn ask(pid: i32, text: &str, wait: Option<Duration>) -> Result<Option<String>> {
    let mut stream = UnixStream::connect_addr(&address(pid)?)
        .with_context(|| format!("{pid} is not attached to"))?;
    if !is_trusted(&stream) {
        bail!("another user answers for {pid}: it is not asked");
    }
    let mut answer = String::new();
    let asked = stream
        .set_read_timeout(wait)
        .and_then(|()| stream.write_all(text.as_bytes()))
        .and_then(|()| stream.read_to_string(&mut answer));
    if asked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
        return Ok(None);
    }
    // Otherwise an error says that it was killed meanwhile.
    match answer.strip_prefix("error ") {
        Some(error) => bail!("{error}"),
        None if answer.is_empty() => bail!("the keeper of {pid} ended before it answered"),
        None => Ok(Some(answer)),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `terrace status` asks every keeper, and may do so while another asks for something else.
    #[test]
    fn all_that_ask_at_once_are_answered() {
        // No process has this number.
        let nobody = i32::MAX - std::process::id() as i32;
        let mut channel = Channel::open(nobody).unwrap();
        let clients: Vec<_> = ["status", "detach", "status"]
            .map(|text| std::thread::spawn(move || ask(nobody, text, None)))
            .into_iter()
            .collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        // All have connected, and most likely asked, before the first is heard.
        std::thread::sleep(Duration::from_millis(200));
        let mut answered = 0;
        while answered < clients.len() && Instant::now() < deadline {
            while let Some(mut request) = channel.next() {
                request.answer("ok");
                answered += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for client in clients {
            assert_eq!(client.join().unwrap().unwrap().unwrap(), "ok");
        }
    }

    #[test]
    fn a_keeper_that_does_not_answer_is_not_waited_for() {
        let nobody = i32::MAX - std::process::id() as i32 - 1;
        let _channel = Channel::open(nobody).unwrap();
        let answer = ask(nobody, "status", Some(Duration::from_millis(20))).unwrap();
        assert_eq!(answer, None);
    }
}
