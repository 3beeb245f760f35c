//! `mnalloc`: objects lie where the program wants them, keep their contents, and misuse is told of.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use terrace_tests::{Cases, Program, Terrace, cases, compiled, machine, terrace_command};

const INCLUDE: [&str; 2] = ["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../include")];

static PLACEMENTS: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("placements.c", &INCLUDE),
    arguments: Vec::new(),
    ways: vec![
        Terrace::within("4G"),
        Terrace::stressed(),
        Terrace::stressed().and("--allocator=context"),
        Terrace::stressed().and("--allocator=system"),
        Terrace::failing(),
        Terrace::write_protecting(),
        Terrace::within("16M"),
    ],
});

cases! { PLACEMENTS.hold:
    neighbours
    apart
    reallocated
    usable_and_aligned
    threads_and_forks
    gone_while_out
    pinned_memory_stays
    any_advice
}

/// Objects that differ only in the expectation of the program: those expected to be cold leave
/// first.
#[test]
fn what_is_cold_leaves_first() {
    let _machine = machine();
    let finished = Program::new(&PLACEMENTS.program)
        .arg("what_is_cold_leaves_first")
        .under(Terrace::within("48M"))
        .succeed();
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    let shares: Vec<u32> = stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(
        matches!(shares[..], [hot, cold] if cold > 40 && cold > hot + 15),
        "{}",
        finished.account("evicted the wrong pages")
    );
}

#[test]
fn misuse_is_told_of_in_debug_builds() {
    let said = |program: &Path, allocator: &str| {
        let finished = Program::new(program)
            .arg("misuse")
            .under(Terrace::observing().and(&format!("--allocator={allocator}")))
            .run();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        finished.stderr
    };
    for allocator in ["size", "context"] {
        let stderr = said(&PLACEMENTS.program, allocator);
        for what in [
            "mnalloc next to",
            "in arena",
            "destroying arena",
            "free of",
            "placement 9",
            "alignment 48",
            "which was not allocated",
        ] {
            assert!(stderr.contains("misuse: ") && stderr.contains(what), "{what}: {stderr}");
        }
        assert!(!said(&compiled("placements_ndebug.c", &INCLUDE), allocator).contains("misuse"));
    }
}

/// Where Terrace is installed, as its README says.
static INSTALLED: LazyLock<PathBuf> = LazyLock::new(|| {
    let to = terrace_tests::target_directory().join("terrace-installed");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let made = Command::new("make")
        .arg("install")
        .arg(format!("PREFIX={}", to.display()))
        .current_dir(project)
        .output()
        .expect("make can be run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    to
});

/// The program's own words, alone and under `terrace run`.
fn runs(program: &Path, linked: bool) {
    for terrace in [None, Some(Terrace::within("4G")), Some(Terrace::stressed())] {
        let under = terrace.is_some();
        let finished = Program::new(program).arg("0").under(terrace).succeed();
        let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert!(
            stdout.contains("160000 of 160000 keys found"),
            "{}",
            finished.account("lost keys")
        );
        // Objects of a bucket by its pages: where there is Terrace, few.
        let words: Vec<f64> =
            stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [.., objects, pages] = words[..] else { panic!("{stdout}") };
        assert!(!(linked || under) || objects > 4.0 && (1.0..2.5).contains(&pages), "{stdout}");
        memory_told(&stdout);
    }
    // It is large enough to be managed, and its memory falls.
    let finished = Program::new(program).arg("8").under(Terrace::within("60%")).succeed();
    finished.report().expect_moves(1000, 0);
    let (before, after) = memory_told(&String::from_utf8_lossy(&finished.stdout));
    assert!(after < before, "{}", finished.account("has no less memory"));
}

/// Resident memory before and after, MiB, as an example prints it.
#[track_caller]
fn memory_told(stdout: &str) -> (u32, u32) {
    let of = |words: &str| -> Option<u32> {
        let line = stdout.lines().find(|line| line.contains(words))?;
        line.split(' ').next()?.parse().ok()
    };
    let told = (of(" MiB are resident once it is filled"), of(" s in which a tenth was read"));
    let (Some(before), Some(after)) = told else { panic!("{stdout}") };
    assert!(before > 0 && after > 0, "{stdout}");
    (before, after)
}

#[test]
fn the_examples_build_and_run() {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "terrace"])
        .env("PKG_CONFIG_PATH", INSTALLED.join("lib/pkgconfig"))
        .output()
        .expect("pkg-config can be run; on Debian: apt-get install pkg-config");
    assert!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    for (source, more) in [("buckets.c", "-Werror"), ("buckets.cpp", "-std=c++17")] {
        let program =
            compiled(Path::new("../../examples").join(source), &[&flags[..], &[more]].concat());
        runs(&program, true);
    }
    // Linked with nothing, calls by the functions' own names fall back.
    runs(&compiled("../../examples/buckets.c", &INCLUDE), false);
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = [
        "build",
        "--release",
        "--quiet",
        "-p",
        "terrace-api",
        "--features",
        "allocator-api2",
        "--example",
        "buckets",
    ];
    let built = Command::new(env!("CARGO"))
        .args(example)
        .current_dir(project)
        .output()
        .expect("cargo can be run");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    runs(&terrace_tests::target_directory().join("release/examples/buckets"), false);
}

/// A program that links with the library and runs under it has it once.
#[test]
fn it_is_there_once() {
    let library = format!("-L{}", INSTALLED.join("lib/terrace").display());
    let path = format!("-Wl,-rpath,{}", INSTALLED.join("lib/terrace").display());
    let program = compiled("maps.c", &[&library, &path, "-Wl,--no-as-needed", "-lterrace"]);
    let finished = Program::new(program).under(Terrace::within("4G")).succeed();
    let maps = String::from_utf8_lossy(&finished.stdout).into_owned();
    let mut files: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|file| file.contains("libterrace"))
        .collect();
    files.dedup();
    assert_eq!(files.len(), 1, "{files:?} by {}", terrace_command().display());
}

#[test]
fn containers_keep_their_arenas() {
    let program = compiled("containers.cpp", &[INCLUDE[0], INCLUDE[1], "-std=c++17"]);
    for terrace in [None, Some(Terrace::within("4G")), Some(Terrace::stressed())] {
        Program::new(&program).under(terrace).succeed();
    }
}

#[test]
fn a_malloc_of_the_programs_own_stays_its_own() {
    let program = compiled("own_malloc.c", &INCLUDE);
    for terrace in [None, Some(Terrace::within("4G"))] {
        let finished = Program::new(&program).under(terrace.clone()).succeed();
        assert!(
            terrace.is_none() || finished.stderr.contains("placements mean nothing"),
            "{}",
            finished.account("said nothing")
        );
    }
}

#[test]
fn the_manual_page_is_well_formed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man/mnalloc.3");
    let shown = Command::new("groff")
        .args(["-man", "-ww", "-Tutf8"])
        .arg(page)
        .output()
        .expect("groff can be run; on Debian: apt-get install groff");
    assert!(
        shown.status.success() && shown.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
}
