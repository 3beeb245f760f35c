//! `include/terrace_objects.h`: two caches in `examples/`, one whose entries move and one whose
//! entries stay. The first gives what it was given, alone and over Terrace's tiers, and differs
//! little from the second.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use terrace_tests::{Program, Terrace, compiled, objects_library, skip};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// A C program, linked with the library.
fn linked(source: &Path, options: &[&str]) -> PathBuf {
    let library = objects_library();
    let include = example("../include");
    let library = ["-I", include.to_str().unwrap(), library.to_str().unwrap(), "-ldl", "-lm"];
    compiled(source, &[options, &library].concat())
}

static MOVABLE: LazyLock<PathBuf> =
    LazyLock::new(|| linked(&example("movable_cache.c"), &["-Werror"]));
static IN_C: LazyLock<PathBuf> =
    LazyLock::new(|| linked(Path::new("objects_in_c.c"), &["-Werror", "-rdynamic"]));

/// A case of `objects_in_c.c`, with callbacks that are checked or not.
fn in_c(case: &str, checked: bool) -> Output {
    let checked = if checked { "1" } else { "0" };
    Command::new(&*IN_C).args([case, checked]).output().unwrap()
}

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
    assert!(before.len() <= 200, "cache.c has {} lines, and is to have 200", before.len());
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

#[test]
fn breaches_by_c_programs_are_told_by_name() {
    for (case, told) in [
        ("no_result", "a result that is none of the five"),
        ("kept_reference", "the reference does not name the copy"),
    ] {
        let output = in_c(case, true);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(told), "{case}: {stderr}");
    }
}

#[test]
fn results_that_are_none_are_counted_and_taken_for_immovable() {
    let output = in_c("no_result", false);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.starts_with("moved 0, misused 1, immovable 1;"), "{told}");
}

/// The test program's own function `terrace_advise`, which stands for that of the preloaded
/// library, is called once for each segment.
#[test]
fn terrace_is_told_once_which_segments_are_hot_and_which_cold() {
    for checked in [false, true] {
        let output = in_c("right", checked);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected = "moved 1, misused 0, immovable 0; hot 1, cold 1, again 0\n";
        assert_eq!(told, expected);
    }
}

/// Whether a compiler is there, and makes programs with a sanitizer.
fn compiles(compiler: &str, sanitizer: &str) -> bool {
    let scratch = tempfile::tempdir().unwrap();
    let (source, program) = (scratch.path().join("empty.c"), scratch.path().join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let flag = format!("-fsanitize={sanitizer}");
    let made = Command::new(compiler).arg(flag).arg("-o").args([&program, &source]).output();
    made.is_ok_and(|made| made.status.success())
}

/// gcc must be there with all three sanitizers: its package brings them. Setup does not install
/// clang, whose packages take 230 MB for checks that gcc makes of the same code. Where clang is
/// there, it is used.
#[test]
fn c_programs_are_clean_under_sanitizers() {
    let (library, include) = (objects_library(), example("../include"));
    for (compiler, sanitizer) in ["gcc", "clang"]
        .into_iter()
        .flat_map(|compiler| ["address", "leak", "thread"].map(|sanitizer| (compiler, sanitizer)))
    {
        if !compiles(compiler, sanitizer) {
            let what = format!("{compiler} -fsanitize={sanitizer}");
            match compiler {
                "gcc" => skip(&what, "it makes no program: run scripts/setup.sh test"),
                _ => println!("skipped: {what}: not installed, and setup does not install it"),
            }
            continue;
        }
        let scratch = tempfile::tempdir().unwrap();
        for source in ["cache.c", "movable_cache.c"] {
            let program = scratch.path().join("program");
            let output = Command::new(compiler)
                .args(["-O1", "-g", "-pthread", &format!("-fsanitize={sanitizer}"), "-I"])
                .args([&include, Path::new("-o"), &program, &example(source), &library])
                .args(["-ldl", "-lm"])
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // ThreadSanitizer knows fewer address layouts than the kernel makes.
            let requests = "2000000";
            let mut command = Command::new("setarch");
            let output = command.arg("-R").arg(&program).arg(requests).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && !told.contains("Sanitizer"),
                "{source}, {compiler}, {sanitizer}: {told}"
            );
        }
    }
}
