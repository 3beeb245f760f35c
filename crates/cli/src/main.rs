//! The `terrace` command: runs programs under Terrace, reads and checks settings, says what this
//! machine allows, loads servers, and reproduces papers' figures.
//!
//! Exit statuses: `run` gives the program's own; 125 is ours, 126 and 127 mean what they mean for
//! `env`. Every message goes to standard error and begins with `terrace: `; standard output belongs
//! to the program, or to what was asked for.

mod args;
mod attach;
mod characterize;
mod config;
mod cost;
mod doctor;
mod every;
mod generate;
mod load;
mod plan;
mod processes;
mod quantity;
mod record;
mod report;
mod reproduce;
mod run;
mod run_report;
mod set;
mod sim;
mod solver;
mod status;
mod terminal;
mod top;
mod values;

use clap::{CommandFactory, Parser};
use load::args::{LoadArguments, LoadKind};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use terrace_sim::workload::WorkloadError;

/// Exit status for everything that went wrong on our side, as for `env` and `timeout`.
const OUR_FAULT: u8 = 125;
/// Exit status for a file that was read and is not what it should be.
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
        args::Command::Config(arguments) => config::run(&arguments),
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
        args::Command::Report(arguments) => report::run(&arguments),
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

/// The exit status where a workload was read and is not what it should be; else the error.
fn not_a_workload(error: anyhow::Error) -> anyhow::Result<u8> {
    match error.downcast_ref() {
        Some(WorkloadError::Contents { .. }) => {
            say(&format!("{error:#}"));
            Ok(WRONG_CONTENTS)
        }
        _ => Err(error),
    }
}

/// Writes a message of ours to standard error; a closed standard error is not an error.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "terrace: {message}");
}
