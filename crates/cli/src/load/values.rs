//! Keys and values: made from numbers, so that whoever reads one back can tell whether it is the
//! right one.
//!
//! A value names its key and its version and holds a checksum of itself: it is told from any other,
//! damaged, stale or torn, without a copy to compare with. The rest is JSON-like text with some
//! noise: 1,000 bytes compress about 2.3 times under lz4, by pages of 4 KiB.

use terrace_sim::scattered::mixed;

/// Bytes of a key: `key-` and the item's number.
pub const KEY_BYTES: usize = 16;
/// The smallest value: what precedes its text, and the closing brace.
pub const LEAST_BYTES: usize = 64;
/// The largest: memcached takes 1 MiB with its header unless told otherwise.
pub const MOST_BYTES: usize = 1_000_000;
/// More items than any server here holds; twelve digits of a key have room for them.
pub const MOST_ITEMS: u64 = 1_000_000_000;

const HEAD: &[u8] = br#"{"k":"key-000000000000","v":"0000000000000000","c":"00000000","#;
const KEY_AT: usize = 6;
const VERSION_AT: usize = 29;
const VERSION_DIGITS: usize = 16;
const CHECKSUM_AT: usize = 52;
const CHECKSUM_DIGITS: usize = 8;

/// One entry of the text; `#` becomes a decimal digit, `%` a hexadecimal one.
const ENTRY: &[u8] = br#"{"id":######,"user":"user-#####","score":####,"token":"%%%%%%%%%%%%","active":true,"tags":[]},"#;

/// What was wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Not as long as all of them.
    #[error("a value of {0} bytes came back")]
    Length(usize),
    /// The value belongs to another key, or to none.
    #[error("another key's value came back")]
    Key,
    /// Its checksum does not match.
    #[error("a damaged value came back")]
    Damaged,
    /// Older than what was last acknowledged, or one that nobody wrote.
    #[error(
        "version {0} came back, which was overwritten before it was asked for, or never written"
    )]
    Version(u64),
}

/// The key of an item.
pub fn key(item: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key-000000000000";
    write_decimal(&mut key[4..], item);
    key
}

/// Makes and checks the values of one run.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    bytes: usize,
    seed: u64,
}

impl Values {
    /// Values of `bytes` bytes, between [`LEAST_BYTES`] and [`MOST_BYTES`].
    pub fn new(bytes: usize, seed: u64) -> Self {
        assert!((LEAST_BYTES..=MOST_BYTES).contains(&bytes), "checked with the arguments");
        Values { bytes, seed }
    }

    /// How long each is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of an item at a version, in place of what `value` held.
    pub fn make(&self, item: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(HEAD);
        write_decimal(&mut value[KEY_AT + 4..KEY_AT + KEY_BYTES], item);
        write_hexadecimal(&mut value[VERSION_AT..VERSION_AT + VERSION_DIGITS], version);
        let mut noise = Noise(mixed(mixed(self.seed ^ item) ^ version));
        while value.len() < self.bytes {
            let from = value.len();
            value.extend_from_slice(&ENTRY[..ENTRY.len().min(self.bytes - from)]);
            noise.fill(&mut value[from..]);
        }
        value[self.bytes - 1] = b'}';
        let checksum = checksum(value);
        write_hexadecimal(
            &mut value[CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_DIGITS],
            u64::from(checksum),
        );
    }

    /// The version of what came back for an item.
    pub fn version(&self, item: u64, value: &[u8]) -> Result<u64, Wrong> {
        if value.len() != self.bytes {
            return Err(Wrong::Length(value.len()));
        }
        if value[KEY_AT..KEY_AT + KEY_BYTES] != key(item) {
            return Err(Wrong::Key);
        }
        let read = |at: usize, digits: usize| {
            read_hexadecimal(&value[at..at + digits]).ok_or(Wrong::Damaged)
        };
        if read(CHECKSUM_AT, CHECKSUM_DIGITS)? != u64::from(checksum(value)) {
            return Err(Wrong::Damaged);
        }
        read(VERSION_AT, VERSION_DIGITS)
    }
}

/// CRC-32 of all bytes of a value but its own checksum.
fn checksum(value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&value[..CHECKSUM_AT]);
    hasher.update(&value[CHECKSUM_AT + CHECKSUM_DIGITS..]);
    hasher.finalize()
}

fn write_decimal(field: &mut [u8], mut number: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    debug_assert_eq!(number, 0, "the number of items is limited");
}

fn write_hexadecimal(field: &mut [u8], mut number: u64) {
    for digit in field.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

fn read_hexadecimal(field: &[u8]) -> Option<u64> {
    field.iter().try_fold(0, |number, digit| {
        Some(number << 4 | u64::from(char::from(*digit).to_digit(16)?))
    })
}

/// Digits that look like chance, the same for the same beginning.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, text: &mut [u8]) {
        let (mut bits, mut left) = (0, 0);
        for byte in text {
            if !matches!(byte, b'#' | b'%') {
                continue;
            }
            if left == 0 {
                self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
                (bits, left) = (mixed(self.0), 16);
            }
            let digit = (bits & 15) as usize;
            // Six of ten digits are a little likelier than the others: nobody minds.
            *byte =
                if *byte == b'#' { b"0123456789012345"[digit] } else { b"0123456789abcdef"[digit] };
            (bits, left) = (bits >> 4, left - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(bytes: usize, item: u64, version: u64) -> Vec<u8> {
        let mut value = b"what was there before".to_vec();
        Values::new(bytes, 7).make(item, version, &mut value);
        value
    }

    #[test]
    fn the_head_is_where_it_is_looked_for() {
        let value = value(LEAST_BYTES, 42, 0xabc);
        let text = String::from_utf8(value).unwrap();
        assert!(
            text.starts_with(r#"{"k":"key-000000000042","v":"0000000000000abc","c":""#),
            "{text}"
        );
        assert_eq!(text.len(), LEAST_BYTES);
        assert_eq!(&HEAD[CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_DIGITS + 2], b"00000000\",");
        assert!(HEAD.len() < LEAST_BYTES);
    }

    #[test]
    fn the_same_numbers_make_the_same_value() {
        assert_eq!(value(1000, 5, 1), value(1000, 5, 1));
        assert_ne!(value(1000, 5, 1)[HEAD.len()..], value(1000, 5, 2)[HEAD.len()..]);
        assert_ne!(value(1000, 5, 1)[HEAD.len()..], value(1000, 6, 1)[HEAD.len()..]);
    }

    /// The servers' pages that the project's figures come from shrank to 1/2.26 under lz4.
    #[test]
    fn pages_of_values_compress_as_json_does() {
        let lz4 = terrace_tiers::codec::codec_for(terrace_tiers::CodecKind::Lz4);
        let mut scratch = terrace_tiers::Scratch::new();
        let text: Vec<u8> =
            (0..2000).flat_map(|item| value(1000, mixed(item) % 1_000_000, 0)).collect();
        let (pages, _) = text.as_chunks::<4096>();
        let stored: usize = pages
            .iter()
            .map(|page| lz4.compress(page, &mut scratch, 4096).map_or(4096, <[u8]>::len))
            .sum();
        let ratio = (pages.len() * 4096) as f64 / stored as f64;
        assert!((2.2..2.4).contains(&ratio), "{ratio}");
    }

    proptest! {
        #[test]
        fn a_value_is_known_by_its_item_and_version(bytes in LEAST_BYTES..3000, item in 0..MOST_ITEMS, version: u64) {
            let value = value(bytes, item, version);
            let values = Values::new(bytes, 7);
            prop_assert_eq!(value.len(), bytes);
            prop_assert_eq!(values.version(item, &value), Ok(version));
            prop_assert_eq!(values.version((item + 1) % MOST_ITEMS, &value), Err(Wrong::Key));
            prop_assert_eq!(values.version(item, &value[1..]), Err(Wrong::Length(bytes - 1)));
        }

        #[test]
        fn a_changed_byte_is_noticed(bytes in LEAST_BYTES..3000, at: prop::sample::Index, change in 1u8..) {
            let mut value = value(bytes, 9, 3);
            let at = at.index(bytes);
            value[at] ^= change;
            let read = Values::new(bytes, 7).version(9, &value);
            // Capitals are digits too.
            let same_digit = (CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_DIGITS).contains(&at) && change == b'a' ^ b'A';
            prop_assert!(read.is_err() || same_digit && read == Ok(3), "{:?}", read);
        }
    }
}
