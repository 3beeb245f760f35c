//! How much memory there is (from /proc/meminfo: the sizes of NUMA nodes lag behind on some
//! machines), and huge pages.

use super::row::{Row, Status, chosen, read};
use crate::processes::growth::Room;
use crate::quantity::bytes;
use terrace_tiers::meminfo_bytes;

/// What the kernel's DAMON_STAT (since Linux 6.17, where it is on) says of all memory.
const DAMON_STAT: &str = "/sys/module/damon_stat/parameters";
/// Times for which it is told how much of memory was idle, ms.
const IDLE_MS: [i64; 2] = [10_000, 120_000];
/// The name of the row that is shown although all is well.
pub const IDLE: &str = "idle memory";

/// Rows: memory, how much of it is idle where the kernel knows, huge pages.
pub fn rows() -> Vec<Row> {
    let mut rows = known_rows();
    rows.extend(idle());
    rows
}

fn known_rows() -> Vec<Row> {
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

/// The row for idle memory; `None` where the kernel does not tell it.
fn idle() -> Option<Row> {
    let enabled = read(format!("{DAMON_STAT}/enabled")).ok()?;
    if !matches!(enabled.as_str(), "Y" | "y" | "1") {
        return None;
    }
    idle_row(&read(format!("{DAMON_STAT}/memory_idle_ms_percentiles")).ok()?)
}

/// The row for 101 percentiles of the time for which memory was idle, ms; below 0 for what is in
/// use.
fn idle_row(text: &str) -> Option<Row> {
    let percentiles: Vec<i64> =
        text.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().ok()?;
    // All are 0 before its first poll.
    if percentiles.len() != 101 || percentiles.iter().all(|ms| *ms == 0) {
        return None;
    }
    let [short, long] = IDLE_MS.map(|least| {
        let idle = percentiles.iter().position(|ms| *ms >= least);
        idle.map_or(0, |first| 100 - first)
    });
    Some(Row::ok(
        IDLE,
        format!(
            "{long}% of this machine's memory was idle for 2 minutes, {short}% for 10 s (DAMON_STAT)"
        ),
        "terrace plan PID says what of it a program could do without",
    ))
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
    fn idle_memory_is_told_by_percentiles() {
        let numbers = |of: fn(i64) -> i64| -> String {
            (0..=100).map(of).map(|ms| ms.to_string()).collect::<Vec<_>>().join(",")
        };
        // A fifth in use, a fifth idle for a second, the rest for 3 minutes.
        let text = numbers(|percent| match percent {
            ..20 => -500,
            20..40 => 1_000,
            _ => 180_000,
        });
        let row = idle_row(&text).unwrap();
        assert!(row.found.starts_with("60% of this machine's memory was idle for 2 minutes, 60%"));
        let busy = idle_row(&numbers(|percent| percent - 100)).unwrap();
        assert!(busy.found.starts_with("0% of"), "{}", busy.found);
        assert_eq!(idle_row(&numbers(|_| 0)), None);
        assert_eq!((idle_row("1,2,3"), idle_row("none")), (None, None));
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let row =
            memory("MemTotal:       25296192 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\n");
        assert_eq!(row.found, "24.1G in all, 12.0G available");
        assert_eq!(memory("MemTotal: lots\n").status, Status::Warn);
        assert_eq!(huge_pages("always [madvise] never").found, "transparent huge pages: madvise");
    }
}
