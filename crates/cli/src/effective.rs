//! The settings in force: the command line before the file before the defaults, and where each came
//! from.

use crate::args::RunArguments;
use crate::config_file::{self, FileSettings};
use crate::sampling::{Choice, Cost};
use crate::wake::WakeLatency;
use anyhow::{Result, anyhow};
use serde::Serialize;
use std::path::{Path, PathBuf};
use terrace_pager::settings::Settings;

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file of `--config`.
    File,
    /// A flag.
    CommandLine,
}

/// All settings of one run. The origins are those of `dram`, `tiers`, `observe`, `strict`, `evict`,
/// `policy`, `sampler`, `sampler_cost`, `huge_pages`, `wake_latency`, `allocator`, `zones`,
/// `context_depth`, `verify`, `children`, `report`, `moves`, in this order.
#[derive(Clone, Debug)]
pub struct Effective {
    /// What the library is told.
    pub settings: Settings,
    /// What takes samples.
    pub sampler: Choice,
    /// What that may cost.
    pub sampler_cost: Cost,
    /// How long idle CPUs may take to wake.
    pub wake_latency: WakeLatency,
    /// Where the JSON report goes.
    pub report: Option<PathBuf>,
    /// Where the list of moves goes.
    pub moves: Option<PathBuf>,
    /// Where each setting comes from.
    pub origins: [Origin; 17],
}

impl Effective {
    /// The settings for a command line, with its file of settings read and checked.
    pub fn of_command_line(arguments: &RunArguments) -> Result<Self> {
        let file = arguments.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let flags = FileSettings {
            dram: arguments.dram,
            tiers: arguments.tiers.clone(),
            observe: arguments.observe,
            strict: arguments.strict,
            evict: arguments.evict,
            policy: arguments.policy,
            sampler: arguments.sampler,
            sampler_cost: arguments.sampler_cost,
            huge_pages: arguments.huge_pages,
            wake_latency: arguments.wake_latency,
            allocator: arguments.allocator,
            zones: arguments.zones,
            context_depth: arguments.context_depth,
            verify: arguments.verify,
            children: arguments.no_children.map(|none| !none),
            report: arguments.report.clone(),
            moves: arguments.moves.clone(),
        };
        Ok(Self::merge(flags, file))
    }

    /// The settings that a file (or none) gives when the command line says nothing.
    pub fn of_file(file: Option<&Path>) -> Result<Self> {
        Ok(Self::merge(FileSettings::default(), file.map(read).transpose()?.unwrap_or_default()))
    }

    fn merge(flags: FileSettings, file: FileSettings) -> Self {
        let default = Settings::default();
        let (dram, dram_from) = choose(flags.dram, file.dram, default.dram);
        let (tiers, tiers_from) = choose(flags.tiers, file.tiers, default.tiers.clone());
        let (observe, observe_from) = choose(flags.observe, file.observe, default.observe);
        let (strict, strict_from) = choose(flags.strict, file.strict, default.strict);
        let (evict, evict_from) = choose(flags.evict, file.evict, default.evict);
        let (policy, policy_from) = choose(flags.policy, file.policy, default.policy);
        let (sampler, sampler_from) = choose(flags.sampler, file.sampler, Choice::default());
        let (sampler_cost, sampler_cost_from) =
            choose(flags.sampler_cost, file.sampler_cost, Cost::default());
        let (huge_pages, huge_pages_from) =
            choose(flags.huge_pages, file.huge_pages, default.huge_pages);
        let (wake_latency, wake_latency_from) =
            choose(flags.wake_latency, file.wake_latency, WakeLatency::Off);
        let (allocator, allocator_from) =
            choose(flags.allocator, file.allocator, default.allocator);
        let (zones, zones_from) = choose(flags.zones, file.zones, default.zones);
        let (context_depth, context_depth_from) =
            choose(flags.context_depth, file.context_depth, default.context_depth);
        let (verify, verify_from) = choose(flags.verify, file.verify, default.verify);
        let (children, children_from) = choose(flags.children, file.children, default.children);
        let (report, report_from) = choose(flags.report.map(Some), file.report.map(Some), None);
        let (moves, moves_from) = choose(flags.moves.map(Some), file.moves.map(Some), None);
        Effective {
            settings: Settings {
                dram,
                tiers,
                observe,
                strict,
                evict,
                policy,
                huge_pages,
                allocator,
                zones,
                context_depth,
                verify,
                children,
                ..default
            },
            sampler,
            sampler_cost,
            wake_latency,
            report,
            moves,
            origins: [
                dram_from,
                tiers_from,
                observe_from,
                strict_from,
                evict_from,
                policy_from,
                sampler_from,
                sampler_cost_from,
                huge_pages_from,
                wake_latency_from,
                allocator_from,
                zones_from,
                context_depth_from,
                verify_from,
                children_from,
                report_from,
                moves_from,
            ],
        }
    }
}

fn choose<T>(flag: Option<T>, file: Option<T>, default: T) -> (T, Origin) {
    match (flag, file) {
        (Some(value), _) => (value, Origin::CommandLine),
        (None, Some(value)) => (value, Origin::File),
        (None, None) => (default, Origin::Default),
    }
}

fn read(file: &Path) -> Result<FileSettings> {
    config_file::read(file).map_err(|unusable| anyhow!("{}", unusable.describe(file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_pager::settings::Dram;

    #[test]
    fn the_command_line_goes_before_the_file_before_the_default() {
        let flags = FileSettings {
            dram: Some(Dram::Bytes(1 << 30)),
            observe: Some(false),
            ..FileSettings::default()
        };
        let file = FileSettings {
            dram: Some(Dram::Share(0.5)),
            observe: Some(true),
            strict: Some(true),
            ..FileSettings::default()
        };
        let effective = Effective::merge(flags, file);
        assert_eq!(effective.settings.dram, Dram::Bytes(1 << 30));
        assert!(!effective.settings.observe && effective.settings.strict);
        assert_eq!(effective.settings.tiers, Settings::default().tiers);
        let mut origins = [Origin::Default; 17];
        (origins[0], origins[2], origins[3]) =
            (Origin::CommandLine, Origin::CommandLine, Origin::File);
        assert_eq!(effective.origins, origins);
    }
}
