//! `terrace load kv`: fills a memcached or redis server and loads it, and checks every answer.
//!
//! Nothing of Terrace is in it: it is the client of measurements, and shows what a server does
//! under Terrace. It has one thread or several, a closed loop or an open one, the same data for the
//! same seed.

mod accesses;
pub mod args;
mod client;
pub mod memory;
mod numbers;
mod protocol;
mod tally;
mod target;
mod text;
mod threads;
mod values;
mod versions;

pub use protocol::Protocol;

use crate::say;
pub use accesses::Workload;
use accesses::{Accesses, Mix, Operation, Popularity};
use anyhow::{Context as _, Result, bail, ensure};
use args::{Keys, KvArguments, Phase};
use client::Client;
use numbers::Numbers;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tally::Figures;
use threads::Load;
use values::Values;
use versions::Ledger;

/// Requests on the way on each connection during the fill, which is not measured.
const FILL_DEPTH: usize = 64;
/// Bit at which a thread's number stands in the number that settles the order of its accesses.
const THREAD_SHIFT: u32 = 48;
/// Exit status where the server, or memory, answered something that it should not have.
const WRONG: u8 = 1;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Version of Terrace.
    pub version: &'static str,
    /// Where the server is.
    pub target: String,
    /// Protocol of the connections.
    pub protocol: &'static str,
    /// Number of items, as asked for.
    pub items: u64,
    /// Bytes of a value, as asked for.
    pub value_bytes: Numbers,
    /// Percentage of each value that does not compress, as asked for.
    pub incompressible: Numbers,
    /// Seed from which all data are made, as asked for.
    pub seed: u64,
    /// Number that settles the order of accesses with the seed, as asked for.
    pub order: u64,
    /// How popular items are.
    pub keys: Keys,
    /// Exponent of the Zipf distribution, as asked for.
    pub theta: f64,
    /// The deviation of a normal distribution as a share of the items, as asked for.
    pub sigma: f64,
    /// Whether popular items are those that were written first, as asked for.
    pub clustered: bool,
    /// Share of GETs from 0 to 1, as asked for.
    pub get_share: f64,
    /// Share of GETs that a SET follows.
    pub update_share: f64,
    /// Share of SETs of new items.
    pub insert_share: f64,
    /// Number of operations after which other items are popular, as asked for.
    pub jump_every: Option<u64>,
    /// Operations a second, as asked for.
    pub rate: Option<f64>,
    /// Number of threads, as asked for.
    pub threads: usize,
    /// Number of connections, as asked for.
    pub connections: usize,
    /// Requests on the way on each connection, as asked for.
    pub depth: usize,
    /// Time to load before measuring, in s, as asked for.
    pub warm_up_s: f64,
    /// Writing all items, if that was asked for.
    pub fill: Option<Figures>,
    /// The measured part, if that was asked for.
    pub run: Option<Figures>,
    /// CPU time of this client per time of the measured part and thread. Near 1 the client is the
    /// limit, not the server.
    pub client_cpu_share: Option<f64>,
}

/// Runs the command; the result is the exit status.
pub fn run(arguments: &KvArguments) -> Result<u8> {
    if arguments.truth.is_some() && arguments.phase == Phase::Fill {
        bail!("--truth counts what is measured, and with --phase fill nothing is");
    }
    ensure!(
        arguments.connections >= arguments.threads,
        "--threads {}: each thread needs a connection, and there are {}; raise --connections",
        arguments.threads,
        arguments.connections,
    );
    ensure!(
        arguments.jump_every.is_none() || arguments.keys != Keys::Latest,
        "--jump-every: the latest items are popular with --keys latest; leave one of them out"
    );
    let truth = truth_file(arguments.truth.as_deref())?;
    let filled = arguments.phase != Phase::Run;
    let base = if filled { 0 } else { version_after_earlier_runs() };
    let (lengths, random) = (arguments.value_bytes.clone(), arguments.incompressible.clone());
    let values = Values::new(lengths, random, arguments.seed);
    let mix = arguments.workload.map_or(Mix::of_gets(arguments.get_share), Workload::mix);
    let timeout = Duration::from_secs_f64(arguments.timeout);
    let protocol = match arguments.protocol {
        Some(protocol) => protocol,
        None => arguments.target.protocol(timeout)?,
    };
    let mut outcome = Outcome {
        version: env!("CARGO_PKG_VERSION"),
        target: arguments.target.to_string(),
        protocol: protocol.name(),
        items: arguments.items,
        value_bytes: arguments.value_bytes.clone(),
        incompressible: arguments.incompressible.clone(),
        seed: arguments.seed,
        order: arguments.order,
        keys: arguments.keys,
        theta: arguments.theta,
        sigma: arguments.sigma,
        clustered: arguments.clustered,
        get_share: mix.gets,
        update_share: mix.updates,
        insert_share: mix.inserts,
        jump_every: arguments.jump_every,
        rate: arguments.rate,
        threads: arguments.threads,
        connections: arguments.connections,
        depth: arguments.depth,
        warm_up_s: arguments.warm_up,
        fill: None,
        run: None,
        client_cpu_share: None,
    };
    let ledger = Arc::new(Ledger::new(arguments.items, base));
    let threads = arguments.threads;
    let open = |number: usize| -> Result<Client> {
        let connections = share(arguments.connections as u64, threads, number) as usize;
        let (values, ledger) = (values.clone(), Arc::clone(&ledger));
        let client =
            Client::connect(&arguments.target, connections, protocol, values, ledger, timeout)?;
        Ok(if arguments.unchecked { client.unchecked() } else { client })
    };
    let mut clients = (0..threads).map(open).collect::<Result<Vec<_>>>()?;
    let mut right = true;
    let tell = io::stderr().is_terminal();
    if filled {
        let load = Load { depth: FILL_DEPTH, until: None, rate: None, tell };
        let of = |number| (number as u64..arguments.items).step_by(threads).map(Operation::Set);
        let mut operations: Vec<_> = (0..threads).map(of).collect();
        let (tally, _) = threads::run(&mut clients, &mut operations, load)?;
        right &= tally.is_right();
        outcome.fill = Some(tally.figures());
    }
    if right && arguments.phase != Phase::Fill {
        let mut accesses = accesses(arguments, mix);
        let warm_up = Duration::from_secs_f64(arguments.warm_up);
        let load = |until: Option<Duration>| Load {
            depth: arguments.depth,
            until: until.map(|seconds| Instant::now() + seconds),
            rate: arguments.rate,
            tell,
        };
        if !warm_up.is_zero() {
            let (tally, _) = threads::run(&mut clients, &mut accesses, load(Some(warm_up)))?;
            right &= tally.is_right();
        }
        // Those that were not carried out any more are few: one for each request on the way.
        let counted = if truth.is_some() { arguments.items as usize } else { 0 };
        let mut asked = vec![vec![0u64; counted]; threads];
        let most = |number| match arguments.operations {
            Some(operations) => share(operations, threads, number) as usize,
            None => usize::MAX,
        };
        let mut operations: Vec<_> = accesses
            .iter_mut()
            .zip(&mut asked)
            .enumerate()
            .map(|(number, (accesses, asked))| {
                accesses.take(most(number)).inspect(move |operation| {
                    if let Some(count) = asked.get_mut(operation.item() as usize) {
                        *count += 1;
                    }
                })
            })
            .collect();
        let seconds = Duration::from_secs_f64(arguments.seconds);
        let load = load(arguments.operations.is_none().then_some(seconds));
        let (tally, cpu_s) = threads::run(&mut clients, &mut operations, load)?;
        drop(operations);
        right &= tally.is_right();
        let figures = tally.figures();
        outcome.client_cpu_share = (figures.seconds > 0.0).then(|| cpu_s / figures.seconds);
        outcome.run = Some(figures);
        if let Some(file) = truth {
            let sum = |item: usize| asked.iter().map(|asked| asked[item]).sum::<u64>();
            let all: Vec<u64> = (0..counted).map(sum).collect();
            write_truth(file, &serde_json::json!({ "operations": all }))?;
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{}", text::text(&outcome));
    }
    if right {
        return Ok(0);
    }
    let trouble = [&outcome.fill, &outcome.run]
        .into_iter()
        .flatten()
        .find_map(|figures| figures.first_trouble.as_deref());
    say(&format!(
        "the server did not answer as it should have: {}. Give it more memory, or fill it with the same --items, --value-bytes and --seed",
        trouble.unwrap_or("during the warm-up")
    ));
    Ok(WRONG)
}

/// Part of `all` for the thread with number `number` of `threads`.
fn share(all: u64, threads: usize, number: usize) -> u64 {
    let threads = threads as u64;
    all / threads + u64::from((number as u64) < all % threads)
}

/// The operations of each thread.
fn accesses(arguments: &KvArguments, mix: Mix) -> Vec<Accesses> {
    let popularity = match arguments.keys {
        Keys::Zipf | Keys::Latest => Popularity::Zipf(arguments.theta),
        Keys::Uniform => Popularity::Zipf(0.0),
        Keys::Gaussian => Popularity::Gaussian(arguments.sigma),
    };
    let jump_every = arguments.jump_every.map(|every| (every / arguments.threads as u64).max(1));
    let mut all: Vec<Accesses> = Vec::new();
    for thread in 0..arguments.threads as u64 {
        // One thread's are those of the same arguments without threads.
        let order = arguments.order ^ thread << THREAD_SHIFT;
        let mut one = Accesses::new(arguments.items, popularity, mix, arguments.seed, order)
            .jumping(jump_every);
        if arguments.clustered {
            one = one.clustered();
        }
        if arguments.keys == Keys::Latest {
            one = one.latest();
        }
        if let Some(first) = all.first() {
            one = one.beside(first);
        }
        all.push(one);
    }
    all
}

/// Opens the file of `--truth` before the work, so that an error comes first.
fn truth_file(path: Option<&Path>) -> Result<Option<File>> {
    path.map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()
}

/// Writes all of the truth into the file, or gives an error.
fn write_truth(file: File, truth: &impl Serialize) -> Result<()> {
    let mut writer = BufWriter::new(file);
    let written = serde_json::to_writer(&mut writer, truth)
        .map_err(io::Error::from)
        .and_then(|()| writer.flush());
    written.context("cannot write the truth (--truth)")
}

/// First version of a run that did not fill the server: after those of all earlier runs.
fn version_after_earlier_runs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
}
