//! What a run reports: the design's fields in every case, figures where a process left them, and
//! the truth where not.

mod support;

use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;
use support::{Scratch, stderr};
use terrace_control::stats::{self, State};

/// The design's list ("The JSON report of `run` has at least").
const FIELDS: [&str; 19] = [
    "version",
    "command",
    "exit_status",
    "elapsed_s",
    "logical_bytes",
    "budget_bytes",
    "budget_met",
    "floor_bytes",
    "mean_physical_bytes",
    "peak_physical_bytes",
    "over_budget_s",
    "overhead_bytes",
    "saved_bytes",
    "saved_fraction",
    "slowdown_estimate",
    "tiers",
    "moves",
    "sampler",
    "processes",
];

fn report(scratch: &Scratch) -> Value {
    let report: Value =
        serde_json::from_slice(&std::fs::read(scratch.path("r.json")).unwrap()).unwrap();
    for field in FIELDS {
        assert!(report.get(field).is_some(), "{field} in {report}");
    }
    for (part, field) in [
        ("moves", "promoted_pages"),
        ("moves", "demoted_pages"),
        ("moves", "failed"),
        ("sampler", "kind"),
        ("sampler", "samples"),
        ("sampler", "cpu_fraction"),
    ] {
        assert!(report[part].get(field).is_some(), "{part}.{field} in {report}");
    }
    report
}

#[test]
fn a_library_that_never_comes_up_is_said() {
    let Some(scratch) = Scratch::new() else { return };
    let path = scratch.path("r.json");
    let output = scratch
        .terrace(&[
            "run",
            "--dram",
            "1G",
            "--report",
            path.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            "exit 4",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(
        stderr(&output).contains("not managed: libterrace.so never came up"),
        "{}",
        stderr(&output)
    );
    let report = report(&scratch);
    assert_eq!(
        (&report["managed"], &report["exit_status"], &report["budget_bytes"]),
        (&false.into(), &4.into(), &(1u64 << 30).into())
    );
    assert!(report["saved_bytes"].is_null() && report["logical_bytes"].is_null());
}

#[test]
fn the_page_of_the_program_is_the_report() {
    let Some(scratch) = Scratch::new() else { return };
    let page = scratch.page(|page| {
        page.state.store(State::Active as u32, Relaxed);
        page.budget_bytes.store(64 << 20, Relaxed);
        page.budget_met.store(1, Relaxed);
        // No more than the program can have had, nor for longer.
        page.mean_window_ms.store(5, Relaxed);
        page.mean_logical_bytes.store(5 << 20, Relaxed);
        page.mean_physical_bytes.store(3 << 20, Relaxed);
        page.counts.promoted_pages.store(11, Relaxed);
        page.counts.room_waits.store(3, Relaxed);
        page.counts.dictionary_changes.store(2, Relaxed);
        page.tier_count.store(2, Relaxed);
        stats::set_text(&page.tiers[0].name, "dram");
        stats::set_text(&page.tiers[1].name, "lz4");
        page.tiers[1].faults.store(11, Relaxed);
        page.tiers[1].fault_p50_ns.store(9_000, Relaxed);
        page.tiers[1].fault_p99_ns.store(31_000, Relaxed);
    });
    let path = scratch.path("r.json");
    // The child process of the shell has a page of its own.
    let arguments = [
        "run",
        "--dram",
        "64M",
        "--report",
        path.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "sleep 0.01; exit 0",
    ];
    let output = scratch.terrace(&arguments).env("STUB_PAGE", page).output().unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("  saved 2.0M of 5.0M (40%)")
            && text.contains("9.0us p50, 31us p99")
            && text.contains("budget 64.0M: kept"),
        "{text}"
    );
    let report = report(&scratch);
    assert_eq!(
        (&report["managed"], &report["state"], &report["saved_bytes"]),
        (&true.into(), &"active".into(), &(2u64 << 20).into())
    );
    assert_eq!(
        (&report["tiers"][1]["name"], &report["tiers"][1]["fault_p50_us"]),
        (&"lz4".into(), &9.0.into())
    );
    assert_eq!(
        (&report["mean_window_s"], &report["moves"]["promoted_pages"]),
        (&0.005.into(), &11.into())
    );
    assert_eq!(report["moves"]["room_waits"], 3);
    assert_eq!(report["moves"]["dictionary_changes"], 2);
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2);
    assert_eq!(processes.iter().filter(|process| process["main"] == true).count(), 1);
    assert_eq!(scratch.run_directories(), [""; 0]);
}

/// The page of a process is a file that the process can write. Of what it says, no more is told
/// than /proc bears out.
#[test]
fn a_page_that_lies_is_not_believed() {
    let Some(scratch) = Scratch::new() else { return };
    let page = scratch.page(|page| {
        page.state.store(State::Active as u32, Relaxed);
        page.updated_ns.store(u64::MAX, Relaxed);
        page.budget_bytes.store(64 << 20, Relaxed);
        page.mean_window_ms.store(1 << 50, Relaxed);
        page.far_over_budget_ms.store(1 << 50, Relaxed);
        page.counts.stall_ns.store(1 << 60, Relaxed);
        page.counts.cpu_ns.store(1 << 60, Relaxed);
        page.tier_count.store(1, Relaxed);
        stats::set_text(&page.tiers[0].name, "dram");
        for bytes in [
            &page.mean_logical_bytes,
            &page.mean_physical_bytes,
            &page.peak_physical_bytes,
            &page.mean_unmanaged_bytes,
            &page.mean_overhead_bytes,
            &page.physical_bytes,
            &page.logical_bytes,
            &page.tiers[0].mean_physical_bytes,
        ] {
            bytes.store(1 << 49, Relaxed);
        }
    });
    let path = scratch.path("r.json");
    let arguments = [
        "run",
        "--dram",
        "64M",
        "--report",
        path.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "sleep 0.9; exit 0",
    ];
    let output = scratch.terrace(&arguments).env("STUB_PAGE", page).output().unwrap();
    let report = report(&scratch);
    let number = |path: &str| {
        report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {report}"))
    };
    for path in [
        "/peak_physical_bytes",
        "/mean_physical_bytes",
        "/mean_unmanaged_bytes",
        "/overhead_bytes",
        "/tiers/0/physical_bytes",
        "/processes/0/peak_physical_bytes",
        "/processes/1/mean_physical_bytes",
        "/together/peak_physical_bytes",
    ] {
        assert!(number(path) < f64::from(64 << 20), "{path}: {report}");
    }
    let elapsed = number("/elapsed_s");
    for path in ["/mean_window_s", "/stall_s", "/far_over_budget_s", "/processes/1/stall_s"] {
        assert!(number(path) < elapsed * 4.0, "{path}: {report}");
    }
    assert!(number("/together/logical_bytes") < f64::from(1 << 30), "{report}");
    assert!(!stderr(&output).contains("512.0T"), "{}", stderr(&output));
}

#[test]
fn a_program_out_of_reach_runs_and_nothing_is_pretended() {
    let Some(scratch) = Scratch::new() else { return };
    let source = "#include <stdlib.h>\nint main(void) { return getenv(\"LD_PRELOAD\") ? 1 : 9; }\n";
    let Some(program) = scratch.program("static", source, &["-static"]) else { return };
    let (program, path) = (program.to_str().unwrap().to_owned(), scratch.path("r.json"));
    let output = scratch
        .terrace(&["run", "--observe", "--report", path.to_str().unwrap(), "--", &program])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(
        text.lines()
            .next()
            .unwrap()
            .contains("is statically linked, so its memory cannot be managed"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 2, "{text}");
    let report = report(&scratch);
    assert_eq!(
        (&report["managed"], &report["note"]),
        (&false.into(), &"it is statically linked".into())
    );
    let script = scratch.script("script", &format!("#!{program}\n"));
    let script = script.to_str().unwrap();
    let output = scratch.terrace(&["run", "--strict", "--observe", "--", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("is statically linked") && stderr(&output).contains("--strict"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_program_is_told_the_settings() {
    let Some(scratch) = Scratch::new() else { return };
    let config = scratch.file(
        "t.toml",
        "[run]\ndram = \"50%\"\ntiers = \"dram,lz4\"\nobserve = true\nverify = true\n",
    );
    let script = "echo $TERRACE_DRAM $TERRACE_TIERS $TERRACE_OBSERVE $TERRACE_STRICT $TERRACE_VERIFY; echo $LD_PRELOAD; stat -c %a $TERRACE_RUN_DIR";
    let output = scratch
        .terrace(&[
            "run",
            "--config",
            config.to_str().unwrap(),
            "--dram",
            "2G",
            "--",
            "sh",
            "-c",
            script,
        ])
        .env("LD_PRELOAD", "")
        .output()
        .unwrap();
    let text = support::stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[2]), ("2147483648 dram,lz4 1 0 1", "700"), "{text}");
    assert!(lines[1].ends_with("/libterrace.so"), "{text}");
}

#[test]
fn a_report_that_cannot_be_put_down_at_the_end_is_said() {
    let Some(scratch) = Scratch::new() else { return };
    let directory = scratch.path("gone");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("r.json");
    let script = format!("rm -r {}; exit 6", directory.display());
    let output = scratch
        .terrace(&["run", "--report", path.to_str().unwrap(), "--", "sh", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(stderr(&output).contains("the report could not be put at"), "{}", stderr(&output));
}
