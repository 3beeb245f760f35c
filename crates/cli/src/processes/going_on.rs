//! Which processes of a run go on after the program has ended: daemons, and what a shell left in
//! the background.
//!
//! A process goes on if its statistics page is mapped in it. A process that was just forked or
//! executed another program may have no page yet. Whether it will have one is told by its
//! environment and its executable file.

use crate::processes::process::{self, cpu_time};
use crate::processes::statistics::{self, Image, PageFile};
use crate::run::reach;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_control::stats::{NO_PLACE, State};
use terrace_os as sys;

/// Time between polls, and the greatest share of it that a poll may take of a CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const POLL_SHARE: u32 = 64;
/// A process that ends within this time after the program does not go on: it ends with it.
const END_WITH_IT: Duration = Duration::from_millis(100);
/// A process that sleeps makes its page within this time, or never.
const COMES_WITHIN: Duration = Duration::from_secs(1);
/// A process that wants a CPU or waits for a disk makes its page within this time, or never.
const BUSY_COMES_WITHIN: Duration = Duration::from_secs(10);
/// After this time without a word, a process whose number means nothing here is gone, ns.
const SILENT_NS: u64 = 2_000_000_000;

/// The processes of one run that go on.
pub struct GoingOn {
    run_dir: PathBuf,
    namespace: u64,
    /// What a process of the run has in its environment: the run's variable, and the library that
    /// it loads.
    variable: OsString,
    library: PathBuf,
    again: Instant,
    none_since: Option<Instant>,
}

#[derive(Default)]
struct Seen {
    managed: Vec<u32>,
    /// How long a process that has no page yet is waited for: `None` if there is no such process.
    coming: Option<Duration>,
}

impl GoingOn {
    /// Looks for processes that put their statistics pages into `run_dir`. The environment
    /// `variable` names that directory in them, and `library` is preloaded for it.
    pub fn new(run_dir: &Path, variable: &str, library: &Path) -> GoingOn {
        let mut named = OsString::from(variable);
        named.push("=");
        named.push(run_dir);
        GoingOn {
            run_dir: run_dir.to_owned(),
            namespace: sys::pid_namespace(),
            variable: named,
            library: library.to_owned(),
            again: Instant::now(),
            none_since: None,
        }
    }

    /// The processes that go on after the program, which has just ended, once that is clear.
    pub fn settled(&self) -> Vec<u32> {
        let since = Instant::now();
        loop {
            let seen = self.see();
            let least = if seen.managed.is_empty() { seen.coming } else { Some(END_WITH_IT) };
            if least.is_none_or(|least| since.elapsed() > least) {
                return seen.managed;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The processes that go on now.
    pub fn managed(&self) -> Vec<u32> {
        self.see().managed
    }

    /// Looks whether any goes on, if it is time to. Returns when to poll again; `None` if none
    /// does.
    pub fn poll(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now < self.again {
            return Some(self.again - now);
        }
        let begun = cpu_time();
        let seen = self.see();
        if seen.managed.is_empty() {
            // Looked at twice: a child may have been forked by one that ended, and have no page
            // yet.
            let limit = seen.coming.unwrap_or(POLL_INTERVAL);
            if now - *self.none_since.get_or_insert(now) >= limit {
                return None;
            }
        } else {
            self.none_since = None;
        }
        let wait = POLL_INTERVAL.max((cpu_time() - begun) * POLL_SHARE);
        self.again = now + wait;
        Some(wait)
    }

    fn see(&self) -> Seen {
        let mut seen = Seen::default();
        let pages = statistics::newest_pages(&self.run_dir);
        let orphans = adopted().into_iter().filter(|pid| !pages.contains_key(pid));
        seen.coming = orphans.filter_map(|pid| self.is_coming(pid)).max();
        for (pid, file) in &pages {
            // One that cannot be read is being made.
            let state = statistics::read_image(file)
                .map(|image| (self.has_page(file, &image), image.state));
            match state {
                Some((Some(true), State::Unmanaged)) | Some((None, _)) => {}
                Some((Some(true), _)) => seen.managed.push(*pid),
                Some((Some(false), _)) | None => {
                    seen.coming = seen.coming.max(self.is_coming(*pid));
                }
            }
        }
        seen
    }

    /// Whether a process has its page mapped; `None` if it has ended.
    fn has_page(&self, file: &PageFile, image: &Image) -> Option<bool> {
        let speaks = sys::now_ns().saturating_sub(image.updated_ns) < SILENT_NS;
        let is_here = image.pid_namespace == self.namespace && image.start_ticks != 0;
        match process::stat(image.pid) {
            Some(stat) if is_here && stat.start_ticks == image.start_ticks => (!stat.ended)
                .then(|| image.counts() && speaks || process::maps(image.pid, &file.name)),
            None if is_here => None,
            // Elsewhere it has another number, or in a time namespace another time.
            _ => speaks.then_some(true),
        }
    }

    /// How long a process without a page, or with that of another program, is waited for: `None`
    /// if it will have no page.
    fn is_coming(&self, pid: u32) -> Option<Duration> {
        let stat = process::stat(pid).filter(|stat| !stat.ended)?;
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables = || environment.split(|byte| *byte == 0);
        let library = self.library.as_os_str().as_bytes();
        // In the middle of an exec there is none.
        let executes = environment.is_empty();
        let is_preloaded =
            |list: &[u8]| list.split(|byte| b": ".contains(byte)).any(|name| name == library);
        let is_of_run = variables().any(|variable| variable == self.variable.as_bytes())
            && variables()
                .filter_map(|variable| variable.strip_prefix(b"LD_PRELOAD="))
                .any(is_preloaded);
        let will_have_page = (is_of_run || executes)
            && reach::out_of_reach(Path::new(&format!("/proc/{pid}/exe"))).is_none()
            && !self.run_dir.join(NO_PLACE).exists()
            && process::stat(pid)
                .is_some_and(|now| !now.ended && now.start_ticks == stat.start_ticks);
        will_have_page.then_some(if stat.busy { BUSY_COMES_WITHIN } else { COMES_WITHIN })
    }
}

/// Children of this process: orphans that it adopted, without those that Terrace makes.
fn adopted() -> Vec<u32> {
    let is_ours = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "terrace-pager\n")
    };
    let mut children = process::children(std::process::id());
    children.retain(|pid| !is_ours(pid));
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::statistics::samples::page_of;

    const VARIABLE: &str = "TERRACE_TEST_RUN";

    #[test]
    fn one_goes_on_that_has_its_page_mapped() {
        let scratch = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let ticks = process::stat(own).unwrap().start_ticks;
        let now = sys::now_ns();
        let write = |name: &str, page: Vec<u8>| fs::write(scratch.path().join(name), page).unwrap();
        let mut going_on = GoingOn::new(scratch.path(), VARIABLE, Path::new("/lib.so"));
        assert!(going_on.settled().is_empty());
        // Of a process that ended.
        write(&format!("{}-5.stats", u32::MAX), page_of(u32::MAX, 5, 1, sys::pid_namespace()));
        // This one never made a page, and is not of the run by its environment.
        write(&format!("{own}-6.stats"), page_of(own, 6, ticks, sys::pid_namespace()));
        assert!(going_on.settled().is_empty());
        // One elsewhere, that has just spoken; and then not for long.
        write(&format!("7-{now}.stats"), page_of(7, now, 3, sys::pid_namespace() + 1));
        assert_eq!(going_on.managed(), [7]);
        assert!(going_on.poll().is_some());
        fs::remove_file(scratch.path().join(format!("7-{now}.stats"))).unwrap();
        while going_on.poll().is_some() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(going_on.none_since.is_some());
    }
}
