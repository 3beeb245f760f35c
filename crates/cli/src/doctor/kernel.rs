//! The kernel's version, and what each step of it brought. The probes beside this one decide; a
//! distribution may have brought features back to an older number.

use super::row::{Row, Status, read};

/// A kernel version that brought something.
struct Step {
    version: (u32, u32),
    brings: &'static str,
    /// What follows for Terrace where it is missing.
    without: &'static str,
}

/// Oldest first. `docs/kernels.md` has the same table for people.
const STEPS: [Step; 7] = [
    Step {
        version: (4, 3),
        brings: "userfaultfd with UFFDIO_COPY",
        without: "nothing can be restored on touch",
    },
    Step {
        version: (5, 7),
        brings: "userfaultfd write protection of anonymous memory",
        without: "--evict wp is impossible too",
    },
    Step {
        version: (5, 11),
        brings: "userfaultfd for user-mode faults without privilege",
        without: "nothing changes, as system calls into evicted pages would fail with it",
    },
    Step {
        version: (6, 1),
        brings: "/dev/userfaultfd",
        without: "plain users need sysctl vm.unprivileged_userfaultfd=1",
    },
    Step {
        version: (6, 7),
        brings: "PAGEMAP_SCAN and asynchronous write protection",
        without: "which pages are present is read page by page",
    },
    Step {
        version: (6, 8),
        brings: "UFFDIO_MOVE",
        without: "pages are evicted by --evict wp only, which is unsafe beside direct I/O",
    },
    Step {
        version: (6, 10),
        brings: "reading a userfaultfd without waiting",
        without: "memory calls that a program makes past its C library are not followed, which Go's runtime does",
    },
];

/// What a version brought that is wrong, and not put right in any that we know.
const DEFECTS: [((u32, u32), &str); 1] = [(
    (6, 18),
    "UFFDIO_MOVE in batches does not count all pages that it moves, which Terrace corrects",
)];

/// Row: the kernel's version.
pub fn rows() -> Vec<Row> {
    let name = "kernel";
    vec![match read("/proc/sys/kernel/osrelease") {
        Ok(release) => judge(name, &release),
        Err(error) => Row::unreadable(name, "/proc/sys/kernel/osrelease", &error),
    }]
}

fn judge(name: &'static str, release: &str) -> Row {
    let found = format!("Linux {release}");
    let Some(version) = parse(release) else {
        return Row::new(
            name,
            Status::Warn,
            found,
            "its version is not understood; the probes below decide",
            "",
        );
    };
    let newest = &STEPS[STEPS.len() - 1];
    let lacking: Vec<&Step> = STEPS.iter().filter(|step| version < step.version).collect();
    if !lacking.is_empty() {
        let lines: Vec<String> = lacking
            .iter()
            .map(|step| format!("no {} ({}): {}", step.brings, number(step.version), step.without))
            .collect();
        let consequence = format!("{}. The probes below decide", lines.join("; "));
        return Row::new(
            name,
            Status::Warn,
            found,
            consequence,
            format!("boot Linux {} or later", number(newest.version)),
        );
    }
    let defects: String = DEFECTS
        .iter()
        .filter(|(since, _)| version >= *since)
        .map(|(_, what)| format!("; its {what}"))
        .collect();
    Row::ok(
        name,
        found,
        format!(
            "recent enough for everything that Terrace uses ({}){defects}",
            number(newest.version)
        ),
    )
}

fn number((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
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
        assert!(
            !judge("kernel", "6.10.1").consequence.contains("count")
                && judge("kernel", "6.18.1").consequence.contains("count")
        );
        let debian_12 = judge("kernel", "6.1.0-28-amd64");
        assert_eq!(debian_12.status, Status::Warn);
        assert!(
            debian_12.consequence.contains("UFFDIO_MOVE (6.8)")
                && !debian_12.consequence.contains("/dev/userfaultfd")
        );
        assert_eq!(judge("kernel", "odd").status, Status::Warn);
    }

    /// The tables in the documentation are these, row by row.
    #[test]
    fn the_documentation_has_the_same_table() {
        let row = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
        let mut tables =
            [row(&["Linux", "brings", "without it"]), row(&["Linux", "what is wrong since then"])];
        tables[0] += "|---|---|---|\n";
        tables[1] += "|---|---|\n";
        for step in STEPS {
            tables[0] += &row(&[&number(step.version), step.brings, step.without]);
        }
        for (since, what) in DEFECTS {
            tables[1] += &row(&[&number(since), what]);
        }
        let page = include_str!("../../../../docs/kernels.md");
        for table in tables {
            assert!(page.contains(&table), "docs/kernels.md must have this table:\n{table}");
        }
        assert!(STEPS.is_sorted_by_key(|step| step.version));
    }
}
