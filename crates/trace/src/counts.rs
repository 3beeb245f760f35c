//! Region × time counts: small enough to record for hours, enough for a heatmap.
//!
//! A file is a magic number and then blocks ([`crate::framing`]). The first is the header (JSON).
//! Then come windows, in the order of time. At the end of a recording that was finished are the
//! names of mappings and an end. So whatever is cut off or overwritten, the windows before it can
//! be read.
//!
//! The size is bounded: when a file would grow beyond its limit, every two neighbouring windows
//! become one and it is written anew. (What one window with every region in it takes, it takes at
//! least.)

use crate::framing::{ReadError, block, check_magic, next_block, put, take};
use crate::kinds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

/// First bytes of a file: the format and its version.
pub const MAGIC: [u8; 8] = kinds::COUNTS;
const HEADER: u8 = 1;
const WINDOW: u8 = 2;
const END: u8 = 3;
const MAPPINGS: u8 = 4;
/// The largest region, and the longest time, that a reader takes for real.
const REGION_MAX: u64 = 1 << 40;
const TIME_MAX_MS: u64 = 1 << 48;
/// Parts of a sample that are counted: one sample is this many.
pub const PARTS: f32 = 16.0;

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of Terrace that wrote it.
    pub terrace: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where samples came from, such as `clock`.
    pub source: String,
    /// Samples a second of a running thread.
    pub rate_hz: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
}

/// A region of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Process ID.
    pub process: u32,
    /// Address divided by [`Header::region_bytes`].
    pub region: u64,
}

/// What a stretch of a process's addresses was mapped as, when that was last looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Process ID.
    pub process: u32,
    /// First address of the mapping.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Name that the kernel gives, such as `[heap]`; empty where the mapping has no name.
    pub name: String,
}

impl Mapping {
    /// Encodes mappings in the order of process and address, none above another.
    fn encode(mappings: &[Mapping]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, mappings.len() as u64);
        let (mut process, mut end) = (0, 0);
        for mapping in mappings {
            put(&mut out, (mapping.process - process).into());
            let from = if mapping.process == process { end } else { 0 };
            put(&mut out, mapping.start - from);
            put(&mut out, mapping.end - mapping.start);
            put(&mut out, mapping.name.len() as u64);
            out.extend(mapping.name.bytes());
            (process, end) = (mapping.process, mapping.end);
        }
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Vec<Mapping>> {
        let bytes = &mut bytes;
        let mut mappings = Vec::new();
        let (mut process, mut end) = (0u32, 0u64);
        for _ in 0..take(bytes)? {
            let next_process = u32::try_from(take(bytes)?).ok()?;
            let from = if next_process == 0 { end } else { 0 };
            process = process.checked_add(next_process)?;
            let start = from.checked_add(take(bytes)?)?;
            end = start.checked_add(take(bytes)?)?;
            let len = usize::try_from(take(bytes)?).ok()?;
            let (name, rest) = bytes.split_at_checked(len)?;
            *bytes = rest;
            let name = std::str::from_utf8(name).ok()?.to_owned();
            mappings.push(Mapping { process, start, end, name });
        }
        bytes.is_empty().then_some(mappings)
    }
}

/// What was touched in a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Beginning of the window, ms since the recording's.
    pub start_ms: u64,
    /// End of the window, ms since the recording's beginning.
    pub end_ms: u64,
    /// How often each region was met, in [`PARTS`] of a sample.
    pub counts: BTreeMap<Place, u32>,
    /// Samples of which no address of the program's data is known, in [`PARTS`] too.
    pub elsewhere: u32,
}

impl Window {
    /// Adds a part of a sample (0 to 1).
    pub fn add(&mut self, place: Place, weight: f32) {
        let parts = (weight * PARTS).round() as u32;
        if parts > 0 {
            let count = self.counts.entry(place).or_default();
            *count = count.saturating_add(parts);
        }
    }

    /// Joins the window with a later one.
    fn with(mut self, later: Window) -> Window {
        for (place, count) in later.counts {
            let sum = self.counts.entry(place).or_default();
            *sum = sum.saturating_add(count);
        }
        Window {
            end_ms: later.end_ms,
            elsewhere: self.elsewhere.saturating_add(later.elsewhere),
            ..self
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.start_ms);
        put(&mut out, self.end_ms - self.start_ms);
        put(&mut out, self.elsewhere.into());
        put(&mut out, self.counts.len() as u64);
        let mut before = Place { process: 0, region: 0 };
        for (place, count) in &self.counts {
            let next_process = place.process - before.process;
            put(&mut out, next_process.into());
            put(
                &mut out,
                if next_process == 0 { place.region - before.region } else { place.region },
            );
            put(&mut out, (*count).into());
            before = *place;
        }
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Window> {
        let bytes = &mut bytes;
        let start_ms = take(bytes)?;
        let end_ms = start_ms.checked_add(take(bytes)?)?;
        let elsewhere = take(bytes)?.try_into().ok()?;
        let mut window = Window { start_ms, end_ms, elsewhere, counts: BTreeMap::new() };
        let mut place = Place { process: 0, region: 0 };
        for _ in 0..take(bytes)? {
            let next_process = u32::try_from(take(bytes)?).ok()?;
            let region = take(bytes)?;
            place.region =
                if next_process == 0 { place.region.checked_add(region)? } else { region };
            place.process = place.process.checked_add(next_process)?;
            window.counts.insert(place, take(bytes)?.try_into().ok()?);
        }
        bytes.is_empty().then_some(window)
    }
}

/// Writes a recording while it grows.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: std::fs::File,
    header: Vec<u8>,
    /// Windows in the file.
    windows: usize,
    len: u64,
    limit: u64,
    /// Windows that are one in the file, and those of them that have come.
    together: u32,
    waiting: Option<(u32, Window)>,
}

impl Writer {
    /// Makes the file anew. `limit`: bytes that the file may grow to, about.
    ///
    /// # Errors
    /// If it cannot be written, or is not an ordinary file.
    pub fn create(path: &Path, header: &Header, limit: u64) -> io::Result<Writer> {
        let header = serde_json::to_vec(header)?;
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            // It is replaced when it grows too large.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an ordinary file"));
        }
        let file = std::fs::File::create(path)?;
        let mut writer = Writer {
            path: path.canonicalize()?,
            file,
            header: block(HEADER, &header),
            windows: 0,
            len: 0,
            limit,
            together: 1,
            waiting: None,
        };
        writer.len = (MAGIC.len() + writer.header.len()) as u64;
        writer.file.write_all(&MAGIC)?;
        writer.file.write_all(&writer.header)?;
        Ok(writer)
    }

    /// Adds the next window.
    ///
    /// # Errors
    /// If it cannot be written; what was written before can still be read.
    pub fn append(&mut self, window: Window) -> io::Result<()> {
        let (count, window) = match self.waiting.take() {
            Some((count, earlier)) => (count + 1, earlier.with(window)),
            None => (1, window),
        };
        if count < self.together {
            self.waiting = Some((count, window));
            return Ok(());
        }
        self.write(window)
    }

    fn write(&mut self, window: Window) -> io::Result<()> {
        let bytes = block(WINDOW, &window.encode());
        self.file.write_all(&bytes)?;
        self.windows += 1;
        self.len += bytes.len() as u64;
        if self.len > self.limit && self.windows > 1 { self.coarsen() } else { Ok(()) }
    }

    /// Every two windows become one, in a new file that takes the old one's place.
    fn coarsen(&mut self) -> io::Result<()> {
        let old = std::fs::read(&self.path)?;
        let mut rest = old.get(MAGIC.len() + self.header.len()..).unwrap_or_default();
        let mut windows = std::iter::from_fn(|| match next_block(&mut rest) {
            Ok(block) => block.map(|(_, contents)| {
                Window::decode(contents).ok_or("a window cannot be understood".to_owned())
            }),
            Err(why) => Some(Err(why)),
        });
        let mut bytes = [&MAGIC[..], &self.header].concat();
        let mut merged = 0;
        let changed = |why: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("it was changed meanwhile: {why}"))
        };
        while let Some(first) = windows.next().transpose().map_err(changed)? {
            let window = match windows.next().transpose().map_err(changed)? {
                Some(second) => first.with(second),
                None => first,
            };
            bytes.extend(block(WINDOW, &window.encode()));
            merged += 1;
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&bytes)?;
        file.as_file().set_permissions(self.file.metadata()?.permissions())?;
        self.file = file.persist(&self.path).map_err(|error| error.error)?;
        self.len = bytes.len() as u64;
        self.windows = merged;
        self.together *= 2;
        Ok(())
    }

    /// Writes what is left, what mappings are called (in the order of process and address), and
    /// that the recording is whole.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, mappings: &[Mapping]) -> io::Result<()> {
        if let Some((_, window)) = self.waiting.take() {
            self.write(window)?;
        }
        if !mappings.is_empty() {
            self.file.write_all(&block(MAPPINGS, &Mapping::encode(mappings)))?;
        }
        self.file.write_all(&block(END, &[]))
    }
}

/// A recording that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// What the recording is of.
    pub header: Header,
    /// Windows in the order of time.
    pub windows: Vec<Window>,
    /// Mappings in the order of process and address. Empty of recordings that were not finished,
    /// and of those made before mappings were recorded.
    pub mappings: Vec<Mapping>,
    /// Why the recording ends where it does, if not because it was finished.
    pub incomplete: Option<String>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`ReadError`]. Damage behind the header is none: see [`Recording::incomplete`].
    pub fn read(path: &Path) -> Result<Recording, ReadError> {
        let (mut file, mut bytes) = (File::open(path)?, Vec::new());
        // What is none may have no end.
        (&file).take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
        check_magic(&bytes, &MAGIC)?;
        file.read_to_end(&mut bytes)?;
        Recording::from_bytes(&bytes)
    }

    /// Reads a recording from the contents of a file.
    ///
    /// # Errors
    /// Errors of [`Recording::read`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Recording, ReadError> {
        check_magic(bytes, &MAGIC)?;
        let mut rest = &bytes[MAGIC.len()..];
        let (kind, contents) = next_block(&mut rest)
            .map_err(ReadError::Header)?
            .ok_or_else(|| ReadError::Header("it is missing".into()))?;
        if kind != HEADER {
            return Err(ReadError::Header(format!("it is a block of kind {kind}")));
        }
        let header: Header = serde_json::from_slice(contents)
            .map_err(|error| ReadError::Header(error.to_string()))?;
        if !(1..=REGION_MAX).contains(&header.region_bytes) {
            return Err(ReadError::Header(format!("regions of {} bytes", header.region_bytes)));
        }
        let fits = |window: &Window, before: u64| {
            let inside = |place: &Place| {
                place
                    .region
                    .checked_mul(header.region_bytes)
                    .is_some_and(|address| address <= u64::MAX - REGION_MAX)
            };
            window.start_ms >= before
                && window.end_ms <= TIME_MAX_MS
                && window.counts.keys().all(inside)
        };
        let mut before = 0;
        let mut recording = Recording {
            header: header.clone(),
            windows: Vec::new(),
            mappings: Vec::new(),
            incomplete: None,
        };
        recording.incomplete = loop {
            match next_block(&mut rest) {
                Ok(Some((END, _))) => break None,
                Ok(Some((WINDOW, contents))) => match Window::decode(contents) {
                    Some(window) if fits(&window, before) => {
                        before = window.end_ms;
                        recording.windows.push(window);
                    }
                    _ => break Some("a window that cannot be understood".into()),
                },
                Ok(Some((MAPPINGS, contents))) => match Mapping::decode(contents) {
                    Some(mappings) => recording.mappings = mappings,
                    None => break Some("names of mappings that cannot be understood".into()),
                },
                // Of a later version, and not needed.
                Ok(Some(_)) => {}
                Ok(None) => break Some("it was cut off, or is still being written".into()),
                Err(why) => break Some(why),
            }
        };
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            terrace: "0.1.0".into(),
            command: vec!["a".into()],
            source: "clock".into(),
            rate_hz: 1000,
            region_bytes: 2 << 20,
        }
    }

    fn window(n: u64) -> Window {
        let mut window =
            Window { start_ms: n * 50, end_ms: n * 50 + 50, elsewhere: 16, ..Window::default() };
        for region in 0..n % 5 {
            window.add(
                Place { process: 7 + n as u32 % 2, region: 0x3F_8000 + region * (n % 7) },
                1.0,
            );
        }
        window
    }

    fn mappings() -> Vec<Mapping> {
        let of =
            |process, start, end, name: &str| Mapping { process, start, end, name: name.into() };
        vec![
            of(7, 0x7F_0000_0000, 0x7F_0040_0000, "[heap]"),
            of(7, 0x7F_0040_0000, 0x7F_0060_0000, ""),
            of(8, 0x1000, 0x3000, "[anon: größer]"),
        ]
    }

    fn written(windows: u64, limit: u64) -> Vec<u8> {
        written_with(windows, limit, &[])
    }

    fn written_with(windows: u64, limit: u64, mappings: &[Mapping]) -> Vec<u8> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("recording");
        let mut writer = Writer::create(&path, &header(), limit).unwrap();
        (0..windows).for_each(|n| writer.append(window(n)).unwrap());
        writer.finish(mappings).unwrap();
        std::fs::read(path).unwrap()
    }

    fn samples(windows: &[Window]) -> u64 {
        windows
            .iter()
            .flat_map(|window| window.counts.values())
            .map(|count| u64::from(*count))
            .sum()
    }

    #[test]
    fn what_was_written_is_read() {
        let expected: Vec<Window> = (0..20).map(window).collect();
        let recording = Recording::from_bytes(&written(20, 1 << 20)).unwrap();
        let read = Recording {
            header: header(),
            windows: expected,
            mappings: Vec::new(),
            incomplete: None,
        };
        assert_eq!(recording, read);
        let named = Recording::from_bytes(&written_with(20, 1 << 20, &mappings())).unwrap();
        assert_eq!(named, Recording { mappings: mappings(), ..read });
    }

    /// The bytes that version 0.1 wrote before there were names of mappings.
    #[test]
    fn files_without_names_are_read() {
        let json = br#"{"terrace":"0.1.0","command":["a"],"source":"clock","rate_hz":1000,"region_bytes":2097152}"#;
        // 5 ms from the beginning on, 16 parts elsewhere; process 7, region 3, 16 parts.
        let window = [0, 5, 16, 1, 7, 3, 16];
        let file =
            [&MAGIC[..], &block(HEADER, json), &block(WINDOW, &window), &block(END, &[])].concat();
        let recording = Recording::from_bytes(&file).unwrap();
        assert_eq!((recording.incomplete, recording.mappings.len()), (None, 0));
        let place = Place { process: 7, region: 3 };
        assert_eq!(recording.windows[0].counts.get(&place), Some(&16));
    }

    #[test]
    fn wherever_it_is_cut_off_what_was_before_is_there() {
        let bytes = written(20, 1 << 20);
        let mut most = 0;
        for cut in 0..bytes.len() {
            match Recording::from_bytes(&bytes[..cut]) {
                Ok(recording) => {
                    assert!(recording.incomplete.is_some() && recording.windows.len() >= most);
                    most = recording.windows.len();
                    assert_eq!(recording.windows, (0..most as u64).map(window).collect::<Vec<_>>());
                }
                Err(ReadError::Magic(_) | ReadError::Empty | ReadError::Header(_)) => {
                    assert_eq!(most, 0)
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(most, 20);
    }

    #[test]
    fn the_size_is_bounded_and_no_sample_is_lost() {
        let (small, large) = (written(2_000, 4_000), written(2_000, 1 << 20));
        assert!(small.len() < 4_200 && large.len() > 10_000, "{} and {}", small.len(), large.len());
        let (small, large) =
            (Recording::from_bytes(&small).unwrap(), Recording::from_bytes(&large).unwrap());
        assert_eq!(samples(&small.windows), samples(&large.windows));
        assert_eq!(small.windows.last().unwrap().end_ms, 100_000);
        assert!(small.windows.windows(2).all(|two| two[0].end_ms == two[1].start_ms));
    }

    #[test]
    fn other_files_are_refused_in_words() {
        let mut newer = written(1, 1 << 20);
        newer[7] = 9;
        assert!(matches!(Recording::from_bytes(&newer), Err(ReadError::Version(9))));
        assert!(matches!(Recording::from_bytes(b"#!/bin/sh\nexit"), Err(ReadError::Magic(_))));
        assert!(matches!(Recording::from_bytes(b""), Err(ReadError::Empty)));
        let mut damaged = written(1, 1 << 20);
        damaged[20] ^= 1;
        assert!(matches!(Recording::from_bytes(&damaged), Err(ReadError::Header(_))));
    }

    proptest! {
        /// A flipped bit costs the windows from there on, and says so; nothing panics.
        #[test]
        fn damage_is_noticed(at in 0usize..400, bit in 0u8..8) {
            let mut bytes = written(20, 1 << 20);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Ok(recording) = Recording::from_bytes(&bytes) {
                let count = recording.windows.len() as u64;
                prop_assert_eq!(recording.windows, (0..count).map(window).collect::<Vec<_>>());
            }
        }

        #[test]
        fn any_bytes_will_do(bytes: Vec<u8>) {
            let _ = Recording::from_bytes(&[&MAGIC[..], &bytes].concat());
            let _ = Window::decode(&bytes);
            let _ = Mapping::decode(&bytes);
        }
    }
}
