//! The command line: what may be said and how it is explained. Values are checked here, before
//! anything else happens.

use crate::load::{LEAST_BYTES, Load, MOST_BYTES, MOST_ITEMS, Protocol, Target, Workload};
use crate::prices::Price;
use crate::run_settings::Given;
use crate::sim::{Cache, Fast, Page, Plays, Seeds};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use terrace_tiers::{FileMedium, MediumKind, Nodes, TierKind, parse_tiers};

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
    /// Show the runs that live on this machine: your own, or all of them to root
    Status(StatusArguments),
    /// Watch the runs that live on this machine, their processes sorted, in a terminal
    Top(TopArguments),
    /// Measure what each tier makes of your data on this machine: its size, cost and times
    Characterize(CharacterizeArguments),
    /// Say what could be saved of a program's memory, and what that would cost at most
    Plan(PlanArguments),
    /// Load a server or memory, and check what comes back
    Load(LoadArguments),
    /// Run a program as it is, and write down which parts of its memory it waits for, and when
    #[command(after_long_help = RECORD_HELP, override_usage = "terrace record -o FILE [OPTIONS] -- CMD [ARGUMENT]...")]
    Record(RecordArguments),
    /// Show a recording
    Report(ReportArguments),
    /// Run policies over generated or recorded accesses, and say what would have come of it
    #[command(after_long_help = SIM_HELP)]
    Sim(SimArguments),
    /// Solve a generated placement problem: time, memory, and distance from the best
    ///
    /// Exit status: 0, or 1 where nothing within the bound and the limits was found.
    Solver(SolverArguments),
    /// Run the papers' figures in the simulator, and put their numbers beside ours
    #[command(after_long_help = REPRODUCE_HELP)]
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

const REPRODUCE_HELP: &str = "\
What is written:
  index.html, which needs no network and no scripts; an SVG for each plot; NAME.json (`all`: one of each paper) with
  `rows`: figure, metric, paper, ours, deviation, unit, verdict. A claim that does not reproduce is no error: it stands there, with why.

Examples:
  terrace reproduce all --out papers
  terrace reproduce jenga-fig7 --seed 2 --json";

/// `terrace reproduce`.
#[derive(Args, Debug)]
pub struct ReproduceArguments {
    /// A paper (jenga, objectier, m2t), one of its figures (jenga-fig7), or all
    #[arg(value_name = "NAME", value_parser = crate::reproduce::wanted)]
    pub name: crate::reproduce::Wanted,

    /// The directory to write into; files of the same names are replaced
    #[arg(long, value_name = "DIR", default_value = "terrace-reproduce")]
    pub out: PathBuf,

    /// A small version, some seconds: shows that all runs, and no more
    #[arg(long)]
    pub quick: bool,

    /// From what all chance is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print the rows as JSON
    #[arg(long)]
    pub json: bool,
}

const SIM_HELP: &str = "\
What is simulated:
  Units of memory in a fast tier and a slow one, accesses to them, samples of these, and a policy that moves units every 50 ms; time is what accesses,
  faults and moves take. `docs/simulator.md` says how, and what it cannot say. --list shows all names.

Results:
  A table on standard output. With -o each finished case is a line of JSON in FILE at once, with what went on over time; cases that are in FILE already are not
  run again, so that one who was interrupted, or wants more, gives the same command again. A recording that is cut off or damaged is run up to there; its
  results say so (`incomplete`), and are made again by the next such command.

Exit status:
  0    all cases were run
  125  terrace itself failed, or some cases did, or a recording was not whole

Examples:
  terrace sim jump --policies jenga,memtis,terrace
  terrace sim zipf:theta=0.99 drift app.acc --machines optane,cxl --fast 10%,20%,50% --seeds 1-5 -o runs.jsonl
  terrace sim jump --policies memtis --set memtis.cooling=120K,500K,2M
  terrace sim store:keys=300K --layouts time,context,oracle --policies terrace";

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
  Terrace comes into a program as a preloaded library. Static, musl, 32-bit, setuid and file-capability programs do not
  load it: that is said in one line and the program runs unmanaged (with --strict it is not started).

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

    /// Take settings from this TOML file (see `terrace config`)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

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
  terrace status
  terrace detach $(pidof exporter)";

/// `terrace attach`.
#[derive(Args, Debug)]
pub struct AttachArguments {
    /// Processes
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    /// DRAM that each may take, compressed pages included: 200M, 4G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub dram: u64,
}

/// `terrace detach`.
#[derive(Args, Debug)]
pub struct DetachArguments {
    /// Processes
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
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
    /// So many pages at most of each
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub pages: u32,
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A knob from 0 to 1.
fn knob(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(alpha) if (0.0..=1.0).contains(&alpha) => Ok(alpha),
        _ => Err("write a number from 0 (all saving) to 1 (all speed)".into()),
    }
}

/// `terrace plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// The report of an earlier `terrace run --observe --report FILE`
    #[arg(value_name = "REPORT.json", conflicts_with = "command")]
    pub report: Option<PathBuf>,
    /// The tiers to plan with, if a command is observed
    #[arg(long, value_name = "LIST", value_parser = tiers, default_value = "dram,lz4,zstd:1")]
    pub tiers: String,
    /// What a byte costs on a medium, DRAM's being 1: dram, node or file (may be repeated)
    #[arg(long, value_name = "MEDIUM=PRICE")]
    pub price: Vec<Price>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    match terrace_pager::settings::parse_size(text) {
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

/// `terrace sim`.
#[derive(Args, Debug)]
pub struct SimArguments {
    /// What is accessed: a generator or a program of objects, as NAME or NAME:key=value,…
    /// (--list), or the file of a recording
    #[arg(value_name = "WORKLOAD", required_unless_present = "list")]
    pub workloads: Vec<String>,

    /// Policies [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,

    /// A policy's parameter; with several values it is run with each of them
    /// (memtis.cooling=120K,2M)
    #[arg(long, value_name = "POLICY.NAME=VALUES")]
    pub set: Vec<String>,

    /// How much the fast tier holds: shares of the units, or sizes
    #[arg(long, value_name = "SIZES|PCTS", value_delimiter = ',', default_value = "20%")]
    pub fast: Vec<Fast>,

    /// Machines: optane, cxl, numa; lz4, zstd-fast, zstd, deflate
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "optane")]
    pub machines: Vec<String>,

    /// Numbers that settle what is generated and sampled (1,2,7-9)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub seeds: Vec<Seeds>,

    /// How objects lie in memory, where there are objects: time, size, context, near,
    /// consolidated, oracle
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "time,size,context")]
    pub layouts: Vec<String>,

    /// Units of a generator [default: 10240; with --placement 65536 pages]
    #[arg(long, value_name = "N", value_parser = units)]
    pub units: Option<u32>,

    /// Accesses of a generator [default: 120M; with --placement 8M]
    #[arg(long, value_name = "N", value_parser = some)]
    pub accesses: Option<u64>,

    /// Models that place regions over several tiers, in their settings, instead of policies:
    /// hemem*, gswap*, tmo*, waterfall, tierscape, tierscape-artifact, terrace-cost, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub placement: Vec<String>,

    /// Set of tiers for --placement: tierscape-standard, tierscape-spectrum, gswap or tmo
    #[arg(long, value_name = "SET", default_value = "tierscape-spectrum")]
    pub tiers: String,

    /// The knob of --placement's models that have one, instead of 0.9, 0.5 and 0.1
    #[arg(long, value_name = "A", value_parser = knob)]
    pub alpha: Option<f64>,

    /// What of a recording's and a program's memory is one unit; `mixed`: 2M of which at least
    /// half of the pages is touched at all (`mixed:90%`: so much), and 4K elsewhere
    #[arg(long, value_name = "SIZE|mixed", default_value = "4K")]
    pub page: Page,

    /// How much memory all units together play, with policies' intervals scaled alike; `real`:
    /// they are what they are (a generator's 2M, or 4K and 2M with huge=). Compressed ones
    /// always are pages
    #[arg(long, value_name = "SIZE|real", default_value = "20G")]
    pub plays: Plays,

    /// Accesses of a program that each one stands for [default: 100, or with --plays real what the
    /// recording says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stands_for: Option<u32>,

    /// Accesses of a program from one sample to the next, on average
    #[arg(long, value_name = "N", default_value_t = 5003, value_parser = clap::value_parser!(u32).range(1..))]
    pub sample_period: u32,

    /// Milliseconds from one decision to the next
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = tick_ms)]
    pub tick: f64,

    /// Accesses on their way at a time [default: the machine's, 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: Option<u32>,

    /// A cache before memory, for programs of objects and recordings of all accesses to them; or
    /// `none`
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = cache)]
    pub cache: Cache,

    /// Parts of a run of which figures are kept
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub windows: u32,

    /// Threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,

    /// Write each finished case into FILE, and do not run again what is there
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    /// Show all workloads, policies with their parameters, machines and layouts
    #[arg(long)]
    pub list: bool,
}

fn units(text: &str) -> Result<u32, String> {
    match terrace_sim::quantity::count(text) {
        Some(count) if (16..=1 << 28).contains(&count) => Ok(count as u32),
        _ => Err("write a whole number from 16 to 268435456 (10K is 10000)".into()),
    }
}

fn some(text: &str) -> Result<u64, String> {
    match terrace_sim::quantity::count(text) {
        Some(count) if count > 0 => Ok(count),
        _ => Err("write a whole number from 1 (120M is 120000000)".into()),
    }
}

fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "none" => Ok(Cache(None)),
        _ => match size(text)? {
            size if (4096..=1 << 32).contains(&size) => Ok(Cache(Some(size as usize))),
            _ => Err("write `none`, or a size from 4K to 4G".into()),
        },
    }
}

fn tick_ms(text: &str) -> Result<f64, String> {
    number_within(text, 0.001, 1e6)
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

/// `terrace load`.
#[derive(Args, Debug)]
pub struct LoadArguments {
    /// What is loaded.
    #[command(subcommand)]
    pub kind: LoadKind,
}

/// `terrace load …`.
#[derive(Subcommand, Debug)]
pub enum LoadKind {
    /// Fill a memcached or redis server with values that can be told apart, then read and write
    /// them
    #[command(after_long_help = LOAD_HELP)]
    Kv(KvArguments),
    /// Touch memory of this command's own in a known pattern, to see what a policy makes of it
    #[command(after_long_help = MEMORY_HELP)]
    Memory(MemoryArguments),
}

const MEMORY_HELP: &str = "\
All that is read is checked.

Exit status:
  0    all was what it should be
  1    something was not
  125  terrace itself failed

Examples:
  terrace run --dram 50% -- terrace load memory jump --size 1G --seconds 30
  terrace record -o zipf.rec -- terrace load memory zipf --truth zipf.json";

/// `terrace load memory`.
#[derive(Args, Debug)]
pub struct MemoryArguments {
    /// What is touched when
    #[arg(value_enum, value_name = "PATTERN")]
    pub pattern: Load,

    /// How much memory (512M, 4G: powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub size: u64,

    /// How long, after it was filled
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = some_seconds)]
    pub seconds: f64,

    /// How long what is hot stays the same, where it changes
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = some_seconds)]
    pub change_every: f64,

    /// How many threads, each with a way of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub threads: usize,

    /// Percentage of accesses that write
    #[arg(long, value_name = "PCT", default_value = "10", value_parser = percent)]
    pub write_share: f64,

    /// The exponent of the Zipf distribution; 0: all alike
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = theta)]
    pub theta: f64,

    /// From what all is made
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Accesses are counted for so long each
    #[arg(long, value_name = "S", default_value_t = 0.1, value_parser = some_seconds)]
    pub interval: f64,

    /// At the end check all that was not read too, and that no write was lost (of a graph: all but
    /// its ranks)
    #[arg(long)]
    pub check_all: bool,

    /// Count accesses to each page, and write them into this file as JSON
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const LOAD_HELP: &str = "\
Every value that comes back is checked: key, version, checksum. A missing, stale or damaged one is an error.

Exit status:
  0    every answer was right
  1    one was not
  125  terrace itself failed, or the server went away

Examples:
  terrace load kv 127.0.0.1:11211 --items 1000000 --connections 32
  terrace load kv /run/redis.sock --protocol redis --get-share 90 --depth 16 --json";

/// `terrace load kv`.
#[derive(Args, Debug)]
pub struct KvArguments {
    /// HOST:PORT, or the path of a Unix socket
    #[arg(value_name = "TARGET")]
    pub target: Target,

    /// The protocol that it speaks; without it the server is asked
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,

    /// Fill the server, load it, or both. A server that is only loaded must have been filled with
    /// the same items, value bytes and seed
    #[arg(long, value_enum, default_value = "both")]
    pub phase: Phase,

    /// How many items
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=MOST_ITEMS))]
    pub items: u64,

    /// How long each value is, from 64 to 1000000 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1000, value_parser = value_bytes)]
    pub value_bytes: usize,

    /// From what all data are made, and which items are popular
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// With the seed, the order of accesses: a run after another one should have another, not to
    /// repeat its accesses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub order: u64,

    /// The exponent of the Zipf distribution; 0: all items alike
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = theta)]
    pub theta: f64,

    /// Popular items are those that were written first, so they are neighbours in the server's
    /// memory; else they are scattered
    #[arg(long)]
    pub clustered: bool,

    /// Percentage of operations that are GETs; the others are SETs
    #[arg(long, value_name = "PCT", default_value = "100", value_parser = percent)]
    pub get_share: f64,

    /// The operations of one of YCSB's workloads instead
    #[arg(long, value_enum, conflicts_with = "get_share")]
    pub workload: Option<Workload>,

    /// After so many operations other items are popular
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "workload")]
    pub jump_every: Option<u64>,

    /// An open loop: so many operations a second set out, and times count from when they are due
    #[arg(long, value_name = "OPS", value_parser = rate)]
    pub rate: Option<f64>,

    /// How many connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub connections: usize,

    /// Requests on the way on each of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    pub depth: usize,

    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub seconds: f64,

    /// Measure so many operations instead
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub operations: Option<u64>,

    /// How long to load before that
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub warm_up: f64,

    /// Give up when the server has not answered for so long
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub patience: f64,

    /// Count operations on each item while it is measured, and write them into this file as JSON
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Take values of any contents, from a server that keeps none, for benchmarks
    #[arg(long, hide = true)]
    pub unchecked: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What of a load is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Write every item, then load and measure
    Both,
    /// Only write every item
    Fill,
    /// Only load and measure
    Run,
}

/// Connections, and requests on each: more would be a mistake.
const COUNT_MOST: usize = 10_000;
/// A day.
const SECONDS_MOST: f64 = 86_400.0;

fn number_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("write a number from {least} to {most}")),
    }
}

fn theta(text: &str) -> Result<f64, String> {
    number_within(text, 0.0, 10.0)
}

fn rate(text: &str) -> Result<f64, String> {
    number_within(text, 1.0, 1e8)
}

fn percent(text: &str) -> Result<f64, String> {
    number_within(text.strip_suffix('%').unwrap_or(text), 0.0, 100.0).map(|percent| percent / 100.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    number_within(text, 0.0, SECONDS_MOST)
}

/// More than nothing: what is done for so long must be possible.
fn some_seconds(text: &str) -> Result<f64, String> {
    number_within(text, 0.01, SECONDS_MOST)
}

fn size(text: &str) -> Result<u64, String> {
    terrace_pager::settings::parse_size(text).map_err(|error| error.to_string())
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=COUNT_MOST).contains(&count) => Ok(count),
        _ => Err(format!("write a whole number from 1 to {COUNT_MOST}")),
    }
}

fn value_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (LEAST_BYTES..=MOST_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(format!(
            "write a whole number from {LEAST_BYTES} (a value names its key and version) to {MOST_BYTES}"
        )),
    }
}

/// Accepts a list of tiers that `terrace_tiers` understands and whose directories and nodes are fit
/// for use, and keeps it as it was written.
pub fn tiers(text: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    for tier in parse_tiers(text)? {
        match &tier.kind {
            TierKind::Compressed { medium: MediumKind::File { directory }, .. } => {
                FileMedium::check(directory)
                    .map_err(|error| format!("`{}`: {error}", tier.name))?;
            }
            TierKind::Node { node } => Nodes::of_machine()
                .check(*node)
                .map_err(|error| format!("`{}`: {error}", tier.name))?,
            _ => {}
        }
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use terrace_pager::settings::Dram;

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
