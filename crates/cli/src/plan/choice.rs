//! What is to be had, of what was seen: curves over the knob, settings, and sets of tiers.

use super::seen::Seen;
use crate::cost::compress::{Compressed, PACKED};
use crate::cost::prices::Prices;
use crate::cost::tco;
use crate::plan::args::PlanArguments;
use serde::Serialize;
use terrace_control::settings::Window;
use terrace_policy::tiering::cost::CONFIG;
use terrace_policy::tiering::forecast::{Class, Data, Outlook, classes};
use terrace_policy::tiering::{Codec, Kind, Preset, Tier};
use terrace_tiers::{CodecKind, PAGE_BYTES, parse_tiers};

/// What a program loses for a page that refaults besides its decompression, ns: whole programs on a
/// virtual machine lost 31 to 58 µs for a page of lz4 (`terrace-bench honesty`, eight of nine).
const FAULT_NS: f64 = 45_000.0;
/// Knobs of the curves.
const KNOBS: [f64; 11] = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0];
/// The tiers of a run where nothing is said.
const USUAL: [&str; 2] = ["lz4", "zstd:1"];
/// Least saving for which another tier is worth while, as a part of the cost of all in DRAM.
const WORTH: f64 = 0.005;
/// Windows of a run below which it is told that it is short.
const SHORT: f64 = 4.0;
/// Ages in s from which on memory is called warm, and cold.
pub const WARM_S: f64 = 10.0;
pub const COLD_S: f64 = 60.0;

/// All that `terrace plan` tells.
#[derive(Serialize)]
pub struct Plan {
    pub version: u32,
    pub command: Vec<String>,
    pub pid: Option<u32>,
    pub data_bytes: u64,
    pub observed_s: f64,
    /// Time after which pages begin to leave, seconds.
    pub window_s: f64,
    /// Parts of the data that nothing touched, by time.
    pub idle: Vec<IdlePart>,
    /// Hot, warm and cold parts of the data; `null` where they are not known.
    pub hot: Option<f64>,
    pub warm: Option<f64>,
    pub cold: Option<f64>,
    pub compressed: Vec<Compressed>,
    pub prices_of: String,
    /// Time of a fault besides decompression, µs: what other programs lost.
    pub fault_us: f64,
    /// Where the program is now; `null` where that is not known.
    pub here: Option<Point>,
    /// Savings against slowdown over the knob; empty where that cannot be told.
    pub curves: Vec<Curve>,
    /// Settings: conservative, moderate, aggressive.
    pub settings: Vec<SettingOf>,
    /// The best set of each size, with `--choose-tiers`.
    pub sets: Vec<Set>,
    /// Why this many tiers are enough.
    pub enough: Option<String>,
    /// Part of the time that is lost at most with the sets.
    pub slowdown: f64,
    /// Command that attaches to the process, without starting it again.
    pub attach: Option<String>,
    /// What could not be told.
    pub untold: Vec<String>,
}

#[derive(Serialize)]
pub struct IdlePart {
    pub seconds: f64,
    pub fraction: f64,
}

/// A place between cost and slowdown.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The knob: 1 is all speed, 0 all saving; `null` where no knob is in use.
    pub alpha: Option<f64>,
    /// Cost of the data: 1 is all of it in DRAM.
    pub cost: f64,
    /// The part of the program's time that it is expected to lose, from 0 to 1.
    pub slowdown: f64,
    /// Whether more may be lost than `slowdown`.
    pub at_least: bool,
    pub dram_bytes: u64,
    pub faults_per_s: f64,
    /// Cost in dollars; `null` where no price of DRAM was given.
    pub usd: Option<f64>,
}

#[derive(Serialize)]
pub struct Curve {
    /// The tiers, as for `--tiers`.
    pub tiers: String,
    pub points: Vec<Point>,
}

#[derive(Serialize)]
pub struct SettingOf {
    pub name: &'static str,
    #[serde(flatten)]
    pub point: Point,
    /// Command with this setting; `null` where the program is not known.
    pub command: Option<String>,
}

#[derive(Serialize)]
pub struct Set {
    pub tiers: String,
    /// What the data cost where no more than the slowdown is lost.
    pub cost: f64,
    /// What the last of its tiers adds: how much more is saved than by the best set of one less.
    pub adds: f64,
    pub slowdown: f64,
}

/// Time after which a run with a knob and no `--window` plans, seconds.
fn window_s() -> f64 {
    Window::default().0 as f64 / 1e3
}

/// What is told of a program, by these arguments and prices.
pub fn plan(seen: &Seen, arguments: &PlanArguments, prices: &Prices) -> Plan {
    let mut plan = Plan {
        version: 2,
        hot: None,
        warm: None,
        cold: None,
        data_bytes: seen.data_bytes,
        observed_s: seen.observed_s,
        window_s: window_s(),
        idle: seen
            .idle
            .iter()
            .map(|idle| IdlePart { seconds: idle.seconds, fraction: idle.part })
            .collect(),
        prices_of: prices.dated().to_owned(),
        fault_us: FAULT_NS / 1e3,
        here: seen.here.as_ref().map(|here| Point {
            alpha: None,
            cost: here.cost,
            slowdown: here.slowdown,
            at_least: here.at_least,
            dram_bytes: here.dram_bytes.unwrap_or(seen.data_bytes),
            faults_per_s: 0.0,
            usd: tco::dollars(seen.data_bytes, here.cost, prices),
        }),
        curves: Vec::new(),
        settings: Vec::new(),
        sets: Vec::new(),
        enough: None,
        slowdown: arguments.slowdown.0,
        attach: None,
        untold: seen.untold.clone(),
        compressed: seen.compressed.clone(),
        command: seen.command.clone(),
        pid: seen.pid,
    };
    heat_classes(&mut plan, seen);
    if seen.compressed.is_empty() && !seen.idle.is_empty() {
        plan.untold.push(
            "what could be saved follows from how pages compress, which this does not tell: --data FILE takes pages of a file for it"
                .into(),
        );
    }
    if !seen.idle.is_empty() && !seen.compressed.is_empty() && seen.data_bytes > 0 {
        Chooser::new(seen, prices).fill(&mut plan, arguments);
    }
    plan
}

/// Hot, warm and cold, where the times of the observation reach so far.
fn heat_classes(plan: &mut Plan, seen: &Seen) {
    let part =
        |seconds: f64| seen.idle.iter().find(|idle| idle.seconds >= seconds).map(|idle| idle.part);
    let (warm, cold) = (part(WARM_S), part(COLD_S));
    plan.hot = warm.map(|idle| 1.0 - idle);
    plan.warm = warm.map(|idle| idle - cold.unwrap_or(0.0));
    plan.cold = cold;
}

/// The tiers that were measured, and what was seen, as the forecast takes it.
struct Chooser<'a> {
    seen: &'a Seen,
    prices: &'a Prices,
    tiers: Vec<Tier>,
    classes: Vec<Class>,
    stored: Vec<Vec<f64>>,
}

impl<'a> Chooser<'a> {
    fn new(seen: &'a Seen, prices: &'a Prices) -> Chooser<'a> {
        let dram = Tier {
            name: "dram".into(),
            kind: Kind::Bytes { extra_ns: 0.0 },
            medium: 0,
            price: 1.0,
        };
        let below = seen.compressed.iter().map(|of| Tier {
            name: of.tier.clone(),
            kind: Kind::Compressed {
                codec: codec(&of.tier),
                store_ns: of.store_ns.unwrap_or(0) as f64,
                fault_ns: FAULT_NS + of.restore_ns.unwrap_or(0) as f64,
            },
            medium: usize::from(tco::medium(&of.tier) != "dram"),
            price: prices.of(tco::medium(&of.tier)),
        });
        Chooser {
            seen,
            prices,
            tiers: std::iter::once(dram).chain(below).collect(),
            classes: classes(&seen.idle),
            stored: stored(&seen.compressed),
        }
    }

    fn data(&self) -> Data<'_> {
        Data {
            pages: self.seen.data_bytes as f64 / PAGE_BYTES as f64,
            classes: &self.classes,
            stored: &self.stored,
            work_price: CONFIG.work_price,
            window_s: window_s(),
        }
    }

    /// Cost and slowdown with a knob, on average over a run of which the length is known, or for
    /// ever.
    fn at_knob(&self, used: &[usize], alpha: f64) -> Point {
        let outlook = self.data().at_knob(&self.tiers, used, alpha);
        let outlook = match self.seen.run_s {
            Some(run_s) => outlook.of_run(run_s, window_s()),
            None => outlook,
        };
        let data = self.seen.data_bytes;
        Point {
            alpha: Some(alpha),
            cost: outlook.cost,
            slowdown: outlook.slowdown,
            at_least: outlook.is_lower_bound,
            dram_bytes: (outlook.dram * data as f64) as u64,
            faults_per_s: outlook.faults,
            usd: tco::dollars(data, outlook.cost, self.prices),
        }
    }

    /// A set of tiers, as for `--tiers`.
    fn list(&self, used: &[usize]) -> String {
        used.iter().map(|tier| self.tiers[*tier].name.as_str()).collect::<Vec<_>>().join(",")
    }

    fn curve(&self, used: &[usize]) -> Curve {
        let points = KNOBS.iter().map(|alpha| self.at_knob(used, *alpha)).collect();
        Curve { tiers: self.list(used), points }
    }

    /// The tiers of a run where nothing is said, as far as they were measured; else all.
    fn usual(&self) -> Vec<usize> {
        let is_usual = |tier: &usize| USUAL.contains(&self.tiers[*tier].name.as_str());
        let usual: Vec<usize> =
            (0..self.tiers.len()).filter(|tier| *tier == 0 || is_usual(tier)).collect();
        if usual.len() == USUAL.len() + 1 { usual } else { (0..self.tiers.len()).collect() }
    }

    fn fill(&self, plan: &mut Plan, arguments: &PlanArguments) {
        let most = arguments.choose_tiers.map_or(1, usize::from);
        let below = self.tiers.len() - 1;
        if most > below {
            plan.untold.push(format!("only {below} tiers were measured: name more with --tiers"));
        }
        let sets = self.data().best_sets(&self.tiers, most, plan.slowdown);
        let mut used = self.usual();
        if arguments.choose_tiers.is_some() {
            let enough = enough(&sets);
            used.clone_from(&sets[enough - 1].0);
            plan.enough = Some(self.why_enough(&sets, enough));
            let mut before = 1.0;
            for (used, outlook) in &sets {
                plan.sets.push(Set {
                    tiers: self.list(used),
                    cost: outlook.cost,
                    adds: before - outlook.cost,
                    slowdown: outlook.slowdown,
                });
                before = outlook.cost;
            }
        }
        let mut shown = vec![used.clone(), self.usual()];
        shown.extend(sets.into_iter().rev().map(|(used, _)| used));
        shown.dedup();
        let mut known: Vec<Vec<usize>> = Vec::new();
        for used in shown {
            if !known.contains(&used) {
                known.push(used);
            }
        }
        plan.curves = known.iter().take(3).map(|used| self.curve(used)).collect();
        let list = self.list(&used);
        for preset in [Preset::Conservative, Preset::Moderate, Preset::Aggressive] {
            let alpha = preset.alpha();
            plan.settings.push(SettingOf {
                name: preset.name(),
                point: self.at_knob(&used, alpha),
                command: command(&plan.command, alpha, &list),
            });
        }
        if self.seen.compressed.iter().any(|tier| tco::medium(&tier.tier) == "file") {
            plan.untold.push("what reading from files takes was not measured: it is not in the slowdowns of tiers in files".into());
        }
        if self.stored.len() > 1 {
            plan.untold.push(
                "whether idle pages compress as the others do was not seen: it is taken to be so"
                    .into(),
            );
        }
        if let Some(run_s) = self.seen.run_s.filter(|run_s| *run_s < window_s() * SHORT) {
            plan.untold.push(format!(
                "pages leave when {:.0} s have passed, and it ran for {run_s:.0} s: of a longer run more is saved, and more lost",
                window_s()
            ));
        }
        plan.attach = self.attach(plan);
    }

    /// Command that attaches to the process. A process that runs takes one compressed tier and a
    /// limit.
    fn attach(&self, plan: &Plan) -> Option<String> {
        let (pid, best) = (plan.pid?, self.data().best_sets(&self.tiers, 1, plan.slowdown));
        let (used, outlook) = best.first()?;
        used.iter().all(|tier| self.tiers[*tier].medium == 0).then_some(())?;
        let mib = ((outlook.dram * plan.data_bytes as f64) as u64).div_ceil(1 << 20);
        Some(format!("terrace attach --dram {mib}M --tiers {} {pid}", self.list(used)))
    }

    fn why_enough(&self, sets: &[(Vec<usize>, Outlook)], enough: usize) -> String {
        let added = |count: usize| sets[count - 1].1.cost - sets[count].1.cost;
        let share = crate::quantity::share;
        match (enough, sets.get(enough)) {
            _ if sets[0].1.cost > 1.0 - WORTH => {
                "none is worth while: nothing is saved within that slowdown".into()
            }
            (1, Some(_)) => format!(
                "one is enough: a second tier saves only {} of the cost of all in DRAM more",
                share(added(1).max(0.0))
            ),
            (count, Some(_)) => format!(
                "{count} are enough: another one saves only {} more",
                share(added(count).max(0.0))
            ),
            (1, None) => "more than one was not asked for".into(),
            (count, None) => format!("the last of {count} still adds something"),
        }
    }
}

/// The least number of tiers beyond which another one is not worth while.
fn enough(sets: &[(Vec<usize>, Outlook)]) -> usize {
    let pays = |pair: &[(Vec<usize>, Outlook)]| pair[0].1.cost - pair[1].1.cost >= WORTH;
    // A third may pay where a second does not.
    sets.windows(2).rposition(pays).map_or(1, |last| last + 2)
}

/// Bytes of each tier's medium for each byte of data, DRAM first: a row for each quarter of the
/// pages, or one where quarters are not known.
fn stored(compressed: &[Compressed]) -> Vec<Vec<f64>> {
    let quarters = compressed.iter().map(|tier| tier.by_quarter.len()).min().unwrap_or(0);
    let row = |of: &dyn Fn(&Compressed) -> f64| -> Vec<f64> {
        let packed = compressed.iter().map(|tier| (of(tier) * PACKED).clamp(1e-3, 1.0));
        std::iter::once(1.0).chain(packed).collect()
    };
    if quarters == 0 {
        return vec![row(&|tier| tier.fraction)];
    }
    (0..quarters).map(|quarter| row(&|tier| tier.by_quarter[quarter])).collect()
}

fn codec(tier: &str) -> Codec {
    let spec = parse_tiers(&format!("dram,{tier}")).ok().and_then(|mut specs| specs.pop());
    match spec.and_then(|spec| spec.codec()) {
        Some(CodecKind::Lzo) => Codec::Lzo,
        Some(CodecKind::Zstd { .. }) => Codec::Zstd,
        Some(CodecKind::Deflate { .. }) => Codec::Deflate,
        // One that the papers do not have is taken as the nearest.
        _ => Codec::Lz4,
    }
}

/// The setting as a command for a shell; `None` where the program is not known.
fn command(words: &[String], alpha: f64, tiers: &str) -> Option<String> {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    (!words.is_empty()).then(|| {
        format!("terrace run --knob {alpha} --tiers {} -- {}", quoted(tiers), words.join(" "))
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
pub mod samples {
    use super::*;
    use clap::Parser;
    use terrace_policy::tiering::forecast::Idle;

    /// Half of a GiB is in use, a fifth was idle for minutes; half of the pages compress well.
    pub fn seen() -> Seen {
        let idle = |seconds, part| Idle { seconds, part };
        let compressed = |tier: &str, quarters: [f64; 4], restore_ns| Compressed {
            tier: tier.into(),
            fraction: quarters.iter().sum::<f64>() / 4.0,
            by_quarter: quarters.to_vec(),
            store_ns: Some(restore_ns * 3),
            restore_ns: Some(restore_ns),
        };
        Seen {
            command: ["app", "-c", "print('a b')"].map(String::from).to_vec(),
            data_bytes: 1 << 30,
            observed_s: 400.0,
            run_s: Some(400.0),
            idle: vec![idle(2.0, 0.55), idle(10.0, 0.45), idle(60.0, 0.35), idle(300.0, 0.3)],
            compressed: vec![
                compressed("lz4", [0.2, 0.4, 0.7, 0.95], 2_000),
                compressed("zstd:1", [0.1, 0.25, 0.5, 0.9], 7_000),
                compressed("zstd:9", [0.1, 0.25, 0.495, 0.9], 7_000),
            ],
            here: Some(super::super::seen::Here::all_in_dram()),
            ..Seen::default()
        }
    }

    pub fn arguments(more: &[&str]) -> PlanArguments {
        let words = ["terrace", "plan", "report.json"].into_iter().chain(more.iter().copied());
        match crate::args::Arguments::try_parse_from(words).unwrap().command {
            crate::args::Command::Plan(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    pub fn planned(more: &[&str]) -> Plan {
        plan(&seen(), &arguments(more), &Prices::default())
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{arguments, planned, seen};
    use super::*;
    use clap::Parser;

    #[test]
    fn settings_go_from_what_costs_least_to_what_saves_most() {
        let plan = planned(&[]);
        let names: Vec<&str> = plan.settings.iter().map(|setting| setting.name).collect();
        assert_eq!(names, ["conservative", "moderate", "aggressive"]);
        for pair in plan.settings.windows(2) {
            let (less, more) = (&pair[0].point, &pair[1].point);
            assert!(
                less.cost > more.cost && less.slowdown < more.slowdown,
                "{pair:?}",
                pair = (less, more)
            );
            assert!(less.dram_bytes > more.dram_bytes);
        }
        let first = &plan.settings[0].point;
        // At 0.9 nine tenths of what can be saved are not: all that is out has been idle for long.
        assert!((0.9..1.0).contains(&first.cost) && !first.at_least, "{first:?}");
        assert_eq!((plan.hot, plan.cold), (Some(0.55), Some(0.35)));
        // What was touched just now refaults once a window at most.
        assert!(!plan.settings[2].point.at_least && plan.settings[2].point.slowdown < 1.0);
    }

    #[test]
    fn commands_can_be_run() {
        for setting in planned(&[]).settings {
            let command = setting.command.unwrap();
            let expected = format!(
                r"terrace run --knob {} --tiers dram,lz4,zstd:1 -- app -c 'print('\''a b'\'')'",
                setting.point.alpha.unwrap()
            );
            assert_eq!(command, expected);
            let words = ["terrace", "run", "--knob", "0.9", "--tiers", "dram,lz4", "--", "app"];
            assert!(crate::args::Arguments::try_parse_from(words).is_ok());
        }
        assert_eq!(command(&[], 0.5, "dram,lz4"), None);
    }

    #[test]
    fn a_second_tier_is_named_where_it_adds_something() {
        let plan = planned(&["--choose-tiers", "3", "--slowdown", "2%"]);
        assert_eq!(plan.sets.len(), 3);
        assert!(plan.sets.windows(2).all(|pair| pair[1].cost <= pair[0].cost + 1e-6));
        assert!(plan.sets.iter().all(|set| set.slowdown <= 0.02 + 1e-6), "{:?}", plan.enough);
        assert!(
            plan.enough.as_ref().is_some_and(|why| why.contains("enough")),
            "{:?}",
            plan.enough
        );
        let four = plan.curves.iter().all(|curve| curve.points.len() == KNOBS.len());
        assert!(four && !plan.curves.is_empty());
        let more = planned(&["--choose-tiers", "4"]);
        assert!(more.untold.iter().any(|line| line.contains("only 3 tiers were measured")));
        assert_eq!(more.sets.len(), 3);
    }

    #[test]
    fn what_is_not_known_is_said_and_not_guessed() {
        let without = Seen { compressed: Vec::new(), ..seen() };
        let plan = super::plan(&without, &arguments(&[]), &Prices::default());
        assert!(plan.settings.is_empty() && plan.curves.is_empty() && plan.cold == Some(0.35));
        assert!(plan.untold.iter().any(|line| line.contains("--data FILE")), "{:?}", plan.untold);
        let without = Seen { idle: Vec::new(), ..seen() };
        let plan = super::plan(&without, &arguments(&[]), &Prices::default());
        assert!(plan.settings.is_empty() && plan.hot.is_none());
        assert!(planned(&[]).settings.iter().all(|setting| setting.point.usd.is_none()));
        let prices = Prices::with(None, &["usd=4".parse().unwrap()]).unwrap();
        let plan = super::plan(&seen(), &arguments(&[]), &prices);
        let point = &plan.settings[1].point;
        assert!(point.usd.is_some_and(|usd| (usd - 4.0 * point.cost).abs() < 1e-9));
    }

    #[test]
    fn a_run_that_ends_soon_saves_little() {
        let short = Seen { run_s: Some(4.0), ..seen() };
        let plan = super::plan(&short, &arguments(&[]), &Prices::default());
        assert!(plan.settings.iter().all(|of| of.point.cost == 1.0 && of.point.slowdown == 0.0));
        assert!(plan.untold.iter().any(|line| line.contains("ran for 4 s")), "{:?}", plan.untold);
        let forever = Seen { run_s: None, ..seen() };
        let forever = super::plan(&forever, &arguments(&[]), &Prices::default());
        assert!(forever.settings[2].point.cost < planned(&[]).settings[2].point.cost);
        assert!(!forever.untold.iter().any(|line| line.contains("ran for")));
        assert!(forever.curves.iter().all(|of| of.points.iter().all(|of| of.slowdown < 1.0)));
    }

    #[test]
    fn a_process_that_runs_need_not_be_started_again() {
        let running = Seen { pid: Some(77), ..seen() };
        let plan = super::plan(&running, &arguments(&[]), &Prices::default());
        let attach = plan.attach.unwrap();
        assert!(
            attach.starts_with("terrace attach --dram ") && attach.ends_with(" 77"),
            "{attach}"
        );
        let words: Vec<&str> = attach.split(' ').collect();
        assert!(crate::args::Arguments::try_parse_from(words).is_ok(), "{attach}");
    }
}
