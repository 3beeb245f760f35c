//! Ten thousand connections, clients that are killed in the middle of a request, a full disk under
//! a tier, and a slowdown that is allowed.
//!
//! `TERRACE_SOAK_SECONDS` has the ten thousand connections store and read for so long.

mod common;

use common::{Client, Server, kibibytes, value_of};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use terrace_testkit::process;
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

/// Time limit for an awaited event.
const PATIENCE: Duration = Duration::from_secs(60);
const WAIT: Wait = Wait::within(PATIENCE);

fn value(key: usize, bytes: usize) -> Vec<u8> {
    let mut value = value_of(key, bytes);
    value.truncate(bytes);
    value
}

fn figure(client: &mut Client, what: &str, name: &str) -> u64 {
    let figures = client.stats(what);
    let found = figures.iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("stats {what} has no {name}: {figures:?}")).1
}

/// The limit on open files of this process, raised as far as it goes, or to `wanted` by root.
fn open_files(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structures are writable, and valid when they are read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        let more = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
        if limit.rlim_max < wanted && libc::setrlimit(libc::RLIMIT_NOFILE, &more) == 0 {
            return wanted;
        }
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    limit.rlim_cur
}

#[test]
fn ten_thousand_connections_are_served_in_little_memory() {
    const CONNECTIONS: usize = 10_000;
    let wanted = CONNECTIONS as u64 + 200;
    if open_files(wanted) < wanted {
        return skip("the hard limit on open files is too low (`ulimit -H -n`)");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-c", "10100", "-t", "2", "-b", "4096"]);
    let before = kibibytes(&server, "VmRSS");
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::connect(&socket)).collect();
    assert_eq!(in_turn(&mut clients, 0), CONNECTIONS, "all is found");
    assert_eq!(figure(&mut clients[0], "", "curr_connections"), CONNECTIONS as u64);
    let each = (kibibytes(&server, "VmRSS") - before) as f64 / CONNECTIONS as f64;
    assert!(each < 4.0, "{each} KiB for each connection and its item");
    let seconds = std::env::var("TERRACE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let mut round = 1;
    while Instant::now() < end {
        // The limit on memory is reached, so that some items may be evicted.
        let found = in_turn(&mut clients, round);
        assert!(found > CONNECTIONS / 2, "{found} were found in round {round}");
        round += 1;
    }
    println!("{round} rounds of {CONNECTIONS} connections");
    drop(clients);
    let mut client = Client::connect(&socket);
    WAIT.until("connections are closed", || figure(&mut client, "", "curr_connections") == 1);
}

/// Clients that connect without end must not keep a thread from those that it has.
#[test]
fn a_client_is_answered_before_a_crowd_is_accepted() {
    const CROWD: usize = 900;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-t", "1"]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.set("key", 0, b"value"), "STORED");
    let pid = server.0.id() as i32;
    process::stop(pid);
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::connect(&socket)).collect();
    client.send(b"stats\r\n");
    assert!(process::signal(pid, libc::SIGCONT));
    let mut answer = std::iter::repeat_with(|| client.line());
    let accepted =
        answer.find_map(|line| line.strip_prefix("STAT curr_connections ")?.parse().ok());
    let accepted: usize = accepted.expect("it is told");
    assert!(accepted < CROWD / 4, "{accepted} were accepted first");
    for one in &mut crowd {
        assert_eq!(one.get("key").as_deref(), Some(&b"value"[..]));
    }
}

/// Has each client store its key, and then read another one's. Values are those of the round.
/// Returns how many were found, which are right.
fn in_turn(clients: &mut [Client], round: usize) -> usize {
    let count = clients.len();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("set key{number} 0 0 100\r\n").as_bytes());
        client.send(&value(number + round * count, 100));
        client.send(b"\r\n");
    }
    for client in clients.iter_mut() {
        assert_eq!(client.line(), "STORED");
    }
    let other = |number: usize| (number * 7 + 1) % count;
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("get key{}\r\n", other(number)).as_bytes());
    }
    let mut found = 0;
    for (number, client) in clients.iter_mut().enumerate() {
        let key = other(number);
        if let Some(got) = client.value() {
            assert_eq!(got, value(key + round * count, 100), "of key{key} in round {round}");
            found += 1;
        }
    }
    found
}

/// Clients of the test program itself, so that the kernel ends them as any killed process.
#[test]
fn clients_that_are_killed_in_mid_request_leave_nothing_behind() {
    const CLIENTS: usize = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-m", "64", "-t", "2"]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.set("stays", 0, b"whole"), "STORED");
    let before = kibibytes(&server, "VmRSS");
    for round in 0..CLIENTS {
        // Half of a value, half of another one, or answers that no client reads and half of a line.
        let said = match round % 3 {
            0 => r"b'set half 0 0 900000\r\n' + b'x' * 400000",
            1 => r"b'set stays 0 0 5\r\nbro'",
            _ => r"b'get stays\r\n' * 200 + b'get sta'",
        };
        let script = format!(
            "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
             s.sendall({said})\nprint('sent', flush=True)\ntime.sleep(600)"
        );
        let mut victim = Command::new("python3")
            .args(["-c", &script])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut told = [0; 5];
        std::io::Read::read_exact(victim.stdout.as_mut().expect("a pipe"), &mut told)
            .expect("it sends");
        victim.kill().expect("it lives");
        victim.wait().expect("it was killed");
    }
    WAIT.until("connections are closed", || figure(&mut client, "", "curr_connections") == 1);
    assert_eq!(client.get("stays").as_deref(), Some(b"whole".as_slice()));
    assert_eq!(client.get("half"), None, "half of a value is none");
    let more = kibibytes(&server, "VmRSS").saturating_sub(before);
    assert!(more < 8 << 10, "{more} KiB are kept for clients that are gone");
}

/// A file system of its own, of few bytes; unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(mebibytes: usize) -> Option<Small> {
        let directory = tempfile::tempdir().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(directory.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Small(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: the server may be on its way out.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_under_a_tier_costs_no_right_value() {
    const KEYS: usize = 150_000;
    const BYTES: usize = 1000;
    let Some(disk) = Small::mount(12) else {
        return skip("only root can mount a file system");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let tiers = format!("dram,lz4@file:{}", disk.0.path().display());
    let flags = ["-m", "256", "-t", "1", "--dram", "80M", "--tiers", &tiers];
    let _server = Server::start(&socket, &flags);
    let mut client = Client::connect(&socket);
    if figure(&mut client, "terrace", "active") == 0 {
        return skip("pages cannot be moved here; `terrace doctor` says why");
    }
    for key in 0..KEYS {
        let stored = client.set(&format!("key{key}"), 0, &value(key, BYTES));
        assert!(stored == "STORED" || stored.starts_with("SERVER_ERROR out of memory"), "{stored}");
    }
    let name = format!("tier:lz4@file:{}:stored_bytes", disk.0.path().display());
    WAIT.until("something went to the disk", || figure(&mut client, "terrace", &name) > 1 << 20);
    let mut found = 0;
    for key in (0..KEYS).rev() {
        if let Some(stored) = client.get(&format!("key{key}")) {
            assert_eq!(stored, value(key, BYTES), "of key{key}");
            found += 1;
        }
    }
    assert!(found > KEYS / 4, "{found} of {KEYS} were found");
    // Others may still be stored.
    assert_eq!(client.set("after", 0, b"all"), "STORED");
    assert_eq!(client.get("after").as_deref(), Some(b"all".as_slice()));
}

/// Processes whose command line names a file.
fn processes_with(file: &Path) -> Vec<u32> {
    let file = file.as_os_str().as_encoded_bytes();
    let has = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(file.len()).any(|part| part == file)
    };
    process::all().filter(has).collect()
}

/// The killed server's socket stays behind, and so do clients in mid-request. Its tier's file has
/// no name.
#[test]
fn a_server_that_is_killed_under_load_is_replaced_at_once() {
    const KEYS: usize = 100_000;
    const BYTES: usize = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let files = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let tiers = format!("dram,lz4@file:{}", files.path().display());
    let flags = ["-m", "256", "-t", "2", "--dram", "64M", "--tiers", &tiers];
    for round in 0..2 {
        let begun = Instant::now();
        let server = Server::start(&socket, &flags);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let mut client = Client::connect(&socket);
        if figure(&mut client, "terrace", "active") == 0 {
            return skip("pages cannot be moved here; `terrace doctor` says why");
        }
        // Nothing but the cache is lost, and that is.
        assert_eq!(client.get("key1"), None, "in round {round}");
        fill(&socket, KEYS, BYTES);
        let name = format!("tier:lz4@file:{}:stored_bytes", files.path().display());
        WAIT.until("something went to the disk", || {
            figure(&mut client, "terrace", &name) > 1 << 20
        });
        let ended = thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let socket = &socket;
                    scope.spawn(move || {
                        let mut stream = UnixStream::connect(socket).expect("it listens");
                        let mut key = writer;
                        // Until the kernel tells that no process reads any more.
                        loop {
                            let mut bytes = format!("set key{key} 0 0 {BYTES} noreply\r\n");
                            bytes += &"x".repeat(BYTES / 2);
                            if stream.write_all(bytes.as_bytes()).is_err() {
                                return;
                            }
                            let rest = "x".repeat(BYTES - BYTES / 2) + "\r\n";
                            if stream.write_all(rest.as_bytes()).is_err() {
                                return;
                            }
                            key = (key + 7) % KEYS;
                        }
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(300));
            // By SIGKILL.
            drop(server);
            writers.into_iter().all(|writer| writer.join().is_ok())
        });
        assert!(ended && socket.exists(), "its socket is left");
    }
    // Nothing of it stays, neither processes that move pages nor files.
    WAIT.until("all of its processes have ended", || processes_with(&socket).is_empty());
    let left: Vec<_> = files.path().read_dir().expect("it is there").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn idle_items_leave_dram_where_a_slowdown_is_allowed() {
    idle_items_leave("--slowdown=2%");
}

#[test]
fn idle_items_leave_dram_where_a_model_places_regions() {
    idle_items_leave("--knob=0.1");
}

fn idle_items_leave(flag: &str) {
    const KEYS: usize = 200_000;
    const BYTES: usize = 2000;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "600", "-t", "1", flag]);
    let mut client = Client::connect(&socket);
    if figure(&mut client, "terrace", "active") == 0 {
        return skip("pages cannot be moved here; `terrace doctor` says why");
    }
    fill(&socket, KEYS, BYTES);
    WAIT.until("memory becomes less than the data", || {
        let touched = figure(&mut client, "terrace", "touched_bytes");
        figure(&mut client, "terrace", "physical_bytes") < touched - touched / 20
    });
    for key in (0..KEYS).step_by(97) {
        assert_eq!(client.get(&format!("key{key}")), Some(value(key, BYTES)), "of key{key}");
    }
}

/// Stores items without waiting for each answer.
fn fill(socket: &Path, keys: usize, bytes: usize) {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    let mut batch = Vec::new();
    for key in 0..keys {
        batch.extend(format!("set key{key} 0 0 {bytes} noreply\r\n").bytes());
        batch.extend(value(key, bytes));
        batch.extend(b"\r\n");
        if batch.len() > 1 << 20 {
            stream.write_all(&batch).expect("the server reads");
            batch.clear();
        }
    }
    stream.write_all(&batch).expect("the server reads");
    stream.write_all(b"version\r\n").expect("the server reads");
    std::io::Read::read_exact(&mut stream, &mut [0; 8]).expect("the server answers");
}
