//! `terrace record` and `terrace report`, on a program whose hot half is known, and on a real one.

use std::path::Path;
use std::process::{Command, Output};
use terrace_tests::{compiled, is_installed, skip, terrace_command};
use terrace_trace::accesses::{Reader, page_of};

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

/// Numbers of samples in the lower and upper half of a mapping, for windows in the first and second
/// half of the time.
fn halves(recording: &serde_json::Value, address: u64, bytes: u64) -> [[f64; 2]; 2] {
    let windows = recording["windows"].as_array().expect("windows");
    let met = |window: &serde_json::Value| {
        let regions = window["regions"].as_array().expect("regions").clone();
        regions
            .into_iter()
            .map(|region| {
                (region["address"].as_u64().unwrap(), region["samples"].as_f64().unwrap())
            })
            .collect::<Vec<_>>()
    };
    let inside = |at: u64| at + 2 * MIB > address && at < address + bytes;
    // Reading begins after the first touches: the time is that of the windows with many samples in
    // the mapping.
    let busy: Vec<&serde_json::Value> = windows
        .iter()
        .filter(|window| {
            met(window).iter().filter(|(at, _)| inside(*at)).map(|(_, n)| n).sum::<f64>() > 3.0
        })
        .collect();
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
    let [early, late] =
        halves(&json(&["report", "heatmap", file.to_str().unwrap(), "--json"]), address, 256 * MIB);
    println!("{early:?} {late:?}\n{}", text(&output.stderr));
    // The window between the two halves of the time has some of both; so has a region that lies
    // across the middle.
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
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains(">anonymous"), "{drawn}");
    let wss = text(&terrace(&["report", "wss", file_name]).stdout);
    assert!(wss.contains("of the samples are in"), "{wss}");
    // A reader that has closed its pipe, as behind `| head`, is no mistake.
    for words in [&["report", file_name][..], &["report", "heatmap", file_name]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = Command::new(terrace_command()).args(words).stdout(writer).output().unwrap();
        assert!(closed.status.success() && closed.stderr.is_empty(), "{words:?}: {closed:?}");
    }
    // What is cut off is shown as far as it goes, with a word.
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() * 2 / 3]).unwrap();
    let cut = terrace(&["report", "heatmap", file_name]);
    assert!(
        cut.status.code() == Some(1) && text(&cut.stderr).contains("what comes before is shown"),
        "{}",
        text(&cut.stderr)
    );
}

#[test]
fn accesses_one_by_one() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, exported) =
        (scratch.path().join("hot.trace"), scratch.path().join("hot.oracleGeneral"));
    let (file_name, exported_name) = (file.to_str().unwrap(), exported.to_str().unwrap());
    let program = compiled("hot_parts.c", &[]);
    let Some(output) =
        recorded(&file, &["--accesses"], &[program.to_str().unwrap(), "256", "1500"])
    else {
        return;
    };
    let address: u64 = text(&output.stdout).trim().parse().expect("the program prints its address");
    let reader = Reader::open(&file).unwrap();
    assert_eq!(
        (reader.incomplete(), &reader.header.source[..], reader.header.writes),
        (None, "clock", true)
    );
    // The lower half is hot first, and then the upper one: samples of each, in the two halves of
    // the time.
    let mut met = [[0u32; 2]; 2];
    let (mut blocks, mut records) = (reader.iter(), Vec::new());
    while let Some(block) = blocks.next() {
        records.extend_from_slice(block.unwrap().1);
    }
    let inside = |record: u32| {
        let at = reader.pages()[page_of(record) as usize].number * 4096;
        (address..address + 256 * MIB).contains(&at).then(|| usize::from(at >= address + 128 * MIB))
    };
    let halves: Vec<usize> = records.iter().filter_map(|record| inside(*record)).collect();
    for (at, half) in halves.iter().enumerate() {
        met[usize::from(at >= halves.len() / 2)][*half] += 1;
    }
    // The program touches everything first, and so meets both halves.
    assert!(
        met[0][0] > 100
            && met[0][0] > 2 * met[0][1]
            && met[1][1] > 100
            && met[1][1] > 2 * met[1][0],
        "{met:?}"
    );
    // Samples a millisecond apart, in microseconds.
    assert!((1_000_000..30_000_000).contains(&reader.end_clock()), "{}", reader.end_clock());

    let said = text(&terrace(&["report", file_name]).stdout);
    assert!(
        said.starts_with("accesses of `") && said.contains("what the sampler met (clock)"),
        "{said}"
    );
    let found = json(&["report", file_name, "--json"]);
    assert_eq!(
        (found["kind"].as_str(), found["records"].as_u64()),
        (Some("accesses"), Some(records.len() as u64))
    );
    // It writes a word a page, and then reads for three seconds.
    let writes = found["writes"].as_u64().expect("a number");
    assert!(writes * 10 < records.len() as u64, "{writes} of {}", records.len());
    let output = terrace(&["report", "export", file_name, "-o", exported_name]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::metadata(&exported).unwrap().len(), 24 * records.len() as u64);

    // A file that is full ends, and says so.
    let Some(output) = recorded(
        &file,
        &["--accesses", "--limit", "64K", "--rate", "20000"],
        &[program.to_str().unwrap(), "256", "3000"],
    ) else {
        return;
    };
    let (said, left_out) = (text(&output.stderr), Reader::open(&file).unwrap().left_out());
    assert!(std::fs::metadata(&file).unwrap().len() <= 64 << 10);
    assert_eq!(left_out > 0, said.contains("the file was full"), "{said}");
}

/// What `terrace report utilisation` says of 4 KiB pages, and in words, of a program that reads so
/// many lines of 64 bytes in each of so many pages.
fn utilisation_of(pages: u32, lines: u32) -> Option<(serde_json::Value, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let (file, svg) = (scratch.path().join("lines.acc"), scratch.path().join("lines.svg"));
    let (file_name, svg_name) = (file.to_str().unwrap(), svg.to_str().unwrap());
    let program = compiled("strewn_lines.c", &[]);
    let (pages, lines) = (pages.to_string(), lines.to_string());
    let options = ["--accesses", "--unit", "64", "--rate", "5000"];
    recorded(&file, &options, &[program.to_str().unwrap(), &pages[..], &lines[..], "3000"])?;
    let said = text(&terrace(&["report", file_name]).stdout);
    assert!(said.contains("pages of 64B") && said.contains("report utilisation"), "{said}");
    let told = terrace(&["report", "utilisation", file_name, "--svg", svg_name]);
    assert!(told.status.success(), "{}", text(&told.stderr));
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let found = json(&["report", "utilisation", file_name, "--json"]);
    assert_eq!(found["unit_bytes"], 64, "{found}");
    Some((found["pages"][0].clone(), text(&told.stdout)))
}

#[test]
fn how_much_of_hot_pages_is_hot() {
    // 2048 lines each, of 32 pages and of 2048.
    let Some((dense, said)) = utilisation_of(32, 64) else { return };
    let Some((strewn, said_of_strewn)) = utilisation_of(2048, 1) else { return };
    println!("{said}\n{said_of_strewn}");
    let number = |found: &serde_json::Value, name: &str| {
        found[name].as_f64().unwrap_or_else(|| panic!("{name}: {found}"))
    };
    let bytes = 2048.0 * 64.0;
    for found in [&dense, &strewn] {
        let hot = number(found, "hot_bytes");
        assert!((0.6 * bytes..1.6 * bytes).contains(&hot), "{found}");
        assert!(number(found, "hot_bytes_seen") <= 1.6 * bytes, "{found}");
    }
    // A few samples may meet other pages of the program.
    let (dense, strewn) = (number(&dense, "utilisation"), number(&strewn, "utilisation"));
    assert!(dense > 0.3, "{dense}");
    assert!((0.008..0.04).contains(&strewn), "{strewn}");
}

#[test]
fn samples_that_are_too_few_give_no_figure() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("lines.acc");
    let program = compiled("strewn_lines.c", &[]);
    // Some hundred samples of 2^20 lines.
    let command = [program.to_str().unwrap(), "16384", "64", "500"];
    let Some(_) = recorded(&file, &["--accesses", "--unit", "64"], &command) else { return };
    let file = file.to_str().unwrap();
    let said = text(&terrace(&["report", "utilisation", file]).stdout);
    assert!(said.contains("too few samples to tell more: "), "{said}");
    let found = json(&["report", "utilisation", file, "--json"]);
    assert!(found["pages"][0]["utilisation"].is_null(), "{found}");
    assert!(found["pages"][0]["hot_bytes_seen"].as_u64() > Some(0), "{found}");
}

#[test]
fn what_a_recording_is_of_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("hot.rec");
    let file_name = file.to_str().unwrap();
    let program = compiled("hot_parts.c", &[]);
    let Some(_) = recorded(&file, &[], &[program.to_str().unwrap(), "64", "400"]) else { return };
    let said = text(&terrace(&["report", file_name]).stdout);
    assert!(
        said.starts_with("counts by region and time of `") && said.contains("samples in"),
        "{said}"
    );
    assert_eq!(json(&["report", file_name, "--json"])["kind"], "counts");
    // What is cut off is told as far as it goes, with a word.
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() * 2 / 3]).unwrap();
    let cut = terrace(&["report", file_name]);
    assert!(
        cut.status.code() == Some(1) && text(&cut.stderr).contains("what comes before is shown"),
        "{}",
        text(&cut.stderr)
    );
    // The other kind of recording is named.
    let accesses = scratch.path().join("hot.trace");
    let accesses = accesses.to_str().unwrap();
    let flags =
        ["record", "-o", accesses, "--accesses", "--", program.to_str().unwrap(), "64", "4"];
    if terrace(&flags).status.success() {
        let other = terrace(&["report", "heatmap", accesses]);
        let said = text(&other.stderr);
        assert!(other.status.code() == Some(1) && said.contains("accesses"), "{said}");
        let by_page = terrace(&["report", "utilisation", accesses]);
        let said = text(&by_page.stderr);
        assert!(by_page.status.code() == Some(125) && said.contains("--unit 64"), "{said}");
    }
    let refused =
        terrace(&["report", "export", file_name, "-o", scratch.path().join("x").to_str().unwrap()]);
    assert!(
        refused.status.code() == Some(125) && text(&refused.stderr).contains("--accesses"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn mistakes_are_told() {
    let scratch = tempfile::tempdir().unwrap();
    let other = scratch.path().join("other");
    std::fs::write(&other, "not a recording").unwrap();
    for (arguments, word) in [
        (&["report", "heatmap", other.to_str().unwrap()][..], "terrace record"),
        (&["report", other.to_str().unwrap()], "terrace record"),
        (&["report", "export", other.to_str().unwrap(), "-o", "x"], "terrace record"),
        (&["report"], "FILE"),
        // What has no end is not read to its end.
        (&["report", "/dev/zero"], "terrace record"),
        (&["report", "heatmap", "/dev/zero"], "terrace record"),
        (&["report", "sites", other.to_str().unwrap()], "terrace run --report"),
        (&["report", "sites", "/dev/zero"], "terrace run --report"),
        (&["sim", other.to_str().unwrap()], "terrace record"),
        (&["sim", "/nonexistent"], "/nonexistent"),
        (&["report", "wss", "/nonexistent"], "/nonexistent"),
        (&["report", "/nonexistent"], "/nonexistent"),
        (&["record", "-o", "x", "--accesses", "--window", "50", "--", "true"], "--window"),
        (&["record", "-o", "x", "--unit", "64", "--", "true"], "--accesses"),
        (&["record", "-o", "x", "--accesses", "--unit", "96", "--", "true"], "power of two"),
        (&["record", "-o", "/nonexistent/x", "--", "true"], "/nonexistent/x"),
        (&["record", "-o", "/dev/null", "--", "true"], "not an ordinary file"),
        (&["record", "-o", "x", "--rate", "0", "--", "true"], "rate"),
        (&["record", "-o", "x", "--limit", "10", "--", "true"], "64K"),
    ] {
        let output = terrace(arguments);
        let said = text(&output.stderr);
        let is_of_contents = word.starts_with("terrace r");
        let status = if is_of_contents { 1 } else { 125 };
        assert!(
            output.status.code() == Some(status) && said.contains(word),
            "{arguments:?}: {:?}: {said}",
            output.status
        );
    }
    assert_eq!(
        terrace(&[
            "record",
            "-o",
            scratch.path().join("r").to_str().unwrap(),
            "--",
            "no-such-program"
        ])
        .status
        .code(),
        Some(127)
    );
}

#[test]
fn the_programs_status_is_ours() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("r");
    let output = terrace(&["record", "-o", file.to_str().unwrap(), "--", "sh", "-c", "exit 7"]);
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(7) || said.contains("perf"),
        "{:?}: {said}",
        output.status
    );
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
