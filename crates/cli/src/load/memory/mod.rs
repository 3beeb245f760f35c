//! `terrace load memory`: touches its own memory in a known way for a given time, to show what a
//! policy makes of it.
//!
//! `terrace run --dram 50% -- terrace load memory jump` is the whole experiment. All that is read
//! is checked.

mod elements;
mod graph;
pub mod pattern;
mod program;
mod tree;
mod truth;

use super::{WRONG, truth_file, write_truth};
use crate::load::args::MemoryArguments;
use crate::quantity::bytes;
use crate::say;
use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use elements::{ELEMENT, Elements};
use graph::Graph;
pub use pattern::Load;
use program::Program;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use terrace_sim::patterns::ELEMENTS_LEAST;
use tree::Tree;
use truth::Truth;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    version: &'static str,
    pattern: String,
    bytes: u64,
    threads: usize,
    seed: u64,
    theta: f64,
    change_every_s: f64,
    fill_s: f64,
    /// Duration of the load in s, without the fill.
    seconds: f64,
    accesses: u64,
    accesses_per_s: f64,
    wrong: u64,
    interval_s: f64,
    /// Accesses a second in each interval.
    over_time: Vec<f64>,
}

/// What one thread did.
#[derive(Default)]
struct Done {
    wrong: u64,
    writes: u64,
    batches: u64,
    /// Number of the batch from which on something else was hot, and the time of the pattern.
    changes: Vec<(u64, f64)>,
}

/// Runs the command; the result is the exit status.
pub fn run(arguments: &MemoryArguments) -> Result<u8> {
    let least = ELEMENTS_LEAST * ELEMENT as u64;
    // Numbers of elements and of edges have 32 bits.
    let most = if arguments.pattern == Load::Graph { 4 } else { ELEMENT as u64 } << 32;
    if !(least..most).contains(&arguments.size) {
        bail!("--size must be at least {} and less than {}", bytes(least), bytes(most));
    }
    // Asked before: a process that fills memory that is not to be had is ended without a word.
    let mut memory = Vec::<u8>::new();
    let refused = memory.try_reserve_exact(usize::try_from(arguments.size)?).is_err();
    drop(std::hint::black_box(memory));
    if refused {
        bail!("{} of memory are not to be had here: say less (--size)", bytes(arguments.size));
    }
    if arguments.pattern == Load::Graph
        && arguments.threads > Graph::vertices(arguments.size) as usize
    {
        bail!(
            "{} threads are more than the graph has vertices: give it more memory (--size)",
            arguments.threads
        );
    }
    match arguments.pattern {
        Load::Elements(kind) => load(|| Elements::fill(kind, arguments), arguments),
        Load::Tree => load(|| Tree::build(arguments), arguments),
        Load::Graph => load(|| Graph::build(arguments), arguments),
    }
}

fn load<P: Program>(fill: impl FnOnce() -> P, arguments: &MemoryArguments) -> Result<u8> {
    let truth = truth_file(arguments.truth.as_deref())?;
    let begun = Instant::now();
    let program = fill();
    let fill_s = begun.elapsed().as_secs_f64();

    let (end, accesses) = (
        AtomicBool::new(false),
        (0..arguments.threads).map(|_| AtomicU64::new(0)).collect::<Vec<_>>(),
    );
    let interval = Duration::from_secs_f64(arguments.interval);
    let mut over_time = Vec::new();
    let begun = Instant::now();
    let done: Vec<Done> = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(arguments.threads);
        for (thread, accesses) in accesses.iter().enumerate() {
            let (program, end) = (&program, &end);
            let started = std::thread::Builder::new()
                .spawn_scoped(scope, move || go(program, arguments, thread, begun, accesses, end));
            // The others wait for no other thread.
            let started = started.inspect_err(|_| end.store(true, Relaxed));
            threads.push(started.with_context(|| {
                format!("cannot start thread {} of {}", thread + 1, arguments.threads)
            })?);
        }
        let sum = || accesses.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        let (mut before, mut before_at) = (0, begun);
        let whole = Duration::from_secs_f64(arguments.seconds);
        while begun.elapsed() < whole {
            // At multiples of the interval, however late this thread was before.
            let next = interval
                .mul_f64((begun.elapsed().as_secs_f64() / arguments.interval).floor() + 1.0);
            std::thread::sleep(next.min(whole).saturating_sub(begun.elapsed()));
            let (now, now_at) = (sum(), Instant::now());
            // The last one may be too short to say anything.
            if now_at - before_at > interval / 2 {
                over_time.push((now - before) as f64 / (now_at - before_at).as_secs_f64());
                (before, before_at) = (now, now_at);
            }
        }
        end.store(true, Relaxed);
        anyhow::Ok(
            threads
                .into_iter()
                .map(|thread| thread.join().expect("threads do not panic"))
                .collect(),
        )
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let all = accesses.iter().map(|count| count.load(Relaxed)).sum::<u64>();
    let mut wrong: u64 = done.iter().map(|done| done.wrong).sum();
    if arguments.check_all {
        wrong += program.check(done.iter().map(|done| done.writes).sum());
    }
    let outcome = Outcome {
        version: env!("CARGO_PKG_VERSION"),
        pattern: arguments
            .pattern
            .to_possible_value()
            .expect("none is hidden")
            .get_name()
            .to_owned(),
        bytes: program.place().len() as u64,
        threads: arguments.threads,
        seed: arguments.seed,
        theta: arguments.theta,
        change_every_s: arguments.change_every,
        fill_s,
        seconds,
        accesses: all,
        accesses_per_s: all as f64 / seconds,
        wrong,
        interval_s: arguments.interval,
        over_time,
    };
    if let Some(file) = truth {
        write_truth(file, &truth_of(&program, &done))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print!("{}", text(&outcome));
    }
    if wrong > 0 {
        say(&format!("{wrong} times something was not what had been written: memory was damaged"));
        return Ok(WRONG);
    }
    Ok(0)
}

/// The load of one thread.
fn go<P: Program>(
    program: &P,
    arguments: &MemoryArguments,
    thread: usize,
    begun: Instant,
    accesses: &AtomicU64,
    end: &AtomicBool,
) -> Done {
    let mut way = program.way(thread, arguments.threads);
    let mut done = Done::default();
    while !end.load(Relaxed) {
        let seconds = begun.elapsed().as_secs_f64();
        if program.at(&mut way, seconds) && arguments.truth.is_some() {
            done.changes.push((done.batches, seconds));
        }
        let batch = program.batch(&mut way, &mut ());
        done.wrong += batch.wrong;
        done.writes += batch.writes;
        done.batches += 1;
        accesses.fetch_add(batch.accesses, Relaxed);
    }
    done
}

/// Goes the threads' ways again, batch by batch in turn.
fn truth_of<P: Program>(program: &P, done: &[Done]) -> Truth {
    let mut truth = Truth::new(program.place());
    let mut ways: Vec<_> = (0..)
        .zip(done)
        .map(|(thread, of)| (program.way(thread, done.len()), of.changes.iter().peekable()))
        .collect();
    for batch in 0..done.iter().map(|done| done.batches).max().unwrap_or(0) {
        for ((way, changes), _) in
            ways.iter_mut().zip(done).filter(|(_, done)| batch < done.batches)
        {
            if let Some((_, seconds)) = changes.next_if(|change| change.0 == batch) {
                program.at(way, *seconds);
            }
            program.batch(way, &mut truth);
        }
    }
    truth
}

fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "{}: {}, {} threads, seed {}\n  filled in {:.1}s, loaded for {:.1}s: {:.2} million accesses a second\n",
        outcome.pattern,
        bytes(outcome.bytes),
        outcome.threads,
        outcome.seed,
        outcome.fill_s,
        outcome.seconds,
        outcome.accesses_per_s / 1e6,
    );
    // A line a second at most.
    let a_line = (1.0 / outcome.interval_s).round().max(1.0) as usize;
    let most = outcome.over_time.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    for (line, part) in outcome.over_time.chunks(a_line).enumerate() {
        let rate = part.iter().sum::<f64>() / part.len() as f64;
        let at = (line * a_line) as f64 * outcome.interval_s;
        text += &format!(
            "  {at:>6.1}s {:>8.2} M/s {}\n",
            rate / 1e6,
            "#".repeat((rate / most * 50.0) as usize)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use crate::load::args::{LoadArguments, LoadKind};
    use clap::Parser as _;
    use terrace_sim::patterns::Kind;

    /// Arguments as on a command line, with this pattern and size.
    pub fn arguments(pattern: &str, size: u64) -> MemoryArguments {
        let cli = Arguments::parse_from([
            "terrace",
            "load",
            "memory",
            pattern,
            "--size",
            &size.to_string(),
        ]);
        match cli.command {
            Command::Load(LoadArguments { kind: LoadKind::Memory(arguments) }) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_load_has_a_name() {
        for load in Load::value_variants() {
            let name = load.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(arguments(&name, 1 << 20).pattern, *load);
        }
    }

    #[test]
    fn a_way_can_be_gone_again() {
        fn twice<P: Program>(program: &P) {
            let mut done = [0, 1].map(|_| Done { batches: 50, ..Done::default() });
            done[1].batches = 70;
            let [first, again] =
                [0, 1].map(|_| serde_json::to_value(truth_of(program, &done)).unwrap());
            assert_eq!(first, again);
        }
        twice(&Elements::fill(Kind::Chase, &arguments("chase", 1 << 20)));
        twice(&Tree::build(&arguments("btree", 1 << 20)));
        twice(&Graph::build(&arguments("graph", 1 << 20)));
    }
}
