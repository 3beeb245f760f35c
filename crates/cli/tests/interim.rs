//! `terrace run --report-every`: reports while the program runs.

mod support;

use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::{Scratch, line};
use terrace_testkit::process;

/// A program that runs until there is a file of this name.
const UNTIL_STOP: &str = "echo ready; while [ ! -e \"$STOP\" ]; do sleep 0.02; done; exit 3";

fn start(scratch: &Scratch, report: &[&str], script: &str, stderr: Stdio) -> Child {
    let words = [&["run", "--report-every", "1s"], report, &["--", "sh", "-c", script]].concat();
    let mut command = scratch.terrace(&words);
    command.env("STOP", scratch.path("stop")).stdin(Stdio::null()).stderr(stderr);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(&mut child), "ready\n");
    child
}

#[test]
fn a_file_has_the_last_report_whole() {
    let Some(scratch) = Scratch::new() else { return };
    fs::create_dir(scratch.path("reports")).unwrap();
    let path = scratch.path("reports/r.json");
    let report = ["--report", path.to_str().unwrap()];
    let mut child = start(&scratch, &report, UNTIL_STOP, Stdio::null());
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut elapsed = Vec::new();
    while elapsed.len() < 2 {
        assert!(Instant::now() < deadline, "no two reports: {elapsed:?}");
        std::thread::sleep(Duration::from_millis(20));
        // A reader of it never sees a part.
        let Ok(text) = fs::read(&path) else { continue };
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&report["exit_status"], &report["signal"]), (&Value::Null, &Value::Null));
        elapsed.push(report["elapsed_s"].as_f64().unwrap());
        elapsed.dedup();
    }
    fs::write(scratch.path("stop"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["exit_status"], 3);
    assert!(report["elapsed_s"].as_f64() > Some(elapsed[1]));
    assert_eq!(fs::read_dir(scratch.path("reports")).unwrap().count(), 1, "nothing is left");
}

#[test]
fn standard_output_has_one_report_after_the_other() {
    for report in [&["--json"][..], &["--report", "-"][..]] {
        let Some(scratch) = Scratch::new() else { return };
        let mut child = start(&scratch, report, UNTIL_STOP, Stdio::null());
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut reports = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
        let first = reports.next().unwrap().unwrap();
        assert_eq!(first["exit_status"], Value::Null);
        fs::write(scratch.path("stop"), "").unwrap();
        let last = reports.last().unwrap().unwrap();
        assert_eq!(last["exit_status"], 3);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}

/// A pipe that takes nothing more, and its reading end.
fn full_pipe() -> (impl Read, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut writer = File::from(OwnedFd::from(writer));
    let no_wait = |on: libc::c_int| {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, on) }, 0);
    };
    no_wait(libc::O_NONBLOCK);
    while (&writer).write(&[b'.'; 4096]).is_ok() {}
    no_wait(0);
    writer.flush().unwrap();
    (reader, writer.into())
}

#[test]
fn a_report_that_nobody_reads_holds_nothing_up() {
    const TRAP: &str = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    for report in [&[][..], &["--report", "/dev/stderr"][..]] {
        let Some(scratch) = Scratch::new() else { return };
        let (mut reader, writer) = full_pipe();
        let mut child = start(&scratch, report, TRAP, writer.into());
        // Until a report is due at least.
        std::thread::sleep(Duration::from_millis(1300));
        assert!(process::signal(child.id() as i32, libc::SIGTERM));
        assert_eq!(line(&mut child), "got\n", "the signal is passed on");
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let text = text.trim_start_matches('.');
        if report.is_empty() {
            assert!(text.starts_with("terrace: sh") && text.contains("exit 5"), "{text}");
        } else {
            assert!(
                text.contains("\"exit_status\": null"),
                "the one on its way comes whole: {text}"
            );
            assert!(text.contains("\"exit_status\": 5"), "{text}");
        }
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }
}
