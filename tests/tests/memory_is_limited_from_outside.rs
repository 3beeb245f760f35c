//! A control group's limit on memory, enforced by the kernel from outside, loses nothing and blocks
//! nothing for ever.

use terrace_testkit::group::MemoryGroup;
use terrace_tests::{Finished, Program, Terrace, compiled, skip};

fn run(case: &str, terrace: impl Into<Option<Terrace>>) -> Option<Finished> {
    let group = match MemoryGroup::create("terrace-test") {
        Ok(group) => group,
        Err(error) => {
            skip(case, &format!("{error:#}"));
            return None;
        }
    };
    let program = Program::new(compiled("memory_is_limited_from_outside.c", &[]))
        .arg(case)
        .env("CONTROL_GROUP", group.path());
    let finished = program.under(terrace).run();
    if finished.status.code() == Some(77) {
        skip(case, finished.stderr.lines().next().unwrap_or_default());
        return None;
    }
    Some(finished)
}

#[track_caller]
fn holds(case: &str, terrace: impl Into<Option<Terrace>>) {
    let terrace = terrace.into();
    let managed = terrace.is_some();
    if let Some(finished) = run(case, terrace) {
        assert!(finished.status.success(), "{}", finished.account("failed"));
        if managed {
            finished.report().expect_managed();
        }
    }
}

/// The kernel reclaims page cache and lazily freed pages all the time.
#[test]
fn reclaimed_all_the_time() {
    for terrace in [
        None,
        Some(Terrace::within("4G")),
        Some(Terrace::stressed()),
        Some(Terrace::stressed().and("--dram=12M")),
    ] {
        holds("reclaimed_all_the_time", terrace);
    }
}

/// The kernel would end the program for what it uses. That happens without Terrace, and where the
/// budget is above the limit.
#[test]
fn more_than_the_limit() {
    holds("more_than_the_limit", Terrace::within("40M"));
    for terrace in [None, Some(Terrace::within("4G"))] {
        if let Some(finished) = run("more_than_the_limit", terrace) {
            assert!(
                !finished.status.success(),
                "the group's limit is none: {}",
                finished.account("ended well")
            );
        }
    }
}

/// Pages cannot come back for lack of memory, and do come back when there is some.
#[test]
fn no_memory_for_a_while() {
    for terrace in
        [None, Some(Terrace::within("4G")), Some(Terrace::within("4G").and("--tiers=dram,zstd:1"))]
    {
        holds("no_memory_for_a_while", terrace);
    }
}
