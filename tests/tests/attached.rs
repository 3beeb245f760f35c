//! `terrace attach` takes memory of a program that already runs, and `terrace detach` leaves it as
//! it was: right bytes whatever the program does meanwhile and whoever is killed, and nothing left.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use terrace_tests::{
    Zram, compiled, has_swap, skip, target_directory, terrace_command, without_swap,
};

/// A program that checks what it reads.
struct Target {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
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
        drop(self.child.stdin.take());
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

/// A program that is ready once its status has a line, and is refused then.
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
    refused(&["attach", &pid.to_string(), "--dram", "1G"], reason);
    for pid in [pid, child.id()] {
        // SAFETY: no memory is involved; a child of this test's, or a child of that.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
    child.wait().unwrap();
}

/// A process, or one of its children, whose status has a line.
fn child_that_has(pid: u32, line: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    if status.contains(line) {
        return Some(pid);
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().find_map(|child| child_that_has(child.parse().ok()?, line))
}

/// The test program below another, which is refused.
#[track_caller]
fn refused_child_of(command: &[&str], reason: &str) {
    refused_once(command, "Name:\tattached\n", reason);
}

/// What a command says that is refused, started by another program.
#[track_caller]
fn refused_by(by: &[&str], arguments: &[&str]) -> String {
    let mut command = Command::new(by[0]);
    // Where the command lies other users may not look.
    let copy = tempfile::Builder::new().permissions(public()).tempdir().unwrap();
    let program = copy.path().join("terrace");
    std::fs::copy(terrace_command(), &program).unwrap();
    let output = command.args(&by[1..]).arg(program).args(arguments).output().expect("it starts");
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn public() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
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
    let filter = "import ctypes; c = ctypes.CDLL(None); b = ctypes.create_string_buffer(1); \
                  c.prctl(22, 1, 0, 0, 0); c.read(0, b, 1)";
    refused_once(&["python3", "-c", filter], "Seccomp:\t1", "seccomp filter");
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
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.trim() != "3" {
        // Once it is 3, it stays 3 until the machine starts again.
        println!("not tried: Yama's refusal, as kernel.yama.ptrace_scope is not 3 here");
    }
    assert_eq!(target.file("maps"), maps);
    target.attach("1G");
    refused(&["attach", &pid, "--dram", "1G"], "attached to already");
    target.detach();
}

/// Numbers that are alike in each run, so that a failure can be had again, as far as time allows.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn pause(&mut self, most_us: u64) {
        std::thread::sleep(Duration::from_micros(self.below(most_us)));
    }
}

/// Cycles of a stress test: few, or in a soak many.
fn cycles(few: u32, many: u32) -> u32 {
    if std::env::var_os("TERRACE_SOAK_SECONDS").is_some() { many } else { few }
}

/// The processes of ours that belong to a target: those that its command line names, by their name.
fn ours(target: &Target) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let words = format!("attach\0{}\0", target.pid());
    let wanted = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&words)
    };
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    pids.filter(wanted)
        .filter_map(|pid| Some((pid, name(pid)?.trim_end().to_string())))
        .filter(|(pid, _)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.contains(") Z ")
        })
        .collect()
}

/// Whether another process has the target's memory: a stub, or a child before an exec.
fn is_shared(target: &Target) -> bool {
    const KCMP_VM: i32 = 1;
    let own = target.child.id() as i32;
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // SAFETY: no memory is involved.
    let is_same = |pid: i32| unsafe { libc::syscall(libc::SYS_kcmp, own, pid, KCMP_VM, 0, 0) } == 0;
    pids.any(|pid| pid != own && is_same(pid))
}

/// Waits until no keeper, guard or stub of a target is left, and it goes on as before.
fn wait_until_alone(target: &Target) {
    wait_for("all of ours to leave", || ours(target).is_empty().then_some(()));
    wait_for("the stub to leave", || (!is_shared(target)).then_some(()));
    let state = target.file("stat");
    assert!(!state.contains(") T ") && !state.contains(") t "), "{state}");
    assert!(target.file("status").contains("TracerPid:\t0\n"));
    let ours = |line: &&str| line.contains("anon_inode:[userfaultfd]") || line.contains("/[aio]");
    assert_eq!(target.file("maps").lines().find(ours), None);
}

#[test]
fn attached_and_detached_again_and_again() {
    if !can_attach("cycles") {
        return;
    }
    let target = Target::start(&static_program(), &["7200", "stress"]);
    let mut random = Random(1);
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
    let mut random = Random(2);
    let (pid, mut killed) = (target.pid(), [0; 3]);
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
        let victims = ["terrace-keeper", "terrace", "terrace-guard"];
        let victim = victims[random.below(3) as usize];
        for (process, _) in processes.iter().filter(|(_, name)| name == victim) {
            // SAFETY: no memory is involved; it may have ended since, and numbers go round slowly.
            unsafe { libc::kill(*process, libc::SIGKILL) };
            killed[moment as usize] += 1;
        }
        attaching.wait().expect("it ends");
        let detached = terrace(&["detach", &pid]);
        let error = String::from_utf8_lossy(&detached.stderr);
        let is_known = error.contains("is not attached to") || error.contains("ended before it");
        assert!(detached.status.success() || is_known, "{error}");
        wait_until_alone(&target);
    }
    assert!(killed.iter().all(|count| *count > 0), "{killed:?}");
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
    let status = std::fs::read_to_string(format!("/proc/{}/status", figures["stub"])).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    assert!(!maps.contains(" rwx"), "code that can be written: {maps}");
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
fn a_child_that_stays_is_attached_to() {
    if !can_attach("children") {
        return;
    }
    let mut target = Target::start(&compiled("attached_family.c", &["-static"]), &[]);
    target.attach("8M");
    target.wait_until_out(30 << 20);
    std::io::Write::write_all(target.child.stdin.as_mut().unwrap(), b"x").unwrap();
    let mut line = String::new();
    target.output.read_line(&mut line).unwrap();
    let child: u64 = line.trim().parse().expect("the child's number");
    wait_for("the child's pages to leave", || {
        let status = told(terrace(&["status", "--json"]));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let all = status["attached"].as_array().unwrap();
        let its = all.iter().find(|process| process["pid"] == child)?;
        (its["out_bytes"].as_u64().unwrap() > 30 << 20).then_some(())
    });
    target.ends_well();
}

impl Target {
    /// Tells a test program to go on.
    fn tell(&mut self, word: &[u8]) {
        std::io::Write::write_all(self.child.stdin.as_mut().unwrap(), word).unwrap();
    }

    /// Waits for a line of its output.
    fn wait_for_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }
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

#[test]
fn run_attaches_where_no_library_can_come_in() {
    if !can_attach("terrace run") {
        return;
    }
    let report = tempfile::NamedTempFile::new().unwrap();
    let program = static_program();
    for inject in [&[][..], &["--inject"]] {
        let words = ["run", "--dram", "20M", "--report", report.path().to_str().unwrap()];
        let ending = ["--", program.to_str().unwrap(), "4", "idle"];
        let run = terrace(&[&words[..], inject, &ending].concat());
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!said.contains("--tiers"), "of what nobody gave: {said}");
        let output = told(run);
        assert!(output.contains(" wrong 0"), "{output}");
        let text = std::fs::read_to_string(report.path()).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&report["state"], &report["managed"]), (&"attached".into(), &true.into()));
        assert!(report["attached"]["evicted_pages"].as_u64().unwrap() > 5000, "{text}");
    }
}

#[test]
fn from_outside_the_kernels_swap_takes_pages() {
    if !can_attach("--outside") {
        return;
    }
    let target = Target::start(&static_program(), &["60", "idle"]);
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
    let sharer = Target { child, output };
    for (target, private) in [(&target, true), (&sharer, false)] {
        let pid = target.child.id();
        let pid = child_that_has(pid, "Threads:\t1").unwrap_or(pid).to_string();
        told(terrace(&["attach", "--outside", &pid, "--dram", "30M"]));
        wait_for("pages to leave", || {
            let figures = told(terrace(&["status", "--json"]));
            let figures: serde_json::Value = serde_json::from_str(&figures).unwrap();
            let all = figures["attached"].as_array().unwrap();
            let its = all.iter().find(|process| process["pid"].as_u64() == pid.parse().ok())?;
            let left = if private { &its["resident_bytes"] } else { &its["shared_bytes"] };
            (left.as_u64().unwrap() < 31 << 20).then_some(())
        });
        told(terrace(&["detach", &pid]));
    }
    for mut target in [target, sharer] {
        let input = target.child.stdin.as_mut().unwrap();
        std::io::Write::write_all(input, b"x\n").unwrap();
        if target.file("cmdline").starts_with("python3") {
            target.ends_well();
        }
    }
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
