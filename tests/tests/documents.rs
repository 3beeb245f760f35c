//! The documents: each command on their pages works, on the build under test, or the page says which
//! test runs it, or what it is that no test has.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_tests::{Program, is_installed, skip, terrace_command};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// All pages but dated notes, and but the reference, which is made from the program: whether its
/// examples are understood is tested there.
fn pages() -> Vec<PathBuf> {
    let documents = Path::new(REPOSITORY).join("docs");
    let all = |directory: PathBuf| {
        let entries = fs::read_dir(directory).expect("there is such a directory");
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let parts = ["", "benchmarks", "design", "explanation", "how-to", "safety", "settings"];
    let mut pages: Vec<PathBuf> = parts.iter().flat_map(|part| all(documents.join(part))).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// Lines of a page that begin a block, with their numbers; and lines outside of blocks that begin with
/// four spaces, which make one too.
fn blocks(page: &str) -> (Vec<(usize, &str)>, Vec<usize>) {
    let (mut begin, mut indented, mut is_inside) = (Vec::new(), Vec::new(), false);
    for (number, line) in page.lines().enumerate() {
        if let Some(words) = line.trim_start().strip_prefix("```") {
            if !is_inside {
                begin.push((number + 1, words));
            }
            is_inside = !is_inside;
        } else if !is_inside && line.starts_with("    ") {
            indented.push(number + 1);
        }
    }
    (begin, indented)
}

/// Pages whose commands crates/kv/tests run; their blocks are by indentation.
const OF_THE_SERVER: [&str; 2] = ["terrace-kv.md", "terrace-kv-tls.md"];

#[test]
fn no_command_is_on_a_page_without_a_word_of_who_runs_it() {
    let mut faults = Vec::new();
    for path in pages().iter().filter(|page| !OF_THE_SERVER.iter().any(|of| page.ends_with(of))) {
        let page = fs::read_to_string(path).unwrap();
        let (begin, indented) = blocks(&page);
        let mut fault =
            |line: usize, what: &str| faults.push(format!("{}:{line}: {what}", path.display()));
        indented.iter().for_each(|line| fault(*line, "a block without a language"));
        for (line, words) in begin {
            let mut words = words.split_whitespace();
            match words.next() {
                None => fault(line, "a block without a language"),
                Some("sh") => {}
                // No commands.
                Some("console" | "ini" | "json" | "text" | "toml" | "udev") => {}
                Some(other) => fault(line, &format!("what is `{other}`?")),
            }
            for word in words {
                let known = match word.split_once('=') {
                    Some(("run-by", file)) => Path::new(REPOSITORY).join(file).exists(),
                    Some(("needs", needs)) => needs.split(',').all(|need| NEEDS.contains(&need)),
                    Some(("not-run" | "file", _)) => true,
                    _ => false,
                };
                if !known {
                    fault(line, &format!("what is `{word}`?"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What blocks of commands may need.
const NEEDS: [&str; 4] = ["attach", "java", "library", "perf"];

/// What of that which pages need is here.
fn have(prefix: &Path) -> Vec<&'static str> {
    // SAFETY: no arguments, no failure.
    let is_root = unsafe { libc::geteuid() } == 0;
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
    // SAFETY: no arguments, no failure.
    if unsafe { libc::geteuid() } != 0 && !Path::new("/dev/userfaultfd").exists() {
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
    // Mostly they wait for their own programs.
    let pages = pages();
    let quarter = pages.len().div_ceil(4);
    let finished: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = pages
            .chunks(quarter)
            .map(|pages| {
                scope.spawn(move || pages.iter().map(|page| (page, run(page))).collect::<Vec<_>>())
            })
            .collect();
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
