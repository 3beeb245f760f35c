//! What /proc says of a process.

use crate::sys::{self, PAGE};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};

/// A mapping, as `/proc/PID/maps` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Private, anonymous, readable and writable, not executable, and no stack that grows.
    pub is_data: bool,
    /// Shared memory: of `mmap`, System V, memfd or a file in /dev/shm.
    pub is_shared: bool,
    pub name: String,
}

/// The threads of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a thread still has its memory, which it gives up early when it ends.
fn has_memory(tid: i32) -> bool {
    status_line(tid, "VmSize").is_some()
}

/// A thread that has the memory of its process: the main thread, or another where that has ended.
pub fn with_memory(pid: i32) -> i32 {
    if has_memory(pid) {
        return pid;
    }
    threads(pid).into_iter().find(|tid| has_memory(*tid)).unwrap_or(pid)
}

/// Whether two threads have different memories. A thread that is ending has none.
pub fn has_other_memory(a: i32, b: i32) -> bool {
    // A thread that has memory afterwards had it when both were compared.
    sys::shares_memory(a, b) == Some(false) && has_memory(a) && has_memory(b)
}

/// The ranges that a forked child finds empty (MADV_WIPEONFORK): start and end.
pub fn wiped_in_children(pid: i32) -> Vec<(u64, u64)> {
    let pid = with_memory(pid);
    let Ok(file) = File::open(format!("/proc/{pid}/smaps")) else { return Vec::new() };
    let (mut wiped, mut range) = (Vec::new(), (0, 0));
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if let Some(mapping) = mapping(&line) {
            range = (mapping.start, mapping.end);
        } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "wf") {
            wiped.push(range);
        }
    }
    wiped
}

/// The mappings of a process.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>> {
    let pid = with_memory(pid);
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).context("cannot read the maps")?;
    Ok(text.lines().filter_map(mapping).collect())
}

/// How the names of shared memory begin.
const SHARED: [&str; 4] = ["/dev/zero", "/SYSV", "/memfd:", "/dev/shm/"];

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
        is_shared: access.starts_with("rw-s") && SHARED.iter().any(|kind| name.starts_with(kind)),
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
    Some(status_kib(pid, "RssAnon")? << 10)
}

/// A line of `/proc/PID/status` about memory, KiB. Any thread tells it.
pub fn status_kib(pid: i32, name: &str) -> Option<u64> {
    let line = status_line(pid, name).or_else(|| status_line(with_memory(pid), name))?;
    line.split(' ').next()?.parse().ok()
}

/// The lines of `/proc/PID/smaps_rollup` about memory: name and KiB.
pub fn rollup(pid: i32) -> Option<Vec<(String, u64)>> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        Some((name.to_string(), rest.trim().strip_suffix(" kB")?.parse().ok()?))
    };
    Some(text.lines().filter_map(line).collect())
}

/// Anonymous and shared memory that a process has on a node, bytes. It walks page tables.
pub fn on_node(pid: i32, node: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    text.lines().map(|line| on_node_of_line(line, node)).sum()
}

fn on_node_of_line(line: &str, node: u32) -> u64 {
    let number = |name: &str| {
        let mut words = line.split_ascii_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    let is_shared = SHARED.iter().any(|kind| line.contains(&format!("file={kind}")));
    if number("anon").is_none() && !is_shared {
        return 0;
    }
    let kib = number("kernelpagesize_kB").unwrap_or(PAGE >> 10);
    number(&format!("N{node}")).unwrap_or(0) * (kib << 10)
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

/// The children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: String = lists.collect::<Vec<_>>().join(" ");
    all.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The file of a program: its device and number there.
pub type Program = (u64, u64);

/// The program that a process executes; `None` where that cannot be known, as while it ends.
pub fn program(pid: i32) -> Option<Program> {
    let file = fs::metadata(format!("/proc/{}/exe", with_memory(pid))).ok()?;
    Some((file.dev(), file.ino()))
}

/// Whether a process is frozen with its control group: by `docker pause`, for example.
pub fn is_frozen(pid: i32) -> bool {
    let at = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    // Of the second version of control groups, whose function may be part of another; of the first.
    ["do_freezer_trap", "get_signal", "__refrigerator"].contains(&at.as_str())
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

/// The memory of a process, to be read and written where its own access does not matter.
pub fn memory(pid: i32) -> Result<File> {
    let mut options = File::options();
    let pid = with_memory(pid);
    let memory = options.read(true).write(true).open(format!("/proc/{pid}/mem"));
    memory.context("cannot open the memory")
}

/// Address of the program's first instruction, in memory that is code.
pub fn entry(pid: i32) -> Result<u64> {
    const AT_ENTRY: u64 = 9;
    let pid = with_memory(pid);
    let bytes = fs::read(format!("/proc/{pid}/auxv")).context("cannot read the auxv")?;
    let word = |at: &[u8]| u64::from_ne_bytes(at.try_into().unwrap());
    let entry = bytes
        .chunks_exact(16)
        .find(|pair| word(&pair[..8]) == AT_ENTRY)
        .map(|pair| word(&pair[8..]))
        .context("the process does not say where its program begins")?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("cannot read the maps")?;
    let is_code = maps.lines().any(|line| {
        mapping(line).is_some_and(|mapping| mapping.start <= entry && entry + 4 <= mapping.end)
            && line.contains(" r-xp ")
    });
    if !is_code {
        bail!("the program's first code is not in memory any more: it cannot be attached to");
    }
    Ok(entry)
}

/// Whether a page is a file's own, and no copy.
pub fn is_file_page(pid: i32, address: u64) -> bool {
    let mut entry = [0; 8];
    let pid = with_memory(pid);
    let read = File::open(format!("/proc/{pid}/pagemap"))
        .and_then(|file| file.read_exact_at(&mut entry, address / PAGE * 8));
    // Bit 61: of a file, or shared.
    read.is_ok() && (u64::from_ne_bytes(entry) >> 61) & 1 == 1
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
    fn memory_on_a_node_is_told_without_files() {
        let lines = [
            ("7f00 default anon=300 dirty=300 active=0 N0=200 N1=100 kernelpagesize_kB=4", 100),
            ("7f00 default file=/memfd:x\\040(deleted) dirty=7 N1=7 kernelpagesize_kB=4", 7),
            ("7f00 default file=/usr/lib/libc.so.6 mapped=5 N1=5 kernelpagesize_kB=4", 0),
            ("7f00 default anon=2 N1=2 kernelpagesize_kB=2048", 1024),
            ("7f00 default anon=3 N0=3 N11=3 kernelpagesize_kB=4", 0),
        ];
        for (line, pages) in lines {
            assert_eq!(on_node_of_line(line, 1), pages * PAGE, "{line}");
        }
    }

    #[test]
    fn a_system_call_is_found_in_the_vdso() {
        assert!(syscall_instruction(std::process::id() as i32).is_ok());
    }
}
