//! A codec compresses a page. There is one file a codec, all behind [`Codec`], and one row in the
//! table [`CODECS`]. From the row follow its kind, how it is written and made, and what a thread
//! keeps for it.
//!
//! What a codec needs to work is in the [`Scratch`] of the calling thread, so that a page costs no
//! allocation. Of its own it has at most what it [learned](Codec::train). A codec must not panic or
//! read outside its input, whatever bytes it is given.

#[cfg(feature = "deflate")]
mod deflate;
mod lz4;
mod lz4hc;
mod lzo;
mod primed;
mod raw;
mod scratch;
mod zstd;

pub use scratch::Scratch;

use crate::page::Page;

/// Compresses and decompresses single pages.
pub trait Codec: Send + Sync {
    /// The codec as a user writes it, with its level if it has levels: `lz4`, `zstd:1`.
    fn name(&self) -> &str;

    /// Compresses `page` into `scratch`. `None` if the result would be `limit` bytes or more (a
    /// limit above 4096 counts as 4096). `None` also if the codec has no memory for its context.
    /// The page is then better kept as it is.
    fn compress<'s>(&self, page: &Page, scratch: &'s mut Scratch, limit: usize)
    -> Option<&'s [u8]>;

    /// Decompresses `bytes` into `page`. After an error the content of `page` is unspecified and
    /// must not be used. Damaged bytes give an error or a wrong page, never anything worse:
    /// `Tier::decode` looks at the page's checksum.
    ///
    /// # Errors
    /// [`CodecError`] if `bytes` is not this codec's, or does not give exactly 4096 bytes. Also if
    /// there is no memory for a context (only at the first use; see [`Scratch::prepare`]).
    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError>;

    /// Whether the codec compresses; false if it keeps all pages as they are.
    fn compresses(&self) -> bool {
        true
    }

    /// How many pages [`Codec::train`] wants to be shown; 0 if it does not learn.
    fn training_pages(&self) -> usize {
        0
    }

    /// Looks at pages like those to come. From then on compresses differently where that is better
    /// by bytes and by `clock_ns` (any clock, ns; best the thread's own). What was compressed
    /// before is read as before.
    ///
    /// Takes some milliseconds. Other threads may use the codec meanwhile, but no fork may happen:
    /// a child would have half of what was learned. True if anything was learned.
    fn train(&self, _pages: &[Page], _clock_ns: &dyn Fn() -> u64) -> bool {
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
        /// Number of bytes that the codec was given.
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

/// A codec as users write it.
pub struct CodecRow {
    /// Name of the codec in a list of tiers.
    pub word: &'static str,
    /// Levels of the codec, if it has some.
    pub levels: Option<Levels>,
    /// The codec at a level; one without levels ignores it.
    pub kind: fn(i32) -> CodecKind,
    /// Whether this build has the codec.
    pub is_built: bool,
}

/// The levels of a codec. 0 is none of them.
pub struct Levels {
    /// The lowest.
    pub min: i32,
    /// The highest.
    pub max: i32,
    /// The level that is taken where none is written.
    pub default: i32,
    /// What to write instead of a wrong level.
    pub remedy: &'static str,
}

/// What is assumed of a codec until pages were measured: medians of six sets of data, on a core of
/// 2.1 GHz.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumed {
    /// Bytes that are stored for each byte of data.
    pub stored: f64,
    /// Processor time to compress a page, ns.
    pub encode_ns: f64,
    /// Processor time to decompress a page, ns.
    pub decode_ns: f64,
}

/// What a codec keeps in each thread's [`Scratch`].
trait PerThread: Default {
    /// Creates what a later restore needs, so that the restore needs no memory.
    fn prepare(&mut self) -> Result<(), CodecError> {
        Ok(())
    }
}

/// A row is `KIND = "WORD", make CODEC, built WHETHER, assumed WHAT;` after its documentation. A
/// kind with levels is `KIND { level: LEVELS }`, and its codec is made with `level`. What each
/// thread keeps for a codec is `thread NAME: TYPE` before `assumed`.
macro_rules! codecs {
    (@levels) => { None };
    (@levels $levels:expr) => { Some($levels) };
    ($(
        $(#[$about:meta])*
        $kind:ident $({ $level:ident: $levels:expr })? = $word:literal,
        make $make:expr, built $built:expr,
        $(thread $(#[$when:meta])* $state:ident: $type:ty,)?
        assumed $assumed:expr;
    )*) => {
        /// The codecs there are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum CodecKind {
            $(
                $(#[$about])*
                $kind $({
                    /// Level of the codec: see [`Levels`].
                    $level: i32,
                })?,
            )*
        }

        /// The codecs there are, as users write them.
        pub const CODECS: &[CodecRow] = &[$(CodecRow {
            word: $word,
            levels: codecs!(@levels $($levels)?),
            kind: |_level| CodecKind::$kind $({ $level: _level })?,
            is_built: $built,
        },)*];

        impl CodecKind {
            /// What is assumed of the codec until pages were measured.
            pub fn assumed(self) -> Assumed {
                match self { $(CodecKind::$kind { .. } => $assumed,)* }
            }
        }

        /// The codec for a kind. A list of tiers names none that the build lacks (pages are kept as
        /// they are where one is asked for all the same).
        pub fn codec_for(kind: CodecKind) -> Box<dyn Codec> {
            match kind { $(CodecKind::$kind $({ $level })? => Box::new($make),)* }
        }

        /// What all codecs keep for a thread.
        #[derive(Default)]
        struct States {
            $($($(#[$when])* $state: $type,)?)*
        }

        impl States {
            fn prepare(&mut self) -> Result<(), CodecError> {
                $($($(#[$when])* self.$state.prepare()?;)?)*
                Ok(())
            }
        }
    };
}

codecs! {
    /// `lz4`.
    Lz4 = "lz4", make lz4::Lz4, built true, thread lz4: lz4::State,
    assumed Assumed { stored: 0.55, encode_ns: 5_800.0, decode_ns: 1_300.0 };

    /// `lz4hc:LEVEL`: as `lz4` to restore, and a tenth smaller. Of four sets of data none was more
    /// than one part in a hundred smaller at levels 6 and 9. Those from 10 on allocate for each
    /// page. What is assumed is lz4's, times how the two compare on these.
    Lz4Hc { level: Levels {
        min: 3, max: 9, default: 3, remedy: "write 3 to 9, such as lz4hc:3",
    } } = "lz4hc", make lz4hc::Lz4Hc::new(level), built true, thread lz4hc: lz4hc::State,
    assumed Assumed { stored: 0.50, encode_ns: 18_000.0, decode_ns: 1_300.0 };

    /// `zstd:LEVEL`. Beyond level 1 heaps gain less than 2 % (levels 2, 3 and 9 measured); 20 and
    /// above only enlarge windows beyond a page.
    Zstd { level: Levels {
        min: -5, max: 19, default: 1, remedy: "write -5 to 19 without 0, such as zstd:1",
    } } = "zstd", make zstd::Zstd::new(level), built true, thread zstd: zstd::Contexts,
    assumed Assumed { stored: 0.41, encode_ns: 14_900.0, decode_ns: 6_500.0 };

    /// `lzo`: LZO1X.
    Lzo = "lzo", make lzo::Lzo, built true, thread lzo: lzo::State,
    assumed Assumed { stored: 0.54, encode_ns: 6_100.0, decode_ns: 2_300.0 };

    /// `deflate:LEVEL`. The default is the kernel's own. Levels from 10 on take megabytes a thread.
    Deflate { level: Levels {
        min: 1, max: 9, default: 6, remedy: "write 1 to 9, such as deflate:6",
    } } = "deflate", make deflate(level), built cfg!(feature = "deflate"),
    thread #[cfg(feature = "deflate")] deflate: deflate::Contexts,
    assumed Assumed { stored: 0.41, encode_ns: 42_000.0, decode_ns: 8_800.0 };

    /// `raw`: pages as they are. A checksum and a copy each way are what it takes.
    Raw = "raw", make raw::Raw, built true,
    assumed Assumed { stored: 1.0, encode_ns: 700.0, decode_ns: 700.0 };
}

/// Codecs that the published systems name, and that are not built.
pub(crate) const NOT_BUILT: &[&str] =
    &["lzo-rle", "842", "zlib", "libdeflate", "snappy", "snap", "wkdm", "lz4_flex"];

#[cfg(feature = "deflate")]
fn deflate(level: i32) -> impl Codec + use<> {
    deflate::Deflate::new(level)
}

#[cfg(not(feature = "deflate"))]
fn deflate(_: i32) -> impl Codec + use<> {
    raw::Raw
}

/// Asks for all of a stored page at once. It has not been read since it was stored, and zstd begins
/// at several of its places, one cache line after the other: 6 to 9 % of the time to decompress one
/// that is in no cache.
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
