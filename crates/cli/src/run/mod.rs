//! `terrace run`: checks everything, starts the program with the library preloaded, waits, and
//! reports.
//!
//! Nothing is started before all that can be refused has been refused. From the program's start on,
//! nothing of ours changes its outcome: whatever fails then is said, and the exit status stays the
//! program's.

pub mod args;
pub mod budget;
pub mod child;
pub mod command_path;
pub mod directory;
pub mod disposition;
pub mod inject;
pub mod interim;
pub mod keeper;
pub mod library;
pub mod moves;
pub mod reach;
pub mod sampling;
pub mod service;
pub mod settings;
pub mod wake;
pub mod witness;

use crate::config::effective;
use crate::cost::prices::Prices;
use crate::processes::ended::Ended;
use crate::processes::going_on::GoingOn;
use crate::processes::idle::IdleWatch;
use crate::processes::outside::Outside;
use crate::processes::statistics;
use crate::processes::tree::{Limits, Tree};
use crate::run::args::RunArguments;
use crate::run::child::Moment;
use crate::run::directory::{About, RUN_DIR_VARIABLE, RunDir};
use crate::run::inject::Inject;
use crate::run::interim::{Facts, Interim};
use crate::run::keeper::Side;
use crate::run::moves::MoveList;
use crate::run::reach::OutOfReach;
use crate::run::sampling::{Choice, Sampling};
use crate::run::settings::{Values, is_stressed};
use crate::run::wake::{WakeLatency, Wakefulness};
use crate::run_report::file::ReportFile;
use crate::run_report::placements::Placements;
use crate::run_report::{Report, text};
use crate::say;
use crate::set::Requests;
use crate::terminal::emphasised;
use anyhow::{Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terrace_control::settings::{
    Allocator, Dram, Eviction, FilePrice, HugePages, NO_BUDGET, Settings, Stress,
};
use terrace_os as sys;
use terrace_os::injection::Injection;
use terrace_policy::slowdown::Wanted;
use terrace_tiers::{MediumKind, SwapKind, SwapView, TierKind, TierSpec, parse_tiers};

/// Runs the command; the result is the exit status. Does not return if a signal killed the program:
/// it kills us too.
pub fn run(arguments: &RunArguments) -> Result<u8> {
    disposition::ignore_size_limit();
    if std::env::var_os(RUN_DIR_VARIABLE).is_some_and(|directory| !directory.is_empty()) {
        bail!(
            "already inside a `terrace run` ({RUN_DIR_VARIABLE} is set), whose settings hold for this program too; start it without the inner one"
        );
    }
    let values = effective::of_command_line(arguments)?;
    let mut settings = values.settings();
    settings.placement = values.model();
    let tiers_given = values.is_given("tiers");
    if settings.placement.model().is_some() && !tiers_given {
        // The default may have tiers that no model places pages in.
        settings.tiers = Settings::default().tiers;
    }
    settings.file_price = FilePrice(Prices::default().of("file"));
    refuse_placement(&settings)?;
    let slowdown = values.slowdown_target();
    let Values {
        sampler,
        sampler_cost,
        wake_latency,
        report,
        report_every,
        moves,
        slowdown: wanted,
        ..
    } = values;
    let report = if arguments.json { Some("-".into()) } else { report };
    budget::refuse_bare_number(settings.dram)?;
    if let Some(report) = &arguments.of {
        if matches!(wanted, Wanted::At(_)) {
            bail!(
                "--of takes a share of --dram from an earlier report; --slowdown follows what this run loses: leave out one of them"
            );
        }
        settings.dram = budget::of_report(settings.dram, report)?;
    }
    if let Some(stress) = std::env::var_os("TERRACE_STRESS") {
        stress.to_string_lossy().parse::<Stress>()?;
    }
    if let Some(injection) = std::env::var_os("TERRACE_INJECT").filter(|text| !text.is_empty()) {
        injection.to_string_lossy().parse::<Injection>().map_err(anyhow::Error::msg)?;
    }
    let report_file = report.as_deref().map(ReportFile::open).transpose()?;
    let library = library::locate()?;
    let name = &arguments.command[0];
    let program = match command_path::of_command(name) {
        Ok(program) => program,
        Err(status) => return Ok(status),
    };
    let mut out_of_reach = reach::out_of_reach(&program);
    if arguments.inject {
        out_of_reach = out_of_reach.filter(|found| !found.can_attach).or(Some(inject::asked()));
    }
    let can_attach = out_of_reach.as_ref().is_some_and(|found| found.can_attach);
    let why_not = match can_attach && !settings.observe {
        true => terrace_attach::possible().err(),
        false => None,
    };
    let attaches = can_attach && !settings.observe && why_not.is_none();
    if let Some(found) = out_of_reach.as_ref().filter(|_| !attaches) {
        announce(name, found, why_not, settings.strict)?;
    }

    if out_of_reach.is_none() {
        announce_lack_of_swap(&settings.tiers);
        let has_target = matches!(wanted, Wanted::At(_));
        if settings.observe && (settings.dram != Dram::Unlimited || has_target) {
            let flag = if has_target { "--slowdown" } else { "--dram" };
            say(&format!("{flag} has no effect: --observe moves nothing"));
        } else if let Some(warning) = budget::warning(settings.dram) {
            say(&warning);
        }
        if settings.allocator != Allocator::Context
            && (arguments.given.zones.is_some() || arguments.given.context_depth.is_some())
        {
            let why = "--zones and --context-depth have no effect without --allocator context";
            if settings.strict {
                bail!("{why}");
            }
            say(why);
        }
        if let Some(why) = why_no_huge_pages(&settings, sampler, slowdown.is_some()) {
            if settings.strict {
                bail!("--huge-pages hot has no effect: {why}");
            }
            say(&format!("--huge-pages hot has no effect: {why}"));
        }
    }

    let manages = !settings.observe && out_of_reach.is_none();
    let run_dir = RunDir::create()?;
    let mut inject = match attaches {
        true => Some(Inject::plan(&settings, tiers_given, slowdown, run_dir.path())?),
        false => None,
    };
    let slowdown = slowdown.filter(|_| manages);
    let command_line: Vec<String> =
        arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let about = About {
        command: command_line.clone(),
        dram: settings.dram.to_string(),
        slowdown: slowdown.map(|target| target.to_string()),
        tiers: settings.tiers.clone(),
        tiers_now: None,
        observe: settings.observe,
        limited: manages && Limits { dram: settings.dram, slowdown }.any(),
        model: (manages && settings.placement.model().is_some())
            .then(|| (settings.knob.to_string(), settings.window.to_string())),
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        supervisor: Some(std::process::id()),
    };
    let mut command = Command::new(&program);
    command.arg0(name).args(&arguments.command[1..]);
    let dram = if manages { settings.dram } else { Dram::Unlimited };
    if slowdown.is_some() && dram == Dram::Unlimited {
        // More than any process needs before it is assigned a limit.
        settings.dram = Dram::Bytes(NO_BUDGET);
    }
    // Inherited by what is started next.
    let sampling = match &out_of_reach {
        None => Sampling::begin(sampler, sampler_cost, &settings, run_dir.path())?,
        Some(_) => None,
    };
    let wakefulness = match wake_latency {
        WakeLatency::Within(_) if settings.observe => {
            say("--wake-latency has no effect: --observe moves nothing, so no page comes back");
            None
        }
        WakeLatency::Within(us) if out_of_reach.is_none() => {
            match Wakefulness::begin(us, run_dir.path()) {
                Ok(wakefulness) => Some(wakefulness),
                Err(why) if settings.strict => bail!("{why}"),
                Err(why) => {
                    say(&why);
                    None
                }
            }
        }
        _ => None,
    };
    // After all that can be refused: it empties the file.
    let moves = moves.as_deref().map(|file| MoveList::create(file, run_dir.path())).transpose()?;
    if out_of_reach.is_none() {
        settings.run_dir = run_dir.path().to_str().map(str::to_owned);
        settings.run_pid = Some(std::process::id());
        settings.moves = moves.is_some();
        settings.sites = settings.allocator == Allocator::Context && sampling.is_some();
        settings.timers = sampler == Choice::Timer;
        prepare(&mut command, &settings, &library);
    }
    let mut watch = Watch {
        tree: Tree::new(run_dir.path(), Limits { dram, slowdown }, &settings.tiers),
        requests: Requests::begin(&run_dir, about),
        ended: Ended::new(run_dir.path()),
        outside: out_of_reach.is_none().then(|| Outside::new(run_dir.path(), &settings)),
        idle: (settings.observe && out_of_reach.is_none())
            .then(|| IdleWatch::new(run_dir.path(), &settings.tiers)),
        sampling,
        wakefulness,
        placements: manages.then(|| Placements::new(run_dir.path(), &settings)).flatten(),
        moves,
        polls: Polls::default(),
    };
    let facts = Facts {
        command: command_line,
        settings: &settings,
        out_of_reach: out_of_reach.as_ref().map(|found| format!("it {}", found.cause)),
        run_dir: run_dir.path().to_owned(),
        file: report_file.as_ref(),
    };
    let mut interim = report_every.map(|every| Interim::new(every, report_file.as_ref()));
    let started = Instant::now();
    let meanwhile = |pid, moment| match moment {
        Moment::Running => {
            let rest = inject.as_mut().map_or(Duration::MAX, |inject| inject.poll(pid));
            let now = interim::Moment { pid, end: None, elapsed: started.elapsed(), going_on: 0 };
            watch.poll_and_report(interim.as_mut(), &facts, now).min(rest)
        }
        Moment::Stopping => {
            watch.rest();
            Duration::ZERO
        }
    };
    let ended = match child::run(command, meanwhile) {
        Ok(ended) => ended,
        Err(error) => return Ok(command_path::not_started(name, &program, &error)),
    };
    let ended_ns = sys::now_ns();
    // With --no-children no other process is managed.
    let mut others = (out_of_reach.is_none() && settings.children)
        .then(|| GoingOn::new(run_dir.path(), RUN_DIR_VARIABLE, &library));
    let going_on = others.as_ref().map_or(0, |others| others.settled().len());
    let mut end =
        interim::Moment { pid: ended.pid, end: Some(ended.end), elapsed: ended.elapsed, going_on };
    // Before there is a keeper, which takes pages out of the run's directory.
    let pages_now = watch.ended.all();
    let rest = match &mut others {
        Some(others) if going_on > 0 && arguments.wait => {
            child::stay(others, |others| {
                let rest = others.poll()?;
                Some(rest.min(watch.poll_and_report(interim.as_mut(), &facts, end)))
            });
            Rest::None
        }
        // What process 1 leaves behind ends with it.
        Some(others) if going_on > 0 && std::process::id() != 1 => {
            interim.iter_mut().for_each(Interim::finish);
            let tell = |watch: &mut Watch| watch.poll_and_report(interim.as_mut(), &facts, end);
            leave_keeper(&mut watch, others, run_dir.path(), tell)
        }
        _ => Rest::None,
    };
    let going_on = if matches!(rest, Rest::Kept | Rest::Unkept(_)) { going_on } else { 0 };
    end.going_on = going_on;
    if let Some(sampling) = &mut watch.sampling {
        sampling.poll();
    }
    if let Some(placements) = &mut watch.placements {
        placements.poll();
    }
    match watch.moves.take() {
        // The keeper lists on.
        Some(moves) if matches!(rest, Rest::Kept) && moves.can_go_on() => std::mem::forget(moves),
        Some(moves) => moves.end(),
        None => {}
    }
    let mut pages = if matches!(rest, Rest::Kept) { pages_now } else { watch.ended.all() };
    if let Some(main) = statistics::of_process(&pages.good, ended.pid) {
        pages.good[main].notice_silence(ended_ns);
    }
    let mut known = facts.run(&watch, end, facts.damage(&pages, ended.pid));
    known.attached = inject.as_ref().and_then(Inject::figures);
    interim.iter_mut().for_each(Interim::finish);
    // Wakefulness ends with it.
    drop(watch);
    // That of a process that goes on may be being made.
    for damaged in pages.damaged.iter().filter(|damaged| damaged.pid != ended.pid && going_on == 0)
    {
        say(&format!(
            "the statistics page of process {} cannot be used ({}): it is not in the report",
            damaged.pid, damaged.why
        ));
    }
    let report = Report::new(&known, &pages.good);
    if matches!(rest, Rest::Kept) {
        std::mem::forget(run_dir);
    } else {
        // Before the report: a reader of it may look whether everything is gone.
        drop(run_dir);
    }
    // What the library refused it has said itself.
    if settings.strict && report.state == "unmanaged" && report.exit_status == Some(125) {
        say("the program was not started (--strict)");
    } else {
        let text = text::text(&report, &settings);
        // In one piece: others may write there too.
        let _ = match anstream::AutoStream::choice(&io::stderr()) {
            anstream::ColorChoice::Never => io::stderr().write_all(text.as_bytes()),
            _ => io::stderr().write_all(emphasised(&text).as_bytes()),
        };
    }
    let again = report_file.as_ref().and_then(ReportFile::again);
    let report_file = match report_file {
        Some(fronts) if matches!(rest, Rest::IsKeeper) => {
            fronts.forget();
            again.as_deref().map(ReportFile::open_again).transpose()
        }
        report_file => Ok(report_file),
    };
    let written = report_file.and_then(|file| match file {
        Some(file) => report.json().and_then(|json| file.write(&json)),
        None => Ok(()),
    });
    if let Err(error) = written {
        say(&format!("{error:#}; the figures above are all there is"));
    }
    match rest {
        Rest::None => {}
        Rest::IsKeeper => return Ok(0),
        Rest::Kept => say(&kept_on(going_on, again.as_deref())),
        Rest::Unkept(error) => say(&format!(
            "{} on, and keeps its share of the budget for good: no process could be made to divide it ({error})",
            number_that_goes(going_on)
        )),
    }
    Ok(ended.end.pass_on())
}

/// Says why `--placement` cannot be had with the other settings.
fn refuse_placement(settings: &Settings) -> Result<()> {
    let Some(name) = settings.placement.model() else { return Ok(()) };
    let tiers = parse_tiers(&settings.tiers)?;
    let is_ours = |kind: &TierKind| matches!(kind, TierKind::Dram | TierKind::Compressed { .. });
    if let Some(other) = tiers.iter().find(|tier| !is_ours(&tier.kind)) {
        bail!(
            "--placement {name} places pages in DRAM and in compressed tiers, and `{}` is neither: leave it out of --tiers, or say --placement off",
            other.name
        );
    }
    let in_node = |kind: &TierKind| {
        matches!(kind, TierKind::Compressed { medium: MediumKind::Node { .. }, .. })
    };
    if let Some(other) = tiers.iter().find(|tier| in_node(&tier.kind)) {
        bail!(
            "--placement {name} knows no price of another node's memory, where `{}` lies: leave it out of --tiers, or say --placement off",
            other.name
        );
    }
    if settings.tiers.trim() == "auto" || tiers.len() < 2 {
        bail!(
            "--placement {name} needs a list of tiers to place pages in, such as --tiers dram,lz4,zstd:1"
        );
    }
    Ok(())
}

/// What became of managed processes that go on after the program.
enum Rest {
    /// No managed processes go on, or soon none will.
    None,
    /// The processes have a keeper.
    Kept,
    /// The processes have no keeper, as it could not be made.
    Unkept(io::Error),
    /// This process was the keeper, and the processes have ended.
    IsKeeper,
}

/// Leaves a keeper behind; in the keeper, returns when it has nothing more to keep.
fn leave_keeper(
    watch: &mut Watch,
    others: &mut GoingOn,
    run_dir: &Path,
    mut look: impl FnMut(&mut Watch) -> Duration,
) -> Rest {
    let first = || watch.sampling.iter_mut().for_each(Sampling::let_go_of_rings);
    let front = match keeper::leave_behind(first, run_dir.is_absolute()) {
        Ok(Side::Front) => return Rest::Kept,
        Err(error) => return Rest::Unkept(error),
        Ok(Side::Keeper(front)) => front,
    };
    watch.moves.take_if(|moves| !moves.can_go_on());
    watch.requests.take_over();
    watch.sampling.iter_mut().for_each(Sampling::begin_again);
    while let Some(rest) = others.poll() {
        std::thread::sleep(rest.min(look(watch)));
    }
    // What it writes would replace what is written here.
    front.await_end();
    Rest::IsKeeper
}

fn number_that_goes(processes: usize) -> String {
    if processes == 1 { "1 process goes".into() } else { format!("{processes} processes go") }
}

/// What is said at the end where a keeper is left behind.
fn kept_on(processes: usize, report: Option<&Path>) -> String {
    let (last, them) = if processes == 1 { ("it has", "it") } else { ("the last has", "them") };
    let report = match report {
        Some(file) => format!("{} is written again when {last} ended", file.display()),
        None if keeper::stderr_stays() => format!("a report follows here when {last} ended"),
        None => format!(
            "nobody is told of {them} (--report FILE takes a report when {last} ended, --wait waits for that)"
        ),
    };
    format!("{} on, managed as before; {report}", number_that_goes(processes))
}

/// Time after which code that was needed once leaves the page table; then after eight times as
/// long, again and again.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// All that is looked at while processes of a run live.
pub struct Watch {
    /// The budget and its division.
    pub tree: Tree,
    requests: Requests,
    /// Processes that have ended.
    pub ended: Ended,
    /// What the kernel says of processes.
    pub outside: Option<Outside>,
    /// What is idle, with `--observe`.
    pub idle: Option<IdleWatch>,
    /// Samples, if any are taken.
    pub sampling: Option<Sampling>,
    /// `--wake-latency`, if it is in force.
    pub wakefulness: Option<Wakefulness>,
    /// What placement models want, with `--placement`.
    pub placements: Option<Placements>,
    moves: Option<MoveList>,
    polls: Polls,
}

/// When to look at what.
#[derive(Default)]
struct Polls {
    tree: Option<Instant>,
    ended: Option<Instant>,
    outside: Option<Instant>,
    idle: Option<Instant>,
    sampling: Option<Instant>,
    wakefulness: Option<Instant>,
    moves: Option<Instant>,
    placements: Option<Instant>,
    /// When to forget code, and how long that is.
    forget: Option<Instant>,
    forget_after: Duration,
}

impl Watch {
    /// Looks at what is due. Returns how long nothing else will be.
    fn poll(&mut self) -> Duration {
        let Watch {
            tree,
            requests,
            ended,
            outside,
            idle,
            sampling,
            wakefulness,
            placements,
            moves,
            polls,
        } = self;
        let now = Instant::now();
        let due = |at: &Option<Instant>| at.is_none_or(|at| at <= now);
        // A year is as good as never.
        let later = |wait: Duration| Some(now + wait.min(Duration::from_secs(365 * 86_400)));
        if due(&polls.tree) {
            requests.poll(tree);
            polls.tree = later(tree.poll().min(requests.rest()));
        }
        // Not before the tree had its look at them.
        if due(&polls.ended) {
            polls.ended = later(ended.poll());
        }
        if due(&polls.outside) {
            polls.outside = later(outside.as_mut().map_or(Duration::MAX, Outside::poll));
            if let Some(outside) = outside {
                tree.set_apart(outside.apart_now());
            }
        }
        if due(&polls.idle) {
            polls.idle = later(idle.as_mut().map_or(Duration::MAX, IdleWatch::poll));
        }
        if due(&polls.sampling) {
            polls.sampling = later(sampling.as_mut().map_or(Duration::MAX, Sampling::poll));
        }
        if due(&polls.wakefulness) {
            polls.wakefulness =
                later(wakefulness.as_mut().map_or(Duration::MAX, Wakefulness::poll));
        }
        if due(&polls.moves) {
            polls.moves = later(moves.as_mut().map_or(Duration::MAX, MoveList::poll));
        }
        if due(&polls.placements) {
            polls.placements = later(placements.as_mut().map_or(Duration::MAX, Placements::poll));
        }
        if due(&polls.forget) {
            if polls.forget.is_some()
                && let Ok(pagemap) = sys::open("/proc/self/pagemap\0", libc::O_RDONLY, 0)
            {
                sys::forget_own_code(pagemap);
                sys::close(pagemap);
            }
            polls.forget_after = (polls.forget_after * 8).max(FORGET_AFTER);
            polls.forget = later(polls.forget_after);
        }
        let all = [
            polls.tree,
            polls.ended,
            polls.outside,
            polls.idle,
            polls.sampling,
            polls.wakefulness,
            polls.moves,
            polls.placements,
        ];
        all.into_iter().flatten().min().unwrap_or(now).saturating_duration_since(Instant::now())
    }

    /// Polls what is due, and writes a report if one is. Returns how long nothing else will be.
    fn poll_and_report(
        &mut self,
        interim: Option<&mut Interim>,
        facts: &Facts<'_>,
        now: interim::Moment,
    ) -> Duration {
        let rest = self.poll();
        interim.map_or(rest, |interim| rest.min(interim.poll(facts, self, now)))
    }

    /// Does not look for a while.
    fn rest(&mut self) {
        if let Some(wakefulness) = &mut self.wakefulness {
            wakefulness.rest();
        }
    }
}

fn announce(
    name: &OsStr,
    found: &OutOfReach,
    why_not: Option<anyhow::Error>,
    strict: bool,
) -> Result<()> {
    let (name, OutOfReach { cause, remedy, .. }) = (name.to_string_lossy(), found);
    let why_not = why_not.map(|error| format!("{error:#}; or "));
    let remedy = why_not.unwrap_or_default() + remedy;
    if strict {
        bail!(
            "{name} {cause}, so its memory cannot be managed and --strict refuses it; {remedy}, or leave out --strict"
        );
    }
    say(&format!(
        "{name} {cause}, so its memory cannot be managed and it runs as without terrace; {remedy}"
    ));
    Ok(())
}

/// Why hot memory gets no huge pages, though that is asked for: what is missing and how to get it.
fn why_no_huge_pages(
    settings: &Settings,
    sampler: Choice,
    has_target: bool,
) -> Option<&'static str> {
    let compresses = |tier: &TierSpec| !matches!(tier.kind, TierKind::Dram | TierKind::Node { .. });
    if settings.huge_pages != HugePages::Hot {
        None
    } else if !settings.policy.uses_samples() || sampler == Choice::None {
        Some("nothing tells what is hot: leave out --policy faults and --sampler none")
    } else if settings.dram == Dram::Unlimited && !has_target && !is_stressed() || settings.observe
    {
        Some(
            "nothing is moved, so memory is not kept from huge pages either (for that: --dram or --slowdown)",
        )
    } else if settings.evict != Eviction::Move {
        Some("pages that leave by --evict wp would cut them: use --evict move (Linux 6.8)")
    } else if !parse_tiers(&settings.tiers).is_ok_and(|tiers| tiers.iter().any(compresses)) {
        Some(
            "no tier takes single pages, so memory is not kept from huge pages: the kernel gives them as ever",
        )
    } else if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        Some("this kernel has none (CONFIG_TRANSPARENT_HUGEPAGE)")
    } else {
        None
    }
}

/// A tier `swap` where the kernel swaps nowhere costs only itself.
fn announce_lack_of_swap(list: &str) {
    let tiers = parse_tiers(list).unwrap_or_default();
    let asked = list.trim() != "auto" && tiers.iter().any(|tier| tier.kind == TierKind::Swap);
    if !asked || SwapView::of_machine().kind != SwapKind::None {
        return;
    }
    let rest: Vec<&str> = tiers
        .iter()
        .filter(|tier| tier.kind != TierKind::Swap)
        .map(|tier| tier.name.as_str())
        .collect();
    say(&format!(
        "this machine has no swap, so of --tiers {list} only {} is used until there is some; zram makes it: \
         modprobe zram, zramctl --find --size 4G --algorithm lz4, then mkswap and swapon of the device that it names",
        rest.join(",")
    ));
}

/// What the library in the program reads: the preload itself, before any that the user has, and the
/// settings.
fn prepare(command: &mut Command, settings: &Settings, library: &Path) {
    let mut preload = OsString::from(library);
    if let Some(existing) = std::env::var_os("LD_PRELOAD").filter(|existing| !existing.is_empty()) {
        preload.push(":");
        preload.push(existing);
    }
    command.env("LD_PRELOAD", preload);
    command.envs(settings.to_environment());
}
