//! `terrace set`, and what is told of a run whose `terrace run` was killed.

mod support;

use serde_json::Value;
use std::fs;
use std::mem::offset_of;
use std::ops::RangeBounds;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use support::{Scratch, stderr, stdout};
use terrace_control::stats::{self, State, StatsPage};
use terrace_os as sys;
use terrace_testkit::process::{self, is_root};
use terrace_testkit::public::Public;
use terrace_testkit::wait::Wait;

const MIB: u64 = 1 << 20;
const WAIT: Wait = Wait::within(Duration::from_secs(30));
/// 64 MiB, as a run tells it.
const LOWER: &str = "67108864";

/// A run of `sleep` that says that it has this much memory; its process is ended with this value.
struct Started<'a> {
    scratch: &'a Scratch,
    child: Child,
    pid: u32,
}

impl<'a> Started<'a> {
    fn new(scratch: &'a Scratch, options: &[&str]) -> Started<'a> {
        let page = scratch.page(|page| {
            page.state.store(State::Active as u32, Relaxed);
            page.pid_namespace.store(sys::pid_namespace(), Relaxed);
            for field in [&page.logical_bytes, &page.physical_bytes] {
                field.store(80 * MIB, Relaxed);
            }
            // It stays fresh for as long as the test can take.
            page.updated_ns.store(sys::now_ns() + 600_000_000_000, Relaxed);
            stats::set_text(&page.program, "sleep");
        });
        let words = [&["run"], options, &["--", "sleep", "60"]].concat();
        let mut command = scratch.terrace(&words);
        let child = command
            .env("STUB_PAGE", page)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut started = Started { scratch, child, pid: 0 };
        let told = started.await_status(|run| run["processes"][0]["pid"].is_u64());
        started.pid = told["processes"][0]["pid"].as_u64().unwrap() as u32;
        started
    }

    fn status(&self) -> Option<Value> {
        let output = self.scratch.terrace(&["status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ours = |run: &&Value| run["supervisor"] == self.child.id();
        status["runs"].as_array().unwrap().iter().find(ours).cloned()
    }

    fn await_status(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        WAIT.until_ok("what is wanted of the run", || match self.status() {
            Some(run) if wanted(&run) => Ok(run),
            other => Err(format!("{other:?}")),
        })
    }

    fn set(&self, pid: u32, options: &[&str]) -> Output {
        let pid = pid.to_string();
        let words = [&["set", &pid], options].concat();
        self.scratch.terrace(&words).output().unwrap()
    }

    #[track_caller]
    fn is_refused(&self, pid: u32, options: &[&str], why: &str) {
        let output = self.set(pid, options);
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }

    /// Waits until the share of the budget that the process is told is in a range.
    #[track_caller]
    fn await_share(&self, wanted: impl RangeBounds<u64>) {
        WAIT.until_ok("the share that the process is told", || match self.share() {
            share if wanted.contains(&share) => Ok(()),
            other => Err(other),
        });
    }

    /// Share of the budget that the process is told.
    fn share(&self) -> u64 {
        let directory = self.scratch.run_directories().pop().unwrap();
        let page: PathBuf = self.scratch.path("runs").join(directory);
        let page = page.join(format!("{}-1.stats", self.pid));
        let page = fs::read(page).unwrap();
        u64::from_ne_bytes(page[offset_of!(StatsPage, share_bytes)..][..8].try_into().unwrap())
    }

    fn kill(&self) {
        if self.pid == 0 {
            // It is not known yet, and 0 would be this test itself.
            return;
        }
        process::signal(self.pid as i32, libc::SIGKILL);
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn limits_are_changed_while_the_run_lives() {
    let Some(scratch) = Scratch::new() else { return };
    let run = Started::new(&scratch, &["--dram", "1G"]);
    let output = run.set(run.pid, &["--dram", "64M"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output)
            .contains("sleep 60: --dram 64.0M --slowdown off, before --dram 1.0G --slowdown off"),
        "{}",
        stderr(&output)
    );
    let told = run.await_status(|run| run["dram"] == LOWER);
    assert_eq!(told["supervisor"], run.child.id());
    // Less what processes have that say nothing of themselves.
    run.await_share(60 * MIB..=64 * MIB);
    // By the number of `terrace run` too; what is not said stays.
    assert!(run.set(run.child.id(), &["--slowdown", "3%"]).status.success());
    run.await_status(|run| run["dram"] == LOWER && run["slowdown"] == "3%");
    assert!(
        run.set(run.pid, &["--dram", "unlimited", "--slowdown", "off"]).status.success(),
        "it is lifted"
    );
    run.await_status(|run| run["dram"] == "unlimited" && run["slowdown"] == Value::Null);
    run.await_share(1u64 << 60..);
    // And it holds again.
    assert!(run.set(run.pid, &["--dram", "64M"]).status.success(), "after it was lifted");
    run.await_share(..=64 * MIB);
    let names = fs::read_dir(scratch.path("runs").join(&scratch.run_directories()[0])).unwrap();
    let left: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("set")), "{left:?}");
}

#[test]
fn what_cannot_be_changed_is_refused_with_the_reason() {
    let Some(scratch) = Scratch::new() else { return };
    let run = Started::new(&scratch, &["--observe"]);
    run.is_refused(run.pid, &["--dram", "64M"], "moves nothing (--observe)");
    run.is_refused(
        1,
        &["--dram", "64M"],
        "no run here has a process 1: `terrace status` lists them",
    );
    run.is_refused(run.pid, &["--dram", "60"], "did you mean 60% or 60M?");
    run.is_refused(run.pid, &["--slowdown", "auto"], "--slowdown takes a share such as 2%, or off");
    run.is_refused(run.pid, &[], "--dram <SIZE|PCT>|--slowdown <PCT|off>");
    drop(run);
    let run = Started::new(&scratch, &["--dram", "unlimited", "--slowdown", "off"]);
    run.is_refused(run.pid, &["--dram", "64M"], "was started without a limit");
}

#[test]
fn a_killed_supervisor_is_told_in_one_line() {
    let Some(scratch) = Scratch::new() else { return };
    let mut run = Started::new(&scratch, &["--dram", "64M"]);
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    let told = run.await_status(|run| run["supervised"] == false);
    assert_eq!(told["processes"][0]["pid"], run.pid);
    let text = stdout(&scratch.terrace(&["status"]).output().unwrap());
    let line = "its `terrace run` was killed: budgets stay as they are, and no report follows";
    assert_eq!(text.matches(line).count(), 1, "{text}");
    run.is_refused(run.pid, &["--dram", "1G"], "was killed, so its limits stay as they are");
    // The next run leaves it alone while its program lives, and removes it then.
    let next = || assert!(scratch.terrace(&["run", "--", "true"]).status().unwrap().success());
    next();
    assert_eq!(run.await_status(|_| true)["supervised"], false);
    run.kill();
    WAIT.until("the run is not told of any more", || run.status().is_none());
    next();
    assert_eq!(scratch.run_directories(), [""; 0]);
}

#[test]
fn another_users_run_is_refused() {
    let Some(scratch) = Scratch::new() else { return };
    if !is_root() {
        return eprintln!("not tested: only root can be another user");
    }
    let run = Started::new(&scratch, &["--dram", "1G"]);
    // A place that all users may enter.
    let place = Public::with(&[]);
    let command = place.publish(Path::new(env!("CARGO_BIN_EXE_terrace")));
    for directory in [scratch.path("."), scratch.path("runs")] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_nobody = |words: &[&str]| -> Output {
        let mut command = std::process::Command::new(&command);
        command.args(words).env("XDG_RUNTIME_DIR", scratch.path("runs"));
        command.uid(65534).gid(65534).output().unwrap()
    };
    let output = as_nobody(&["set", &run.pid.to_string(), "--dram", "64M"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("more are other users', which only they and root can change"),
        "{}",
        stderr(&output)
    );
    let text = stdout(&as_nobody(&["status"]));
    assert!(text.contains("only they and root can look at them"), "{text}");
    assert!(!text.contains("sleep 60  ("), "{text}");
    assert_eq!(run.await_status(|_| true)["dram"], (1u64 << 30).to_string());
}
