//! The server on a Unix socket, driven by several clients that verify every value.

mod common;

use common::{Client, Server, kibibytes};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;
use terrace_testkit::process::{self, is_root};
use terrace_testkit::random::Congruential;
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

/// A value that is known from its key and version.
fn value(key: usize, version: usize) -> Vec<u8> {
    let len = match key % 50 {
        0 => 40_000,
        1 => 0,
        _ => 100 + key * 37 % 900,
    };
    let seed = format!("{key}:{version}:");
    seed.bytes().cycle().take(len.max(seed.len())).collect()
}

#[test]
fn items_are_set_read_deleted_and_expire() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &[]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.get("a"), None);
    assert_eq!(client.set("a", 0, b"one"), "STORED");
    assert_eq!(client.get("a").as_deref(), Some(b"one".as_slice()));
    assert_eq!(client.ask("delete a"), "DELETED");
    assert_eq!(client.get("a"), None);
    assert_eq!(client.set("b", 10, b"two"), "STORED");
    assert_eq!(client.ask("debugtime 9"), "OK");
    assert_eq!(client.get("b").as_deref(), Some(b"two".as_slice()));
    assert_eq!(client.ask("debugtime 2"), "OK");
    assert_eq!(client.get("b"), None);
}

#[test]
fn a_full_server_evicts_and_never_gives_a_wrong_value() {
    const CLIENTS: usize = 4;
    const KEYS: usize = 20_000;
    const REQUESTS: usize = 40_000;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "8"]);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let socket = &socket;
            scope.spawn(move || {
                let mut client = Client::connect(socket);
                let mut versions = vec![0; KEYS];
                let mut hits = 0;
                let mut random = Congruential::with_increment(number as u64 + 1, 1_442_695);
                for request in 0..REQUESTS {
                    let key = (random.draw() >> 33) as usize % KEYS;
                    let name = format!("client{number}-{key}");
                    if request % 3 == 0 {
                        versions[key] += 1;
                        let stored = client.set(&name, 0, &value(key, versions[key]));
                        assert_eq!(stored, "STORED");
                    } else if let Some(found) = client.get(&name) {
                        hits += 1;
                        assert_eq!(found, value(key, versions[key]), "of {name}");
                    }
                }
                assert!(hits > 0, "something was found");
            });
        }
        let mut client = Client::connect(&socket);
        assert_eq!(client.set("count", 0, b"0"), "STORED");
    });
    let mut client = Client::connect(&socket);
    assert!(client.stat("evictions") > 0, "more was stored than fits");
    assert!(client.stat("memory_used_bytes") <= 8 << 20, "the limit holds");
}

#[test]
fn increments_of_several_clients_all_count() {
    const CLIENTS: usize = 4;
    const INCREMENTS: usize = 3000;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &[]);
    assert_eq!(Client::connect(&socket).set("n", 0, b"0"), "STORED");
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(&socket);
                for _ in 0..INCREMENTS {
                    client.ask("incr n 1");
                }
            });
        }
    });
    let expected = (CLIENTS * INCREMENTS).to_string().into_bytes();
    assert_eq!(Client::connect(&socket).get("n"), Some(expected));
}

#[test]
fn one_connection_too_many_is_told_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-c", "2", "-t", "1"]);
    let mut first = Client::connect(&socket);
    assert!(first.ask("version").starts_with("VERSION "));
    let mut second = Client::connect(&socket);
    assert!(second.ask("version").starts_with("VERSION "));
    assert_eq!(Client::connect(&socket).line(), "ERROR Too many open connections");
}

#[test]
fn a_signal_ends_the_server_and_removes_its_socket() {
    for signal in ["-TERM", "-INT"] {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let mut server = Server::start(&socket, &[]);
        let id = server.0.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status().expect("kill starts");
        assert!(killed.success(), "kill {signal}");
        assert!(server.0.wait().expect("it ends").success(), "after kill {signal}");
        assert!(!socket.exists(), "after kill {signal}");
    }
}

#[test]
fn answers_of_many_large_values_do_not_pile_up() {
    const TIMES: usize = 400;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &[]);
    let mut client = Client::connect(&socket);
    let large = vec![b'x'; 1_000_000];
    assert_eq!(client.set("a", 0, &large), "STORED");
    client.send(format!("get{}\r\n", " a".repeat(TIMES)).as_bytes());
    thread::sleep(Duration::from_millis(500));
    let resident = kibibytes(&server, "VmRSS");
    assert!(resident < 100 << 10, "{resident} KiB are resident");
    for _ in 0..TIMES {
        assert_eq!(client.line(), "VALUE a 0 1000000");
        let mut value = vec![0; large.len() + 2];
        client.stream.read_exact(&mut value).expect("the value follows");
        assert!(value.starts_with(&large));
    }
    assert_eq!(client.line(), "END");
}

#[test]
fn answers_that_are_never_all_read_do_not_pile_up() {
    const TIMES: usize = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &[]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.set("a", 0, &[b'x'; 100_000]), "STORED");
    client.send("get a\r\n".repeat(TIMES).as_bytes());
    let mut answer = vec![0; "VALUE a 0 100000\r\n\r\nEND\r\n".len() + 100_000];
    for _ in 0..TIMES {
        client.stream.read_exact(&mut answer).expect("the server answers");
        // So slow that the server waits for the reader time and again.
        thread::sleep(Duration::from_millis(1));
        assert!(answer.starts_with(b"VALUE a 0 100000\r\nx") && answer.ends_with(b"x\r\nEND\r\n"));
    }
    let peak = kibibytes(&server, "VmHWM");
    assert!(peak < 60 << 10, "{peak} KiB were resident");
}

#[test]
fn quiet_meta_commands_hide_only_what_is_expected() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &[]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.ask("md none q"), "NF");
    assert_eq!(client.ask("ma none q"), "NF");
    assert_eq!(client.ask("mg none v q\r\nmn"), "MN");
    assert_eq!(client.set("n", 0, b"1"), "STORED");
    assert_eq!(client.ask("ma n q C1000"), "EX");
    assert_eq!(client.ask("ma n q\r\nmn"), "MN");
    assert_eq!(client.ask("md n q\r\nmn"), "MN");
    assert_eq!(client.get("n"), None);
}

#[test]
fn noise_gets_an_answer_or_a_closed_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &[]);
    let mut random = Congruential::with_increment(1, 1_442_695);
    for _ in 0..200 {
        let mut stream = UnixStream::connect(&socket).expect("the server lives");
        let mut bytes = b"set a 0 0 3\r\nabcd\r\nmg \xff v\r\nms a 5 b\r\n".to_vec();
        for _ in 0..500 {
            bytes.push((random.draw() >> 40) as u8);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(Client::connect(&socket).ask("version").starts_with("VERSION "));
}

#[test]
fn root_becomes_the_user_that_it_is_told() {
    if !is_root() {
        return skip("only root can become another user");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    // No right is needed to raise the soft limit up to the hard one.
    let mut command = Command::new("sh");
    let script = "ulimit -S -n 400; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_terrace-kv")]);
    let server = Server::start_by(command, &socket, &["-u", "nobody", "-c", "512"]);
    // Its socket is there before it becomes the user, and serves after.
    assert_eq!(Client::connect(&socket).set("key", 0, b"value"), "STORED");
    let status = |what: &str| {
        let text = std::fs::read_to_string(format!("/proc/{}/{what}", server.0.id()));
        text.expect("the server runs")
    };
    let uids = status("status").lines().find(|line| line.starts_with("Uid:")).map(str::to_owned);
    let uids = uids.expect("every process has a user");
    assert!(uids.split_whitespace().skip(1).all(|uid| uid != "0"), "{uids}");
    let files =
        status("limits").lines().find(|line| line.starts_with("Max open files")).map(str::to_owned);
    assert!(files.is_some_and(|files| files.contains(" 576 ")));
    let unknown = Command::new(env!("CARGO_BIN_EXE_terrace-kv"))
        .args(["-u", "no-such-user", "-p", "0", "-s"])
        .arg(directory.path().join("other"))
        .output()
        .expect("the server starts");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.contains("can't find the user no-such-user to switch to"), "{said}");
    assert!(!unknown.status.success());
}

/// A client sends a request and leaves before the server wakes. A read takes the request, and the
/// kernel has told of the end behind it by then.
#[test]
fn a_client_that_leaves_behind_its_request_is_noticed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let socket = scratch.path().join("socket");
    let server = Server::start(&socket, &["-t", "1"]);
    let pid = server.0.id() as i32;
    let mut leaving = Client::connect(&socket);
    assert!(leaving.ask("version").starts_with("VERSION"));
    process::stop(pid);
    // With an answer, the failure to send it would tell.
    leaving.send(b"set a 0 0 1 noreply\r\nx\r\n");
    drop(leaving);
    assert!(process::signal(pid, libc::SIGCONT));
    let mut client = Client::connect(&socket);
    let mut open = || {
        let figures = client.stats("");
        figures.iter().find(|(name, _)| name == "curr_connections").map(|(_, open)| *open)
    };
    let wait = Wait::within(Duration::from_secs(3)).every(Duration::from_millis(10));
    wait.until("the connection of a client that is gone is closed", || open() == Some(1));
}

/// Large items leave DRAM when they are not read, and every one of them comes back as it was.
#[test]
fn large_items_leave_dram() {
    const ITEMS: usize = 2000;
    /// Bytes of an item that is larger than 8 KiB, and seldom a whole number of pages.
    fn large(key: usize, version: usize) -> Vec<u8> {
        let seed = format!("{key}:{version}:");
        seed.bytes().cycle().take(20_000 + key * 7919 % 150_000).collect()
    }
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "512", "-t", "1", "--dram", "64M"]);
    let mut client = Client::connect(&socket);
    let mut versions = vec![0; ITEMS];
    let mut set = |client: &mut Client, key: usize, version: usize| {
        versions[key] = version;
        assert_eq!(client.set(&format!("large{key}"), 0, &large(key, version)), "STORED");
    };
    (0..ITEMS).for_each(|key| set(&mut client, key, 1));
    // The pages of what is replaced are discarded, and given to others.
    (0..ITEMS).step_by(3).for_each(|key| set(&mut client, key, 2));
    if client.stats("terrace").contains(&("active".to_owned(), 0)) {
        return skip("pages cannot be moved here; `terrace doctor` says why");
    }
    Wait::within(Duration::from_secs(60)).until("the budget holds, for twice as much", || {
        let figures = client.stats("terrace");
        let figure = |name: &str| figures.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
        let budget = figure("budget_bytes");
        figure("touched_bytes") > 2 * budget && figure("physical_bytes") <= budget
    });
    for (key, version) in versions.into_iter().enumerate() {
        assert_eq!(client.get(&format!("large{key}")), Some(large(key, version)), "large{key}");
    }
}
