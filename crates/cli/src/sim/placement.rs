//! `terrace sim --placement`: models that place regions over several tiers, what each saves and
//! what the program loses by it, in each of its settings.

use super::args::SimArguments;
use crate::quantity::share;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use std::io::Write as _;
use terrace_policy::tiering::{self, Setting, Tier};
use terrace_sim::objects::{Filter, layouts::Kind};
use terrace_sim::tiering::{Outcome, Settings, regions_of, run as simulate, settings_of};
use terrace_sim::tiersets;
use terrace_sim::workload::{Pages, Workload};

/// Pages of a generator, and its accesses, where nothing is said.
const PAGES: u32 = 65_536;
const ACCESSES: u64 = 8_000_000;

/// What came of a model in one setting over one workload.
#[derive(Debug, Serialize)]
pub struct Row {
    pub workload: String,
    pub tiers: String,
    pub model: String,
    pub setting: String,
    pub seed: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs one model over one workload.
fn one(
    name: &str,
    setting: Setting,
    workload: &Workload,
    set: &str,
    tiers: &[Tier],
    seed: u64,
) -> Result<Outcome> {
    let mut opened =
        workload.open(seed, Kind::Size, Filter::All, Pages::Alike(4096)).context("workload")?;
    let settings = Settings::of(&opened);
    let regions = regions_of(opened.source.units() as usize);
    let stored = tiersets::stored_by_region(set, regions, seed).context("no such set")?;
    let mut model = tiering::model(name, setting, tiers).context("no such model")?;
    let outcome = simulate(&mut *model, &mut *opened.source, tiers, &stored, settings)?;
    ensure!(
        outcome.windows > 0,
        "{workload}: has less than {} accesses, too few to judge",
        (settings.warm_up + 1) * settings.window
    );
    Ok(outcome)
}

/// Runs the subcommand; the result is the exit status.
pub fn run(arguments: &SimArguments) -> Result<u8> {
    ensure!(
        arguments.set.is_empty() && arguments.policies.is_empty(),
        "--placement has models of its own: leave out --policies and --set"
    );
    let set = &arguments.tiers;
    let tiers = tiersets::tiers(set).with_context(|| {
        format!("there is no set of tiers `{set}`; there are {}", tiersets::NAMES.join(", "))
    })?;
    let all = arguments.placement.iter().any(|name| name == "all");
    let models: Vec<&str> = tiering::NAMES
        .into_iter()
        .filter(|name| all || arguments.placement.iter().any(|wanted| wanted == name))
        .collect();
    for wanted in arguments.placement.iter().filter(|name| *name != "all") {
        if !models.contains(&wanted.as_str()) {
            bail!("there is no model `{wanted}`; there are all, {}", tiering::NAMES.join(", "));
        }
    }
    let mut rows = Vec::new();
    for text in &arguments.workloads {
        let accesses = arguments.accesses.unwrap_or(ACCESSES);
        let workload = Workload::parse(text, arguments.units.unwrap_or(PAGES), accesses)?;
        for seed in arguments.seeds.iter().flat_map(|seeds| seeds.all()) {
            for model in &models {
                for (name, mut setting) in settings_of(model) {
                    let mut name = name;
                    if let Some(alpha) = arguments.alpha.filter(|_| name.starts_with("alpha")) {
                        (setting.alpha, name) = (alpha, format!("alpha {alpha}"));
                    }
                    let outcome = one(model, setting, &workload, set, &tiers, seed)?;
                    rows.push(Row {
                        workload: text.clone(),
                        tiers: set.clone(),
                        model: (*model).into(),
                        setting: name.clone(),
                        seed,
                        outcome,
                    });
                    if arguments.alpha.is_some() && name.starts_with("alpha") {
                        break;
                    }
                }
            }
        }
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
    } else {
        out.write_all(table(&rows).as_bytes())?;
    }
    Ok(0)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut last = ("", 0);
    for row in rows {
        if last != (row.workload.as_str(), row.seed) {
            last = (&row.workload, row.seed);
            text += &format!("{}, tiers {}, seed {}\n", row.workload, row.tiers, row.seed);
            text += &format!(
                "  {:<20} {:<10} {:>7} {:>9} {:>10} {:>10} {:>7}\n",
                "model", "setting", "saved", "slowdown", "faults", "moved", "work"
            );
        }
        let of = &row.outcome;
        text += &format!(
            "  {:<20} {:<10} {:>7} {:>9} {:>10} {:>10} {:>7}\n",
            row.model,
            row.setting,
            share(of.saved),
            share(of.slowdown),
            of.faults.iter().sum::<u64>(),
            of.moved,
            share(of.work)
        );
    }
    text
}
