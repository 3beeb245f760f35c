//! `terrace sim`: policies × workloads × machines × sizes × seeds × parameters, over the CPUs, with
//! what is finished in a file.

pub mod args;
mod cases;
pub mod placement;
mod results;
mod table;
mod work;

use crate::{WRONG_CONTENTS, say};
use anyhow::{Context as _, Result, bail};
use args::SimArguments;
use results::{Results, Row};
use std::fmt::Write as _;
use std::io::Write as _;
use terrace_policy::registry::simulated;
use terrace_sim::machine::PRESETS;
use terrace_sim::objects::layouts::Kind;
use terrace_sim::objects::programs;
use terrace_sim::workload;

/// Runs the command; the result is the exit status.
pub fn run(arguments: &SimArguments) -> Result<u8> {
    if arguments.list {
        let _ = std::io::stdout().write_all(list().as_bytes());
        return Ok(0);
    }
    if !arguments.placement.is_empty() {
        return placement::run(arguments);
    }
    let cases = cases::of(arguments)?;
    let results =
        Results::open(arguments.output.as_deref(), cases.iter().map(|case| case.case.clone()))?;
    let threads = match arguments.jobs {
        Some(jobs) => jobs as usize,
        None => std::thread::available_parallelism().map_or(1, |count| count.get()),
    };
    let failed = work::run(&cases, &results, threads);
    let rows: Vec<Row> = results.rows();
    let text = if arguments.json {
        serde_json::to_string_pretty(&rows).context("cannot write JSON")? + "\n"
    } else {
        table::table(&rows)
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    if failed > 0 {
        bail!("{failed} of {} cases could not be run; see above", cases.len());
    }
    let incomplete = rows.iter().filter(|row| row.incomplete.is_some()).count();
    if incomplete > 0 {
        say(&format!(
            "{incomplete} of {} cases are of recordings that are not whole; see above",
            cases.len()
        ));
        return Ok(WRONG_CONTENTS);
    }
    Ok(0)
}

/// All names that can be written.
fn list() -> String {
    let mut text = String::new();
    let section =
        |text: &mut String, title: &str, lines: &mut dyn Iterator<Item = (&str, String)>| {
            let _ = writeln!(text, "{title}:");
            lines.for_each(|(name, about)| {
                let _ = writeln!(text, "  {name:<14} {about}");
            });
        };
    section(
        &mut text,
        "workloads",
        &mut workload::names().map(|(name, about)| (name, about.to_owned())),
    );
    let _ = writeln!(
        text,
        "  generators have the parameters {}; tree and store {}, store also {}; a FILE of `terrace record --accesses` is a workload too",
        terrace_sim::generators::KEYS.join(", "),
        programs::KEYS.join(", "),
        programs::STORE_KEYS.join(", ")
    );
    section(
        &mut text,
        "machines",
        &mut PRESETS.iter().map(|machine| (machine.name, machine.about.to_owned())),
    );
    section(
        &mut text,
        "layouts of objects",
        &mut Kind::ALL.into_iter().map(|kind| (kind.name(), kind.about().to_owned())),
    );
    let _ = writeln!(text, "policies, and what can be set (--set POLICY.NAME=VALUE):");
    for name in simulated::NAMES {
        let _ = writeln!(text, "  {name}");
        for knob in simulated::knobs(name).unwrap_or_default() {
            let _ = writeln!(text, "    {:<18} {}", knob.name, knob.about);
        }
    }
    text
}
