//! Allocators side by side: the time and memory of programs with each. They are the C library's,
//! the system's jemalloc, mimalloc and tcmalloc, and Terrace's, by size and by context.
//!
//! The tests are written in the manner of the known suites (`larson`, `xmalloc-test`, `mstress`,
//! `cfrac`, and others), beside whole programs. Bars, against jemalloc where nothing else is said:
//!
//! - by size: at most 1.05 times the time and 1.15 times the peak memory (geometric means);
//! - by context: at most 1.05 times the time with whole programs, and 2.5 times with the tightest
//!   pair;
//! - a pair: at most 20 ns, beside what a context costs;
//! - loading a B-tree: at most 1.05 times.

mod allocator;
mod cfrac;
mod natural;
mod object;
mod program;
mod single;
mod table;
mod tests;
mod threads;
mod whole;

use crate::interrupt;
use crate::results;
use allocator::Allocator;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use program::{launch, run as run_program};
pub use tests::Test;
use tests::{GROUPS, Group};

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats of each side
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Only these
    #[arg(long, value_delimiter = ',')]
    tests: Vec<Test>,
    /// Only these (`library` is not among them by default: libterrace.so preloaded, without
    /// `terrace run`)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = allocator::ALL)]
    sides: Vec<Allocator>,
    /// How much each test does; with 1 most take a second or two
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// From the test's beginning to its end, or from a whole program's start to its end.
    seconds: f64,
    /// CPU time of all threads of the process, s. A whole program's children are included.
    cpu_s: f64,
    /// Peak resident memory, bytes.
    peak_bytes: f64,
    /// Pairs of malloc and free, where they are counted.
    operations: f64,
}

impl From<Value> for Run {
    fn from(value: Value) -> Run {
        let of = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
        Run {
            seconds: of("seconds"),
            cpu_s: of("cpu_s"),
            peak_bytes: of("peak_bytes"),
            operations: of("operations"),
        }
    }
}

/// Time after which a run has failed.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs a program and returns what it prints. It and all that it started are ended when it takes
/// too long.
fn output_within(mut command: Command) -> anyhow::Result<String> {
    let (mut output, mut errors): (File, File) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .process_group(0);
    let mut child =
        command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > LONGEST || interrupt::came() {
            // SAFETY: no pointers; the group that it was started as.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            child.wait()?;
            interrupt::check()?;
            anyhow::bail!("it took longer than {LONGEST:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = |file: &mut File| -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (said, complaints) = (text(&mut output)?, text(&mut errors)?);
    let shown: Vec<&str> =
        complaints.lines().filter(|line| !line.trim().is_empty()).take(4).collect();
    anyhow::ensure!(status.success(), "{status}: {}", shown.join(" | "));
    Ok(said)
}

/// The runs of a test: by side, in the order of the rounds.
struct Found {
    test: Test,
    runs: BTreeMap<&'static str, Vec<Run>>,
    /// Why a side cannot run the test, by the side's name.
    failed: BTreeMap<&'static str, String>,
}

impl Found {
    /// The median over the rounds of what a side takes, divided by what the other does in the same
    /// round.
    fn ratio(&self, side: Allocator, base: Allocator, of: fn(&Run) -> f64) -> f64 {
        let (Some(with), Some(without)) = (self.runs.get(side.name()), self.runs.get(base.name()))
        else {
            return f64::NAN;
        };
        results::median(
            &with
                .iter()
                .zip(without)
                .map(|(with, without)| of(with) / of(without))
                .collect::<Vec<_>>(),
        )
    }

    /// The median of a figure over a side's runs.
    fn of(&self, side: Allocator, of: fn(&Run) -> f64) -> f64 {
        self.runs
            .get(side.name())
            .map_or(f64::NAN, |runs| results::median(&runs.iter().map(of).collect::<Vec<_>>()))
    }

    fn json(&self) -> Value {
        let sides: serde_json::Map<String, Value> = self
            .runs
            .iter()
            .map(|(side, runs)| {
                let of = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
                let figures = json!({
                    "seconds": of(|run| run.seconds), "cpu_s": of(|run| run.cpu_s),
                    "peak_bytes": of(|run| run.peak_bytes),
                    "operations": runs.first().map(|run| run.operations),
                });
                ((*side).into(), figures)
            })
            .collect();
        json!({
            "test": self.test.name(), "group": self.test.group().title(), "sides": sides,
            "failed": self.failed,
        })
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut sides = options.sides.clone();
    sides.retain(|side| match side.missing() {
        Some(why) => {
            println!("without the side `{}`: {why}", side.name());
            false
        }
        None => true,
    });
    let tests = if options.tests.is_empty() { Test::all() } else { options.tests.clone() };
    let base = if sides.contains(&Allocator::Jemalloc) {
        Allocator::Jemalloc
    } else {
        *sides.first().context("no sides")?
    };
    let versions: serde_json::Map<String, Value> =
        sides.iter().map(|side| (side.name().into(), json!(side.version()))).collect();
    println!(
        "Allocators: to {} = 1, medians of {} interleaved repeats, scale {}; {}\n",
        base.name(),
        options.repeats,
        options.scale,
        sides
            .iter()
            .map(|side| format!("{} {}", side.name(), side.version()))
            .collect::<Vec<_>>()
            .join(", ")
    );
    // A short round before shows which sides can do it, and fills caches.
    let (short, full) =
        (whole::Inputs::new(options.scale.min(0.05))?, whole::Inputs::new(options.scale)?);
    let mut found = Vec::new();
    for test in tests {
        found.push(measure(options, test, &sides, &short, &full)?);
        print!(".");
        std::io::stdout().flush()?;
    }
    println!("\n");
    let means = table::print(&found, &sides, base);
    let tests: Vec<Value> = found.iter().map(Found::json).collect();
    let figures = json!({
        "scale": options.scale, "repeats": options.repeats, "base": base.name(),
        "versions": versions, "tests": tests, "to_base": means,
    });
    results::write("malloc", figures)
}

fn measure(
    options: &Options,
    test: Test,
    sides: &[Allocator],
    short: &whole::Inputs,
    full: &whole::Inputs,
) -> anyhow::Result<Found> {
    let mut found = Found { test, runs: BTreeMap::new(), failed: BTreeMap::new() };
    for round in 0..=options.repeats {
        // Every second one goes backwards: what drifts meets all sides alike.
        let mut order = sides.to_vec();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            if found.failed.contains_key(side.name()) {
                continue;
            }
            interrupt::check()?;
            let (inputs, scale) =
                if round == 0 { (short, options.scale.min(0.05)) } else { (full, options.scale) };
            let run = if test.group() == Group::Whole {
                inputs.run(test, side)
            } else {
                run_own(test, side, scale)
            };
            match run {
                Ok(run) if round > 0 => found.runs.entry(side.name()).or_default().push(run),
                Ok(_) => {}
                Err(error) => {
                    interrupt::check()?;
                    println!("{} failed with {}: {error:#}", test.name(), side.name());
                    found.runs.remove(side.name());
                    found.failed.insert(side.name(), format!("{error:#}"));
                }
            }
        }
    }
    Ok(found)
}

/// Runs a test of ours.
fn run_own(test: Test, side: Allocator, scale: f64) -> anyhow::Result<Run> {
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let command = side.command(
        &test.cpus(),
        &[&own, "malloc-program", test.name(), &scale.to_string()],
        false,
    )?;
    Ok(serde_json::from_str::<Value>(&output_within(command)?)?.into())
}
