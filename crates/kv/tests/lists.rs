//! Lists of all items: `lru_crawler metadump` and `stats cachedump`.

mod common;

use common::{Client, Server, kibibytes, value_of};
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};
use terrace_testkit::skipping::skip;

/// Time limit for an awaited event.
const PATIENCE: Duration = Duration::from_secs(60);
const MANY: usize = 100_000;

/// The lines of an answer up to `END`.
fn list(client: &mut Client, request: &str) -> Vec<String> {
    client.send(format!("{request}\r\n").as_bytes());
    rest(client)
}

fn rest(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = client.line();
        if line == "END" {
            return lines;
        }
        assert!(line.starts_with("key=") || line.starts_with("ITEM "), "{line}");
        lines.push(line);
    }
}

/// A field of a line of `metadump`.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
    fields.find(|(found, _)| *found == name).expect("every line has every field").1
}

fn fill(client: &mut Client, bytes: usize) {
    for keys in (0..MANY).collect::<Vec<_>>().chunks(50) {
        let mut batch = Vec::new();
        for &key in keys {
            let value = value_of(key, bytes);
            batch.extend(format!("set key{key} 0 0 {} noreply\r\n", value.len()).bytes());
            batch.extend(value);
            batch.extend(b"\r\n");
        }
        client.send(&batch);
    }
    assert!(client.ask("version").starts_with("VERSION"));
}

/// Asserts that every item is listed, and once.
fn assert_all(lines: &[String]) {
    let told: HashSet<&str> = lines.iter().map(|line| field(line, "key")).collect();
    assert_eq!((told.len(), lines.len()), (MANY, MANY));
    assert!((0..MANY).all(|key| told.contains(format!("key{key}").as_str())));
}

#[test]
fn a_metadump_has_memcacheds_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &[]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.ask("lru_crawler metadump all"), "NOTSTARTED no items to crawl");
    assert_eq!(list(&mut client, "lru_crawler metadump hash"), [""; 0]);
    assert_eq!(client.set("a/b", 0, b"one"), "STORED");
    assert_eq!(client.set("later", 100, b"two"), "STORED");
    assert_eq!(client.set("gone", 10, b"three"), "STORED");
    // A key of any bytes: "with space".
    client.send(b"ms d2l0aCBzcGFjZQ== 2000 b F7\r\n");
    client.send(&[b'x'; 2000]);
    assert_eq!(client.ask(""), "HD");
    assert_eq!(client.ask("debugtime 20"), "OK");
    assert!(client.get("later").is_some());
    let now = client.stat("time");
    let mut lines = list(&mut client, "lru_crawler metadump all");
    lines.sort();
    let keys: Vec<&str> = lines.iter().map(|line| field(line, "key")).collect();
    assert_eq!(keys, ["a%2Fb", "later", "with%20space"], "what has expired is not told");
    let [first, later, spaced] = [&lines[0], &lines[1], &lines[2]];
    assert_eq!((field(first, "exp"), field(first, "fetch")), ("-1", "no"));
    assert_eq!(field(later, "fetch"), "yes");
    let seconds = |text: &str| text.parse::<u64>().expect("seconds");
    assert!((now + 70..=now + 90).contains(&seconds(field(later, "exp"))), "{later}");
    assert!((now - 10..=now).contains(&seconds(field(later, "la"))), "{later}");
    assert!(seconds(field(first, "la")) <= now - 10, "{first}");
    // As memcached counts: 48 and 8 bytes, three that end parts, the flags, the key, the value.
    assert_eq!(field(first, "size"), (59 + 3 + 3).to_string());
    assert_eq!(field(spaced, "size"), (59 + 4 + 10 + 2000).to_string());
    let (_, identifier) = client.gets("a/b").expect("it is there");
    assert_eq!(field(first, "cas"), identifier.to_string());
    let class = field(spaced, "cls");
    assert_ne!(class, field(first, "cls"));
    let some = list(&mut client, &format!("lru_crawler metadump {class}"));
    assert_eq!(some.len(), 1);
    assert_eq!(list(&mut client, &format!("lru_crawler metadump 1,{class}")).len(), 3);
    assert_eq!(client.ask("lru_crawler metadump 64"), "BADCLASS invalid class id");
    assert_eq!(client.ask("lru_crawler metadump 7"), "NOTSTARTED no items to crawl");
    // What follows a list is answered after it.
    client.send(b"lru_crawler metadump hash\r\nmn\r\n");
    assert_eq!(rest(&mut client).len(), 3);
    assert_eq!(client.line(), "MN");
    assert_eq!(client.ask("flush_all"), "OK");
    assert_eq!(list(&mut client, "lru_crawler metadump hash"), [""; 0]);
}

#[test]
fn lists_can_be_forbidden() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-X"]);
    let mut client = Client::connect(&socket);
    assert_eq!(client.ask("lru_crawler metadump all"), "ERROR metadump not allowed");
    assert_eq!(client.ask("stats cachedump 1 0"), "CLIENT_ERROR stats cachedump not allowed");
}

#[test]
fn others_are_served_while_a_list_waits_for_its_reader() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let server = Server::start(&socket, &["-m", "256", "-t", "1"]);
    let mut client = Client::connect(&socket);
    fill(&mut client, 48);
    // Both kinds: of a list by class one must look at all items, and finds none.
    let mut searching = Client::connect(&socket);
    let mut waiting = Client::connect(&socket);
    let before = kibibytes(&server, "VmRSS");
    searching.send(&b"stats cachedump 60 0\r\n".repeat(20));
    waiting.send(b"lru_crawler metadump all\r\n");
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        let begun = Instant::now();
        assert_eq!(client.get("key7"), Some(value_of(7, 48)));
        longest = longest.max(begun.elapsed());
    }
    // Twenty walks through all items take longer than that; a slice of one does not.
    println!("the longest answer took {longest:?}");
    assert!(longest < Duration::from_millis(250), "{longest:?}");
    (0..20).for_each(|_| assert!(rest(&mut searching).is_empty()));
    let more = kibibytes(&server, "VmRSS").saturating_sub(before);
    assert!(more < 2 << 10, "{more} KiB more");
    assert_all(&rest(&mut waiting));
}

/// Pages that are not in DRAM, and faults so far.
fn out_and_faults(client: &mut Client) -> (u64, u64) {
    let figures = client.stats("terrace");
    let sum = |end: &str| -> u64 {
        figures.iter().filter(|(name, _)| name.ends_with(end)).map(|(_, value)| value).sum()
    };
    (sum(":pages"), sum(":faults"))
}

fn cold_items_stay_out(tiers: &str, socket: &Path) {
    let flags = ["-m", "512", "-t", "1", "--dram", "64M", "--tiers", tiers];
    let _server = Server::start(socket, &flags);
    let mut client = Client::connect(socket);
    fill(&mut client, 900);
    if client.stats("terrace").contains(&("active".to_owned(), 0)) {
        return skip("pages cannot be moved here; `terrace doctor` says why");
    }
    let begun = Instant::now();
    let mut last = 0;
    // Until no more of them leave.
    let (out, faults) = loop {
        let (out, faults) = out_and_faults(&mut client);
        if out > 5000 && out.abs_diff(last) < out / 200 {
            break (out, faults);
        }
        assert!(begun.elapsed() < PATIENCE, "{out} pages are out");
        last = out;
        std::thread::sleep(Duration::from_millis(500));
    };
    let lines = list(&mut client, "lru_crawler metadump all");
    let (out_then, faults_then) = out_and_faults(&mut client);
    println!("{tiers}: {out} pages out, then {out_then}; {} faults", faults_then - faults);
    assert!(faults_then - faults < out / 20, "{} faults for {out} pages", faults_then - faults);
    assert!(out_then > out - out / 20, "{out} pages were out, {out_then} are");
    assert_all(&lines);
    for key in (0..MANY).step_by(97) {
        assert_eq!(client.get(&format!("key{key}")), Some(value_of(key, 900)), "of key{key}");
    }
}

#[test]
fn a_list_leaves_cold_items_where_they_are() {
    let directory = tempfile::tempdir().expect("a directory");
    cold_items_stay_out("dram,lz4,zstd:1", &directory.path().join("socket"));
    let files = tempfile::tempdir().expect("a directory");
    let tiers = format!("dram,lz4@file:{}", files.path().display());
    cold_items_stay_out(&tiers, &directory.path().join("other"));
}
