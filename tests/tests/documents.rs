//! The pages of the tutorial and the how-to: each command on them works, on the build under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_tests::{Program, is_installed, skip, terrace_command};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// All pages with commands.
fn pages() -> Vec<PathBuf> {
    let documents = Path::new(REPOSITORY).join("docs");
    let how_to = fs::read_dir(documents.join("how-to")).expect("there is such a directory");
    let mut pages: Vec<PathBuf> = how_to.map(|entry| entry.unwrap().path()).collect();
    pages.push(documents.join("first-hour.md"));
    pages.sort();
    pages
}

/// What of that which pages need is here.
fn have(prefix: &Path) -> Vec<&'static str> {
    let programs = ["java", "javac"].into_iter().filter(|program| is_installed(program));
    let perf = Program::new(terrace_command())
        .args(["record", "-o", "/dev/null", "--", "true"])
        .run()
        .status
        .success();
    let library = is_installed("cc") && is_installed("pkg-config") && prefix.join("lib").exists();
    programs.chain(perf.then_some("perf")).chain(library.then_some("library")).collect()
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
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = pages
            .chunks(quarter)
            .map(|pages| {
                scope.spawn(move || {
                    let finished = pages.iter().map(|page| (page, run(page)));
                    finished
                        .filter(|(_, finished)| !finished.status.success())
                        .map(|(page, finished)| finished.account(&format!("{page:?} failed")))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
