//! Samples of where a program waits for memory reach its mover, under every policy, and nothing is
//! lost whatever they say.

use std::process::{Command, Output};
use terrace_tests::{Finished, Program, Terrace, machine, skip, terrace_command};

fn load(pattern: &str, seconds: &str, more: &[&str]) -> Program {
    Program::new(terrace_command())
        .args(["load", "memory", pattern, "--size", "192M", "--seconds", seconds, "--json"])
        .args(more)
}

/// `None`, with a word, where the kernel allows no perf events.
fn sampled(finished: Finished) -> Option<Finished> {
    if finished.stderr.contains("learned from faults alone") {
        skip(
            "sampling",
            finished.stderr.lines().find(|line| line.contains("faults alone")).unwrap_or_default(),
        );
        return None;
    }
    Some(finished)
}

fn sampling(dram: &str) -> Terrace {
    Terrace::within(dram).and("--sampler").and("clock")
}

fn terrace(arguments: &[&str]) -> Output {
    Command::new(terrace_command()).args(arguments).output().expect("terrace can be executed")
}

#[test]
fn samples_are_taken_and_told() {
    let _machine = machine();
    let Some(finished) = sampled(load("zipf", "3", &[]).under(sampling("96M")).succeed()) else {
        return;
    };
    let report = finished.report();
    report.expect_managed();
    assert_eq!(
        (report.at("/sampler/kind").as_str(), report.at("/policy").as_str()),
        (Some("clock"), Some("terrace")),
        "{report}"
    );
    // A thousand a second while it is affordable, of a program that does nothing but touch memory.
    let (samples, cost) =
        (report.number("/sampler/samples"), report.number("/sampler/cpu_fraction"));
    assert!(samples > 50.0, "{samples} samples in 3 s");
    // Three times the share is allowed at first; and this machine may be busy.
    assert!(cost > 0.0 && cost < 0.1, "sampling took {cost} of a CPU");
}

#[test]
fn every_policy_keeps_every_byte() {
    let _machine = machine();
    for policy in ["terrace", "faults", "random", "jenga", "memtis", "memtis-qc"] {
        for (pattern, threads) in [("jump", "1"), ("scan", "2")] {
            let program = load(
                pattern,
                "1.5",
                &["--change-every", "0.4", "--threads", threads, "--check-all"],
            );
            let finished =
                program.under(Terrace::within("96M").and("--policy").and(policy)).succeed();
            let report = finished.report();
            assert_eq!(report.at("/policy").as_str(), Some(policy));
            let samples = report.at("/sampler/kind").as_str() != Some("faults");
            assert!(
                samples == ["jenga", "memtis", "memtis-qc"].contains(&policy)
                    || finished.stderr.contains("faults alone"),
                "{report}"
            );
            report.expect_moves(10_000, 1_000);
            let outcome: serde_json::Value =
                serde_json::from_slice(&finished.stdout).expect("JSON");
            assert!(
                outcome["wrong"] == 0 && outcome["accesses"].as_u64() > Some(1_000),
                "{outcome}"
            );
        }
    }
}

#[test]
fn programs_with_structures_of_pointers_keep_every_byte() {
    let _machine = machine();
    for pattern in ["btree", "graph"] {
        // Small, since each of its keys is looked up at the end.
        let program = Program::new(terrace_command()).args([
            "load",
            "memory",
            pattern,
            "--size",
            "32M",
            "--seconds",
            "1",
            "--threads",
            "2",
        ]);
        let finished = program.args(["--check-all", "--json"]).under(sampling("24M")).succeed();
        finished.report().expect_moves(1_000, 100);
        let outcome: serde_json::Value = serde_json::from_slice(&finished.stdout).expect("JSON");
        assert!(outcome["wrong"] == 0 && outcome["accesses"].as_u64() > Some(1_000), "{outcome}");
    }
}

#[test]
fn children_are_sampled_as_their_parents() {
    let _machine = machine();
    // A shell and two loads of its own.
    let terrace = terrace_command();
    let one = format!(
        "{} load memory zipf --size 96M --seconds 2 --check-all --json >&2",
        terrace.display()
    );
    let program = Program::new("sh").args(["-c", &format!("{one} & {one} & wait")]);
    let Some(finished) = sampled(program.under(sampling("96M")).succeed()) else { return };
    let report = finished.report();
    // The shell itself uses next to no CPU, and how much its children get is the machine's affair.
    assert!(report.number("/sampler/samples") > 8.0, "{report}");
    report.expect_moves_in("terrace", 1_000, 100);
    assert_eq!(finished.stderr.matches("\"wrong\": 0,").count(), 2, "{}", finished.stderr);
}

#[test]
fn without_samples_faults_suffice() {
    let _machine = machine();
    // The default policy asks for none where pages come back by faults.
    for (flag, value) in [("--sampler", "none"), ("--policy", "faults"), ("--policy", "terrace")] {
        let finished =
            load("zipf", "1", &[]).under(Terrace::within("96M").and(flag).and(value)).succeed();
        assert_eq!(finished.report().at("/sampler/kind").as_str(), Some("faults"));
        finished.report().expect_managed();
    }
}

#[test]
fn what_this_machine_lacks_is_said() {
    let _machine = machine();
    // No processor has both.
    let lacks = if std::path::Path::new("/sys/bus/event_source/devices/ibs_op").exists() {
        "pebs"
    } else {
        "ibs"
    };
    let finished = load("zipf", "0.5", &[])
        .under(Terrace::within("96M").and("--sampler").and(lacks))
        .succeed();
    let name = lacks.to_uppercase();
    assert!(
        finished.stderr.contains("faults alone") && finished.stderr.contains(&name),
        "{}",
        finished.stderr
    );
    let strict = terrace(&["run", "--strict", "--dram", "1G", "--sampler", lacks, "--", "true"]);
    let said = String::from_utf8_lossy(&strict.stderr);
    assert!(
        strict.status.code() == Some(125)
            && said.contains(&format!("--sampler {lacks} is not possible")),
        "{:?}: {said}",
        strict.status
    );
    for (flag, value, known) in [("--policy", "lru", "memtis-qc"), ("--sampler", "x", "clock")] {
        let output = terrace(&["run", flag, value, "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(known), "{said}");
    }
}

/// A Python program that works for three seconds and counts SIGURG. It handles the signal only
/// after `handles_after_s` seconds.
fn counts_urgent_signals(handles_after_s: f64) -> Program {
    let program = format!(
        "import signal, time\n\
         count = 0\n\
         def urgent(*_):\n    global count\n    count += 1\n\
         handled = {handles_after_s} == 0\n\
         if handled:\n    signal.signal(signal.SIGURG, urgent)\n\
         data = [bytes([n % 251]) * 4000 for n in range(30000)]\n\
         begun = time.time()\n\
         while time.time() - begun < 3:\n\
         \x20   if not handled and time.time() - begun >= {handles_after_s}:\n\
         \x20       signal.signal(signal.SIGURG, urgent)\n\
         \x20       handled = True\n\
         \x20   assert sum(block[7] for block in data) == sum(n % 251 for n in range(30000))\n\
         print(count)\n"
    );
    Program::new("python3").args(["-c", &program])
}

#[test]
fn a_timer_samples_where_perf_events_are_forbidden() {
    let _machine = machine();
    let timer = |dram: &str| Terrace::within(dram).and("--sampler").and("timer");
    let samples = |finished: &Finished| {
        let report = finished.report();
        assert_eq!(report.at("/sampler/kind").as_str(), Some("timer"), "{report}");
        report.number("/sampler/samples")
    };
    let finished =
        load("zipf", "3", &["--threads", "2", "--check-all"]).under(timer("96M")).succeed();
    assert!(
        samples(&finished) > 30.0 && finished.report().at("/note").is_null(),
        "{}",
        finished.report()
    );
    // Children have timers of their own, and what a shell executes too.
    let terrace = terrace_command();
    let one = format!(
        "{} load memory zipf --size 96M --seconds 2 --check-all --json >&2",
        terrace.display()
    );
    let finished = Program::new("sh")
        .args(["-c", &format!("{one} & {one} & wait")])
        .under(timer("96M"))
        .succeed();
    assert!(samples(&finished) > 20.0, "{}", finished.report());
    assert_eq!(finished.stderr.matches("\"wrong\": 0,").count(), 2, "{}", finished.stderr);
    // So has what is forked and does not execute anything.
    let program = "import os\ndata = [bytes([n % 251]) * 4000 for n in range(30000)]\nimport time\ntime.sleep(1)\nos.fork()\nbegun = time.time()\n\
                   while time.time() - begun < 3:\n    assert sum(block[7] for block in data) == sum(n % 251 for n in range(30000))\n";
    let finished = Program::new("python3").args(["-c", program]).under(timer("64M")).succeed();
    let notes = finished.report().at("/processes").to_string();
    assert!(samples(&finished) > 20.0 && !notes.contains("SIGURG"), "{}", finished.report());
    // A thread that blocks the signal is not sent it: nothing is pending there.
    let program = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])\n\
                   data = [bytes([n % 251]) * 4000 for n in range(30000)]\nbegun = time.time()\n\
                   while time.time() - begun < 2:\n    assert sum(block[7] for block in data) == sum(n % 251 for n in range(30000))\n\
                   assert signal.SIGURG not in signal.sigpending()\n";
    Program::new("python3").args(["-c", program]).under(timer("64M")).succeed();
    // A program that handles the signal keeps it.
    for (after_s, most) in [(0.0, 0), (1.5, 60)] {
        let finished = counts_urgent_signals(after_s).under(timer("64M")).succeed();
        let count: u32 =
            String::from_utf8_lossy(&finished.stdout).trim().parse().expect("a number");
        let note = finished.report().at("/note").as_str().unwrap_or_default().to_owned();
        assert!(
            count <= most && note.contains("SIGURG itself"),
            "{count} signals after {after_s} s: {}",
            finished.report()
        );
    }
}

#[test]
fn loads_that_make_no_sense_are_refused() {
    for (arguments, word) in [
        (&["zipf", "--size", "1K"][..], "--size must be"),
        (&["zipf", "--size", "big"], "is not a size"),
        (&["graph", "--size", "16G"], "less than 16.0G"),
        (&["nonsense"], "scattered"),
        (&["zipf", "--seconds", "0"], "from 0.01"),
        (
            &["zipf", "--size", "8M", "--seconds", "0.1", "--truth", "/nonexistent/x"],
            "/nonexistent/x",
        ),
    ] {
        let output = terrace(&[&["load", "memory"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn memory_that_is_not_to_be_had_is_no_crash() {
    let command = format!(
        "ulimit -v 4000000; exec {} load memory zipf --size 8G",
        terrace_command().display()
    );
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("not to be had"), "{said}");
}

#[test]
fn the_truth_is_counted() {
    let scratch = tempfile::tempdir().unwrap();
    let truth = scratch.path().join("truth.json");
    let output = terrace(&[
        "load",
        "memory",
        "phases",
        "--size",
        "64M",
        "--seconds",
        "0.4",
        "--change-every",
        "30",
        "--threads",
        "2",
        "--json",
        "--truth",
        truth.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let truth: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&truth).unwrap()).unwrap();
    let pages: Vec<u64> =
        truth["accesses"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
    assert_eq!(pages.iter().sum::<u64>(), outcome["accesses"].as_u64().unwrap());
    // The first quarter, and the page that it shares with the second.
    let quarter = pages.len() / 4;
    assert!(
        pages[quarter + 2..].iter().all(|count| *count == 0)
            && pages[..quarter].iter().all(|count| *count > 0)
    );
    let misses: u64 =
        truth["misses"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert!(
        misses >= 64 << 20 >> 2 >> 8 && misses < pages.iter().sum::<u64>() / 2,
        "{misses} misses"
    );
}
