//! Zstandard frames: the dense tiers (level 1: 6.5 µs to restore a page, ratio 2 to 2.8 on heaps).
//!
//! Frames carry no magic number, content size or checksum: 5 bytes a page, 0.4 % of the ratio. A page's length is
//! known, and the pool keeps a checksum with every page.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::{Codec, CodecError, Scratch};
use crate::{PAGE_BYTES, Page};

const NO_CONTEXT: CodecError = CodecError::NoContext { codec: "zstd" };

/// A thread's zstd contexts, created when first needed.
#[derive(Default)]
pub(super) struct Contexts {
    compressor: Option<Compressor>,
    decompressor: Option<DCtx<'static>>,
}

struct Compressor {
    context: CCtx<'static>,
    /// The level `context` is set to; several zstd tiers share one context.
    level: i32,
}

impl Contexts {
    pub(super) fn prepare(&mut self) -> Result<(), CodecError> {
        self.compressor(zstd_safe::CLEVEL_DEFAULT)?;
        self.decompressor().map(|_| ())
    }

    fn compressor(&mut self, level: i32) -> Result<&mut CCtx<'static>, CodecError> {
        if self.compressor.is_none() {
            let mut context = CCtx::try_create().ok_or(NO_CONTEXT)?;
            for parameter in [
                CParameter::Format(FrameFormat::Magicless),
                CParameter::ContentSizeFlag(false),
                CParameter::ChecksumFlag(false),
                CParameter::DictIdFlag(false),
                CParameter::CompressionLevel(level),
            ] {
                context.set_parameter(parameter).map_err(|_| NO_CONTEXT)?;
            }
            self.compressor = Some(Compressor { context, level });
        }
        let compressor = self.compressor.as_mut().ok_or(NO_CONTEXT)?;
        if compressor.level != level {
            compressor.context.set_parameter(CParameter::CompressionLevel(level)).map_err(|_| NO_CONTEXT)?;
            compressor.level = level;
        }
        Ok(&mut compressor.context)
    }

    fn decompressor(&mut self) -> Result<&mut DCtx<'static>, CodecError> {
        if self.decompressor.is_none() {
            let mut context = DCtx::try_create().ok_or(NO_CONTEXT)?;
            context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| NO_CONTEXT)?;
            self.decompressor = Some(context);
        }
        self.decompressor.as_mut().ok_or(NO_CONTEXT)
    }
}

/// Zstandard at one level.
pub(super) struct Zstd {
    level: i32,
    name: String,
}

impl Zstd {
    /// `level`: -5..=19.
    pub(super) fn new(level: i32) -> Self {
        Zstd { level, name: format!("zstd:{level}") }
    }
}

impl Codec for Zstd {
    fn name(&self) -> &str {
        &self.name
    }

    fn compress<'s>(&self, page: &Page, scratch: &'s mut Scratch, limit: usize) -> Option<&'s [u8]> {
        let capacity = limit.min(PAGE_BYTES).checked_sub(1)?;
        let context = scratch.zstd.compressor(self.level).ok()?;
        match context.compress2(scratch.output.get_mut(..capacity)?, page) {
            Ok(written) => scratch.output.get(..written),
            Err(_) => {
                // A failed compression leaves the context inside its frame, where it refuses new parameters.
                let _ = context.reset(ResetDirective::SessionOnly);
                None
            }
        }
    }

    fn decompress(&self, bytes: &[u8], page: &mut Page, scratch: &mut Scratch) -> Result<(), CodecError> {
        let context = scratch.zstd.decompressor()?;
        match context.decompress(page.as_mut_slice(), bytes) {
            Ok(PAGE_BYTES) => Ok(()),
            Ok(got) => Err(CodecError::WrongLength { codec: "zstd", got }),
            Err(code) => {
                let reason = zstd_safe::get_error_name(code);
                Err(CodecError::Damaged { codec: "zstd", len: bytes.len(), reason })
            }
        }
    }
}
