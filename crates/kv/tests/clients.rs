//! Clients that were written for memcached: pymemcache, and libmemcached's tools.

mod common;

use common::{Client, Server};
use std::path::Path;
use std::process::{Command, Output};
use terrace_testkit::skipping::skip;

/// A Python that has a module.
fn python_with(module: &str) -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let outcome = Command::new(python).args(["-c", &format!("import {module}")]).output();
        outcome.is_ok_and(|output| output.status.success())
    })
}

/// What a user of pymemcache does, on one connection, on several, and on several servers.
const PYTHON: &str = r#"
import sys
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient

address, other = sys.argv[1:]
one = Client(address, connect_timeout=10, timeout=10, default_noreply=False)
assert one.version().startswith(b"1.6."), one.version()
assert one.set("a", "one") and one.get("a") == b"one"
assert one.get("none") is None and one.get("none", default=7) == 7
assert one.add("a", "two") is False and one.add("b", "two") is True
assert one.replace("b", "2") is True and one.replace("c", "3") is False
assert one.append("a", "+") and one.prepend("a", "-") and one.get("a") == b"-one+"
value, cas = one.gets("a")
assert one.cas("a", "new", cas) is True and one.cas("a", "newer", cas) is False
assert one.cas("none", "x", cas) is None
assert one.set("n", "41") and one.incr("n", 2) == 43 and one.decr("n", 50) == 0
assert one.incr("none", 1) is None
assert one.touch("n", 100) and not one.touch("none", 100)
assert one.set_many({"k%d" % i: "v%d" % i * 1000 for i in range(50)}) == []
many = one.get_many(["k%d" % i for i in range(60)])
assert len(many) == 50 and many["k49"] == b"v49" * 1000
assert len(one.gets_many(["k1", "k2"])) == 2
assert one.delete("a") and not one.delete("a", noreply=False)
assert one.delete_many(["k1", "k2"]) and one.get("k1") is None
stats = one.stats()
assert stats[b"curr_items"] > 40 and stats[b"threads"] == 2, stats
assert one.stats("settings")[b"maxconns"] == 1024
try:
    one.set("x" * 251, "long")
    raise SystemExit("a key of 251 bytes was taken")
except Exception as error:
    assert "too long" in str(error), error
try:
    one.set("large", b"x" * 2000000, noreply=False)
    raise SystemExit("a value above -I was taken")
except Exception as error:
    assert "too large" in str(error), error
assert one.set("a", "after", noreply=False) and one.get("a") == b"after"
assert one.flush_all() and one.get("k9") is None
one.quit()

pool = PooledClient(address, max_pool_size=4)
for number in range(100):
    assert pool.set("p%d" % number, "x" * number, noreply=False)
    assert pool.get("p%d" % number) == b"x" * number

both = HashClient([address, other])
assert both.set_many({"h%d" % i: "v%d" % i for i in range(100)}, noreply=False) == []
assert len(both.get_many(["h%d" % i for i in range(100)])) == 100
assert all(0 < Client(each).stats()[b"curr_items"] < 300 for each in (address, other))
print("all is right")
"#;

#[test]
fn pymemcache_works() {
    let Some(python) = python_with("pymemcache") else {
        return skip("pymemcache is not installed (Debian: python3-pymemcache)");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let sockets = ["one", "other"].map(|name| directory.path().join(name));
    let _servers = [0, 1].map(|number| Server::start(&sockets[number], &["-t", "2"]));
    let output = Command::new(python).args(["-c", PYTHON]).args(&sockets).output();
    let output = output.expect("it was started before");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn tool(name: &str, socket: &Path, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(name);
    command.arg(format!("--servers={}", socket.display())).args(arguments);
    command.output().ok()
}

#[test]
fn libmemcacheds_tools_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-t", "2"]);
    let run = |name: &str, arguments: &[&str]| {
        let output = tool(name, &socket, arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((output.status.success(), text(&output.stdout), text(&output.stderr)))
    };
    let Some((answers, ..)) = run("memcping", &[]) else {
        return skip("libmemcached's tools are not installed (Debian: libmemcached-tools)");
    };
    assert!(answers, "memcping");
    let run = |name: &str, arguments: &[&str]| {
        run(name, arguments).unwrap_or_else(|| panic!("{name} is part of the same package"))
    };
    let file = directory.path().join("file");
    let contents = "contents of a file\n".repeat(3000);
    std::fs::write(&file, &contents).expect("it can be written");
    let (copied, _, said) = run("memccp", &[file.to_str().expect("UTF-8")]);
    assert!(copied, "memccp: {said}");
    // The key is the file's name.
    let mut client = Client::connect(&socket);
    assert_eq!(client.get("file").as_deref(), Some(contents.as_bytes()));
    let (found, shown, said) = run("memccat", &["file"]);
    assert!(found && shown.starts_with(&contents), "memccat: {said}");
    assert!(!run("memccat", &["none"]).0);
    assert!(run("memcexist", &["file"]).0 && !run("memcexist", &["none"]).0);
    assert!(run("memctouch", &["--expire=100", "file"]).0);
    let (told, stats, said) = run("memcstat", &[]);
    assert!(told && stats.contains("cmd_touch: 1"), "memcstat: {stats} {said}");
    let (dumped, keys, said) = run("memcdump", &[]);
    // What memcexist tries to add, it has expired at once; memcached would list that, too.
    assert!(dumped && keys.lines().any(|key| key == "file"), "memcdump: {keys} {said}");
    assert!(run("memcrm", &["file"]).0);
    assert_eq!(client.get("file"), None);
    assert_eq!(client.set("a", 0, b"b"), "STORED");
    assert!(run("memcflush", &[]).0);
    assert_eq!(client.get("a"), None);
}
