//! A program that leaves daemons behind ends as ever, and they are managed as before until the last
//! of them ends. The budget is divided on, the report is written then, and nothing of the run is
//! left.

use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use terrace_testkit::process;
use terrace_testkit::wait::Wait;
use terrace_tests::{compiled, terrace_command};

const TIME_LIMIT: Duration = Duration::from_secs(60);
const WAIT: Wait = Wait::within(TIME_LIMIT);
const MIB: u64 = 1 << 20;

/// A directory for a run, its daemons and its report. Daemons that still run are killed when it is
/// dropped.
struct Place(TempDir);

/// A daemon of `leaves_daemons`.
struct Daemon {
    commands: File,
    answers: PathBuf,
    pid: i32,
    answered: usize,
}

impl Place {
    fn new() -> Place {
        let place = Place(
            tempfile::Builder::new()
                .prefix("terrace-test-")
                .tempdir()
                .expect("a temporary directory can be made"),
        );
        fs::create_dir(place.runs()).expect("a new directory can be made in");
        place
    }

    /// Where runs have their directories.
    fn runs(&self) -> PathBuf {
        self.0.path().join("runs")
    }

    fn report_file(&self) -> PathBuf {
        self.0.path().join("report.json")
    }

    /// How many directories of runs there are.
    fn run_directories(&self) -> usize {
        fs::read_dir(self.runs()).expect("it is there").count()
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        for name in
            ["TERRACE_STRESS", "TERRACE_INJECT", "TERRACE_LIBRARY", "LD_PRELOAD", "JOURNAL_STREAM"]
        {
            command.env_remove(name);
        }
        command.env("XDG_RUNTIME_DIR", self.runs()).stdin(Stdio::null());
        command
    }

    fn terrace(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(terrace_command());
        command.arg("run").arg("--report").arg(self.report_file()).args(arguments).arg("--");
        command
    }

    /// A run with the given arguments whose program leaves daemons and ends with status 7.
    fn leaving(&self, arguments: &[&str], daemons: usize) -> Command {
        for number in 0..daemons {
            let path =
                CString::new(self.0.path().join(format!("{number}.in")).as_os_str().as_bytes())
                    .expect("no NUL in it");
            // SAFETY: the path ends with a NUL.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }
        let mut command = self.terrace(arguments);
        command
            .arg(compiled("leaves_daemons.c", &[]))
            .arg("7")
            .arg(self.0.path())
            .arg(daemons.to_string());
        command
    }

    /// The daemon of this number that the program left.
    fn daemon(&self, number: usize) -> Daemon {
        let path = |end| self.0.path().join(format!("{number}.{end}"));
        let commands =
            File::options().read(true).write(true).open(path("in")).expect("it was made");
        let mut daemon = Daemon { commands, answers: path("out"), pid: 0, answered: 0 };
        daemon.pid = daemon.answer().parse().expect("the first answer is its number");
        daemon
    }

    /// The keeper of the run here, if there is one.
    fn keeper(&self) -> Option<i32> {
        let here = [b"XDG_RUNTIME_DIR=", self.runs().as_os_str().as_bytes()].concat();
        let is_keeper = |pid: &u32| {
            let environment = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            process::name(pid).is_some_and(|name| name == "terrace-keeper")
                && environment().split(|byte| *byte == 0).any(|variable| variable == here)
        };
        process::all().find(is_keeper).map(|pid| pid as i32)
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.report_file()).expect("there is a report"))
            .expect("it is JSON")
    }

    /// The report, once no process of the run goes on. Nothing else of the run may be left then.
    #[track_caller]
    fn last_report(&self) -> Value {
        WAIT.until("the last report", || self.report()["going_on"] == 0);
        assert_eq!(self.run_directories(), 0);
        WAIT.until("the keeper's end", || self.keeper().is_none());
        self.report()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_answers = path.extension().is_some_and(|extension| extension == "out");
            let text = is_answers.then(|| fs::read_to_string(&path).ok());
            let pid = text.flatten().and_then(|text| text.lines().next()?.parse::<i32>().ok());
            let is_ours =
                |pid: &i32| process::name(pid).is_some_and(|name| name == "leaves_daemons");
            if let Some(pid) = pid.filter(is_ours) {
                process::signal(pid, libc::SIGKILL);
            }
        }
    }
}

impl Daemon {
    fn answer(&mut self) -> String {
        let answer = WAIT.until_some("an answer", || {
            let text = fs::read_to_string(&self.answers).unwrap_or_default();
            text.split_inclusive('\n')
                .nth(self.answered)
                .filter(|line| line.ends_with('\n'))
                .map(|line| line.trim().to_owned())
        });
        self.answered += 1;
        answer
    }

    /// Has the daemon hold this many MiB, and read all of them.
    fn hold(&mut self, mib: u64) {
        let command = format!("hold {mib}");
        writeln!(self.commands, "{command}").expect("the pipe can be written");
        assert_eq!(self.answer(), command);
    }

    fn end(mut self) {
        writeln!(self.commands, "end").expect("the pipe can be written");
    }

    /// Anonymous resident memory of the daemon, in MiB.
    fn resident(&self) -> u64 {
        process::status_bytes(self.pid, "RssAnon").expect("it lives") / MIB
    }

    /// Waits until the daemon's resident memory is within `mib` (MiB), while it uses all `holding`
    /// MiB that it holds.
    #[track_caller]
    fn settles_at(&mut self, mib: std::ops::RangeInclusive<u64>, holding: u64) {
        let mut last = 0;
        let since = Instant::now();
        while !mib.contains(&last) {
            assert!(
                since.elapsed() < TIME_LIMIT,
                "{last} MiB are resident, which is not in {mib:?}"
            );
            self.hold(holding);
            std::thread::sleep(Duration::from_millis(300));
            last = self.resident();
        }
    }
}

fn wait_for(mut child: Child) -> i32 {
    let status = WAIT.until_some("the end of terrace run", || {
        child.try_wait().expect("a child can be waited for")
    });
    status.code().unwrap_or_else(|| panic!("killed by {:?}", status.signal()))
}

/// The budget is a share of the most that was touched, and is split between two daemons. Either
/// changes only while a keeper goes on dividing.
#[test]
fn the_budget_is_divided_on() {
    let place = Place::new();
    let moves = place.0.path().join("moves.jsonl");
    let command =
        &mut place.leaving(&["--dram", "60%", "--moves", moves.to_str().expect("it is UTF-8")], 2);
    let output = command.output().expect("it can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert_eq!(output.stdout, b"the daemons are started\n");
    let (mut first, mut second) = (place.daemon(0), place.daemon(1));
    // 120 MiB and 240 MiB, but for what the other has.
    first.hold(200);
    first.settles_at(100..=130, 200);
    first.hold(400);
    first.settles_at(200..=250, 400);
    // The most was 600: of 360 each is to have its part. So the first has less when the second
    // comes, and more when that one shrinks.
    second.hold(200);
    second.settles_at(95..=130, 200);
    first.settles_at(200..=250, 400);
    second.hold(8);
    first.settles_at(320..=360, 400);
    assert!(stderr.contains("terrace: 2 processes go on, managed as before;"), "{stderr}");
    assert_eq!(place.report()["going_on"], 2);
    let numbers = [first.pid, second.pid];
    first.end();
    second.end();
    let report = place.last_report();
    let processes = report["processes"].as_array().expect("it is a list");
    for number in numbers {
        let daemon = processes
            .iter()
            .find(|process| process["pid"] == number)
            .unwrap_or_else(|| panic!("no {number} in {report:#}"));
        assert!(
            daemon["peak_physical_bytes"].as_u64().is_some_and(|bytes| bytes > 90 * MIB),
            "{daemon:#}"
        );
    }
    assert_eq!(report["exit_status"], 7);
    assert!(report["budget_bytes"].as_u64().is_some_and(|bytes| bytes > 340 * MIB), "{report:#}");
    let moves = fs::read_to_string(moves).expect("there is a list");
    assert!(
        moves.lines().any(|line| line.contains(&format!("\"pid\":{},", numbers[0]))),
        "of the daemon no move is listed"
    );
}

/// A reader of the output of `terrace run`, or a process that waits for an inherited lock, sees its
/// end.
#[test]
fn nothing_inherited_stays_open() {
    let place = Place::new();
    let command = place.leaving(&["--dram", "1G"], 1);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let script = "exec 9>&1; got=$(\"$@\" 2>&1); echo \"status $? of: $got\"";
    let output = place
        .command("sh")
        .args(["-c", script, "sh"])
        .args(words)
        .output()
        .expect("it can be started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.starts_with("status 7 of: ") && stdout.contains("the daemons are started"),
        "{stdout}"
    );
    assert!(stdout.contains("1 process goes on, managed as before;"), "{stdout}");
    let keeper = place.keeper().expect("there is a keeper");
    let open =
        |number: i32| fs::read_link(format!("/proc/{keeper}/fd/{number}")).expect("it is open");
    assert!(
        (0..3).all(|number| open(number) == Path::new("/dev/null")),
        "{:?}",
        (open(0), open(1), open(2))
    );
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).expect("it lives"), Path::new("/"));
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::getsid(keeper) }, keeper);
    // What a service manager, a shell or a terminal sends does not end it.
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        process::signal(keeper, signal);
    }
    let daemon = place.daemon(0);
    assert_eq!(place.report()["going_on"], 1);
    daemon.end();
    place.last_report();
}

/// Standard error that is a file takes the text again.
#[test]
fn a_file_takes_the_last_text() {
    let place = Place::new();
    let text = place.0.path().join("stderr");
    let mut command = place.leaving(&[], 1);
    command.stderr(File::create(&text).expect("it can be made"));
    assert_eq!(wait_for(command.spawn().expect("it can be started")), 7);
    place.daemon(0).end();
    place.last_report();
    let heads = || {
        fs::read_to_string(&text).unwrap_or_default().matches("terrace: leaves_daemons ").count()
    };
    assert_eq!(heads(), 2, "{:?}", fs::read_to_string(&text));
}

#[test]
fn wait_stays_and_passes_signals_on() {
    let place = Place::new();
    let mut command = place.leaving(&["--wait"], 1);
    let mut run = command.stdout(Stdio::null()).spawn().expect("it can be started");
    let mut daemon = place.daemon(0);
    let own = run.id();
    // Once the program has ended, the daemon and the witness are the only children.
    WAIT.until("the daemon's adoption", || {
        let adopted = process::children(own).contains(&(daemon.pid as u32));
        adopted || run.try_wait().expect("it is a child").is_some()
    });
    daemon.hold(8);
    assert!(run.try_wait().expect("it is a child").is_none() && place.keeper().is_none());
    assert_eq!(place.run_directories(), 1);
    process::signal(own as i32, libc::SIGTERM);
    assert_eq!(daemon.answer(), format!("signal {}", libc::SIGTERM));
    assert_eq!(wait_for(run), 7);
    assert_eq!(place.run_directories(), 0);
    let report = place.report();
    let processes = report["processes"].as_array().expect("it is a list");
    assert!(
        report["going_on"] == 0 && processes.iter().any(|process| process["pid"] == daemon.pid),
        "{report:#}"
    );
}

/// The next run removes what a killed keeper left, and not what a living one needs.
#[test]
fn a_killed_keeper_leaves_nothing_for_good() {
    let place = Place::new();
    assert_eq!(
        place.leaving(&["--dram", "1G"], 1).output().expect("it can be started").status.code(),
        Some(7)
    );
    let mut daemon = place.daemon(0);
    let another = || {
        assert!(
            place.terrace(&[]).arg("true").output().expect("it can be started").status.success()
        )
    };
    another();
    assert_eq!(place.run_directories(), 1);
    let keeper = place.keeper().expect("there is a keeper");
    process::signal(keeper, libc::SIGKILL);
    WAIT.until("the keeper's end", || place.keeper().is_none());
    assert_eq!(place.run_directories(), 1);
    another();
    assert_eq!(place.run_directories(), 1, "`terrace status` shows what has lost its keeper");
    daemon.hold(100);
    daemon.end();
    another();
    assert_eq!(place.run_directories(), 0);
}

/// No keeper waits for a process that Terrace has left or never came into.
#[test]
fn who_is_not_managed_is_not_kept() {
    let place = Place::new();
    let script = "env -u LD_PRELOAD sleep 100 > /dev/null 2>&1 & echo $!";
    let output = place
        .terrace(&["--dram", "1G"])
        .args(["sh", "-c", script])
        .output()
        .expect("it can be started");
    let sleeper: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("its number");
    WAIT.until("the end of the run", || place.keeper().is_none() && place.run_directories() == 0);
    let is_sleep = || process::name(sleeper).is_some_and(|name| name == "sleep");
    WAIT.until("what is executed without the library", is_sleep);
    process::signal(sleeper, libc::SIGKILL);

    let place = Place::new();
    let output = place.leaving(&["--no-children"], 1).output().expect("it can be started");
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("on, managed as before"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut daemon = place.daemon(0);
    assert!(place.keeper().is_none() && place.run_directories() == 0);
    daemon.hold(8);
    daemon.end();
}

/// What a shell leaves in the background, with the run's library in it from its own start.
#[test]
fn what_a_shell_leaves_is_kept() {
    for preload in [None, Some(compiled("starts_late.c", &["-shared", "-fPIC"]))] {
        shell_leaves(preload);
    }
}

/// Leaves `sleep` in the background, under a further preload of the user's.
fn shell_leaves(preload: Option<PathBuf>) {
    let place = Place::new();
    let mut command = place.terrace(&["--dram", "1G"]);
    if let Some(preload) = &preload {
        command.env("LD_PRELOAD", preload);
    }
    let script = "nohup sleep 100 > /dev/null 2>&1 & echo $!";
    let output = command.args(["sh", "-c", script]).output().expect("it can be started");
    let sleeper: i32 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("its number");
    assert_eq!(place.report()["going_on"], 1, "{preload:?}");
    assert!(place.keeper().is_some());
    // Before that it is `nohup`, and then has a page of its own at last.
    let has_page = || {
        let maps = process::file(sleeper, "maps").unwrap_or_default();
        process::name(sleeper).is_some_and(|name| name == "sleep")
            && maps.contains(&format!("/{sleeper}-"))
    };
    WAIT.until("the page of what is executed at last", has_page);
    process::signal(sleeper, libc::SIGTERM);
    let report = place.last_report();
    assert!(
        report["processes"]
            .as_array()
            .expect("it is a list")
            .iter()
            .any(|process| process["program"] == "sleep"),
        "{report:#}"
    );
}
