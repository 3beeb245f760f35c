//! Nothing that the program or the kernel writes into a page is lost, whatever is evicted
//! meanwhile.

use std::time::{Duration, Instant};
use terrace_testkit::wait::Wait;
use terrace_tests::{
    Finished, Program, Running, Terrace, compiled, has_swap, machine, number_from_environment,
    terrace_command,
};

/// Runs the stress test for `seconds`, or as long as `make soak` says.
fn nothing_is_lost(terrace: Terrace, seconds: u64) -> Finished {
    nothing_is_lost_while(terrace, seconds, |_, _| ())
}

/// Runs the stress test, and meanwhile a function that is told how long the test takes.
fn nothing_is_lost_while(
    terrace: Terrace,
    seconds: u64,
    meanwhile: impl FnOnce(&Running, Duration),
) -> Finished {
    let _machine = machine();
    let seconds = number_from_environment("TERRACE_SOAK_SECONDS", seconds);
    let running = Program::new(compiled("no_update_is_lost.c", &[]))
        .arg(seconds.to_string())
        .under(terrace)
        .time_limit(Duration::from_secs(seconds * 2 + 120))
        .start();
    meanwhile(&running, Duration::from_secs(seconds));
    let finished = running.wait();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    println!("{stdout}");
    assert!(
        finished.status.success() && stdout.contains(" 0 lost"),
        "{}",
        finished.account("lost updates")
    );
    let report = finished.report();
    println!("{} pages evicted, {} restored", report.demoted_pages(), report.promoted_pages());
    // A model moves least, and a slow machine makes it fewer.
    report.expect_moves(2_000, 2_000);
    finished
}

/// Writers, read(2), devices, madvise, mremap and forks against random evictions.
#[test]
fn writers_readers_and_forks_against_random_evictions() {
    nothing_is_lost(Terrace::stressed(), 20);
}

#[test]
fn the_same_while_kernel_calls_fail() {
    nothing_is_lost(Terrace::failing(), 10);
}

#[test]
fn the_same_by_write_protection() {
    nothing_is_lost(Terrace::write_protecting(), 10);
}

/// A huge page is split for the next eviction, unless a child shares it or a device writes to it.
#[test]
fn the_same_with_huge_pages_that_come_and_go() {
    let finished = nothing_is_lost(Terrace::stressed_with_huge_pages(), 10);
    assert!(finished.report().number("/moves/huge_made") >= 10.0, "{}", finished.report());
}

/// Every codec, pool and medium at once. Pages go to any of them, and are copied or compressed
/// again from one to another. Where the kernel swaps, they go there too.
#[test]
fn the_same_with_all_tiers_at_once() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target directory can be written");
    let file = format!("file:{}", disk.path().display());
    let seventh = if has_swap() { "swap".to_owned() } else { format!("raw@{file}") };
    let tiers = format!(
        "dram,lz4/zsmalloc,lzo/zbud,zstd:1,deflate/zsmalloc,{seventh},lzo/zsmalloc@{file},\
         lz4/zbud@{file}"
    );
    let finished = nothing_is_lost(Terrace::stressed().and("--tiers").and(&tiers), 10);
    let report = finished.report();
    for tier in [1, 2, 3, 4, 6, 7] {
        assert!(report.number(&format!("/tiers/{tier}/faults")) > 0.0, "tier {tier}: {report}");
    }
}

/// All tiers at once, and a plan twice a second that moves every cold region a tier down. Pages are
/// recompressed, written to files, and come back.
#[test]
fn the_same_while_a_model_places_regions() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let tiers = format!("dram,lz4,zstd:1,lz4@file:{}", directory.path().display());
    let terrace =
        ["--placement", "waterfall", "--knob", "0", "--window", "0.5s", "--tiers", tiers.as_str()]
            .into_iter()
            .fold(Terrace::default(), Terrace::and);
    let finished = nothing_is_lost(terrace, 10);
    let planned = finished.report().number("/moves/demoted_for/planned");
    assert!(planned > 1_000.0, "{planned} pages planned");
}

/// Random evictions into all tiers of a model, recompression, and a plan twice a second, while the
/// knob changes about once a second. The kernel's swap is not among the tiers: a model refuses it.
#[test]
fn the_same_while_the_knob_changes() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("the target directory can be written");
    let tiers = format!("dram,lz4,zstd:1,deflate,lz4@file:{}", disk.path().display());
    let terrace = ["--knob", "0.5", "--window", "0.5s", "--tiers", tiers.as_str()]
        .into_iter()
        .fold(Terrace::stressed(), Terrace::and);
    let mut stood = Vec::new();
    let finished = nothing_is_lost_while(terrace, 10, |running, seconds| {
        stood = change_the_knob(running, seconds);
    });
    println!("knobs that stood for a second: {stood:?}");
    let report = finished.report();
    for tier in 1..=4 {
        assert!(report.number(&format!("/tiers/{tier}/faults")) > 0.0, "tier {tier}: {report}");
    }
    let processes = report.at("/placement/processes").as_array().expect("an array");
    let windows = processes.iter().filter_map(|process| process["windows"].as_array()).flatten();
    let knobs: Vec<f64> = windows.filter_map(|window| window["knob"].as_f64()).collect();
    for knob in stood {
        assert!(knobs.contains(&knob), "no window had a knob of {knob}: {knobs:?}");
    }
}

/// Changes the knob of a run once a second, until shortly before its time is over. Returns the
/// knobs that stood for a second while it ran.
fn change_the_knob(running: &Running, time: Duration) -> Vec<f64> {
    const KNOBS: [f64; 3] = [0.9, 0.1, 0.5];
    // A run that has just ended takes no knob.
    const BEFORE_THE_END: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    let pid = running.pid().to_string();
    let set = |knob: f64| {
        let knob = knob.to_string();
        Program::new(terrace_command()).args(["set", &pid, "--knob", &knob]).run()
    };
    Wait::within(Duration::from_secs(30))
        .until("the run takes a knob", || set(KNOBS[0]).status.success());
    let (mut stood, mut last) = (Vec::new(), KNOBS[0]);
    for knob in KNOBS.into_iter().cycle().skip(1) {
        std::thread::sleep(Duration::from_secs(1));
        if begun.elapsed() > time {
            break;
        }
        stood.push(last);
        if begun.elapsed() + BEFORE_THE_END > time {
            break;
        }
        let told = set(knob);
        if !told.status.success() {
            // A program that has failed is told of by its own output.
            println!("{}", told.account("was not heard"));
            break;
        }
        last = knob;
    }
    stood
}
