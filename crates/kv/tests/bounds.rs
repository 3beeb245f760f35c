//! Bounds: bytes received and to be sent are part of the memory limit, `-c` of the files that may
//! be open. Every thread has its share of the clients.

mod common;

use common::{Client, Server, kibibytes};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use terrace_testkit::wait::Wait;

const PATIENCE: Duration = Duration::from_secs(60);
const WAIT: Wait = Wait::within(PATIENCE);
const LARGE: usize = 1_000_000;
const COME: usize = 900_000;
const NO_ROOM: &str = "SERVER_ERROR out of memory storing object";

/// Whether an answer has come within a moment.
fn is_answered(client: &mut Client) -> bool {
    let stream = client.stream.get_ref();
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout can be set");
    let answered = client.stream.fill_buf_len() > 0;
    let stream = client.stream.get_ref();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    answered
}

trait Come {
    fn fill_buf_len(&mut self) -> usize;
}

impl<T: Read> Come for std::io::BufReader<T> {
    fn fill_buf_len(&mut self) -> usize {
        std::io::BufRead::fill_buf(self).map_or(0, <[u8]>::len)
    }
}

#[test]
fn values_on_the_way_are_part_of_the_memory_limit() {
    const CLIENTS: usize = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-m", "16", "-t", "2"]);
    let mut observer = Client::connect(&socket);
    let before = kibibytes(&server, "VmRSS");
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&socket)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("set key{number} 0 0 {LARGE}\r\n").as_bytes());
        client.send(&vec![b'x'; COME]);
    }
    let refused: Vec<bool> = clients.iter_mut().map(is_answered).collect();
    let count = refused.iter().filter(|refused| **refused).count();
    assert!((CLIENTS - 16..CLIENTS - 8).contains(&count), "{count} of {CLIENTS} were refused");
    let more = kibibytes(&server, "VmRSS").saturating_sub(before);
    assert!(more < 20 << 10, "{more} KiB more than before, of 16 MiB");
    let held = observer.stat("read_buf_bytes");
    assert!((8 << 20..=16 << 20).contains(&held), "{held} bytes are counted");
    assert!(observer.stat("store_no_memory") >= count as u64);
    for (client, refused) in clients.iter_mut().zip(&refused) {
        client.send(&vec![b'x'; LARGE - COME]);
        client.send(b"\r\nversion\r\n");
        if *refused {
            assert_eq!(client.line(), NO_ROOM);
        } else {
            let stored = client.line();
            assert!(stored == "STORED" || stored == NO_ROOM, "{stored}");
        }
        assert!(client.line().starts_with("VERSION"), "the whole value was taken or skipped");
    }
    drop(clients);
    WAIT.until("nothing is held", || observer.stat("read_buf_bytes") == 0);
    assert_eq!(observer.set("new", 0, &vec![b'y'; LARGE]), "STORED");
    assert_eq!(observer.get("new"), Some(vec![b'y'; LARGE]));
}

#[test]
fn where_nothing_may_be_evicted_a_value_on_the_way_costs_no_item() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "8", "-t", "1", "-M"]);
    let mut client = Client::connect(&socket);
    let mut stored = 0;
    while client.set(&format!("key{stored}"), 0, &[b'v'; 1000]) == "STORED" {
        stored += 1;
    }
    let mut other = Client::connect(&socket);
    other.send(format!("add large 0 0 {LARGE}\r\n").as_bytes());
    assert_eq!(other.line(), NO_ROOM, "before the value has come");
    other.send(&vec![b'x'; LARGE]);
    assert!(other.ask("\r\nversion").starts_with("VERSION"));
    // The item that it should have replaced in any case is gone.
    other.send(format!("set key0 0 0 {LARGE} noreply\r\n").as_bytes());
    other.send(&vec![b'x'; LARGE]);
    assert!(other.ask("\r\nversion").starts_with("VERSION"));
    assert_eq!(client.get("key0"), None);
    for key in 1..stored {
        assert_eq!(client.get(&format!("key{key}")), Some(vec![b'v'; 1000]));
    }
}

#[test]
fn answers_that_nobody_reads_are_part_of_the_memory_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "64", "-t", "1"]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.set("a", 0, &vec![b'x'; LARGE]), "STORED");
    let mut slow = Client::connect(&socket);
    slow.send(b"get a a a a\r\n");
    WAIT.until("its answers are counted", || client.stat("read_buf_bytes") > LARGE as u64);
    drop(slow);
    WAIT.until("it is gone", || client.stat("read_buf_bytes") == 0);
}

/// Starts the server without the right to raise the hard limit on open files, and with that limit.
fn limited(files: u64, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
    command.args(flags);
    // SAFETY: only system calls: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            const CAP_SYS_RESOURCE: libc::c_ulong = 24;
            let limit = libc::rlimit { rlim_cur: files.min(128), rlim_max: files };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // A process that is not root's has no such right.
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
            Ok(())
        });
    }
    command
}

fn output(mut command: Command) -> Output {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).output().expect("it starts")
}

#[test]
fn more_connections_than_files_may_be_open_are_refused_as_memcached_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let socket = path.to_str().expect("temporary names are UTF-8");
    let refused = output(limited(512, &["-c", "4096", "-s", socket]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(71), "{said}");
    let message = "failed to set rlimit for open files. Try starting as root or requesting smaller \
                   maxconns value.";
    assert!(said.contains(message) && said.contains("-c 4096"), "{said}");
    // The soft limit is no hindrance, and a few files too few are none.
    let server = Server::start_by(limited(512, &["-c", "512"]), &path, &[]);
    assert_eq!(Client::connect(&path).set("key", 0, b"value"), "STORED");
    assert_eq!(files_limit(&server), 512);
}

/// Root may raise the hard limit, unless a container has taken that right from it.
#[test]
fn the_hard_limit_is_raised_by_those_who_may() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let limited = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n 256; {script}")]);
        command.arg(env!("CARGO_BIN_EXE_terrace-kv"));
        command
    };
    let may = output(limited("ulimit -n 1500")).status.success();
    if may {
        let command = limited("exec \"$0\" \"$@\"");
        let server = Server::start_by(command, &socket, &["-c", "1000", "-t", "1"]);
        assert!(files_limit(&server) > 1000);
    } else {
        let mut command = limited("exec \"$0\" \"$@\"");
        command.args(["-c", "1000", "-s"]).arg(&socket);
        assert_eq!(output(command).status.code(), Some(71));
    }
}

/// How many files the server may have open.
fn files_limit(server: &Server) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.0.id()));
    let limits = limits.expect("the server runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).expect("a limit");
    soft.parse().expect("a number")
}

#[test]
fn what_the_system_refuses_has_memcacheds_exit_status() {
    let directory = tempfile::tempdir().expect("a directory");
    let nowhere = directory.path().join("none/socket");
    let status = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
        command.args(flags);
        output(command).status.code()
    };
    assert_eq!(status(&["-s", nowhere.to_str().expect("UTF-8")]), Some(71));
    assert_eq!(status(&["-c", "none"]), Some(1));
}

/// The descriptors that each event loop of the server waits for, from what the kernel says of it.
fn watched(process: u32) -> Vec<usize> {
    let directory = format!("/proc/{process}/fdinfo");
    let entries = Path::new(&directory).read_dir().expect("the server runs");
    let texts = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    texts.map(|text| text.matches("tfd:").count()).filter(|count| *count > 0).collect()
}

#[test]
fn every_thread_has_its_share_of_the_clients() {
    const THREADS: usize = 4;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-t", "4"]);
    let mut clients = vec![Client::connect(&socket)];
    // The client that checked whether the server is there has gone.
    WAIT.until("one is left", || clients[0].stat("curr_connections") == 1);
    let assert_even = |clients: &mut [Client]| {
        for client in clients.iter_mut() {
            assert!(client.ask("version").starts_with("VERSION"));
        }
        // Where several threads accept at once, one may have one too many.
        let watched = watched(server.0.id());
        let (least, most) = (watched.iter().min(), watched.iter().max());
        let spread = most.expect("loops") - least.expect("loops");
        assert!(watched.len() == THREADS && spread <= 2, "{watched:?}");
    };
    for each in 1..=10 {
        clients.resize_with(each * THREADS, || Client::connect(&socket));
        assert_even(&mut clients);
    }
    // Half of them leave; others come in their place.
    clients.truncate(clients.len() / 2);
    let left = clients.len() as u64;
    WAIT.until("they are gone", || clients[0].stat("curr_connections") == left);
    clients.resize_with(10 * THREADS, || Client::connect(&socket));
    assert_even(&mut clients);
}
