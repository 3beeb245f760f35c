//! The command line: what may be said and how it is explained. Values are checked here, before
//! anything else happens.

use crate::attach::{self, AttachArguments, DetachArguments};
use crate::characterize::CharacterizeArguments;
use crate::config::args::ConfigArguments;
use crate::doctor::DoctorArguments;
use crate::generate::GenerateArguments;
use crate::load::args::LoadArguments;
use crate::plan::args::{self as plan, PlanArguments};
use crate::record::{self, RecordArguments};
use crate::report::args::ReportArguments;
use crate::reproduce::args::{self as reproduce, ReproduceArguments};
use crate::run::args::{self as run, RunArguments};
use crate::set::args::{self as set, SetArguments};
use crate::sim::args::{self as sim, SimArguments};
use crate::solver::SolverArguments;
use crate::status::StatusArguments;
use crate::top::TopArguments;
use clap::{Parser, Subcommand};

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
    #[command(
        after_long_help = run::HELP,
        override_usage = "terrace run [OPTIONS] -- CMD [ARGUMENT]..."
    )]
    Run(RunArguments),
    /// Move memory of processes that already run into compressed memory
    #[command(after_long_help = attach::HELP)]
    Attach(AttachArguments),
    /// Bring everything back to processes that were attached to, and leave them
    Detach(DetachArguments),
    /// Check a settings file, or show the settings that would be in force
    Config(ConfigArguments),
    /// Say what this machine allows, what is missing, and how to fix it
    ///
    /// Exit status: 0 where Terrace can evict, 1 where programs would run unmanaged.
    Doctor(DoctorArguments),
    /// Change the limits, or the knob, of a run that lives
    #[command(after_long_help = set::HELP)]
    Set(SetArguments),
    /// Show the runs that live on this machine: your own, or all of them to root
    Status(StatusArguments),
    /// Watch the runs that live on this machine, their processes sorted, in a terminal
    Top(TopArguments),
    /// Measure what each tier makes of your data on this machine: its size, cost and times
    Characterize(CharacterizeArguments),
    /// Say what could be saved of a program's memory and what that would cost, before anything
    /// moves
    #[command(after_long_help = plan::HELP)]
    Plan(PlanArguments),
    /// Load a server or memory, and check what comes back
    Load(LoadArguments),
    /// Run a program as it is, and write down which parts of its memory it waits for, and when
    #[command(
        after_long_help = record::HELP,
        override_usage = "terrace record -o FILE [OPTIONS] -- CMD [ARGUMENT]..."
    )]
    Record(RecordArguments),
    /// Show a recording
    #[command(
        override_usage = "terrace report [OPTIONS] FILE\n       terrace report heatmap | wss | sites | tiers | utilisation | export [OPTIONS] FILE"
    )]
    Report(ReportArguments),
    /// Run policies over generated or recorded accesses, and say what would have come of it
    #[command(after_long_help = sim::HELP)]
    Sim(SimArguments),
    /// Solve a generated placement problem: time, memory, and distance from the best
    ///
    /// Exit status: 0, or 1 where nothing within the bound and the limits was found.
    Solver(SolverArguments),
    /// Run the papers' figures in the simulator, and put their numbers beside ours
    #[command(after_long_help = reproduce::HELP)]
    Reproduce(ReproduceArguments),
    /// Write manual pages and completions, for `make install`, or pages of documentation
    #[command(hide = true)]
    Generate(GenerateArguments),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use terrace_control::settings::Dram;

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
        let arguments =
            run(&["--dram", "60%", "--", "prog", "--dram", "7%", "-v", "--", "x"]).unwrap();
        assert_eq!(arguments.given.dram, Some(Dram::Share(0.6)));
        assert_eq!(arguments.command, ["prog", "--dram", "7%", "-v", "--", "x"]);
        let bare = run(&["prog", "--observe"]).unwrap();
        assert_eq!((bare.given.observe, bare.command.len()), (None, 2));
    }

    #[test]
    fn switches_can_be_turned_off_against_a_file() {
        assert_eq!(run(&["--observe", "--", "p"]).unwrap().given.observe, Some(true));
        assert_eq!(run(&["--observe=false", "--", "p"]).unwrap().given.observe, Some(false));
        assert_eq!(run(&["--", "p"]).unwrap().given.strict, None);
        assert_eq!(run(&["--no-children", "--", "p"]).unwrap().given.children, Some(false));
        assert_eq!(run(&["--no-children=false", "--", "p"]).unwrap().given.children, Some(true));
    }

    #[test]
    fn unknown_flags_and_bad_values_are_refused() {
        for line in [
            &["--dram", "0%", "--", "p"][..],
            &["--dram", "", "--", "p"],
            &["--policy", "lru", "--", "p"],
            &["--sampler", "pebbles", "--", "p"],
            &["--sampler-cost", "0%", "--", "p"],
            &["--tiers", "dram,nonsense", "--", "p"],
            &["--frobnicate", "--", "p"],
            &["--slow-down", "3%", "--", "p"],
            &["--"],
            &[],
        ] {
            assert!(run(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn loads_that_make_no_sense_are_refused_with_a_remedy() {
        let load =
            |line: &[&str]| Arguments::try_parse_from(["terrace", "load", "kv"].iter().chain(line));
        assert!(
            load(&["127.0.0.1:1", "--get-share", "90%", "--theta", "0", "--depth", "16"]).is_ok()
        );
        for (line, remedy) in [
            (&["localhost"][..], "HOST:PORT"),
            (&["/s", "--items", "0"], "1.."),
            (&["/s", "--value-bytes", "63"], "from 64"),
            (&["/s", "--theta", "-1"], ""),
            (&["/s", "--theta=nan"], "from 0 to 10"),
            (&["/s", "--get-share", "101"], "from 0 to 100"),
            (&["/s", "--connections", "0"], "from 1 to 10000"),
            (&["/s", "--depth", "x"], "from 1 to 10000"),
            (&["/s", "--seconds=-1"], "from 0 to 86400"),
            (&["/s", "--seconds", "1", "--operations", "5"], "cannot be used with"),
            (&["/s", "--protocol", "http"], "memcached, redis"),
            (&["/s", "--workload", "e"], "a, b, c, d, f"),
            (&["/s", "--rate", "0"], "from 1 to"),
        ] {
            let error = load(line).unwrap_err().to_string();
            assert!(error.contains(remedy), "{error}");
        }
    }
}
