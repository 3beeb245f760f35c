//! The command line: what may be said and how it is explained. Values are checked here, before
//! anything else happens.

use crate::every::Every;
use crate::load::args::LoadArguments;
use crate::prices::Price;
use crate::reproduce::args::{self as reproduce, ReproduceArguments};
use crate::run_settings::Given;
use crate::sim::args::{self as sim, SimArguments};
use crate::values::{knob, tiers};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_control::settings::{Dram, Knob, Window};
use terrace_policy::slowdown::{Target as Slowdown, Wanted};

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
    /// Move memory of processes that already run into compressed memory
    #[command(after_long_help = ATTACH_HELP)]
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
    #[command(after_long_help = SET_HELP)]
    Set(SetArguments),
    /// Show the runs that live on this machine: your own, or all of them to root
    Status(StatusArguments),
    /// Watch the runs that live on this machine, their processes sorted, in a terminal
    Top(TopArguments),
    /// Measure what each tier makes of your data on this machine: its size, cost and times
    Characterize(CharacterizeArguments),
    /// Say what could be saved of a program's memory and what that would cost, before anything
    /// moves
    #[command(after_long_help = PLAN_HELP)]
    Plan(PlanArguments),
    /// Load a server or memory, and check what comes back
    Load(LoadArguments),
    /// Run a program as it is, and write down which parts of its memory it waits for, and when
    #[command(after_long_help = RECORD_HELP, override_usage = "terrace record -o FILE [OPTIONS] -- CMD [ARGUMENT]...")]
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

/// `terrace generate`.
#[derive(Args, Debug)]
pub struct GenerateArguments {
    /// A directory that is laid out like /usr/share
    #[arg(value_name = "DIR")]
    pub share: PathBuf,

    /// Write the pages of docs/reference into DIR instead
    #[arg(long)]
    pub reference: bool,
}

const RECORD_HELP: &str = "\
What is seen:
  Each running thread is interrupted --rate times a second, and the address that it waited for is computed from its code and registers. Who waits
  longer is met more often: cache misses rather than accesses. The kernel's accesses, thread-local ones and gathers are not
  seen. It costs some 0.5 % of a CPU for each running thread at 1000 a second, and needs perf events (kernel.perf_event_paranoid at most 2).

Exit status:
  as of `terrace run`

Example:
  terrace record -o app.rec -- ./app && terrace report heatmap app.rec --svg app.svg";

const RUN_HELP: &str = "\
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

const ATTACH_HELP: &str = "\
One thread of the process stands still for a millisecond or two. Nothing is preloaded, no allocator is replaced. A process
beside it, in its memory, moves pages on request; `terrace-keeper` outside compresses and restores them until `terrace detach`.
Needs root, Linux 6.8 and a 64-bit x86 program; who cannot be attached to is told why, and nothing is changed.

Examples:
  terrace attach $(pidof exporter) --dram 200M
  terrace attach $(pidof java) --slowdown 2% --tiers dram,zstd --report java.json
  terrace attach --outside $(pidof postgres) --dram 1G
  terrace attach --outside $(pidof postgres) --dram 1G --tiers dram,node:1
  terrace status
  terrace detach $(pidof exporter)";

/// `terrace attach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["pids", "cgroup"]))]
pub struct AttachArguments {
    /// Processes
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    /// DRAM that each may take together with the children that it makes from now on, compressed
    /// pages included: 200M, 4G, or 60% of its most data
    #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true)]
    pub dram: Option<Dram>,
    /// Take what costs no more of the program's time than this, such as 2%: the default is 2%
    /// without --dram
    #[arg(long, value_name = "PCT|off")]
    pub slowdown: Option<Wanted>,
    /// Where pages go: dram and one tier of compressed pages, such as zstd
    #[arg(long, value_name = "LIST", default_value = "dram,lz4")]
    pub tiers: String,
    /// Write the figures of a process to this file, as JSON, when it ends or is detached from
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Stop and enter nothing: the kernel's swap takes the pages, on request (MADV_PAGEOUT), or a
    /// node of --tiers, such as dram,node:1 (move_pages)
    #[arg(long)]
    pub outside: bool,
    /// With --outside: all processes of this control group, a directory; --dram is for all of them
    #[arg(long, value_name = "PATH", requires = "outside")]
    pub cgroup: Option<PathBuf>,
    /// The descriptor of what the processes of a family know of each other
    #[arg(long, hide = true)]
    pub family: Option<i32>,
}

/// `terrace detach`.
#[derive(Args, Debug)]
pub struct DetachArguments {
    /// Processes
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
}

const SET_HELP: &str = "\
Memory comes down to a lower limit within some seconds. What was not said stays as it is. Pages leave a tier that is not in the
list any more as far as another one takes them within the limit, but for the kernel's swap. Other settings are those of the program's start.
A run that was started with --observe, or with nothing that limits it, cannot be changed. Of a process that was attached to,
--dram and --slowdown can be: a size holds for its children too, a share and a slowdown for those that come later.

Examples:
  terrace set $(pidof -s redis-server) --dram 2G
  terrace set $(pidof -s redis-server) --dram unlimited --slowdown 2%
  terrace set $(pidof -s redis-server) --knob 0.9 --window 10s
  terrace set $(pidof -s redis-server) --tiers dram,zstd";

/// `terrace set`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("limit").required(true).multiple(true)))]
pub struct SetArguments {
    /// A process of the run, its `terrace run`, or one that was attached to: see `terrace status`
    pub pid: u32,
    /// The limit for all processes of the run together: a size (512M, 4G), a share of the most
    /// data that there was so far (60%), or `unlimited`
    #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true, group = "limit")]
    pub dram: Option<Dram>,
    /// The slowdown that may be caused beside it: a share of the time (2%), or `off`
    #[arg(long, value_name = "PCT|off", group = "limit")]
    pub slowdown: Option<Wanted>,
    /// Which tiers take pages from now on: some of those that the run was started with, in its
    /// order; `terrace status` shows them
    #[arg(long, value_name = "LIST", group = "limit")]
    pub tiers: Option<String>,
    /// How much the model saves that places regions, from the end of its window on: 1 is all
    /// speed, 0 all saving. Only in runs that were started with --knob or --placement
    #[arg(long, value_name = "A", group = "limit")]
    pub knob: Option<Knob>,
    /// Time between its plans: 0.5s to 600s
    #[arg(long, value_name = "TIME", group = "limit")]
    pub window: Option<Window>,
}

/// `terrace status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    /// Print JSON: one object a look
    #[arg(long)]
    pub json: bool,
    /// Look again every second, until the end of the last run
    #[arg(long)]
    pub watch: bool,
}

/// `terrace top`.
#[derive(Args, Debug)]
pub struct TopArguments {
    /// Seconds between looks (0.2 to 60)
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds_between)]
    pub interval: f64,
}

fn seconds_between(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is wanted".to_string())?;
    if (0.2..=60.0).contains(&seconds) { Ok(seconds) } else { Err("0.2 to 60 seconds".into()) }
}

/// `terrace characterize`.
#[derive(Args, Debug)]
pub struct CharacterizeArguments {
    /// Data to measure with: pages evenly over this file (may be repeated). Without --data and
    /// --pid, text is generated that compresses as nci and dickens of the Silesia corpus do
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Pages of this process's anonymous memory, chosen at random (may be repeated; it runs on)
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// The tiers to measure, each alone, as in `terrace run`
    #[arg(long, value_name = "LIST", default_value = "dram,lz4,zstd:-1,zstd:1,zstd:3,zstd:9")]
    pub tiers: String,
    /// Measure the twelve tiers of TierScape's Figure 2 instead: lz4, lzo, deflate, in pools zbud
    /// and zsmalloc, in DRAM and on the slow medium (a node, else files)
    #[arg(long, conflicts_with = "tiers")]
    pub paper: bool,
    /// So many pages at most of each
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub pages: u32,
    /// A file of prices in place of the table that is built in (docs/explanation/tiers.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// What a byte costs on a medium, DRAM's being 1: dram, node or file (may be repeated)
    #[arg(long, value_name = "MEDIUM=PRICE")]
    pub price: Vec<Price>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw cost against the time of a restore into this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// `terrace solver`.
#[derive(Args, Debug)]
pub struct SolverArguments {
    /// Number of regions (2 MiB each)
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub regions: u32,
    /// Set of tiers: tierscape-standard (4), tierscape-spectrum (6), gswap or tmo (2)
    #[arg(long, value_name = "SET", default_value = "tierscape-spectrum")]
    pub tiers: String,
    /// The knob: 1 is all speed, 0 all saving
    #[arg(long, value_name = "A", default_value_t = 0.3, value_parser = knob)]
    pub alpha: f64,
    /// DRAM has room for 40% of the data, and the slow medium for 25%
    #[arg(long)]
    pub limits: bool,
    /// From what all chance is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also solve it exactly, by HiGHS in one thread, for at most so many seconds
    #[cfg(feature = "exact")]
    #[arg(long, value_name = "SECONDS")]
    pub exact: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const PLAN_HELP: &str = "\
What is told:
  What is hot, warm and cold, and for how long; how it compresses; cost against slowdown over the knob, with where the program is now; and three settings, each
  with the command for it. Nothing is moved. Costs of what is not in use yet, and slowdowns, are estimates: expected faults times the whole time of a fault.

Examples:
  terrace plan -- python3 job.py
  terrace plan $(pidof -s redis-server) --for 2m --choose-tiers 3
  terrace plan run.json --price usd=4.5 --svg plan.svg
  terrace plan app.rec --data heap.bin";

/// `terrace plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// A process that runs (its number: it is watched for a while and runs on), the report of an
    /// earlier `terrace run --observe --report FILE`, or what `terrace record` wrote
    #[arg(value_name = "PID|FILE", conflicts_with = "command")]
    pub of: Option<PathBuf>,
    /// How long to watch a process that runs
    #[arg(long = "for", value_name = "TIME", default_value = "15s")]
    pub observe: Every,
    /// The tiers to choose from; those of a report are what its --tiers were
    #[arg(long, value_name = "LIST", value_parser = tiers,
          default_value = "dram,lz4,zstd:-1,zstd:1,zstd:3,zstd:9")]
    pub tiers: String,
    /// Name the best set of up to K tiers below DRAM for this data, what the last one adds, and
    /// when one is enough; the settings then use it
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub choose_tiers: Option<u8>,
    /// The slowdown that the sets are compared at
    #[arg(long, value_name = "PCT", default_value = "2%")]
    pub slowdown: Slowdown,
    /// Take how pages compress from this file, where the rest does not tell it
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file of prices in place of the table that is built in (docs/explanation/tiers.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// What a byte costs on a medium, DRAM's being 1: dram, node or file; or usd=, and what a GiB
    /// of DRAM costs, for figures in dollars (may be repeated)
    #[arg(long, value_name = "MEDIUM=PRICE")]
    pub price: Vec<Price>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw savings against slowdown into this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// The program to observe first, to its end, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `terrace record`.
#[derive(Args, Debug)]
pub struct RecordArguments {
    /// The file to write; one that exists is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Write the sampled accesses themselves, one by one by page, instead of counting them by
    /// region and time
    #[arg(long, conflicts_with = "window")]
    pub accesses: bool,
    /// Samples a second of each running thread, from 1 to 20000
    #[arg(long, value_name = "HZ", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,
    /// Milliseconds that are counted together, at least 10; longer ones where the file would grow
    /// beyond --limit
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub window: u64,
    /// How large the file may grow (64K, 16M: powers of 1024). With --accesses it then ends, which
    /// costs some 3 bytes for each sample
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = recording_size)]
    pub limit: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// A recording's size: less than a header and a few windows is none.
fn recording_size(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 64 << 10;
    match terrace_control::settings::parse_size(text) {
        Ok(size) if size >= LEAST => Ok(size),
        Ok(_) => Err("at least 64K".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// `terrace report`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ReportArguments {
    /// What to show.
    #[command(subcommand)]
    pub kind: Option<ReportKind>,
    /// Any recording: says in words what is in it
    #[command(flatten)]
    pub recording: Option<RecordingArguments>,
}

/// `terrace report FILE`.
#[derive(Args, Debug)]
pub struct RecordingArguments {
    /// What `terrace record`, or a program built with the recorder, wrote: what is in it, in words
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace report …`.
#[derive(Subcommand, Debug)]
pub enum ReportKind {
    /// Address × time: where the program waits for memory
    Heatmap(HeatmapArguments),
    /// How much memory it waits for, in each stretch of time and in all
    Wss(Shown),
    /// Give what `terrace record --accesses`, or a program built with the recorder, wrote another
    /// format
    Export(ExportArguments),
    /// Which allocation sites hold hot and cold objects: from a report of `terrace run --allocator
    /// context --sampler auto --report FILE.json`
    Sites(SitesArguments),
    /// In which tier each region was to be and was, with faults and cost: from a report of
    /// `terrace run --knob A --report FILE.json`
    Tiers(TiersArguments),
    /// How much of hot pages is hot, by allocation site, and what hot objects side by side would
    /// save: from a program built with the recorder
    Utilisation(UtilisationArguments),
}

/// `terrace report utilisation`.
#[derive(Args, Debug)]
pub struct UtilisationArguments {
    /// What a program built with the recorder wrote, with TERRACE_RECORD=objects:FILE
    pub file: PathBuf,
    /// How long an object is hot after an access, in the recording's clock: accesses, or us
    /// [default: 10 s where the clock is time, else a tenth of the recording]
    #[arg(long, value_name = "LENGTH")]
    pub window: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Draw it into this file too
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// `terrace report export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// The recording
    pub file: PathBuf,
    /// The file to write; one that exists is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// oracleGeneral: libCacheSim's, 24 bytes for each access, with when its page comes next
    #[arg(long, value_enum, default_value_t = ExportFormat::OracleGeneral)]
    pub format: ExportFormat,
}

/// What `terrace report export` writes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// libCacheSim's.
    #[value(name = "oracleGeneral")]
    OracleGeneral,
}

/// `terrace report tiers`.
#[derive(Args, Debug)]
pub struct TiersArguments {
    /// What `terrace run --report` wrote
    pub file: PathBuf,
    /// The process to show [default: the one with the most memory]
    #[arg(long, value_name = "PID")]
    pub process: Option<u32>,
    /// Draw it into this file too
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace report sites`.
#[derive(Args, Debug)]
pub struct SitesArguments {
    /// What `terrace run --report` wrote
    pub file: PathBuf,
    /// The process to show [default: the one that was met most]
    #[arg(long, value_name = "PID")]
    pub process: Option<u32>,
    /// Sites to show of either kind
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub count: usize,
    /// Print JSON: all sites, with the names of their functions
    #[arg(long)]
    pub json: bool,
}

/// What of a recording is shown, and how.
#[derive(Args, Debug)]
pub struct Shown {
    /// What `terrace record` wrote
    pub file: PathBuf,
    /// The process to show [default: the one that was met most]
    #[arg(long, value_name = "PID")]
    pub process: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace report heatmap`.
#[derive(Args, Debug)]
pub struct HeatmapArguments {
    /// What of the recording the heatmap shows.
    #[command(flatten)]
    pub shown: Shown,
    /// Draw it into this file too
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
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
    /// Print what is well, too
    #[arg(long)]
    pub all: bool,
    /// Print JSON, with everything in it
    #[arg(long)]
    pub json: bool,
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
