//! `--allocator`: which objects share pages, and whose allocator it is.

use terrace_tests::{Program, Terrace, compiled, machine, terrace_command};

/// How many of 28 pairs of callers share a page, and how many bytes `malloc(24)` gives.
fn pairs_and_usable(terrace: Terrace, bytes: u32) -> (u32, u32) {
    let finished = Program::new(compiled("by_context.c", &["-fno-optimize-sibling-calls"]))
        .arg(bytes.to_string())
        .under(terrace)
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    let numbers: Vec<u32> =
        stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [pairs, usable] = numbers[..] else {
        panic!("{}", finished.account("printed something else"))
    };
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

/// A caller whose objects are read all the time, and one whose objects are not: samples tell which
/// is which, by the names of functions.
#[test]
fn hot_and_cold_sites_have_names() {
    let _machine = machine();
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let file = scratch.path().join("report.json");
    let terrace = Terrace::within("76M").and("--allocator=context").and("--sampler=clock");
    let finished = Program::new(compiled("hot_and_cold_sites.c", &["-g"])).under(terrace).succeed();
    std::fs::write(&file, finished.report().to_string()).expect("a file can be written");
    let shown =
        Program::new(terrace_command()).args(["report", "sites", "--json"]).arg(&file).succeed();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let of = |name: &str| {
        let sites = shown["sites"].as_array().expect("a list").iter();
        let by_name = |site: &&serde_json::Value| {
            site["functions"].as_array().is_some_and(|all| {
                all.iter().any(|function| {
                    function.as_str().is_some_and(|function| function.starts_with(name))
                })
            })
        };
        let found: Vec<&serde_json::Value> = sites.filter(by_name).collect();
        assert_eq!(found.len(), 1, "{name} in {shown:#}");
        found[0]["site"].clone()
    };
    let (hot, cold) = (of("make_hot"), of("make_cold"));
    let number = |site: &serde_json::Value, key: &str| site[key].as_f64().expect("a number");
    assert!(number(&hot, "samples") > 20.0 * number(&cold, "samples").max(1.0), "{hot} {cold}");
    assert!(number(&cold, "bytes") > 5.0 * number(&hot, "bytes"), "{hot} {cold}");
    let in_dram = |site: &serde_json::Value| {
        site["tier_bytes"][0].as_f64().expect("a number") / number(site, "bytes")
    };
    // Means over time: while all of it was made, both left.
    assert!(in_dram(&hot) > 2.0 * in_dram(&cold), "{hot} {cold}");
    // Large objects and those that the program placed.
    let (large, larger, placed) = (of("make_large ("), of("make_larger"), of("(placed cold"));
    assert_eq!(
        (number(&large, "objects"), number(&larger, "objects"), number(&placed, "objects")),
        (39.0, 1.0, 20_000.0)
    );
    assert!((39.0 * 100_000.0..39.0 * 120_000.0).contains(&number(&large, "bytes")), "{large}");
    assert!(
        (5e6..6.5e6).contains(&number(&larger, "bytes")) && number(&larger, "samples") > 0.0,
        "{larger}"
    );
    assert!((2e6..2.5e6).contains(&number(&placed, "bytes")), "{placed}");
    // For people, the same.
    let shown = Program::new(terrace_command()).args(["report", "sites"]).arg(&file).succeed();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let (hottest, coldest) = text.split_once("coldest").unwrap_or_else(|| panic!("{text}"));
    assert!(["dram", "lz4"].iter().all(|tier| hottest.contains(tier)), "{text}");
    assert!(
        hottest.contains("make_hot")
            && coldest.contains("make_cold")
            && coldest.contains("hot_and_cold_sites.c"),
        "{text}"
    );
}
