//! Recordings as streams: accesses to pages, and objects (`terrace_trace::accesses`,
//! `terrace_trace::objects`).
//!
//! One that is cut off or damaged is a stream up to there, and says so ([`EndsEarly`]).

use crate::mixed::Mixed;
use crate::objects::{Event, ObjectSource, Request};
use crate::source::{Access, EndsEarly, Source, SourceError};
use std::collections::HashMap;
use std::path::Path;
use terrace_trace::accesses::{Clock, Decoder, Reader, Record, is_write, page_of};
use terrace_trace::objects;

/// Error with the file's name before it.
fn of_file(path: &Path, error: impl std::fmt::Display) -> SourceError {
    SourceError(format!("{}: {error}", path.display()).into())
}

/// Note about a file that had no room for `left_out` more of `what`.
fn full(left_out: u64, what: &str) -> Option<String> {
    (left_out > 0).then(|| format!("the file was full: {left_out} {what} are not in it"))
}

/// Message about a damaged file, of which only the first `read` of `all` records can be read.
fn damaged(why: &str, read: u64, all: u64, what: &str) -> String {
    format!("{why}, behind {read} of {all} {what}")
}

/// What each recorded access stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time of the program from one recorded access to the next, ns.
    pub access_ns: f64,
    /// Accesses to memory, beyond caches; `None` if that is not known.
    pub misses: Option<f64>,
}

/// Time that an access takes with what the program computes for it, where the recording's clock
/// counts accesses, ns: an assumption.
const ACCESS_NS: f64 = 1.0;
/// Time that a miss of the modelled cache takes more, ns: DRAM's latency, with no miss beside it.
const MISS_NS: f64 = 80.0;

/// Recorded accesses to pages, a number of which in a row make a unit.
pub struct Recorded {
    reader: Reader,
    ends_early: EndsEarly,
    decoder: Decoder,
    records: Vec<Record>,
    next: usize,
    /// The unit of each page; empty where pages are units.
    units: Vec<u32>,
    count: u32,
    /// Number of pages in a unit.
    pages: u64,
}

impl Recorded {
    /// Opens a recording in units of `unit_bytes`, a multiple of the recording's pages. They are
    /// numbered in the order in which they are touched first. At least one of them was touched.
    pub fn open(path: &Path, unit_bytes: u64) -> Result<Recorded, SourceError> {
        let reader = Reader::open(path).map_err(|error| of_file(path, error))?;
        let page_bytes = reader.header.page_bytes;
        if unit_bytes < page_bytes || !unit_bytes.is_multiple_of(page_bytes) {
            return Err(of_file(
                path,
                format!(
                    "it has pages of {page_bytes} bytes, of which units of {unit_bytes} cannot be made"
                ),
            ));
        }
        if reader.records() == 0 {
            return Err(of_file(path, "no access is in it"));
        }
        let (units, count) = if unit_bytes == page_bytes {
            (Vec::new(), reader.pages().len())
        } else {
            let mut numbers = HashMap::new();
            let units = reader.pages().iter().map(|page| {
                let next = numbers.len() as u32;
                *numbers
                    .entry((page.process, page.number / (unit_bytes / page_bytes)))
                    .or_insert(next)
            });
            (units.collect(), numbers.len())
        };
        let ends_early = EndsEarly::default();
        reader.incomplete().into_iter().for_each(|why| ends_early.because(why.to_owned()));
        let pages = unit_bytes / page_bytes;
        Ok(Recorded {
            reader,
            ends_early,
            decoder: Decoder::new(),
            records: Vec::new(),
            next: 0,
            units,
            count: count as u32,
            pages,
        })
    }

    /// Regroups units that are pages of 4 KiB into base pages and huge ones. An aligned range of 2
    /// MiB is huge if at least `share` of its pages is touched at all.
    pub fn mixed(self, share: f64) -> Mixed {
        let addresses = self.addresses();
        // Others are not in it.
        Mixed::by_address(Box::new(self), &addresses, |_| true, share)
    }

    /// For each unit in order: its process, and its number there by its address.
    fn addresses(&self) -> Vec<(u32, u64)> {
        let mut addresses = Vec::with_capacity(self.count as usize);
        for (number, page) in (0..).zip(self.reader.pages()) {
            // The first of a unit's pages.
            if self.unit(number) as usize == addresses.len() {
                addresses.push((page.process, page.number / self.pages));
            }
        }
        addresses
    }

    fn unit(&self, page: u32) -> u32 {
        if self.units.is_empty() { page } else { self.units[page as usize] }
    }

    /// Real accesses that each access stands for.
    pub fn period(&self) -> u64 {
        self.reader.header.period.max(1)
    }

    /// Pace of the recorded program. A clock of microseconds tells the time. Where the clock counts
    /// accesses, the time is that of all of them, and of the misses; the kernel's is not in it.
    pub fn pace(&self) -> Pace {
        let records = (self.reader.records() + self.reader.left_out()).max(1) as f64;
        let clock = self.reader.end_clock() as f64 / records;
        let misses = self.reader.header.cache.is_some().then(|| self.period() as f64);
        let access_ns = match self.reader.header.clock {
            Clock::Us => clock * 1e3,
            Clock::Accesses => clock * ACCESS_NS + misses.unwrap_or(0.0) * MISS_NS,
        };
        Pace { access_ns: access_ns.max(ACCESS_NS), misses }
    }

    /// Whether the stream ends where the recording is cut off or damaged, and why.
    pub fn ends_early(&self) -> EndsEarly {
        self.ends_early.clone()
    }

    /// Note that the file had no room for all accesses.
    pub fn note(&self) -> Option<String> {
        full(self.reader.left_out(), "accesses")
    }
}

impl Source for Recorded {
    fn units(&self) -> u32 {
        self.count
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.reader.records())
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        block.clear();
        // One that holds nothing is not the end.
        while block.is_empty() && self.next < self.reader.blocks() {
            if let Err(why) = self.reader.decode(self.next, &mut self.decoder, &mut self.records) {
                let read = (0..self.next).map(|block| u64::from(self.reader.block(block).1)).sum();
                self.ends_early.because(damaged(&why, read, self.reader.records(), "accesses"));
                self.next = usize::MAX;
                break;
            }
            self.next += 1;
            if self.units.is_empty() {
                // Both are the same 32 bits: the vectors change places, and nothing is copied.
                let records = std::mem::take(&mut self.records)
                    .into_iter()
                    .map(|record| Access::new(page_of(record), is_write(record)))
                    .collect();
                self.records = std::mem::replace(block, records)
                    .into_iter()
                    .map(|access| access.unit() << 1 | u32::from(access.is_write()))
                    .collect();
            } else {
                block.extend(self.records.iter().map(|record| {
                    Access::new(self.units[page_of(*record) as usize], is_write(*record))
                }));
            }
        }
        Ok(())
    }
}

/// Recorded objects.
pub struct RecordedObjects {
    reader: objects::Reader,
    ends_early: EndsEarly,
    decoder: Decoder,
    events: Vec<objects::Event>,
    next: usize,
}

impl RecordedObjects {
    /// Opens a file. `ends_early` is told if that is cut off or damaged, by the end of the stream.
    /// It is shared by all streams from the same file.
    pub fn open(path: &Path, ends_early: EndsEarly) -> Result<RecordedObjects, SourceError> {
        let reader = objects::Reader::open(path).map_err(|error| of_file(path, error))?;
        reader.incomplete().into_iter().for_each(|why| ends_early.because(why.to_owned()));
        Ok(RecordedObjects {
            reader,
            ends_early,
            decoder: Decoder::new(),
            events: Vec::new(),
            next: 0,
        })
    }

    /// Real accesses that each access stands for.
    pub fn period(&self) -> u64 {
        self.reader.header.period.max(1)
    }

    /// Whether only what a cache missed was recorded.
    pub fn are_misses(&self) -> bool {
        self.reader.header.cache.is_some()
    }

    /// Note that the file had no room for all events.
    pub fn note(&self) -> Option<String> {
        full(self.reader.left_out(), "events")
    }
}

impl ObjectSource for RecordedObjects {
    fn next_block(&mut self, events: &mut Vec<Event>) -> Result<(), SourceError> {
        events.clear();
        while events.is_empty() && self.next < self.reader.blocks() {
            if let Err(why) = self.reader.decode(self.next, &mut self.decoder, &mut self.events) {
                self.ends_early.because(damaged(
                    &why,
                    self.next as u64,
                    self.reader.blocks() as u64,
                    "blocks of events",
                ));
                self.next = usize::MAX;
                break;
            }
            self.next += 1;
            events.extend(self.events.iter().filter_map(|event| match *event {
                objects::Event::Born { bytes, context, .. } => {
                    Some(Event::Allocated(Request { bytes, context, near: None }))
                }
                objects::Event::Died { object, .. } => Some(Event::Freed(object)),
                objects::Event::Resized { object, bytes, .. } => {
                    Some(Event::Resized { object, bytes })
                }
                objects::Event::Access { object, offset, written } => {
                    Some(Event::Touched { object, offset, bytes: 1, write: written })
                }
                objects::Event::Counting { .. } => None,
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Filter, HeapSource, layouts};
    use terrace_trace::accesses::{CacheModel, Header, Page, Writer};

    fn header(period: u64) -> Header {
        Header {
            terrace: "0".into(),
            command: vec!["program".into()],
            source: "hooks".into(),
            clock: Clock::Accesses,
            period,
            rate_hz: 0,
            cache: Some(CacheModel { bytes: 1 << 20, ways: 16, line_bytes: 64 }),
            page_bytes: 4096,
            writes: true,
        }
    }

    fn all(source: &mut dyn Source) -> Vec<(u32, bool)> {
        let (mut all, mut block) = (Vec::new(), Vec::new());
        loop {
            source.next_block(&mut block).unwrap();
            if block.is_empty() {
                return all;
            }
            all.extend(block.iter().map(|access| (access.unit(), access.is_write())));
        }
    }

    #[test]
    fn accesses_come_back_by_page_or_by_region() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.acc");
        let mut writer = Writer::create(&path, &header(8), u64::MAX).unwrap();
        // The second page is in the first one's region; the third has its number in another
        // process; the fourth is in the next region.
        let pages = [(1, 512), (1, 513), (2, 512), (1, 1024), (1, 513)]
            .map(|(process, number)| Page { process, number });
        for (clock, page) in (0..).zip(pages) {
            writer.append(page, clock % 2 == 1, clock).unwrap();
        }
        writer.finish(9).unwrap();
        let mut by_page = Recorded::open(&path, 4096).unwrap();
        assert_eq!(
            (by_page.units(), by_page.accesses(), by_page.period(), by_page.note()),
            (4, Some(5), 8, None)
        );
        // The clock is at 9 after five records, each of which is one of eight misses.
        let pace = by_page.pace();
        assert!((pace.access_ns - 641.8).abs() < 1e-9 && pace.misses == Some(8.0), "{pace:?}");
        assert_eq!(all(&mut by_page), [(0, false), (1, true), (2, false), (3, true), (1, false)]);
        assert_eq!(by_page.ends_early().why(), None);
        let mut by_region = Recorded::open(&path, 2 << 20).unwrap();
        assert_eq!(
            (by_region.units(), all(&mut by_region)),
            (3, vec![(0, false), (0, true), (1, false), (2, true), (0, false)])
        );
        let error = |unit_bytes| Recorded::open(&path, unit_bytes).err().unwrap().to_string();
        assert!(
            error(1024)
                .ends_with("it has pages of 4096 bytes, of which units of 1024 cannot be made"),
            "{}",
            error(1024)
        );
        // Cut off: what is left is read, and it is said.
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let mut cut = Recorded::open(&path, 4096).unwrap();
        assert_eq!(
            (cut.ends_early().why(), all(&mut cut).len()),
            (Some("its index is damaged, or what is behind it"), 5)
        );
        // Damaged, where its index is whole: it ends there, as often as one asks.
        let mut damaged = bytes.clone();
        let records =
            bytes.windows(5).position(|bytes| bytes[0] == 2 && bytes[2..] == [0; 3]).unwrap();
        damaged[records + 12] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let mut damaged = Recorded::open(&path, 4096).unwrap();
        assert_eq!((damaged.accesses(), damaged.ends_early().why()), (Some(5), None));
        assert!(all(&mut damaged).is_empty() && all(&mut damaged).is_empty());
        assert_eq!(
            damaged.ends_early().why(),
            Some("a block's checksum is wrong, behind 0 of 5 accesses")
        );
        std::fs::write(&path, b"something else").unwrap();
        assert!(Recorded::open(&path, 4096).err().unwrap().to_string().contains("a.acc: "));
    }

    #[test]
    fn objects_come_back_in_another_layout() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.obj");
        let header = objects::Header {
            terrace: "0".into(),
            command: vec!["program".into()],
            source: "hooks".into(),
            clock: Clock::Accesses,
            period: 1,
            cache: None,
            depth: 4,
        };
        let mut writer = objects::Writer::create(&path, &header, u64::MAX).unwrap();
        writer.name_context(vec!["one".into()]);
        writer.name_context(vec!["two".into()]);
        let born = |address, bytes, context, clock| objects::Event::Born {
            address,
            bytes,
            context,
            clock,
        };
        let access = |object, offset| objects::Event::Access { object, offset, written: false };
        for event in [
            born(0x1000, 100, 0, 0),
            born(0x1080, 100, 1, 1),
            objects::Event::Counting { clock: 2 },
            access(0, 0),
            access(1, 0),
            objects::Event::Resized { object: 1, bytes: 9000, clock: 3 },
            access(1, 8999),
            objects::Event::Died { object: 0, clock: 4 },
        ] {
            writer.append(event, 5).unwrap();
        }
        writer.finish(9).unwrap();
        let make = || -> Box<dyn ObjectSource> {
            Box::new(RecordedObjects::open(&path, EndsEarly::default()).unwrap())
        };
        let ends_early = EndsEarly::default();
        let opened = RecordedObjects::open(&path, ends_early.clone()).unwrap();
        assert_eq!(
            (opened.period(), opened.are_misses(), opened.note(), ends_early.why()),
            (1, false, None, None)
        );
        let mut by_time = HeapSource::new(&make, layouts::Kind::Time, Filter::All, 4096).unwrap();
        // 8 + 112 + 112 + 9000 bytes.
        assert_eq!((by_time.units(), by_time.accesses()), (3, Some(3)));
        assert_eq!(all(&mut by_time), [(0, false), (0, false), (2, false)]);
        let mut by_context =
            HeapSource::new(&make, layouts::Kind::Context, Filter::All, 2 << 20).unwrap();
        assert_eq!(all(&mut by_context), [(0, false), (1, false), (1, false)]);
    }
}
