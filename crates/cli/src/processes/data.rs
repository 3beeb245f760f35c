//! Where processes have their data, by their mappings: what a sampled address must be in to be an
//! access that placement is about.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};
use terrace_trace::counts::Mapping;

/// Bytes of a region: what samples are counted by.
pub const REGION_BYTES: u64 = terrace_os::REGION as u64;
/// Most processes whose mappings are kept.
const PROCESSES_MAX: usize = 64;
/// Most ranges whose names are kept; beyond that, processes that come new have none.
const NAMES_MAX: usize = 1 << 16;
/// Least time between two readings of the mappings for an unknown address. It is also at least a
/// multiple of what one took, as there may be tens of thousands of mappings.
const READ_EVERY: Duration = Duration::from_millis(20);
const READ_SHARE: u32 = 100;

/// Mappings of one process that hold its data, sorted, neighbours joined.
struct Mappings {
    ranges: Vec<Range<u64>>,
    /// No reading before this time.
    again: Instant,
}

/// The data mappings of all processes that were asked about.
#[derive(Default)]
pub struct Data {
    processes: HashMap<u32, Mappings>,
    /// What mappings are called, where that is asked for.
    names: Option<Names>,
}

impl Data {
    /// A value that keeps names for [`Data::names`].
    pub fn with_names() -> Data {
        Data { names: Some(Names::default()), ..Data::default() }
    }

    /// What the mappings are called that were ever seen, in the order of process and address.
    pub fn names(&self) -> Vec<Mapping> {
        let all = self.names.iter().flat_map(|names| &names.0);
        all.map(|(&(process, start), (end, name))| Mapping {
            process,
            start,
            end: *end,
            name: name.clone(),
        })
        .collect()
    }

    /// Whether an address is in private anonymous memory that can be written, and not the first
    /// thread's stack.
    pub fn contains(&mut self, process: u32, address: u64) -> bool {
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let known = self
            .processes
            .entry(process)
            .or_insert_with(|| Mappings { ranges: Vec::new(), again: Instant::now() });
        known.contains(address)
            || known.read(process, self.names.as_mut()) && known.contains(address)
    }
}

/// What stretches of data are called, by process and first address, and where they end.
#[derive(Default)]
struct Names(BTreeMap<(u32, u64), (u64, String)>);

impl Names {
    /// Notes the names that `maps` has: they go before what was known.
    fn note(&mut self, process: u32, maps: &str) {
        if self.0.len() >= NAMES_MAX
            && self.0.range((process, 0)..=(process, u64::MAX)).count() == 0
        {
            return;
        }
        for (range, name) in named_ranges(maps) {
            self.forget(process, &range);
            self.0.insert((process, range.start), (range.end, name));
        }
    }

    /// Forgets what is known of that range.
    fn forget(&mut self, process: u32, range: &Range<u64>) {
        let before = self.0.range(..(process, range.end)).rev();
        let above: Vec<u64> = before
            .take_while(|((of, _), (end, _))| *of == process && *end > range.start)
            .map(|((_, start), _)| *start)
            .collect();
        for start in above {
            let (end, name) = self.0.remove(&(process, start)).expect("it was just found");
            if end > range.end {
                self.0.insert((process, range.end), (end, name.clone()));
            }
            if start < range.start {
                self.0.insert((process, start), (range.start, name));
            }
        }
    }
}

impl Mappings {
    fn contains(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= address);
        after > 0 && self.ranges[after - 1].contains(&address)
    }

    /// Reads the mappings of a process; false if it is too early.
    fn read(&mut self, process: u32, names: Option<&mut Names>) -> bool {
        let begun = Instant::now();
        if begun < self.again {
            return false;
        }
        // Of a process that has ended nothing can be read, and what is known of it stands.
        let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let ranges = ranges(&text);
        if !ranges.is_empty() {
            self.ranges = ranges;
            if let Some(names) = names {
                names.note(process, &text);
            }
        }
        let now = Instant::now();
        self.again = now + READ_EVERY.max((now - begun) * READ_SHARE);
        true
    }
}

/// The ranges of `maps` that are data.
fn ranges(maps: &str) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for range in maps.lines().filter_map(data_range) {
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

/// A line of `maps`.
struct Line<'a> {
    range: Range<u64>,
    is_writable: bool,
    name: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        // Addresses, rights, offset, device, inode, and a name that may have spaces.
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_writable = fields.next()?.starts_with("rw-p");
        let name = fields.nth(3).unwrap_or_default().trim();
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Line { range: number(start)?..number(end)?, is_writable, name })
    }

    fn is_data(&self) -> bool {
        let is_anonymous =
            self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon");
        self.is_writable && is_anonymous
    }
}

/// The range of a line of `maps`, if it is one of the program's data.
fn data_range(line: &str) -> Option<Range<u64>> {
    Line::parse(line).filter(Line::is_data).map(|line| line.range)
}

/// The ranges of `maps` that are data, and what they are called. Ranges of one name in the same
/// region or in neighbouring ones are one, where no other data lies between them. What has no name
/// and lies directly behind a file's writable mapping is that file's static data (`.bss`).
fn named_ranges(maps: &str) -> Vec<(Range<u64>, String)> {
    let mut named: Vec<(Range<u64>, String)> = Vec::new();
    let mut file: Option<(u64, &str)> = None;
    for line in maps.lines().filter_map(Line::parse) {
        if line.is_data() {
            let behind = file.filter(|(end, _)| line.name.is_empty() && *end == line.range.start);
            let name = behind.map_or(line.name.to_owned(), |(_, path)| {
                format!("{} .bss", path.rsplit('/').next().unwrap_or(path))
            });
            match named.last_mut() {
                Some((last, of)) if *of == name && line.range.start - last.end < REGION_BYTES => {
                    last.end = line.range.end;
                }
                _ => named.push((line.range, name)),
            }
            file = None;
        } else {
            let is_file = line.is_writable && line.name.starts_with('/');
            file = is_file.then_some((line.range.end, line.name));
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_private_anonymous_memory() {
        let heap =
            "5581c0a00000-5581c0a21000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(data_range(heap), Some(0x5581_c0a0_0000..0x5581_c0a2_1000));
        assert!(data_range("7f00aa000000-7f00bb000000 rw-p 00000000 00:00 0 ").is_some());
        assert!(
            data_range("7f00aa000000-7f00bb000000 rw-p 00000000 00:00 0 [anon:jemalloc]").is_some()
        );
        for line in [
            "7f00aa000000-7f00bb000000 r--p 00000000 00:00 0 ",
            "7f00aa000000-7f00bb000000 rw-s 00000000 00:00 0 ",
            "7f00aa000000-7f00bb000000 rw-p 00001000 fe:00 77 /usr/lib/libc.so.6",
            "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]",
            "",
        ] {
            assert_eq!(data_range(line), None, "{line}");
        }
    }

    #[test]
    fn neighbours_are_one_range() {
        let maps = "1000-2000 rw-p 0 00:00 0\n2000-4000 rw-p 0 00:00 0\n4000-5000 r--p 0 00:00 0\n5000-6000 rw-p 0 00:00 0\n";
        assert_eq!(ranges(maps), [0x1000..0x4000, 0x5000..0x6000]);
    }

    #[test]
    fn ranges_have_names() {
        let maps = "\
            1000-2000 rw-p 00000000 fe:00 7                          /opt/a b/app\n\
            2000-4000 rw-p 00000000 00:00 0 \n\
            5000-6000 rw-p 00000000 00:00 0                          [heap]\n\
            10000000-10400000 rw-p 00000000 00:00 0 \n\
            10400000-10401000 ---p 00000000 00:00 0 \n\
            10401000-10402000 rw-p 00000000 00:00 0 \n\
            10402000-10403000 rw-p 00000000 00:00 0                  [anon: a heap]\n\
            10403000-10404000 rw-p 00000000 fe:00 8                  /lib/libc.so.6\n\
            10404000-10405000 ---p 00000000 fe:00 8                  /lib/libc.so.6\n\
            10405000-10406000 rw-p 00000000 00:00 0 \n";
        let found = named_ranges(maps);
        let found: Vec<_> = found.iter().map(|(range, name)| (range.clone(), &name[..])).collect();
        assert_eq!(
            found,
            [
                (0x2000..0x4000, "app .bss"),
                (0x5000..0x6000, "[heap]"),
                (0x1000_0000..0x1040_2000, ""),
                (0x1040_2000..0x1040_3000, "[anon: a heap]"),
                (0x1040_5000..0x1040_6000, ""),
            ]
        );
    }

    #[test]
    fn what_was_mapped_last_goes_before_what_was_known() {
        let mut names = Names::default();
        names.note(1, "1000-9000 rw-p 0 00:00 0 [heap]\n");
        names.note(2, "1000-9000 rw-p 0 00:00 0 [anon:other]\n");
        names.note(1, "3000-4000 rw-p 0 00:00 0 [anon:a]\n8000-a000 rw-p 0 00:00 0 \n");
        let data = Data { names: Some(names), ..Data::default() };
        let told: Vec<_> =
            data.names().into_iter().map(|m| (m.process, m.start, m.end, m.name)).collect();
        let of = |process, start, end, name: &str| (process, start, end, name.to_owned());
        assert_eq!(
            told,
            [
                of(1, 0x1000, 0x3000, "[heap]"),
                of(1, 0x3000, 0x4000, "[anon:a]"),
                of(1, 0x4000, 0x8000, "[heap]"),
                of(1, 0x8000, 0xa000, ""),
                of(2, 0x1000, 0x9000, "[anon:other]"),
            ]
        );
    }

    #[test]
    fn addresses_of_this_process_are_known() {
        let mut data = Data::default();
        let boxed = Box::new([1u8; 100]);
        let (own, code) =
            (std::process::id(), addresses_of_this_process_are_known as *const () as u64);
        assert!(data.contains(own, boxed.as_ptr() as u64));
        assert!(!data.contains(own, code) && !data.contains(own, 0));
        // Of no process.
        assert!(!data.contains(u32::MAX, boxed.as_ptr() as u64));
    }
}
