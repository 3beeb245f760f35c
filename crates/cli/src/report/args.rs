//! The command lines of `terrace report` and its kinds.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// How much of hot pages is hot, and what hot objects side by side would save: from samples,
    /// or a program built with the recorder
    Utilisation(UtilisationArguments),
}

/// `terrace report utilisation`.
#[derive(Args, Debug)]
pub struct UtilisationArguments {
    /// What `terrace record --accesses --unit 64` wrote, or a program built with the recorder, with
    /// TERRACE_RECORD=objects:FILE
    pub file: PathBuf,
    /// How long memory is hot after an access, in the recording's clock: accesses, or us
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
