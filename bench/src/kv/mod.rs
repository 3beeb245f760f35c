//! terrace-kv beside its peers: a server on CPU 0, a client on CPU 1, every value checked.
//!
//! The ceiling is a server that keeps nothing. CPU time is the server's own, so that it tells
//! servers apart also where the client is the limit.

pub mod ceiling;
pub mod hits;
pub mod memory;

use crate::machine::{ends_with_us, terrace};
use crate::results::{self, median};
use crate::servers::{pin, process};
use crate::start::answers;
use crate::{interrupt, load::number};
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_testkit::child::Ended;
use terrace_testkit::port;

const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
const START_WITHIN: Duration = Duration::from_secs(20);
const END_WITHIN: Duration = Duration::from_secs(20);
/// A client that uses less of its CPU is kept waiting by the server.
const CLIENT_LIMIT: f64 = 0.95;

/// `terrace-bench kv`.
#[derive(Args, Debug)]
pub struct Options {
    /// The kind of socket
    #[arg(long, value_enum, default_value = "unix")]
    transport: Transport,
    /// Bytes of every value
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000])]
    value_bytes: Vec<usize>,
    /// Requests on the way on each connection
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    depth: Vec<usize>,
    /// Connections
    #[arg(long, value_delimiter = ',', default_values_t = [8, 50, 256])]
    connections: Vec<usize>,
    /// Items
    #[arg(long, default_value_t = 400_000)]
    items: u64,
    /// How long each point is measured
    #[arg(long, default_value_t = 1.2)]
    seconds: f64,
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
}

/// How client and server talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    Tcp,
    Unix,
}

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Ceiling,
    Memcached,
    Redis,
    TerraceKv,
}

const PEERS: [Peer; 4] = [Peer::Ceiling, Peer::Memcached, Peer::Redis, Peer::TerraceKv];

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Ceiling => "ceiling",
            Peer::Memcached => "memcached",
            Peer::Redis => "redis",
            Peer::TerraceKv => "terrace-kv",
        }
    }

    /// Command of a server: one thread serves, nothing is written to disk, and all items fit.
    fn command(self, address: &Address, options: &Options, bytes: usize) -> Vec<String> {
        let mebibytes = (options.items as usize * (bytes + 200)) >> 20;
        let own = std::env::current_exe().unwrap_or_default();
        let beside = own.with_file_name("terrace-kv");
        let kv = beside.to_string_lossy();
        // memcached's table grows at 1.5 items a bucket, in steps that would fall into a
        // measurement.
        let power = (options.items * 2 / 3 + 1).next_power_of_two().ilog2().max(16);
        let line = match (self, address) {
            (Peer::Ceiling, _) => {
                format!("{} kv-ceiling {} {bytes}", own.to_string_lossy(), address.text())
            }
            (Peer::Memcached, Address::Tcp(port)) => format!(
                "memcached -l 127.0.0.1 -p {port} -U 0 -u root -t 1 -m {mebibytes} -o hashpower={power}"
            ),
            (Peer::Memcached, Address::Unix(path)) => {
                format!("memcached -s {path} -u root -t 1 -m {mebibytes} -o hashpower={power}")
            }
            (Peer::Redis, Address::Tcp(port)) => {
                format!("redis-server --bind 127.0.0.1 --port {port} --io-threads 1 --save \u{20}")
            }
            (Peer::Redis, Address::Unix(path)) => {
                format!("redis-server --port 0 --unixsocket {path} --io-threads 1 --save \u{20}")
            }
            (Peer::TerraceKv, Address::Tcp(port)) => {
                format!("{kv} -l 127.0.0.1 -p {port} -t 1 -m {mebibytes}")
            }
            (Peer::TerraceKv, Address::Unix(path)) => format!("{kv} -s {path} -t 1 -m {mebibytes}"),
        };
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if self == Peer::Redis {
            words.push(String::new());
        }
        words
    }
}

enum Address {
    Tcp(u16),
    Unix(String),
}

impl Address {
    fn text(&self) -> String {
        match self {
            Address::Tcp(port) => format!("127.0.0.1:{port}"),
            Address::Unix(path) => path.clone(),
        }
    }

    fn answers(&self) -> bool {
        match self {
            Address::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            Address::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }
}

/// A server that runs, until it is dropped.
struct Running {
    child: Ended,
    address: Address,
    _scratch: tempfile::TempDir,
}

impl Running {
    fn start(peer: Peer, options: &Options, bytes: usize) -> anyhow::Result<Running> {
        let scratch = tempfile::tempdir()?;
        let address = match options.transport {
            Transport::Tcp => Address::Tcp(port::free()?),
            Transport::Unix => {
                Address::Unix(scratch.path().join("socket").to_string_lossy().into_owned())
            }
        };
        let words = peer.command(&address, options, bytes);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ends_with_us(&mut command);
        // SAFETY: between fork and exec only a system call.
        unsafe { command.pre_exec(|| pin(SERVER_CPU)) };
        let child = command.spawn().with_context(|| format!("cannot start {}", words[0]))?;
        let mut child = Ended::by_request(child, END_WITHIN);
        answers(peer.name(), &mut child, START_WITHIN, || address.answers().then_some(()))?;
        Ok(Running { child, address, _scratch: scratch })
    }

    fn resident(&self) -> anyhow::Result<f64> {
        process::memory(self.child.id())
    }

    fn load(
        &self,
        peer: Peer,
        bytes: usize,
        options: &Options,
        more: &[&str],
    ) -> anyhow::Result<Value> {
        let mut command = Command::new(terrace()?);
        command.args(["load", "kv", &self.address.text(), "--json"]);
        command.args(["--items", &options.items.to_string(), "--value-bytes", &bytes.to_string()]);
        command.args(more);
        if peer == Peer::Ceiling {
            command.args(["--unchecked", "--protocol", "memcached"]);
        }
        ends_with_us(&mut command);
        // SAFETY: between fork and exec only a system call.
        unsafe { command.pre_exec(|| pin(CLIENT_CPU)) };
        let output = command.output().context("cannot start the client")?;
        ensure!(
            output.status.success(),
            "{}: {}",
            peer.name(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Figures of a point in one repeat.
struct Measured {
    peer: Peer,
    bytes: usize,
    depth: usize,
    connections: usize,
    /// Values in the order of [`FIGURES`].
    figures: [f64; FIGURES.len()],
}

const FIGURES: [&str; 7] = [
    "ops_per_s",
    "server_us_per_op",
    "p50_us",
    "p99_us",
    "p999_us",
    "client_cpu",
    "bytes_per_item",
];

fn measure(
    running: &Running,
    peer: Peer,
    options: &Options,
    (bytes, depth, connections): (usize, usize, usize),
    bytes_per_item: f64,
) -> anyhow::Result<Measured> {
    let (depth_text, connections_text) = (depth.to_string(), connections.to_string());
    let seconds = options.seconds.to_string();
    let point = ["--phase", "run", "--depth", &depth_text, "--connections", &connections_text];
    let before = process::run_time_alone(running.child.id())?;
    // What warms up is not in the operations but would be in the CPU time.
    let timed = [&point[..], &["--seconds", &seconds, "--warm-up", "0"]].concat();
    let outcome = running.load(peer, bytes, options, &timed)?;
    let used = process::run_time_alone(running.child.id())? - before;
    let run = &outcome["run"];
    let times = &run["all_us"];
    let figures = [
        number(&run["ops_per_s"]),
        used.as_secs_f64() * 1e6 / number(&run["operations"]),
        number(&times["p50"]),
        number(&times["p99"]),
        number(&times["p999"]),
        number(&outcome["client_cpu_share"]),
        bytes_per_item,
    ];
    Ok(Measured { peer, bytes, depth, connections, figures })
}

fn measure_peer(
    peer: Peer,
    bytes: usize,
    options: &Options,
    all: &mut Vec<Measured>,
) -> anyhow::Result<()> {
    let running = Running::start(peer, options, bytes)?;
    let before = running.resident()?;
    if peer != Peer::Ceiling {
        running.load(peer, bytes, options, &["--phase", "fill"])?;
    }
    let bytes_per_item = (running.resident()? - before) / options.items as f64;
    for &depth in &options.depth {
        for &connections in &options.connections {
            interrupt::check()?;
            let point = (bytes, depth, connections);
            all.push(measure(&running, peer, options, point, bytes_per_item)?);
        }
    }
    Ok(())
}

/// Measures, prints a table, and writes the figures.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut all = Vec::new();
    for _ in 0..options.repeats {
        for &bytes in &options.value_bytes {
            for peer in PEERS {
                measure_peer(peer, bytes, options, &mut all)?;
            }
        }
    }
    let transport = if options.transport == Transport::Tcp { "tcp" } else { "unix" };
    println!(
        "{transport}  bytes depth conns  {:10} {:>9} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6}",
        "server", "ops/s", "us/op", "p50", "p99", "p99.9", "client", "B/item"
    );
    let mut rows = Vec::new();
    for &bytes in &options.value_bytes {
        for &depth in &options.depth {
            for &connections in &options.connections {
                for peer in PEERS {
                    rows.push(row(&all, (peer, bytes, depth, connections)));
                }
            }
        }
    }
    results::write(
        &format!("kv-{transport}"),
        json!({
            "items": options.items, "repeats": options.repeats, "seconds": options.seconds,
            "rows": rows,
        }),
    )
}

/// The medians of one point, printed too.
fn row(all: &[Measured], point: (Peer, usize, usize, usize)) -> Value {
    let (peer, bytes, depth, connections) = point;
    let is_here = |one: &&Measured| (one.peer, one.bytes, one.depth, one.connections) == point;
    let of = |figure: usize| {
        median(&all.iter().filter(is_here).map(|one| one.figures[figure]).collect::<Vec<_>>())
    };
    let figures: [f64; FIGURES.len()] = std::array::from_fn(of);
    let [ops, us, p50, p99, p999, client, per_item] = figures;
    println!(
        "      {bytes:>5} {depth:>5} {connections:>5}  {:10} {ops:>9.0} {us:>6.2} {p50:>7.0} {p99:>7.0} {p999:>7.0} {client:>6.2} {per_item:>6.0}{}",
        peer.name(),
        if client >= CLIENT_LIMIT { "  the client is the limit" } else { "" }
    );
    let mut value = json!({
        "server": peer.name(), "value_bytes": bytes, "depth": depth, "connections": connections,
        "limit": if client >= CLIENT_LIMIT { "client" } else { "server" },
    });
    for (name, figure) in FIGURES.iter().zip(figures) {
        value[*name] = json!((figure * 1000.0).round() / 1000.0);
    }
    value
}
