//! Which cases are meant by the command line.

use super::args::SimArguments;
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use terrace_policy::registry::simulated::{self, Parameters};
use terrace_sim::machine::{Machine, PAGE, PRESETS, REGION, Slow};
use terrace_sim::mixed;
use terrace_sim::objects::Filter;
use terrace_sim::objects::layouts::Kind;
use terrace_sim::simulation::Settings;
use terrace_sim::workload::{Pages, Workload};

/// Units and accesses of a generator, where nothing is said.
const UNITS: u32 = 10_240;
const ACCESSES: u64 = 120_000_000;

/// How much the fast tier holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fast {
    /// Share of the units that the fast tier holds, above 0 and at most 1.
    Share(f64),
    /// Bytes that the fast tier holds.
    Bytes(u64),
}

impl FromStr for Fast {
    type Err = String;

    fn from_str(text: &str) -> Result<Fast, String> {
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                    Ok(Fast::Share(percent / 100.0))
                }
                _ => Err("write a share from 0% to 100%, or a size such as 4G".into()),
            };
        }
        terrace_control::settings::parse_size(text)
            .map(Fast::Bytes)
            .map_err(|error| error.to_string())
    }
}

impl fmt::Display for Fast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // 7 % as a share times 100 is not quite 7.
            Fast::Share(share) => write!(f, "{}%", (share * 1e8).round() / 1e6),
            Fast::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// A seed, or some in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seeds {
    first: u64,
    last: u64,
}

impl Seeds {
    /// All seeds of the range.
    pub fn all(self) -> impl Iterator<Item = u64> {
        self.first..=self.last
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last && last - first < 10_000 => {
                Ok(Seeds { first, last })
            }
            _ => Err("write whole numbers, or some in a row as 1-5".into()),
        }
    }
}

/// What of memory is one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page(pub Pages);

impl FromStr for Page {
    type Err = String;

    fn from_str(text: &str) -> Result<Page, String> {
        let wrong = || {
            "write a power of two from 4K to 1G, or `mixed`, or a share of pages as `mixed:90%`"
                .to_owned()
        };
        if let Some(share) = text.strip_prefix("mixed") {
            let percent = if share.is_empty() {
                Some("50")
            } else {
                share.strip_prefix(':').and_then(|share| share.strip_suffix('%'))
            };
            let percent = percent
                .and_then(|percent| percent.parse::<f64>().ok())
                .filter(|percent| (0.0..=100.0).contains(percent));
            return percent.map(|percent| Page(Pages::Mixed(percent / 100.0))).ok_or_else(wrong);
        }
        let size = terrace_control::settings::parse_size(text).ok();
        let size = size.filter(|size| size.is_power_of_two() && (PAGE..=1 << 30).contains(size));
        size.map(|size| Page(Pages::Alike(size))).ok_or_else(wrong)
    }
}

/// What the units together play.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plays {
    /// Units play what they are.
    Real,
    /// Units together play this many bytes.
    Bytes(u64),
}

impl FromStr for Plays {
    type Err = String;

    fn from_str(text: &str) -> Result<Plays, String> {
        match text {
            "real" => Ok(Plays::Real),
            _ => terrace_control::settings::parse_size(text)
                .map(Plays::Bytes)
                .map_err(|error| error.to_string()),
        }
    }
}

/// The size of a cache, if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache(pub Option<usize>);

/// What a case is told from others by, as it is in the file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Version of Terrace; results of another version may differ.
    pub version: String,
    /// The workload, with all its parameters.
    pub workload: String,
    /// Name of the layout of objects in memory; `null` where the workload has no objects.
    pub layout: Option<String>,
    /// Bytes of a unit, or of a base unit where there are huge ones. `null` for the workload of a
    /// generator.
    pub page_bytes: Option<u64>,
    /// The share of its pages that makes 2 MiB a huge page; left out where pages are alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_from: Option<f64>,
    /// Size in bytes of the cache before memory, if there are objects and a cache.
    pub cache_bytes: Option<usize>,
    /// The seed (`--seeds`).
    pub seed: u64,
    /// Name of the machine's preset.
    pub machine: String,
    /// Accesses on their way at a time, where that is not the machine's.
    pub in_flight: Option<u32>,
    /// Bytes that all units together play; `null`: real ones.
    pub plays_bytes: Option<u64>,
    /// Real accesses that each access stands for, where that is not the default.
    pub stands_for: Option<u32>,
    /// Accesses from one sample to the next, on average (`--sample-period`).
    pub sample_period: u32,
    /// Milliseconds from one decision to the next (`--tick`).
    pub tick_ms: f64,
    /// What the fast tier holds: a share with %, or bytes.
    pub fast: String,
    /// Name of the policy.
    pub policy: String,
    /// Parameters of the policy that were set.
    pub set: Vec<String>,
    /// Parts of a run of which figures are kept (`--windows`).
    pub windows: u32,
}

/// A case, and how it is run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it is called.
    pub case: Case,
    /// Number of the stream that accesses come from: cases of one number share it.
    pub stream: usize,
    /// Workload of the case.
    pub workload: Workload,
    /// Layout of objects, where there are objects.
    pub layout: Kind,
    /// What of the workload's memory is one unit, where it has bytes.
    pub pages: Pages,
    machine: Machine,
    fast: Fast,
    plays: Plays,
}

impl Run {
    /// What of the workload's accesses counts.
    pub fn filter(&self) -> Filter {
        self.case.cache_bytes.map_or(Filter::All, Filter::Misses)
    }

    /// Whether there are base pages and huge ones.
    pub fn is_mixed(&self) -> bool {
        self.workload.is_mixed(self.pages)
    }

    /// Settings for a stream of this many units, of such sizes, and accesses; and what its policy
    /// is told. A recording may say what each access stands for.
    pub fn settings(
        &self,
        units: u32,
        sizes: &[u32],
        accesses: Option<u64>,
        period: Option<u64>,
    ) -> Result<(Settings, Parameters)> {
        let generated = matches!(self.workload, Workload::Generated(_));
        let compressed = matches!(self.machine.slow, Slow::Compressed(_));
        let mixed = self.is_mixed();
        let real_bytes = match self.pages {
            _ if mixed || compressed && generated => PAGE,
            _ if generated => REGION,
            Pages::Alike(bytes) => bytes,
            Pages::Mixed(_) => PAGE,
        } as f64;
        // Base units, which are units where all are alike.
        let memory: u64 =
            if mixed { sizes.iter().map(|size| u64::from(*size)).sum() } else { units.into() };
        if memory >= 1 << 31 {
            bail!(
                "{memory} pages of 4 KiB are more than can be simulated: take pages that are alike and larger (--page)"
            );
        }
        let memory = memory as f64;
        // What a unit plays that plays a page: as sure of it as with 10,240 huge pages, which is
        // what the papers' intervals are for. Where there are base pages and huge ones, each
        // plays its own kind, in that much less memory.
        let page = if mixed { PAGE } else { REGION } as f64;
        let (unit_bytes, samples) = match self.plays {
            Plays::Real => (real_bytes, 1.0),
            Plays::Bytes(bytes) if compressed => (real_bytes, memory * page / bytes as f64),
            Plays::Bytes(bytes) => (bytes as f64 / memory, memory * page / bytes as f64),
        };
        let by_default = match self.plays {
            Plays::Real => period.unwrap_or(1) as f64,
            Plays::Bytes(_) => 100.0,
        };
        let stands_for = self.case.stands_for.map_or(by_default, f64::from);
        let sample_period = f64::from(self.case.sample_period);
        if sample_period < stands_for {
            bail!(
                "a sample each {sample_period} accesses is more than one of those that stand for {stands_for} each (--sample-period, --stands-for)"
            );
        }
        let capacity = match self.fast {
            Fast::Share(share) => memory * share,
            Fast::Bytes(bytes) => bytes as f64 / unit_bytes,
        };
        // 20 % of 10,240 are 2,048 and not one less.
        let capacity = (capacity + 1e-6).min(memory) as u32;
        // What faults has to come.
        let least = if compressed { sizes.iter().copied().max().unwrap_or(1) } else { 1 };
        if capacity < least {
            bail!(
                "the fast tier ({}) has no room for one unit of {:.0} bytes",
                self.fast,
                f64::from(least) * unit_bytes
            );
        }
        let machine = Machine {
            in_flight: self.case.in_flight.unwrap_or(self.machine.in_flight),
            ..self.machine
        };
        let settings = Settings {
            unit_bytes,
            capacity,
            populated: generated,
            tick_ns: self.case.tick_ms * 1e6,
            stands_for,
            sample_period,
            window: accesses.map_or(u64::MAX, |accesses| {
                accesses.div_ceil(u64::from(self.case.windows)).max(1)
            }),
            seed: self.case.seed,
            ..Settings::new(machine, units)
        };
        let mut parameters = settings.parameters(samples);
        if mixed {
            parameters.largest = mixed::HUGE;
        }
        for text in &self.case.set {
            parameters.set(text)?;
        }
        Ok((settings, parameters))
    }
}

/// `name` if it is one of these.
fn known<'a>(
    what: &str,
    name: &'a str,
    mut valid: impl Iterator<Item = &'static str> + Clone,
) -> Result<&'a str> {
    if valid.clone().any(|valid| valid == name) {
        return Ok(name);
    }
    let first = valid.next().unwrap_or_default().to_owned();
    bail!(
        "there is no {what} `{name}`; there are {}",
        valid.fold(first, |list, name| list + ", " + name)
    );
}

/// All that is asked for, in the order of streams; each once.
pub fn of(arguments: &SimArguments) -> Result<Vec<Run>> {
    let workloads = arguments.workloads.iter().map(|text| {
        Ok(Workload::parse(
            text,
            arguments.units.unwrap_or(UNITS),
            arguments.accesses.unwrap_or(ACCESSES),
        )?)
    });
    let workloads: Vec<Workload> = workloads.collect::<Result<_>>()?;
    let machines: Vec<Machine> = arguments
        .machines
        .iter()
        .map(|name| {
            known("machine", name, PRESETS.iter().map(|machine| machine.name))?;
            Machine::preset(name).context("it is one of them")
        })
        .collect::<Result<_>>()?;
    let layouts: Vec<Kind> = arguments
        .layouts
        .iter()
        .map(|name| {
            known("layout", name, Kind::ALL.iter().map(|kind| kind.name()))?;
            Kind::ALL.into_iter().find(|kind| kind.name() == name).context("it is one of them")
        })
        .collect::<Result<_>>()?;
    let policies = policies(arguments)?;
    let mut runs: Vec<Run> = Vec::new();
    let mut streams = 0;
    for workload in &workloads {
        let objects = workload.has_objects();
        // A generator has no bytes.
        let pages = (!matches!(workload, Workload::Generated(_))).then_some(arguments.page.0);
        for layout in if objects { &layouts } else { [Kind::Time].as_slice() } {
            for seed in arguments.seeds.iter().flat_map(|seeds| seeds.all()) {
                for machine in &machines {
                    for fast in &arguments.fast {
                        for (policy, set) in &policies {
                            let case = Case {
                                version: env!("CARGO_PKG_VERSION").into(),
                                workload: workload.to_string(),
                                layout: objects.then(|| layout.name().to_owned()),
                                page_bytes: pages.map(|pages| {
                                    if let Pages::Alike(bytes) = pages { bytes } else { PAGE }
                                }),
                                huge_from: pages.and_then(|pages| {
                                    if let Pages::Mixed(share) = pages { Some(share) } else { None }
                                }),
                                cache_bytes: arguments.cache.0.filter(|_| objects),
                                seed,
                                machine: machine.name.into(),
                                in_flight: arguments.in_flight,
                                plays_bytes: match arguments.plays {
                                    Plays::Real => None,
                                    Plays::Bytes(bytes) => Some(bytes),
                                },
                                stands_for: arguments.stands_for,
                                sample_period: arguments.sample_period,
                                tick_ms: arguments.tick,
                                fast: fast.to_string(),
                                policy: policy.clone(),
                                set: set.clone(),
                                windows: arguments.windows,
                            };
                            // Asked for twice it is run once.
                            if !runs.iter().any(|run| run.case == case) {
                                let (workload, layout, plays, pages) =
                                    (workload.clone(), *layout, arguments.plays, arguments.page.0);
                                runs.push(Run {
                                    case,
                                    stream: streams,
                                    workload,
                                    layout,
                                    pages,
                                    machine: *machine,
                                    fast: *fast,
                                    plays,
                                });
                            }
                        }
                    }
                }
                streams += 1;
            }
        }
    }
    Ok(runs)
}

/// Policies, each with all combinations of what is to be set of it.
fn policies(arguments: &SimArguments) -> Result<Vec<(String, Vec<String>)>> {
    let names: Vec<String> = if arguments.policies.is_empty() {
        simulated::NAMES.map(str::to_owned).to_vec()
    } else {
        arguments.policies.clone()
    };
    // Each `--set` as its alternatives.
    let mut sweeps: Vec<(String, Vec<String>)> = Vec::new();
    for text in &arguments.set {
        let (key, values) = text.split_once('=').unwrap_or((text, ""));
        let alternatives: Vec<String> =
            values.split(',').map(|value| format!("{key}={value}")).collect();
        for alternative in &alternatives {
            Parameters::default().set(alternative).with_context(|| format!("--set {text}"))?;
        }
        let policy = key.split('.').next().unwrap_or_default().to_owned();
        if !names.contains(&policy) {
            bail!(
                "--set {text}: the policy `{policy}` is not run; there are {} (--policies)",
                names.join(", ")
            );
        }
        sweeps.push((policy, alternatives));
    }
    let mut all = Vec::new();
    for name in names {
        known("policy", &name, simulated::NAMES.into_iter())?;
        let mut sets: Vec<Vec<String>> = vec![Vec::new()];
        for (_, alternatives) in sweeps.iter().filter(|(policy, _)| *policy == name) {
            sets = sets
                .iter()
                .flat_map(|set| {
                    alternatives
                        .iter()
                        .map(move |one| [set.as_slice(), std::slice::from_ref(one)].concat())
                })
                .collect();
        }
        all.extend(sets.into_iter().map(|set| (name.clone(), set)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser as _;

    fn cases(line: &[&str]) -> Result<Vec<Run>> {
        match Arguments::try_parse_from(["terrace", "sim"].iter().chain(line))?.command {
            Command::Sim(arguments) => of(&arguments),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_combinations_once() {
        let line = "jump zipf tree --policies memtis,jenga --set memtis.cooling=120K,2M --set memtis.adapt=30K,100K --fast 20%,4G --machines optane,cxl \
                    --seeds 1,3-4 --layouts size,context";
        let all = cases(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
        // Two workloads, and one in two layouts; three seeds; two machines, two sizes; four sets
        // and one.
        assert_eq!(all.len(), 4 * 3 * 2 * 2 * 5);
        assert_eq!(all.last().unwrap().stream, 4 * 3 - 1);
        assert_eq!(all[1].case.set, ["memtis.cooling=120K", "memtis.adapt=100K"]);
        assert!(
            all[0].case.layout.is_none()
                && all.last().unwrap().case.layout.as_deref() == Some("context")
        );
        let twice =
            cases(&["jump", "flex", "--policies", "jenga,jenga", "--fast", "20%,20%"]).unwrap();
        assert_eq!(twice.len(), 1);
    }

    #[test]
    fn units_play_what_is_asked_for() {
        let of = |line: &[&str]| {
            cases(line).unwrap()[0].settings(1024, &[], Some(1000), Some(8)).unwrap()
        };
        // A tenth of the units: each plays ten huge pages, and intervals are a tenth.
        let (settings, parameters) = of(&["jump"]);
        assert_eq!(
            (settings.unit_bytes, parameters.samples, settings.capacity),
            (20.0 * REGION as f64 / 2.0, 0.1, 204)
        );
        assert_eq!((settings.stands_for, settings.window, settings.populated), (100.0, 25, true));
        let (settings, parameters) = of(&["jump", "--plays", "real", "--fast", "64M"]);
        assert_eq!(
            (settings.unit_bytes, parameters.samples, settings.capacity, settings.stands_for),
            (REGION as f64, 1.0, 32, 8.0)
        );
        let (settings, parameters) = of(&["jump", "--machines", "lz4", "--stands-for", "3"]);
        assert_eq!(
            (settings.unit_bytes, parameters.samples, settings.stands_for),
            (4096.0, 0.1, 3.0)
        );
        let (settings, _) = of(&["tree", "--plays", "real", "--page", "64K", "--in-flight", "4"]);
        assert_eq!(
            (settings.unit_bytes, settings.populated, settings.machine.in_flight),
            (65536.0, false, 4)
        );
        assert!(cases(&["jump", "--page", "mixed"]).unwrap()[0].case.huge_from.is_none());
        // Two huge pages and 1024 others, in a 2,560th of 20 GiB: base pages play ten, and policies
        // are told what is huge.
        let sizes: Vec<u32> = (0..1026).map(|unit| if unit < 2 { 512 } else { 1 }).collect();
        for line in [&["jump:huge=0.5,units=2048"][..], &["tree", "--page", "mixed:90%"]] {
            let run = &cases(line).unwrap()[0];
            let (settings, parameters) = run.settings(1026, &sizes, Some(1000), Some(8)).unwrap();
            assert_eq!(
                (settings.unit_bytes, settings.units, settings.capacity),
                (10.0 * REGION as f64 / 2.0, 1026, 409),
                "{line:?}"
            );
            assert_eq!(
                (parameters.largest, parameters.samples, parameters.unit_bytes),
                (512, 1.0 / 2560.0, settings.unit_bytes)
            );
            let real =
                [line, &["--plays", "real", "--machines", "optane,lz4", "--fast", "30%"]].concat();
            for run in cases(&real).unwrap() {
                let (settings, parameters) =
                    run.settings(1026, &sizes, Some(1000), Some(8)).unwrap();
                assert_eq!((settings.unit_bytes, parameters.samples), (4096.0, 1.0));
            }
        }
        let huge =
            &cases(&["tree", "--page", "mixed", "--machines", "lz4", "--fast", "1M"]).unwrap()[0];
        assert_eq!((huge.case.page_bytes, huge.case.huge_from), (Some(4096), Some(0.5)));
        let error = huge.settings(1026, &sizes, None, None).unwrap_err().to_string();
        assert_eq!(error, "the fast tier (1048576) has no room for one unit of 2097152 bytes");
        let error = |line: &[&str]| {
            cases(line).unwrap()[0].settings(1024, &[], None, None).unwrap_err().to_string()
        };
        assert!(error(&["jump", "--fast", "4K"]).contains("no room for one unit"));
        assert!(
            error(&["jump", "--sample-period", "99"]).contains("--sample-period, --stands-for")
        );
    }

    #[test]
    fn mistakes_are_told_with_what_is_possible() {
        for (line, told) in [
            (
                &["jump", "--policies", "lru"][..],
                "there is no policy `lru`; there are first-touch, autonuma",
            ),
            (
                &["jump", "--machines", "hbm"],
                "there is no machine `hbm`; there are optane, cxl, numa",
            ),
            (
                &["tree", "--layouts", "heap"],
                "there is no layout `heap`; there are time, size, context",
            ),
            (&["jmp"], "there is no stream `jmp`; there are zipf"),
            (
                &["jump", "--set", "memtis.cool=1"],
                "memtis has no parameter \"cool\": it has cooling",
            ),
            (
                &["jump", "--policies", "jenga", "--set", "memtis.cooling=1"],
                "the policy `memtis` is not run",
            ),
            (&["jump", "--fast", "0%"], "0% to 100%"),
            (&["jump", "--seeds", "5-1"], "some in a row as 1-5"),
            (&["tree", "--page", "5000"], "a power of two"),
            (&["tree", "--page", "mixed:2"], "a share of pages as `mixed:90%`"),
            (&[], "WORKLOAD"),
        ] {
            let error = format!("{:#}", cases(line).unwrap_err());
            assert!(error.contains(told), "{line:?}: {error}");
        }
    }

    #[test]
    fn shares_are_shown_as_they_were_written() {
        for text in ["20%", "7%", "33.3%", "0.1%"] {
            assert_eq!(text.parse::<Fast>().unwrap().to_string(), text);
        }
    }
}
