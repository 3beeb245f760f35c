//! `--huge-pages hot`: what stays hot becomes huge pages, which are split before a page leaves; and
//! every byte stays.
//!
//! `no_update_is_lost.rs`, `memory_calls_keep_their_meaning.rs` and
//! `the_kernel_finds_evicted_memory.rs` run forks, devices, remappings and the rest beside huge
//! pages.

use terrace_tests::{Finished, Program, Terrace, machine, skip, terrace_command};

fn load(pattern: &str, size: &str, seconds: &str) -> Program {
    Program::new(terrace_command()).args([
        "load",
        "memory",
        pattern,
        "--size",
        size,
        "--seconds",
        seconds,
        "--json",
        "--check-all",
    ])
}

#[track_caller]
fn made_and_split(finished: &Finished) -> (f64, f64) {
    let outcome: serde_json::Value = serde_json::from_slice(&finished.stdout).expect("JSON");
    assert!(outcome["wrong"] == 0 && outcome["accesses"].as_u64() > Some(1_000), "{outcome}");
    let report = finished.report();
    report.expect_managed();
    println!("{}", finished.stderr);
    (report.number("/moves/huge_made"), report.number("/moves/huge_split"))
}

/// Whether the kernel has huge pages at all.
fn has_huge_pages() -> bool {
    let has = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false);
    if !has {
        skip("huge pages", "this kernel has none (CONFIG_TRANSPARENT_HUGEPAGE)");
    }
    has
}

#[test]
fn what_stays_hot_becomes_huge() {
    if !has_huge_pages() {
        return;
    }
    let _machine = machine();
    let finished = load("zipf", "192M", "10")
        .under(Terrace::within("1G").and("--huge-pages=hot").and("--sampler-cost=5%"))
        .succeed();
    if finished.stderr.contains("learned from faults alone") {
        return skip(
            "huge pages where memory is hot",
            finished.stderr.lines().next().unwrap_or_default(),
        );
    }
    let (made, split) = made_and_split(&finished);
    assert!(made >= 5.0 && split <= made / 4.0, "{made} made, {split} split");
    // Without asking there are none.
    let (made, _) =
        made_and_split(&load("zipf", "64M", "1").under(Terrace::within("1G")).succeed());
    assert_eq!(made, 0.0);
}

#[test]
fn they_are_split_before_a_page_leaves() {
    if !has_huge_pages() {
        return;
    }
    let _machine = machine();
    let finished = load("zipf", "256M", "8").under(Terrace::stressed_with_huge_pages()).succeed();
    let (made, split) = made_and_split(&finished);
    assert!(made >= 30.0 && split >= 20.0, "{made} made, {split} split");
    finished.report().expect_moves(5_000, 500);
}

#[test]
fn what_stands_in_their_way_is_said() {
    for (arguments, why) in [
        (&["--dram=1G", "--policy=faults"][..], "nothing tells what is hot"),
        (&["--dram=1G", "--sampler=none"], "nothing tells what is hot"),
        (&["--dram=1G", "--evict=wp"], "use --evict move"),
        (&["--slowdown=off"], "nothing is moved"),
    ] {
        let run = |strict: &[&str]| {
            let arguments = ["run", "--huge-pages=hot"]
                .iter()
                .chain(strict)
                .chain(arguments)
                .chain(&["--", "true"]);
            Program::new(terrace_command()).args(arguments).run()
        };
        let finished = run(&[]);
        assert!(
            finished.status.success() && finished.stderr.contains(why),
            "{}",
            finished.account("said nothing")
        );
        let refused = run(&["--strict"]);
        assert!(
            refused.status.code() == Some(125)
                && refused.stderr.contains("--huge-pages hot has no effect"),
            "{}",
            refused.account("ran")
        );
    }
}

/// A budget below what the program uses: hot regions stay whole and huge, or leave like others.
#[test]
fn the_budget_is_kept_beside_them() {
    if !has_huge_pages() {
        return;
    }
    let _machine = machine();
    let terrace = Terrace::within("60%").and("--huge-pages=hot").and("--sampler-cost=5%");
    // Memory comes faster than it can leave in the beginning. The run is long enough to make that a
    // small part on a slow machine too.
    let finished =
        load("jump", "256M", "24").args(["--change-every", "3"]).under(terrace).succeed();
    made_and_split(&finished);
    let kept = finished.report().number("/budget_kept_fraction");
    assert!(kept > 0.9, "{}", finished.account(&format!("kept its budget for {kept} of the time")));
    finished.report().expect_moves(10_000, 1_000);
}
