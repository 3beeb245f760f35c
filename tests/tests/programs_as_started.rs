//! Real programs, started as their users start them: they answer right and end as they do alone.
//! What Terrace says of them is true, and no line of it comes twice.
//!
//! A row of [`ROWS`] is one program. [`PLACES`] are hard places, in which the smaller ones run
//! again. There a program is managed, or one true line says why not.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use terrace_testkit::child::Ended;
use terrace_testkit::group::MemoryGroup;
use terrace_testkit::port;
use terrace_testkit::process::{self, is_root, status_bytes};
use terrace_testkit::public::Public;
use terrace_testkit::random::Congruential;
use terrace_testkit::wait::Wait;
use terrace_tests::{
    Finished, Program, Report, Running, Terrace, is_installed, machine, skip, target_directory,
    terrace_command, terrace_library,
};

/// How long one program may take.
const TIME_LIMIT: Duration = Duration::from_secs(400);
/// How long a server has to begin, and its memory to settle.
const PATIENCE: Duration = Duration::from_secs(100);
const WAIT: Wait = Wait::within(PATIENCE);
const SETTLING: Duration = Duration::from_secs(12);
const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65534;

/// A program and how its user deals with it.
struct Row {
    name: &'static str,
    /// What must be on the PATH, with Debian's package.
    needs: &'static [(&'static str, &'static str)],
    /// The budget.
    dram: &'static str,
    /// The command, as its user would write it.
    command: fn(&Scene) -> Program,
    /// Gives it data, and checks every answer. A program that ends by itself is checked by what
    /// it prints, which must be the same as alone.
    use_it: fn(&Scene, &mut Running),
    /// How the program is asked to end.
    end: End,
    /// Part of the output that must be the same as alone, if the program ends by itself.
    answers: fn(&str) -> String,
    /// What the report must tell.
    report: fn(&Report),
    /// The least share by which its anonymous memory is smaller than alone, as the kernel says.
    falls_by: Option<f64>,
    /// The lines of Terrace before its report that are true here, by a part of each.
    may_say: &'static [&'static str],
    /// What is known to be wrong.
    known: Option<&'static str>,
}

enum End {
    ByItself,
    Signal(i32),
    /// The program has left a daemon, which is ended by its own client.
    Daemon(fn(&Scene)),
}

/// Where a program runs: its files, its port, and how much it is given.
struct Scene {
    home: TempDir,
    port: u16,
    /// Whether the program gets little data, as in hard places.
    small: bool,
}

impl Scene {
    fn new(small: bool) -> Scene {
        let home = tempfile::Builder::new()
            .prefix("terrace-as-started-")
            .tempdir()
            .expect("a temporary directory can be made");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777))
            .expect("its mode can be set");
        Scene { home, port: port::free().expect("a port is free"), small }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Connects to the server as soon as it listens.
    fn connect(&self, alive: &mut dyn FnMut() -> bool) -> TcpStream {
        let stream = WAIT.until_ok("a connection", || {
            let made = TcpStream::connect(self.address());
            assert!(made.is_ok() || alive(), "the server has ended: {made:?}");
            made
        });
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit can be set");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time limit can be set");
        stream
    }

    /// The body of a page that must be there.
    fn get(&self, path: &str) -> Vec<u8> {
        let mut stream = self.connect(&mut || true);
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers");
        let end =
            answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head has an end");
        let body = answer.split_off(end + 4);
        let head = String::from_utf8_lossy(&answer);
        assert!(head.lines().next().is_some_and(|line| line.contains(" 200")), "{path}: {head}");
        body
    }
}

/// What is stored under a key: text that compresses as documents do.
fn document(key: usize) -> Vec<u8> {
    let mut text = format!("{{\"id\":{key},\"name\":\"user-{key:08}\",\"body\":\"").into_bytes();
    let mut random = Congruential::with_increment(key as u64 * 2 + 1, 1_442_695_040_888_963_407);
    while text.len() < 900 {
        const WORDS: [&[u8]; 4] = [b"amber ", b"basalt ", b"cedar ", b"delta "];
        text.extend_from_slice(WORDS[(random.draw() >> 62) as usize]);
    }
    text.extend_from_slice(b"\"}");
    text
}

/// Waits until a server's memory has stopped falling, so that pages are out when it is asked again.
fn settle(scene: &Scene) {
    std::thread::sleep(if scene.small { SETTLING / 4 } else { SETTLING });
}

/// What the kernel says of a run's processes: the most memory that each has had.
#[derive(Default)]
struct Outside {
    peaks: BTreeMap<i32, Seen>,
    /// The anonymous memory in bytes, at the last look, of the process that has most.
    anonymous: u64,
}

struct Seen {
    peak: u64,
    since: Instant,
    last: Instant,
}

impl Outside {
    fn look(&mut self, processes: &[i32]) {
        let most = processes.iter().filter_map(|pid| status_bytes(*pid, "RssAnon")).max();
        self.anonymous = most.unwrap_or(self.anonymous);
        let now = Instant::now();
        for pid in processes {
            if let Some(peak) = status_bytes(*pid, "VmHWM") {
                let seen = self.peaks.entry(*pid).or_insert(Seen { peak, since: now, last: now });
                (seen.peak, seen.last) = (peak, now);
            }
        }
    }
}

/// Lines of Terrace's on standard error, without its report.
fn said(stderr: &str) -> Vec<&str> {
    let is_report = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(2);
        let time = words.next().is_some_and(|word| {
            word.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok())
        });
        time && line.contains("  ")
    };
    stderr.lines().filter(|line| line.starts_with("terrace: ") && !is_report(line)).collect()
}

/// Runs a row to its end.
fn run(row: &Row, scene: &Scene, program: Program) -> (Finished, Outside) {
    let mut outside = Outside::default();
    let mut running = program.current_dir(scene.home.path()).time_limit(TIME_LIMIT).start();
    match row.end {
        End::ByItself => {
            while running.is_running() {
                outside.look(&running.processes());
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        End::Signal(signal) => {
            (row.use_it)(scene, &mut running);
            let processes = running.processes();
            outside.look(&processes);
            process::signal(running.pid(), signal);
        }
        End::Daemon(end) => {
            while running.is_running() {
                std::thread::sleep(Duration::from_millis(10));
            }
            (row.use_it)(scene, &mut running);
            let daemon: i32 = fs::read_to_string(scene.path("pid"))
                .expect("a daemon writes its number")
                .trim()
                .parse()
                .expect("a number");
            outside.look(&[daemon]);
            end(scene);
            let goes_on = || {
                let report = running.report_so_far();
                report.is_some_and(|report| report.number("/going_on") > 0.0)
            };
            WAIT.until("the daemon ends, and is reported", || {
                !Path::new(&format!("/proc/{daemon}")).exists() && !goes_on()
            });
        }
    }
    (running.wait(), outside)
}

/// What holds for every program under Terrace, whether it is managed or not.
#[track_caller]
fn holds(row: &Row, alone: &Finished, under: &Finished, outside: &Outside, may_say: &[&str]) {
    assert_eq!(under.status, alone.status, "{}", under.account("ended otherwise than alone"));
    if matches!(row.end, End::ByItself) {
        let of = |finished: &Finished| (row.answers)(&String::from_utf8_lossy(&finished.stdout));
        let (found, right) = (of(under), of(alone));
        assert!(!right.is_empty(), "{}", alone.account("printed nothing"));
        assert!(found == right, "alone: {right}\n{}", under.account("printed something else"));
    }
    let lines = said(&under.stderr);
    for (number, line) in lines.iter().enumerate() {
        assert!(
            may_say.iter().any(|part| line.contains(part)),
            "{line:?} is not true here: {}",
            under.account("says it")
        );
        assert!(!lines[..number].contains(line), "{}", under.account("says a line twice"));
    }
    // The library does come into each of them, whatever it can do there.
    let never = "libterrace.so never came up";
    assert!(!under.stderr.contains(never), "{}", under.account("has an untrue report"));
    let report = under.report();
    assert_ne!(report.at("/state"), "frozen", "{}", under.account("froze"));
    let number = |path| report.at(path).as_f64();
    if let (Some(saved), Some(logical)) = (number("/saved_bytes"), number("/logical_bytes")) {
        assert!(
            saved <= logical && saved > -32.0 * MIB as f64,
            "saved {saved} of {logical} bytes: {}",
            under.account("has an untrue report")
        );
    }
    for process in report.at("/processes").as_array().into_iter().flatten() {
        let pid = process["pid"].as_i64().unwrap_or(0) as i32;
        let (Some(peak), Some(seen)) =
            (process["peak_physical_bytes"].as_u64(), outside.peaks.get(&pid))
        else {
            continue;
        };
        // A process that ends by itself may grow after the last look, and one that lives shortly
        // does. The kernel's counts are late by some pages for each CPU.
        let by_itself = matches!(row.end, End::ByItself);
        if by_itself && seen.last - seen.since < Duration::from_secs(2) {
            continue;
        }
        let late = if by_itself { seen.peak / 20 + 4 * MIB } else { 2 * MIB };
        assert!(
            peak <= seen.peak + late,
            "a peak of {peak}, where the kernel says {}, of {process:#}",
            seen.peak
        );
    }
}

/// One row where nothing is in its way.
fn as_started(name: &str) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of that name");
    let _machine = machine();
    if !are_there(row) {
        return;
    }
    // What is known to be wrong is run, and said, and its assertion stands.
    if let Some(known) = row.known {
        println!("known: {name}: {known}");
    }
    let scene = Scene::new(false);
    let (alone, outside_alone) = run(row, &scene, (row.command)(&scene));
    let scene = Scene::new(false);
    let public = Public::with(&[&terrace_command(), &terrace_library()]);
    let program = (row.command)(&scene)
        .env("TERRACE_LIBRARY", public.path().join("libterrace.so"))
        .under(Terrace::within(row.dram));
    let (under, outside) = run(row, &scene, program);
    println!("{}\n{}", outside_alone.anonymous / MIB, under.account("ended"));
    holds(row, &alone, &under, &outside, row.may_say);
    (row.report)(under.report());
    if let Some(share) = row.falls_by {
        let (now, before) = (outside.anonymous, outside_alone.anonymous);
        assert!(
            now as f64 <= before as f64 * (1.0 - share),
            "{now} bytes are resident, and {before} alone: {}",
            under.account("saved too little")
        );
    }
}

fn are_there(row: &Row) -> bool {
    if !is_root() {
        skip(row.name, "as another user it is started otherwise; run this as root");
        return false;
    }
    for (program, package) in row.needs {
        if !is_installed(program) && !Path::new(program).exists() {
            skip(row.name, &format!("{program} is not installed: apt-get install {package}"));
            return false;
        }
    }
    true
}

fn managed(report: &Report) {
    report.expect_managed();
}

fn moves(report: &Report) {
    report.expect_moves(1_000, 100);
}

/// Several processes, of which some were managed and none froze.
fn some_managed(report: &Report) {
    let processes = report.at("/processes").as_array().expect("it is a list");
    assert!(processes.iter().any(|process| process["state"] == "active"), "{report}");
    assert!(processes.iter().all(|process| process["state"] != "frozen"), "{report}");
}

/// What lies in shared memory is told.
fn tells_shared(report: &Report) {
    let shared = |at: &serde_json::Value| at["other_memory"]["shared_bytes"].as_u64().unwrap_or(0);
    let top = report.number("/other_memory/shared_bytes") as u64;
    let processes = report.at("/processes").as_array().expect("it is a list");
    let most = processes.iter().map(shared).max().unwrap_or(0).max(top);
    assert!(most > 16 * MIB, "{most} bytes of shared memory are told: {report}");
}

fn no_use(_: &Scene, _: &mut Running) {}

/// All programs.
const ROWS: &[Row] = &[
    Row {
        name: "memcached",
        dram: "32M",
        needs: &[("memcached", "memcached")],
        // The options of Debian's /etc/memcached.conf.
        command: |scene| {
            Program::new("memcached").args(["-m", "64", "-p", &scene.port.to_string()]).args([
                "-u",
                "memcache",
                "-l",
                "127.0.0.1",
            ])
        },
        use_it: use_memcached,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: moves,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "redis",
        dram: "32M",
        needs: &[("redis-server", "redis-server"), ("redis-cli", "redis-tools")],
        command: |scene| {
            Program::new("redis-server")
                .args(["--daemonize", "yes", "--bind", "127.0.0.1"])
                .args(["--port", &scene.port.to_string(), "--logfile", "log"])
                .arg("--dir")
                .arg(scene.home.path())
                .arg("--pidfile")
                .arg(scene.path("pid"))
        },
        use_it: use_redis,
        end: End::Daemon(|scene| {
            redis_cli(scene, &["shutdown", "nosave"], "");
        }),
        answers: str::to_owned,
        report: moves,
        falls_by: None,
        may_say: &["1 process goes on, managed as before"],
        known: None,
    },
    Row {
        name: "node",
        dram: "60%",
        needs: &[("node", "nodejs")],
        command: |scene| {
            let script = include_str!("../programs/map.js");
            let count = if scene.small { "60000" } else { "700000" };
            Program::new("node")
                .arg(scene.write("map.js", script))
                .args([count, &scene.port.to_string()])
        },
        use_it: |scene, running| {
            let _ = scene.connect(&mut || running.is_running());
            let count = if scene.small { 60_000 } else { 700_000 };
            settle(scene);
            check_map(scene, count, 97);
            settle(scene);
        },
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: managed,
        falls_by: Some(1.0 / 3.0),
        may_say: &[],
        known: None,
    },
    Row {
        name: "qemu",
        dram: "60%",
        needs: &[
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("busybox", "busybox-static"),
            ("cpio", "cpio"),
        ],
        command: |scene| {
            make_initrd(scene);
            Program::new("qemu-system-x86_64")
                .args(["-accel", "tcg", "-m", "512", "-nographic", "-no-reboot", "-nodefaults"])
                .args(["-serial", "stdio", "-initrd", "initrd", "-kernel"])
                .arg(target_directory().join("guest/6.1/vmlinuz"))
                .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
        },
        use_it: no_use,
        end: End::ByItself,
        answers: guests_sums,
        report: moves,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "go_cgo",
        dram: "60%",
        needs: &[("go", "golang-go"), ("gcc", "gcc")],
        command: |scene| {
            let program = scene.path("go_with_cgo");
            let built = Command::new("go")
                .env("GO111MODULE", "off")
                .args(["build", "-o"])
                .arg(&program)
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/go_with_cgo.go"))
                .output()
                .expect("go can be run");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Program::new(program)
        },
        use_it: no_use,
        end: End::ByItself,
        answers: str::to_owned,
        report: managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "java_g1",
        dram: "60%",
        needs: &[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")],
        command: |scene| java(scene, "-XX:+UseG1GC"),
        use_it: use_java,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "java_parallel",
        dram: "60%",
        needs: &[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")],
        command: |scene| java(scene, "-XX:+UseParallelGC"),
        use_it: use_java,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "java_zgc",
        dram: "60%",
        needs: &[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")],
        command: |scene| java(scene, "-XX:+UseZGC"),
        use_it: use_java,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: tells_shared,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "nginx",
        dram: "60%",
        needs: &[("nginx", "nginx-light")],
        command: |scene| {
            fs::create_dir_all(scene.path("html")).expect("a directory can be made");
            fs::set_permissions(scene.path("html"), fs::Permissions::from_mode(0o755))
                .expect("it is ours");
            for key in 0..200 {
                scene.write(&format!("html/{key}"), document(key).repeat(200));
            }
            let home = scene.home.path().display();
            let address = scene.address();
            let text = format!(
                "worker_processes auto; pid {home}/pid; error_log {home}/error.log; daemon off;
                events {{ worker_connections 60; }}
                http {{ access_log off; client_body_temp_path {home}/body;
                    proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
                    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
                    server {{ listen {address}; root {home}/html; gzip on; gzip_types *; }} }}"
            );
            Program::new("nginx")
                .arg("-e")
                .arg(scene.path("error.log"))
                .arg("-c")
                .arg(scene.write("nginx.conf", text))
        },
        use_it: |scene, running| {
            let _ = scene.connect(&mut || running.is_running());
            for _ in 0..2 {
                for key in 0..200 {
                    assert!(scene.get(&format!("/{key}")) == document(key).repeat(200), "{key}");
                }
            }
            assert!(running.processes().len() >= 2, "it has no workers");
        },
        end: End::Signal(libc::SIGQUIT),
        answers: str::to_owned,
        report: |_| {},
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "php_fpm",
        dram: "60%",
        needs: &[("php-fpm8.2", "php8.2-fpm"), ("nginx", "nginx-light")],
        command: |scene| {
            let home = scene.home.path().display();
            scene.write(
                "list.php",
                "<?php $sum = 0; $rows = [];
                for ($n = 0; $n < 100000; $n++) $rows[] = \"row $n of \" . $_GET['of'];
                foreach ($rows as $n => $row) $sum = ($sum * 31 + crc32($row) + $n) % 1000003;
                echo count($rows), ' ', $sum;",
            );
            let text = format!(
                "[global]\nerror_log = {home}/fpm.log\ndaemonize = no\n[www]\nuser = www-data\n\
                 group = www-data\nlisten = {home}/fpm\nlisten.mode = 0666\npm = static\n\
                 pm.max_children = 3\n"
            );
            Program::new("php-fpm8.2").arg("-y").arg(scene.write("fpm.conf", text))
        },
        use_it: use_php,
        end: End::Signal(libc::SIGQUIT),
        answers: str::to_owned,
        report: |_| {},
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "gunicorn",
        dram: "60%",
        needs: &[("gunicorn", "gunicorn")],
        command: |scene| {
            scene.write("served.py", include_str!("../programs/served.py"));
            Program::new("gunicorn")
                .args(["--workers", "3", "--preload", "--bind", &scene.address()])
                .args(["--chdir".as_ref(), scene.home.path().as_os_str()])
                .arg("served:application")
        },
        use_it: use_wsgi,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: some_managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "uwsgi",
        dram: "60%",
        needs: &[
            ("uwsgi", "uwsgi-core"),
            ("/usr/lib/uwsgi/plugins/python3_plugin.so", "uwsgi-plugin-python3"),
        ],
        command: |scene| {
            Program::new("uwsgi")
                .args(["--plugin", "python3", "--master", "--processes", "3", "--die-on-term"])
                .args(["--http-socket", &scene.address(), "--wsgi-file"])
                .arg(scene.write("served.py", include_str!("../programs/served.py")))
        },
        use_it: use_wsgi,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: some_managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "postgres",
        dram: "60%",
        needs: &[
            ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
            ("psql", "postgresql-15"),
        ],
        command: |scene| {
            make_cluster(scene);
            Program::new("setpriv")
                .args(["--reuid=postgres", "--regid=postgres", "--init-groups"])
                .args([POSTGRES, "-h", "127.0.0.1", "-p", &scene.port.to_string()])
                .args(["-k", "", "-D"])
                .arg(scene.path("data"))
        },
        use_it: use_postgres,
        end: End::Signal(libc::SIGTERM),
        answers: str::to_owned,
        report: tells_shared,
        falls_by: None,
        // The server's own user has no right to the device.
        may_say: &["no permission for userfaultfd"],
        known: None,
    },
    Row {
        name: "soffice",
        dram: "60%",
        needs: &[("soffice", "libreoffice-writer-nogui")],
        command: |scene| {
            let text: Vec<u8> =
                (0..400).flat_map(|key| [document(key), b"\n".into()].concat()).collect();
            scene.write("letter.txt", text);
            let script = "soffice --headless --convert-to odt letter.txt > said && \
                soffice --headless --convert-to txt:Text --outdir out letter.odt >> said && \
                cat out/letter.txt";
            Program::new("sh").args(["-c", script]).env("HOME", scene.home.path())
        },
        use_it: no_use,
        end: End::ByItself,
        answers: str::to_owned,
        report: some_managed,
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "chromium",
        dram: "60%",
        needs: &[("chromium", "chromium")],
        command: |scene| {
            let page = scene.write(
                "page.html",
                "<body><ul id=l></ul><script>let sum = 0;
                for (let n = 0; n < 20000; n++) { const item = document.createElement('li');
                item.textContent = 'item ' + n * 7919; l.append(item); }
                for (const item of l.children) for (const c of item.textContent)
                    sum = (sum * 31 + c.charCodeAt(0)) % 1000003;
                document.title = l.children.length + ' ' + sum;</script>",
            );
            Program::new("chromium")
                // As root it asks for the first of these.
                .args(["--no-sandbox", "--headless", "--dump-dom", "--user-data-dir=profile"])
                .arg(format!("file://{}", page.display()))
                .env("HOME", scene.home.path())
        },
        use_it: no_use,
        end: End::ByItself,
        answers: str::to_owned,
        report: |_| {},
        falls_by: None,
        may_say: &[],
        known: None,
    },
    Row {
        name: "make_sanitized",
        dram: "60%",
        needs: &[("make", "make"), ("gcc", "gcc"), ("musl-gcc", "musl-tools")],
        command: |scene| {
            make_project(scene);
            Program::new("make").args(["-s", "-j", "check"])
        },
        use_it: no_use,
        end: End::ByItself,
        answers: str::to_owned,
        report: |report| {
            let told = report.at("/out_of_reach").to_string();
            for kind in ["AddressSanitizer", "ThreadSanitizer"] {
                assert!(told.contains(kind), "{kind} is not told of: {report}");
            }
        },
        falls_by: None,
        may_say: &[],
        known: None,
    },
];

const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";

/// One test for each row.
macro_rules! rows {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "installs large packages; make programs"]
            fn $name() {
                as_started(stringify!($name));
            }
        )*

        #[test]
        fn each_row_is_tested() {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

rows! {
    memcached redis node qemu go_cgo java_g1 java_parallel java_zgc nginx php_fpm gunicorn uwsgi
    postgres soffice chromium make_sanitized
}

fn use_memcached(scene: &Scene, running: &mut Running) {
    let keys = if scene.small { 8_000 } else { 40_000 };
    let stream = scene.connect(&mut || running.is_running());
    let mut client = BufReader::new(stream);
    let mut line = String::new();
    for first in (0..keys).step_by(100) {
        let mut bytes = Vec::new();
        for key in first..first + 100 {
            let text = document(key);
            write!(bytes, "set {key} 0 0 {}\r\n", text.len()).expect("memory can be written");
            bytes.extend_from_slice(&text);
            bytes.extend_from_slice(b"\r\n");
        }
        client.get_mut().write_all(&bytes).expect("the server reads");
        for key in first..first + 100 {
            line.clear();
            client.read_line(&mut line).expect("the server answers");
            assert_eq!(line, "STORED\r\n", "{key}");
        }
    }
    settle(scene);
    for key in 0..keys {
        let request = format!("get {key}\r\n");
        client.get_mut().write_all(request.as_bytes()).expect("the server reads");
        let text = document(key);
        let expected =
            [format!("VALUE {key} 0 {}\r\n", text.len()).as_bytes(), &text, b"\r\nEND\r\n"]
                .concat();
        let mut found = vec![0; expected.len()];
        client.read_exact(&mut found).expect("the server answers");
        assert!(found == expected, "{key}: {}", String::from_utf8_lossy(&found));
    }
}

/// What Redis's own client prints.
fn redis_cli(scene: &Scene, words: &[&str], input: impl AsRef<[u8]>) -> Vec<u8> {
    let file = scene.write("commands", input);
    let port = scene.port.to_string();
    let output = Command::new("redis-cli")
        .args(["-p", &port])
        .args(words)
        .stdin(fs::File::open(file).expect("it was written"))
        .output()
        .expect("redis-cli can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn use_redis(scene: &Scene, running: &mut Running) {
    let keys = if scene.small { 8_000 } else { 50_000 };
    let _ = scene.connect(&mut || true);
    let mut sets = Vec::new();
    for key in 0..keys {
        let text = document(key);
        write!(sets, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n", key.to_string().len())
            .expect("memory can be written");
        write!(sets, "${}\r\n", text.len()).expect("memory can be written");
        sets.extend_from_slice(&text);
        sets.extend_from_slice(b"\r\n");
    }
    let said = redis_cli(scene, &["--pipe"], sets);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(&format!("errors: 0, replies: {keys}")), "{said}");
    settle(scene);
    let gets: String = (0..keys).map(|key| format!("GET {key}\n")).collect();
    let found = redis_cli(scene, &[], gets);
    let mut lines = found.split(|byte| *byte == b'\n');
    for key in 0..keys {
        let line = lines.next().expect("an answer to each");
        assert!(line == document(key), "{key}: {}", String::from_utf8_lossy(line));
    }
    assert!(!running.is_running());
}

/// Checks the size of the map that the server in `map.js` holds, and every `step`th of its `count`
/// keys.
fn check_map(scene: &Scene, count: usize, step: usize) {
    assert_eq!(scene.get("/size"), count.to_string().as_bytes());
    for key in (0..count).step_by(step) {
        let found = scene.get(&format!("/{key}"));
        let expected = format!(
            "{{\"id\":{key},\"text\":\"object {}\",\"list\":[{key},{}]}}",
            key * 7919,
            key + 1
        );
        assert!(found == expected.as_bytes(), "{key}: {}", String::from_utf8_lossy(&found));
    }
}

fn java(scene: &Scene, collector: &str) -> Program {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/Served.java");
    let compiled =
        Command::new("javac").arg("-d").arg(scene.home.path()).arg(source).output().expect("javac");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let count = if scene.small { "40000" } else { "400000" };
    Program::new("java").args([collector, "-cp"]).arg(scene.home.path()).args([
        "Served",
        count,
        &scene.port.to_string(),
    ])
}

fn use_java(scene: &Scene, running: &mut Running) {
    let _ = scene.connect(&mut || running.is_running());
    settle(scene);
    check_map(scene, if scene.small { 40_000 } else { 400_000 }, 61);
}

fn use_php(scene: &Scene, running: &mut Running) {
    let home = scene.home.path().display();
    let address = scene.address();
    let text = format!(
        "worker_processes 1; pid {home}/nginx.pid; error_log {home}/error.log; daemon off;
        master_process off; events {{ }}
        http {{ access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
            fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi;
            scgi_temp_path {home}/scgi;
            server {{ listen {address}; location / {{ include /etc/nginx/fastcgi_params;
                fastcgi_param SCRIPT_FILENAME {home}/list.php;
                fastcgi_pass unix:{home}/fpm; }} }} }}"
    );
    WAIT.until("it listens", || {
        let listens = scene.path("fpm").exists();
        assert!(listens || running.is_running(), "it has ended");
        listens
    });
    let configuration = scene.write("nginx.conf", text);
    let nginx = Command::new("nginx")
        .arg("-e")
        .arg(scene.path("error.log"))
        .arg("-c")
        .arg(configuration)
        .stderr(Stdio::null())
        .spawn();
    let _nginx = Ended::by_request(nginx.expect("nginx can be started"), PATIENCE);
    for of in 0..24 {
        let mut sum = 0_u64;
        for n in 0..100_000_u64 {
            sum = (sum * 31 + u64::from(crc32(format!("row {n} of {of}").as_bytes())) + n)
                % 1_000_003;
        }
        let found = scene.get(&format!("/?of={of}"));
        assert_eq!(String::from_utf8_lossy(&found), format!("100000 {sum}"));
    }
}

/// PHP's `crc32`.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state: u32, _| {
            (state >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(state & 1))
        })
    })
}

fn use_wsgi(scene: &Scene, running: &mut Running) {
    let _ = scene.connect(&mut || running.is_running());
    let mut workers: HashMap<String, usize> = HashMap::new();
    for round in 0..2 {
        if round == 1 {
            settle(scene);
        }
        for first in (0..60_000).step_by(2_000) {
            let found = String::from_utf8(scene.get(&format!("/{first}"))).expect("it is text");
            let mut lines = found.lines();
            *workers.entry(lines.next().expect("a worker's number").to_owned()).or_default() += 1;
            for key in first..first + 2_000 {
                assert_eq!(lines.next(), Some(&*format!("row {key} {}", key * 7919)), "{key}");
            }
        }
    }
    println!("answers by worker: {workers:?}");
}

fn make_cluster(scene: &Scene) {
    let made = Command::new("setpriv")
        .args(["--reuid=postgres", "--regid=postgres", "--init-groups"])
        .args(["/usr/lib/postgresql/15/bin/initdb", "--auth=trust", "--locale=C", "-D"])
        .arg(scene.path("data"))
        .output()
        .expect("initdb can be run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn use_postgres(scene: &Scene, running: &mut Running) {
    let _ = scene.connect(&mut || running.is_running());
    let psql = |text: &str| {
        let asked = Command::new("psql")
            .args(["-h", "127.0.0.1", "-p", &scene.port.to_string(), "-U", "postgres"])
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", text])
            .output()
            .expect("psql can be run");
        let told = String::from_utf8_lossy(&asked.stderr);
        (
            asked.status.success(),
            String::from_utf8_lossy(&asked.stdout).into_owned(),
            told.into_owned(),
        )
    };
    WAIT.until_ok("an answer", || {
        let (answered, _, told) = psql("select 1");
        assert!(answered || running.is_running(), "it has ended: {told}");
        if answered { Ok(()) } else { Err(told) }
    });
    let (made, _, told) = psql(
        "create table orders as select n, 'order ' || n * 79 as text, n % 97 as customer \
         from generate_series(1, 600000) as n; create index on orders (n); analyze orders",
    );
    assert!(made, "{told}");
    for customer in 0..8 {
        let of_customer = (1..=600_000_u64).filter(|n| n % 97 == customer);
        let (count, sum) = of_customer.fold((0, 0), |(count, sum), n| (count + 1, sum + n));
        let (_, found, told) = psql(&format!(
            "set work_mem = '64MB'; select count(*), sum(n) from orders where customer = {customer}"
        ));
        assert_eq!(found.trim(), format!("{count}|{sum}"), "{told}");
    }
    let (_, found, told) = psql(
        "set work_mem = '256MB'; select count(*) from (select text, n from orders order by text) s \
         where text = 'order ' || n * 79",
    );
    assert_eq!(found.trim(), "600000", "{told}");
}

/// The first files of a guest that fills half of its memory and reads it again.
fn make_initrd(scene: &Scene) {
    let script = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t tmpfs -o size=400m none /data
n=0
while [ $n -lt 8 ]; do
    echo $n > /data/$n
    for copy in 1 2 3 4 5 6 7 8 9 10; do /bin/busybox cat /bin/busybox >> /data/$n; done
    n=$((n+1))
done
/bin/busybox sleep 8
for n in 0 1 2 3 4 5 6 7; do /bin/busybox sha256sum /data/$n; done
echo done
/bin/busybox poweroff -f
";
    let root = scene.path("root");
    for directory in ["bin", "proc", "data", "dev"] {
        fs::create_dir_all(root.join(directory)).expect("a directory can be made");
    }
    let busybox = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join("busybox"))
        .find(|path| path.is_file())
        .expect("it is installed");
    fs::copy(busybox, root.join("bin/busybox")).expect("it can be copied");
    scene.write("root/init", script);
    let made = Command::new("sh")
        .args(["-c", "cd root && find . | cpio -o -H newc 2>/dev/null > ../initrd"])
        .current_dir(scene.home.path())
        .status()
        .expect("sh can be run");
    assert!(made.success(), "the guest's first files cannot be packed");
}

/// The sums that the guest printed, which must be those of what it wrote.
fn guests_sums(printed: &str) -> String {
    let script = "for n in 0 1 2 3 4 5 6 7; do (echo $n; for copy in 1 2 3 4 5 6 7 8 9 10; do
        cat \"$(command -v busybox)\"; done) | sha256sum; done";
    let right = Command::new("sh").args(["-c", script]).output().expect("sh can be run").stdout;
    let right = String::from_utf8(right).expect("it is text").replace("  -", "");
    let sums = printed.lines().filter_map(|line| line.split_once("  /data/"));
    // The machine's own screen output may stand before the first on its line.
    let found: String =
        sums.map(|(sum, _)| format!("{}\n", &sum[sum.len().saturating_sub(64)..])).collect();
    assert_eq!(found, right, "{printed}");
    found
}

/// A project whose tests are built with sanitizers, and for another C library.
fn make_project(scene: &Scene) {
    let parts = 8;
    for part in 0..parts {
        let text = format!(
            "#include <stdlib.h>\n#include <string.h>\nlong part_{part}(long n) {{\n\
             long *all = malloc(n * sizeof *all), sum = 0;\n\
             for (long i = 0; i < n; i++) all[i] = i * {part} + 7;\n\
             for (long i = 0; i < n; i++) sum = (sum * 31 + all[i]) % 1000003;\n\
             free(all);\n    return sum;\n}}\n"
        );
        scene.write(&format!("part_{part}.c"), text);
    }
    let declared: String = (0..parts).map(|part| format!("long part_{part}(long);\n")).collect();
    let summed: Vec<String> = (0..parts).map(|part| format!("part_{part}(3000000)")).collect();
    let main = format!(
        "#include <stdio.h>\n{declared}int main(void) {{ printf(\"%ld\\n\", {}); return 0; }}\n",
        summed.join(" + ")
    );
    scene.write("main.c", main);
    let mut rules = String::from("PARTS = main");
    for part in 0..parts {
        rules += &format!(" part_{part}");
    }
    // Results are printed in order, whatever is done first.
    rules += "\ncheck: plain.txt address.txt thread.txt undefined.txt musl.txt\n\tcat $^\n\
        %.txt: %\n\t./$< > $@\n";
    for (name, compiler) in [
        ("plain", "gcc -O2"),
        ("address", "gcc -O1 -g -fsanitize=address"),
        ("thread", "gcc -O1 -g -fsanitize=thread"),
        ("undefined", "gcc -O1 -g -fsanitize=undefined"),
        ("musl", "musl-gcc -O2"),
    ] {
        rules += &format!(
            "{name}: $(PARTS:%={name}_%.o)\n\t{compiler} -o $@ $^\n\
             {name}_%.o: %.c\n\t{compiler} -c -o $@ $<\n"
        );
    }
    scene.write("Makefile", rules);
}

/// What is in a program's way.
struct Place {
    name: &'static str,
    /// A shell's commands, with the command to run in `"$@"` and a group of its own in `$GROUP`.
    script: &'static str,
    /// Id of the user that runs the program, if it is another one.
    user: Option<u32>,
    dram: &'static str,
    /// Lines that are true here, by a part of each.
    may_say: &'static [&'static str],
    /// The most memory that all may have, where it is limited.
    limit: Option<u64>,
    /// Programs that do not run here without Terrace either.
    alone_not: &'static [&'static str],
}

/// A device that every user may read, in the place of the machine's own.
macro_rules! with_device {
    ($then:literal) => {
        concat!(
            "mount -t tmpfs none /mnt && cp -a /dev/userfaultfd /mnt/u && chmod 666 /mnt/u && ",
            "mount --bind /mnt/u /dev/userfaultfd && exec ",
            $then
        )
    };
}

const PLACES: &[Place] = &[
    Place {
        name: "plain_user",
        script: "exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \"$@\"",
        user: Some(NOBODY),
        dram: "32M",
        may_say: &["userfaultfd"],
        limit: None,
        alone_not: &[],
    },
    Place {
        name: "plain_user_with_the_device",
        script: with_device!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \"$@\""
        ),
        user: Some(NOBODY),
        dram: "32M",
        may_say: &[],
        limit: None,
        alone_not: &[],
    },
    Place {
        name: "sixteen_tasks",
        script: with_device!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
             prlimit --nproc=16 unshare --user --map-current-user \"$@\""
        ),
        user: Some(NOBODY),
        dram: "32M",
        may_say: &[
            "the limit on tasks (pids.max, ulimit -u) is 16, which leaves the program too few",
        ],
        limit: None,
        alone_not: &["java_g1"],
    },
    Place {
        name: "little_shared_memory",
        script: "mount -t tmpfs -o size=1m none /dev/shm && unset XDG_RUNTIME_DIR && exec \"$@\"",
        user: None,
        dram: "32M",
        may_say: &["no place in /dev/shm/"],
        limit: None,
        alone_not: &[],
    },
    Place {
        name: "few_open_files",
        script: "exec prlimit --nofile=64 \"$@\"",
        user: None,
        dram: "32M",
        may_say: &["open files"],
        limit: None,
        alone_not: &["memcached"],
    },
    Place {
        name: "limit_below_the_budget",
        script: "echo $$ > \"$GROUP/cgroup.procs\" && exec \"$@\"",
        user: None,
        dram: "4G",
        may_say: &["is more than this memory group may have"],
        limit: Some(400 * MIB),
        alone_not: &[],
    },
];

/// One row in a hard place.
fn in_a_hard_place(place: &str, name: &str) {
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of that name");
    let place = PLACES.iter().find(|known| known.name == place).expect("a place of that name");
    let _machine = machine();
    if !are_there(row) {
        return;
    }
    if place.alone_not.contains(&name) {
        return println!("{name} does not run in {} without Terrace either", place.name);
    }
    let group = match place
        .limit
        .map(|limit| MemoryGroup::limited("terrace-as-started", limit))
        .transpose()
    {
        Ok(group) => group,
        Err(e) => return skip(name, &format!("there is no memory control group to be had: {e:#}")),
    };
    let public = Public::with(&[&terrace_command(), &terrace_library()]);
    let started = |scene: &Scene, terrace: Option<Terrace>| {
        let mut program = (row.command)(scene).under(terrace).launched_by([
            "unshare",
            "--mount",
            "sh",
            "-c",
            place.script,
            "sh",
        ]);
        if let Some(group) = &group {
            program = program.env("GROUP", group.path());
        }
        if let Some(user) = place.user {
            program = program.for_user(user, public.path());
        }
        run(row, scene, program)
    };
    let (alone, _) = started(&Scene::new(true), None);
    let (under, outside) = started(&Scene::new(true), Some(Terrace::within(place.dram)));
    println!("{}\n{}", under.account("ended"), under.report().at("/state"));
    let may_say = [row.may_say, place.may_say].concat();
    holds(row, &alone, &under, &outside, &may_say);
    let of_the_place = said(&under.stderr)
        .into_iter()
        .filter(|line| !row.may_say.iter().any(|part| line.contains(part)));
    assert!(of_the_place.count() <= 1, "{}", under.account("says more than one line"));
    if let Some(limit) = place.limit {
        let peak = under.report().number("/peak_physical_bytes");
        assert!(peak <= limit as f64, "{peak} is above the limit: {}", under.account("lies"));
    }
}

/// One test for each small row in each place.
macro_rules! places {
    ($($place:ident: $($name:ident)*;)*) => {$(
        mod $place {
            $(
                #[test]
                #[ignore = "installs large packages; make programs"]
                fn $name() {
                    super::in_a_hard_place(stringify!($place), stringify!($name));
                }
            )*
        }
    )*};
}

places! {
    plain_user: memcached redis node java_g1 nginx gunicorn;
    plain_user_with_the_device: memcached redis node java_g1 nginx gunicorn;
    sixteen_tasks: memcached redis node java_g1 nginx gunicorn;
    little_shared_memory: memcached redis node java_g1 nginx gunicorn;
    few_open_files: memcached redis node java_g1 nginx gunicorn;
    limit_below_the_budget: memcached redis node java_g1 nginx gunicorn;
}
