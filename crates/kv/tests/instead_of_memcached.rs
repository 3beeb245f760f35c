//! The command lines of "Instead of memcached" in docs/terrace-kv.md, and of its page on TLS: each
//! starts a server that stores, answers, and ends.

mod common;

use common::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/terrace-kv.md");
const PAGE_ON_TLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/terrace-kv-tls.md");
const PORT: &str = "11211";
/// The port without TLS, on that page.
const PLAIN_PORT: &str = "11212";
const SOCKET: &str = "/run/kv.socket";

fn lines() -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let part = page.split("## Instead of memcached").nth(1).expect("the part is there");
    let part = part.split("\n## ").next().unwrap_or(part);
    let commands = part.lines().filter_map(|line| line.strip_prefix("    "));
    commands.filter(|line| line.contains("terrace-kv ")).map(str::to_owned).collect()
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn connect(port: u16, socket: &Path) -> Option<Box<dyn Stream>> {
    match UnixStream::connect(socket) {
        Ok(stream) => Some(Box::new(stream)),
        Err(_) => Some(Box::new(TcpStream::connect(("127.0.0.1", port)).ok()?)),
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it has an address").port()
}

/// A server that a line starts in a directory is spoken to at this port of the line, or its socket.
fn is_served(line: &str, directory: &Path, plain_port: &str) {
    let socket = directory.join("kv.socket");
    let port = free_port();
    let line =
        line.replace(plain_port, &port.to_string()).replace(SOCKET, &socket.to_string_lossy());
    let line = line.replace(PORT, &free_port().to_string());
    let programs = Path::new(env!("CARGO_BIN_EXE_terrace-kv")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]).current_dir(directory);
    command.env("PATH", format!("{}:{path}", programs.display()));
    let mut server = Server(command.spawn().expect("a shell is there"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let stream = loop {
        if let Some(stream) = connect(port, &socket) {
            break stream;
        }
        let ended = server.0.try_wait().expect("it is our child");
        assert!(ended.is_none() && Instant::now() < deadline, "{line}: {ended:?}");
        thread::sleep(Duration::from_millis(20));
    };
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"set a 7 0 3\r\nabc\r\nget a\r\nversion\r\n").expect("it reads");
    let mut answers = stream.lines().map(|line| line.expect("it answers"));
    for expected in ["STORED", "VALUE a 7 3", "abc", "END"] {
        assert_eq!(answers.next().as_deref(), Some(expected), "{line}");
    }
    assert!(answers.next().is_some_and(|answer| answer.starts_with("VERSION 1.")), "{line}");
}

#[test]
fn every_line_of_the_page_serves() {
    let lines = lines();
    assert!(lines.len() >= 5, "{lines:?}");
    // SAFETY: it only reads the process's user.
    let root = unsafe { libc::geteuid() } == 0;
    for line in lines {
        if line.starts_with("unshare") && !root {
            common::skip(&format!("only root makes namespaces: {line}"));
            continue;
        }
        is_served(&line, tempfile::tempdir().expect("a directory").path(), PORT);
    }
}

#[test]
fn the_lines_on_tls_make_a_certificate_and_serve() {
    let page = std::fs::read_to_string(PAGE_ON_TLS).expect("the page is there");
    let lines = || page.lines().filter_map(|line| line.strip_prefix("    "));
    let make = lines().find(|line| line.starts_with("openssl ")).expect("it makes a certificate");
    let serve = lines().find(|line| line.starts_with("terrace-kv ")).expect("it serves");
    let scratch = tempfile::tempdir().expect("a directory");
    let made = Command::new("sh").args(["-c", make]).current_dir(scratch.path()).output();
    let made = made.expect("a shell is there");
    if made.status.code() == Some(127) {
        return common::skip("openssl is not installed");
    }
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    is_served(serve, scratch.path(), PLAIN_PORT);
}
