//! What a run comes to so far: for its report at the end, and for those that are written while it
//! runs (`--report-every`).

use crate::child::End;
use crate::figures::{self, Pages};
use crate::idle::IdleWatch;
use crate::outside::Outside;
use crate::report::{Report, Run};
use crate::report_file::ReportFile;
use crate::run::Watch;
use crate::sampling::Sampling;
use crate::slowdown::Target;
use crate::wake::Wakefulness;
use crate::{doctor, report_text, say, sites};
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use terrace_pager::settings::Settings;
use terrace_pager::stats::NO_PLACE;
use terrace_pager::sys;

/// The time from one report to the next: a whole number of seconds, from 1 to a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(u64);

impl Every {
    const MOST_S: u64 = 365 * 86_400;
    const UNITS: [(char, u64); 3] = [('s', 1), ('m', 60), ('h', 3600)];

    fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no time: write a number with s, m or h, such as 60s");
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let (_, seconds) =
            Every::UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        let seconds = count.saturating_mul(seconds);
        if (1..=Every::MOST_S).contains(&seconds) {
            Ok(Every(seconds))
        } else {
            Err(format!("`{text}` is out of range: 1s to 8760h"))
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

/// What does not change while a run goes on.
pub struct Facts<'a> {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it is run with.
    pub settings: &'a Settings,
    /// With `--slowdown`.
    pub slowdown: Option<Target>,
    /// Whether there is a limit that must be kept (`--dram`).
    pub has_budget: bool,
    /// Why it runs without the library, if it does.
    pub out_of_reach: Option<String>,
    /// The run's directory.
    pub run_dir: PathBuf,
    /// Where reports go; without one, as text to standard error.
    pub file: Option<&'a ReportFile>,
}

/// How far the program is.
#[derive(Clone, Copy)]
pub struct Moment {
    /// Its process.
    pub pid: u32,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// How long it has run.
    pub elapsed: Duration,
    /// How many of its processes go on after its end.
    pub going_on: usize,
}

impl<'a> Facts<'a> {
    /// What is known of the run: all but the figures of its processes. `damage` says what is wrong
    /// with the program's own page.
    pub fn run(&self, watch: &Watch, moment: Moment, damage: Option<String>) -> Run<'a> {
        let outside = watch.outside.as_ref();
        Run {
            command: self.command.clone(),
            settings: self.settings,
            slowdown: self.slowdown,
            has_budget: self.has_budget,
            pid: moment.pid,
            end: moment.end,
            elapsed: moment.elapsed,
            going_on: moment.going_on,
            together: watch.tree.together(),
            apart: outside.map(Outside::apart).unwrap_or_default(),
            shared_bytes: outside.map_or(0, Outside::shared_bytes),
            outside: outside.map(Outside::known),
            idle: watch.idle.as_ref().map(IdleWatch::known).unwrap_or_default(),
            group_limit: doctor::lowest_group_limit().map(|(limit, _)| limit),
            sampled: watch.sampling.as_ref().map(Sampling::so_far),
            wakeful: watch.wakefulness.as_ref().map(Wakefulness::held),
            out_of_reach: self.out_of_reach.clone(),
            unreached: figures::read_unreached(&self.run_dir),
            sites: sites::read_all(&self.run_dir),
            unusable_page: damage,
        }
    }

    /// What is wrong with the program's page, if anything is.
    pub fn damage(&self, pages: &Pages, pid: u32) -> Option<String> {
        let damaged = pages.damaged.iter().find(|damaged| damaged.pid == pid);
        let no_place = || {
            self.run_dir.join(NO_PLACE).exists().then(|| "there was no place for it".to_string())
        };
        damaged.map(|damaged| damaged.why.clone()).or_else(no_place)
    }

    fn report(&self, watch: &Watch, moment: Moment) -> Report {
        let mut pages = watch.ended.all();
        if let Some(main) = figures::of_process(&pages.good, moment.pid) {
            pages.good[main].notice_silence(sys::now_ns());
        }
        Report::new(&self.run(watch, moment, self.damage(&pages, moment.pid)), &pages.good)
    }
}

/// Writes reports while the program runs, one each interval.
pub struct Interim {
    every: Duration,
    next: Instant,
    failed: bool,
}

impl Interim {
    /// Begins the first interval.
    pub fn new(every: Every) -> Interim {
        let every = every.duration();
        Interim { every, next: Instant::now() + every, failed: false }
    }

    /// Writes a report if one is due. Returns how long none will be.
    pub fn look(&mut self, facts: &Facts<'_>, watch: &Watch, moment: Moment) -> Duration {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + self.every;
            self.write(&facts.report(watch, moment), facts);
        }
        self.next.saturating_duration_since(now)
    }

    /// A report that cannot be written is told of once; the last one may be writable.
    fn write(&mut self, report: &Report, facts: &Facts<'_>) {
        let Some(file) = facts.file else {
            let _ = io::stderr().write_all(report_text::text(report, facts.settings).as_bytes());
            return;
        };
        if let Err(error) = report.json().and_then(|json| file.write_now(&json))
            && !std::mem::replace(&mut self.failed, true)
        {
            say(&format!("--report-every: {error:#}; the run goes on"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_a_range() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("1h", 3600), ("8760h", Every::MOST_S)] {
            assert_eq!(text.parse(), Ok(Every(seconds)), "{text}");
        }
        for text in
            ["", "60", "0s", "-1s", "s", "1.5h", "60 s", "8761h", "99999999999999999h", "1µ"]
        {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
        let shown = Every(300).to_string();
        assert_eq!(shown.parse(), Ok(Every(300)));
    }
}
