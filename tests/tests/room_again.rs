//! Pages that left for want of room come back when there is room again, though the program does not
//! touch them.

use terrace_tests::{Program, Terrace, compiled};

#[test]
fn what_had_left_comes_back_untouched() {
    for tiers in ["dram,lz4,zstd", "dram,zstd"] {
        let terrace = Terrace::within("100M").and("--tiers").and(tiers);
        let finished = Program::new(compiled("room_again.c", &[])).under(terrace).succeed();
        let report = finished.report();
        let (room, faults) = (report.number("/moves/promoted_for/room"), report.faults());
        let said = String::from_utf8_lossy(&finished.stdout).into_owned();
        println!("{}: for room {room}, by faults {faults}", said.trim());
        let left: f64 =
            said.split(' ').next().and_then(|count| count.parse().ok()).expect("how many had left");
        assert!(
            room >= left * 0.9,
            "{room} pages came back because there was room, {left} had left"
        );
    }
}
