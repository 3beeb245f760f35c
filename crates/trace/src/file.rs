//! A file of blocks in which each can be found. At its end is an index of them, and behind that an
//! end of known length. Without these, in a file that was cut off or is still being written, the
//! blocks are found one after the other.

use crate::framing::{self, BLOCK_HEAD, ReadError, block, check_magic, u32_at, u64_at};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use zstd_safe::{CCtx, DCtx};

/// Kind of the first block: JSON.
pub const HEADER: u8 = 1;
/// Kind of the last block.
pub const END: u8 = 3;
/// Kind of the block before the last: where the others are.
pub const INDEX: u8 = 5;
const END_BYTES: usize = 32;
const ENTRY_BYTES: usize = 24;
/// Longest contents of a block, bytes: a reader makes room for that much before it looks.
pub const CONTENTS_MAX: usize = 16 << 20;

/// Bytes before what is compressed in a block: its start and its count.
pub const PREFIX: usize = 12;
/// Most that is compressed in a block, bytes.
pub const PLAIN_MAX: usize = 4 << 20;
/// Bytes behind what was decompressed, so that eight bytes can be read wherever a number begins.
pub const PADDING: usize = 8;
/// Level of compression. The records of six real programs take 1.7 to 2.4 bytes each with it,
/// against 2.0 to 2.7 without.
const ZSTD_LEVEL: i32 = 1;
/// Most fifths of its size that a block may take compressed; else [`ZSTD_QUICK`] is used.
const ZSTD_FIFTHS: usize = 4;
/// Level without entropy coding: what is random anyway is a seventh longer, and decompressed in a
/// tenth of the time.
const ZSTD_QUICK: i32 = -5;

/// A block that can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position of the block in the file, bytes.
    pub at: u64,
    /// Number that the block's kind gives a meaning: the clock when it begins, or the first of what
    /// it describes.
    pub start: u64,
    /// Number of things in the block.
    pub count: u32,
    /// Kind of the block.
    pub kind: u8,
}

/// What a finished file says at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Records in all.
    pub records: u64,
    /// The clock at the end.
    pub clock: u64,
    /// Records that are not in the file because it had reached its limit.
    pub left_out: u64,
}

/// Something that can be read anywhere: a file, or bytes.
pub trait Source {
    /// Bytes in all.
    ///
    /// # Errors
    /// If they cannot be known.
    fn bytes(&self) -> io::Result<u64>;
    /// Fills the buffer with the bytes from `at` on.
    ///
    /// # Errors
    /// If less is there, or it cannot be read.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Source for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }
}

impl Source for &[u8] {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Compresses blocks' contents.
pub struct Compressor(CCtx<'static>);

impl Compressor {
    /// Makes a compressor.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new() -> io::Result<Compressor> {
        Ok(Compressor(CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// The contents of a block: start, count, and the rest compressed.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn contents(&mut self, start: u64, count: u32, plain: &[u8]) -> io::Result<Vec<u8>> {
        debug_assert!(plain.len() <= PLAIN_MAX);
        let mut out = vec![0; PREFIX + zstd_safe::compress_bound(plain.len())];
        out[..8].copy_from_slice(&start.to_le_bytes());
        out[8..PREFIX].copy_from_slice(&count.to_le_bytes());
        let failed = |code| io::Error::other(format!("zstd: {}", zstd_safe::get_error_name(code)));
        let mut len = self.0.compress(&mut out[PREFIX..], plain, ZSTD_LEVEL).map_err(failed)?;
        if len > plain.len() / 5 * ZSTD_FIFTHS {
            len = self.0.compress(&mut out[PREFIX..], plain, ZSTD_QUICK).map_err(failed)?;
        }
        out.truncate(PREFIX + len);
        Ok(out)
    }
}

/// Room for reading blocks, used again for each.
pub struct Decoder {
    context: DCtx<'static>,
    contents: Vec<u8>,
    plain: Vec<u8>,
}

impl Decoder {
    /// Makes room for one block.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new() -> Decoder {
        Decoder {
            context: DCtx::create(),
            contents: Vec::new(),
            plain: vec![0; PLAIN_MAX + PADDING],
        }
    }

    /// Reads a block. Returns what was compressed in it, and [`PADDING`] bytes more.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read<S: Source>(&mut self, blocks: &Blocks<S>, entry: &Entry) -> Result<&[u8], String> {
        blocks.read(entry, &mut self.contents)?;
        let failed =
            |code| format!("a block cannot be decompressed: {}", zstd_safe::get_error_name(code));
        let len = self
            .context
            .decompress(&mut self.plain[..PLAIN_MAX], &self.contents[PREFIX..])
            .map_err(failed)?;
        Ok(&self.plain[..len + PADDING])
    }
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

/// Writes a file of blocks with an index.
#[derive(Debug)]
pub struct BlockWriter {
    file: File,
    at: u64,
    limit: u64,
    entries: Vec<Entry>,
}

impl BlockWriter {
    /// Makes the file anew. `limit`: bytes that the file will not grow beyond.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(
        path: &Path,
        magic: &[u8; 8],
        header: &[u8],
        limit: u64,
    ) -> io::Result<BlockWriter> {
        let mut file = File::create(path)?;
        let start = [&magic[..], &block(HEADER, header)].concat();
        file.write_all(&start)?;
        Ok(BlockWriter { file, at: start.len() as u64, limit, entries: Vec::new() })
    }

    /// Adds blocks that belong together, all of them or none; false if the file would grow beyond
    /// its limit.
    ///
    /// # Errors
    /// If they cannot be written; what was written before can still be read.
    pub fn append(&mut self, blocks: &[(u8, Vec<u8>, u64, u32)]) -> io::Result<bool> {
        let more: u64 =
            blocks.iter().map(|(_, contents, ..)| (BLOCK_HEAD + contents.len()) as u64).sum();
        let last =
            (2 * BLOCK_HEAD + END_BYTES + ENTRY_BYTES * (self.entries.len() + blocks.len())) as u64;
        if self.at + more + last > self.limit {
            return Ok(false);
        }
        for (kind, contents, start, count) in blocks {
            debug_assert!(contents.len() <= CONTENTS_MAX);
            self.file.write_all(&block(*kind, contents))?;
            self.entries.push(Entry { at: self.at, start: *start, count: *count, kind: *kind });
            self.at += (BLOCK_HEAD + contents.len()) as u64;
        }
        Ok(true)
    }

    /// Writes the index and the end.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn finish(mut self, end: End) -> io::Result<()> {
        let mut index = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            index.extend(entry.at.to_le_bytes());
            index.extend(entry.start.to_le_bytes());
            index.extend(entry.count.to_le_bytes());
            index.extend(u32::from(entry.kind).to_le_bytes());
        }
        let numbers = [self.at, end.records, end.clock, end.left_out];
        let end: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        self.file.write_all(&[block(INDEX, &index), block(END, &end)].concat())
    }
}

/// File of blocks, opened for reading.
#[derive(Debug)]
pub struct Blocks<S> {
    source: S,
    /// The contents of the first block.
    pub header: Vec<u8>,
    /// All other blocks, but index and end, as far as they can be read.
    pub entries: Vec<Entry>,
    /// What the file says at its end, if it was finished.
    pub end: Option<End>,
    /// Why the file ends where it does, if not because it was finished.
    pub incomplete: Option<String>,
}

impl<S: Source> Blocks<S> {
    /// Opens a file.
    ///
    /// # Errors
    /// See [`ReadError`]. Damage behind the header is none: see [`Blocks::incomplete`].
    pub fn open(source: S, magic: &[u8; 8]) -> Result<Blocks<S>, ReadError> {
        let bytes = source.bytes()?;
        let mut start = vec![0; bytes.min(8) as usize];
        source.read_at(0, &mut start)?;
        check_magic(&start, magic)?;
        let mut blocks =
            Blocks { source, header: Vec::new(), entries: Vec::new(), end: None, incomplete: None };
        let mut header = Vec::new();
        match blocks.read_block(8, bytes, &mut header) {
            Ok((HEADER, _)) => blocks.header = header,
            Ok((kind, _)) => {
                return Err(ReadError::Header(format!("it is a block of kind {kind}")));
            }
            Err(why) => return Err(ReadError::Header(why)),
        }
        if blocks.find_by_index(bytes).is_none() {
            blocks.find_by_scanning(bytes);
        }
        Ok(blocks)
    }

    /// Reads the block at `at` into `contents`. Returns its kind, and where the next one begins.
    fn read_block(&self, at: u64, bytes: u64, contents: &mut Vec<u8>) -> Result<(u8, u64), String> {
        let cut_off = || "a block is cut off".to_owned();
        let mut head = [0; BLOCK_HEAD];
        let behind = at
            .checked_add(BLOCK_HEAD as u64)
            .filter(|behind| *behind <= bytes)
            .ok_or_else(cut_off)?;
        self.source.read_at(at, &mut head).map_err(|error| error.to_string())?;
        let (kind, len) = framing::head(&head);
        if len as usize > CONTENTS_MAX {
            return Err("a block's length is wrong".into());
        }
        let next = behind + u64::from(len);
        if next > bytes {
            return Err(cut_off());
        }
        contents.resize(len as usize, 0);
        self.source.read_at(behind, contents).map_err(|error| error.to_string())?;
        if !framing::is_intact(&head, contents) {
            return Err("a block's checksum is wrong".into());
        }
        Ok((kind, next))
    }

    /// Finds blocks by the index. `None` if there is no index that is as it should be.
    fn find_by_index(&mut self, bytes: u64) -> Option<()> {
        let mut contents = Vec::new();
        let end_at = bytes.checked_sub((BLOCK_HEAD + END_BYTES) as u64)?;
        let (END, _) = self.read_block(end_at, bytes, &mut contents).ok()? else { return None };
        let index_at = u64_at(&contents, 0)?;
        let end = End {
            records: u64_at(&contents, 8)?,
            clock: u64_at(&contents, 16)?,
            left_out: u64_at(&contents, 24)?,
        };
        // It may be as long as a file of any length needs.
        let mut head = [0; BLOCK_HEAD];
        self.source.read_at(index_at, &mut head).ok()?;
        let (kind, len) = framing::head(&head);
        if kind != INDEX
            || index_at.checked_add((BLOCK_HEAD + len as usize) as u64) != Some(end_at)
            || !(len as usize).is_multiple_of(ENTRY_BYTES)
        {
            return None;
        }
        let mut index = vec![0; len as usize];
        self.source.read_at(index_at + BLOCK_HEAD as u64, &mut index).ok()?;
        if !framing::is_intact(&head, &index) {
            return None;
        }
        for entry in index.chunks_exact(ENTRY_BYTES) {
            let kind = u8::try_from(u32_at(entry, 20)?).ok()?;
            self.entries.push(Entry {
                at: u64_at(entry, 0)?,
                start: u64_at(entry, 8)?,
                count: u32_at(entry, 16)?,
                kind,
            });
        }
        self.end = Some(end);
        Some(())
    }

    /// Finds blocks one after the other, up to what is damaged or missing.
    fn find_by_scanning(&mut self, bytes: u64) {
        self.entries.clear();
        let mut contents = Vec::new();
        let mut at = (8 + BLOCK_HEAD + self.header.len()) as u64;
        self.incomplete = Some(loop {
            if at == bytes {
                break "it was cut off, or is still being written".into();
            }
            match self.read_block(at, bytes, &mut contents) {
                Ok((INDEX | END, _)) => break "its index is damaged, or what is behind it".into(),
                Ok((kind, next)) => {
                    // Every kind that is in an index begins with these two.
                    if let (Some(start), Some(count)) = (u64_at(&contents, 0), u32_at(&contents, 8))
                    {
                        self.entries.push(Entry { at, start, count, kind });
                    }
                    at = next;
                }
                Err(why) => break why,
            }
        });
    }

    /// Reads a block's contents.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read(&self, entry: &Entry, contents: &mut Vec<u8>) -> Result<(), String> {
        let bytes = self.source.bytes().map_err(|error| error.to_string())?;
        let (kind, _) = self.read_block(entry.at, bytes, contents)?;
        let as_indexed = kind == entry.kind
            && u64_at(contents, 0) == Some(entry.start)
            && u32_at(contents, 8) == Some(entry.count);
        if as_indexed { Ok(()) } else { Err("a block is not what the index says".into()) }
    }
}
