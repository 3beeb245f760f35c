//! Accesses one by one: which page, read or written, in their order. What a simulator replays.
//!
//! A file holds blocks of up to 64 Ki records, each of which can be decoded alone and costs two to
//! three bytes; between them, blocks that say which page each number stands for; at its end an
//! index. `docs/trace-format.md` has it byte by byte. libCacheSim's records take 24 bytes instead.
//!
//! A page's number is that of its first access among all pages: 0, 1, 2, and so on. A
//! [record](Record) is a page's number and whether it was written.

use crate::file::{BlockWriter, Blocks, Compressor, End, Entry, PADDING, PLAIN_MAX, Source};
use crate::framing::{ReadError, put, take, unzigzag, zigzag};
use crate::kinds;
use crate::numbers;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::path::Path;

pub use crate::file::Decoder;

/// First bytes of a file: the format and its version.
pub const MAGIC: [u8; 8] = kinds::ACCESSES;
const RECORDS: u8 = 2;
const PAGES: u8 = 4;
/// Records of a block at most.
pub const BLOCK_RECORDS: usize = 1 << 16;
/// Most pages that a file may name: their numbers and a bit more are 32 bits.
pub const PAGES_MAX: usize = 1 << 31;
/// Longest record, bytes. A page's distance, twice for its sign and once more for the bit, is below
/// 2^34.
const RECORD_BYTES_MAX: usize = 5;
const _: () = assert!(BLOCK_RECORDS * RECORD_BYTES_MAX <= PLAIN_MAX);

/// Access to a page: twice the number of the page, and one more if it was written.
pub type Record = u32;

/// The number of the page that was accessed.
#[inline]
pub fn page_of(record: Record) -> u32 {
    record >> 1
}

/// Whether the page was written.
#[inline]
pub fn is_write(record: Record) -> bool {
    record & 1 == 1
}

/// Description of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of Terrace that wrote it.
    pub terrace: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where accesses came from: `hooks` (all of them, by the compiler's), or a sampler's name,
    /// such as `clock`.
    pub source: String,
    /// What the clock counts: accesses of the program, or microseconds.
    pub clock: Clock,
    /// Accesses for each one that is recorded, of those that missed; 1 is all. With samples, whose
    /// share is not known, 1.
    pub period: u64,
    /// Samples a second of a running thread; 0 if it is not samples.
    pub rate_hz: u32,
    /// Whether it is known which accesses are writes; else none is marked as one.
    pub writes: bool,
    /// The modelled cache whose misses are recorded; `None`: all accesses, or what a sampler
    /// meets.
    pub cache: Option<CacheModel>,
    /// Bytes of a page: any power of two, also less than the processor's, as with `terrace record
    /// --unit 64`.
    pub page_bytes: u64,
}

/// What a clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Accesses of the program, those that are not recorded too.
    Accesses,
    /// Microseconds since the recording began.
    Us,
}

/// A modelled cache: the least recently used line of a set goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheModel {
    /// Size of the cache, bytes.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: u32,
    /// Bytes of a line.
    pub line_bytes: u32,
}

/// A page of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    /// Process ID.
    pub process: u32,
    /// Address divided by [`Header::page_bytes`].
    pub number: u64,
}

/// Fibonacci hashing, word by word: page numbers are not under an attacker's control.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn finish(&self) -> u64 {
        // The upper bits are the good ones of a product.
        self.0 ^ self.0 >> 32
    }
}

/// Writes a file while it grows.
pub struct Writer {
    file: BlockWriter,
    compressor: Compressor,
    numbers: HashMap<Page, u32, BuildHasherDefault<PageHasher>>,
    /// Pages named since the last block.
    new_pages: Vec<Page>,
    /// Encoded records of the block that is being filled.
    records: Vec<u8>,
    count: u32,
    start: u64,
    last: i64,
    end: End,
    full: bool,
}

impl Writer {
    /// Makes the file anew. `limit`: bytes that it will not grow beyond. What comes then is
    /// counted, not written.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path, header: &Header, limit: u64) -> io::Result<Writer> {
        Ok(Writer {
            file: BlockWriter::create(path, &MAGIC, &serde_json::to_vec(header)?, limit)?,
            compressor: Compressor::new()?,
            numbers: HashMap::default(),
            new_pages: Vec::new(),
            records: Vec::with_capacity(BLOCK_RECORDS * RECORD_BYTES_MAX),
            count: 0,
            start: 0,
            last: 0,
            end: End::default(),
            full: false,
        })
    }

    /// Adds an access at this time of the clock. A time before the last counts as the last.
    ///
    /// # Errors
    /// If it cannot be written; what was written before can still be read.
    #[inline]
    pub fn append(&mut self, page: Page, written: bool, clock: u64) -> io::Result<()> {
        let clock = clock.max(self.end.clock);
        self.end.clock = clock;
        if self.full {
            self.end.left_out += 1;
            return Ok(());
        }
        let next = self.numbers.len();
        let new_pages = &mut self.new_pages;
        let number = *self.numbers.entry(page).or_insert_with(|| {
            new_pages.push(page);
            next as u32
        });
        if self.count == 0 {
            self.start = clock;
            self.last = 0;
        }
        put(&mut self.records, zigzag(i64::from(number) - self.last) << 1 | u64::from(written));
        self.last = i64::from(number);
        self.count += 1;
        if self.count as usize == BLOCK_RECORDS || next + 1 == PAGES_MAX {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Writes what was added so far, as a shorter block, for a program that reads the file while it
    /// grows.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let mut blocks = Vec::new();
        if !self.new_pages.is_empty() {
            let (first, count) =
                ((self.numbers.len() - self.new_pages.len()) as u64, self.new_pages.len() as u32);
            let mut plain = Vec::new();
            let mut before = Page { process: 0, number: 0 };
            for page in self.new_pages.drain(..) {
                put(&mut plain, zigzag(i64::from(page.process) - i64::from(before.process)));
                put(&mut plain, zigzag(page.number.wrapping_sub(before.number) as i64));
                before = page;
            }
            blocks.push((PAGES, self.compressor.contents(first, count, &plain)?, first, count));
        }
        let records = std::mem::take(&mut self.records);
        blocks.push((
            RECORDS,
            self.compressor.contents(self.start, self.count, &records)?,
            self.start,
            self.count,
        ));
        if self.file.append(&blocks)? {
            self.end.records += u64::from(self.count);
        } else {
            self.full = true;
            self.end.left_out += u64::from(self.count);
        }
        self.records = records;
        self.records.clear();
        self.count = 0;
        self.full |= self.numbers.len() >= PAGES_MAX - 1;
        Ok(())
    }

    /// Writes what is left, the index, and that the file is whole. Returns what the file says at
    /// its end. `clock`: the time now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, clock: u64) -> io::Result<End> {
        self.flush()?;
        self.end.clock = self.end.clock.max(clock);
        self.file.finish(self.end)?;
        Ok(self.end)
    }
}

/// Reads a file, block by block, in any order. Several threads can do that, each with a [`Decoder`]
/// of its own.
#[derive(Debug)]
pub struct Reader<S = File> {
    /// What the file is of.
    pub header: Header,
    blocks: Blocks<S>,
    pages: Vec<Page>,
    records: Vec<Entry>,
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// See [`ReadError`]. Damage behind the header is none: see [`Reader::incomplete`].
    pub fn open(path: &Path) -> Result<Reader, ReadError> {
        Reader::of(File::open(path)?)
    }
}

impl<S: Source> Reader<S> {
    /// Opens a recording from anything that can be read.
    ///
    /// # Errors
    /// Errors of [`Reader::open`].
    pub fn of(source: S) -> Result<Reader<S>, ReadError> {
        let mut blocks = Blocks::open(source, &MAGIC)?;
        let header: Header = serde_json::from_slice(&blocks.header)
            .map_err(|error| ReadError::Header(error.to_string()))?;
        if !header.page_bytes.is_power_of_two() || header.page_bytes > 1 << 40 {
            return Err(ReadError::Header(format!("pages of {} bytes", header.page_bytes)));
        }
        let mut decoder = Decoder::new();
        let mut pages = Vec::new();
        let mut records = Vec::new();
        for entry in std::mem::take(&mut blocks.entries) {
            match entry.kind {
                RECORDS => records.push(entry),
                PAGES => {
                    if let Err(why) = name_pages(&blocks, &entry, &mut decoder, &mut pages) {
                        // What comes later may be of pages without a name.
                        blocks.incomplete.get_or_insert(why);
                        break;
                    }
                }
                // Of a later version, and not needed.
                _ => {}
            }
        }
        Ok(Reader { header, blocks, pages, records })
    }

    /// The page that each number stands for.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// How many blocks of records there are.
    pub fn blocks(&self) -> usize {
        self.records.len()
    }

    /// The clock at a block's first record, and how many records are in it. Those between are at
    /// equal distances, as far as is known.
    pub fn block(&self, number: usize) -> (u64, u32) {
        (self.records[number].start, self.records[number].count)
    }

    /// The clock at the end: of a file that was not finished, at its last block's beginning.
    pub fn end_clock(&self) -> u64 {
        self.blocks.end.map_or(self.records.last().map_or(0, |entry| entry.start), |end| end.clock)
    }

    /// Records in all.
    pub fn records(&self) -> u64 {
        self.records.iter().map(|entry| u64::from(entry.count)).sum()
    }

    /// Records that the file has no room for.
    pub fn left_out(&self) -> u64 {
        self.blocks.end.map_or(0, |end| end.left_out)
    }

    /// Why the file ends where it does, if not because it was finished.
    pub fn incomplete(&self) -> Option<&str> {
        self.blocks.incomplete.as_deref()
    }

    /// Decodes a block into `records`, whose contents are replaced. All pages in it have names.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(
        &self,
        number: usize,
        decoder: &mut Decoder,
        records: &mut Vec<Record>,
    ) -> Result<(), String> {
        let entry = &self.records[number];
        let wrong = || "a block of records cannot be understood".to_owned();
        if entry.count as usize > BLOCK_RECORDS {
            return Err(wrong());
        }
        decode(decoder.read(&self.blocks, entry)?, entry.count, self.pages.len(), records)
            .ok_or_else(wrong)
    }

    /// Reads one block after the other, up to the first that cannot be read.
    pub fn iter(&self) -> Iter<'_, S> {
        Iter { reader: self, decoder: Decoder::new(), records: Vec::new(), next: 0 }
    }
}

/// Iterator of [`Reader::iter`].
pub struct Iter<'a, S> {
    reader: &'a Reader<S>,
    decoder: Decoder,
    records: Vec<Record>,
    next: usize,
}

impl<S: Source> Iter<'_, S> {
    /// The clock at the next block's first record, and its records; `None` at the end.
    ///
    /// # Errors
    /// If it is damaged: in words. Nothing comes after that.
    #[expect(clippy::should_implement_trait, reason = "what it gives is used again for the next")]
    pub fn next(&mut self) -> Option<Result<(u64, &[Record]), String>> {
        let number = self.next;
        if number >= self.reader.blocks() {
            return None;
        }
        self.next += 1;
        Some(match self.reader.decode(number, &mut self.decoder, &mut self.records) {
            Ok(()) => Ok((self.reader.block(number).0, &self.records)),
            Err(why) => {
                self.next = usize::MAX;
                Err(why)
            }
        })
    }
}

fn name_pages<S: Source>(
    blocks: &Blocks<S>,
    entry: &Entry,
    decoder: &mut Decoder,
    pages: &mut Vec<Page>,
) -> Result<(), String> {
    let padded = decoder.read(blocks, entry)?;
    let wrong = || "a block of pages cannot be understood".to_owned();
    if entry.start != pages.len() as u64 || pages.len() + entry.count as usize > PAGES_MAX {
        return Err(wrong());
    }
    let mut bytes = &padded[..padded.len() - PADDING];
    let mut page = Page { process: 0, number: 0 };
    for _ in 0..entry.count {
        let process = take(&mut bytes)
            .and_then(|number| i64::from(page.process).checked_add(unzigzag(number)))
            .ok_or_else(wrong)?;
        let distance = take(&mut bytes).map(unzigzag).ok_or_else(wrong)?;
        page = Page {
            process: u32::try_from(process).map_err(|_| wrong())?,
            number: page.number.wrapping_add(distance as u64),
        };
        pages.push(page);
    }
    if bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

/// Decodes `count` numbers in `padded`, behind which are [`PADDING`] bytes more. `None` if there
/// are not that many, or one is no page's.
fn decode(padded: &[u8], count: u32, pages: usize, records: &mut Vec<Record>) -> Option<()> {
    if decode_short(padded, count, pages, records) {
        Some(())
    } else {
        decode_any(padded, count, pages, records)
    }
}

/// Decodes records where no number has more than four bytes, as with less than 2^25 pages. False if
/// that is not so, or something is wrong.
fn decode_short(padded: &[u8], count: u32, pages: usize, records: &mut Vec<Record>) -> bool {
    records.resize(count as usize, 0);
    if numbers::short(padded, records).is_none() {
        return false;
    }
    // A distance is below 2^26 and a page below 2^31. So the first page that is none is told by its
    // number, also where that is negative.
    let (mut page, mut most) = (0u32, 0u32);
    // What is in a core's nearest cache at a time.
    for some in records.chunks_mut(1024) {
        // The distance and the bit, of which the compiler makes vectors; then the sum.
        for record in some.iter_mut() {
            let number = numbers::value(*record);
            *record = (number >> 2 ^ (number >> 1 & 1).wrapping_neg()) << 1 | number & 1;
        }
        for record in some.iter_mut() {
            page = page.wrapping_add((*record as i32 >> 1) as u32);
            most = most.max(page);
            *record = page << 1 | *record & 1;
        }
    }
    (most as usize) < pages
}

/// Decodes records whose numbers may have any length; see [`decode`].
fn decode_any(padded: &[u8], count: u32, pages: usize, records: &mut Vec<Record>) -> Option<()> {
    records.clear();
    records.reserve(count as usize);
    let end = padded.len() - PADDING;
    let (mut at, mut page, mut most, mut lengths) = (0, 0i64, 0u64, 0);
    for _ in 0..count {
        // Without a branch on how long a number is: that is as good as random.
        let word = u64::from_le_bytes(*padded.get(at..)?.first_chunk()?);
        let ends = !word & 0x80_8080_8080;
        let bits = ends.trailing_zeros() + 1;
        let word = word & ((1u64 << (bits & 63)) - 1);
        let number = word & 0x7F
            | word >> 1 & 0x3F80
            | word >> 2 & 0x1F_C000
            | word >> 3 & 0xFE0_0000
            | word >> 4 & 0x7_F000_0000;
        page = page.wrapping_add(unzigzag(number >> 1));
        // A negative one is very large.
        most = most.max(page as u64);
        records.push((page as u32) << 1 | number as u32 & 1);
        at += bits as usize / 8;
        // 8 to 40, or 65 where no byte ends it.
        lengths |= bits;
    }
    (at == end && lengths < 64 && (count == 0 || most < pages as u64)).then_some(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn header() -> Header {
        Header {
            terrace: "0.1.0".into(),
            command: vec!["a".into(), "b".into()],
            source: "hooks".into(),
            clock: Clock::Accesses,
            period: 1,
            rate_hz: 0,
            writes: true,
            cache: Some(CacheModel { bytes: 4 << 20, ways: 16, line_bytes: 64 }),
            page_bytes: 4096,
        }
    }

    /// A file of these accesses, ten of the clock apart, with a block's end behind each of
    /// `flushes`.
    pub fn written(accesses: &[(Page, bool)], flushes: &[usize], limit: u64) -> Vec<u8> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("accesses");
        let mut writer = Writer::create(&path, &header(), limit).unwrap();
        for (at, (page, write)) in accesses.iter().enumerate() {
            writer.append(*page, *write, at as u64 * 10).unwrap();
            if flushes.contains(&at) {
                writer.flush().unwrap();
            }
        }
        writer.finish(accesses.len() as u64 * 10).unwrap();
        std::fs::read(path).unwrap()
    }

    /// What can be read of the bytes, and why no more.
    pub fn read(bytes: &[u8]) -> (Vec<(Page, bool)>, Option<String>) {
        let reader = Reader::of(bytes).unwrap();
        let mut found = Vec::new();
        let mut blocks = reader.iter();
        let mut damage = reader.incomplete().map(str::to_owned);
        while let Some(block) = blocks.next() {
            match block {
                Ok((_, records)) => {
                    found.extend(records.iter().map(|record| {
                        (reader.pages()[page_of(*record) as usize], is_write(*record))
                    }))
                }
                Err(why) => damage = Some(why),
            }
        }
        (found, damage)
    }

    /// Makes accesses of two processes to pages near and far, again and again.
    pub fn accesses(count: u64) -> Vec<(Page, bool)> {
        let page = |n: u64| Page {
            process: 100 + (n % 7 == 3) as u32,
            number: 0x7_f123_4567 + n * n % 97 * if n.is_multiple_of(5) { 100_000 } else { 1 },
        };
        (0..count).map(|n| (page(n), n % 3 == 0)).collect()
    }

    fn pages() -> impl Strategy<Value = Page> {
        (0u32..3, prop_oneof![0u64..50, any::<u64>()])
            .prop_map(|(process, number)| Page { process: process * 0x7fff_ffff, number })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            accesses in prop::collection::vec((pages(), any::<bool>()), 0..300),
            flushes in prop::collection::vec(0usize..300, 0..4),
        ) {
            let bytes = written(&accesses, &flushes, u64::MAX);
            prop_assert_eq!(read(&bytes), (accesses, None));
        }
    }

    #[test]
    fn blocks_are_found_alone_and_say_when_they_begin() {
        let accesses = accesses(200_000);
        let bytes = written(&accesses, &[], u64::MAX);
        assert!(bytes.len() < accesses.len() * 3, "{}", bytes.len());
        let reader = Reader::of(&bytes[..]).unwrap();
        assert_eq!(
            (reader.blocks(), reader.records(), reader.end_clock(), reader.left_out()),
            (4, 200_000, 2_000_000, 0)
        );
        assert_eq!(reader.header, header());
        let (mut decoder, mut records) = (Decoder::new(), Vec::new());
        for block in [2, 0, 3, 1] {
            reader.decode(block, &mut decoder, &mut records).unwrap();
            let expected = &accesses[block * BLOCK_RECORDS..][..records.len()];
            let found = records
                .iter()
                .map(|record| (reader.pages()[page_of(*record) as usize], is_write(*record)));
            assert!(found.eq(expected.iter().copied()));
            assert_eq!(
                reader.block(block),
                (block as u64 * BLOCK_RECORDS as u64 * 10, records.len() as u32)
            );
        }
        // Numbers go by first access.
        assert_eq!(reader.pages()[..2], [accesses[0].0, accesses[1].0]);
    }

    #[test]
    fn a_full_file_stays_readable_and_says_so() {
        let accesses = accesses(300_000);
        let whole = written(&accesses, &[], u64::MAX).len() as u64;
        let limit = whole / 2;
        let bytes = written(&accesses, &[], limit);
        assert!(bytes.len() as u64 <= limit, "{} of {limit}", bytes.len());
        let (found, damage) = read(&bytes);
        assert!(damage.is_none() && !found.is_empty() && found[..] == accesses[..found.len()]);
        let reader = Reader::of(&bytes[..]).unwrap();
        assert_eq!(
            (reader.left_out() + found.len() as u64, reader.end_clock()),
            (300_000, 3_000_000)
        );
    }

    #[test]
    fn wherever_it_is_cut_off_what_was_before_is_there() {
        let accesses = accesses(60);
        let bytes = written(&accesses, &[9, 19, 29, 39, 49], u64::MAX);
        let mut most = 0;
        for cut in 0..bytes.len() {
            match Reader::of(&bytes[..cut]) {
                Ok(_) => {
                    let (found, damage) = read(&bytes[..cut]);
                    assert!(
                        damage.is_some()
                            && found.len() >= most
                            && found[..] == accesses[..found.len()],
                        "{cut}: {damage:?}"
                    );
                    most = found.len();
                }
                Err(ReadError::Magic(_) | ReadError::Empty | ReadError::Header(_)) => {
                    assert_eq!(most, 0)
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(most, 60);
    }

    #[test]
    fn every_flipped_bit_is_noticed_and_what_was_before_is_there() {
        let accesses = accesses(60);
        let bytes = written(&accesses, &[9, 19, 29, 39, 49], u64::MAX);
        for at in 8..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                if Reader::of(&damaged[..]).is_ok() {
                    let (found, damage) = read(&damaged);
                    assert!(
                        damage.is_some() && found[..] == accesses[..found.len()],
                        "byte {at}, bit {bit}: {damage:?}"
                    );
                }
            }
        }
    }

    /// What fuzzing does, without its tools (`fuzz/`): bytes that are nearly right, and their
    /// checksums put right, so that what is behind them is reached.
    #[test]
    fn damage_with_right_checksums_is_no_crash() {
        let bytes = written(&accesses(60), &[9, 19, 29, 39, 49], u64::MAX);
        let mut state = 1u64;
        for _ in 0..5_000 {
            crate::mutation::mutate(&bytes, &mut state, |damaged| {
                if let Ok(reader) = Reader::of(damaged) {
                    let mut blocks = reader.iter();
                    while let Some(Ok((_, records))) = blocks.next() {
                        assert!(
                            records
                                .iter()
                                .all(|record| (page_of(*record) as usize) < reader.pages().len())
                        );
                    }
                }
            });
        }
    }

    #[test]
    fn other_files_are_refused_in_words() {
        let mut newer = written(&accesses(3), &[], u64::MAX);
        newer[7] = 9;
        assert!(matches!(Reader::of(&newer[..]), Err(ReadError::Version(9))));
        let error = Reader::of(&b"TERRCNT\x01"[..]).unwrap_err().to_string();
        assert!(error.contains("counts by region") && error.contains("--accesses"), "{error}");
        assert!(matches!(Reader::of(&b""[..]), Err(ReadError::Empty)));
    }

    proptest! {
        #[test]
        fn any_bytes_will_do(bytes: Vec<u8>, count in 0u32..100, pages in 0usize..100) {
            let _ = Reader::of(&[&MAGIC[..], &bytes].concat()[..]);
            let padded = [&bytes[..], &[0; PADDING]].concat();
            let mut records = Vec::new();
            if decode(&padded, count, pages, &mut records).is_some() {
                prop_assert!(
                    records.len() == count as usize
                        && records.iter().all(|record| (page_of(*record) as usize) < pages)
                );
            }
        }
    }
}
