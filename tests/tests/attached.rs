//! `terrace attach` takes memory of a program that already runs, and `terrace detach` leaves it as
//! it was: right bytes whatever the program does meanwhile and whoever is killed, and nothing left.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use terrace_tests::{compiled, skip, target_directory, terrace_command};

/// A program that checks what it reads.
struct Target {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("it has an output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it says something");
        assert_eq!(line, "ready\n");
        Target { child, output }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.pid())).unwrap_or_default()
    }

    fn resident_bytes(&self) -> u64 {
        let status = self.file("status");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("it lives");
        line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    fn attach(&self, dram: &str) {
        told(terrace(&["attach", &self.pid(), "--dram", dram]));
    }

    fn detach(&self) {
        told(terrace(&["detach", &self.pid()]));
    }

    /// What `terrace status` says of it; `None` if nobody is attached.
    fn figures(&self) -> Option<serde_json::Value> {
        let status: serde_json::Value =
            serde_json::from_str(&told(terrace(&["status", "--json"]))).unwrap();
        let attached = status["attached"].as_array().unwrap();
        attached.iter().find(|process| process["pid"] == self.child.id()).cloned()
    }

    /// Waits until so many bytes are out of DRAM.
    fn wait_until_out(&self, bytes: u64) -> serde_json::Value {
        let figures = || self.figures().filter(|now| now["out_bytes"].as_u64().unwrap() >= bytes);
        wait_for("pages to leave", figures)
    }

    /// Waits for its end; nothing may have been wrong.
    fn ends_well(mut self) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output can be read");
        let status = self.child.wait().expect("it ends");
        assert!(status.success() && rest.contains(" wrong 0"), "{status}: {rest}");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn terrace(arguments: &[&str]) -> Output {
    Command::new(terrace_command()).args(arguments).output().expect("terrace starts")
}

fn told(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refused(arguments: &[&str], reason: &str) {
    let output = terrace(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && error.contains(reason), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill(pid: &serde_json::Value, signal: i32) {
    // SAFETY: no memory is involved; a process of this test's.
    assert_eq!(unsafe { libc::kill(pid.as_i64().unwrap() as i32, signal) }, 0);
}

/// Waits until a process is gone, or waits only for its parent to take notice.
fn wait_until_ended(pid: &serde_json::Value) {
    wait_for("a process to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

/// Whether this machine allows it; says why not.
fn can_attach(what: &str) -> bool {
    // SAFETY: no arguments, no errors.
    if unsafe { libc::geteuid() } != 0 {
        skip(what, "attaching needs root");
        return false;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(8)) {
        skip(what, "UFFDIO_MOVE needs Linux 6.8");
        return false;
    }
    true
}

fn static_program() -> PathBuf {
    // Once: a program that is replaced while it runs is another file to /proc.
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("attached.c", &["-static"])).clone()
}

#[test]
fn an_idle_program_gets_everything_back_and_nothing_is_left_in_it() {
    if !can_attach("an idle program") {
        return;
    }
    let target = Target::start(&static_program(), &["15", "idle"]);
    let (maps, descriptors) = (target.file("maps"), target.descriptors());
    for _ in 0..3 {
        target.attach("12M");
        let figures = target.wait_until_out(50 << 20);
        assert!(target.resident_bytes() < 20 << 20);
        target.detach();
        assert!(target.resident_bytes() > 60 << 20);
        assert_eq!(target.file("maps"), maps);
        assert!(
            !target
                .file("smaps")
                .lines()
                .any(|line| line.starts_with("VmFlags") && line.contains(" um"))
        );
        assert_eq!(target.descriptors(), descriptors);
        assert_eq!(target.file(&format!("task/{}/children", target.pid())), "");
        for process in ["stub", "keeper", "guard"] {
            wait_until_ended(&figures[process]);
        }
    }
    target.ends_well();
}

#[test]
fn a_program_that_maps_discards_moves_and_forks_reads_what_it_wrote() {
    if !can_attach("a working program") {
        return;
    }
    let target = Target::start(&static_program(), &["14"]);
    for _ in 0..3 {
        target.attach("20M");
        target.wait_until_out(4 << 20);
        std::thread::sleep(Duration::from_secs(2));
        let figures = target.figures().unwrap();
        assert_eq!((&figures["stale_pages"], &figures["note"]), (&0.into(), &"".into()));
        target.detach();
    }
    target.attach("20M");
    target.ends_well();
}

#[test]
fn a_static_go_program_reads_what_it_wrote() {
    if !can_attach("a Go program") {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/attached.go");
    let program = target_directory().join("terrace-programs/attached-go");
    let built = Command::new("go")
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false")
        .args(["build", "-o"])
        .args([&program, &source])
        .output();
    match built {
        Err(error) => return skip("a Go program", &format!("go cannot be run: {error}")),
        Ok(output) => drop(told(output)),
    }
    let target = Target::start(&program, &["12"]);
    for _ in 0..2 {
        target.attach("40M");
        target.wait_until_out(10 << 20);
        std::thread::sleep(Duration::from_secs(2));
        target.detach();
    }
    target.ends_well();
}

#[test]
fn who_is_killed_costs_no_byte() {
    if !can_attach("killed processes") {
        return;
    }
    let target = Target::start(&static_program(), &["16"]);
    for victim in ["keeper", "stub", "guard", "keeper"] {
        target.attach("20M");
        let figures = target.wait_until_out(4 << 20);
        kill(&figures[victim], libc::SIGKILL);
        match victim {
            "keeper" => wait_until_ended(&figures["guard"]),
            _ => target.detach(),
        }
        for process in ["keeper", "stub", "guard"] {
            wait_until_ended(&figures[process]);
        }
        assert!(target.figures().is_none());
    }
    target.ends_well();
}

#[test]
fn nobody_is_left_when_the_program_ends() {
    if !can_attach("the program's end") {
        return;
    }
    let mut target = Target::start(&static_program(), &["60", "idle"]);
    target.attach("12M");
    let figures = target.wait_until_out(10 << 20);
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    for process in ["stub", "keeper", "guard"] {
        wait_until_ended(&figures[process]);
    }
}

#[test]
fn who_cannot_be_attached_to_is_told_why_and_left_alone() {
    if !can_attach("refusals") {
        return;
    }
    let target = Target::start(&static_program(), &["60", "idle"]);
    let (pid, maps) = (target.pid(), target.file("maps"));
    refused(&["attach", "1073741824", "--dram", "1G"], "no process");
    refused(&["detach", &pid], "is not attached to");
    let number = target.child.id() as i32;
    let signal = |signal: i32| {
        // SAFETY: no memory is involved; a child of this test's.
        assert_eq!(unsafe { libc::kill(number, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    wait_for("the stop", || target.file("stat").contains(") T ").then_some(()));
    refused(&["attach", &pid, "--dram", "1G"], "is stopped");
    signal(libc::SIGCONT);
    let mut confined = Command::new("python3")
        .args([
            "-c",
            "import ctypes; c = ctypes.CDLL(None); b = ctypes.create_string_buffer(1); \
             c.prctl(22, 1, 0, 0, 0); c.read(0, b, 1)",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    wait_for("the filter", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", confined.id())).ok()?;
        status.contains("Seccomp:\t1").then_some(())
    });
    refused(&["attach", &confined.id().to_string(), "--dram", "1G"], "seccomp filter");
    confined.kill().unwrap();
    confined.wait().unwrap();
    assert_eq!(target.file("maps"), maps);
    target.attach("1G");
    refused(&["attach", &pid, "--dram", "1G"], "attached to already");
    target.detach();
}
