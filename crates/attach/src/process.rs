//! What /proc says of a process.

use crate::sys::PAGE;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

/// A mapping, as `/proc/PID/maps` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Private, anonymous, readable and writable, not executable, and no stack that grows.
    pub is_data: bool,
    pub name: String,
}

/// The mappings of a process.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).context("cannot read the maps")?;
    Ok(text.lines().filter_map(mapping).collect())
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let (access, _offset, _device) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.next()?;
    let name = fields.collect::<Vec<_>>().join(" ");
    let is_named = name.starts_with('[') && name != "[heap]" && !name.starts_with("[anon:");
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        is_data: access == "rw-p" && inode == "0" && !is_named,
        name,
    })
}

/// A line of `/proc/PID/status`, without its name.
pub fn status_line(pid: i32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_string())
}

/// Resident anonymous memory, bytes.
pub fn resident_anonymous(pid: i32) -> Option<u64> {
    let kib: u64 = status_line(pid, "RssAnon")?.split(' ').next()?.parse().ok()?;
    Some(kib << 10)
}

/// The field of `/proc/PID/stat` with this number, counted from 1 as in proc(5), from the third on.
pub fn stat_field(pid: i32, field: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = text.rsplit_once(") ")?.1;
    after.split(' ').nth(field.checked_sub(3)?).map(str::to_string)
}

/// The name of the program.
pub fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_string()
}

/// The number by which the process's own PID namespace knows it.
pub fn number_there(pid: i32) -> Option<i32> {
    status_line(pid, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}

fn pid_namespace(pid: i32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|about| about.ino())
}

/// All processes that this process sees.
pub fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process that a process's PID namespace knows by a number.
pub fn find_beside(pid: i32, number: i32) -> Option<i32> {
    let namespace = pid_namespace(pid)?;
    let is_it =
        |other: i32| number_there(other) == Some(number) && pid_namespace(other) == Some(namespace);
    if is_it(number) { Some(number) } else { all().find(|other| is_it(*other)) }
}

/// A `syscall` instruction in the vDSO of a process.
pub fn syscall_instruction(pid: i32) -> Result<u64> {
    let maps = mappings(pid)?;
    let Some(vdso) = maps.iter().find(|mapping| mapping.name == "[vdso]") else {
        bail!("the process has no vDSO: it cannot be attached to");
    };
    let mut code = vec![0; (vdso.end - vdso.start).min(16 * PAGE) as usize];
    let memory = File::open(format!("/proc/{pid}/mem")).context("cannot read the memory")?;
    let got = memory.read_at(&mut code, vdso.start).context("cannot read the vDSO")?;
    let found = code[..got].windows(2).position(|pair| pair == [0x0f, 0x05]);
    found
        .map(|offset| vdso.start + offset as u64)
        .context("the vDSO has no system call: the process cannot be attached to")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_told_from_the_rest() {
        let lines = [
            "c000000000-c000400000 rw-p 00000000 00:00 0 ",
            "01a00000-01b00000 rw-p 00000000 00:00 0                  [heap]",
            "7f0000000000-7f0000001000 rw-p 00000000 00:00 0          [anon: Go: heap]",
            "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0          [stack]",
            "00400000-00500000 rw-p 00000000 08:01 77                 /bin/x y",
            "7f0000000000-7f0000001000 rw-s 00000000 00:00 0 ",
            "7f0000000000-7f0000001000 rwxp 00000000 00:00 0 ",
        ];
        let data: Vec<bool> = lines.iter().map(|line| mapping(line).unwrap().is_data).collect();
        assert_eq!(data, [true, true, true, false, false, false, false]);
        assert_eq!(mapping(lines[4]).unwrap().name, "/bin/x y");
    }

    #[test]
    fn a_system_call_is_found_in_the_vdso() {
        assert!(syscall_instruction(std::process::id() as i32).is_ok());
    }
}
