//! What can tell where programs touch memory.

use super::{Row, Status, read};
use std::path::Path;
use terrace_sampler::clock::Clock;
use terrace_sampler::events::{OpenError, Whose};

/// Rows: hardware that samples accesses, and the clock.
pub fn rows() -> Vec<Row> {
    vec![hardware(Path::new("/sys/bus/event_source/devices")), clock(Clock::open(Whose::Children, 1_000).map(drop))]
}

/// What the kernel says of the processor. Terrace does not read these yet.
fn hardware(devices: &Path) -> Row {
    let name = "access sampling";
    if devices.join("ibs_op").is_dir() {
        return Row::ok(name, "IBS", "not used yet: recordings are made by the clock");
    }
    match read(devices.join("cpu/caps/max_precise")).ok().and_then(|text| text.parse::<u32>().ok()) {
        Some(1..) => Row::ok(name, "PEBS", "not used yet: recordings are made by the clock"),
        _ => {
            Row::ok(name, "none (no PEBS, no IBS; virtual machines seldom have them)", "nothing is lost: recordings are made by the clock")
        }
    }
}

fn clock(opened: Result<(), OpenError>) -> Row {
    let name = "clock sampling";
    let without = "terrace record cannot see what a program touches";
    match opened {
        Ok(()) if cfg!(target_arch = "x86_64") => {
            Row::ok(name, "perf events by the clock", "terrace record shows where programs wait for memory")
        }
        Ok(()) => Row::new(name, Status::Warn, "not an x86-64 processor", without, ""),
        Err(OpenError::Forbidden(error)) => {
            Row::new(name, Status::Warn, format!("refused: {error}"), without, "sysctl kernel.perf_event_paranoid=2, or run as root")
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
        assert!(hardware(scratch.path()).found.starts_with("none"));
        std::fs::create_dir_all(scratch.path().join("cpu/caps")).unwrap();
        std::fs::write(scratch.path().join("cpu/caps/max_precise"), "0\n").unwrap();
        assert!(hardware(scratch.path()).found.starts_with("none"));
        std::fs::write(scratch.path().join("cpu/caps/max_precise"), "3\n").unwrap();
        assert_eq!(hardware(scratch.path()).found, "PEBS");
        std::fs::create_dir_all(scratch.path().join("ibs_op")).unwrap();
        assert_eq!(hardware(scratch.path()).found, "IBS");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = std::io::Error::from_raw_os_error(libc::EACCES);
        let row = clock(Err(refused.into()));
        assert!(row.status == Status::Warn && row.fix.contains("perf_event_paranoid"));
    }
}
