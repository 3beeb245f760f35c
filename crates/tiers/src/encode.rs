//! The form in which a tier keeps a page: a pattern, the page itself, or its codec's output, and
//! the checksum of the page.

use crate::page::Page;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;
use twox_hash::XxHash3_128;

/// How the stored bytes of a page are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// The page repeats one 8-byte pattern, and that pattern is stored (the zero page too).
    Same,
    /// The page as it was, 4096 bytes, since it would not have shrunk enough.
    Raw,
    /// What the tier's codec made of the page, 1..=4032 bytes.
    Coded,
}

/// What a tier stores for a page. It borrows from the page or from the scratch it was made with, or
/// from the pool.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'s> {
    /// How `bytes` is to be read.
    pub encoding: Encoding,
    /// The checksum of the page itself, not of `bytes`: see [`checksum`].
    pub checksum: Checksum,
    /// 8 bytes for [`Encoding::Same`], 4096 for [`Encoding::Raw`], fewer than 4096 for
    /// [`Encoding::Coded`].
    pub bytes: &'s [u8],
}

/// The checksum of a page, 128 bits: see [`checksum`].
pub type Checksum = u128;

/// What proves that a page is another's equal: that it was restored as it was evicted, or has not
/// changed since it was stored. It is of the page itself, so that a codec's mistakes show as well
/// as damaged bytes.
///
/// XXH3 in 128 bits, with a key that each process draws. Of all pages that are not the stored one,
/// one in 2¹²⁸ passes: errors of memory are more likely. 0.09 µs a page. (CRC-32, which may find
/// damage but not prove that nothing changed: 0.08. Comparing with what is stored, as before, takes
/// a decompression: 3 µs with zstd.)
pub fn checksum(page: &Page) -> Checksum {
    XxHash3_128::oneshot_with_seed(key(), page)
}

/// Key of the checksums, drawn when it is first asked for. A forked child has its parent's.
pub(crate) fn key() -> u64 {
    static KEY: OnceLock<u64> = OnceLock::new();
    *KEY.get_or_init(|| RandomState::new().hash_one(0))
}
