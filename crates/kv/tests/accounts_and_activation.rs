//! Clients that must authenticate, and sockets that a service manager opened.

mod common;

use common::{Client, Server};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use terrace_testkit::process;
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

const WAIT: Wait = Wait::within(Duration::from_secs(20));

#[test]
fn nothing_is_answered_before_the_right_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let (socket, file) = (directory.path().join("socket"), directory.path().join("accounts"));
    std::fs::write(&file, "ann:secret\nbob:other\n").expect("it can be written");
    let _server = Server::start(&socket, &["-Y", &file.to_string_lossy()]);
    let mut client = Client::connect(&socket);
    for request in ["get a", "version", "flush_all", "mn", "stats", "set a 0 0", "get a b c"] {
        assert_eq!(client.ask(request), "CLIENT_ERROR unauthenticated", "{request}");
    }
    assert_eq!(client.set("x", 0, b"ann"), "CLIENT_ERROR bad authentication token format");
    assert_eq!(client.set("x", 0, b"ann other"), "CLIENT_ERROR authentication failure");
    assert_eq!(client.ask("get x"), "CLIENT_ERROR unauthenticated");
    // In pieces, with the next requests behind it.
    client.send(b"set x 0 0 10\r\nann se");
    client.send(b"cret\r\nset a 5 0 2\r\nhi\r\nget a\r\n");
    assert_eq!([client.line(), client.line()], ["STORED", "STORED"]);
    assert_eq!(client.value().as_deref(), Some(b"hi".as_slice()));
    assert_eq!((client.stat("auth_cmds"), client.stat("auth_errors")), (3, 2));
    // Each connection by itself.
    let mut other = Client::connect(&socket);
    assert_eq!(other.ask("get a"), "CLIENT_ERROR unauthenticated");
    assert_eq!(other.set("y", 0, b"bob other"), "STORED");
    assert_eq!(other.get("a").as_deref(), Some(b"hi".as_slice()));
}

#[test]
fn a_hangup_has_the_accounts_read_again_and_keeps_the_items() {
    let directory = tempfile::tempdir().expect("a directory");
    let [socket, file, pid_file] =
        ["socket", "accounts", "pid"].map(|name| directory.path().join(name));
    std::fs::write(&file, "ann:secret\n").expect("it can be written");
    let flags = ["-Y", &file.to_string_lossy(), "-P", &pid_file.to_string_lossy()];
    let mut server = Server::start(&socket, &flags);
    let pid = format!("{}\n", server.0.id());
    let is_written = || std::fs::read_to_string(&pid_file).is_ok_and(|text| text == pid);
    WAIT.until("the file of -P is written", is_written);
    let signal = |signal: i32| {
        assert!(process::signal(server.0.id() as i32, signal));
    };
    let admits = |password: &[u8]| Client::connect(&socket).set("x", 0, password) == "STORED";
    let mut client = Client::connect(&socket);
    assert_eq!(client.set("x", 0, b"ann secret"), "STORED");
    assert_eq!(client.set("a", 0, b"kept"), "STORED");
    for (text, password) in [("ann:other\n", &b"ann other"[..]), ("no account\n", b"ann other")] {
        std::fs::write(&file, text).expect("it can be written");
        signal(libc::SIGHUP);
        WAIT.until("the accounts are read again", || admits(password));
    }
    assert!(!admits(b"ann secret"));
    assert_eq!(client.get("a").as_deref(), Some(b"kept".as_slice()));
    signal(libc::SIGTERM);
    server.0.wait().expect("it is our child");
    assert!(!pid_file.exists());
}

#[test]
fn silent_clients_are_closed_where_that_was_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-o", "idle_timeout=3"]);
    let (mut silent, mut asks) = (Client::connect(&socket), Client::connect(&socket));
    assert_eq!((silent.set("a", 0, b"one"), asks.stat("idle_kicks")), ("STORED".to_owned(), 0));
    WAIT.until("the silent client is closed", || asks.stat("idle_kicks") > 0);
    assert_eq!(silent.line(), "", "it is closed");
    assert_eq!(asks.get("a").as_deref(), Some(b"one".as_slice()));
}

#[test]
fn without_a_port_and_a_socket_it_does_not_start() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
    let output = command.args(["-p", "0"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("give one of -p and -s"), "{said}");
}

#[test]
fn a_file_of_another_form_is_refused_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("accounts");
    std::fs::write(&file, "ann secret\n").expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
    let output = command.arg("-Y").arg(&file).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("line 1 is not user:password"), "{said}");
}

/// Starts the server as a service manager does: the sockets are descriptors 3, 4, …, and the
/// environment says so.
fn activated(sockets: &[i32], flags: &str) -> Server {
    let mut command = Command::new("sh");
    let server = env!("CARGO_BIN_EXE_terrace-kv");
    command.args(["-c", &format!("LISTEN_PID=$$ exec {server} {flags}")]);
    command.env("LISTEN_FDS", sockets.len().to_string());
    let sockets = sockets.to_vec();
    // SAFETY: only system calls: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            for (number, socket) in sockets.iter().enumerate() {
                // Out of the way of the numbers that are wanted.
                let copy = libc::fcntl(*socket, libc::F_DUPFD, 50);
                if copy < 0 || libc::dup2(copy, 3 + number as i32) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Server::of(command)
}

#[test]
fn sockets_of_a_service_manager_are_used_and_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let unix = UnixListener::bind(&path).expect("a socket");
    let Ok(internet) = TcpListener::bind(("127.0.0.1", 0)) else {
        return skip("there is no network");
    };
    let port = internet.local_addr().expect("it has an address").port();
    // The port of -p is not opened: two servers with the same one run side by side.
    let flags = format!("-p {port} -s {}", path.display());
    let mut server = activated(&[unix.as_raw_fd(), internet.as_raw_fd()], &flags);
    let mut client = Client::connect(&path);
    assert_eq!(client.set("a", 0, b"one"), "STORED");
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
    stream.get_mut().write_all(b"get a\r\n").expect("it reads");
    let lines: Vec<_> = stream.lines().take(3).map(|line| line.expect("it answers")).collect();
    assert_eq!(lines, ["VALUE a 0 3", "one", "END"]);
    process::signal(server.0.id() as i32, libc::SIGTERM);
    assert!(server.0.wait().expect("it is our child").success());
    assert!(UnixStream::connect(&path).is_ok(), "the service manager's socket is still there");
}

#[test]
fn what_is_no_listening_socket_is_refused() {
    let file = std::fs::File::open(Path::new("/dev/null")).expect("it is there");
    let mut server = activated(&[file.as_raw_fd()], "2>/dev/null");
    assert!(!server.0.wait().expect("it is our child").success());
}
