//! `terrace config check` and `terrace config show`: what a settings file says, for people and
//! (`--json`) for programs.

pub mod args;
pub mod effective;
pub mod file;
pub mod origin;
pub mod reader;

use crate::config::args::{ConfigAction, ConfigArguments};
use crate::config::file::Unusable;
use crate::config::origin::Origin;
use crate::run::settings::Line;
use crate::say;
use anyhow::{Result, bail};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use terrace_tiers::presets;

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &ConfigArguments) -> Result<u8> {
    match &arguments.action {
        ConfigAction::Check { file, json } => check(file, *json),
        ConfigAction::Show { config, json } => show(config.as_deref(), *json),
    }
}

fn check(file: &Path, json: bool) -> Result<u8> {
    let unusable = file::read(file).err();
    let mistakes = match &unusable {
        None => &[][..],
        Some(Unusable::Mistakes(mistakes)) => mistakes,
        Some(unreadable) => bail!("{}", unreadable.describe(file)),
    };
    if json {
        let answer = json!({
            "file": file.to_string_lossy(), "ok": mistakes.is_empty(), "errors": mistakes
        });
        writeln!(std::io::stdout(), "{answer:#}")?;
    } else if let Some(unusable) = &unusable {
        say(&unusable.describe(file));
    } else {
        writeln!(std::io::stdout(), "{}: ok", file.display())?;
    }
    Ok(u8::from(!mistakes.is_empty()))
}

fn show(file: Option<&Path>, json: bool) -> Result<u8> {
    let lines = effective::of_file(file)?.lines();
    let mut out = std::io::stdout().lock();
    if json {
        let object = |of: fn(&Line) -> serde_json::Value| {
            let entries = lines.iter().map(|line| (line.key.to_owned(), of(line)));
            serde_json::Value::Object(entries.collect())
        };
        let answer = json!({
            "version": 1,
            "run": object(|line| line.json.clone()),
            "origin": object(|line| json!(line.origin)),
            "tier_lists": presets::all().iter().map(|preset| {
                json!({ "name": preset.name, "tiers": preset.tiers, "notes": preset.notes })
            }).collect::<Vec<_>>(),
        });
        writeln!(out, "{answer:#}")?;
        return Ok(0);
    }
    writeln!(out, "version = 1\n\n[run]")?;
    for line in lines {
        let origin = match line.origin {
            Origin::Default => "default",
            Origin::File => "from the file",
            Origin::CommandLine => "from the command line",
        };
        let text = match line.toml {
            Some(value) => format!("{} = {value}", line.key),
            None => format!("# {} =", line.key),
        };
        writeln!(out, "{text:<34} # {origin}")?;
    }
    writeln!(out, "\n# Lists of tiers that have names, as they are on this machine:")?;
    for preset in presets::all() {
        writeln!(out, "# {} = {}", preset.name, preset.tiers)?;
        for note in &preset.notes {
            writeln!(out, "#   {note}")?;
        }
    }
    Ok(0)
}
