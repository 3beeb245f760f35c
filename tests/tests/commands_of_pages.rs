//! Commands of pages that are not run as they stand. What they work on is smaller here, or a test
//! asks the server that they start. Each command is taken from its page.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use terrace_testkit::process::is_root;
use terrace_tests::page::commands_run_by;
use terrace_tests::{Program, is_installed, missing, recorder_library, skip, terrace_command};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn repository(name: &str) -> PathBuf {
    Path::new(REPOSITORY).join(name)
}

/// A directory to work in, with the pages' program and their data.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        fs::copy(repository("tests/documents/app"), place.path("app")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// A command of a user's shell, with the build under test first on its path.
    fn shell(&self, command: &str) -> Program {
        let built = terrace_command();
        let path = std::env::var("PATH").unwrap_or_default();
        Program::new("bash")
            .args(["-euc", command])
            .env("PATH", format!("{}:{path}", built.parent().unwrap().display()))
            .current_dir(self.directory.path())
    }
}

/// The sweeps of the simulator in a small version: few accesses, units and objects.
#[test]
fn the_simulators_sweeps_run() {
    let place = Place::new();
    record(&place, "app.acc");
    for command in commands_run_by("the_simulators_sweeps_run") {
        let mut small =
            command.replace("keys=300K,lookups=6K,chain=1600", "keys=3K,lookups=6K,chain=16");
        small = small.replace("keys=300K ", "keys=3K,lookups=200K ");
        if !small.contains(" store:") {
            small += " --accesses 200K --units 512";
        }
        assert!(small != command, "{command} is not made smaller");
        let finished = place.shell(&small).succeed();
        if command.contains(" -o ") {
            // Two workloads, two machines, three sizes, five seeds; one of them is a recording.
            let lines = fs::read_to_string(place.path("runs.jsonl")).unwrap();
            assert!(lines.lines().count() >= 2 * 3 * (5 + 5 + 1), "{lines}");
        } else {
            assert!(!finished.stdout.is_empty(), "{}", finished.account("printed nothing"));
        }
    }
}

/// A program of two thousand objects, some of which are read often.
const RECORDED: &str = "\
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    enum { OBJECTS = 2000 };
    static long *objects[OBJECTS];
    long sum = 0;
    for (int at = 0; at < OBJECTS; at++)
        objects[at] = calloc(64, sizeof(long));
    for (int round = 0; round < 100; round++)
        for (int at = 0; at < OBJECTS; at += round % 10 ? 40 : 1)
            sum += ((volatile long *)objects[at])[round % 64]++;
    printf(\"%ld\\n\", sum);
    return 0;
}
";

/// Builds `RECORDED` as `app` in this place, and has it record into `file` as the page says.
fn record(place: &Place, file: &str) {
    fs::create_dir_all(place.path("target")).unwrap();
    symlink(repository("crates"), place.path("crates")).unwrap();
    symlink(recorder_library().parent().unwrap(), place.path("target/release")).unwrap();
    place.write("app.c", RECORDED);
    let commands = commands_run_by("a_program_is_recorded_as_the_page_says");
    let (build, commands): (Vec<String>, Vec<String>) =
        commands.into_iter().partition(|command| command.starts_with("cargo build"));
    // The library was built with all others.
    assert_eq!(build, ["cargo build --release -p terrace-recorder"]);
    let mut is_recorded = false;
    for command in commands.iter().filter(|command| !command.starts_with("terrace ")) {
        let given = command.replace("trace:app.trace", &format!("trace:{file}"));
        is_recorded |= given.contains(&format!("trace:{file}"));
        place.shell(&given).succeed();
    }
    assert!(is_recorded, "nothing is recorded by {commands:?}");
}

#[test]
fn a_program_is_recorded_as_the_page_says() {
    let place = Place::new();
    record(&place, "app.trace");
    assert!(fs::metadata(place.path("app.trace")).unwrap().len() > 1000);
    place.shell("TERRACE_RECORD=objects:app.objects ./app").succeed();
    for command in commands_run_by("a_program_is_recorded_as_the_page_says") {
        if command.starts_with("terrace ") {
            place.shell(&command).succeed();
        }
    }
    let plot = fs::read_to_string(place.path("utilisation.svg")).expect("a plot");
    assert!(plot.starts_with("<svg") || plot.starts_with("<?xml"), "{plot:.100}");
}

#[test]
fn the_papers_commands_run() {
    let place = Place::new();
    let mut commands = commands_run_by("the_papers_commands_run");
    commands.retain(|command| command.starts_with("terrace reproduce"));
    assert!(commands.len() > 3, "{commands:?}");
    for command in &mut commands {
        // For all of them it takes minutes otherwise.
        if !command.contains("--quick") {
            *command += " --quick";
        }
        command.push_str(" >/dev/null");
    }
    commands.sort();
    commands.dedup();
    for command in &commands {
        place.shell(command).succeed();
    }
    assert!(place.path("papers/index.html").exists());
}

/// What is installed under a root of its own goes again, whole.
#[test]
fn make_uninstall_leaves_nothing() {
    let commands = commands_run_by("make_uninstall_leaves_nothing");
    let with = |words: &'static str| commands.iter().filter(move |command| command.contains(words));
    let uninstall = with("make uninstall").next().expect("a page has it");
    let built = terrace_command();
    let prefixes = ["", " PREFIX=/usr", " PREFIX=/opt/terrace"];
    assert!(with("make install").count() >= prefixes.len(), "{commands:?}");
    for (install, prefix) in with("make install").zip(prefixes.into_iter().cycle()) {
        let place = Place::new();
        let root = place.path("root");
        let make = |command: &str| {
            // The page's command, but in this root, and of what is built.
            let command = format!(
                "sudo() {{ \"$@\"; }}
                make() {{ command make -s DESTDIR=\"$ROOT\" RELEASE=\"$BUILT\" \"$@\"; }}
                {}{prefix}",
                command.split(" PREFIX=").next().unwrap()
            );
            let program = place.shell(&command).current_dir(Path::new(REPOSITORY));
            program.env("ROOT", &root).env("BUILT", built.parent().unwrap()).succeed();
        };
        make(install);
        let installed = files(&root);
        for name in [
            "bin/terrace",
            "bin/terrace-kv",
            "lib/terrace/libterrace.so",
            "systemd/system/terrace@.service",
            "systemd/system/terrace-kv.service",
        ] {
            assert!(installed.iter().any(|file| file.ends_with(name)), "{name}: {installed:?}");
        }
        // A neighbour in the same places stays.
        let neighbour = installed[0].parent().unwrap().join("neighbour");
        fs::write(&neighbour, "").unwrap();
        make(uninstall);
        assert_eq!(files(&root), [neighbour]);
    }
}

/// All files below a directory, without the directories themselves.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("there is such a directory").flatten() {
        if entry.file_type().unwrap().is_dir() {
            files.extend(self::files(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    files
}

/// An application that each of its workers holds for itself.
const APPLICATION: &str = "\
import os
rows = [b'row %d, of which there are many ' % number * 20 for number in range(60_000)]
def app(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    number = int(environ['PATH_INFO'][1:])
    return [b'%d: ' % os.getpid() + rows[number]]
";

#[test]
fn gunicorn_serves_within_a_budget() {
    if let Some(reason) = missing(&["gunicorn"]) {
        return skip("gunicorn", &reason);
    }
    let place = Place::new();
    place.write("app.py", APPLICATION);
    let commands = commands_run_by("gunicorn_serves_within_a_budget");
    let [command] = &commands[..] else { panic!("{commands:?}") };
    let socket = place.path("app.sock");
    let mut running = place
        .shell(&format!("exec {command}"))
        .env("GUNICORN_CMD_ARGS", format!("--bind unix:{}", socket.display()))
        .start();
    let ask = |number: u32| -> Option<String> {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET /{number} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    };
    while ask(0).is_none() {
        assert!(running.is_running(), "{}", running.wait().account("does not serve"));
        std::thread::sleep(Duration::from_millis(100));
    }
    // Once it has grown no more, pages leave.
    std::thread::sleep(Duration::from_secs(4));
    for number in (0..60_000).step_by(500) {
        let body = ask(number).expect("an answer");
        let row = format!("row {number}, of which there are many ").repeat(20);
        assert!(body.ends_with(&row), "{number}: {body}");
    }
    running.terminate();
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let said = &finished.stderr;
    assert!(said.contains("terrace: ") && said.contains("budget"), "{}", finished.account("said"));
}

/// A program for the Java machine that holds some values for a while.
const HELD: &str = "\
import java.util.*;
public class App {
    public static void main(String[] words) throws Exception {
        List<byte[]> held = new ArrayList<>();
        for (int i = 0; i < 100_000; i++) held.add((\"a value \" + i).repeat(80).getBytes());
        Thread.sleep(2000);
        System.out.println(held.size() + \" values\");
    }
}
";

/// What asks memcached at its usual port, by the shell alone.
const ASK_MEMCACHED: &str = "\
ask() {
    exec 9<>/dev/tcp/127.0.0.1/11211
    printf 'set a 0 0 4\\r\\nkept\\r\\nget a\\r\\nquit\\r\\n' >&9
    grep kept <&9
}
";

/// The commands of the README under `Using it`, with what they name.
#[test]
fn the_readmes_commands_work() {
    const WHAT: &str = "the README's commands";
    if !is_root() || !Path::new("/dev/userfaultfd").exists() {
        return skip(WHAT, "only root can do all of it, where there is /dev/userfaultfd");
    }
    if let Some(reason) = missing(&["redis-server", "redis-cli", "busybox", "script", "unshare"]) {
        return skip(WHAT, &reason);
    }
    let place = Place::new();
    place.write("redis.conf", "port 0\nunixsocket r.sock\nsave \"\"\n");
    let commands = commands_run_by("the_readmes_commands_work");
    // Servers are asked, and ended; none of this machine's is met at the usual port.
    let server = |command: &str, client: &str| {
        format!(
            "busybox ip link set lo up; {command} & run=$!
            for try in $(seq 200); do {client} ping 2>/dev/null && break; sleep 0.1; done
            {client} shutdown nosave; wait $run"
        )
    };
    for command in &commands {
        let verb = command.split_whitespace().nth(1).unwrap_or_default();
        let script = match verb {
            // Others run them: they take minutes, install, or need systemd.
            "install" | "reproduce" | "enable" => continue,
            "doctor" => format!("{command} || true"),
            "top" => format!("(sleep 2; echo q) | script -qec '{command}' /dev/null"),
            "attach" => format!(
                "./app 12 & app=$!; sleep 3; {}; terrace status; terrace detach $app; wait $app",
                command.replace("1234", "$app")
            ),
            // Before a server comes by that would take it for its own.
            "characterize" => format!("seq 300000 >dump.rdb; {command}; rm dump.rdb"),
            "record" => format!("{command}; terrace report heatmap app.rec >heatmap"),
            _ if command.contains("redis.conf") => {
                server(command, "redis-cli -s r.sock") + "; test -s run.json"
            }
            _ if command.contains("redis-server") => server(command, "redis-cli"),
            _ if command.contains("memcached") => {
                if let Some(reason) = missing(&["memcached"]) {
                    skip("memcached of the README", &reason);
                    continue;
                }
                format!(
                    "busybox ip link set lo up; {ASK_MEMCACHED} {command} & run=$!
                    for try in $(seq 200); do (ask) 2>/dev/null && break; sleep 0.1; done
                    (ask); kill $run; wait $run"
                )
            }
            _ if command.contains("java ") => {
                if !is_installed("java") {
                    skip("a JVM of the README", "no java; scripts/setup.sh test installs it");
                    continue;
                }
                place.write("App.java", HELD);
                // An archive needs more than a JVM to be made; a JVM runs the program's text.
                let command = command.replace("-jar app.jar", "App.java");
                format!("{command} >said; grep '100000 values' said")
            }
            _ => command.clone(),
        };
        let network = ["unshare", "--net"];
        let finished = place.shell(&script).env("TERM", "xterm").launched_by(network).run();
        if verb == "record" && finished.stderr.contains("perf") && !finished.status.success() {
            // Said by the test of the pages' commands, too.
            skip("terrace record", finished.stderr.trim());
            continue;
        }
        assert!(finished.status.success(), "{command}: {}", finished.account("failed"));
    }
}

/// The demonstration, with fewer documents: it says itself whether outputs are the same.
#[test]
fn the_demonstration_runs() {
    let place = Place::new();
    let commands = commands_run_by("the_demonstration_runs");
    assert!(commands.iter().any(|command| command == "make demo"), "{commands:?}");
    let built = terrace_command();
    // What it would install is there, and built.
    let command = "make -s demo CARGO=true RELEASE=\"$BUILT\"";
    let finished = place
        .shell(command)
        .current_dir(Path::new(REPOSITORY))
        .env("BUILT", built.parent().unwrap())
        .env("TERRACE_DEMO_OPTIONS", "--documents=20000 --operations=40000")
        .env("TERRACE_DEMO_DIRECTORY", place.path("demo"))
        .succeed();
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert!(said.contains("identical in all three runs"), "{said}");
}
