//! `terrace load kv` loads real servers, and says when one answers what it should not: an item that
//! is missing, damaged, stale, or another's.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tempfile::TempDir;
use terrace_testkit::process;
use terrace_testkit::wait::Wait;
use terrace_tests::{Finished, Program, Running, Terrace, is_installed, skip, terrace_command};

const START_WITHIN: Duration = Duration::from_secs(60);

/// A server under load, and its address.
struct Server {
    running: Running,
    protocol: &'static str,
    target: String,
    _directory: TempDir,
}

impl Server {
    /// Starts a server on a Unix socket. `None`, with a remark, where it is not installed.
    fn start(name: &'static str, terrace: Option<Terrace>) -> Option<Server> {
        let directory = tempfile::Builder::new()
            .prefix("terrace-test-")
            .tempdir()
            .expect("a temporary directory can be made");
        // memcached makes its socket after it has given up root.
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("it is ours");
        let socket = directory.path().join("socket");
        let program = match name {
            "redis" => Program::new("redis-server")
                .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
                .arg(&socket),
            _ => Program::new("memcached")
                .args(["-u", "nobody", "-t", "1", "-m", "256", "-s"])
                .arg(&socket),
        };
        let target = socket.to_str().expect("temporary names are UTF-8").to_owned();
        let target = || UnixStream::connect(&socket).is_ok().then(|| target.clone());
        Self::await_start(
            name,
            program.current_dir(directory.path()).under(terrace),
            target,
            directory,
        )
    }

    /// Starts memcached on a port of the loopback, which it chooses itself. A port that was free a
    /// moment ago may be in use by now.
    fn start_on_a_port() -> Option<Server> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let ports = directory.path().join("ports");
        let program = Program::new("memcached").args([
            "-u",
            "root",
            "-t",
            "1",
            "-U",
            "0",
            "-l",
            "127.0.0.1",
            "-p",
            "-1",
        ]);
        let target = || {
            let port: u16 = fs::read_to_string(&ports)
                .ok()?
                .lines()
                .find_map(|line| line.strip_prefix("TCP INET: "))?
                .parse()
                .ok()?;
            Some(format!("127.0.0.1:{port}")).filter(|target| TcpStream::connect(target).is_ok())
        };
        Self::await_start(
            "memcached",
            program.env("MEMCACHED_PORT_FILENAME", &ports),
            target,
            directory,
        )
    }

    /// Waits for the server's start: `target` gives the address once the server is there.
    fn await_start(
        protocol: &'static str,
        program: Program,
        target: impl Fn() -> Option<String>,
        directory: TempDir,
    ) -> Option<Server> {
        let binary = if protocol == "redis" { "redis-server" } else { "memcached" };
        if !is_installed(binary) {
            skip(binary, &format!("it is not installed: apt-get install {binary}"));
            return None;
        }
        let mut running = program.start();
        let target = Wait::within(START_WITHIN).until_some(&format!("{binary} to start"), || {
            let target = target();
            assert!(target.is_some() || running.is_running(), "{binary} ended at its start");
            target
        });
        Some(Server { running, protocol, target, _directory: directory })
    }

    fn load(&self, arguments: &[&str]) -> Finished {
        load(&self.target, self.protocol, arguments)
    }

    /// Sends text to the server, and waits for an answer.
    fn say(&self, text: &str) {
        let mut stream = UnixStream::connect(&self.target).expect("the server is there");
        stream.set_read_timeout(Some(START_WITHIN)).expect("a time limit can be set");
        stream.write_all(text.as_bytes()).expect("the server reads");
        assert!(stream.read(&mut [0; 64]).expect("the server answers") > 0);
    }

    /// How many GETs memcached has answered.
    fn gets(&self) -> u64 {
        let mut stream = UnixStream::connect(&self.target).expect("the server is there");
        stream.set_read_timeout(Some(START_WITHIN)).expect("a time limit can be set");
        stream.write_all(b"stats\r\nquit\r\n").expect("the server reads");
        let mut told = String::new();
        stream.read_to_string(&mut told).expect("the server answers");
        let gets = told.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
        gets.expect("memcached counts them").trim().parse().expect("a number")
    }
}

fn load(target: &str, protocol: &str, arguments: &[&str]) -> Finished {
    let common = ["load", "kv", target, "--protocol", protocol, "--items", "2000", "--json"];
    Program::new(terrace_command()).args(common).args(arguments).run()
}

#[track_caller]
fn figures(finished: &Finished) -> serde_json::Value {
    serde_json::from_slice(&finished.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", finished.account("printed no JSON")))
}

#[test]
fn the_protocol_is_found_by_asking() {
    for name in ["memcached", "redis"] {
        let Some(server) = Server::start(name, None) else { return };
        let finished = Program::new(terrace_command())
            .args(["load", "kv", server.target.as_str(), "--items", "2000", "--json"])
            .args(["--operations", "1000", "--warm-up", "0"])
            .run();
        let said = finished.account("was not loaded");
        assert_eq!(finished.status.code(), Some(0), "{name}: {said}");
        let figures = figures(&finished);
        assert_eq!(figures["protocol"], name, "{figures:#}");
        assert_eq!(figures["run"]["operations"], 1000, "{figures:#}");
    }
}

/// The kernel makes the connection, and no answer ever comes.
#[test]
fn a_listener_that_never_speaks_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let target = listener.local_addr().expect("it has an address").to_string();
    let finished = Program::new(terrace_command())
        .args(["load", "kv", target.as_str(), "--timeout", "0.5"])
        .run();
    let said = finished.account("was not refused");
    assert_eq!(finished.status.code(), Some(125), "{said}");
    for part in [target.as_str(), "no answer came within 500ms", "say it with --protocol"] {
        assert!(finished.stderr.contains(part), "{part}: {said}");
    }
    // The flag's old name, kept for one release.
    let finished = Program::new(terrace_command())
        .args(["load", "kv", target.as_str(), "--patience", "0.5"])
        .run();
    let said = finished.account("was not refused");
    assert!(finished.stderr.contains("no answer came within 500ms"), "{said}");
}

/// In a closed loop two requests would be late, one on each connection. In an open loop each
/// request is late that was due while the server stood still: here a tenth of all.
#[test]
fn an_open_loop_charges_a_server_that_stands_still() {
    const STILL: Duration = Duration::from_millis(400);
    const AT_LEAST_US: f64 = 300_000.0;
    let Some(server) = Server::start("memcached", None) else { return };
    assert_eq!(server.load(&["--phase", "fill"]).status.code(), Some(0));
    assert_eq!(server.gets(), 0, "to fill is to store");
    let mut load = Program::new(terrace_command())
        .args(["load", "kv", server.target.as_str(), "--protocol", "memcached", "--phase", "run"])
        .args(["--items", "2000", "--connections", "2", "--rate", "2000", "--operations", "8000"])
        .args(["--warm-up", "0", "--json"])
        .start();
    while server.gets() == 0 {
        assert!(load.is_running(), "the load ended before it began");
        std::thread::sleep(Duration::from_millis(5));
    }
    let signal = |signal| {
        assert!(process::signal(server.running.pid(), signal));
    };
    signal(libc::SIGSTOP);
    std::thread::sleep(STILL);
    signal(libc::SIGCONT);
    let finished = load.wait();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.account("found something wrong"));
    let figures = figures(&finished);
    assert_eq!(figures["run"]["operations"], 8000, "{figures:#}");
    for time in ["p99", "p999", "max"] {
        let us = figures["run"]["get_us"][time].as_f64();
        assert!(us >= Some(AT_LEAST_US), "{time}: {figures:#}");
    }
}

/// Every operation is answered right, and counted.
#[track_caller]
fn is_loaded_well(server: &Server) {
    for (connections, depth, get_share) in [("1", "1", "100"), ("8", "16", "50"), ("3", "1", "90")]
    {
        let finished = server.load(&[
            "--connections",
            connections,
            "--depth",
            depth,
            "--get-share",
            get_share,
            "--operations",
            "5000",
            "--warm-up",
            "0.1",
        ]);
        assert_eq!(
            finished.status.code(),
            Some(0),
            "{}",
            finished.account("found something wrong")
        );
        let figures = figures(&finished);
        let number = |path: &str| figures.pointer(path).and_then(serde_json::Value::as_u64);
        assert_eq!(number("/fill/sets"), Some(2000), "{figures:#}");
        assert_eq!(number("/run/operations"), Some(5000), "{figures:#}");
        assert_eq!(
            number("/run/hits").zip(number("/run/sets")).map(|(hits, sets)| hits + sets),
            Some(5000),
            "{figures:#}"
        );
        assert_eq!(number("/run/errors").zip(number("/run/misses")), Some((0, 0)), "{figures:#}");
        assert_eq!(number("/run/sets") == Some(0), get_share == "100", "{figures:#}");
        assert!(
            figures.pointer("/run/get_us/p999").and_then(serde_json::Value::as_f64) > Some(0.0),
            "{figures:#}"
        );
    }
}

#[test]
fn servers_are_loaded_through_sockets() {
    for name in ["memcached", "redis"] {
        let Some(server) = Server::start(name, None) else { return };
        is_loaded_well(&server);
    }
}

#[test]
fn a_server_is_loaded_through_the_loopback() {
    let Some(server) = Server::start_on_a_port() else { return };
    is_loaded_well(&server);
}

#[test]
fn servers_under_terrace_answer_right() {
    for name in ["memcached", "redis"] {
        let Some(server) = Server::start(name, Some(Terrace::stressed())) else { return };
        is_loaded_well(&server);
        server.running.terminate();
        server.running.wait().report().expect_managed();
    }
}

/// What was written before is recognised by later runs, and what they write by the next.
#[test]
fn a_filled_server_is_loaded_again() {
    for name in ["memcached", "redis"] {
        let Some(server) = Server::start(name, None) else { return };
        assert_eq!(server.load(&["--phase", "fill"]).status.code(), Some(0));
        for _ in 0..2 {
            let finished = server.load(&[
                "--phase",
                "run",
                "--get-share",
                "50",
                "--operations",
                "3000",
                "--warm-up",
                "0",
            ]);
            assert_eq!(
                finished.status.code(),
                Some(0),
                "{}",
                finished.account("found something wrong")
            );
        }
    }
}

/// What is popular is what was written first, and all that was asked for is counted.
#[test]
fn operations_are_counted_by_item() {
    let Some(server) = Server::start("redis", None) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let arguments = ["--operations", "30000", "--warm-up", "0", "--clustered", "--truth"];
    let finished = server.load(&[&arguments[..], &[file.path().to_str().unwrap()]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let truth: serde_json::Value = serde_json::from_reader(file).unwrap();
    let counts: Vec<u64> = truth["operations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(serde_json::Value::as_u64)
        .collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (2000, 30_000));
    // The first ten have more than a third of all by Zipf's law.
    assert!(
        counts[..10].iter().sum::<u64>() > 9_000 && counts[1000..].iter().sum::<u64>() < 4_000,
        "{:?}",
        &counts[..10]
    );
    let finished = server.load(&["--truth", "/nonexistent/x"]);
    assert!(
        finished.status.code() == Some(125) && finished.stderr.contains("/nonexistent/x"),
        "{}",
        finished.stderr
    );
    // A file that is cut off says nothing: the disk is full.
    let finished = server.load(&["--operations", "100", "--warm-up", "0", "--truth", "/dev/full"]);
    assert!(
        finished.status.code() == Some(125) && finished.stderr.contains("cannot write the truth"),
        "{}",
        finished.stderr
    );
}

#[track_caller]
fn finds(server: &Server, arguments: &[&str], what: &str) {
    let finished = server.load(
        &[
            &["--phase", "run", "--operations", "20000", "--theta", "0", "--warm-up", "0"],
            arguments,
        ]
        .concat(),
    );
    assert_eq!(finished.status.code(), Some(1), "{}", finished.account("found nothing wrong"));
    assert!(finished.stderr.contains(what), "{}", finished.account("said something else"));
    assert!(
        figures(&finished)["run"]["first_trouble"]
            .as_str()
            .is_some_and(|trouble| trouble.contains(what))
    );
}

#[test]
fn wrong_and_missing_values_are_found() {
    for (name, forget, damage) in [
        ("memcached", "delete key-000000000007\r\n", "set key-000000000007 0 0 1000\r\n"),
        (
            "redis",
            "*2\r\n$3\r\nDEL\r\n$16\r\nkey-000000000007\r\n",
            "*3\r\n$3\r\nSET\r\n$16\r\nkey-000000000007\r\n$1000\r\n",
        ),
    ] {
        let Some(server) = Server::start(name, None) else { return };
        finds(&server, &[], "nothing came back");
        assert_eq!(server.load(&["--phase", "fill"]).status.code(), Some(0));
        server.say(forget);
        finds(&server, &[], "key-000000000007: nothing came back");
        server.say(&format!("{damage}{}\r\n", "x".repeat(1000)));
        finds(&server, &[], "key-000000000007: another key's value came back");
        server.say(&format!("{damage}{{\"k\":\"key-000000000007\"{}\r\n", "x".repeat(977)));
        finds(&server, &[], "key-000000000007: a damaged value came back");
        finds(&server, &["--value-bytes", "1001"], "a value of 1000 bytes came back");
        assert_eq!(
            server
                .load(&["--phase", "run", "--operations", "9", "--value-bytes", "999"])
                .status
                .code(),
            Some(125)
        );
    }
}

#[test]
fn a_server_that_drops_items_is_found_out() {
    let Some(server) = Server::start("memcached", None) else { return };
    let finished = server.load(&["--value-bytes", "400000", "--operations", "1000"]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.account("found nothing wrong"));
    assert!(
        finished.stderr.contains("Give it more memory"),
        "{}",
        finished.account("said something else")
    );
}

/// Lengths, popularity, YCSB's workloads, and threads: whatever is asked for is answered right.
#[test]
fn loads_of_every_kind_are_answered_right() {
    let some_threads = ["--threads", "3", "--connections", "7"];
    let kinds: &[&[&str]] = &[
        &["--value-bytes", "100..4000", "--incompressible", "0..100", "--get-share", "50"],
        &["--value-bytes", "100:70,4000:30", "--incompressible", "0:1,100:1", "--depth", "8"],
        &["--keys", "gaussian", "--sigma", "5", "--get-share", "50"],
        &["--keys", "gaussian", "--clustered"],
        &["--keys", "uniform", "--jump-every", "500"],
        &["--keys", "latest", "--get-share", "80"],
        &["--workload", "a"],
        &["--workload", "b"],
        &["--workload", "c"],
        &["--workload", "d"],
        &["--workload", "f"],
        &["--rate", "20000", "--get-share", "50"],
    ];
    for (name, threads) in [("memcached", &some_threads[..]), ("redis", &[])] {
        let Some(server) = Server::start(name, None) else { return };
        for kind in kinds {
            let common = ["--operations", "3001", "--warm-up", "0.05"];
            let finished = server.load(&[&common, *kind, threads].concat());
            let said = finished.account("found something wrong");
            assert_eq!(finished.status.code(), Some(0), "{name} {kind:?} {said}");
            let operations = figures(&finished)["run"]["operations"].as_u64();
            // What F reads and then writes counts twice, and D may read what is on its way.
            let counted = match kind {
                ["--workload", "f"] => operations > Some(3001),
                ["--workload", "d"] => operations > Some(2900),
                _ => operations == Some(3001),
            };
            assert!(counted, "{name} {kind:?}: {operations:?}");
            assert_eq!(finished.stderr, "", "progress is for terminals");
        }
    }
}

/// With all three threads at work on the same few items, none sees what another overwrote.
#[test]
fn what_threads_write_is_known_to_all_of_them() {
    let Some(server) = Server::start("memcached", None) else { return };
    let arguments = ["--threads", "3", "--connections", "3", "--get-share", "50"];
    let popular = ["--theta", "3", "--operations", "30000", "--warm-up", "0"];
    let finished = server.load(&[&arguments[..], &popular].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.account("found something wrong"));
    // What a thread overwrote is old for all: it is put back, and found.
    let damage = "set key-000000000007 0 0 1000\r\n";
    server.say(&format!("{damage}{}\r\n", "x".repeat(1000)));
    finds(&server, &["--threads", "2", "--connections", "2"], "another key's value came back");
}

#[test]
fn progress_is_told_on_a_terminal() {
    let Some(server) = Server::start("memcached", None) else { return };
    let script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let load = ["load", "kv", &server.target, "--items", "2000", "--warm-up", "0"];
    let finished = Program::new("python3")
        .args(["-c", script])
        .arg(terrace_command())
        .args(load)
        .args(["--seconds", "2.5", "--json"])
        .run();
    let told = String::from_utf8_lossy(&finished.stdout);
    let lines = told.lines().filter(|line| line.ends_with(" ops/s  0 wrong")).count();
    assert!((2..=3).contains(&lines), "{told}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, says) in [
        (&["--threads", "2"][..], "each thread needs a connection"),
        (&["--value-bytes", "100..x"], "with weights"),
        (&["--value-bytes", "63"], "from 64 to 1000000"),
        (&["--incompressible", "101"], "from 0 to 100"),
        (&["--keys", "gaussian", "--sigma", "0"], "from 0.0001 to 100"),
        (&["--keys", "latest", "--jump-every", "9"], "leave one of them out"),
    ] {
        let finished = load("/no/such/socket", "redis", arguments);
        assert_eq!(finished.status.code(), Some(125), "{arguments:?}");
        assert!(finished.stderr.contains(says), "{arguments:?}: {}", finished.stderr);
    }
    let finished = load("127.0.0.1:99999", "redis", &[]);
    assert!(finished.stderr.contains("from 1 to 65535"), "{}", finished.stderr);
}

#[test]
fn what_is_no_server_is_said() {
    let finished = load("/no/such/socket", "redis", &[]);
    assert_eq!(finished.status.code(), Some(125));
    assert!(finished.stderr.contains("is a server listening there?"), "{}", finished.stderr);
    let Some(server) = Server::start("memcached", None) else { return };
    let finished = load(&server.target, "redis", &[]);
    assert_eq!(finished.status.code(), Some(125));
    assert!(finished.stderr.contains("is --protocol right?"), "{}", finished.stderr);
    let finished = server.load(&["--theta", "-1"]);
    assert_eq!(finished.status.code(), Some(125), "{}", finished.account("took a bad argument"));
}
