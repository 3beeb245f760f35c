//! Every value is the key's, undamaged, and of the version that may be there. Meanwhile there are
//! writers, readers, deleters, expiry, `cas`, `incr`, `flush_all` and eviction. There are also
//! clients that end in mid-request, hot sets that jump, and items that move.
//!
//! Each writer owns its keys, so that it knows what must come back. `TERRACE_SOAK_SECONDS` makes it
//! last longer.

mod common;

use common::{Client, Server};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

const SECONDS: u64 = 10;
/// Duration of the two longer tests, s. In one the data are larger than `--dram` and nothing may be
/// lost. In the other items are evicted at the limit on memory, and random pages come and go.
const LONG_SECONDS: u64 = 60;
const WRITERS: u64 = 3;
const KEYS: u64 = 2000;
/// Number of keys with which items and what they replaced soon take more than 16 MiB.
const MANY_KEYS: u64 = 8_000;
/// Operations after which other keys are hot.
const JUMP: u64 = 5000;
/// Number of counters of each writer that are added to in place.
const COUNTS: u64 = 40;
/// The first value of a counter, and the addend.
const FIRST: u64 = 1_000_000;
const ADDED: u64 = 7;
/// Time until all items vanish.
const FLUSH_EVERY: Duration = Duration::from_millis(3500);
/// Time for which hot items are brought together, and then left where they are.
const SWITCH_EVERY: Duration = Duration::from_secs(1);
/// Number of connections that stay open with half a request.
const IDLE: usize = 200;
/// Number of clients that may end in mid-request before the server has met them.
const BROKEN_AT_ONCE: u64 = 50;

/// Pseudorandom numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What the owner knows of a key.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    Version(u64),
    /// Gone for certain after a time, and there until a second before, or earlier where the clock
    /// just turned.
    Expires(u64, Instant),
}

fn name(owner: u64, key: u64) -> String {
    format!("owner-{owner}:{key}")
}

/// The value of a key at a version: both, and bytes that follow from them. Most are small, some
/// have allocations of their own.
fn value(name: &str, version: u64) -> Vec<u8> {
    let seed =
        name.bytes().fold(version, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut random = Random(seed);
    let len = if random.below(50) == 0 { random.below(30_000) } else { random.below(1500) };
    let mut value = format!("{name} {version} ").into_bytes();
    // Words that repeat, so that pages compress.
    let words: [u64; 4] = std::array::from_fn(|_| random.next());
    for at in 0..len as usize {
        value.push((words[at / 8 % 4] >> (at % 8 * 8)) as u8);
    }
    value
}

/// The version of what came back, which must be whole.
fn version_of(name: &str, got: &[u8]) -> u64 {
    let mut words = got.splitn(3, |&byte| byte == b' ');
    assert_eq!(words.next(), Some(name.as_bytes()), "another key's value came back");
    let version = std::str::from_utf8(words.next().expect("a version")).expect("digits");
    let version = version.parse().expect("a number");
    assert!(got == value(name, version), "{name}: a damaged value of version {version}");
    version
}

/// A writer with its keys.
struct Writer<'a> {
    client: Client,
    owner: u64,
    random: Random,
    known: Vec<Known>,
    keys: u64,
    version: u64,
    may_lose: bool,
    /// Highest version of each key that was acknowledged, for readers.
    acknowledged: &'a [AtomicU64],
    /// Values of the counters, if none was lost.
    counts: Vec<Option<u64>>,
    /// How often all items have vanished so far, and what this writer knows of it.
    flushes: &'a RwLock<u64>,
    flushed: u64,
}

impl Writer<'_> {
    fn run(&mut self, stop: &AtomicBool) -> u64 {
        let mut operations = 0;
        while !stop.load(Relaxed) {
            let hot = operations / JUMP * 97;
            let spread = if self.random.below(10) < 8 { self.keys / 10 } else { self.keys };
            let key = (hot + self.random.below(spread)) % self.keys;
            let flushes = self.flushes;
            let all = flushes.read().expect("no value is wrong");
            self.forget_flushed(*all);
            match self.random.below(22) {
                0..6 => self.set(key, 0),
                6 => self.set(key, 2),
                7 => self.delete(key),
                8 => self.add(key),
                9 => self.pipelined(key),
                10 => self.compare_and_store(key),
                11 => self.count(key % COUNTS),
                _ => self.check(key),
            }
            operations += 1;
        }
        let all = self.flushes.read().expect("no value is wrong");
        self.forget_flushed(*all);
        (0..self.keys).for_each(|key| self.check(key));
        operations
    }

    fn forget_flushed(&mut self, flushes: u64) {
        if self.flushed != flushes {
            self.flushed = flushes;
            self.known.fill(Known::Nothing);
            self.counts.fill(None);
        }
    }

    /// Stores over the version that is there. Its identifier is good for once.
    fn compare_and_store(&mut self, key: u64) {
        let name = name(self.owner, key);
        let found = self.client.gets(&name);
        self.judge(key, found.as_ref().map(|(got, _)| got.clone()));
        let Some((_, identifier)) = found else { return };
        if !matches!(self.known[key as usize], Known::Version(_)) {
            return;
        }
        for is_first in [true, false] {
            self.version += 1;
            let value = value(&name, self.version);
            self.client.send(format!("cas {name} 0 0 {} {identifier}\r\n", value.len()).as_bytes());
            self.client.send(&value);
            match self.client.ask("").as_str() {
                "STORED" => {
                    assert!(is_first, "{name} was stored over a version that was gone");
                    self.known[key as usize] = Known::Version(self.version);
                    self.acknowledge(key);
                }
                "EXISTS" => assert!(!is_first, "{name} has another identifier"),
                answer => {
                    let lost = answer == "NOT_FOUND" || answer.starts_with("SERVER_ERROR");
                    assert!(self.may_lose && lost, "{name}: {answer}");
                    return;
                }
            }
        }
    }

    /// Adds to a number in place: no addition is lost.
    fn count(&mut self, number: u64) {
        let name = format!("count-{}:{number}", self.owner);
        let place = number as usize;
        self.counts[place] = match self.counts[place] {
            None => {
                let answer = self.client.set(&name, 0, FIRST.to_string().as_bytes());
                assert!(answer == "STORED" || self.may_lose, "{answer}");
                (answer == "STORED").then_some(FIRST)
            }
            Some(known) => {
                let answer = self.client.ask(&format!("incr {name} {ADDED}"));
                let lost = answer == "NOT_FOUND" && self.may_lose;
                assert!(lost || answer == (known + ADDED).to_string(), "{known}: {answer}");
                (!lost).then_some(known + ADDED)
            }
        };
    }

    fn set(&mut self, key: u64, time: i32) {
        let name = name(self.owner, key);
        self.version += 1;
        let answer = self.client.set(&name, time, &value(&name, self.version));
        if self.may_lose && answer.starts_with("SERVER_ERROR out of memory") {
            self.known[key as usize] = Known::Nothing;
            return;
        }
        assert_eq!(answer, "STORED");
        self.known[key as usize] = match time {
            0 => Known::Version(self.version),
            seconds => {
                let gone = Duration::from_secs(seconds as u64 + 1);
                Known::Expires(self.version, Instant::now() + gone)
            }
        };
        self.acknowledge(key);
    }

    fn acknowledge(&self, key: u64) {
        self.acknowledged[(self.owner * self.keys + key) as usize].store(self.version, Relaxed);
    }

    fn delete(&mut self, key: u64) {
        let answer = self.client.ask(&format!("delete {}", name(self.owner, key)));
        let found = answer == "DELETED";
        assert!(found || answer == "NOT_FOUND", "{answer}");
        match self.known[key as usize] {
            Known::Version(_) if !self.may_lose => assert!(found, "a key was gone"),
            Known::Nothing => assert!(!found, "a key came back"),
            _ => {}
        }
        self.known[key as usize] = Known::Nothing;
    }

    fn add(&mut self, key: u64) {
        let name = name(self.owner, key);
        self.version += 1;
        let value = value(&name, self.version);
        self.client.send(format!("add {name} 0 0 {}\r\n", value.len()).as_bytes());
        self.client.send(&value);
        let answer = self.client.ask("");
        match answer.as_str() {
            "STORED" => {
                let was_there = matches!(self.known[key as usize], Known::Version(_));
                assert!(self.may_lose || !was_there, "{name} was stored over");
                self.known[key as usize] = Known::Version(self.version);
                self.acknowledge(key);
            }
            "NOT_STORED" => {
                let gone = matches!(self.known[key as usize], Known::Nothing);
                assert!(!gone, "{name} came back");
            }
            answer => assert!(self.may_lose && answer.starts_with("SERVER_ERROR"), "{answer}"),
        }
    }

    /// Requests of which none waits for another's answer.
    fn pipelined(&mut self, key: u64) {
        let name = name(self.owner, key);
        self.version += 1;
        let value = value(&name, self.version);
        let mut bytes = format!("set {name} 0 0 {} noreply\r\n", value.len()).into_bytes();
        bytes.extend(&value);
        bytes.extend(b"\r\n");
        bytes.extend(format!("get {name}\r\n").repeat(16).bytes());
        self.client.send(&bytes);
        self.known[key as usize] = Known::Version(self.version);
        for _ in 0..16 {
            let got = self.client.value();
            self.judge(key, got);
        }
        self.acknowledge(key);
    }

    fn check(&mut self, key: u64) {
        let got = self.client.get(&name(self.owner, key));
        self.judge(key, got);
    }

    fn judge(&mut self, key: u64, got: Option<Vec<u8>>) {
        let name = name(self.owner, key);
        let got = got.map(|got| version_of(&name, &got));
        match (self.known[key as usize], got) {
            (Known::Nothing, Some(version)) => panic!("{name}: version {version} came back"),
            (Known::Version(known), Some(version)) => assert_eq!(version, known, "{name}"),
            (Known::Version(known), None) => {
                assert!(self.may_lose, "{name}: version {known} is lost");
            }
            (Known::Expires(known, gone), Some(version)) => {
                assert!(version == known && Instant::now() < gone + Duration::from_secs(1));
            }
            (_, None) => {}
        }
    }
}

/// Reads the keys of all writers: versions are whole, and never older than what was acknowledged.
fn read(socket: &Path, acknowledged: &[AtomicU64], stop: &AtomicBool) {
    let mut client = Client::connect(socket);
    let mut random = Random(7);
    while !stop.load(Relaxed) {
        let place = random.below(acknowledged.len() as u64);
        let keys = acknowledged.len() as u64 / WRITERS;
        let name = name(place / keys, place % keys);
        let oldest = acknowledged[place as usize].load(Relaxed);
        if let Some(got) = client.get(&name) {
            let version = version_of(&name, &got);
            assert!(version >= oldest, "{name}: {version} came back after {oldest}");
        }
    }
}

/// Has all items vanish now and then, while no writer is at work.
fn flush(socket: &Path, flushes: &RwLock<u64>, stop: &AtomicBool) {
    let mut client = Client::connect(socket);
    let mut last = Instant::now();
    while !stop.load(Relaxed) {
        thread::sleep(Duration::from_millis(50));
        if last.elapsed() > FLUSH_EVERY {
            let mut all = flushes.write().expect("no value is wrong");
            assert_eq!(client.ask("flush_all"), "OK");
            *all += 1;
            last = Instant::now();
        }
    }
}

/// Has hot items brought together, and then left where they are, in turn. Returns how many moved.
fn switch(socket: &Path, stop: &AtomicBool) -> u64 {
    let mut client = Client::connect(socket);
    let mut last = Instant::now();
    let mut on = true;
    assert_eq!(client.ask("consolidate enable"), "OK");
    while !stop.load(Relaxed) {
        thread::sleep(Duration::from_millis(50));
        if last.elapsed() > SWITCH_EVERY {
            on = !on;
            let word = if on { "enable" } else { "disable" };
            assert_eq!(client.ask(&format!("consolidate {word}")), "OK");
            last = Instant::now();
        }
    }
    let figures = client.stats("terrace");
    let moved = figures.iter().find(|(name, _)| name == "consolidate:moved_items");
    moved.expect("it is told").1
}

/// Ends in the midst of requests of all kinds. The server must accept all of these clients: it
/// would else do little but refuse them, and some of those that stay with them.
fn break_off(socket: &Path, stop: &AtomicBool) {
    let mut client = Client::connect(socket);
    let mut random = Random(9);
    for broken in 1.. {
        if stop.load(Relaxed) {
            break;
        }
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        let name = name(random.below(WRITERS), random.below(KEYS));
        let request = match random.below(4) {
            0 => format!("set {name} 0 0 5000\r\nhalf of a value"),
            1 => format!("get {name}\r\n").repeat(500),
            2 => format!("ms {name} S5000\r\nhalf"),
            _ => format!("get {name} {name} {name}"),
        };
        // The server may be quicker to close.
        let _ = stream.write_all(request.as_bytes());
        drop(stream);
        if broken % BROKEN_AT_ONCE == 0 {
            Wait::within(Duration::from_secs(20)).until("the server is done with them", || {
                let open = client.stat("curr_connections") as usize;
                client.stat("total_connections") >= broken && open < IDLE + 100
            });
        }
    }
}

/// Evicts random pages all the time.
const STRESS: (&str, &str) = ("TERRACE_STRESS", "full");
/// Has 30 of 1,000 kernel calls that move pages fail.
const FAILING: (&str, &str) = ("TERRACE_INJECT", "1:30");

/// Runs all of them at once on a server with these flags and variables.
fn torture(flags: &[&str], keys: u64, usual: u64, environment: &[(&str, &str)], may_lose: bool) {
    let seconds = std::env::var("TERRACE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let scratch = tempfile::tempdir().expect("a directory");
    let socket = scratch.path().join("socket");
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace-kv"));
    command.env("TERRACE_KV_MOVES", "often").envs(environment.iter().copied());
    let mut server = Server::start_by(command, &socket, flags);
    let idle: Vec<UnixStream> = (0..IDLE)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("the server listens");
            stream.write_all(b"set half 0 0 100\r\n").expect("the server reads");
            stream
        })
        .collect();
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..WRITERS * keys).map(|_| AtomicU64::new(0)).collect();
    let flushes = RwLock::new(0);
    let (operations, moved): (u64, u64) = thread::scope(|scope| {
        let (stop, socket, acknowledged) = (&stop, &socket, &acknowledged);
        let flushes = &flushes;
        let writers: Vec<_> = (0..WRITERS)
            .map(|owner| {
                scope.spawn(move || {
                    let mut writer = Writer {
                        client: Client::connect(socket),
                        owner,
                        random: Random(owner),
                        known: vec![Known::Nothing; keys as usize],
                        keys,
                        version: 0,
                        may_lose,
                        acknowledged,
                        counts: vec![None; COUNTS as usize],
                        flushes,
                        flushed: 0,
                    };
                    writer.run(stop)
                })
            })
            .collect();
        let reader = scope.spawn(move || read(socket, acknowledged, stop));
        let breaker = scope.spawn(move || break_off(socket, stop));
        let flusher = scope.spawn(move || flush(socket, flushes, stop));
        let switcher = scope.spawn(move || switch(socket, stop));
        let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(usual));
        let others = || {
            [&reader, &breaker, &flusher].iter().any(|thread| thread.is_finished())
                || switcher.is_finished()
        };
        while Instant::now() < end && !others() && !writers.iter().any(|one| one.is_finished()) {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Relaxed);
        let operations =
            writers.into_iter().map(|one| one.join().expect("no value is wrong")).sum();
        reader.join().expect("no value is wrong");
        breaker.join().expect("the server listens");
        flusher.join().expect("the server listens");
        (operations, switcher.join().expect("the server listens"))
    });
    assert!(operations > 1000, "{operations} operations");
    println!("{operations} operations, {moved} items moved");
    let refused = Client::connect(&socket).stat("rejected_connections");
    assert_eq!(refused, 0, "the server serves every client");
    let has_tiers = flags.contains(&"--dram");
    assert!(moved > 0 || has_tiers, "hot items were brought together");
    assert!(server.0.try_wait().expect("it is our child").is_none(), "the server ended");
    if has_tiers {
        let figures = Client::connect(&socket).stats("terrace");
        let moved = |name: &str| -> u64 {
            figures.iter().filter(|(one, _)| one.ends_with(name)).map(|(_, value)| value).sum()
        };
        if figures.iter().any(|(name, value)| name == "active" && *value == 1) {
            assert!(moved(":faults") > 100, "pages left and came back: {figures:?}");
        } else {
            skip("pages cannot be moved here, so that all stayed in DRAM");
        }
    }
    drop(idle);
}

/// Only the size of the data makes pages leave. By its name this test begins first, as it is long.
#[test]
fn above_dram() {
    torture(&["-m", "512", "-t", "3", "--dram", "16M"], MANY_KEYS, LONG_SECONDS, &[], false);
}

#[test]
fn in_dram() {
    torture(&["-m", "256", "-t", "3"], KEYS, SECONDS, &[], false);
}

#[test]
fn where_items_are_evicted() {
    torture(&["-m", "4", "-t", "3", "-I", "64k"], KEYS, SECONDS, &[], true);
}

#[test]
fn where_pages_come_and_go() {
    torture(&["-m", "256", "-t", "3", "--dram", "16M"], KEYS, SECONDS, &[STRESS], false);
}

#[test]
fn where_pages_come_and_go_and_items_are_evicted() {
    let flags = ["-m", "4", "-t", "3", "-I", "64k", "--dram", "16M"];
    torture(&flags, KEYS, LONG_SECONDS, &[STRESS], true);
}

#[test]
fn where_kernel_calls_fail() {
    let flags = ["-m", "256", "-t", "3", "--dram", "16M"];
    torture(&flags, KEYS, SECONDS, &[STRESS, FAILING], false);
}

#[test]
fn where_kernel_calls_fail_and_items_are_evicted() {
    let flags = ["-m", "4", "-t", "3", "-I", "64k", "--dram", "16M"];
    torture(&flags, KEYS, SECONDS, &[STRESS, FAILING], true);
}
