//! Servers at a share of the memory that memcached would take, all with the same memory:
//!
//! - memcached and redis in a memory control group over zram lz4;
//! - memcached under `terrace run`;
//! - terrace-kv, as it starts and while it brings hot items together.
//!
//! T is what memcached's group and zram take together while the group's limit is that share of what
//! memcached takes without one. For every other side a limit or a budget is looked for with which
//! it takes T within [`TOLERANCE`]. Each run is one line of JSON in a file, so that a comparison
//! may be made in several sittings. Runs that the file has are not made again.
//!
//! The server and all its threads have CPU 0, the client CPU 1. Values look like JSON, keys follow
//! Zipf's law, popular ones lie anywhere, and every value is checked.

use crate::interrupt;
use crate::results::{self, median};
use crate::servers::measure::{self, Amount, Data, Load, Sample, Timing};
use crate::servers::peer::{Peer, Swap};
use crate::servers::pin;
use crate::servers::server::{Running, Server};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_testkit::port;

/// Share of T within which a side's memory is, or its run does not count.
const TOLERANCE: f64 = 0.02;
/// Number of tries to bring a side's memory there.
const TRIES: usize = 4;
/// Memory of a server under Terrace that a budget does not count, before it was measured, bytes.
const BESIDE: f64 = 24e6;
/// Share to which data are compressed, for the first guess of how memory follows a limit.
const COMPRESSED: f64 = 0.43;
const SETTLE: Duration = Duration::from_millis(500);
/// Warm-up of a measurement, s: the server is warm already.
const SAME_LOAD_S: f64 = 1.0;
const CLIENT_CPU: usize = 1;
const GET_PERCENT: u32 = 100;

/// `terrace-bench kv-memory`.
#[derive(Args, Debug)]
pub struct Options {
    /// Percent of the memory that memcached takes without a limit
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [80, 50, 30],
        value_parser = clap::value_parser!(u32).range(5..=100)
    )]
    shares: Vec<u32>,
    /// Sides
    #[arg(
        long,
        value_delimiter = ',',
        default_values = [
            "memcached-zram", "redis-zram", "memcached-terrace", "terrace-kv",
            "terrace-kv-consolidated",
        ]
    )]
    sides: Vec<Side>,
    /// Bytes of every value
    #[arg(long, default_value_t = 1000)]
    value_bytes: usize,
    /// Items
    #[arg(long, default_value_t = 400_000)]
    items: u64,
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Operations for each item before the first measurement
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// The file of runs; those that it has are not made again [default:
    /// bench/results/kv-memory-runs.jsonl]
    #[arg(long)]
    runs: Option<PathBuf>,
    /// Begin no run after this many seconds; the same command goes on from there
    #[arg(long)]
    within: Option<f64>,
    /// More flags for terrace-kv, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    kv_flags: String,
}

/// A server, and what makes its memory small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    /// memcached in a group over zram lz4
    MemcachedZram,
    /// redis in a group over zram lz4
    RedisZram,
    /// memcached under `terrace run`
    MemcachedTerrace,
    /// terrace-kv with `--dram`
    TerraceKv,
    /// terrace-kv with `--dram` and `-o consolidate`
    TerraceKvConsolidated,
}

impl Side {
    fn name(self) -> String {
        self.to_possible_value().expect("no side is skipped").get_name().to_owned()
    }

    fn swaps(self) -> bool {
        matches!(self, Side::MemcachedZram | Side::RedisZram)
    }
}

/// 32 connections with one request each, and 8 with 16.
const LOADS: [Load; 2] = [
    Load { get_percent: GET_PERCENT, connections: 32, depth: 1 },
    Load { get_percent: GET_PERCENT, connections: 8, depth: 16 },
];

impl Options {
    fn data(&self, side: Side) -> Data {
        let server = if side == Side::RedisZram { Server::Redis } else { Server::Memcached };
        Data { server, items: self.items, value_bytes: self.value_bytes }
    }

    fn runs_file(&self) -> PathBuf {
        let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results/kv-memory-runs.jsonl");
        self.runs.clone().unwrap_or_else(own)
    }
}

/// The runs so far.
struct Runs {
    path: PathBuf,
    lines: Vec<Value>,
}

impl Runs {
    fn read(path: PathBuf) -> anyhow::Result<Runs> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Runs { lines: lines.with_context(|| format!("{}: no JSON", path.display()))?, path })
    }

    fn add(&mut self, line: Value) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        writeln!(file, "{line}")?;
        self.lines.push(line);
        Ok(())
    }

    /// Runs of a side at a share, of the same data.
    fn of<'a>(
        &'a self,
        options: &'a Options,
        share: u32,
        side: Side,
    ) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |line| {
            line["share"] == share
                && line["side"] == side.name()
                && line["items"] == options.items
                && line["value_bytes"] == options.value_bytes
        })
    }

    fn median(&self, options: &Options, share: u32, side: Side, pointer: &str) -> f64 {
        let values = self.of(options, share, side);
        median(&values.filter_map(|line| line.pointer(pointer)?.as_f64()).collect::<Vec<_>>())
    }
}

/// Measures what is missing, prints the table, and writes the medians.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    pin(CLIENT_CPU).context("two CPUs are needed: one for the server, one for the client")?;
    let mut runs = Runs::read(options.runs_file())?;
    let begun = Instant::now();
    for repeat in 0..options.repeats {
        for &share in &options.shares {
            for &side in &options.sides {
                if runs.of(options, share, side).any(|line| line["repeat"] == repeat) {
                    continue;
                }
                if options.within.is_some_and(|within| begun.elapsed().as_secs_f64() > within) {
                    println!("not complete: the same command goes on\n");
                    return tell(options, &runs);
                }
                let line = once(options, &runs, share, side, repeat)
                    .with_context(|| format!("{} at {share} %", side.name()))?;
                runs.add(line)?;
            }
        }
    }
    tell(options, &runs)
}

/// Makes a run of one side.
fn once(
    options: &Options,
    runs: &Runs,
    share: u32,
    side: Side,
    repeat: usize,
) -> anyhow::Result<Value> {
    let target = runs.median(options, share, Side::MemcachedZram, "/memory_bytes");
    if side != Side::MemcachedZram && target.is_nan() {
        bail!("memcached-zram has to be measured first: its memory is what the others get");
    }
    let timing = Timing {
        warm_up: Amount::Operations((options.warm_up * options.items as f64) as u64),
        seconds: options.seconds,
        order: (repeat * 100) as u64 + u64::from(share),
    };
    let (limit, samples, consolidation) = if side.swaps() {
        let (limit, samples) = over_zram(options, share, side, target, timing)?;
        (limit, samples, Value::Null)
    } else {
        under_terrace(options, runs, share, side, target, timing)?
    };
    let memory = median(&samples.iter().map(|sample| sample.memory_mean).collect::<Vec<_>>());
    let points: Vec<Value> = LOADS
        .iter()
        .zip(&samples)
        .map(|(load, sample)| {
            let mut point = sample.json();
            point["connections"] = json!(load.connections);
            point["depth"] = json!(load.depth);
            point
        })
        .collect();
    println!(
        "{share:>3} %  {:23} {:>8.0} and {:>8.0} operations a second, {:.1} MiB",
        side.name(),
        samples[0].ops_per_s,
        samples[1].ops_per_s,
        memory / f64::from(1 << 20)
    );
    let mut line = json!({
        "share": share, "side": side.name(), "repeat": repeat, "items": options.items,
        "value_bytes": options.value_bytes, "limit_bytes": limit, "memory_bytes": memory,
        "points": points,
    });
    if !consolidation.is_null() {
        line["consolidation"] = consolidation;
    }
    Ok(line)
}

/// Measures a warm server under both loads.
fn measured(
    running: &mut Running,
    data: Data,
    swap: Option<&Swap>,
    timing: Timing,
    faults: &dyn Fn(&Running) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (number, load) in LOADS.into_iter().enumerate() {
        let timing = Timing {
            warm_up: Amount::Seconds(SAME_LOAD_S),
            order: timing.order * 10 + number as u64,
            ..timing
        };
        let before = faults(running)?;
        let mut sample = measure::sample(running, data, swap, load, timing)?;
        if let (Some(before), Some(after)) = (before, faults(running)?) {
            // Faults of the warm-up, at about the same speed, are among them.
            let operations = sample.ops_per_s * (timing.seconds + SAME_LOAD_S);
            sample.faults_per_op = (after - before) / operations;
        }
        samples.push(sample);
    }
    Ok(samples)
}

/// A server in a group over zram: its limit is the share (memcached), or what makes its memory T.
fn over_zram(
    options: &Options,
    share: u32,
    side: Side,
    target: f64,
    timing: Timing,
) -> anyhow::Result<(f64, Vec<Sample>)> {
    let data = options.data(side);
    let swap = Peer::Zram("lz4").swap_on(2 * data.bytes())?;
    let mut running = Running::start(data, None)?;
    measure::fill(&mut running, data)?;
    interrupt::sleep(SETTLE)?;
    let whole = running.group.meter().usage_bytes()? as f64;
    let mut limit = whole * f64::from(share) / 100.0;
    if side != Side::MemcachedZram {
        limit = ((target - whole * COMPRESSED) / (1.0 - COMPRESSED)).max(whole * 0.1);
    }
    running.lower_limit(limit as u64)?;
    warm(&mut running, data, &swap, timing)?;
    if side != Side::MemcachedZram {
        for _ in 0..TRIES {
            let memory = running.group.meter().usage_bytes()? as f64 + swap.used_bytes()? as f64;
            if (memory / target - 1.0).abs() < TOLERANCE / 4.0 {
                break;
            }
            limit += (target - memory) / (1.0 - COMPRESSED);
            if memory > target {
                running.lower_limit(limit as u64)?;
            } else {
                running.group.limit(limit as u64);
            }
            warm(&mut running, data, &swap, Timing { warm_up: timing.warm_up, ..timing })?;
        }
    }
    let samples = measured(&mut running, data, Some(&swap), timing, &|_| Ok(None))?;
    check(side, target, &samples)?;
    Ok((limit, samples))
}

/// Loads a server until what is in memory is what the load wants there.
fn warm(running: &mut Running, data: Data, swap: &Swap, timing: Timing) -> anyhow::Result<()> {
    let short = Timing { seconds: 0.5, ..timing };
    measure::sample(running, data, Some(swap), LOADS[0], short).map(drop)
}

fn check(side: Side, target: f64, samples: &[Sample]) -> anyhow::Result<()> {
    for sample in samples.iter().filter(|_| side != Side::MemcachedZram) {
        let off = sample.memory_mean / target - 1.0;
        if off.abs() > TOLERANCE {
            bail!("its memory is {:+.1} % off what memcached over zram takes", off * 100.0);
        }
    }
    Ok(())
}

/// A server under a budget of Terrace's, which is looked for so that its memory is T.
fn under_terrace(
    options: &Options,
    runs: &Runs,
    share: u32,
    side: Side,
    target: f64,
    timing: Timing,
) -> anyhow::Result<(f64, Vec<Sample>, Value)> {
    let data = options.data(side);
    // What the last run of this side took beside its budget.
    let known = runs
        .of(options, share, side)
        .last()
        .and_then(|line| Some(line["memory_bytes"].as_f64()? - line["limit_bytes"].as_f64()?));
    let mut beside = known.unwrap_or(BESIDE);
    for attempt in 1.. {
        let budget = target - beside;
        if budget < target / 8.0 {
            bail!("it takes {:.0} MiB beside its budget", beside / f64::from(1 << 20));
        }
        let mut running = start(options, side, budget)?;
        measure::fill(&mut running, data)?;
        interrupt::sleep(SETTLE)?;
        if let Some(page) = &running.page {
            page.expect_managed()?;
        }
        let short = Timing { seconds: 0.5, ..timing };
        let warm = measure::sample(&mut running, data, None, LOADS[0], short)?;
        if (warm.memory_mean / target - 1.0).abs() > TOLERANCE && attempt < TRIES {
            beside += warm.memory_mean - target;
            continue;
        }
        let faults = |running: &Running| match side {
            Side::TerraceKv | Side::TerraceKvConsolidated => restored(running.port).map(Some),
            _ => Ok(None),
        };
        let samples = measured(&mut running, data, None, timing, &faults)?;
        let memory = median(&samples.iter().map(|one| one.memory_mean).collect::<Vec<_>>());
        match check(side, target, &samples) {
            Ok(()) if side == Side::TerraceKvConsolidated => {
                let figures = kv_figures(running.port)?;
                let of_it = |(name, value): (String, f64)| {
                    Some((name.strip_prefix("consolidate:")?.to_owned(), json!(value)))
                };
                return Ok((budget, samples, figures.into_iter().filter_map(of_it).collect()));
            }
            Ok(()) => return Ok((budget, samples, Value::Null)),
            Err(error) if attempt == TRIES => return Err(error),
            Err(_) => beside += memory - target,
        }
    }
    unreachable!("the last try returns")
}

fn start(options: &Options, side: Side, budget: f64) -> anyhow::Result<Running> {
    let data = options.data(side);
    let kibibytes = format!("{}K", budget as u64 >> 10);
    if side == Side::MemcachedTerrace {
        return Running::start(data, Some(&["--dram".to_owned(), kibibytes]));
    }
    let own = std::env::current_exe()?.with_file_name("terrace-kv");
    let (port, mebibytes) = (port::free()?, (data.bytes() >> 19) + 1024);
    let consolidate = if side == Side::TerraceKvConsolidated { ",consolidate" } else { "" };
    // Told how many items there will be, as memcached is.
    let line = format!(
        "{} -l 127.0.0.1 -p {port} -t 1 -m {mebibytes} -o items={}{consolidate} --dram {kibibytes} {}",
        own.to_string_lossy(),
        options.items,
        options.kv_flags
    );
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Running::spawn(&words, port, false)
}

/// Pages that terrace-kv has brought back so far.
fn restored(port: u16) -> anyhow::Result<f64> {
    let figures = kv_figures(port)?;
    if figures.iter().any(|(name, value)| name == "active" && *value == 0.0) {
        bail!("terrace-kv moves no pages here: see its output");
    }
    Ok(figures.iter().filter(|(name, _)| name.ends_with(":faults")).map(|(_, value)| value).sum())
}

/// What `stats terrace` tells.
fn kv_figures(port: u16) -> anyhow::Result<Vec<(String, f64)>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"stats terrace\r\n")?;
    let mut figures = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["STAT", name, value] => figures.push((name.to_owned(), value.parse()?)),
            _ => break,
        }
    }
    Ok(figures)
}

/// Prints the medians and their ratios to memcached over zram, and writes them.
fn tell(options: &Options, runs: &Runs) -> anyhow::Result<()> {
    let figures = ["ops_per_s", "p50_us", "p99_us", "p999_us", "cpu_us_per_op", "faults_per_op"];
    println!(
        "memory   depth  {:23} {:>9} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8}  runs",
        "side", "ops/s", "to zram's", "p50", "p99", "p99.9", "CPU", "faults", "MiB"
    );
    let mut rows = Vec::new();
    for &share in &options.shares {
        for (number, load) in LOADS.iter().enumerate() {
            for &side in &options.sides {
                let of = |side, name: &str| {
                    runs.median(options, share, side, &format!("/points/{number}/{name}"))
                };
                let count = runs.of(options, share, side).count();
                if count == 0 {
                    continue;
                }
                let [ops, p50, p99, p999, cpu, faults] = figures.map(|name| of(side, name));
                let ratio = ops / of(Side::MemcachedZram, "ops_per_s");
                let memory = runs.median(options, share, side, "/memory_bytes");
                println!(
                    "{share:>4} %  {:>6}  {:23} {ops:>9.0} {ratio:>9.2} {p50:>8.0} {p99:>8.0} {p999:>8.0} {cpu:>7.2} {faults:>7.3} {:>8.1}  {count}",
                    load.depth,
                    side.name(),
                    memory / f64::from(1 << 20)
                );
                let mut row = json!({
                    "share": share, "connections": load.connections, "depth": load.depth,
                    "side": side.name(), "runs": count, "memory_bytes": memory,
                    "to_memcached_zram": ratio,
                });
                for name in figures {
                    row[name] = json!(of(side, name));
                }
                rows.push(row);
            }
        }
    }
    results::write(
        "kv-memory",
        json!({ "items": options.items, "value_bytes": options.value_bytes,
            "seconds": options.seconds, "rows": rows }),
    )
}
