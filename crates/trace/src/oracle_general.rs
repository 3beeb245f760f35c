//! Accesses as libCacheSim's `oracleGeneral` has them, so that its cache policies, Belady's among them, can be run over the same trace.
//!
//! A record there is 24 bytes, packed, little-endian: the time in seconds (u32), the object (u64), its bytes (u32), and when it is accessed
//! next (i64): the number of that record, counted from 1, or -1 (libCacheSim, `traceReader/customizedReader/oracle/oracleGeneralBin.h`, `bin/traceUtils/traceConvOracleGeneral.cpp`).
//! An object here is a page, by its number. What was written is not said: there is no room for it.

use crate::accesses::{Clock, Decoder, Reader, page_of};
use crate::file::Source;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;
/// Accesses that count as a second.
const ACCESSES_A_SECOND: u64 = 1_000_000;

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Of the file that is written.
    #[error("cannot be written: {0}")]
    Write(#[from] io::Error),
    /// Of the one that is read.
    #[error("block {0} of the recording cannot be read: {1}")]
    Read(usize, String),
}

/// Writes all records; how many. Goes through the blocks from the last to the first, because each record says when the next one of its page comes.
///
/// # Errors
/// If the recording is damaged where its index says that blocks are, or the file cannot be written.
pub fn export<S: Source>(reader: &Reader<S>, to: &File) -> Result<u64, ExportError> {
    let unit = match reader.header.clock {
        Clock::Accesses => ACCESSES_A_SECOND,
        Clock::Us => 1_000_000,
    };
    let page_bytes = u32::try_from(reader.header.page_bytes).unwrap_or(u32::MAX);
    let mut next = vec![-1i64; reader.pages().len()];
    let (mut decoder, mut records, mut out) = (Decoder::new(), Vec::new(), Vec::new());
    let mut behind = reader.records();
    let mut end_clock = reader.end_clock();
    to.set_len(behind * RECORD_BYTES as u64)?;
    for number in (0..reader.blocks()).rev() {
        reader.decode(number, &mut decoder, &mut records).map_err(|why| ExportError::Read(number, why))?;
        let (start, count) = reader.block(number);
        let first = behind - u64::from(count);
        out.resize(records.len() * RECORD_BYTES, 0);
        for (at, record) in records.iter().enumerate().rev() {
            let page = page_of(*record);
            let then = std::mem::replace(&mut next[page as usize], (first + at as u64 + 1) as i64);
            // Records are at equal distances, as far as is known.
            let clock = start + (u128::from(end_clock.saturating_sub(start)) * at as u128 / records.len() as u128) as u64;
            let out = &mut out[at * RECORD_BYTES..][..RECORD_BYTES];
            out[..4].copy_from_slice(&((clock / unit).min(u32::MAX.into()) as u32).to_le_bytes());
            out[4..12].copy_from_slice(&u64::from(page).to_le_bytes());
            out[12..16].copy_from_slice(&page_bytes.to_le_bytes());
            out[16..].copy_from_slice(&then.to_le_bytes());
        }
        to.write_all_at(&out, first * RECORD_BYTES as u64)?;
        (behind, end_clock) = (first, start);
    }
    Ok(reader.records())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accesses::Page;
    use crate::accesses::tests::{accesses, written};
    use std::collections::HashMap;

    fn exported(accesses: &[(Page, bool)], flushes: &[usize]) -> Vec<(u32, u64, u32, i64)> {
        let bytes = written(accesses, flushes, u64::MAX);
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("out");
        assert_eq!(export(&Reader::of(&bytes[..]).unwrap(), &File::create(&path).unwrap()).unwrap(), accesses.len() as u64);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let record =
            |bytes: &[u8]| (number(&bytes[..4]) as u32, number(&bytes[4..12]), number(&bytes[12..16]) as u32, number(&bytes[16..]) as i64);
        std::fs::read(path).unwrap().chunks(RECORD_BYTES).map(record).collect()
    }

    #[test]
    fn each_record_says_when_its_page_comes_next() {
        let page = |number| (Page { process: 1, number }, false);
        let found = exported(&[page(70), page(80), page(70), page(70), page(80), page(90)], &[1, 3]);
        let expected = [(0, 0, 4096, 3), (0, 1, 4096, 5), (0, 0, 4096, 4), (0, 0, 4096, -1), (0, 1, 4096, -1), (0, 2, 4096, -1)];
        assert_eq!(found, expected);
    }

    #[test]
    fn long_ones_are_exported_block_by_block() {
        let accesses = accesses(150_000);
        let found = exported(&accesses, &[]);
        let mut next: HashMap<Page, i64> = HashMap::new();
        for (at, (page, _)) in accesses.iter().enumerate().rev() {
            assert_eq!(found[at].3, next.insert(*page, at as i64 + 1).unwrap_or(-1), "{at}");
            // Ten of the clock a record, a million of it a second.
            assert_eq!(found[at].0, at as u32 / 100_000);
        }
    }
}
