//! Keys and values: made from numbers, so that a reader can tell whether one is the right one.
//!
//! A value names its key and its version and holds a checksum of itself: it is told from any other,
//! damaged, stale or torn, without a copy to compare with. The rest is JSON-like text with some
//! noise: 1,000 bytes compress about 2.3 times under lz4, by pages of 4 KiB. A share of it may be
//! bytes by chance, which do not compress at all.

use super::numbers::Numbers;
use terrace_sim::scattered::mixed;

/// Bytes of a key: `key-` and the item's number.
pub const KEY_BYTES: usize = 16;
/// Bytes of the smallest value: what precedes its text, and the closing brace.
pub const LEAST_BYTES: usize = 64;
/// Bytes of the largest value: memcached takes 1 MiB with its header unless told otherwise.
pub const MOST_BYTES: usize = 1_000_000;
/// Most items: more than any server here holds; twelve digits of a key have room for them.
pub const MOST_ITEMS: u64 = 1_000_000_000;

const HEAD: &[u8] = br#"{"k":"key-000000000000","v":"0000000000000000","c":"00000000","#;
const KEY_AT: usize = 6;
const VERSION_AT: usize = 29;
const VERSION_DIGITS: usize = 16;
const CHECKSUM_AT: usize = 52;
const CHECKSUM_DIGITS: usize = 8;

/// An entry of the text; `#` becomes a decimal digit, `%` a hexadecimal one.
const ENTRY: &[u8] = br#"{"id":######,"user":"user-#####","score":####,"token":"%%%%%%%%%%%%","active":true,"tags":[]},"#;

/// What was wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The value is not as long as its item's values are.
    #[error("a value of {0} bytes came back")]
    Length(usize),
    /// The value belongs to another key, or to none.
    #[error("another key's value came back")]
    Key,
    /// The value's checksum does not match.
    #[error("a damaged value came back")]
    Damaged,
    /// The version is older than what was last acknowledged, or was never written.
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
#[derive(Clone, Debug)]
pub struct Values {
    bytes: Numbers,
    random: Numbers,
    seed: u64,
}

/// What tells the chance for an item's length from that for its contents, and that for the share
/// that does not compress.
const LENGTHS: u64 = 0x4C45_4E47_5448_5321;
const SHARES: u64 = 0x5348_4152_4553_2121;

impl Values {
    /// Values of `bytes` bytes, between [`LEAST_BYTES`] and [`MOST_BYTES`], of which `random` in a
    /// hundred are by chance. Both are an item's own: each of its values has the same.
    pub fn new(bytes: Numbers, random: Numbers, seed: u64) -> Self {
        Values { bytes, random, seed }
    }

    /// How long an item's values are.
    fn bytes(&self, item: u64) -> usize {
        match self.bytes {
            Numbers::One(bytes) => bytes,
            _ => self.bytes.of(mixed(mixed(self.seed ^ LENGTHS) ^ item)),
        }
    }

    /// How many bytes at an item's end are by chance.
    fn random_bytes(&self, item: u64, bytes: usize) -> usize {
        let percent = match self.random {
            Numbers::One(percent) => percent,
            _ => self.random.of(mixed(mixed(self.seed ^ SHARES) ^ item)),
        };
        (bytes - LEAST_BYTES) * percent / 100
    }

    /// How long the longest is.
    pub fn most_bytes(&self) -> usize {
        self.bytes.most()
    }

    /// The value of an item at a version, in place of what `value` held.
    pub fn make(&self, item: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(HEAD);
        write_decimal(&mut value[KEY_AT + 4..KEY_AT + KEY_BYTES], item);
        write_hexadecimal(&mut value[VERSION_AT..VERSION_AT + VERSION_DIGITS], version);
        let bytes = self.bytes(item);
        let text = bytes - self.random_bytes(item, bytes);
        let mut noise = Noise(mixed(mixed(self.seed ^ item) ^ version));
        while value.len() < text {
            let from = value.len();
            value.extend_from_slice(&ENTRY[..ENTRY.len().min(text - from)]);
            noise.fill(&mut value[from..]);
        }
        while value.len() < bytes {
            let chance = noise.next().to_ne_bytes();
            value.extend_from_slice(&chance[..chance.len().min(bytes - value.len())]);
        }
        value[bytes - 1] = b'}';
        let checksum = checksum(value);
        write_hexadecimal(
            &mut value[CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_DIGITS],
            u64::from(checksum),
        );
    }

    /// The version of what came back for an item.
    pub fn version(&self, item: u64, value: &[u8]) -> Result<u64, Wrong> {
        if value.len() != self.bytes(item) {
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
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    fn fill(&mut self, text: &mut [u8]) {
        let (mut bits, mut left) = (0, 0);
        for byte in text {
            if !matches!(byte, b'#' | b'%') {
                continue;
            }
            if left == 0 {
                (bits, left) = (self.next(), 16);
            }
            let digit = (bits & 15) as usize;
            // Six of ten digits are a little likelier than the others: that does no harm.
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

    fn of(bytes: usize) -> Values {
        Values::new(Numbers::One(bytes), Numbers::One(0), 7)
    }

    fn value(bytes: usize, item: u64, version: u64) -> Vec<u8> {
        let mut value = b"what was there before".to_vec();
        of(bytes).make(item, version, &mut value);
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

    /// How many times smaller pages of values are under lz4.
    fn ratio(values: &Values) -> f64 {
        let lz4 = terrace_tiers::codec::codec_for(terrace_tiers::CodecKind::Lz4);
        let mut scratch = terrace_tiers::Scratch::new();
        let mut text = Vec::new();
        for item in 0..2000 {
            let mut value = Vec::new();
            values.make(mixed(item) % 1_000_000, 0, &mut value);
            text.extend(value);
        }
        let (pages, _) = text.as_chunks::<4096>();
        let stored: usize = pages
            .iter()
            .map(|page| lz4.compress(page, &mut scratch, 4096).map_or(4096, <[u8]>::len))
            .sum();
        (pages.len() * 4096) as f64 / stored as f64
    }

    /// The servers' pages that the project's figures come from shrank to 1/2.26 under lz4.
    #[test]
    fn pages_of_values_compress_as_json_does() {
        let ratio = ratio(&of(1000));
        assert!((2.2..2.4).contains(&ratio), "{ratio}");
    }

    #[test]
    fn the_share_that_does_not_compress_is_the_one_that_is_said() {
        let of = |random| ratio(&Values::new(Numbers::One(1000), random, 7));
        let (half, all) = (of(Numbers::One(50)), of(Numbers::One(100)));
        // Of half of it half is left, and of the other half all.
        assert!((1.3..1.5).contains(&half) && (1.0..1.1).contains(&all), "{half} {all}");
        let mixed = of(Numbers::Weighted(vec![(0, 1), (100, 1)]));
        assert!((1.3..1.6).contains(&mixed), "{mixed}");
    }

    #[test]
    fn an_item_has_one_length_whatever_its_version() {
        let values = Values::new(Numbers::Within(64, 4000), Numbers::Within(0, 100), 7);
        let (mut lengths, mut value) = (Vec::new(), Vec::new());
        for item in 0..1000 {
            let mut of = |version| {
                values.make(item, version, &mut value);
                assert_eq!(values.version(item, &value), Ok(version));
                value.len()
            };
            let bytes = of(1);
            assert_eq!(of(2), bytes);
            lengths.push(bytes);
        }
        let mean = lengths.iter().sum::<usize>() as f64 / 1000.0;
        assert!((1900.0..2200.0).contains(&mean), "{mean}");
    }

    proptest! {
        #[test]
        fn a_value_is_known_by_its_item_and_version(bytes in LEAST_BYTES..3000, item in 0..MOST_ITEMS, version: u64) {
            let value = value(bytes, item, version);
            let values = of(bytes);
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
            let read = of(bytes).version(9, &value);
            // Capitals are digits too.
            let same_digit = (CHECKSUM_AT..CHECKSUM_AT + CHECKSUM_DIGITS).contains(&at) && change == b'a' ^ b'A';
            prop_assert!(read.is_err() || same_digit && read == Ok(3), "{:?}", read);
        }
    }
}
