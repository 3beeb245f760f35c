//! The report of a run for people: a few lines for standard error. It says what happened, not what
//! was hoped for.

use crate::processes::outside::Apart;
use crate::quantity::{bytes, share, short_time};
use crate::run_report::{Process, Report};

use terrace_control::settings::{MIN_BUDGET_BYTES, Settings};
use terrace_policy::slowdown;

/// Most processes listed beside the first; the JSON report has all.
const PROCESSES_SHOWN: usize = 8;
/// Share of the run's memory below which processes are told together.
const WORTH_A_LINE: f64 = 0.01;
/// Most programs out of reach that are named; the JSON report has all.
const OUT_OF_REACH_SHOWN: usize = 4;

/// The whole text, each line ended.
pub fn text(report: &Report, settings: &Settings) -> String {
    let mut lines = vec![headline(report)];
    lines.extend(whose(report));
    let last = lines.len() - 1;
    match report.state {
        "unmanaged" => {
            lines[last] += &format!(
                "  not managed: {}",
                report.note.as_deref().unwrap_or("for an unknown reason")
            );
            let other = report.other_memory.map(|other| other.text()).unwrap_or_default();
            if !other.is_empty() {
                lines.push(format!("  out of reach in any case: {other}"));
                lines.extend(remedy(report));
            }
        }
        "attached" => {}
        "idle" => {
            let least = bytes(MIN_BUDGET_BYTES);
            let other = report.other_memory.map(|other| other.text()).unwrap_or_default();
            if other.is_empty() {
                lines[last] += &format!("  touched less than {least}, nothing to manage");
            } else {
                lines[last] += &format!("  touched less than {least} that can be managed");
                lines.push(format!("  not managed: {other}"));
                lines.extend(remedy(report));
            }
        }
        state => {
            if is_measured(report) {
                lines.extend(table(report));
            }
            if state == "observing" {
                lines.extend(observed(report, settings));
            } else {
                if is_measured(report) {
                    lines.push(balance(report));
                    lines.extend(tco(report));
                }
                lines.extend(budget(report));
                lines.extend(target(report));
                lines.extend(placed(report));
            }
            lines.extend(is_measured(report).then(|| cost(report)));
            lines.extend(huge_pages(report));
            lines.extend(left_alone(report));
            lines.extend(remedy(report));
            lines.extend(afterwards(report));
        }
    }
    if report.state != "unmanaged" {
        let word =
            if report.state == "frozen" { "FROZEN: nothing more was evicted" } else { "note" };
        lines.extend(report.note.as_ref().map(|note| format!("  {word}: {note}")));
    }
    if report.state == "unmanaged" || report.state == "idle" {
        lines.extend(report.together.and_then(|_| budget(report)));
    }
    lines.extend(children(report));
    lines.extend(without_figures(report));
    lines.extend(without_library(report));
    lines.extend(out_of_reach(report));
    lines.extend(report.attached.as_ref().map(attached));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn attached(figures: &terrace_attach::AttachedStats) -> String {
    format!(
        "  attached to as it started ({}): {} pages left, {} came back; at most {} of DRAM",
        figures.limit,
        figures.evicted_pages,
        figures.restored_pages,
        bytes(figures.peak_bytes)
    )
}

fn headline(report: &Report) -> String {
    let end = match (report.signal, report.exit_status) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(status)) => format!("exit {status}"),
        (None, None) => "so far".into(),
    };
    format!("terrace: {}  {:.1}s  {end}", report.program, report.elapsed_s)
}

/// Line that names the process whose figures follow, if they are not the program's own.
fn whose(report: &Report) -> Option<String> {
    let of = report.figures_of.as_ref().filter(|of| !of.is_the_program)?;
    Some(format!("  of {} ({}), which held most of its processes:", of.program, of.pid))
}

/// Whether the averages are of any time at all.
fn is_measured(report: &Report) -> bool {
    report.measured_until_s.is_none() || report.mean_window_s.is_some_and(|window| window > 0.0)
}

/// Sizes are averages, and restores are those of the whole run: each column says so. Where pages
/// are at the end is in the JSON report.
fn table(report: &Report) -> Vec<String> {
    let width = report
        .tiers
        .iter()
        .map(|tier| tier.name.chars().count())
        .max()
        .unwrap_or(0)
        .max("tier".len());
    let mut lines = vec![format!(
        "  {:<width$} {:>14} {:>14} {:>14}  time of one",
        "tier", "data, mean", "DRAM, mean", "restores, all"
    )];
    for tier in &report.tiers {
        let time = |us: Option<f64>| us.map(|us| short_time((us * 1e3) as u64));
        let restore = match (time(tier.fault_p50_us), time(tier.fault_p99_us)) {
            (Some(p50), Some(p99)) => format!("{p50} p50, {p99} p99"),
            _ => "-".into(),
        };
        let restores = if tier.faults == 0 { "-".into() } else { tier.faults.to_string() };
        let (logical, physical) = (bytes(tier.logical_bytes), bytes(tier.physical_bytes));
        lines.push(format!(
            "  {:<width$} {logical:>14} {physical:>14} {restores:>14}  {restore}",
            tier.name
        ));
    }
    lines
}

fn balance(report: &Report) -> String {
    let logical = report.logical_bytes.unwrap_or(0);
    let saved = report.saved_bytes.unwrap_or(0);
    let fraction = report
        .saved_fraction
        .map(|fraction| format!(" ({})", share(fraction.abs())))
        .unwrap_or_default();
    let verb = if saved < 0 { "cost" } else { "saved" };
    let least = match report.slowdown_is_lower_bound {
        Some(true) => "at least ",
        _ => "about ",
    };
    format!(
        "  {verb} {} of {}{fraction} on average; lost {least}{} in all waiting for memory (estimate: {} of the time)",
        bytes(saved.unsigned_abs()),
        bytes(logical),
        short_time((report.lost_s.unwrap_or(0.0) * 1e9) as u64),
        share(report.slowdown_estimate.unwrap_or(0.0)),
    )
}

/// What memory cost beside all of it in DRAM.
fn tco(report: &Report) -> Option<String> {
    let tco = report.tco.as_ref()?;
    let verb = if tco.saved_fraction < 0.0 { "more" } else { "less" };
    Some(format!(
        "  memory cost {} {verb} than all in DRAM, at the prices of {}",
        share(tco.saved_fraction.abs()),
        tco.prices_of
    ))
}

fn observed(report: &Report, settings: &Settings) -> Vec<String> {
    let why = if settings.observe {
        "observed only (--observe)"
    } else {
        "no limit (--dram, --slowdown)"
    };
    let peak = report.peak_logical_bytes.unwrap_or(0);
    let mut lines = vec![format!(
        "  {why}: nothing was moved; {} of program data on average, {} at most",
        bytes(report.logical_bytes.unwrap_or(0)),
        bytes(peak),
    )];
    let idle = report.idle.as_ref();
    let times: Vec<String> = idle
        .iter()
        .flat_map(|idle| &idle.not_touched)
        .map(|idle| format!("{} for {}s", share(idle.fraction()), idle.seconds))
        .collect();
    if !times.is_empty() {
        lines.push(format!("  not touched, of anonymous memory: {}", times.join(", ")));
    }
    let tiers: Vec<String> = idle
        .iter()
        .flat_map(|idle| &idle.compressed)
        .map(|compressed| format!("{} in {}", share(compressed.fraction), compressed.tier))
        .collect();
    if let Some(idle) = idle.filter(|_| !tiers.is_empty()) {
        let pages = idle.sampled_pages;
        lines.push(format!("  compressed it takes {} ({pages} pages tried)", tiers.join(", ")));
    }
    lines.push(match idle.and_then(|idle| idle.budget(peak)) {
        Some((budget, idle)) => format!(
            "  to try: --dram {}M, which holds all of it if what was idle for {}s is compressed",
            budget.div_ceil(1 << 20),
            idle.seconds
        ),
        None => format!("  to try: --dram {}M, three fifths of the most", (peak * 3 / 5) >> 20),
    });
    lines
}

fn target(report: &Report) -> Option<String> {
    let target = share(report.slowdown_target?);
    let peak = bytes(report.peak_physical_bytes.unwrap_or(0));
    Some(match report.slowdown_limit_bytes {
        Some(limit) => format!(
            "  at most {target} slower (--slowdown): limited to {} in the end (peak {peak})",
            bytes(limit)
        ),
        None => format!(
            "  at most {target} slower (--slowdown): not limited, as it ended within {:.0} s of the last growth (peak {peak})",
            slowdown::GROWTH_S
        ),
    })
}

/// What the placement model of the first process came to.
fn placed(report: &Report) -> Option<String> {
    let placement = report.placement.as_ref()?;
    let head = format!("  placed by {}, every {}s", placement.model, placement.window_s);
    let last =
        placement.processes.first().and_then(|placed| Some((placed, placed.windows.last()?)));
    let (Some(mean), Some((placed, last))) = (placement.mean_cost, last) else {
        return Some(format!("{head}: it ended before the first window"));
    };
    let mib = |pages: u32| bytes(u64::from(pages) * 4096);
    let tiers: Vec<String> = placed
        .tiers
        .iter()
        .zip(&last.tiers)
        .map(|(name, tier)| {
            let recommended = mib(tier.recommended_pages);
            format!("{name} {} of {recommended}", mib(tier.actual_pages))
        })
        .collect();
    Some(format!(
        "{head} (knob {}): costs {} of all in DRAM, a mean over {} windows; at last, of what was recommended: {}",
        last.knob,
        share(mean),
        placed.windows.len(),
        tiers.join(", ")
    ))
}

fn budget(report: &Report) -> Option<String> {
    let budget = report.budget_bytes?;
    let (all, peak) = match &report.together {
        Some(all) => {
            (" for all processes", format!("together peak {}", bytes(all.peak_physical_bytes)))
        }
        None => ("", format!("peak {}", bytes(report.peak_physical_bytes.unwrap_or(0)))),
    };
    let far_over_s = report.far_over_budget_s.unwrap_or(0.0);
    let over = if far_over_s > 0.0 {
        format!(", more than 2% above it for {far_over_s:.1}s")
    } else {
        String::new()
    };
    let verdict = match (report.budget_met, report.budget_kept_fraction) {
        (Some(true), _) => "kept".to_string(),
        (Some(false), Some(fraction)) => format!("kept for {} of the time", share(fraction)),
        _ => {
            return Some(format!("  budget {}{all}: not known whether it was kept", bytes(budget)));
        }
    };
    let growing = report.growing_s.filter(|growing_s| *growing_s >= 0.1);
    let growing = growing
        .map(|growing_s| format!("; not held to for {growing_s:.1}s while memory grew"))
        .unwrap_or_default();
    Some(format!(
        "  budget {}{all}: {verdict} ({peak}{over}){growing}{}",
        bytes(budget),
        floor(report).unwrap_or_default()
    ))
}

/// What stood in the way of the budget.
fn floor(report: &Report) -> Option<String> {
    let floor =
        report.floor_bytes.filter(|floor| *floor > 0 && report.measured_until_s.is_none())?;
    let seconds = report.floor_s.unwrap_or(0.0);
    Some(format!(
        "; could not get below {} for {seconds:.1}s, as the rest was in use or does not compress",
        bytes(floor)
    ))
}

fn cost(report: &Report) -> String {
    let of_all = if report.measured_until_s.is_some() {
        format!(" of {:.1}s", report.elapsed_s)
    } else {
        String::new()
    };
    format!(
        "  terrace itself: {} of memory (included), {} of a CPU; averages over {:.1}s{of_all}",
        bytes(report.overhead_bytes.unwrap_or(0)),
        share(report.cpu_fraction + report.sampler.cpu_fraction),
        report.mean_window_s.unwrap_or(0.0),
    )
}

fn afterwards(report: &Report) -> Option<String> {
    let until = report.measured_until_s?;
    let seen = match report.afterwards {
        Some(seen) => {
            format!(
                "{} of anonymous memory on average, {} at most",
                bytes(seen.mean_anonymous_bytes),
                bytes(seen.peak_anonymous_bytes)
            )
        }
        None => "how much memory it had since is not known".into(),
    };
    Some(format!("  from second {until:.1} on nothing was managed: {seen}"))
}

fn huge_pages(report: &Report) -> Option<String> {
    let (made, split) = (report.moves.counted.0.huge_made, report.moves.counted.0.huge_split);
    (made > 0).then(|| {
        format!("  huge pages: {made} of 2M made where memory stayed hot, {split} split again")
    })
}

fn left_alone(report: &Report) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(unmanaged) = report.mean_unmanaged_bytes.filter(|unmanaged| *unmanaged > 0) {
        parts.push(format!("{} of other memory on average", bytes(unmanaged)));
    }
    if let Some(other) = report.other_memory.filter(|other| other.bytes() > 0) {
        parts.push(format!("at most {}", other.text()));
    }
    if let Some(shared) = report.shared_pages.filter(|shared| *shared > 0) {
        parts.push(format!("{shared} pages shared with a child at the end"));
    }
    if report.moves.counted.0.failed_moves > 0 {
        let with = report
            .moves
            .failed_with
            .as_ref()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        parts.push(format!(
            "{} moves the kernel refused in all{with}",
            report.moves.counted.0.failed_moves
        ));
    }
    (!parts.is_empty()).then(|| format!("  not managed: {}", parts.join(", ")))
}

fn remedy(report: &Report) -> Option<String> {
    let remedy = report.other_memory?.remedy()?;
    Some(format!("  what would help: {remedy}"))
}

fn children(report: &Report) -> Vec<String> {
    // A shell's many small children have nothing to tell.
    let worth = |process: &&Process| {
        !process.main
            && (process.logical_bytes > 0 || process.state == "frozen")
            && process.state != "idle"
    };
    let held = |processes: &[&Process]| {
        processes.iter().fold(0, |sum: u64, process| sum.saturating_add(process.mean_held_bytes))
    };
    let of_all = held(&report.processes.iter().collect::<Vec<_>>());
    let large = |process: &&Process| {
        process.state == "frozen" || process.mean_held_bytes as f64 >= of_all as f64 * WORTH_A_LINE
    };
    let (mut shown, mut rest): (Vec<&Process>, Vec<&Process>) =
        report.processes.iter().filter(worth).partition(large);
    rest.extend(shown.drain(PROCESSES_SHOWN.min(shown.len())..));
    let mut lines: Vec<String> = shown.iter().map(|process| child(process)).collect();
    let together = bytes(held(&rest));
    match rest.len() {
        0 => {}
        1 => lines.push(format!("  and 1 more process, {together} on average (it is in the file of --report)")),
        more => lines.push(format!(
            "  and {more} more processes, {together} on average with shared pages in each (all are in the file of --report)"
        )),
    }
    lines
}

fn without_figures(report: &Report) -> Option<String> {
    apart(&report.without_figures).map(|shown| {
        format!(
            "  without figures: {shown}; they count for the budget, and nothing is assigned to them"
        )
    })
}

fn without_library(report: &Report) -> Option<String> {
    apart(&report.without_library).map(|shown| {
        format!(
            "  started without the library, and not managed: {shown}; either somebody replaced or cleared LD_PRELOAD instead of appending to it, or a program out of reach started them"
        )
    })
}

/// Processes without a page, as a list.
fn apart(all: &[Apart]) -> Option<String> {
    let named = |apart: &Apart| {
        format!("{} ({}), {} at most", apart.program, apart.pid, bytes(apart.peak_anonymous_bytes))
    };
    let shown = all.iter().take(OUT_OF_REACH_SHOWN).map(named).collect::<Vec<_>>().join(", ");
    match all.len() {
        0 => None,
        all if all > OUT_OF_REACH_SHOWN => {
            Some(format!("{shown} and {} more", all - OUT_OF_REACH_SHOWN))
        }
        _ => Some(shown),
    }
}

fn out_of_reach(report: &Report) -> Option<String> {
    let named: Vec<String> = report
        .out_of_reach
        .iter()
        .map(|file| format!("{} ({})", file.program, file.cause))
        .collect();
    let shown = named.iter().take(OUT_OF_REACH_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match named.len() {
        0 => None,
        all if all > OUT_OF_REACH_SHOWN => {
            Some(format!("  out of reach: {shown} and {} more", all - OUT_OF_REACH_SHOWN))
        }
        _ => Some(format!("  out of reach: {shown}")),
    }
}

fn child(process: &Process) -> String {
    let verb = if process.saved_bytes < 0 { "cost" } else { "saved" };
    let met = match (process.budget_met, process.measured_until_s) {
        (_, Some(until)) => format!("; not managed, and not known, from its second {until:.1} on"),
        (Some(false), None) => {
            format!(
                ", its share of the budget kept for {} of the time",
                share(process.budget_kept_fraction.unwrap_or(0.0))
            )
        }
        _ => String::new(),
    };
    format!(
        "  also {} ({}), {}: {verb} {} of {} on average, {} restores in all{met}",
        process.program,
        process.pid,
        process.state,
        bytes(process.saved_bytes.unsigned_abs()),
        bytes(process.logical_bytes),
        process.faults
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::outside::{Afterwards, Known, OtherMemory};
    use crate::processes::statistics::{ProcessStats, samples::active};
    use crate::run_report::{Run, samples};
    use terrace_control::stats::State;
    use terrace_control::unreached::Unreached;

    fn told(change: impl Fn(&mut Run<'_>), pages: &[ProcessStats]) -> String {
        let settings = Settings::default();
        let mut run = samples::run(&settings);
        change(&mut run);
        text(&Report::new(&run, pages), &settings)
    }

    #[test]
    fn an_active_program_is_told_in_a_few_lines() {
        let expected = "\
terrace: redis-server  61.2s  exit 0
  tier     data, mean     DRAM, mean  restores, all  time of one
  dram           1.0G           1.0G              -  -
  lz4            2.3G         716.8M         812345  9.2us p50, 31us p99
  saved 1.4G of 3.3G (42%) on average; lost about 1.9s in all waiting for memory (estimate: 3.1% of the time)
  memory cost 42% less than all in DRAM, at the prices of June 2026
  budget 2.0G: kept (peak 2.0G, more than 2% above it for 0.1s)
  terrace itself: 38.0M of memory (included), 1.2% of a CPU; averages over 60.0s
  not managed: 12.0M of other memory on average, 512 pages shared with a child at the end, 17 moves the kernel refused in all (Device or resource busy (os error 16))
";
        assert_eq!(told(|_| {}, &[active(7)]), expected);
    }

    #[test]
    fn bad_news_is_told_plainly() {
        let missed = ProcessStats {
            budget_met: false,
            over_budget_ms: 9_000,
            far_over_budget_ms: 6_000,
            ..active(7)
        };
        let line =
            "  budget 2.0G: kept for 90% of the time (peak 2.0G, more than 2% above it for 6.0s)";
        assert!(told(|_| {}, std::slice::from_ref(&missed)).contains(&format!("{line}\n")));
        let stuck = ProcessStats { floor_bytes: 3 << 30, floor_ms: 4_000, ..missed.clone() };
        let why =
            "; could not get below 3.0G for 4.0s, as the rest was in use or does not compress";
        assert!(told(|_| {}, &[stuck]).contains(&format!("{line}{why}\n")));
        let touching = ProcessStats { over_budget_ms: 9_000, far_over_budget_ms: 0, ..active(7) };
        assert!(told(|_| {}, &[touching]).contains("  budget 2.0G: kept (peak 2.0G)\n"));
        let child = told(|_| {}, &[active(7), ProcessStats { pid: 8, ..missed }]);
        assert!(
            child.contains("  also redis-server (8), active: ")
                && child.contains(", its share of the budget kept for 90% of the time\n")
        );
        let costly = ProcessStats { mean_physical_bytes: 4 << 30, ..active(7) };
        assert!(told(|_| {}, &[costly]).contains("  cost 716.8M of 3.3G (21%)"));
        let frozen = ProcessStats {
            state: State::Frozen,
            note: "page 7 was in two states".into(),
            ..active(7)
        };
        assert!(
            told(|_| {}, &[frozen])
                .contains("  FROZEN: nothing more was evicted: page 7 was in two states\n")
        );
        let unmanaged = ProcessStats {
            state: State::Unmanaged,
            note: "userfaultfd is not permitted".into(),
            ..active(7)
        };
        assert_eq!(
            told(|_| {}, &[unmanaged]),
            "terrace: redis-server  61.2s  exit 0  not managed: userfaultfd is not permitted\n"
        );
        let killed = told(|run| run.end = Some(crate::run::child::End::Killed(9)), &[]);
        assert!(
            killed.starts_with("terrace: redis-server  61.2s  killed by signal 9  not managed: libterrace.so never came up"),
            "{killed}"
        );
    }

    #[test]
    fn idle_and_observing_say_so() {
        let idle = ProcessStats { state: State::Idle, ..active(7) };
        assert_eq!(
            told(|_| {}, &[idle]),
            "terrace: redis-server  61.2s  exit 0  touched less than 64.0M, nothing to manage\n"
        );
        let observing = ProcessStats { state: State::Observing, budget_bytes: None, ..active(7) };
        assert!(told(|_| {}, &[observing]).contains("  no limit (--dram, --slowdown): nothing was moved; 3.3G of program data on average, 3.4G at most\n  to try: --dram 2084M, three fifths of the most\n"));
    }

    #[test]
    fn what_is_out_of_reach_is_one_line() {
        let file = |number: usize| Unreached {
            program: format!("./t{number}"),
            cause: "static".into(),
            process: 0,
        };
        let shell = ProcessStats { state: State::Idle, ..active(7) };
        let lines =
            told(|run| run.unreached = vec![file(1), file(2)], std::slice::from_ref(&shell));
        assert_eq!(lines.lines().nth(1), Some("  out of reach: ./t1 (static), ./t2 (static)"));
        let many =
            told(|run| run.unreached = (1..=9).map(file).collect(), std::slice::from_ref(&shell));
        assert!(many.ends_with("  out of reach: ./t1 (static), ./t2 (static), ./t3 (static), ./t4 (static) and 5 more\n"), "{many}");
    }

    #[test]
    fn memory_out_of_reach_is_told_by_kind() {
        let other = OtherMemory {
            shared_bytes: 160 << 20,
            static_bytes: 300 << 20,
            small_bytes: 1 << 20,
            ..OtherMemory::default()
        };
        let idle = ProcessStats { state: State::Idle, ..active(7) };
        let expected = "\
terrace: redis-server  61.2s  exit 0  touched less than 64.0M that can be managed
  not managed: 300.0M static data (.bss and .data), 160.0M shared (several processes may have its pages)
  what would help: malloc instead of large variables
";
        let known = || Some(vec![Known { pid: 7, other, ..Known::default() }]);
        assert_eq!(told(|run| run.outside = known(), &[idle]), expected);
        let line = "  not managed: 12.0M of other memory on average, at most 300.0M static data (.bss and .data), 160.0M shared \
                    (several processes may have its pages), 512 pages";
        let text = told(|run| run.outside = known(), &[active(7)]);
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn what_is_not_known_after_the_end_of_measuring_is_not_told() {
        let page = ProcessStats {
            state: State::Frozen,
            measured_until_ns: Some(5_000_000_000),
            note: "a filter".into(),
            ..active(7)
        };
        let text = told(|_| {}, std::slice::from_ref(&page));
        for line in [
            "  budget 2.0G: not known whether it was kept\n",
            "averages over 60.0s of 61.2s\n",
            "  from second 4.0 on nothing was managed: how much memory it had since is not known\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let afterwards = Afterwards {
            seconds: 57.0,
            mean_anonymous_bytes: 4 << 30,
            peak_anonymous_bytes: 5 << 30,
        };
        let nothing = ProcessStats {
            mean_window_ms: 0,
            mean_logical_bytes: 0,
            mean_physical_bytes: 0,
            tiers: Vec::new(),
            ..page
        };
        let known =
            || Some(vec![Known { pid: 7, afterwards: Some(afterwards), ..Known::default() }]);
        let text = told(|run| run.outside = known(), &[nothing]);
        assert!(
            text.contains(
                "nothing was managed: 4.0G of anonymous memory on average, 5.0G at most\n"
            ),
            "{text}"
        );
        assert!(!text.contains("averages") && !text.contains("saved"), "{text}");
    }

    /// A shell, or a compiler's driver.
    fn shell() -> ProcessStats {
        ProcessStats {
            state: State::Idle,
            mean_logical_bytes: 0,
            peak_logical_bytes: 0,
            mean_unmanaged_bytes: 0,
            program: "sh".into(),
            ..active(7)
        }
    }

    #[test]
    fn who_held_most_is_told_in_full_whoever_was_started_first() {
        let compiler = ProcessStats { program: "cc1plus".into(), ..active(8) };
        let expected = "\
terrace: redis-server  61.2s  exit 0
  of cc1plus (8), which held most of its processes:
  tier     data, mean     DRAM, mean  restores, all  time of one
  dram           1.0G           1.0G              -  -
  lz4            2.3G         716.8M         812345  9.2us p50, 31us p99
  saved 1.4G of 3.3G (42%) on average;";
        let text = told(|_| {}, &[shell(), compiler.clone()]);
        assert!(
            text.starts_with(expected)
                && text.contains("  budget 2.0G: kept")
                && !text.contains("also"),
            "{text}"
        );
        let unmanaged = ProcessStats {
            state: State::Unmanaged,
            note: "userfaultfd is not permitted".into(),
            ..compiler
        };
        let text = told(|_| {}, &[shell(), unmanaged]);
        assert_eq!(
            text.lines().nth(1),
            Some(
                "  of cc1plus (8), which held most of its processes:  not managed: userfaultfd is not permitted"
            )
        );
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn children_are_told_if_they_have_data_and_small_ones_together() {
        let small = |pid: u32| ProcessStats {
            mean_logical_bytes: 10 << 20,
            mean_unmanaged_bytes: 0,
            ..active(pid)
        };
        let quiet = ProcessStats {
            state: State::Idle,
            mean_logical_bytes: 0,
            mean_unmanaged_bytes: 0,
            ..active(9)
        };
        let tail = |pages: &[ProcessStats]| {
            told(|_| {}, pages).lines().skip(9).map(str::to_owned).collect::<Vec<_>>()
        };
        let also = "  also redis-server (8), active: saved 1.4G of 3.3G on average, 812345 restores in all";
        assert_eq!(tail(&[active(7), active(8), quiet.clone()]), [also]);
        let together = "  and 4 more processes, 39.2M on average with shared pages in each (all are in the file of --report)";
        let all: Vec<ProcessStats> =
            [active(7), active(8), quiet].into_iter().chain((20..24).map(small)).collect();
        assert_eq!(tail(&all), [also, together]);
        let one = tail(&[active(7), small(8)]);
        assert_eq!(one, ["  and 1 more process, 9.8M on average (it is in the file of --report)"]);
        let frozen = ProcessStats { state: State::Frozen, ..small(8) };
        assert!(tail(&[active(7), frozen])[0].starts_with("  also redis-server (8), frozen: "));
        let many: Vec<ProcessStats> = (7..28).map(active).collect();
        let lines = tail(&many);
        assert_eq!(lines.len(), 9);
        assert!(lines[8].starts_with("  and 12 more processes, "), "{lines:?}");
    }
}
