//! How much memory there is (from /proc/meminfo: the sizes of NUMA nodes lag behind on some
//! machines), and huge pages.

use super::{Row, Status, chosen, read};
use crate::growth::Room;
use crate::quantity::bytes;
use terrace_tiers::meminfo_bytes;

/// Rows: memory, huge pages.
pub fn rows() -> Vec<Row> {
    vec![
        match read("/proc/meminfo") {
            Ok(text) => memory(&text),
            Err(error) => Row::unreadable("memory", "/proc/meminfo", &error),
        },
        match read("/sys/kernel/mm/transparent_hugepage/enabled") {
            Ok(text) => huge_pages(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Row::ok("huge pages", "not in this kernel", "nothing to mind: all pages are 4 KiB")
            }
            Err(error) => Row::unreadable("huge pages", "transparent_hugepage/enabled", &error),
        },
    ]
}

/// Bytes of the machine's memory; `None` where that cannot be read.
pub fn total() -> Option<u64> {
    meminfo_bytes(&read("/proc/meminfo").ok()?, "", "MemTotal")
}

/// What the machine has; `None` where that cannot be read.
pub fn room() -> Option<Room> {
    room_in(&read("/proc/meminfo").ok()?)
}

fn room_in(text: &str) -> Option<Room> {
    Some(Room {
        total: meminfo_bytes(text, "", "MemTotal")?,
        available: meminfo_bytes(text, "", "MemAvailable")?,
    })
}

fn memory(text: &str) -> Row {
    let name = "memory";
    let Some(Room { total, available }) = room_in(text) else {
        return Row::new(name, Status::Warn, "/proc/meminfo is not understood", "not known", "");
    };
    Row::ok(
        name,
        format!("{} in all, {} available", bytes(total), bytes(available)),
        "a size for --dram can be chosen by these",
    )
}

fn huge_pages(text: &str) -> Row {
    let name = "huge pages";
    let mode = chosen(text).unwrap_or(text);
    let consequence = match mode {
        "always" => {
            "huge pages come unasked, but where memory is managed; there what stays hot gets some with --huge-pages hot"
        }
        "madvise" => {
            "programs that ask get huge pages; where memory is managed, what stays hot gets some with --huge-pages hot"
        }
        _ => "all pages are 4 KiB, but for managed memory that stays hot with --huge-pages hot",
    };
    Row::ok(name, format!("transparent huge pages: {mode}"), consequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let row =
            memory("MemTotal:       25296192 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\n");
        assert_eq!(row.found, "24.1G in all, 12.0G available");
        assert_eq!(memory("MemTotal: lots\n").status, Status::Warn);
        assert_eq!(huge_pages("always [madvise] never").found, "transparent huge pages: madvise");
    }
}
