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
mod config_command;
mod config_file;
mod data;
mod disposition;
mod doctor;
mod effective;
mod ended;
mod figures;
mod generate;
mod going_on;
mod growth;
mod heatmap;
mod idle;
mod interim;
mod keeper;
mod library;
mod load;
mod moves;
mod outside;
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
mod shares;
mod sim;
mod sites;
mod slowdown;
mod solver;
mod status;
mod top;
mod tree;
mod wake;
mod witness;

use clap::{CommandFactory, Parser};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use terrace_trace::framing::ReadError;

/// Exit status for everything that went wrong on our side, as for `env` and `timeout`.
const OUR_FAULT: u8 = 125;
/// And for a file that was read and is not what it should be.
const WRONG_CONTENTS: u8 = 1;

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
    let status = match arguments.command {
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Attach(arguments) => attach::attach(&arguments),
        args::Command::Detach(arguments) => attach::detach(&arguments),
        args::Command::Config(arguments) => config_command::run(&arguments),
        args::Command::Doctor(arguments) => doctor::run(&arguments),
        args::Command::Generate(arguments) => generate::run(&arguments),
        args::Command::Status(arguments) => status::run(&arguments),
        args::Command::Top(arguments) => top::run(&arguments),
        args::Command::Characterize(arguments) => characterize::run(&arguments),
        args::Command::Plan(arguments) => plan::run(&arguments),
        args::Command::Record(arguments) => record::run(&arguments),
        args::Command::Sim(arguments) => sim::run(&arguments),
        args::Command::Solver(arguments) => solver::run(&arguments),
        args::Command::Report(arguments) => report_on(&arguments).or_else(not_a_recording),
        args::Command::Reproduce(arguments) => reproduce::run(&arguments),
        args::Command::Load(args::LoadArguments { kind: args::LoadKind::Kv(arguments) }) => {
            load::run(&arguments)
        }
        args::Command::Load(args::LoadArguments { kind: args::LoadKind::Memory(arguments) }) => {
            load::memory::run(&arguments)
        }
    };
    ExitCode::from(status.unwrap_or_else(|error| {
        say(&format!("{error:#}"));
        OUR_FAULT
    }))
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
