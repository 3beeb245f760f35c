//! The report of a run, as data: what `--report` writes as JSON and `report_text` tells people.
//!
//! Figures that were not measured are `null`, never 0: a report full of zeros would look like
//! success.

pub mod file;
pub mod outlet;
pub mod placements;
pub mod text;

use crate::cost::prices::Prices;
use crate::cost::tco::Tco;
use crate::processes::belief::Bounds;
use crate::processes::idle::Idle;
use crate::processes::outside::{Afterwards, Apart, Known, OtherMemory};
use crate::processes::statistics::{self, ProcessStats, Steps, Tier};
use crate::processes::tree::{Limits, Together};
use crate::report::sites::Sites;
use crate::run::child::End;
use crate::run::sampling::Sampled;
use crate::run_report::placements::Placement;
use anyhow::{Context, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;
use terrace_control::settings::{Dram, Settings};
use terrace_control::stats::{Counted, REPORTED, State};
use terrace_control::unreached::Unreached;
use terrace_policy::eviction::victims::Reason;

/// The whole report. Sizes are in bytes and averages over time (over `mean_window_s`) unless named
/// otherwise. The figures at the top are those of the process that held most (`figures_of`); all
/// have theirs in `processes`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Report {
    /// The version of Terrace.
    pub version: &'static str,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The program's name: of the last one that its process executed, where there were several
    /// (`env`, a wrapper).
    pub program: String,
    /// The program's exit status; 128 + N if signal N killed it. `null` while it runs
    /// (`--report-every`).
    pub exit_status: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// From start to end of the program, or until now while it runs.
    pub elapsed_s: f64,
    /// Managed processes that went on when this was written; the report is written again when the
    /// last of them has ended.
    pub going_on: usize,
    /// Process whose figures are at this level: the one that held most memory, summed up over time.
    /// `null` where the program itself left none.
    pub figures_of: Option<FiguresOf>,
    /// Whether Terrace was in that process and able to manage its memory.
    pub managed: bool,
    /// `idle`, `observing`, `active`, `unmanaged` or `frozen`.
    pub state: &'static str,
    /// Why it is unmanaged or frozen, or a warning.
    pub note: Option<String>,
    /// Program data under management.
    pub logical_bytes: Option<u64>,
    /// The limit of `--dram` in bytes, at the end; `null` without one. It, and what follows down
    /// to `far_over_budget_s`, is about all processes together.
    pub budget_bytes: Option<u64>,
    /// Whether it was kept: exceeded by more than 2 % for at most 1 % of the time; `null` if that
    /// is not known.
    pub budget_met: Option<bool>,
    /// The share of the time in which it was not exceeded by more than 2 %.
    pub budget_kept_fraction: Option<f64>,
    /// Where the budget was not met, what memory was on average while it was far above it and
    /// nothing more could be evicted; otherwise 0.
    pub floor_bytes: Option<u64>,
    /// How long that was.
    pub floor_s: Option<f64>,
    /// How long a share (`--dram 60%`) was not held to, or not in full, because memory grew and
    /// the machine had room; `null` without a share.
    pub growing_s: Option<f64>,
    /// `--slowdown`, as a part of the time; `null` without it.
    pub slowdown_target: Option<f64>,
    /// The limit that followed from it, at the end; `null` where there was none yet.
    pub slowdown_limit_bytes: Option<u64>,
    /// How long memory was above it.
    pub over_budget_s: Option<f64>,
    /// How long by more than 2 %.
    pub far_over_budget_s: Option<f64>,
    /// How long idle CPUs were to wake within `--wake-latency`, because pages came back; `null`
    /// without that flag, or where it had no effect.
    pub wakeful_s: Option<f64>,
    /// What all processes had together; `null` where there was never more than one with memory to
    /// manage, or no budget.
    pub together: Option<All>,
    /// The most data that there was at a time: of all processes under a budget, else of this one.
    /// `--of` takes it from here.
    pub peak_logical_bytes: Option<u64>,
    /// DRAM for that data: resident pages, pools and overhead.
    pub mean_physical_bytes: Option<u64>,
    /// Highest value of the physical bytes.
    pub peak_physical_bytes: Option<u64>,
    /// Terrace's own metadata, stacks and buffers, part of physical.
    pub overhead_bytes: Option<u64>,
    /// Highest value of the overhead.
    pub peak_overhead_bytes: Option<u64>,
    /// Logical less physical; negative where Terrace cost more than it saved.
    pub saved_bytes: Option<i64>,
    /// Share of the mean logical bytes that was saved: `saved_bytes` over logical. `null` if there
    /// was no data.
    pub saved_fraction: Option<f64>,
    /// What its memory cost beside all of its data in DRAM, by the prices that are built in; `null`
    /// if there was no data.
    pub tco: Option<Tco>,
    /// Time that the program lost to waits for restores and for room, per elapsed time. An
    /// estimate: where several threads wait or compute at once, the part of their time that
    /// they waited.
    pub slowdown_estimate: Option<f64>,
    /// Time that the program lost to waits for memory in the last minute, per elapsed time. In a
    /// shorter run it covers the whole time.
    pub slowdown_last_minute: Option<f64>,
    /// Whether more was lost than `slowdown_estimate` says: where the kernel brought pages back
    /// from swap, as no thread of Terrace's waits there with the program.
    pub slowdown_is_lower_bound: Option<bool>,
    /// Time that it lost, in s: `slowdown_estimate` times the time that its process lived.
    pub lost_s: Option<f64>,
    /// Estimated time in s that the program's threads waited for restores and for room, added up.
    pub stall_s: Option<f64>,
    /// The program's other anonymous memory, which is not in the sizes above.
    pub mean_unmanaged_bytes: Option<u64>,
    /// Over how long the averages are taken.
    pub mean_window_s: Option<f64>,
    /// When Terrace ended in the program, which went on: nothing at this level is measured after
    /// that but the budget and `afterwards`. `null` if it did not.
    pub measured_until_s: Option<f64>,
    /// The program's anonymous memory since then, as the kernel tells it; `null` where it was not
    /// seen.
    pub afterwards: Option<Afterwards>,
    /// Memory that Terrace does not manage, by kind; `null` where Terrace was not in the program.
    pub other_memory: Option<OtherMemory>,
    /// With `--observe`: how much was not touched for how long, and how memory compresses; `null`
    /// where that was not seen.
    pub idle: Option<Idle>,
    /// Pages left alone because a forked child shares them, at the end.
    pub shared_pages: Option<u64>,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// Pages moved.
    pub moves: Moves,
    /// Where the time of faults and evictions went (`TERRACE_TRACE_FAULTS=1`); `null` if that was
    /// not measured.
    pub steps: Option<Steps>,
    /// With `--placement`: what the model recommended, beside where pages were; `null` without it.
    pub placement: Option<Placement>,
    /// CPU time of Terrace's threads in the program, per elapsed time.
    pub cpu_fraction: f64,
    /// Where accesses were learned from.
    pub sampler: Sampler,
    /// Name of the policy that chose which pages leave DRAM.
    pub policy: &'static str,
    /// One entry for each program image that Terrace was in, by time of start.
    pub processes: Vec<Process>,
    /// Processes in which Terrace is and which could leave no figures: of other users, or without
    /// a place for them.
    pub without_figures: Vec<Apart>,
    /// Processes that were started without the library, though that could be loaded: LD_PRELOAD was
    /// replaced or cleared, or a program out of reach started them.
    pub without_library: Vec<Apart>,
    /// Programs that were executed without Terrace, because a preloaded library cannot come into
    /// them.
    pub out_of_reach: Vec<OutOfReach>,
    /// How a program was moved that a preloaded library cannot come into (`--inject`); `null` of
    /// others.
    pub attached: Option<terrace_attach::AttachedStats>,
    /// Allocation sites by process: in which tiers their objects were, and how hot. Only with
    /// `--allocator context` and samples.
    pub sites: Vec<Sites>,
}

/// The process that the report tells of in full.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct FiguresOf {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Whether it is the program's own process, and none that it started.
    pub is_the_program: bool,
}

/// A file that was executed without Terrace, as was what it started.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct OutOfReach {
    /// Name by which it was executed; the end of a very long one.
    pub program: String,
    /// Why: `AddressSanitizer`, `static`, `musl`, `32-bit`, ...
    pub cause: String,
}

/// All processes together. Pages that they share count once.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct All {
    /// Most processes with memory to manage at a time.
    pub processes: usize,
    /// Program data under management.
    pub logical_bytes: u64,
    /// DRAM for it.
    pub mean_physical_bytes: u64,
    /// Highest value of that DRAM.
    pub peak_physical_bytes: u64,
}

/// Pages moved between tiers.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Moves {
    /// Brought back to DRAM.
    pub promoted_pages: u64,
    /// Number of pages brought back to DRAM, by reason, without reasons that did not occur.
    /// Reasons: `touched` (a fault, or ahead of a sequential reader), `asked` (as `ahead_pages`),
    /// `hot` (samples, from a node), `room` (untouched: there is room, or a plan has them in DRAM).
    pub promoted_for: BTreeMap<&'static str, u64>,
    /// Pages brought back that the program asked for (`terrace_touch`, `terrace_prefetch`).
    pub ahead_pages: u64,
    /// Moved out of DRAM, or to a denser tier.
    pub demoted_pages: u64,
    /// Number of pages moved out of DRAM or to a denser tier, by reason, without reasons that did
    /// not occur.
    pub demoted_for: BTreeMap<&'static str, u64>,
    /// Counts that are reported as they are.
    #[serde(flatten)]
    pub counted: Plain,
    /// The last error of those refused.
    pub failed_with: Option<String>,
}

/// The counts that are reported as they are: those of [`REPORTED`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plain(pub Counted);

impl Serialize for Plain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(REPORTED.iter().map(|count| (count.key, (count.of)(&self.0))))
    }
}

impl JsonSchema for Plain {
    fn schema_name() -> Cow<'static, str> {
        "Counts".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut count = |about: &str| {
            let mut schema = u64::json_schema(generator);
            schema.insert("description".into(), about.into());
            schema
        };
        let keys: Vec<&str> = REPORTED.iter().map(|count| count.key).collect();
        let counts: serde_json::Map<_, _> =
            REPORTED.iter().map(|row| (row.key.into(), count(row.about).to_value())).collect();
        json_schema!({ "type": "object", "properties": counts, "required": keys })
    }
}

/// Where accesses were learned from.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Sampler {
    /// `pebs`, `ibs`, `clock`: from samples and faults. `faults`: from restores and coldness
    /// probes alone.
    pub kind: &'static str,
    /// Accesses to the program's data that were sampled.
    pub samples: u64,
    /// What sampling cost, the program's interrupts included: CPU time per elapsed time.
    pub cpu_fraction: f64,
}

/// One program image in one process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Whether the figures at the top are its.
    pub main: bool,
    /// `state` of this process, as at the top of the report.
    pub state: &'static str,
    /// `note` of this process, as at the top of the report.
    pub note: Option<String>,
    /// From its start to its last update.
    pub elapsed_s: f64,
    /// `logical_bytes` of this process, as at the top of the report.
    pub logical_bytes: u64,
    /// `mean_physical_bytes` of this process, as at the top of the report.
    pub mean_physical_bytes: u64,
    /// `peak_physical_bytes` of this process, as at the top of the report.
    pub peak_physical_bytes: u64,
    /// `overhead_bytes` of this process, as at the top of the report.
    pub overhead_bytes: u64,
    /// `mean_unmanaged_bytes` of this process, as at the top of the report.
    pub mean_unmanaged_bytes: u64,
    /// What it held, managed and other, evicted or not, averaged over the time of the whole run.
    pub mean_held_bytes: u64,
    /// `mean_window_s` of this process, as at the top of the report.
    pub mean_window_s: f64,
    /// `saved_bytes` of this process, as at the top of the report.
    pub saved_bytes: i64,
    /// Share of the budget that the process had at the end.
    pub budget_bytes: Option<u64>,
    /// Whether it kept within its share, as at the top; `null` if that is not known.
    pub budget_met: Option<bool>,
    /// `budget_kept_fraction` of this process, as at the top of the report.
    pub budget_kept_fraction: Option<f64>,
    /// `measured_until_s` of this process, as at the top of the report.
    pub measured_until_s: Option<f64>,
    /// Pages restored, over all tiers.
    pub faults: u64,
    /// `moves` of this process, as at the top of the report.
    pub moves: Moves,
    /// `stall_s` of this process, as at the top of the report.
    pub stall_s: f64,
    /// CPU time of Terrace's threads.
    pub cpu_s: f64,
}

/// What is known at the end of a run besides the figures.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it was run with.
    pub settings: &'a Settings,
    /// What limited it at last.
    pub limits: Limits,
    /// Process id of the program.
    pub pid: u32,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// How long it ran.
    pub elapsed: Duration,
    /// How many of its processes went on.
    pub going_on: usize,
    /// What its processes had together, if there was a budget.
    pub together: Option<Together>,
    /// What the kernel said of the processes' memory.
    pub outside: Option<Vec<Known>>,
    /// What of it was idle, by process and the time at which its image started.
    pub idle: HashMap<(u32, u64), Idle>,
    /// Processes that have Terrace and no page.
    pub apart: Vec<Apart>,
    /// Shared memory of all its processes, where they are looked at from outside.
    pub shared_bytes: u64,
    /// The lowest limit of the memory groups that it is in.
    pub group_limit: Option<u64>,
    /// What became of sampling, if there was any.
    pub sampled: Option<Sampled>,
    /// How long idle CPUs were to wake fast, if that was asked for.
    pub wakeful: Option<Duration>,
    /// Why it was run without the library, if it was.
    pub out_of_reach: Option<String>,
    /// What is wrong with its statistics page, if it left one that cannot be used.
    pub unusable_page: Option<String>,
    /// Figures of attaching to the program instead.
    pub attached: Option<terrace_attach::AttachedStats>,
    /// What its processes executed without the library.
    pub unreached: Vec<Unreached>,
    /// What processes told of their allocation sites.
    pub sites: Vec<Sites>,
    /// What came of `--placement`, if that was asked for.
    pub placement: Option<Placement>,
}

/// What is said where the library was preloaded and left no page.
const NEVER_CAME_UP: &str = "libterrace.so never came up in it: the program was replaced or left before that, cleared its environment, or cannot write the run directory";

/// What is said of a program that could leave no page.
const LEFT_NO_FIGURES: &str = "not known: it could leave no figures (its user changed before it was executed, or there was no place for them); \
                               what it may have of the budget is not adjusted";

impl Report {
    /// Puts a report together; `pages` are the good ones of `statistics::read_all`.
    pub fn new(run: &Run<'_>, pages: &[ProcessStats]) -> Self {
        let pages = &run.believed(pages)[..];
        // It has become one that could leave no page.
        let (without_figures, without_library): (Vec<Apart>, Vec<Apart>) =
            run.apart.iter().cloned().partition(|apart| apart.has_library);
        let lost = without_figures.iter().find(|apart| apart.pid == run.pid);
        let own_page = statistics::of_process(pages, run.pid);
        let own = own_page.map(|index| &pages[index]);
        // It has become a program without the library. What it was before counts where it had
        // memory to manage.
        let left = run
            .unreached
            .iter()
            .rfind(|file| file.process == run.pid)
            .filter(|_| own.is_none_or(ProcessStats::has_seen_nothing));
        let held: Vec<f64> = pages.iter().map(|page| run.held_byte_s(page)).collect();
        // What the program itself held is not known where it left no page.
        let main_page = own_page
            .filter(|_| left.is_none())
            .map(|own| run.held_most(pages, &held, own))
            .or(own_page)
            .filter(|_| lost.is_none());
        let main = main_page.map(|index| &pages[index]);
        let seen_outside = main.and_then(|page| run.outside_of(page.pid));
        // One process knows better how it kept its budget than a look at it now and then tells. But
        // a program that left a daemon knows nothing of that one's memory.
        let one = pages.iter().filter(|page| !page.has_seen_nothing()).count() <= 1;
        let has_own = own.is_some_and(|page| !page.has_seen_nothing());
        let several = run.together.filter(|together| {
            together.processes > 1
                || together.processes == 1 && !one
                || !has_own
                || !without_figures.is_empty()
        });
        // Nor does it know anything of the time after Terrace ended in it.
        let measured_until_s = main.and_then(ProcessStats::measured_until_s);
        let afterwards = measured_until_s.and(seen_outside.and_then(|known| known.afterwards));
        let seen = if measured_until_s.is_some() {
            run.together.filter(|_| afterwards.is_some())
        } else {
            several
        };
        let judge = main.filter(|_| measured_until_s.is_none());
        let limit = run.group_limit.filter(|_| is_charged(pages)).unwrap_or(u64::MAX);
        let elapsed_s = run.elapsed.as_secs_f64();
        // Daemons live longer than the program.
        let lived_s = run.outside.iter().flatten().filter_map(|known| Some(known.bounds?.seconds));
        let run_s = lived_s.fold(elapsed_s, f64::max);
        let main_s =
            main.filter(|page| page.pid != run.pid).map_or(elapsed_s, ProcessStats::elapsed_s);
        let per_elapsed = |ns: u64| if main_s > 0.0 { ns as f64 / 1e9 / main_s } else { 0.0 };
        let signal = match run.end {
            Some(End::Killed(signal)) => Some(signal),
            Some(End::Exited(_)) | None => None,
        };
        let requested = match run.settings.dram {
            Dram::Bytes(bytes) => Some(bytes),
            Dram::Unlimited | Dram::Share(_) => None,
        };
        let mut report = Report {
            version: env!("CARGO_PKG_VERSION"),
            command: run.command.clone(),
            program: match (lost, left) {
                (Some(apart), _) => apart.program.clone(),
                (None, Some(file)) => file_name(&file.program).into(),
                (None, None) => program(run, pages),
            },
            exit_status: run.end.map(End::exit_status),
            signal,
            elapsed_s,
            going_on: run.going_on,
            figures_of: main.map(|page| FiguresOf {
                pid: page.pid,
                program: page.program.clone(),
                is_the_program: page.pid == run.pid,
            }),
            managed: run.attached.is_some()
                || left.is_none() && main.is_some_and(|page| page.state != State::Unmanaged),
            state: match run.attached {
                Some(_) => "attached",
                None => state_name(
                    main.filter(|_| left.is_none()).map_or(State::Unmanaged, |page| page.state),
                ),
            },
            note: match main {
                _ if lost.is_some() => Some(LEFT_NO_FIGURES.into()),
                _ if left.is_some() => left.map(became),
                Some(page) => note(page),
                None => Some(match (&run.out_of_reach, &run.unusable_page) {
                    (Some(cause), _) => cause.clone(),
                    (None, Some(why)) => {
                        format!("not known: its statistics page cannot be used ({why})")
                    }
                    (None, None) => NEVER_CAME_UP.into(),
                }),
            },
            logical_bytes: main.map(|page| page.mean_logical_bytes),
            budget_bytes: run
                .together
                .map(|all| all.budget_bytes)
                .or_else(|| main.map_or(requested, |page| page.budget_bytes)),
            budget_met: seen.map(|all| all.budget_met).or(judge.map(|page| page.budget_met)),
            budget_kept_fraction: seen
                .map(|all| all.kept_fraction)
                .or(judge.map(ProcessStats::kept_fraction)),
            floor_bytes: seen.map(|all| all.floor_bytes).or(judge.map(|page| page.floor_bytes)),
            floor_s: seen.map(|all| all.floor_s).or(judge.map(|page| page.floor_ms as f64 / 1e3)),
            slowdown_target: run.limits.slowdown.map(|target| target.0),
            slowdown_limit_bytes: run
                .limits
                .slowdown
                .and(run.together)
                .map(|all| all.budget_bytes)
                .filter(|limit| *limit != u64::MAX),
            growing_s: run
                .together
                .filter(|_| matches!(run.limits.dram, Dram::Share(_)))
                .map(|all| all.growing_s),
            over_budget_s: seen
                .map(|all| all.over_budget_s)
                .or(judge.map(|page| page.over_budget_ms as f64 / 1e3)),
            far_over_budget_s: seen
                .map(|all| all.far_over_budget_s)
                .or(judge.map(|page| page.far_over_budget_ms as f64 / 1e3)),
            wakeful_s: run.wakeful.map(|held| held.as_secs_f64()),
            together: several.map(|all| All {
                processes: all.processes,
                logical_bytes: all.mean_logical_bytes,
                mean_physical_bytes: all.mean_physical_bytes,
                peak_physical_bytes: all.peak_physical_bytes.min(limit),
            }),
            peak_logical_bytes: run
                .together
                .map(|all| all.peak_logical_bytes)
                .or(main.map(|page| page.peak_logical_bytes)),
            mean_physical_bytes: main.map(|page| page.mean_physical_bytes),
            peak_physical_bytes: main.map(|page| {
                page.peak_physical_bytes
                    .max(afterwards.map_or(0, |afterwards| afterwards.peak_anonymous_bytes))
                    .min(limit)
            }),
            overhead_bytes: main.map(|page| page.mean_overhead_bytes),
            peak_overhead_bytes: main.map(|page| page.peak_overhead_bytes),
            saved_bytes: main.map(ProcessStats::saved_bytes),
            saved_fraction: main
                .filter(|page| page.mean_logical_bytes > 0)
                .map(|page| page.saved_bytes() as f64 / page.mean_logical_bytes as f64),
            tco: main.and_then(tco),
            slowdown_estimate: main.map(|page| per_elapsed(page.counts.lost_ns)),
            slowdown_last_minute: main.map(ProcessStats::slowdown_last_minute),
            slowdown_is_lower_bound: main
                .map(|page| page.tiers.iter().any(|tier| tier.name == "swap" && tier.faults > 0)),
            lost_s: main.map(|page| page.counts.lost_ns as f64 / 1e9),
            stall_s: main.map(|page| page.counts.stall_ns as f64 / 1e9),
            mean_unmanaged_bytes: main.map(|page| page.mean_unmanaged_bytes),
            mean_window_s: main.map(|page| page.mean_window_ms as f64 / 1e3),
            measured_until_s,
            afterwards,
            other_memory: main
                .filter(|_| run.outside.is_some())
                .map(|_| seen_outside.map_or_else(OtherMemory::default, |known| known.other))
                .or_else(|| {
                    let shared_bytes = run.shared_bytes;
                    lost.map(|_| OtherMemory { shared_bytes, ..OtherMemory::default() })
                }),
            idle: main.and_then(|page| run.idle.get(&(page.pid, page.started_ns)).cloned()),
            shared_pages: main.map(|page| page.counts.shared_pages),
            tiers: main.map(|page| page.tiers.clone()).unwrap_or_default(),
            moves: main.map(moves).unwrap_or_default(),
            steps: main.and_then(|page| page.steps),
            placement: run.placement.clone(),
            cpu_fraction: main.map_or(0.0, |page| per_elapsed(page.counts.cpu_ns)),
            sampler: run.sampled.map_or(
                Sampler { kind: "faults", samples: 0, cpu_fraction: 0.0 },
                |sampled| Sampler {
                    kind: sampled.kind,
                    samples: sampled.samples,
                    cpu_fraction: sampled.cpu_fraction,
                },
            ),
            policy: run.settings.policy.name(),
            processes: pages
                .iter()
                .zip(&held)
                .enumerate()
                .map(|(index, (page, held))| Process {
                    peak_physical_bytes: page.peak_physical_bytes.min(limit),
                    mean_held_bytes: if run_s > 0.0 { (held / run_s) as u64 } else { 0 },
                    ..process(page, Some(index) == main_page)
                })
                .collect(),
            without_figures,
            without_library,
            out_of_reach: out_of_reach(&run.unreached),
            attached: run.attached.clone(),
            sites: run.sites.clone(),
        };
        if run.limits.slowdown.is_some() && run.limits.dram == Dram::Unlimited {
            report.forget_budget();
        }
        report
    }

    /// The report as it is written into a file.
    pub fn json(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self);
        Ok(json.context("the report cannot be put as JSON")? + "\n")
    }

    /// Forgets the budget: the limit that follows from a slowdown is none that must be kept.
    fn forget_budget(&mut self) {
        (self.budget_bytes, self.budget_met, self.budget_kept_fraction) = (None, None, None);
        (self.floor_bytes, self.floor_s, self.growing_s) = (None, None, None);
        (self.over_budget_s, self.far_over_budget_s) = (None, None);
        for process in &mut self.processes {
            (process.budget_met, process.budget_kept_fraction) = (None, None);
        }
    }
}

impl Run<'_> {
    /// The figures, as far as they are believed.
    fn believed(&self, pages: &[ProcessStats]) -> Vec<ProcessStats> {
        let Some(outside) = &self.outside else { return pages.to_vec() };
        let known: HashMap<(u32, u64), &Known> =
            outside.iter().map(|known| ((known.pid, known.started_ns), known)).collect();
        let bounds = |page: &ProcessStats| {
            known.get(&(page.pid, page.started_ns)).and_then(|known| known.bounds)
        };
        let nobody = Bounds::of_nobody(self.elapsed.as_secs_f64());
        pages.iter().map(|page| bounds(page).unwrap_or(nobody).apply(page)).collect()
    }

    /// What the kernel said of a process, for its last image.
    fn outside_of(&self, pid: u32) -> Option<Known> {
        let all = self.outside.iter().flatten().filter(|known| known.pid == pid);
        all.max_by_key(|known| known.started_ns).copied()
    }

    /// The memory that an image held, managed and other, evicted or not, summed up over time: as
    /// seen from outside, or by what it told where it lived too short for that.
    fn held_byte_s(&self, page: &ProcessStats) -> f64 {
        let is_it = |known: &&Known| known.pid == page.pid && known.started_ns == page.started_ns;
        let seen = self.outside.iter().flatten().find(is_it).map_or(0.0, |known| known.held_byte_s);
        let told = page.mean_logical_bytes as f64 + page.mean_unmanaged_bytes as f64;
        seen.max(told * page.mean_window_ms as f64 / 1e3)
    }

    /// The image, by its number, that held most over time: the program's `own`, unless another
    /// process held more and has something to tell.
    fn held_most(&self, pages: &[ProcessStats], held: &[f64], own: usize) -> usize {
        let tells = |page: &ProcessStats| {
            let other = || self.outside_of(page.pid).is_some_and(|known| known.other.bytes() > 0);
            page.pid != self.pid && (!page.is_idle() || other())
        };
        let others =
            (0..pages.len()).filter(|index| held[*index] > held[own] && tells(&pages[*index]));
        others.max_by(|a, b| held[*a].total_cmp(&held[*b])).unwrap_or(own)
    }
}

/// Whether all memory for the programs' data is memory of their own, which their memory group is
/// charged for: no tier is in files, on a node or in the kernel's swap.
fn is_charged(pages: &[ProcessStats]) -> bool {
    let elsewhere = |name: &str| name == "swap" || name.starts_with("node") || name.contains('@');
    pages.iter().all(|page| !page.tiers.iter().any(|tier| elsewhere(&tier.name)))
}

fn tco(page: &ProcessStats) -> Option<Tco> {
    let (logical, physical) = (page.mean_logical_bytes, page.mean_physical_bytes);
    Tco::of(logical, physical, &page.tiers, &Prices::default())
}

/// What the program's process was last.
fn program(run: &Run<'_>, pages: &[ProcessStats]) -> String {
    let named = run.command.first().map_or("", |name| file_name(name));
    let mut images = pages.iter().filter(|page| page.pid == run.pid);
    let (first, last) = (images.next(), images.next_back());
    match (first, last) {
        (Some(first), Some(last)) if last.program != first.program => last.program.clone(),
        _ => named.into(),
    }
}

fn file_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path)
}

/// Files that were executed without the library, each once.
fn out_of_reach(files: &[Unreached]) -> Vec<OutOfReach> {
    let mut all = Vec::new();
    for file in files {
        let entry = OutOfReach { program: file.program.clone(), cause: file.cause.clone() };
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    all
}

fn became(file: &Unreached) -> String {
    format!(
        "it executed {} ({}), which a preloaded library cannot come into",
        file.program, file.cause
    )
}

fn process(page: &ProcessStats, main: bool) -> Process {
    Process {
        pid: page.pid,
        program: page.program.clone(),
        main,
        state: state_name(page.state),
        note: note(page),
        elapsed_s: page.elapsed_s(),
        logical_bytes: page.mean_logical_bytes,
        mean_physical_bytes: page.mean_physical_bytes,
        peak_physical_bytes: page.peak_physical_bytes,
        overhead_bytes: page.mean_overhead_bytes,
        mean_unmanaged_bytes: page.mean_unmanaged_bytes,
        mean_held_bytes: 0,
        mean_window_s: page.mean_window_ms as f64 / 1e3,
        saved_bytes: page.saved_bytes(),
        budget_bytes: page.budget_bytes,
        budget_met: page.measured_until_ns.is_none().then_some(page.budget_met),
        budget_kept_fraction: page.measured_until_ns.is_none().then(|| page.kept_fraction()),
        measured_until_s: page.measured_until_s(),
        faults: page.faults(),
        moves: moves(page),
        stall_s: page.counts.stall_ns as f64 / 1e9,
        cpu_s: page.counts.cpu_ns as f64 / 1e9,
    }
}

fn moves(page: &ProcessStats) -> Moves {
    Moves {
        promoted_pages: page.counts.promoted_pages,
        promoted_for: promoted_by_reason(page),
        ahead_pages: page.counts.ahead_pages,
        demoted_pages: page.counts.demoted_pages,
        demoted_for: demoted_by_reason(page),
        counted: Plain(page.counts.clone()),
        failed_with: (page.counts.failed_moves > 0 && page.counts.move_error > 0)
            .then(|| std::io::Error::from_raw_os_error(page.counts.move_error as i32).to_string()),
    }
}

fn promoted_by_reason(page: &ProcessStats) -> BTreeMap<&'static str, u64> {
    let touched = [page.counts.ahead_pages, page.counts.hot_pages, page.counts.room_pages]
        .into_iter()
        .fold(page.counts.promoted_pages, u64::saturating_sub);
    let all = [
        ("touched", touched),
        ("asked", page.counts.ahead_pages),
        ("hot", page.counts.hot_pages),
        ("room", page.counts.room_pages),
    ];
    all.into_iter().filter(|(_, pages)| *pages > 0).collect()
}

fn demoted_by_reason(page: &ProcessStats) -> BTreeMap<&'static str, u64> {
    let counted = Reason::ALL
        .into_iter()
        .map(|reason| (reason.name(), page.counts.demoted_for[reason as usize]));
    counted.filter(|(_, pages)| *pages > 0).collect()
}

fn note(page: &ProcessStats) -> Option<String> {
    Some(page.note.clone()).filter(|note| !note.is_empty())
}

/// A state as reports name it.
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Observing => "observing",
        State::Active => "active",
        State::Unmanaged => "unmanaged",
        State::Frozen => "frozen",
    }
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A run of `redis-server` as process 7 that exited with 0 after 61.2 s.
    pub fn run(settings: &Settings) -> Run<'_> {
        Run {
            command: vec!["/usr/bin/redis-server".into(), "--save".into()],
            settings,
            limits: Limits { dram: settings.dram, slowdown: None },
            pid: 7,
            end: Some(End::Exited(0)),
            elapsed: Duration::from_millis(61_200),
            going_on: 0,
            together: None,
            outside: None,
            idle: HashMap::new(),
            apart: Vec::new(),
            shared_bytes: 0,
            group_limit: None,
            sampled: None,
            wakeful: None,
            out_of_reach: None,
            attached: None,
            unusable_page: None,
            unreached: Vec::new(),
            sites: Vec::new(),
            placement: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::statistics::samples::active;

    #[test]
    fn the_figures_are_the_main_processs_and_every_process_has_an_entry() {
        let settings = Settings::default();
        let child =
            ProcessStats { program: "child".into(), started_ns: 2_000_000_000, ..active(8) };
        let report = Report::new(&samples::run(&settings), &[active(7), child]);
        assert!(report.managed);
        assert_eq!(report.saved_bytes, Some(3_543_348_020 - 2_040_109_466));
        assert!((report.saved_fraction.unwrap() - 0.424).abs() < 0.001);
        assert!((report.slowdown_estimate.unwrap() - 1.9 / 61.2).abs() < 1e-9);
        assert_eq!(
            report.processes.iter().map(|p| (p.pid, p.main)).collect::<Vec<_>>(),
            [(7, true), (8, false)]
        );
    }

    /// `g++` starts `cc1plus`, which holds nearly everything.
    #[test]
    fn the_process_that_held_most_is_told_in_full() {
        let settings = Settings::default();
        let mut run = samples::run(&settings);
        let nothing = |pid| ProcessStats {
            program: "g++".into(),
            state: State::Idle,
            mean_logical_bytes: 0,
            peak_logical_bytes: 0,
            mean_unmanaged_bytes: 0,
            ..active(pid)
        };
        let compiler = ProcessStats {
            program: "cc1plus".into(),
            started_ns: 2_000_000_000,
            updated_ns: 32_000_000_000,
            ..active(8)
        };
        let report = Report::new(&run, &[nothing(7), compiler.clone()]);
        let of = FiguresOf { pid: 8, program: "cc1plus".into(), is_the_program: false };
        assert_eq!(
            (report.figures_of, report.program.as_str(), report.managed),
            (Some(of), "redis-server", true)
        );
        assert_eq!(
            (report.logical_bytes, report.state),
            (Some(compiler.mean_logical_bytes), "active")
        );
        assert!((report.slowdown_estimate.unwrap() - 1.9 / 30.0).abs() < 1e-9, "of its own time");
        assert_eq!(
            report.processes.iter().map(|process| process.main).collect::<Vec<_>>(),
            [false, true]
        );
        assert!(report.processes[1].mean_held_bytes > 3 << 30);
        // What lives ten times as long holds more in the end. A child with the same as its parent
        // for a while is not more.
        let brief = ProcessStats { mean_window_ms: 1_000, ..compiler.clone() };
        let small = ProcessStats { mean_logical_bytes: 400 << 20, ..active(7) };
        assert_eq!(Report::new(&run, &[small, brief]).figures_of.map(|of| of.pid), Some(7));
        // By what is seen from outside, where nothing is managed.
        let other = OtherMemory { static_bytes: 300 << 20, ..OtherMemory::default() };
        let seen = |pid, held_byte_s| Known {
            pid,
            started_ns: 1_000_000_000,
            other,
            held_byte_s,
            ..Known::default()
        };
        run.outside = Some(vec![seen(8, 1e9), seen(7, 1e8)]);
        let report = Report::new(&run, &[nothing(7), nothing(8)]);
        assert_eq!(
            (report.figures_of.map(|of| of.pid), report.other_memory),
            (Some(8), Some(other))
        );
        run.outside = Some(vec![seen(8, 1e8), seen(7, 1e9)]);
        assert_eq!(
            Report::new(&run, &[nothing(7), nothing(8)]).figures_of.map(|of| of.pid),
            Some(7)
        );
    }

    #[test]
    fn no_peak_is_above_the_memory_groups_limit() {
        let settings = Settings::default();
        let mut run = samples::run(&settings);
        run.together =
            Some(Together { processes: 2, peak_physical_bytes: 5 << 30, ..Together::default() });
        run.group_limit = Some(1 << 30);
        let report = Report::new(&run, &[active(7), active(8)]);
        assert_eq!(
            (report.peak_physical_bytes, report.together.map(|all| all.peak_physical_bytes)),
            (Some(1 << 30), Some(1 << 30))
        );
        assert_eq!(report.processes[1].peak_physical_bytes, 1 << 30);
        // A group is not charged for pages in the kernel's zram.
        let mut swaps = active(7);
        swaps.tiers[1].name = "swap".into();
        assert_eq!(Report::new(&run, &[swaps]).peak_physical_bytes, Some(2_100_000_000));
    }

    #[test]
    fn the_budget_is_that_of_all_processes_where_there_are_several() {
        let settings = Settings { dram: Dram::Bytes(3 << 30), ..Settings::default() };
        let mut run = samples::run(&settings);
        let mut together = Together {
            processes: 1,
            budget_bytes: 3 << 30,
            over_budget_s: 7.5,
            ..Together::default()
        };
        run.together = Some(together);
        let report = Report::new(&run, &[active(7)]);
        assert_eq!(
            (report.budget_bytes, report.budget_met, report.over_budget_s),
            (Some(3 << 30), Some(true), Some(0.3))
        );
        assert_eq!(report.together, None);
        together.processes = 2;
        run.together = Some(together);
        let report = Report::new(&run, &[active(7), active(8)]);
        assert_eq!(
            (report.budget_bytes, report.budget_met, report.over_budget_s),
            (Some(3 << 30), Some(false), Some(7.5))
        );
        assert_eq!(report.together.map(|all| all.processes), Some(2));
        assert_eq!(report.processes[1].budget_bytes, Some(2 << 30));
    }

    #[test]
    fn after_the_end_of_measuring_only_what_was_seen_from_outside_counts() {
        let settings = Settings { dram: Dram::Bytes(3 << 30), ..Settings::default() };
        let mut run = samples::run(&settings);
        let page = ProcessStats {
            state: State::Frozen,
            measured_until_ns: Some(5_000_000_000),
            ..active(7)
        };
        let report = Report::new(&run, std::slice::from_ref(&page));
        assert_eq!(
            (report.measured_until_s, report.budget_met, report.over_budget_s),
            (Some(4.0), None, None)
        );
        assert_eq!((report.processes[0].budget_met, report.afterwards), (None, None));
        let afterwards = Afterwards {
            seconds: 57.0,
            mean_anonymous_bytes: 4 << 30,
            peak_anonymous_bytes: 5 << 30,
        };
        run.outside =
            Some(vec![Known { pid: 7, afterwards: Some(afterwards), ..Known::default() }]);
        run.together = Some(Together {
            processes: 1,
            budget_bytes: 3 << 30,
            over_budget_s: 50.0,
            ..Together::default()
        });
        let report = Report::new(&run, &[page]);
        assert_eq!(
            (report.budget_met, report.over_budget_s, report.afterwards),
            (Some(false), Some(50.0), Some(afterwards))
        );
        assert_eq!((report.peak_physical_bytes, report.together), (Some(5 << 30), None));
        let report = Report::new(&run, &[active(7)]);
        assert_eq!(
            (report.measured_until_s, report.budget_met, report.afterwards),
            (None, Some(true), None)
        );
        let (mut silent, mut ended) = (active(7), active(7));
        silent.notice_silence(silent.updated_ns + 6_000_000_000);
        ended.notice_silence(ended.updated_ns + 1_000_000_000);
        assert_eq!((silent.measured_until_s(), ended.measured_until_s()), (Some(61.0), None));
        let (mut never, mut short) = (active(7), active(7));
        for figures in [&mut never, &mut short] {
            figures.updated_ns = figures.started_ns;
        }
        never.notice_silence(never.started_ns + 3_000_000_000);
        short.notice_silence(short.started_ns + 1_000_000_000);
        assert_eq!((never.measured_until_s(), short.measured_until_s()), (Some(0.0), None));
    }

    #[test]
    fn without_a_page_nothing_is_pretended() {
        let settings = Settings { dram: Dram::Bytes(1 << 30), ..Settings::default() };
        let mut run = samples::run(&settings);
        run.end = Some(End::Killed(9));
        let report = Report::new(&run, &[active(8)]);
        assert!(!report.managed && report.note.as_deref() == Some(NEVER_CAME_UP));
        assert_eq!((report.exit_status, report.signal), (Some(137), Some(9)));
        assert_eq!(
            (report.logical_bytes, report.saved_bytes, report.budget_bytes),
            (None, None, Some(1 << 30))
        );
        run.out_of_reach = Some("is statically linked".into());
        assert_eq!(Report::new(&run, &[]).note.as_deref(), Some("is statically linked"));
    }

    #[test]
    fn a_wrapper_is_not_the_program() {
        let settings = Settings::default();
        let mut run = samples::run(&settings);
        run.command = vec!["/usr/bin/env".into(), "redis-server".into()];
        let env = ProcessStats {
            program: "env".into(),
            state: State::Idle,
            mean_logical_bytes: 0,
            peak_logical_bytes: 0,
            ..active(7)
        };
        let server = ProcessStats { started_ns: env.started_ns + 1, ..active(7) };
        assert_eq!(Report::new(&run, std::slice::from_ref(&env)).program, "env");
        assert_eq!(
            Report::new(&run, &[env.clone(), active(8), server.clone()]).program,
            "redis-server"
        );
        let entry = |process| Unreached {
            program: "./t/asan".into(),
            cause: "AddressSanitizer".into(),
            process,
        };
        run.unreached = vec![entry(0), entry(8)];
        let report = Report::new(&run, std::slice::from_ref(&env));
        assert_eq!(
            (report.program.as_str(), report.state, report.out_of_reach.len()),
            ("env", "idle", 1)
        );
        run.unreached = vec![entry(7)];
        let report = Report::new(&run, std::slice::from_ref(&env));
        assert_eq!(
            (report.program.as_str(), report.managed, report.state),
            ("asan", false, "unmanaged")
        );
        assert!(report.note.unwrap().contains("./t/asan (AddressSanitizer)"));
        let report = Report::new(&run, &[env, server]);
        assert_eq!((report.program.as_str(), report.managed), ("redis-server", true));
    }

    #[test]
    fn an_unmanaged_page_is_not_managed_and_a_loss_is_negative() {
        let settings = Settings::default();
        let unmanaged =
            ProcessStats { state: State::Unmanaged, note: "no userfaultfd".into(), ..active(7) };
        let report = Report::new(&samples::run(&settings), &[unmanaged]);
        assert_eq!(
            (report.managed, report.state, report.note.as_deref()),
            (false, "unmanaged", Some("no userfaultfd"))
        );
        let costly =
            ProcessStats { mean_logical_bytes: 100, mean_physical_bytes: 150, ..active(7) };
        let report = Report::new(&samples::run(&settings), &[costly]);
        assert_eq!((report.saved_bytes, report.saved_fraction), (Some(-50), Some(-0.5)));
    }
}
