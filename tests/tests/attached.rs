//! `terrace attach` takes memory of a program that already runs, and `terrace detach` leaves the
//! program as it was. Bytes are right whatever the program does meanwhile and whichever process is
//! killed. Nothing is left behind.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};
use terrace_testkit::child::Ended;
use terrace_testkit::group;
use terrace_testkit::process::{self, Stat, is_root};
use terrace_testkit::public::Public;
use terrace_testkit::random::Congruential;
use terrace_testkit::wait::Wait;
use terrace_tests::{
    Guest, Steps, Zram, before_call, before_call_of, compiled, has_swap, skip, target_directory,
    terrace_command, without_swap,
};

/// A program that checks what it reads.
struct Target {
    child: Ended,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A file that was just written may be open still in a child that another test has forked.
        let mut child = wait_for("the program to start", || match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
            started => Some(started.expect("the program starts")),
        });
        let mut output = BufReader::new(child.stdout.take().expect("it has an output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it says something");
        assert_eq!(line, "ready\n");
        Target { child: Ended::by_kill(child), output }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn file(&self, name: &str) -> String {
        process::file(self.pid(), name).unwrap_or_default()
    }

    fn resident_bytes(&self) -> u64 {
        process::status_bytes(self.pid(), "RssAnon").expect("it lives")
    }

    /// Whether the program has ended and is a zombie. The main thread alone may end earlier.
    fn has_ended(&self) -> bool {
        process::threads(self.pid()).unwrap().len() == 1 && process::has_ended(self.pid())
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

    /// What the keeper says of the program; `None` if the program is not attached to.
    fn figures(&self) -> Option<serde_json::Value> {
        figures_of(&self.pid())
    }

    /// Waits until at least `bytes` bytes are out of DRAM, and returns the figures then.
    fn wait_until_out(&self, bytes: u64) -> serde_json::Value {
        wait_for("pages to leave", || {
            assert!(!self.has_ended(), "the program has ended before that");
            self.figures().filter(|now| now["out_bytes"].as_u64().unwrap() >= bytes)
        })
    }

    /// Waits for the program's end; nothing may have been wrong.
    fn ends_well(self) {
        self.ends_well_with(" wrong 0");
    }

    /// Tells the program to end, and waits for that; nothing may have been wrong.
    fn ends_well_after(mut self, word: &[u8]) {
        self.tell(word);
        self.ends_well();
    }

    /// Waits for the program's end, at which the program must succeed and print `what`.
    fn ends_well_with(mut self, what: &str) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output can be read");
        let status = self.child.wait().expect("it ends");
        assert!(status.success() && rest.contains(what), "{status}: {rest}");
    }
}

/// What the keeper of a process says; `None` if the process is not attached to. The keeper is asked
/// as `terrace status` asks, which looks twice at all that there is.
fn figures_of(pid: &str) -> Option<serde_json::Value> {
    let mut keeper = connected(pid)?;
    let mut answer = String::new();
    // Either fails where the keeper has just ended.
    keeper.write_all(b"status").and_then(|()| keeper.read_to_string(&mut answer)).ok()?;
    serde_json::from_str(&answer).ok()
}

/// A connection to a keeper, or to a guard in its place.
fn connected(pid: &str) -> Option<UnixStream> {
    let name = format!("terrace-attach-{pid}");
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    UnixStream::connect_addr(&address).ok()
}

/// What `terrace status` says of a process; `None` if the process is not attached to.
fn status_of(pid: &str) -> Option<serde_json::Value> {
    let status = told(terrace(&["status", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let attached = status["attached"].as_array().unwrap();
    let pid: u64 = pid.parse().unwrap();
    attached.iter().find(|process| process["pid"] == pid).cloned()
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

/// Starts a program that is ready once its status has `line`, and expects that attaching is
/// refused.
#[track_caller]
fn refused_once(command: &[&str], line: &str, reason: &str) {
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", command[0]));
    let there = || child_that_has(child.id(), line);
    let pid = wait_for("the program", there);
    // Memory that the program maps by itself meanwhile is no change of ours.
    let maps = || process::file(pid, "maps").unwrap();
    let settled = wait_for("the program to settle", || {
        let before = maps();
        let stays = || {
            std::thread::sleep(Duration::from_millis(100));
            maps() == before
        };
        (stays() && stays() && stays()).then_some(before)
    });
    refused(&["attach", &pid.to_string(), "--dram", "1G"], reason);
    assert_eq!(maps(), settled, "a refusal changes nothing");
    for pid in [pid, child.id()] {
        process::signal(pid as i32, libc::SIGKILL);
    }
    child.wait().unwrap();
}

/// A process, or one of its children, whose status has a line.
fn child_that_has(pid: u32, line: &str) -> Option<u32> {
    if process::file(pid, "status").ok()?.contains(line) {
        return Some(pid);
    }
    process::children(pid).into_iter().find_map(|child| child_that_has(child, line))
}

/// Starts the test program below another command, and expects that attaching to it is refused.
#[track_caller]
fn refused_child_of(command: &[&str], reason: &str) {
    refused_once(command, "Name:\tattached\n", reason);
}

/// What a `terrace` command prints that is refused, where another program (`by`) starts it.
#[track_caller]
fn refused_by(by: &[&str], arguments: &[&str]) -> String {
    let mut command = Command::new(by[0]);
    // Where the command lies other users may not look.
    let public = Public::with(&[]);
    let program = public.publish(&terrace_command());
    let output = command.args(&by[1..]).arg(program).args(arguments).output().expect("it starts");
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    Wait::within(Duration::from_secs(60)).until_some(what, look)
}

fn kill(pid: &serde_json::Value, signal: i32) {
    assert!(process::signal(pid.as_i64().unwrap() as i32, signal));
}

/// Waits until a process is gone, or waits only for its parent to take notice.
fn wait_until_ended(pid: &serde_json::Value) {
    wait_for("a process to end", || process::has_ended(pid).then_some(()));
}

/// Whether this machine allows attaching; where it does not, the reason is printed.
fn can_attach(what: &str) -> bool {
    if !is_root() {
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
    let target = Target::start(&static_program(), &["20", "idle"]);
    let (maps, descriptors) = (target.file("maps"), target.descriptors());
    for _ in 0..3 {
        target.attach("12M");
        let figures = target.wait_until_out(74 << 20);
        assert!(target.resident_bytes() < 20 << 20);
        target.detach();
        assert!(target.resident_bytes() > 80 << 20);
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
    let mut target = Target::start(&static_program(), &["7200", "told"]);
    for round in 0..3 {
        target.attach("20M");
        target.wait_until_out(4 << 20);
        if round == 1 {
            target.tell(b"x");
        }
        std::thread::sleep(Duration::from_secs(2));
        let figures = target.figures().unwrap();
        assert_eq!((&figures["stale_pages"], &figures["note"]), (&0.into(), &"".into()));
        target.detach();
    }
    target.attach("20M");
    std::thread::sleep(Duration::from_secs(2));
    target.ends_well();
}

/// A static Go program, built once; `None` without Go, which is said.
fn go_program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/attached.go");
        let program = target_directory().join("terrace-programs/attached-go");
        let built = Command::new("go")
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-buildvcs=false")
            .args(["build", "-o"])
            .args([&program, &source])
            .output();
        match built {
            Err(error) => {
                skip("a Go program", &format!("go cannot be run: {error}"));
                None
            }
            Ok(output) => {
                told(output);
                Some(program)
            }
        }
    };
    PROGRAM.get_or_init(build).clone()
}

/// A program for musl, built once; `None` without its compiler, which is said.
fn musl_program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/attached.c");
        let program = target_directory().join("terrace-programs/attached-musl");
        match Command::new("musl-gcc").args(["-O2", "-o"]).args([&program, &source]).output() {
            Err(error) => {
                skip("a program for musl", &format!("no musl-gcc: {error}"));
                None
            }
            Ok(output) => {
                told(output);
                Some(program)
            }
        }
    };
    PROGRAM.get_or_init(build).clone()
}

#[test]
fn a_static_go_program_reads_what_it_wrote() {
    if !can_attach("a Go program") {
        return;
    }
    let Some(program) = go_program() else { return };
    let target = Target::start(&program, &["7200", "told"]);
    for _ in 0..2 {
        target.attach("40M");
        // Half of what it has.
        target.wait_until_out(70 << 20);
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
    let mut target = Target::start(&static_program(), &["7200", "told"]);
    for (round, victim) in ["keeper", "stub", "guard", "keeper"].into_iter().enumerate() {
        target.attach("20M");
        let figures = target.wait_until_out(4 << 20);
        if round == 2 {
            target.tell(b"x");
        }
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
fn what_is_out_is_back_when_all_processes_of_a_unit_are_asked_to_end() {
    if !can_attach("a unit that is stopped") {
        return;
    }
    let mut target = Target::start(&static_program(), &["7200", "told"]);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        target.attach("20M");
        let figures = target.wait_until_out(4 << 20);
        // As systemd does to all that a control group has; the program would go on for a while.
        for process in ["guard", "stub", "keeper"] {
            kill(&figures[process], signal);
        }
        for process in ["guard", "keeper", "stub"] {
            wait_until_ended(&figures[process]);
        }
        assert!(target.figures().is_none());
        assert!(target.child.try_wait().unwrap().is_none(), "it goes on");
    }
    target.ends_well();
}

#[test]
fn another_limit_holds_for_an_attached_process() {
    if !can_attach("another limit") {
        return;
    }
    let target = Target::start(&static_program(), &["7200", "told"]);
    let pid = target.pid();
    target.attach("1G");
    let set = |arguments: &[&str]| terrace(&[&["set", &pid], arguments].concat());
    let said = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let changed = said(set(&["--dram", "20M"]));
    assert!(changed.contains("--dram 20.0M, before --dram 1.0G"), "{changed}");
    let figures = target.wait_until_out(4 << 20);
    assert_eq!(figures["limit"], "--dram 20.0M");
    let changed = said(set(&["--slowdown", "50%"]));
    assert!(changed.contains("--dram 20.0M --slowdown 50%, before"), "{changed}");
    told(set(&["--slowdown", "off", "--dram", "unlimited"]));
    wait_for("the limit to be gone", || {
        target.figures().filter(|now| now["budget_bytes"].as_u64() == Some(u64::MAX))
    });
    for (arguments, reason) in [
        (["--knob", "0.5"], "--dram and --slowdown can be changed"),
        (["--tiers", "dram,zstd"], "--dram and --slowdown can be changed"),
    ] {
        refused(&[&["set", &pid][..], &arguments].concat(), reason);
    }
    target.detach();
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
    process::stop(number);
    refused(&["attach", &pid, "--dram", "1G"], "is stopped");
    assert!(process::signal(number, libc::SIGCONT));
    let filter = "import ctypes; c = ctypes.CDLL(None); b = ctypes.create_string_buffer(1); \
                  c.prctl(22, 1, 0, 0, 0); c.read(0, b, 1)";
    refused_once(&["python3", "-c", filter], "Seccomp:\t1", "strict mode");
    let ids = "import os; os.setresuid(0, 65534, 0); input()";
    refused_once(&["python3", "-c", ids], "Uid:\t0\t65534", "setuid program");
    let program = static_program();
    let words = [program.to_str().unwrap(), "60", "idle"];
    let traced = [&["strace", "-o", "/dev/null"][..], &words].concat();
    refused_child_of(&traced, "is traced by");
    refused_child_of(&[&["unshare", "-U"][..], &words].concat(), "another user namespace");
    refused_child_of(&[&["unshare", "-p", "-f"][..], &words].concat(), "process 1 of its PID");
    let own = refused_by(&["setpriv", "--reuid=65534", "--clear-groups"], &["attach", &pid]);
    assert!(own.contains("CAP_SYS_PTRACE"), "{own}");
    assert_eq!(target.file("maps"), maps);
    target.attach("1G");
    refused(&["attach", &pid, "--dram", "1G"], "attached to already");
    let elsewhere = refused_by(&["unshare", "-n"], &["attach", &pid, "--dram", "1G"]);
    assert!(elsewhere.contains("another network namespace"), "{elsewhere}");
    target.detach();
}

#[test]
fn a_program_of_32_bits_is_refused() {
    if !can_attach("more refusals") {
        return;
    }
    let options = ["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie"];
    let program = compiled("waits32.c", &options);
    refused_once(&[program.to_str().unwrap()], "Name:\twaits32\n", "no 64-bit x86 program");
}

/// A Python program that executes its arguments below a seccomp filter. The filter takes `action`
/// for a call whose argument number `argument` has this value, and allows all else.
fn below_a_filter(call: i64, argument: u32, value: u32, action: u32) -> String {
    let offset = 16 + 8 * argument;
    format!(
        "import ctypes, os, struct, sys; c = ctypes.CDLL(None); c.prctl(38, 1, 0, 0, 0); \
         i = lambda *words: struct.pack('HBBI', *words); \
         b = ctypes.create_string_buffer(i(0x20, 0, 0, 0) + i(0x15, 0, 3, {call}) + \
             i(0x20, 0, 0, {offset}) + i(0x15, 0, 1, {value}) + i(6, 0, 0, {action}) + \
             i(6, 0, 0, 0x7fff0000)); \
         p = struct.pack('HxxxxxxP', 6, ctypes.addressof(b)); \
         c.prctl(22, 2, ctypes.create_string_buffer(p), 0, 0) and sys.exit('no filter'); \
         os.execv(sys.argv[1], sys.argv[1:])"
    )
}

#[test]
fn a_filter_that_forbids_what_is_needed_is_a_reason_to_refuse() {
    const KILL: u32 = 0;
    const FAIL: u32 = 0x0005_0001;
    if !can_attach("seccomp filters") {
        return;
    }
    let program = static_program();
    let program = program.to_str().unwrap();
    for (call, argument, value, action, name) in [
        (libc::SYS_socketpair, 0, 1, FAIL, "forbids socketpair"),
        // As systemd's MemoryDenyWriteExecute=.
        (libc::SYS_mprotect, 2, 5, KILL, "forbids mprotect"),
        (libc::SYS_clone, 0, 0x80_4100, KILL, "forbids clone"),
    ] {
        let filter = below_a_filter(call, argument, value, action);
        let words = ["python3", "-c", &filter, program, "60", "idle"];
        refused_once(&words, "Name:\tattached\n", name);
    }
    // A filter that forbids a call which attaching does not need here.
    let filter = below_a_filter(libc::SYS_ptrace, 0, 0, KILL);
    let words = ["-c", &filter, program, "7200", "told"];
    let target = Target::start(Path::new("python3"), &words);
    assert!(target.file("status").contains("Seccomp:\t2"));
    target.attach("20M");
    target.wait_until_out(4 << 20);
    target.detach();
    target.ends_well();
}

#[test]
fn without_new_privileges_and_in_a_pid_namespace_it_is_attached_to() {
    if !can_attach("no_new_privs and PID namespaces") {
        return;
    }
    let (program, _directory) = own_edges();
    let path = program.to_str().unwrap();
    let inside = format!("{path} waits; exit $?");
    let setpriv = ["setpriv", "--no-new-privs", path, "waits"];
    let unshare = ["unshare", "-p", "-f", "--kill-child", "sh", "-c", &inside];
    for (words, line) in [(&setpriv[..], "NoNewPrivs:\t1"), (&unshare[..], "Name:\tedges\n")] {
        let target = Target::start(Path::new(words[0]), &words[1..]);
        let its = || child_that_has(target.child.id(), line);
        let pid = wait_for("the program", its).to_string();
        told(terrace(&["attach", &pid, "--dram", "12M"]));
        wait_for("pages to leave", || {
            let figures = figures_of(&pid)?;
            (figures["out_bytes"].as_u64()? > 40 << 20).then_some(())
        });
        told(terrace(&["detach", &pid]));
        target.ends_well();
        wait_until_unused(&program);
    }
}

#[test]
fn several_are_attached_to_with_a_share_zstd_a_slowdown_and_a_report() {
    if !can_attach("options") {
        return;
    }
    let (program, _directory) = own_edges();
    let mut targets = [(); 2].map(|()| Target::start(&program, &["grows"]));
    for target in &mut targets {
        target.tell(b"x");
        target.wait_for_line("mapped");
    }
    let pids = targets.each_ref().map(Target::pid);
    let words = [&pids[0], &pids[1], "--dram", "75%", "--tiers", "dram,zstd"];
    told(terrace(&[&["attach"][..], &words].concat()));
    for target in &targets {
        let figures = target.wait_until_out(25 << 20);
        assert_eq!((&figures["tier"], &figures["limit"]), (&"zstd".into(), &"--dram 75%".into()));
        let budget = figures["budget_bytes"].as_u64().unwrap() >> 20;
        assert!((94..99).contains(&budget), "{figures:#}");
    }
    told(terrace(&["detach", &pids[0], &pids[1]]));
    let report = tempfile::NamedTempFile::new().unwrap();
    let file = report.path().to_str().unwrap();
    told(terrace(&["attach", &pids[0], "--slowdown", "5%", "--report", file]));
    let figures = targets[0].wait_until_out(10 << 20);
    assert_eq!(figures["limit"], "--slowdown 5%");
    targets[0].detach();
    let text = std::fs::read_to_string(file).unwrap();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&said["pid"], &said["tier"]), (&figures["pid"], &"lz4".into()), "{text}");
    assert!(said["evicted_pages"].as_u64() >= figures["evicted_pages"].as_u64(), "{text}");
    targets.into_iter().for_each(Target::ends_well);
    wait_until_unused(&program);
}

#[test]
fn memory_that_is_mapped_later_leaves_too() {
    if !can_attach("new mappings") {
        return;
    }
    let (program, _directory) = own_edges();
    let mut target = Target::start(&program, &["grows"]);
    target.attach("12M");
    target.wait_until_out(50 << 20);
    target.tell(b"x");
    target.wait_for_line("mapped");
    target.wait_until_out(110 << 20);
    target.detach();
    wait_until_alone(&target);
    target.ends_well();
}

#[test]
fn a_program_for_musl_reads_what_it_wrote() {
    if !can_attach("a program for musl") {
        return;
    }
    let Some(program) = musl_program() else { return };
    let mut target = Target::start(&program, &["7200", "told"]);
    target.attach("20M");
    target.wait_until_out(40 << 20);
    target.tell(b"x");
    std::thread::sleep(Duration::from_secs(2));
    target.detach();
    target.attach("20M");
    std::thread::sleep(Duration::from_secs(2));
    target.ends_well();
}

/// Numbers that are alike in each run, so that a failure can be had again, as far as time allows.
struct Random(Congruential);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        (self.0.draw() >> 33) % end
    }

    fn pause(&mut self, most_us: u64) {
        std::thread::sleep(Duration::from_micros(self.below(most_us)));
    }
}

/// Cycles of a stress test: few, or in a soak many.
fn cycles(few: u32, many: u32) -> u32 {
    if std::env::var_os("TERRACE_SOAK_SECONDS").is_some() { many } else { few }
}

/// Processes of Terrace that belong to a target, with their names. Their command line has the
/// target's number.
fn ours(target: &Target) -> Vec<(i32, String)> {
    let words = format!("attach\0{}\0", target.pid());
    let wanted = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&words)
    };
    process::all()
        .filter(wanted)
        .filter_map(|pid| Some((pid as i32, process::name(pid)?)))
        .filter(|(pid, _)| !process::has_ended(pid))
        .collect()
}

/// Waits until no keeper, guard or stub of a target is left, and checks that the target goes on as
/// before.
fn wait_until_alone(target: &Target) {
    wait_for("all of ours to leave", || ours(target).is_empty().then_some(()));
    // A process that is ending has no command line any more, and may have its socket still.
    let name = format!("@terrace-attach-{}", target.pid());
    let is_bound = |line: &str| line.ends_with(&name);
    wait_for("the socket to be closed", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        (!sockets.lines().any(is_bound)).then_some(())
    });
    // A stub has the target's memory, and so has a child before an exec.
    let is_shared = || process::companion(target.child.id()).is_some();
    wait_for("the stub to leave", || (!is_shared()).then_some(()));
    // A tracer that ends lets go after its memory and files.
    wait_for("the tracer to let go", || {
        let (state, status) = (target.file("stat"), target.file("status"));
        let stands = state.contains(") T ") || state.contains(") t ");
        (!stands && status.contains("TracerPid:\t0\n")).then_some(())
    });
    // Of asynchronous I/O, of userfaultfd, and code that no file has: the stub's.
    let ours = |line: &&str| {
        line.contains("anon_inode:[userfaultfd]")
            || line.contains("/[aio]")
            || line.contains(" r-xp 00000000 00:00 0") && !line.ends_with(']')
    };
    assert_eq!(target.file("maps").lines().find(ours), None);
}

/// Waits until no process runs this program. A stub counts: its executable is that of its target.
fn wait_until_unused(program: &Path) {
    wait_for("the stub to end", || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut programs = entries.filter_map(|entry| entry.path().join("exe").read_link().ok());
        (!programs.any(|other| other == program)).then_some(())
    });
}

/// The test program for the edges, as a file that no other test runs.
fn own_edges() -> (PathBuf, tempfile::TempDir) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| compiled("attached_edges.c", &["-static"]));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("edges");
    std::fs::copy(built, &program).unwrap();
    (program.canonicalize().unwrap(), directory)
}

/// Attaches to a target, and does something before the keeper's call of number `call`. Returns
/// whether there was such a call.
fn attach_until(target: &Target, call: u32, act: impl FnOnce(i32)) -> bool {
    let mut command = Command::new(terrace_command());
    command.args(["attach", &target.pid(), "--dram", "1G"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let (child, reached) = before_call(&mut command, call, act);
    let output = child.wait_with_output().expect("it ends");
    if !reached {
        // All calls were made.
        told(output);
    }
    reached
}

/// Detaches from a target once some of it is out, and does something before the keeper's call of
/// number `call`. Returns whether there was such a call, and how `terrace detach` ended.
fn detach_until(target: &Target, call: u32, act: impl FnOnce(i32)) -> (bool, ExitStatus) {
    let figures = target.wait_until_out(2 << 20);
    let keeper = figures["keeper"].as_i64().unwrap() as i32;
    let mut command = Command::new(terrace_command());
    command.args(["detach", &target.pid()]).stderr(Stdio::null());
    let mut detaching = None;
    let begin = || detaching = Some(command.spawn().expect("terrace starts"));
    let reached = before_call_of(keeper, call, begin, act);
    (reached, detaching.expect("it was started").wait().unwrap())
}

/// Numbers of the keeper's calls while it attaches: all of them, or in a quick run some.
fn calls() -> impl Iterator<Item = u32> {
    let step = cycles(7, 1);
    let first = 1 + std::process::id() % step;
    (first..).step_by(step as usize)
}

fn signal(target: &Target, signal: i32) {
    assert!(process::signal(target.child.id() as i32, signal));
}

#[test]
fn the_keeper_may_be_killed_before_any_call_of_attaching() {
    if !can_attach("the keeper's death") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["waits"]);
    let (maps, mut signals) = (target.file("maps"), 0);
    for call in calls() {
        let reached = attach_until(&target, call, |keeper| {
            // On its way while the thread's signals are blocked, or about to be.
            signal(&target, libc::SIGUSR2);
            kill(&keeper.into(), libc::SIGKILL);
        });
        if !reached {
            target.detach();
        }
        wait_until_alone(&target);
        // Two that wait at a time are one.
        wait_for("the signal to be taken", || {
            target.file("status").contains("ShdPnd:\t0000000000000000\n").then_some(())
        });
        assert_eq!(target.file("maps"), maps, "before call {call}");
        if !reached {
            assert!(call > 60, "no more than {call} calls");
            break;
        }
        signals += 1;
    }
    target.ends_well_with(&format!(" wrong 0 signals {signals}\n"));
}

#[test]
fn the_keeper_may_be_killed_before_any_call_of_detaching() {
    if !can_attach("the keeper's death while it leaves") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["waits"]);
    let (maps, mut reached) = (target.file("maps"), true);
    for call in calls() {
        target.attach("60M");
        (reached, _) = detach_until(&target, call, |keeper| {
            kill(&keeper.into(), libc::SIGKILL);
        });
        wait_until_alone(&target);
        assert_eq!(target.file("maps"), maps, "before call {call}");
        if !reached {
            assert!(call > 60, "no more than {call} calls");
            break;
        }
    }
    assert!(!reached);
    target.ends_well();
}

#[test]
fn the_program_may_end_before_any_call_of_attaching() {
    if !can_attach("the program's death") {
        return;
    }
    let (program, _directory) = own_edges();
    for call in calls() {
        let mut target = Target::start(&program, &["waits"]);
        let reached = attach_until(&target, call, |_| signal(&target, libc::SIGKILL));
        if !reached {
            return target.detach();
        }
        target.child.wait().unwrap();
        wait_until_unused(&program);
        wait_for("all of ours to leave", || ours(&target).is_empty().then_some(()));
    }
}

#[test]
fn the_program_may_end_before_any_call_of_detaching() {
    if !can_attach("the program's death while it is left") {
        return;
    }
    let (program, _directory) = own_edges();
    for call in calls() {
        let mut target = Target::start(&program, &["waits"]);
        target.attach("60M");
        let (reached, left) = detach_until(&target, call, |_| signal(&target, libc::SIGKILL));
        if !reached {
            assert!(call > 60 && left.success(), "no more than {call} calls, {left}");
            return target.ends_well();
        }
        target.child.wait().unwrap();
        wait_until_unused(&program);
        wait_for("all of ours to leave", || ours(&target).is_empty().then_some(()));
    }
}

#[test]
fn the_program_may_execute_another_before_any_call_of_attaching() {
    if !can_attach("an exec meanwhile") {
        return;
    }
    let (program, _directory) = own_edges();
    for call in calls() {
        let mut target = Target::start(&program, &["waits"]);
        let has_executed = |target: &Target| target.file("cmdline").starts_with("attached_edges");
        let reached = attach_until(&target, call, |_| {
            signal(&target, libc::SIGUSR1);
            // Not while the thread is held.
            let end = Instant::now() + Duration::from_millis(30);
            while !has_executed(&target) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        if reached {
            wait_for("the other program", || has_executed(&target).then_some(()));
            target.wait_for_line("ready");
        }
        // The keeper attached to the one program or the other, or not at all.
        wait_for("the keeper", || {
            let left = terrace(&["detach", &target.pid()]).status.success();
            (left || ours(&target).is_empty()).then_some(())
        });
        wait_until_alone(&target);
        target.ends_well();
        wait_until_unused(&program);
        if !reached {
            return;
        }
    }
}

#[test]
fn the_program_may_be_stopped_before_any_call_of_attaching() {
    if !can_attach("SIGSTOP meanwhile") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["waits"]);
    for call in calls() {
        let reached = attach_until(&target, call, |_| signal(&target, libc::SIGSTOP));
        if reached {
            wait_for("the stop", || target.file("stat").contains(") T ").then_some(()));
            signal(&target, libc::SIGCONT);
        }
        // Whether it was attached to, or was refused as it was stopped.
        terrace(&["detach", &target.pid()]);
        wait_until_alone(&target);
        if !reached {
            break;
        }
    }
    target.ends_well();
}

#[test]
fn a_program_that_discards_is_detached_from_when_the_stub_was_killed() {
    if !can_attach("a dead stub") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["discards"]);
    for _ in 0..cycles(3, 100) {
        target.attach("12M");
        let figures = target.wait_until_out(10 << 20);
        kill(&figures["stub"], libc::SIGKILL);
        wait_until_ended(&figures["stub"]);
        target.detach();
        wait_until_alone(&target);
    }
    target.ends_well();
}

#[test]
fn nobody_is_left_when_the_stub_was_killed_and_the_program_executes_another() {
    if !can_attach("an exec without a stub") {
        return;
    }
    let (program, _directory) = own_edges();
    let mut target = Target::start(&program, &["waits"]);
    target.attach("12M");
    let figures = target.wait_until_out(10 << 20);
    kill(&figures["stub"], libc::SIGKILL);
    wait_until_ended(&figures["stub"]);
    signal(&target, libc::SIGUSR1);
    target.wait_for_line("ready");
    for process in ["keeper", "guard"] {
        wait_until_ended(&figures[process]);
    }
    // The other program is attached to by a keeper of its own.
    wait_for("the other program to be attached to", || target.figures());
    target.detach();
    wait_until_alone(&target);
    target.ends_well();
}

#[test]
fn children_may_be_many() {
    if !can_attach("many children") {
        return;
    }
    let (program, _directory) = own_edges();
    // More than the program may have descriptors, and more than are served for long.
    for (limit, children) in [(16, 64), (512, 330)] {
        let limited = format!("ulimit -n {limit}; exec {} many {children}", program.display());
        let mut target = Target::start(Path::new("sh"), &["-c", &limited]);
        target.attach("5M");
        let figures = target.wait_until_out(10 << 20);
        target.tell(b"x");
        target.wait_for_line("forked");
        target.tell(b"y");
        target.wait_for_line("checked");
        let evicted = |figures: &serde_json::Value| figures["evicted_pages"].as_u64().unwrap();
        let before = target.figures().unwrap();
        assert_eq!(before["forks"], children);
        target.tell(b"z");
        target.wait_for_line("checked");
        wait_for("pages to leave again", || {
            let now = target.figures().unwrap();
            assert_eq!((&now["note"], &now["stub"]), (&"".into(), &figures["stub"]));
            (evicted(&now) > evicted(&before) + 2000).then_some(())
        });
        target.detach();
        wait_until_alone(&target);
        target.ends_well();
    }
}

#[test]
fn the_keeper_holds_nothing_that_the_command_had() {
    if !can_attach("descriptors of the command") {
        return;
    }
    let target = Target::start(&static_program(), &["60", "idle"]);
    let words = format!("exec \"$0\" attach {} --dram 1G 9>&1 >/dev/null", target.pid());
    let mut command = Command::new("sh");
    command.args(["-c", &words]).arg(terrace_command()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    assert!(child.wait().unwrap().success());
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(output.read_to_end(&mut Vec::new())));
    assert!(ended.recv_timeout(Duration::from_secs(10)).is_ok(), "the pipe does not end");
    target.detach();
}

/// A control group of a test's own, and how it is frozen.
struct Group {
    path: PathBuf,
    state: &'static str,
    words: [&'static str; 2],
}

impl Group {
    /// Control groups for a test: one of the first version, one of the second, or both.
    fn all() -> Vec<Group> {
        let kinds = [
            ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", ["1", "0"]),
            ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"]),
        ];
        let made = kinds.map(|(root, state, words)| {
            // Tests that run at once have a group each.
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Relaxed);
            let name = format!("terrace-attached-{}-{number}", std::process::id());
            let path = Path::new(root).join(name);
            std::fs::create_dir(&path).ok()?;
            if !path.join(state).exists() {
                // No control group: another kind of directory, which would stay if written to.
                std::fs::remove_dir(&path).expect("it is empty");
                return None;
            }
            Some(Group { path, state, words })
        });
        made.into_iter().flatten().collect()
    }

    fn add(&self, pid: &str) {
        std::fs::write(self.path.join("cgroup.procs"), pid).expect("a process can be moved");
    }

    fn freeze(&self, is_frozen: bool) {
        let word = self.words[usize::from(!is_frozen)];
        std::fs::write(self.path.join(self.state), word).expect("a group can be frozen");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join(self.state), self.words[1]);
        group::remove(&self.path);
    }
}

#[test]
fn a_paused_program_goes_on_and_is_evicted_as_before() {
    if !can_attach("a paused program") {
        return;
    }
    let groups = Group::all();
    if groups.is_empty() {
        return skip("a paused program", "no control group can be frozen here");
    }
    // All of them at once: it takes longer than a stub may take to answer.
    let targets: Vec<_> = groups
        .iter()
        .map(|group| {
            let target = Target::start(&static_program(), &["7200", "stress"]);
            group.add(&target.pid());
            target.attach("12M");
            // Most is still to leave, so a request is under way, or soon.
            group.freeze(true);
            target
        })
        .collect();
    // Others are told of meanwhile, and of these that they do not answer.
    let (other, begun) = (Target::start(&static_program(), &["60", "idle"]), Instant::now());
    other.attach("12M");
    other.wait_until_out(40 << 20);
    let is_told = |now: &serde_json::Value| now["out_bytes"].as_u64() >= Some(40 << 20);
    wait_for("the other's figures", || status_of(&other.pid()).filter(is_told));
    let is_silent = |now: &serde_json::Value| now["note"].as_str().unwrap().contains("is paused");
    let figures = wait_for("silence", || status_of(&targets[0].pid()).filter(is_silent));
    assert_eq!(figures["program"], "attached");
    std::thread::sleep(Duration::from_secs(12).saturating_sub(begun.elapsed()));
    for (group, target) in groups.iter().zip(targets) {
        group.freeze(false);
        let has_answered = |now: &serde_json::Value| now["evicted_pages"] != 0;
        let before = wait_for("the keeper", || target.figures().filter(has_answered));
        assert_eq!(before["note"], "");
        wait_for("more pages to leave", || {
            let evicted = |figures: &serde_json::Value| figures["evicted_pages"].as_u64().unwrap();
            (evicted(&target.figures()?) > evicted(&before) + 2000).then_some(())
        });
        assert_eq!(target.figures().unwrap()["stub"], before["stub"]);
        target.detach();
        wait_until_alone(&target);
        target.ends_well();
    }
}

#[test]
fn attached_and_detached_again_and_again() {
    if !can_attach("cycles") {
        return;
    }
    let target = Target::start(&static_program(), &["7200", "stress"]);
    let mut random = Random(Congruential::new(1));
    for _ in 0..cycles(40, 1000) {
        target.attach("16M");
        random.pause(200_000);
        target.detach();
    }
    wait_until_alone(&target);
    target.ends_well();
}

#[test]
fn killed_at_any_moment() {
    if !can_attach("kills") {
        return;
    }
    let target = Target::start(&static_program(), &["7200", "stress"]);
    let mut random = Random(Congruential::new(2));
    let (pid, mut killed, mut stubs) = (target.pid(), [0; 3], 0);
    for _ in 0..cycles(60, 1000) {
        let mut command = Command::new(terrace_command());
        command.args(["attach", &pid, "--dram", "16M"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut attaching = command.spawn().expect("terrace starts");
        // In the middle of attaching, of evicting, or of detaching.
        let moment = random.below(3);
        match moment {
            0 => random.pause(20_000),
            1 => random.pause(300_000),
            _ => {
                attaching.wait().expect("it ends");
                random.pause(100_000);
                let mut command = Command::new(terrace_command());
                command.args(["detach", &pid]).stderr(Stdio::null());
                command
                    .spawn()
                    .and_then(|mut detach| {
                        random.pause(40_000);
                        detach.kill()?;
                        detach.wait()
                    })
                    .expect("terrace starts");
            }
        }
        let processes = ours(&target);
        let victims = ["terrace-keeper", "terrace", "terrace-guard", "stub"];
        let victim = victims[random.below(4) as usize];
        let process = if victim == "stub" {
            // Its command line is the target's. The keeper knows it once it is attached.
            target.figures().and_then(|figures| figures["stub"].as_i64()).map(|stub| stub as i32)
        } else {
            // One process: while it forks, the keeper has its guard's name.
            processes.iter().find(|(_, name)| name == victim).map(|(process, _)| *process)
        };
        if let Some(process) = process.filter(|process| *process > 0) {
            process::signal(process, libc::SIGKILL);
            killed[moment as usize] += 1;
            stubs += u32::from(victim == "stub");
        }
        attaching.wait().expect("it ends");
        // Without its command, a keeper goes on, and may have been about to attach.
        wait_for("all of ours to leave", || {
            let detached = terrace(&["detach", &pid]);
            let error = String::from_utf8_lossy(&detached.stderr);
            let is_known =
                error.contains("is not attached to") || error.contains("ended before it");
            assert!(detached.status.success() || is_known, "{error}");
            ours(&target).is_empty().then_some(())
        });
        wait_until_alone(&target);
    }
    assert!(killed.iter().all(|count| *count > 0) && stubs > 0, "{killed:?}, {stubs} stubs");
    target.ends_well();
}

#[test]
fn the_stub_has_no_rights_and_strangers_are_not_answered() {
    if !can_attach("rights") {
        return;
    }
    let target = Target::start(&static_program(), &["60", "idle"]);
    target.attach("12M");
    let figures = target.wait_until_out(10 << 20);
    let status = process::file(&figures["stub"], "status").unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let maps = target.file("maps");
    assert!(!maps.is_empty() && !maps.contains(" rwx"), "code that can be written: {maps}");
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", figures["stub"])).unwrap();
    for descriptor in descriptors.flatten() {
        let file = std::fs::read_link(descriptor.path()).unwrap();
        let file = file.to_string_lossy().into_owned();
        let known = ["socket:", "anon_inode:[userfaultfd]", "anon_inode:[pidfd]", "pidfd:"];
        assert!(known.iter().any(|known| file.starts_with(known)), "{file}");
    }
    let stranger = ["setpriv", "--reuid=65534", "--clear-groups"];
    refused_by(&stranger, &["detach", &target.pid()]);
    assert!(target.figures().is_some());
    target.detach();
}

#[test]
fn a_program_that_takes_the_stub_over_gains_nothing() {
    if !can_attach("a hostile program") {
        return;
    }
    let options = ["-static", "-fno-pic", "-no-pie"];
    let mut target = Target::start(&compiled("attached_hostile.c", &options), &[]);
    target.attach("12M");
    let figures = target.wait_until_out(40 << 20);
    target.tell(b"x");
    target.wait_for_line("denied");
    wait_until_ended(&figures["stub"]);
    target.detach();
    target.ends_well();
}

#[test]
fn a_child_that_stays_is_attached_to() {
    if !can_attach("children") {
        return;
    }
    let mut target = Target::start(&compiled("attached_family.c", &["-static"]), &[]);
    target.attach("8M");
    target.wait_until_out(30 << 20);
    target.tell(b"x");
    let mut line = String::new();
    target.output.read_line(&mut line).unwrap();
    let number: u64 = line.trim().parse().expect("the child's number");
    let child = number.to_string();
    wait_for("the child's pages to leave", || {
        let status = told(terrace(&["status", "--json"]));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let all = status["attached"].as_array().unwrap();
        let its = all.iter().find(|process| process["pid"] == number)?;
        (its["out_bytes"].as_u64().unwrap() > 30 << 20).then_some(())
    });
    // Both have as much data, and one limit.
    wait_for("both to have half of the limit", || {
        let budget = |of: serde_json::Value| of["budget_bytes"].as_u64().unwrap();
        let halves = [budget(target.figures()?), budget(figures_of(&child)?)];
        halves.iter().all(|half| (3 << 20..=5 << 20).contains(half)).then_some(())
    });
    target.ends_well();
}

#[test]
fn a_child_that_executes_another_program_and_stays_is_attached_to() {
    if !can_attach("a child's other program") {
        return;
    }
    let (program, _directory) = own_edges();
    let words = format!("echo ready; read word; {} waits; exit $?", program.display());
    let mut target = Target::start(Path::new("sh"), &["-c", &words]);
    target.attach("12M");
    // That takes half a second, by when the keeper has looked which children were there before.
    assert!(status_of(&target.pid()).is_some());
    target.tell(b"x\n");
    target.wait_for_line("ready");
    let child = child_that_has(target.child.id(), "Name:\tedges\n").expect("its child");
    let child = child.to_string();
    wait_for("the child's pages to leave", || {
        figures_of(&child).filter(|its| its["out_bytes"].as_u64() > Some(40 << 20))
    });
    // The shell beside it needs little.
    let budget = figures_of(&child).unwrap()["budget_bytes"].as_u64().unwrap();
    assert!((9 << 20..=12 << 20).contains(&budget), "{budget}");
    told(terrace(&["detach", &child, &target.pid()]));
    wait_until_alone(&target);
    target.ends_well();
    wait_until_unused(&program);
}

impl Target {
    /// Tells a test program to go on.
    fn tell(&mut self, word: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(word).unwrap();
    }

    /// Waits for a line of its output.
    fn wait_for_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }
}

#[test]
fn a_program_that_the_process_executes_is_attached_to_once_it_stays() {
    if !can_attach("a program that is executed") {
        return;
    }
    let program = static_program();
    let script = format!("echo ready; read word; exec {} 60 idle", program.display());
    let mut target = Target::start(Path::new("sh"), &["-c", &script]);
    target.attach("12M");
    let before = target.figures().expect("it is attached to")["keeper"].clone();
    target.tell(b"go\n");
    let figures = target.wait_until_out(10 << 20);
    assert_eq!(figures["limit"], "--dram 12.0M");
    assert_ne!(figures["keeper"], before);
    assert!(figures["program"].as_str().is_some_and(|name| name.starts_with("attached")));
    target.detach();
    assert!(target.figures().is_none());
}

#[test]
fn the_main_thread_may_end_before_the_others() {
    if !can_attach("the main thread's end") {
        return;
    }
    let mut target = Target::start(&compiled("attached_edges.c", &["-static"]), &["main"]);
    target.attach("12M");
    target.wait_until_out(30 << 20);
    target.tell(b"x");
    wait_for("the main thread's end", || target.file("stat").contains(") Z ").then_some(()));
    let evicted = |figures: &serde_json::Value| figures["evicted_pages"].as_u64().unwrap();
    let before = target.figures().expect("the keeper stays");
    wait_for("more pages to leave", || {
        let now = target.figures().expect("the keeper stays");
        (evicted(&now) > evicted(&before) + 2000).then_some(())
    });
    target.wait_until_out(30 << 20);
    target.detach();
    for process in ["stub", "keeper", "guard"] {
        wait_until_ended(&before[process]);
    }
    target.ends_well();
}

#[test]
fn a_child_finds_empty_what_is_wiped_on_fork() {
    if !can_attach("MADV_WIPEONFORK") {
        return;
    }
    let mut target = Target::start(&compiled("attached_edges.c", &["-static"]), &["fork"]);
    target.attach("8M");
    target.wait_until_out(50 << 20);
    target.tell(b"xyz");
    target.wait_for_line("forked");
    target.wait_for_line("checked");
    target.ends_well();
}

#[test]
fn a_child_is_served_on_when_the_stub_is_killed() {
    if !can_attach("the stub's death beside a child") {
        return;
    }
    let mut target = Target::start(&compiled("attached_edges.c", &["-static"]), &["fork"]);
    target.attach("8M");
    let figures = target.wait_until_out(50 << 20);
    target.tell(b"x");
    target.wait_for_line("forked");
    // A child of which the keeper knows, before it has stayed for a second.
    wait_for("the fork", || (target.figures()?["forks"] == 1).then_some(()));
    kill(&figures["stub"], libc::SIGKILL);
    wait_until_ended(&figures["stub"]);
    target.tell(b"y");
    target.wait_for_line("checked");
    // The keeper looks around more often than that.
    std::thread::sleep(Duration::from_secs(2));
    target.tell(b"z");
    target.ends_well();
}

/// A program that has forked a child with pages out, after its stub was killed. Without a stub, no
/// child is attached to by itself. Also returns the keeper's figures from before.
fn with_a_child(program: &Path) -> (Target, serde_json::Value) {
    let mut target = Target::start(program, &["fork"]);
    target.attach("8M");
    let figures = target.wait_until_out(50 << 20);
    kill(&figures["stub"], libc::SIGKILL);
    wait_until_ended(&figures["stub"]);
    target.tell(b"x");
    target.wait_for_line("forked");
    wait_for("the fork", || (target.figures()?["forks"] == 1).then_some(()));
    (target, figures)
}

#[test]
fn a_child_reads_its_data_when_program_and_stub_are_dead() {
    if !can_attach("a child beside the dead") {
        return;
    }
    let (program, _directory) = own_edges();
    for is_killed in [false, true] {
        let (mut target, figures) = with_a_child(&program);
        let mut input = target.child.stdin.take().unwrap();
        // Stopped, the keeper does not notice the program's end before what follows.
        kill(&figures["keeper"], libc::SIGSTOP);
        target.child.kill().unwrap();
        target.child.wait().unwrap();
        if is_killed {
            kill(&figures["keeper"], libc::SIGKILL);
        } else {
            let mut asked = connected(&target.pid()).expect("the keeper listens");
            asked.write_all(b"detach").unwrap();
            kill(&figures["keeper"], libc::SIGCONT);
            let mut answer = String::new();
            asked.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("ok "), "{answer}");
        }
        for process in ["keeper", "guard"] {
            wait_until_ended(&figures[process]);
        }
        input.write_all(b"y").unwrap();
        target.wait_for_line("checked");
        input.write_all(b"z").unwrap();
        wait_until_unused(&program);
    }
}

/// Expects that a keeper, or a guard in its place, that waits for something answers with the cause.
/// It must use next to no CPU time, also while a client is connected and says nothing.
#[track_caller]
fn expect_answers(target: &Target, process: &serde_json::Value, cause: &str) {
    let says_so = |figures: &serde_json::Value| figures["note"].as_str().unwrap().contains(cause);
    let figures = wait_for("an answer", || status_of(&target.pid()).filter(says_so));
    assert_eq!(&figures["keeper"], process);
    refused(&["detach", &target.pid()], cause);
    let _silent = connected(&target.pid()).expect("the keeper listens");
    let cpu = || Stat::of(process).expect("it lives").cpu;
    let before = cpu();
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu() - before;
    assert!(used < Duration::from_millis(300), "{used:?} of a CPU in a second");
}

/// Limits the address space of a process to 64 GiB more than it has mapped. That is too little for
/// one more record of pages, of 256 GiB.
fn without_room_for_a_record(pid: &serde_json::Value) {
    let mapped = process::status_bytes(pid, "VmSize").unwrap();
    limit_addresses(pid, mapped + (64 << 30));
}

fn limit_addresses(pid: &serde_json::Value, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    let pid = pid.as_i64().unwrap() as i32;
    // SAFETY: the structure is readable.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

#[test]
fn a_guard_without_room_for_a_childs_record_goes_on_and_answers() {
    if !can_attach("a guard without memory") {
        return;
    }
    let (program, _directory) = own_edges();
    let (mut target, figures) = with_a_child(&program);
    let (keeper, guard) = (&figures["keeper"], &figures["guard"]);
    // It has mapped the program's record, and nothing of the child's.
    without_room_for_a_record(guard);
    let mut silent = connected(&target.pid()).expect("the keeper listens");
    // By then the silent connection is accepted too.
    assert!(target.figures().is_some());
    kill(keeper, libc::SIGKILL);
    wait_until_ended(keeper);
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(silent.read(&mut [0]).expect("its connection ends"), 0);
    let cause = "its guard leaves as soon as it can: cannot map the record of pages";
    expect_answers(&target, guard, cause);
    limit_addresses(guard, libc::RLIM_INFINITY);
    wait_until_ended(guard);
    target.tell(b"y");
    target.wait_for_line("checked");
    wait_until_alone(&target);
    target.ends_well_after(b"z");
}

#[test]
fn a_keeper_without_room_for_a_childs_record_goes_on_and_answers() {
    if !can_attach("a keeper without memory") {
        return;
    }
    let (program, _directory) = own_edges();
    let mut target = Target::start(&program, &["fork"]);
    target.attach("8M");
    let figures = target.wait_until_out(50 << 20);
    without_room_for_a_record(&figures["keeper"]);
    target.tell(b"x");
    // The child waits for pages, and can say nothing yet.
    expect_answers(&target, &figures["keeper"], "cannot map the record of pages");
    limit_addresses(&figures["keeper"], libc::RLIM_INFINITY);
    target.wait_for_line("forked");
    target.tell(b"y");
    target.wait_for_line("checked");
    target.detach();
    wait_until_alone(&target);
    target.ends_well_after(b"z");
}

#[test]
fn a_guard_that_cannot_leave_yet_answers_until_it_can() {
    if !can_attach("a guard that cannot leave") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["waits"]);
    target.attach("12M");
    let figures = target.wait_until_out(40 << 20);
    kill(&figures["stub"], libc::SIGKILL);
    wait_until_ended(&figures["stub"]);
    let mut strace = Command::new("strace");
    let strace = strace.args(["-o", "/dev/null", "-p", &target.pid()]).stderr(Stdio::null());
    let mut strace = strace.spawn().expect("strace starts");
    let is_traced = || !target.file("status").contains("TracerPid:\t0\n");
    wait_for("the tracer", || is_traced().then_some(()));
    kill(&figures["keeper"], libc::SIGKILL);
    wait_until_ended(&figures["keeper"]);
    expect_answers(&target, &figures["guard"], "cannot be stopped");
    // It waits for no page meanwhile.
    assert!(target.resident_bytes() > 60 << 20);
    strace.kill().unwrap();
    strace.wait().unwrap();
    wait_until_ended(&figures["guard"]);
    wait_until_alone(&target);
    target.ends_well();
}

#[test]
fn run_attaches_where_no_library_can_come_in() {
    if !can_attach("terrace run") {
        return;
    }
    let report = tempfile::NamedTempFile::new().unwrap();
    let program = static_program();
    let direct = [program.to_str().unwrap(), "6", "idle"];
    let executes = format!("exec {} 6 idle", program.display());
    let executed = ["sh", "-c", &executes];
    let mut runs = vec![(&[][..], direct), (&["--inject"][..], direct), (&["--inject"], executed)];
    // Those that a preloaded library cannot come into, as they are.
    let (go, musl) = (go_program(), musl_program());
    runs.extend(
        [&go, &musl]
            .into_iter()
            .flatten()
            .map(|other| (&[][..], [other.to_str().unwrap(), "6", "idle"])),
    );
    for (inject, command) in runs {
        let words = ["run", "--dram", "20M", "--report", report.path().to_str().unwrap()];
        let run = terrace(&[&words[..], inject, &["--"], &command].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!said.contains("--tiers"), "of what nobody gave: {said}");
        let output = told(run);
        assert!(output.contains(" wrong 0"), "{output}");
        let text = std::fs::read_to_string(report.path()).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&report["state"], &report["managed"]), (&"attached".into(), &true.into()));
        // The Go program ends soon.
        assert!(report["attached"]["evicted_pages"].as_u64().unwrap() > 1000, "{text}");
    }
}

#[test]
fn nobody_is_left_of_a_program_that_ends_while_it_is_attached_to() {
    if !can_attach("terrace run of short programs") {
        return;
    }
    let (program, _directory) = own_edges();
    let executes = format!("exec {} waits", program.display());
    for _ in 0..cycles(20, 300) {
        // Without arguments it ends at once.
        let run = terrace(&["run", "--inject", "--dram", "20M", "--", program.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(2));
        // A program that executes another one early.
        told(terrace(&["run", "--inject", "--dram", "1G", "--", "sh", "-c", &executes]));
    }
    wait_until_unused(&program);
}

#[test]
fn what_processes_of_a_group_share_counts_once() {
    if !can_attach("--cgroup") {
        return;
    }
    let Some(group) = Group::all().into_iter().next() else {
        return skip("--cgroup", "no control group can be made here");
    };
    let _swap = match Zram::swap_on(512 << 20) {
        Ok(swap) => swap,
        Err(why) => return skip("--cgroup with swap", &why),
    };
    let shares = "import mmap, os; m = mmap.mmap(-1, 60 << 20); m[:] = bytes(range(240)) * (1 << 18)\n\
                  n = [os.fork() and 1 for _ in range(2)]\n\
                  assert len(m[:]) == 60 << 20\n\
                  if n == [1, 1]: print('ready', flush=True)\n\
                  input()";
    let mut child = Command::new("python3")
        .args(["-c", shares])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let target = Target { child: Ended::by_kill(child), output };
    let path = group.path.to_str().unwrap();
    let pids = || {
        let all = process::descendants(target.child.id());
        all.iter().map(u32::to_string).collect::<Vec<_>>()
    };
    wait_for("all of them", || (pids().len() == 4).then_some(()));
    pids().iter().for_each(|pid| group.add(pid));
    told(terrace(&["attach", "--outside", "--cgroup", path, "--dram", "1G"]));
    let figures = wait_for("the figures", || {
        let figures = told(terrace(&["status", "--json"]));
        let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
        let all = figures["attached"].as_array().unwrap();
        let figures = all.iter().find(|each| each["program"] == path && each["children"] == 3)?;
        // All have touched it, and none has a copy of its own any more.
        let shared = figures["shared_bytes"].as_u64()? >> 20;
        let has_settled =
            (55..70).contains(&shared) && figures["resident_bytes"].as_u64()? < 120 << 20;
        has_settled.then(|| figures.clone())
    });
    told(terrace(&["detach", &figures["pid"].to_string()]));
    for pid in pids().iter().rev() {
        process::signal(pid.parse().unwrap(), libc::SIGKILL);
    }
}

/// Reads, from outside, all memory of a process that the process may write. What is in swap comes
/// back.
fn touch_all(pid: &str) {
    let maps = process::file(pid, "maps").unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    for line in maps.lines().filter(|line| line.contains(" rw-")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        for page in (start..end).step_by(4096) {
            // Of a device it may not be read.
            let _ = memory.read_at(&mut [0], page);
        }
    }
}

#[test]
fn shared_memory_of_an_attached_program_leaves_for_swap() {
    if !can_attach("shared memory") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["shares"]);
    {
        let _alone = without_swap();
        if !has_swap() {
            target.attach("40M");
            let figures = target.wait_until_out(20 << 20);
            let shared = figures["shared_bytes"].as_u64().unwrap();
            assert!(shared >= 60 << 20 && figures["kept_bytes"] == shared, "{figures:#}");
            assert!(figures["shared_note"].as_str().unwrap().contains("no swap"), "{figures:#}");
            assert!(told(terrace(&["status"])).contains("set up zram"));
            target.detach();
        }
    }
    let _swap = match Zram::swap_on(512 << 20) {
        Ok(swap) => swap,
        Err(why) => return skip("shared memory in swap", &why),
    };
    target.attach("40M");
    let figures = wait_for("shared memory to leave", || {
        let figures = target.figures()?;
        let [shared, out] =
            ["shared_bytes", "shared_out_bytes"].map(|name| figures[name].as_u64().unwrap());
        (shared < 40 << 20 && shared + out >= 60 << 20).then_some(figures)
    });
    assert_eq!((&figures["shared_note"], &figures["note"]), (&"".into(), &"".into()));
    assert!(figures["out_bytes"].as_u64() > Some(10 << 20), "private memory too: {figures:#}");
    target.detach();
    target.ends_well();
}

#[test]
fn from_outside_the_kernels_swap_takes_pages() {
    if !can_attach("--outside") {
        return;
    }
    let (program, _directory) = own_edges();
    let target = Target::start(&program, &["waits"]);
    {
        let _alone = without_swap();
        if !has_swap() {
            refused(&["attach", "--outside", &target.pid(), "--dram", "20M"], "there is no swap");
        }
    }
    let _swap = match Zram::swap_on(512 << 20) {
        Ok(swap) => swap,
        Err(why) => return skip("--outside with swap", &why),
    };
    let shares = "import mmap; m = mmap.mmap(-1, 60 << 20); m[:] = bytes(range(240)) * (1 << 18); \
                  print('ready', flush=True); input(); \
                  print('checks 1 wrong', int(m[:] != bytes(range(240)) * (1 << 18)))";
    let mut child = Command::new("python3");
    let child = child.args(["-c", shares]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().expect("python3 starts");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let sharer = Target { child: Ended::by_kill(child), output };
    for (target, private) in [(&target, true), (&sharer, false)] {
        let pid = target.child.id();
        let pid = child_that_has(pid, "Threads:\t1").unwrap_or(pid).to_string();
        told(terrace(&["attach", "--outside", &pid, "--dram", "30M"]));
        let is_down = || {
            let its = figures_of(&pid)?;
            let left = if private { &its["resident_bytes"] } else { &its["shared_bytes"] };
            (left.as_u64().unwrap() < 31 << 20).then_some(its)
        };
        wait_for("pages to leave", is_down);
        // What comes back is advised as cold before it leaves again.
        touch_all(&pid);
        wait_for("pages to leave again", || {
            is_down().filter(|its| its["cold_pages"].as_u64() > Some(0))
        });
        let figures = figures_of(&pid).unwrap();
        assert!(
            figures["restored_pages"].as_u64() >= figures["cold_pages"].as_u64(),
            "{figures:#}"
        );
        told(terrace(&["detach", &pid]));
    }
    // To a slowdown: what is never touched leaves.
    let pid = target.pid();
    touch_all(&pid);
    told(terrace(&["attach", "--outside", &pid, "--slowdown", "5%"]));
    wait_for("pages to leave by a slowdown", || {
        let its = figures_of(&pid)?;
        let is_limited = its["budget_bytes"].as_u64().is_some_and(|bytes| bytes < 1 << 40);
        (is_limited && its["out_bytes"].as_u64() > Some(1 << 20)).then_some(())
    });
    told(terrace(&["detach", &pid]));
    target.ends_well();
    sharer.ends_well_after(b"x\n");
}

#[test]
fn nobody_reads_zeros_when_all_are_killed() {
    if !can_attach("all killed") {
        return;
    }
    let mut target = Target::start(&static_program(), &["4", "idle"]);
    target.attach("12M");
    let figures = target.wait_until_out(40 << 20);
    // Stopped, it makes no other guard.
    kill(&figures["keeper"], libc::SIGSTOP);
    for process in ["guard", "stub", "keeper"] {
        kill(&figures[process], libc::SIGKILL);
    }
    wait_for("a page that never comes back", || {
        assert!(target.child.try_wait().unwrap().is_none(), "it ended");
        target.file("wchan").contains("handle_userfault").then_some(())
    });
    // It can be killed, which is done when it is dropped.
}

/// What is tried on another kernel, and with settings of a whole machine.
const IN_A_GUEST: &[(&str, &str)] = &[
    (
        "attach",
        "mkfifo in; EDGES waits <in >out & pid=$!; exec 3>in; until grep ready out; do sleep 0.2; done; \
         TERRACE attach $pid --dram 12M; for try in $(seq 300); do TERRACE status --json >report.json; \
         grep -Eq '\"evicted_pages\": ?[0-9]{5}' report.json && break; sleep 0.5; done; TERRACE detach $pid; \
         status=$?; exec 3>&-; wait $pid || status=$?; cat out; exit $status",
    ),
    (
        "yama",
        "echo 3 >/proc/sys/kernel/yama/ptrace_scope; sleep 60 & TERRACE attach $! --dram 1G; status=$?; \
         kill $!; exit $status",
    ),
];

static GUEST: LazyLock<Steps> = LazyLock::new(|| {
    Steps::new(Guest { kernel: "6.12", memory: "plain", init: "shell" }, IN_A_GUEST, || {
        vec![("EDGES", compiled("attached_edges.c", &["-static"]))]
    })
});

#[test]
fn on_linux_6_12_pages_leave_and_come_back() {
    let Some(attach) = GUEST.outcome("attach") else { return };
    assert!(attach.status == 0 && attach.stdout.contains(" wrong 0 "), "{attach:?}");
    let figures = &attach.report()["attached"][0];
    assert!(figures["evicted_pages"].as_u64() >= Some(10_000), "{figures:#}");
}

#[test]
fn where_yama_forbids_all_tracing_nobody_is_attached_to() {
    let Some(yama) = GUEST.outcome("yama") else { return };
    assert_eq!(yama.status, 125, "{yama:?}");
    assert!(yama.stderr.contains("kernel.yama.ptrace_scope is 3"), "{yama:?}");
    assert_eq!(yama.stderr.lines().count(), 1, "{yama:?}");
}
