//! One measured load of a running server, and the memory it takes meanwhile.

use super::peer::Swap;
use super::process::{self, Counters};
use super::server::{Running, Server};
use crate::interrupt;
use crate::machine::terrace;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Interval between looks at memory: both files are cheap to read.
const MEMORY_EVERY: Duration = Duration::from_millis(100);

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    /// GETs in 100 operations.
    pub get_percent: u32,
    pub connections: usize,
    pub depth: usize,
}

impl Load {
    /// Arguments of `terrace load kv`.
    fn arguments(self, amount: Amount, order: u64) -> [String; 7] {
        let amount = match amount {
            Amount::Seconds(seconds) => format!("--seconds={seconds}"),
            Amount::Operations(operations) => format!("--operations={operations}"),
        };
        [
            "--phase=run".to_owned(),
            "--warm-up=0".to_owned(),
            amount,
            format!("--order={order}"),
            format!("--get-share={}", self.get_percent),
            format!("--connections={}", self.connections),
            format!("--depth={}", self.depth),
        ]
    }
}

/// The data that is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    pub server: Server,
    pub items: u64,
    pub value_bytes: usize,
}

/// Approximate bytes that an item takes beside its value: the key, and what both servers keep with
/// an item.
pub const ITEM_OVERHEAD_BYTES: u64 = 100;

impl Data {
    /// Approximate bytes that a server takes for the data.
    pub fn bytes(&self) -> u64 {
        self.items * (self.value_bytes as u64 + ITEM_OVERHEAD_BYTES)
    }
}

/// Length of a measurement, and which accesses it makes. The same number on both sides makes the
/// same accesses; another measurement of the same server must have another number.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub warm_up: Amount,
    pub seconds: f64,
    pub order: u64,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// A time, s.
    Seconds(f64),
    /// Number of operations: a faster server is not ahead of a slower one in what it has seen of
    /// the accesses.
    Operations(u64),
}

/// Figures of a measurement.
#[derive(Clone, Debug)]
pub struct Sample {
    pub ops_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// CPU time of an operation, µs: of the server with Terrace's threads, and of `terrace run`.
    pub cpu_us_per_op: f64,
    /// CPU time of Terrace's threads in an operation by thread name, µs: part of `cpu_us_per_op`.
    pub terrace_us_per_op: BTreeMap<String, f64>,
    pub faults_per_op: f64,
    pub demoted_per_op: f64,
    /// Mean memory of the control group and the swap under load, bytes.
    pub memory_mean: f64,
    /// Largest memory of the control group and the swap under load, bytes.
    pub memory_max: f64,
    /// Pss of the server process plus swap in use after the load, bytes.
    pub pss: f64,
    pub client_cpu_share: f64,
}

impl Sample {
    /// The figures for the results file.
    pub fn json(&self) -> Value {
        json!({
            "ops_per_s": self.ops_per_s, "p50_us": self.p50_us, "p99_us": self.p99_us,
            "p999_us": self.p999_us, "max_us": self.max_us,
            "cpu_us_per_op": self.cpu_us_per_op, "terrace_us_per_op": self.terrace_us_per_op,
            "faults_per_op": self.faults_per_op,
            "demoted_per_op": self.demoted_per_op, "memory_mean_bytes": self.memory_mean,
            "memory_max_bytes": self.memory_max,
            "pss_and_swap_bytes": self.pss, "client_cpu_share": self.client_cpu_share,
        })
    }

    /// CPU time of Terrace's threads in an operation.
    pub fn terrace_us(&self) -> f64 {
        self.terrace_us_per_op.values().fold(0.0, |sum, us| sum + us)
    }
}

/// Runs the load generator beside the server and returns its figures.
fn load(running: &mut Running, data: Data, arguments: &[String]) -> anyhow::Result<Value> {
    let mut output = tempfile::tempfile()?;
    let mut errors = tempfile::tempfile()?;
    let mut command = Command::new(terrace()?);
    command.args([
        "load",
        "kv",
        "--json",
        "--protocol",
        data.server.name(),
        "--items",
        &data.items.to_string(),
    ]);
    command
        .args(["--value-bytes", &data.value_bytes.to_string()])
        .args(arguments)
        .arg(format!("127.0.0.1:{}", running.port));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(error) = running.check() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        std::thread::sleep(interrupt::POLL_INTERVAL);
    };
    let read = |file: &mut std::fs::File| -> anyhow::Result<String> {
        use std::io::{Read as _, Seek as _};
        file.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(text)
    };
    if !status.success() {
        // A server that was just killed explains more than the client that lost it.
        interrupt::sleep(Duration::from_millis(100))?;
        running.check()?;
        bail!("the load failed ({status}): {}", read(&mut errors)?.trim());
    }
    Ok(serde_json::from_str(&read(&mut output)?)?)
}

/// Writes all items.
pub fn fill(running: &mut Running, data: Data) -> anyhow::Result<()> {
    load(running, data, &["--phase=fill".into()]).context("while filling").map(drop)
}

/// Loads the server for a while, then measures.
pub fn sample(
    running: &mut Running,
    data: Data,
    swap: Option<&Swap>,
    how: Load,
    timing: Timing,
) -> anyhow::Result<Sample> {
    let Timing { warm_up, seconds, order } = timing;
    load(running, data, &how.arguments(warm_up, order * 2)).context("while warming up")?;
    let before = process::counters(running.pid, running.page.as_ref())?;
    let run_before = running.terrace_run_cpu_s()?;
    let measured = how.arguments(Amount::Seconds(seconds), order * 2 + 1);
    let (outcome, memory) =
        watching_memory(running, swap, |running| load(running, data, &measured))?;
    let after = process::counters(running.pid, running.page.as_ref())?;
    let run_after = running.terrace_run_cpu_s()?;
    let swap_bytes = swap.map(Swap::used_bytes).transpose()?.unwrap_or(0);
    let pss = process::rollup(running.pid)?("Pss") + swap_bytes as f64;

    let get = |path: &str| figure(&outcome, path);
    let operations = get("/run/operations")?;
    if operations < 1.0 {
        bail!("no operation was carried out within {seconds} s");
    }
    let mut terrace_us_per_op = terrace_cpu(&before, &after, operations);
    let mut cpu_us = (after.cpu_s - before.cpu_s) * 1e6 / operations;
    if let (Some(before), Some(after)) = (run_before, run_after) {
        let us = (after - before) * 1e6 / operations;
        terrace_us_per_op.insert("terrace run".into(), us);
        cpu_us += us;
    }
    let since = |after: Option<u64>, before: Option<u64>| {
        after.zip(before).map(|(after, before)| after.saturating_sub(before) as f64)
    };
    // Swapped pages come back by major faults, Terrace's by its own; a server under Terrace does
    // not swap here.
    let majors = (after.major_faults - before.major_faults) as f64;
    let faults = since(after.restored_pages, before.restored_pages).unwrap_or(majors);
    Ok(Sample {
        ops_per_s: get("/run/ops_per_s")?,
        p50_us: get("/run/all_us/p50")?,
        p99_us: get("/run/all_us/p99")?,
        p999_us: get("/run/all_us/p999")?,
        max_us: get("/run/all_us/max")?,
        cpu_us_per_op: cpu_us,
        terrace_us_per_op,
        faults_per_op: faults / operations,
        demoted_per_op: since(after.demoted_pages, before.demoted_pages).unwrap_or(0.0)
            / operations,
        memory_mean: memory.mean,
        memory_max: memory.max,
        pss,
        client_cpu_share: get("/client_cpu_share")?,
    })
}

fn figure(outcome: &Value, path: &str) -> anyhow::Result<f64> {
    outcome
        .pointer(path)
        .and_then(Value::as_f64)
        .with_context(|| format!("the load's figures have no {path}"))
}

/// CPU time of an operation, µs, of the server with all its threads and of `terrace run`. It is
/// exact to the nanosecond: for short loads.
pub fn cpu_us_per_operation(
    running: &mut Running,
    data: Data,
    how: Load,
    operations: u64,
    order: u64,
) -> anyhow::Result<f64> {
    let before = running.run_time()?;
    let outcome = load(running, data, &how.arguments(Amount::Operations(operations), order))?;
    let took = running.run_time()?.saturating_sub(before);
    Ok(took.as_secs_f64() * 1e6 / figure(&outcome, "/run/operations")?)
}

fn terrace_cpu(before: &Counters, after: &Counters, operations: f64) -> BTreeMap<String, f64> {
    let earlier = |name: &String| before.terrace_cpu_s.get(name).copied().unwrap_or(0.0);
    after
        .terrace_cpu_s
        .iter()
        .map(|(name, cpu_s)| (name.clone(), (cpu_s - earlier(name)) * 1e6 / operations))
        .collect()
}

/// Bytes over a time.
struct Memory {
    mean: f64,
    max: f64,
}

/// Reads what the group and the swap take while `work` is done.
fn watching_memory<T>(
    running: &mut Running,
    swap: Option<&Swap>,
    work: impl FnOnce(&mut Running) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Memory)> {
    let done = AtomicBool::new(false);
    let meter = running.group.meter();
    let read = || -> anyhow::Result<f64> {
        Ok((meter.usage_bytes()? + swap.map(Swap::used_bytes).transpose()?.unwrap_or(0)) as f64)
    };
    let first = read()?;
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut all = vec![first];
            while !done.load(Relaxed) {
                std::thread::sleep(MEMORY_EVERY);
                all.extend(read().ok());
            }
            all
        });
        let result = work(running);
        done.store(true, Relaxed);
        let all = watcher.join().expect("the watcher does not panic");
        let memory = Memory {
            mean: all.iter().sum::<f64>() / all.len() as f64,
            max: all.iter().copied().fold(0.0, f64::max),
        };
        Ok((result?, memory))
    })
}
