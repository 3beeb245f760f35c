//! `terrace config`: mistakes with their line and nearest match; the settings in force with their
//! origin.

mod support;

use serde_json::Value;
use support::{stderr, stdout, terrace};

fn scratch_file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.toml");
    std::fs::write(&file, text).unwrap();
    let name = file.to_str().unwrap().to_owned();
    (directory, name)
}

#[test]
fn check_finds_every_mistake() {
    let (_directory, file) =
        scratch_file("version = 1\n[run]\ndram = \"0%\"\nobserv = true\nstrict = 3\n");
    let output = terrace(&["config", "check", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for (line, (place, what)) in lines.iter().zip([
        (":3:8: ", "`dram`"),
        (":4:1: ", "did you mean `observe`?"),
        (":5:10: ", "`strict` must be true or false"),
    ]) {
        assert!(
            line.starts_with(&format!("terrace: {file}{place}")) && line.contains(what),
            "{line}"
        );
    }
    let output = terrace(&["config", "check", "--json", &file]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &answer["ok"], &answer["errors"][1]["line"]),
        (Some(1), &false.into(), &4.into())
    );
}

#[test]
fn check_passes_a_right_file_and_cannot_judge_one_it_cannot_read() {
    let (_directory, file) = scratch_file("[run]\ndram = \"4G\"\n");
    let output = terrace(&["config", "check", &file]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), format!("{file}: ok\n")));
    assert_eq!(
        terrace(&["config", "check", "/no/such/file"]).output().unwrap().status.code(),
        Some(125)
    );
}

/// A directory for tiers is tried out, so that a run does not find out too late; nothing is left in
/// it.
#[test]
fn directories_of_tiers_are_tried_out() {
    let directory = tempfile::tempdir().unwrap();
    let tiers = |directory: &str| format!("dram,lz4,zstd:1@file:{directory}");
    let check = |directory: &str| {
        let (_directory, file) =
            scratch_file(&format!("[run]\ntiers = \"{}\"\n", tiers(directory)));
        let output = terrace(&["config", "check", &file]).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    assert_eq!(check(directory.path().to_str().unwrap()), (Some(0), String::new()));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    for (directory, what) in [
        (
            "/no/such/directory",
            "cannot make a file in /no/such/directory: No such file or directory (os error 2); name a directory that exists",
        ),
        (
            "/dev/null",
            "cannot make a file in /dev/null: Not a directory (os error 20); name a directory that exists",
        ),
        ("relative", "`relative` is no absolute path"),
        ("/var/a,b", "a path in this list cannot contain a comma"),
    ] {
        let (status, text) = check(directory);
        assert!(
            status == Some(1)
                && text.contains(":2:9: bad value for `tiers`")
                && text.contains(what),
            "{text}"
        );
        let run = terrace(&["run", "--tiers", &tiers(directory), "--", "true"]).output().unwrap();
        assert!(run.status.code() == Some(125) && stderr(&run).contains(what), "{}", stderr(&run));
    }
}

#[test]
fn show_prints_a_file_that_it_can_read_again() {
    let (_directory, file) = scratch_file("[run]\ndram = \"50%\"\nreport = \"r.json\"\n");
    let shown = terrace(&["config", "show", "--config", &file]).output().unwrap();
    assert!(
        stdout(&shown).contains("dram = \"50%\"") && stdout(&shown).contains("# from the file"),
        "{}",
        stdout(&shown)
    );
    let (_directory, again) = scratch_file(&stdout(&shown));
    assert_eq!(terrace(&["config", "check", &again]).output().unwrap().status.code(), Some(0));
    let json = terrace(&["config", "show", "--json", "--config", &file]).output().unwrap();
    let answer: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&answer["run"]["dram"], &answer["origin"]["dram"], &answer["origin"]["tiers"]),
        (&"50%".into(), &"file".into(), &"default".into())
    );
    assert_eq!(terrace(&["config", "show"]).output().unwrap().status.code(), Some(0));
}

#[test]
fn latencies_are_numbers_or_off() {
    for (value, ok) in [
        ("0", true),
        ("\"20\"", true),
        ("\"off\"", true),
        ("-1", false),
        ("0.5", false),
        ("true", false),
        ("\"5us\"", false),
    ] {
        let (_directory, file) = scratch_file(&format!("[run]\nwake_latency = {value}\n"));
        let output = terrace(&["config", "check", &file]).output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!ok)), "{value}: {}", stderr(&output));
        assert!(ok || stderr(&output).contains("`wake_latency`"), "{value}: {}", stderr(&output));
    }
    let run = terrace(&["run", "--wake-latency", "fast", "--", "true"]).output().unwrap();
    assert!(
        run.status.code() == Some(125) && stderr(&run).contains("write off, or how many µs"),
        "{}",
        stderr(&run)
    );
}
