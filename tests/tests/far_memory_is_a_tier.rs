//! Memory of a node without a CPU as a tier (`--tiers dram,node:1`): what is cold goes there and
//! what is hot comes back. A guest has such a node (`scripts/guest.sh`), as a plain node and as a
//! CXL device. Only function is tested: the guest knows nothing of speed.

use serde_json::Value;
use std::process::Command;
use std::sync::LazyLock;
use terrace_tests::{Guest, Outcome, Steps, compiled, terrace_command};

/// Steps in the guest. In each, the program itself checks all bytes. Budgets are sizes: a share
/// waits for the end of growth, which on an emulated machine takes most of a run.
const STEPS: &[(&str, &str)] = &[
    ("a kernel that patches itself", "PATCHES 600"),
    ("doctor", "TERRACE doctor --json"),
    (
        "cold goes",
        "TERRACE run --dram 64M --tiers dram,node:1 --sampler-cost 10% --report report.json -- \
         TERRACE load memory zipf --size 128M --seconds $((12 * SLOW)) --check-all --json & \
         sleep $((11 * SLOW)); for pid in $(pgrep -o -f '^[^ ]*terrace load memory'); do cat /proc/$pid/numa_maps; echo; done >&2; wait $!",
    ),
    (
        "a jump",
        "TERRACE run --dram 64M --tiers dram,node:1 --sampler-cost 10% --report report.json --moves moves.jsonl -- \
         TERRACE load memory jump --size 128M --seconds $((9 * SLOW)) --change-every $((4 * SLOW)) --check-all --json; status=$?; cat moves.jsonl >&2; exit $status",
    ),
    (
        "jenga",
        "TERRACE run --dram 48M --tiers dram,node:1 --policy jenga --report report.json -- TERRACE load memory zipf --size 96M --seconds $((8 * SLOW)) --check-all --json",
    ),
    (
        "without samples",
        "TERRACE run --dram 48M --tiers dram,node:1 --sampler none --report report.json -- TERRACE load memory zipf --size 96M --seconds $((8 * SLOW)) --check-all --json",
    ),
    (
        "tossed about",
        "TERRACE_STRESS=20000 TERRACE run --dram 64M --tiers dram,node:1,lz4 --report report.json -- \
         TERRACE load memory scattered --size 96M --seconds $((5 * SLOW)) --threads 2 --check-all --json",
    ),
    (
        "from outside",
        "balancing=/proc/sys/kernel/numa_balancing; before=$(cat $balancing); \
         mkfifo in; EDGES waits <in >out & pid=$!; exec 3>in; until grep -q ready out; do sleep 0.2; done; \
         attach() { TERRACE attach --outside $pid --tiers dram,node:1 \"$@\"; }; \
         echo 0 >$balancing; attach --dram 30M; echo 1 >$balancing; attach; attach --dram 30M; \
         for try in $(seq 200); do TERRACE status --json >report.json; \
         grep -Eq '\"out_bytes\": ?[3-9][0-9]{7}' report.json && break; sleep 0.5; done; \
         cat /proc/$pid/numa_maps; TERRACE detach $pid; status=$?; echo $before >$balancing; exec 3>&-; \
         wait $pid || status=$?; cat out; exit $status",
    ),
    ("placed cold", "TERRACE run --dram 1G --tiers dram,node:1 -- FIRST_TIER"),
    (
        "forks",
        "TERRACE_STRESS=20000 TERRACE run --dram 1G --tiers dram,node:1,lz4 -- FORKS several_children_at_a_time",
    ),
    (
        "threads fork",
        "TERRACE_STRESS=20000 TERRACE run --dram 1G --tiers dram,node:1,zstd -- FORKS threads_fault_while_one_forks",
    ),
    (
        "failing calls",
        "TERRACE_INJECT=7:100 TERRACE_STRESS=20000 TERRACE run --dram 64M --tiers dram,node:1,lz4 --report report.json -- \
         TERRACE load memory zipf --size 96M --seconds $((8 * SLOW)) --check-all --json",
    ),
    (
        "huge pages",
        "echo always >/sys/kernel/mm/transparent_hugepage/enabled; \
         TERRACE run --dram 64M --tiers dram,node:1 --report report.json -- TERRACE load memory zipf --size 128M --seconds $((6 * SLOW)) --check-all --json & \
         sleep $((5 * SLOW)); for pid in $(pgrep -o -f '^[^ ]*terrace load memory'); do grep -E 'Anonymous|AnonHugePages' /proc/$pid/smaps_rollup; \
         grep -oE 'N1=[0-9]+' /proc/$pid/numa_maps | tr = ' '; done; wait $!; status=$?; \
         echo madvise >/sys/kernel/mm/transparent_hugepage/enabled; exit $status",
    ),
    (
        "almost full and compressed below",
        "echo 8192 >/proc/sys/vm/min_free_kbytes; mkdir far; mount -t tmpfs -o mpol=bind:1,size=1G far far; \
         free() { awk '/MemFree/ { print $4 }' /sys/devices/system/node/node1/meminfo; }; head -c $(($(free) - 60000))K /dev/zero >far/most; \
         TERRACE run --dram 64M --tiers dram,node:1,lz4 --report report.json -- SKEWED 160 $((4 * SLOW))",
    ),
    (
        "full",
        "n=0; while [ $(awk '/MemFree/ { print $4 }' /sys/devices/system/node/node1/meminfo) -gt 16000 ]; do n=$((n + 1)); head -c 4M /dev/zero >far/$n; done; \
         TERRACE run --dram 64M --tiers dram,node:1 --report report.json -- SKEWED 120 $((2 * SLOW))",
    ),
    (
        "full and compressed below",
        "TERRACE run --dram 80M --tiers dram,node:1,lz4 --report report.json -- SKEWED 120 $((4 * SLOW)); status=$?; umount far; exit $status",
    ),
    (
        "forbidden",
        "echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/near; echo 0 >/sys/fs/cgroup/near/cpuset.mems; \
         (echo 0 >/sys/fs/cgroup/near/cgroup.procs; exec TERRACE run --dram 64M --tiers dram,node:1 -- true)",
    ),
    (
        "forbidden meanwhile",
        "mkdir /sys/fs/cgroup/both; echo 0-1 >/sys/fs/cgroup/both/cpuset.mems; \
         (echo 0 >/sys/fs/cgroup/both/cgroup.procs; \
          exec TERRACE run --dram 64M --tiers dram,node:1,lz4 --report report.json -- SKEWED 120 $((8 * SLOW))) & \
         sleep $((4 * SLOW)); echo 0 >/sys/fs/cgroup/both/cpuset.mems; wait $!",
    ),
];

fn programs() -> Vec<(&'static str, std::path::PathBuf)> {
    let library = compiled("atfork_library.c", &["-shared", "-fPIC"]);
    let library = library.to_str().expect("the target directory's name is text");
    vec![
        ("PATCHES", compiled("patches_its_kernel.c", &[])),
        ("SKEWED", compiled("skewed.c", &[])),
        ("EDGES", compiled("attached_edges.c", &["-static"])),
        ("FIRST_TIER", compiled("first_tier.c", &[])),
        ("FORKS", compiled("forked_children_see_their_parents_data.c", &[library])),
    ]
}

static GUEST: LazyLock<Steps> = LazyLock::new(|| {
    Steps::new(Guest { kernel: "6.12", memory: "node", init: "shell" }, STEPS, programs)
});

static CXL: LazyLock<Steps> = LazyLock::new(|| {
    const STEPS: &[(&str, &str)] = &[(
        "cold goes",
        "TERRACE run --dram 64M --tiers dram,node:1 --report report.json -- TERRACE load memory jump --size 80M --seconds $((6 * SLOW)) --change-every $((2 * SLOW)) --check-all --json",
    )];
    Steps::new(Guest { kernel: "6.12", memory: "cxl", init: "shell" }, STEPS, programs)
});

/// The report of a step in which nothing was lost.
#[track_caller]
fn report_of(outcome: &Outcome) -> Value {
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let report = outcome.report();
    assert_eq!(
        (&report["managed"], &report["state"]),
        (&Value::from(true), &Value::from("active")),
        "{report:#}\n{outcome:?}"
    );
    if let Some(text) = outcome.stdout.find("{\n").map(|start| &outcome.stdout[start..]) {
        let load: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(load["wrong"], 0, "{load:#}");
    }
    report
}

fn tier<'r>(report: &'r Value, name: &str) -> &'r Value {
    report["tiers"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|tier| tier["name"] == name)
        .unwrap_or_else(|| panic!("no tier {name}: {report:#}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts that at least this many pages went to the node. The mean over time is not asked for: an
/// emulated machine may need most of it to fill its memory. Data on the node take as many bytes as
/// they have, and none of them counts as DRAM.
#[track_caller]
fn expect_far(report: &Value, at_least_pages: u64) {
    let far = tier(report, "node:1");
    assert!(number(&report["moves"]["demoted_pages"]) >= at_least_pages, "{report:#}");
    assert_eq!(
        (&far["logical_bytes"], &far["faults"]),
        (&far["physical_bytes"], &Value::from(0)),
        "{report:#}"
    );
}

/// Asserts that, in the mean over time, half of what does not fit into the budget was elsewhere.
/// While memory is being filled, pages must come before they can go. An emulated machine is slow to
/// move them.
#[track_caller]
fn expect_room(report: &Value) {
    let [budget, mean] = ["budget_bytes", "mean_physical_bytes"].map(|name| number(&report[name]));
    let tiers = || report["tiers"].as_array().into_iter().flatten();
    // The mean over time is less than the data at the end where filling took long. It is more where
    // the program gave its memory back.
    let at_end: u64 = tiers().map(|tier| number(&tier["pages"]) * 4096).sum();
    let data = at_end.max(tiers().map(|tier| number(&tier["logical_bytes"])).sum());
    assert!(mean.saturating_sub(budget) < data.saturating_sub(budget) / 2, "{report:#}");
}

/// Perf events turn static keys of the scheduler on and off. The emulator must run what they patch.
#[test]
fn the_guest_survives_a_kernel_that_patches_itself() {
    let Some(run) = GUEST.outcome("a kernel that patches itself") else { return };
    assert!(run.status == 0 && run.stdout.contains("patched 600 times"), "{run:?}");
}

/// No pages go to the node where the kernel would not bring back those that are in use.
#[test]
fn pages_of_a_program_that_is_not_entered_go_to_the_node() {
    let Some(run) = GUEST.outcome("from outside") else { return };
    assert!(run.status == 0 && run.stdout.contains(" wrong 0 "), "{run:?}");
    for refused in ["kernel.numa_balancing", "needs --dram"] {
        assert!(run.stderr.contains(refused), "{run:?}");
    }
    let figures = &run.report()["attached"][0];
    assert_eq!(figures["tier"], "node:1", "{figures:#}");
    let [there, here] = ["out_bytes", "resident_bytes"].map(|name| number(&figures[name]));
    assert!(there >= 30 << 20 && here < 35 << 20, "{figures:#}");
    let pages = run.stdout.split_ascii_whitespace().filter_map(|word| word.strip_prefix("N1="));
    let pages: u64 = pages.filter_map(|number| number.parse::<u64>().ok()).sum();
    assert!(pages >= 30 << 8, "{run:?}");
}

#[test]
fn the_doctor_names_the_node() {
    let Some(doctor) = GUEST.outcome("doctor") else { return };
    let answer: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    let row = answer["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row["name"] == "NUMA nodes")
        .expect("a row");
    assert!(
        row["consequence"].as_str().is_some_and(|text| text.contains("--tiers dram,node:1")),
        "{row}"
    );
}

#[test]
fn what_is_cold_goes_to_the_node_and_what_is_hot_comes_back() {
    let Some(run) = GUEST.outcome("cold goes") else { return };
    let report = report_of(run);
    // About half of 96 MiB.
    expect_far(&report, 8_000);
    expect_room(&report);
    assert_eq!(report["sampler"]["kind"], "clock", "{report:#}");
    assert!(number(&report["sampler"]["samples"]) > 20, "{report:#}");
    assert!(report["moves"]["demoted_for"]["cold"].as_u64() > Some(8_000), "{report:#}");
}

#[test]
fn the_kernel_agrees_where_pages_are() {
    let Some(run) = GUEST.outcome("cold goes") else { return };
    assert_eq!(run.status, 0, "{run:?}");
    let on_node = |name: &str| {
        let words = run
            .stderr
            .lines()
            .filter(|line| line.contains(" anon="))
            .flat_map(str::split_whitespace);
        words.filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok()).sum::<u64>()
    };
    let (near, far) = (on_node("N0="), on_node("N1="));
    let report = run.report();
    // The program gives its memory back before the report is made.
    let moved = |way: &str| number(&report["moves"][way]);
    let told = moved("demoted_pages") - moved("promoted_pages");
    assert!(
        far > 12_000 && told.abs_diff(far) < far / 5,
        "{far} pages are far, and {told} are reported: {report:#}"
    );
    // 64 MiB, and what is not managed: the command's own memory.
    assert!(near * 4096 < (64 << 20) + (32 << 20), "{near} pages are in DRAM: {report:#}");
}

#[test]
fn a_hot_set_that_jumps_is_followed() {
    let Some(run) = GUEST.outcome("a jump") else { return };
    let report = report_of(run);
    expect_far(&report, 8_000);
    // A fifth of 96 MiB is hot, of which at least a part was far.
    let hot = report["moves"]["promoted_for"]["hot"].as_u64();
    assert!(hot > Some(1_000), "{report:#}");
    // Each move has the policy's reason. A promoted page pays; a demoted one was swapped for
    // others, or was the coldest.
    let moves: Vec<Value> =
        run.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let pages = |reason: &str, to: &str, detail: &str| -> u64 {
        let these = moves
            .iter()
            .filter(|line| line["reason"] == reason && line["to"] == to && !line[detail].is_null());
        these.map(|line| number(&line["pages"])).sum()
    };
    let [pays, swapped, coldest] =
        [("pays", "dram", "gain"), ("swapped", "node:1", "for"), ("coldest", "node:1", "from")]
            .map(|(a, b, c)| pages(a, b, c));
    println!(
        "{} moves: {pays} pages that pay, {swapped} for others, {coldest} coldest",
        moves.len()
    );
    assert!(
        pays > 500 && Some(pays) <= hot && swapped + coldest > 8_000,
        "{pays}, {swapped}, {coldest}: {report:#}\n{}",
        run.stderr
    );
}

#[test]
fn a_published_policy_places_too() {
    let Some(run) = GUEST.outcome("jenga") else { return };
    let report = report_of(run);
    expect_far(&report, 8_000);
    assert_eq!(report["policy"], "jenga");
}

#[test]
fn without_samples_pages_go_and_none_comes_back() {
    let Some(run) = GUEST.outcome("without samples") else { return };
    let report = report_of(run);
    expect_far(&report, 8_000);
    assert_eq!(report["moves"]["promoted_for"]["hot"], Value::Null, "{report:#}");
}

#[test]
fn pages_move_among_all_tiers_while_they_are_written() {
    let Some(run) = GUEST.outcome("tossed about") else { return };
    let report = report_of(run);
    for kind in ["hot", "touched"] {
        assert!(report["moves"]["promoted_for"][kind].as_u64() > Some(500), "{report:#}");
    }
}

#[test]
fn what_is_placed_cold_begins_there() {
    let Some(run) = GUEST.outcome("placed cold") else { return };
    assert_eq!(run.status, 0, "{run:?}");
}

#[test]
fn forks_see_far_pages() {
    for step in ["forks", "threads fork"] {
        let Some(run) = GUEST.outcome(step) else { return };
        assert_eq!(run.status, 0, "{step}: {run:?}");
    }
}

#[test]
fn calls_that_fail_cost_time_only() {
    let Some(run) = GUEST.outcome("failing calls") else { return };
    report_of(run);
}

#[test]
fn huge_pages_stay_whole() {
    let Some(run) = GUEST.outcome("huge pages") else { return };
    assert_eq!(run.status, 0, "{run:?}");
    let report = run.report();
    // Of one moment: until the end the program reads all of its memory, and frees it.
    let sum = |name: &str| -> u64 {
        let lines = run.stdout.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
    };
    let (all, huge, far) = (sum("Anonymous:"), sum("AnonHugePages:"), sum("N1 ") * 4);
    println!(
        "{huge} of {all} KiB are huge, {far} far, {} at the end",
        tier(&report, "node:1")["pages"]
    );
    // Huge and far pages together are more than all pages, so some of the far ones must be huge.
    assert!(
        far > 32 << 10 && huge + far > all + (16 << 10),
        "{huge} of {all} KiB are huge, and {far} KiB are far: {report:#}"
    );
}

#[test]
fn a_full_node_is_said() {
    let Some(run) = GUEST.outcome("full") else { return };
    let report = report_of(run);
    assert_eq!(report["budget_met"], false, "{report:#}");
    assert!(
        report["note"].as_str().is_some_and(|note| note.contains("node 1 is full")),
        "{report:#}"
    );
}

#[test]
fn where_the_node_is_full_pages_are_compressed() {
    for (step, far) in
        [("full and compressed below", 0), ("almost full and compressed below", 4_000)]
    {
        let Some(run) = GUEST.outcome(step) else { return };
        let report = report_of(run);
        expect_room(&report);
        assert!(number(&tier(&report, "lz4")["pages"]) > 1_000, "{step}: {report:#}");
        assert!(number(&tier(&report, "node:1")["pages"]) >= far, "{step}: {report:#}");
    }
}

#[test]
fn a_node_that_may_not_be_used_is_refused() {
    let Some(run) = GUEST.outcome("forbidden") else { return };
    assert!(run.status == 125 && run.stderr.contains("allows node 0; see cpuset.mems"), "{run:?}");
}

#[test]
fn a_node_that_may_not_be_used_any_more_costs_itself() {
    let Some(run) = GUEST.outcome("forbidden meanwhile") else { return };
    let report = report_of(run);
    expect_room(&report);
    assert!(number(&tier(&report, "lz4")["pages"]) > 1_000, "{report:#}");
}

#[test]
fn memory_of_a_cxl_device_is_a_tier() {
    let Some(run) = CXL.outcome("cold goes") else { return };
    // At least one region. Each access to such memory is a call into the emulator, and a page takes
    // it 1.5 ms and more.
    expect_far(&report_of(run), 500);
}

#[test]
fn what_is_no_tier_here_is_refused() {
    for (list, word) in [
        ("dram,node:77", "no node 77"),
        ("dram,node", "such as node:1"),
        ("dram,lz4,node:1", "right behind dram"),
    ] {
        let output = Command::new(terrace_command())
            .args(["run", "--tiers", list, "--", "true"])
            .output()
            .expect("terrace can be executed");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(word), "{list}: {said}");
    }
}
