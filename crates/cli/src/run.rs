//! `terrace run`: checks everything, starts the program with the library preloaded, waits, and reports.
//!
//! Nothing is started before all that can be refused has been refused. From the program's start on, nothing of ours
//! changes its outcome: whatever fails then is said, and the exit status stays the program's.

use crate::args::RunArguments;
use crate::child::{self, Moment};
use crate::effective::Effective;
use crate::ended::Ended;
use crate::figures;
use crate::moves::MoveList;
use crate::outside::Outside;
use crate::reach::{self, OutOfReach};
use crate::report::{Report, Run};
use crate::report_file::ReportFile;
use crate::run_dir::RunDir;
use crate::sampling::{Choice, Sampling};
use crate::tree::Tree;
use crate::wake::{WakeLatency, Wakefulness};
use crate::{budget, command_path, disposition, doctor, library, report_text, say, sites};
use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_pager::injection::Injection;
use terrace_pager::settings::{Allocator, Dram, Eviction, HugePages, Settings, Stress};
use terrace_pager::stats::NO_PLACE;
use terrace_pager::sys;
use terrace_tiers::{SwapKind, SwapView, TierKind, TierSpec, parse_tiers};

/// Set for every process of a run, and so the sign of being inside one.
const RUN_DIR_VARIABLE: &str = "TERRACE_RUN_DIR";

/// Runs the command; the result is the exit status. Does not return if a signal killed the program: it kills us too.
pub fn run(arguments: &RunArguments) -> Result<u8> {
    disposition::ignore_size_limit();
    if std::env::var_os(RUN_DIR_VARIABLE).is_some_and(|directory| !directory.is_empty()) {
        bail!(
            "already inside a `terrace run` ({RUN_DIR_VARIABLE} is set), whose settings hold for this program too; start it without the inner one"
        );
    }
    let Effective { mut settings, sampler, sampler_cost, wake_latency, report, moves, .. } = Effective::of_command_line(arguments)?;
    if let Some(stress) = std::env::var_os("TERRACE_STRESS") {
        stress.to_string_lossy().parse::<Stress>()?;
    }
    if let Some(injection) = std::env::var_os("TERRACE_INJECT").filter(|text| !text.is_empty()) {
        injection.to_string_lossy().parse::<Injection>()?;
    }
    let report_file = report.as_deref().map(ReportFile::open).transpose()?;
    let library = library::locate()?;
    let name = &arguments.command[0];
    let program = match command_path::of_command(name) {
        Ok(program) => program,
        Err(status) => return Ok(status),
    };
    let out_of_reach = reach::out_of_reach(&program);
    if let Some(found) = &out_of_reach {
        announce(name, found, settings.strict)?;
    }

    if out_of_reach.is_none() {
        announce_lack_of_swap(&settings.tiers);
        if let Some(remark) = budget::remark(settings.dram).filter(|_| !settings.observe) {
            say(&remark);
        }
        if settings.allocator != Allocator::Context && (arguments.zones.is_some() || arguments.context_depth.is_some()) {
            let why = "--zones and --context-depth have no effect without --allocator context";
            if settings.strict {
                bail!("{why}");
            }
            say(why);
        }
        if let Some(why) = why_no_huge_pages(&settings, sampler) {
            if settings.strict {
                bail!("--huge-pages hot has no effect: {why}");
            }
            say(&format!("--huge-pages hot has no effect: {why}"));
        }
    }

    let run_dir = RunDir::create()?;
    let mut command = Command::new(&program);
    command.arg0(name).args(&arguments.command[1..]);
    let dram = if settings.observe || out_of_reach.is_some() { Dram::Unlimited } else { settings.dram };
    let mut tree = Tree::new(run_dir.path(), dram, &settings.tiers);
    let mut ended_processes = Ended::new(run_dir.path());
    let mut outside = out_of_reach.is_none().then(|| Outside::new(run_dir.path(), &settings));
    // Inherited by what is started next.
    let mut sampling = match &out_of_reach {
        None => Sampling::begin(sampler, sampler_cost, &settings, run_dir.path())?,
        Some(_) => None,
    };
    let mut wakefulness = match wake_latency {
        WakeLatency::Within(_) if settings.observe => {
            say("--wake-latency has no effect: --observe moves nothing, so no page comes back");
            None
        }
        WakeLatency::Within(us) if out_of_reach.is_none() => match Wakefulness::begin(us, run_dir.path()) {
            Ok(wakefulness) => Some(wakefulness),
            Err(why) if settings.strict => bail!("{why}"),
            Err(why) => {
                say(&why);
                None
            }
        },
        _ => None,
    };
    // After all that can be refused: it empties the file.
    let mut moves = moves.as_deref().map(|file| MoveList::create(file, run_dir.path())).transpose()?;
    if out_of_reach.is_none() {
        settings.run_dir = run_dir.path().to_str().map(str::to_owned);
        settings.run_pid = Some(std::process::id());
        settings.moves = moves.is_some();
        settings.sites = settings.allocator == Allocator::Context && sampling.is_some();
        settings.timers = sampler == Choice::Timer;
        prepare(&mut command, &settings, &library);
    }
    let mut looks = Looks::default();
    let meanwhile = |moment| match moment {
        Moment::Running => {
            let mut run = Live { tree: &mut tree, ended: &mut ended_processes, outside: outside.as_mut() };
            looks.next(&mut run, sampling.as_mut(), wakefulness.as_mut(), moves.as_mut())
        }
        Moment::Stopping => {
            if let Some(wakefulness) = &mut wakefulness {
                wakefulness.rest();
            }
            Duration::ZERO
        }
    };
    let ended = match child::run(command, meanwhile) {
        Ok(ended) => ended,
        Err(error) => return Ok(command_path::not_started(name, &program, &error)),
    };
    let ended_ns = sys::now_ns();

    if let Some(moves) = moves {
        moves.end();
    }
    let mut pages = ended_processes.all();
    if let Some(main) = figures::of_process(&pages.good, ended.pid) {
        pages.good[main].notice_silence(ended_ns);
    }
    let unusable = pages.damaged.iter().find(|damaged| damaged.pid == ended.pid).map(|damaged| damaged.why.clone());
    let no_place = run_dir.path().join(NO_PLACE).exists().then(|| "there was no place for it".to_string());
    let known = Run {
        command: arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        settings: &settings,
        pid: ended.pid,
        end: ended.end,
        elapsed: ended.elapsed,
        together: tree.together(),
        apart: outside.as_ref().map(Outside::apart).unwrap_or_default(),
        outside: outside.map(Outside::known),
        group_limit: doctor::lowest_group_limit().map(|(limit, _)| limit),
        sampled: sampling.map(Sampling::end),
        wakeful: wakefulness.map(Wakefulness::end),
        out_of_reach: out_of_reach.map(|found| format!("it {}", found.cause)),
        unreached: figures::read_unreached(run_dir.path()),
        sites: sites::read_all(run_dir.path()),
        unusable_page: unusable.or(no_place),
    };
    for damaged in pages.damaged.iter().filter(|damaged| damaged.pid != ended.pid) {
        say(&format!("the statistics page of process {} cannot be used ({}): it is not in the report", damaged.pid, damaged.why));
    }
    let report = Report::new(&known, &pages.good);
    // Before the report: whoever reads it may look whether everything is gone.
    drop(run_dir);
    let _ = io::stderr().write_all(report_text::text(&report, &settings).as_bytes());
    if let Some(file) = report_file {
        let written =
            serde_json::to_string_pretty(&report).context("the report cannot be put as JSON").and_then(|json| file.write(&(json + "\n")));
        if let Err(error) = written {
            say(&format!("{error:#}; the figures above are all there is"));
        }
    }
    Ok(ended.end.pass_on())
}

/// After so long, and after eight times as long again and again, code that was needed once leaves the page table.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// What is looked at in every run.
struct Live<'a> {
    tree: &'a mut Tree,
    ended: &'a mut Ended,
    outside: Option<&'a mut Outside>,
}

/// When to look at what.
#[derive(Default)]
struct Looks {
    tree: Option<Instant>,
    ended: Option<Instant>,
    outside: Option<Instant>,
    sampling: Option<Instant>,
    wakefulness: Option<Instant>,
    moves: Option<Instant>,
    /// When to forget code, and how long that is.
    forget: Option<Instant>,
    forget_after: Duration,
}

impl Looks {
    /// Looks at what is due. Returns how long nothing else will be.
    fn next(
        &mut self,
        run: &mut Live<'_>,
        sampling: Option<&mut Sampling>,
        wakefulness: Option<&mut Wakefulness>,
        moves: Option<&mut MoveList>,
    ) -> Duration {
        let now = Instant::now();
        let due = |at: &Option<Instant>| at.is_none_or(|at| at <= now);
        // A year is as good as never.
        let later = |wait: Duration| Some(now + wait.min(Duration::from_secs(365 * 86_400)));
        if due(&self.tree) {
            self.tree = later(run.tree.look());
        }
        // Not before the tree had its look at them.
        if due(&self.ended) {
            self.ended = later(run.ended.look());
        }
        if due(&self.outside) {
            self.outside = later(run.outside.as_mut().map_or(Duration::MAX, |outside| outside.look()));
            if let Some(outside) = &run.outside {
                run.tree.set_apart(outside.apart_now());
            }
        }
        if due(&self.sampling) {
            self.sampling = later(sampling.map_or(Duration::MAX, |sampling| sampling.look()));
        }
        if due(&self.wakefulness) {
            self.wakefulness = later(wakefulness.map_or(Duration::MAX, |wakefulness| wakefulness.look()));
        }
        if due(&self.moves) {
            self.moves = later(moves.map_or(Duration::MAX, |moves| moves.look()));
        }
        if due(&self.forget) {
            if self.forget.is_some()
                && let Ok(pagemap) = sys::open("/proc/self/pagemap\0", libc::O_RDONLY, 0)
            {
                sys::forget_own_code(pagemap);
                sys::close(pagemap);
            }
            self.forget_after = (self.forget_after * 8).max(FORGET_AFTER);
            self.forget = later(self.forget_after);
        }
        let next =
            [self.tree, self.ended, self.outside, self.sampling, self.wakefulness, self.moves].into_iter().flatten().min().unwrap_or(now);
        next.saturating_duration_since(Instant::now())
    }
}

fn announce(name: &OsStr, found: &OutOfReach, strict: bool) -> Result<()> {
    let (name, OutOfReach { cause, remedy }) = (name.to_string_lossy(), found);
    if strict {
        bail!("{name} {cause}, so its memory cannot be managed and --strict refuses it; {remedy}, or leave out --strict");
    }
    say(&format!("{name} {cause}, so its memory cannot be managed and it runs as without terrace; {remedy}"));
    Ok(())
}

/// Why hot memory gets no huge pages, though that is asked for: what is missing and how to get it.
fn why_no_huge_pages(settings: &Settings, sampler: Choice) -> Option<&'static str> {
    let compresses = |tier: &TierSpec| !matches!(tier.kind, TierKind::Dram | TierKind::Node { .. });
    if settings.huge_pages != HugePages::Hot {
        None
    } else if !settings.policy.uses_samples() || sampler == Choice::None {
        Some("nothing tells what is hot: leave out --policy faults and --sampler none")
    } else if settings.dram == Dram::Unlimited && std::env::var_os("TERRACE_STRESS").is_none() || settings.observe {
        Some("nothing is moved, so memory is not kept from huge pages either (for that: --dram)")
    } else if settings.evict != Eviction::Move {
        Some("pages that leave by --evict wp would cut them: use --evict move (Linux 6.8)")
    } else if !parse_tiers(&settings.tiers).is_ok_and(|tiers| tiers.iter().any(compresses)) {
        Some("no tier takes single pages, so memory is not kept from huge pages: the kernel gives them as ever")
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
    let rest: Vec<&str> = tiers.iter().filter(|tier| tier.kind != TierKind::Swap).map(|tier| tier.name.as_str()).collect();
    say(&format!(
        "this machine has no swap, so of --tiers {list} only {} is used until there is some; zram makes it: \
         modprobe zram, zramctl --find --size 4G --algorithm lz4, then mkswap and swapon of the device that it names",
        rest.join(",")
    ));
}

/// What the library in the program reads: the preload itself, before any that the user has, and the settings.
fn prepare(command: &mut Command, settings: &Settings, library: &Path) {
    let mut preload = OsString::from(library);
    if let Some(existing) = std::env::var_os("LD_PRELOAD").filter(|existing| !existing.is_empty()) {
        preload.push(":");
        preload.push(existing);
    }
    command.env("LD_PRELOAD", preload);
    command.envs(settings.to_environment());
}
