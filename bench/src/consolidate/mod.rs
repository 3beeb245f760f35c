//! Objects that move, over zram alone: a map in a control group that has a share of its memory.
//! Entries are scattered, consolidated while the program runs (all costs included), or laid out by
//! an oracle.
//!
//! The share is of what the scattered map takes where nothing limits it, index and marks included.
//! Every value is checked. Speeds are of the last third of a run, when consolidation has settled;
//! the JSON has every second. Times of the owner's lookups include the steps between lookups.
//! Seconds in which objects moved are told apart from seconds in which next to none did.
//!
//! With `--jump` other keys are hot from half-time on. Then the time until pages are used as well
//! as before is told, and what moves for it.

mod followed;
mod program;

use crate::objects::start;
use crate::results::{self, median};
use crate::servers::group::Group;
use crate::{interrupt, machine};
use clap::ValueEnum as _;
use program::{Layout, Structure};
use serde_json::{Value, json};
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use terrace_testkit::zram::Zram;

pub use program::{Task, run as run_program};

const MIB: f64 = (1 << 20) as f64;

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved repeats
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Keys
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    value: usize,
    /// Exponent of Zipf's law
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Seconds of a run
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Percent of its memory that a map has; with 100 it has no limit
    #[arg(long, value_delimiter = ',', default_values_t = [100, 50, 30])]
    shares: Vec<u64>,
    /// Structures
    #[arg(long, value_delimiter = ',', default_values = ["chained"])]
    structures: Vec<Structure>,
    /// Most of the thread's time that consolidation may take, percent
    #[arg(long, default_value_t = 2.0)]
    cpu_percent: f64,
    /// Other keys become hot at half-time
    #[arg(long)]
    jump: bool,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    println!(
        "Lookups a second among {} keys, values of {} bytes, Zipf {}, over zram lz4; one CPU, last third of {} s, medians of {} interleaved repeats\n",
        options.keys, options.value, options.theta, options.seconds, options.repeats
    );
    println!(
        "{:>9} {:>5} {:>13} {:>10} {:>9} {:>9} {:>11} {:>11} {:>15}",
        "what",
        "DRAM",
        "entries",
        "per s",
        "to scat.",
        "faults",
        "use of 10 %",
        "use of 20 %",
        "p99.9 us, after"
    );
    let zram = Zram::for_measuring(4 << 30, "lz4")?;
    for structure in &options.structures {
        for share in &options.shares {
            compare(options, *structure, *share, &zram)?;
        }
    }
    Ok(())
}

/// Measures the three layouts of one structure at one share.
fn compare(options: &Options, structure: Structure, share: u64, zram: &Zram) -> anyhow::Result<()> {
    let layouts = Layout::value_variants();
    let mut found: Vec<Vec<Value>> = vec![Vec::new(); layouts.len()];
    let mut whole = None;
    for _ in 0..options.repeats {
        for (layout, found) in layouts.iter().zip(&mut found) {
            interrupt::check()?;
            let (bytes, figures) = once(options, structure, *layout, share, whole, zram)?;
            whole.get_or_insert(bytes);
            found.push(figures);
        }
    }
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map_or(String::new(), |value| value.get_name().to_owned())
    };
    let structure = name(&|| structure.to_possible_value());
    let of = |index: usize, pointer: &str| {
        median(
            &found[index]
                .iter()
                .filter_map(|run| run.pointer(pointer)?.as_f64())
                .collect::<Vec<_>>(),
        )
    };
    for (index, layout) in layouts.iter().enumerate() {
        let (per_s, scattered) = (of(index, "/per_s"), of(0, "/per_s"));
        println!(
            "{structure:>9} {share:>4}% {:>13} {per_s:>10.0} {:>9.2} {:>9.3} {:>4.2} → {:>4.2} {:>4.2} → {:>4.2} {:>7} {:>7}",
            name(&|| layout.to_possible_value()),
            per_s / scattered,
            of(index, "/faults_per_lookup"),
            of(index, "/utilisation_of_tenth/0"),
            of(index, "/utilisation_of_tenth/1"),
            of(index, "/utilisation_of_fifth/0"),
            of(index, "/utilisation_of_fifth/1"),
            shown(of(index, "/times/working/p999_us")),
            shown(of(index, "/times/after/p999_us")),
        );
    }
    if options.jump {
        let runs = &found[1];
        let back = runs.iter().filter(|run| run["jump"]["back_after_s"].is_number()).count();
        println!(
            "{structure:>9} {share:>4}% after the jump: {:.2} → {:.2}; back after {} s in {back} of {} runs; {} MiB moved until then, {} in all",
            of(1, "/jump/utilisation_just_after"),
            of(1, "/jump/utilisation_at_the_end"),
            shown(of(1, "/jump/back_after_s")),
            runs.len(),
            shown(of(1, "/jump/moved_bytes_until_back") / MIB),
            shown(of(1, "/jump/moved_bytes") / MIB),
        );
    }
    std::io::stdout().flush()?;
    let rows: serde_json::Map<String, Value> = layouts
        .iter()
        .zip(found)
        .map(|(layout, runs)| (name(&|| layout.to_possible_value()), json!(runs)))
        .collect();
    results::write(
        &format!(
            "consolidate-{structure}-{}-{share}{}",
            options.value,
            if options.jump { "-jump" } else { "" }
        ),
        json!({
            "keys": options.keys, "value_bytes": options.value, "theta": options.theta,
            "seconds": options.seconds, "dram_percent": share, "whole_bytes": whole,
            "cpu_percent": options.cpu_percent, "jump": options.jump, "runs": rows,
        }),
    )
}

/// A figure as text for the table, if there is one.
fn shown(figure: f64) -> String {
    if figure.is_nan() { "-".into() } else { format!("{figure:.1}") }
}

/// Measures a run: the memory that it takes where nothing limits it, bytes, and its figures.
fn once(
    options: &Options,
    structure: Structure,
    layout: Layout,
    share: u64,
    whole: Option<u64>,
    zram: &Zram,
) -> anyhow::Result<(u64, Value)> {
    let group = Group::create()?;
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let word = |value: Option<clap::builder::PossibleValue>| {
        value.map_or(String::new(), |value| value.get_name().to_owned())
    };
    let Options { keys, value, theta, seconds, cpu_percent, .. } = options;
    let words = format!(
        "consolidate-program --layout {} --structure {} --keys {keys} --value {value} --theta {theta} --seconds {seconds} --cpu-percent {cpu_percent}{}",
        word(layout.to_possible_value()),
        word(structure.to_possible_value()),
        if options.jump { " --jump" } else { "" }
    );
    let words: Vec<&str> = std::iter::once(&*own).chain(words.split(' ')).collect();
    let mut command = machine::pinned(None, &words)?;
    let file = group.processes_file();
    // SAFETY: between fork and exec one file is written.
    unsafe { command.pre_exec(move || std::fs::write(&file, "0")) };
    let (mut child, mut out) = start(command)?;
    let taken = group.meter().usage_bytes()?;
    let zram_before = zram.used_bytes()?;
    if share < 100 {
        group.lower_to(whole.unwrap_or(taken) * share / 100, || match child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the program ended with {status}"),
        })?;
    }
    drop(child.stdin.take());
    let line = helped(&group, || {
        let mut line = String::new();
        out.read_line(&mut line).map(|_| line)
    })?;
    let memory = group.meter().usage_bytes()?;
    let compressed = zram.used_bytes()?.saturating_sub(zram_before);
    anyhow::ensure!(child.wait()?.success(), "the program failed");
    let mut figures: Value = serde_json::from_str(&line)?;
    figures["memory_bytes"] = json!(memory);
    figures["zram_bytes"] = json!(compressed);
    let seconds = figures["seconds"].as_array().cloned().unwrap_or_default();
    for name in ["per_s", "faults_per_lookup"] {
        let last: Vec<f64> = seconds[seconds.len() * 2 / 3..]
            .iter()
            .filter_map(|second| second[name].as_f64())
            .collect();
        figures[name] = json!(last.iter().sum::<f64>() / last.len() as f64);
    }
    Ok((taken, figures))
}

/// Waits for something of a group's process, and gives the group room for a moment whenever the
/// kernel gave up reclaiming.
fn helped<R: Send>(group: &Group, wait: impl FnOnce() -> R + Send) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                group.help();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let result = wait();
        done.store(true, Relaxed);
        result
    })
}
