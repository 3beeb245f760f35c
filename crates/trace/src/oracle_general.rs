//! Accesses as libCacheSim's `oracleGeneral` has them, so that its cache policies, Belady's among
//! them, can be run over the same trace.
//!
//! A record there is 24 packed bytes, little-endian: time in seconds (u32), the object (u64), its
//! bytes (u32), and when it is accessed next (i64). That is the number of the next record, counted
//! from 1, or -1 (libCacheSim, `traceReader/customizedReader/oracle/oracleGeneralBin.h`,
//! `bin/traceUtils/traceConvOracleGeneral.cpp`). An object here is a page, by its number. What was
//! written is not said: there is no room for it.

use crate::accesses::{Clock, Decoder, Reader, page_of};
use crate::file::Source;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;
/// Accesses that count as a second.
const ACCESSES_A_SECOND: u64 = 1_000_000;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Number of records.
    pub records: u64,
    /// Why no more of the recording was written, if that is not all of it.
    pub incomplete: Option<String>,
}

/// Writes all records, of a damaged recording those before the first damage. Goes through the
/// blocks from the last to the first, because each record says when the next one of its page comes.
///
/// # Errors
/// If the file cannot be written.
pub fn export<S: Source>(reader: &Reader<S>, to: &File) -> io::Result<Exported> {
    let unit = match reader.header.clock {
        Clock::Accesses => ACCESSES_A_SECOND,
        Clock::Us => 1_000_000,
    };
    let page_bytes = u32::try_from(reader.header.page_bytes).unwrap_or(u32::MAX);
    let mut next = vec![-1i64; reader.pages().len()];
    let (mut decoder, mut records, mut out) = (Decoder::new(), Vec::new(), Vec::new());
    let mut exported =
        Exported { records: reader.records(), incomplete: reader.incomplete().map(str::to_owned) };
    let mut behind = exported.records;
    let mut end_clock = reader.end_clock();
    to.set_len(behind * RECORD_BYTES as u64)?;
    for number in (0..reader.blocks()).rev() {
        let (start, count) = reader.block(number);
        let first = behind - u64::from(count);
        if let Err(why) = reader.decode(number, &mut decoder, &mut records) {
            // What was written comes after the damage: the end is here.
            exported = Exported { records: first, incomplete: Some(why) };
            next.fill(-1);
            to.set_len(first * RECORD_BYTES as u64)?;
            (behind, end_clock) = (first, start);
            continue;
        }
        out.resize(records.len() * RECORD_BYTES, 0);
        for (at, record) in records.iter().enumerate().rev() {
            let page = page_of(*record);
            let then = std::mem::replace(&mut next[page as usize], (first + at as u64 + 1) as i64);
            // Records are at equal distances, as far as is known.
            let clock = start
                + (u128::from(end_clock.saturating_sub(start)) * at as u128 / records.len() as u128)
                    as u64;
            let out = &mut out[at * RECORD_BYTES..][..RECORD_BYTES];
            out[..4].copy_from_slice(&((clock / unit).min(u32::MAX.into()) as u32).to_le_bytes());
            out[4..12].copy_from_slice(&u64::from(page).to_le_bytes());
            out[12..16].copy_from_slice(&page_bytes.to_le_bytes());
            out[16..].copy_from_slice(&then.to_le_bytes());
        }
        to.write_all_at(&out, first * RECORD_BYTES as u64)?;
        (behind, end_clock) = (first, start);
    }
    Ok(exported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accesses::Page;
    use crate::accesses::tests::{accesses, written};
    use crate::framing::{BLOCK_HEAD, head};
    use std::collections::HashMap;

    fn exported(accesses: &[(Page, bool)], flushes: &[usize]) -> Vec<(u32, u64, u32, i64)> {
        let bytes = written(accesses, flushes, u64::MAX);
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("out");
        let whole = Exported { records: accesses.len() as u64, incomplete: None };
        assert_eq!(
            export(&Reader::of(&bytes[..]).unwrap(), &File::create(&path).unwrap()).unwrap(),
            whole
        );
        records_of(&path)
    }

    fn records_of(path: &std::path::Path) -> Vec<(u32, u64, u32, i64)> {
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let record = |bytes: &[u8]| {
            (
                number(&bytes[..4]) as u32,
                number(&bytes[4..12]),
                number(&bytes[12..16]) as u32,
                number(&bytes[16..]) as i64,
            )
        };
        std::fs::read(path).unwrap().chunks(RECORD_BYTES).map(record).collect()
    }

    #[test]
    fn each_record_says_when_its_page_comes_next() {
        let page = |number| (Page { process: 1, number }, false);
        let found =
            exported(&[page(70), page(80), page(70), page(70), page(80), page(90)], &[1, 3]);
        let expected = [
            (0, 0, 4096, 3),
            (0, 1, 4096, 5),
            (0, 0, 4096, 4),
            (0, 0, 4096, -1),
            (0, 1, 4096, -1),
            (0, 2, 4096, -1),
        ];
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

    /// What precedes the first damage of a recording is exported, as if there had not been more.
    #[test]
    fn of_a_damaged_one_what_precedes_the_damage_is_exported() {
        let accesses = accesses(300);
        let mut bytes = written(&accesses, &[99, 149, 249], u64::MAX);
        // In the middle of the third and of the fourth block of records. The second damage is met
        // first, and is not the one that counts.
        let (mut at, mut blocks_of_records) = (8, 0);
        while at < bytes.len() {
            let (kind, len) = head(bytes[at..].first_chunk().unwrap());
            blocks_of_records += u32::from(kind == 2);
            if kind == 2 && blocks_of_records > 2 {
                bytes[at + BLOCK_HEAD + len as usize / 2] ^= 1;
            }
            at += BLOCK_HEAD + len as usize;
        }
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("out");
        let found =
            export(&Reader::of(&bytes[..]).unwrap(), &File::create(&path).unwrap()).unwrap();
        assert_eq!(
            found,
            Exported { records: 150, incomplete: Some("a block's checksum is wrong".into()) }
        );
        assert_eq!(records_of(&path), exported(&accesses[..150], &[99]));
    }
}
