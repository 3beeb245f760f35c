//! `terrace doctor` answers everywhere, in both forms, and its exit status says whether pages can
//! be evicted.

mod support;

use serde_json::Value;
use support::{Scratch, stdout, terrace};

#[test]
fn every_row_is_whole_and_the_status_is_the_verdict() {
    let Some(scratch) = Scratch::new() else { return };
    let output = scratch.terrace(&["doctor", "--json"]).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = answer["rows"].as_array().unwrap();
    assert!(rows.len() >= 15);
    for row in rows {
        assert!(["ok", "warn", "missing"].contains(&row["status"].as_str().unwrap()), "{row}");
        for field in ["name", "found", "consequence", "fix"] {
            assert!(row[field].is_string(), "{row}");
        }
    }
    assert_eq!(output.status.code(), Some(i32::from(answer["can_evict"] != true)));
    let text = |arguments: &[&str]| stdout(&scratch.terrace(arguments).output().unwrap());
    let (short, long) = (text(&["doctor"]), text(&["doctor", "--all"]));
    for text in [&short, &long] {
        // No terminal: no colours.
        assert!(text.starts_with("Terrace can") && !text.contains('\x1b'), "{text}");
    }
    assert!(long.contains("userfaultfd") && long.contains("\nok  "), "{long}");
    assert!(!short.contains("\nok  ") && short.contains("terrace doctor --all"), "{short}");
}

#[test]
fn without_the_library_the_verdict_is_no() {
    let output =
        terrace(&["doctor"]).env("TERRACE_LIBRARY", "/no/such/libterrace.so").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("for want of") && stdout(&output).contains("libterrace.so"));
}
