//! The tier `swap`: pages that Terrace chooses are as safe in the kernel's swap as anywhere. The
//! report says what the kernel says of them, and swap of other programs is not used up.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use terrace_testkit::process::{self, Stat};
use terrace_testkit::wait::Wait;
use terrace_tests::{
    Cases, Program, Running, Terrace, Zram, compiled, has_swap, skip, without_swap,
};

const MIB: u64 = 1 << 20;
const WITHIN: Duration = Duration::from_secs(60);
const WAIT: Wait = Wait::within(WITHIN).every(Duration::from_millis(10));

/// Ways to run these cases:
/// - a budget that nothing is evicted for, so that what a case evicts stays out until it is
///   touched;
/// - random evictions, to swap and other tiers in turn, also while kernel calls fail;
/// - a budget of 16 MiB, with swap behind `lz4`.
static CASES: LazyLock<Cases> = LazyLock::new(|| Cases {
    program: compiled("swap_tier.c", &[]),
    arguments: Vec::new(),
    ways: vec![
        Terrace::within("4G").and("--tiers=dram,swap"),
        Terrace::stressed().and("--tiers=dram,swap"),
        Terrace::stressed().and("--tiers=dram,swap,lz4"),
        Terrace::within("16M").and("--tiers=dram,lz4,swap"),
        Terrace::failing().and("--tiers=dram,swap,zstd:1"),
    ],
});

/// A zram device of `bytes` bytes, used as swap; `None` where there can be none, which is said.
fn zram(test: &str, bytes: u64) -> Option<Zram> {
    Zram::swap_on(bytes).map_err(|reason| skip(test, &reason)).ok()
}

fn holds(case: &str) {
    if let Some(_zram) = zram(case, 512 * MIB) {
        CASES.hold(case);
    }
}

#[test]
fn memory_calls_on_swapped_pages() {
    holds("memory_calls_on_swapped_pages");
}

#[test]
fn forks_while_swapped() {
    holds("forks_while_swapped");
}

#[test]
fn threads_touch_swapped_pages() {
    holds("threads_touch_swapped_pages");
}

/// Runs cases of other test files, with pages going to the kernel's swap at random.
fn hold_elsewhere(program: &str, arguments: &[&str], cases: &[&str]) {
    let Some(_zram) = zram(program, 1024 * MIB) else { return };
    let program = compiled(program, arguments);
    let elsewhere = Cases {
        program,
        arguments: Vec::new(),
        ways: vec![Terrace::stressed().and("--tiers=dram,swap")],
    };
    cases.iter().for_each(|case| elsewhere.hold(case));
}

#[test]
fn forked_children_see_their_parents_swapped_data() {
    let library = compiled("atfork_library.c", &["-shared", "-fPIC"]);
    let library = library.to_str().expect("the target directory's name is text");
    let cases = [
        "several_children_at_a_time",
        "threads_fault_while_one_forks",
        "threads_fork_at_the_same_time",
        "everything_closed",
        "descriptor_numbers_are_the_programs",
        "fork_without_handlers",
    ];
    hold_elsewhere("forked_children_see_their_parents_data.c", &[library], &cases);
}

#[test]
fn the_kernel_finds_swapped_memory() {
    let cases = [
        "vectors",
        "zero_copy_sends",
        "ring_buffers_that_are_fixed",
        "direct_io_while_pages_move",
        "futexes",
        "memory_as_a_file",
    ];
    hold_elsewhere("the_kernel_finds_evicted_memory.c", &[], &cases);
}

/// The stress test for lost updates, with pages going to the kernel's swap alone, and to swap and
/// compressed memory.
#[test]
fn no_update_is_lost_in_swap() {
    let Some(_zram) = zram("no_update_is_lost_in_swap", 1024 * MIB) else { return };
    for terrace in [
        Terrace::stressed().and("--tiers=dram,swap"),
        Terrace::failing().and("--tiers=dram,swap,zstd:1"),
    ] {
        let finished =
            Program::new(compiled("no_update_is_lost.c", &[])).arg("8").under(terrace).succeed();
        let stdout = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert!(stdout.contains(" 0 lost"), "{}", finished.account("lost updates"));
        let report = finished.report();
        report.expect_moves(1000, 1000);
        assert!(
            report.at("/tiers/1/name") == "swap" && report.number("/tiers/1/faults") > 100.0,
            "{report}"
        );
    }
}

fn start(case: &str, terrace: Terrace) -> Running {
    Program::new(&CASES.program).arg(case).under(terrace).start()
}

/// Terrace sees at its next look that a page came back. A program that asks meanwhile for the page
/// to leave is not refused.
#[test]
fn what_came_back_leaves_when_asked_again() {
    if let Some(_zram) = zram("what_came_back_leaves_when_asked_again", 512 * MIB) {
        let swap = Terrace::within("4G").and("--tiers=dram,swap");
        let finished =
            Program::new(&CASES.program).arg("leaves_when_asked_again").under(swap).run();
        assert!(finished.status.success(), "{}", finished.account("failed"));
    }
}

/// Where the kernel swaps to memory, that swap is used without being asked for.
#[test]
fn auto_is_the_default_where_there_is_zram() {
    let Some(_zram) = zram("auto_is_the_default_where_there_is_zram", 512 * MIB) else { return };
    let running = start("holds", Terrace::within("4G"));
    running.wait_for_output("holds");
    signal(&running);
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let report = finished.report();
    assert_eq!(report.at("/tiers/1/name"), "swap", "{report}");
}

/// Sends the signal that has the program go on to its checks.
fn signal(running: &Running) {
    process::signal(running.program_pid(), libc::SIGUSR1);
}

/// Bytes that the kernel tells of the program, such as `VmSwap`.
#[track_caller]
fn bytes_of(running: &Running, name: &str) -> u64 {
    process::status_bytes(running.program_pid(), name).expect("it runs")
}

/// What the report says of swapped data, and of the memory that these take, agrees with the
/// kernel's figures.
#[test]
fn the_report_says_what_the_kernel_says() {
    let Some(_zram) = zram("the_report_says_what_the_kernel_says", 512 * MIB) else { return };
    let begun = Instant::now();
    let running = start("holds", Terrace::within("4G").and("--tiers=dram,swap"));
    running.wait_for_output("holds");
    let swapped = bytes_of(&running, "VmSwap");
    assert!(swapped > 28 * MIB, "{swapped} bytes are swapped");
    // The averages are over the whole run: most of it is to be like this.
    std::thread::sleep(Duration::from_secs(2).max(begun.elapsed() * 3));
    signal(&running);
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let report = finished.report();
    assert_eq!(report.at("/tiers/1/name"), "swap", "{report}");
    let (logical, physical) =
        (report.number("/tiers/1/logical_bytes"), report.number("/tiers/1/physical_bytes"));
    // On the average of the whole run, its begin and end included.
    assert!(
        logical > 0.4 * swapped as f64 && logical <= 1.01 * swapped as f64,
        "{swapped} were swapped: {report}"
    );
    assert!(physical > 0.0 && physical < 0.5 * logical, "{report}");
    // All came back, at its end perhaps too late to be seen.
    assert!(report.number("/tiers/1/faults") <= 1.1 * swapped as f64 / 4096.0, "{report}");
    assert!(
        report.at("/tiers/1/fault_p50_us").is_null(),
        "the kernel's faults are not timed: {report}"
    );
}

/// Memory stays within the budget by the kernel's swap alone, and returns are seen.
#[test]
fn a_budget_is_kept_by_swap_alone() {
    let Some(_zram) = zram("a_budget_is_kept_by_swap_alone", 512 * MIB) else { return };
    let running = start("keeps_changing", Terrace::within("24M").and("--tiers=dram,swap"));
    running.wait_for_output("changes");
    WAIT.until_ok("4 MiB swapped, and 5000 pages come back", || {
        let (swapped, returned) = (bytes_of(&running, "VmSwap"), returned_pages(&running));
        let is_enough = swapped >= 4 * MIB && returned >= 5000;
        if is_enough { Ok(()) } else { Err(format!("{swapped} bytes, {returned} pages")) }
    });
    // For a look or two.
    std::thread::sleep(Duration::from_secs(1));
    signal(&running);
    let finished = running.wait();
    assert!(finished.status.success(), "{}", finished.account("failed"));
    let report = finished.report();
    report.expect_moves(1000, 100);
    // No thread of Terrace waits with the program, but it waits all the same: 13 us a fault at the
    // least.
    let faults = report.number("/tiers/1/faults");
    assert!(report.number("/stall_s") > faults * 12e-6, "{report}");
}

/// Number of pages that the kernel brought back: major faults of the program.
fn returned_pages(running: &Running) -> u64 {
    Stat::of(running.program_pid()).expect("it runs").major_faults
}

/// A quarter of all swap is left to others, and what does not go there goes to the next tier.
#[test]
fn swap_is_never_used_up() {
    let Some(_zram) = zram("swap_is_never_used_up", 16 * MIB) else { return };
    for (tiers, compressed) in [("dram,swap", false), ("dram,swap,lz4", true)] {
        let running = start("keeps_changing", Terrace::within("8M").and("--tiers").and(tiers));
        running.wait_for_output("changes");
        let begun = Instant::now();
        let mut most = 0;
        while begun.elapsed() < Duration::from_secs(2) || !compressed && most <= 4096 {
            assert!(begun.elapsed() < WITHIN, "only {most} KiB were ever used");
            let text = fs::read_to_string("/proc/meminfo").expect("the kernel tells");
            let [total, free] = ["SwapTotal", "SwapFree"]
                .map(|name| process::bytes_in(&text, name).expect("the kernel has swap") >> 10);
            // What one look may be wrong by.
            assert!(free >= total / 4 - total / 16, "{free} of {total} KiB are free with {tiers}");
            most = most.max(total - free);
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&running);
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        finished.report().expect_managed();
        if compressed {
            assert!(finished.report().number("/tiers/2/faults") > 0.0, "{}", finished.report());
        }
    }
}

/// The swap is taken away while pages are in it, and more are on their way.
#[test]
fn swap_goes_away() {
    for (tiers, case, line) in [
        ("dram,swap", "keeps_changing", "changes"),
        ("dram,swap", "holds", "holds"),
        ("dram,swap,lz4", "holds", "holds"),
    ] {
        let Some(zram) = zram("swap_goes_away", 512 * MIB) else { return };
        let running = start(
            case,
            Terrace::within(if case == "holds" { "4G" } else { "24M" }).and("--tiers").and(tiers),
        );
        running.wait_for_output(line);
        WAIT.until("something is swapped", || bytes_of(&running, "VmSwap") >= MIB);
        zram.swap_off();
        std::thread::sleep(Duration::from_millis(500));
        signal(&running);
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        finished.report().expect_managed();
    }
}

/// `auto` works with swap and without, keeps contents, and says what it used. What it chooses is
/// the machine's to decide.
#[test]
fn auto_uses_what_there_is() {
    let with = zram("auto_uses_what_there_is", 512 * MIB);
    for swap in [with, None] {
        let _alone = swap.is_none().then(without_swap);
        let there_is_swap = has_swap();
        let running = start("keeps_changing", Terrace::within("24M").and("--tiers=auto"));
        running.wait_for_output("changes");
        std::thread::sleep(Duration::from_secs(2));
        signal(&running);
        let finished = running.wait();
        assert!(
            finished.status.success() && !finished.stderr.contains("no swap"),
            "{}",
            finished.account("failed")
        );
        let report = finished.report();
        report.expect_moves(500, 50);
        let names: Vec<&str> =
            (0..4).filter_map(|n| report.at(&format!("/tiers/{n}/name")).as_str()).collect();
        assert_eq!(names, ["dram", "swap", "lz4", "zstd:1"], "{report}");
        assert!(there_is_swap || report.number("/tiers/1/faults") == 0.0, "{report}");
        let own = report.number("/tiers/2/faults") + report.number("/tiers/3/faults");
        assert!(own > 0.0, "what things cost is learned from these: {report}");
    }
}

/// One line says that there is no swap, and what is left of the list is used.
#[test]
fn without_swap_the_rest_of_the_list_is_used() {
    let _alone = without_swap();
    if has_swap() {
        return skip("without_swap_the_rest_of_the_list_is_used", "there is swap");
    }
    for (tiers, moved) in [("dram,swap", false), ("dram,swap,lz4", true), ("dram,lz4,swap", true)] {
        let running = start("keeps_changing", Terrace::within("24M").and("--tiers").and(tiers));
        running.wait_for_output("changes");
        if moved {
            let leaves = || bytes_of(&running, "RssAnon") <= 31 * MIB;
            WAIT.until(&format!("memory leaves with {tiers}"), leaves);
        }
        std::thread::sleep(Duration::from_millis(500));
        signal(&running);
        let finished = running.wait();
        assert!(finished.status.success(), "{}", finished.account("failed"));
        let lines: Vec<&str> =
            finished.stderr.lines().filter(|line| line.contains("no swap")).collect();
        assert!(lines.len() == 1 && lines[0].contains("swapon"), "{}", finished.stderr);
        let report = finished.report();
        report.expect_managed();
        assert_eq!(report.demoted_pages() > 0, moved, "{tiers}: {report}");
    }
}
