//! Where processes have their data, by their mappings: what a sampled address must be in to be an
//! access that placement is about.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of a region: what samples are counted by.
pub const REGION_BYTES: u64 = terrace_pager::table::REGION as u64;
/// Processes whose mappings are kept.
const PROCESSES_MAX: usize = 64;
/// An unknown address is no reason to read the mappings again before this time, nor before so many
/// times what it took (there may be tens of thousands).
const READ_EVERY: Duration = Duration::from_millis(20);
const READ_SHARE: u32 = 100;

/// Mappings of one process that hold its data, sorted, neighbours joined.
struct Mappings {
    ranges: Vec<Range<u64>>,
    /// No reading before this time.
    again: Instant,
}

/// Those of all processes that were asked about.
#[derive(Default)]
pub struct Data {
    processes: HashMap<u32, Mappings>,
}

impl Data {
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
        known.contains(address) || known.read(process) && known.contains(address)
    }
}

impl Mappings {
    fn contains(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= address);
        after > 0 && self.ranges[after - 1].contains(&address)
    }

    /// False if it is too early.
    fn read(&mut self, process: u32) -> bool {
        let begun = Instant::now();
        if begun < self.again {
            return false;
        }
        // Of a process that has ended nothing can be read, and what is known of it stands.
        let text = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let ranges = ranges(&text);
        if !ranges.is_empty() {
            self.ranges = ranges;
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

/// The range of a line of `maps`, if it is one of the program's data.
fn data_range(line: &str) -> Option<Range<u64>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let writable = fields.next()?.starts_with("rw-p");
    let name = fields.nth(3);
    let data = writable && name.is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
    let number = |text| u64::from_str_radix(text, 16).ok();
    data.then_some(number(start)?..number(end)?)
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
    fn addresses_of_this_process_are_known() {
        let mut data = Data::default();
        let boxed = Box::new([1u8; 100]);
        let (own, code) =
            (std::process::id(), addresses_of_this_process_are_known as *const () as u64);
        assert!(data.contains(own, boxed.as_ptr() as u64));
        assert!(!data.contains(own, code) && !data.contains(own, 0));
        // Of nobody.
        assert!(!data.contains(u32::MAX, boxed.as_ptr() as u64));
    }
}
