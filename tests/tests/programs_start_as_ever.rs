//! What a program starts, and what starts it, find it as it would be alone. That goes for children
//! that a preload cannot come into, for service managers, and for senders of signals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use terrace_testkit::process;
use terrace_tests::{Finished, Program, Terrace, compiled, skip, terrace_command};

/// A C program of `programs/`, compiled with further options.
fn built(
    directory: &Path,
    compiler: &str,
    source: &str,
    name: &str,
    options: &[&str],
) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let program = directory.join(name);
    let output =
        Command::new(compiler).arg("-o").args([&program, &source]).args(options).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Programs that a preload cannot come into, and one that it can.
fn children(directory: &Path) -> Vec<PathBuf> {
    let told = |name, options: &[&str]| built(directory, "cc", "told.c", name, options);
    let mut all = vec![
        told("plain", &[]),
        told("asan", &["-fsanitize=address"]),
        told("asan-linked-in", &["-fsanitize=address", "-static-libasan"]),
        told("tsan", &["-fsanitize=thread"]),
        told("lsan", &["-fsanitize=leak"]),
        told("static", &["-static"]),
    ];
    if cfg!(target_arch = "x86_64") {
        let options = [
            "-m32",
            "-nostdlib",
            "-static",
            "-ffreestanding",
            "-fno-stack-protector",
            "-fno-pic",
            "-no-pie",
        ];
        all.push(built(directory, "cc", "told32.c", "bits32", &options));
    }
    match built(directory, "musl-gcc", "told.c", "musl", &[]) {
        None => {
            skip("a program linked to musl", "no musl-gcc; on Debian: apt-get install musl-tools")
        }
        musl => all.push(musl),
    }
    let mut all: Vec<PathBuf> = all.into_iter().flatten().collect();
    let script = directory.join("script");
    fs::write(&script, format!("#!{}\n", directory.join("asan").display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    all.push(script);
    all
}

/// What the program itself wrote to standard error.
fn own_stderr(finished: &Finished) -> &str {
    &finished.stderr[..finished.stderr.find("terrace: ").unwrap_or(finished.stderr.len())]
}

fn executing(directory: &Path, children: &[PathBuf]) -> Program {
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    Program::new(compiled("executes.c", &[])).args(children).env("PATH", path)
}

#[test]
fn children_that_a_preload_cannot_come_into() {
    let scratch = tempfile::tempdir().unwrap();
    let (plain, children) = children(scratch.path())
        .split_first()
        .map(|(plain, rest)| (plain.clone(), rest.to_vec()))
        .unwrap();
    let start = || executing(scratch.path(), &children);
    let alone = start().succeed();
    let expected = String::from_utf8_lossy(&alone.stdout).into_owned();
    assert!(
        expected.matches("one two preload=none\n").count() >= 18 * (children.len() - 1),
        "{}",
        alone.account("is not as expected")
    );
    for terrace in
        [Terrace::within("4G"), Terrace::stressed(), Terrace::within("4G").and("--no-children")]
    {
        let under = start().under(terrace).succeed();
        assert_eq!(
            (String::from_utf8_lossy(&under.stdout), own_stderr(&under)),
            (expected.as_str().into(), own_stderr(&alone))
        );
        let told: Vec<&str> =
            under.stderr.lines().filter(|line| line.starts_with("  out of reach: ")).collect();
        assert_eq!(told.len(), 1, "{}", under.stderr);
        let listed = under.report().at("/out_of_reach").as_array().unwrap();
        for (name, cause) in [
            ("asan", "AddressSanitizer"),
            ("tsan", "ThreadSanitizer"),
            ("static", "static"),
            ("script", "AddressSanitizer"),
        ] {
            let is = |entry: &&serde_json::Value| {
                entry["program"] == scratch.path().join(name).to_str().unwrap()
                    && entry["cause"] == cause
            };
            assert_eq!(listed.iter().filter(is).count(), 1, "{name}: {}", under.report());
        }
    }
    // Others have it as ever.
    let under = executing(scratch.path(), &[plain]).under(Terrace::within("4G")).succeed();
    let stdout = String::from_utf8_lossy(&under.stdout).into_owned();
    assert_eq!(
        (stdout.matches("libterrace.so\n").count(), stdout.matches("preload=none").count()),
        (18, 0),
        "{stdout}"
    );
    assert_eq!(under.report().at("/out_of_reach").as_array().map(Vec::len), Some(0));
}

#[test]
fn preloads_of_the_users_stay() {
    let scratch = tempfile::tempdir().unwrap();
    let child = built(scratch.path(), "cc", "told.c", "static", &["-static"]).unwrap();
    let theirs =
        built(scratch.path(), "cc", "another_preload.c", "theirs.so", &["-shared", "-fPIC"])
            .unwrap();
    let start =
        || executing(scratch.path(), std::slice::from_ref(&child)).env("LD_PRELOAD", &theirs);
    let alone = start().succeed();
    let under = start().under(Terrace::within("4G")).succeed();
    assert_eq!(String::from_utf8_lossy(&under.stdout), String::from_utf8_lossy(&alone.stdout));
    assert!(String::from_utf8_lossy(&under.stdout).contains("theirs.so"));
}

/// The program runs alone, under the usual allocator, and with its own allocator.
#[test]
fn a_library_is_bound_deeply() {
    let library = compiled("deep_binding_library.c", &["-shared", "-fPIC"]);
    for way in [None, Some("size"), Some("system")] {
        let program = Program::new(compiled("deep_binding.c", &[])).args([&library]);
        match way {
            None => program.succeed(),
            Some(way) => {
                program.under(Terrace::within("64M").and("--allocator").and(way)).succeed()
            }
        };
    }
}

#[test]
fn a_project_checks_itself_with_sanitizers() {
    let scratch = tempfile::tempdir().unwrap();
    children(scratch.path());
    let rules = "check: asan-test tsan-test\n\
                 asan-test:\n\t./asan; test $$? = 7\n\
                 tsan-test:\n\t@for test in ./tsan ./lsan ./static; do $$test a b; test $$? = 7 || exit 1; done\n\
                 \t! ./asan c\n";
    fs::write(scratch.path().join("Makefile"), rules).unwrap();
    let start = || {
        Program::new("make")
            .args(["-s", "-j2", "--output-sync", "check"])
            .current_dir(scratch.path())
    };
    let alone = start().succeed();
    let under = start().under(Terrace::within("4G")).succeed();
    let sorted = |finished: &Finished| {
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!((sorted(&under), own_stderr(&under)), (sorted(&alone), own_stderr(&alone)));
    assert!(under.stderr.contains("./asan (AddressSanitizer)"), "{}", under.stderr);
}

/// Browsers' sandboxes give up rights in a child that has their memory and no thread area.
#[test]
fn a_child_without_a_thread_area_gives_up_rights() {
    let start = || Program::new(compiled("other_thread_area.c", &[]));
    let alone = start().succeed();
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "status 0x2a00\nstatus 0x2a00\n");
    for terrace in
        [Terrace::within("4G"), Terrace::stressed(), Terrace::within("4G").and("--no-children")]
    {
        let under = start().under(terrace).succeed();
        assert_eq!(
            String::from_utf8_lossy(&under.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{}",
            under.account("differs")
        );
    }
}

/// Codecs take no memory of the program's allocator, whose lock is held while a child begins.
#[test]
fn a_program_with_its_own_allocator_forks() {
    with_its_own_allocator(&[]);
}

/// What starts when the program maps memory takes none from the program's allocator either. The
/// program may map memory while it holds that allocator's lock.
#[test]
fn a_program_maps_memory_for_its_own_allocator() {
    with_its_own_allocator(&["maps-locked"]);
}

fn with_its_own_allocator(words: &[&str]) {
    let program = compiled("forks_with_own_malloc.c", &["-fno-builtin", "-pthread"]);
    for terrace in [Terrace::within("64M"), Terrace::within("64M").and("--allocator").and("system")]
    {
        let under = Program::new(&program)
            .args(words)
            .time_limit(Duration::from_secs(60))
            .under(terrace)
            .succeed();
        assert_eq!(
            String::from_utf8_lossy(&under.stdout),
            "0 wrong, children found theirs\n",
            "{}",
            under.account("failed")
        );
        under.report().expect_moves(1_000, 1_000);
    }
}

/// `env`, shells and wrappers execute the program in their place: it is the one that the report is
/// about.
#[test]
fn the_program_is_what_was_executed_last() {
    let scratch = tempfile::tempdir().unwrap();
    let plain = built(scratch.path(), "cc", "told.c", "plain", &[]).unwrap();
    let asan = built(scratch.path(), "cc", "told.c", "asan", &["-fsanitize=address"]).unwrap();
    let named = |finished: &Finished, name: &str| {
        assert_eq!(finished.report().at("/program"), name, "{}", finished.report());
        assert!(finished.stderr.contains(&format!("terrace: {name}  ")), "{}", finished.stderr);
    };
    for wrapper in [vec!["env"], vec!["sh", "-c", "exec \"$@\"", "sh"], vec!["nice", "env"]] {
        let wrapped = |child: &Path| {
            Program::new(wrapper[0])
                .args(&wrapper[1..])
                .arg(child)
                .under(Terrace::within("4G"))
                .run()
        };
        named(&wrapped(&plain), "plain");
        let instrumented = wrapped(&asan);
        assert_eq!(instrumented.status.code(), Some(7), "{}", instrumented.account("failed"));
        named(&instrumented, "asan");
        assert_eq!(instrumented.report().at("/managed"), false);
        assert!(
            instrumented.report().at("/note").as_str().unwrap().contains("AddressSanitizer"),
            "{}",
            instrumented.report()
        );
    }
    named(
        &Program::new("sh")
            .args(["-c", &format!("{}; true", plain.display())])
            .under(Terrace::within("4G"))
            .run(),
        "sh",
    );
}

/// What a service manager says to the process that it starts, which `terrace run` is, is about the
/// program.
#[test]
fn a_service_manager_means_the_program() {
    const VARIABLES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
    let tell = VARIABLES
        .map(|name| {
            format!("test \"${name}\" = $$ && echo {name} names me || echo {name} is \"${name}\"")
        })
        .join("; ");
    let set = VARIABLES.map(|name| format!("{name}=$$")).join(" ");
    let start = |set: &str| {
        let launcher = ["sh".to_owned(), "-c".into(), format!("{set} exec \"$@\""), "sh".into()];
        Program::new("sh")
            .args(["-c", &tell])
            .launched_by(launcher)
            .under(Terrace::within("4G"))
            .succeed()
    };
    let stdout = |finished: Finished| String::from_utf8_lossy(&finished.stdout).into_owned();
    assert_eq!(stdout(start(&set)), VARIABLES.map(|name| format!("{name} names me\n")).concat());
    // Other processes are meant as ever.
    let others = VARIABLES.map(|name| format!("{name}=1")).join(" ");
    assert_eq!(stdout(start(&others)), VARIABLES.map(|name| format!("{name} is 1\n")).concat());
}

/// A service manager may name the listener by the number of its file in pidfs, too.
#[test]
fn a_listener_is_named_by_its_file() {
    let own = "import os\nnumber = lambda: str(os.fstat(os.pidfd_open(os.getpid())).st_ino)\n";
    let says = format!(
        "{own}print('named', os.environ['LISTEN_PIDFDID'] == number(), os.environ['LISTEN_PID'] == str(os.getpid()))"
    );
    let starts = format!(
        "{own}import sys\nos.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_PIDFDID=number())\nos.execvp(sys.argv[1], sys.argv[1:])"
    );
    let program =
        || Program::new("python3").args(["-c", &says]).launched_by(["python3", "-c", &starts]);
    assert_eq!(program().succeed().stdout, b"named True True\n");
    assert_eq!(program().under(Terrace::within("4G")).succeed().stdout, b"named True True\n");
}

/// A manager that listens to the main process alone hears the program, and no other process becomes
/// the main process.
#[test]
fn notifications_are_the_main_processs() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let says = "import os, socket\n\
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n\
                print(os.getpid(), os.getppid())";
    let heard = |set: &str| {
        let launcher = ["sh".to_owned(), "-c".into(), format!("{set} exec \"$@\""), "sh".into()];
        let program = Program::new("python3")
            .args(["-c", says])
            .env("NOTIFY_SOCKET", &path)
            .launched_by(launcher);
        let finished = program.under(Terrace::within("4G")).succeed();
        let mut messages = Vec::new();
        let mut message = [0; 100];
        while let Ok(len) = socket.recv(&mut message) {
            messages.push(String::from_utf8_lossy(&message[..len]).into_owned());
        }
        (messages, String::from_utf8_lossy(&finished.stdout).trim().to_owned())
    };
    let (messages, numbers) = heard("SYSTEMD_EXEC_PID=$$");
    let (program, terrace) = numbers.split_once(' ').unwrap();
    assert_eq!(
        messages,
        [format!("MAINPID={program}"), "READY=1".into(), format!("MAINPID={terrace}")]
    );
    // `terrace run` within a service is not what was started.
    assert_eq!(heard("SYSTEMD_EXEC_PID=1").0, ["READY=1"]);
    assert_eq!(heard("").0, ["READY=1"]);
}

fn send(to: i32, signal: i32) {
    assert!(process::signal(to, signal));
}

/// Each signal once, whether it is sent to `terrace run`, to the process group, or (as `timeout`
/// does) to both.
#[test]
fn signals_arrive_once() {
    let sent = [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGWINCH, "WINCH"),
        (libc::SIGTSTP, "TSTP"),
        (libc::SIGCONT, "CONT"),
        (libc::SIGRTMIN(), "RT0"),
    ];
    let count = |terrace: Option<Terrace>, to: fn(i32) -> i32| {
        let running = Program::new(compiled("counts_signals.c", &[])).under(terrace).start();
        let until = |what: &str, times: usize| {
            while running.stdout_so_far().lines().filter(|line| line.starts_with(what)).count()
                < times
            {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        until("ready", 1);
        // Once that was passed on, signals are.
        send(running.pid(), libc::SIGUSR2);
        until("USR2", 1);
        for round in 1..=3 {
            for (signal, name) in sent {
                send(to(running.pid()), signal);
                until(name, round);
            }
        }
        // The highest number is taken last.
        send(running.pid(), libc::SIGRTMAX());
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        String::from_utf8_lossy(&finished.stdout).lines().last().unwrap_or_default().to_owned()
    };
    let alone = count(None, |pid| -pid);
    assert_eq!(
        alone,
        "TERM=3 INT=3 HUP=3 QUIT=3 USR1=3 USR2=1 WINCH=3 CONT=3 TSTP=3 RT0=3 RT30=1 all"
    );
    assert_eq!(count(Some(Terrace::within("4G")), |pid| -pid), alone, "sent to the group");
    assert_eq!(count(Some(Terrace::within("4G")), |pid| pid), alone, "sent to terrace run");
}

/// What a program that has left the group would not get, it gets from `terrace run`.
#[test]
fn signals_arrive_outside_the_group() {
    let program =
        Program::new("setsid").args(["sleep", "100"]).launched_by(["timeout", "-s", "TERM", "1"]);
    let finished = program.under(Terrace::within("4G")).run();
    assert_eq!(
        finished.status.code(),
        Some(124),
        "{}",
        finished.account("was not ended by timeout")
    );
    assert!(finished.stderr.contains("killed by signal 15"), "{}", finished.stderr);
}

/// ^C, ^Z and `fg`.
#[test]
fn the_terminals_signals_arrive_once() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/terminal.py");
    let program = compiled("counts_signals.c", &[]);
    let said = |words: Vec<PathBuf>| {
        let finished = Program::new("python3").arg(&script).args(words).succeed();
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        let told = |line: &&str| {
            line.contains('=') || line.starts_with("stopped") || line.starts_with("ended")
        };
        text.lines()
            .filter(told)
            .filter(|line| !line.starts_with("  "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let job = |before: Vec<PathBuf>| {
        said(before.into_iter().chain([program.clone(), "stopped".into()]).collect())
    };
    let alone = job(vec![]);
    assert_eq!(alone, ["stopped", "INT=1 CONT=1 RT30=1 all", "ended 0"]);
    let terrace = vec![terrace_command(), "run".into(), "--dram".into(), "4G".into(), "--".into()];
    assert_eq!(job(terrace), alone);
}
