//! `terrace config check` and `terrace config show`: what a settings file says, for people and
//! (`--json`) for programs.

use crate::args::{ConfigAction, ConfigArguments};
use crate::config_file::{self, Unusable};
use crate::effective::{Effective, Origin};
use crate::say;
use anyhow::{Result, bail};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &ConfigArguments) -> Result<u8> {
    match &arguments.action {
        ConfigAction::Check { file, json } => check(file, *json),
        ConfigAction::Show { config, json } => show(config.as_deref(), *json),
    }
}

fn check(file: &Path, json: bool) -> Result<u8> {
    let unusable = config_file::read(file).err();
    let mistakes = match &unusable {
        None => &[][..],
        Some(Unusable::Mistakes(mistakes)) => mistakes,
        Some(unreadable) => bail!("{}", unreadable.describe(file)),
    };
    if json {
        let answer = json!({ "file": file.to_string_lossy(), "ok": mistakes.is_empty(), "errors": mistakes });
        writeln!(std::io::stdout(), "{answer:#}")?;
    } else if let Some(unusable) = &unusable {
        say(&unusable.describe(file));
    } else {
        writeln!(std::io::stdout(), "{}: ok", file.display())?;
    }
    Ok(u8::from(!mistakes.is_empty()))
}

fn show(file: Option<&Path>, json: bool) -> Result<u8> {
    let effective = Effective::of_file(file)?;
    let settings = &effective.settings;
    let [report, moves] = [&effective.report, &effective.moves]
        .map(|path| path.as_ref().map(|path| path.to_string_lossy().into_owned()));
    let mut out = std::io::stdout().lock();
    if json {
        let [
            dram,
            tiers,
            observe,
            strict,
            evict,
            policy,
            sampler,
            sampler_cost,
            huge_pages,
            wake_latency,
            allocator,
            zones,
            context_depth,
            verify,
            children,
            report_from,
            moves_from,
        ] = effective.origins;
        let answer = json!({
            "version": 1,
            "run": {
                "dram": settings.dram.to_string(), "tiers": settings.tiers, "observe": settings.observe,
                "strict": settings.strict, "evict": settings.evict.to_string(), "policy": settings.policy.to_string(),
                "sampler": effective.sampler, "sampler_cost": effective.sampler_cost.to_string(), "huge_pages": settings.huge_pages.to_string(), "wake_latency": effective.wake_latency.to_string(),
                "allocator": settings.allocator.to_string(), "zones": settings.zones.0, "context_depth": settings.context_depth.to_string(), "verify": settings.verify, "children": settings.children, "report": report, "moves": moves,
            },
            "origin": { "dram": dram, "tiers": tiers, "observe": observe, "strict": strict, "evict": evict, "policy": policy, "sampler": sampler, "sampler_cost": sampler_cost, "huge_pages": huge_pages, "wake_latency": wake_latency, "allocator": allocator, "zones": zones, "context_depth": context_depth, "verify": verify, "children": children, "report": report_from, "moves": moves_from },
        });
        writeln!(out, "{answer:#}")?;
        return Ok(0);
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let lines = [
        format!("dram = {}", quoted(&settings.dram.to_string())),
        format!("tiers = {}", quoted(&settings.tiers)),
        format!("observe = {}", settings.observe),
        format!("strict = {}", settings.strict),
        format!("evict = {}", quoted(&settings.evict.to_string())),
        format!("policy = {}", quoted(&settings.policy.to_string())),
        format!("sampler = {}", quoted(&effective.sampler.to_string())),
        format!("sampler_cost = {}", quoted(&effective.sampler_cost.to_string())),
        format!("huge_pages = {}", quoted(&settings.huge_pages.to_string())),
        format!("wake_latency = {}", quoted(&effective.wake_latency.to_string())),
        format!("allocator = {}", quoted(&settings.allocator.to_string())),
        format!("zones = {}", settings.zones),
        format!("context_depth = {}", quoted(&settings.context_depth.to_string())),
        format!("verify = {}", settings.verify),
        format!("children = {}", settings.children),
        report.map_or("# report =".into(), |report| format!("report = {}", quoted(&report))),
        moves.map_or("# moves =".into(), |moves| format!("moves = {}", quoted(&moves))),
    ];
    writeln!(out, "version = 1\n\n[run]")?;
    for (line, origin) in lines.iter().zip(effective.origins) {
        let origin = match origin {
            Origin::Default => "default",
            Origin::File => "from the file",
            Origin::CommandLine => "from the command line",
        };
        writeln!(out, "{line:<34} # {origin}")?;
    }
    Ok(0)
}
