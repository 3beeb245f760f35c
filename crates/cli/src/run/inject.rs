//! `terrace run --inject`: programs without the library, attached to as they start.

use crate::run::reach::OutOfReach;
use crate::{attach, say};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terrace_attach::AttachedStats;
use terrace_control::settings::{Dram, Settings};
use terrace_policy::slowdown::Target;

/// Tries to attach while the program executes others, as scripts do that start it.
const TRIES: u32 = 20;
const TRY_EVERY: Duration = Duration::from_millis(50);
/// How often it is looked whether the program has executed another.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What to attach with, and how far that is.
pub struct Inject {
    arguments: Vec<String>,
    report: PathBuf,
    tries: u32,
    is_done: bool,
    next: Option<Instant>,
}

impl Inject {
    /// What `--inject`, or a program that no library can come into, asks for. `tiers_given`:
    /// whether the list of tiers is the user's.
    ///
    /// # Errors
    /// Why nothing can be attached to here.
    pub fn plan(
        settings: &Settings,
        tiers_given: bool,
        slowdown: Option<Target>,
        run_dir: &Path,
    ) -> anyhow::Result<Self> {
        terrace_attach::possible()?;
        let report = run_dir.join("attached.json");
        let mut arguments = vec!["--report".to_string(), report.display().to_string()];
        if settings.dram != Dram::Unlimited {
            arguments.extend(["--dram".into(), settings.dram.to_string()]);
        }
        if let Some(target) = slowdown {
            arguments.extend(["--slowdown".into(), target.to_string()]);
        }
        match tiers(&settings.tiers, tiers_given) {
            Tiers::AsListed => arguments.extend(["--tiers".into(), settings.tiers.clone()]),
            Tiers::Default(warning) => warning.into_iter().for_each(say),
        }
        Ok(Inject { arguments, report, tries: 0, is_done: false, next: None })
    }

    /// Attaches to the program, and again when it has executed another. Returns how long there is
    /// nothing to do.
    pub fn poll(&mut self, pid: u32) -> Duration {
        let now = Instant::now();
        if let Some(next) = self.next.filter(|next| *next > now) {
            return next - now;
        }
        let is_attached =
            self.is_done && terrace_attach::attached().contains(&i32::try_from(pid).unwrap_or(0));
        if !is_attached && self.tries < TRIES && !has_ended(pid) {
            self.attach(pid);
        }
        if is_attached {
            // Also by a keeper that went on with a program that was executed.
            self.tries = 0;
        }
        let wait = if is_attached || self.tries >= TRIES { POLL_INTERVAL } else { TRY_EVERY };
        self.next = Some(Instant::now() + wait);
        wait
    }

    fn attach(&mut self, pid: u32) {
        if self.tries == 0 {
            await_exec(pid);
        }
        self.tries += 1;
        // Figures of a program that it has left are not those of the end.
        let _ = std::fs::remove_file(&self.report);
        let command = std::env::current_exe().map(|program| {
            let mut command = Command::new(program);
            command.arg("attach").arg(pid.to_string()).args(&self.arguments);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            command
        });
        let why = match command.and_then(|mut command| command.output()) {
            Ok(output) if output.status.success() => {
                (self.is_done, self.tries) = (true, 0);
                return;
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        if self.tries == TRIES && !has_ended(pid) {
            let why = why.trim().trim_start_matches("terrace: ");
            say(&format!("the program runs as without terrace: {why}"));
        }
    }

    /// The figures at the end, which the keeper leaves when it has noticed that.
    pub fn figures(&self) -> Option<AttachedStats> {
        for _ in 0..100 {
            if !self.is_done {
                return None;
            }
            let text = std::fs::read_to_string(&self.report).unwrap_or_default();
            if let Ok(figures) = serde_json::from_str(&text) {
                return Some(figures);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

/// The tiers of a program that is attached to.
#[derive(Debug, PartialEq, Eq)]
enum Tiers {
    /// The tiers of the list.
    AsListed,
    /// The tiers of `terrace attach` without a list, and what the user is to know of that.
    Default(Option<&'static str>),
}

/// An attached program has two tiers at most. A default list with more was not asked for, so
/// nothing is said of it: over zram the default is `auto`.
fn tiers(list: &str, is_given: bool) -> Tiers {
    const WARNING: &str =
        "--tiers: a program that is attached to has dram and one tier; it gets dram,lz4";
    match attach::tier(list) {
        Ok(_) => Tiers::AsListed,
        Err(_) => Tiers::Default(is_given.then_some(WARNING)),
    }
}

/// Waits until a process that was forked from this one executes its program, for a second at most.
fn await_exec(pid: u32) {
    let own = std::fs::read_link("/proc/self/exe").ok();
    for _ in 0..1000 {
        if std::fs::read_link(format!("/proc/{pid}/exe")).ok() != own {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Why a program is without the library where `--inject` asks for that.
pub fn asked() -> OutOfReach {
    OutOfReach {
        cause: "is attached to (--inject)".into(),
        remedy: "leave out --inject",
        can_attach: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_that_the_user_gave_is_remarked_on() {
        for default in ["auto", &Settings::default().tiers] {
            assert_eq!(tiers(default, false), Tiers::Default(None), "{default}");
            let Tiers::Default(Some(warning)) = tiers(default, true) else {
                panic!("nothing is said of {default}");
            };
            assert!(warning.contains("dram,lz4"), "{warning}");
        }
        for is_given in [false, true] {
            assert_eq!(tiers("dram,zstd:1", is_given), Tiers::AsListed);
        }
    }
}
