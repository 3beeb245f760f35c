//! Objects one by one: when each came and went, by what code it was made, where it lay, and which
//! were accessed. All is in order. It is what is needed to try other ways of laying objects out
//! than the one that was recorded.
//!
//! A file holds blocks of up to 64 Ki events, each of which can be decoded alone; between them,
//! blocks that name the contexts; at its end an index. `docs/trace-format.md` has it byte by byte.
//!
//! An object's number is that of its birth among all births: 0, 1, 2, and so on. It is never given
//! again.

use crate::accesses::{CacheModel, Clock};
use crate::file::{
    BlockWriter, Blocks, Compressor, Decoder, End, Entry, PADDING, PLAIN_MAX, Source,
};
use crate::framing::{ReadError, put, take, unzigzag, zigzag};
use crate::kinds;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::Path;

/// First bytes of a file: the format and its version.
pub const MAGIC: [u8; 8] = kinds::OBJECTS;
const EVENTS: u8 = 2;
const CONTEXTS: u8 = 4;
/// Events of a block at most.
pub const BLOCK_EVENTS: usize = 1 << 16;
/// Longest event, bytes: a birth, four numbers of ten bytes.
const EVENT_BYTES_MAX: usize = 40;
const _: () = assert!((BLOCK_EVENTS + 1) * EVENT_BYTES_MAX <= PLAIN_MAX);
/// A block of contexts ends where it has this many bytes. No name is as long.
const CONTEXTS_BYTES: usize = 1 << 20;
/// Largest length of a return address's name, bytes.
const NAME_MAX: usize = 4096;
/// Most return addresses of a context.
const FRAMES_MAX: usize = 64;

/// Kinds of events, in the lowest two bits of their first number.
const READ: u64 = 0;
const WRITE: u64 = 1;
const BORN: u64 = 2;
const OTHER: u64 = 3;
/// Kinds of the events of [`OTHER`].
const DIED: u64 = 0;
const RESIZED: u64 = 1;
const COUNTING: u64 = 2;

/// Description of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of Terrace that wrote it.
    pub terrace: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where accesses came from: `hooks` (the compiler's).
    pub source: String,
    /// What the clock counts.
    pub clock: Clock,
    /// Accesses for each one that is recorded, of those that missed; 1 is all.
    pub period: u64,
    /// The modelled cache whose misses are recorded; `None`: all accesses.
    pub cache: Option<CacheModel>,
    /// Return addresses that make a context.
    pub depth: u32,
}

/// Event of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object came into being; the next number is its.
    Born {
        /// Address that the allocator gave.
        address: u64,
        /// Size of the object, bytes, as asked for.
        bytes: u64,
        /// The calling context that allocated the object: an index into [`Reader::contexts`].
        context: u32,
        /// Time of the clock.
        clock: u64,
    },
    /// An object was freed.
    Died {
        /// Number of the object.
        object: u32,
        /// Time of the clock.
        clock: u64,
    },
    /// An object has another size, at the same address.
    Resized {
        /// Number of the object.
        object: u32,
        /// Size of the object now, bytes, as asked for.
        bytes: u64,
        /// Time of the clock.
        clock: u64,
    },
    /// Accesses are recorded from now on.
    Counting {
        /// Time of the clock.
        clock: u64,
    },
    /// An object was accessed.
    Access {
        /// Number of the object.
        object: u32,
        /// Place of the access, bytes from the object's beginning.
        offset: u64,
        /// Whether the object was written.
        written: bool,
    },
}

/// State by which the next event is told.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    object: u32,
    address: u64,
    clock: u64,
    /// Objects born so far.
    born: u32,
}

impl Before {
    fn encode(&mut self, event: Event, out: &mut Vec<u8>) {
        match event {
            Event::Access { object, offset, written } => {
                put(
                    out,
                    zigzag(i64::from(object) - i64::from(self.object)) << 2
                        | if written { WRITE } else { READ },
                );
                put(out, offset);
                self.object = object;
            }
            Event::Born { address, bytes, context, clock } => {
                put(out, bytes << 2 | BORN);
                put(out, context.into());
                put(out, zigzag(address.wrapping_sub(self.address) as i64));
                self.tick(clock, out);
                (self.object, self.address) = (self.born, address);
                self.born += 1;
            }
            Event::Died { object, clock } => {
                put(out, DIED << 2 | OTHER);
                self.name(object, out);
                self.tick(clock, out);
            }
            Event::Resized { object, bytes, clock } => {
                put(out, RESIZED << 2 | OTHER);
                self.name(object, out);
                put(out, bytes);
                self.tick(clock, out);
            }
            Event::Counting { clock } => {
                put(out, COUNTING << 2 | OTHER);
                self.tick(clock, out);
            }
        }
    }

    fn name(&mut self, object: u32, out: &mut Vec<u8>) {
        put(out, zigzag(i64::from(object) - i64::from(self.object)));
        self.object = object;
    }

    fn tick(&mut self, clock: u64, out: &mut Vec<u8>) {
        put(out, clock.saturating_sub(self.clock));
        self.clock = self.clock.max(clock);
    }

    /// The next event; `None` if there is none that can be.
    fn decode(&mut self, bytes: &mut &[u8], contexts: usize) -> Option<Event> {
        let first = take(bytes)?;
        Some(match first & 3 {
            BORN => {
                let context = u32::try_from(take(bytes)?)
                    .ok()
                    .filter(|context| (*context as usize) < contexts)?;
                self.address = self.address.wrapping_add(unzigzag(take(bytes)?) as u64);
                let clock = self.told_clock(bytes)?;
                self.object = self.born;
                self.born = self.born.checked_add(1)?;
                Event::Born { address: self.address, bytes: first >> 2, context, clock }
            }
            OTHER => match first >> 2 {
                DIED => Event::Died {
                    object: self.named(take(bytes)?)?,
                    clock: self.told_clock(bytes)?,
                },
                RESIZED => Event::Resized {
                    object: self.named(take(bytes)?)?,
                    bytes: take(bytes)?,
                    clock: self.told_clock(bytes)?,
                },
                COUNTING => Event::Counting { clock: self.told_clock(bytes)? },
                _ => return None,
            },
            kind => Event::Access {
                object: self.named(first >> 2)?,
                offset: take(bytes)?,
                written: kind == WRITE,
            },
        })
    }

    /// The object born at a distance, if there is one.
    fn named(&mut self, distance: u64) -> Option<u32> {
        let object = i64::from(self.object).checked_add(unzigzag(distance))?;
        self.object = u32::try_from(object).ok().filter(|object| *object < self.born)?;
        Some(self.object)
    }

    fn told_clock(&mut self, bytes: &mut &[u8]) -> Option<u64> {
        self.clock = self.clock.checked_add(take(bytes)?)?;
        Some(self.clock)
    }
}

/// Writes a file while it grows.
pub struct Writer {
    file: BlockWriter,
    compressor: Compressor,
    before: Before,
    /// Contexts named since the last block.
    new_contexts: Vec<Vec<String>>,
    contexts: u32,
    events: Vec<u8>,
    count: u32,
    start: u64,
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
            before: Before::default(),
            new_contexts: Vec::new(),
            contexts: 0,
            events: Vec::new(),
            count: 0,
            start: 0,
            end: End::default(),
            full: false,
        })
    }

    /// Names the next context: its return addresses, the innermost first.
    pub fn name_context(&mut self, mut frames: Vec<String>) {
        frames.truncate(FRAMES_MAX);
        let short = |frame: String| {
            if frame.len() > NAME_MAX { frame.chars().take(NAME_MAX / 4).collect() } else { frame }
        };
        self.new_contexts.push(frames.into_iter().map(short).collect());
    }

    /// Adds an event at this time of the clock, which never goes back. Returns the number of the
    /// object that it is about, or 0.
    ///
    /// # Errors
    /// If it cannot be written; what was written before can still be read.
    pub fn append(&mut self, event: Event, clock: u64) -> io::Result<u32> {
        self.end.clock = self.end.clock.max(clock);
        if self.full {
            self.end.left_out += 1;
            return Ok(0);
        }
        if self.count == 0 {
            self.start = clock;
            self.before = Before { clock, born: self.before.born, ..Before::default() };
            put(&mut self.events, self.before.born.into());
        }
        self.before.encode(event, &mut self.events);
        let object = self.before.object;
        self.count += 1;
        // Numbers are 32 bits.
        if self.count as usize == BLOCK_EVENTS || self.before.born == u32::MAX {
            self.flush()?;
            self.full |= self.before.born == u32::MAX;
        }
        Ok(object)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let mut blocks = Vec::new();
        let mut contexts = self.new_contexts.drain(..).peekable();
        while contexts.peek().is_some() {
            let (mut plain, mut count) = (Vec::new(), 0);
            while plain.len() < CONTEXTS_BYTES
                && let Some(frames) = contexts.next()
            {
                put(&mut plain, frames.len() as u64);
                for frame in frames {
                    put(&mut plain, frame.len() as u64);
                    plain.extend(frame.into_bytes());
                }
                count += 1;
            }
            let first = u64::from(self.contexts);
            blocks.push((CONTEXTS, self.compressor.contents(first, count, &plain)?, first, count));
            self.contexts += count;
        }
        drop(contexts);
        blocks.push((
            EVENTS,
            self.compressor.contents(self.start, self.count, &self.events)?,
            self.start,
            self.count,
        ));
        if self.file.append(&blocks)? {
            self.end.records += u64::from(self.count);
        } else {
            self.full = true;
            self.end.left_out += u64::from(self.count);
        }
        self.events.clear();
        self.count = 0;
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

/// Reads a file, block by block.
#[derive(Debug)]
pub struct Reader<S = File> {
    /// What the file is of.
    pub header: Header,
    blocks: Blocks<S>,
    contexts: Vec<Vec<String>>,
    events: Vec<Entry>,
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
        let mut decoder = Decoder::new();
        let (mut contexts, mut events) = (Vec::new(), Vec::new());
        for entry in std::mem::take(&mut blocks.entries) {
            match entry.kind {
                EVENTS => events.push(entry),
                CONTEXTS => {
                    if let Err(why) = name_contexts(&blocks, &entry, &mut decoder, &mut contexts) {
                        // What comes later may be of contexts without a name.
                        blocks.incomplete.get_or_insert(why);
                        break;
                    }
                }
                // Of a later version, and not needed.
                _ => {}
            }
        }
        Ok(Reader { header, blocks, contexts, events })
    }

    /// Return addresses of each context, the innermost first.
    pub fn contexts(&self) -> &[Vec<String>] {
        &self.contexts
    }

    /// How many blocks of events there are.
    pub fn blocks(&self) -> usize {
        self.events.len()
    }

    /// The clock at a block's first event, and how many events are in it.
    pub fn block(&self, number: usize) -> (u64, u32) {
        (self.events[number].start, self.events[number].count)
    }

    /// The clock at the end: of a file that was not finished, at its last block's beginning.
    pub fn end_clock(&self) -> u64 {
        self.blocks.end.map_or(self.events.last().map_or(0, |entry| entry.start), |end| end.clock)
    }

    /// Number of events in all. There are no more objects than that.
    pub fn events(&self) -> u64 {
        self.events.iter().map(|entry| u64::from(entry.count)).sum()
    }

    /// Events that the file has no room for.
    pub fn left_out(&self) -> u64 {
        self.blocks.end.map_or(0, |end| end.left_out)
    }

    /// Why the file ends where it does, if not because it was finished.
    pub fn incomplete(&self) -> Option<&str> {
        self.blocks.incomplete.as_deref()
    }

    /// Decodes a block into `events`, whose contents are replaced. Returns the number of the first
    /// object that is born in it. All objects in it have been born, and their contexts are known.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn decode(
        &self,
        number: usize,
        decoder: &mut Decoder,
        events: &mut Vec<Event>,
    ) -> Result<u32, String> {
        let entry = &self.events[number];
        let wrong = || "a block of events cannot be understood".to_owned();
        if entry.count as usize > BLOCK_EVENTS {
            return Err(wrong());
        }
        let padded = decoder.read(&self.blocks, entry)?;
        let mut bytes = &padded[..padded.len() - PADDING];
        events.clear();
        // No more than there were events before.
        let most: u64 = self.events[..number].iter().map(|entry| u64::from(entry.count)).sum();
        let born = take(&mut bytes)
            .filter(|born| *born <= most)
            .and_then(|born| u32::try_from(born).ok())
            .ok_or_else(wrong)?;
        let mut before = Before { born, clock: entry.start, ..Before::default() };
        for _ in 0..entry.count {
            events.push(before.decode(&mut bytes, self.contexts.len()).ok_or_else(wrong)?);
        }
        if bytes.is_empty() { Ok(born) } else { Err(wrong()) }
    }
}

fn name_contexts<S: Source>(
    blocks: &Blocks<S>,
    entry: &Entry,
    decoder: &mut Decoder,
    contexts: &mut Vec<Vec<String>>,
) -> Result<(), String> {
    let padded = decoder.read(blocks, entry)?;
    let mut bytes = &padded[..padded.len() - PADDING];
    let mut next = || {
        let mut frames = Vec::new();
        for _ in 0..take(&mut bytes).filter(|count| *count <= FRAMES_MAX as u64)? {
            let len = take(&mut bytes)? as usize;
            let name = bytes.get(..len)?;
            bytes = &bytes[len..];
            frames.push(String::from_utf8(name.to_vec()).ok()?);
        }
        Some(frames)
    };
    let wrong = || "a block of contexts cannot be understood".to_owned();
    if entry.start != contexts.len() as u64 {
        return Err(wrong());
    }
    for _ in 0..entry.count {
        contexts.push(next().ok_or_else(wrong)?);
    }
    if bytes.is_empty() { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            terrace: "0.1.0".into(),
            command: vec!["a".into()],
            source: "hooks".into(),
            clock: Clock::Accesses,
            period: 1,
            cache: None,
            depth: 4,
        }
    }

    /// A file of these events. Contexts are named as they are met.
    fn written(events: &[Event], flushes: &[usize], limit: u64) -> Vec<u8> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("objects");
        let mut writer = Writer::create(&path, &header(), limit).unwrap();
        let (mut contexts, mut clock) = (0, 0);
        for (at, event) in events.iter().enumerate() {
            if let Event::Born { context, .. } = event {
                (contexts..=*context).for_each(|context| {
                    writer.name_context(vec![format!("a+{context}"); context as usize % 5])
                });
                contexts = contexts.max(context + 1);
            }
            clock = clock_of(event).unwrap_or(clock);
            writer.append(*event, clock).unwrap();
            if flushes.contains(&at) {
                writer.flush().unwrap();
            }
        }
        writer.finish(clock + 5).unwrap();
        std::fs::read(path).unwrap()
    }

    fn clock_of(event: &Event) -> Option<u64> {
        match event {
            Event::Born { clock, .. }
            | Event::Died { clock, .. }
            | Event::Resized { clock, .. }
            | Event::Counting { clock } => Some(*clock),
            Event::Access { .. } => None,
        }
    }

    fn read(bytes: &[u8]) -> (Vec<Event>, Option<String>) {
        let reader = Reader::of(bytes).unwrap();
        let (mut decoder, mut events, mut found) = (Decoder::new(), Vec::new(), Vec::new());
        let mut damage = reader.incomplete().map(str::to_owned);
        for number in 0..reader.blocks() {
            match reader.decode(number, &mut decoder, &mut events) {
                Ok(_) => found.append(&mut events),
                Err(why) => {
                    damage = Some(why);
                    break;
                }
            }
        }
        (found, damage)
    }

    /// Events that can be: an object that goes or is accessed was born.
    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec((0u8..6, any::<u32>(), 0u64..1 << 40, 0u64..1000), 0..300).prop_map(
            |steps| {
                let (mut born, mut clock) = (0u32, 0);
                let mut events = Vec::new();
                for (kind, which, number, later) in steps {
                    clock += later;
                    events.push(match kind {
                        0 | 1 => {
                            born += 1;
                            Event::Born {
                                address: number * 16,
                                bytes: number % 5000,
                                context: which % 20,
                                clock,
                            }
                        }
                        2 if born > 0 => Event::Died { object: which % born, clock },
                        3 if born > 0 => {
                            Event::Resized { object: which % born, bytes: number, clock }
                        }
                        4 if born > 0 => Event::Access {
                            object: which % born,
                            offset: number,
                            written: which % 3 == 0,
                        },
                        _ => Event::Counting { clock },
                    });
                }
                events
            },
        )
    }

    fn some(count: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for n in 0..count {
            events.push(match n % 6 {
                0 => Event::Born {
                    address: 0x5555_0000_0000 + n * 100 / 16 * 16,
                    bytes: 50 + n % 200,
                    context: n as u32 / 6 % 8,
                    clock: n * 7,
                },
                5 if n % 4 == 1 => Event::Died { object: n as u32 / 6, clock: n * 7 },
                _ => Event::Access { object: n as u32 / 12, offset: n % 50, written: n % 3 == 0 },
            });
        }
        events
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            events in events(), flushes in prop::collection::vec(0usize..300, 0..4)
        ) {
            prop_assert_eq!(read(&written(&events, &flushes, u64::MAX)), (events, None));
        }
    }

    #[test]
    fn long_ones_are_read_and_full_ones_say_so() {
        let events = some(200_000);
        let bytes = written(&events, &[], u64::MAX);
        assert!(bytes.len() < events.len() * 4, "{}", bytes.len());
        assert!(read(&bytes) == (events.clone(), None));
        let reader = Reader::of(&bytes[..]).unwrap();
        assert_eq!(
            (reader.blocks(), reader.events(), reader.contexts().len(), reader.contexts()[3].len()),
            (4, 200_000, 8, 3)
        );
        let limit = bytes.len() as u64 / 2;
        let bytes = written(&events, &[], limit);
        let (found, damage) = read(&bytes);
        assert!(
            bytes.len() as u64 <= limit
                && damage.is_none()
                && !found.is_empty()
                && found[..] == events[..found.len()]
        );
        assert_eq!(Reader::of(&bytes[..]).unwrap().left_out() + found.len() as u64, 200_000);
    }

    #[test]
    fn wherever_it_is_cut_off_or_damaged_what_was_before_is_there() {
        let events = some(60);
        let bytes = written(&events, &[9, 19, 29, 39, 49], u64::MAX);
        let mut most = 0;
        for cut in 0..bytes.len() {
            if Reader::of(&bytes[..cut]).is_ok() {
                let (found, damage) = read(&bytes[..cut]);
                assert!(
                    damage.is_some() && found.len() >= most && found[..] == events[..found.len()],
                    "{cut}: {damage:?}"
                );
                most = found.len();
            }
        }
        assert_eq!(most, 60);
        for at in 8..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            if Reader::of(&damaged[..]).is_ok() {
                let (found, damage) = read(&damaged);
                assert!(
                    damage.is_some() && found[..] == events[..found.len()],
                    "byte {at}: {damage:?}"
                );
            }
        }
    }

    #[test]
    fn damage_with_right_checksums_is_no_crash() {
        let bytes = written(&some(60), &[9, 19, 29, 39, 49], u64::MAX);
        let mut state = 1u64;
        for _ in 0..5_000 {
            crate::mutation::mutate(&bytes, &mut state, |damaged| {
                let Ok(reader) = Reader::of(damaged) else { return };
                let (mut decoder, mut events) = (Decoder::new(), Vec::new());
                for number in 0..reader.blocks() {
                    let Ok(mut born) = reader.decode(number, &mut decoder, &mut events) else {
                        return;
                    };
                    for event in &events {
                        match event {
                            Event::Born { context, .. } => {
                                assert!((*context as usize) < reader.contexts().len());
                                born += 1;
                            }
                            Event::Died { object, .. }
                            | Event::Resized { object, .. }
                            | Event::Access { object, .. } => {
                                assert!(*object < born)
                            }
                            Event::Counting { .. } => {}
                        }
                    }
                }
            });
        }
    }

    proptest! {
        #[test]
        fn any_bytes_will_do(bytes: Vec<u8>, born: u32) {
            let _ = Reader::of(&[&MAGIC[..], &bytes].concat()[..]);
            let mut before = Before { born, ..Before::default() };
            let mut rest = &bytes[..];
            while before.decode(&mut rest, 7).is_some() {}
        }
    }
}
