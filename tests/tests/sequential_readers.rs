//! A program that reads evicted memory page after page finds every page. That includes pages that
//! came back before they were touched.

use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, cases, compiled};

static READERS: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("sequential_readers.c", &["-pthread"]),
    arguments: Vec::new(),
    ways: vec![
        Terrace::within("4G"),
        Terrace::within("4G").and("--evict").and("wp"),
        Terrace::stressed(),
        Terrace::failing(),
        Terrace::write_protecting(),
    ],
});

cases! { READERS.hold:
    up_and_down
    beside_changes
}

#[test]
fn most_pages_come_back_without_a_fault() {
    for terrace in [Terrace::within("4G"), Terrace::within("4G").and("--evict").and("wp")] {
        let finished = Program::new(compiled("sequential_readers.c", &["-pthread"]))
            .arg("up_and_down")
            .under(terrace)
            .succeed();
        let report = finished.report();
        let (promoted, faults) = (report.promoted_pages(), report.faults());
        println!("{promoted} pages came back, {faults} by faults");
        assert!(
            promoted > 4_000 && faults < promoted / 4,
            "{promoted} pages came back, {faults} by faults"
        );
    }
}

#[test]
fn without_readahead_each_page_comes_by_a_fault() {
    let finished = Program::new(compiled("sequential_readers.c", &["-pthread"]))
        .arg("up_and_down")
        .under(Terrace::within("4G").and("--no-readahead"))
        .succeed();
    let report = finished.report();
    let (promoted, faults) = (report.promoted_pages(), report.faults());
    assert!(
        promoted > 4_000 && faults > promoted * 9 / 10,
        "{promoted} pages came back, {faults} by faults"
    );
}
