//! redis-server under load. Each GET touches all of a value, and the server itself says where each
//! value is.
//!
//! What lies around values (its table, keys, objects' heads) is not in this truth: some lines for
//! the 16 or 17 of a value.

use super::{Known, REGION, record, samples};
use crate::machine;
use crate::servers::process;
use crate::start::answers;
use anyhow::Context;
use rand::seq::SliceRandom as _;
use rand::{SeedableRng as _, rngs::SmallRng};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use terrace_testkit::child::Ended;
use terrace_trace::cache::{Cache, LINE};

const VALUE_BYTES: u64 = 1000;
/// What an item takes in all.
const ITEM_BYTES: u64 = 1150;
/// Requests on the way at a time.
const ASK: u64 = 1000;
const START_WITHIN: Duration = Duration::from_secs(20);
const END_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What samples and the truth say of each region in which values are.
pub fn measure(size: u64, seconds: f64, clustered: bool) -> anyhow::Result<Vec<Known>> {
    let scratch = tempfile::tempdir()?;
    let file = |name: &str| scratch.path().join(name);
    let (recording, socket, truth) = (file("r"), file("socket"), file("truth.json"));
    let items = size / ITEM_BYTES;
    let terrace = machine::terrace()?;
    let begun = Instant::now();
    let mut server = record(&recording)?;
    server
        .args([
            "redis-server",
            "--port",
            "0",
            "--enable-debug-command",
            "yes",
            "--appendonly",
            "no",
            "--save",
            "",
            "--unixsocket",
        ])
        .arg(&socket);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    // `terrace record` hands the signal on, and ends with the server.
    let mut server = Ended::by_request(server.spawn()?, END_WITHIN);
    let mut connection = connect(&socket, &mut server)?;
    let load = |phase: &str| {
        let mut load = Command::new(&terrace);
        load.args(["load", "kv"]).arg(&socket).args([
            "--protocol",
            "redis",
            "--warm-up",
            "0",
            "--json",
            "--phase",
            phase,
        ]);
        load.args([
            "--items",
            &items.to_string(),
            "--value-bytes",
            &VALUE_BYTES.to_string(),
            "--seconds",
            &seconds.to_string(),
        ]);
        // Full pipes: what redis does for each request beside touching its value is the least that
        // it can be.
        load.args(["--connections", "32", "--depth", "16"]);
        if phase == "run" {
            load.arg("--truth").arg(&truth);
        }
        load.args(clustered.then_some("--clustered"));
        let output = load.stderr(Stdio::inherit()).output()?;
        anyhow::ensure!(output.status.success(), "the load ended with {}", output.status);
        Ok(())
    };
    load("fill")?;
    let pid = process::child(server.id()).context("redis-server has ended")?;
    let values = values(&mut connection, pid, items)?;
    let from = begun.elapsed();
    load("run")?;
    let window = [from, begun.elapsed()].map(|at| at.as_secs_f64() * 1e3);
    writeln!(connection.get_mut(), "SHUTDOWN NOSAVE\r")?;
    anyhow::ensure!(server.wait()?.success(), "redis-server did not end as it should have");

    let truth: Value = serde_json::from_reader(BufReader::new(File::open(&truth)?))?;
    let asked =
        truth["operations"].as_array().context("no truth")?.iter().filter_map(Value::as_u64);
    // Each access is drawn by itself, so any order of them is as good as that in which they came.
    let mut order: Vec<u64> = asked
        .zip(&values)
        .flat_map(|(times, value)| std::iter::repeat_n(*value, times as usize))
        .collect();
    order.shuffle(&mut SmallRng::seed_from_u64(1));
    let (mut regions, mut cache): (HashMap<u64, Known>, _) = (HashMap::new(), Cache::new());
    for value in &values {
        regions.entry(value / REGION).or_default();
    }
    for value in order {
        for line in value / LINE..(value + VALUE_BYTES).div_ceil(LINE) {
            let known = regions.entry(line * LINE / REGION).or_default();
            known.accesses += 1.0;
            known.misses += f64::from(u8::from(!cache.touch(line * LINE)));
        }
    }
    samples(&recording, window, &mut regions)?;
    Ok(regions.into_values().collect())
}

fn connect(socket: &Path, server: &mut Child) -> anyhow::Result<BufReader<UnixStream>> {
    let connection =
        answers("redis-server", server, START_WITHIN, || UnixStream::connect(socket).ok())
            .context("is redis-server installed? (scripts/setup.sh test)")?;
    connection.set_read_timeout(Some(ANSWER_WITHIN))?;
    Ok(BufReader::new(connection))
}

/// Where each item's value is: `DEBUG OBJECT` names the object, whose second word points to the
/// string.
fn values(
    connection: &mut BufReader<UnixStream>,
    pid: u32,
    items: u64,
) -> anyhow::Result<Vec<u64>> {
    let memory =
        File::open(format!("/proc/{pid}/mem")).context("redis-server's memory cannot be read")?;
    let mut values = Vec::with_capacity(items as usize);
    for first in (0..items).step_by(ASK as usize) {
        let some = first..(first + ASK).min(items);
        let asked: String =
            some.clone().map(|item| format!("DEBUG OBJECT key-{item:012}\r\n")).collect();
        connection.get_mut().write_all(asked.as_bytes())?;
        for _ in some {
            let mut line = String::new();
            connection.read_line(&mut line)?;
            let object = line.split_whitespace().find_map(|word| word.strip_prefix("at:0x"));
            let object = object
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .with_context(|| format!("redis-server says: {line}"))?;
            anyhow::ensure!(
                line.contains("encoding:raw"),
                "the value is in the object itself: {line}"
            );
            let mut pointer = [0; 8];
            memory.read_exact_at(&mut pointer, object + 8)?;
            values.push(u64::from_ne_bytes(pointer));
        }
    }
    Ok(values)
}
