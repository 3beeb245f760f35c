//! What is measured: the tests' own programs, and a starter that measures any other program from
//! beside it.

use super::tests::Test;
use super::{single, threads};
use crate::machine;
use anyhow::Context;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;
use terrace_testkit::process::status_bytes;

/// Runs a test in this process.
pub fn run(test: Test, scale: f64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let operations = match test {
        Test::Pair => single::pair(scale),
        Test::PairSizes => single::pair_sizes(scale),
        Test::Churn => single::churn(scale),
        Test::Cfrac => single::cfrac(scale),
        Test::Growth => single::growth(scale),
        Test::Tree => single::tree(scale),
        Test::Larson => without_count(threads::larson, scale),
        Test::Xmalloc => without_count(threads::xmalloc, scale),
        Test::Mstress => without_count(threads::mstress, scale),
        Test::ThreadChurn => without_count(threads::thread_churn, scale),
        Test::ManyThreads => without_count(threads::many_threads, scale),
        Test::PythonMalloc | Test::Python | Test::Sqlite | Test::Gcc | Test::Redis => {
            anyhow::bail!("{} is another program", test.name())
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}",
        figures(seconds, machine::cpu_seconds(libc::RUSAGE_SELF), peak_bytes("self")?, operations)
    );
    Ok(())
}

fn without_count(test: fn(f64), scale: f64) -> u64 {
    test(scale);
    0
}

/// Figures of a program, in the form that [`super::Run`] reads.
pub fn figures(seconds: f64, cpu_s: f64, peak_bytes: u64, operations: u64) -> Value {
    json!({
        "seconds": seconds, "cpu_s": cpu_s, "peak_bytes": peak_bytes, "operations": operations
    })
}

/// Peak resident memory of a process so far, bytes: its VmHWM. Whatever else is in the process
/// (libraries, threads and tables of an allocator) counts too.
pub fn peak_bytes(process: &str) -> anyhow::Result<u64> {
    status_bytes(process, "VmHWM").with_context(|| format!("process {process} tells no VmHWM"))
}

/// Runs another program, whose input is a file, and measures it from its start to its end. Told are
/// the time, and what the kernel says of CPU time and memory of the program and its children. For
/// memory the kernel takes the highest of all, from before the exec on: this process, of a few MiB,
/// included.
pub fn launch(input: Option<PathBuf>, words: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    command.stdin(input.map_or(Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))?);
    let begun = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut status = 0;
    // SAFETY: no pointers inside; two places to write to.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        anyhow::ensure!(
            libc::wait4(child.id() as i32, &mut status, 0, &mut usage) == child.id() as i32,
            "cannot wait for {program}"
        );
        usage
    };
    let seconds = begun.elapsed().as_secs_f64();
    let status = ExitStatus::from_raw(status);
    anyhow::ensure!(status.success(), "{program} failed ({status})");
    let of = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    println!(
        "{}",
        figures(
            seconds,
            of(usage.ru_utime) + of(usage.ru_stime),
            (usage.ru_maxrss as u64) << 10,
            0
        )
    );
    Ok(())
}
