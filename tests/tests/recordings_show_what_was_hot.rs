//! `terrace record` and `terrace report`, on a program whose hot half is known, and on a real one.

use std::path::Path;
use std::process::{Command, Output};
use terrace_tests::{compiled, is_installed, skip, terrace_command};

const MIB: u64 = 1 << 20;

fn terrace(arguments: &[&str]) -> Output {
    Command::new(terrace_command()).args(arguments).output().expect("terrace can be executed")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `None`, with a word, where the kernel allows no perf events.
fn recorded(file: &Path, options: &[&str], command: &[&str]) -> Option<Output> {
    let file = file.to_str().expect("a path of letters");
    let output = terrace(&[&["record", "-o", file], options, &["--"], command].concat());
    let stderr = text(&output.stderr);
    if stderr.contains("allows no perf events") || stderr.contains("no such event") {
        skip("recording", stderr.trim());
        return None;
    }
    assert!(output.status.success(), "{:?}: {stderr}", output.status);
    Some(output)
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = terrace(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Samples in the lower and the upper half of a mapping, of windows that lie in the first and the second half of the time.
fn halves(recording: &serde_json::Value, address: u64, bytes: u64) -> [[f64; 2]; 2] {
    let windows = recording["windows"].as_array().expect("windows");
    let met = |window: &serde_json::Value| {
        let regions = window["regions"].as_array().expect("regions").clone();
        regions.into_iter().map(|region| (region["address"].as_u64().unwrap(), region["samples"].as_f64().unwrap())).collect::<Vec<_>>()
    };
    let inside = |at: u64| at + 2 * MIB > address && at < address + bytes;
    // Reading begins after the first touches: the time is that of the windows with many samples in the mapping.
    let busy: Vec<&serde_json::Value> =
        windows.iter().filter(|window| met(window).iter().filter(|(at, _)| inside(*at)).map(|(_, n)| n).sum::<f64>() > 3.0).collect();
    let mut sums = [[0.0; 2]; 2];
    for (n, window) in busy.iter().enumerate() {
        let late = usize::from(n >= busy.len() / 2);
        for (at, samples) in met(window).into_iter().filter(|(at, _)| inside(*at)) {
            sums[late][usize::from(at + MIB >= address + bytes / 2)] += samples;
        }
    }
    sums
}

fn hot_parts(options: &[&str], more: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("hot.rec");
    let program = compiled("hot_parts.c", &[]);
    let command = [&[program.to_str().unwrap(), "256", "1500"], more].concat();
    let Some(output) = recorded(&file, options, &command) else { return };
    let address: u64 = text(&output.stdout).trim().parse().expect("the program prints its address");
    let [early, late] = halves(&json(&["report", "heatmap", file.to_str().unwrap(), "--json"]), address, 256 * MIB);
    println!("{early:?} {late:?}\n{}", text(&output.stderr));
    // The window between the two halves of the time has some of both; so has a region that lies across the middle.
    assert!(early[0] > 100.0 && early[0] > 10.0 * early[1], "{early:?}");
    assert!(late[1] > 100.0 && late[1] > 10.0 * late[0], "{late:?}");
}

#[test]
fn the_hot_half_and_its_change() {
    hot_parts(&[], &[]);
}

#[test]
fn a_childs_memory_is_its_own() {
    hot_parts(&["--rate", "2000"], &["child"]);
}

#[test]
fn what_is_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, svg) = (scratch.path().join("hot.rec"), scratch.path().join("hot.svg"));
    let (file_name, svg_name) = (file.to_str().unwrap(), svg.to_str().unwrap());
    let program = compiled("hot_parts.c", &[]);
    let Some(_) = recorded(&file, &[], &[program.to_str().unwrap(), "64", "400"]) else { return };
    let shown = terrace(&["report", "heatmap", file_name, "--svg", svg_name]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let picture = text(&shown.stdout);
    assert!(picture.contains('█') && picture.lines().count() > 10, "{picture}");
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let wss = text(&terrace(&["report", "wss", file_name]).stdout);
    assert!(wss.contains("of the samples are in"), "{wss}");
    // What is cut off is shown as far as it goes, with a word.
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() * 2 / 3]).unwrap();
    let cut = terrace(&["report", "heatmap", file_name]);
    assert!(cut.status.success() && text(&cut.stderr).contains("what comes before is shown"), "{}", text(&cut.stderr));
}

#[test]
fn mistakes_are_told() {
    let scratch = tempfile::tempdir().unwrap();
    let other = scratch.path().join("other");
    std::fs::write(&other, "not a recording").unwrap();
    for (arguments, word) in [
        (&["report", "heatmap", other.to_str().unwrap()][..], "terrace record"),
        (&["report", "wss", "/nonexistent"], "/nonexistent"),
        (&["record", "-o", "/nonexistent/x", "--", "true"], "/nonexistent/x"),
        (&["record", "-o", "/dev/null", "--", "true"], "not an ordinary file"),
        (&["record", "-o", "x", "--rate", "0", "--", "true"], "rate"),
        (&["record", "-o", "x", "--limit", "10", "--", "true"], "64K"),
    ] {
        let output = terrace(arguments);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(word), "{arguments:?}: {:?}: {said}", output.status);
    }
    assert_eq!(terrace(&["record", "-o", scratch.path().join("r").to_str().unwrap(), "--", "no-such-program"]).status.code(), Some(127));
}

#[test]
fn the_programs_status_is_ours() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("r");
    let output = terrace(&["record", "-o", file.to_str().unwrap(), "--", "sh", "-c", "exit 7"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(7) || said.contains("perf"), "{:?}: {said}", output.status);
}

#[test]
fn a_real_program_by_name() {
    if !is_installed("python3") {
        return skip("python3", "it is not installed");
    }
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("python.rec");
    let code = "d = {str(i): [i] * 4 for i in range(400000)}\nfor _ in range(3):\n for v in d.values(): v[0] += 1\nprint(sum(v[0] for v in d.values()))";
    let Some(output) = recorded(&file, &[], &["python3", "-c", code]) else { return };
    let alone = Command::new("python3").args(["-c", code]).output().unwrap();
    assert_eq!(text(&output.stdout), text(&alone.stdout));
    let wss = json(&["report", "wss", file.to_str().unwrap(), "--json"]);
    assert!(wss["peak_bytes"].as_u64() > Some(10 * MIB), "{wss}");
}
