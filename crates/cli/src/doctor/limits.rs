//! Limits on address space and mappings that Terrace's zones and registrations run into.

use super::row::{Row, Status, read};
use crate::quantity::bytes;

/// The kernel's default for vm.max_map_count.
const DEFAULT_MAPPINGS: u64 = 65_530;

/// Rows: overcommit, mappings, address space.
pub fn rows() -> Vec<Row> {
    vec![
        match read("/proc/sys/vm/overcommit_memory") {
            Ok(mode) => overcommit(&mode),
            Err(error) => Row::unreadable("overcommit", "vm.overcommit_memory", &error),
        },
        match read("/proc/sys/vm/max_map_count") {
            Ok(count) => mappings(&count),
            Err(error) => Row::unreadable("mappings", "vm.max_map_count", &error),
        },
        address_space(),
    ]
}

fn overcommit(mode: &str) -> Row {
    let name = "overcommit";
    match mode {
        "0" | "1" => Row::ok(
            name,
            format!("vm.overcommit_memory={mode}"),
            "address space can be reserved ahead",
        ),
        _ => Row::new(
            name,
            Status::Warn,
            format!("vm.overcommit_memory={mode}"),
            "reserved address space counts as used memory, so reservations may be refused",
            "set sysctl vm.overcommit_memory=0 (or 1)",
        ),
    }
}

fn mappings(count: &str) -> Row {
    let name = "mappings";
    let found = format!("vm.max_map_count={count}");
    match count.parse::<u64>() {
        Ok(number) if number >= DEFAULT_MAPPINGS => {
            Row::ok(name, found, "enough; large programs may use half of them for registrations")
        }
        Ok(_) => Row::new(
            name,
            Status::Warn,
            found,
            "less than the usual 65530: evictions are registered in coarser runs",
            "set sysctl vm.max_map_count=65530 or more",
        ),
        Err(_) => Row::new(name, Status::Warn, found, "not understood", ""),
    }
}

fn address_space() -> Row {
    let name = "address space";
    let limit = match terrace_os::limit_of(libc::RLIMIT_AS) {
        Ok((limit, _)) => limit,
        Err(errno) => return Row::unreadable(name, "RLIMIT_AS", &terrace_os::io_error(errno)),
    };
    if limit == libc::RLIM_INFINITY {
        return Row::ok(name, "not limited (RLIMIT_AS)", "reservations are free");
    }
    Row::new(
        name,
        Status::Warn,
        format!("limited to {} (RLIMIT_AS)", bytes(limit)),
        "Terrace's reservations count against it, and the program may run out of addresses",
        "raise it with ulimit -v unlimited",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_gets_in_the_way_is_a_warning() {
        assert_eq!(
            [overcommit("0"), overcommit("1"), overcommit("2")].map(|row| row.status),
            [Status::Ok, Status::Ok, Status::Warn]
        );
        assert_eq!(
            [mappings("65530"), mappings("1000"), mappings("x")].map(|row| row.status),
            [Status::Ok, Status::Warn, Status::Warn]
        );
    }
}
