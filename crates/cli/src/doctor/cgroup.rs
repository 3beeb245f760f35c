//! The memory limit of the control group we are in, version 2 or 1. Terrace never steers by it
//! (page cache counts there too); its user should know it.

use super::row::{Row, Status, read};
use crate::processes::growth::Room;
use crate::quantity::bytes;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest multiple of a page in an i64; anything near is meant.
const NO_LIMIT: u64 = 1 << 62;

/// Row: the memory limit of the control group.
pub fn rows() -> Vec<Row> {
    let name = "cgroup limit";
    let texts =
        read("/proc/self/cgroup").and_then(|groups| Ok((groups, read("/proc/self/mountinfo")?)));
    vec![match texts {
        Ok((groups, mounts)) => judge(name, lowest(&groups, &mounts)),
        Err(error) => Row::unreadable(name, "/proc/self/cgroup", &error),
    }]
}

/// The lowest limit of our group and those around it, and where it is written; `None` without one,
/// or where that cannot be read.
pub fn lowest_limit() -> Option<(u64, PathBuf)> {
    lowest(&read("/proc/self/cgroup").ok()?, &read("/proc/self/mountinfo").ok()?)
}

/// What our group and those around it may still take, for each that has a limit. Clean pages of
/// files that are not in use can be had back, so they are no use. Where the use cannot be read,
/// there is no room.
pub fn rooms() -> Vec<Room> {
    let texts =
        read("/proc/self/cgroup").and_then(|groups| Ok((groups, read("/proc/self/mountinfo")?)));
    texts.map_or_else(
        |_| Vec::new(),
        |(groups, mounts)| {
            all_limits(&groups, &mounts).iter().map(|(limit, file)| room(*limit, file)).collect()
        },
    )
}

fn room(limit: u64, file: &Path) -> Room {
    let version_2 = file.file_name().is_some_and(|name| name == "memory.max");
    let (used, inactive) = if version_2 {
        ("memory.current", "inactive_file ")
    } else {
        ("memory.usage_in_bytes", "total_inactive_file ")
    };
    let number = |name: &str| read(file.with_file_name(name)).ok()?.parse::<u64>().ok();
    let stat = read(file.with_file_name("memory.stat")).unwrap_or_default();
    let inactive =
        stat.lines().find_map(|line| line.strip_prefix(inactive)?.parse().ok()).unwrap_or(0);
    let used = number(used).map_or(limit, |used| used.saturating_sub(inactive));
    Room { total: limit, available: limit.saturating_sub(used) }
}

fn judge(name: &'static str, lowest: Option<(u64, PathBuf)>) -> Row {
    match lowest {
        None => Row::ok(name, "none", "memory is limited by the machine only"),
        Some((limit, file)) => Row::new(
            name,
            Status::Warn,
            format!("{} ({})", bytes(limit), file.display()),
            "the program, its page cache and Terrace's compressed memory must fit in it together",
            "keep --dram well below it, or raise it",
        ),
    }
}

/// The lowest limit on the way from our group to the top, and where it is written.
fn lowest(groups: &str, mounts: &str) -> Option<(u64, PathBuf)> {
    all_limits(groups, mounts).into_iter().min()
}

fn all_limits(groups: &str, mounts: &str) -> Vec<(u64, PathBuf)> {
    groups
        .lines()
        .filter_map(|line| file_of(line, mounts))
        .flat_map(|(mount, group, file)| limits(&mount, &group, file))
        .collect()
}

/// For a line of /proc/self/cgroup that is about memory: its mount point, the group's path there,
/// and the limit's file.
fn file_of(line: &str, mounts: &str) -> Option<(PathBuf, PathBuf, &'static str)> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let (kind, option, file) = match (hierarchy, controllers) {
        ("0", "") => ("cgroup2", None, "memory.max"),
        (_, controllers) if controllers.split(',').any(|c| c == "memory") => {
            ("cgroup", Some("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let (root, mount) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (found_kind, options) = (after.next()?, after.nth(1)?);
        let mut before = before.split(' ').skip(3);
        let place = (before.next()?, before.next()?);
        (found_kind == kind && option.is_none_or(|wanted| options.split(',').any(|o| o == wanted)))
            .then_some(place)
    })?;
    // In a container the mount shows a part of the hierarchy only.
    let group = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
    Some((PathBuf::from(mount), group.strip_prefix("/").unwrap_or(group).to_owned(), file))
}

fn limits(mount: &Path, group: &Path, file: &str) -> Vec<(u64, PathBuf)> {
    let files = group.ancestors().map(|part| mount.join(part).join(file));
    files
        .filter_map(|path| Some((read(&path).ok()?.parse().ok()?, path)))
        .filter(|(limit, _)| *limit < NO_LIMIT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let at = scratch.path();
        fs::create_dir_all(at.join("a/b")).unwrap();
        for (file, limit) in
            [("memory.max", "max"), ("a/memory.max", "1073741824"), ("a/b/memory.max", "max")]
        {
            fs::write(at.join(file), format!("{limit}\n")).unwrap();
        }
        let mounts =
            format!("30 23 0:26 / {} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate", at.display());
        assert_eq!(lowest("0::/a/b", &mounts), Some((1 << 30, at.join("a/memory.max"))));
        assert_eq!(room(1 << 30, &at.join("a/memory.max")), Room { total: 1 << 30, available: 0 });
        fs::write(at.join("a/memory.current"), "536870912\n").unwrap();
        fs::write(at.join("a/memory.stat"), "anon 1\ninactive_file 268435456\nactive_file 7\n")
            .unwrap();
        assert_eq!(
            room(1 << 30, &at.join("a/memory.max")),
            Room { total: 1 << 30, available: 3 << 28 }
        );
        assert_eq!(lowest("0::/", &mounts), None);
        assert_eq!(lowest("0::/a", "nonsense\n"), None);
        fs::write(at.join("a/memory.limit_in_bytes"), "9223372036854771712").unwrap();
        let version_1 = format!("31 23 0:27 / {} rw - cgroup cgroup rw,memory", at.display());
        assert_eq!(lowest("4:memory:/a", &version_1), None);
        fs::write(at.join("a/memory.limit_in_bytes"), "4096").unwrap();
        assert_eq!(lowest("4:cpu,memory:/a\n0::/a", &version_1).map(|found| found.0), Some(4096));
    }
}
