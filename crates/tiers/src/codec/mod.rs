//! A codec compresses one page. One file a codec, all behind [`Codec`], listed in [`codec_for`].
//!
//! What a codec needs to work is in the [`Scratch`] of the calling thread, so that a page costs no
//! allocation; of its own it has at most what it [learned](Codec::learn). A codec must not panic or
//! read outside its input, whatever bytes it is given.

mod lz4;
mod primed;
mod scratch;
mod zstd;

pub use scratch::Scratch;

use crate::Page;
use crate::spec::CodecKind;

/// Compresses and decompresses single pages.
pub trait Codec: Send + Sync {
    /// The codec as a user writes it, with its level if it has levels: `lz4`, `zstd:1`.
    fn name(&self) -> &str;

    /// Compresses `page` into `scratch`. `None` if the result would be `limit` bytes or more (a
    /// limit above 4096 counts as 4096), or if the codec has no memory for its context: the
    /// page is then better kept as it is.
    fn compress<'s>(&self, page: &Page, scratch: &'s mut Scratch, limit: usize)
    -> Option<&'s [u8]>;

    /// Decompresses `bytes` into `page`. After an error the content of `page` is unspecified and
    /// must not be used. Damaged bytes give an error or a wrong page, never anything worse:
    /// `Tier::decode` looks at the page's checksum.
    ///
    /// # Errors
    /// [`CodecError`] if `bytes` is not this codec's, does not give exactly 4096 bytes, or if there
    /// is no memory for a context (only at the first use; see [`Scratch::prepare`]).
    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError>;

    /// How many pages [`Codec::learn`] wants to be shown; 0 if it does not learn.
    fn lesson_pages(&self) -> usize {
        0
    }

    /// Looks at pages like those to come, and from then on compresses differently where that is
    /// better by bytes and by `clock_ns` (any clock, ns; best the thread's own). What was
    /// compressed before is read as before. Takes some milliseconds; others may use the codec
    /// meanwhile, but no fork may happen (a child would have half of what was learned). True if
    /// anything was learned.
    fn learn(&self, _pages: &[Page], _clock_ns: &dyn Fn() -> u64) -> bool {
        false
    }
}

/// Why a codec could not give a page back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not what the codec wrote.
    #[error(
        "{codec} cannot decompress {len} stored bytes ({reason}): \
         they were overwritten or belong to another codec; the page is lost"
    )]
    Damaged {
        /// The codec's name.
        codec: &'static str,
        /// How many bytes it was given.
        len: usize,
        /// What the codec said.
        reason: &'static str,
    },
    /// The bytes decompress, but not to a page.
    #[error(
        "{codec} decompressed {got} bytes where a page has 4096: \
         the stored bytes are not those of a page; the page is lost"
    )]
    WrongLength {
        /// The codec's name.
        codec: &'static str,
        /// How many bytes came out.
        got: usize,
    },
    /// The codec could not get its context.
    #[error(
        "{codec} has no memory for its context: free some and try again; the stored page is untouched"
    )]
    NoContext {
        /// The codec's name.
        codec: &'static str,
    },
}

/// The codec for a kind. All codecs there are.
pub fn codec_for(kind: CodecKind) -> Box<dyn Codec> {
    match kind {
        CodecKind::Lz4 => Box::new(lz4::Lz4),
        CodecKind::Zstd { level } => Box::new(zstd::Zstd::new(level)),
    }
}

/// Asks for all of a stored page at once. Nobody has looked at it since it was stored, and zstd
/// begins at several of its places, one cache line after the other: 6 to 9 % of the time to
/// decompress one that is in no cache.
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint, which reads nothing, may be given for any address, and is given for
        // one of ours.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
