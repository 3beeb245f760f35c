//! A server that runs, and a client of it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use terrace_testkit::child::Ended;
use terrace_testkit::process;
use terrace_testkit::random::Congruential;
use terrace_testkit::wait::Wait;

/// A server that ends with the test.
pub struct Server(pub Ended);

impl Server {
    pub fn start(socket: &Path, flags: &[&str]) -> Server {
        Server::start_by(Command::new(env!("CARGO_BIN_EXE_terrace-kv")), socket, flags)
    }

    pub fn start_by(mut command: Command, socket: &Path, flags: &[&str]) -> Server {
        command.env("TERRACE_KV_TEST", "1").arg("-s").arg(socket).args(flags);
        let server = Server::of(command);
        let connects = || UnixStream::connect(socket);
        Wait::within(Duration::from_secs(20)).until_ok("the server opens its socket", connects);
        server
    }

    /// A server that a command starts.
    pub fn of(mut command: Command) -> Server {
        Server(Ended::by_kill(command.spawn().expect("the server starts")))
    }
}

/// A size from what the kernel says of the server.
pub fn kibibytes(server: &Server, name: &str) -> usize {
    let bytes = process::status_bytes(server.0.id(), name).expect("the server lives");
    bytes as usize >> 10
}

/// A value of at least `bytes` bytes that is known from its key. Eight random bytes and as many
/// that repeat take turns, so that pages of them compress.
pub fn value_of(key: usize, bytes: usize) -> Vec<u8> {
    let mut random = Congruential::with_increment(key as u64 + 1, key as u64 | 1);
    let mut value = Vec::with_capacity(bytes + 16);
    while value.len() < bytes {
        let state = random.draw();
        value.extend((state ^ state >> 31).to_le_bytes());
        value.extend(b"........");
    }
    value
}

/// A client of the server.
pub struct Client<S = UnixStream> {
    /// The stream that the client reads.
    pub stream: BufReader<S>,
}

impl Client<UnixStream> {
    pub fn connect(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        Client { stream: BufReader::new(stream) }
    }
}

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    /// Names and figures of `stats`.
    pub fn stats(&mut self, what: &str) -> Vec<(String, u64)> {
        self.send(format!("stats {what}\r\n").replace(" \r", "\r").as_bytes());
        let mut figures = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) =
                line.strip_prefix("STAT ").and_then(|line| line.split_once(' '))
            else {
                return figures;
            };
            figures.extend(value.parse().map(|value| (name.to_owned(), value)));
        }
    }

    pub fn ask(&mut self, request: &str) -> String {
        self.send(format!("{request}\r\n").as_bytes());
        self.line()
    }

    pub fn set(&mut self, key: &str, time: i32, value: &[u8]) -> String {
        let mut bytes = format!("set {key} 0 {time} {}\r\n", value.len()).into_bytes();
        bytes.extend(value);
        bytes.extend(b"\r\n");
        self.send(&bytes);
        self.line()
    }

    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        self.value()
    }

    /// The value of a key and the identifier of its version.
    pub fn gets(&mut self, key: &str) -> Option<(Vec<u8>, u64)> {
        self.send(format!("gets {key}\r\n").as_bytes());
        let header = self.line();
        let mut words = header.rsplit(' ');
        let identifier = words.next()?.parse().ok()?;
        let len: usize = words.next()?.parse().ok()?;
        let mut value = vec![0; len + 2];
        self.stream.read_exact(&mut value).expect("the value follows");
        value.truncate(len);
        assert_eq!(self.line(), "END");
        Some((value, identifier))
    }

    /// The answer to a `get` of one key.
    pub fn value(&mut self) -> Option<Vec<u8>> {
        let header = self.line();
        if header == "END" {
            return None;
        }
        let len: usize = header.rsplit(' ').next()?.parse().ok()?;
        let mut value = vec![0; len + 2];
        self.stream.read_exact(&mut value).expect("the value follows");
        value.truncate(len);
        assert_eq!(self.line(), "END");
        Some(value)
    }

    pub fn stat(&mut self, name: &str) -> u64 {
        self.send(b"stats\r\n");
        let mut found = 0;
        loop {
            let line = self.line();
            if line == "END" {
                return found;
            }
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = value.parse().expect("a number");
            }
        }
    }
}
