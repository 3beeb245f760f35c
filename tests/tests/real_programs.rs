//! Real programs do under Terrace exactly what they do alone. They run far below the least memory
//! that they can be held in, and with random pages evicted all the time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use terrace_testkit::random::Xorshift;
use terrace_testkit::wait::Wait;
use terrace_tests::{Finished, Program, Running, Terrace, is_installed, machine, skip};

/// How long one program may take; a server's client waits half as long for an answer.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// Commands on their way to a server at once.
const PIPELINED: usize = 200;

/// Ways to put a program to the test: a budget that it cannot be held in, and random evictions. Its
/// objects are grouped by size in one and by context in the other.
fn hardships(dram: &str) -> [Terrace; 2] {
    [Terrace::within(dram), Terrace::stressed().and("--allocator=context")]
}

/// Whether a Debian package's program is there; says so if not.
fn is_there(program: &str, package: &str) -> bool {
    let installed = is_installed(program);
    if !installed {
        skip(program, &format!("it is not installed: apt-get install {package}"));
    }
    installed
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("terrace-test-")
        .tempdir()
        .expect("a temporary directory can be made")
}

/// What a key holds at a version: about 1 KB that look like JSON and compress like it.
fn document(key: usize, version: u32) -> Vec<u8> {
    const WORDS: [&[u8]; 8] = [
        b"amber ",
        b"basalt ",
        b"cedar ",
        b"delta ",
        b"ember ",
        b"fjord ",
        b"granite ",
        b"harbour ",
    ];
    let mut text =
        format!("{{\"id\":{key},\"version\":{version},\"name\":\"user-{key:08}\",\"body\":\"")
            .into_bytes();
    let seed = (key as u64) << 20 | u64::from(version);
    let mut random = Xorshift::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..20 {
        random.draw();
    }
    let length = 600 + random.below(800) as usize;
    while text.len() < length {
        let mut bits = random.draw();
        for _ in 0..16 {
            text.extend_from_slice(WORDS[(bits & 7) as usize]);
            bits >>= 3;
        }
    }
    text.extend_from_slice(b"\"}");
    text
}

/// Connects to a server that was just started.
fn connect(server: &mut Running, socket: &Path) -> UnixStream {
    let stream = Wait::within(TIME_LIMIT / 4).until_ok("a connection to the server", || {
        let made = UnixStream::connect(socket);
        assert!(made.is_ok() || server.is_running(), "the server ended at its start: {made:?}");
        made
    });
    stream.set_read_timeout(Some(TIME_LIMIT / 2)).expect("a time limit can be set");
    stream.set_write_timeout(Some(TIME_LIMIT / 2)).expect("a time limit can be set");
    stream
}

/// The system's CPython 3, since a version manager's would be a script. `None`, with a remark, if
/// there is none.
fn python() -> Option<&'static str> {
    let python = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(|path| Path::new(path).is_file() || is_installed(path));
    if python.is_none() {
        skip("python3", "it is not installed: apt-get install python3");
    }
    python
}

#[test]
fn python_builds_and_verifies_an_index() {
    let _machine = machine();
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/documents.py");
    let run = |terrace: Option<Terrace>| -> Finished {
        Program::new(python)
            .arg("-S")
            .arg(&script)
            .env("PYTHONHASHSEED", "1")
            .under(terrace)
            .time_limit(TIME_LIMIT)
            .succeed()
    };
    let alone = run(None);
    let spectrum = Terrace::stressed().and("--tiers").and("tierscape-spectrum");
    for terrace in hardships("16M").into_iter().chain([spectrum]) {
        let under = run(Some(terrace.clone()));
        assert!(
            under.stdout == alone.stdout,
            "{terrace:?}: {}",
            under.account("printed something else")
        );
        under.report().expect_moves(5_000, 5_000);
    }
}

/// Processes that are forked while others work, and processes that are spawned, all with data of
/// their own.
#[test]
fn a_pool_of_python_processes_finds_its_data() {
    let _machine = machine();
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/pool.py");
    for method in ["fork", "spawn"] {
        let run = |terrace: Option<Terrace>| -> Finished {
            Program::new(python)
                .arg("-S")
                .arg(&script)
                .arg(method)
                .under(terrace)
                .time_limit(TIME_LIMIT)
                .succeed()
        };
        let alone = run(None);
        let under = run(Some(Terrace::stressed()));
        assert!(under.stdout == alone.stdout, "{}", under.account("printed something else"));
        under.report().expect_moves_in(
            Path::new(python).file_name().and_then(|name| name.to_str()).unwrap_or(""),
            5_000,
            1_000,
        );
    }
}

/// The output is the same alone and under Terrace, with at least `moves` pages evicted under
/// stress.
fn does_the_same(program: impl Fn() -> Program, in_process: &str, moves: u64) {
    let alone = program().time_limit(TIME_LIMIT).succeed();
    for terrace in hardships("32M") {
        let under = program().under(terrace.clone()).time_limit(TIME_LIMIT).succeed();
        assert!(
            under.stdout == alone.stdout,
            "{terrace:?}: {}",
            under.account("printed something else")
        );
        under.report().expect_managed();
        if terrace == Terrace::stressed() {
            under.report().expect_moves_in(in_process, moves, 0);
        }
    }
}

/// Hashes, sorting, regular expressions, and children that it reads from.
#[test]
fn perl_counts_its_words() {
    let _machine = machine();
    if !is_there("perl", "perl") {
        return;
    }
    let script = r#"
        my %count; my @lines = map { join " ", map { "w" . ($_ * $_ % 9973) } $_ .. $_ + 15 } 1 .. 40000;
        for (@lines) { $count{$_}++ for /\w+/g }
        my $sum = 0; for my $word (sort keys %count) { $sum = ($sum * 31 + $count{$word} * length $word) % 1000003 }
        for my $child (1 .. 4) {
            open my $from, "-|" or do { my $own = 0; $own += length for @lines; print "$child $own ", scalar(keys %count), "\n"; exit };
            print <$from>; close $from or die "a child failed";
        }
        print "$sum\n";
    "#;
    does_the_same(|| Program::new("perl").args(["-e", script]), "perl", 1_000);
}

/// A repository is made, packed, checked and cloned: git is many small processes.
#[test]
fn git_packs_and_checks_a_repository() {
    let _machine = machine();
    if !is_there("git", "git") {
        return;
    }
    let script = r#"
        set -e; directory=$(mktemp -d); trap 'rm -rf "$directory"' EXIT; cd "$directory"
        export GIT_AUTHOR_DATE='@1 +0000' GIT_COMMITTER_DATE='@1 +0000' GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main one; cd one
        for commit in 1 2 3; do
            seq $commit 3 90000 | split -l 150 - file
            git add .; git commit -q -m "$commit"
        done
        git gc -q --aggressive; git fsck --strict --no-progress; cd ..
        git clone -q one two; cd two; git rev-parse HEAD; git log --stat | sha256sum; git status --short
    "#;
    does_the_same(|| Program::new("sh").args(["-c", script]), "git", 1_000);
}

/// V8's heap, buffers outside of it, worker threads and a child.
#[test]
fn node_keeps_its_objects() {
    let _machine = machine();
    if !is_there("node", "nodejs") {
        return;
    }
    let script = r#"
        const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
        const crypto = require('crypto');
        const work = from => {
            const hash = crypto.createHash('sha256'), objects = [];
            for (let n = from; n < from + 30000; n++) objects.push({ n, text: 'object ' + n * 7919, list: [n, n + 1, { deep: n }] });
            const buffers = Array.from({ length: 200 }, (_, n) => Buffer.alloc(20000, n + from));
            for (const object of objects) hash.update(JSON.stringify(object));
            for (const buffer of buffers) hash.update(buffer);
            return hash.digest('hex');
        };
        let left = 3; const found = [];
        for (let n = 0; n < left; n++)
            new Worker(`const {parentPort, workerData} = require('worker_threads'); const crypto = require('crypto');
                parentPort.postMessage([workerData, (${work})(workerData)])`, { eval: true, workerData: n * 1000 })
                .on('message', answer => { found.push(answer.join(' ')); })
                .on('exit', () => { if (--left === 0) {
                    console.log(found.sort().join('\n'), work(7));
                    console.log(require('child_process').execFileSync('echo', ['from a child']).toString());
                } });
    "#;
    does_the_same(|| Program::new("node").args(["-e", script]), "node", 1_000);
}

/// The JVM with its reserved heap, compiler and collector threads: makes a key, keeps it, finds it.
#[test]
fn java_makes_and_finds_a_key() {
    let _machine = machine();
    if !is_there("java", "default-jre-headless") || !is_there("keytool", "default-jre-headless") {
        return;
    }
    let script = r#"
        set -e; directory=$(mktemp -d); trap 'rm -rf "$directory"' EXIT; cd "$directory"
        keytool -genkeypair -alias one -keyalg RSA -keysize 2048 -dname CN=one -keystore store -storepass secret 2>/dev/null
        keytool -list -keystore store -storepass secret 2>/dev/null | grep -c PrivateKeyEntry
        java -version 2>/dev/null && echo version
    "#;
    does_the_same(|| Program::new("sh").args(["-c", script]), "keytool", 1_000);
}

/// A table with an index in memory: filled, changed, queried, checked.
#[test]
fn sqlite_answers_the_same() {
    let _machine = machine();
    if !is_there("sqlite3", "sqlite3") {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/orders.sql");
    let script = fs::read(&script).expect("the script can be read");
    let run = |terrace: Option<Terrace>| -> Finished {
        let program =
            Program::new("sqlite3").args(["-batch", "-bail", ":memory:"]).input(script.clone());
        program.under(terrace).time_limit(TIME_LIMIT).succeed()
    };
    let alone = run(None);
    assert!(alone.stdout.ends_with(b"ok\n"), "{}", alone.account("did not find its data in order"));
    for terrace in hardships("12M") {
        let under = run(Some(terrace.clone()));
        assert!(
            under.stdout == alone.stdout,
            "{terrace:?}: {}",
            under.account("printed something else")
        );
        under.report().expect_moves(5_000, 5_000);
    }
}

/// A large generated file, optimised and with debugging information; the compiler proper is a child
/// of the one that is started.
#[test]
fn gcc_makes_the_same_object() {
    let _machine = machine();
    if !is_there("gcc", "gcc") {
        return;
    }
    let directory = directory();
    fs::write(directory.path().join("large.c"), large_c_file()).expect("the source can be written");
    let compile = |terrace: Option<Terrace>| {
        let finished = Program::new("gcc")
            .args(["-O2", "-g", "-c", "-o", "large.o", "large.c"])
            .current_dir(directory.path())
            .under(terrace)
            .time_limit(TIME_LIMIT)
            .succeed();
        let object = directory.path().join("large.o");
        let bytes = fs::read(&object).expect("gcc wrote an object");
        fs::remove_file(&object).expect("the object can be removed");
        (finished, bytes)
    };
    let (_, alone) = compile(None);
    for terrace in hardships("12M") {
        let (finished, under) = compile(Some(terrace.clone()));
        assert!(under == alone, "{terrace:?}: {}", finished.account("made another object"));
        finished.report().expect_moves_in("cc1", 5_000, 5_000);
    }
}

/// Thousands of lines of C: functions that call each other, and a table.
fn large_c_file() -> String {
    const FUNCTIONS: usize = 70;
    const ROWS: usize = 2_500;
    let mut text = String::from(
        "struct node { struct node *next; long key; int weights[8]; };\nextern long outside(long, const char *);\n",
    );
    let mut random = Xorshift::new(7);
    for n in 0..FUNCTIONS {
        let mut constant = || 1 + random.below(1000);
        let callee = n.saturating_sub(constant() as usize % 50);
        let (a, b, c, d) = (constant(), constant(), constant(), constant());
        let call = if n == 0 {
            String::from("a")
        } else {
            format!("function_{}(node->next, a ^ {d}, b)", callee.min(n - 1))
        };
        write!(
            text,
            "long function_{n}(struct node *node, long a, long b)
{{
    long sum = {a};
    for (int i = 0; i < 8; i++) {{
        node->weights[i] += (int)(a * {b} + i);
        if (node->weights[i] % {c} == {d} % {c})
            sum += outside(a - i, \"function_{n} at {a}\");
        else
            sum ^= node->key << (i & 7);
    }}
    switch ((a + b) % 5) {{
    case 0: sum += {call}; break;
    case 1: sum -= node->next ? node->next->key : {a}; break;
    case 2: while (b-- > {b}) sum = sum * 31 + node->weights[b & 7]; break;
    default: sum += a / (b | 1);
    }}
    return sum;
}}
"
        )
        .expect("writing to a string works");
    }
    text += "const struct { const char *name; long (*function)(struct node *, long, long); double share; } table[] = {\n";
    for row in 0..ROWS {
        let (function, share) = (random.below(FUNCTIONS as u64), random.below(1000));
        writeln!(
            text,
            "    {{\"row {row}, share {share}\", function_{function}, {share} / 1000.0}},"
        )
        .expect("writing to a string works");
    }
    text + "};\n"
}

/// All keys with their last version hold what was written; a snapshot taken amid writes holds all
/// keys as they were when it began.
#[test]
fn redis_keeps_its_data_and_saves_a_true_snapshot() {
    let _machine = machine();
    if !is_there("redis-server", "redis-server") {
        return;
    }
    for terrace in hardships("24M") {
        redis(terrace);
    }
}

fn redis(terrace: Terrace) {
    const KEYS: usize = 45_000;
    let home = directory();
    let (mut server, mut client) = Redis::start(home.path(), Some(terrace.clone()));
    let mut random = Xorshift::new(11);
    // The last version of each key; 0 for none.
    let mut versions = vec![1; KEYS];
    client.write(&(0..KEYS).map(|key| (key, 1)).collect::<Vec<_>>());
    let mut next = 1;
    let mut change = |client: &mut Redis, versions: &mut [u32], changes: usize| {
        let writes: Vec<_> = (0..changes)
            .map(|_| {
                let key = random.below(KEYS as u64) as usize;
                next += 1;
                (key, if next % 8 == 0 { 0 } else { next })
            })
            .collect();
        client.write(&writes);
        for (key, version) in writes {
            versions[key] = version;
        }
    };
    change(&mut client, &mut versions, KEYS / 4);

    // One client, one command at a time: the fork happens between the write before it and the write
    // after it.
    assert_eq!(client.command(&[b"BGSAVE"]), Reply::Simple("Background saving started".into()));
    let snapshot = versions.clone();
    let mut amid = 0;
    while client.info("rdb_bgsave_in_progress") == "1" {
        change(&mut client, &mut versions, PIPELINED);
        amid += PIPELINED;
    }
    assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
    assert!(amid >= 2 * PIPELINED, "only {amid} keys were written while the snapshot was saved");
    change(&mut client, &mut versions, KEYS / 8);
    client.verify(&versions);
    client.stop();
    let finished = server.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    println!("{amid} keys written during the snapshot; {}", finished.stderr);
    finished.report().expect_moves(10_000, 10_000);

    // The dump, in a server that knows nothing of Terrace, and in one that is under it.
    for terrace in [None, Some(terrace)] {
        (server, client) = Redis::start(home.path(), terrace);
        client.verify(&snapshot);
        client.stop();
        let finished = server.wait();
        assert!(finished.status.success(), "{}", finished.account("failed after its restart"));
    }
}

/// A client of redis-server.
struct Redis(BufReader<UnixStream>);

#[derive(Debug, PartialEq)]
enum Reply {
    Simple(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
}

impl Redis {
    /// Starts a server that loads the dump in `home`, if there is one, and waits until it has.
    fn start(home: &Path, terrace: Option<Terrace>) -> (Running, Redis) {
        let socket = home.join("socket");
        let _ = fs::remove_file(&socket);
        let mut server = Program::new("redis-server")
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--enable-debug-command",
                "no",
                "--unixsocket",
            ])
            .arg(&socket)
            .arg("--dir")
            .arg(home)
            .under(terrace)
            .time_limit(TIME_LIMIT)
            .start();
        let mut client = Redis(BufReader::new(connect(&mut server, &socket)));
        let has_loaded = || client.info("loading") == "0";
        Wait::within(TIME_LIMIT / 4).until("the server has loaded", has_loaded);
        (server, client)
    }

    fn encode(into: &mut Vec<u8>, words: &[&[u8]]) {
        write!(into, "*{}\r\n", words.len()).expect("writing to memory works");
        for word in words {
            write!(into, "${}\r\n", word.len()).expect("writing to memory works");
            into.extend_from_slice(word);
            into.extend_from_slice(b"\r\n");
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let line = line
            .strip_suffix("\r\n")
            .unwrap_or_else(|| panic!("the server hung up after {line:?}"));
        let (kind, rest) = line.split_at(1);
        match (kind, rest.parse()) {
            ("+", _) => Reply::Simple(rest.into()),
            (":", Ok(number)) => Reply::Number(number),
            ("$", Ok(-1)) => Reply::Bulk(None),
            ("$", Ok(length)) => {
                let mut bytes = vec![0; length as usize + 2];
                self.0.read_exact(&mut bytes).expect("the server answers");
                assert_eq!(bytes.split_off(length as usize), b"\r\n");
                Reply::Bulk(Some(bytes))
            }
            _ => panic!("the server answered {line:?}"),
        }
    }

    fn command(&mut self, words: &[&[u8]]) -> Reply {
        let mut bytes = Vec::new();
        Redis::encode(&mut bytes, words);
        self.send(&bytes);
        self.reply()
    }

    /// A field of INFO.
    fn info(&mut self, field: &str) -> String {
        let Reply::Bulk(Some(text)) = self.command(&[b"INFO", b"persistence"]) else {
            panic!("INFO gives text")
        };
        let text = String::from_utf8(text).expect("INFO gives text");
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {field} in {text}")).to_owned()
    }

    /// Sets keys to their versions, and deletes those with version 0.
    fn write(&mut self, writes: &[(usize, u32)]) {
        for writes in writes.chunks(PIPELINED) {
            let mut bytes = Vec::new();
            for &(key, version) in writes {
                let name = format!("document:{key}");
                match version {
                    0 => Redis::encode(&mut bytes, &[b"DEL", name.as_bytes()]),
                    _ => Redis::encode(
                        &mut bytes,
                        &[b"SET", name.as_bytes(), &document(key, version)],
                    ),
                }
            }
            self.send(&bytes);
            for &(key, version) in writes {
                match (version, self.reply()) {
                    (0, Reply::Number(0 | 1)) => {}
                    (1.., Reply::Simple(ok)) if ok == "OK" => {}
                    (_, reply) => panic!("writing {key} at {version} gave {reply:?}"),
                }
            }
        }
    }

    /// Expects that every key holds its version, and that there are no others.
    fn verify(&mut self, versions: &[u32]) {
        let present = versions.iter().filter(|&&version| version != 0).count();
        assert_eq!(self.command(&[b"DBSIZE"]), Reply::Number(present as i64));
        for (chunk, versions) in versions.chunks(PIPELINED).enumerate() {
            let keys = chunk * PIPELINED..;
            let mut bytes = Vec::new();
            for (key, _) in keys.clone().zip(versions) {
                Redis::encode(&mut bytes, &[b"GET", format!("document:{key}").as_bytes()]);
            }
            self.send(&bytes);
            for (key, &version) in keys.zip(versions) {
                let expected = (version != 0).then(|| document(key, version));
                let found = self.reply();
                assert!(
                    found == Reply::Bulk(expected),
                    "document:{key} is not as of version {version}: {}",
                    shown(&found)
                );
            }
        }
    }

    fn stop(mut self) {
        let mut bytes = Vec::new();
        Redis::encode(&mut bytes, &[b"SHUTDOWN", b"NOSAVE"]);
        self.send(&bytes);
        // It hangs up instead of answering.
        let _ = self.0.read(&mut [0]);
    }
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

/// Two clients at once, each with its own keys: everything that was set is there, unchanged.
#[test]
fn memcached_gives_back_what_was_set() {
    let _machine = machine();
    if !is_there("memcached", "memcached") {
        return;
    }
    const CLIENTS: usize = 2;
    const KEYS: usize = 40_000;
    for terrace in hardships("24M") {
        let home = directory();
        let socket = home.path().join("socket");
        let mut server = Program::new("memcached")
            // As root it asks to be told which user to become; it ignores this otherwise.
            .args(["-u", "root", "-m", "1024", "-t", "2", "-s"])
            .arg(&socket)
            .under(terrace)
            .time_limit(TIME_LIMIT)
            .start();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| Memcached(BufReader::new(connect(&mut server, &socket))))
            .collect();
        std::thread::scope(|scope| {
            for (number, mut client) in clients.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut random = Xorshift::new(number as u64 + 1);
                    let first = number * KEYS;
                    let mut versions: BTreeMap<usize, u32> =
                        (first..first + KEYS).map(|key| (key, 1)).collect();
                    client.set(&versions);
                    for version in 2..12 {
                        let again = (0..KEYS / 8)
                            .map(|_| (first + random.below(KEYS as u64) as usize, version))
                            .collect();
                        client.set(&again);
                        versions.extend(again);
                    }
                    client.verify(&versions);
                });
            }
        });
        server.terminate();
        let finished = server.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        println!("{}", finished.stderr);
        finished.report().expect_moves(10_000, 10_000);
    }
}

/// A client of memcached.
struct Memcached(BufReader<UnixStream>);

impl Memcached {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        line.strip_suffix("\r\n")
            .unwrap_or_else(|| panic!("the server hung up after {line:?}"))
            .to_owned()
    }

    fn set(&mut self, versions: &BTreeMap<usize, u32>) {
        for versions in versions.iter().collect::<Vec<_>>().chunks(PIPELINED) {
            let mut bytes = Vec::new();
            for &(key, version) in versions {
                let document = document(*key, *version);
                write!(bytes, "set document:{key} {version} 0 {}\r\n", document.len())
                    .expect("writing to memory works");
                bytes.extend_from_slice(&document);
                bytes.extend_from_slice(b"\r\n");
            }
            self.0.get_mut().write_all(&bytes).expect("the server reads");
            for (key, version) in versions {
                assert_eq!(self.line(), "STORED", "document:{key} at {version}");
            }
        }
    }

    /// Expects that every key holds its version, which is also its flags.
    fn verify(&mut self, versions: &BTreeMap<usize, u32>) {
        for versions in versions.iter().collect::<Vec<_>>().chunks(PIPELINED) {
            let names: String =
                versions.iter().map(|(key, _)| format!(" document:{key}")).collect();
            self.0
                .get_mut()
                .write_all(format!("get{names}\r\n").as_bytes())
                .expect("the server reads");
            for &(key, version) in versions {
                let expected = document(*key, *version);
                assert_eq!(
                    self.line(),
                    format!("VALUE document:{key} {version} {}", expected.len())
                );
                let mut found = vec![0; expected.len() + 2];
                self.0.read_exact(&mut found).expect("the server answers");
                let text = String::from_utf8_lossy(&found);
                assert!(
                    found.strip_suffix(b"\r\n") == Some(&expected),
                    "document:{key} is not as of version {version}: {text}"
                );
            }
            assert_eq!(self.line(), "END");
        }
    }
}
