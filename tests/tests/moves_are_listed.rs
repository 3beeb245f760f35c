//! `--moves FILE`: every page that left or came back is in a line that says why. The lines add up
//! to what the report says.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use terrace_tests::{Program, Terrace, compiled, terrace_command};

/// Pages by reason.
type Pages = BTreeMap<String, u64>;

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

fn pages<'l>(lines: impl IntoIterator<Item = &'l Value>) -> Pages {
    let mut all = Pages::new();
    for line in lines {
        *all.entry(line["reason"].as_str().expect("a reason").into()).or_default() +=
            line["pages"].as_u64().expect("pages");
    }
    all
}

#[test]
fn what_is_listed_is_what_is_reported() {
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    for (tiers, policy) in [("dram,lz4,zstd:1", "terrace"), ("dram,lz4", "jenga")] {
        let file = scratch.path().join("moves.jsonl");
        let file = file.to_str().expect("UTF-8");
        let terrace = ["--tiers", tiers, "--policy", policy, "--moves", file]
            .into_iter()
            .fold(Terrace::within("64M"), Terrace::and);
        let finished =
            Program::new(compiled("skewed.c", &[])).args(["64", "2"]).under(terrace).succeed();
        let report = finished.report();
        report.expect_moves(5_000, 1_000);
        assert!(!finished.stderr.contains("moves are missing"), "{}", finished.stderr);
        let lines = lines(&fs::read_to_string(file).expect("the list"));
        let end = lines.iter().filter_map(|line| line["at_s"].as_f64()).fold(0.0, f64::max);
        // The report is of the mover's last look before the end, some milliseconds ago.
        let (all, earlier) = (
            pages(&lines),
            pages(lines.iter().filter(|line| line["at_s"].as_f64() < Some(end - 0.5))),
        );
        println!("{} lines: {all:?}", lines.len());
        let told = report.at("/moves/demoted_for").as_object().expect("reasons");
        for (reason, told) in told {
            let told = told.as_u64().expect("pages");
            let of = |pages: &Pages| pages.get(reason).copied().unwrap_or(0);
            assert!(
                (of(&earlier)..=of(&all)).contains(&told),
                "{reason}: {told} pages are reported, and listed are {all:?}"
            );
        }
        assert!(
            all.keys()
                .all(|reason| reason == "touched" || reason == "room" || told.contains_key(reason)),
            "{all:?}, {told:?}"
        );
        let came = all["touched"];
        let room = report
            .at("/moves/promoted_for")
            .get("room")
            .and_then(|room| room.as_u64())
            .unwrap_or(0);
        let listed = all.get("room").copied().unwrap_or(0);
        assert!(listed >= room, "{room} pages came back for room, and listed are {all:?}");
        // What came back is told at the end; listed is what was found a fifth of a second before.
        assert!(
            came > 500 && came <= report.promoted_pages(),
            "{came} pages are listed, of {}",
            report.promoted_pages()
        );
        for line in &lines {
            let address = line["region"]
                .as_str()
                .and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
            assert!(address.is_some_and(|address| address.is_multiple_of(2 << 20)), "{line}");
            assert!(line["at_s"].as_f64().is_some_and(|at| at > 0.0 && at < 60.0), "{line}");
            let (from, to) = (&line["from"], line["to"].as_str().expect("a tier"));
            match line["reason"].as_str() {
                Some("touched" | "room") => assert!(from.is_null() && to == "dram", "{line}"),
                Some("cold" | "pressed" | "probation" | "probed") => {
                    assert!(
                        from == "dram"
                            && to != "dram"
                            && tiers.contains(to)
                            && line["pressure"].is_u64(),
                        "{line}"
                    );
                }
                _ => assert!(to != "dram", "{line}"),
            }
        }
    }
}

#[test]
fn a_list_that_cannot_be_written_is_refused_before_anything_runs() {
    let output = Command::new(terrace_command())
        .args(["run", "--moves", "/no/such/place.jsonl", "--", "touch", "/no/such/other"])
        .output();
    let output = output.expect("terrace can be executed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(125)
            && said.contains("moves cannot be listed in /no/such/place.jsonl"),
        "{said}"
    );
}
