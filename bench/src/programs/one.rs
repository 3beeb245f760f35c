//! One run of a program in a memory control group of its own, with or without a limit.

use super::senpai::Senpai;
use crate::servers::group::Group;
use crate::{interrupt, machine};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terrace_testkit::child::Ended;
use terrace_testkit::zram::Zram;

/// Interval between looks at memory.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Figures of a run.
pub struct Sample {
    pub seconds: f64,
    /// Memory of the group and of zram, bytes.
    pub mean: f64,
    pub p95: f64,
    pub peak: f64,
    /// What the program printed.
    pub output: Vec<u8>,
    /// Pages that the kernel read from swap meanwhile, on the whole machine.
    pub swapped_in_pages: u64,
    /// 99th percentile of the time of a request, where it is a server, µs.
    pub p99_us: Option<f64>,
    /// What it wrote into the file `$SERVED`, as JSON; null if nothing.
    pub served: Value,
}

/// What the memory of a group is limited to.
pub enum Limit {
    /// Nothing.
    None,
    /// Limit of usage and what zram takes together, bytes.
    Bytes(u64),
    /// Usage follows pressure.
    Pressure(Senpai),
}

/// Runs `words` in a group of its own; `zram` is the machine's swap, if it has any. `None`: the run
/// took longer than `longest`, and was ended.
pub fn one(
    words: &[String],
    mut limit: Limit,
    zram: Option<&Zram>,
    longest: Duration,
) -> anyhow::Result<Option<Sample>> {
    let group = Group::create()?;
    let meter = group.meter();
    let mut joins = format!("echo 0 >{} && exec \"$@\"", group.processes_file().display());
    if let Limit::Pressure(senpai) = &mut limit
        && let Some(processes) = senpai.watch(&group)?
    {
        joins = format!("echo 0 >{} && {joins}", processes.display());
    }
    let mut output = tempfile::tempfile()?;
    let served = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("sh");
    machine::ends_with_us(&mut command);
    command
        .args(["-c", &joins, "sh"])
        .args(words)
        .env("SERVED", served.path())
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).process_group(0);
    let swapped_in_before = swapped_in_pages()?;
    let begun = Instant::now();
    let mut child = Ended::by_kill(command.spawn()?);
    let mut looks = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > longest {
            return Ok(None);
        }
        let used = meter.usage_bytes()?;
        let swapped = zram.map_or(Ok(0), Zram::used_bytes)?;
        looks.push((used + swapped) as f64);
        let allowed = match &mut limit {
            Limit::None => None,
            Limit::Bytes(bytes) => Some(bytes.saturating_sub(swapped)),
            Limit::Pressure(senpai) => senpai.limit(used)?,
        };
        if let Some(bytes) = allowed {
            group.limit(bytes.max(8 << 20));
            group.help();
        }
        interrupt::sleep(POLL_INTERVAL)?;
    };
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "{words:?} failed: {status}");
    let mut text = Vec::new();
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_end(&mut output, &mut text)?;
    let mean = looks.iter().sum::<f64>() / looks.len().max(1) as f64;
    looks.sort_by(f64::total_cmp);
    let at = |share: f64| {
        looks
            .get(((looks.len() as f64 * share) as usize).min(looks.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    };
    let served: Value = serde_json::from_slice(&fs::read(served.path())?).unwrap_or_default();
    let p99_us = served["run"]["all_us"]["p99"].as_f64();
    Ok(Some(Sample {
        seconds,
        mean,
        p95: at(0.95),
        peak: at(1.0),
        output: text,
        swapped_in_pages: swapped_in_pages()? - swapped_in_before,
        p99_us,
        served,
    }))
}

/// Pages that the kernel has read from swap since the machine's start.
fn swapped_in_pages() -> anyhow::Result<u64> {
    fs::read_to_string("/proc/vmstat")?
        .lines()
        .find_map(|line| line.strip_prefix("pswpin ")?.parse().ok())
        .context("/proc/vmstat has pswpin")
}
