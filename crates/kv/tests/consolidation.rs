//! Hot items are brought together while the server runs: the command, its statistics, and that it
//! follows a hot set over tiers.

mod common;

use common::{Client, Server, value_of};
use std::time::{Duration, Instant};
use terrace_testkit::skipping::skip;
use terrace_testkit::wait::Wait;

/// Time limit for an awaited event.
const PATIENCE: Duration = Duration::from_secs(90);
const ITEMS: usize = 200_000;
/// One item in this many is hot.
const EVERY: usize = 40;
/// Requests on the way at a time.
const BATCH: usize = 50;

fn value(key: usize) -> Vec<u8> {
    value_of(key, 480)
}

fn figure(client: &mut Client, name: &str) -> u64 {
    let figures = client.stats("terrace");
    let found = figures.iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("no {name}: {figures:?}")).1
}

fn fill(client: &mut Client) {
    let keys: Vec<usize> = (0..ITEMS).collect();
    for keys in keys.chunks(BATCH) {
        let mut bytes = Vec::new();
        for &key in keys {
            let value = value(key);
            bytes.extend(format!("set key{key} {key} 0 {} noreply\r\n", value.len()).bytes());
            bytes.extend(value);
            bytes.extend(b"\r\n");
        }
        client.send(&bytes);
    }
    assert!(client.ask("version").starts_with("VERSION"));
}

/// Reads keys and checks the values.
fn read(client: &mut Client, keys: &[usize]) {
    for keys in keys.chunks(BATCH) {
        let lines: String = keys.iter().map(|key| format!("get key{key}\r\n")).collect();
        client.send(lines.as_bytes());
        for &key in keys {
            assert_eq!(client.value(), Some(value(key)), "of key{key}");
        }
    }
}

/// Reads a hot set over and over until most of what lies on its pages is hot, and `moved` items
/// have moved.
fn until_together(client: &mut Client, hot: &[usize], moved: u64) {
    let begun = Instant::now();
    while figure(client, "consolidate:utilisation_percent") < 60
        || figure(client, "consolidate:moved_items") < moved
    {
        assert!(begun.elapsed() < PATIENCE, "{:?}", client.stats("terrace"));
        read(client, hot);
    }
}

fn hot_set(first: usize) -> Vec<usize> {
    (first..ITEMS).step_by(EVERY).collect()
}

#[test]
fn it_is_switched_by_a_command_and_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let _server = Server::start(&socket, &["-m", "64", "-t", "2"]);
    let mut client = Client::connect(&socket);
    assert_eq!(figure(&mut client, "consolidate"), 0, "it is off unless it is said");
    assert_eq!(client.ask("consolidate enable"), "OK");
    assert_eq!(figure(&mut client, "consolidate"), 1);
    assert_eq!(client.ask("consolidate 1"), "CLIENT_ERROR usage: consolidate <enable|disable>");
    assert_eq!(client.ask("consolidate"), "ERROR");
    Wait::within(PATIENCE).until("a round", || figure(&mut client, "consolidate:rounds") > 0);
    client.send(b"consolidate disable noreply\r\n");
    assert_eq!(figure(&mut client, "consolidate"), 0);
}

#[test]
fn hot_items_lie_together_over_tiers_and_the_hot_set_may_jump() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let items = format!("items={ITEMS},consolidate");
    let flags = ["-m", "512", "-t", "1", "-o", &items, "--dram", "64M"];
    let _server = Server::start(&socket, &flags);
    let mut client = Client::connect(&socket);
    fill(&mut client);
    if figure(&mut client, "active") == 0 {
        return skip("pages cannot be moved here, so that all stays in DRAM");
    }
    until_together(&mut client, &hot_set(7), 4000);
    let moved = figure(&mut client, "consolidate:moved_items");
    assert!(figure(&mut client, "consolidate:utilisation_percent_before") < 40);
    until_together(&mut client, &hot_set(23), moved + 4000);
    assert_eq!(client.ask("consolidate disable"), "OK");
    let figures = client.stats("terrace");
    println!("{figures:?}");
    // All are right, hot or not, moved or not.
    read(&mut client, &(0..ITEMS).collect::<Vec<_>>());
}
