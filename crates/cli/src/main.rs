//! The `terrace` command: runs programs under Terrace, reads and checks settings, says what this
//! machine allows, loads servers, and reproduces papers' figures.
//!
//! Exit statuses: `run` gives the program's own; 125 is ours, 126 and 127 mean what they mean for
//! `env`. Every message goes to standard error and begins with `terrace: `; standard output belongs
//! to the program, or to what was asked for.

mod args;
mod attach;
mod belief;
mod budget;
mod characterize;
mod child;
mod command_path;
mod compress;
mod config_command;
mod config_file;
mod config_reader;
mod data;
mod disposition;
mod doctor;
mod effective;
mod emphasis;
mod ended;
mod every;
#[cfg(feature = "exact")]
mod exact;
mod figures;
mod generate;
mod going_on;
mod growth;
mod heatmap;
mod idle;
mod inject;
mod interim;
mod keeper;
mod library;
mod load;
mod moves;
mod origin;
mod outlet;
mod outside;
mod placements;
mod plan;
mod prices;
mod process;
mod quantity;
mod reach;
mod record;
mod recording;
mod reference;
mod report;
mod report_file;
mod report_text;
mod reproduce;
mod room;
mod run;
mod run_dir;
mod run_settings;
mod sampling;
mod service;
mod set;
mod sim;
mod sites;
mod solver;
mod status;
mod tco;
mod tiers_report;
mod top;
mod tree;
mod utilisation;
mod values;
mod wake;
mod witness;

use clap::{CommandFactory, Parser};
use load::args::{LoadArguments, LoadKind};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use terrace_sim::workload::WorkloadError;
use terrace_trace::framing::ReadError;

/// Exit status for everything that went wrong on our side, as for `env` and `timeout`.
const OUR_FAULT: u8 = 125;
/// And for a file that was read and is not what it should be.
pub const WRONG_CONTENTS: u8 = 1;

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        let _ = args::Arguments::command().print_long_help();
        return ExitCode::SUCCESS;
    }
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => {
            // --help and --version. A closed standard output is no reason to fail.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.render().to_string();
            say(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return ExitCode::from(OUR_FAULT);
        }
    };
    // Of the others, a pipe that is closed may be a server's.
    let prints = !matches!(
        arguments.command,
        args::Command::Run(_) | args::Command::Record(_) | args::Command::Load(_)
    );
    let status = match arguments.command {
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Attach(arguments) => attach::attach(&arguments),
        args::Command::Detach(arguments) => attach::detach(&arguments),
        args::Command::Config(arguments) => config_command::run(&arguments),
        args::Command::Doctor(arguments) => doctor::run(&arguments),
        args::Command::Generate(arguments) => generate::run(&arguments),
        args::Command::Set(arguments) => set::run(&arguments),
        args::Command::Status(arguments) => status::run(&arguments),
        args::Command::Top(arguments) => top::run(&arguments),
        args::Command::Characterize(arguments) => characterize::run(&arguments),
        args::Command::Plan(arguments) => plan::run(&arguments),
        args::Command::Record(arguments) => record::run(&arguments),
        args::Command::Sim(arguments) => sim::run(&arguments).or_else(not_a_workload),
        args::Command::Solver(arguments) => solver::run(&arguments),
        args::Command::Report(arguments) => report_on(&arguments).or_else(not_a_recording),
        args::Command::Reproduce(arguments) => reproduce::run(&arguments),
        args::Command::Load(LoadArguments { kind: LoadKind::Kv(arguments) }) => {
            load::run(&arguments)
        }
        args::Command::Load(LoadArguments { kind: LoadKind::Memory(arguments) }) => {
            load::memory::run(&arguments)
        }
    };
    ExitCode::from(status.unwrap_or_else(|error| {
        if prints && is_closed_pipe(&error) {
            return 0;
        }
        say(&format!("{error:#}"));
        OUR_FAULT
    }))
}

/// Whether no process reads what was to be printed any more, as behind `| head`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// The exit status where a file was read and is not what it should be; where there is none, the way
/// to one.
fn not_a_recording(error: anyhow::Error) -> anyhow::Result<u8> {
    if is_of_contents(&error) {
        say(&format!("{error:#}"));
        return Ok(WRONG_CONTENTS);
    }
    let kind = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(ReadError::Io(error)) => Some(error.kind()),
        _ => cause.downcast_ref().map(std::io::Error::kind),
    });
    Err(match kind {
        Some(ErrorKind::NotFound) => {
            anyhow::anyhow!("{error:#}; `terrace record -o FILE -- CMD` makes one")
        }
        Some(ErrorKind::IsADirectory) => anyhow::anyhow!("{error:#}; name a file in it"),
        _ => error,
    })
}

/// Likewise for what was to be simulated.
fn not_a_workload(error: anyhow::Error) -> anyhow::Result<u8> {
    match error.downcast_ref() {
        Some(WorkloadError::Contents { .. }) => {
            say(&format!("{error:#}"));
            Ok(WRONG_CONTENTS)
        }
        _ => Err(error),
    }
}

/// Whether a file was read, and is not what it should be.
fn is_of_contents(error: &anyhow::Error) -> bool {
    let of_recording = error.downcast_ref::<ReadError>();
    of_recording.is_some_and(|error| !matches!(error, ReadError::Io(_)))
        || error.downcast_ref::<serde_json::Error>().is_some()
}

fn report_on(arguments: &args::ReportArguments) -> anyhow::Result<u8> {
    match (&arguments.kind, &arguments.recording) {
        (Some(args::ReportKind::Heatmap(arguments)), _) => heatmap::run(arguments),
        (Some(args::ReportKind::Sites(arguments)), _) => sites::show(arguments),
        (Some(args::ReportKind::Utilisation(arguments)), _) => utilisation::show(arguments),
        (Some(args::ReportKind::Tiers(arguments)), _) => tiers_report::run(arguments),
        (Some(args::ReportKind::Wss(arguments)), _) => heatmap::working_set(arguments),
        (Some(args::ReportKind::Export(arguments)), _) => recording::export(arguments),
        (None, Some(arguments)) => recording::show(arguments),
        (None, None) => anyhow::bail!(
            "report what? `terrace report FILE` says what is in a recording; `terrace report --help` has more"
        ),
    }
}

/// One message of ours on standard error; a closed standard error is not an error.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "terrace: {message}");
}
