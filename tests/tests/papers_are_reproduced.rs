//! `terrace reproduce` writes what it says: a page that needs nothing else, plots, and rows that
//! add up. What the rows say is not tested here, but for what the project promises of them.

use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::process::Command;
use terrace_tests::terrace_command;

fn reproduce() -> Command {
    let mut command = Command::new(terrace_command());
    command.arg("reproduce");
    command
}

#[test]
fn a_quick_run_writes_a_whole_page_and_rows_that_add_up() {
    let out = tempfile::tempdir().expect("a temporary directory can be made");
    let run = reproduce()
        .args(["all", "--quick", "--json", "--out"])
        .arg(out.path())
        .output()
        .expect("terrace starts");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    assert!(errors.contains("  jenga-fig1: "), "no line for a figure: {errors}");

    let all: Value = serde_json::from_slice(&run.stdout).expect("JSON on standard output");
    let rows = all["rows"].as_array().expect("rows");
    let figures: HashSet<&str> = rows.iter().filter_map(|row| row["figure"].as_str()).collect();
    let expected = [
        "jenga-fig1",
        "jenga-fig2",
        "jenga-fig3",
        "jenga-fig5",
        "jenga-fig6",
        "jenga-fig7",
        "jenga-fig8",
        "jenga-fig9",
        "jenga-fig10",
    ]
    .into_iter()
    .chain([
        "jenga-fig11",
        "jenga-fig12",
        "objectier-fig2a",
        "objectier-fig2b",
        "objectier-fig3",
        "m2t-fig3",
        "m2t-fig5",
    ])
    .chain([
        "tierscape-fig1",
        "tierscape-fig2",
        "tierscape-fig7",
        "tierscape-fig8",
        "tierscape-fig9",
        "tierscape-fig10",
        "tierscape-fig11",
        "tierscape-fig12",
        "tierscape-fig13",
        "tierscape-fig14",
    ]);
    assert_eq!(figures, expected.collect());
    for row in rows {
        assert!(row["metric"].as_str().is_some_and(|metric| !metric.is_empty()), "{row}");
        match (row["paper"].as_f64(), row["ours"].as_f64()) {
            (Some(paper), Some(ours)) => {
                let deviation = row["deviation"].as_f64().expect("two numbers have one");
                assert!((deviation - (ours / paper - 1.0)).abs() < 1e-9, "{row}");
            }
            (None, Some(_)) => assert_eq!(
                (row["paper"].is_null(), row["verdict"].as_str()),
                (true, Some("ours only")),
                "{row}"
            ),
            _ => assert!(
                row["paper"].is_string() && row["ours"].is_string() && row["deviation"].is_null(),
                "{row}"
            ),
        }
        // A verdict says by what it is one, and one that it does not hold says why.
        let (verdict, said) = (row["verdict"].as_str().expect("a verdict"), |key: &str| {
            row[key].as_str().is_some_and(|text| text.len() > 3)
        });
        assert_eq!(said("reproduced_if"), verdict.contains("reproduced"), "{row}");
        assert_eq!(said("why"), verdict == "not reproduced", "{row}");
    }

    // Each paper has a file of its own, with the same rows.
    let of_paper = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(out.path().join(format!("{name}.json"))).expect(name))
            .expect("JSON")
    };
    let together: Vec<Value> = ["jenga", "objectier", "m2t", "tierscape"]
        .iter()
        .flat_map(|name| of_paper(name)["rows"].as_array().expect("rows").clone())
        .collect();
    assert_eq!(&together, rows);
    // And so has each figure, and the whole.
    assert_eq!(&of_paper("all")["rows"], &all["rows"]);
    for figure in &figures {
        let own = rows.iter().filter(|row| row["figure"] == *figure).cloned().collect::<Vec<_>>();
        assert_eq!(of_paper(figure)["rows"].as_array(), Some(&own), "{figure}");
    }
    let averages: Vec<f64> = of_paper("objectier")["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["unit"] == "ns")
        .filter_map(|row| row["deviation"].as_f64())
        .collect();
    assert_eq!(averages.len(), 8);
    assert!(averages.iter().all(|deviation| deviation.abs() <= 0.03), "{averages:?}");

    let page = fs::read_to_string(out.path().join("index.html")).expect("index.html");
    for what in ["http:", "https:", "src=", "<link", "<script", "@import", "url("] {
        assert!(!page.contains(what), "the page has `{what}` in it");
    }
    for figure in &figures {
        assert!(page.contains(&format!("<h3 id=\"{figure}\">")), "{figure} is not in the page");
        assert!(out.path().join(format!("{figure}.svg")).is_file(), "{figure} has no plot");
    }
    assert!(
        page.matches("<svg").count() >= figures.len()
            && !page.contains("NaN")
            && !page.contains(">inf")
    );
}

#[test]
fn one_figure_is_the_same_each_time_and_another_seed_another_one() {
    let out = tempfile::tempdir().expect("a temporary directory can be made");
    let rows = |seed: &str| {
        let run = reproduce()
            .args(["jenga-fig10", "--quick", "--json", "--seed", seed, "--out"])
            .arg(out.path())
            .output()
            .expect("terrace starts");
        assert!(run.status.success() && out.path().join("jenga-fig10.json").is_file());
        serde_json::from_slice::<Value>(&run.stdout).expect("JSON")["rows"].clone()
    };
    let first = rows("1");
    assert!(first.as_array().unwrap().iter().all(|row| row["figure"] == "jenga-fig10"));
    assert!(first == rows("1") && first != rows("2"));
}

#[test]
fn a_name_that_is_none_gets_those_that_there_are() {
    let run = reproduce().args(["jenga-fig4", "--quick"]).output().expect("terrace starts");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(125), "{errors}");
    for name in ["jenga-fig4", "all", "jenga-fig7", "objectier-fig2b", "m2t"] {
        assert!(errors.contains(name), "{errors}");
    }
}
