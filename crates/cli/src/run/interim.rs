//! What a run comes to so far: for its report at the end, and for those that are written while it
//! runs (`--report-every`).

use crate::every::Every;
use crate::processes::idle::IdleWatch;
use crate::processes::outside::Outside;
use crate::processes::statistics::{self, Pages};
use crate::report::sites;
use crate::run::Watch;
use crate::run::child::End;
use crate::run::sampling::Sampling;
use crate::run::wake::Wakefulness;
use crate::run_report::file::ReportFile;
use crate::run_report::outlet::Outlet;
use crate::run_report::placements::Placements;
use crate::run_report::{Report, Run, text};
use crate::{doctor, say};
use anyhow::{Context, Result};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use terrace_control::settings::Settings;
use terrace_control::stats::NO_PLACE;
use terrace_os as sys;

/// What does not change while a run goes on.
pub struct Facts<'a> {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it is run with.
    pub settings: &'a Settings,
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
    /// Process id of the program.
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
            limits: watch.tree.limits(),
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
            attached: None,
            unreached: statistics::read_unreached(&self.run_dir),
            sites: sites::read_all(&self.run_dir),
            placement: watch.placements.as_ref().map(Placements::so_far),
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
        if let Some(main) = statistics::of_process(&pages.good, moment.pid) {
            pages.good[main].notice_silence(sys::now_ns());
        }
        Report::new(&self.run(watch, moment, self.damage(&pages, moment.pid)), &pages.good)
    }
}

/// Time between tries while a reader takes no more.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Writes reports while the program runs, one each interval. One that is due before the last was
/// read whole is left out.
pub struct Interim {
    every: Duration,
    next: Instant,
    failed: bool,
    /// Where reports follow each other; without it each replaces the last in a regular file.
    outlet: Option<Outlet>,
}

impl Interim {
    /// Begins the first interval. Reports go to `file`, or without one as text to standard error.
    pub fn new(every: Every, file: Option<&ReportFile>) -> Interim {
        let every = every.duration();
        let stream = match file {
            Some(file) => file.stream(),
            None => io::stderr().as_fd().try_clone_to_owned().ok().map(File::from),
        };
        let outlet = stream.map(Outlet::new);
        Interim { every, next: Instant::now() + every, failed: false, outlet }
    }

    /// Writes a report if one is due. Returns how long none will be.
    pub fn poll(&mut self, facts: &Facts<'_>, watch: &Watch, moment: Moment) -> Duration {
        let now = Instant::now();
        let mut result = match &mut self.outlet {
            Some(outlet) => outlet.go_on().context("the last report could not be written whole"),
            None => Ok(()),
        };
        if now >= self.next {
            self.next = now + self.every;
            if self.outlet.as_ref().is_none_or(Outlet::is_empty) {
                result = result.and(self.write(&facts.report(watch, moment), facts));
            }
        }
        if let Err(error) = result {
            self.tell(&error);
        }
        let rest = self.next.saturating_duration_since(now);
        if self.outlet.as_ref().is_none_or(Outlet::is_empty) { rest } else { rest.min(RETRY_EVERY) }
    }

    fn write(&mut self, report: &Report, facts: &Facts<'_>) -> Result<()> {
        match (&mut self.outlet, facts.file) {
            (Some(outlet), None) => Ok(outlet.put(text::text(report, facts.settings).as_bytes())?),
            (Some(outlet), Some(file)) => {
                let json = report.json()?;
                outlet.put(json.as_bytes()).with_context(|| file.unwritten())
            }
            (None, Some(file)) => file.write_now(&report.json()?),
            // Standard error is closed.
            (None, None) => Ok(()),
        }
    }

    /// What cannot be written is told of once; the last report may be writable.
    fn tell(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.failed, true) {
            say(&format!("--report-every: {error:#}; the run goes on"));
        }
    }

    /// Hands over the rest of the last report, and waits for that: nothing is looked after any
    /// more, and another report follows.
    pub fn finish(&mut self) {
        if let Some(Err(error)) = self.outlet.as_mut().map(Outlet::finish) {
            self.tell(&error.into());
        }
    }
}
