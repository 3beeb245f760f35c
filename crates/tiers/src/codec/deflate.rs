//! Deflate through libdeflate: TierScape's densest tiers have it. zstd:1 is as dense within 5 % and
//! three times as fast. So it is here to compare with, not to be chosen.

use std::ptr::NonNull;

use libdeflate_sys as sys;

use super::{Codec, CodecError, PerThread, Scratch};
use crate::page::{PAGE_BYTES, Page};

const NO_CONTEXT: CodecError = CodecError::NoContext { codec: "deflate" };

/// A thread's contexts of libdeflate, created when first needed.
#[derive(Default)]
pub(super) struct Contexts {
    compressor: Option<Compressor>,
    decompressor: Option<Decompressor>,
}

struct Compressor {
    context: NonNull<sys::libdeflate_compressor>,
    level: i32,
}

struct Decompressor(NonNull<sys::libdeflate_decompressor>);

// SAFETY: a context is plain memory of its own, which libdeflate ties to no thread.
unsafe impl Send for Compressor {}
// SAFETY: as for the compressor.
unsafe impl Send for Decompressor {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: it was allocated by libdeflate and is freed here only.
        unsafe { sys::libdeflate_free_compressor(self.context.as_ptr()) }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: it was allocated by libdeflate and is freed here only.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}

impl PerThread for Contexts {
    fn prepare(&mut self) -> Result<(), CodecError> {
        self.decompressor().map(drop)
    }
}

impl Contexts {
    /// The compressor for a level. Several tiers of one thread share one while they have one level.
    fn compressor(&mut self, level: i32) -> Option<&mut Compressor> {
        if self.compressor.as_ref().is_none_or(|compressor| compressor.level != level) {
            // SAFETY: takes a number, of which a wrong one gives null.
            let context = NonNull::new(unsafe { sys::libdeflate_alloc_compressor(level) })?;
            self.compressor = Some(Compressor { context, level });
        }
        self.compressor.as_mut()
    }

    fn decompressor(&mut self) -> Result<&mut Decompressor, CodecError> {
        if self.decompressor.is_none() {
            // SAFETY: takes nothing; null without memory.
            let context = NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() });
            self.decompressor = Some(Decompressor(context.ok_or(NO_CONTEXT)?));
        }
        self.decompressor.as_mut().ok_or(NO_CONTEXT)
    }
}

/// Deflate at one level.
pub(super) struct Deflate {
    level: i32,
    name: String,
}

impl Deflate {
    /// Deflate at a level, 1..=9.
    pub(super) fn new(level: i32) -> Self {
        Deflate { level, name: format!("deflate:{level}") }
    }
}

impl Codec for Deflate {
    fn name(&self) -> &str {
        &self.name
    }

    fn compress<'s>(
        &self,
        page: &Page,
        scratch: &'s mut Scratch,
        limit: usize,
    ) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        let context = scratch.states.deflate.compressor(self.level)?.context;
        // SAFETY: the context is this thread's alone. The source has PAGE_BYTES bytes and `output`
        // as many, more than `capacity`. Both live through the call and do not overlap.
        let written = unsafe {
            sys::libdeflate_deflate_compress(
                context.as_ptr(),
                page.as_ptr().cast(),
                PAGE_BYTES,
                scratch.output.as_mut_ptr().cast(),
                capacity,
            )
        };
        // 0: it does not fit.
        scratch.output.get(..written).filter(|bytes| !bytes.is_empty())
    }

    fn decompress(
        &self,
        bytes: &[u8],
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), CodecError> {
        let context = scratch.states.deflate.decompressor()?.0;
        let (mut read, mut got) = (0, 0);
        // SAFETY: the context is this thread's alone. The call reads no more than the length of
        // `bytes`, and writes no more than a page, whatever the bytes are. Two lengths are written.
        let result = unsafe {
            sys::libdeflate_deflate_decompress_ex(
                context.as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len(),
                page.as_mut_ptr().cast(),
                PAGE_BYTES,
                &mut read,
                &mut got,
            )
        };
        let damaged = |reason| CodecError::Damaged { codec: "deflate", len: bytes.len(), reason };
        match (result, got) {
            (sys::libdeflate_result_LIBDEFLATE_SUCCESS, PAGE_BYTES) if read == bytes.len() => {
                Ok(())
            }
            (sys::libdeflate_result_LIBDEFLATE_SUCCESS, PAGE_BYTES) => {
                Err(damaged("it goes on behind its end"))
            }
            (sys::libdeflate_result_LIBDEFLATE_SUCCESS, got) => {
                Err(CodecError::WrongLength { codec: "deflate", got })
            }
            (sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE, _) => {
                Err(damaged("it is longer than a page"))
            }
            _ => Err(damaged("malformed stream")),
        }
    }
}
