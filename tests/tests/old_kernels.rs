//! Where the kernel lacks what Terrace needs, programs run as without it, and a line says what is
//! missing. A guest (`scripts/guest.sh`) runs Debian 12's own kernel, Linux 6.1.

use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use terrace_tests::page::commands_run_by;
use terrace_tests::{
    Guest, Outcome, Program, Steps, compiled, skip, target_directory, terrace_command,
};

const STEPS: &[(&str, &str)] = &[
    ("kernel", "uname -r"),
    ("doctor", "TERRACE doctor --json"),
    ("by default", "TERRACE run --dram 64M --report report.json -- SKEWED 80 1"),
    ("write-protected", "TERRACE run --evict wp --dram 64M --report report.json -- SKEWED 80 1"),
    ("strict", "TERRACE run --dram 64M --strict -- SKEWED 80 1"),
    ("attach", "sleep 60 & TERRACE attach $! --dram 1G; status=$?; kill $!; exit $status"),
    // Settings of a whole machine, so not tried out on the host.
    (
        "strict overcommit",
        "echo 2 >/proc/sys/vm/overcommit_memory; TERRACE run --evict wp --dram 64M --report report.json -- SKEWED 80 1; \
         status=$?; echo 0 >/proc/sys/vm/overcommit_memory; exit $status",
    ),
    (
        "huge pages",
        "echo always >/sys/kernel/mm/transparent_hugepage/enabled; \
         TERRACE run --evict wp --dram 64M --report report.json -- SKEWED 80 1",
    ),
];

static GUEST: LazyLock<Steps> = LazyLock::new(|| {
    Steps::new(Guest { kernel: "6.1", memory: "plain", init: "shell" }, STEPS, || {
        vec![("SKEWED", compiled("skewed.c", &[]))]
    })
});

fn outcome(step: &str) -> Option<&'static Outcome> {
    GUEST.outcome(step)
}

#[test]
fn the_guest_has_an_older_kernel() {
    let Some(kernel) = outcome("kernel") else { return };
    assert!(kernel.stdout.starts_with("6.1."), "{kernel:?}");
}

#[test]
fn a_program_runs_unmanaged_and_one_line_says_why() {
    let Some(run) = outcome("by default") else { return };
    assert_eq!(run.status, 0, "{run:?}");
    // It checks its memory, and says at the end how often.
    assert!(run.stdout.trim_end().ends_with(" reads"), "{run:?}");
    let report = run.report();
    assert_eq!(
        (&report["managed"], &report["state"]),
        (&Value::from(false), &Value::from("unmanaged")),
        "{report:#}"
    );
    let note = report["note"].as_str().unwrap_or_default();
    assert!(
        note.starts_with("this kernel has no ")
            && note.contains("needs Linux 6.8")
            && note.contains("stays in DRAM"),
        "{report:#}"
    );
    // That line from the library, once, and then the report.
    let said: Vec<&str> = run.stderr.lines().collect();
    assert!(
        said.len() == 2 && said[0] == format!("terrace: {note}") && said[1].contains("not managed"),
        "{run:?}"
    );
}

#[test]
fn write_protected_pages_leave_and_come_back() {
    leave_and_come_back("write-protected");
}

/// `vm.overcommit_memory=2`: address space that was promised counts as memory.
#[test]
fn pages_leave_and_come_back_under_strict_overcommit() {
    leave_and_come_back("strict overcommit");
}

/// The kernel gives a huge page wherever there is room for one.
#[test]
fn pages_leave_and_come_back_where_huge_pages_are_always_given() {
    leave_and_come_back("huge pages");
}

fn leave_and_come_back(step: &str) {
    let Some(run) = outcome(step) else { return };
    assert!(run.status == 0 && run.stdout.trim_end().ends_with(" reads"), "{run:?}");
    let report = run.report();
    assert_eq!(
        (&report["managed"], &report["state"]),
        (&Value::from(true), &Value::from("active")),
        "{report:#}"
    );
    let faults = report["tiers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tier| tier["faults"].as_u64())
        .sum::<u64>();
    assert!(report["moves"]["demoted_pages"].as_u64() >= Some(1000) && faults >= 1, "{report:#}");
}

#[test]
fn strict_refuses() {
    let Some(run) = outcome("strict") else { return };
    assert_eq!(run.status, 125, "{run:?}");
    assert!(run.stdout.is_empty() && run.stderr.contains("needs Linux 6.8"), "{run:?}");
}

#[test]
fn attaching_is_refused() {
    let Some(attach) = outcome("attach") else { return };
    assert!(attach.status == 125 && attach.stderr.contains("Linux 6.8 or newer"), "{attach:?}");
    assert_eq!(attach.stderr.lines().count(), 1, "{attach:?}");
}

#[test]
fn the_doctor_names_what_the_kernel_lacks() {
    let Some(doctor) = outcome("doctor") else { return };
    let answer: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    assert_eq!((doctor.status, &answer["can_evict"]), (1, &Value::from(false)), "{answer:#}");
    let row = |name: &str| {
        answer["rows"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["name"] == name)
            .unwrap_or(&Value::Null)
            .clone()
    };
    let (kernel, consequence) = (row("kernel"), row("kernel")["consequence"].to_string());
    assert!(
        consequence.contains("no PAGEMAP_SCAN") && consequence.contains("no UFFDIO_MOVE (6.8)"),
        "{kernel}"
    );
    assert!(
        !consequence.contains("/dev/userfaultfd") && kernel["fix"] == "boot Linux 6.10 or later",
        "{kernel}"
    );
    for (name, status) in
        [("userfaultfd", "ok"), ("page moves", "missing"), ("PAGEMAP_SCAN", "warn")]
    {
        assert_eq!(row(name)["status"], status, "{answer:#}");
    }
}

/// The command that the page names for trying something by hand.
#[test]
fn a_command_is_tried_by_hand() {
    let place = tempfile::tempdir().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    symlink(scripts, place.path().join("scripts")).unwrap();
    std::fs::create_dir(place.path().join("target")).unwrap();
    let built = terrace_command();
    symlink(built.parent().unwrap(), place.path().join("target/release")).unwrap();
    for command in commands_run_by("a_command_is_tried_by_hand") {
        let finished = Program::new("sh")
            .args(["-euc", &command])
            .env("TERRACE_GUEST_DIR", target_directory().join("guest").as_os_str())
            .current_dir(place.path())
            .time_limit(Duration::from_secs(600))
            .run();
        if finished.status.code() == Some(125) {
            return skip("a guest", finished.stderr.trim());
        }
        let said = String::from_utf8_lossy(&finished.stdout).into_owned();
        // The doctor's verdict, which is not a good one there.
        assert_eq!(finished.status.code(), Some(1), "{}", finished.account("another verdict"));
        assert!(said.contains("6.1."), "{}", finished.account("of another kernel"));
    }
}
