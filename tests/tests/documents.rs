//! Each command on the pages of the documents works, on the build under test. Otherwise the page
//! says which test runs it, or what it needs that no test has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use terrace_testkit::process::is_root;
use terrace_tests::page::{Block, blocks, pages};
use terrace_tests::{Program, is_installed, skip, terrace_command};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Reasons why no test runs a block: the mark `not-run`, and words that the block then has.
const REASONS: [(&str, &str); 8] = [
    ("hours", "no test has the time"),
    ("quiet", "no test has a quiet machine"),
    ("build", "no test builds everything anew"),
    ("docker", "no test has a Docker daemon"),
    ("kubectl", "no test has a cluster"),
    ("hardware", "no test has such memory"),
    ("dnf", "no test has dnf"),
    ("cargo-fuzz", "no test has cargo-fuzz"),
];

/// A command with a single space between any two words.
fn collapsed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong with a block's marks.
fn faults_of(page: &str, block: &Block) -> Vec<String> {
    let mut faults = Vec::new();
    let language = block.words.first().map(String::as_str);
    match language {
        None => faults.push("a block without a language".to_owned()),
        // Others have no commands.
        Some("sh" | "console" | "ini" | "json" | "text" | "toml" | "udev") => {}
        Some(other) => faults.push(format!("what is `{other}`?")),
    }
    for word in block.words.iter().skip(1) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let is_right = match name {
            "run-by" => Path::new(REPOSITORY).join(value.split(':').next().unwrap()).is_file(),
            "needs" => value.split(',').all(|need| NEEDS.contains(&need)),
            "not-run" => {
                REASONS.iter().any(|(why, says)| *why == value && block.text.contains(says))
            }
            "file" => true,
            _ => false,
        };
        if !is_right {
            faults.push(format!("what is `{word}`? With not-run, the block must say why"));
        }
    }
    // A function takes its commands from the page, so it names the page, or itself to ask for them.
    let mut texts = String::new();
    let mut has_function = false;
    for (file, function) in block.run_by() {
        let text = fs::read_to_string(Path::new(REPOSITORY).join(file)).unwrap_or_default();
        if function.is_empty() {
            texts += &text.replace("$(CARGO)", "cargo");
            continue;
        }
        has_function = true;
        if !text.contains(&format!("\nfn {function}() {{")) {
            faults.push(format!("{file} has no function {function}"));
        }
        if !text.contains(&format!("\"{function}\"")) && !text.contains(&format!("\"{page}\"")) {
            faults.push(format!("{file} takes nothing from this page for {function}"));
        }
    }
    let texts = collapsed(&texts);
    if !texts.is_empty() && !has_function {
        let commands = block.commands();
        let missing = commands.iter().filter(|command| !texts.contains(*command));
        faults.extend(missing.map(|command| format!("`{command}` is not where run-by says")));
    }
    faults
}

#[test]
fn no_command_is_on_a_page_without_a_word_of_who_runs_it() {
    let mut faults = Vec::new();
    for path in &pages() {
        let text = fs::read_to_string(path).unwrap();
        let page = path.strip_prefix(REPOSITORY).unwrap().to_str().unwrap().to_owned();
        let (blocks, indented) = blocks(&text);
        faults.extend(
            indented.iter().map(|line| format!("{page}:{line}: a block without a language")),
        );
        for block in &blocks {
            let of_block = faults_of(&page, block);
            faults.extend(of_block.iter().map(|fault| format!("{page}:{}: {fault}", block.line)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_mark_that_promises_too_much_is_found() {
    let faults = |marks: &str| {
        let text = format!("```sh {marks}\nterrace doctor    # no test has dnf\n```\n");
        faults_of("docs/install.md", &blocks(&text).0[0])
    };
    const HERE: &str = "tests/tests/documents.rs";
    assert_eq!(faults("not-run=dnf"), [""; 0]);
    // Its reason is not what the block says; it is no reason; the file is not there.
    for marks in ["not-run=docker", "not-run=laziness", "run-by=tests/nothing.rs", "run=1"] {
        assert_eq!(faults(marks).len(), 1, "{marks}");
    }
    // The command is in this file, as `terrace doctor` above; in the other it is not.
    assert_eq!(faults(&format!("run-by={HERE}")), [""; 0]);
    assert_eq!(faults("run-by=Makefile").len(), 1);
    // A function that there is not, which nothing asks for; and one that there is.
    assert_eq!(faults("run-by=tests/tests/old_kernels.rs:no_such_function").len(), 2);
    assert_eq!(faults(&format!("run-by={HERE}:every_command_on_every_page_works")), [""; 0]);
}

/// What blocks of commands may need.
const NEEDS: [&str; 4] = ["attach", "java", "library", "perf"];

/// The members of `NEEDS` that this machine has.
fn have(prefix: &Path) -> Vec<&'static str> {
    let is_root = is_root();
    let attach = is_root && cfg!(target_arch = "x86_64") && Path::new("/dev/userfaultfd").exists();
    let java = is_installed("java");
    let perf = Program::new(terrace_command())
        .args(["record", "-o"])
        // Not /dev/null: what is no ordinary file is refused.
        .arg(prefix.join("tried.rec"))
        .args(["--", "true"])
        .run()
        .status
        .success();
    let library = is_installed("cc") && is_installed("pkg-config") && prefix.join("lib").exists();
    let is_here = [attach, java, library, perf];
    NEEDS.into_iter().zip(is_here).filter_map(|(need, is_here)| is_here.then_some(need)).collect()
}

#[test]
fn a_command_that_fails_in_the_background_fails_its_page() {
    let scratch = tempfile::tempdir().unwrap();
    let page = scratch.path().join("page.md");
    let run = |text: &str| {
        fs::write(&page, text).unwrap();
        let script = Path::new(REPOSITORY).join("scripts/run-page.sh");
        Program::new(script).arg(&page).run().status.success()
    };
    // Also where the page does not wait for it.
    for wait in ["wait\n", ""] {
        for (command, works) in [("true", true), ("false", false), ("(sleep 1; exit 3)", false)] {
            let page = format!("```sh\n{command} &\ntrue\n{wait}```\n");
            assert_eq!(run(&page), works, "{page}");
        }
    }
    assert!(run("```toml file=a.toml\n[a b]\n```\n\n```sh\ngrep 'a b' a.toml\n```\n"));
}

#[test]
fn every_command_on_every_page_works() {
    if !is_root() && !Path::new("/dev/userfaultfd").exists() {
        return skip("the pages' commands", "there is no right to userfaultfd");
    }
    let scratch = tempfile::tempdir().unwrap();
    let prefix = scratch.path().join("installed");
    let built = terrace_command().parent().expect("it has a directory").to_owned();
    Program::new("make")
        .args(["-s", "-C", REPOSITORY, "install"])
        .arg(format!("PREFIX={}", prefix.display()))
        .arg(format!("RELEASE={}", built.display()))
        .succeed();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", prefix.join("bin").display());
    let have = have(&prefix);
    let run = |page: &PathBuf| {
        Program::new(Path::new(REPOSITORY).join("scripts/run-page.sh"))
            .arg(page)
            .args(&have)
            .env("PATH", &path)
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .env("LD_LIBRARY_PATH", prefix.join("lib/terrace"))
            .time_limit(Duration::from_secs(100))
            .run()
    };
    let pages = pages();
    let next = AtomicUsize::new(0);
    let run_next = || pages.get(next.fetch_add(1, Relaxed)).map(|page| (page, run(page)));
    // Mostly they wait for their own programs, so several at a time.
    let finished: Vec<_> = std::thread::scope(|scope| {
        let threads =
            [(); 4].map(|()| scope.spawn(|| std::iter::from_fn(run_next).collect::<Vec<_>>()));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let failed: Vec<String> = finished
        .iter()
        .filter(|(_, finished)| !finished.status.success())
        .map(|(page, finished)| finished.account(&format!("{page:?} failed")))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let passed_over = finished
        .iter()
        .flat_map(|(_, finished)| finished.stderr.lines())
        .filter(|line| line.starts_with("passed over: "));
    let (missing, others): (Vec<&str>, Vec<&str>) =
        passed_over.partition(|line| line.contains(": needs "));
    println!("{}", others.join("\n"));
    if !missing.is_empty() {
        skip("some pages' commands", &missing.join("\n"));
    }
}
