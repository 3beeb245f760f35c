//! `terrace status`.

mod support;

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use support::{Scratch, line, stdout};
use terrace_control::stats::{self, State};
use terrace_testkit::process::{self, is_root};
use terrace_testkit::public::Public;
use terrace_testkit::wait::Wait;

const WAIT: Wait = Wait::within(Duration::from_secs(20));

/// The runs of this test, as it tells of them.
fn runs(scratch: &Scratch) -> Vec<Value> {
    let output = scratch.terrace(&["status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours = |run: &Value| {
        run["directory"].as_str().unwrap().starts_with(scratch.path("runs").to_str().unwrap())
    };
    status["runs"].as_array().unwrap().iter().filter(|run| ours(run)).cloned().collect()
}

fn await_runs(scratch: &Scratch, wanted: usize) -> Vec<Value> {
    let is_whole = |run: &Value| run["processes"].as_array().is_some_and(|all| !all.is_empty());
    WAIT.until_ok(&format!("{wanted} runs"), || match runs(scratch) {
        runs if runs.len() == wanted && runs.iter().all(is_whole) => Ok(runs),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn runs_are_told_while_they_live() {
    let Some(scratch) = Scratch::new() else { return };
    assert_eq!(runs(&scratch), [Value::Null; 0]);
    let page = scratch.page(|page| {
        page.state.store(State::Active as u32, Relaxed);
        page.pid_namespace.store(terrace_os::pid_namespace(), Relaxed);
        page.logical_bytes.store(300 << 20, Relaxed);
        page.budget_bytes.store(200 << 20, Relaxed);
        page.tier_count.store(1, Relaxed);
        stats::set_text(&page.tiers[0].name, "dram");
        stats::set_text(&page.program, "sleep");
    });
    let start = |dram: &str| -> Child {
        let mut command = scratch.terrace(&["run", "--dram", dram, "--", "sleep", "60"]);
        command
            .env("STUB_PAGE", &page)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let (mut first, mut second) = (start("60%"), start("2G"));
    let told = await_runs(&scratch, 2);
    let mut budgets: Vec<&str> = told.iter().map(|run| run["dram"].as_str().unwrap()).collect();
    budgets.sort_unstable();
    assert_eq!(budgets, ["2147483648", "60%"]);
    for run in &told {
        let process = &run["processes"][0];
        assert_eq!((&run["command"][0], &process["program"]), (&"sleep".into(), &"sleep".into()));
        assert_eq!(
            (&process["state"], &process["logical_bytes"]),
            (&"active".into(), &(300u64 << 20).into())
        );
        assert!(process["silent_s"].as_f64() > Some(5.0), "its page is not written to: {process}");
    }
    let text = stdout(&scratch.terrace(&["status"]).output().unwrap());
    assert!(
        text.contains("sleep 60  (--dram 60% --tiers dram,lz4,zstd:1; for ")
            && text.contains("these figures are old"),
        "{text}"
    );
    // Each second another answer, until the reader is gone.
    let mut watch = scratch.terrace(&["status", "--json", "--watch"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert!(answer["runs"].as_array().unwrap().len() >= 2, "{answer}");
    }
    drop(answers);
    assert!(watch.wait().unwrap().success(), "a closed pipe is no error");
    // A killed run is one while its program lives.
    let pids: Vec<i32> =
        told.iter().map(|run| run["processes"][0]["pid"].as_i64().unwrap() as i32).collect();
    first.kill().unwrap();
    first.wait().unwrap();
    await_runs(&scratch, 2);
    for pid in pids {
        process::signal(pid, libc::SIGTERM);
    }
    second.wait().unwrap();
    assert_eq!(runs(&scratch), [Value::Null; 0]);
}

/// A program with 80 MiB of shared memory, which waits for a signal.
const SHARING: &str = "\
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    size_t bytes = 80 << 20;
    char *shared = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    memset(shared, 1, bytes);
    alarm(120);
    pause();
    return 0;
}
";

/// In a container a process has a small number, which is another process's outside.
#[test]
fn memory_of_a_process_in_a_pid_namespace_is_told_from_outside() {
    if !is_root() {
        println!("skipped: only root makes a PID namespace");
        return;
    }
    let Some(scratch) = Scratch::new() else { return };
    let Some(program) = scratch.program("sharing", SHARING, &[]) else { return };
    // The namespace is told before the run begins, for the statistics page of the stand-in.
    let script = "stat -Lc %i /proc/self/ns/pid; read go; exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, "sh"])
        .args([env!("CARGO_BIN_EXE_terrace"), "run", "--dram", "2G", "--"])
        .arg(&program);
    for (name, value) in scratch.terrace::<&str>(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut run = command
        .env("STUB_PAGE", scratch.path("page"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("util-linux is there");
    let Ok(namespace) = line(&mut run).trim().parse::<u64>() else {
        println!("skipped: no PID namespace can be made here");
        run.wait().unwrap();
        return;
    };
    let page = scratch.page(|page| {
        page.state.store(State::Active as u32, Relaxed);
        page.pid_namespace.store(namespace, Relaxed);
        page.logical_bytes.store(8 << 20, Relaxed);
        page.mean_unmanaged_bytes.store(90 << 20, Relaxed);
        // It is not written to again, and lives as long as it seems to be.
        page.updated_ns.store(terrace_os::now_ns() + 3_600_000_000_000, Relaxed);
        stats::set_text(&page.program, "sharing");
    });
    assert_eq!(page, scratch.path("page"));
    // At the end of its input the shell goes on.
    drop(run.stdin.take());
    WAIT.until_ok("shared memory of 80 MiB", || {
        let told = await_runs(&scratch, 1);
        let process = &told[0]["processes"][0];
        let shared = process["other_memory"]["shared_bytes"].as_u64().unwrap_or(0);
        if shared < 80 << 20 {
            return Err(process.to_string());
        }
        assert!(shared < 90 << 20 && process["pid"].as_u64() < Some(100), "{process}");
        Ok(())
    });
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn another_users_run_is_counted_and_not_shown() {
    const NOBODY: u32 = 65534;
    if !is_root() {
        println!("skipped: only root becomes another user");
        return;
    }
    let Some(scratch) = Scratch::new() else { return };
    // Where that user may execute the command, and look for runs.
    let place = Public::with(&[]);
    let copy = place.publish(Path::new(env!("CARGO_BIN_EXE_terrace")));
    let page = scratch.page(|page| page.state.store(State::Active as u32, Relaxed));
    let mut run = scratch
        .terrace(&["run", "--dram", "2G", "--", "sleep", "60"])
        .env("STUB_PAGE", &page)
        .env("XDG_RUNTIME_DIR", "/dev/shm")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(words).env_clear().uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    WAIT.until_ok("the other user's run is counted", || {
        let status: Value =
            serde_json::from_slice(&as_nobody(&["status", "--json"]).stdout).unwrap();
        assert_eq!(status["runs"].as_array().map(Vec::len), Some(0), "{status}");
        if status["runs_of_others"].as_u64() > Some(0) { Ok(()) } else { Err(status) }
    });
    let text = stdout(&as_nobody(&["status"]));
    assert!(text.contains("only they and root can look at them"), "{text}");
    let refused = as_nobody(&["set", &run.id().to_string(), "--dram", "1G"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    process::signal(run.id() as i32, libc::SIGTERM);
    run.wait().unwrap();
}
