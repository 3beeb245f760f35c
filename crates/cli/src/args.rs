//! The command line: what may be said and how it is explained. Values are checked here, before anything else happens.

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_pager::settings::{Dram, Eviction};
use terrace_tiers::{FileMedium, MediumKind, TierKind, parse_tiers};

/// Runs programs with their heap spread over DRAM and compressed memory.
#[derive(Parser, Debug)]
#[command(name = "terrace", version, subcommand_required = true, arg_required_else_help = false)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program under Terrace and report what was saved and what it cost
    #[command(after_long_help = RUN_HELP, override_usage = "terrace run [OPTIONS] -- CMD [ARGUMENT]...")]
    Run(RunArguments),
    /// Check a settings file, or show the settings that would be in force
    Config(ConfigArguments),
    /// Say what this machine allows, what is missing, and how to fix it
    ///
    /// Exit status: 0 where Terrace can evict, 1 where programs would run unmanaged.
    Doctor(DoctorArguments),
}

const RUN_HELP: &str = "\
The report:
  At the end a short report is written to standard error, and as JSON to the file of --report. Sizes are averages over
  time unless named otherwise; physical includes Terrace's own overhead; the slowdown is an estimate. The figures at
  the top are those of the program itself, but for the budget, which is that of all its processes together; each process
  has an entry of its own under `processes`.

Precedence:
  What the command line says goes before the file of --config, and that goes before the defaults.

Programs out of reach:
  Terrace comes into a program as a preloaded library. Static, musl, 32-bit, setuid and file-capability programs do not
  load it: that is said in one line and the program runs unmanaged (with --strict it is not started).

Signals:
  Signals sent to `terrace run` go on to the program; those of the terminal reach it directly. If the program dies of a
  signal, so does `terrace run`, after the report.

Environment:
  TERRACE_STRESS   for tests: evict random pages all the time, budget or not: off, full, or a number of pages a second
  TERRACE_INJECT   for tests: kernel calls of Terrace fail, SEED[:PER_MILLE]
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
    /// The limit for the managed memory of all processes together in DRAM: a size (512M, 4G: powers of 1024), a share of what the program has touched
    /// at most (60%), or `unlimited` [default: unlimited]
    #[arg(long, value_name = "SIZE|PCT")]
    pub dram: Option<Dram>,

    /// The tiers, fastest first: dram, then codecs as codec[:level][/pool][@medium], where the medium
    /// is dram or file:/DIRECTORY [default: dram,lz4,zstd:1]
    #[arg(long, value_name = "LIST", value_parser = tiers)]
    pub tiers: Option<String>,

    /// Measure and report, move nothing
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub observe: Option<bool>,

    /// Refuse to run (exit status 125) where the program's memory cannot be managed, instead of running it unmanaged
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub strict: Option<bool>,

    /// How pages leave the page table: move (UFFDIO_MOVE, Linux 6.8), or wp (write-protect and discard, Linux 5.7; not beside O_DIRECT,
    /// io_uring, VFIO or RDMA: where one is seen, nothing more is evicted) [default: move]
    #[arg(long, value_name = "move|wp")]
    pub evict: Option<Eviction>,

    /// Decompress and compare every page when it is stored, while the original is still there (for distrusted memory and new codecs)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub verify: Option<bool>,

    /// Manage only the program itself, none of the processes that it makes
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub no_children: Option<bool>,

    /// Write the report as JSON to this file as well
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,

    /// Take settings from this TOML file (see `terrace config`)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = false, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `terrace config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// What to do with the settings.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// `terrace config …`.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Check a settings file and print every error with its line
    ///
    /// Exit status: 0 if it is right, 1 if it has errors, 125 if it cannot be read.
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the settings that `terrace run` would use, and where each comes from
    Show {
        /// Take settings from this file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `terrace doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Accepts a list of tiers that `terrace_tiers` understands and whose directories are fit for use, and keeps it as it was written.
pub fn tiers(text: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    for tier in parse_tiers(text)? {
        if let TierKind::Compressed { medium: MediumKind::File { directory }, .. } = &tier.kind {
            FileMedium::check(directory).map_err(|error| format!("`{}`: {error}", tier.name))?;
        }
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(line: &[&str]) -> Result<RunArguments, clap::Error> {
        match Arguments::try_parse_from(["terrace", "run"].iter().chain(line))?.command {
            Command::Run(arguments) => Ok(arguments),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_programs_own_flags_are_left_to_it() {
        let arguments = run(&["--dram", "60%", "--", "prog", "--dram", "7%", "-v", "--", "x"]).unwrap();
        assert_eq!(arguments.dram, Some(Dram::Share(0.6)));
        assert_eq!(arguments.command, ["prog", "--dram", "7%", "-v", "--", "x"]);
        let bare = run(&["prog", "--observe"]).unwrap();
        assert_eq!((bare.observe, bare.command.len()), (None, 2));
    }

    #[test]
    fn switches_can_be_turned_off_against_a_file() {
        assert_eq!(run(&["--observe", "--", "p"]).unwrap().observe, Some(true));
        assert_eq!(run(&["--observe=false", "--", "p"]).unwrap().observe, Some(false));
        assert_eq!(run(&["--", "p"]).unwrap().strict, None);
        assert_eq!(run(&["--no-children", "--", "p"]).unwrap().no_children, Some(true));
        assert_eq!(run(&["--no-children=false", "--", "p"]).unwrap().no_children, Some(false));
    }

    #[test]
    fn unknown_flags_and_bad_values_are_refused() {
        for line in [
            &["--dram", "0%", "--", "p"][..],
            &["--dram", "", "--", "p"],
            &["--tiers", "dram,nonsense", "--", "p"],
            &["--frobnicate", "--", "p"],
            &["--slowdown", "3%", "--", "p"],
            &["--"],
            &[],
        ] {
            assert!(run(line).is_err(), "{line:?}");
        }
    }
}
