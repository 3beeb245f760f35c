//! A service under a real systemd, in a guest (`scripts/guest.sh`). What the pages say of the unit,
//! the group and the device is done there, command by command. Redis runs under Terrace, answers,
//! stops with a report, and is started again after a crash.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use terrace_tests::page::{blocks_of, commands_run_by};
use terrace_tests::{Guest, Outcome, Steps, missing, package, skip, target_directory};

/// Steps in the guest, in this order. Words in capital letters are files that [`programs`] makes.
const STEPS: &[(&str, &str)] = &[
    ("systemd", "cat /proc/1/comm; uname -r"),
    // A tarball's files are found by systemd and udev, once the group is made.
    (
        "tarball",
        ". IN_SERVICE; systemctl start systemd-udevd; \
         make() { :; }; sudo() { \"$@\"; }; cd PACKAGES; . TARBALL_COMMANDS; terrace --version",
    ),
    (
        "group",
        ". IN_SERVICE; . GROUP_COMMANDS; soon is_the_groups; device; \
         systemctl cat terrace@redis.service",
    ),
    (
        "member",
        ". IN_SERVICE; useradd alice; . MEMBER_COMMANDS; id -nG alice; \
         cd /; runuser -u alice -- terrace doctor",
    ),
    (
        "uninstalled",
        ". IN_SERVICE; make -s -C REPOSITORY uninstall; cd /usr/local; \
         while read -r file; do [ ! -f \"$file\" ] || echo \"$file\"; done <TARBALL_FILES; \
         ! command -v terrace",
    ),
    // The rule and the commands of the page on privileges, from the beginning.
    (
        "rule",
        ". IN_SERVICE; groupdel terrace; chown root:root /dev/userfaultfd; \
         chmod 600 /dev/userfaultfd; cp RULE /etc/udev/rules.d/60-terrace.rules; \
         . RULE_COMMANDS; soon is_the_groups; device; id -nG alice",
    ),
    // The package makes the group, and has udev look at the device again.
    (
        "package",
        ". IN_SERVICE; groupdel terrace; rm /etc/udev/rules.d/60-terrace.rules; \
         chown root:root /dev/userfaultfd; chmod 600 /dev/userfaultfd; \
         rm -f /var/lib/man-db/auto-update; \
         dpkg --install DEBIAN_PACKAGE; soon is_the_groups; device",
    ),
    // How to run a service, as one page says it.
    (
        "how-to",
        ". IN_SERVICE; mkdir -p /etc/systemd/system/$unit.service.d; \
         cp HOW_TO_FILE /etc/terrace/redis.env; \
         cp HOW_TO_DROP_IN /etc/systemd/system/$unit.service.d/override.conf; \
         systemctl daemon-reload; . HOW_TO_COMMANDS; soon answers; \
         systemctl show --property ActiveState,User $unit; \
         systemctl disable --now $unit; soon has_no_process_left",
    ),
    // And as the other does. Type=notify: it is ready when the command returns.
    (
        "started",
        ". IN_SERVICE; cp INSTALL_FILE /etc/terrace/redis.env; \
         cp INSTALL_DROP_IN /etc/systemd/system/$unit.service.d/override.conf; \
         systemctl daemon-reload; . INSTALL_COMMANDS; redis-cli ping; \
         systemctl show --property ActiveState,SubState,Type,MainPID,User,NRestarts $unit; \
         echo \"comm=$(cat /proc/$(shown MainPID)/comm)\"; \
         echo \"library=$(grep -c libterrace.so /proc/$(shown MainPID)/maps)\"",
    ),
    ("status", "terrace status --json"),
    (
        "used",
        ". IN_SERVICE; redis-cli config set save ''; \
         redis-cli eval 'for i = 1, 90000 do redis.call(\"set\", i, \
         string.rep(\"value \", 160) .. i) end' 0; terrace set $(shown MainPID) --dram 60M; \
         soon is_smaller 80000; redis-cli get 7777; redis-cli get 40000",
    ),
    (
        "stopped",
        ". IN_SERVICE; systemctl stop $unit; systemctl show --property ActiveState,Result $unit; \
         soon has_no_process_left; stat -c 'owner=%U' /var/lib/terrace/redis/report.json; \
         cp /var/lib/terrace/redis/report.json report.json; journalctl --no-pager --unit $unit",
    ),
    (
        "crashed",
        ". IN_SERVICE; systemctl start $unit; main=$(shown MainPID); kill -KILL $main; \
         soon is_another $main; soon answers; \
         systemctl show --property ActiveState,NRestarts $unit; \
         pgrep -c redis-server; systemctl stop $unit; soon has_no_process_left",
    ),
    // Its socket starts it, and it answers the watchdog for longer than that waits.
    (
        "watched",
        ". IN_SERVICE; unit=terrace@watched; units=/etc/systemd/system; \
         wait=$((4 * SLOW)); mkdir $units/$unit.service.d; \
         cp WATCHED /etc/terrace/watched.py; \
         echo TERRACE_COMMAND=/usr/bin/python3 /etc/terrace/watched.py >/etc/terrace/watched.env; \
         printf '[Service]\\nUser=redis\\nType=notify\\nWatchdogSec=%s\\n' $wait \
             >$units/$unit.service.d/override.conf; \
         printf '[Socket]\\nListenStream=/run/watched.socket\\n' >$units/$unit.socket; \
         systemctl daemon-reload; systemctl start $unit.socket; shown ActiveState; \
         said_to hello; sleep $((2 * wait)); said_to hello; shown MainPID; \
         systemctl show --property ActiveState,NRestarts $unit",
    ),
    // Once it answers no more, it is ended and started again.
    (
        "silent",
        ". IN_SERVICE; unit=terrace@watched; main=$(said_to 'be silent'); \
         soon is_another $main; said_to hello; shown MainPID; \
         systemctl show --property ActiveState,NRestarts $unit; \
         journalctl --no-pager --unit $unit; systemctl stop $unit.socket $unit; \
         soon has_no_process_left",
    ),
    // The cache, as a user that systemd makes for it and that may use the device.
    (
        "cache",
        ". IN_SERVICE; unit=terrace-kv; \
         echo 'TERRACE_KV_OPTIONS=-l 127.0.0.1 -m 256 --dram 64M' >/etc/terrace/kv.env; \
         . CACHE_COMMANDS; soon python3 CACHE_CLIENT; systemctl reload $unit; python3 CACHE_CLIENT; \
         systemctl show --property ActiveState,NRestarts $unit; ps -o user= -C terrace-kv; \
         rm /etc/terrace/kv.env; systemctl disable --now $unit; soon has_no_process_left",
    ),
    // A package that goes takes the device back, and leaves nothing that it brought.
    (
        "purged",
        ". IN_SERVICE; dpkg --purge terrace; soon eval '[ \"$(device)\" = \"root root 600\" ]'; \
         device; ! getent group terrace; \
         ls -AlR /var/lib/terrace /usr/lib/terrace 2>&1 || true",
    ),
];

/// The machine has the kernel whose moves are the default.
const GUEST: Guest = Guest { kernel: "6.12", memory: "plain", init: "systemd" };

static STEPS_TAKEN: LazyLock<Steps> = LazyLock::new(|| Steps::new(GUEST, STEPS, programs));

const INSTALL: &str = "docs/install.md";
const HOW_TO: &str = "docs/how-to/systemd.md";
const PRIVILEGES: &str = "docs/privileges.md";

/// Asks the cache for what it was just given, and whether pages can leave DRAM.
const CACHE_CLIENT: &str = r#"
import socket
client = socket.create_connection(("127.0.0.1", 11211))
client.sendall(b"set a 0 0 4\r\nkept\r\nget a\r\nstats terrace\r\nquit\r\n")
print(b"".join(iter(lambda: client.recv(65536), b"")).decode())
"#;

/// The first block of a page that has a line with this beginning.
fn block(page: &str, line: &str) -> String {
    let blocks = blocks_of(page);
    let block = blocks.iter().find(|block| block.text.lines().any(|have| have.starts_with(line)));
    block.unwrap_or_else(|| panic!("no block of {page} has {line}")).text.clone()
}

/// The commands with `word` among those that a page says are run by this function.
fn commands(function: &str, word: &str) -> String {
    let mut commands = commands_run_by(function);
    commands.retain(|command| command.contains(word));
    assert!(!commands.is_empty(), "no page has {word} for {function}");
    commands.join("\n") + "\n"
}

fn programs() -> Vec<(&'static str, PathBuf)> {
    let directory = target_directory().join("services");
    let packages = directory.join("target/packages");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&packages).expect("the target directory can be written");
    let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    let mut all = vec![
        ("REPOSITORY", Path::new(env!("CARGO_MANIFEST_DIR")).join("..")),
        ("IN_SERVICE", source("in_service.sh")),
        ("WATCHED", source("watched.py")),
        ("DEBIAN_PACKAGE", package("deb", &packages)),
    ];
    let tarball = package("tarball", &packages);
    let listed = Command::new("tar").arg("tJf").arg(tarball).output().expect("tar can be run");
    // Below the directory that the tarball has them in.
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let files = listed.lines().filter_map(|name| Some(name.split_once('/')?.1));
    let mut write = |word: &'static str, text: String| {
        // No word that is replaced stands in a path.
        let path = directory.join(word.to_lowercase());
        fs::write(&path, text).expect("the target directory can be written");
        all.push((word, path));
    };
    write("TARBALL_FILES", files.map(|file| format!("{file}\n")).collect());
    write("TARBALL_COMMANDS", commands("the_device_is_the_groups", "tarball"));
    write("GROUP_COMMANDS", block(INSTALL, "groupadd"));
    write("MEMBER_COMMANDS", block(INSTALL, "usermod"));
    write("RULE_COMMANDS", block(PRIVILEGES, "groupadd"));
    write("RULE", block(PRIVILEGES, "KERNEL=="));
    write("HOW_TO_FILE", block(HOW_TO, "TERRACE_COMMAND="));
    write("HOW_TO_DROP_IN", block(HOW_TO, "User="));
    write("HOW_TO_COMMANDS", block(HOW_TO, "systemctl"));
    write("INSTALL_FILE", block(INSTALL, "TERRACE_COMMAND="));
    write("INSTALL_DROP_IN", block(INSTALL, "User="));
    write("INSTALL_COMMANDS", block(INSTALL, "systemctl disable"));
    write("CACHE_COMMANDS", block(INSTALL, "systemctl enable --now terrace-kv"));
    write("CACHE_CLIENT", CACHE_CLIENT.to_owned());
    all.push(("PACKAGES", directory));
    all
}

/// What a step came to, which must be success.
#[track_caller]
fn outcome(step: &str) -> Option<&'static Outcome> {
    let needs = ["make", "dpkg-shlibdeps", "redis-server", "python3", "udevadm", "pgrep"];
    if let Some(reason) = missing(&needs) {
        skip("services", &reason);
        return None;
    }
    let outcome = STEPS_TAKEN.outcome(step)?;
    assert_eq!(outcome.status, 0, "{step}: {}{}", outcome.stdout, outcome.stderr);
    Some(outcome)
}

/// The value of a property that a step showed.
fn value<'a>(outcome: &'a Outcome, name: &str) -> &'a str {
    let mut lines = outcome.stdout.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {}", outcome.stdout))
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn the_guest_has_a_real_systemd() {
    let Some(systemd) = outcome("systemd") else { return };
    assert!(systemd.stdout.starts_with("systemd\n6.12."), "{systemd:?}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn the_device_is_the_groups() {
    let Some(tarball) = outcome("tarball") else { return };
    assert!(tarball.stdout.starts_with("terrace "), "{tarball:?}");
    for step in ["group", "rule", "package"] {
        let Some(outcome) = outcome(step) else { return };
        assert!(outcome.stdout.contains("root terrace 660\n"), "{step}: {outcome:?}");
    }
    let Some(member) = outcome("member") else { return };
    assert!(member.stdout.starts_with("alice terrace\n"), "{member:?}");
    let Some(member) = outcome("rule") else { return };
    assert!(member.stdout.ends_with("alice terrace\n"), "{member:?}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn what_was_installed_is_removed() {
    let Some(uninstalled) = outcome("uninstalled") else { return };
    assert!(uninstalled.stdout.is_empty(), "{uninstalled:?}");
    let Some(purged) = outcome("purged") else { return };
    assert_eq!(purged.stdout.matches("No such file or directory").count(), 2, "{purged:?}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn a_service_runs_as_the_pages_say() {
    let Some(how_to) = outcome("how-to") else { return };
    assert_eq!((value(how_to, "ActiveState"), value(how_to, "User")), ("active", "redis"));
    let Some(started) = outcome("started") else { return };
    assert!(started.stdout.contains("PONG\n"), "{started:?}");
    for (name, expected) in [
        ("ActiveState", "active"),
        ("SubState", "running"),
        ("Type", "notify"),
        ("User", "redis"),
        ("NRestarts", "0"),
        ("comm", "redis-server"),
    ] {
        assert_eq!(value(started, name), expected, "{started:?}");
    }
    assert!(value(started, "library").parse::<u32>().unwrap() > 0, "{started:?}");
    let main: u64 = value(started, "MainPID").parse().unwrap();
    let Some(status) = outcome("status") else { return };
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    let runs = status["runs"].as_array().expect("runs");
    let mut processes = runs.iter().flat_map(|run| run["processes"].as_array()).flatten();
    assert!(processes.any(|process| process["pid"] == main), "{main}: {status:#}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn a_service_that_stops_leaves_its_report() {
    let Some(used) = outcome("used") else { return };
    assert!(used.stdout.contains("value 7777\n") && used.stdout.ends_with("value 40000\n"));
    let Some(stopped) = outcome("stopped") else { return };
    let states = (value(stopped, "ActiveState"), value(stopped, "Result"));
    assert_eq!(states, ("inactive", "success"), "{stopped:?}");
    assert_eq!(value(stopped, "owner"), "redis");
    let report = stopped.report();
    // The headline is not of that process where it took a second to start.
    let mut processes = report["processes"].as_array().into_iter().flatten();
    let is_moved = |process: &Value| process["moves"]["demoted_pages"].as_u64() > Some(500);
    assert!(processes.any(is_moved), "{report:#}");
    // The report's text, and nothing that Terrace complains of.
    assert!(stopped.stdout.contains("terrace: redis-server"), "{}", stopped.stdout);
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn a_service_that_crashed_is_started_again() {
    let Some(crashed) = outcome("crashed") else { return };
    assert_eq!(value(crashed, "ActiveState"), "active", "{crashed:?}");
    assert_eq!(value(crashed, "NRestarts"), "1", "{crashed:?}");
    // One of them, not two.
    assert!(crashed.stdout.ends_with("\n1\n"), "{crashed:?}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn a_watchdog_is_answered_by_the_program_itself() {
    let Some(watched) = outcome("watched") else { return };
    // Not before a client comes to the socket; and all the time the same process.
    let said: Vec<&str> = watched.stdout.lines().collect();
    let [before, first, second, main, ..] = said[..] else { panic!("{watched:?}") };
    assert_eq!((before, first, second), ("inactive", main, main), "{watched:?}");
    assert_eq!(value(watched, "ActiveState"), "active", "{watched:?}");
    assert_eq!(value(watched, "NRestarts"), "0", "{watched:?}");
    let Some(silent) = outcome("silent") else { return };
    let said: Vec<&str> = silent.stdout.lines().collect();
    assert!(said[0] == said[1] && said[0] != main, "{silent:?}");
    assert_eq!(value(silent, "NRestarts"), "1", "{silent:?}");
    assert!(silent.stdout.contains("Watchdog timeout"), "{silent:?}");
}

#[test]
#[ignore = "a guest with systemd takes minutes: make soak"]
fn the_cache_is_a_service() {
    let Some(cache) = outcome("cache") else { return };
    let kept = cache.stdout.matches("VALUE a 0 4\r\nkept\r\nEND").count();
    assert!(kept == 1 && cache.stdout.contains("STAT active 1\r\n"), "{cache:?}");
    assert_eq!((value(cache, "ActiveState"), value(cache, "NRestarts")), ("active", "0"));
    assert!(!cache.stdout.contains("\nroot\n"), "{cache:?}");
}
