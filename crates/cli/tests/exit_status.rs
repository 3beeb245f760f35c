//! The exit status is the program's; 125 is ours; 126 and 127 are as `env`'s; a fatal signal is
//! passed on.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use support::{Scratch, stderr, stdout, terrace};
use terrace_trace::counts::{Header, Place, Window, Writer};

#[test]
fn the_programs_status_and_streams_pass_through() {
    let Some(scratch) = Scratch::new() else { return };
    let output = scratch.shell("echo out; echo err >&2; exit 7").output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stdout(&output), "out\n");
    assert!(stderr(&output).starts_with("err\nterrace: sh  "), "{}", stderr(&output));
    assert_eq!(scratch.shell("true").status().unwrap().code(), Some(0));
    assert_eq!(scratch.run_directories(), [""; 0]);
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_be_executed_126() {
    let Some(scratch) = Scratch::new() else { return };
    let plain = scratch.file("plain", "not executable");
    let orphan = scratch.script("orphan", "#!/no/such/interpreter\n");
    let directory = scratch.path("runs");
    for (program, status) in [
        ("no-such-program-anywhere", 127),
        ("/no/such/program", 127),
        ("", 127),
        (plain.to_str().unwrap(), 126),
        (directory.to_str().unwrap(), 126),
        (orphan.to_str().unwrap(), 127),
    ] {
        let report = scratch.path("r.json");
        let output = scratch
            .terrace(&["run", "--report", report.to_str().unwrap(), "--", program])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}: {}", stderr(&output));
        assert!(
            stderr(&output).starts_with("terrace: ") && stderr(&output).lines().count() == 1,
            "{}",
            stderr(&output)
        );
        assert!(!report.exists());
    }
    assert_eq!(scratch.run_directories(), [""; 0]);
    assert!(
        std::fs::read_dir(scratch.path("")).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .ends_with(".tmp"))
    );
}

#[test]
fn what_is_wrong_with_us_is_125_and_starts_nothing() {
    let Some(scratch) = Scratch::new() else { return };
    let witness = scratch.path("witness");
    let touch = ["--", "touch", witness.to_str().unwrap()];
    let bad_config = scratch.file("bad.toml", "[run]\ndrma = \"60%\"\n");
    for (flags, message) in [
        (vec!["--dram", "0%"], "above 0"),
        (vec!["--dram", "12X"], "not a size"),
        (vec!["--tiers", "dram,nonsense"], "nonsense"),
        (vec!["--frobnicate"], "--frobnicate"),
        (vec!["--knob", "1.5"], "--knob"),
        (vec!["--report", "/no/such/directory/r.json"], "the report cannot be written"),
        (vec!["--config", "/no/such/file.toml"], "cannot read the settings"),
        (
            vec!["--config", bad_config.to_str().unwrap()],
            "bad.toml:2:1: unknown key `drma` in [run]; did you mean `dram`?",
        ),
    ] {
        let arguments: Vec<&str> = [vec!["run"], flags.clone(), touch.to_vec()].concat();
        let output = scratch.terrace(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {}", stderr(&output));
        assert!(
            stderr(&output).starts_with("terrace: ") && stderr(&output).contains(message),
            "{flags:?}: {}",
            stderr(&output)
        );
    }
    let stress = scratch
        .terrace(&[&["run"], &touch[..]].concat())
        .env("TERRACE_STRESS", "much")
        .output()
        .unwrap();
    assert!(
        stress.status.code() == Some(125) && stderr(&stress).contains("TERRACE_STRESS"),
        "{}",
        stderr(&stress)
    );
    let nested = scratch
        .terrace(&["run", "--", env!("CARGO_BIN_EXE_terrace"), "run", touch[0], touch[1], touch[2]])
        .output()
        .unwrap();
    assert!(
        nested.status.code() == Some(125)
            && stderr(&nested).contains("already inside a `terrace run`"),
        "{}",
        stderr(&nested)
    );
    let lost = terrace(&[&["run"], &touch[..]].concat())
        .env("TERRACE_LIBRARY", "/no/such/libterrace.so")
        .output()
        .unwrap();
    assert!(
        lost.status.code() == Some(125) && stderr(&lost).contains("TERRACE_LIBRARY"),
        "{}",
        stderr(&lost)
    );
    assert!(!witness.exists());
    assert_eq!(terrace(&["run"]).output().unwrap().status.code(), Some(125));
    assert_eq!(terrace(&["nonsense"]).output().unwrap().status.code(), Some(125));
}

#[test]
fn a_budget_that_cannot_be_meant_is_remarked_on_and_the_run_goes_on() {
    let Some(scratch) = Scratch::new() else { return };
    let run = |dram: &str| {
        scratch.terrace(&["run", "--dram", dram, "--", "sh", "-c", "exit 7"]).output().unwrap()
    };
    let remarks =
        |text: &str| text.lines().filter(|line| line.starts_with("terrace: --dram ")).count();
    for (dram, remark) in [("1M", "cannot be kept"), ("20T", "is more than this m")] {
        let output = run(dram);
        assert_eq!(output.status.code(), Some(7));
        assert!(
            stderr(&output).contains(remark) && remarks(&stderr(&output)) == 1,
            "{dram}: {}",
            stderr(&output)
        );
    }
    for dram in ["64M", "60%", "unlimited"] {
        assert_eq!(remarks(&stderr(&run(dram))), 0, "{dram}");
    }
}

#[test]
fn a_bare_number_is_refused_and_no_words_at_all_get_help() {
    let Some(scratch) = Scratch::new() else { return };
    let witness = scratch.path("ran");
    let output = scratch
        .terrace(&["run", "--dram", "60", "--", "touch", witness.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("did you mean 60% or 60M?") && !witness.exists(),
        "{}",
        stderr(&output)
    );
    let output = terrace::<&str>(&[]).output().unwrap();
    assert!(
        output.status.success() && stdout(&output).contains("Usage: terrace"),
        "{}",
        stdout(&output)
    );
}

/// What a user sees of mistakes that were once told badly, or not at all: (arguments, exit status,
/// what is said, most lines of it).
#[test]
fn mistakes_have_their_own_words() {
    let Some(scratch) = Scratch::new() else { return };
    let empty = scratch.file("empty.rec", "");
    let empty = empty.to_str().unwrap();
    let table: [(&[&str], i32, &str, usize); 9] = [
        (&["run", "--dram", "-1G", "--", "true"], 125, "is not a size", 6),
        (&["attach", "--dram", "-1G", "1"], 125, "is not a size", 6),
        (&["run", "--dram", "4096", "--", "true"], 125, "or 4096M?", 1),
        (&["run", "--config", "/etc/passwd", "--", "true"], 125, "more mistakes", 6),
        (&["run", "--dram", "60%", "--observe", "--", "true"], 0, "--dram has no effect", 2),
        (&["report", empty], 1, "is empty", 1),
        (&["report", "heatmap", "/nonexistent.rec"], 125, "`terrace record -o FILE -- CMD`", 1),
        (&["report"], 125, "terrace report heatmap | wss | sites | tiers", 8),
        (&["record"], 125, "terrace record -o FILE", 8),
    ];
    for (arguments, status, words, lines) in table {
        let output = scratch.terrace(arguments).output().unwrap();
        let said = stderr(&output);
        assert!(
            output.status.code() == Some(status)
                && said.contains(words)
                && said.lines().count() <= lines,
            "{arguments:?}: {}: {said}",
            output.status
        );
    }
}

#[test]
fn a_report_may_go_to_standard_output() {
    let Some(scratch) = Scratch::new() else { return };
    let output =
        scratch.terrace(&["run", "--report", "-", "--", "echo", "hello"]).output().unwrap();
    let text = stdout(&output);
    let report: serde_json::Value =
        serde_json::from_str(text.strip_prefix("hello\n").unwrap()).unwrap();
    assert_eq!(report["exit_status"], 0);
}

#[test]
fn top_needs_a_terminal_and_says_what_does_not() {
    let Some(scratch) = Scratch::new() else { return };
    let output = scratch.terrace(&["top"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("needs a terminal; `terrace status --watch`"));
    let output = scratch.terrace(&["top", "--interval", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("0.2 to 60 seconds"), "{}", stderr(&output));
}

#[test]
fn a_program_killed_by_a_signal_takes_us_with_it_after_the_report() {
    let Some(scratch) = Scratch::new() else { return };
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("USR1", 10)] {
        let report = scratch.path("r.json");
        let script = format!("kill -{name} $$");
        let output = scratch
            .terrace(&["run", "--report", report.to_str().unwrap(), "--", "sh", "-c", &script])
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(signal), "{name}");
        assert!(!output.status.core_dumped());
        assert!(
            stderr(&output).contains(&format!("killed by signal {signal}")),
            "{}",
            stderr(&output)
        );
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(
            (&report["exit_status"], &report["signal"]),
            (&(128 + signal).into(), &signal.into())
        );
    }
    assert_eq!(scratch.run_directories(), [""; 0]);
}

#[test]
fn a_closed_standard_error_loses_the_text_but_nothing_else() {
    let Some(scratch) = Scratch::new() else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = scratch.shell("exit 3").stderr(writer).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn help_and_version_are_answers() {
    for (arguments, text) in [
        (&["--version"][..], "terrace 0."),
        (&["--help"], "doctor"),
        (&["run", "--help"], "TERRACE_STRESS"),
        (&["run", "--help"], "127  the program was not found"),
    ] {
        let output = terrace(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains(text), "{}", stdout(&output));
    }
}

/// A recording of one region that was met twice, in a file.
fn recording(path: &Path) {
    let header = Header {
        terrace: "0".into(),
        command: vec!["app".into()],
        source: "clock".into(),
        rate_hz: 1000,
        region_bytes: 2 << 20,
    };
    let mut window = Window { start_ms: 0, end_ms: 100, ..Window::default() };
    window.add(Place { process: 7, region: 1000 }, 2.0);
    let mut writer = Writer::create(path, &header, 1 << 20).expect("a recording is made");
    writer.append(window).expect("a window is written");
    writer.finish(&[]).expect("the recording is finished");
}

/// A report of a run with one allocation site: the part that `terrace report sites` reads.
const SITES: &str = r#"{
    "command": ["app"],
    "sites": [{
        "pid": 7,
        "tiers": ["dram"],
        "samples_elsewhere": 1.0,
        "sites": [{
            "bytes": 4096,
            "objects": 2,
            "samples": 9.0,
            "zone": 1,
            "tier_bytes": [4096],
            "frames": ["/nowhere+0x12"]
        }]
    }]
}"#;

#[test]
fn a_closed_pipe_ends_what_prints_quietly() {
    let scratch = tempfile::tempdir().unwrap();
    let (recorded, sites) = (scratch.path().join("app.rec"), scratch.path().join("run.json"));
    recording(&recorded);
    std::fs::write(&sites, SITES).unwrap();
    let (recorded, sites) = (recorded.to_str().unwrap(), sites.to_str().unwrap());
    for words in [
        &["doctor"][..],
        &["config", "show"],
        &["sim", "--list"],
        &["sim", "jump", "--units", "64", "--accesses", "10K", "--policies", "hemem"],
        &["solver", "--regions", "1000"],
        &["status"],
        &["report", recorded],
        &["report", "heatmap", recorded],
        &["report", "wss", recorded],
        &["report", "sites", sites],
    ] {
        if words[0] == "report" {
            // The file is one of which there is something to print.
            let shown = terrace(words).output().expect("it can be executed");
            let shows = shown.status.success() && !shown.stdout.is_empty();
            assert!(shows, "{words:?}: {}", stderr(&shown));
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(words)
            .stdout(writer)
            .output();
        let output = output.expect("it can be executed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() < Some(2) && !said.contains("pipe"), "{words:?}: {said}");
    }
}
