//! `terrace sim`: what it prints, what it keeps, and what it says of mistakes.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{stderr, stdout, terrace};
use terrace_trace::accesses::{Clock, Header, Page, Writer};
use terrace_trace::objects;

/// Arguments of a quick run: three policies over two workloads.
const QUICK: [&str; 11] = [
    "sim",
    "jump",
    "drift",
    "--units",
    "512",
    "--accesses",
    "200K",
    "--policies",
    "first-touch,memtis,jenga",
    "--windows",
    "4",
];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [QUICK.as_slice(), more].concat()
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_table_for_each_workload_and_a_line_for_each_policy() {
    let output =
        terrace(&quick(&["--set", "memtis.cooling=120K,2M", "--seeds", "1-2"])).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for line in [
        "jump:units=512,accesses=200000,theta=0.9,changes=1,",
        "drift:units=512,",
        "optane, fast tier 20%: 102 of 512 units",
        "memtis cooling=120K",
        "memtis cooling=2M",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("  first-touch ")).count(), 2, "{text}");
}

#[test]
fn the_same_command_gives_the_same_figures_on_any_number_of_threads() {
    let json = |jobs: &str| {
        let output = terrace(&quick(&["--json", "--jobs", jobs])).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (one, three) = (json("1"), json("3"));
    assert_eq!(one, three);
    let rows = one.as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["total"]["accesses"], 200_000);
        assert_eq!(row["windows"].as_array().unwrap().len(), 4);
        let hits = row["total"]["hit_rate"].as_f64().unwrap();
        assert!(
            (0.0..=1.0).contains(&hits) && row["total"]["per_s"].as_f64().unwrap() > 1e6,
            "{row}"
        );
    }
}

#[test]
fn what_is_finished_is_not_run_again_and_what_was_cut_off_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.jsonl");
    let name = file.to_str().unwrap();
    let first = terrace(&quick(&["-o", name])).output().unwrap();
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let all = rows(&file);
    assert_eq!(all.len(), 6);
    // As if it had been killed while it wrote the last line.
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 40]).unwrap();
    let again = terrace(&quick(&["-o", name])).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    for told in
        ["its last line was not finished, and is left out", "5 of 6 cases are finished already"]
    {
        assert!(stderr(&again).contains(told), "{}", stderr(&again));
    }
    assert_eq!((rows(&file), stdout(&again)), (all.clone(), stdout(&first)));
    // With all there, nothing is run; one more policy is.
    let third = terrace(&quick(&["-o", name])).output().unwrap();
    assert!(
        stderr(&third).contains("6 of 6 cases are finished already")
            && stdout(&third) == stdout(&first),
        "{}",
        stderr(&third)
    );
    let more = quick(&["-o", name, "--machines", "optane,lz4"]);
    assert_eq!(terrace(&more).output().unwrap().status.code(), Some(0));
    let more = rows(&file);
    assert_eq!((more.len(), &more[..6]), (12, all.as_slice()));
    assert!(
        more[6..]
            .iter()
            .all(|row| row["case"]["machine"] == "lz4"
                && row["total"]["faults"].as_u64().unwrap() > 0)
    );
    // What is no result is not touched.
    fs::write(&file, "{\"a\": 1}\n").unwrap();
    let wrong = terrace(&quick(&["-o", name])).output().unwrap();
    assert_eq!(wrong.status.code(), Some(125));
    assert!(
        stderr(&wrong).contains("line 1: no result of this `terrace sim`; name another file"),
        "{}",
        stderr(&wrong)
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"a\": 1}\n");
    fs::write(&file, "notes, in one line").unwrap();
    let wrong = terrace(&quick(&["-o", name])).output().unwrap();
    assert!(
        wrong.status.code() == Some(125)
            && stderr(&wrong).contains("no results of `terrace sim`; name another file"),
        "{}",
        stderr(&wrong)
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "notes, in one line");
}

#[test]
fn objects_lie_in_each_layout_that_is_asked_for() {
    let line = [
        "sim",
        "store:keys=3K,lookups=20K",
        "--layouts",
        "time,context",
        "--policies",
        "first-touch,oracle",
        "--cache",
        "none",
        "--json",
    ];
    let output = terrace(&line).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layouts: Vec<&str> =
        rows.as_array().unwrap().iter().filter_map(|row| row["case"]["layout"].as_str()).collect();
    assert_eq!(layouts, ["time", "time", "context", "context"]);
}

/// A recording of one process: 300 pages of one range of 2 MiB and 10 of another, each read three
/// times.
fn record(path: &Path) {
    let pages = (2048..2058).chain(512..812);
    record_with(path, [pages.clone(), pages.clone(), pages].into_iter().flatten());
}

/// A recording of one process that reads these pages.
fn record_with(path: &Path, pages: impl Iterator<Item = u64>) {
    let header = Header {
        terrace: "0".into(),
        command: vec!["program".into()],
        source: "hooks".into(),
        clock: Clock::Accesses,
        period: 1,
        rate_hz: 0,
        cache: None,
        page_bytes: 4096,
        writes: true,
    };
    let mut writer = Writer::create(path, &header, u64::MAX).unwrap();
    for (clock, number) in (0..).zip(pages) {
        writer.append(Page { process: 1, number }, false, clock).unwrap();
    }
    writer.finish(0).unwrap();
}

/// Flips a bit in the middle of one of the recording's blocks of records or events, from 0.
fn damage(path: &Path, block: usize) {
    let mut bytes = fs::read(path).unwrap();
    let (mut at, mut met) = (8, 0);
    loop {
        let (kind, len) =
            (bytes[at], u32::from_le_bytes(bytes[at + 1..at + 5].try_into().unwrap()) as usize);
        if kind == 2 && met == block {
            bytes[at + 9 + len / 2] ^= 1;
            return fs::write(path, bytes).unwrap();
        }
        met += usize::from(kind == 2);
        at += 9 + len;
    }
}

/// 200 pages, each read 1000 times, in four blocks.
fn record_blocks(path: &Path) {
    record_with(path, (0..200_000).map(|n: u64| n * n % 199));
}

#[test]
fn of_a_damaged_recording_what_precedes_the_damage_is_simulated_and_marked() {
    let directory = tempfile::tempdir().unwrap();
    let (path, file) = (directory.path().join("a.acc"), directory.path().join("runs.jsonl"));
    record_blocks(&path);
    let whole = fs::read(&path).unwrap();
    let (name, out) = (path.to_str().unwrap().to_owned(), file.to_str().unwrap().to_owned());
    let run = |more: &[&str]| {
        let line = [
            "sim",
            &name,
            "--page",
            "4K",
            "--plays",
            "real",
            "--policies",
            "first-touch,oracle",
            "-o",
            &out,
        ];
        terrace(&[line.as_slice(), more].concat()).output().unwrap()
    };
    // A generator beside it is run as ever.
    damage(&path, 2);
    let output = run(&["zipf:units=100,accesses=10K", "--jobs", "3"]);
    let told = "a block's checksum is wrong, behind 131072 of 200000 accesses";
    assert_eq!(output.status.code(), Some(1));
    for text in [
        told,
        "results are marked as incomplete: copy the file again, or record again",
        "2 of 4 cases are of recordings that are not whole",
    ] {
        assert!(stderr(&output).contains(text), "{text} in {}", stderr(&output));
    }
    assert!(
        stdout(&output).contains(&format!("incomplete, of what comes before: {told}\n")),
        "{}",
        stdout(&output)
    );
    let found = rows(&file);
    let of_recording = |rows: &[Value]| {
        rows.iter()
            .filter(|row| row["case"]["workload"] == name.as_str())
            .cloned()
            .collect::<Vec<_>>()
    };
    let marked = of_recording(&found);
    assert_eq!((found.len(), marked.len()), (4, 2));
    assert!(
        marked.iter().all(|row| row["incomplete"] == told && row["total"]["accesses"] == 131_072),
        "{marked:?}"
    );
    assert!(
        found
            .iter()
            .filter(|row| row["case"]["workload"] != name.as_str())
            .all(|row| row.get("incomplete").is_none())
    );
    // Again: it may have been mended. It was not: the same, which is in the file already.
    let output = run(&[]);
    assert!(
        stderr(&output).contains("2 of 2 cases are run again: their recordings were not whole"),
        "{}",
        stderr(&output)
    );
    assert!(output.status.code() == Some(1) && rows(&file) == found);
    // Cut off it is no more than that, and the mark is the same.
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let output = run(&["--policies", "tpp"]);
    assert_eq!(output.status.code(), Some(1));
    let cut = rows(&file).into_iter().find(|row| row["case"]["policy"] == "tpp").unwrap();
    assert_eq!(
        (&cut["incomplete"], &cut["total"]["accesses"]),
        (&"its index is damaged, or what is behind it".into(), &200_000.into())
    );
    // Mended.
    fs::write(&path, &whole).unwrap();
    let output = run(&[]);
    assert_eq!(
        (output.status.code(), stderr(&output).contains("run again")),
        (Some(0), true),
        "{}",
        stderr(&output)
    );
    let whole_rows: Vec<Value> = of_recording(&rows(&file))
        .into_iter()
        .filter(|row| row.get("incomplete").is_none())
        .collect();
    assert!(
        whole_rows.len() == 2 && whole_rows.iter().all(|row| row["total"]["accesses"] == 200_000),
        "{whole_rows:?}"
    );
    let output = run(&[]);
    assert!(
        output.status.success() && stderr(&output).contains("2 of 2 cases are finished already"),
        "{}",
        stderr(&output)
    );
    // Of nothing there is no result.
    damage(&path, 0);
    let output = run(&["--seeds", "9"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains(
            "no access can be read: a block's checksum is wrong, behind 0 of 200000 accesses"
        ),
        "{}",
        stderr(&output)
    );
    assert!(
        stdout(&output).is_empty() && stderr(&output).contains("2 of 2 cases could not be run"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn of_damaged_objects_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.obj");
    let header = objects::Header {
        terrace: "0".into(),
        command: vec!["program".into()],
        source: "hooks".into(),
        clock: Clock::Accesses,
        period: 1,
        cache: None,
        depth: 4,
    };
    let mut writer = objects::Writer::create(&path, &header, u64::MAX).unwrap();
    writer.name_context(vec!["main".into()]);
    for object in 0..40u32 {
        writer
            .append(
                objects::Event::Born {
                    address: u64::from(object) * 8192,
                    bytes: 5000,
                    context: 0,
                    clock: 0,
                },
                0,
            )
            .unwrap();
    }
    for at in 0..200_000u32 {
        writer
            .append(
                objects::Event::Access { object: at % 40, offset: 0, written: false },
                u64::from(at),
            )
            .unwrap();
    }
    writer.finish(200_000).unwrap();
    damage(&path, 1);
    // The oracle's layout goes through it before the others do; each comes to the same place.
    for page in ["4K", "mixed"] {
        let line = [
            "sim",
            path.to_str().unwrap(),
            "--layouts",
            "time,oracle",
            "--policies",
            "first-touch",
            "--page",
            page,
            "--cache",
            "none",
            "--json",
        ];
        let output = terrace(&line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(
                row["incomplete"]
                    .as_str()
                    .unwrap()
                    .starts_with("a block's checksum is wrong, behind 1 of "),
                "{row}"
            );
            assert!((1..200_000).contains(&row["total"]["accesses"].as_u64().unwrap()), "{row}");
        }
    }
}

#[test]
fn recorded_pages_may_be_parts_of_huge_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.acc");
    record(&path);
    let run = |page: &str, fast: &str, policies: &str, json: bool| {
        let line = [
            "sim",
            path.to_str().unwrap(),
            "--page",
            page,
            "--plays",
            "real",
            "--fast",
            fast,
            "--policies",
            policies,
            "--windows",
            "1",
        ];
        let output = terrace(&[line.as_slice(), if json { &["--json"] } else { &[] }].concat())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let row = |page: &str, fast: &str| {
        serde_json::from_str::<Value>(&run(page, fast, "first-touch", true)).unwrap()[0].clone()
    };
    // 300 of 512 are more than a half and less than 60 %.
    let half = row("mixed", "104K");
    assert_eq!(
        (&half["units"], &half["base_units"], &half["fast_units"]),
        (&11.into(), &522.into(), &26.into())
    );
    assert_eq!(
        (&half["case"]["huge_from"], &half["case"]["page_bytes"]),
        (&0.5.into(), &4096.into())
    );
    // The ten that came first are in the fast tier, and the huge page has no room.
    assert_eq!(half["total"]["hit_rate"], 30.0 / 930.0);
    assert_eq!(row("mixed", "100%")["total"]["hit_rate"], 1.0);
    let more = row("mixed:60%", "104K");
    assert_eq!(
        (&more["units"], &more["base_units"], &more["total"]["hit_rate"]),
        (&310.into(), &310.into(), &(78.0 / 930.0).into())
    );
    // Of pages that are alike there is no word of it.
    let alike = row("4K", "104K");
    assert!(
        alike["base_units"].is_null()
            && alike["case"].get("huge_from").is_none()
            && alike["total"] == more["total"],
        "{alike}"
    );
    let text = run("mixed", "20%", "first-touch,memtis,oracle", false);
    assert!(text.contains("optane, fast tier 20%: 104 of 522 base units, in 11 units"), "{text}");
}

#[test]
fn generators_mix_base_pages_and_huge_ones_the_same_way_each_time() {
    let json = |jobs: &str| {
        let line = [
            "sim",
            "jump:huge=0.5,units=16K",
            "scattered:huge=1,units=16K",
            "--accesses",
            "200K",
            "--plays",
            "real",
            "--tick",
            "1",
        ];
        let output =
            terrace(&[line.as_slice(), &["--json", "--windows", "2", "--jobs", jobs]].concat())
                .output()
                .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let one = json("1");
    assert_eq!(one, json("3"));
    let rows = one.as_array().unwrap();
    assert_eq!(rows.len(), 2 * 14);
    let (jump, scattered) = rows.split_at(14);
    // 31 ranges and 128 pages more: 15 are huge, or all.
    assert!(jump.iter().all(|row| row["units"] == 15 + 16_000 - 15 * 512
        && row["base_units"] == 16_000
        && row["fast_units"] == 3200));
    assert!(scattered.iter().all(|row| row["units"] == 31 + 128 && row["base_units"] == 16_000));
    assert!(jump[0]["case"]["workload"].as_str().unwrap().ends_with(",writes=0.1,huge=0.5"));
    let hits = |policy: &str| {
        jump.iter().find(|row| row["case"]["policy"] == policy).unwrap()["total"]["hit_rate"]
            .as_f64()
            .unwrap()
    };
    assert!(hits("oracle") > hits("first-touch"), "{} and {}", hits("oracle"), hits("first-touch"));
}

/// Half of all accesses are misses, whatever happens; of `optane` a hit has 80 ns and a miss 300,
/// and the slow tier lets 39 GB/s of reads pass.
#[test]
fn more_requests_help_until_the_bandwidth_is_used_up() {
    let rate = |in_flight: &str, fast: &str| {
        let line = [
            "sim",
            "uniform:writes=0,units=1000",
            "--accesses",
            "4M",
            "--stands-for",
            "1000",
            "--fast",
            fast,
            "--policies",
            "first-touch",
        ];
        let output = terrace(
            &[line.as_slice(), &["--in-flight", in_flight, "--windows", "10", "--json"]].concat(),
        )
        .output()
        .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        // The last tenth: the first tick knows of no traffic yet.
        (
            rows[0]["windows"][9]["per_s"].as_f64().unwrap(),
            rows[0]["windows"][9]["hit_rate"].as_f64().unwrap(),
        )
    };
    let is = |(found, _): (f64, f64), expected: f64, within: f64| {
        assert!((found / expected - 1.0).abs() < within, "{found} of {expected}")
    };
    // One at a time: they hardly meet, and the rate is what the latencies allow.
    let one = rate("1", "50%");
    is(one, 1e9 / (80.0 * one.1 + 300.0 * (1.0 - one.1)), 1e-6);
    is(rate("4", "50%"), 4e9 / 190.0, 0.01);
    // A thousand would make 5,263 million: what the slow tier lets through, whose misses are half
    // of them. With a fifth of them it is DRAM's 100 GB/s.
    is(rate("1000", "50%"), 39e9 / 64.0 / 0.5, 0.01);
    is(rate("1000", "80%"), 100e9 / 64.0 / 0.8, 0.01);
}

#[test]
fn mistakes_end_it_before_anything_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "not a recording").unwrap();
    let later = directory.path().join("later");
    fs::write(&later, b"TERRACC\x09 and more").unwrap();
    for (line, told) in [
        (&["sim"][..], "WORKLOAD"),
        (&["sim", "jmp"], "there is no stream `jmp`; there are zipf, scattered, jump"),
        (&["sim", "jump", "--policies", "lru"], "there is no policy `lru`; there are first-touch"),
        (&["sim", text.to_str().unwrap()], "no recording of accesses or of objects"),
        (
            &["sim", later.to_str().unwrap()],
            "is a recording in version 9 of the format, and this Terrace reads version 1",
        ),
        (
            &["sim", "jump", "--set", "hemem.cool=1"],
            "hemem has no parameter \"cool\": it has hot-reads",
        ),
        (&["sim", "jump", "-o", "/no/such/directory/file"], "cannot write /no/such/directory/file"),
    ] {
        let output = terrace(line).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(if told.contains("recording") { 1 } else { 125 }),
            "{line:?}"
        );
        assert!(
            stderr(&output).contains(told) && stdout(&output).is_empty(),
            "{line:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_case_that_cannot_be_run_does_not_stop_others() {
    let output = terrace(&quick(&["--fast", "1K,20%", "--plays", "real"])).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("the fast tier (1024) has no room for one unit"),
        "{}",
        stderr(&output)
    );
    assert!(
        stdout(&output).contains("fast tier 20%")
            && stderr(&output).contains("6 of 12 cases could not be run"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_is_over_before_the_first_tick_says_so() {
    let output = terrace(&quick(&["--stands-for", "1"])).output().unwrap();
    assert!(
        output.status.success()
            && stderr(&output).matches("over before the first tick").count() == 2,
        "{}",
        stderr(&output)
    );
    let output = terrace(&quick(&[])).output().unwrap();
    assert!(output.status.success() && !stderr(&output).contains("tick"), "{}", stderr(&output));
}

#[test]
fn all_names_are_listed() {
    let text = stdout(&terrace(&["sim", "--list"]).output().unwrap());
    for name in [
        "  jump ",
        "  tree ",
        "  optane ",
        "  lz4 ",
        "  consolidated ",
        "  hybridtier\n",
        "    cooling ",
    ] {
        assert!(text.contains(name), "{name:?} in {text}");
    }
}
