//! `--allocator`: which objects share pages, and whose allocator it is.

use terrace_tests::{Program, Terrace, compiled, machine};

/// Of 28 pairs of callers, how many share a page; and bytes that `malloc(24)` gives.
fn pairs_and_usable(terrace: Terrace, bytes: u32) -> (u32, u32) {
    let finished = Program::new(compiled("by_context.c", &["-fno-optimize-sibling-calls"])).arg(bytes.to_string()).under(terrace).succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    let numbers: Vec<u32> = stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [pairs, usable] = numbers[..] else { panic!("{}", finished.account("printed something else")) };
    (pairs, usable)
}

const PAIRS: u32 = 28;

/// Contexts meet in a zone by chance: with 255 zones, seven of 28 pairs would be a wonder.
#[test]
fn callers_have_pages_of_their_own_by_context_and_none_by_size() {
    let _machine = machine();
    // Of 1,000 bytes there are four to a page: so only neighbours meet.
    for (bytes, by_size) in [(40, PAIRS), (64, PAIRS), (1000, 12)] {
        assert_eq!(pairs_and_usable(Terrace::observing(), bytes).0, by_size, "{bytes}");
        let by_context = Terrace::observing().and("--allocator=context").and("--zones=255");
        assert!(pairs_and_usable(by_context, bytes).0 < 7, "{bytes}");
    }
}

#[test]
fn depth_and_zones_are_what_one_says() {
    let _machine = machine();
    let with = |zones: &str, depth: &str| {
        let terrace = Terrace::stressed().and("--allocator=context").and(zones).and(depth);
        pairs_and_usable(terrace, 64).0
    };
    assert_eq!(with("--zones=1", "--context-depth=4"), PAIRS);
    // All come from one place, and from the same height.
    assert_eq!(with("--zones=255", "--context-depth=1"), PAIRS);
    assert_eq!(with("--zones=255", "--context-depth=height"), PAIRS);
    assert!(with("--zones=255", "--context-depth=2") < 7);
    assert!(with("--zones=255", "--context-depth=16") < 7);
}

/// glibc gives 24 bytes where jemalloc gives 32.
#[test]
fn the_program_keeps_its_own_allocator() {
    let _machine = machine();
    assert_eq!(pairs_and_usable(Terrace::observing(), 64).1, 32);
    assert_eq!(pairs_and_usable(Terrace::observing().and("--allocator=system"), 64).1, 24);
}
