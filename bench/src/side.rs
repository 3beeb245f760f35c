//! A program on several sides: as it is, with jemalloc (what any replaced allocator costs), and
//! under Terrace, sampled or not.

use crate::machine;
use crate::servers::process;
use anyhow::Context;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use terrace_testkit::process::size;

/// What runs beside the measured program: its allocator, and Terrace if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Nothing beside the program: glibc's allocator.
    Alone,
    /// The system's jemalloc.
    Jemalloc,
    /// `terrace run` with a budget that is never near.
    Terrace,
    /// `terrace run` with a budget that is never near, and accesses sampled by the clock.
    Sampled,
    /// Like `Terrace`, but the program keeps its own allocator: glibc's.
    System,
    /// `terrace run` with objects placed by calling context, unsampled.
    Context,
}

impl Side {
    /// Name for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Side::Alone => "alone",
            Side::Jemalloc => "jemalloc",
            Side::Terrace => "terrace",
            Side::Sampled => "sampled",
            Side::System => "system",
            Side::Context => "context",
        }
    }

    /// Whether `terrace run` starts the program.
    pub fn is_under_terrace(self) -> bool {
        self.terrace_flags().is_some()
    }

    /// Sides that there are on this machine, unsampled; prints what is missing.
    pub fn all() -> Vec<Side> {
        if jemalloc().is_none() {
            println!("without the side `jemalloc`: libjemalloc.so.2 is not installed");
        }
        [Side::Alone, Side::Jemalloc, Side::Terrace, Side::System, Side::Context]
            .into_iter()
            .filter(|side| *side != Side::Jemalloc || jemalloc().is_some())
            .collect()
    }

    /// The flags of `terrace run`, where it starts the program.
    pub fn terrace_flags(self) -> Option<&'static [&'static str]> {
        match self {
            Side::Alone | Side::Jemalloc => None,
            Side::Terrace => Some(&["--dram", "16G"]),
            // Without perf events it is not to be measured at all.
            Side::Sampled => Some(&["--dram", "16G", "--strict", "--sampler", "clock"]),
            Side::System => Some(&["--dram", "16G", "--allocator", "system"]),
            Side::Context => {
                Some(&["--dram", "16G", "--sampler", "none", "--allocator", "context"])
            }
        }
    }

    /// A command that runs `program` on this side, all of it on CPU 0.
    pub fn command(self, program: &[&str]) -> anyhow::Result<Command> {
        let mut command = machine::pinned(self.terrace_flags(), program)?;
        command.env("PYTHONHASHSEED", "0").stderr(Stdio::null());
        if self == Side::Jemalloc {
            // taskset has it too, and does nothing with it.
            command.env("LD_PRELOAD", jemalloc().context("no jemalloc")?);
        }
        Ok(command)
    }
}

/// Debian's jemalloc, if it is installed.
pub fn jemalloc() -> Option<PathBuf> {
    installed("libjemalloc.so.2")
}

/// A library of the system's, if it is installed.
pub fn installed(name: &str) -> Option<PathBuf> {
    let directories = ["x86_64-linux-gnu", "aarch64-linux-gnu", "../lib64", ""];
    directories
        .iter()
        .map(|directory| PathBuf::from("/usr/lib").join(directory).join(name))
        .find(|path| path.exists())
}

/// Memory of a program and of what is there for it, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// The program's process: resident, and each shared page in part.
    pub rss: f64,
    pub pss: f64,
    pub anonymous: f64,
    /// Pages of the library's file: text and constants, the same for all processes on the machine.
    pub library_file: f64,
    /// Resident pages of the library that the process has changed, bytes.
    pub library_data: f64,
    /// Terrace's own account: page table, staging, its threads' buffers.
    pub overhead: f64,
    /// The `terrace` process: one for a run.
    pub run_pss: f64,
    pub run_anonymous: f64,
}

impl Footprint {
    /// The figures as JSON.
    pub fn json(&self) -> Value {
        json!({
            "rss_bytes": self.rss, "pss_bytes": self.pss, "anonymous_bytes": self.anonymous,
            "library_file_bytes": self.library_file,
            "library_data_bytes": self.library_data, "overhead_bytes": self.overhead,
            "run_pss_bytes": self.run_pss,
            "run_anonymous_bytes": self.run_anonymous,
        })
    }
}

/// Starts a program that says a line when it holds what it is to hold, and ends when the input
/// does. Measures it `settle` later.
pub fn hold(side: Side, program: &[&str], settle: Duration) -> anyhow::Result<Footprint> {
    let mut child = side.command(program)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let measured = measure(&mut child, side, settle);
    drop(child.stdin.take());
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{program:?} failed on the side {side:?} ({status})");
    measured
}

fn measure(child: &mut Child, side: Side, settle: Duration) -> anyhow::Result<Footprint> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    anyhow::ensure!(!line.is_empty(), "the measured program ended early");
    std::thread::sleep(settle);
    // taskset becomes the program, or `terrace run`, whose child the program is.
    let run = child.id();
    let pid = if side.is_under_terrace() {
        process::child(run).context("terrace run has no child")?
    } else {
        run
    };
    let mut footprint = Footprint::default();
    let all = process::rollup(pid)?;
    (footprint.rss, footprint.pss, footprint.anonymous) =
        (all("Rss"), all("Pss"), all("Anonymous"));
    if side.is_under_terrace() {
        (footprint.library_file, footprint.library_data) = library(pid)?;
        footprint.overhead = process::Page::of(pid)?.overhead_bytes()? as f64;
        let own = process::rollup(run)?;
        (footprint.run_pss, footprint.run_anonymous) = (own("Pss"), own("Anonymous"));
    }
    Ok(footprint)
}

/// Resident bytes of libterrace.so: of the file, and changed.
fn library(pid: u32) -> anyhow::Result<(f64, f64)> {
    let text = terrace_testkit::process::file(pid, "smaps")?;
    let (mut file, mut data, mut inside) = (0.0, 0.0, false);
    for line in text.lines() {
        match size(line).map(|(name, bytes)| (name, bytes as f64)) {
            Some(("Rss", bytes)) if inside => file += bytes,
            Some(("Anonymous", bytes)) if inside => (file, data) = (file - bytes, data + bytes),
            None if line.contains('-') && line.contains(' ') && !line.starts_with("VmFlags") => {
                inside = line.ends_with("libterrace.so")
            }
            _ => {}
        }
    }
    Ok((file, data))
}
