//! Processes that have ended. Their figures are taken out of the run's directory and kept here. So
//! a run of many processes does not fill the file system that the directory is on.

use crate::processes::process::{self, cpu_time};
use crate::processes::statistics::{self, PageFile, Pages, ProcessStats};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_os as sys;

/// Time between polls, at first and while processes come. While none come it doubles, up to the
/// second value. A poll takes at most one part in `POLL_SHARE` of a CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const QUIET_POLL_INTERVAL: Duration = Duration::from_millis(500);
const POLL_SHARE: u32 = 32;
/// Time after a process's end from which on nothing more is written into its page, ns. Until then
/// the process in which its pages were moved may write.
const SILENT_NS: u64 = 2_000_000_000;
/// Most ended processes with too little memory to be managed whose figures are kept.
const IDLE_KEPT: usize = 1_000;

/// What is known of a page whose process may live.
struct Known {
    start_ticks: u64,
    started_ns: u64,
    /// Whether its process's number means nothing here, or cannot be told from another's.
    foreign: bool,
}

/// The processes of a run that have ended.
pub struct Ended {
    run_dir: PathBuf,
    /// The PID namespace that numbers in our /proc are of.
    namespace: u64,
    known: HashMap<String, Known>,
    figures: Vec<ProcessStats>,
    idle: usize,
    wait: Duration,
}

impl Ended {
    /// Begins to collect the ended processes that put their statistics pages into `run_dir`.
    pub fn new(run_dir: &Path) -> Ended {
        Ended {
            run_dir: run_dir.to_owned(),
            namespace: sys::pid_namespace(),
            known: HashMap::new(),
            figures: Vec::new(),
            idle: 0,
            wait: POLL_INTERVAL,
        }
    }

    /// Takes out what ended. Returns when to poll again.
    pub fn poll(&mut self) -> Duration {
        let begun = cpu_time();
        let files: Vec<PageFile> = statistics::page_files(&self.run_dir).collect();
        let came = self.learn(&files);
        let newest = self.newest(&files);
        let now_ns = sys::now_ns();
        for file in files {
            let Some(known) = self.known.get(&file.name).filter(|known| !known.foreign) else {
                continue;
            };
            let superseded = newest
                .get(&(file.pid, known.start_ticks))
                .is_some_and(|newest| known.started_ns < *newest);
            let lives = process::stat(file.pid)
                .is_some_and(|stat| stat.start_ticks == known.start_ticks && !stat.ended);
            if superseded || !lives {
                self.take_out(&file, now_ns);
            }
        }
        self.wait = if came { POLL_INTERVAL } else { (self.wait * 2).min(QUIET_POLL_INTERVAL) };
        self.wait.max((cpu_time() - begun) * POLL_SHARE)
    }

    /// Looks into the pages that are new. True if there were some.
    fn learn(&mut self, files: &[PageFile]) -> bool {
        let there: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        self.known.retain(|name, _| there.contains(name.as_str()));
        let before = self.known.len();
        for file in files {
            if self.known.contains_key(&file.name) {
                continue;
            }
            // One that is being made is read at the next poll.
            let Some(image) = statistics::read_image(file) else { continue };
            let elsewhere = image.pid_namespace == 0
                || image.pid_namespace != self.namespace
                || image.start_ticks == 0;
            // In a time namespace of its own it may have started at another time.
            let foreign = elsewhere
                || process::stat(file.pid)
                    .is_some_and(|stat| stat.start_ticks != image.start_ticks);
            let known =
                Known { start_ticks: image.start_ticks, started_ns: image.started_ns, foreign };
            self.known.insert(file.name.clone(), known);
        }
        self.known.len() > before
    }

    /// When the last image of each process was started: a process that executed another program has
    /// several.
    fn newest(&self, files: &[PageFile]) -> HashMap<(u32, u64), u64> {
        let mut newest: HashMap<(u32, u64), u64> = HashMap::new();
        for file in files {
            if let Some(known) = self.known.get(&file.name).filter(|known| !known.foreign) {
                let started = newest.entry((file.pid, known.start_ticks)).or_default();
                *started = (*started).max(known.started_ns);
            }
        }
        newest
    }

    fn take_out(&mut self, file: &PageFile, now_ns: u64) {
        let Some(figures) = statistics::read_one(file) else { return };
        if !figures.is_idle() && now_ns.saturating_sub(figures.updated_ns) < SILENT_NS {
            return;
        }
        if std::fs::remove_file(&file.path).is_err() {
            return;
        }
        self.known.remove(&file.name);
        if figures.is_idle() {
            self.idle += 1;
            if self.idle > IDLE_KEPT {
                return;
            }
        }
        self.figures.push(figures);
    }

    /// All processes of the run: those that were taken out, and those whose pages are there.
    pub fn all(&self) -> Pages {
        let mut pages = statistics::read_all(&self.run_dir);
        pages.good.extend(self.figures.iter().cloned());
        pages.good.sort_by_key(|figures| (figures.started_ns, figures.pid));
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::statistics::samples::page_of;
    use std::fs;

    #[test]
    fn pages_of_ended_processes_go_and_their_figures_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let ticks = process::stat(own).unwrap().start_ticks;
        let here = sys::pid_namespace();
        let write = |pid: u32, started_ns: u64, start_ticks: u64, namespace: u64| {
            let name = format!("{pid}-{started_ns}.stats");
            fs::write(scratch.path().join(&name), page_of(pid, started_ns, start_ticks, namespace))
                .unwrap();
            name
        };
        let lives = write(own, 20, ticks, here);
        let replaced = write(own, 10, ticks, here);
        let ended_before = write(u32::MAX, 5, ticks, here);
        let elsewhere = write(own, 6, ticks + 1, here + 1);
        let unknown = write(own, 7, ticks + 1, 0);
        let mut ended = Ended::new(scratch.path());
        ended.poll();
        let there = |name: &str| scratch.path().join(name).exists();
        assert!(there(&lives) && there(&elsewhere) && there(&unknown), "what may live was taken");
        assert!(!there(&replaced) && !there(&ended_before), "what ended was left");
        let all = ended.all();
        assert_eq!(
            all.good.iter().map(|figures| figures.started_ns).collect::<Vec<_>>(),
            [5, 6, 7, 10, 20]
        );
        assert_eq!(all.damaged, []);
    }
}
