//! The command lines of "Instead of memcached" in docs/terrace-kv.md: each starts a server that
//! stores, answers, and ends.

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
const PORT: &str = "11211";
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

fn is_served(line: &str) {
    let scratch = tempfile::tempdir().expect("a directory");
    let socket = scratch.path().join("kv.socket");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("it has an address").port();
    drop(listener);
    let line = line.replace(PORT, &port.to_string()).replace(SOCKET, &socket.to_string_lossy());
    let programs = Path::new(env!("CARGO_BIN_EXE_terrace-kv")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {line}")]);
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
        is_served(&line);
    }
}
