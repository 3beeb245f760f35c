//! A control group's limit on memory, enforced by the kernel from outside, loses nothing and blocks
//! nothing for ever.

use std::fs;
use std::path::{Path, PathBuf};
use terrace_tests::{Finished, Program, Terrace, compiled, skip};

/// A control group of this test's own, below the one that it runs in. Removed when dropped.
struct Group(PathBuf);

impl Group {
    fn create(name: &str) -> std::io::Result<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let parts = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let own = |controller: &str| {
            parts
                .clone()
                .find(|(names, _)| names.split(',').any(|name| name == controller))
                .map(|(_, path)| path)
        };
        let parent = match (own("memory"), own("")) {
            (Some(path), _) => {
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'))
            }
            (None, path) => {
                Path::new("/sys/fs/cgroup").join(path.unwrap_or_default().trim_start_matches('/'))
            }
        };
        let directory = parent.join(format!("terrace-test-{name}-{}", std::process::id()));
        fs::create_dir(&directory)?;
        let group = Group(directory);
        match ["memory.limit_in_bytes", "memory.max"].iter().any(|file| group.0.join(file).exists())
        {
            true => Ok(group),
            false => Err(std::io::Error::other("the memory controller is not available here")),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn run(case: &str, terrace: impl Into<Option<Terrace>>) -> Option<Finished> {
    let group = match Group::create(case) {
        Ok(group) => group,
        Err(error) => {
            skip(case, &format!("cannot make a control group: {error}"));
            return None;
        }
    };
    let program = Program::new(compiled("memory_is_limited_from_outside.c", &[]))
        .arg(case)
        .env("CONTROL_GROUP", &group.0);
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

/// The kernel would end the program for what it uses, which is what happens without Terrace, and
/// where the budget is above the limit.
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

/// Pages cannot come back for lack of memory, and do when there is some.
#[test]
fn no_memory_for_a_while() {
    for terrace in
        [None, Some(Terrace::within("4G")), Some(Terrace::within("4G").and("--tiers=dram,zstd:1"))]
    {
        holds("no_memory_for_a_while", terrace);
    }
}
