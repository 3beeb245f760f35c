//! The command lines of "Start" and "Instead of memcached" in docs/terrace-kv.md, and of its page
//! on TLS: each starts a server that stores, answers, and ends. One is also tried in a control
//! group with little memory.

mod common;

use common::{Client, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use terrace_testkit::group::MemoryGroup;
use terrace_testkit::port;
use terrace_testkit::process::is_root;
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

/// Pages, below the repository.
const PAGE: &str = "docs/terrace-kv.md";
const PAGE_ON_TLS: &str = "docs/terrace-kv-tls.md";
/// What a page says of a block of commands that a function of this file runs.
const RUN_BY: &str = "```sh run-by=crates/kv/tests/instead_of_memcached.rs:";
const PORT: &str = "11211";
/// The port without TLS, on that page.
const PLAIN_PORT: &str = "11212";
const SOCKET: &str = "/run/kv.socket";
/// Where a page has what was built.
const BUILT: &str = "target/release/";
/// Memory of the small container, MiB. The items of its server have 64 of them.
const CONTAINER_MIB: u64 = 96;

/// The lines of all blocks of a page that a function of this file runs, by what the page says.
fn lines_of(page: &str, function: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let page = std::fs::read_to_string(path).expect("the page is there");
    let mut lines = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_inside = line.strip_prefix(RUN_BY) == Some(function);
        } else if is_inside {
            lines.push(line.to_owned());
        }
    }
    lines
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn connect(port: u16, socket: &Path) -> Option<Box<dyn Stream>> {
    match UnixStream::connect(socket) {
        Ok(stream) => Some(Box::new(stream)),
        Err(_) => Some(Box::new(TcpStream::connect(("127.0.0.1", port)).ok()?)),
    }
}

/// A server that a line starts in a directory, and a connection to it: at this port of the line, or
/// at its socket. It joins a control group first, if there is one.
fn start(
    line: &str,
    directory: &Path,
    plain_port: &str,
    group: Option<&MemoryGroup>,
) -> (Server, BufReader<Box<dyn Stream>>) {
    let socket = directory.join("kv.socket");
    let port = port::free().expect("a free port");
    let line =
        line.replace(plain_port, &port.to_string()).replace(SOCKET, &socket.to_string_lossy());
    let other = port::free().expect("a free port");
    let line = line.replace(PORT, &other.to_string());
    let programs = Path::new(env!("CARGO_BIN_EXE_terrace-kv")).parent().expect("a directory");
    let line = line.replace(BUILT, &format!("{}/", programs.display()));
    let path = std::env::var("PATH").unwrap_or_default();
    let join = group.map(|group| format!("echo 0 >'{}' && ", group.processes_file().display()));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{}exec {line}", join.unwrap_or_default())]);
    command.current_dir(directory);
    command.env("PATH", format!("{}:{path}", programs.display()));
    let mut server = Server::of(command);
    let stream = Wait::within(Duration::from_secs(20)).until_some(&line, || {
        let stream = connect(port, &socket);
        let ended = server.0.try_wait().expect("it is our child");
        assert!(stream.is_some() || ended.is_none(), "{line}: {ended:?}");
        stream
    });
    (server, BufReader::new(stream))
}

/// A server that a line starts in a directory stores and answers.
fn is_served(line: &str, directory: &Path, plain_port: &str) {
    let (_server, mut stream) = start(line, directory, plain_port, None);
    stream.get_mut().write_all(b"set a 7 0 3\r\nabc\r\nget a\r\nversion\r\n").expect("it reads");
    let mut answers = stream.lines().map(|line| line.expect("it answers"));
    for expected in ["STORED", "VALUE a 7 3", "abc", "END"] {
        assert_eq!(answers.next().as_deref(), Some(expected), "{line}");
    }
    assert!(answers.next().is_some_and(|answer| answer.starts_with("VERSION 1.")), "{line}");
}

#[test]
fn every_line_of_the_page_serves() {
    let lines = lines_of(PAGE, "every_line_of_the_page_serves");
    assert!(lines.len() >= 8, "{lines:?}");
    let root = is_root();
    // What this would build is there: it is what is tested.
    for line in lines.iter().filter(|line| !line.starts_with("cargo build ")) {
        if line.starts_with("unshare") && !root {
            skip(&format!("only root makes namespaces: {line}"));
            continue;
        }
        is_served(line, tempfile::tempdir().expect("a directory").path(), PORT);
    }
}

/// More is stored than fits. Items are evicted, and the kernel does not end the server for its
/// memory.
#[test]
fn the_line_of_a_container_does_with_little_memory() {
    const KEYS: usize = 100_000;
    let value = |key: usize| format!("{key:01000}").into_bytes();
    let lines = lines_of(PAGE, "every_line_of_the_page_serves");
    let line = lines.iter().find(|line| line.starts_with("unshare")).expect("it is on the page");
    let group = match MemoryGroup::limited("terrace-kv-test", CONTAINER_MIB << 20) {
        Ok(group) => group,
        Err(error) => return skip(&format!("no group with a limit: {error:#}")),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let (mut server, stream) = start(line, directory.path(), PORT, Some(&group));
    let mut client = Client { stream };
    for key in 0..KEYS {
        assert_eq!(client.set(&format!("key{key}"), 0, &value(key)), "STORED", "key{key}");
    }
    let usage = std::fs::read_to_string(group.usage_file()).expect("the group tells");
    let usage: u64 = usage.trim().parse().expect("a number");
    assert!(usage > 60 << 20, "{usage} bytes: is the server in the group?");
    let mut found = 0;
    for key in (0..KEYS).rev() {
        if let Some(got) = client.get(&format!("key{key}")) {
            assert!(got == value(key), "a wrong value of key{key}");
            found += 1;
        }
    }
    assert!(found > KEYS / 4, "{found} of {KEYS} were found");
    assert!(client.stat("evictions") > 0, "more was stored than fits");
    assert!(server.0.try_wait().expect("it is our child").is_none(), "the server ended");
}

#[test]
fn the_lines_on_tls_make_a_certificate_and_serve() {
    let lines = lines_of(PAGE_ON_TLS, "the_lines_on_tls_make_a_certificate_and_serve");
    let make = lines.iter().find(|line| line.starts_with("openssl "));
    let make = make.expect("it makes a certificate");
    let serve = lines.iter().find(|line| line.starts_with("terrace-kv ")).expect("it serves");
    let scratch = tempfile::tempdir().expect("a directory");
    let made = Command::new("sh").args(["-c", make]).current_dir(scratch.path()).output();
    let made = made.expect("a shell is there");
    if made.status.code() == Some(127) {
        return skip("openssl is not installed");
    }
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    is_served(serve, scratch.path(), PLAIN_PORT);
}
