//! What all formats here are made of: a magic number and then blocks, and in them numbers of seven
//! bits a byte.
//!
//! A block is its kind (u8), its length (u32), the CRC-32 of both and of its contents (u32), and
//! its contents; all numbers little-endian. So whatever is cut off or overwritten is noticed, and
//! what comes before it can be read.

use crate::kinds::KINDS;
use std::io;

/// Bytes of a block's head: kind, length, checksum.
pub const BLOCK_HEAD: usize = 9;

/// Why a file cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file begins otherwise.
    #[error("is not a recording of Terrace's; `terrace record -o FILE -- CMD` makes one")]
    Magic(String),
    /// The file has nothing in it.
    #[error(
        "is empty: it was not finished, or nothing was recorded; `terrace record -o FILE -- CMD` makes one"
    )]
    Empty,
    /// A recording of another kind.
    #[error("{found}; what is asked for takes {wanted}. `terrace report FILE` shows what is in it")]
    OtherKind {
        /// What the file is.
        found: &'static str,
        /// What the file should be.
        wanted: &'static str,
    },
    /// The file has a version that this Terrace does not know.
    #[error(
        "is a recording in version {0} of the format, and this Terrace reads version 1: read it with the Terrace that wrote it"
    )]
    Version(u8),
    /// The header is damaged, and nothing can be read without it.
    #[error("has a damaged header ({0}), without which nothing in it can be understood")]
    Header(String),
}

/// Checks the first bytes of a file: seven letters and the version.
///
/// # Errors
/// If the file begins otherwise.
pub fn check_magic(found: &[u8], magic: &[u8; 8]) -> Result<(), ReadError> {
    if found.is_empty() {
        return Err(ReadError::Empty);
    }
    if found.len() < 8 || found[..7] != magic[..7] {
        let kind = |begins: &[u8]| KINDS.iter().find(|(magic, ..)| begins.starts_with(&magic[..7]));
        if let (Some((other, found, _)), Some((own, _, wanted))) = (kind(found), kind(magic))
            && other != own
        {
            return Err(ReadError::OtherKind { found, wanted });
        }
        return Err(ReadError::Magic(String::from_utf8_lossy(&magic[..7]).into_owned()));
    }
    if found[7] != magic[7] {
        return Err(ReadError::Version(found[7]));
    }
    Ok(())
}

/// Writes a number, seven bits a byte, the lowest first. All but the last byte have the eighth set.
#[inline]
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads the next number, and goes behind it; `None` if there is none.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Makes small numbers of those near zero on either side: 0, -1, 1, -2 … become 0, 1, 2, 3 …
#[inline]
pub fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

/// The number of which this is the [`zigzag`].
#[inline]
pub fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// A block with these contents.
pub fn block(kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK_HEAD + contents.len());
    out.push(kind);
    out.extend((contents.len() as u32).to_le_bytes());
    out.extend(checksum(&out, contents).to_le_bytes());
    out.extend(contents);
    out
}

/// Checksum of a block, over its kind and length and its contents.
fn checksum(head: &[u8], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(contents);
    hasher.finalize()
}

/// The four bytes at a place as a number.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The eight bytes at a place as a number.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A block's kind, and how long its contents are.
pub fn head(bytes: &[u8; BLOCK_HEAD]) -> (u8, u32) {
    (bytes[0], u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]))
}

/// Gives every block behind a magic number that can be found the head for what it holds; the last
/// one for what there is of it. For tests that damage files on purpose.
pub fn put_right(blocks: &mut [u8]) {
    let mut at = 0;
    while let Some(head_bytes) =
        blocks.get(at..).and_then(|rest| rest.first_chunk::<BLOCK_HEAD>()).copied()
    {
        let (kind, len) = head(&head_bytes);
        let from = at + BLOCK_HEAD;
        let to = from.saturating_add(len as usize).min(blocks.len());
        let right = block(kind, &blocks[from..to]);
        blocks[at..to].copy_from_slice(&right);
        at = to;
    }
}

/// Whether these are the contents that the head was written for.
pub fn is_intact(head: &[u8; BLOCK_HEAD], contents: &[u8]) -> bool {
    checksum(&head[..5], contents).to_le_bytes() == head[5..]
}

/// Kind and contents of the next block; `None` at the end.
///
/// # Errors
/// What is wrong with it, in words.
pub fn next_block<'a>(bytes: &mut &'a [u8]) -> Result<Option<(u8, &'a [u8])>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let cut_off = || "a block is cut off".to_owned();
    let (first, rest) = bytes.split_first_chunk::<BLOCK_HEAD>().ok_or_else(cut_off)?;
    let (kind, len) = head(first);
    let contents = rest.get(..len as usize).ok_or_else(cut_off)?;
    if !is_intact(first, contents) {
        return Err("a block's checksum is wrong".into());
    }
    *bytes = &rest[contents.len()..];
    Ok(Some((kind, contents)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive(numbers: Vec<i64>) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put(&mut bytes, zigzag(*number)));
            let mut rest = &bytes[..];
            let back: Vec<i64> = std::iter::from_fn(|| take(&mut rest)).map(unzigzag).collect();
            prop_assert_eq!(back, numbers);
        }
    }

    #[test]
    fn numbers_near_zero_are_short() {
        assert_eq!([0, -1, 1, -64, 64].map(zigzag), [0, 1, 2, 127, 128]);
        let mut bytes = Vec::new();
        [0, 127, 128, 300].into_iter().for_each(|number| put(&mut bytes, number));
        assert_eq!(bytes, [0, 0x7f, 0x80, 1, 0xac, 2]);
    }
}
