//! A server that keeps nothing: it answers each line with the same value. Its figure is what epoll
//! and sockets leave to a server on one thread.

use anyhow::Context;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;

const EVENTS: usize = 256;
const ROOM: usize = 64 << 10;

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A listening socket: its descriptor, and what accepts.
type Accept = Box<dyn Fn() -> std::io::Result<(RawFd, Box<dyn Stream>)>>;

fn listener(listen: &str) -> anyhow::Result<(RawFd, Accept)> {
    if listen.contains('/') {
        let listener = UnixListener::bind(listen)?;
        let descriptor = listener.as_raw_fd();
        let accept = move || {
            let stream = listener.accept()?.0;
            stream.set_nonblocking(true)?;
            Ok((stream.as_raw_fd(), Box::new(stream) as Box<dyn Stream>))
        };
        return Ok((descriptor, Box::new(accept)));
    }
    let listener = TcpListener::bind(listen)?;
    let descriptor = listener.as_raw_fd();
    let accept = move || {
        let stream = listener.accept()?.0;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok((stream.as_raw_fd(), Box::new(stream) as Box<dyn Stream>))
    };
    Ok((descriptor, Box::new(accept)))
}

/// Serves until it is ended.
pub fn serve(listen: &str, value_bytes: usize) -> anyhow::Result<()> {
    let (listening, accept) = listener(listen).context("cannot listen")?;
    // SAFETY: no pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    watch(epoll, listening)?;
    let head = format!("VALUE key-000000000000 0 {value_bytes}\r\n");
    let reply = [head.as_bytes(), &vec![b'x'; value_bytes], b"\r\nEND\r\n"].concat();
    let mut streams: HashMap<RawFd, Box<dyn Stream>> = HashMap::new();
    let mut input = vec![0; ROOM];
    let mut output = Vec::new();
    // SAFETY: zeros are valid events.
    let mut events: [libc::epoll_event; EVENTS] = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: there is room for that many events.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, -1) };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let descriptor = event.u64 as RawFd;
            if descriptor == listening {
                let (descriptor, stream) = accept()?;
                watch(epoll, descriptor)?;
                streams.insert(descriptor, stream);
                continue;
            }
            let Some(stream) = streams.get_mut(&descriptor) else { continue };
            if !answer(stream, &mut input, &mut output, &reply) {
                streams.remove(&descriptor);
            }
        }
    }
}

/// Answers what has come. Gives whether the connection goes on. Lines are never torn here: a
/// client sends some of them at once, and has few on the way.
fn answer(
    stream: &mut Box<dyn Stream>,
    input: &mut [u8],
    output: &mut Vec<u8>,
    reply: &[u8],
) -> bool {
    let bytes = match stream.read(input) {
        Ok(0) => return false,
        Ok(bytes) => bytes,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    };
    output.clear();
    for _ in input[..bytes].iter().filter(|&&byte| byte == b'\n') {
        output.extend_from_slice(reply);
    }
    let mut written = 0;
    while written < output.len() {
        match stream.write(&output[written..]) {
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    true
}

fn watch(epoll: RawFd, descriptor: RawFd) -> anyhow::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: descriptor as u64 };
    // SAFETY: both descriptors are open, and the event is valid.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &mut event) };
    anyhow::ensure!(added == 0, "epoll_ctl: {}", std::io::Error::last_os_error());
    Ok(())
}
