//! What can tell where programs touch memory.

use super::row::{Row, Status};
use std::path::Path;
use terrace_sampler::clock::Clock;
use terrace_sampler::events::{OpenError, Whose};
use terrace_sampler::hardware::Kind;
use terrace_sampler::trial;

/// Rows: hardware that samples accesses, and the clock.
pub fn rows() -> Vec<Row> {
    let clocks = trial::clock().and_then(|()| Clock::open(Whose::Children, 1_000)).map(drop);
    vec![hardware(Path::new("/sys/bus/event_source/devices"), trial::hardware), clock(clocks)]
}

/// What the kernel says of the processor, and whether it is true.
fn hardware(devices: &Path, counts: impl Fn(Kind) -> bool) -> Row {
    let name = "access sampling";
    let kinds = Kind::of_machine(devices);
    match kinds.first() {
        Some(kind) if kinds.iter().any(|kind| counts(*kind)) => Row::ok(
            name,
            kind.name(),
            "terrace run takes samples from it, for policies that need them or with --sampler",
        ),
        Some(kind) => Row::ok(
            name,
            format!("{}, which counts nothing here", kind.name()),
            "little is lost: samples are taken by the clock",
        ),
        None => Row::ok(
            name,
            "none (no PEBS, no IBS; virtual machines seldom have them)",
            "little is lost: samples are taken by the clock",
        ),
    }
}

fn clock(opened: Result<(), OpenError>) -> Row {
    let name = "clock sampling";
    let without = "terrace run learns what is hot from faults alone, and terrace record cannot see what a program touches";
    match opened {
        Ok(()) if cfg!(target_arch = "x86_64") => Row::ok(
            name,
            "perf events by the clock",
            "terrace record and terrace run --sampler clock see where programs wait for memory",
        ),
        Ok(()) => Row::new(name, Status::Warn, "not an x86-64 processor", without, ""),
        Err(OpenError::Forbidden(error)) => {
            let remedy = "sysctl kernel.perf_event_paranoid=2, or run as root; or terrace run --sampler timer, which is always allowed, but works by signals that a program may notice";
            Row::new(name, Status::Warn, format!("refused: {error}"), without, remedy)
        }
        Err(error) => Row::new(name, Status::Warn, error.to_string(), without, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let found = |counts: bool| hardware(scratch.path(), |_| counts).found;
        assert!(found(true).starts_with("none"));
        std::fs::create_dir_all(scratch.path().join("cpu/caps")).unwrap();
        std::fs::write(scratch.path().join("cpu/caps/max_precise"), "3\n").unwrap();
        assert_eq!(found(true), "pebs");
        // What cannot count is never reported as working.
        assert!(found(false).contains("counts nothing"));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = std::io::Error::from_raw_os_error(libc::EACCES);
        let row = clock(Err(refused.into()));
        assert!(row.status == Status::Warn && row.fix.contains("perf_event_paranoid"));
    }
}
