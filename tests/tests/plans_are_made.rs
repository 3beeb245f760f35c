//! `terrace plan`, for a program that is observed, for one that runs, and for recordings: what it
//! says, and that its commands can be run. Also `terrace set --knob`, for a run whose regions are
//! placed.

use serde_json::Value;
use std::time::{Duration, Instant};
use terrace_tests::{Finished, Program, Terrace, compiled, skip, terrace_command};

/// A program with three blocks, of which one is written all the time, one every four seconds, and
/// one never again.
const BLOCKS: &str = "import os, time\n\
    text = b''.join(b'line %d of some text\\n' % i for i in range(20000))\n\
    def block(): return bytearray(text * 80)\n\
    hot, warm, cold = block(), block(), block()\n\
    end = time.time() + float(os.environ['RUN_S'])\nnext = 0\nprint('ready', flush=True)\n\
    while time.time() < end:\n    hot[::4096] = hot[::4096]\n    if time.time() > next:\n        \
    warm[::4096] = warm[::4096]\n        next = time.time() + 4\n    time.sleep(0.01)";

fn plan(arguments: &[&str]) -> Finished {
    Program::new(terrace_command()).arg("plan").args(arguments).env("RUN_S", "14").run()
}

fn planned(finished: &Finished) -> Value {
    assert!(finished.status.success(), "{}", finished.account("made no plan"));
    serde_json::from_slice(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", finished.account("is no JSON")))
}

fn untold(plan: &Value, part: &str) -> bool {
    let lines = plan["untold"].as_array().expect("lines");
    lines.iter().any(|line| line.as_str().is_some_and(|line| line.contains(part)))
}

#[test]
fn a_command_is_observed_and_the_settings_can_be_run() {
    let finished = plan(&["--json", "--choose-tiers", "2", "--", "python3", "-c", BLOCKS]);
    let plan = planned(&finished);
    println!("{plan:#}");
    let cold = 1.0 - plan["hot"].as_f64().expect("ten seconds were observed");
    assert!((0.15..0.5).contains(&cold), "{cold} was idle: {plan:#}");
    assert!(plan["compressed"].as_array().is_some_and(|tiers| tiers.len() == 5), "{plan:#}");
    assert!(untold(&plan, "idle for longer than 10 s"), "{plan:#}");
    assert_eq!(plan["sets"].as_array().map(Vec::len), Some(2));
    let settings = plan["settings"].as_array().expect("settings");
    let of = |index: usize, what: &str| settings[index][what].as_f64().expect("a number");
    assert!(settings.len() == 3 && of(0, "cost") > of(2, "cost"), "{plan:#}");
    assert!(of(0, "slowdown") < of(2, "slowdown"), "{plan:#}");
    let directory = terrace_command().parent().expect("a directory").display().to_string();
    for setting in settings {
        let command = setting["command"].as_str().expect("a command");
        let path = format!("PATH={directory}:$PATH {command}");
        let finished = Program::new("sh").args(["-c", &path]).env("RUN_S", "0.1").run();
        let tells = finished.stderr.contains("python3") && finished.stderr.contains("exit 0");
        assert!(finished.status.success() && tells, "{}", finished.account("was not run"));
    }
}

#[test]
fn a_process_that_runs_is_watched_and_runs_on() {
    let mut running = Program::new("python3").args(["-c", BLOCKS]).env("RUN_S", "60").start();
    running.wait_for_output("ready");
    let pid = running.pid().to_string();
    let plan = planned(&plan(&["--json", "--for", "13s", &pid]));
    assert!(running.is_running());
    println!("{plan:#}");
    assert_eq!(plan["pid"].to_string(), pid);
    let hot = plan["hot"].as_f64().expect("ten seconds were watched");
    assert!((0.5..0.85).contains(&hot), "{plan:#}");
    assert!(plan["attach"].as_str().is_some_and(|command| command.ends_with(&pid)), "{plan:#}");
    assert!(plan["settings"].as_array().is_some_and(|settings| settings.len() == 3), "{plan:#}");
    running.terminate();
}

#[test]
fn what_is_no_program_is_said() {
    for (arguments, says) in [
        (&["999999999"][..], "there is no process 999999999"),
        (&["/nowhere"], "terrace run --observe --report FILE"),
        (&[], "plan for what?"),
        (&["Cargo.toml"], "it is no report"),
    ] {
        let finished = plan(arguments);
        assert_eq!(finished.status.code(), Some(125), "{}", finished.account("was planned for"));
        assert!(finished.stderr.contains(says), "{}", finished.account("did not say it"));
    }
}

#[test]
fn a_recording_has_no_pages_to_compress() {
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let file = scratch.path().join("app.rec").display().to_string();
    let recorded = Program::new(terrace_command())
        .args(["record", "-o", &file, "--", "python3", "-c", BLOCKS])
        .env("RUN_S", "6")
        .run();
    if !recorded.status.success() {
        return skip("a recording", &recorded.stderr);
    }
    let without = planned(&plan(&["--json", &file]));
    println!("{without:#}");
    assert!(untold(&without, "--data FILE") && untold(&without, "by samples"), "{without:#}");
    assert_eq!(without["settings"], Value::Array(Vec::new()));
    assert!(without["idle"].as_array().is_some_and(|idle| !idle.is_empty()), "{without:#}");
    let data = terrace_command().display().to_string();
    let with = planned(&plan(&["--json", &file, "--data", &data]));
    assert!(with["settings"].as_array().is_some_and(|settings| settings.len() == 3), "{with:#}");
}

/// The knob and the window can be changed while a program runs. The cost of its memory is told
/// beside that of all data in DRAM. A plan tells it too, and does not guess what was idle.
#[test]
fn a_knob_is_told_while_a_program_runs() {
    let terrace = ["--knob", "1", "--window", "1s", "--tiers", "dram,lz4,zstd:1"]
        .into_iter()
        .fold(Terrace::default(), Terrace::and);
    let running = Program::new(compiled("skewed.c", &[])).args(["96", "9"]).under(terrace).start();
    std::thread::sleep(Duration::from_secs(4));
    let pid = running.pid().to_string();
    let set = |arguments: &[&str]| {
        Program::new(terrace_command()).args(["set", &pid]).args(arguments).run()
    };
    let begun = Instant::now();
    let told = set(&["--knob", "0", "--window", "0.5s"]);
    assert!(told.status.success(), "{}", told.account("was not heard"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(
        told.stderr.contains("--knob 0 --window 0.5s, before --knob 1 --window 1s"),
        "{}",
        told.stderr
    );
    let limit = set(&["--dram", "64M"]);
    assert!(limit.stderr.contains("without a limit"), "{}", limit.account("was limited"));
    let finished = running.wait();
    let report = finished.report();
    let windows = report.at("/placement/processes/0/windows").as_array().expect("windows");
    let knobs: Vec<f64> = windows.iter().filter_map(|window| window["knob"].as_f64()).collect();
    assert!(knobs.first() == Some(&1.0) && knobs.last() == Some(&0.0), "{knobs:?}");
    assert!(windows.len() >= 6, "half a second each, after the first: {knobs:?}");
    let cost = report.number("/tco/relative");
    assert!((0.2..1.1).contains(&cost), "{report}");
    assert!(finished.stderr.contains("than all in DRAM, at the prices of"), "{}", finished.stderr);

    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let file = scratch.path().join("run.json");
    std::fs::write(&file, report.to_string()).expect("it can be written");
    let plan = planned(&plan(&["--json", &file.display().to_string()]));
    println!("{plan:#}");
    let here = plan["here"]["cost"].as_f64().expect("a number");
    assert!((here - cost).abs() < 1e-6 && untold(&plan, "nobody watched"), "{plan:#}");
    assert_eq!(plan["settings"], Value::Array(Vec::new()));
}

#[test]
fn a_run_without_a_model_has_no_knob() {
    let terrace = Terrace::within("64M");
    let running = Program::new("sleep").arg("5").under(terrace).start();
    std::thread::sleep(Duration::from_millis(1500));
    let pid = running.pid().to_string();
    let told = Program::new(terrace_command()).args(["set", &pid, "--knob", "0.5"]).run();
    assert_eq!(told.status.code(), Some(125), "{}", told.account("was heard"));
    assert!(told.stderr.contains("no model places regions"), "{}", told.stderr);
    running.terminate();
}
