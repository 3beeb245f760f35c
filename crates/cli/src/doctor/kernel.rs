//! The kernel's version, and what each step of it brought. The probes beside this one decide; a distribution may have
//! brought features back to an older number.

use super::{Row, Status, read};

/// Version and what Terrace gets from it, in order.
const STEPS: [((u32, u32), &str); 5] = [
    ((5, 7), "userfaultfd write protection"),
    ((5, 11), "userfaultfd for user-mode faults without privilege"),
    ((6, 1), "/dev/userfaultfd, which can be granted by file permissions"),
    ((6, 7), "PAGEMAP_SCAN, for cheap coldness probes"),
    ((6, 8), "UFFDIO_MOVE, the safe way to evict"),
];

/// One row.
pub fn rows() -> Vec<Row> {
    let name = "kernel";
    vec![match read("/proc/sys/kernel/osrelease") {
        Ok(release) => judge(name, &release),
        Err(error) => Row::unreadable(name, "/proc/sys/kernel/osrelease", &error),
    }]
}

fn judge(name: &'static str, release: &str) -> Row {
    let Some(version) = parse(release) else {
        return Row::new(name, Status::Warn, format!("Linux {release}"), "its version is not understood; the probes below decide", "");
    };
    let lacking: Vec<String> =
        STEPS.iter().filter(|(step, _)| version < *step).map(|((major, minor), what)| format!("{what} ({major}.{minor})")).collect();
    if lacking.is_empty() {
        return Row::ok(name, format!("Linux {release}"), "recent enough for everything that Terrace uses (6.8)");
    }
    Row::new(
        name,
        Status::Warn,
        format!("Linux {release}"),
        format!("does not bring {}; the probes below decide", lacking.join(", ")),
        "boot Linux 6.8 or later",
    )
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse("5.4-rc1"), Some((5, 4)));
        assert_eq!(parse("plan9"), None);
        assert_eq!(judge("kernel", "6.10.1").status, Status::Ok);
        let debian_12 = judge("kernel", "6.1.0-28-amd64");
        assert_eq!(debian_12.status, Status::Warn);
        assert!(debian_12.consequence.contains("UFFDIO_MOVE") && !debian_12.consequence.contains("/dev/userfaultfd"));
        assert_eq!(judge("kernel", "odd").status, Status::Warn);
    }
}
