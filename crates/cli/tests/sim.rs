//! `terrace sim`: what it prints, what it keeps, and what it says of mistakes.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{stderr, stdout, terrace};
use terrace_trace::accesses::{Clock, Header, Page, Writer};

/// A quick one: three policies over two workloads.
const QUICK: [&str; 11] =
    ["sim", "jump", "drift", "--units", "512", "--accesses", "200K", "--policies", "first-touch,memtis,jenga", "--windows", "4"];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [QUICK.as_slice(), more].concat()
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_table_for_each_workload_and_a_line_for_each_policy() {
    let output = terrace(&quick(&["--set", "memtis.cooling=120K,2M", "--seeds", "1-2"])).output().unwrap();
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
        assert!((0.0..=1.0).contains(&hits) && row["total"]["per_s"].as_f64().unwrap() > 1e6, "{row}");
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
    for told in ["its last line was not finished, and is left out", "5 of 6 cases are finished already"] {
        assert!(stderr(&again).contains(told), "{}", stderr(&again));
    }
    assert_eq!((rows(&file), stdout(&again)), (all.clone(), stdout(&first)));
    // With all there, nothing is run; one more policy is.
    let third = terrace(&quick(&["-o", name])).output().unwrap();
    assert!(stderr(&third).contains("6 of 6 cases are finished already") && stdout(&third) == stdout(&first), "{}", stderr(&third));
    let more = quick(&["-o", name, "--machines", "optane,lz4"]);
    assert_eq!(terrace(&more).output().unwrap().status.code(), Some(0));
    let more = rows(&file);
    assert_eq!((more.len(), &more[..6]), (12, all.as_slice()));
    assert!(more[6..].iter().all(|row| row["case"]["machine"] == "lz4" && row["total"]["faults"].as_u64().unwrap() > 0));
    // What is no result is not touched.
    fs::write(&file, "{\"a\": 1}\n").unwrap();
    let wrong = terrace(&quick(&["-o", name])).output().unwrap();
    assert_eq!(wrong.status.code(), Some(125));
    assert!(stderr(&wrong).contains("line 1: no result of this `terrace sim`; name another file"), "{}", stderr(&wrong));
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"a\": 1}\n");
}

#[test]
fn objects_lie_in_each_layout_that_is_asked_for() {
    let line =
        ["sim", "store:keys=3K,lookups=20K", "--layouts", "time,context", "--policies", "first-touch,oracle", "--cache", "none", "--json"];
    let output = terrace(&line).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layouts: Vec<&str> = rows.as_array().unwrap().iter().filter_map(|row| row["case"]["layout"].as_str()).collect();
    assert_eq!(layouts, ["time", "time", "context", "context"]);
}

/// A recording of one process: 300 pages of one range of 2 MiB and 10 of another, each read three times.
fn record(path: &Path) {
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
    let pages = (2048..2058).chain(512..812).map(|number| Page { process: 1, number });
    for (clock, page) in (0..).zip([pages.clone(), pages.clone(), pages].into_iter().flatten()) {
        writer.append(page, false, clock).unwrap();
    }
    writer.finish(930).unwrap();
}

#[test]
fn recorded_pages_may_be_parts_of_huge_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.acc");
    record(&path);
    let run = |page: &str, fast: &str, policies: &str, json: bool| {
        let line =
            ["sim", path.to_str().unwrap(), "--page", page, "--plays", "real", "--fast", fast, "--policies", policies, "--windows", "1"];
        let output = terrace(&[line.as_slice(), if json { &["--json"] } else { &[] }].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let row = |page: &str, fast: &str| serde_json::from_str::<Value>(&run(page, fast, "first-touch", true)).unwrap()[0].clone();
    // 300 of 512 are more than a half and less than 60 %.
    let half = row("mixed", "104K");
    assert_eq!((&half["units"], &half["base_units"], &half["fast_units"]), (&11.into(), &522.into(), &26.into()));
    assert_eq!((&half["case"]["huge_from"], &half["case"]["page_bytes"]), (&0.5.into(), &4096.into()));
    // The ten that came first are in the fast tier, and the huge page has no room.
    assert_eq!(half["total"]["hit_rate"], 30.0 / 930.0);
    assert_eq!(row("mixed", "100%")["total"]["hit_rate"], 1.0);
    let more = row("mixed:60%", "104K");
    assert_eq!((&more["units"], &more["base_units"], &more["total"]["hit_rate"]), (&310.into(), &310.into(), &(78.0 / 930.0).into()));
    // Of pages that are alike there is no word of it.
    let alike = row("4K", "104K");
    assert!(alike["base_units"].is_null() && alike["case"].get("huge_from").is_none() && alike["total"] == more["total"], "{alike}");
    let text = run("mixed", "20%", "first-touch,memtis,oracle", false);
    assert!(text.contains("optane, fast tier 20%: 104 of 522 base units, in 11 units"), "{text}");
}

#[test]
fn generators_mix_base_pages_and_huge_ones_the_same_way_each_time() {
    let json = |jobs: &str| {
        let line = ["sim", "jump:huge=0.5,units=16K", "scattered:huge=1,units=16K", "--accesses", "200K", "--plays", "real", "--tick", "1"];
        let output = terrace(&[line.as_slice(), &["--json", "--windows", "2", "--jobs", jobs]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let one = json("1");
    assert_eq!(one, json("3"));
    let rows = one.as_array().unwrap();
    assert_eq!(rows.len(), 2 * 13);
    let (jump, scattered) = rows.split_at(13);
    // 31 ranges and 128 pages more: 15 are huge, or all.
    assert!(jump.iter().all(|row| row["units"] == 15 + 16_000 - 15 * 512 && row["base_units"] == 16_000 && row["fast_units"] == 3200));
    assert!(scattered.iter().all(|row| row["units"] == 31 + 128 && row["base_units"] == 16_000));
    assert!(jump[0]["case"]["workload"].as_str().unwrap().ends_with(",writes=0.1,huge=0.5"));
    let hits = |policy: &str| jump.iter().find(|row| row["case"]["policy"] == policy).unwrap()["total"]["hit_rate"].as_f64().unwrap();
    assert!(hits("oracle") > hits("first-touch"), "{} and {}", hits("oracle"), hits("first-touch"));
}

#[test]
fn mistakes_end_it_before_anything_is_run() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "not a recording").unwrap();
    for (line, told) in [
        (&["sim"][..], "WORKLOAD"),
        (&["sim", "jmp"], "there is no stream `jmp`; there are zipf, scattered, jump"),
        (&["sim", "jump", "--policies", "lru"], "there is no policy `lru`; there are first-touch"),
        (&["sim", text.to_str().unwrap()], "no recording of accesses or of objects"),
        (&["sim", "jump", "--set", "hemem.cool=1"], "hemem has no parameter \"cool\": it has hot-reads"),
        (&["sim", "jump", "-o", "/no/such/directory/file"], "cannot write /no/such/directory/file"),
    ] {
        let output = terrace(line).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{line:?}");
        assert!(stderr(&output).contains(told) && stdout(&output).is_empty(), "{line:?}: {}", stderr(&output));
    }
}

#[test]
fn a_case_that_cannot_be_run_does_not_stop_others() {
    let output = terrace(&quick(&["--fast", "1K,20%", "--plays", "real"])).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("the fast tier (1024) has no room for one unit"), "{}", stderr(&output));
    assert!(stdout(&output).contains("fast tier 20%") && stderr(&output).contains("6 of 12 cases could not be run"), "{}", stderr(&output));
}

#[test]
fn all_names_are_listed() {
    let text = stdout(&terrace(&["sim", "--list"]).output().unwrap());
    for name in ["  jump ", "  tree ", "  optane ", "  lz4 ", "  consolidated ", "  hybridtier\n", "    cooling "] {
        assert!(text.contains(name), "{name:?} in {text}");
    }
}
