//! The command line of `terrace run`; its settings are in the table of `settings.rs`.

use crate::run::settings::Given;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Printed below the options of `--help`.
pub const HELP: &str = "\
The report:
  At the end a short report is written to standard error, and as JSON to the file of --report. Sizes are averages over
  time unless named otherwise; physical includes Terrace's own overhead; the slowdown is an estimate. The figures at
  the top are those of the program itself, but for the budget, which is that of all its processes together; each process
  has an entry of its own under `processes`.

Precedence:
  What the command line says goes before the file of --config, and that goes before the defaults.

Programs out of reach:
  Terrace comes into a program as a preloaded library. Static programs and those for musl do not load it. With root's
  rights they are attached to as they start, as with --inject, and have dram and one compressed tier. 32-bit, setuid and
  file-capability programs stay out of reach. That is said in one line, and the program runs unmanaged (with --strict it
  is not started).

Daemons:
  Where managed processes go on after the program, `terrace run` ends with the program's status and says so. A process
  `terrace-keeper` divides the budget on, and writes the file of --report again when the last has ended. The text follows
  then only where standard error is a file or the journal. With --wait `terrace run` stays until then.

Signals:
  Signals sent to `terrace run` go on to the program; those of the terminal reach it directly. If the program dies of a
  signal, so does `terrace run`, after the report.

Environment:
  TERRACE_STRESS   for tests: evict random pages all the time, budget or not: off, full, or a number of pages a second
  TERRACE_INJECT   for tests: kernel calls of Terrace fail, SEED[:PER_MILLE]
  TERRACE_TRACE_FAULTS  1: measure the steps of faults and evictions, for `steps` in the JSON report
  TERRACE_LIBRARY  the libterrace.so to use, instead of the one installed with this command

Exit status:
  the program's own; 128 + N in the JSON report if signal N ended it
  125  terrace itself failed, or refused (--strict)
  126  the program was found and could not be executed
  127  the program was not found

Examples:
  terrace run --dram 60% -- redis-server redis.conf
  terrace run --dram 4G --tiers dram,lz4,zstd:3 --report run.json -- python3 index.py
  terrace run --observe -- ./app";

/// `terrace run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    // No documentation here: clap would take it for the command's.
    #[command(flatten)]
    pub given: Given,

    /// Take the share of --dram of the most data that an earlier run had, as its JSON report
    /// tells, and hold to it from the start; without it, of what this run has had so far, once
    /// it has stopped growing
    #[arg(long, value_name = "REPORT.json")]
    pub of: Option<PathBuf>,

    /// Stay until all managed processes have ended, also those that the program leaves behind
    /// (daemons), and pass signals on to them; without it `terrace run` ends with the program,
    /// and leaves a process that divides the budget and writes the report when they have ended
    #[arg(long)]
    pub wait: bool,

    /// Preload nothing: attach to the program as it starts, as `terrace attach` does. Without this
    /// option, that is done where no library can be preloaded (static programs, musl); needs root
    #[arg(long)]
    pub inject: bool,

    /// Take settings from this TOML file (see `terrace config`)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the report as JSON to standard output, after what the program wrote there: --report -
    #[arg(long, conflicts_with = "report")]
    pub json: bool,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = false,
        value_name = "CMD"
    )]
    pub command: Vec<OsString>,
}
