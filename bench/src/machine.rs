//! Which machine and which versions the figures belong to, and where the binaries are.

use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// The `terrace` command beside this benchmark's own binary.
pub fn terrace() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.parent().context("a binary has a directory")?.join("terrace");
    if !path.exists() {
        bail!("{} is missing: run `make build` first", path.display());
    }
    Ok(path)
}

/// CPU seconds of `whose` (`RUSAGE_SELF`: this process with Terrace's threads in it;
/// `RUSAGE_CHILDREN`: all children waited for so far).
pub fn cpu_seconds(whose: i32) -> f64 {
    // SAFETY: writes one rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A command that runs `args` on CPU 0, under Terrace with the given flags or alone.
pub fn pinned(terrace_flags: Option<&[&str]>, args: &[&str]) -> anyhow::Result<Command> {
    pinned_to("0", terrace_flags, args)
}

/// A command that runs `args` on the given CPUs, as taskset lists them, under Terrace with the
/// given flags or alone.
pub fn pinned_to(
    cpus: &str,
    terrace_flags: Option<&[&str]>,
    args: &[&str],
) -> anyhow::Result<Command> {
    let mut command = Command::new("taskset");
    ends_with_us(&mut command);
    command.args(["-c", cpus]);
    if let Some(flags) = terrace_flags {
        command.arg(terrace()?).arg("run").args(flags).arg("--");
    }
    command.args(args);
    Ok(command)
}

/// Has what is started end when the benchmark is killed: `terrace run` hands the signal on.
pub fn ends_with_us(command: &mut Command) {
    // SAFETY: between fork and exec one system call.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    };
}

/// CPU model, kernel, CPUs.
pub fn description() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split(": ").nth(1))
        .unwrap_or("unknown");
    json!({
        "cpu": model,
        "cpus": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": read("/proc/loadavg").split(' ').next().unwrap_or("?"),
        "terrace": env!("CARGO_PKG_VERSION"),
    })
}
