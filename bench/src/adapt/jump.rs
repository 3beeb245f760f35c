//! How the limit of `terrace run --slowdown` follows a hot set that jumps, and how much it moves at
//! a constant load.
//!
//! The loss is the time that was lost from one report to the next, as reports tell it about once a
//! second. The limit follows a little more, as some of the lost time is not told (`UNTOLD` of
//! `terrace_policy::slowdown`). Times count from the end of the fill, so a change is never taken to
//! be later than it was.

use super::{Options, Shape};
use crate::load::number;
use crate::machine;
use crate::results::{self, median};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;
use terrace_policy::slowdown::Target;
use terrace_testkit::child::Ended;

/// Loads that stay the same while the limit's movements are measured.
const STEADY: [&str; 2] = ["phases", "zipf"];
/// Time after which the limit has to be steady, and time over which its movements count, s.
const STEADY_AFTER_S: f64 = 60.0;
const MINUTE_S: f64 = 60.0;
/// Time within which the loss has to be back under the target after a jump, s.
const BACK_WITHIN_S: f64 = 5.0;
/// Number of intervals after a jump of which one has to be above the target. What is above it only
/// later is not taken to come of the jump.
const BEGINS_WITHIN: usize = 3;
/// Part of the limit by which it may move in a minute.
const MOVES_LESS: f64 = 0.05;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the benchmark: prints, and writes `bench/results/adapt-slowdown.json`.
pub fn run(options: &Options, target: Target) -> anyhow::Result<()> {
    let shape = options.shape(Shape {
        patterns: vec!["phases".into()],
        size: "1G".into(),
        seconds: 240.0,
        change_every: 60.0,
        repeats: 3,
    });
    println!(
        "--slowdown {target}: {}, a change each {:.0} s, {} repeats:\n",
        shape.size, shape.change_every, shape.repeats
    );
    let (mut jumps, mut steady) = (Vec::new(), Vec::new());
    for pattern in &shape.patterns {
        let mut runs = Vec::new();
        for _ in 0..shape.repeats {
            runs.push(Run::of(options, &shape, pattern, shape.change_every, target)?);
        }
        jumps.push(jump_row(&shape, pattern, &runs, target));
    }
    for pattern in STEADY {
        let mut runs = Vec::new();
        for _ in 0..shape.repeats {
            // The first change would come after the end.
            runs.push(Run::of(options, &shape, pattern, shape.seconds * 2.0, target)?);
        }
        steady.push(steady_row(&shape, pattern, &runs));
    }
    results::write(
        "adapt-slowdown",
        json!({
            "target": target.0, "size": shape.size, "seconds": shape.seconds,
            "change_every_s": shape.change_every, "repeats": shape.repeats,
            "terrace_flags": options.terrace_flags, "back_within_s": BACK_WITHIN_S,
            "moves_less": MOVES_LESS, "jumps": jumps, "steady": steady,
        }),
    )
}

/// What one report told.
struct Told {
    /// Time since the end of the fill, s.
    at_s: f64,
    lost_s: f64,
    /// The limit; `None` while memory grows.
    limit_bytes: Option<f64>,
}

/// The time between two reports.
#[derive(Clone, Copy)]
struct Interval {
    from_s: f64,
    to_s: f64,
    /// Part of it that was lost.
    loss: f64,
    /// The limit at its end.
    limit_bytes: Option<f64>,
}

/// One run of the load.
struct Run {
    intervals: Vec<Interval>,
    bytes: f64,
    accesses_per_s: f64,
}

/// What came of one change of the hot set.
struct Jump {
    /// The highest loss after it, in any interval.
    loss_most: f64,
    /// Time until the end of an interval in which no more was lost than the target, and after which
    /// the next had no more either. 0: it was not more at the beginning. `None`: it was never back.
    back_s: Option<f64>,
    limit_before: Option<f64>,
}

impl Run {
    fn of(
        options: &Options,
        shape: &Shape,
        pattern: &str,
        change_every: f64,
        target: Target,
    ) -> anyhow::Result<Run> {
        let scratch = tempfile::tempdir()?;
        let path = |name: &str| scratch.path().join(name);
        let (report, output, errors) = (path("report.json"), path("load.json"), path("errors"));
        let terrace = machine::terrace()?;
        let (report_name, terrace) = (
            report.to_str().context("a path of letters")?,
            terrace.to_str().context("a path of letters")?,
        );
        let (seconds, change_every) = (shape.seconds.to_string(), change_every.to_string());
        let target = target.to_string();
        let mut flags =
            vec!["--slowdown", &target, "--report", report_name, "--report-every", "1s"];
        flags.extend(options.terrace_flags.split_ascii_whitespace());
        let words = [
            terrace,
            "load",
            "memory",
            pattern,
            "--json",
            "--size",
            &shape.size,
            "--seconds",
            &seconds,
            "--change-every",
            &change_every,
        ];
        let last_cpu = thread::available_parallelism().map_or(1, |cpus| cpus.get()) - 1;
        let mut command = machine::pinned_to(&format!("0-{last_cpu}"), Some(&flags), &words)?;
        command.stdout(File::create(&output)?).stderr(File::create(&errors)?);
        let mut child = Ended::by_request(command.spawn()?, Duration::from_secs(5));
        let mut told = Vec::new();
        let status = loop {
            poll(&report, &mut told);
            if let Some(status) = child.try_wait()? {
                break status;
            }
            thread::sleep(POLL_INTERVAL);
        };
        let errors = fs::read_to_string(&errors).unwrap_or_default();
        ensure!(status.success(), "{pattern}: {errors}");
        let load: Value = serde_json::from_str(&fs::read_to_string(&output)?)?;
        ensure!(told.len() > 1, "{pattern}: there were no reports in the run: {errors}");
        for one in &mut told {
            one.at_s -= number(&load["fill_s"]);
        }
        let intervals = told.windows(2).map(|pair| Interval {
            from_s: pair[0].at_s,
            to_s: pair[1].at_s,
            loss: (pair[1].lost_s - pair[0].lost_s).max(0.0) / (pair[1].at_s - pair[0].at_s),
            limit_bytes: pair[1].limit_bytes,
        });
        Ok(Run {
            intervals: intervals.collect(),
            bytes: number(&load["bytes"]),
            accesses_per_s: number(&load["accesses_per_s"]),
        })
    }

    /// What came of each change that is followed by as long a time without one.
    fn jumps(&self, shape: &Shape, target: Target) -> Vec<Jump> {
        let changes = (shape.seconds / shape.change_every).ceil() as usize;
        (1..changes)
            .map(|change| {
                let at = change as f64 * shape.change_every;
                jump(&self.intervals, at, at + shape.change_every, target)
            })
            .collect()
    }

    /// By how much the limit moved in each minute, as a part of its mean then.
    fn movements(&self, seconds: f64) -> Vec<f64> {
        let minutes = ((seconds - STEADY_AFTER_S) / MINUTE_S).max(0.0) as usize;
        (0..minutes)
            .filter_map(|minute| {
                let from = STEADY_AFTER_S + minute as f64 * MINUTE_S;
                movement(&self.intervals, from, from + MINUTE_S)
            })
            .collect()
    }

    fn over_time(&self) -> Value {
        let all = |figure: &dyn Fn(&Interval) -> Value| -> Vec<Value> {
            self.intervals.iter().map(figure).collect()
        };
        json!({
            "at_s": all(&|one| json!(one.to_s)), "loss": all(&|one| json!(one.loss)),
            "limit_bytes": all(&|one| json!(one.limit_bytes)),
        })
    }
}

/// Takes what the report tells now, if that is news and the program still runs.
fn poll(report: &Path, told: &mut Vec<Told>) {
    let Ok(text) = fs::read_to_string(report) else { return };
    let Ok(found) = serde_json::from_str::<Value>(&text) else { return };
    let (Some(at_s), Some(lost_s)) = (found["elapsed_s"].as_f64(), found["lost_s"].as_f64()) else {
        return;
    };
    let has_ended = !found["exit_status"].is_null() || !found["signal"].is_null();
    if has_ended || told.last().is_some_and(|last: &Told| at_s <= last.at_s) {
        return;
    }
    told.push(Told { at_s, lost_s, limit_bytes: found["slowdown_limit_bytes"].as_f64() });
}

fn jump(intervals: &[Interval], at: f64, next: f64, target: Target) -> Jump {
    let after: Vec<&Interval> =
        intervals.iter().filter(|one| one.to_s > at && one.to_s <= next).collect();
    let first = after.iter().take(BEGINS_WITHIN).position(|one| one.loss > target.0);
    let is_back = |pair: &&[&Interval]| pair.iter().all(|one| one.loss <= target.0);
    let back_s = match first {
        None => Some(0.0),
        Some(first) => after[first..].windows(2).find(is_back).map(|pair| pair[0].to_s - at),
    };
    let before = intervals.iter().rfind(|one| one.to_s <= at);
    Jump {
        loss_most: after.iter().map(|one| one.loss).fold(0.0, f64::max),
        back_s,
        limit_before: before.and_then(|one| one.limit_bytes),
    }
}

fn movement(intervals: &[Interval], from: f64, to: f64) -> Option<f64> {
    let limits: Vec<f64> = intervals
        .iter()
        .filter(|one| one.from_s >= from && one.to_s <= to)
        .filter_map(|one| one.limit_bytes)
        .collect();
    let least = limits.iter().copied().fold(f64::MAX, f64::min);
    let most = limits.iter().copied().fold(0.0, f64::max);
    let mean = limits.iter().sum::<f64>() / limits.len() as f64;
    (!limits.is_empty()).then(|| (most - least) / mean)
}

/// Part of the memory that is hot at a time.
fn hot_part(pattern: &str) -> f64 {
    match pattern {
        "phases" => 0.25,
        "stencil" => 1.0 / 3.0,
        _ => 0.2,
    }
}

/// Figures of a pattern whose hot set jumps; prints them.
fn jump_row(shape: &Shape, pattern: &str, runs: &[Run], target: Target) -> Value {
    let jumps: Vec<Jump> = runs.iter().flat_map(|run| run.jumps(shape, target)).collect();
    // One that was never back took at least until the next.
    let back: Vec<f64> =
        jumps.iter().map(|jump| jump.back_s.unwrap_or(shape.change_every)).collect();
    let most = back.iter().copied().fold(0.0, f64::max);
    let never = jumps.iter().filter(|jump| jump.back_s.is_none()).count();
    let hot = runs.iter().map(|run| run.bytes).fold(0.0, f64::max) * hot_part(pattern);
    let is_met = !back.is_empty() && never == 0 && most <= BACK_WITHIN_S;
    println!(
        "{pattern:>8}: a hot set of {:.0} MiB jumps {} times; under the target after {:.1} s, {most:.1} s at most, never after {never}: {}",
        hot / (1 << 20) as f64,
        back.len(),
        median(&back),
        if is_met { "met" } else { "missed" }
    );
    json!({
        "pattern": pattern, "hot_bytes": hot, "back_s": median(&back), "back_most_s": most,
        "never_back": never, "is_met": is_met,
        "jumps": jumps.iter().map(|jump| json!({
            "back_s": jump.back_s, "loss_most": jump.loss_most,
            "limit_before_bytes": jump.limit_before,
        })).collect::<Vec<_>>(),
        "runs": told(runs),
    })
}

/// Figures of a load that stays the same; prints them.
fn steady_row(shape: &Shape, pattern: &str, runs: &[Run]) -> Value {
    let moved: Vec<f64> = runs.iter().flat_map(|run| run.movements(shape.seconds)).collect();
    let most = moved.iter().copied().fold(0.0, f64::max);
    let is_met = !moved.is_empty() && most < MOVES_LESS;
    println!(
        "{pattern:>8}: the limit moves by {:.1} % a minute, {:.1} % at most, over {} minutes: {}",
        median(&moved) * 100.0,
        most * 100.0,
        moved.len(),
        if is_met { "met" } else { "missed" }
    );
    json!({
        "pattern": pattern, "moved": median(&moved), "moved_most": most, "is_met": is_met,
        "moved_in_each_minute": moved, "runs": told(runs),
    })
}

fn told(runs: &[Run]) -> Vec<Value> {
    let one =
        |run: &Run| json!({ "accesses_per_s": run.accesses_per_s, "over_time": run.over_time() });
    runs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of a second, with these losses in percent and limits.
    fn intervals(of: &[(f64, f64)]) -> Vec<Interval> {
        let one = |(second, (loss, limit)): (usize, &(f64, f64))| Interval {
            from_s: second as f64,
            to_s: second as f64 + 1.0,
            loss: loss / 100.0,
            limit_bytes: Some(*limit),
        };
        of.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_loss_is_back_when_two_intervals_in_a_row_are_under_the_target() {
        let losses = [1.0, 1.0, 1.0, 9.0, 4.0, 1.0, 3.0, 1.0, 1.0, 1.0, 5.0, 1.0];
        let all = intervals(&losses.map(|loss| (loss, 100.0)));
        let after = |at: f64, next: f64| jump(&all, at, next, Target(0.02));
        assert_eq!(after(2.0, 10.0).back_s, Some(6.0));
        assert!((after(2.0, 10.0).loss_most - 0.09).abs() < 1e-9);
        assert_eq!(after(2.0, 8.0).back_s, None, "one interval is not enough");
        assert_eq!(after(7.0, 12.0).back_s, Some(0.0), "what comes later is not of the jump");
        assert_eq!(after(2.0, 5.0).back_s, None);
        assert_eq!(after(0.0, 3.0).back_s, Some(0.0));
        assert_eq!(after(2.0, 5.0).limit_before, Some(100.0));
    }

    #[test]
    fn a_minutes_movement_is_from_its_least_to_its_most() {
        let all = intervals(&[(0.0, 500.0), (0.0, 100.0), (0.0, 110.0), (0.0, 90.0), (0.0, 0.0)]);
        let moved = movement(&all, 1.0, 4.0).expect("there are limits");
        assert!((moved - 0.2).abs() < 1e-9, "{moved}");
        assert_eq!(movement(&all, 10.0, 20.0), None);
    }
}
