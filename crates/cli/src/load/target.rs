//! Where the server is: a host and port, or a Unix socket.

use super::Protocol;
use anyhow::{Context as _, Result, anyhow};
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `HOST:PORT`.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(path) =
            text.strip_prefix("unix:").or_else(|| text.contains('/').then_some(text))
        {
            return Ok(Target::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(Target::Tcp(text.into())),
            Some((host, port))
                if !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                Err(format!("there is no port {port}: write one from 1 to 65535"))
            }
            _ => {
                Err("write HOST:PORT (127.0.0.1:11211, [::1]:6379), or the path of a Unix socket (/run/redis.sock, unix:redis.sock)".into())
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => f.write_str(address),
            Target::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Target {
    /// The protocol that the server there speaks: it is asked, and has `timeout` to answer.
    pub fn protocol(&self, timeout: Duration) -> Result<Protocol> {
        let answered = match self {
            Target::Tcp(address) => {
                let mut stream = connect_tcp(address).with_context(|| unreachable(self))?;
                stream.set_read_timeout(Some(timeout))?;
                Protocol::ask(&mut stream)
            }
            Target::Unix(path) => {
                let mut stream = UnixStream::connect(path).with_context(|| unreachable(self))?;
                stream.set_read_timeout(Some(timeout))?;
                Protocol::ask(&mut stream)
            }
        };
        let answered = answered.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                anyhow!("no answer came within {timeout:?} (--timeout)")
            }
            _ => error.into(),
        });
        let answered = answered.with_context(|| {
            format!("{self} does not say what it speaks; say it with --protocol")
        })?;
        answered.map_err(|answer| {
            anyhow!("{self} speaks neither memcached's text protocol nor RESP: it says {answer:?}")
        })
    }
}

/// The context of a connection that cannot be made.
pub fn unreachable(target: &Target) -> String {
    format!("cannot connect to {target}; is a server listening there?")
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection that never blocks.
#[derive(Debug)]
pub enum Stream {
    /// TCP, without Nagle's delay.
    Tcp(mio::net::TcpStream),
    /// A Unix socket.
    Unix(mio::net::UnixStream),
}

impl Stream {
    /// Connects, which does block.
    pub fn connect(target: &Target) -> io::Result<Stream> {
        match target {
            Target::Tcp(address) => {
                let stream = connect_tcp(address)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(mio::net::TcpStream::from_std(stream)))
            }
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(mio::net::UnixStream::from_std(stream)))
            }
        }
    }

    /// What is registered for being polled.
    pub fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer),
            Stream::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        for (text, target) in [
            ("127.0.0.1:11211", Target::Tcp("127.0.0.1:11211".into())),
            ("[::1]:6379", Target::Tcp("[::1]:6379".into())),
            ("localhost:1", Target::Tcp("localhost:1".into())),
            ("/run/a.sock", Target::Unix("/run/a.sock".into())),
            ("./a:1", Target::Unix("./a:1".into())),
            ("unix:a.sock", Target::Unix("a.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(target));
        }
        for text in ["", "localhost", ":11211", "localhost:", "localhost:http"] {
            assert!(text.parse::<Target>().unwrap_err().contains("HOST:PORT"), "{text}");
        }
        for text in ["localhost:0", "localhost:65536", "127.0.0.1:22222222"] {
            assert!(text.parse::<Target>().unwrap_err().contains("from 1 to 65535"), "{text}");
        }
    }
}
