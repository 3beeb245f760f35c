//! What the report says is what can be seen from outside.

use std::fs;
use std::time::{Duration, Instant};
use terrace_tests::{Finished, Program, Running, Terrace, compiled, machine};

/// The greatest difference between the report's averages and those seen from outside.
const TOLERANCE: f64 = 0.03;
const MIB: f64 = (1 << 20) as f64;
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The anonymous memory of a process over time.
#[derive(Default)]
struct Observed {
    byte_seconds: f64,
    seconds: f64,
    peak: f64,
}

impl Observed {
    fn mean(&self) -> f64 {
        self.byte_seconds / self.seconds
    }
}

/// Looks at the program's memory until it ends. What lies before its own `main`, in `terrace run`'s image, is not counted.
fn observe(running: &mut Running, program: &str) -> Observed {
    let pid = running.program_pid();
    let mut observed = Observed::default();
    let mut previous: Option<(Instant, f64)> = None;
    while running.is_running() {
        if let Some(bytes) = anonymous_bytes(pid, program) {
            let now = Instant::now();
            if let Some((then, before)) = previous {
                let seconds = (now - then).as_secs_f64();
                observed.byte_seconds += seconds * (before + bytes) / 2.0;
                observed.seconds += seconds;
            }
            observed.peak = observed.peak.max(bytes);
            previous = Some((now, bytes));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    observed
}

/// Anonymous resident memory, while the process runs this program.
fn anonymous_bytes(pid: i32, program: &str) -> Option<f64> {
    if fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim() != program {
        return None;
    }
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// Runs `skewed` under Terrace and looks at it from outside. Returns how many bytes it allocated, too.
fn skewed(arguments: &[&str], terrace: Terrace) -> (Finished, Observed, f64) {
    let program = Program::new(compiled("skewed.c", &[])).args(arguments).under(terrace);
    let mut running = program.time_limit(Duration::from_secs(180)).start();
    let observed = observe(&mut running, "skewed");
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    finished.report().expect_managed();
    let stdout = String::from_utf8_lossy(&finished.stdout);
    let allocated = stdout.lines().find_map(|line| line.strip_prefix("allocated ")?.parse().ok());
    let allocated = allocated.unwrap_or_else(|| panic!("{}", finished.account("did not say what it allocated")));
    println!("{stdout}{}", finished.stderr);
    (finished, observed, allocated)
}

#[track_caller]
fn expect_close(what: &str, reported: f64, seen: f64) {
    println!("{what}: {:.2} MiB reported, {:.2} MiB seen ({:+.2} %)", reported / MIB, seen / MIB, (reported / seen - 1.0) * 100.0);
    assert!((reported / seen - 1.0).abs() <= TOLERANCE, "{what}: {reported:.0} bytes reported, {seen:.0} seen");
}

/// The average of physical memory, of the program's data, and whether a budget was kept.
#[test]
fn memory_in_the_report_is_the_memory_seen_from_outside() {
    let _machine = machine();
    let (finished, observed, allocated) = skewed(&["400", "15"], Terrace::within("60%"));
    let report = finished.report();
    report.expect_moves(10_000, 1_000);
    let mean = report.number("/mean_physical_bytes") + report.number("/mean_unmanaged_bytes");
    expect_close("physical + unmanaged, average", mean, observed.mean());
    let window = report.number("/mean_window_s");
    println!("over {window:.2} s reported, {:.2} s seen", observed.seconds);
    assert!((window - observed.seconds).abs() < 0.5 + 0.03 * observed.seconds, "{window} s reported, {} seen", observed.seconds);

    // Of the data the average is known too: it is all there once it is filled. A run that observes shows it at its end.
    let budget = report.number("/budget_bytes");
    expect_close("60 % of the data, as the budget", budget, 0.6 * allocated);
    assert_eq!(report.at("/budget_met"), true, "{report}");
    let (peak, over_s) = (report.number("/peak_physical_bytes"), report.number("/over_budget_s"));
    assert!(peak <= budget * 1.05 || over_s < 1.0, "{:.1} % of the budget, and above it for {over_s} s", 100.0 * peak / budget);
    assert!(peak >= report.number("/mean_physical_bytes") && peak <= observed.peak * 1.05, "peak of {peak}; {} seen", observed.peak);
}

/// A budget far below the data, which do not compress and are used all the time.
#[test]
fn a_budget_that_cannot_be_kept_is_said_and_the_program_still_finishes() {
    let _machine = machine();
    let (finished, observed, _) = skewed(&["64", "6", "random"], Terrace::within("8M"));
    let report = finished.report();
    let mean = report.number("/mean_physical_bytes") + report.number("/mean_unmanaged_bytes");
    expect_close("physical + unmanaged, average", mean, observed.mean());
    assert_eq!(report.at("/budget_met"), false, "{report}");
    let (budget, floor) = (report.number("/budget_bytes"), report.number("/floor_bytes"));
    assert_eq!(budget, 8.0 * MIB);
    assert!(floor > budget, "a floor of {floor}: {report}");
}
