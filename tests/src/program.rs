//! Programs started by a test, alone or under `terrace run`: watched by a time limit, and never
//! left behind.
//!
//! Each is started as the leader of a process group of its own. At its time limit, or when its
//! guard is dropped, that group and whatever else descends from it is killed by number.

use crate::built::terrace_command;
use crate::report::Report;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use terrace_testkit::process;

/// How long a program may take unless a test says otherwise.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// How often a running program is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of bytes that are shown of a failed program's output.
const SHOWN_BYTES: usize = 8000;

/// Flags and variables for `terrace run`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terrace {
    arguments: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
}

impl Terrace {
    /// Terrace with a budget: `--dram`.
    pub fn within(dram: &str) -> Self {
        Terrace { arguments: vec!["--dram".into(), dram.into()], ..Terrace::default() }
    }

    /// Terrace with `TERRACE_STRESS=full`: random pages are evicted all the time.
    pub fn stressed() -> Self {
        Terrace { environment: vec![("TERRACE_STRESS", "full")], ..Terrace::default() }
    }

    /// Terrace under a mild stress: few random pages are evicted, so that some regions are whole.
    /// Any of these may become a huge page at any time.
    pub fn stressed_with_huge_pages() -> Self {
        Terrace { environment: vec![("TERRACE_STRESS", "3000")], ..Terrace::default() }
            .and("--huge-pages=hot")
    }

    /// Terrace under stress, with 30 of 1,000 of its kernel calls failing: `TERRACE_INJECT`.
    pub fn failing() -> Self {
        Terrace {
            environment: vec![("TERRACE_STRESS", "full"), ("TERRACE_INJECT", "1:30")],
            ..Terrace::default()
        }
    }

    /// Terrace under stress, in the way of old kernels: `--evict wp`.
    pub fn write_protecting() -> Self {
        Terrace::stressed().and("--evict").and("wp")
    }

    /// Terrace with `--observe`: the library is there and moves nothing.
    pub fn observing() -> Self {
        Terrace { arguments: vec!["--observe".into()], ..Terrace::default() }
    }

    /// Adds an argument of `terrace run`.
    pub fn and(mut self, argument: &str) -> Self {
        self.arguments.push(argument.into());
        self
    }
}

/// A program that is about to be started.
pub struct Program {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    input: Option<Vec<u8>>,
    terrace: Option<Terrace>,
    launcher: Vec<OsString>,
    for_user: Option<(u32, PathBuf)>,
    time_limit: Duration,
}

impl Program {
    /// A program by name or path.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Program {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            input: None,
            terrace: None,
            launcher: Vec::new(),
            for_user: None,
            time_limit: TIME_LIMIT,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// The directory to run in.
    pub fn current_dir(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Sets what the program reads on standard input; nothing otherwise.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Runs the program under Terrace; `None` for alone.
    pub fn under(mut self, terrace: impl Into<Option<Terrace>>) -> Self {
        self.terrace = terrace.into();
        self
    }

    /// Has another program start all this. `launcher` is a command line that ends where the command
    /// to start begins, as for `env` or `nice`.
    pub fn launched_by(mut self, launcher: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.launcher = launcher.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Prepares for a launcher that becomes another user: the number of that user, and where it
    /// finds the `terrace` command and its library.
    pub fn for_user(mut self, user: u32, terrace_directory: &Path) -> Self {
        self.for_user = Some((user, terrace_directory.to_owned()));
        self
    }

    /// Sets the time limit.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Starts the program.
    pub fn start(self) -> Running {
        let scratch = tempfile::Builder::new()
            .prefix("terrace-test-")
            .tempdir()
            .expect("a temporary directory can be made");
        let report = scratch.path().join("report.json");
        let mut terrace_path = terrace_command();
        if let Some((user, directory)) = &self.for_user {
            std::os::unix::fs::chown(scratch.path(), Some(*user), None)
                .expect("root can give a directory away");
            terrace_path = directory.join("terrace");
        }
        let mut words = self.launcher;
        if let Some(terrace) = &self.terrace {
            words.extend([terrace_path.into(), "run".into(), "--report".into(), report.into()]);
            words.extend(terrace.arguments.iter().map(OsString::from));
            words.push("--".into());
        }
        words.push(self.program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        // What surrounds this test must not decide what it tests.
        for name in [
            "TERRACE_STRESS",
            "TERRACE_INJECT",
            "TERRACE_LIBRARY",
            "LD_PRELOAD",
            "PYTHONPATH",
            "PYENV_VERSION",
        ] {
            command.env_remove(name);
        }
        command.envs(self.terrace.iter().flat_map(|terrace| terrace.environment.iter().copied()));
        command.args(&self.arguments).envs(self.environment).process_group(0);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let file =
            |name| File::create(scratch.path().join(name)).expect("a temporary file can be made");
        command.stdout(file("stdout")).stderr(file("stderr")).stdin(Stdio::null());
        if let Some(input) = &self.input {
            let path = scratch.path().join("stdin");
            fs::write(&path, input).expect("a temporary file can be written");
            command.stdin(File::open(&path).expect("a file just written can be opened"));
        }
        let what = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|e| panic!("{what} cannot be started: {e}"));
        Running {
            child,
            what,
            under_terrace: self.terrace.is_some(),
            scratch,
            deadline: Instant::now() + self.time_limit,
            finished: false,
        }
    }

    /// Runs the program to its end. Panics, with its output, if that does not come in time.
    pub fn run(self) -> Finished {
        self.start().wait()
    }

    /// Runs the program to its end, which must be success. Panics otherwise, with its output.
    pub fn succeed(self) -> Finished {
        let finished = self.run();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        finished
    }
}

/// A program that runs. It is killed when dropped; if a test failed, it is said first what the
/// program was doing.
pub struct Running {
    child: Child,
    what: String,
    under_terrace: bool,
    scratch: TempDir,
    deadline: Instant,
    finished: bool,
}

impl Running {
    /// The process that the test started: `terrace run` itself, if it is under that.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The program's own process, once it runs: `terrace run`'s child, if it is under that.
    pub fn program_pid(&self) -> i32 {
        if !self.under_terrace {
            return self.pid();
        }
        loop {
            if let Some(child) = process::children(self.pid()).first() {
                return *child as i32;
            }
            assert!(Instant::now() < self.deadline, "{} did not start in time", self.what);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The process in which Terrace moves the program's pages, once it is there: it shares the
    /// program's memory.
    pub fn companion_pid(&self) -> i32 {
        let program = self.program_pid() as u32;
        loop {
            if let Some(companion) = process::companion(program) {
                return companion as i32;
            }
            assert!(Instant::now() < self.deadline, "{} has no companion", self.what);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The processes of the program: all that descend from the one that the test started. Left out
    /// are:
    ///
    /// - `terrace run` itself, and its witness of signals;
    /// - processes in which Terrace moves pages, whose memory is the program's.
    pub fn processes(&self) -> Vec<i32> {
        let mut all = descendants_of(self.pid());
        let is_ours = |name: String| ["terrace-pager", "signal-witness"].contains(&name.as_str());
        all.retain(|process| process::name(process).is_some_and(|name| !is_ours(name)));
        all.retain(|process| !self.under_terrace || *process != self.pid());
        all
    }

    /// Waits until the program has written a text to standard output. Panics, with its output, if
    /// it ends before that, or does not do so in time.
    #[track_caller]
    pub fn wait_for_output(&self, text: &str) {
        loop {
            let goes_on = Instant::now() < self.deadline && !process::has_ended(self.pid());
            if self.stdout_so_far().contains(text) {
                return;
            }
            assert!(goes_on, "{}", self.state(&format!("did not write {text:?}")));
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What the program has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.scratch.path().join("stdout")).unwrap_or_default())
            .into_owned()
    }

    /// What the program has written to standard error so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.scratch.path().join("stderr")).unwrap_or_default())
            .into_owned()
    }

    /// Terrace's report, if there is one yet. It is written again when a daemon that was left ends.
    pub fn report_so_far(&self) -> Option<Report> {
        let text = fs::read(self.scratch.path().join("report.json")).ok()?;
        Some(Report::parse(&text))
    }

    /// Asks the program to end.
    pub fn terminate(&self) {
        process::signal(self.pid(), libc::SIGTERM);
    }

    /// Waits for the program's end. Panics, with its output, if that does not come in time.
    pub fn wait(mut self) -> Finished {
        let status = loop {
            match self.child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                None if Instant::now() < self.deadline => std::thread::sleep(POLL_INTERVAL),
                None => panic!("{} did not end in time", self.what),
            }
        };
        self.finished = true;
        // Children that outlived it are not waited for, and not left behind either.
        process::signal(-self.pid(), libc::SIGKILL);
        let read = |name| fs::read(self.scratch.path().join(name)).unwrap_or_default();
        let report = fs::read(self.scratch.path().join("report.json")).ok();
        Finished {
            status,
            stdout: read("stdout"),
            stderr: String::from_utf8_lossy(&read("stderr")).into_owned(),
            report: report.map(|text| Report::parse(&text)),
            what: std::mem::take(&mut self.what),
        }
    }

    fn state(&self, verdict: &str) -> String {
        let read = |name| fs::read(self.scratch.path().join(name)).unwrap_or_default();
        account(&self.what, verdict, &read("stdout"), &String::from_utf8_lossy(&read("stderr")))
    }

    /// Describes what each thread is doing, for a report of a hang.
    fn threads(&self) -> String {
        let mut text = String::new();
        for process in descendants_of(self.pid()) {
            for task in process::threads(process).unwrap_or_default() {
                let read = |name| {
                    fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned()
                };
                text += &format!(
                    "{process}/{:?} {}: in {}, {}\n",
                    task.file_name(),
                    read("comm"),
                    read("wchan"),
                    read("syscall")
                );
            }
        }
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.state("was still running"), self.threads());
        }
        for process in descendants_of(self.pid()) {
            process::signal(process, libc::SIGKILL);
        }
        process::signal(-self.pid(), libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// A program that ended.
pub struct Finished {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// All of the program's standard output.
    pub stdout: Vec<u8>,
    /// All of the program's standard error, with Terrace's text at the end.
    pub stderr: String,
    report: Option<Report>,
    what: String,
}

impl Finished {
    /// Terrace's report.
    #[track_caller]
    pub fn report(&self) -> &Report {
        self.report.as_ref().unwrap_or_else(|| panic!("{}", self.account("left no report")))
    }

    /// The program's output and the verdict, for the message of a failure.
    pub fn account(&self, verdict: &str) -> String {
        let status = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => self.status.to_string(),
        };
        account(&self.what, &format!("{verdict} ({status})"), &self.stdout, &self.stderr)
    }
}

fn account(what: &str, verdict: &str, stdout: &[u8], stderr: &str) -> String {
    let end_of = |text: &str| {
        let from = text.len().saturating_sub(SHOWN_BYTES);
        String::from_utf8_lossy(&text.as_bytes()[from..]).into_owned()
    };
    format!(
        "{what} {verdict}\n--- stdout\n{}\n--- stderr\n{}",
        end_of(&String::from_utf8_lossy(stdout)),
        end_of(stderr)
    )
}

/// The process and all processes that descend from it.
fn descendants_of(process: i32) -> Vec<i32> {
    process::descendants(process as u32).into_iter().map(|found| found as i32).collect()
}
