//! The package: once it is installed, its command works, and its unit runs a service as another
//! user. Once it is purged, nothing of it is left.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use terrace_testkit::process::is_root;
use terrace_tests::page::{Block, blocks_of, commands_run_by};
use terrace_tests::{Finished, Program, missing, package, skip, target_directory, terrace_command};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// A configuration of the service that starts Redis as its package's own unit does, except for
/// where and what it saves.
const REDIS: &str = "\
# A comment, as systemd allows it.
TERRACE_COMMAND=/usr/bin/redis-server --supervised systemd --daemonize no --save '' --dir /tmp
TERRACE_OPTIONS=--dram 32M
";
/// A configuration of the service that runs a script, which answers on a socket opened for it.
const SOCKET: &str = "TERRACE_COMMAND=/bin/sh /etc/terrace/socket.sh\n";
const SOCKET_SCRIPT: &str = "[ $LISTEN_PID = $$ ] && [ $LISTEN_FDS = 1 ] && echo came >&3\n";

/// The standard output of a command that succeeds.
fn said_by(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} cannot be started: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What programs that install packages keep of themselves, and where the test puts packages.
const OF_OTHERS: [&str; 8] = [
    "var/log/",
    "var/cache/apt/",
    "var/lib/apt/",
    "var/lib/dpkg/status-old",
    "root/.rpmdb",
    "etc/group-",
    "etc/gshadow-",
    "target",
];

/// A root of Debian, below a directory that is removed when dropped.
struct Root {
    _directory: TempDir,
    root: PathBuf,
}

impl Root {
    /// Makes the smallest root that has redis, memcached and rpm; the error says why there is none.
    fn new() -> Result<Root, String> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let of = |name: &str| {
            release
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|value| value.trim_matches('"'))
        };
        let (Some("debian"), Some(codename)) = (of("ID="), of("VERSION_CODENAME=")) else {
            return Err("this is no Debian".into());
        };
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let made = Program::new("mmdebstrap")
            .args(["--mode=root", "--variant=minbase"])
            .args(["--include=redis-server,memcached,rpm", codename])
            .arg(directory.path())
            .run();
        if made.status.success() {
            Ok(Root { root: directory.path().to_owned(), _directory: directory })
        } else {
            Err(made.account("made no root; is there a network?"))
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs a script in the root, which must succeed. Its mounts and processes end with it.
    #[track_caller]
    fn run(&self, script: &str) -> Finished {
        let finished = Program::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--", "sh"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/in_root.sh"))
            .arg(&self.root)
            .arg(script)
            .time_limit(Duration::from_secs(60))
            .run();
        assert!(finished.status.success(), "{script}: {}", finished.account("failed"));
        finished
    }

    /// All files of the root, except those that packages of Debian leave behind: logs and copies.
    fn files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        let mut waiting = vec![self.root.clone()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(&directory).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    waiting.push(entry.path());
                }
                let name = entry.path().strip_prefix(&self.root).unwrap().to_owned();
                files.insert(name.to_str().expect("a name in UTF-8").to_owned());
            }
        }
        files.retain(|name| !OF_OTHERS.iter().any(|of_others| name.starts_with(of_others)));
        files
    }
}

/// The values of a key in a unit.
fn values<'a>(unit: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='))
}

/// The command line of the installed unit for an instance. It is made of the unit's variables as a
/// service manager does, as far as the unit needs it. Words are the shell's.
fn command_line(root: &Root, instance: &str) -> String {
    let unit = fs::read_to_string(root.path("usr/lib/systemd/system/terrace@.service")).unwrap();
    let file = values(&unit, "EnvironmentFile").next().unwrap().replace("%i", instance);
    let file = fs::read_to_string(root.path(file.trim_start_matches('/'))).unwrap();
    let variables = values(&unit, "Environment").chain(file.lines());
    let mut line = values(&unit, "ExecStart").next().unwrap().to_owned();
    line = line.replace("%S", "/var/lib").replace("%i", instance);
    // The last one counts.
    for (name, value) in
        variables.filter_map(|line| line.split_once('=')).collect::<Vec<_>>().iter().rev()
    {
        line = line.replace(&format!("${name}"), value);
    }
    line
}

/// What a service manager does before it starts an instance as a user, and how it starts it.
fn start(root: &Root, instance: &str, user: &str) -> String {
    let unit = fs::read_to_string(root.path("usr/lib/systemd/system/terrace@.service")).unwrap();
    let state = values(&unit, "StateDirectory").next().unwrap().replace("%i", instance);
    let groups = values(&unit, "SupplementaryGroups").next().unwrap();
    format!(
        "mkdir -p /var/lib/{state}; chown {user} /var/lib/{state}
        as_service() {{
            exec sh -c 'export LISTEN_PID=$$ LISTEN_FDS=1 SYSTEMD_EXEC_PID=$$ NOTIFY_SOCKET=/tmp/notify; exec \"$@\"' manager \
                setpriv --reuid {user} --regid {user} --groups {user},{groups} {}
        }}
        exec 3>/tmp/socket; as_service & main=$!
        ",
        command_line(root, instance)
    )
}

fn report(root: &Root, instance: &str) -> Value {
    let path = root.path(&format!("var/lib/terrace/{instance}/report.json"));
    serde_json::from_slice(&fs::read(path).expect("a report")).expect("a report in JSON")
}

/// A client of memcached that sets some 150 MB, waits until pages have left, and reads all of it.
const CLIENT: &str = "\
use IO::Socket::UNIX;
for (1 .. 300) {
    last if $server = IO::Socket::UNIX->new('/tmp/memcached.sock');
    select undef, undef, undef, 0.1;
}
$server or die 'memcached does not answer';
my $text = join '', map { \"value $_ of many, \" } 1 .. 6000;
for my $key (1 .. 1200) {
    my $value = \"$key $text\";
    printf $server \"set %d 0 0 %d\\r\\n%s\\r\\n\", $key, length $value, $value;
    <$server> eq \"STORED\\r\\n\" or die \"$key is not stored\";
}
sleep 8;
for my $key (1 .. 1200) {
    print $server \"get $key\\r\\n\";
    <$server>;
    <$server> eq \"$key $text\\r\\n\" or die \"$key is another\";
    <$server>;
}
";

/// What README.md and the guide to memcached have a reader do first, where nothing else was done:
/// a program is observed, and runs as in a container; memcached becomes another user; redis becomes
/// a daemon. Leaves nothing in the root.
fn first_commands_of_a_reader(root: &Root) {
    let mut commands = commands_run_by("the_readmes_commands_work");
    commands.extend(blocks_of("docs/how-to/memcached.md").iter().flat_map(Block::commands));
    let of_page = |words: &str| {
        let command = commands.iter().find(|command| command.contains(words));
        command.unwrap_or_else(|| panic!("no page has a command with {words}")).clone()
    };
    root.write("tmp/program.pl", IN_IMAGE);
    root.write("tmp/client.pl", CLIENT);
    let observe = of_page("--observe").replace("./app", "perl program.pl");
    root.run(&format!("cd /tmp; {observe} 2>said; cat said; grep -q 'observed only' said"));

    let contained = "unshare --fork --pid --mount-proc terrace run --dram 64M";
    root.run(&format!(
        "cd /tmp; {contained} --report contained.json -- perl program.pl >said
        grep -qx 113888896 said"
    ));

    let memcached = of_page("memcached -u nobody");
    let mut words: Vec<&str> = memcached.trim_end_matches(" &").split(' ').collect();
    match words.iter().position(|word| *word == "--report") {
        Some(at) => words[at + 1] = "memcached.json",
        None => drop(words.splice(2..2, ["--report", "memcached.json"])),
    }
    root.run(&format!(
        "cd /tmp; {} -m 1024 -s /tmp/memcached.sock -a 0777 & run=$!
        perl client.pl
        kill $run
        wait $run",
        words.join(" ")
    ));

    root.run(&format!(
        "cd /tmp; {} --port 0 --unixsocket /tmp/r.sock --save '' --dir /tmp & run=$!
        for try in $(seq 300); do [ \"$(redis-cli -s r.sock ping 2>&1)\" != PONG ] || break; sleep 0.1; done
        redis-cli -s r.sock set a kept
        [ \"$(redis-cli -s r.sock get a)\" = kept ]
        redis-cli -s r.sock shutdown nosave
        wait $run",
        of_page("--daemonize")
    ));

    for name in ["contained", "memcached"] {
        let report = fs::read(root.path(&format!("tmp/{name}.json"))).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("a report in JSON");
        assert_eq!(report["managed"], true, "{name}: {report:#}");
        assert!(report["moves"]["demoted_pages"].as_u64() > Some(1000), "{name}: {report:#}");
    }
    for entry in fs::read_dir(root.path("tmp")).unwrap().flatten() {
        fs::remove_file(entry.path()).expect("only files were made there");
    }
}

#[test]
fn a_package_runs_a_service_and_leaves_without_a_trace() {
    const WHAT: &str = "a package in a clean root";
    if !is_root() {
        return skip(WHAT, "only root can make one");
    }
    if let Some(reason) = missing(&["mmdebstrap", "dpkg-shlibdeps", "unshare"]) {
        return skip(WHAT, &reason);
    }
    if !Path::new("/dev/userfaultfd").exists() {
        return skip(WHAT, "no /dev/userfaultfd (Linux 6.1)");
    }
    let root = match Root::new() {
        Ok(root) => root,
        Err(reason) => return skip(WHAT, &reason),
    };
    root.write("etc/apt/apt.conf.d/90test", "APT::Get::Assume-Yes \"true\";\n");
    let before = root.files();
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path("target/packages")).unwrap();
    for kind in ["deb", "rpm"] {
        let package = package(kind, scratch.path());
        let name = package.file_name().expect("a package has a name");
        fs::copy(&package, root.path("target/packages").join(name)).unwrap();
    }
    let of_page = |word: &str| {
        let commands = commands_run_by("a_package_runs_a_service_and_leaves_without_a_trace");
        commands.into_iter().find(|command| command.contains(word)).expect("it is on a page")
    };
    let install = of_page("apt install");
    root.run(&format!(
        "make() {{ :; }}; sudo() {{ \"$@\"; }}; {install}
        dpkg --verify terrace; terrace --version; terrace doctor || true"
    ));
    first_commands_of_a_reader(&root);

    root.write("etc/terrace/redis.env", REDIS);
    let notified = UnixDatagram::bind(root.path("tmp/notify")).unwrap();
    fs::set_permissions(root.path("tmp/notify"), fs::Permissions::from_mode(0o666)).unwrap();
    notified.set_nonblocking(true).unwrap();
    let finished = root.run(&format!(
        "{}
        for try in $(seq 300); do [ \"$(redis-cli ping 2>&1)\" != PONG ] || break; sleep 0.1; done
        redis-cli eval 'for i = 1, 300000 do redis.call(\"set\", i, string.rep(\"value \", 30) .. i) end' 0
        sleep 4
        redis-cli get 77777
        kill $main
        wait $main",
        start(&root, "redis", "redis")
    ));
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert!(stdout.contains("value 77777\n"), "{}", finished.account("lost a value"));
    let mut messages = String::new();
    let mut buffer = [0; 4096];
    loop {
        match notified.recv(&mut buffer) {
            Ok(bytes) => messages += &(String::from_utf8_lossy(&buffer[..bytes]) + "\n"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("the manager's socket: {error}"),
        }
    }
    for expected in ["MAINPID=", "READY=1"] {
        assert!(messages.contains(expected), "no {expected} in {messages:?}");
    }
    let report = report(&root, "redis");
    assert_eq!(report["managed"], true, "{report:#}");
    assert!(report["moves"]["demoted_pages"].as_u64() > Some(1000), "{report:#}");

    root.write("etc/terrace/socket.env", SOCKET);
    root.write("etc/terrace/socket.sh", SOCKET_SCRIPT);
    root.run(&format!("{} wait $main; grep came /tmp/socket", start(&root, "socket", "redis")));

    let unit = fs::read_to_string(root.path("usr/lib/systemd/system/terrace-kv.service")).unwrap();
    let options = values(&unit, "Environment").next().unwrap().trim_matches('"');
    let line = values(&unit, "ExecStart").next().unwrap();
    let (name, options) = options.split_once('=').unwrap();
    root.run(&format!(
        "setpriv --reuid redis --regid redis --groups redis,terrace {} & main=$!
        perl -MIO::Socket::INET -e '
            for (1 .. 300) {{ last if $s = IO::Socket::INET->new(\"127.0.0.1:11211\"); select undef, undef, undef, 0.1 }}
            print $s \"set a 0 0 4\\r\\nkept\\r\\nget a\\r\\n\"; print scalar <$s> for 1 .. 3' | grep kept
        kill $main; wait $main",
        line.replace(&format!("${name}"), options)
    ));

    // What the administrator and this test wrote is theirs to remove.
    for name in [
        "etc/terrace/redis.env",
        "etc/terrace/socket.env",
        "etc/terrace/socket.sh",
        "tmp/notify",
        "tmp/socket",
    ] {
        fs::remove_file(root.path(name)).unwrap();
    }
    let as_before = |what: &str, with_directories: bool| {
        let mut after = root.files();
        after.retain(|name| with_directories || before.contains(name) || !root.path(name).is_dir());
        let left: Vec<_> = after.difference(&before).collect();
        let gone: Vec<_> = before.difference(&after).collect();
        assert!(left.is_empty() && gone.is_empty(), "{what} left: {left:?}; gone: {gone:?}");
    };
    root.run(&format!("{}; ! getent group terrace", of_page("apt purge")));
    as_before("apt", true);
    // This root has no RPM packages that ours could depend on.
    let install = "rpm --install --nodeps --force-debian target/packages/terrace-*.rpm";
    root.run(&format!("{install}; terrace --version; getent group terrace; {}", of_page("rpm -e")));
    // Nor one that has the directories in which ours has files beside others'.
    as_before("rpm", false);
}

/// A program of the image's own that touches 110 MB, waits, and reads them again.
const IN_IMAGE: &str = "\
$text .= \"line $_ of a text\\n\" for 1 .. 5_000_000;
sleep 3;
print length($text), \"\\n\";
";

#[test]
fn an_image_runs_a_program() {
    const WHAT: &str = "an OCI image";
    if !is_root() {
        return skip(WHAT, "only root can make one");
    }
    if let Some(reason) = missing(&["mmdebstrap", "dpkg-shlibdeps", "umoci", "unshare"]) {
        return skip(WHAT, &reason);
    }
    if !Path::new("/dev/userfaultfd").exists() {
        return skip(WHAT, "no /dev/userfaultfd (Linux 6.1)");
    }
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    assert!(commands_run_by("an_image_runs_a_program").contains(&"sudo make oci".to_owned()));
    let archive = package("oci", scratch.path());
    fs::create_dir(at("layout")).unwrap();
    said_by(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(at("layout")));
    let image = format!("{}:latest", at("layout").display());
    said_by(Command::new("umoci").args(["unpack", "--image", &image]).arg(at("bundle")));
    let config = fs::read(at("bundle/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let words: Vec<&str> =
        config["process"]["args"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    assert_eq!(words, ["/usr/bin/terrace", "--help"]);
    let root = Root { root: at("bundle/rootfs"), _directory: scratch };
    root.write("program.pl", IN_IMAGE);
    let finished = root.run(
        "terrace --help >/dev/null; test -s /usr/lib/terrace/libterrace.so
        terrace run --dram 64M --report /report.json -- perl /program.pl",
    );
    let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert!(stdout.ends_with("113888896\n"), "{}", finished.account("lost something"));
    let report: Value =
        serde_json::from_slice(&fs::read(root.path("report.json")).unwrap()).unwrap();
    assert!(report["moves"]["demoted_pages"].as_u64() > Some(1000), "{report:#}");
}

#[test]
fn the_pods_manifest_is_one_that_kubernetes_takes() {
    // Where the set-up puts it.
    let target = target_directory().join("kubernetes-validate");
    let checker = Command::new(Path::new(REPOSITORY).join("scripts/kubernetes.sh"))
        .arg(target)
        .output()
        .unwrap();
    if !checker.status.success() {
        return skip("the pod's manifest", String::from_utf8_lossy(&checker.stderr).trim());
    }
    let checker = String::from_utf8_lossy(&checker.stdout).trim().to_owned();
    let manifest = Path::new(REPOSITORY).join("packaging/pod.yaml");
    said_by(Command::new(&checker).arg("--strict").arg(&manifest));
    let text = fs::read_to_string(manifest).unwrap();
    // An image that was brought to the node is found there.
    assert_eq!(
        text.matches(" image: ").count(),
        text.matches(" imagePullPolicy: IfNotPresent").count()
    );
    // And it is no other: a field that Kubernetes has not is refused.
    let wrong = text.replace("runAsUser:", "runAsUsers:");
    let scratch = tempfile::tempdir().unwrap();
    let wrong_file = scratch.path().join("pod.yaml");
    fs::write(&wrong_file, wrong).unwrap();
    assert!(!Command::new(&checker).arg("--strict").arg(wrong_file).status().unwrap().success());
}

#[test]
fn units_are_such_that_systemd_takes_them() {
    if let Some(reason) = missing(&["systemd-analyze"]) {
        return skip("the unit", &reason);
    }
    let scratch = tempfile::tempdir().unwrap();
    for name in ["terrace@.service", "terrace-kv.service"] {
        let template = Path::new(REPOSITORY).join(format!("packaging/{name}.in"));
        let unit = fs::read_to_string(template).unwrap();
        // It looks whether the command is there.
        let built = terrace_command();
        let unit = unit.replace("@PREFIX@/bin", built.parent().unwrap().to_str().unwrap());
        let instance = scratch.path().join(name.replace('@', "@redis"));
        fs::write(&instance, unit).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(instance)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
    }
}

#[test]
fn all_packages_have_the_same_files() {
    if let Some(reason) = missing(&["dpkg-shlibdeps", "rpmbuild", "rpm"]) {
        return skip("packages of all kinds", &reason);
    }
    let scratch = tempfile::tempdir().unwrap();
    // Names below the package's own prefix.
    let below = |listed: &str, prefix: &str| -> BTreeSet<String> {
        let names = listed.lines().filter_map(|line| line.strip_prefix(prefix));
        names.filter(|name| !name.is_empty() && !name.ends_with('/')).map(str::to_owned).collect()
    };
    let deb = package("deb", scratch.path());
    let deb =
        said_by(Command::new("sh").args(["-c", "dpkg-deb --fsys-tarfile \"$0\" | tar t"]).arg(deb));
    let deb = below(&deb, "./usr/");
    let rpm = package("rpm", scratch.path());
    let rpm = said_by(Command::new("rpm").args(["--query", "--package", "--list"]).arg(rpm));
    let mut rpm = below(&rpm, "/usr/");
    // Directories have no mark there.
    rpm.retain(|name| !["lib/terrace", "share/doc/terrace"].contains(&name.as_str()));
    let tarball = package("tarball", scratch.path());
    let top = tarball.file_name().unwrap().to_str().unwrap().replace(".tar.xz", "/");
    let tarball = below(&said_by(Command::new("tar").arg("tf").arg(tarball)), &top);
    assert!(deb.contains("bin/terrace") && deb.contains("share/doc/terrace/copyright"), "{deb:?}");
    assert_eq!(deb, rpm);
    assert_eq!(deb, tarball);
}
