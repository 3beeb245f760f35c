//! What is known of a program's memory, from whatever `terrace plan` was given: a report, a
//! recording, a process that runs. What an input cannot tell stays empty, and is named.

use crate::cost::compress::{Compressed, Gauge};
use crate::cost::prices::Prices;
use crate::cost::tco::Tco;
use crate::processes::data::REGION_BYTES;
use crate::processes::idle::{FROM_BYTES, Idle, IdleWatch};
use crate::processes::{process, statistics};
use crate::run::directory;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use terrace_policy::tiering::forecast;
use terrace_trace::accesses::{self, Clock};
use terrace_trace::counts::Recording;

/// Compressed tiers of a report at most: what the forecast chooses among.
const COMPRESSED_MOST: usize = 15;
/// Said where no page was read.
const UNKNOWN_COMPRESSION: &str =
    "how its pages compress is not known: none could be read, or it ended too soon";
/// Times for which it is told how much of a recording was idle, s.
const TIMES_S: [f64; 5] = [1.0, 2.0, 10.0, 60.0, 300.0];

/// What a program's memory was like.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The program and its arguments; empty where that is not known.
    pub command: Vec<String>,
    /// The process, where it runs.
    pub pid: Option<u32>,
    /// Data at most, bytes.
    pub data_bytes: u64,
    /// How long it was looked at, s.
    pub observed_s: f64,
    /// How long it runs, s; `None` where no end of it is known.
    pub run_s: Option<f64>,
    /// What was idle for how long; empty where that was not looked at.
    pub idle: Vec<forecast::Idle>,
    /// How pages compress; empty where no page was read.
    pub compressed: Vec<Compressed>,
    /// Where the program is now; `None` where that is not known.
    pub here: Option<Here>,
    /// What the input cannot tell, a line each.
    pub untold: Vec<String>,
}

/// Where a program is before anything is changed.
#[derive(Clone, Debug)]
pub struct Here {
    /// What the program's data cost; all in DRAM is 1.
    pub cost: f64,
    /// The part of the program's time that is lost.
    pub slowdown: f64,
    /// Whether more may be lost than `slowdown`.
    pub at_least: bool,
    /// DRAM for its data, if something of it was elsewhere.
    pub dram_bytes: Option<u64>,
}

impl Here {
    /// Where all of a program's data are in DRAM.
    pub fn all_in_dram() -> Here {
        Here { cost: 1.0, slowdown: 0.0, at_least: false, dram_bytes: None }
    }
}

/// What is needed of a report. Reports of other versions may lack most of it.
#[derive(Deserialize)]
struct Reported {
    command: Vec<String>,
    elapsed_s: f64,
    state: Option<String>,
    peak_logical_bytes: Option<u64>,
    mean_physical_bytes: Option<u64>,
    slowdown_estimate: Option<f64>,
    #[serde(default)]
    slowdown_is_lower_bound: bool,
    idle: Option<Idle>,
    tco: Option<Tco>,
}

/// What a report's text tells of a program.
pub fn of_report(text: &str) -> Result<Seen> {
    let report: Reported =
        serde_json::from_str(text).context("it is no report of `terrace run --report FILE`")?;
    let mut seen = Seen {
        command: report.command,
        data_bytes: report.peak_logical_bytes.unwrap_or(0),
        observed_s: report.elapsed_s,
        run_s: Some(report.elapsed_s),
        ..Seen::default()
    };
    let moved = matches!(report.state.as_deref(), Some("active" | "frozen"));
    seen.here = match (report.tco, report.slowdown_estimate) {
        _ if !moved => Some(Here::all_in_dram()),
        (Some(tco), Some(slowdown)) => {
            seen.untold.push(format!("what it costs now is at the prices of {}", tco.prices_of));
            let at_least = report.slowdown_is_lower_bound;
            let dram_bytes = report.mean_physical_bytes;
            Some(Here { cost: tco.relative, slowdown, at_least, dram_bytes })
        }
        _ => {
            seen.untold
                .push("the report does not say what its data cost (another version's)".into());
            None
        }
    };
    if let Some(idle) = &report.idle {
        ensure!(
            idle.compressed.len() <= COMPRESSED_MOST,
            "it has {} compressed tiers, and there are {COMPRESSED_MOST} at most",
            idle.compressed.len()
        );
    }
    match report.idle {
        Some(idle) => seen.take(&idle),
        None if moved => seen.untold.push(
            "pages were moved in that run, so nobody watched what was idle: `terrace run --observe --report FILE -- CMD` does"
                .into(),
        ),
        None => seen.untold.push(
            "nothing is known of what was idle: observe for more than two seconds (`terrace run --observe --report FILE -- CMD`), with 64M of data or more"
                .into(),
        ),
    }
    Ok(seen)
}

impl Seen {
    fn take(&mut self, idle: &Idle) {
        let parts: Vec<forecast::Idle> = idle
            .not_touched
            .iter()
            .filter(|times| times.of_bytes > 0)
            .map(|times| forecast::Idle { seconds: times.seconds as f64, part: times.fraction() })
            .collect();
        self.idle = forecast::in_order(&parts);
        self.compressed.clone_from(&idle.compressed);
        let longest = self.idle.last().map_or(0.0, |last| last.seconds);
        if self.idle.is_empty() {
            self.untold.push(
                "what was idle could not be seen: it takes two seconds, 16M of anonymous memory, and a process of your own"
                    .into(),
            );
        } else if longest < 60.0 {
            self.untold.push(format!(
                "what is idle for longer than {longest} s is not known: observe for longer"
            ));
        }
        if self.compressed.is_empty() {
            self.untold.push(UNKNOWN_COMPRESSION.into());
        } else if self.compressed.iter().any(|tier| tier.restore_ns.is_none()) {
            self.untold.push(
                "the report has no times of codecs (another version's): slowdowns leave them out"
                    .into(),
            );
        }
    }

    /// Takes compressibility from pages of a file.
    pub fn compress(&mut self, pages: &[terrace_tiers::Page], tiers: &str) {
        let mut gauge = Gauge::new(tiers);
        gauge.add(pages);
        self.compressed = gauge.compressed();
        self.untold.retain(|line| line != UNKNOWN_COMPRESSION);
    }
}

/// Watches a process for some time, from outside; it runs on, and nothing of it is moved.
pub fn of_process(pid: u32, time: Duration, tiers: &str) -> Result<Seen> {
    let stat = process::stat(pid).filter(|stat| !stat.ended);
    let stat = stat.with_context(|| format!("there is no process {pid}"))?;
    let held = process::anonymous_bytes(pid);
    ensure!(
        held >= FROM_BYTES,
        "process {pid} has less than {} of anonymous memory: there is nothing to save",
        crate::quantity::bytes(FROM_BYTES)
    );
    let references = format!("/proc/{pid}/clear_refs");
    if let Err(error) = fs::OpenOptions::new().write(true).open(&references) {
        bail!("process {pid} cannot be watched ({references}: {error}): be its user, or root");
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let words = command.split_terminator('\0').map(str::to_owned).collect();
    let mut watch = IdleWatch::new(Path::new(""), tiers);
    let (begun, mut most) = (Instant::now(), held);
    let is_there = || process::stat(pid).is_some_and(|now| now.start_ticks == stat.start_ticks);
    while begun.elapsed() < time && is_there() {
        watch.look_at(pid, 0);
        most = most.max(process::anonymous_bytes(pid));
        std::thread::sleep(Duration::from_millis(100).min(time.saturating_sub(begun.elapsed())));
    }
    let mut seen = Seen {
        command: words,
        pid: Some(pid),
        data_bytes: most,
        observed_s: begun.elapsed().as_secs_f64(),
        ..Seen::default()
    };
    if is_there() {
        watch.look_at(pid, 0);
    }
    seen.take(&watch.known().remove(&(pid, 0)).unwrap_or_default());
    match managed(pid) {
        Some((here, data_bytes)) => {
            (seen.here, seen.data_bytes) = (Some(here), data_bytes.max(most));
            // What is idle was seen of what is resident only.
            seen.idle.clear();
            seen.untold = vec![
                "its pages are moved already, so what is idle of all of it cannot be seen: `terrace set` changes what it may take"
                    .into(),
            ];
        }
        None => seen.here = Some(Here::all_in_dram()),
    }
    Ok(seen)
}

/// Where a process is whose pages a run moves already, and how much data it had at most.
fn managed(pid: u32) -> Option<(Here, u64)> {
    let (runs, _) = directory::live();
    let page = runs.iter().find_map(|run| statistics::newest_pages(&run.path).remove(&pid))?;
    let told = statistics::read_one(&page)?;
    let (logical, physical) = (told.mean_logical_bytes, told.mean_physical_bytes);
    let tco = Tco::of(logical, physical, &told.tiers, &Prices::default())?;
    let slowdown = told.counts.lost_ns as f64 / 1e9 / told.elapsed_s().max(1.0);
    let dram_bytes = Some(physical);
    let here = Here { cost: tco.relative, slowdown, at_least: false, dram_bytes };
    Some((here, told.peak_logical_bytes))
}

/// Times without accesses to one unit of memory: for how much of the time nothing touched it for
/// each of [`TIMES_S`].
#[derive(Default)]
struct Gaps {
    /// For each of [`TIMES_S`], in s: the time at which nothing touched the unit for that long from
    /// then on, and all time that is known.
    sums: [(f64, f64); TIMES_S.len()],
}

impl Gaps {
    /// Adds a gap: nothing touched the unit for `seconds` seconds.
    fn add(&mut self, seconds: f64) {
        for ((idle, _), time) in self.sums.iter_mut().zip(TIMES_S) {
            *idle += (seconds - time).max(0.0);
        }
    }

    /// Adds `seconds` seconds in which the unit was known.
    fn known(&mut self, seconds: f64) {
        for ((_, all), time) in self.sums.iter_mut().zip(TIMES_S) {
            *all += (seconds - time).max(0.0);
        }
    }

    fn curve(&self, observed_s: f64) -> Vec<forecast::Idle> {
        let seen = |(_, time): &(_, f64)| *time * 2.0 <= observed_s;
        let times = self.sums.iter().zip(TIMES_S).filter(seen);
        times
            .filter(|((_, all), _)| *all > 0.0)
            .map(|((idle, all), seconds)| forecast::Idle { seconds, part: idle / all })
            .collect()
    }
}

/// What all recordings by a sampler cannot tell.
const BY_SAMPLES: &str = "by samples: what no sample met for a while is taken for idle, and memory that none met at all is not in it, so more may be lost";

/// What counts by region and time tell of a program.
pub fn of_counts(path: &Path) -> Result<Seen> {
    let recording = Recording::read(path)?;
    let end_s = recording.windows.last().map_or(0.0, |last| last.end_ms as f64 / 1e3);
    // For each region when it was met first and last.
    let mut met: HashMap<_, (f64, f64)> = HashMap::new();
    let mut gaps = Gaps::default();
    for window in &recording.windows {
        let (from, to) = (window.start_ms as f64 / 1e3, window.end_ms as f64 / 1e3);
        for place in window.counts.keys() {
            let (_, last) = met.entry(*place).or_insert((from, from));
            gaps.add(from - *last);
            *last = to;
        }
    }
    for (first, last) in met.values() {
        gaps.add(end_s - last);
        gaps.known(end_s - first);
    }
    let untold = recording.incomplete.map(|why| format!("{why}: what comes before counts"));
    let region_bytes = recording.header.region_bytes;
    let (data, untold) = (met.len() as u64 * region_bytes, untold.into_iter().collect());
    Ok(of_samples(recording.header.command, data, region_bytes, end_s, &gaps, untold))
}

/// What accesses, one by one, tell of a program.
pub fn of_accesses(path: &Path) -> Result<Seen> {
    let reader = accesses::Reader::open(path)?;
    let header = &reader.header;
    ensure!(
        header.clock == Clock::Us,
        "its clock counts accesses, so it cannot tell what was idle for how many seconds: `terrace sim --placement terrace-cost {}` runs the model over it",
        path.display()
    );
    let end_s = reader.end_clock() as f64 / 1e6;
    // Single pages are met too seldom to say of one that it was idle.
    let region_of =
        |page: &accesses::Page| (page.process, page.number * header.page_bytes / REGION_BYTES);
    let regions: Vec<(u32, u64)> = reader.pages().iter().map(region_of).collect();
    let mut met: HashMap<(u32, u64), (f64, f64)> = HashMap::new();
    let mut gaps = Gaps::default();
    let mut untold: Vec<String> = reader.incomplete().map(str::to_owned).into_iter().collect();
    let mut starts: Vec<f64> =
        (0..reader.blocks()).map(|block| reader.block(block).0 as f64 / 1e6).collect();
    starts.push(end_s);
    let (mut blocks, mut number) = (reader.iter(), 0);
    while let Some(block) = blocks.next() {
        let records = match block {
            Ok((_, records)) => records,
            Err(why) => {
                untold.push(why);
                break;
            }
        };
        // Within a block accesses are taken to be even over its time.
        let (from, to) = (starts[number], starts[(number + 1).min(starts.len() - 1)]);
        let each = (to - from).max(0.0) / records.len().max(1) as f64;
        for (index, record) in records.iter().enumerate() {
            let now = from + each * index as f64;
            let Some(region) = regions.get(accesses::page_of(*record) as usize) else { continue };
            let (_, last) = met.entry(*region).or_insert((now, now));
            gaps.add(now - *last);
            *last = now;
        }
        number += 1;
    }
    for (first, last) in met.values() {
        gaps.add(end_s - last);
        gaps.known(end_s - first);
    }
    let command = header.command.clone();
    Ok(of_samples(command, met.len() as u64 * REGION_BYTES, REGION_BYTES, end_s, &gaps, untold))
}

/// What a recording by samples of regions says, and what it cannot.
fn of_samples(
    command: Vec<String>,
    data_bytes: u64,
    region_bytes: u64,
    observed_s: f64,
    gaps: &Gaps,
    mut untold: Vec<String>,
) -> Seen {
    untold.push(BY_SAMPLES.into());
    untold.push(format!(
        "by regions of {}: each is taken to come back as a whole",
        crate::quantity::bytes(region_bytes)
    ));
    let idle = forecast::in_order(&gaps.curve(observed_s));
    let here = Some(Here::all_in_dram());
    Seen { command, data_bytes, observed_s, idle, here, untold, ..Seen::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_parts_follow_from_gaps() {
        // Touched at 0, 3 and 10 s of 20.
        let mut gaps = Gaps::default();
        [3.0, 7.0, 10.0].into_iter().for_each(|seconds| gaps.add(seconds));
        gaps.known(20.0);
        let curve = gaps.curve(20.0);
        let parts: Vec<(f64, f64)> = curve.iter().map(|idle| (idle.seconds, idle.part)).collect();
        let at_two = (1.0 + 5.0 + 8.0) / 18.0;
        assert_eq!(parts, [(1.0, 17.0 / 19.0), (2.0, at_two), (10.0, 0.0)]);
    }

    #[test]
    fn a_report_of_a_run_that_moved_says_where_it_is_and_not_what_was_idle() {
        let text = r#"{"command": ["app"], "elapsed_s": 60.0, "state": "active", "peak_logical_bytes": 1000000,
            "mean_physical_bytes": 600000, "slowdown_estimate": 0.03, "slowdown_is_lower_bound": true, "idle": null,
            "tco": {"prices_of": "June", "relative": 0.6, "saved_fraction": 0.4, "tiers": []},
            "tiers": [{"faults": 0}, {"faults": 40000}]}"#;
        let seen = of_report(text).unwrap();
        let here = seen.here.unwrap();
        assert_eq!((here.cost, here.slowdown, here.dram_bytes), (0.6, 0.03, Some(600_000)));
        assert!(here.at_least, "as the report says");
        assert!(seen.idle.is_empty() && seen.untold[1].contains("nobody watched"));
        // One of a version that did not tell it.
        let earlier = text.replace("\"tco\"", "\"other\"");
        assert!(of_report(&earlier).unwrap().here.is_none());
        assert!(of_report("{}").is_err_and(|why| why.to_string().contains("no report")));
    }
}
