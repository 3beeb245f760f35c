//! `--placement`: each model places the regions of a program over several tiers at once. The
//! program reads what it wrote, and the report shows recommended pages beside actual ones.

use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use terrace_testkit::wait::Wait;
use terrace_tests::{Finished, Program, Terrace, compiled, machine, terrace_command};

const WAIT: Wait = Wait::within(Duration::from_secs(60)).every(Duration::from_millis(200));
const MODELS: [&str; 7] =
    ["terrace-cost", "tierscape", "tierscape-artifact", "waterfall", "hemem*", "gswap*", "tmo*"];

fn placed(model: &str, knob: &str, tiers: &str, seconds: &str) -> Finished {
    let terrace = ["--placement", model, "--knob", knob, "--window", "0.5s", "--tiers", tiers]
        .into_iter()
        .fold(Terrace::default(), Terrace::and);
    Program::new(compiled("skewed.c", &[])).args(["96", seconds]).under(terrace).succeed()
}

fn pages(window: &Value, what: &str) -> u64 {
    let tiers = window["tiers"].as_array().expect("tiers");
    tiers.iter().map(|tier| tier[what].as_u64().expect("pages")).sum()
}

#[test]
fn every_model_moves_regions_and_no_byte_is_wrong() {
    let _machine = machine();
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let tiers = format!("dram,lz4,zstd:1,zstd:3@file:{}", directory.path().display());
    for model in MODELS {
        let finished = placed(model, "0.1", &tiers, "3");
        let report = finished.report();
        assert_eq!(report.at("/placement/model"), model);
        let windows = report.at("/placement/processes/0/windows").as_array().expect("windows");
        assert!(windows.len() >= 3, "{model}: {report}");
        for window in windows {
            // Each page is in one tier, and each region was to be in one.
            assert_eq!(pages(window, "actual_pages"), pages(window, "recommended_pages"));
            assert!(window["cost"].as_f64().is_some_and(|cost| (0.0..1.5).contains(&cost)));
        }
        let planned = report.at("/moves/demoted_for").get("planned").and_then(Value::as_u64);
        println!("{model}: {} windows, {planned:?} pages planned", windows.len());
        assert!(planned.is_some_and(|pages| pages > 2_000), "{model}: {report}");
    }
}

#[test]
fn the_knob_says_how_much_is_saved() {
    // Beside others the program, and the mover, get less done in its seconds.
    let _machine = machine();
    let memory = |knob: &str| {
        let finished = placed("terrace-cost", knob, "dram,lz4,zstd:1", "10");
        finished.report().at("/mean_physical_bytes").as_f64().expect("bytes")
    };
    // On average over time: a window's cost is that of its end, when what is in use has come back.
    let (speed, saving) = (memory("1"), memory("0"));
    println!("{speed} and {saving}");
    assert!(saving < 0.93 * speed, "{speed} and {saving}");
}

#[test]
fn what_no_model_places_is_refused() {
    let run = |arguments: &[&str]| {
        let terrace = arguments.iter().fold(Terrace::default(), |all, next| all.and(next));
        let finished = Program::new("true").under(terrace).run();
        assert_eq!(finished.status.code(), Some(125), "{}", finished.stderr);
        finished.stderr
    };
    for (arguments, says) in [
        (&["--knob", "0.5", "--tiers", "dram,swap"][..], "`swap` is neither"),
        (&["--knob", "0.5", "--tiers", "dram"], "such as --tiers dram,lz4,zstd:1"),
        (&["--knob", "1.5"], "from 0 (all saving) to 1 (all speed)"),
        (&["--placement", "best"], "off or one of hemem*"),
        (&["--window", "1ms"], "0.5 to 600 seconds"),
    ] {
        let stderr = run(arguments);
        assert!(stderr.contains(says), "{arguments:?}: {stderr}");
    }
}

fn terrace(arguments: &[&str]) -> Finished {
    Program::new(terrace_command()).args(arguments).run()
}

/// Bytes in a tier of the data of the process that this `terrace run` started; `None` while it has
/// no figures.
fn in_tier(run: &str, name: &str) -> Option<u64> {
    let status: Value = serde_json::from_slice(&terrace(&["status", "--json"]).stdout).ok()?;
    let run = run.parse::<u64>().ok();
    let run =
        status["runs"].as_array()?.iter().find(|about| about["supervisor"].as_u64() == run)?;
    let process = run["processes"].as_array()?.first()?;
    let tier = process["tiers"].as_array()?.iter().find(|tier| tier["name"] == name)?;
    tier["logical_bytes"].as_u64()
}

/// Pages leave a tier that is taken off the list, also where a model would have them there. They
/// come to it again when it is put back. No byte is wrong.
#[test]
fn the_list_of_tiers_changes_while_a_program_runs() {
    let _machine = machine();
    let limited = Terrace::within("24M");
    let placed =
        ["--knob", "0", "--window", "0.5s"].into_iter().fold(Terrace::default(), Terrace::and);
    for how in [limited, placed] {
        let how = how.and("--tiers").and("dram,lz4,zstd:1");
        let program = Program::new(compiled("skewed.c", &[])).args(["96", "300"]);
        let running = program.under(how).start();
        let pid = running.pid().to_string();
        let is_there = |name: &str| in_tier(&pid, name).is_some_and(|bytes| bytes > 4 << 20);
        let out_of = |name: &str| in_tier(&pid, name).is_some_and(|bytes| bytes < 1 << 20);
        WAIT.until("pages are out", || is_there("lz4") || is_there("zstd:1"));
        for (list, has, has_not) in
            [("dram,zstd:1", "zstd:1", "lz4"), ("dram,lz4", "lz4", "zstd:1")]
        {
            let told = terrace(&["set", &pid, "--tiers", list]);
            assert!(told.status.success(), "{}", told.account("was not heard"));
            assert!(told.stderr.contains(&format!("--tiers {list}, before")), "{}", told.stderr);
            WAIT.until(list, || is_there(has) && out_of(has_not));
        }
        let told = terrace(&["set", &pid, "--tiers", "dram,lzo"]);
        assert_eq!(told.status.code(), Some(125), "{}", told.account("took a new tier"));
        assert!(told.stderr.contains("dram,lz4,zstd:1"), "{}", told.stderr);
        // It would have ended by itself if it had read what it did not write.
        running.terminate();
        let finished = running.wait();
        assert_eq!(finished.status.signal(), Some(libc::SIGTERM), "{}", finished.account("ended"));
        finished.report().expect_managed();
    }
}
