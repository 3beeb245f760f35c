//! `include/terrace_objects.h`: the cache of `examples/` whose entries move gives what it was
//! given, alone and over Terrace's tiers, and differs little from the one whose entries stay.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use terrace_tests::{Program, Terrace, compiled, objects_library};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

fn movable(options: &[&str]) -> PathBuf {
    let library = objects_library();
    let include = example("../include");
    let library = ["-I", include.to_str().unwrap(), library.to_str().unwrap(), "-ldl", "-lm"];
    compiled(example("movable_cache.c"), &[options, &library].concat())
}

static MOVABLE: LazyLock<PathBuf> = LazyLock::new(|| movable(&["-Werror"]));

/// Entries that moved, by what the program printed.
fn moved(output: &str) -> u64 {
    let told = output.split(' ').next().and_then(|number| number.parse().ok());
    assert!(output.contains(" 0 misused"), "{output}");
    told.unwrap_or_else(|| panic!("it says how many entries moved: {output}"))
}

#[test]
fn a_cache_is_made_movable_with_few_lines() {
    let lines = |name: &str| {
        let text = std::fs::read_to_string(example(name)).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (before, after) = (lines("cache.c"), lines("movable_cache.c"));
    let output =
        Command::new("diff").args([example("cache.c"), example("movable_cache.c")]).output();
    let told = String::from_utf8(output.expect("diff is there").stdout).unwrap();
    let changed = told.lines().filter(|line| line.starts_with(['<', '>'])).count();
    assert!(
        changed > 0 && changed <= 40,
        "{changed} lines of {} and {}",
        before.len(),
        after.len()
    );
}

#[test]
fn the_cache_whose_entries_stay_works() {
    let program = compiled(example("cache.c"), &["-Werror"]);
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn entries_move_and_are_as_they_were() {
    let output = Command::new(&*MOVABLE).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(moved(&String::from_utf8_lossy(&output.stdout)) > 1000);
}

#[test]
fn entries_move_over_terraces_tiers() {
    for way in [Terrace::within("24M"), Terrace::stressed()] {
        let finished = Program::new(&*MOVABLE).arg("300000").under(way).run();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        moved(&String::from_utf8_lossy(&finished.stdout));
    }
}
