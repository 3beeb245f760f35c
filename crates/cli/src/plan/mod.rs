//! `terrace plan`: what could be saved of a program's memory and what that would cost, before
//! anything of it is moved.
//!
//! 1. [`seen`]: what is known of the program: how much is idle for how long, and how its pages
//!    compress in each tier. It comes from a command (observed to its end), a process that runs
//!    (observed for a while), a report, or a recording.
//! 2. [`terrace_policy::tiering::forecast`]: what tiers come to, by TierScape's equations and
//!    *expected faults*, each at the whole time that the program waits for one.
//! 3. [`choice`]: savings against slowdown over the knob and over sets of tiers, three settings,
//!    and the best set of up to K tiers. [`shown`] tells it.
//!
//! What an input cannot tell is said in a line and not guessed. Everything about tiers that are not
//! in use yet is an estimate.

pub mod args;
mod choice;
mod seen;
mod shown;

use crate::characterize::pages_of_file;
use crate::cost::prices::Prices;
use crate::plan::args::PlanArguments;
use anyhow::{Context, Result, bail, ensure};
use seen::Seen;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

/// Pages of `--data` that are compressed at most.
const DATA_PAGES: usize = 4096;

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &PlanArguments) -> Result<u8> {
    let mut seen = measure(arguments)?;
    if let Some(file) = &arguments.data {
        let pages = pages_of_file(file, DATA_PAGES).with_context(|| file.display().to_string())?;
        seen.compress(&pages, &arguments.tiers);
    }
    let prices = Prices::with(arguments.prices.as_deref(), &arguments.price)?;
    let plan = choice::plan(&seen, arguments, &prices);
    if let Some(path) = &arguments.svg {
        ensure!(!plan.curves.is_empty(), "nothing can be drawn: {}", plan.untold.join("; "));
        std::fs::write(path, shown::picture(&plan).svg_file()?)
            .with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
    } else {
        write!(out, "{}", shown::text(&plan))?;
    }
    Ok(0)
}

fn measure(arguments: &PlanArguments) -> Result<Seen> {
    let Some(of) = &arguments.of else {
        if arguments.command.is_empty() {
            bail!(
                "plan for what? `terrace plan -- CMD` observes a program first, `terrace plan PID` one that runs, `terrace plan FILE` reads a report or a recording"
            );
        }
        return seen::of_report(&observe(arguments)?);
    };
    let pid = of.to_str().and_then(|text| text.parse::<u32>().ok()).filter(|_| !of.exists());
    if let Some(pid) = pid {
        return seen::of_process(pid, arguments.observe.duration(), &arguments.tiers);
    }
    of_file(of).with_context(|| of.display().to_string())
}

/// What a file tells of a program, by what the file begins with.
fn of_file(path: &Path) -> Result<Seen> {
    const NAME: usize = 7;
    let mut magic = [0; 8];
    let mut file = std::fs::File::open(path).context(
        "it cannot be read; `terrace run --observe --report FILE -- CMD` writes one that can",
    )?;
    let read = file.read(&mut magic)?;
    let is = |known: [u8; 8]| read == magic.len() && magic[..NAME] == known[..NAME];
    if is(terrace_trace::counts::MAGIC) {
        return seen::of_counts(path);
    }
    if is(terrace_trace::accesses::MAGIC) {
        return seen::of_accesses(path);
    }
    ensure!(
        !is(terrace_trace::objects::MAGIC),
        "a recording of objects says nothing of pages: record with `terrace record -o FILE -- CMD`"
    );
    seen::of_report(&std::fs::read_to_string(path)?)
}

/// Runs the command to its end and gives its report.
fn observe(arguments: &PlanArguments) -> Result<String> {
    let report = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    if arguments.json {
        // What the program writes must not be in the JSON.
        command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    }
    let status = command
        .args(["run", "--observe", "--tiers", &arguments.tiers, "--report"])
        .arg(report.path())
        .arg("--")
        .args(&arguments.command)
        .status()?;
    // It may well be ended by a signal, as a server is.
    let text = std::fs::read_to_string(report.path())?;
    ensure!(!text.is_empty(), "it was not observed ({status})");
    Ok(text)
}
