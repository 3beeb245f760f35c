//! `terrace status`: the runs that live on this machine, and how their processes stand.
//!
//! All of it is read from the runs' directories, which only their user and root can: from the
//! statistics pages of the processes, looked at twice, as rates need some time between two polls.

use crate::processes::outside::OtherMemory;
use crate::processes::process;
use crate::processes::statistics::{self, Image, PageFile, ProcessStats, SILENT_NS};
use crate::quantity::{bytes, share};
use crate::run::directory::{self, About, LiveRun};
use crate::run_report::state_name;
use crate::terminal::emphasised;
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_control::stats::State;
use terrace_os as sys;
use terrace_policy::eviction::victims::Reason;

/// `terrace status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    /// Print JSON: one object an update
    #[arg(long)]
    pub json: bool,
    /// Look again every second, until the end of the last run
    #[arg(long)]
    pub watch: bool,
}

/// Width of a tier's bar, cells.
pub const BAR: usize = 30;
/// Time between the two looks of one answer, and between the answers of `--watch`.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// A process that measures writes ten times a second: if it wrote in this time, it is not looked at
/// in /proc whether it lives.
const JUST_NOW_NS: u64 = 200_000_000;
const PAGE_BYTES: u64 = 4096;

/// What one look at the machine found.
#[derive(Debug, PartialEq, Serialize)]
pub struct Status {
    /// Runs of this user, or of all users to root, in the order of their start.
    pub runs: Vec<Run>,
    /// Number of other users' runs, of which nothing can be told.
    pub runs_of_others: usize,
    /// Processes that were attached to while they ran, by `terrace attach`.
    pub attached: Vec<terrace_attach::AttachedStats>,
}

/// What is said of a run whose `terrace run` was killed.
pub const UNSUPERVISED: &str =
    "its `terrace run` was killed: budgets stay as they are, and no report follows";

/// A run and its processes.
#[derive(Debug, PartialEq, Serialize)]
pub struct Run {
    /// Where the run keeps its statistics pages.
    pub directory: PathBuf,
    /// `null` if the run said nothing of itself.
    #[serde(flatten)]
    pub about: Option<About>,
    /// Whether its `terrace run`, or the keeper that it left, lives and divides the budget.
    pub supervised: bool,
    /// Processes that left figures and live, in the order of their start.
    pub processes: Vec<Process>,
}

/// How a process stands now. Rates are averages over `interval_s`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Process {
    /// Process id, as its own PID namespace has it.
    pub pid: u32,
    /// PID namespace of the process, by its inode; 0 if that is unknown.
    #[serde(skip)]
    pub pid_namespace: u64,
    /// When the process started, in clock ticks; 0 if that is unknown.
    #[serde(skip)]
    pub start_ticks: u64,
    /// Name of the program that it executed last.
    pub program: String,
    /// What Terrace does in it, by the names of reports.
    pub state: &'static str,
    /// What the library had to say, or `None`.
    pub note: Option<String>,
    /// Data under management, bytes.
    pub logical_bytes: u64,
    /// DRAM that the data takes, compressed pages included, bytes.
    pub physical_bytes: u64,
    /// Budget, bytes; `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// Pages that were restored by faults, in all.
    pub faults: u64,
    /// Pages that were restored by faults, each second of the interval.
    pub faults_per_s: f64,
    /// Time that its threads waited for memory, added up, seconds; an estimate.
    pub stall_s: f64,
    /// Share of the interval that was lost to waits for memory; an estimate.
    pub slowdown: f64,
    /// Share of the last minute that was lost, or of all its life where that is less; `None` where
    /// that is not known.
    pub slowdown_last_minute: Option<f64>,
    /// Other anonymous memory of the process on average, which is not managed, bytes.
    pub unmanaged_bytes: u64,
    /// What is not managed now, by kind; `None` where that is little, or was not looked at.
    pub other_memory: Option<OtherMemory>,
    /// Time between the two looks that rates are taken from.
    pub interval_s: f64,
    /// For how long nothing was heard of it, where its figures are old.
    pub silent_s: Option<f64>,
    /// Tiers in the order of the list, with what is in each now.
    pub tiers: Vec<TierNow>,
    /// Pages that left DRAM, by reason.
    pub demoted_for: HashMap<&'static str, u64>,
}

impl Process {
    /// What no other process has: PID namespace and number in it.
    pub fn key(&self) -> Key {
        (self.pid_namespace, self.pid)
    }

    /// Whether more is not managed than an eighth of the data.
    fn has_much_unmanaged(&self) -> bool {
        self.unmanaged_bytes > self.logical_bytes / 8
    }

    /// What is said of memory that is not managed, where that is much, and what would help.
    pub fn unmanaged(&self) -> Vec<String> {
        if !self.has_much_unmanaged() {
            return Vec::new();
        }
        let average = bytes(self.unmanaged_bytes);
        let kinds = self.other_memory.map(|other| other.text()).filter(|kinds| !kinds.is_empty());
        let mut lines = vec![match kinds {
            Some(kinds) => format!("not managed: {average} on average; at most {kinds} now"),
            None => format!(
                "not managed: {average} of stacks, libraries' data and other mappings, on average"
            ),
        }];
        let remedy = self.other_memory.and_then(|other| other.remedy());
        lines.extend(remedy.map(|remedy| format!("what would help: {remedy}")));
        lines
    }

    /// Pages that left DRAM, by reason, the most frequent first; `None` where none did.
    pub fn evicted(&self) -> Option<String> {
        let mut reasons: Vec<(&str, u64)> =
            self.demoted_for.iter().map(|(reason, pages)| (*reason, *pages)).collect();
        reasons.sort_by_key(|(reason, pages)| (std::cmp::Reverse(*pages), *reason));
        let told: Vec<String> =
            reasons.iter().map(|(reason, pages)| format!("{reason} {pages}")).collect();
        (!told.is_empty()).then(|| format!("pages evicted as {}", told.join(", ")))
    }

    /// A tier's name, how much of the data is in it, and a bar of at most `cells` cells.
    pub fn tier_bar(&self, tier: &TierNow, cell: char, cells: usize) -> String {
        let most = self.tiers.iter().map(|tier| tier.logical_bytes).max().unwrap_or(0).max(1);
        let filled = (tier.logical_bytes as f64 / most as f64 * cells as f64).round() as usize;
        let held = bytes(tier.logical_bytes);
        let bar = String::from(cell).repeat(filled);
        format!("{:<12.12} {held:>8} {bar}", plain(&tier.name)).trim_end().to_string()
    }
}

/// What is in one tier of a process now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierNow {
    /// The tier's name, as `--tiers` has it.
    pub name: String,
    /// Data in it, bytes.
    pub logical_bytes: u64,
    /// Pages that were restored from it by faults, in all.
    pub faults: u64,
}

/// An earlier look at a statistics page, from which rates are taken.
#[derive(Clone, Copy)]
pub struct Before {
    at_ns: u64,
    faults: u64,
    lost_ns: u64,
}

/// PID namespace of a process, by its inode, and the process's number in it.
pub type Key = (u64, u32);

/// How long what was looked up of a process stands.
const KINDS_FOR: Duration = Duration::from_secs(60);

/// Kinds of memory that is not managed, by process, and when they were looked up; `None` where that
/// could not be known.
#[derive(Default)]
pub struct KindsSeen(HashMap<Key, (Instant, Option<OtherMemory>)>);

impl KindsSeen {
    /// Says of a process with much unmanaged memory of which kinds that is. Each process is looked
    /// up once a minute, as that reads the state of all its pages. In another PID namespace it has
    /// another number there than here; where that is not found, nothing is said.
    pub fn fill_in(&mut self, told: &mut Process) {
        if told.has_much_unmanaged() {
            let seen = self.0.get(&told.key()).filter(|(at, _)| at.elapsed() < KINDS_FOR);
            told.other_memory = match seen {
                Some((_, other)) => *other,
                None => {
                    let here = process::find(told.pid, told.pid_namespace, told.start_ticks);
                    let other = here.and_then(OtherMemory::of_process);
                    self.0.insert(told.key(), (Instant::now(), other));
                    other
                }
            };
        }
    }

    /// Forgets processes that are not among these.
    pub fn forget_others(&mut self, living: HashSet<Key>) {
        self.0.retain(|process, _| living.contains(process));
    }
}

/// Shows it; the exit status is 0, also where nothing runs.
pub fn run(arguments: &StatusArguments) -> Result<u8> {
    let mut before = HashMap::new();
    poll(&mut before);
    std::thread::sleep(FIRST_WAIT);
    let cell = bar_cell();
    let mut kinds = KindsSeen::default();
    loop {
        let mut status = poll(&mut before);
        let processes = || status.runs.iter().flat_map(|run| &run.processes);
        kinds.forget_others(processes().map(Process::key).collect());
        for process in status.runs.iter_mut().flat_map(|run| &mut run.processes) {
            kinds.fill_in(process);
        }
        let mut out = io::stdout().lock();
        let written = if arguments.json {
            writeln!(out, "{}", serde_json::to_string(&status)?)
        } else {
            anstream::AutoStream::auto(&mut out)
                .write_all(emphasised(&text(&status, cell)).as_bytes())
        };
        // A reader of it may have seen enough.
        if written.and_then(|()| out.flush()).is_err()
            || !arguments.watch
            || (status.runs.is_empty() && status.attached.is_empty())
        {
            return Ok(0);
        }
        drop(out);
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Looks at the machine. Rates are of the time since the look that left `before`, which has an
/// entry for each statistics page by its path.
pub fn poll(before: &mut HashMap<PathBuf, Before>) -> Status {
    let (live, runs_of_others) = directory::live();
    let mut runs: Vec<Run> = live.into_iter().map(|run| look_at(run, before)).collect();
    runs.sort_by_key(|run| (run.about.as_ref().map(|about| about.started), run.directory.clone()));
    Status { runs, runs_of_others, attached: crate::attach::figures() }
}

fn look_at(run: LiveRun, before: &mut HashMap<PathBuf, Before>) -> Run {
    let newest = statistics::newest_pages(&run.path);
    let mut processes: Vec<(u64, Process)> = Vec::new();
    for file in newest.into_values() {
        let Some((image, page)) = statistics::read_now(&file) else { continue };
        // /proc costs more than all else of a poll.
        let silent_ns = sys::now_ns().checked_sub(image.updated_ns);
        if silent_ns.is_some_and(|silent_ns| silent_ns < JUST_NOW_NS) || image.lives() {
            let process = process(&file, &image, &page, before);
            processes.push((file.started_ns, process));
        }
    }
    processes.sort_by_key(|(started_ns, process)| (*started_ns, process.pid));
    Run {
        directory: run.path,
        about: run.about,
        supervised: run.supervised,
        processes: processes.into_iter().map(|(_, process)| process).collect(),
    }
}

fn process(
    file: &PageFile,
    image: &Image,
    page: &ProcessStats,
    before: &mut HashMap<PathBuf, Before>,
) -> Process {
    let now_ns = sys::now_ns();
    let now = Before { at_ns: now_ns, faults: page.faults(), lost_ns: page.counts.lost_ns };
    let then = before.insert(file.path.clone(), now).unwrap_or(now);
    let interval_s = (now.at_ns - then.at_ns) as f64 / 1e9;
    let rate = |more: u64| if interval_s > 0.0 { more as f64 / interval_s } else { 0.0 };
    let measures = matches!(image.state, State::Observing | State::Active);
    let silent_ns = Some(now_ns.saturating_sub(image.updated_ns))
        .filter(|silent| measures && *silent > SILENT_NS);
    Process {
        pid: image.pid,
        pid_namespace: image.pid_namespace,
        start_ticks: image.start_ticks,
        program: page.program.clone(),
        state: state_name(image.state),
        note: Some(page.note.clone()).filter(|note| !note.is_empty()),
        logical_bytes: image.logical_bytes,
        physical_bytes: image.physical_bytes,
        budget_bytes: page.budget_bytes.filter(|_| measures),
        faults: now.faults,
        faults_per_s: rate(now.faults.saturating_sub(then.faults)),
        stall_s: page.counts.stall_ns as f64 / 1e9,
        slowdown: rate(now.lost_ns.saturating_sub(then.lost_ns)) / 1e9,
        slowdown_last_minute: Some(page.slowdown_last_minute()),
        unmanaged_bytes: page.mean_unmanaged_bytes,
        other_memory: None,
        interval_s,
        silent_s: silent_ns.map(|silent| silent as f64 / 1e9),
        tiers: page
            .tiers
            .iter()
            .map(|tier| TierNow {
                name: tier.name.clone(),
                logical_bytes: tier.pages.saturating_mul(PAGE_BYTES),
                faults: tier.faults,
            })
            .collect(),
        demoted_for: Reason::ALL
            .iter()
            .map(|reason| reason.name())
            .zip(page.counts.demoted_for)
            .filter(|(_, pages)| *pages > 0)
            .collect(),
    }
}

/// What a user wrote, as it may be shown on a terminal.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// What bars are drawn with: a block where the locale has one.
pub fn bar_cell() -> char {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
        .to_uppercase();
    if locale.contains("UTF-8") || locale.contains("UTF8") { '█' } else { '#' }
}

fn text(status: &Status, cell: char) -> String {
    let mut lines = Vec::new();
    if status.runs.is_empty() && status.attached.is_empty() {
        lines.push("nothing runs under Terrace here".to_string());
    }
    for run in &status.runs {
        lines.push(headline(run));
        lines.extend((!run.supervised).then(|| format!("  {UNSUPERVISED}")));
        lines.push(format!(
            "  {:>8}  {:<16} {:<10} {:>9} {:>9} {:>9} {:>9} {:>8}",
            "process", "program", "state", "data", "DRAM", "budget", "faults/s", "lost 1m"
        ));
        lines.extend(run.processes.iter().flat_map(|process| row(process, cell)));
        if run.processes.is_empty() {
            lines.push("  no process of it has figures".into());
        }
    }
    lines.extend(status.attached.iter().flat_map(attached));
    if status.runs_of_others > 0 {
        lines.push(format!(
            "other users' runs: {}; only they and root can look at them",
            status.runs_of_others
        ));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn attached(figures: &terrace_attach::AttachedStats) -> Vec<String> {
    if figures.keeper == 0 {
        // Nothing is known but that.
        let (program, note) = (plain(&figures.program), plain(&figures.note));
        return vec![format!("{} {program}  (attached): {note}", figures.pid)];
    }
    let limit = match figures.budget_bytes {
        u64::MAX => figures.limit.clone(),
        now => format!("{}, now {}", figures.limit, bytes(now)),
    };
    let mut lines = vec![format!(
        "{} {}  (attached; {}): DRAM {}, of it compressed pages {}; {} in {}; {} faults",
        figures.pid,
        plain(&figures.program),
        plain(&limit),
        bytes(figures.physical_bytes()),
        bytes(figures.store_bytes),
        bytes(figures.out_bytes),
        plain(&figures.tier),
        figures.faults
    )];
    lines.extend(shared_memory(figures));
    if !figures.note.is_empty() {
        lines.push(format!("            note: {}", plain(&figures.note)));
    }
    lines
}

/// What is said of a process's shared memory, where it has some that is not in its other figures.
fn shared_memory(figures: &terrace_attach::AttachedStats) -> Option<String> {
    let (here, out) = (figures.shared_bytes, figures.shared_out_bytes);
    if here + out == 0 || figures.stub == 0 {
        return None;
    }
    let what = match figures.shared_note.as_str() {
        "" => String::new(),
        why => format!("; {} of it stay: {}", bytes(figures.kept_bytes), plain(why)),
    };
    Some(format!("            shared memory: {}, and {} in swap{what}", bytes(here), bytes(out)))
}

fn headline(run: &Run) -> String {
    let Some(about) = &run.about else {
        return format!("{}: says nothing of itself", run.directory.display());
    };
    let seconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let dram = about.dram.parse().map_or(about.dram.clone(), bytes);
    let what = if about.observe {
        "--observe".to_string()
    } else {
        let slowdown = about.slowdown.as_ref().map(|pct| format!(" --slowdown {pct}"));
        let tiers = about.tiers_now.as_ref().unwrap_or(&about.tiers);
        format!("--dram {dram}{} --tiers {tiers}", slowdown.unwrap_or_default())
    };
    format!(
        "{}  ({}; for {})",
        plain(&about.command.join(" ")),
        plain(&what),
        duration(seconds.saturating_sub(about.started))
    )
}

fn row(process: &Process, cell: char) -> Vec<String> {
    let budget = process.budget_bytes.map_or("-".into(), bytes);
    let mut lines = vec![format!(
        "  {:>8}  {:<16.16} {:<10} {:>9} {:>9} {:>9} {:>9.0} {:>8}",
        process.pid,
        process.program,
        process.state,
        bytes(process.logical_bytes),
        bytes(process.physical_bytes),
        budget,
        process.faults_per_s,
        process.slowdown_last_minute.map_or("-".into(), share)
    )];
    let mut details: Vec<String> = Vec::new();
    let held = || process.tiers.iter().filter(|tier| tier.logical_bytes > 0);
    if held().count() > 1 {
        details.extend(held().map(|tier| process.tier_bar(tier, cell, BAR)));
    }
    if process.faults > 0 {
        let waited = process.stall_s;
        details.push(format!("{} pages came back, {waited:.1}s waited in all", process.faults));
    }
    details.extend(process.evicted());
    details.extend(process.unmanaged());
    details.extend(process.silent_s.map(|silent_s| {
        format!("silent for {silent_s:.0}s: these figures are old (stopped, or starved)")
    }));
    details.extend(process.note.as_ref().map(|note| format!("note: {note}")));
    lines.extend(details.iter().map(|detail| format!("            {detail}")));
    lines
}

/// `42s`, `7m`, `3h 7m`, `2d 3h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m"),
        3600..86_400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_in_lines_that_a_terminal_can_show() {
        assert_eq!(
            text(&Status { runs: Vec::new(), runs_of_others: 0, attached: Vec::new() }, '#'),
            "nothing runs under Terrace here\n"
        );
        let about = About {
            command: vec!["redis-server".into(), "\u{1b}[2Jx".into()],
            dram: "60%".into(),
            slowdown: None,
            tiers: "dram,lz4".into(),
            tiers_now: None,
            limited: true,
            model: None,
            observe: false,
            started: 0,
            supervisor: Some(76),
        };
        let tier = |name: &str, mib: u64| TierNow {
            name: name.into(),
            logical_bytes: mib << 20,
            faults: 0,
        };
        let process = Process {
            pid: 77,
            program: "redis-server".into(),
            state: "active",
            logical_bytes: 300 << 20,
            physical_bytes: 200 << 20,
            budget_bytes: Some(200 << 20),
            faults_per_s: 1234.4,
            slowdown_last_minute: Some(0.031),
            silent_s: Some(7.0),
            tiers: vec![tier("dram", 100), tier("lz4", 200), tier("zstd:1", 0)],
            faults: 9,
            stall_s: 1.25,
            demoted_for: HashMap::from([("cold", 12), ("probation", 30)]),
            unmanaged_bytes: 90 << 20,
            other_memory: Some(OtherMemory { locked_bytes: 70 << 20, ..OtherMemory::default() }),
            ..Process::default()
        };
        let runs = vec![Run {
            directory: "/d".into(),
            about: Some(about),
            supervised: false,
            processes: vec![process],
        }];
        let text = text(&Status { runs, runs_of_others: 2, attached: Vec::new() }, '#');
        assert!(
            text.starts_with("redis-server \u{fffd}[2Jx  (--dram 60% --tiers dram,lz4; for "),
            "{text}"
        );
        assert!(text.contains("      77  redis-server     active        300.0M    200.0M    200.0M      1234     3.1%\n"), "{text}");
        assert!(
            text.contains(
                "            dram           100.0M ###############
            lz4            200.0M ##############################
            9 pages came back, 1.2s waited in all
            pages evicted as probation 30, cold 12
            not managed: 90.0M on average; at most 70.0M locked now
            what would help: the program's settings without mlock
            silent for 7s"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("other users' runs: 2; only they and root can look at them\n"),
            "{text}"
        );
        assert_eq!([42, 420, 11_220, 183_700].map(duration), ["42s", "7m", "3h 7m", "2d 3h"]);
    }
}
