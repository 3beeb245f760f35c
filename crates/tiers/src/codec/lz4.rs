//! LZ4 blocks through the C library: the fast tier (1.3 µs to restore a page, ratio 1.3 to 2 on
//! heaps).
//!
//! Only the entry points that take their state from the caller: none of them calls malloc.

use std::ffi::{c_char, c_int, c_void};

use super::{Codec, CodecError, PerThread, Scratch};
use crate::page::{PAGE_BYTES, Page};

/// LZ4's own default: no ratio given up for speed.
const ACCELERATION: c_int = 1;

// In liblz4.a, which lz4-sys builds and links, but not among lz4-sys's declarations (lz4.h 1.10,
// lines 241 and 246).
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        dest: *mut c_char,
        source_bytes: c_int,
        dest_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// LZ4's match table (16.4 KB), reset by LZ4 itself at every page. `u64`, because LZ4 wants it
/// 8-byte aligned.
pub(super) struct State(Box<[u64]>);

impl PerThread for State {}

impl Default for State {
    fn default() -> Self {
        // SAFETY: takes nothing, returns a constant.
        let bytes = unsafe { LZ4_sizeofState() };
        State(vec![0; usize::try_from(bytes).unwrap_or(0).div_ceil(8)].into_boxed_slice())
    }
}

/// What LZ4 wrote of `output`, given what it returned: a length, or 0 where all of it does not fit.
pub(super) fn output_of(output: &[u8], bytes: c_int) -> Option<&[u8]> {
    output.get(..usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)?)
}

/// The LZ4 block codec.
pub(super) struct Lz4;

impl Codec for Lz4 {
    fn name(&self) -> &str {
        "lz4"
    }

    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        // SAFETY: `state` has LZ4_sizeofState() bytes, 8-byte aligned (`State::default`); the
        // source is PAGE_BYTES long; `output` has PAGE_BYTES bytes, more than `capacity`; the three
        // are separate allocations.
        let written = unsafe {
            LZ4_compress_fast_extState(
                scratch.states.lz4.0.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                scratch.output.as_mut_ptr().cast(),
                PAGE_BYTES as c_int,
                capacity as c_int,
                ACCELERATION,
            )
        };
        output_of(&scratch.output[..], written)
    }

    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        _scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        let damaged = |reason| CodecError::Damaged { codec: "lz4", len: bytes.len(), reason };
        let len = c_int::try_from(bytes.len()).map_err(|_| damaged("longer than 2 GiB"))?;
        // SAFETY: the source is `len` bytes long and the destination PAGE_BYTES;
        // LZ4_decompress_safe stays within both for any input (lz4.h: "protected against
        // malicious data packets"); `page` is borrowed mutably, so they differ.
        let got = unsafe {
            lz4_sys::LZ4_decompress_safe(
                bytes.as_ptr().cast(),
                page.as_mut_ptr().cast(),
                len,
                PAGE_BYTES as c_int,
            )
        };
        match usize::try_from(got) {
            Ok(PAGE_BYTES) => Ok(()),
            Ok(got) => Err(CodecError::WrongLength { codec: "lz4", got }),
            Err(_) => Err(damaged("malformed block")),
        }
    }
}
