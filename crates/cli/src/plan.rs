//! `terrace plan`: what could be saved of a program, and what that would cost at most, from what
//! was seen of it while nothing was moved. Each setting is a command that can be run.
//!
//! A page that leaves after it was idle for N seconds comes back once in N seconds at most. So
//! memory that was idle for so long costs no more than its pages, divided by N, times what a page
//! costs that comes back: a bound, as long as what is idle is what leaves, and the load stays.

use crate::args::PlanArguments;
use crate::prices::{self, Prices};
use crate::quantity::{bytes, share};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use terrace_pager::settings::MIN_BUDGET_BYTES;
use terrace_tiers::PAGE_BYTES;

/// What a program loses for a page that comes back, seconds: about as much as whole programs lost
/// on a virtual machine (`terrace-bench honesty`: 31 to 58 µs for eight of nine).
const PAGE_S: f64 = 50e-6;
/// What was idle for less time says little.
const LEAST_IDLE_S: u64 = 10;
const NAMES: [&str; 3] = ["cautious", "moderate", "bold"];

/// What is needed of a report.
#[derive(Deserialize)]
struct Observed {
    command: Vec<String>,
    elapsed_s: f64,
    peak_logical_bytes: Option<u64>,
    idle: Option<Idle>,
}

#[derive(Deserialize)]
struct Idle {
    not_touched: Vec<NotTouched>,
    compressed: Vec<Compressed>,
}

#[derive(Deserialize)]
struct NotTouched {
    seconds: u64,
    mean_bytes: u64,
    of_bytes: u64,
}

#[derive(Deserialize)]
struct Compressed {
    tier: String,
    fraction: f64,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Setting {
    name: &'static str,
    /// What was idle for so long leaves, into this tier.
    idle_s: u64,
    tier: String,
    /// The budget.
    dram_bytes: u64,
    /// What all of the data costs then; all of it in DRAM is 1.
    cost: f64,
    /// The part of the time that is lost at most.
    slowdown_at_most: f64,
    command: String,
}

#[derive(Serialize)]
struct Plan {
    version: u32,
    command: Vec<String>,
    data_bytes: u64,
    observed_s: f64,
    prices_of: &'static str,
    settings: Vec<Setting>,
}

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &PlanArguments) -> Result<u8> {
    let text = match &arguments.report {
        Some(report) => read(report)?,
        None => observe(arguments)?,
    };
    let observed: Observed = serde_json::from_str(&text)
        .context("the report is none of `terrace run --observe --report FILE`")?;
    let plan = plan(observed, &Prices::with(&arguments.price))?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
    } else {
        write!(out, "{}", shown(&plan))?;
    }
    Ok(0)
}

fn read(report: &Path) -> Result<String> {
    std::fs::read_to_string(report).with_context(|| {
        format!(
            "{}: cannot be read; `terrace run --observe --report FILE -- CMD` writes one",
            report.display()
        )
    })
}

/// Runs the command to its end and gives its report.
fn observe(arguments: &PlanArguments) -> Result<String> {
    if arguments.command.is_empty() {
        bail!(
            "plan what? `terrace plan REPORT.json`, or `terrace plan -- CMD` to observe CMD first"
        );
    }
    let report = tempfile::NamedTempFile::new()?;
    let status = Command::new(std::env::current_exe()?)
        .args(["run", "--observe", "--tiers", &arguments.tiers, "--report"])
        .arg(report.path())
        .arg("--")
        .args(&arguments.command)
        .status()?;
    // It may well be ended by a signal, as a server is.
    let text = read(report.path())?;
    ensure!(!text.is_empty(), "it was not observed ({status})");
    Ok(text)
}

fn plan(observed: Observed, prices: &Prices) -> Result<Plan> {
    let data_bytes = observed.peak_logical_bytes.unwrap_or(0);
    let idle = observed.idle.filter(|idle| !idle.compressed.is_empty()).with_context(|| {
        "nothing is known of what was idle: observe for more than ten seconds (`terrace run --observe --report FILE -- CMD`), with 64M of data or more"
    })?;
    let command = observed.command.join(" ");
    let mut settings: Vec<Setting> = idle
        .not_touched
        .iter()
        .filter(|times| times.seconds >= LEAST_IDLE_S && times.of_bytes > 0)
        .flat_map(|times| idle.compressed.iter().map(move |tier| (times, tier)))
        .map(|(times, tier)| {
            let part = times.mean_bytes as f64 / times.of_bytes as f64;
            let leaves = data_bytes as f64 * part;
            let in_files = tier.tier.contains("@file:");
            let (stays, price) = match in_files {
                true => (data_bytes as f64 - leaves, prices.of("file")),
                false => (data_bytes as f64 - leaves * (1.0 - tier.fraction), 1.0),
            };
            let dram_bytes = (stays as u64).max(MIN_BUDGET_BYTES);
            let mib = dram_bytes.div_ceil(1 << 20);
            Setting {
                name: "",
                idle_s: times.seconds,
                tier: tier.tier.clone(),
                dram_bytes,
                cost: 1.0 - part + part * tier.fraction * price,
                slowdown_at_most: leaves / PAGE_BYTES as f64 / times.seconds as f64 * PAGE_S,
                command: format!(
                    "terrace run --dram {mib}M --tiers dram,{} -- {command}",
                    tier.tier
                ),
            }
        })
        .collect();
    settings.sort_by(|a, b| {
        a.slowdown_at_most.total_cmp(&b.slowdown_at_most).then(a.cost.total_cmp(&b.cost))
    });
    // What costs more and saves no more is none.
    let mut least = 0.995;
    settings.retain(|setting| {
        let pays = setting.cost < least;
        least = least.min(setting.cost);
        pays
    });
    ensure!(
        !settings.is_empty(),
        "nothing is worth to be moved: all of the data was touched within {LEAST_IDLE_S} s, or does not compress"
    );
    let last = settings.len() - 1;
    let mut chosen = vec![0, last / 2, last];
    chosen.dedup();
    let settings = chosen
        .iter()
        .zip(NAMES)
        .map(|(index, name)| Setting { name, ..settings[*index].clone() })
        .collect();
    Ok(Plan {
        version: 1,
        command: observed.command,
        data_bytes,
        observed_s: observed.elapsed_s,
        prices_of: prices::DATED,
        settings,
    })
}

fn shown(plan: &Plan) -> String {
    let mut lines = vec![
        format!(
            "{}: {} of data at most, observed for {:.0} s; you are at 100% of its memory and cost",
            plan.command.join(" "),
            bytes(plan.data_bytes),
            plan.observed_s
        ),
        format!(
            "  {:<9} {:>8} {:>6} {:>16}  {:<24} command",
            "setting", "DRAM", "cost", "slower, at most", "what leaves"
        ),
    ];
    for setting in &plan.settings {
        let leaves = format!("idle for {} s, to {}", setting.idle_s, setting.tier);
        lines.push(format!(
            "  {:<9} {:>8} {:>6} {:>16}  {leaves:<24} {}",
            setting.name,
            bytes(setting.dram_bytes),
            share(setting.cost),
            share(setting.slowdown_at_most),
            setting.command
        ));
    }
    lines.push(format!(
        "cost: at the prices of {}; slower: if each idle page comes back as soon as it has left, at {:.0} us a page, under the same load",
        plan.prices_of,
        PAGE_S * 1e6
    ));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"command": ["app", "-x"], "elapsed_s": 90.0, "peak_logical_bytes": 1073741824,
        "idle": {"not_touched": [
            {"seconds": 2, "mean_bytes": 900, "of_bytes": 1000, "looks": 9},
            {"seconds": 10, "mean_bytes": 500, "of_bytes": 1000, "looks": 5},
            {"seconds": 60, "mean_bytes": 300, "of_bytes": 1000, "looks": 1}],
          "sampled_pages": 100,
          "compressed": [{"tier": "lz4", "fraction": 0.5}, {"tier": "zstd:1", "fraction": 0.3}]}}"#;

    fn of(text: &str) -> Result<Plan> {
        plan(serde_json::from_str(text).unwrap(), &Prices::default())
    }

    #[test]
    fn settings_go_from_what_costs_least_to_what_saves_most() {
        let plan = of(REPORT).unwrap();
        let names: Vec<&str> = plan.settings.iter().map(|setting| setting.name).collect();
        assert_eq!(names[0], "cautious");
        let pairs = plan.settings.windows(2);
        for pair in pairs {
            assert!(pair[0].slowdown_at_most <= pair[1].slowdown_at_most, "{pair:?}");
            assert!(pair[0].cost > pair[1].cost, "{pair:?}");
        }
        // 30 % were idle for a minute: 78,643 pages, and once a minute each of them costs 50 us.
        let first = &plan.settings[0];
        assert!((first.slowdown_at_most - 0.0655).abs() < 0.001, "{first:?}");
        assert!((first.cost - 0.79).abs() < 0.001, "{first:?}");
        assert_eq!(first.command, "terrace run --dram 809M --tiers dram,zstd:1 -- app -x");
        assert!(shown(&plan).contains("idle for 60 s, to zstd:1"), "{}", shown(&plan));
    }

    #[test]
    fn where_nothing_is_known_it_is_said() {
        let without = REPORT
            .replace("\"seconds\": 10", "\"seconds\": 3")
            .replace("\"seconds\": 60", "\"seconds\": 4");
        assert!(of(&without).is_err_and(|why| why.to_string().contains("touched within 10 s")));
        let none =
            r#"{"command": ["a"], "elapsed_s": 1.0, "peak_logical_bytes": null, "idle": null}"#;
        assert!(of(none).is_err_and(|why| format!("{why:#}").contains("more than ten seconds")));
    }
}
