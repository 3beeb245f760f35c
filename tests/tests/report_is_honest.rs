//! What the report says is what can be seen from outside.

use std::time::{Duration, Instant};
use terrace_testkit::process;
use terrace_testkit::public::Public;
use terrace_tests::{
    Finished, Program, Running, Terrace, compiled, machine, skip, terrace_command, terrace_library,
};

/// The greatest difference between the report's averages and those seen from outside.
const TOLERANCE: f64 = 0.03;
const MIB: f64 = (1 << 20) as f64;
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The anonymous memory of a process over time.
struct Observed(Vec<(Instant, f64)>);

impl Observed {
    /// Looks at the program's memory until it ends. What lies before its own `main`, in `terrace
    /// run`'s image, is not counted.
    fn until_end_of(running: &mut Running, program: &str) -> Observed {
        let pid = running.program_pid();
        let mut looks = Vec::new();
        while running.is_running() {
            if let Some(bytes) = anonymous_bytes(pid, program) {
                looks.push((Instant::now(), bytes));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(looks.len() > 10, "{program} was seen {} times only", looks.len());
        Observed(looks)
    }

    fn seconds(&self) -> f64 {
        (self.0[self.0.len() - 1].0 - self.0[0].0).as_secs_f64()
    }

    /// The average in bytes, weighted by time, from this second on.
    fn mean_from(&self, second: f64) -> f64 {
        let from = self.0[0].0 + Duration::from_secs_f64(second);
        let (mut byte_seconds, mut seconds) = (0.0, 0.0);
        for pair in self.0.windows(2).filter(|pair| pair[0].0 >= from) {
            let step = (pair[1].0 - pair[0].0).as_secs_f64();
            byte_seconds += step * (pair[0].1 + pair[1].1) / 2.0;
            seconds += step;
        }
        byte_seconds / seconds
    }

    fn mean(&self) -> f64 {
        self.mean_from(0.0)
    }

    fn peak(&self) -> f64 {
        self.0.iter().map(|look| look.1).fold(0.0, f64::max)
    }
}

/// Anonymous resident memory, while the process runs this program.
fn anonymous_bytes(pid: i32, program: &str) -> Option<f64> {
    if process::name(pid)? != program {
        return None;
    }
    Some(process::rollup_bytes(pid, "Anonymous")? as f64)
}

/// What `skewed` did, as seen by the report, from outside, and by itself.
struct Skewed {
    finished: Finished,
    observed: Observed,
    allocated_bytes: f64,
    filled_s: f64,
}

impl Skewed {
    fn run(arguments: &[&str], terrace: Terrace) -> Skewed {
        let program = Program::new(compiled("skewed.c", &[])).args(arguments).under(terrace);
        let mut running = program.time_limit(Duration::from_secs(180)).start();
        let observed = Observed::until_end_of(&mut running, "skewed");
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        finished.report().expect_managed();
        let stdout = String::from_utf8_lossy(&finished.stdout);
        println!("{stdout}{}", finished.stderr);
        let said = |what: &str| {
            stdout.lines().find_map(|line| line.strip_prefix(what)?.trim().parse().ok())
        };
        let (Some(allocated_bytes), Some(filled_s)) = (said("allocated"), said("filled")) else {
            panic!("{}", finished.account("did not say what it allocated"))
        };
        Skewed { finished, observed, allocated_bytes, filled_s }
    }
}

#[track_caller]
fn expect_close(what: &str, reported: f64, expected: f64) {
    let off = reported / expected - 1.0;
    println!("{what}: {reported:.2} reported, {expected:.2} expected ({:+.2} %)", off * 100.0);
    assert!(off.abs() <= TOLERANCE, "{what}: {reported} reported, {expected} expected");
}

/// The average of physical memory, of the program's data, and a budget that can be kept.
#[test]
fn memory_in_the_report_is_the_memory_seen_from_outside() {
    let _machine = machine();
    let Skewed { finished, observed, allocated_bytes, filled_s } =
        Skewed::run(&["400", "15"], Terrace::within("60%"));
    let report = finished.report();
    report.expect_moves(10_000, 1_000);
    let (physical, unmanaged) =
        (report.number("/mean_physical_bytes"), report.number("/mean_unmanaged_bytes"));
    expect_close("physical + unmanaged, MiB", (physical + unmanaged) / MIB, observed.mean() / MIB);
    let window_s = report.number("/mean_window_s");
    expect_close("window, s", window_s, observed.seconds());
    // It fills its memory steadily, and keeps all of it to the end.
    let logical = allocated_bytes * (1.0 - filled_s / 2.0 / window_s);
    expect_close("logical, MiB", report.number("/logical_bytes") / MIB, logical / MIB);
    let budget = report.number("/budget_bytes");
    expect_close("budget of 60 %, MiB", budget / MIB, 0.6 * allocated_bytes / MIB);

    let steady = observed.mean_from(observed.seconds() * 2.0 / 3.0) - unmanaged;
    println!("budget {:.2} MiB, {:.2} MiB seen in the last third", budget / MIB, steady / MIB);
    assert!(
        steady <= budget * 1.05,
        "{steady:.0} bytes seen in the last third, with a budget of {budget}"
    );
    assert!(
        report.number("/budget_kept_fraction") > 0.95,
        "it was kept, apart from the burst at the start: {report}"
    );
    let peak = report.number("/peak_physical_bytes");
    assert!(
        peak >= physical && peak <= observed.peak() * 1.1,
        "a peak of {peak}; {} seen",
        observed.peak()
    );
}

/// A budget far below the data, which do not compress and are used all the time.
#[test]
fn a_budget_that_cannot_be_kept_is_said_and_the_program_still_finishes() {
    let _machine = machine();
    let Skewed { finished, observed, .. } =
        Skewed::run(&["64", "6", "random"], Terrace::within("8M"));
    let report = finished.report();
    let mean = report.number("/mean_physical_bytes") + report.number("/mean_unmanaged_bytes");
    expect_close("physical + unmanaged, MiB", mean / MIB, observed.mean() / MIB);
    assert_eq!(report.number("/budget_bytes"), 8.0 * MIB);
    assert_eq!(
        report.at("/budget_met"),
        false,
        "above it for {} s: {report}",
        report.number("/over_budget_s")
    );
    // What it could not get below is what there was on average, where nothing compresses; and that
    // is said, with how long it was so.
    let (floor, steady) =
        (report.number("/floor_bytes"), observed.mean_from(observed.seconds() / 3.0));
    assert!(
        floor > 0.5 * steady && floor <= 1.1 * steady,
        "a floor of {floor:.0}; {steady:.0} seen: {report}"
    );
    let (kept, far_s, floor_s) = (
        report.number("/budget_kept_fraction"),
        report.number("/far_over_budget_s"),
        report.number("/floor_s"),
    );
    let window_s = report.number("/mean_window_s");
    assert!((kept - (1.0 - far_s / window_s)).abs() < 0.01 && kept < 0.5, "{report}");
    assert!(
        floor_s > 0.5 && floor_s <= far_s && far_s <= report.number("/over_budget_s"),
        "{report}"
    );
    let line = finished.stderr.lines().find(|line| line.starts_with("  budget 8.0M: kept for "));
    assert!(
        line.is_some_and(|line| line.contains("; could not get below ")),
        "{}",
        finished.account("did not tell")
    );
}

/// Four threads that wait at once cost the program no more than all of its time.
#[test]
fn waits_of_threads_are_not_added_up() {
    let arguments = ["load", "memory", "zipf", "--size", "96M", "--threads", "4", "--seconds", "3"];
    let program = Program::new(terrace_command()).args(arguments);
    let finished = program.under(Terrace::within("40M")).succeed();
    let report = finished.report();
    let (lost, waited) = (report.number("/lost_s"), report.number("/stall_s"));
    println!("{lost} s are lost, and {waited} s were waited");
    assert!(lost > 0.0 && lost <= waited, "{report}");
    assert!(report.number("/slowdown_estimate") <= 1.0, "{report}");
    assert!(report.number("/slowdown_last_minute") <= 1.0, "{report}");
}

/// What is evicted comes back before its mapping is resized, and the program waits for that.
#[test]
fn waits_inside_of_memory_calls_count() {
    let script = "\
import mmap, os, time
mapping = mmap.mmap(-1, 160 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, 160 << 20, 4096):
    mapping[page:page + 1024] = os.urandom(1024)
waited = 0
for turn in range(1, 7):
    time.sleep(1.5)
    begun = time.time()
    mapping.resize((160 << 20) + turn * 4096)
    waited += time.time() - begun
print(waited)
";
    let terrace = Terrace::within("48M").and("--tiers").and("dram,lz4");
    let finished = Program::new("python3").args(["-c", script]).under(terrace).succeed();
    let report = finished.report();
    let printed = String::from_utf8_lossy(&finished.stdout);
    let waited: f64 = printed.trim().parse().expect("the program prints a time");
    let stalled = report.number("/stall_s");
    println!("{waited} s in calls; {stalled} s told");
    assert!(stalled > 0.7 * waited, "{waited} s were waited: {report}");
}

/// Memory that Terrace does not manage is reported by kind, also for a program that has nothing
/// else.
#[test]
fn memory_out_of_reach_is_told_by_kind() {
    let program = compiled("out_of_reach.c", &[]);
    let kinds = [
        ("break", "break_bytes"),
        ("shared", "shared_bytes"),
        ("memfd", "shared_bytes"),
        ("small", "small_bytes"),
        ("executable", "executable_bytes"),
    ];
    for (kind, field) in kinds {
        let finished = Program::new(&program).arg(kind).under(Terrace::within("64M")).succeed();
        let told = finished.report().number(&format!("/other_memory/{field}")) / MIB;
        assert!(
            (100.0..150.0).contains(&told),
            "{told} MiB of {kind}: {}",
            finished.account("was told wrongly")
        );
        let line = finished.stderr.lines().find(|line| line.starts_with("  not managed: "));
        assert!(
            line.is_some_and(|line| line.contains("M ")),
            "{}",
            finished.account("did not tell")
        );
        assert!(
            !finished.stderr.contains("nothing to manage"),
            "{}",
            finished.account("told that there is nothing")
        );
    }
}

/// A program between `terrace run` and the user's own replaces or clears LD_PRELOAD.
#[test]
fn who_was_started_without_the_library_is_named() {
    let program = compiled("out_of_reach.c", &[]);
    let shown = program.display();
    for started in
        [format!("env -i {shown} small; true"), format!("LD_PRELOAD= {shown} small; true")]
    {
        let finished =
            Program::new("sh").args(["-c", &started]).under(Terrace::within("64M")).succeed();
        let report = finished.report();
        assert_eq!(report.at("/without_library/0/program"), "out_of_reach", "{report}");
        let most = report.number("/without_library/0/peak_anonymous_bytes") / MIB;
        assert!((115.0..150.0).contains(&most), "{most} MiB: {report}");
        let line = "  started without the library, and not managed: out_of_reach (";
        assert!(finished.stderr.contains(line), "{}", finished.account("did not tell"));
        assert_eq!(report.at("/without_figures"), &serde_json::json!([]), "{report}");
    }
}

/// One of two equal blocks is written all the time, and the other never again.
#[test]
fn observing_tells_what_is_idle() {
    let script = "import time\nb = bytearray(b'x') * (64 << 20)\nc = bytearray(b'y') * (64 << 20)\n\
        end = time.time() + 6\nwhile time.time() < end:\n    b[::4096] = bytes(16384)\n    time.sleep(0.01)";
    let finished =
        Program::new("python3").args(["-c", script]).under(Terrace::observing()).succeed();
    let report = finished.report();
    assert_eq!(report.at("/idle/not_touched/0/seconds"), 2, "{report}");
    let part = report.number("/idle/not_touched/0/mean_bytes")
        / report.number("/idle/not_touched/0/of_bytes");
    assert!((0.35..0.65).contains(&part), "{part} of memory was idle: {report}");
    assert_eq!(report.at("/idle/compressed/0/tier"), "lz4", "{report}");
    let lz4 = report.number("/idle/compressed/0/fraction");
    assert!(lz4 < 0.2, "repeated bytes take {lz4} of their size: {report}");
    let told = finished.stderr.contains("not touched, of anonymous memory")
        && finished.stderr.contains("compressed it takes");
    assert!(told, "{}", finished.account("did not tell"));
}

/// Where the user says nothing of memory, what is idle leaves, and the report says nothing of a
/// budget. At most 3 % of the data leave a second, from five seconds after the last growth on.
#[test]
fn a_slowdown_limits_what_is_idle() {
    let script = "import time\nb = b''.join(b'row %d of some text ' % n * 20 for n in range(300000))\n\
        end = time.time() + 30\nwhile time.time() < end:\n    time.sleep(0.01)\nprint(len(b))";
    let finished = Program::new("python3").args(["-c", script]).under(Terrace::default()).succeed();
    let report = finished.report();
    let (limit, peak) =
        (report.number("/slowdown_limit_bytes"), report.number("/peak_logical_bytes"));
    assert!(limit < peak * 0.9, "limited to {limit} of {peak} bytes: {report}");
    assert!(report.number("/saved_bytes") > 0.0, "{report}");
    assert_eq!(report.at("/budget_bytes"), &serde_json::Value::Null, "{report}");
    assert_eq!(report.at("/budget_met"), &serde_json::Value::Null, "{report}");
    let told = finished.stderr.contains("  at most 2.0% slower (--slowdown): limited to ");
    assert!(told, "{}", finished.account("did not tell"));
}

/// A program that loads a seccomp filter is not managed from then on. What it has after that
/// counts, seen from outside.
#[test]
fn memory_after_a_filter_counts_as_seen_from_outside() {
    let program = compiled("out_of_reach.c", &[]);
    let finished = Program::new(&program).arg("filter").under(Terrace::within("40M")).succeed();
    let report = finished.report();
    assert_eq!(report.at("/state"), "frozen", "{report}");
    assert_eq!(report.at("/budget_met"), false, "{report}");
    let peak = report.number("/afterwards/peak_anonymous_bytes") / MIB;
    assert!((115.0..150.0).contains(&peak), "a peak of {peak} MiB: {report}");
    assert!(report.number("/peak_physical_bytes") / MIB >= 115.0, "{report}");
    let (until, elapsed) = (report.number("/measured_until_s"), report.number("/elapsed_s"));
    assert!(until > 0.4 && until < elapsed, "measured for {until} s of {elapsed}");
    assert!(
        finished.stderr.contains("  budget 40.0M: kept for "),
        "{}",
        finished.account("told of a budget that was kept")
    );
    assert!(
        finished.stderr.contains(" on nothing was managed: "),
        "{}",
        finished.account("did not tell")
    );
}

/// A driver, a shell or a manager starts the program that has the memory. The report tells in full
/// of the process that held most, whichever was started first. It also tells what the others held.
#[test]
fn who_held_most_is_told_in_full() {
    let _machine = machine();
    let family = compiled("children_share_the_budget.c", &[]);
    let driver = Program::new(&family).args(["executed", "1", "100", "3"]);
    let shell =
        Program::new("sh").arg("-c").arg(format!("true; {} alone 100 3; true", family.display()));
    // The driver executes it as /proc/self/exe.
    for (program, wrapper, name) in
        [(driver, "children_share_", "exe"), (shell, "sh", "children_share_")]
    {
        let finished = program.under(Terrace::within("64M")).succeed();
        let report = finished.report();
        report.expect_moves(5_000, 100);
        assert_eq!(report.at("/figures_of/is_the_program"), false, "{report}");
        assert_eq!(report.at("/figures_of/program"), name, "{report}");
        assert!(report.number("/logical_bytes") / MIB > 70.0, "{report}");
        let pid = report.number("/figures_of/pid");
        let main = report
            .at("/processes")
            .as_array()
            .into_iter()
            .flatten()
            .find(|process| process["main"] == true);
        let main = main.unwrap_or_else(|| panic!("nobody's figures: {report}"));
        assert!(
            main["pid"].as_f64() == Some(pid)
                && main["mean_held_bytes"].as_f64() > Some(60.0 * MIB),
            "{report}"
        );
        // The program is named as before, and the text has the same figures.
        let whose = format!("of {name} ({pid}), which held most");
        let told = finished
            .stderr
            .contains(&format!("terrace: {}", report.at("/program").as_str().unwrap_or_default()))
            && finished.stderr.contains(&whose)
            && finished.stderr.contains("  budget 64.0M");
        assert!(
            told && !finished.stderr.contains("nothing to manage"),
            "{}",
            finished.account(&format!("was told as {wrapper}'s"))
        );
    }
    // A process of the same size that lives for a moment does not take its place.
    let script = format!("{0} alone 40 0; exec {0} alone 100 3", family.display());
    let finished = Program::new("sh").arg("-c").arg(script).under(Terrace::within("64M")).succeed();
    assert_eq!(finished.report().at("/figures_of/is_the_program"), true, "{}", finished.report());
}

/// A program whose user is changed before it is executed (setpriv, su) cannot write its figures.
/// Memory of such a program counts all the same, and the report says what is not known.
#[test]
fn a_program_of_another_user_is_counted() {
    let public = Public::with(&[]);
    let family = public.publish(&compiled("children_share_the_budget.c", &[]));
    let library = public.publish(&terrace_library());
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    if !Program::new("setpriv").args(as_nobody).arg("true").run().status.success() {
        return skip(
            "another user's program",
            "setpriv (util-linux) cannot change the user here: it takes root",
        );
    }
    let run = |program: Program| {
        program.env("TERRACE_LIBRARY", &library).under(Terrace::within("64M")).succeed()
    };
    // In the place of the program that was started, and beside it.
    let replaced =
        run(Program::new("setpriv").args(as_nobody).arg(&family).args(["alone", "100", "4"]));
    let script = format!("setpriv {} {} alone 100 4; true", as_nobody.join(" "), family.display());
    let beside = run(Program::new("sh").arg("-c").arg(script));
    for finished in [&replaced, &beside] {
        let report = finished.report();
        assert_eq!(report.at("/without_figures/0/program"), "children_share_", "{report}");
        assert!(report.number("/without_figures/0/peak_anonymous_bytes") > 60.0 * MIB, "{report}");
        assert_eq!(report.at("/budget_bytes").as_f64(), Some(64.0 * MIB), "{report}");
        let line = finished
            .stderr
            .lines()
            .find(|line| line.starts_with("  without figures: children_share_ ("));
        assert!(line.is_some(), "{}", finished.account("did not tell"));
        assert!(report.number("/together/peak_physical_bytes") > 60.0 * MIB, "{report}");
    }
    let report = replaced.report();
    assert_eq!(
        (report.at("/program").as_str(), report.at("/managed")),
        (Some("children_share_"), &false.into()),
        "{report}"
    );
    assert!(
        report.at("/note").as_str().is_some_and(|note| note.starts_with("not known: ")),
        "{report}"
    );
    assert!(
        report.at("/logical_bytes").is_null() && report.at("/figures_of").is_null(),
        "{report}"
    );
}
