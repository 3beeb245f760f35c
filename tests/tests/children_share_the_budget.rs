//! `--dram` is the limit of all processes of a run together, however they come and go; with
//! `--no-children`, of the program itself.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_testkit::process;
use terrace_tests::{
    Finished, Program, Report, Running, Terrace, compiled, machine, skip, terrace_command,
};

const MIB: f64 = (1 << 20) as f64;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Memory of a process beside managed memory, in bytes: data of libraries, stacks, and Terrace's
/// tables before the first look.
const UNMANAGED_EACH: f64 = MIB;

fn family() -> PathBuf {
    compiled("children_share_the_budget.c", &[])
}

fn case(words: &[&str]) -> Program {
    Program::new(family()).args(words).time_limit(Duration::from_secs(150))
}

/// Anonymous memory of all processes, where a page that several share counts once.
fn anonymous_bytes(processes: &[i32]) -> f64 {
    let of = |pid: &i32| process::rollup_bytes(pid, "Pss_Anon");
    processes.iter().filter_map(of).map(|bytes| bytes as f64).sum()
}

/// Looks at a run from outside, over time: the memory of all processes in bytes, and their number.
#[derive(Default)]
struct Observed(Vec<(f64, usize)>);

impl Observed {
    fn look(&mut self, running: &Running) {
        let processes = running.processes();
        self.0.push((anonymous_bytes(&processes), processes.len()));
        std::thread::sleep(POLL_INTERVAL);
    }

    fn mean(&self) -> f64 {
        self.0.iter().map(|look| look.0).sum::<f64>() / self.0.len() as f64
    }

    fn peak(&self) -> f64 {
        self.0.iter().map(|look| look.0).fold(0.0, f64::max)
    }

    /// Expects that processes keep within the budget and use most of it. What counts is the second
    /// half of the time in which at least `processes` were there.
    #[track_caller]
    fn expect_within(&self, budget: f64, processes: usize, account: &dyn Display) {
        let all: Vec<f64> =
            self.0.iter().filter(|look| look.1 >= processes).map(|look| look.0).collect();
        assert!(all.len() > 20, "{processes} processes were seen {} times only", all.len());
        let settled = &all[all.len() / 2..];
        let mean = settled.iter().sum::<f64>() / settled.len() as f64;
        // Nor is it wasted.
        assert!(
            mean >= budget * 0.7,
            "only {mean:.0} bytes in {processes} processes with a budget of {budget}"
        );
        println!(
            "{processes} processes: {:.1} MiB on average once settled, of a budget of {:.1} MiB",
            mean / MIB,
            budget / MIB
        );
        let most = budget * 1.05 + processes as f64 * UNMANAGED_EACH;
        assert!(
            mean <= most,
            "{mean:.0} bytes in {processes} processes with a budget of {budget}: {:?}\n{account}",
            self.0
        );
    }
}

fn watched(program: Program) -> (Finished, Observed) {
    let mut running = program.start();
    let mut observed = Observed::default();
    while running.is_running() {
        observed.look(&running);
    }
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    println!("{}", finished.stderr);
    (finished, observed)
}

fn processes(report: &Report) -> Vec<serde_json::Value> {
    report.at("/processes").as_array().cloned().unwrap_or_default()
}

#[test]
fn forked_children_keep_within_it_together() {
    let _machine = machine();
    // They grow for two seconds, and then come down to the share for five.
    let (finished, observed) =
        watched(case(&["many", "4", "60", "30"]).under(Terrace::within("42%")));
    let report = finished.report();
    let budget = report.number("/budget_bytes");
    assert!(
        budget > 0.42 * 225.0 * MIB && budget < 0.42 * 255.0 * MIB,
        "42 % of 240 MiB, not {budget}"
    );
    observed.expect_within(budget, 5, report);
    let growing_s = report.number("/growing_s");
    assert!(growing_s > 4.0 && growing_s < 25.0, "{report}");
    report.expect_moves_in("children_share_", 20_000, 1_000);
    assert!(report.number("/together/processes") >= 4.0, "{report}");
    // What the report says of them together is what was seen, on average.
    let (mean, seen) = (report.number("/together/mean_physical_bytes"), observed.mean());
    assert!(
        mean > seen * 0.9 && mean < seen * 1.1,
        "{mean:.0} on average reported, {seen:.0} seen"
    );
    // And at most: a burst of a tenth of a second, at whose height neither of the two may have
    // looked. Far above a share, far below five budgets.
    let (peak, seen) = (report.number("/together/peak_physical_bytes"), observed.peak());
    assert!(peak > seen * 0.6 && peak < seen * 1.6, "a peak of {peak:.0} reported, {seen:.0} seen");
}

#[test]
fn executed_children_keep_within_it_together() {
    let _machine = machine();
    let (finished, observed) =
        watched(case(&["executed", "3", "80", "4"]).under(Terrace::within("96M")));
    assert_eq!(finished.report().number("/budget_bytes"), 96.0 * MIB);
    observed.expect_within(96.0 * MIB, 4, finished.report());
    finished.report().expect_managed();
    assert!(
        processes(finished.report())
            .iter()
            .filter(|process| process["moves"]["promoted_pages"].as_u64() > Some(1000))
            .count()
            >= 3
    );
}

/// A page that has never left has no age. The clock of its word wraps every 17 minutes; once, in
/// the 4 seconds before that, no such page could leave.
#[test]
fn it_is_kept_whatever_the_clock_says() {
    const WRAPS_AFTER_S: f64 = (1 << 16) as f64 * 0.016;
    let _machine = machine();
    // The clock as Terrace will see it: 3.5 to 4.5 seconds before it wraps.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes a timespec, and this is one.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let now_s = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let ahead_s = (((now_s + 10.0) / WRAPS_AFTER_S).ceil() * WRAPS_AFTER_S - 3.5 - now_s).floor();
    let other_clock = ["unshare", "--time", "--monotonic", &ahead_s.to_string()];
    if !Program::new(other_clock[0]).args(&other_clock[1..]).arg("true").run().status.success() {
        return skip(
            "another clock",
            "`unshare --time` fails: it takes root, Linux 5.6 with time namespaces, and util-linux 2.36",
        );
    }
    let finished = case(&["alone", "80", "2"])
        .under(Terrace::within("40M"))
        .launched_by(other_clock)
        .succeed();
    finished.report().expect_moves(5_000, 1_000);
    // Of two seconds, some tenths go by while it grows.
    let kept = finished.report().number("/budget_kept_fraction");
    assert!(kept > 0.6, "{}", finished.account(&format!("kept its budget for {kept} of the time")));
}

/// After a fork the same memory is in two processes, and there once.
#[test]
fn shared_pages_count_once() {
    let _machine = machine();
    let (finished, observed) =
        watched(case(&["same_pages", "100", "3"]).under(Terrace::within("130M")));
    let report = finished.report();
    report.expect_managed();
    // On average: right after the fork, what is known of the child is some tenths of a second old.
    let (mean, seen) = (report.number("/together/mean_physical_bytes"), observed.peak());
    assert!(mean < 1.3 * seen, "{mean:.0} on average reported, {seen:.0} at most seen");
    // Nothing to evict, and shared pages cannot be.
    assert_eq!(report.at("/budget_met").as_bool(), Some(true), "{report}");
}

/// A process that ended, by exiting or by SIGKILL, has no share: the one that is left has the whole
/// budget again, and needs less.
#[test]
fn what_those_had_that_are_gone_is_the_others() {
    let _machine = machine();
    let (finished, _) = watched(case(&["come_and_go", "80", "2"]).under(Terrace::within("120M")));
    finished.report().expect_moves_in("children_share_", 1_000, 100);
    let stdout = String::from_utf8_lossy(&finished.stdout);
    let evicted: Vec<u64> =
        stdout.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let main = processes(finished.report())
        .into_iter()
        .find(|process| process["main"] == true)
        .expect("the program is in its report");
    assert!(
        main["budget_bytes"].as_f64() > Some(0.95 * 120.0 * MIB),
        "not the whole budget again: {}",
        finished.report()
    );
    assert!(
        evicted[0] * 100 <= evicted[1],
        "pages are out although all of them fit: {}",
        finished.account("said so")
    );
}

#[test]
fn without_terrace_run_all_keep_what_they_have() {
    let _machine = machine();
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    // Where the run directory is left behind.
    let running = case(&["many", "3", "80", "9"])
        .env("XDG_RUNTIME_DIR", directory.path())
        .under(Terrace::within("110M"))
        .start();
    let deadline = Instant::now() + Duration::from_secs(100);
    let is_ready = |processes: &[i32]| {
        processes.len() == 4 && processes[1..].iter().all(|process| evicted_already(*process))
    };
    // For a second on end: while they grow, they have as much, too.
    let mut ready = 0;
    let processes = loop {
        let processes = running.processes();
        ready = if is_ready(&processes) { ready + 1 } else { 0 };
        if ready > 20 {
            break processes;
        }
        assert!(Instant::now() < deadline, "they never came to their budget");
        std::thread::sleep(POLL_INTERVAL);
    };
    process::signal(running.pid(), libc::SIGKILL);
    let mut observed = Observed::default();
    while processes[1..]
        .iter()
        .all(|process| fs::exists(format!("/proc/{process}/smaps_rollup")).unwrap_or(false))
    {
        observed.0.push((anonymous_bytes(&processes), processes.len()));
        std::thread::sleep(POLL_INTERVAL);
    }
    observed.expect_within(110.0 * MIB, 4, &"without a report");
}

/// Whether a process holds as much as it ever will, and less of that in DRAM.
fn evicted_already(pid: i32) -> bool {
    let resident = process::resident_bytes(pid).map_or(0.0, |bytes| bytes as f64);
    resident > 20.0 * MIB && resident < 50.0 * MIB
}

#[test]
fn only_the_program_is_managed_without_children() {
    let budget = || Terrace::within("4G");
    let managed = case(&["cold_with_child", "80"]).under(budget()).succeed();
    let evicted = |finished: &Finished| {
        let stdout = String::from_utf8_lossy(&finished.stdout);
        stdout
            .split_ascii_whitespace()
            .last()
            .and_then(|word| word.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{stdout}"))
    };
    assert!(evicted(&managed) > 10_000, "{}", managed.account("evicted nothing in its child"));
    assert_eq!(processes(managed.report()).len(), 3);

    let alone = case(&["cold_with_child", "80"]).under(budget().and("--no-children")).succeed();
    alone.report().expect_moves(10_000, 0);
    assert_eq!(evicted(&alone), 0, "{}", alone.account("evicted in its child"));
    assert_eq!(processes(alone.report()).len(), 1, "{}", alone.report());
}

#[test]
fn executed_children_are_not_managed_without_children() {
    let _machine = machine();
    let terrace = || Terrace::within("64M").and("--no-children");
    let finished = case(&["executed", "1", "100", "1"]).under(terrace()).succeed();
    assert_eq!(processes(finished.report()).len(), 1, "{}", finished.report());

    // What the program itself executes in its place is the program.
    let script = format!("true; exec {} alone 100 2", family().display());
    let finished = Program::new("sh").arg("-c").arg(script).under(terrace()).succeed();
    finished.report().expect_moves(5_000, 100);
    assert_eq!(
        finished.report().at("/processes/0/pid"),
        finished.report().at("/processes/1/pid"),
        "{}",
        finished.report()
    );
    assert_eq!(
        processes(finished.report()).len(),
        2,
        "the shell and what it executed, and not `true`: {}",
        finished.report()
    );
}

/// What children do is not in their parent's figures, however they are made and end. This holds
/// also where they cannot have figures of their own.
#[test]
fn a_parents_figures_are_its_own() {
    let pages = |megabytes: u64| megabytes * 256;
    for terrace in [Terrace::within("4G"), Terrace::within("4G").and("--no-children")] {
        let finished = case(&["busy_children", "20"]).under(terrace).succeed();
        let report = finished.report();
        report.expect_managed();
        // Its figures are not the report's where what it executed held more for longer.
        let main = processes(report).into_iter().next().expect("the program is in its report");
        assert_eq!(main["program"], "children_share_", "{report}");
        assert_eq!(main["state"], "active", "{report}");
        assert!(
            main.get("note").is_none_or(serde_json::Value::is_null),
            "a child's note: {report}"
        );
        // It evicted once and brought nothing back.
        assert!(main["moves"]["demoted_pages"].as_u64() <= Some(pages(20) + 100), "{report}");
        assert!(
            main["faults"].as_u64() < Some(100)
                && main["moves"]["promoted_pages"].as_u64() < Some(100),
            "{report}"
        );
    }
}

#[test]
fn a_run_inside_another_is_refused_in_words() {
    for terrace in [Terrace::within("64M"), Terrace::within("64M").and("--no-children")] {
        let inner = format!("{} run -- true", terrace_command().display());
        let finished = Program::new("sh").arg("-c").arg(inner).under(terrace).run();
        assert_eq!(finished.status.code(), Some(125), "{}", finished.account("was not refused"));
        assert!(
            finished.stderr.contains("already inside a `terrace run`"),
            "{}",
            finished.account("was refused without a word")
        );
    }
}

/// Pools of workers, forked and spawned, with the same result as alone.
#[test]
fn pools_of_python_workers() {
    let _machine = machine();
    let script = r#"
import hashlib, multiprocessing, sys
def work(seed):
    data = {f"{seed}:{i}": f"{seed * i}" * 3 for i in range(80_000)}
    digest = hashlib.md5()
    for _ in range(2):
        for key, value in data.items():
            digest.update(key.encode() + value.encode())
    return digest.hexdigest()
if __name__ == "__main__":
    shared = [str(i) * 4 for i in range(200_000)]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(method, pool.map(work, range(6), chunksize=1))
    print(hashlib.md5("".join(shared).encode()).hexdigest())
"#;
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("pools.py");
    fs::write(&file, script).expect("a temporary file can be written");
    let alone = Program::new("python3").arg(&file).succeed();
    let finished = Program::new("python3")
        .arg(&file)
        .under(Terrace::within("70M"))
        .time_limit(Duration::from_secs(150))
        .succeed();
    assert_eq!(String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&alone.stdout));
    let report = finished.report();
    println!("{}", finished.stderr);
    report.expect_managed();
    assert!(report.number("/together/processes") >= 3.0, "{report}");
    let moved: u64 = processes(report)
        .iter()
        .filter_map(|process| process["moves"]["demoted_pages"].as_u64())
        .sum();
    assert!(moved > 1_000, "{report}");
}
