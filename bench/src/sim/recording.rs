//! Recordings, simulated from their compressed files. Reading, decompressing and decoding are part
//! of the time. They are done by the same thread or, as `terrace sim` does where CPUs are idle, by
//! a thread beside it.

use super::{Options, collected, named, timed};
use crate::results::median;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;
use terrace_sim::ahead::Ahead;
use terrace_sim::generators::Generator;
use terrace_sim::machine::{Machine, PAGE};
use terrace_sim::pass;
use terrace_sim::recorded::Recorded;
use terrace_sim::simulation::{Settings, Simulation};
use terrace_sim::source::{Access, Source};
use terrace_trace::accesses::{Clock, Header, Page, Writer};

/// Bytes that all units together play, as in `terrace sim`, with ten thousand units' worth of
/// samples.
const PLAYS: f64 = (20u64 << 30) as f64;

/// Names of the recordings that are made here: a stream without any locality but which pages are
/// popular, and lookups in a tree. The tree's inner nodes lie together.
const MADE: [&str; 2] = ["scattered", "btree"];
/// Pages of a recording that is made here, as many as a small program has.
const PAGES: u32 = 65_536;

/// Measures all recordings under the first policy; returns a row for each.
pub fn run(options: &Options) -> anyhow::Result<Vec<Value>> {
    let policy = options.policies.first().context("a policy")?;
    println!(
        "Recordings under {policy}: millions of accesses a second from memory, and from the compressed file by one thread and by two\n"
    );
    println!(
        "{:>10} {:>9} {:>9} {:>14} {:>9} {:>9} {:>7} {:>9} {:>7} {:>12}",
        "recording",
        "million",
        "units",
        "bytes a record",
        "memory",
        "file",
        "ratio",
        "2 threads",
        "ratio",
        "decoded only"
    );
    let scratch = tempfile::tempdir()?;
    let mut files = Vec::new();
    for name in MADE {
        let path = scratch.path().join(name);
        record(
            &collected(&mut Generator::parse(name, PAGES, options.accesses)?.stream(1))?,
            &path,
        )?;
        files.push(path);
    }
    files.extend(options.trace.iter().cloned());
    files.iter().map(|path| row(path, policy, options)).collect()
}

fn row(path: &PathBuf, policy: &str, options: &Options) -> anyhow::Result<Value> {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let [mut memory, mut file, mut two, mut decoded] = [const { Vec::new() }; 4];
    let mut source = Recorded::open(path, PAGE)?;
    let units = source.units();
    let all = collected(&mut source)?;
    if let Some(why) = source.ends_early().why() {
        anyhow::bail!("{}: {why}; give one that is whole", path.display());
    }
    for _ in 0..options.repeats {
        // To the end: from a file it is not ended before either.
        let (rate, simulation) = timed(&all, simulation(units, policy)?, f64::INFINITY);
        black_box(simulation.finish());
        memory.push(rate);
        file.push(from_file(path, policy, all.len(), false)?);
        two.push(from_file(path, policy, all.len(), true)?);
        decoded.push(decode(path, &all)?);
    }
    let bytes = std::fs::metadata(path)?.len() as f64 / all.len() as f64;
    let [in_memory, from_file, by_two, decoding] =
        [&memory, &file, &two, &decoded].map(|rates| median(rates));
    println!(
        "{name:>10} {:>9.1} {units:>9} {bytes:>14.2} {:>9.0} {:>9.0} {:>7.2} {:>9.0} {:>7.2} {:>12.0}",
        all.len() as f64 / 1e6,
        in_memory / 1e6,
        from_file / 1e6,
        from_file / in_memory,
        by_two / 1e6,
        by_two / in_memory,
        decoding / 1e6
    );
    Ok(json!({
        "recording": name, "policy": policy, "records": all.len(), "units": units,
        "bytes_a_record": bytes, "memory_per_s": in_memory, "file_per_s": from_file,
        "ratio": from_file / in_memory, "decoded_per_s": decoding, "memory_per_s_of_each": memory,
        "file_per_s_of_each": file,
        "two_threads_per_s": by_two, "two_threads_ratio": by_two / in_memory,
        "two_threads_per_s_of_each": two,
    }))
}

/// A simulation such as `terrace sim` makes for a recording, with a quarter of the pages fast.
fn simulation(units: u32, policy: &str) -> anyhow::Result<Simulation> {
    let machine = Machine::preset("optane").context("no such machine")?;
    let settings = Settings {
        unit_bytes: PLAYS / f64::from(units),
        capacity: units / 4,
        populated: false,
        ..Settings::new(machine, units)
    };
    let policy = named(policy, &settings.parameters(f64::from(units) / 10_240.0))?;
    Ok(Simulation::new(settings, policy))
}

fn from_file(path: &Path, policy: &str, records: usize, ahead: bool) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let source: Box<dyn Source> = Box::new(Recorded::open(path, PAGE)?);
    let mut source = if ahead { Box::new(Ahead::new(source)) } else { source };
    let mut simulations = [simulation(source.units(), policy)?];
    pass::run(source.as_mut(), &mut simulations, &mut |_| ())?;
    let rate = records as f64 / begun.elapsed().as_secs_f64();
    let [simulation] = simulations;
    let found = simulation.finish().total.accesses;
    anyhow::ensure!(found == records as u64, "{found} of {records} records were simulated");
    Ok(rate)
}

/// Decodes the file alone. Returns records a second.
fn decode(path: &Path, all: &[Access]) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut source = Recorded::open(path, PAGE)?;
    let mut block = Vec::new();
    let mut records = 0;
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            break;
        }
        anyhow::ensure!(
            block.last() == all.get(records + block.len() - 1),
            "the file was read as something else"
        );
        records += black_box(&block).len();
    }
    Ok(records as f64 / begun.elapsed().as_secs_f64())
}

/// Writes a recording of these accesses.
fn record(all: &[Access], path: &Path) -> anyhow::Result<()> {
    let header = Header {
        terrace: env!("CARGO_PKG_VERSION").into(),
        command: vec!["generated".into()],
        source: "hooks".into(),
        clock: Clock::Accesses,
        period: 1,
        rate_hz: 0,
        writes: true,
        cache: None,
        page_bytes: PAGE,
    };
    let mut writer = Writer::create(path, &header, u64::MAX)?;
    for (clock, access) in (0..).zip(all) {
        writer.append(
            Page { process: 1, number: u64::from(access.unit()) },
            access.is_write(),
            clock,
        )?;
    }
    writer.finish(all.len() as u64)?;
    Ok(())
}
