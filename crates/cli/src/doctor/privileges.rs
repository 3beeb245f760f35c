//! Rows of `terrace doctor` on our user, our capabilities and seccomp. They say whether a filter
//! stands between us and the kernel.

use super::row::{Row, Status, read};

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_NICE: u32 = 23;

/// Rows: privileges, seccomp.
pub fn rows() -> Vec<Row> {
    match read("/proc/self/status") {
        Ok(status) => {
            vec![privileges(terrace_os::effective_user_id(), &status), seccomp(&status)]
        }
        Err(error) => ["privileges", "seccomp"]
            .map(|name| Row::unreadable(name, "/proc/self/status", &error))
            .into(),
    }
}

fn privileges(user: u32, status: &str) -> Row {
    let name = "privileges";
    let Some(effective) =
        field(status, "CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok())
    else {
        return Row::new(
            name,
            Status::Warn,
            format!("user {user}, capabilities not shown"),
            "not known",
            "",
        );
    };
    let has = |capability: u32| effective & 1 << capability != 0;
    let word = |capability: u32| if has(capability) { "" } else { "no " };
    let found = format!(
        "user {user}, {}CAP_SYS_PTRACE, {}CAP_SYS_NICE",
        word(CAP_SYS_PTRACE),
        word(CAP_SYS_NICE)
    );
    let (ptrace, nice) = (
        "userfaultfd depends on the device or the sysctl",
        "restores run at normal priority and may wait for a CPU",
    );
    match (has(CAP_SYS_PTRACE), has(CAP_SYS_NICE)) {
        (true, true) => Row::ok(
            name,
            found,
            "userfaultfd is open to us, and restores can run at raised priority",
        ),
        (false, true) => Row::new(name, Status::Warn, found, ptrace, "see userfaultfd above"),
        (true, false) => Row::new(
            name,
            Status::Warn,
            found,
            nice,
            "grant CAP_SYS_NICE, or raise the limit with ulimit -e",
        ),
        (false, false) => Row::new(
            name,
            Status::Warn,
            found,
            format!("{ptrace}; {nice}"),
            "see userfaultfd above; grant CAP_SYS_NICE for priority",
        ),
    }
}

fn seccomp(status: &str) -> Row {
    let name = "seccomp";
    match field(status, "Seccomp") {
        Some("0") => Row::ok(name, "no filter", "no system call is refused by one"),
        Some("2") => Row::new(
            name,
            Status::Warn,
            "a filter is in force",
            "if it refuses userfaultfd, the row above says so; later filters of the program are beyond this probe",
            "only if userfaultfd is missing above: allow userfaultfd and ioctl in the container's seccomp profile",
        ),
        Some("1") => Row::new(
            name,
            Status::Warn,
            "strict mode",
            "hardly any system call is allowed",
            "leave strict mode",
        ),
        _ => Row::new(name, Status::Warn, "not shown by this kernel", "not known", ""),
    }
}

/// The value of a `Name:\tvalue` line.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_their_bits() {
        let status =
            "Name:\tterrace\nCapEff:\t0000000000080000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let row = privileges(1000, status);
        assert_eq!(
            (row.status, row.found.as_str()),
            (Status::Warn, "user 1000, CAP_SYS_PTRACE, no CAP_SYS_NICE")
        );
        assert_eq!(seccomp(status).found, "a filter is in force");
        assert_eq!(privileges(0, "CapEff:\t000001fffeffffff\n").status, Status::Ok);
        assert_eq!(privileges(0, "").status, Status::Warn);
        assert_eq!(seccomp("Seccomp:\t0\n").status, Status::Ok);
    }
}
