//! `terrace load kv`: fills a memcached or redis server and loads it, and checks every answer.
//!
//! Nothing of Terrace is in it: it is the client of measurements, and of anyone who wants to see
//! what a server does under it. One thread, a closed loop or an open one, the same data for the same
//! seed.

mod accesses;
pub mod args;
mod client;
pub mod memory;
mod protocol;
mod tally;
mod target;
mod text;
mod values;
mod versions;

pub use protocol::Protocol;

use crate::say;
pub use accesses::Workload;
use accesses::{Accesses, Mix, Operation};
use anyhow::{Context as _, Result, bail};
use args::{KvArguments, Phase};
use client::{Client, Plan};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tally::Figures;
use values::Values;
use versions::Ledger;

/// Requests on the way on each connection during the fill, which is not measured.
const FILL_DEPTH: usize = 64;
/// Exit status where the server, or memory, answered something that it should not have.
const WRONG: u8 = 1;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Version of Terrace.
    pub version: &'static str,
    /// Where the server is.
    pub target: String,
    /// How it was talked to.
    pub protocol: &'static str,
    /// As asked for.
    pub items: u64,
    /// As asked for.
    pub value_bytes: usize,
    /// As asked for.
    pub seed: u64,
    /// As asked for.
    pub order: u64,
    /// As asked for.
    pub theta: f64,
    /// As asked for.
    pub clustered: bool,
    /// Share of GETs from 0 to 1, as asked for.
    pub get_share: f64,
    /// Share of GETs that a SET follows.
    pub update_share: f64,
    /// Share of SETs of new items.
    pub insert_share: f64,
    /// As asked for.
    pub jump_every: Option<u64>,
    /// Operations a second, as asked for.
    pub rate: Option<f64>,
    /// As asked for.
    pub connections: usize,
    /// As asked for.
    pub depth: usize,
    /// As asked for.
    pub warm_up_s: f64,
    /// Writing all items, if that was asked for.
    pub fill: Option<Figures>,
    /// The measured part, if that was asked for.
    pub run: Option<Figures>,
    /// CPU time of this client per time of the measured part. Near 1 the client is the limit, not
    /// the server.
    pub client_cpu_share: Option<f64>,
}

/// Runs the command; the result is the exit status.
pub fn run(arguments: &KvArguments) -> Result<u8> {
    if arguments.truth.is_some() && arguments.phase == Phase::Fill {
        bail!("--truth counts what is measured, and with --phase fill nothing is");
    }
    let truth = truth_file(arguments.truth.as_deref())?;
    let filled = arguments.phase != Phase::Run;
    let base = if filled { 0 } else { version_after_earlier_runs() };
    let values = Values::new(arguments.value_bytes, arguments.seed);
    let mix = arguments.workload.map_or(Mix::of_gets(arguments.get_share), Workload::mix);
    let patience = Duration::from_secs_f64(arguments.patience);
    let protocol = match arguments.protocol {
        Some(protocol) => protocol,
        None => arguments.target.protocol(patience)?,
    };
    let mut outcome = Outcome {
        version: env!("CARGO_PKG_VERSION"),
        target: arguments.target.to_string(),
        protocol: protocol.name(),
        items: arguments.items,
        value_bytes: arguments.value_bytes,
        seed: arguments.seed,
        order: arguments.order,
        theta: arguments.theta,
        clustered: arguments.clustered,
        get_share: mix.gets,
        update_share: mix.updates,
        insert_share: mix.inserts,
        jump_every: arguments.jump_every,
        rate: arguments.rate,
        connections: arguments.connections,
        depth: arguments.depth,
        warm_up_s: arguments.warm_up,
        fill: None,
        run: None,
        client_cpu_share: None,
    };
    let ledger = Ledger::new(arguments.items, base);
    let mut client = Client::connect(
        &arguments.target,
        arguments.connections,
        protocol,
        values,
        ledger,
        patience,
    )?;
    if arguments.unchecked {
        client = client.unchecked();
    }
    let mut right = true;
    let tell = !arguments.json;
    if filled {
        let plan = Plan { depth: FILL_DEPTH, until: None, rate: None, tell };
        let tally = client.run(&mut (0..arguments.items).map(Operation::Set), plan)?;
        right &= tally.is_right();
        outcome.fill = Some(tally.figures());
    }
    if right && arguments.phase != Phase::Fill {
        let mut accesses =
            Accesses::new(arguments.items, arguments.theta, mix, arguments.seed, arguments.order)
                .jumping(arguments.jump_every);
        if arguments.clustered {
            accesses = accesses.clustered();
        }
        let warm_up = Duration::from_secs_f64(arguments.warm_up);
        let plan = |until: Option<Duration>| Plan {
            depth: arguments.depth,
            until: until.map(|seconds| Instant::now() + seconds),
            rate: arguments.rate,
            tell,
        };
        if !warm_up.is_zero() {
            let tally = client.run(&mut accesses, plan(Some(warm_up)))?;
            right &= tally.is_right();
        }
        // Those that were not carried out any more are few: one for each request on the way.
        let mut asked = vec![0u64; if truth.is_some() { arguments.items as usize } else { 0 }];
        let mut accesses = accesses.inspect(|operation| {
            if let Some(count) = asked.get_mut(operation.item() as usize) {
                *count += 1;
            }
        });
        let cpu_before = terrace_os::thread_cpu_ns();
        let tally = match arguments.operations {
            Some(operations) => {
                client.run(&mut accesses.by_ref().take(operations as usize), plan(None))?
            }
            None => {
                let seconds = Duration::from_secs_f64(arguments.seconds);
                client.run(&mut accesses, plan(Some(seconds)))?
            }
        };
        let cpu_s = (terrace_os::thread_cpu_ns() - cpu_before) as f64 / 1e9;
        right &= tally.is_right();
        let figures = tally.figures();
        outcome.client_cpu_share = (figures.seconds > 0.0).then(|| cpu_s / figures.seconds);
        outcome.run = Some(figures);
        drop(accesses);
        if let Some(file) = truth {
            write_truth(file, &serde_json::json!({ "operations": asked }))?;
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

/// Opened before the work: whoever asked for it wants it.
fn truth_file(path: Option<&Path>) -> Result<Option<File>> {
    path.map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()
}

/// All of it, or an error.
fn write_truth(file: File, truth: &impl Serialize) -> Result<()> {
    let mut writer = BufWriter::new(file);
    let written = serde_json::to_writer(&mut writer, truth)
        .map_err(io::Error::from)
        .and_then(|()| writer.flush());
    written.context("cannot write the truth (--truth)")
}

/// Versions of a run that did not fill the server begin after those of all that came before it.
fn version_after_earlier_runs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
}
