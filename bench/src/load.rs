//! One run of `terrace load memory`, alone or under Terrace, everything on one CPU.

use crate::machine;
use anyhow::Context;
use serde_json::Value;
use std::process::Stdio;

/// Outcome of a run.
pub struct Outcome {
    /// What the load says of itself (`--json`).
    pub load: Value,
    /// Terrace's report; null without it.
    pub report: Value,
    /// Accesses a second in each interval.
    pub over_time: Vec<f64>,
    /// An interval's length, s.
    pub interval_s: f64,
}

/// Runs a pattern, with these flags for `terrace run`, if any, and these variables.
pub fn run(
    pattern: &str,
    arguments: &[&str],
    flags: Option<&[&str]>,
    variables: &[(&str, &str)],
) -> anyhow::Result<Outcome> {
    let scratch = tempfile::tempdir()?;
    let report = scratch.path().join("report.json");
    let terrace = machine::terrace()?;
    let (report_name, terrace) = (
        report.to_str().context("a path of letters")?,
        terrace.to_str().context("a path of letters")?,
    );
    let flags = flags.map(|flags| [flags, &["--report", report_name]].concat());
    let load = [&[terrace, "load", "memory", pattern, "--json"], arguments].concat();
    let mut command = machine::pinned(flags.as_deref(), &load)?;
    let output = command.envs(variables.iter().copied()).stderr(Stdio::piped()).output()?;
    anyhow::ensure!(
        output.status.success(),
        "{pattern}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let load: Value = serde_json::from_slice(&output.stdout)?;
    let report = if flags.is_some() {
        serde_json::from_str(&std::fs::read_to_string(report)?)?
    } else {
        Value::Null
    };
    let over_time =
        load["over_time"].as_array().context("no throughput")?.iter().map(number).collect();
    Ok(Outcome { over_time, interval_s: number(&load["interval_s"]), load, report })
}

/// A figure; not a number where there is none.
pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}
