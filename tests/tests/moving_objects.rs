//! `include/terrace_objects.h`: two caches in `examples/`, one whose entries move and one whose
//! entries stay. The first gives what it was given, alone and over Terrace's tiers, and differs
//! little from the second.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use terrace_tests::{
    Program, Terrace, Zram, compiled, number_from_environment, objects_library, skip,
};

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
static THREADS: LazyLock<PathBuf> =
    LazyLock::new(|| linked(Path::new("objects_threads.c"), &["-Werror"]));

/// A case of `objects_in_c.c`, with callbacks that are checked or not.
fn in_c(case: &str, checked: bool) -> Output {
    let checked = if checked { "1" } else { "-1" };
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

/// Number of pages that the kernel has swapped out so far, of all programs.
fn swapped_out() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap();
    let count = counts.lines().find_map(|line| line.strip_prefix("pswpout "));
    count.and_then(|count| count.parse().ok()).expect("the kernel counts them")
}

/// Pages leave by the kernel's swap alone. The cache checks each value that it finds.
#[test]
fn entries_move_over_the_kernels_swap() {
    let _zram = match Zram::swap_on(512 << 20) {
        Ok(zram) => zram,
        Err(why) => return skip("entries_move_over_the_kernels_swap", &why),
    };
    let before = swapped_out();
    let finished = Program::new(&*MOVABLE)
        .arg("2000000")
        .under(Terrace::within("140M").and("--tiers=dram,swap"))
        .succeed();
    assert!(moved(&String::from_utf8_lossy(&finished.stdout)) > 0, "no entry moved");
    let pages = swapped_out() - before;
    assert!(pages > 1000, "{pages} pages were swapped out");
}

/// Readers pin, and go on after they left. Writers replace, delete and change in place. One thread
/// calls the step with the paper's callback, and begins each round itself.
#[test]
fn threads_in_c_find_every_value_while_objects_move() {
    let finished = Program::new(&*THREADS).succeed();
    println!("{}", String::from_utf8_lossy(&finished.stdout));
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

/// A program whose settings say nothing is checked, unless it is built with NDEBUG.
#[test]
fn debug_builds_in_c_are_checked() {
    let case = |program: &Path| Command::new(program).args(["no_result", "0"]).output().unwrap();
    let output = case(IN_C.as_path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told = "a result that is none of the five";
    assert!(!output.status.success() && stderr.contains(told), "{stderr}");
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("objects_in_c_ndebug.c");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/objects_in_c.c");
    std::fs::write(&source, format!("#include \"{}\"\n", original.display())).unwrap();
    let output = case(&linked(&source, &["-DNDEBUG", "-rdynamic"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A source file that has the header for its types alone needs no library.
#[test]
fn the_header_alone_needs_no_library() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("objects_header_alone.c");
    let text = "#include <terrace_objects.h>\nint main(void) { return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let include = example("../include");
    let options = ["-Werror", "-I", include.to_str().unwrap()];
    let output = Command::new(compiled(&source, &options)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What `make install` places is enough to build a program with the words of its first lines.
#[test]
fn pkg_config_knows_what_to_link_with() {
    let scratch = tempfile::tempdir().unwrap();
    let prefix = scratch.path().join("installed");
    let built = objects_library().parent().expect("it has a directory").to_owned();
    Program::new("make")
        .args(["-s", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/.."), "install"])
        .arg(format!("PREFIX={}", prefix.display()))
        .arg(format!("RELEASE={}", built.display()))
        .succeed();
    let source = std::fs::read_to_string(example("movable_cache.c")).unwrap();
    let line = source.lines().find_map(|line| line.trim().strip_prefix("*     cc "));
    let command = format!("cc {}", line.expect("the example says how it is built"));
    std::fs::write(scratch.path().join("movable_cache.c"), &source).unwrap();
    Program::new("sh")
        .args(["-c", &format!("{command} && ./movable_cache 1000")])
        .current_dir(scratch.path())
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .succeed();
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

/// Whether this is Debian, where setup installs what tests need.
fn is_debian() -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == "ID=debian")
}

/// gcc must be there with all three sanitizers: its package brings them. On Debian, setup installs
/// clang with its own. Elsewhere clang is used where it is there.
///
/// The library's archive is not instrumented. A program of several threads therefore tells
/// ThreadSanitizer itself what the library orders (`objects_threads.c`).
#[test]
fn c_programs_are_clean_under_sanitizers() {
    let (library, include) = (objects_library(), example("../include"));
    let threads = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/objects_threads.c");
    let sources = [example("cache.c"), example("movable_cache.c"), threads];
    for (compiler, sanitizer) in ["gcc", "clang"]
        .into_iter()
        .flat_map(|compiler| ["address", "leak", "thread"].map(|sanitizer| (compiler, sanitizer)))
    {
        if !compiles(compiler, sanitizer) {
            let what = format!("{compiler} -fsanitize={sanitizer}");
            let why = "it makes no program: run scripts/setup.sh test, on Debian";
            if compiler == "gcc" || is_debian() {
                skip(&what, why);
            } else {
                println!("skipped: {what}: {why}");
            }
            continue;
        }
        let slower = if sanitizer == "thread" { 3 } else { 1 };
        let slow = number_from_environment("TERRACE_TEST_SLOW", 1) * slower;
        let scratch = tempfile::tempdir().unwrap();
        for source in &sources {
            let program = scratch.path().join("program");
            let output = Command::new(compiler)
                .args(["-O1", "-g", "-pthread", &format!("-fsanitize={sanitizer}"), "-I"])
                .args([&include, Path::new("-o"), &program, source, &library])
                .args(["-ldl", "-lm"])
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // ThreadSanitizer knows fewer address layouts than the kernel makes. Programs of one
            // thread, which it slows down most, have little to show to it.
            let requests = if sanitizer == "thread" { "200000" } else { "2000000" };
            let mut command = Command::new("setarch");
            command.arg("-R").arg(&program).arg(requests);
            let output = command.env("TERRACE_TEST_SLOW", slow.to_string()).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && !told.contains("Sanitizer"),
                "{}, {compiler}, {sanitizer}: {told}",
                source.display()
            );
        }
    }
}
