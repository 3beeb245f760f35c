//! The recorder (`crates/recorder`): programs built with `-fsanitize=thread` and linked with it see
//! no difference, and what it writes is what they did.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use terrace_tests::{recorder_library, skip, target_directory, terrace_command};
use terrace_trace::accesses::{self, is_write, page_of};
use terrace_trace::file::Decoder;
use terrace_trace::objects::{self, Event};

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| linked("recorded.c", "cc"));
static WITH_NEW: LazyLock<PathBuf> = LazyLock::new(|| linked("recorded_new.cpp", "g++"));

fn linked(source: &str, compiler: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = target_directory().join("terrace-programs");
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join(source.split('.').next().unwrap());
    let object = program.with_extension("o");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(Command::new(compiler)
        .args([
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-fsanitize=thread",
            "-fno-builtin-memcpy",
            "-fno-builtin-memset",
            "-c",
        ])
        .arg(root.join("programs").join(source))
        .arg("-o")
        .arg(&object));
    run(Command::new(compiler)
        .arg(&object)
        .arg(format!("@{}", root.join("../crates/recorder/link.flags").display()))
        .arg("-Wl,--whole-archive")
        .arg(recorder_library())
        .args(["-Wl,--no-whole-archive", "-lm", "-lpthread", "-ldl", "-o"])
        .arg(&program));
    program
}

/// Runs the program with these variables.
fn run(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(program).args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn recorded(
    program: &Path,
    mode: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    let record = format!("{mode}:{}", file.display());
    let output =
        run(program, arguments, &[&[("TERRACE_RECORD", &record[..])], environment].concat());
    assert!(
        output.status.success() && output.stdout == b"done\n",
        "{:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    (scratch, file)
}

const ALL: [(&str, &str); 2] = [("TERRACE_RECORD_CACHE", "0"), ("TERRACE_RECORD_START", "call")];

fn events(file: &Path) -> (objects::Reader, Vec<Event>) {
    let reader = objects::Reader::open(file).unwrap();
    assert_eq!(reader.incomplete(), None);
    let (mut decoder, mut block, mut all) = (Decoder::new(), Vec::new(), Vec::new());
    for number in 0..reader.blocks() {
        reader.decode(number, &mut decoder, &mut block).unwrap();
        all.append(&mut block);
    }
    (reader, all)
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for_and_mistakes_are_told() {
    for arguments in [["known"], ["threads"], ["jumps"], ["skewed"]] {
        let output = run(&PROGRAM, &arguments, &[]);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    for (value, hint) in [("pages", "MODE:FILE"), ("trace:/nonexistent/file", "/nonexistent/file")]
    {
        let output = run(&PROGRAM, &["known"], &[("TERRACE_RECORD", value)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(125)
                && said.starts_with("terrace: recorder: ")
                && said.contains(hint),
            "{said}"
        );
    }
}

#[test]
fn objects_and_their_accesses_are_what_the_program_did() {
    let (_scratch, file) = recorded(&PROGRAM, "objects", &["known"], &ALL);
    let (reader, events) = events(&file);
    let mut objects: Vec<(u64, u64, u32)> = Vec::new();
    let (mut reads, mut writes): (HashMap<u32, usize>, HashMap<u32, usize>) = Default::default();
    let (mut died, mut resized) = (Vec::new(), Vec::new());
    for event in &events {
        match *event {
            Event::Born { address, bytes, context, .. } => objects.push((address, bytes, context)),
            Event::Died { object, .. } => died.push(object),
            Event::Resized { object, bytes, .. } => resized.push((object, bytes)),
            Event::Access { object, offset, written } => {
                assert!(offset < objects[object as usize].1);
                *if written { &mut writes } else { &mut reads }.entry(object).or_default() += 1;
            }
            Event::Counting { .. } => assert!(reads.is_empty() && writes.is_empty()),
        }
    }
    let of = |bytes: u64| {
        objects
            .iter()
            .enumerate()
            .filter(|(_, object)| object.1 == bytes)
            .map(|(at, _)| at as u32)
            .collect::<Vec<_>>()
    };
    let count = |map: &HashMap<u32, usize>, object: u32| map.get(&object).copied().unwrap_or(0);
    let [a, b] = of(8000)[..] else { panic!("{objects:?}") };
    // 13 lines of memcpy each; neither the child's writes, nor those before and after.
    assert_eq!(
        [count(&reads, a), count(&writes, a), count(&reads, b), count(&writes, b)],
        [1013, 1000, 0, 13]
    );
    let ([here], [there], [large]) = (&of(80)[..], &of(88)[..], &of(1 << 20)[..]) else {
        panic!("{objects:?}")
    };
    assert_eq!([count(&writes, *here), count(&writes, *there), count(&writes, *large)], [1, 1, 1]);
    // It stayed where it was, then it moved; its bytes came along without the hooks.
    assert_eq!(resized, [(*here, 88)]);
    assert!(
        died.contains(here) && died.contains(there) && !died.contains(large) && !died.contains(&a)
    );
    // Both are made by the same call of malloc, for different callers.
    let frames = |object: u32| &reader.contexts()[objects[object as usize].2 as usize];
    assert_eq!(frames(*here)[0], frames(*there)[0]);
    assert_ne!(frames(*here)[1], frames(*there)[1]);
    assert!(frames(*here)[0].contains("/recorded+0x"), "{:?}", frames(*here));
    assert_eq!(reader.header.command, [PROGRAM.to_str().unwrap(), "known"]);
}

#[test]
fn a_trace_has_each_access_and_its_page() {
    let (_scratch, file) = recorded(&PROGRAM, "trace", &["known"], &ALL);
    let reader = accesses::Reader::open(&file).unwrap();
    let (mut blocks, mut all) = (reader.iter(), Vec::new());
    while let Some(block) = blocks.next() {
        all.extend_from_slice(block.unwrap().1);
    }
    // The array's 1000 writes are in a row.
    let row = all
        .windows(1000)
        .find(|row| row.iter().all(|record| is_write(*record)))
        .expect("a thousand writes");
    let numbers: Vec<u64> =
        row.iter().map(|record| reader.pages()[page_of(*record) as usize].number).collect();
    assert!(
        numbers.windows(2).all(|two| two[1] == two[0] || two[1] == two[0] + 1)
            && numbers[999] <= numbers[0] + 2
    );
    // Three more are to other objects.
    assert!((2029..2040).contains(&all.len()) && reader.incomplete().is_none(), "{}", all.len());
    // One in ten, at random.
    let (_scratch, file) = recorded(
        &PROGRAM,
        "trace",
        &["known"],
        &[&ALL[..], &[("TERRACE_RECORD_PERIOD", "10")]].concat(),
    );
    let records = accesses::Reader::open(&file).unwrap().records();
    assert!((150..270).contains(&records), "{records}");
}

#[test]
fn misses_are_counted_by_page() {
    let (_scratch, file) = recorded(
        &PROGRAM,
        "pages",
        &["skewed"],
        &[("TERRACE_RECORD_CACHE", "2K"), ("TERRACE_RECORD_START", "call")],
    );
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let number = |path: &str| {
        found
            .pointer(path)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_else(|| panic!("{path}: {found}"))
    };
    // 100 rounds of 63 pages with 4 lines, and of one with 64.
    assert_eq!(number("/accesses"), 100 * (63 * 4 + 64));
    let misses = number("/misses/live_objects");
    assert!((31_000..=31_600).contains(&misses), "{misses}");
    // The one page has a fifth of the misses, and the others 400 each: half of all are on it and on
    // 24 more.
    let pages = number("/pages");
    assert!((64..80).contains(&pages), "{pages}");
    assert!((24..=26).contains(&number("/pages_for_50")), "{found}");
    // One object of 64 pages: side by side it is as it was.
    assert!((24..=26).contains(&number("/oracle/pages_for_50")), "{found}");
    assert_eq!(number("/misses/dead_objects"), 0);
}

/// `terrace report utilisation` names hot objects, the pages that they are on and the callers that
/// made them. It says what they would save side by side.
#[test]
fn hot_objects_that_are_strewn_over_pages_are_reported() {
    let (scratch, file) = recorded(&PROGRAM, "objects", &["sparse"], &ALL);
    let picture = scratch.path().join("utilisation.svg");
    let report = |options: &[&str]| {
        let output = Command::new(terrace_command())
            .args(["report", "utilisation"])
            .arg(&file)
            .args(options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told = report(&["--json", "--svg", picture.to_str().unwrap()]);
    let found: serde_json::Value = serde_json::from_str(&told).unwrap();
    let pages = &found["pages"][0];
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{found}"));
    assert_eq!(number(&pages["page_size"]), 4096);
    assert_eq!(number(&pages["hot_bytes"]), 64 * 48, "{pages}");
    // Each 64th object is on a page of its own, or across the end of one.
    let hot_pages = number(&pages["page_bytes"]) / 4096;
    assert!((64..=128).contains(&hot_pages), "{pages}");
    assert_eq!(number(&pages["saved_bytes"]), hot_pages * 4096 - 64 * 48);
    assert_eq!(number(&found["accesses"]), 6400);
    let site = &pages["sites"][0];
    let frame = site["frames"][0].as_str().unwrap();
    assert!(frame.contains("/recorded+0x"), "{frame}");
    let function = site["functions"][0].as_str().unwrap();
    assert!(function.starts_with("small_object ("), "{function}");
    for budget in found["budgets"].as_array().unwrap() {
        let hits = |name: &str| budget[name].as_f64().unwrap();
        assert!(hits("hits_side_by_side") >= hits("hits"), "{budget}");
    }
    let tenth = &found["budgets"][1];
    assert!(tenth["hits_side_by_side"].as_f64() > Some(0.99), "{tenth}");
    assert!(tenth["hits"].as_f64() < Some(0.2), "{tenth}");
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    let text = report(&[]);
    assert!(text.contains("sparse`: ") && text.contains("side by side"), "{text}");
    assert!(text.contains("  small_object ("), "{text}");
    // A window as long as all of it is the only one.
    let whole = report(&["--json", "--window", "1000000000"]);
    let found: serde_json::Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(found["pages"][0]["windows"].as_array().unwrap().len(), 1, "{found}");
}

#[test]
fn threads_atomics_and_jumps_are_no_trouble() {
    let (_scratch, file) =
        recorded(&PROGRAM, "objects", &["threads"], &[("TERRACE_RECORD_START", "call")]);
    let (_, made) = events(&file);
    let small = made.iter().filter(|event| matches!(event, Event::Born { bytes: 24, .. })).count();
    assert!(small >= 40_000, "{small}");
    // All but the last 16 were freed.
    let died = made.iter().filter(|event| matches!(event, Event::Died { .. })).count();
    assert!(died >= 39_984, "{died}");
    let (_scratch, file) = recorded(&PROGRAM, "objects", &["jumps"], &[]);
    let (reader, made) = events(&file);
    let contexts: Vec<u32> = made
        .iter()
        .filter_map(|event| {
            if let Event::Born { bytes: 40, context, .. } = event { Some(*context) } else { None }
        })
        .collect();
    assert!(
        contexts.len() == 50 && contexts.iter().all(|context| *context == contexts[0]),
        "{contexts:?}: {:?}",
        reader.contexts()
    );
}

#[test]
fn signals_begin_and_end_it() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    let record = format!("trace:{}", file.display());
    let output = run(
        &PROGRAM,
        &["signalled"],
        &[
            ("TERRACE_RECORD", &record),
            ("TERRACE_RECORD_START", "signal"),
            ("TERRACE_RECORD_CACHE", "2K"),
        ],
    );
    assert!(!output.status.success(), "it kills itself");
    let reader = accesses::Reader::open(&file).unwrap();
    // Of 80,000 bytes each line missed, 200 times; and the recording was whole before the end.
    assert!(
        (249_000..255_000).contains(&reader.records()) && reader.incomplete().is_none(),
        "{}: {:?}",
        reader.records(),
        reader.incomplete()
    );
}

#[test]
fn objects_of_cpp_are_objects() {
    let (_scratch, file) = recorded(&WITH_NEW, "objects", &[], &ALL);
    let (_, made) = events(&file);
    let born = |size: u64| {
        made.iter()
            .filter(|event| matches!(event, Event::Born { bytes, .. } if *bytes == size))
            .count()
    };
    assert!(
        born(16) >= 1000 && born(384) == 1 && born(8) >= 1,
        "{} {} {}",
        born(16),
        born(384),
        born(8)
    );
    assert!(made.iter().filter(|event| matches!(event, Event::Died { .. })).count() > 1000);
}

/// The allocator behind the recorder is the program's own or any preloaded one, also Terrace's
/// where `terrace run` brings it.
#[test]
fn any_allocator_may_be_behind() {
    let preloads: Vec<PathBuf> = ["libjemalloc.so.2"]
        .iter()
        .flat_map(|name| {
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
                .map(|at| Path::new(at).join(name))
        })
        .filter(|path| path.exists())
        .collect();
    if preloads.is_empty() {
        println!("libjemalloc.so.2 is not installed; without it");
    }
    for preload in &preloads {
        let preload = [
            ("LD_PRELOAD", preload.to_str().unwrap()),
            ("TERRACE_RECORD_START", "call"),
            ("TERRACE_RECORD_CACHE", "0"),
        ];
        recorded(&PROGRAM, "objects", &["known"], &preload);
        recorded(&PROGRAM, "objects", &["threads"], &preload);
        let (_scratch, file) = recorded(&WITH_NEW, "objects", &[], &preload);
        let points = events(&file)
            .1
            .iter()
            .filter(|event| matches!(event, Event::Born { bytes: 16, .. }))
            .count();
        assert!(points >= 1000, "{points}");
    }
    let scratch = tempfile::tempdir().unwrap();
    for (program, what) in [(&*PROGRAM, "threads"), (&*PROGRAM, "known"), (&*WITH_NEW, "new")] {
        let (file, report) = (scratch.path().join("file"), scratch.path().join("report.json"));
        let output = Command::new(terrace_command())
            .args(["run", "--allocator", "context", "--sampler", "none", "--report"])
            .arg(&report)
            .arg("--")
            .arg(program)
            .arg(what)
            .env("TERRACE_RECORD", format!("objects:{}", file.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && output.stdout == b"done\n", "{what}: {said}");
        if said.contains("not managed") {
            skip("the recorder under terrace run", said.trim());
        }
        assert!(events(&file).1.len() > 100, "{what}");
    }
}
