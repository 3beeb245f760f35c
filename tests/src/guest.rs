//! Commands run in a QEMU guest (`scripts/guest.sh`): on another kernel, or with far memory, than
//! this machine has.

use crate::skipping::skip;
use crate::{target_directory, terrace_command};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// Exit status of `guest.sh` when there was no guest.
const NO_GUEST: i32 = 125;

/// Outcome of a step.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Exit status of the shell.
    pub status: i32,
    /// Standard output of the step.
    pub stdout: String,
    /// Standard error of the step, Terrace's remarks included.
    pub stderr: String,
    /// The file `report.json`, which the step may have written.
    pub report: String,
}

impl Outcome {
    /// Parses the report, which must be there.
    #[track_caller]
    pub fn report(&self) -> Value {
        serde_json::from_str(&self.report).unwrap_or_else(|e| panic!("no report ({e}): {self:?}"))
    }
}

/// A kind of guest.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Kernel, in the form of `TERRACE_GUEST_KERNEL`.
    pub kernel: &'static str,
    /// Memory, in the form of `TERRACE_GUEST_MEMORY`.
    pub memory: &'static str,
    /// Init, in the form of `TERRACE_GUEST_INIT`.
    pub init: &'static str,
}

/// Outcomes of all steps, or why there is no guest here.
type Outcomes = Result<Vec<Outcome>, String>;

/// A guest and all that is run in it, in this order: the guest starts only once.
pub struct Steps {
    steps: &'static [(&'static str, &'static str)],
    outcomes: LazyLock<Outcomes, Box<dyn FnOnce() -> Outcomes + Send>>,
}

impl Steps {
    /// Makes steps by their names. Words of a step stand for something:
    ///
    /// - `TERRACE`: the path of that command;
    /// - `SLOW`: how many times longer things take than on a machine that does nothing else;
    /// - other words: the paths of `programs`.
    ///
    /// A report is to be written to `report.json` in the working directory.
    pub fn new(
        guest: Guest,
        steps: &'static [(&'static str, &'static str)],
        programs: fn() -> Vec<(&'static str, std::path::PathBuf)>,
    ) -> Steps {
        Steps { steps, outcomes: LazyLock::new(Box::new(move || run(guest, steps, &programs()))) }
    }

    /// Outcome of a step. `None`, and a remark, where there is no guest.
    #[track_caller]
    pub fn outcome(&self, step: &str) -> Option<&Outcome> {
        match &*self.outcomes {
            Ok(outcomes) => Some(
                &outcomes[self
                    .steps
                    .iter()
                    .position(|(name, _)| *name == step)
                    .expect("one of the steps")],
            ),
            Err(reason) => {
                skip("a guest", reason.trim());
                None
            }
        }
    }
}

fn run(guest: Guest, steps: &[(&str, &str)], programs: &[(&str, std::path::PathBuf)]) -> Outcomes {
    let slow = times_slower();
    let mut script = format!("cd /tmp\nexport TERRACE_TEST_SLOW={slow}\n");
    for (_, command) in steps {
        let mut command = command
            .replace("TERRACE ", &format!("{} ", quoted(&terrace_command())))
            .replace("SLOW", &slow.to_string());
        for (word, path) in programs {
            command = command.replace(word, &quoted(path));
        }
        // Each part is followed by its number of bytes, as none of them can be trusted to end in a
        // newline.
        script += &format!(
            "rm -f report.json; ({command}) >stdout 2>stderr; echo $? >status; touch report.json\n"
        );
        script +=
            "for part in status stdout stderr report.json; do wc -c <$part; cat $part; done\n";
    }
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest.sh"))
        .args(["run", &script])
        .env("TERRACE_GUEST_DIR", target_directory().join("guest"))
        .env("TERRACE_GUEST_KERNEL", guest.kernel)
        .env("TERRACE_GUEST_MEMORY", guest.memory)
        .env("TERRACE_GUEST_INIT", guest.init)
        .env("TERRACE_GUEST_SECONDS", (600 * slow).to_string())
        .output()
        .map_err(|e| format!("guest.sh cannot be started: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{said}");
    match output.status.code() {
        Some(0) => Ok(outcomes(steps.len(), &String::from_utf8_lossy(&output.stdout))),
        Some(NO_GUEST) => Err(said),
        _ => {
            panic!("the guest's script failed: {said}\n{}", String::from_utf8_lossy(&output.stdout))
        }
    }
}

/// How many times longer something takes beside what else this machine does than alone: the guest
/// has one thread.
fn times_slower() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running: f64 = load.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    ((running / cpus as f64) as u64).clamp(1, 8)
}

/// A path as one word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_str().expect("a path in UTF-8").replace('\'', r"'\''"))
}

fn outcomes(count: usize, mut text: &str) -> Vec<Outcome> {
    let mut part = || {
        let (bytes, rest) = text.split_once('\n').expect("a number of bytes");
        let (part, rest) = rest.split_at(bytes.trim().parse().expect("a number of bytes"));
        text = rest;
        part.to_owned()
    };
    (0..count)
        .map(|_| Outcome {
            status: part().trim().parse().expect("a status"),
            stdout: part(),
            stderr: part(),
            report: part(),
        })
        .collect()
}
